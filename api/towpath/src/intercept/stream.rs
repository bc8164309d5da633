//! Accepted connections.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use towpath_direct::{PendingSyn, SocketHandle};
use towpath_stack::{ReceivedFields, SocketOption};

use super::handle::InterceptHandle;

/// An accepted connection.
///
/// Reads return the bytes before a reset, and then `ConnectionReset`. Shutting down ends one
/// direction. Dropping the stream sends the bytes that were written, unless received bytes were not
/// read: the connection is then reset (RFC 9293, SHLD-3). A dropped connection ends by TCP's
/// timeouts, and not by [`InterceptLimits::idle`](super::InterceptLimits::idle).
///
/// Nagle's algorithm is off, because the client's own TCP has already combined small writes.
#[derive(Debug)]
pub struct TcpStream {
    handle: InterceptHandle,
    socket: SocketHandle,
    local: SocketAddr,
    peer: SocketAddr,
    /// Header fields of the client's SYN: its TTL and type of service.
    syn: ReceivedFields,
    resets: bool,
}

impl TcpStream {
    pub(super) fn new(
        handle: InterceptHandle,
        socket: SocketHandle,
        syn: &PendingSyn,
        fields: ReceivedFields,
    ) -> Self {
        let (local, peer) = (syn.local, syn.remote);
        Self { handle, socket, local, peer, syn: fields, resets: false }
    }

    /// Returns the address to which the client has connected, which is the local address of this
    /// stream.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the address of the client, which is the peer of this stream.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the TTL, or hop limit, of the client's last packet.
    pub fn received_ttl(&self) -> u8 {
        self.received().ttl
    }

    /// Returns the type of service, or traffic class, of the client's last packet. The two lowest
    /// bits are ECN: 3 means that the network was congested (RFC 3168, section 5).
    pub fn received_traffic_class(&self) -> u8 {
        self.received().tos
    }

    fn received(&self) -> ReceivedFields {
        let last = self.handle.with(|core| core.received_fields(self.socket));
        last.unwrap_or(self.syn)
    }

    /// Resets the connection, for example because the connection that the program has opened to the
    /// real destination was reset.
    pub fn reset(mut self) {
        self.resets = true;
    }

    /// Sets the TTL, or hop limit, of sent packets.
    ///
    /// # Errors
    /// `NetworkDown` if the runner has ended; `InvalidInput` for 0.
    pub fn set_ttl(&self, ttl: u8) -> io::Result<()> {
        let ttl = NonZeroU8::new(ttl).ok_or(io::ErrorKind::InvalidInput)?;
        self.set(match self.local.is_ipv4() {
            true => SocketOption::Ttl(Some(ttl)),
            false => SocketOption::UnicastHops(Some(ttl.get())),
        })
    }

    /// Sets the type of service, or traffic class, of sent packets. The two ECN bits are ignored.
    ///
    /// # Errors
    /// `NetworkDown` if the runner has ended.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        self.set(match self.local.is_ipv4() {
            true => SocketOption::Tos(class),
            false => SocketOption::TrafficClass(class),
        })
    }

    /// Sets whether small segments are sent at once. On by default.
    ///
    /// # Errors
    /// `NetworkDown` if the runner has ended.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set(SocketOption::NoDelay(nodelay))
    }

    fn set(&self, option: SocketOption) -> io::Result<()> {
        self.handle.with(|core| core.set_option(self.socket, option))
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let to = buf.initialize_unfilled();
        let read = self.handle.with(|core| core.poll_read(self.socket, cx, to));
        read.map_ok(|bytes| buf.advance(bytes))
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.handle.with(|core| core.poll_write(self.socket, cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.handle.with(|core| {
            let mut written = 0;
            for slice in slices.iter().filter(|slice| !slice.is_empty()) {
                match core.poll_write(self.socket, cx, slice) {
                    Poll::Ready(Ok(bytes)) => written += bytes,
                    // If some bytes were already written, return their number. The next call then
                    // reports the error, or waits.
                    _ if written > 0 => break,
                    other => return other,
                }
            }
            Poll::Ready(Ok(written))
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.handle.with(|core| core.shutdown(self.socket)))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.handle.with(|core| core.close(self.socket, self.resets));
    }
}
