//! Looks up the socket of a call by its descriptor.

use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_client::{Error, WaitLimit, descriptors, handle};
use towpath_shm::control::{ControlReply, Request};
use towpath_shm::layout::{Kind, Slot, flags};

use crate::errno::fail;
use crate::{Errno, Posix, Result};

/// A socket that is open by a descriptor of the process.
#[derive(Debug, Clone, Copy)]
pub struct OpenSocket {
    /// The process.
    pub posix: &'static Posix,
    inner: towpath_client::Handle<'static>,
    /// Shared state of the socket.
    pub slot: &'static Slot,
}

/// Gives access to the attachment and the name of the socket.
impl Deref for OpenSocket {
    type Target = towpath_client::Handle<'static>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl OpenSocket {
    /// Returns the socket of `fd`.
    ///
    /// # Errors
    /// ENOTSOCK for an epoll set, EBADF for a number that belongs to the kernel, ENETDOWN when the
    /// engine has ended or has closed the socket.
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

    /// Changes the program's fields of the slot, unless the slot was reused for a new socket.
    pub fn change<T>(&self, change: impl FnOnce(&Slot) -> T) -> Result<T> {
        Ok(self.inner.change(change)?)
    }

    /// Returns the kind of the socket, which may change.
    pub fn kind(&self) -> Kind {
        handle::kind(self.slot)
    }

    /// Returns whether the socket is one of TCP, listening or not.
    pub fn is_tcp(&self) -> bool {
        handle::is_tcp(self.slot)
    }

    /// Returns whether the socket is an open TCP connection.
    pub fn is_connected(&self) -> bool {
        let seen = self.slot.flags.load(Acquire);
        self.kind() == Kind::Stream && seen & flags::CONNECTED != 0 && self.is_open_stream()
    }

    /// Returns whether a stream is connected, or about to be.
    pub(crate) fn is_open_stream(&self) -> bool {
        handle::is_open_stream(self.slot)
    }

    /// Returns whether the open file has O_NONBLOCK.
    pub fn nonblocking(&self) -> bool {
        self.slot.file_flags.load(Relaxed) & libc::O_NONBLOCK as u32 != 0
    }

    /// Returns the limit of a read: O_NONBLOCK, MSG_DONTWAIT and SO_RCVTIMEO.
    pub fn recv_limit(&self, dontwait: bool) -> WaitLimit {
        self.limit(dontwait, self.slot.rcvtimeo_us.load(Relaxed))
    }

    /// Returns the limit of a write or connect: O_NONBLOCK, MSG_DONTWAIT and SO_SNDTIMEO.
    pub fn send_limit(&self, dontwait: bool) -> WaitLimit {
        self.limit(dontwait, self.slot.sndtimeo_us.load(Relaxed))
    }

    fn limit(&self, dontwait: bool, timeout_us: u32) -> WaitLimit {
        WaitLimit::new(dontwait || self.nonblocking(), timeout_us.into())
    }

    /// As [`towpath_client::Handle::blocking`].
    #[inline]
    pub fn blocking<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut() -> std::result::Result<T, Error>,
    ) -> Result<T> {
        Ok(self.inner.blocking(limit, attempt)?)
    }

    /// As [`towpath_client::Handle::sending`].
    #[inline]
    pub fn sending<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut() -> std::result::Result<T, Error>,
    ) -> Result<T> {
        Ok(self.inner.sending(limit, attempt)?)
    }

    /// Returns the value that this process last set an option to, if it did.
    pub(crate) fn remembered(&self, level: i32, name: i32) -> Option<i32> {
        self.posix.remembered.value(self.socket, level, name)
    }

    /// Notes the value of an option that was set.
    pub(crate) fn remember(&self, level: i32, name: i32, value: i32) {
        self.posix.remembered.set(self.socket, level, name, value);
    }

    /// Makes a request about the socket, and waits for the answer.
    pub(crate) fn call(&self, call: u32, fill: impl FnOnce(&mut Request)) -> Result<ControlReply> {
        let request = self.inner.request(call, fill);
        match self.client.call(&request) {
            Err(Error::Forked) => self.posix.call(&request),
            result => Ok(result?),
        }
    }
}
