//! TCP connections.

mod options;
mod transfer;

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::io::Errno;
use towpath_client::{Deadline, Error, WaitLimit};
use towpath_shm::layout::{op, shut};

use super::address::family_of;
use super::handle::{OwnedSocket, TCP, fail};
use super::options::zero_timeout;
use super::resolve::each_here;
use crate::error::io_error;
use crate::shared::SharedStack;

/// A TCP connection, as [`std::net::TcpStream`], on a stack in this process.
///
/// [`Read`](io::Read) and [`Write`](io::Write) are implemented for the stream and for shared
/// references to it. Writing after the peer has reset the connection returns
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe), without SIGPIPE. Dropping the last clone closes the
/// connection, and written data is still sent.
///
/// # Examples
/// ```
/// use std::io::{Read, Write};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stack = towpath::Stack::builder().loopback().start()?;
/// let listener = stack.listen("127.0.0.1:0")?;
/// let mut client = stack.connect(listener.local_addr()?)?;
/// let (mut server, _) = listener.accept()?;
/// server.write_all(b"welcome")?;
/// let mut said = [0; 7];
/// client.read_exact(&mut said)?;
/// assert_eq!(&said, b"welcome");
/// # Ok(())
/// # }
/// ```
pub struct TcpStream {
    pub(crate) handle: Arc<OwnedSocket>,
}

impl TcpStream {
    pub(crate) fn of(handle: OwnedSocket) -> Self {
        Self { handle: Arc::new(handle) }
    }

    /// Connects to `addr`, and waits until the connection is established. If `addr` has several
    /// addresses, the first one that works is used. Names are resolved by the host's resolver, not
    /// over the stack.
    ///
    /// # Errors
    /// - `ConnectionRefused`: there is no listener;
    /// - `TimedOut`: SYNs were not answered for about three minutes;
    /// - `NetworkUnreachable`, `HostUnreachable`: there is no route to the address;
    /// - `InvalidInput`: `addr` resolves to no address;
    /// - [`NotConnected`](io::ErrorKind::NotConnected): there is no default stack.
    ///
    /// # Examples
    /// ```no_run
    /// let connection = towpath::net::TcpStream::connect("192.0.2.7:80")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        each_here(addr, |shared, addr| Self::connect_on(shared, addr, None))
    }

    /// Connects to `addr`, and gives up after `timeout`.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`; `InvalidInput` for a timeout of zero; otherwise as for
    /// [`Self::connect`].
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    /// use towpath::net::TcpStream;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let peer = "192.0.2.7:80".parse()?;
    /// let connection = TcpStream::connect_timeout(&peer, Duration::from_secs(5))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::connect_on(&crate::current::current()?, *addr, Some(timeout))
    }

    pub(super) fn connect_on(
        shared: &Arc<SharedStack>,
        addr: SocketAddr,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        if timeout == Some(Duration::ZERO) {
            return Err(zero_timeout());
        }
        let handle = OwnedSocket::open(shared, family_of(&addr), TCP)?;
        handle.start_connect(addr)?;
        wait_until_connected(&handle, timeout)?;
        Ok(Self::of(handle))
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// `NotConnected` if the connection has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// assert_eq!(client.peer_addr()?, listener.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.handle.peer_addr()
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// assert_eq!(client.local_addr()?, listener.accept()?.1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.handle.local_addr()
    }

    /// Shuts down one direction, or both. Wakes threads that are blocked in reads or writes of that
    /// direction.
    /// - Reading: reads return the data that has arrived, and then 0.
    /// - Writing: sends a FIN, and writes fail with `BrokenPipe`.
    ///
    /// # Errors
    /// `NotConnected` if the connection has ended.
    ///
    /// # Examples
    /// ```
    /// use std::io::Read;
    /// use std::net::Shutdown;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.shutdown(Shutdown::Write)?;
    /// let (mut server, _) = listener.accept()?;
    /// assert_eq!(server.read(&mut [0; 8])?, 0, "end of file");
    /// # Ok(())
    /// # }
    /// ```
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let handle = &*self.handle;
        let bits = match how {
            Shutdown::Read => shut::READ,
            Shutdown::Write => shut::WRITE,
            Shutdown::Both => shut::READ | shut::WRITE,
        };
        let is_open = handle.is_open_stream()?;
        // As in Linux's inet_shutdown, set the flags even if the call fails for lack of a peer.
        handle.change(|slot| slot.shut.fetch_or(bits, Relaxed))?;
        if !is_open {
            return fail(Errno::NOTCONN);
        }
        handle.client().tell_end(handle.socket, op::SHUTDOWN, bits);
        Ok(())
    }

    /// Returns another handle to the same connection. Both read from one stream of bytes, and share
    /// all options.
    ///
    /// # Errors
    /// Never fails today, but a later version may.
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Write};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let mut client = stack.connect(listener.local_addr()?)?;
    /// let (server, _) = listener.accept()?;
    /// let mut reader = server.try_clone()?;
    /// client.write_all(b"!")?;
    /// drop(server);
    /// assert_eq!(reader.read(&mut [0; 8])?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { handle: Arc::clone(&self.handle) })
    }

    /// Sets the maximum time that a read waits, at least 1 µs. `None`: no limit. Applies to all
    /// clones.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of zero. Later reads return `WouldBlock` if the limit is
    /// exceeded.
    ///
    /// # Examples
    /// ```
    /// use std::io::{ErrorKind, Read};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let mut client = stack.connect(listener.local_addr()?)?;
    /// client.set_read_timeout(Some(Duration::from_millis(1)))?;
    /// assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.handle.set_timeout(&self.handle.recv_timeout_us, limit)
    }

    /// Sets the maximum time that a write waits for buffer space, at least 1 µs. `None`: no limit.
    /// Applies to all clones.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of zero. Later writes return `WouldBlock` if the limit is
    /// exceeded and nothing was written.
    ///
    /// # Examples
    /// ```
    /// use std::io::{ErrorKind, Write};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let mut client = stack.connect(listener.local_addr()?)?;
    /// client.set_write_timeout(Some(Duration::from_millis(1)))?;
    /// // The peer does not read, so buffers fill up.
    /// let full = std::iter::repeat_with(|| client.write(&[0; 65_536])).find_map(Result::err);
    /// assert_eq!(full.unwrap().kind(), ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.handle.set_timeout(&self.handle.send_timeout_us, limit)
    }

    /// Returns the limit of [`Self::set_read_timeout`], in whole µs.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// assert_eq!(client.read_timeout()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        self.handle.timeout(&self.handle.recv_timeout_us)
    }

    /// Returns the limit of [`Self::set_write_timeout`], in whole µs.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// assert_eq!(client.write_timeout()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        self.handle.timeout(&self.handle.send_timeout_us)
    }

    /// Returns and clears the connection's pending error (SO_ERROR), for example a reset.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert!(stack.connect(listener.local_addr()?)?.take_error()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.handle.take_error()
    }

    /// Sets non-blocking mode: reads and writes return `WouldBlock` instead of waiting. Applies to
    /// all clones.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// use std::io::{ErrorKind, Read};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let mut client = stack.connect(listener.local_addr()?)?;
    /// client.set_nonblocking(true)?;
    /// assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.handle.set_nonblocking(nonblocking)
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("TcpStream");
        if let Ok(addr) = self.local_addr() {
            shown.field("addr", &addr);
        }
        if let Ok(peer) = self.peer_addr() {
            shown.field("peer", &peer);
        }
        shown.field("slot", &self.handle.socket.slot).finish()
    }
}

/// Waits until a pending connect succeeds or fails.
fn wait_until_connected(handle: &OwnedSocket, timeout: Option<Duration>) -> io::Result<()> {
    let deadline = timeout.map(Deadline::after);
    loop {
        // As in std, continue to wait after a signal. The deadline does not change.
        match handle.blocking(WaitLimit::until(deadline), || handle.attempting().connected()) {
            Err(Error::Interrupted) => {}
            Err(Error::TimedOut) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
            }
            result => return result.map_err(io_error),
        }
    }
}
