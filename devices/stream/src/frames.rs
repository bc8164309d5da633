//! Buffers for Ethernet frames that are sent and received as a stream of bytes.

use std::io::{self, Read, Write};

/// Maximum length of a frame in bytes: that of QEMU (NET_BUFSIZE in include/net/net.h).
pub const FRAME_MAX: usize = 4096 + 65_536;
/// Size in bytes of the buffer for each direction. A batch of frames to send fits in one.
pub const BUFFER: usize = 256 << 10;
/// Length in bytes of the length field before each frame.
const PREFIX: usize = 4;

/// The length field of a frame is zero or more than [`FRAME_MAX`]. The stream cannot be parsed
/// further.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadLength;

/// Buffer for received bytes, from which frames are parsed.
#[derive(Debug)]
pub(crate) struct FrameReader {
    bytes: Box<[u8]>,
    /// Range of the bytes in the buffer that are not parsed yet.
    start: usize,
    end: usize,
}

impl FrameReader {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; BUFFER].into(), start: 0, end: 0 }
    }

    /// Reads from the stream once, and returns the number of bytes; 0 means the end of the stream.
    pub(crate) fn fill(&mut self, from: &mut impl Read) -> io::Result<usize> {
        // Move the rest of the last read to the front. The rest is only an incomplete frame, so
        // little is copied.
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let read = from.read(&mut self.bytes[self.end..])?;
        self.end += read;
        Ok(read)
    }

    /// Returns the next frame; `None` if it has not been received completely.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, BadLength> {
        let Some((at, len)) = self.complete()? else { return Ok(None) };
        self.start = at + len;
        Ok(Some(&self.bytes[at..at + len]))
    }

    /// Returns whether [`FrameReader::next`] can return a frame or an error without another read.
    pub(crate) fn has_next(&self) -> bool {
        !matches!(self.complete(), Ok(None))
    }

    /// Returns position and length of the next frame; `None` if it has not been received
    /// completely.
    fn complete(&self) -> Result<Option<(usize, usize)>, BadLength> {
        let unread = &self.bytes[self.start..self.end];
        let Some((prefix, frame)) = unread.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let len = u32::from_be_bytes(*prefix) as usize;
        if len == 0 || len > FRAME_MAX {
            return Err(BadLength);
        }
        Ok((frame.len() >= len).then_some((self.start + PREFIX, len)))
    }
}

/// Buffer for frames to send.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    bytes: Vec<u8>,
    /// Number of bytes at the start of the buffer that the socket has accepted.
    sent: usize,
}

impl FrameWriter {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::with_capacity(BUFFER), sent: 0 }
    }

    /// Returns whether all frames in the buffer were sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Appends a frame of `len` bytes, which `fill` writes. Returns false if the buffer has no
    /// space for it.
    pub(crate) fn push(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
        }
        let at = self.bytes.len() + PREFIX;
        if at + len > BUFFER {
            return false;
        }
        self.bytes.extend_from_slice(&(len as u32).to_be_bytes());
        self.bytes.resize(at + len, 0);
        fill(&mut self.bytes[at..]);
        true
    }

    /// Sends as many bytes as the socket accepts.
    pub(crate) fn flush(&mut self, to: &mut impl Write) -> io::Result<()> {
        while !self.is_empty() {
            match to.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test stream that returns at most the given number of bytes per read.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let len = self.0.len().min(self.1).min(to.len());
            let (now, later) = self.0.split_at(len);
            to[..len].copy_from_slice(now);
            self.0 = later;
            Ok(len)
        }
    }

    fn bytes(frames: &[&[u8]]) -> Vec<u8> {
        let mut writer = FrameWriter::new();
        for frame in frames {
            assert!(writer.push(frame.len(), |to| to.copy_from_slice(frame)));
        }
        let mut bytes = Vec::new();
        writer.flush(&mut bytes).expect("memory");
        assert!(writer.is_empty());
        bytes
    }

    #[test]
    fn frames_survive_pieces_of_any_length() {
        let long = vec![7; FRAME_MAX];
        let frames: [&[u8]; 4] = [&[1; 60], &long, &[2], &long];
        let bytes = bytes(&frames[..3]).into_iter().chain(bytes(&frames[3..])).collect::<Vec<_>>();
        for piece in [1, 3, 61, 65, 4096, BUFFER] {
            let (mut reader, mut from, mut got) = (FrameReader::new(), Pieces(&bytes, piece), 0);
            loop {
                while let Some(frame) = reader.next().expect("valid lengths") {
                    assert_eq!(frame, frames[got], "frame {got} in pieces of {piece} bytes");
                    got += 1;
                }
                assert!(!reader.has_next());
                if reader.fill(&mut from).expect("memory") == 0 {
                    break;
                }
            }
            assert_eq!(got, frames.len());
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0, FRAME_MAX as u32 + 1, u32::MAX] {
            let mut reader = FrameReader::new();
            reader.fill(&mut &len.to_be_bytes()[..]).expect("memory");
            assert!(reader.has_next());
            assert_eq!(reader.next(), Err(BadLength), "{len}");
        }
    }

    #[test]
    fn a_full_buffer_refuses_frames_until_it_is_sent() {
        let mut writer = FrameWriter::new();
        let count = (0..).take_while(|_| writer.push(1000, |_| {})).count();
        assert_eq!(count, BUFFER / 1004);
        writer.flush(&mut Vec::new()).expect("memory");
        assert!(writer.push(FRAME_MAX, |_| {}));
    }
}
