//! TCP sockets that accept connections.

use std::fmt;
use std::io;
use std::iter::FusedIterator;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use rustix::io::Errno;
use towpath_client::{Error, listener};
use towpath_shm::control::call;
use towpath_shm::layout::{option_bit, setting};

use super::TcpStream;
use super::address::{family_of, shown};
use super::handle::{INET6, OwnedSocket, TCP, fail};
use super::resolve::each_here;
use crate::error::io_error;
use crate::shared::SharedStack;

/// Default backlog (maximum number of connections that wait to be accepted), as in std.
const BACKLOG: u32 = 128;

/// A TCP socket that listens for connections, as [`std::net::TcpListener`], on a stack in this
/// process.
///
/// Dropping the last clone closes the socket, and resets connections that were not accepted.
///
/// # Examples
/// ```
/// use std::io::{Read, Write};
/// use towpath::net::{TcpListener, TcpStream};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stack = towpath::Stack::builder().loopback().start()?;
/// let listener = stack.listen("127.0.0.1:0")?;
/// let mut client = stack.connect(listener.local_addr()?)?;
/// client.write_all(b"hello")?;
/// drop(client);
/// let (mut connection, _peer) = listener.accept()?;
/// let mut said = String::new();
/// connection.read_to_string(&mut said)?;
/// assert_eq!(said, "hello");
/// # Ok(())
/// # }
/// ```
pub struct TcpListener {
    pub(crate) handle: Arc<OwnedSocket>,
}

impl TcpListener {
    /// Listens on `addr`: socket(2) with SO_REUSEADDR, bind(2) and listen(2) with a backlog of 128.
    /// Port 0 selects a free port. If `addr` has several addresses, the first one that works is
    /// used. Names are resolved by the host's resolver, not over the stack.
    ///
    /// # Errors
    /// - `AddrInUse`: another socket of the stack listens there, or no port is free;
    /// - `AddrNotAvailable`: the stack does not have the address;
    /// - `InvalidInput`: `addr` resolves to no address;
    /// - [`NotConnected`](io::ErrorKind::NotConnected): there is no default stack.
    ///
    /// # Examples
    /// ```no_run
    /// let listener = towpath::net::TcpListener::bind("0.0.0.0:80")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        each_here(addr, Self::bind_on)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn of(handle: Arc<OwnedSocket>) -> Self {
        Self { handle }
    }

    pub(crate) fn bind_on(shared: &Arc<SharedStack>, addr: SocketAddr) -> io::Result<Self> {
        let handle = OwnedSocket::open(shared, family_of(&addr), TCP)?;
        handle.set_flag(option_bit::REUSEADDR, setting::REUSEADDR, true)?;
        handle.bind(addr)?;
        let listener = Self { handle: Arc::new(handle) };
        listener.set_backlog(BACKLOG)?;
        Ok(listener)
    }

    /// Sets the maximum number of established connections that wait to be accepted, at most 4096,
    /// as another call of listen(2) does. Further SYNs are dropped, and clients retransmit them.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// listener.set_backlog(4096)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_backlog(&self, connections: u32) -> io::Result<()> {
        self.handle.call(call::LISTEN, |request| request.a = connections).map(drop)
    }

    /// Returns the bound address, with the port that was selected for port 0.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.handle.local_addr()
    }

    /// Returns another handle to the same socket. Both accept from one queue and share all options.
    ///
    /// # Errors
    /// Never fails today, but a later version may.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let clone = listener.try_clone()?;
    /// drop(listener);
    /// stack.connect(clone.local_addr()?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { handle: Arc::clone(&self.handle) })
    }

    /// Accepts the next connection, and waits if there is none. Returns the connection and the
    /// peer's address.
    ///
    /// # Errors
    /// - `WouldBlock`: no connection is queued, and the listener is
    ///   [non-blocking](Self::set_nonblocking);
    /// - `NetworkDown`: the engine has ended, possibly during the call.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// let (_connection, peer) = listener.accept()?;
    /// assert_eq!(peer, client.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            match self.handle.blocking(self.handle.recv_limit(), || self.attempt_accept()) {
                // As in std, a signal does not end the wait for a connection.
                Err(Error::Interrupted) => {}
                result => return result.map_err(io_error),
            }
        }
    }

    /// Accepts a connection that is already queued. Returns `WouldBlock` if there is none.
    pub(crate) fn attempt_accept(&self) -> Result<(TcpStream, SocketAddr), Error> {
        let handle = &*self.handle;
        let (socket, record) = listener::accept(handle.client(), handle.socket, Ok, |_| {})?;
        let stream = TcpStream::of(OwnedSocket::of(handle.shared(), socket, handle.family));
        Ok((stream, shown(record.remote, handle.family)))
    }

    /// Returns an iterator that accepts connections, and never ends.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let clients = [(); 3].map(|()| stack.connect(listener.local_addr().unwrap()).unwrap());
    /// for (client, connection) in clients.iter().zip(listener.incoming()) {
    ///     assert_eq!(connection?.peer_addr()?, client.local_addr()?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Sets the TTL of packets that the listener and its accepted connections send: 1 to 255.
    ///
    /// # Errors
    /// `InvalidInput` for other values.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// listener.set_ttl(100)?;
    /// assert_eq!(listener.ttl()?, 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.handle.set_ttl(ttl)
    }

    /// Returns the TTL: 64 unless [set](Self::set_ttl).
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// assert_eq!(stack.listen("127.0.0.1:0")?.ttl()?, 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(&self) -> io::Result<u32> {
        self.handle.ttl()
    }

    /// Always fails, because Linux allows IPV6_V6ONLY only before bind(2), and the listener is
    /// bound. Exists for compatibility with std.
    ///
    /// # Errors
    /// `InvalidInput`, or ENOPROTOOPT on IPv4.
    ///
    /// # Examples
    /// ```
    /// # #![allow(deprecated)]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// assert!(stack.listen("[::1]:0")?.set_only_v6(true).is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[deprecated(note = "the option can only be set before the socket is bound, as std says")]
    pub fn set_only_v6(&self, only_v6: bool) -> io::Result<()> {
        let _ = only_v6;
        fail(if self.handle.family == INET6 { Errno::INVAL } else { Errno::NOPROTOOPT })
    }

    /// Returns whether the listener accepts only IPv6 connections, because it is bound to the
    /// address of an IPv6 host.
    ///
    /// # Errors
    /// EOPNOTSUPP on IPv4, as on Linux.
    ///
    /// # Examples
    /// ```
    /// # #![allow(deprecated)]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// assert!(stack.listen("[::1]:0")?.only_v6()?);
    /// assert!(!stack.listen("[::]:0")?.only_v6()?);
    /// # Ok(())
    /// # }
    /// ```
    #[deprecated(note = "see `set_only_v6`")]
    pub fn only_v6(&self) -> io::Result<bool> {
        self.handle.only_v6()
    }

    /// Returns and clears the listener's pending error (SO_ERROR).
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// assert!(stack.listen("127.0.0.1:0")?.take_error()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.handle.take_error()
    }

    /// Sets non-blocking mode: [`Self::accept`] returns `WouldBlock` instead of waiting. Applies to
    /// all clones, but not to accepted connections.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// listener.set_nonblocking(true)?;
    /// assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.handle.set_nonblocking(nonblocking)
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("TcpListener");
        if let Ok(addr) = self.local_addr() {
            shown.field("addr", &addr);
        }
        shown.field("slot", &self.handle.socket.slot).finish()
    }
}

/// Iterator over the connections of a [`TcpListener`]: see [`TcpListener::incoming`].
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let stack = towpath::Stack::builder().loopback().start()?;
/// let listener = stack.listen("127.0.0.1:0")?;
/// let client = stack.connect(listener.local_addr()?)?;
/// let connection = listener.incoming().next().expect("never ends")?;
/// assert_eq!(connection.peer_addr()?, client.local_addr()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}
