//! Methods of sockets that take host names. The methods are separate from the socket types, because
//! resolving a name itself requires sockets.

use std::io;
use std::sync::Arc;

use super::resolve::{addresses, each, no_address};
use super::source::Awaited;
use super::{TcpStream, ToSocketAddrs, UdpSocket};
use crate::current::current;
use crate::net;
use crate::shared::SharedStack;
use crate::stack::Stack;

impl TcpStream {
    /// Connects to `addr` from the current stack: see [`net::TcpStream::connect`]. If `addr` has
    /// several addresses, each is tried in turn. Names are resolved by
    /// [`lookup_host`](super::lookup_host).
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt.
    ///
    /// # Errors
    /// As for [`net::TcpStream::connect`]; `Other` outside of a Tokio runtime.
    ///
    /// # Panics
    /// If the runtime was built without I/O (`enable_io`), as tokio's sockets do.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_over(&current()?, addr).await
    }

    /// Connects to `addr` from `stack`.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub async fn connect_on(stack: &Stack, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_over(&stack.shared, addr).await
    }

    async fn connect_over(shared: &Arc<SharedStack>, addr: impl ToSocketAddrs) -> io::Result<Self> {
        let mut last = None;
        for addr in addresses(shared, addr).await? {
            match Self::connect_to(shared, addr).await {
                Err(error) => last = Some(error),
                connected => return connected,
            }
        }
        Err(last.unwrap_or_else(no_address))
    }
}

impl UdpSocket {
    /// Binds a socket to `addr` of the current stack: see [`net::UdpSocket::bind`]. Names are
    /// resolved by [`lookup_host`](super::lookup_host).
    ///
    /// # Errors
    /// As for [`net::UdpSocket::bind`]; `Other` outside of a Tokio runtime.
    ///
    /// # Panics
    /// If the runtime was built without I/O (`enable_io`), as tokio's sockets do.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_over(&current()?, addr).await
    }

    /// Binds a socket to `addr` of `stack`.
    ///
    /// # Errors
    /// As for [`Self::bind`].
    pub async fn bind_on(stack: &Stack, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_over(&stack.shared, addr).await
    }

    async fn bind_over(shared: &Arc<SharedStack>, addr: impl ToSocketAddrs) -> io::Result<Self> {
        each(shared, addr, |addr| Self::from_std(net::UdpSocket::bind_on(shared, addr)?)).await
    }

    /// Sets the peer, to which [`Self::send`] sends: see [`net::UdpSocket::connect`].
    ///
    /// # Errors
    /// As for [`net::UdpSocket::connect`].
    pub async fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        each(self.shared(), addr, |addr| self.io.socket().connect_to(addr)).await
    }

    /// Sends one datagram to `addr`, of which only the first address is used.
    ///
    /// # Cancel safety
    /// If the future is dropped before it has completed, nothing was sent.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::send_to`].
    pub async fn send_to(&self, buf: &[u8], addr: impl ToSocketAddrs) -> io::Result<usize> {
        let Some(addr) = addresses(self.shared(), addr).await?.next() else {
            let message = "no addresses to send data to";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        self.io.io(Awaited::Room, || self.try_send_to(buf, addr)).await
    }
}
