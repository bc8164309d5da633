//! System calls that take iovecs or control messages; the crate's only unsafe code.
//!
//! FIFO memory must not become a `&[u8]` (see [`towpath_shm`]). Therefore we pass addresses to the
//! kernel, which copies between FIFOs and host sockets.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use towpath_shm::Fragments;
use towpath_shm::syscall::syscall;

/// Destination, source and header fields of an outgoing datagram.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Destination {
    /// Destination address. Must be set if the socket is not connected.
    pub(crate) to: Option<SocketAddr>,
    /// Source address of the datagram (IP_PKTINFO).
    pub(crate) from: Option<IpAddr>,
    /// Segment size in bytes (UDP_SEGMENT): the kernel splits the payload into datagrams of this
    /// size.
    pub(crate) segment: Option<u16>,
    /// Whether the socket is an IPv6 socket.
    pub(crate) v6: bool,
    /// TTL or hop limit of the datagram; `None` uses that of the socket.
    pub(crate) ttl: Option<u8>,
    /// Type of service or traffic class of the datagram; `None` uses that of the socket.
    pub(crate) tos: Option<u8>,
}

/// Metadata of a received datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    /// Payload length in bytes.
    pub(crate) len: usize,
    /// Address of the sender; `None` if the socket is connected.
    pub(crate) from: Option<SocketAddr>,
    /// Local address to which the datagram was sent. Set only after [`enable_packet_info`].
    pub(crate) to: Option<IpAddr>,
    /// Payload size in bytes of each of the coalesced datagrams (UDP_GRO). The last one may be
    /// shorter.
    pub(crate) segment: Option<u16>,
    /// Received TTL or hop limit. Set only after [`enable_details`].
    pub(crate) ttl: Option<u8>,
    /// Received type of service or traffic class; 0 unless [`enable_details`] was called.
    pub(crate) tos: u8,
}

/// Error report that the kernel has queued for a socket with [`IpOption::ReceiveErrors`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuedError {
    /// The error as an errno.
    pub(crate) errno: Errno,
    /// Type and code of the ICMP message; `None` if the error originates on this machine.
    pub(crate) icmp: Option<(u8, u8)>,
    /// Whether the ICMP message is ICMPv6.
    pub(crate) v6: bool,
    /// MTU in bytes or parameter-problem pointer, depending on the ICMP type (`ee_info`).
    pub(crate) info: u32,
    /// Sender of the ICMP message.
    pub(crate) from: Option<IpAddr>,
    /// Destination of the packet that caused the error.
    pub(crate) to: Option<SocketAddr>,
    /// Length of the quoted payload in bytes. For ICMP sockets, this includes the ICMP header.
    pub(crate) len: usize,
}

impl QueuedError {
    /// Returns the MTU in bytes if an IPv6 router reported that a packet was too long.
    pub(crate) fn mtu_v6(&self) -> Option<u32> {
        (self.v6 && self.errno == Errno::MSGSIZE).then_some(self.info)
    }
}

/// Sends on a stream and returns the number of bytes accepted. `is_urgent` marks the last byte as
/// urgent.
pub(crate) fn send_stream(
    fd: BorrowedFd<'_>,
    bytes: &Fragments,
    is_urgent: bool,
) -> Result<usize, Errno> {
    let (mut iov, n) = iovecs(&[], bytes);
    let flags = if is_urgent { libc::MSG_OOB } else { 0 };
    send_message(fd, &mut iov[..n], &mut Address::empty(), &mut Control::empty(), flags)
}

/// Returns whether the next byte of a stream is urgent; false if the socket does not support urgent
/// data.
pub(crate) fn is_at_mark(fd: BorrowedFd<'_>) -> bool {
    const SIOCATMARK: usize = 0x8905;
    let mut answer: libc::c_int = 0;
    let args = [fd.as_raw_fd() as usize, SIOCATMARK, (&raw mut answer).addr(), 0, 0, 0];
    // SAFETY: SIOCATMARK writes an int to `answer`, which outlives the call.
    unsafe { syscall(libc::SYS_ioctl as usize, args) }.is_ok() && answer != 0
}

/// Sends one datagram, or several if [`Destination::segment`] is set.
pub(crate) fn send_datagram(
    fd: BorrowedFd<'_>,
    linear: &[u8],
    tail: &Fragments,
    destination: &Destination,
) -> Result<usize, Errno> {
    let (mut iov, n) = iovecs(linear, tail);
    let mut address = destination.to.map_or_else(Address::empty, Address::new);
    let mut control = Control::empty();
    match destination.from {
        Some(IpAddr::V4(from)) => {
            // SAFETY: in_pktinfo has only integer fields, for which zero is valid.
            let mut info: libc::in_pktinfo = unsafe { mem::zeroed() };
            info.ipi_spec_dst.s_addr = u32::from_ne_bytes(from.octets());
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        Some(IpAddr::V6(from)) => {
            let ipi6_addr = libc::in6_addr { s6_addr: from.octets() };
            let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 };
            control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        None => {}
    }
    let [ttl, tos] = [destination.ttl, destination.tos].map(|value| value.map(libc::c_int::from));
    let [(level, ttl_kind), (_, tos_kind)] =
        [IpOption::Ttl, IpOption::Tos].map(|option| option.number(destination.v6));
    if let Some(ttl) = ttl {
        control.push(level, ttl_kind, &ttl);
    }
    if let Some(tos) = tos {
        control.push(level, tos_kind, &tos);
    }
    if let Some(size) = destination.segment {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size);
    }
    send_message(fd, &mut iov[..n], &mut address, &mut control, 0)
}

/// Enables [`recv_stream`] to return whether bytes are left (TCP_INQ, Linux 4.18). Returns false if
/// unsupported.
pub(crate) fn enable_inq(fd: BorrowedFd<'_>) -> bool {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_INQ, 1).is_ok()
}

/// Receives from a stream socket into unused FIFO memory. Returns the number of bytes, 0 at the end
/// of the stream. After [`enable_inq`], also returns whether unread bytes or a FIN are left.
pub(crate) fn recv_stream(fd: BorrowedFd<'_>, spare: &Fragments) -> Result<(usize, bool), Errno> {
    let (mut iov, n) = iovecs(&[], spare);
    let mut control = Control::empty();
    // SAFETY: a msghdr has only integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = n as _;
    message.msg_control = control.bytes.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control.bytes) as _;
    // SAFETY: the iovecs are stretches of a mapping that `spare` keeps alive during the call.
    // Concurrent writes to mappings are allowed. `control` outlives the call.
    let len = unsafe { transfer(libc::SYS_recvmsg, fd, &raw mut message, libc::MSG_DONTWAIT) }?;
    control.len = message.msg_controllen as _;
    let mut left = 0;
    control.each(|level, kind, data| {
        if (level, kind) == (libc::IPPROTO_TCP, libc::TCP_CM_INQ) {
            left = plain::<libc::c_int>(data).unwrap_or(0);
        }
    });
    Ok((len, left > 0))
}

/// Receives one datagram, or several coalesced ones if [`enable_gro`] was called.
pub(crate) fn recv_datagram(fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<Received, Errno> {
    let (mut address, mut control) = (Address::empty(), Control::empty());
    let len = recv_message(fd, into, &mut address, &mut control, 0)?;
    let mut received =
        Received { len, from: address.get(), to: None, segment: None, ttl: None, tos: 0 };
    control.each(|level, kind, data| read_control((level, kind), data, &mut received));
    Ok(received)
}

/// Takes the oldest report from a socket's error queue, and copies the payload that it quotes to
/// `into`.
pub(crate) fn recv_error(fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<QueuedError, Errno> {
    let (mut address, mut control) = (Address::empty(), Control::empty());
    let len = recv_message(fd, into, &mut address, &mut control, libc::MSG_ERRQUEUE)?;
    let mut found = None;
    control.each(|level, kind, data| {
        if matches!(
            (level, kind),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        ) {
            found = read_error(data);
        }
    });
    // Fail for other kinds of reports (timestamps, zero-copy completions), which we never enable.
    let (error, from) = found.ok_or(Errno::PROTO)?;
    let icmp = matches!(error.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6)
        .then_some((error.ee_type, error.ee_code));
    Ok(QueuedError {
        errno: Errno::from_raw_os_error(error.ee_errno as i32),
        icmp,
        v6: error.ee_origin == libc::SO_EE_ORIGIN_ICMP6,
        info: error.ee_info,
        from,
        to: address.get(),
        len,
    })
}

/// Enables coalesced reception of equal-sized datagrams (UDP_GRO, Linux 5.0). Returns false if
/// unsupported.
pub(crate) fn enable_gro(fd: BorrowedFd<'_>) -> bool {
    set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Enables reporting of the local address to which each datagram was sent.
pub(crate) fn enable_packet_info(fd: BorrowedFd<'_>, v6: bool) -> Result<(), Errno> {
    let (level, option) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
    } else {
        (libc::IPPROTO_IP, libc::IP_PKTINFO)
    };
    set_int(fd, level, option, 1)
}

/// Socket options of the IP level, each for IPv4 and IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IpOption {
    /// IP_TTL or IPV6_UNICAST_HOPS; IPV6_HOPLIMIT as a control message.
    Ttl,
    /// IP_TOS or IPV6_TCLASS, also as a control message.
    Tos,
    /// IP_RECVTTL or IPV6_RECVHOPLIMIT: received datagrams report their TTL.
    ReceiveTtl,
    /// IP_RECVTOS or IPV6_RECVTCLASS: received datagrams report their type of service.
    ReceiveTos,
    /// IP_RECVERR or IPV6_RECVERR: error reports are queued for [`recv_error`].
    ReceiveErrors,
    /// IP_MTU_DISCOVER or IPV6_MTU_DISCOVER: how to treat datagrams longer than the path MTU.
    MtuDiscover,
}

impl IpOption {
    /// Returns the level and number of the option. For [`Self::Ttl`] and [`Self::Tos`], returns
    /// those of the control message.
    const fn number(self, v6: bool) -> (i32, i32) {
        if v6 {
            let option = match self {
                Self::Ttl => libc::IPV6_HOPLIMIT,
                Self::Tos => libc::IPV6_TCLASS,
                Self::ReceiveTtl => libc::IPV6_RECVHOPLIMIT,
                Self::ReceiveTos => libc::IPV6_RECVTCLASS,
                Self::ReceiveErrors => libc::IPV6_RECVERR,
                Self::MtuDiscover => libc::IPV6_MTU_DISCOVER,
            };
            return (libc::IPPROTO_IPV6, option);
        }
        let option = match self {
            Self::Ttl => libc::IP_TTL,
            Self::Tos => libc::IP_TOS,
            Self::ReceiveTtl => libc::IP_RECVTTL,
            Self::ReceiveTos => libc::IP_RECVTOS,
            Self::ReceiveErrors => libc::IP_RECVERR,
            Self::MtuDiscover => libc::IP_MTU_DISCOVER,
        };
        (libc::IPPROTO_IP, option)
    }
}

/// Sets an IP-level socket option.
pub(crate) fn set_ip(
    fd: BorrowedFd<'_>,
    v6: bool,
    option: IpOption,
    value: i32,
) -> Result<(), Errno> {
    let (level, number) = match (option, v6) {
        (IpOption::Ttl, true) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        _ => option.number(v6),
    };
    set_int(fd, level, number, value)
}

/// Sets whether datagrams longer than the path MTU are refused instead of fragmented.
pub(crate) fn set_dont_fragment(fd: BorrowedFd<'_>, v6: bool, on: bool) -> Result<(), Errno> {
    // The values of IPV6_MTU_DISCOVER are the same as those of IP_MTU_DISCOVER.
    let how = if on { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_WANT };
    set_ip(fd, v6, IpOption::MtuDiscover, how)
}

/// Lowers the path MTU of an IPv6 socket (IPV6_MTU), so that the kernel sends smaller fragments.
/// Returns the MTU after clamping.
///
/// The kernel stores the MTU in a route. For a socket bound to an interface, this may be another
/// route than the one that the socket uses. Packets that fit the MTU of the socket's route are
/// still sent whole (`__ip6_finish_output`).
pub(crate) fn lower_mtu_v6(fd: BorrowedFd<'_>, mtu: u32) -> u32 {
    // Clamp to 1280 bytes, which RFC 8200 §5 requires of every link. The kernel rejects smaller
    // values.
    let mtu = mtu.clamp(1280, 65_535);
    // Ignore errors: long datagrams are then lost as before, and the program expects no report.
    let _ = set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU, mtu.cast_signed());
    mtu
}

/// Enables reporting of TTL, type of service and queued errors.
pub(crate) fn enable_details(fd: BorrowedFd<'_>, v6: bool) -> Result<(), Errno> {
    for option in [IpOption::ReceiveErrors, IpOption::ReceiveTtl, IpOption::ReceiveTos] {
        set_ip(fd, v6, option, 1)?;
    }
    Ok(())
}

/// Sets SO_MARK, which requires CAP_NET_ADMIN or, since Linux 5.17, CAP_NET_RAW.
pub(crate) fn set_mark(fd: BorrowedFd<'_>, mark: u32) -> Result<(), Errno> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed())
}

/// Sets SO_BINDTODEVICE, which needs no privilege since Linux 5.7.
pub(crate) fn bind_to_interface(fd: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    set_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_bytes())
}

fn set_int(fd: BorrowedFd<'_>, level: i32, option: i32, value: libc::c_int) -> Result<(), Errno> {
    set_bytes(fd, level, option, &value.to_ne_bytes())
}

fn set_bytes(fd: BorrowedFd<'_>, level: i32, option: i32, value: &[u8]) -> Result<(), Errno> {
    let args = [
        fd.as_raw_fd() as usize,
        level as usize,
        option as usize,
        value.as_ptr().expose_provenance(),
        value.len(),
        0,
    ];
    // SAFETY: the pointer and length describe a slice that is borrowed during the call.
    let set = unsafe { syscall(libc::SYS_setsockopt as usize, args) };
    set.map(drop).map_err(Errno::from_raw_os_error)
}

fn read_control((level, kind): (i32, i32), data: &[u8], received: &mut Received) {
    let byte = || plain::<libc::c_int>(data).and_then(|value| u8::try_from(value).ok());
    match (level, kind) {
        (libc::SOL_UDP, libc::UDP_GRO) => {
            let size = plain::<libc::c_int>(data).and_then(|size| u16::try_from(size).ok());
            received.segment = size.filter(|size| *size > 0);
        }
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            // Use `ipi_spec_dst`, the local address, because `ipi_addr` may be a broadcast address.
            let octets = |info: libc::in_pktinfo| info.ipi_spec_dst.s_addr.to_ne_bytes();
            received.to = plain(data).map(|info| Ipv4Addr::from(octets(info)).into());
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            let to =
                plain(data).map(|info: libc::in6_pktinfo| Ipv6Addr::from(info.ipi6_addr.s6_addr));
            received.to = to.filter(|to| !to.is_multicast()).map(IpAddr::V6);
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            received.ttl = byte();
        }
        // The control message IP_TOS contains a single byte; all others contain an int.
        (libc::IPPROTO_IP, libc::IP_TOS) => received.tos = data.first().copied().unwrap_or(0),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => received.tos = byte().unwrap_or(0),
        _ => {}
    }
}

/// Parses an extended error (`struct sock_extended_err`) and the address of the host that reported
/// it.
fn read_error(data: &[u8]) -> Option<(libc::sock_extended_err, Option<IpAddr>)> {
    let error = plain::<libc::sock_extended_err>(data)?;
    let offender = data.get(mem::size_of::<libc::sock_extended_err>()..)?;
    let family = i32::from(plain::<libc::sa_family_t>(offender)?);
    let from = match family {
        libc::AF_INET => plain(offender)
            .map(|raw: libc::sockaddr_in| Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes()).into()),
        libc::AF_INET6 => plain(offender)
            .map(|raw: libc::sockaddr_in6| Ipv6Addr::from(raw.sin6_addr.s6_addr).into()),
        _ => None,
    };
    Some((error, from))
}

/// Marker for structures of the kernel's API for which every bit pattern is valid.
trait KernelStruct: Copy {}
impl KernelStruct for libc::c_int {}
impl KernelStruct for libc::sa_family_t {}
impl KernelStruct for libc::in_pktinfo {}
impl KernelStruct for libc::in6_pktinfo {}
impl KernelStruct for libc::sock_extended_err {}
impl KernelStruct for libc::sockaddr_in {}
impl KernelStruct for libc::sockaddr_in6 {}

fn plain<T: KernelStruct>(data: &[u8]) -> Option<T> {
    let bytes = data.get(..mem::size_of::<T>())?;
    // SAFETY: `bytes` has the length of a T, the read needs no alignment, and every bit pattern is
    // a valid T.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

fn recv_message(
    fd: BorrowedFd<'_>,
    into: &mut [u8],
    address: &mut Address,
    control: &mut Control,
    flags: i32,
) -> Result<usize, Errno> {
    let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: a msghdr has only integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = (&raw mut address.storage).cast();
    message.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as _;
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control.bytes) as _;
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: every pointer in `message` refers to an argument or a local and is paired with its
    // length.
    let len = unsafe { transfer(libc::SYS_recvmsg, fd, &raw mut message, flags) }?;
    address.len = message.msg_namelen;
    control.len = message.msg_controllen as _;
    Ok(len)
}

fn send_message(
    fd: BorrowedFd<'_>,
    iov: &mut [libc::iovec],
    address: &mut Address,
    control: &mut Control,
    flags: i32,
) -> Result<usize, Errno> {
    // SAFETY: a msghdr has only integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    if address.len > 0 {
        message.msg_name = (&raw mut address.storage).cast();
        message.msg_namelen = address.len;
    }
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len() as _;
    if control.len > 0 {
        message.msg_control = control.bytes.as_mut_ptr().cast();
        message.msg_controllen = control.len as _;
    }
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the iovecs point to a slice or to stretches of a mapping, which the callers' borrows
    // keep alive during the call. The remaining pointers refer to the arguments.
    unsafe { transfer(libc::SYS_sendmsg, fd, &raw const message, flags) }
}

/// Returns iovecs for the bytes of `linear` followed by the bytes of `tail`, and the number of
/// these iovecs.
fn iovecs(linear: &[u8], tail: &Fragments) -> ([libc::iovec; 3], usize) {
    let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut iov = [empty; 3];
    let mut n = 0;
    if !linear.is_empty() {
        iov[0] = libc::iovec { iov_base: linear.as_ptr().cast_mut().cast(), iov_len: linear.len() };
        n = 1;
    }
    for stretch in tail.iter() {
        let iov_base = stretch.as_ptr().cast_mut().cast();
        iov[n] = libc::iovec { iov_base, iov_len: stretch.len() as usize };
        n += 1;
    }
    (iov, n)
}

/// Calls sendmsg(2) or recvmsg(2) by number and returns the number of bytes transferred.
///
/// # Safety
/// All pointers in the message must be valid during the call; for recvmsg(2), also for writes.
unsafe fn transfer(
    call: libc::c_long,
    fd: BorrowedFd<'_>,
    message: *const libc::msghdr,
    flags: libc::c_int,
) -> Result<usize, Errno> {
    let args = [fd.as_raw_fd() as usize, message.expose_provenance(), flags as usize, 0, 0, 0];
    // SAFETY: all pointers in the message are valid during the call, by the contract of this
    // function.
    unsafe { syscall(call as usize, args) }.map_err(Errno::from_raw_os_error)
}

struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    fn empty() -> Self {
        // SAFETY: a sockaddr_storage has only integers, for which zero is valid.
        Self { storage: unsafe { mem::zeroed() }, len: 0 }
    }

    fn new(addr: SocketAddr) -> Self {
        let mut this = Self::empty();
        match addr {
            SocketAddr::V4(addr) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as _,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                    sin_zero: [0; 8],
                };
                this.put(raw);
            }
            SocketAddr::V6(addr) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as _,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                };
                this.put(raw);
            }
        }
        this
    }

    fn put<T: Copy>(&mut self, raw: T) {
        const { assert!(mem::size_of::<T>() <= mem::size_of::<libc::sockaddr_storage>()) };
        // SAFETY: the storage is at least as large and as aligned as every sockaddr.
        unsafe { (&raw mut self.storage).cast::<T>().write(raw) };
        self.len = mem::size_of::<T>() as _;
    }

    fn get(&self) -> Option<SocketAddr> {
        if (self.len as usize) < mem::size_of::<libc::sockaddr_in>() {
            return None;
        }
        let storage = &raw const self.storage;
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the kernel wrote a sockaddr_in, as the family says.
                let raw = unsafe { storage.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: the kernel wrote a sockaddr_in6, as the family says.
                let raw = unsafe { storage.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                let port = u16::from_be(raw.sin6_port);
                Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Buffer for control messages. Made of u64, to have the alignment of cmsghdr. Large enough for a
/// packet info, three integers, and an error report with an address.
struct Control {
    bytes: [u64; 24],
    len: usize,
}

impl Control {
    fn empty() -> Self {
        Self { bytes: [0; 24], len: 0 }
    }

    /// Calls `take` with the level, type and data of each received control message.
    fn each(&self, mut take: impl FnMut(i32, i32, &[u8])) {
        // SAFETY: a msghdr has only integers and pointers, for which zero is valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_control = self.bytes.as_ptr().cast_mut().cast();
        message.msg_controllen = self.len.min(mem::size_of_val(&self.bytes)) as _;
        // SAFETY: the kernel wrote whole messages into the first `len` bytes, and the CMSG macros
        // stay within them. A message's data ends where its `cmsg_len` says.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(&message);
            while let Some(header) = at.as_ref() {
                let whole: usize = header.cmsg_len as _;
                let len = whole.saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = std::slice::from_raw_parts(libc::CMSG_DATA(at), len);
                take(header.cmsg_level, header.cmsg_type, data);
                at = libc::CMSG_NXTHDR(&message, at);
            }
        }
    }

    fn push<T: Copy>(&mut self, level: i32, kind: i32, value: &T) {
        let size = mem::size_of::<T>() as u32;
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute sizes, and access no memory.
        let (space, len) = unsafe { (libc::CMSG_SPACE(size), libc::CMSG_LEN(size)) };
        assert!(self.len + space as usize <= mem::size_of_val(&self.bytes), "four messages fit");
        let base = self.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: header and data fit after `len`, as asserted above. `len` is a multiple of the
        // header's alignment, because CMSG_SPACE rounds up.
        unsafe {
            let header = base.add(self.len).cast::<libc::cmsghdr>();
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = len as _;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(*value);
        }
        self.len += space as usize;
    }
}
