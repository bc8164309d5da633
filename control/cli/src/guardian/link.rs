//! Messages between towpath and its guardian. Each message is a packet of five bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send as send_packet};

use towpath_model::wait::wait;

/// Command from towpath to its guardian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardianCommand {
    /// Sends this signal to PROGRAM.
    Signal(i32),
    /// Ends all processes of the run with SIGTERM, and with SIGKILL after the grace period.
    End { grace_ms: u32 },
    /// Requests a single report when PROGRAM is stopped. PROGRAM may be stopped already.
    AwaitStop,
    /// Starts PROGRAM, because the gateway is now connected to the device.
    Go,
}

/// Report from the guardian to towpath.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardianReport {
    /// PROGRAM was started with this process id: the first report, unless [`Self::Refused`] is
    /// sent.
    Started(u32),
    /// PROGRAM could not be executed, with this errno. No report follows.
    Refused(i32),
    /// PROGRAM has exited with this status.
    Exited(u8),
    /// PROGRAM was killed by this signal.
    Killed(i32),
    /// PROGRAM is stopped, as requested by [`GuardianCommand::AwaitStop`].
    Stopped,
    /// No descendant of PROGRAM is alive. No report follows.
    Alone,
}

/// Message that is encoded as a kind and a number.
pub trait Message: Sized {
    fn encode(self) -> (u8, u32);
    fn decode(kind: u8, number: u32) -> Option<Self>;
}

impl Message for GuardianCommand {
    fn encode(self) -> (u8, u32) {
        match self {
            Self::Signal(signal) => (b's', signal as u32),
            Self::End { grace_ms } => (b'e', grace_ms),
            Self::AwaitStop => (b't', 0),
            Self::Go => (b'g', 0),
        }
    }

    fn decode(kind: u8, number: u32) -> Option<Self> {
        match kind {
            b's' => Some(Self::Signal(number as i32)),
            b'e' => Some(Self::End { grace_ms: number }),
            b't' => Some(Self::AwaitStop),
            b'g' => Some(Self::Go),
            _ => None,
        }
    }
}

impl Message for GuardianReport {
    fn encode(self) -> (u8, u32) {
        match self {
            Self::Started(pid) => (b'p', pid),
            Self::Refused(errno) => (b'r', errno as u32),
            Self::Exited(code) => (b'x', code.into()),
            Self::Killed(signal) => (b'k', signal as u32),
            Self::Stopped => (b't', 0),
            Self::Alone => (b'a', 0),
        }
    }

    fn decode(kind: u8, number: u32) -> Option<Self> {
        match kind {
            b'p' => Some(Self::Started(number)),
            b'r' => Some(Self::Refused(number as i32)),
            b'x' => Some(Self::Exited(number as u8)),
            b'k' => Some(Self::Killed(number as i32)),
            b't' => Some(Self::Stopped),
            b'a' => Some(Self::Alone),
            _ => None,
        }
    }
}

/// Result of a non-blocking receive on the socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// No message is available.
    Nothing,
    /// A message was received.
    Message(T),
    /// The peer process has ended.
    End,
}

/// Towpath's end of the socket pair that connects it to the guardian.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Creates a link over `socket`, which must be of type SOCK_SEQPACKET, because this type
    /// preserves message boundaries.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Returns the descriptor that becomes readable when a message arrives or the guardian ends.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends a command to the guardian. Ignores errors, because [`Self::report`] detects the end of
    /// the guardian.
    pub fn command(&self, order: GuardianCommand) {
        let _ = send(self.fd(), order);
    }

    /// Returns the next message of the guardian.
    ///
    /// # Errors
    /// Returns an error if the message is invalid, or if the socket failed.
    pub fn report(&self) -> Result<Received<GuardianReport>> {
        receive(self.fd())
    }
}

/// Waits for [`GuardianCommand::Go`]. Returns false if PROGRAM must not start, or if towpath has
/// ended.
pub fn may_go(owner: BorrowedFd<'_>) -> Result<bool> {
    loop {
        wait(&mut [PollFd::new(&owner, PollFlags::IN)], None)?;
        match receive(owner)? {
            Received::Message(GuardianCommand::Go) => return Ok(true),
            Received::Message(_) | Received::End => return Ok(false),
            Received::Nothing => {}
        }
    }
}

/// Sends a message without blocking.
///
/// # Errors
/// Returns EAGAIN if hundreds of messages are unread because the receiver is stopped. Returns EPIPE
/// if the receiver has ended.
pub fn send(socket: BorrowedFd<'_>, message: impl Message) -> Result<(), Errno> {
    let (kind, number) = message.encode();
    let [a, b, c, d] = number.to_le_bytes();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    send_packet(socket, &[kind, a, b, c, d], flags).map(drop)
}

/// Receives a message, if one is available.
pub fn receive<T: Message>(socket: BorrowedFd<'_>) -> Result<Received<T>> {
    let mut packet = [0; 5];
    loop {
        match recv(socket, &mut packet, RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(Received::End),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(error) => return Err(error).context("the socket to the guardian"),
        }
    }
    let [kind, number @ ..] = packet;
    let message = T::decode(kind, u32::from_le_bytes(number));
    message.map(Received::Message).context("the socket to the guardian: not a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way() {
        let news = [
            GuardianReport::Started(u32::MAX),
            GuardianReport::Refused(2),
            GuardianReport::Exited(255),
            GuardianReport::Killed(64),
            GuardianReport::Stopped,
            GuardianReport::Alone,
        ];
        for message in news {
            let (kind, number) = message.encode();
            assert_eq!(GuardianReport::decode(kind, number), Some(message));
        }
        for message in [
            GuardianCommand::Signal(64),
            GuardianCommand::End { grace_ms: u32::MAX },
            GuardianCommand::AwaitStop,
            GuardianCommand::Go,
        ] {
            let (kind, number) = message.encode();
            assert_eq!(GuardianCommand::decode(kind, number), Some(message));
        }
        assert_eq!(GuardianReport::decode(0, 0), None);
    }
}
