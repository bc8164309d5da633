//! TCP connections.

mod transfer;

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use rustix::io::Errno;
use towpath_client::{Deadline, Error};
use towpath_shm::control::call;
use towpath_shm::layout::{RawAddr, flags, op, option_bit, setting, shut};

use super::address::{family_of, shown};
use super::handle::{Handle, Patience, TCP, fail};
use super::info::TcpInfo;
use super::keepalive::KeepAlive;
use super::open::each_here;
use super::options::zero_timeout;
use crate::error::io_error;
use crate::shared::Shared;

/// TCP_CONGESTION, as Linux numbers it.
const TCP_CONGESTION: u32 = 13;
/// TCP_CA_NAME_MAX: bytes of the longest name, with the NUL behind it.
const CONGESTION_NAME_MAX: usize = 16;

/// A TCP connection: [`std::net::TcpStream`] on a stack of this process.
///
/// Reads and writes are [`Read`](io::Read) and [`Write`](io::Write) of the stream, and of a shared
/// reference to it. Writing to a connection whose peer has reset it is
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe) without a signal (SIGPIPE). The last clone that is
/// dropped closes the connection; bytes that were written are still sent.
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
    handle: Arc<Handle>,
}

impl TcpStream {
    pub(super) fn of(handle: Handle) -> Self {
        Self { handle: Arc::new(handle) }
    }

    /// Connects to `addr`, and waits until the connection is there. The first address that answers
    /// is taken, where there are several. Names are resolved by the host's resolver, not over the
    /// stack.
    ///
    /// # Errors
    /// - `ConnectionRefused`: nobody listens there;
    /// - `TimedOut`: nobody answered the SYNs, for about three minutes;
    /// - `NetworkUnreachable`, `HostUnreachable`: there is no way to the address;
    /// - `InvalidInput`: `addr` names no address;
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

    /// Connects to `addr`, and gives up when `timeout` has passed.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`; `InvalidInput` for a timeout of zero; otherwise as
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
        shared: &Arc<Shared>,
        addr: SocketAddr,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        if timeout == Some(Duration::ZERO) {
            return Err(zero_timeout());
        }
        let handle = Handle::open(shared, family_of(&addr), TCP)?;
        // An IPv4-mapped address reaches an IPv4 peer over an IPv6 socket, as on Linux.
        let remote = RawAddr::new(shown(RawAddr::new(addr), handle.family));
        handle.call(call::CONNECT, |request| request.addr = remote)?;
        wait_until_connected(&handle, timeout)?;
        Ok(Self::of(handle))
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// `NotConnected` when the connection has ended.
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

    /// The address of this end.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
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

    /// Ends one direction, or both. A thread that is blocked in the
    /// direction goes on.
    /// - Reading: reads give the bytes that have come, and then 0.
    /// - Writing: the peer gets a FIN, and writes fail with `BrokenPipe`.
    ///
    /// # Errors
    /// `NotConnected` when the connection has ended.
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
        // As inet_shutdown: a socket without a peer is shut down as well, although the call fails.
        handle.change(|slot| slot.shut.fetch_or(bits, Relaxed))?;
        if !is_open {
            return fail(Errno::NOTCONN);
        }
        handle.client().socket_command(handle.socket, op::SHUTDOWN, bits, 0);
        Ok(())
    }

    /// A second handle to the same connection: both read the same bytes, each byte once, and share
    /// all options.
    ///
    /// # Errors
    /// None today; a later version may refuse.
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

    /// Limits how long a read may wait. None: for ever. A µs is the least, and what is set is for
    /// all clones.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of zero. Reads fail with `WouldBlock` when the limit has passed.
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

    /// Limits how long a write may wait for room. None: for ever. See [`Self::set_read_timeout`].
    ///
    /// # Errors
    /// `InvalidInput` for a limit of zero. Writes fail with `WouldBlock` when the limit has passed
    /// and nothing was taken.
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
    /// // Nobody reads: buffers fill.
    /// let full = std::iter::repeat_with(|| client.write(&[0; 65_536])).find_map(Result::err);
    /// assert_eq!(full.unwrap().kind(), ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.handle.set_timeout(&self.handle.send_timeout_us, limit)
    }

    /// The limit that [`Self::set_read_timeout`] set, in whole µs.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
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

    /// The limit that [`Self::set_write_timeout`] set, in whole µs.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
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

    /// Sends small segments at once instead of waiting for an ACK of earlier ones (TCP_NODELAY: no
    /// Nagle algorithm).
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_nodelay(true)?;
    /// assert!(client.nodelay()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.handle.set_flag(option_bit::NODELAY, setting::NODELAY, nodelay)
    }

    /// Whether [`Self::set_nodelay`] is on.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert!(!stack.connect(listener.local_addr()?)?.nodelay()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn nodelay(&self) -> io::Result<bool> {
        self.handle.has_bit(option_bit::NODELAY)
    }

    /// Sets the TTL of the packets that are sent: 1 to 255 hops.
    ///
    /// # Errors
    /// `InvalidInput` for other numbers.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_ttl(100)?;
    /// assert_eq!(client.ttl()?, 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.handle.set_ttl(ttl)
    }

    /// The TTL in hops: 64 unless [set](Self::set_ttl).
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert_eq!(stack.connect(listener.local_addr()?)?.ttl()?, 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(&self) -> io::Result<u32> {
        self.handle.ttl()
    }

    /// Says what dropping the last handle does (SO_LINGER):
    /// - None: returns at once, and what was written is sent afterwards;
    /// - zero: drops what was not sent, and resets the connection;
    /// - longer: waits until the peer has acknowledged everything, at most so long, in whole
    ///   seconds.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// use std::io::{ErrorKind, Read};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// let (mut server, _) = listener.accept()?;
    /// client.set_linger(Some(Duration::ZERO))?;
    /// drop(client);
    /// assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let value = linger.map_or(0, |linger| {
            u32::try_from(linger.as_secs()).unwrap_or(u32::MAX - 1).saturating_add(1)
        });
        self.handle.change(|slot| slot.linger.store(value, Relaxed))?;
        self.handle.setting(setting::LINGER, value.into());
        Ok(())
    }

    /// The time that [`Self::set_linger`] set, in whole seconds.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert_eq!(stack.connect(listener.local_addr()?)?.linger()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        let value = self.handle.slot()?.linger.load(Relaxed);
        Ok(value.checked_sub(1).map(|seconds| Duration::from_secs(seconds.into())))
    }

    /// Probes a silent peer at the given times, and ends the connection with `TimedOut` when it
    /// does not answer. None: never.
    ///
    /// # Errors
    /// `InvalidInput` for times beyond 1 to 32,767 s, or probes beyond 1 to 127.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use towpath::net::KeepAlive;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_keepalive(Some(KeepAlive::new().idle(Duration::from_secs(30))))?;
    /// assert_eq!(client.keepalive()?.unwrap().idle, Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_keepalive(&self, keepalive: Option<KeepAlive>) -> io::Result<()> {
        if let Some(keepalive) = keepalive {
            let [idle, interval, probes] = keepalive.words()?;
            self.handle.change(|slot| {
                slot.keepidle.store(idle, Relaxed);
                slot.keepintvl.store(interval, Relaxed);
                slot.keepcnt.store(probes, Relaxed);
            })?;
        }
        self.handle.set_flag(option_bit::KEEPALIVE, setting::KEEPALIVE, keepalive.is_some())
    }

    /// The times at which a silent peer is probed; None: never, which is the default.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert_eq!(stack.connect(listener.local_addr()?)?.keepalive()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn keepalive(&self) -> io::Result<Option<KeepAlive>> {
        if !self.handle.has_bit(option_bit::KEEPALIVE)? {
            return Ok(None);
        }
        let slot = self.handle.slot()?;
        let words = [&slot.keepidle, &slot.keepintvl, &slot.keepcnt];
        Ok(Some(KeepAlive::from_words(words.map(|word| word.load(Relaxed)))))
    }

    /// Sets the size of the receive buffer, which bounds the window (SO_RCVBUF): `bytes` up to 4
    /// MiB, doubled as Linux does. Without it the size follows the connection.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_recv_buffer_size(100_000)?;
    /// assert_eq!(client.recv_buffer_size()?, 200_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.handle.set_recv_buffer_size(bytes)
    }

    /// The size of the receive buffer in bytes: as set, doubled, or as it has grown.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// See [`Self::set_recv_buffer_size`].
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.handle.recv_buffer_size()
    }

    /// Sets the size of the send buffer (SO_SNDBUF): `bytes` up to 4 MiB, doubled as Linux does.
    /// Without it the size follows the connection.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_send_buffer_size(100_000)?;
    /// assert_eq!(client.send_buffer_size()?, 200_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.handle.set_send_buffer_size(bytes)
    }

    /// The size of the send buffer in bytes: as set, doubled, or as it has grown.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// See [`Self::set_send_buffer_size`].
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        self.handle.send_buffer_size()
    }

    /// Chooses the congestion control algorithm by name: "cubic" or "reno" (TCP_CONGESTION).
    ///
    /// # Errors
    /// `NotFound` for an unknown name, `InvalidInput` for an empty one.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_congestion("reno")?;
    /// assert_eq!(client.congestion()?, "reno");
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        // As Linux, which cuts a name before it looks for it.
        let name = &name.as_bytes()[..name.len().min(CONGESTION_NAME_MAX - 1)];
        let request = self.handle.call(call::SET_OPTION, |request| {
            (request.a, request.b) = (TCP, TCP_CONGESTION);
            request.data[..name.len()].copy_from_slice(name);
            request.len = name.len() as u32;
        });
        request.map(drop)
    }

    /// The name of the congestion control algorithm.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert_eq!(stack.connect(listener.local_addr()?)?.congestion()?, "cubic");
    /// # Ok(())
    /// # }
    /// ```
    pub fn congestion(&self) -> io::Result<String> {
        let reply = self.handle.call(call::GET_OPTION, |request| {
            (request.a, request.b) = (TCP, TCP_CONGESTION);
        })?;
        let name = reply.payload().split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Figures of the connection: round trips, window, losses, bytes (TCP_INFO).
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use towpath::net::TcpState;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let mut client = stack.connect(listener.local_addr()?)?;
    /// client.write_all(b"hello")?;
    /// let info = client.info()?;
    /// assert_eq!(info.state, TcpState::Established);
    /// assert_eq!(info.retransmits_total, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn info(&self) -> io::Result<TcpInfo> {
        TcpInfo::of(&self.handle)
    }

    /// Takes the connection's pending error (SO_ERROR), as that of a reset.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
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

    /// Makes reads and writes fail with `WouldBlock` where they would wait. Holds for all clones.
    ///
    /// # Errors
    /// `NetworkDown` when the engine has ended.
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

/// Waits for the end of a connect that is under way.
fn wait_until_connected(handle: &Handle, timeout: Option<Duration>) -> io::Result<()> {
    let attempt = || {
        let slot = handle.client().slot(handle.socket).ok_or(Error::Dead)?;
        match slot.flags.load(Acquire) {
            seen if seen & flags::CONNECTING != 0 => Err(Error::WouldBlock),
            seen if seen & flags::CONNECTED != 0 && seen & flags::DEAD == 0 => Ok(()),
            _ => {
                handle.socket.take_error(handle.client())?;
                Err(Error::Refused(Errno::CONNABORTED.raw_os_error()))
            }
        }
    };
    let deadline = timeout.map(Deadline::after);
    loop {
        // As std: a signal handler does not end the wait, and the limit stays where it is.
        match handle.blocking(Patience::until(deadline), attempt) {
            Err(Error::Interrupted) => {}
            Err(Error::TimedOut) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
            }
            result => return result.map_err(io_error),
        }
    }
}
