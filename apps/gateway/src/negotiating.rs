//! Negotiation with an upstream server about a connection, before the program's SYN is answered.
//!
//! Bytes are looked at in the host's socket, and taken as far as the protocol has read them. Bytes
//! of the destination that follow the last answer therefore stay there, for the program.

use std::fmt;
use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use towpath_shm::Fd;
use towpath_stack::Refusal;

use crate::limits::NEGOTIATION_BYTES_MAX;

/// A server that makes TCP connections for the gateway, such as a SOCKS server.
pub trait UpstreamServer: fmt::Debug + Send + Sync {
    /// Returns the address of the server.
    fn address(&self) -> SocketAddr;

    /// Begins a negotiation about a connection to `to`.
    fn negotiate(&self, to: SocketAddr) -> Box<dyn Negotiation>;
}

/// The client's side of a protocol in which a connection is asked for. Does no I/O.
pub trait Negotiation: fmt::Debug + Send {
    /// Reads bytes that the server sent, and adds bytes for the server to `out`. Called once
    /// without bytes at the beginning. Bytes that a step does not take are there again at the next
    /// call, together with later ones.
    fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> NegotiationStep;
}

/// Result of a step of a [`Negotiation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NegotiationStep {
    /// Bytes that were read; the server has to send more.
    Wait(usize),
    /// Bytes that were read; later ones are of the destination.
    Done(usize),
    /// The server refuses: the program is told so.
    Refused(Refusal),
}

/// Reason why a negotiation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NegotiationFailure {
    Refused(Refusal),
    /// The connection to the server failed, or it ended.
    Host(Errno),
}

/// A negotiation that is not over.
#[derive(Debug)]
pub(crate) struct Negotiating {
    protocol: Box<dyn Negotiation>,
    /// Bytes that the host's socket did not take yet.
    unsent: Vec<u8>,
    /// Bytes that the protocol has read.
    read: usize,
    is_begun: bool,
    is_done: bool,
}

/// Bytes that a look at the socket gets.
const LOOK_LEN: usize = 1024;

impl Negotiating {
    pub(crate) fn new(protocol: Box<dyn Negotiation>) -> Self {
        Self { protocol, unsent: Vec::new(), read: 0, is_begun: false, is_done: false }
    }

    /// Goes on as far as the server's bytes and the socket's buffer allow. Returns whether the
    /// server has made the connection.
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
                // A message that is longer than a look would never be seen whole.
                return if len < LOOK_LEN { Ok(false) } else { Err(TOO_LONG) };
            }
        }
    }

    /// Gives the protocol bytes. Returns how many it took, which are taken from the socket.
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

    /// Sends what is left. Returns whether the socket took all.
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

/// The server says more than a negotiation needs.
const TOO_LONG: NegotiationFailure = NegotiationFailure::Host(Errno::PROTO);
