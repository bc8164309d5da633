//! UDP sockets.

mod multicast;
mod transfer;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use towpath_shm::control::call;
use towpath_shm::layout::{option_bit, setting};

use super::address::{family_of, reached};
use super::handle::{INET6, OwnedSocket, UDP, fail};
use super::resolve::{each, each_here};
use crate::shared::SharedStack;
use transfer::Broadcasts;

/// A UDP socket, as [`std::net::UdpSocket`], on a stack in this process.
///
/// Dropping the last clone closes the socket; queued datagrams are still sent.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stack = towpath::Stack::builder().loopback().start()?;
/// let (a, b) = (stack.bind_udp("127.0.0.1:0")?, stack.bind_udp("127.0.0.1:0")?);
/// a.send_to(b"ping", b.local_addr()?)?;
/// let mut buf = [0; 1500];
/// let (len, from) = b.recv_from(&mut buf)?;
/// assert_eq!((&buf[..len], from), (&b"ping"[..], a.local_addr()?));
/// # Ok(())
/// # }
/// ```
pub struct UdpSocket {
    inner: Arc<Inner>,
}

struct Inner {
    handle: OwnedSocket,
    broadcasts: Broadcasts,
}

impl UdpSocket {
    /// Binds a socket to `addr`. Port 0 selects a free port. If `addr` has several addresses, the
    /// first one that works is used. Names are resolved by the host's resolver, not over the stack.
    ///
    /// # Errors
    /// - `AddrInUse`: another socket of the stack has the port, or no port is free;
    /// - `AddrNotAvailable`: the stack does not have the address;
    /// - `InvalidInput`: `addr` resolves to no address;
    /// - [`NotConnected`](io::ErrorKind::NotConnected): there is no default stack.
    ///
    /// # Examples
    /// ```no_run
    /// let socket = towpath::net::UdpSocket::bind("0.0.0.0:53")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        each_here(addr, Self::bind_on)
    }

    pub(crate) fn bind_on(shared: &Arc<SharedStack>, addr: SocketAddr) -> io::Result<Self> {
        let handle = OwnedSocket::open(shared, family_of(&addr), UDP)?;
        handle.bind(addr)?;
        Ok(Self { inner: Arc::new(Inner { handle, broadcasts: Broadcasts::default() }) })
    }

    pub(crate) fn handle(&self) -> &OwnedSocket {
        &self.inner.handle
    }

    /// Sets the peer, to which [`Self::send`] sends. Datagrams from other sources are no longer
    /// received. A later call replaces the peer.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route; EAFNOSUPPORT for an address of another family.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let (a, b) = (stack.bind_udp("127.0.0.1:0")?, stack.bind_udp("127.0.0.1:0")?);
    /// a.connect(b.local_addr()?)?;
    /// a.send(b"hello")?;
    /// assert_eq!(b.recv_from(&mut [0; 16])?.0, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        each(addr, |addr| self.connect_to(addr))
    }

    pub(crate) fn connect_to(&self, addr: SocketAddr) -> io::Result<()> {
        let handle = self.handle();
        if handle.family == INET6 && addr.is_ipv4() && handle.has_bit(option_bit::V6ONLY)? {
            return fail(Errno::AFNOSUPPORT);
        }
        let addr = reached(handle.slot()?, handle.family, addr)?;
        handle.call(call::CONNECT, |request| request.addr = addr).map(drop)
    }

    /// Makes every ICMP error about a sent datagram the result of the next call (IP_RECVERR,
    /// IPV6_RECVERR). Otherwise only "port unreachable" is reported.
    #[cfg(feature = "tokio")]
    pub(crate) fn report_unreachable(&self) -> io::Result<()> {
        let handle = self.handle();
        match handle.family {
            INET6 => handle.set_flag(option_bit::RECVERR_V6, setting::RECVERR_V6, true),
            _ => handle.set_flag(option_bit::RECVERR, setting::RECVERR, true),
        }
    }

    /// Returns the peer that [`Self::connect`] has set.
    ///
    /// # Errors
    /// `NotConnected` without a peer.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("127.0.0.1:0")?;
    /// assert!(socket.peer_addr().is_err());
    /// socket.connect("127.0.0.1:53")?;
    /// assert_eq!(socket.peer_addr()?, "127.0.0.1:53".parse()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.handle().peer_addr()
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
    /// assert_ne!(stack.bind_udp("127.0.0.1:0")?.local_addr()?.port(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.handle().local_addr()
    }

    /// Returns another handle to the same socket. Both receive from one queue and share all
    /// options.
    ///
    /// # Errors
    /// Never fails today, but a later version may.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("127.0.0.1:0")?;
    /// let clone = socket.try_clone()?;
    /// assert_eq!(clone.local_addr()?, socket.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { inner: Arc::clone(&self.inner) })
    }

    /// Sets the maximum time that a receiving call waits, at least 1 µs. `None`: no limit. Applies
    /// to all clones.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of zero. Later receiving calls return `WouldBlock` if the limit
    /// is exceeded.
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("127.0.0.1:0")?;
    /// socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    /// assert_eq!(socket.recv_from(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.handle().set_timeout(&self.handle().recv_timeout_us, limit)
    }

    /// Sets the maximum time that a sending call waits for buffer space. `None`: no limit.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of zero. Later sending calls return `WouldBlock` if the limit is
    /// exceeded.
    ///
    /// # Examples
    /// See [`Self::set_read_timeout`].
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.handle().set_timeout(&self.handle().send_timeout_us, limit)
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
    /// assert_eq!(stack.bind_udp("127.0.0.1:0")?.read_timeout()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        self.handle().timeout(&self.handle().recv_timeout_us)
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
    /// assert_eq!(stack.bind_udp("127.0.0.1:0")?.write_timeout()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        self.handle().timeout(&self.handle().send_timeout_us)
    }

    /// Allows sending to broadcast addresses (SO_BROADCAST).
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended. Without this option, sending to a broadcast address
    /// returns `PermissionDenied`.
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("0.0.0.0:0")?;
    /// let refused = socket.send_to(b"all", "255.255.255.255:9").unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    /// socket.set_broadcast(true)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.handle().set_flag(option_bit::BROADCAST, setting::BROADCAST, broadcast)
    }

    /// Returns whether [`Self::set_broadcast`] is on.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// assert!(!stack.bind_udp("0.0.0.0:0")?.broadcast()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn broadcast(&self) -> io::Result<bool> {
        self.handle().has_bit(option_bit::BROADCAST)
    }

    /// Sets the TTL of unicast datagrams: 1 to 255. As in std, on an IPv6 socket it applies only to
    /// IPv4 destinations.
    ///
    /// # Errors
    /// `InvalidInput` for other values.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("0.0.0.0:0")?;
    /// socket.set_ttl(100)?;
    /// assert_eq!(socket.ttl()?, 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.handle().set_ttl(ttl)
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
    /// assert_eq!(stack.bind_udp("0.0.0.0:0")?.ttl()?, 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(&self) -> io::Result<u32> {
        self.handle().ttl()
    }

    /// Sets the size of the receive buffer (SO_RCVBUF). The actual size is twice `bytes`, as on
    /// Linux; `bytes` is limited to 4 MiB. Datagrams that do not fit into the buffer are lost.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("0.0.0.0:0")?;
    /// socket.set_recv_buffer_size(1 << 20)?;
    /// assert_eq!(socket.recv_buffer_size()?, 2 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.handle().set_recv_buffer_size(bytes)
    }

    /// Returns the size of the receive buffer in bytes.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// See [`Self::set_recv_buffer_size`].
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.handle().recv_buffer_size()
    }

    /// Sets the size of the send buffer (SO_SNDBUF). The actual size is twice `bytes`, as on Linux;
    /// `bytes` is limited to 4 MiB.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("0.0.0.0:0")?;
    /// socket.set_send_buffer_size(1 << 20)?;
    /// assert_eq!(socket.send_buffer_size()?, 2 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.handle().set_send_buffer_size(bytes)
    }

    /// Returns the size of the send buffer in bytes.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// See [`Self::set_send_buffer_size`].
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        self.handle().send_buffer_size()
    }

    /// Returns and clears the socket's pending error (SO_ERROR), for example an ICMP error about an
    /// earlier datagram.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// assert!(stack.bind_udp("127.0.0.1:0")?.take_error()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.handle().take_error()
    }

    /// Sets non-blocking mode: calls return `WouldBlock` instead of waiting. Applies to all clones.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("127.0.0.1:0")?;
    /// socket.set_nonblocking(true)?;
    /// assert_eq!(socket.recv(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.handle().set_nonblocking(nonblocking)
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("UdpSocket");
        if let Ok(addr) = self.local_addr() {
            shown.field("addr", &addr);
        }
        shown.field("slot", &self.handle().socket.slot).finish()
    }
}
