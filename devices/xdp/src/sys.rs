//! System calls that need `unsafe`: XDP socket options, and wake-ups that make the kernel send or
//! receive.
//!
//! The wake-ups do not use libc, because a program that embeds this stack may replace libc's
//! functions by the stack's.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void};
use towpath_shm::syscall::syscall;
use towpath_shm::{Fd, Mapping};

use crate::chunks::CHUNK;
use crate::ring::RingLayout;

// Constants of linux/if_xdp.h.
const SOL_XDP: c_int = 283;
const XDP_MMAP_OFFSETS: c_int = 1;
const XDP_RX_RING: c_int = 2;
const XDP_TX_RING: c_int = 3;
const XDP_UMEM_REG: c_int = 4;
const XDP_UMEM_FILL_RING: c_int = 5;
const XDP_UMEM_COMPLETION_RING: c_int = 6;
const XDP_STATISTICS: c_int = 7;
const XDP_OPTIONS: c_int = 8;
/// Option of packet sockets, from linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: c_int = 23;
const XDP_OPTIONS_ZEROCOPY: u32 = 1;
const XDP_USE_NEED_WAKEUP: u16 = 1 << 3;
const XDP_USE_SG: u16 = 1 << 4;
/// Offsets for mmap(2) of a socket's rings: receive, transmit, fill, completion.
pub(crate) const RING_PLACES: [u64; 4] = [0, 0x8000_0000, 0x1_0000_0000, 0x1_8000_0000];
const RING_OPTIONS: [c_int; 4] =
    [XDP_RX_RING, XDP_TX_RING, XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING];

/// The kernel's `struct xdp_umem_reg` (linux/if_xdp.h).
#[repr(C)]
struct MemoryRegistration {
    address: u64,
    len: u64,
    chunk_len: u32,
    headroom: u32,
    flags: u32,
    metadata_len: u32,
}

/// The kernel's `struct sockaddr_xdp` (linux/if_xdp.h).
#[repr(C)]
struct Address {
    family: u16,
    flags: u16,
    interface: u32,
    queue: u32,
    shared: u32,
}

/// The kernel's `struct xdp_statistics` (linux/if_xdp.h).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Statistics {
    pub dropped: u64,
    pub invalid_received: u64,
    pub invalid_to_send: u64,
    pub ring_full: u64,
    pub fill_ring_empty: u64,
    pub send_ring_empty: u64,
}

const _: () = {
    assert!(size_of::<MemoryRegistration>() == 32);
    assert!(size_of::<Address>() == 16);
    assert!(size_of::<RingLayout>() == 32);
    assert!(size_of::<Statistics>() == 48);
};

/// Opens an unbound XDP socket.
pub(crate) fn open() -> io::Result<Fd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket(2) takes only numbers, no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
    check(fd)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// Registers `memory` as the socket's UMEM (memory for frames). Sets the numbers of entries of the
/// rings: receive, transmit, fill, completion.
pub(crate) fn set_up(socket: BorrowedFd<'_>, memory: &Mapping, sizes: [u32; 4]) -> io::Result<()> {
    let registration = MemoryRegistration {
        address: memory.u8(0).as_ptr() as u64,
        len: memory.len() as u64,
        chunk_len: CHUNK as u32,
        headroom: 0,
        flags: 0,
        metadata_len: 0,
    };
    // The kernel pins the registered pages in memory while the socket is open.
    set(socket, XDP_UMEM_REG, &registration)?;
    for (option, size) in RING_OPTIONS.into_iter().zip(sizes) {
        set(socket, option, &size)?;
    }
    Ok(())
}

/// Returns the offsets in the memory of the four rings.
pub(crate) fn layouts(socket: BorrowedFd<'_>) -> io::Result<[RingLayout; 4]> {
    let mut layouts = [RingLayout::default(); 4];
    get(socket, XDP_MMAP_OFFSETS, &mut layouts)?;
    Ok(layouts)
}

/// Binds the socket to a queue of the interface, in zero-copy mode if the driver supports it. With
/// `several`, frames may have several chunks (since Linux 6.6).
pub(crate) fn bind(
    socket: BorrowedFd<'_>,
    interface: u32,
    queue: u32,
    several: bool,
) -> io::Result<()> {
    let flags = XDP_USE_NEED_WAKEUP | if several { XDP_USE_SG } else { 0 };
    let family = libc::AF_XDP as u16;
    let address = Address { family, flags, interface, queue, shared: 0 };
    let len = size_of::<Address>() as libc::socklen_t;
    // SAFETY: bind(2) reads `len` bytes of the address, which is a local.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })
}

/// Binds a packet socket to an interface. The socket receives copies of the frames that a BPF
/// program selects.
pub(crate) fn copy_to(
    packets: BorrowedFd<'_>,
    interface: u32,
    program: BorrowedFd<'_>,
) -> io::Result<()> {
    let fd = packets.as_raw_fd();
    let (one, program): (c_int, c_int) = (1, program.as_raw_fd());
    let options = [
        (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &one),
        (libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program),
    ];
    for (level, option, value) in options {
        let value: *const c_int = value;
        let len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: setsockopt(2) reads an int, which is a local.
        check(unsafe { libc::setsockopt(fd, level, option, value.cast(), len) })?;
    }
    // SAFETY: `sockaddr_ll` consists of integers, so all zeros are a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface as c_int;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: bind(2) reads `len` bytes of the address, which is a local.
    check(unsafe { libc::bind(fd, (&raw const address).cast(), len) })
}

/// Sets the maximum number of bytes of this socket in the device's transmit queue, as far as the
/// kernel permits.
pub(crate) fn set_send_queue(socket: BorrowedFd<'_>, bytes: u32) {
    let value = bytes as c_int;
    let len = size_of::<c_int>() as libc::socklen_t;
    for option in [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF] {
        let fd = socket.as_raw_fd();
        // SAFETY: setsockopt(2) reads an int, which is a local variable.
        let status = unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), len)
        };
        if status == 0 {
            break;
        }
    }
}

/// Returns whether the socket is in zero-copy mode.
pub(crate) fn is_zero_copy(socket: BorrowedFd<'_>) -> bool {
    let mut options = 0u32;
    get(socket, XDP_OPTIONS, &mut options).is_ok() && options & XDP_OPTIONS_ZEROCOPY != 0
}

/// Returns the kernel's counters of dropped frames.
pub(crate) fn statistics(socket: BorrowedFd<'_>) -> Statistics {
    let mut statistics = Statistics::default();
    // Ignore the result: the call succeeds even after the interface was removed.
    let _ = get(socket, XDP_STATISTICS, &mut statistics);
    statistics
}

/// Makes the kernel send the frames in the transmit ring.
///
/// # Errors
/// Returns the errno. EAGAIN means that frames remain, or that the transmit queue of the device is
/// full.
pub(crate) fn wake_sender(socket: BorrowedFd<'_>) -> Result<(), i32> {
    let args = [socket.as_raw_fd() as usize, 0, 0, libc::MSG_DONTWAIT as usize, 0, 0];
    // SAFETY: sendto(2) without data and address accesses no memory.
    unsafe { syscall(libc::SYS_sendto as usize, args) }.map(drop)
}

/// Makes the kernel use the chunks in the fill ring.
pub(crate) fn wake_receiver(socket: BorrowedFd<'_>) {
    let args = [socket.as_raw_fd() as usize, 0, 0, libc::MSG_DONTWAIT as usize, 0, 0];
    // SAFETY: recvfrom(2) without data and address accesses no memory.
    let _ = unsafe { syscall(libc::SYS_recvfrom as usize, args) };
}

fn set<T>(socket: BorrowedFd<'_>, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value: *const c_void = std::ptr::from_ref(value).cast();
    // SAFETY: setsockopt(2) reads `len` bytes of the value, which is borrowed for the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), SOL_XDP, option, value, len) })
}

/// Reads a socket option. Bypasses libc, because a program that embeds this stack may replace
/// libc's functions by the stack's.
fn get<T>(socket: BorrowedFd<'_>, option: c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let to = std::ptr::from_mut(value).expose_provenance();
    let to_len = (&raw mut len).expose_provenance();
    let args = [socket.as_raw_fd() as usize, SOL_XDP as usize, option as usize, to, to_len, 0];
    // SAFETY: getsockopt(2) writes at most `len` bytes to the value, which consists of integers.
    let result = unsafe { syscall(libc::SYS_getsockopt as usize, args) };
    result.map(drop).map_err(io::Error::from_raw_os_error)
}

fn check(status: c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
