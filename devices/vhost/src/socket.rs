//! Receives and answers messages on the socket of a front end.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use crate::front_end::FrontEndError;
use crate::message::{
    DESCRIPTORS_MAX, HEADER_LEN, IS_REPLY, NEEDS_REPLY, PAYLOAD_MAX, VERSION, VERSION_MASK,
};

/// Maximum length of an answer's payload in bytes.
const ANSWER_MAX: usize = 8;

/// The message that is being received. Messages may arrive in pieces.
#[derive(Debug)]
pub(crate) struct MessageReader {
    bytes: [u8; HEADER_LEN + PAYLOAD_MAX],
    len: usize,
    descriptors: Vec<OwnedFd>,
}

/// A received message. The payload is [`MessageReader::payload`].
#[derive(Debug)]
pub(crate) struct FrontEndMessage {
    pub(crate) number: u32,
    /// Whether the front end waits for an answer even if the request has none.
    pub(crate) needs_reply: bool,
    pub(crate) descriptors: Vec<OwnedFd>,
    payload_len: usize,
}

impl MessageReader {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; HEADER_LEN + PAYLOAD_MAX], len: 0, descriptors: Vec::new() }
    }

    /// Returns the payload of the message that [`Self::next`] has returned last.
    pub(crate) fn payload(&self, message: &FrontEndMessage) -> &[u8] {
        &self.bytes[HEADER_LEN..HEADER_LEN + message.payload_len]
    }

    /// Returns the next message; `None` if it has not arrived completely.
    pub(crate) fn next(
        &mut self,
        socket: impl AsFd,
    ) -> Result<Option<FrontEndMessage>, FrontEndError> {
        loop {
            let wanted = self.wanted()?;
            if self.len < wanted {
                match self.fill(&socket, wanted) {
                    Ok(()) => continue,
                    Err(FrontEndError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                }
            }
            self.len = 0;
            return Ok(Some(FrontEndMessage {
                number: self.word(0),
                needs_reply: self.word(4) & NEEDS_REPLY != 0,
                descriptors: std::mem::take(&mut self.descriptors),
                payload_len: wanted - HEADER_LEN,
            }));
        }
    }

    fn word(&self, at: usize) -> u32 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|n| self.bytes[at + n]);
        u32::from_ne_bytes([a, b, c, d])
    }

    /// Returns the length of the message, as far as it is known. Bytes of the next message are not
    /// received, because its descriptors would be mixed with those of this one.
    fn wanted(&self) -> Result<usize, FrontEndError> {
        if self.len < HEADER_LEN {
            return Ok(HEADER_LEN);
        }
        let (flags, len) = (self.word(4), self.word(8));
        if flags & VERSION_MASK != VERSION {
            return Err(FrontEndError::Version(flags & VERSION_MASK));
        }
        if len as usize > PAYLOAD_MAX {
            return Err(FrontEndError::TooLong(len));
        }
        Ok(HEADER_LEN + len as usize)
    }

    /// Receives bytes up to a total of `wanted`, and descriptors.
    fn fill(&mut self, socket: impl AsFd, wanted: usize) -> Result<(), FrontEndError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.bytes[self.len..wanted])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = loop {
            match recvmsg(&socket, &mut parts, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                received => break received.map_err(io::Error::from)?,
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.descriptors.extend(rights);
            }
        }
        // The kernel closes descriptors that exceed the space.
        let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
        if is_cut || self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(FrontEndError::Descriptors);
        }
        if received.bytes == 0 {
            return Err(FrontEndError::Closed);
        }
        self.len += received.bytes;
        Ok(())
    }
}

/// Sends the answer to a request.
///
/// # Errors
/// Returns an error if the socket does not take it at once. The front end then does not read its
/// answers.
pub(crate) fn answer(socket: impl AsFd, number: u32, payload: [u8; ANSWER_MAX]) -> io::Result<()> {
    let mut bytes = [0; HEADER_LEN + ANSWER_MAX];
    let header = [number, VERSION | IS_REPLY, ANSWER_MAX as u32];
    for (to, word) in bytes.chunks_exact_mut(4).zip(header) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes[HEADER_LEN..].copy_from_slice(&payload);
    let sent = send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
}
