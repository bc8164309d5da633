//! Methods of a stack that open sockets on it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::resolve::each;
use super::{TcpListener, TcpStream, UdpSocket};
use crate::stack::Stack;

/// Methods that open sockets on this stack, independent of the default stack.
impl Stack {
    /// Listens on `addr` of this stack: see [`TcpListener::bind`].
    ///
    /// # Errors
    /// As for [`TcpListener::bind`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("0.0.0.0:80")?;
    /// assert_eq!(listener.local_addr()?.port(), 80);
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen(&self, addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        each(addr, |addr| TcpListener::bind_on(&self.shared, addr))
    }

    /// Connects to `addr` from this stack: see [`TcpStream::connect`].
    ///
    /// # Errors
    /// As for [`TcpStream::connect`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:80")?;
    /// let connection = stack.connect("127.0.0.1:80")?;
    /// assert_eq!(connection.peer_addr()?, listener.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        each(addr, |addr| TcpStream::connect_on(&self.shared, addr, None))
    }

    /// Connects to `addr` from this stack within `timeout`: see [`TcpStream::connect_timeout`].
    ///
    /// # Errors
    /// As for [`TcpStream::connect_timeout`].
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:80")?;
    /// stack.connect_timeout(&"127.0.0.1:80".parse()?, Duration::from_secs(60))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_timeout(&self, addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        TcpStream::connect_on(&self.shared, *addr, Some(timeout))
    }

    /// Binds a UDP socket to `addr` of this stack: see [`UdpSocket::bind`].
    ///
    /// # Errors
    /// As for [`UdpSocket::bind`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("127.0.0.1:53")?;
    /// assert_eq!(socket.local_addr()?, "127.0.0.1:53".parse()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind_udp(&self, addr: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        each(addr, |addr| UdpSocket::bind_on(&self.shared, addr))
    }
}
