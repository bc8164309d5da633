//! TCP sockets that accept connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::ToSocketAddrs;
use super::resolve::each;
use super::source::{Awaited, IoSource};
use super::stream::TcpStream;
use crate::current::current;
use crate::error::io_error;
use crate::net;
use crate::shared::SharedStack;
use crate::stack::Stack;

/// A TCP socket that accepts connections, as
/// [`tokio::net::TcpListener`](::tokio::net::TcpListener), on a stack in this process.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use towpath::tokio::{TcpListener, TcpStream};
///
/// let stack = towpath::Stack::builder().loopback().start()?;
/// let listener = TcpListener::bind_on(&stack, "127.0.0.1:80").await?;
/// let mut client = TcpStream::connect_on(&stack, "127.0.0.1:80").await?;
/// let (mut server, from) = listener.accept().await?;
/// assert_eq!(from, client.local_addr()?);
/// client.write_all(b"ping").await?;
/// let mut text = [0; 4];
/// server.read_exact(&mut text).await?;
/// assert_eq!(&text, b"ping");
/// # Ok(())
/// # }
/// ```
pub struct TcpListener {
    io: IoSource<net::TcpListener>,
}

impl TcpListener {
    /// Listens on `addr` of the current stack: see [`net::TcpListener::bind`]. Names are resolved
    /// by [`lookup_host`](super::lookup_host).
    ///
    /// # Errors
    /// As for [`net::TcpListener::bind`]; `Other` outside of a Tokio runtime.
    ///
    /// # Panics
    /// If the runtime was built without I/O (`enable_io`), as tokio's sockets do.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_over(&current()?, addr).await
    }

    /// Listens on `addr` of `stack`.
    ///
    /// # Errors
    /// As for [`Self::bind`].
    pub async fn bind_on(stack: &Stack, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_over(&stack.shared, addr).await
    }

    async fn bind_over(shared: &Arc<SharedStack>, addr: impl ToSocketAddrs) -> io::Result<Self> {
        each(shared, addr, |addr| Self::from_std(net::TcpListener::bind_on(shared, addr)?)).await
    }

    /// Converts a listener of [`net`] for the current runtime, and sets it to non-blocking mode.
    ///
    /// # Errors
    /// `Other` outside of a Tokio runtime; `NetworkDown` if the stack has ended.
    ///
    /// # Panics
    /// As for [`Self::bind`].
    pub fn from_std(listener: net::TcpListener) -> io::Result<Self> {
        Ok(Self { io: IoSource::new(listener)? })
    }

    /// Converts the listener to one of [`net`], which stays in non-blocking mode.
    ///
    /// # Errors
    /// Never fails today, but a later version may.
    pub fn into_std(self) -> io::Result<net::TcpListener> {
        self.io.socket().try_clone()
    }

    /// Returns the listener with the methods of [`net`], for further options. Do not set it to
    /// blocking mode.
    pub fn as_std(&self) -> &net::TcpListener {
        self.io.socket()
    }

    /// Accepts a connection, and returns it with the address of the peer.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, no connection is lost.
    ///
    /// # Errors
    /// As for [`net::TcpListener::accept`].
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.io.io(Awaited::Input, || self.try_accept()).await
    }

    /// Polls to accept a connection. Only the task of the last call is woken.
    ///
    /// # Errors
    /// As for [`Self::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.io.poll_io(Awaited::Input, cx, || self.try_accept())
    }

    fn try_accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        // Find the dispatcher before accepting. If this fails, the connection stays in the queue.
        let _dispatcher = self.io.dispatcher()?;
        let (stream, from) = self.io.socket().attempt_accept().map_err(io_error)?;
        Ok((TcpStream::from_std(stream)?, from))
    }

    /// Returns the bound address, with the port that was selected for port 0.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.socket().local_addr()
    }

    /// Returns the TTL of accepted connections.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn ttl(&self) -> io::Result<u32> {
        self.io.socket().ttl()
    }

    /// Sets the TTL of connections that are accepted later.
    ///
    /// # Errors
    /// As for [`net::TcpListener::set_ttl`].
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.io.socket().set_ttl(ttl)
    }
}

impl TryFrom<net::TcpListener> for TcpListener {
    type Error = io::Error;

    fn try_from(listener: net::TcpListener) -> io::Result<Self> {
        Self::from_std(listener)
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.socket().fmt(f)
    }
}
