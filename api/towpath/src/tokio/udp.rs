//! UDP sockets.

mod options;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::tokio::io::{Interest, ReadBuf, Ready};
use towpath_client::Buffer;

use super::source::{Awaited, IoSource};
use crate::error::io_error;
use crate::net;
use crate::net::buffers::{room, vacant_room};
use crate::shared::SharedStack;

/// A UDP socket, as [`tokio::net::UdpSocket`](::tokio::net::UdpSocket), on a stack in this process.
///
/// Dropping the socket closes it; queued datagrams are still sent. The socket cannot be split into
/// halves. Share it by an [`Arc`] instead, since its methods take `&self`.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use towpath::tokio::UdpSocket;
///
/// let stack = towpath::Stack::builder().loopback().start()?;
/// let a = UdpSocket::bind_on(&stack, "127.0.0.1:0").await?;
/// let b = UdpSocket::bind_on(&stack, "127.0.0.1:0").await?;
/// a.send_to(b"ping", b.local_addr()?).await?;
/// let mut buf = [0; 1500];
/// let (len, from) = b.recv_from(&mut buf).await?;
/// assert_eq!((&buf[..len], from), (&b"ping"[..], a.local_addr()?));
/// # Ok(())
/// # }
/// ```
pub struct UdpSocket {
    pub(super) io: IoSource<net::UdpSocket>,
}

impl UdpSocket {
    /// Converts a socket of [`net`] for the current runtime, and sets it to non-blocking mode.
    ///
    /// # Errors
    /// `Other` outside of a Tokio runtime; `NetworkDown` if the stack has ended.
    ///
    /// # Panics
    /// As for [`Self::bind`].
    pub fn from_std(socket: net::UdpSocket) -> io::Result<Self> {
        Ok(Self { io: IoSource::new(socket)? })
    }

    /// Converts the socket to one of [`net`], which stays in non-blocking mode.
    ///
    /// # Errors
    /// Never fails today, but a later version may.
    pub fn into_std(self) -> io::Result<net::UdpSocket> {
        self.io.socket().try_clone()
    }

    /// Returns the socket with the methods of [`net`], for further options. Do not set it to
    /// blocking mode.
    pub fn as_std(&self) -> &net::UdpSocket {
        self.io.socket()
    }

    /// Returns the bound address, with the port that was selected for port 0.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.socket().local_addr()
    }

    /// Returns the peer that [`Self::connect`] has set.
    ///
    /// # Errors
    /// `NotConnected` without a peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.io.socket().peer_addr()
    }

    pub(super) fn shared(&self) -> &Arc<SharedStack> {
        self.io.socket().handle().shared()
    }

    /// Waits until the socket is ready for one of the operations in `interest`, and returns the
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

    /// Waits until a datagram can be received. Use it with [`Self::try_recv_from`].
    ///
    /// # Cancel safety
    /// As for [`Self::ready`].
    ///
    /// # Errors
    /// As for [`Self::ready`].
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until a datagram can be sent. Use it with [`Self::try_send_to`].
    ///
    /// # Cancel safety
    /// As for [`Self::ready`].
    ///
    /// # Errors
    /// As for [`Self::ready`].
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Polls whether a datagram can be received. Only the task of the last poll for receiving is
    /// woken.
    ///
    /// # Errors
    /// As for [`Self::ready`].
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_io_ready(Awaited::Input, cx)
    }

    /// Polls whether a datagram can be sent. Only the task of the last poll for sending is woken.
    ///
    /// # Errors
    /// As for [`Self::ready`].
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_io_ready(Awaited::Room, cx)
    }

    /// Sends one datagram to the [connected](Self::connect) peer.
    ///
    /// # Cancel safety
    /// If the future is dropped before it has completed, nothing was sent.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::send`].
    pub async fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.io.io(Awaited::Room, || self.try_send(buf)).await
    }

    /// Polls to send one datagram to the [connected](Self::connect) peer.
    ///
    /// # Errors
    /// As for [`Self::send`].
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.io.poll_io(Awaited::Room, cx, || self.try_send(buf))
    }

    /// Sends one datagram to the [connected](Self::connect) peer without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer has no space; otherwise as for [`Self::send`].
    pub fn try_send(&self, buf: &[u8]) -> io::Result<usize> {
        self.io.socket().attempt_send(buf, None)
    }

    /// Polls to send one datagram to `addr`.
    ///
    /// # Errors
    /// As for [`Self::send_to`].
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        buf: &[u8],
        addr: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.io.poll_io(Awaited::Room, cx, || self.try_send_to(buf, addr))
    }

    /// Sends one datagram to `addr` without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer has no space; otherwise as for [`Self::send_to`].
    pub fn try_send_to(&self, buf: &[u8], addr: SocketAddr) -> io::Result<usize> {
        self.io.socket().attempt_send(buf, Some(addr))
    }

    /// Receives one datagram. Returns its length. Bytes that do not fit in `buf` are lost.
    ///
    /// # Cancel safety
    /// If the future is dropped before it has completed, no datagram is lost.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::recv`].
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.io.io(Awaited::Input, || self.try_recv(buf)).await
    }

    /// Polls for [`Self::recv`]. Only the task of the last poll is woken.
    ///
    /// # Errors
    /// As for [`Self::recv`].
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_receive(cx, buf, false).map_ok(drop)
    }

    /// Does the same as [`Self::recv`] without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram.
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
        let received = unsafe { self.attempt_recv(&room(buf), false) };
        received.map(|(len, _)| len)
    }

    /// Receives one datagram. Returns its length and source. Bytes that do not fit in `buf` are
    /// lost.
    ///
    /// # Cancel safety
    /// If the future is dropped before it has completed, no datagram is lost.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::recv_from`].
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.io.io(Awaited::Input, || self.try_recv_from(buf)).await
    }

    /// Polls for [`Self::recv_from`]. Returns the address of the sender. Only the task of the last
    /// poll is woken.
    ///
    /// # Errors
    /// As for [`Self::recv_from`].
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_receive(cx, buf, false)
    }

    /// Does the same as [`Self::recv_from`] without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
        unsafe { self.attempt_recv(&room(buf), false) }
    }

    /// Receives the next datagram without removing it. Returns its length. Bytes that do not fit in
    /// `buf` are not copied.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time, because no datagram is removed.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::peek`].
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.io.io(Awaited::Input, || self.try_peek(buf)).await
    }

    /// Polls for [`Self::peek`]. Only the task of the last poll is woken.
    ///
    /// # Errors
    /// As for [`Self::peek`].
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_receive(cx, buf, true).map_ok(drop)
    }

    /// Does the same as [`Self::peek`] without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram.
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
        let received = unsafe { self.attempt_recv(&room(buf), true) };
        received.map(|(len, _)| len)
    }

    /// Receives the next datagram without removing it. Returns its length and source. Bytes that do
    /// not fit in `buf` are not copied.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time, because no datagram is removed.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::peek_from`].
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.io.io(Awaited::Input, || self.try_peek_from(buf)).await
    }

    /// Polls for [`Self::peek_from`]. Returns the address of the sender. Only the task of the last
    /// poll is woken.
    ///
    /// # Errors
    /// As for [`Self::peek_from`].
    pub fn poll_peek_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_receive(cx, buf, true)
    }

    /// Does the same as [`Self::peek_from`] without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram.
    pub fn try_peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
        unsafe { self.attempt_recv(&room(buf), true) }
    }

    /// Returns the source of the next datagram, without removing the datagram.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time, because no datagram is removed.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::peek_from`].
    pub async fn peek_sender(&self) -> io::Result<SocketAddr> {
        self.io.io(Awaited::Input, || self.try_peek_sender()).await
    }

    /// Polls for [`Self::peek_sender`]. Only the task of the last poll is woken.
    ///
    /// # Errors
    /// As for [`Self::peek_sender`].
    pub fn poll_peek_sender(&self, cx: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        self.io.poll_io(Awaited::Input, cx, || self.try_peek_sender())
    }

    /// Does the same as [`Self::peek_sender`] without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram.
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        self.try_peek_from(&mut []).map(|(_, from)| from)
    }

    /// Calls `attempt` if the socket is ready for `interest`.
    ///
    /// Unlike in tokio, `WouldBlock` of `attempt` does not change what [`Self::ready`] returns. Use
    /// [`Self::async_io`] if `attempt` may block although the socket is ready.
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

    /// Calls `attempt` when the socket is ready for `interest`. If `attempt` returns `WouldBlock`,
    /// calls it again after the next event of the socket. Calls may be spurious.
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

    /// # Safety
    /// The buffers must be valid for writes.
    unsafe fn attempt_recv(
        &self,
        buffers: &[Buffer],
        keep: bool,
    ) -> io::Result<(usize, SocketAddr)> {
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        unsafe { self.io.socket().attempt_recv(buffers, keep) }.map_err(io_error)
    }

    /// Polls to receive a datagram into the unfilled part of `buf`, or to peek if `keep`. Returns
    /// the address of the sender.
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        keep: bool,
    ) -> Poll<io::Result<SocketAddr>> {
        // SAFETY: the attempts write only initialized bytes.
        let buffers = vacant_room(unsafe { buf.unfilled_mut() });
        // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
        let attempt = || unsafe { self.attempt_recv(&buffers, keep) };
        let (len, from) = ready!(self.io.poll_io(Awaited::Input, cx, attempt))?;
        // SAFETY: the attempt has written `len` bytes to the beginning of the unfilled part.
        unsafe { buf.assume_init(len) };
        buf.advance(len);
        Poll::Ready(Ok(from))
    }
}

impl TryFrom<net::UdpSocket> for UdpSocket {
    type Error = io::Error;

    fn try_from(socket: net::UdpSocket) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.socket().fmt(f)
    }
}
