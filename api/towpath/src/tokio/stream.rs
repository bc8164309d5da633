//! TCP connections.

mod borrowed;
mod methods;
mod owned;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use super::source::{Awaited, IoSource};
use crate::error::io_error;
use crate::net;
use crate::net::address::family_of;
use crate::net::buffers::{all_bytes, bytes, room, rooms, vacant_room};
use crate::net::handle::{OwnedSocket, TCP};
use crate::shared::SharedStack;

pub use borrowed::{ReadHalf, WriteHalf};
pub use owned::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};

/// A TCP connection, as [`tokio::net::TcpStream`](::tokio::net::TcpStream), on a stack in this
/// process.
///
/// Reading and writing are methods of `AsyncReadExt` and
/// `AsyncWriteExt`. Dropping the stream closes the connection;
/// written data is still sent.
///
/// # Examples
/// See [`TcpListener`](super::TcpListener).
pub struct TcpStream {
    io: IoSource<net::TcpStream>,
}

impl TcpStream {
    pub(super) async fn connect_to(
        shared: &Arc<SharedStack>,
        addr: SocketAddr,
    ) -> io::Result<Self> {
        let socket = OwnedSocket::open(shared, family_of(&addr), TCP)?;
        Self::connect_socket(net::TcpStream::of(socket), addr).await
    }

    /// Connects a socket that is not connected yet.
    pub(super) async fn connect_socket(
        socket: net::TcpStream,
        addr: SocketAddr,
    ) -> io::Result<Self> {
        let stream = Self::from_std(socket)?;
        let handle = &stream.io.socket().handle;
        handle.start_connect(addr)?;
        let connected = || handle.attempting().connected().map_err(io_error);
        stream.io.io(Awaited::Connection, connected).await?;
        Ok(stream)
    }

    /// Converts a connection of [`net`] for the current runtime, and sets it to non-blocking mode.
    ///
    /// # Errors
    /// `Other` outside of a Tokio runtime; `NetworkDown` if the stack has ended.
    ///
    /// # Panics
    /// As for [`Self::connect`].
    pub fn from_std(stream: net::TcpStream) -> io::Result<Self> {
        Ok(Self { io: IoSource::new(stream)? })
    }

    /// Converts the connection to one of [`net`], which stays in non-blocking mode.
    ///
    /// # Errors
    /// Never fails today, but a later version may.
    pub fn into_std(self) -> io::Result<net::TcpStream> {
        self.io.socket().try_clone()
    }

    /// Returns the connection with the methods of [`net`], for further options and statistics. Do
    /// not set it to blocking mode.
    pub fn as_std(&self) -> &net::TcpStream {
        self.io.socket()
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.socket().local_addr()
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `NotConnected` if the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.io.socket().peer_addr()
    }

    /// Returns and clears the pending error (SO_ERROR).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.io.socket().take_error()
    }

    /// Waits until the connection is ready for one of the operations in `interest`, and returns the
    /// operations that are possible.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time: a later call returns the same readiness.
    ///
    /// # Errors
    /// `Other` if the runtime of the socket has shut down.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.io.ready(interest).await
    }

    /// Waits until data can be read, or the peer has ended its data. Use it with
    /// [`Self::try_read`].
    ///
    /// # Cancel safety
    /// As for [`Self::ready`].
    ///
    /// # Errors
    /// As for [`Self::ready`].
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until data can be written. Use it with [`Self::try_write`].
    ///
    /// # Cancel safety
    /// As for [`Self::ready`].
    ///
    /// # Errors
    /// As for [`Self::ready`].
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Polls whether data can be read. Only the task of the last poll for reading is woken.
    ///
    /// # Errors
    /// As for [`Self::ready`].
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_io_ready(Awaited::Input, cx)
    }

    /// Polls whether data can be written. Only the task of the last poll for writing is woken.
    ///
    /// # Errors
    /// As for [`Self::ready`].
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_io_ready(Awaited::Room, cx)
    }

    /// Reads received data without waiting. Returns 0 after the end of the data, or if `buf` is
    /// empty.
    ///
    /// # Errors
    /// `WouldBlock` if no data has arrived.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
        unsafe { self.io.socket().attempt_recv(&room(buf), false) }.map_err(io_error)
    }

    /// Reads into several buffers without waiting.
    ///
    /// # Errors
    /// As for [`Self::try_read`].
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        // SAFETY: the buffers refer to `bufs`, which are mutably borrowed during the call.
        unsafe { self.io.socket().attempt_recv(rooms(bufs), false) }.map_err(io_error)
    }

    /// Writes as much of `buf` as fits into the send buffer, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer has no space.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        // SAFETY: the buffer refers to `buf`, which is borrowed during the call.
        unsafe { self.io.socket().attempt_send(&bytes(buf)) }.map_err(io_error)
    }

    /// Writes as much of several buffers as fits into the send buffer, without waiting.
    ///
    /// # Errors
    /// As for [`Self::try_write`].
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: the buffers refer to `bufs`, which are borrowed during the call.
        unsafe { self.io.socket().attempt_send(all_bytes(bufs)) }.map_err(io_error)
    }

    /// Calls `attempt` if the connection is ready for `interest`.
    ///
    /// Unlike in tokio, `WouldBlock` of `attempt` does not change what [`Self::ready`] returns. Use
    /// [`Self::async_io`] if `attempt` may block although the connection is ready.
    ///
    /// # Errors
    /// `WouldBlock` if it is not ready; otherwise the error of `attempt`.
    pub fn try_io<T>(
        &self,
        interest: Interest,
        attempt: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.try_io(interest, attempt)
    }

    /// Calls `attempt` when the connection is ready for `interest`. If `attempt` returns
    /// `WouldBlock`, calls it again after the next event of the connection. Calls may be spurious.
    ///
    /// # Errors
    /// As for [`Self::ready`]; otherwise the error of `attempt`.
    pub async fn async_io<T>(
        &self,
        interest: Interest,
        attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        self.io.async_io(interest, attempt).await
    }

    /// Reads data without removing it, so the next read returns the same bytes.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time, because no data is removed.
    ///
    /// # Errors
    /// As for [`net::TcpStream::peek`].
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.io
            .io(Awaited::Input, || {
                // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the attempt.
                unsafe { self.io.socket().attempt_recv(&room(buf), true) }.map_err(io_error)
            })
            .await
    }

    /// Polls to read data without removing it. Returns the number of bytes.
    ///
    /// # Errors
    /// As for [`Self::peek`].
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        self.poll_recv(cx, buf, true)
    }

    /// Returns whether small segments are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.io.socket().nodelay()
    }

    /// Sets whether small segments are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.io.socket().set_nodelay(nodelay)
    }

    /// Returns how long unsent data is kept after the connection is closed (SO_LINGER).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.io.socket().linger()
    }

    /// Sets how long unsent data is kept after the connection is closed (SO_LINGER). Dropping the
    /// stream never waits.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.io.socket().set_linger(linger)
    }

    /// Sets SO_LINGER to zero, so that dropping the stream resets the connection.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Returns the TTL of sent packets.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn ttl(&self) -> io::Result<u32> {
        self.io.socket().ttl()
    }

    /// Sets the TTL of sent packets.
    ///
    /// # Errors
    /// As for [`net::TcpStream::set_ttl`].
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.io.socket().set_ttl(ttl)
    }

    /// Divides the stream into halves that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf::of(self), WriteHalf::of(self))
    }

    /// Divides the stream into halves that can move to different tasks. Dropping the write half
    /// shuts down writing.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        owned::halves(self)
    }

    /// Polls to read into the unfilled part of `buf`, or to peek if `keep`. Returns the number of
    /// bytes.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        keep: bool,
    ) -> Poll<io::Result<usize>> {
        // SAFETY: the attempts write only initialized bytes.
        let buffers = vacant_room(unsafe { buf.unfilled_mut() });
        let read = ready!(self.io.poll_io(Awaited::Input, cx, || {
            // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
            unsafe { self.io.socket().attempt_recv(&buffers, keep) }.map_err(io_error)
        }))?;
        // SAFETY: the attempt has written `read` bytes to the beginning of the unfilled part.
        unsafe { buf.assume_init(read) };
        buf.advance(read);
        Poll::Ready(Ok(read))
    }

    fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.io.poll_io(Awaited::Room, cx, || self.try_write(buf))
    }

    fn poll_send_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.poll_io(Awaited::Room, cx, || self.try_write_vectored(bufs))
    }

    /// Shuts down writing. As in tokio, succeeds if the connection has already ended.
    fn shut_down_write(&self) -> io::Result<()> {
        match self.io.socket().shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_recv(cx, buf, false).map_ok(drop)
    }
}

impl AsyncWrite for TcpStream {
    methods::write!(|stream| stream);
}

impl TryFrom<net::TcpStream> for TcpStream {
    type Error = io::Error;

    fn try_from(stream: net::TcpStream) -> io::Result<Self> {
        Self::from_std(stream)
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.socket().fmt(f)
    }
}
