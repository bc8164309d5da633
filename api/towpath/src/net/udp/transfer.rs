//! Sending and receiving datagrams.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::io::Errno;
use towpath_client::{Buffer, Error, datagram};
use towpath_shm::control::{Interface, call};
use towpath_shm::layout::{DatagramHeader, Plain, RawAddr, flags, option_bit};

use super::UdpSocket;
use crate::error::io_error;
use crate::net::address::{reached, shown};
use crate::net::buffers::{bytes, room};
use crate::net::handle::{INET, OwnedSocket, fail};

/// Maximum payload of a datagram over IPv4 in bytes: the maximum packet (RFC 791 §3.1) without the
/// IP and UDP headers. The engine checks longer payloads, which may be valid over IPv6.
const PAYLOAD_MAX_V4: usize = 65_535 - 20 - 8;
/// Maximum value of UDP's length field in bytes. Longer datagrams fail before the route is looked
/// up, as in Linux's udp_sendmsg.
const LENGTH_MAX: usize = 65_535;
/// Interface flags IFF_BROADCAST and IFF_LOOPBACK: the networks of such an interface have a
/// broadcast address.
const HAS_BROADCAST: u32 = 2 | 8;
/// Maximum prefix length of a network that has a broadcast address (RFC 3021).
const PREFIX_MAX: u32 = 30;

/// Broadcast addresses of the stack's interfaces, requested from the engine on first use.
#[derive(Default)]
pub(super) struct Broadcasts(OnceLock<Box<[Ipv4Addr]>>);

impl UdpSocket {
    /// Sends one datagram to `addr`. As in std, only the first of several addresses is used.
    /// Returns the number of bytes, which is always that of `buf`.
    ///
    /// # Errors
    /// - EMSGSIZE: `buf` exceeds the maximum length of a datagram, 65,507 bytes over IPv4;
    /// - `PermissionDenied`: a broadcast address, without [`set_broadcast`](Self::set_broadcast);
    /// - `NetworkUnreachable`: no route; EAFNOSUPPORT: an address of another family;
    /// - `ConnectionRefused`: a connected peer has refused an earlier datagram (ICMP);
    /// - `InvalidInput`: port 0, or `addr` resolves to no address.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("127.0.0.1:0")?;
    /// assert_eq!(socket.send_to(b"hello", "127.0.0.1:9")?, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_to(&self, buf: &[u8], addr: impl ToSocketAddrs) -> io::Result<usize> {
        match addr.to_socket_addrs()?.next() {
            Some(addr) => self.send_datagram(buf, Some(addr)),
            None => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to"))
            }
        }
    }

    /// Sends one datagram to the [connected](Self::connect) peer.
    ///
    /// # Errors
    /// EDESTADDRREQ without a peer; otherwise as for [`Self::send_to`].
    ///
    /// # Examples
    /// See [`Self::connect`].
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.send_datagram(buf, None)
    }

    /// Receives one datagram, and returns its length and source. Bytes that do not fit in `buf` are
    /// lost.
    ///
    /// # Errors
    /// `WouldBlock` if no datagram arrives within the time limit, or in non-blocking mode;
    /// `ConnectionRefused` if a connected peer has refused an earlier datagram (ICMP).
    ///
    /// # Examples
    /// See [`UdpSocket`].
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_datagram(buf, false)
    }

    /// Receives one datagram, and returns its length. Bytes that do not fit in `buf` are lost.
    ///
    /// # Errors
    /// As for [`Self::recv_from`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let (a, b) = (stack.bind_udp("127.0.0.1:0")?, stack.bind_udp("127.0.0.1:0")?);
    /// a.connect(b.local_addr()?)?;
    /// b.connect(a.local_addr()?)?;
    /// a.send(b"hello")?;
    /// assert_eq!(b.recv(&mut [0; 3])?, 3, "two bytes are lost");
    /// # Ok(())
    /// # }
    /// ```
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_datagram(buf, false).map(|(len, _)| len)
    }

    /// Receives the next datagram without removing it. Returns its length and source.
    ///
    /// # Errors
    /// As for [`Self::recv_from`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let (a, b) = (stack.bind_udp("127.0.0.1:0")?, stack.bind_udp("127.0.0.1:0")?);
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// let mut buf = [0; 16];
    /// assert_eq!(b.peek_from(&mut buf)?, b.recv_from(&mut buf)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_datagram(buf, true)
    }

    /// Receives the next datagram without removing it. Returns its length.
    ///
    /// # Errors
    /// As for [`Self::recv_from`].
    ///
    /// # Examples
    /// See [`Self::peek_from`].
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_datagram(buf, true).map(|(len, _)| len)
    }

    fn recv_datagram(&self, buf: &mut [u8], keep: bool) -> io::Result<(usize, SocketAddr)> {
        let room = room(buf);
        // SAFETY: `room` refers to `buf`, which is mutably borrowed during the call.
        let attempt = || unsafe { self.attempt_recv(&room, keep) };
        self.handle().blocking(self.handle().recv_limit(), attempt).map_err(io_error)
    }

    /// Receives a datagram without waiting. Returns its copied length and its source.
    ///
    /// # Safety
    /// The buffers must be valid for writes.
    pub(crate) unsafe fn attempt_recv(
        &self,
        buffers: &[Buffer],
        keep: bool,
    ) -> Result<(usize, SocketAddr), Error> {
        let handle = self.handle();
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        let received =
            unsafe { datagram::recv(handle.client(), handle.socket, buffers, keep.then_some(0)) }?;
        // Use an unspecified address if there is no datagram. In fact there is always one: `None`
        // is returned only after shutdown for reading, for which this API has no method.
        let from = received.map_or(RawAddr::default(), |received| received.header.remote);
        Ok((received.map_or(0, |received| received.copied), shown(from, handle.family)))
    }

    /// Queues a datagram for sending. Returns `WouldBlock` if the send buffer is full.
    #[cfg(feature = "tokio")]
    pub(crate) fn attempt_send(&self, buf: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        let handle = self.handle();
        let header = self.header(buf, to)?;
        // SAFETY: the buffers refer to `buf`, which is borrowed during the call.
        let sent = unsafe { datagram::send(handle.client(), handle.socket, &header, &bytes(buf)) };
        sent.map_err(io_error)
    }

    fn send_datagram(&self, buf: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        let handle = self.handle();
        let header = self.header(buf, to)?;
        let buffers = bytes(buf);
        let attempt = || {
            // SAFETY: `buffers` refers to `buf`, which is borrowed during the call.
            unsafe { datagram::send(handle.client(), handle.socket, &header, &buffers) }
        };
        handle.sending(handle.send_limit(), attempt).map_err(io_error)
    }

    /// Returns the header of a datagram to `to`, or to the connected peer.
    fn header(&self, buf: &[u8], to: Option<SocketAddr>) -> io::Result<DatagramHeader> {
        let handle = self.handle();
        let remote = self.destination(to)?;
        if buf.len() > LENGTH_MAX && handle.family == INET {
            return fail(Errno::MSGSIZE);
        }
        let Ok(len) = u32::try_from(buf.len()) else { return fail(Errno::MSGSIZE) };
        let header = header(handle, remote, len)?;
        if buf.len() > PAYLOAD_MAX_V4 {
            check_length(handle, &header)?;
        }
        Ok(header)
    }

    /// Returns the destination for the datagram's header; family 0 means the connected peer.
    fn destination(&self, to: Option<SocketAddr>) -> io::Result<RawAddr> {
        let handle = self.handle();
        let slot = handle.slot()?;
        let Some(to) = to else {
            let is_connected = slot.flags.load(Acquire) & flags::CONNECTED != 0;
            return if is_connected { Ok(RawAddr::default()) } else { fail(Errno::DESTADDRREQ) };
        };
        if to.is_ipv6() && handle.family == INET {
            return fail(Errno::AFNOSUPPORT);
        }
        if to.port() == 0 {
            return fail(Errno::INVAL);
        }
        if let SocketAddr::V4(v4) = to
            && !handle.has_bit(option_bit::BROADCAST)?
            && self.inner.broadcasts.contains(handle, *v4.ip())?
        {
            return fail(Errno::ACCESS);
        }
        reached(slot, handle.family, to)
    }
}

impl Broadcasts {
    fn contains(&self, handle: &OwnedSocket, ip: Ipv4Addr) -> io::Result<bool> {
        // A network with a prefix of at most 30 bits has a broadcast address that ends with two
        // ones. For most destinations, this check avoids a request to the engine.
        if ip.octets()[3] & 3 != 3 {
            return Ok(false);
        }
        if ip.is_broadcast() {
            return Ok(true);
        }
        let known = match self.0.get() {
            Some(known) => known,
            None => {
                let asked = ask(handle)?;
                self.0.get_or_init(|| asked)
            }
        };
        Ok(known.contains(&ip))
    }
}

fn ask(handle: &OwnedSocket) -> io::Result<Box<[Ipv4Addr]>> {
    let reply = handle.call(call::INTERFACES, |_| {})?;
    let interfaces = reply.payload().chunks_exact(size_of::<Interface>());
    let broadcast = |bytes| {
        let interface = Interface::from_bytes(bytes);
        let fits = interface.prefix_len <= PREFIX_MAX && interface.flags & HAS_BROADCAST != 0;
        match interface.addr.to_socket_addr() {
            Some(SocketAddr::V4(addr)) if fits => {
                let host = u32::MAX.checked_shr(interface.prefix_len).unwrap_or(0);
                Some(Ipv4Addr::from_bits(addr.ip().to_bits() | host))
            }
            _ => None,
        }
    };
    Ok(interfaces.filter_map(broadcast).collect())
}

/// Returns a datagram's header, which contains the current socket options. The options are copied,
/// because the program may change them before the datagram is sent.
fn header(handle: &OwnedSocket, remote: RawAddr, len: u32) -> io::Result<DatagramHeader> {
    let slot = handle.slot()?;
    let to = if remote.family == 0 { slot.remote.load() } else { remote };
    let ip = to.to_socket_addr().map(|addr| addr.ip().to_canonical());
    let ttl = match ip {
        // Leave the TTL to the engine: it applies the multicast TTL.
        Some(ip) if ip.is_multicast() || ip.is_ipv6() => None,
        _ => Some(slot.ttl.load(Relaxed)).filter(|ttl| *ttl != 0),
    };
    Ok(DatagramHeader {
        len,
        remote,
        tos: DatagramHeader::DEFAULT,
        ttl: ttl.map_or(DatagramHeader::DEFAULT, u16::from),
        ..DatagramHeader::default()
    })
}

/// Requests from the engine whether a datagram of this length may be sent.
fn check_length(handle: &OwnedSocket, header: &DatagramHeader) -> io::Result<()> {
    let asked = handle.call(call::CHECK_LENGTH, |request| {
        let bytes = header.as_bytes();
        request.len = bytes.len() as u32;
        request.data[..bytes.len()].copy_from_slice(bytes);
    });
    asked.map(drop)
}
