//! The system calls that take memory as iovecs or control messages, the only unsafe code here.
//!
//! FIFO memory never becomes a `&[u8]` (see [`towpath_shm`]), so bytes go between it and host sockets
//! by address: the kernel copies, as another thread would.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use towpath_shm::Fragments;

/// How a datagram goes out, besides its bytes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Destination {
    /// Where to, on a socket that is not connected.
    pub(crate) to: Option<SocketAddr>,
    /// The address of this machine that it shall come from (IP_PKTINFO).
    pub(crate) from: Option<IpAddr>,
    /// Cut it into datagrams of this size (UDP_SEGMENT).
    pub(crate) segment: Option<u16>,
}

/// What came with a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    /// Bytes of it.
    pub(crate) len: usize,
    /// Who sent it; None on connected sockets.
    pub(crate) from: Option<SocketAddr>,
    /// The address of this machine it was sent to, to answer from, when asked for.
    pub(crate) to: Option<IpAddr>,
    /// It is several datagrams of this size (UDP_GRO), the last may be shorter.
    pub(crate) segment: Option<u16>,
}

/// Sends on a stream; returns how many bytes the kernel took.
pub(crate) fn send_stream(fd: BorrowedFd<'_>, bytes: &Fragments) -> Result<usize, Errno> {
    let (mut iov, n) = iovecs(&[], bytes);
    send_message(fd, &mut iov[..n], &mut Address::empty(), &mut Control::empty())
}

/// Sends one datagram, or several with [`Destination::segment`].
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
            // SAFETY: in_pktinfo is plain integers, for which zero is a value.
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
    if let Some(size) = destination.segment {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size);
    }
    send_message(fd, &mut iov[..n], &mut address, &mut control)
}

/// Receives from a stream into FIFO memory that nobody else uses; 0 is the end of the stream.
pub(crate) fn recv_stream(fd: BorrowedFd<'_>, spare: &Fragments) -> Result<usize, Errno> {
    let (mut iov, n) = iovecs(&[], spare);
    // SAFETY: a msghdr is plain integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = n as _;
    // SAFETY: the iovecs are stretches of a mapping that `spare` keeps alive during the call, and
    // mappings may be written to by anybody at any time.
    result(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
}

/// Receives one datagram, or a train of them on a socket with [`enable_gro`].
pub(crate) fn recv_datagram(fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<Received, Errno> {
    let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut address = Address::empty();
    let mut control = Control::empty();
    // SAFETY: a msghdr is plain integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = (&raw mut address.storage).cast();
    message.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as _;
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control.bytes) as _;
    // SAFETY: every pointer in `message` is to a local or to `into`, with its length beside it.
    let len = result(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })?;
    address.len = message.msg_namelen;
    let mut received = Received { len, from: address.get(), to: None, segment: None };
    read_control(&message, &mut received);
    Ok(received)
}

/// Lets the kernel hand over trains of equal datagrams (UDP_GRO, Linux 5.0). False: it cannot.
pub(crate) fn enable_gro(fd: BorrowedFd<'_>) -> bool {
    set_flag(fd, libc::SOL_UDP, libc::UDP_GRO).is_ok()
}

/// Asks for the address that each datagram was sent to.
pub(crate) fn enable_packet_info(fd: BorrowedFd<'_>, v6: bool) -> Result<(), Errno> {
    if v6 {
        set_flag(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
    } else {
        set_flag(fd, libc::IPPROTO_IP, libc::IP_PKTINFO)
    }
}

fn set_flag(fd: BorrowedFd<'_>, level: i32, option: i32) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    let len = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a local of the length given.
    let r = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const on).cast(), len) };
    result(r as isize).map(drop)
}

fn read_control(message: &libc::msghdr, received: &mut Received) {
    // SAFETY: the kernel filled `msg_control` and set `msg_controllen` to what it wrote; the CMSG
    // macros stay within that, and CMSG_DATA of the matched types holds a value of that type
    // (read unaligned, since only 8-byte alignment of headers is promised).
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = at.as_ref() {
            let data = libc::CMSG_DATA(at);
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = data.cast::<libc::c_int>().read_unaligned();
                    received.segment = u16::try_from(size).ok().filter(|size| *size > 0);
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    // Not `ipi_addr`, which may be a broadcast address.
                    let octets = info.ipi_spec_dst.s_addr.to_ne_bytes();
                    received.to = Some(Ipv4Addr::from(octets).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    let to = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    received.to = (!to.is_multicast()).then_some(to.into());
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
}

fn send_message(
    fd: BorrowedFd<'_>,
    iov: &mut [libc::iovec],
    address: &mut Address,
    control: &mut Control,
) -> Result<usize, Errno> {
    // SAFETY: a msghdr is plain integers and pointers, for which zero is a value.
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
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the iovecs point to a slice or to stretches of a mapping, which the callers' borrows
    // keep alive during the call; the other pointers are to the arguments.
    result(unsafe { libc::sendmsg(fd.as_raw_fd(), &message, flags) })
}

/// The iovecs of a linear part and a tail, and how many there are.
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

fn result(r: isize) -> Result<usize, Errno> {
    usize::try_from(r).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
    })
}

struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    fn empty() -> Self {
        // SAFETY: a sockaddr_storage is plain integers, for which zero is a value.
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

/// Control messages; u64 for the alignment of cmsghdr. Room for a packet info and two integers.
struct Control {
    bytes: [u64; 16],
    len: usize,
}

impl Control {
    fn empty() -> Self {
        Self { bytes: [0; 16], len: 0 }
    }

    fn push<T: Copy>(&mut self, level: i32, kind: i32, value: &T) {
        let size = mem::size_of::<T>() as u32;
        // SAFETY: CMSG_SPACE and CMSG_LEN are arithmetic.
        let (space, len) = unsafe { (libc::CMSG_SPACE(size), libc::CMSG_LEN(size)) };
        assert!(self.len + space as usize <= mem::size_of_val(&self.bytes), "three messages fit");
        let base = self.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: asserted above that header and data fit behind `len`, which is a multiple of the
        // header's alignment because CMSG_SPACE rounds up.
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
