//! [`OpenSocket`], the socket on which a call acts, found by its descriptor.

use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_client::{Error, WaitLimit, descriptors, handle};
use towpath_shm::control::{ControlReply, Request};
use towpath_shm::layout::{Kind, Slot, flags};

use crate::errno::fail;
use crate::{Errno, Posix, Result};

/// A socket of the stack, looked up by a descriptor of the process.
#[derive(Debug, Clone, Copy)]
pub struct OpenSocket {
    /// The library's state in this process.
    pub posix: &'static Posix,
    inner: towpath_client::Handle<'static>,
    /// The state of the socket in memory shared with the engine.
    pub slot: &'static Slot,
}

/// Gives access to the fields of the client library's handle: the attachment to the engine, and the
/// socket's index and generation.
impl Deref for OpenSocket {
    type Target = towpath_client::Handle<'static>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl OpenSocket {
    /// Returns the socket of the stack with descriptor `fd`.
    ///
    /// # Errors
    /// ENOTSOCK for an epoll set, and EBADF for a descriptor of the kernel. ENETDOWN if the engine
    /// has ended or has closed the socket.
    pub fn new(posix: &'static Posix, fd: i32) -> Result<Self> {
        let Some(socket) = posix.process.descriptors.socket(fd) else {
            return match posix.process.descriptors.lookup(fd) {
                descriptors::DescriptorKind::Epoll(_) => fail(libc::ENOTSOCK),
                _ => fail(libc::EBADF),
            };
        };
        let client = posix.client()?;
        let slot = client.slot(socket).ok_or(Errno(libc::ENETDOWN))?;
        Ok(Self { posix, inner: towpath_client::Handle { client, socket }, slot })
    }

    /// Calls `change` to modify the fields of the socket's shared state that the program writes.
    /// Fails if the socket was closed and its slot is used by a new one.
    pub fn change<T>(&self, change: impl FnOnce(&Slot) -> T) -> Result<T> {
        Ok(self.inner.change(change)?)
    }

    /// Returns the kind of the socket. The kind changes, for example, when listen(2) turns a stream
    /// into a listener.
    pub fn kind(&self) -> Kind {
        handle::kind(self.slot)
    }

    /// Returns whether this is a TCP socket, listening or not.
    pub fn is_tcp(&self) -> bool {
        handle::is_tcp(self.slot)
    }

    /// Returns whether the socket is an established TCP connection.
    pub fn is_connected(&self) -> bool {
        let seen = self.slot.flags.load(Acquire);
        self.kind() == Kind::Stream && seen & flags::CONNECTED != 0 && self.is_open_stream()
    }

    /// Returns whether this is a stream socket that is connecting or connected.
    pub(crate) fn is_open_stream(&self) -> bool {
        handle::is_open_stream(self.slot)
    }

    /// Returns whether O_NONBLOCK is set on the socket.
    pub fn nonblocking(&self) -> bool {
        self.slot.file_flags.load(Relaxed) & libc::O_NONBLOCK as u32 != 0
    }

    /// Returns how long a read may wait, by O_NONBLOCK, MSG_DONTWAIT and SO_RCVTIMEO.
    pub fn recv_limit(&self, dontwait: bool) -> WaitLimit {
        self.limit(dontwait, self.slot.rcvtimeo_us.load(Relaxed))
    }

    /// Returns how long a write or connect may wait, by O_NONBLOCK, MSG_DONTWAIT and SO_SNDTIMEO.
    pub fn send_limit(&self, dontwait: bool) -> WaitLimit {
        self.limit(dontwait, self.slot.sndtimeo_us.load(Relaxed))
    }

    fn limit(&self, dontwait: bool, timeout_us: u32) -> WaitLimit {
        WaitLimit::new(dontwait || self.nonblocking(), timeout_us.into())
    }

    /// Repeats an operation until it does not block, as [`towpath_client::Handle::blocking`] does.
    #[inline]
    pub fn blocking<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut() -> std::result::Result<T, Error>,
    ) -> Result<T> {
        Ok(self.inner.blocking(limit, attempt)?)
    }

    /// Repeats a send until it does not block, as [`towpath_client::Handle::sending`] does.
    #[inline]
    pub fn sending<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut() -> std::result::Result<T, Error>,
    ) -> Result<T> {
        Ok(self.inner.sending(limit, attempt)?)
    }

    /// Returns the value to which this process last set a socket option; `None` if it has not set
    /// it.
    pub(crate) fn remembered(&self, level: i32, name: i32) -> Option<i32> {
        self.posix.remembered.value(self.socket, level, name)
    }

    /// Stores the value to which the program has set an option, for [`Self::remembered`].
    pub(crate) fn remember(&self, level: i32, name: i32, value: i32) {
        self.posix.remembered.set(self.socket, level, name, value);
    }

    /// Sends the engine a request about this socket, and waits for the answer.
    pub(crate) fn call(&self, call: u32, fill: impl FnOnce(&mut Request)) -> Result<ControlReply> {
        let request = self.inner.request(call, fill);
        match self.client.call(&request) {
            Err(Error::Forked) => self.posix.call(&request),
            result => Ok(result?),
        }
    }
}
