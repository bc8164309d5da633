//! System calls that need `unsafe`: ioctls of the TUN/TAP driver, and `writev` from memory that
//! programs may change.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use towpath_shm::Fd;

use rustix::fs::{Mode, OFlags};
use towpath_shm::syscall::syscall;
use towpath_virtio::HEADER_LEN;

use crate::kind::Kind;

/// Device file of the TUN/TAP driver.
pub const TUN_PATH: &str = "/dev/net/tun";

/// Maximum length of an interface name in bytes, without the terminating NUL.
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Opens [`TUN_PATH`] in non-blocking mode.
pub fn open_tun() -> io::Result<Fd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(TUN_PATH, flags, Mode::empty())?.into())
}

/// Creates the TUN or TAP device `name`, or opens it if it exists. Returns its name, in which the
/// kernel has replaced `%d` by a number. `name` must be shorter than IFNAMSIZ.
pub fn set_iff(
    fd: BorrowedFd<'_>,
    kind: Kind,
    name: &str,
    multi_queue: bool,
) -> io::Result<String> {
    assert!(name.len() <= NAME_MAX);
    // SAFETY: `ifreq` consists of integers and unions of them, so all zeros are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let mut flags = kind.flag() | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, a local.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = request.ifr_name.iter().take_while(|c| **c != 0).map(|c| *c as u8);
    Ok(String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned())
}

/// Returns the name of the device attached to a descriptor, and its flags, such as IFF_TUN.
pub fn attached(fd: BorrowedFd<'_>) -> io::Result<(String, libc::c_int)> {
    // SAFETY: `ifreq` consists of integers and unions of them, so all zeros are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: TUNGETIFF writes one ifreq, a local.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) })?;
    let name = request.ifr_name.iter().take_while(|c| **c != 0).map(|c| *c as u8);
    // SAFETY: TUNGETIFF has set the flags in the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok((String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned(), flags.into()))
}

/// Returns whether the attached device is persistent: it is not removed when no process has it
/// open.
pub fn is_persistent(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: `ifreq` consists of integers and unions of them, so all zeros are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: TUNGETIFF writes one ifreq, a local.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) })?;
    // SAFETY: TUNGETIFF has set the flags in the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags) & libc::IFF_PERSIST != 0)
}

/// Sets the length of the virtio header that precedes each frame.
pub fn set_header_len(fd: BorrowedFd<'_>) -> io::Result<()> {
    let len = HEADER_LEN as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int, a local.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const len) })
}

/// Enables offloads for frames that are received from the kernel: partial checksums and merged TCP
/// segments. With `udp`, also merged UDP datagrams.
pub fn set_offloads(fd: BorrowedFd<'_>, udp: bool) -> io::Result<()> {
    // Constants of linux/if_tun.h; USO4 and USO6 exist since Linux 6.2.
    const TUN_F_CSUM: libc::c_uint = 0x01;
    const TUN_F_TSO4: libc::c_uint = 0x02;
    const TUN_F_TSO6: libc::c_uint = 0x04;
    const TUN_F_TSO_ECN: libc::c_uint = 0x08;
    const TUN_F_USO4: libc::c_uint = 0x20;
    const TUN_F_USO6: libc::c_uint = 0x40;
    let mut bits = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    if udp {
        bits |= TUN_F_USO4 | TUN_F_USO6;
    }
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, bits as libc::c_ulong) })
}

/// Makes the kernel complete checksums and segmentation of received frames itself.
pub fn clear_offloads(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, 0 as libc::c_ulong) })
}

/// Sets the Ethernet address of the kernel's end.
pub fn set_mac(fd: BorrowedFd<'_>, mac: [u8; 6]) -> io::Result<()> {
    // SAFETY: ifreq consists of integers and unions of them, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: sockaddr consists of integers, for which zero is valid.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = libc::ARPHRD_ETHER;
    for (to, from) in address.sa_data.iter_mut().zip(mac) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = address;
    // SAFETY: SIOCSIFHWADDR reads one ifreq, a local. The descriptor determines the device.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCSIFHWADDR as _, &raw mut request) })
}

/// Sets whether the kernel's end has a carrier (Linux 5.0).
pub fn set_carrier(fd: BorrowedFd<'_>, carrier: bool) -> io::Result<()> {
    // From linux/if_tun.h: _IOW('T', 226, int).
    const TUNSETCARRIER: libc::c_ulong = 0x4004_54e2;
    let carrier = libc::c_int::from(carrier);
    // SAFETY: TUNSETCARRIER reads one int, a local.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETCARRIER as _, &raw const carrier) })
}

/// Sets the BPF program that selects the queue for each frame; `None` restores the kernel's own
/// selection.
pub fn set_steering(fd: BorrowedFd<'_>, program: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let program: libc::c_int = program.map_or(-1, |program| program.as_raw_fd());
    // SAFETY: TUNSETSTEERINGEBPF reads one int, a local.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETSTEERINGEBPF as _, &raw const program) })
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The parts of a frame for `writev`: virtio header, packet buffer, and at most two ranges of a
/// send FIFO.
pub struct FramePieces<'a> {
    iovecs: [libc::iovec; 4],
    used: usize,
    /// Borrows the memory to which the pointers refer.
    _packet: std::marker::PhantomData<&'a towpath_pool::Packet>,
}

impl<'a> FramePieces<'a> {
    /// Creates the list of the parts of `packet`, preceded by `header`.
    pub fn new(header: &'a [u8], packet: &'a towpath_pool::Packet) -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut out = Self { iovecs: [none; 4], used: 0, _packet: std::marker::PhantomData };
        out.push(header.as_ptr(), header.len());
        out.push(packet.linear().as_ptr(), packet.linear().len());
        for stretch in packet.tail.iter() {
            out.push(stretch.as_ptr(), stretch.len() as usize);
        }
        out
    }

    fn push(&mut self, at: *const u8, len: usize) {
        self.iovecs[self.used] = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
        self.used += 1;
    }

    /// Writes the collected parts as one frame.
    pub fn write(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let at = self.iovecs.as_ptr().expose_provenance();
        let args = [fd.as_raw_fd() as usize, at, self.used, 0, 0, 0];
        // SAFETY: every iovec points to memory of the packet or the header, borrowed for 'a, which
        // the kernel only reads. A program that changes its send FIFO during the call affects only
        // its own data.
        let written = unsafe { syscall(libc::SYS_writev as usize, args) };
        written.map_err(io::Error::from_raw_os_error)
    }
}
