//! DNS messages on a TCP connection, each preceded by its length in 16 bits (RFC 1035 §4.2.2).

use towpath_direct::{PrivateSockets, SocketHandle};

/// Length in bytes of the field in front of each message.
const PREFIX_LEN: usize = 2;
/// Number of bytes that are read at a time.
const READ_LEN: usize = 4096;
/// Maximum number of bytes that wait to be sent. A peer that reads less loses its connection.
const UNSENT_MAX: usize = 128 << 10;

/// Messages that are received from a TCP connection, and those that are sent on it.
#[derive(Debug, Default)]
pub struct MessageStream {
    /// Received bytes of a message that is not complete.
    partial: Vec<u8>,
    unsent: Vec<u8>,
}

/// The peer does not read, or the connection has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamBlocked;

impl MessageStream {
    /// Removes and returns the next message; `None` if it is not complete yet.
    pub fn next_message(
        &mut self,
        socket: SocketHandle,
        sockets: &mut dyn PrivateSockets,
    ) -> Option<Vec<u8>> {
        loop {
            if let Some((prefix, rest)) = self.partial.split_first_chunk::<PREFIX_LEN>() {
                let len = usize::from(u16::from_be_bytes(*prefix));
                if rest.len() >= len {
                    let message = rest[..len].to_vec();
                    self.partial.drain(..PREFIX_LEN + len);
                    return Some(message);
                }
            }
            let mut bytes = [0; READ_LEN];
            let count = sockets.recv(socket, &mut bytes).ok().filter(|count| *count > 0)?;
            self.partial.extend_from_slice(&bytes[..count]);
        }
    }

    /// Queues a message, and sends as much as possible.
    ///
    /// # Errors
    /// Fails if too many bytes wait to be sent.
    pub fn send(
        &mut self,
        message: &[u8],
        socket: SocketHandle,
        sockets: &mut dyn PrivateSockets,
    ) -> Result<(), StreamBlocked> {
        // Messages have at most 65,535 bytes.
        self.unsent.extend((message.len() as u16).to_be_bytes());
        self.unsent.extend_from_slice(message);
        self.flush(socket, sockets);
        if self.unsent.len() > UNSENT_MAX { Err(StreamBlocked) } else { Ok(()) }
    }

    /// Sends as many of the queued bytes as possible.
    pub fn flush(&mut self, socket: SocketHandle, sockets: &mut dyn PrivateSockets) {
        while let Ok(count @ 1..) = sockets.send(socket, &self.unsent) {
            self.unsent.drain(..count);
        }
    }

    /// Returns whether all bytes were passed to the connection.
    pub fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }
}
