//! Writes bytes to a connection, directly into its send buffer.

use std::{fmt, io};

use towpath_pool::Fragments;
use towpath_ring::{HeapSend, Payload, SendBuffer};

use super::byte_reader::ByteReader;

/// Free space of a connection's send buffer.
///
/// The bytes are sent after the call of the handler. [`std::io::Write`] fails with `WouldBlock` if
/// the buffer is full, and with `BrokenPipe` after [`Conn::end_bytes`](super::Conn::end_bytes).
pub struct ByteWriter<'a> {
    /// Send buffer; `None` if no more bytes may be sent.
    pub(super) send: Option<&'a mut HeapSend>,
    /// Contiguous memory for reserved space that wraps around the end of the send buffer.
    pub(super) scratch: &'a mut Vec<u8>,
    /// Set to true if a call added bytes to the send buffer.
    pub(super) was_written: &'a mut bool,
}

/// Reserved space of a send buffer: see [`ByteWriter::reserve`].
pub struct ReservedBytes<'a> {
    send: &'a mut HeapSend,
    scratch: &'a mut Vec<u8>,
    was_written: &'a mut bool,
    len: usize,
    /// Whether the reserved space wraps around the end of the ring buffer. The handler then writes
    /// into `scratch`, because the space is not contiguous.
    wraps: bool,
}

impl ByteWriter<'_> {
    /// Returns the number of bytes that fit into the send buffer now.
    pub fn room(&self) -> usize {
        self.send.as_ref().map_or(0, |send| send.room() as usize)
    }

    /// Returns the number of written bytes that the peer has not acknowledged.
    pub fn queued(&self) -> usize {
        self.send.as_ref().map_or(0, |send| send.len() as usize)
    }

    /// Reserves `n` bytes of the send buffer, to write into them. Nothing is sent until
    /// [`ReservedBytes::commit`]. Returns `None` if there is less room; the handler then returns
    /// [`ConnAction::AwaitRoom`](super::ConnAction::AwaitRoom).
    ///
    /// If the buffer is empty, it grows for this reservation, up to its maximum size
    /// ([`super::ServeOptions::send_buffer`]).
    pub fn reserve(&mut self, n: usize) -> Option<ReservedBytes<'_>> {
        let send = self.send.as_deref_mut()?;
        let wanted = u32::try_from(n).ok()?;
        send.want_room(wanted);
        if send.room() < wanted {
            return None;
        }
        let [front, back] = send.spare_slices();
        if front.len() + back.len() < n {
            return None;
        }
        let wraps = front.len() < n;
        if wraps {
            self.scratch.resize(n.max(self.scratch.len()), 0);
        }
        let (scratch, was_written) = (&mut *self.scratch, &mut *self.was_written);
        Some(ReservedBytes { send, scratch, was_written, len: n, wraps })
    }

    /// Copies as many bytes as fit into the send buffer, and returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let Some(send) = self.send.as_deref_mut().filter(|_| !bytes.is_empty()) else { return 0 };
        // Limiting the length to `u32` loses nothing, because a send buffer has less than 4 GiB.
        let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
        let n = send.write(&Payload::new(bytes, Fragments::empty()));
        *self.was_written |= n > 0;
        n as usize
    }

    /// Copies all bytes to the send buffer, or none if they do not fit. Returns whether they were
    /// copied.
    pub fn write_all(&mut self, bytes: &[u8]) -> bool {
        match self.reserve(bytes.len()) {
            Some(reserved) => reserved.fill(bytes),
            None => false,
        }
    }

    /// Moves as many unread bytes of `reader` as fit into the send buffer, and returns their
    /// number.
    pub fn forward(&mut self, reader: &mut ByteReader<'_>) -> usize {
        let mut n = 0;
        for slice in reader.slices() {
            n += self.write(slice);
        }
        reader.skip(n)
    }
}

impl ReservedBytes<'_> {
    /// Returns the reserved space, which is not cleared and contains bytes of earlier data.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self.wraps {
            true => &mut self.scratch[..self.len],
            false => {
                let [front, _] = self.send.spare_slices();
                let n = self.len.min(front.len());
                &mut front[..n]
            }
        }
    }

    /// Sends the first `n` bytes of the reserved space, or all of it if `n` is larger.
    pub fn commit(self, n: usize) {
        let n = n.min(self.len);
        if self.wraps {
            let [front, back] = self.send.spare_slices();
            let (first, second) = self.scratch[..n].split_at(n.min(front.len()));
            front[..first.len()].copy_from_slice(first);
            back[..second.len()].copy_from_slice(second);
        }
        self.send.commit(n as u32);
        *self.was_written |= n > 0;
    }

    /// Copies `bytes`, which has the length of the reserved space, and sends them.
    fn fill(self, bytes: &[u8]) -> bool {
        let n = self.send.write(&Payload::new(bytes, Fragments::empty()));
        *self.was_written |= n > 0;
        n as usize == bytes.len()
    }
}

impl io::Write for ByteWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.write(bytes) {
            0 if bytes.is_empty() => Ok(0),
            0 if self.send.is_none() => Err(io::ErrorKind::BrokenPipe.into()),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for ByteWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteWriter").field("room", &self.room()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReservedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedBytes").field("len", &self.len).finish_non_exhaustive()
    }
}
