//! TCP sockets that are not connected yet.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use towpath_shm::control::call;
use towpath_shm::layout::{option_bit, setting};

use super::{TcpListener, TcpStream};
use crate::current::current;
use crate::net;
use crate::net::handle::{INET, INET6, OwnedSocket, TCP};
use crate::shared::SharedStack;
use crate::stack::Stack;

/// A TCP socket that is neither connected nor listening, as
/// [`tokio::net::TcpSocket`](::tokio::net::TcpSocket). Used to set options before it connects or
/// listens.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use towpath::tokio::TcpSocket;
///
/// let stack = towpath::Stack::builder().loopback().start()?;
/// let socket = TcpSocket::new_v4_on(&stack)?;
/// socket.bind("127.0.0.1:80".parse()?)?;
/// let listener = socket.listen(1024)?;
///
/// let socket = TcpSocket::new_v4_on(&stack)?;
/// socket.set_nodelay(true)?;
/// let connection = socket.connect(listener.local_addr()?).await?;
/// assert!(connection.nodelay()?);
/// # Ok(())
/// # }
/// ```
pub struct TcpSocket {
    stream: net::TcpStream,
}

impl TcpSocket {
    /// Creates an IPv4 socket of the current stack.
    ///
    /// # Errors
    /// `NotConnected` if there is no current stack; `NetworkDown` if the stack has ended; EMFILE if
    /// it has too many sockets.
    pub fn new_v4() -> io::Result<Self> {
        Self::open(&current()?, INET)
    }

    /// Creates an IPv4 socket of `stack`.
    ///
    /// # Errors
    /// As for [`Self::new_v4`].
    pub fn new_v4_on(stack: &Stack) -> io::Result<Self> {
        Self::open(&stack.shared, INET)
    }

    /// Creates an IPv6 socket of the current stack.
    ///
    /// # Errors
    /// As for [`Self::new_v4`].
    pub fn new_v6() -> io::Result<Self> {
        Self::open(&current()?, INET6)
    }

    /// Creates an IPv6 socket of `stack`.
    ///
    /// # Errors
    /// As for [`Self::new_v4`].
    pub fn new_v6_on(stack: &Stack) -> io::Result<Self> {
        Self::open(&stack.shared, INET6)
    }

    fn open(shared: &Arc<SharedStack>, family: u32) -> io::Result<Self> {
        Ok(Self { stream: net::TcpStream::of(OwnedSocket::open(shared, family, TCP)?) })
    }

    fn handle(&self) -> &OwnedSocket {
        &self.stream.handle
    }

    /// Binds the socket to `addr`. Port 0 selects a free port.
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the port; `AddrNotAvailable` if the stack does not have
    /// the address.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        self.handle().bind(addr)
    }

    /// Connects to `addr`.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt and closes the socket.
    ///
    /// # Errors
    /// As for [`TcpStream::connect`].
    pub async fn connect(self, addr: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect_socket(self.stream, addr).await
    }

    /// Listens with a queue of `backlog` connections.
    ///
    /// # Errors
    /// `AddrInUse` if another listener has the port; `Other` outside of a Tokio runtime.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        self.handle().call(call::LISTEN, |request| request.a = backlog)?;
        TcpListener::from_std(net::TcpListener::of(self.stream.handle))
    }

    /// Returns the bound address.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Returns and clears the pending error (SO_ERROR).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.stream.take_error()
    }

    /// Sets whether idle connections are probed (SO_KEEPALIVE).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.handle().set_flag(option_bit::KEEPALIVE, setting::KEEPALIVE, keepalive)
    }

    /// Returns the value of [`Self::set_keepalive`].
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn keepalive(&self) -> io::Result<bool> {
        self.handle().has_bit(option_bit::KEEPALIVE)
    }

    /// Sets whether the port may be bound while earlier connections of the port are in TIME-WAIT
    /// (SO_REUSEADDR).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_reuseaddr(&self, reuseaddr: bool) -> io::Result<()> {
        self.handle().set_flag(option_bit::REUSEADDR, setting::REUSEADDR, reuseaddr)
    }

    /// Returns the value of [`Self::set_reuseaddr`].
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn reuseaddr(&self) -> io::Result<bool> {
        self.handle().has_bit(option_bit::REUSEADDR)
    }

    /// Sets whether several sockets may listen on the port (SO_REUSEPORT).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_reuseport(&self, reuseport: bool) -> io::Result<()> {
        self.handle().set_flag(option_bit::REUSEPORT, setting::REUSEPORT, reuseport)
    }

    /// Returns the value of [`Self::set_reuseport`].
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn reuseport(&self) -> io::Result<bool> {
        self.handle().has_bit(option_bit::REUSEPORT)
    }

    /// Sets the maximum size of the send buffer, in bytes (SO_SNDBUF). The actual size is twice the
    /// value, as on Linux.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_send_buffer_size(&self, size: u32) -> io::Result<()> {
        self.stream.set_send_buffer_size(size as usize)
    }

    /// Returns the maximum send buffer, in bytes.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        self.stream.send_buffer_size().map(size)
    }

    /// Sets the maximum size of the receive buffer, in bytes (SO_RCVBUF). The actual size is twice
    /// the value, as on Linux.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_recv_buffer_size(&self, size: u32) -> io::Result<()> {
        self.stream.set_recv_buffer_size(size as usize)
    }

    /// Returns the maximum receive buffer, in bytes.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn recv_buffer_size(&self) -> io::Result<u32> {
        self.stream.recv_buffer_size().map(size)
    }

    /// Sets how long unsent data is kept after the connection is closed (SO_LINGER): see
    /// [`TcpStream::set_linger`].
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.stream.set_linger(linger)
    }

    /// Sets SO_LINGER to zero, so that dropping the connected stream resets the connection.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.stream.set_linger(Some(Duration::ZERO))
    }

    /// Returns the value of [`Self::set_linger`].
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.stream.linger()
    }

    /// Sets whether small segments are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.stream.set_nodelay(nodelay)
    }

    /// Returns the value of [`Self::set_nodelay`].
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.stream.nodelay()
    }
}

impl fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpSocket").field(&self.stream).finish()
    }
}

/// Converts a size to the type that tokio's methods return.
fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
