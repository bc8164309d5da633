//! Negotiates a connection with an upstream server before the program's SYN is answered.
//!
//! Received bytes are peeked in the host socket, and consumed only after the protocol has parsed
//! them. Therefore bytes of the destination that follow the server's last answer stay in the
//! socket, and are passed to the program.

use std::fmt;
use std::net::SocketAddr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use towpath_shm::Fd;
use towpath_stack::Refusal;

use crate::limits::NEGOTIATION_BYTES_MAX;

/// A server that establishes TCP connections for the gateway, such as a SOCKS server.
pub trait UpstreamServer: fmt::Debug + Send + Sync {
    /// Returns the address of the server.
    fn address(&self) -> SocketAddr;

    /// Begins the negotiation of a connection to `to`.
    fn negotiate(&self, to: SocketAddr) -> Box<dyn Negotiation>;
}

/// Client side of a proxy protocol, by which the gateway requests a connection from an upstream
/// server. Performs no I/O.
pub trait Negotiation: fmt::Debug + Send {
    /// Parses bytes that the server sent, and appends bytes for the server to `out`. The first call
    /// has no received bytes. Bytes that a call does not consume are passed again to the next call,
    /// followed by newly received bytes.
    fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> NegotiationStep;
}

/// Result of [`Negotiation::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NegotiationStep {
    /// The negotiation needs further bytes from the server. Contains the number of consumed bytes.
    Wait(usize),
    /// The negotiation has succeeded, and all further bytes come from the destination. Contains the
    /// number of consumed bytes.
    Done(usize),
    /// The server has refused the connection. The program's SYN is refused in the same way.
    Refused(Refusal),
}

/// Reason why a negotiation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NegotiationFailure {
    Refused(Refusal),
    /// The connection to the upstream server failed or was closed.
    Host(Errno),
}

/// State of a negotiation with an upstream server.
#[derive(Debug)]
pub(crate) struct Negotiating {
    protocol: Box<dyn Negotiation>,
    /// Bytes for the server that the host socket has not accepted yet.
    unsent: Vec<u8>,
    /// Number of received bytes that the protocol has consumed.
    read: usize,
    is_begun: bool,
    is_done: bool,
}

/// Maximum number of bytes peeked by one call, and so the maximum length of a protocol message.
const LOOK_LEN: usize = 1024;

impl Negotiating {
    pub(crate) fn new(protocol: Box<dyn Negotiation>) -> Self {
        Self { protocol, unsent: Vec::new(), read: 0, is_begun: false, is_done: false }
    }

    /// Continues the negotiation as far as received bytes and the socket's send buffer allow.
    /// Returns whether the server has established the connection.
    pub(crate) fn advance(&mut self, host: &Fd) -> Result<bool, NegotiationFailure> {
        if !self.is_begun {
            self.is_begun = true;
            self.step(host, &[])?;
        }
        loop {
            if !self.flush(host)? {
                return Ok(false);
            }
            if self.is_done {
                return Ok(true);
            }
            // Check whether the server has closed the connection before the bytes are peeked. If
            // so, the peek returns all remaining bytes.
            let is_ended = has_ended(host);
            let mut seen = [0; LOOK_LEN];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let len = match recv(host, &mut seen[..], flags) {
                Ok((_, 0)) => return Err(NegotiationFailure::Host(Errno::CONNRESET)),
                Ok((_, len)) => len,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(NegotiationFailure::Host(error)),
            };
            let taken = self.step(host, &seen[..len])?;
            if taken == 0 && !self.is_done {
                return match len {
                    // A message longer than `LOOK_LEN` can never be peeked as a whole.
                    LOOK_LEN => Err(TOO_LONG),
                    // The server has closed the connection in the middle of a message. epoll
                    // reports no further event, so fail now.
                    _ if is_ended => Err(NegotiationFailure::Host(Errno::CONNRESET)),
                    _ => Ok(false),
                };
            }
        }
    }

    /// Passes received bytes to the protocol, and removes the consumed ones from the socket.
    /// Returns the number of consumed bytes.
    fn step(&mut self, host: &Fd, seen: &[u8]) -> Result<usize, NegotiationFailure> {
        let taken = match self.protocol.advance(seen, &mut self.unsent) {
            NegotiationStep::Wait(taken) => taken,
            NegotiationStep::Done(taken) => {
                self.is_done = true;
                taken
            }
            NegotiationStep::Refused(refusal) => return Err(NegotiationFailure::Refused(refusal)),
        };
        let taken = taken.min(seen.len());
        self.read += taken;
        if self.read > NEGOTIATION_BYTES_MAX {
            return Err(TOO_LONG);
        }
        let mut rest = [0; LOOK_LEN];
        let mut left = taken;
        while left > 0 {
            match recv(host, &mut rest[..left], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(NegotiationFailure::Host(Errno::CONNRESET)),
                Ok((_, len)) => left -= len,
                Err(Errno::INTR) => {}
                Err(error) => return Err(NegotiationFailure::Host(error)),
            }
        }
        Ok(taken)
    }

    /// Sends bytes that the negotiation has produced. Returns whether the socket accepted all of
    /// them.
    fn flush(&mut self, host: &Fd) -> Result<bool, NegotiationFailure> {
        while !self.unsent.is_empty() {
            match send(host, &self.unsent, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(NegotiationFailure::Host(error)),
            }
        }
        Ok(true)
    }
}

/// Returns whether the server has closed or reset the connection, so that it sends no more bytes.
fn has_ended(host: &Fd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut polled = [PollFd::new(host, PollFlags::RDHUP)];
        match poll(&mut polled, Some(&now)) {
            Err(Errno::INTR) => {}
            count => return count.is_ok_and(|count| count > 0),
        }
    }
}

/// Error for a server whose message is longer than a negotiation needs.
const TOO_LONG: NegotiationFailure = NegotiationFailure::Host(Errno::PROTO);
