//! The object of a call: the socket behind a descriptor, and how long the call may wait for it.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use towpath_client::interrupt::Handled;
use towpath_client::{Client, Error, Socket, descriptors};
use towpath_client::{Deadline, wait};
use towpath_shm::control::{ControlReply, Request};
use towpath_shm::layout::{Kind, Slot, flags};

use crate::errno::fail;
use crate::{Errno, Posix, Result};

const TCP_CLOSE: u32 = 7;

/// A socket call's two ends: the process with its attachment, and the socket behind the descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Handle {
    /// The process.
    pub posix: &'static Posix,
    /// The attachment.
    pub client: &'static Client,
    /// The socket.
    pub socket: Socket,
    /// Its shared state.
    pub slot: &'static Slot,
}

/// How long a call may wait.
#[derive(Debug, Clone, Copy)]
pub struct CallPatience {
    /// Not at all.
    pub nonblocking: bool,
    /// Until then; None: for ever.
    pub deadline: Option<Deadline>,
    /// The signal handlers that had run when the call began: one more interrupts the wait.
    pub since: Handled,
}

impl Handle {
    /// The socket that `fd` stands for.
    ///
    /// # Errors
    /// ENOTSOCK for an epoll set, EBADF for a number that is not ours, ENETDOWN when the engine is
    /// gone or has given the socket up.
    pub fn new(posix: &'static Posix, fd: i32) -> Result<Self> {
        let Some(socket) = posix.process.descriptors.socket(fd) else {
            return match posix.process.descriptors.lookup(fd) {
                descriptors::Entry::Epoll(_) => fail(libc::ENOTSOCK),
                _ => fail(libc::EBADF),
            };
        };
        let client = posix.client()?;
        let slot = client.slot(socket).ok_or(Errno(libc::ENETDOWN))?;
        Ok(Self { posix, client, socket, slot })
    }

    /// Changes what belongs to the program in the slot, unless that has become another socket's.
    pub fn change<T>(&self, change: impl FnOnce(&Slot) -> T) -> Result<T> {
        Ok(self.socket.change(self.client, change)?)
    }

    /// Kind of the socket, which may change.
    pub fn kind(&self) -> Kind {
        Kind::from_u32(self.slot.kind.load(Acquire)).unwrap_or(Kind::Free)
    }

    /// Whether it is a TCP socket (listening or not).
    pub fn is_tcp(&self) -> bool {
        matches!(self.kind(), Kind::Stream | Kind::Listener)
    }

    /// Whether it is a TCP connection that is open.
    pub fn is_connected(&self) -> bool {
        let seen = self.slot.flags.load(Acquire);
        self.kind() == Kind::Stream && seen & flags::CONNECTED != 0 && self.is_open_stream()
    }

    /// Whether a stream is connected, or about to be.
    pub(crate) fn is_open_stream(&self) -> bool {
        let seen = self.slot.flags.load(Acquire);
        seen & (flags::CONNECTED | flags::CONNECTING) != 0
            && seen & flags::DEAD == 0
            && self.slot.state.load(Acquire) != TCP_CLOSE
    }

    /// O_NONBLOCK of the open file.
    pub fn nonblocking(&self) -> bool {
        self.slot.file_flags.load(Relaxed) & libc::O_NONBLOCK as u32 != 0
    }

    /// For reads: O_NONBLOCK, MSG_DONTWAIT and SO_RCVTIMEO.
    pub fn recv_patience(&self, dontwait: bool) -> CallPatience {
        self.patience(dontwait, self.slot.rcvtimeo_us.load(Relaxed))
    }

    /// For writes and connect: O_NONBLOCK, MSG_DONTWAIT and SO_SNDTIMEO.
    pub fn send_patience(&self, dontwait: bool) -> CallPatience {
        self.patience(dontwait, self.slot.sndtimeo_us.load(Relaxed))
    }

    fn patience(&self, dontwait: bool, timeout_us: u32) -> CallPatience {
        let limit = (timeout_us != 0).then(|| Duration::from_micros(u64::from(timeout_us)));
        CallPatience {
            nonblocking: dontwait || self.nonblocking(),
            deadline: limit.map(Deadline::after),
            since: Handled::so_far(),
        }
    }

    /// Repeats `attempt` while it would block, until `patience` allows no further wait. Without
    /// patience a call that reads waits nevertheless for what programs of the run have sent.
    #[inline]
    pub fn blocking<T>(
        &self,
        patience: CallPatience,
        mut attempt: impl FnMut() -> std::result::Result<T, Error>,
    ) -> Result<T> {
        match attempt() {
            Err(Error::WouldBlock) if !patience.nonblocking => {
                let CallPatience { deadline, since, .. } = patience;
                Ok(wait::until(self.client, self.socket, deadline, since, attempt)?)
            }
            Err(Error::WouldBlock) if self.client.await_senders(self.socket) => Ok(attempt()?),
            result => Ok(result?),
        }
    }

    /// Value that this process set an option to last; None: it never did.
    pub(crate) fn remembered(&self, level: i32, name: i32) -> Option<i32> {
        self.posix.remembered.value(self.socket, level, name)
    }

    /// An option was set.
    pub(crate) fn remember(&self, level: i32, name: i32, value: i32) {
        self.posix.remembered.set(self.socket, level, name, value);
    }

    fn request(&self, call: u32) -> Request {
        Request {
            call,
            slot: self.socket.slot,
            generation: self.socket.generation,
            ..Request::default()
        }
    }

    /// A call about this socket.
    pub(crate) fn call(&self, call: u32, fill: impl FnOnce(&mut Request)) -> Result<ControlReply> {
        let mut request = self.request(call);
        fill(&mut request);
        match self.client.call(&request) {
            Err(Error::Forked) => self.posix.call(&request),
            result => Ok(result?),
        }
    }
}
