//! System calls that need `unsafe`: options of packet sockets, and calls that receive or send
//! several frames.
//!
//! System calls that receive or send frames do not use libc, because a program that embeds this
//! stack may replace libc's functions by the stack's.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_void};
use towpath_pool::Packet;
use towpath_shm::syscall::syscall;
use towpath_virtio::{HEADER_LEN, HEADER_LEN_LEGACY};

use crate::filter::SockFilter;

/// Maximum number of frames per system call. With 16, the cost of the call is small compared with
/// that of the frames. The buffers, 68 KiB each, take about 1 MiB.
pub const BATCH: usize = 16;

/// Constants of linux/if_packet.h.
const PACKET_STATISTICS: c_int = 6;
const PACKET_AUXDATA: c_int = 8;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_FANOUT: c_int = 18;
const PACKET_FANOUT_DATA: c_int = 22;
const PACKET_FANOUT_EBPF: u16 = 7;
const PACKET_FANOUT_FLAG_UNIQUEID: u16 = 0x2000;
const PACKET_FANOUT_FLAG_IGNORE_OUTGOING: u16 = 0x4000;
const PACKET_IGNORE_OUTGOING: c_int = 23;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// The kernel's `struct tpacket_auxdata` (linux/if_packet.h).
#[derive(Clone, Copy)]
#[repr(C)]
struct AuxiliaryData {
    status: u32,
    len: u32,
    snap_len: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// The kernel's `struct tpacket_stats` (linux/if_packet.h).
#[derive(Default)]
#[repr(C)]
struct TpacketStats {
    packets: u32,
    drops: u32,
}

const _: () = {
    assert!(size_of::<AuxiliaryData>() == 20);
    assert!(size_of::<TpacketStats>() == 8);
};

/// Enables a virtio-net header before each frame that is received or sent.
pub(crate) fn set_virtio_headers(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, PACKET_VNET_HDR, &1)
}

/// Makes the kernel report the VLAN tag that it has removed from a received frame.
pub(crate) fn set_auxiliary_data(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, PACKET_AUXDATA, &1)
}

/// Excludes frames that this host sends from those that the socket receives (since Linux 4.20).
pub(crate) fn ignore_outgoing(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)
}

/// Attaches a classic BPF filter. The socket does not receive frames for which the program returns
/// 0.
pub(crate) fn set_filter(socket: BorrowedFd<'_>, program: &[SockFilter]) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut().cast::<libc::sock_filter>(),
    };
    // The kernel copies the instructions during the call.
    set_plain(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Attaches a BPF program as a filter, like [`set_filter`]. `program` is its descriptor (bpf(2)).
pub(crate) fn set_program(socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program.as_raw_fd())
}

/// Adds a bound socket to a fanout group, in which each frame is received by one of the sockets.
/// Creates a group if `group` is `None`. Returns the number of the group.
pub(crate) fn join(socket: BorrowedFd<'_>, group: Option<u16>) -> io::Result<u16> {
    let flags = PACKET_FANOUT_EBPF | PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    let (number, flags) = match group {
        Some(number) => (number, flags),
        None => (0, flags | PACKET_FANOUT_FLAG_UNIQUEID),
    };
    let value = u32::from(number) | u32::from(flags) << 16;
    set_plain(socket, libc::SOL_PACKET, PACKET_FANOUT, &value)?;
    let mut value: u32 = 0;
    let mut len = size_of::<u32>() as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), (&raw mut value).cast());
    // SAFETY: getsockopt(2) writes at most `len` bytes to `value`, a local.
    check(unsafe { libc::getsockopt(fd, libc::SOL_PACKET, PACKET_FANOUT, to, &raw mut len) })?;
    Ok(value as u16)
}

/// Attaches the BPF program that selects the socket of the fanout group for each frame.
pub(crate) fn steer(socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, PACKET_FANOUT_DATA, &program.as_raw_fd())
}

/// Sets the size in bytes of the kernel's receive and send buffers. Without CAP_NET_ADMIN, the
/// sysctls net.core.rmem_max and wmem_max limit it.
pub(crate) fn set_queues(socket: BorrowedFd<'_>, bytes: u32) {
    let options =
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)];
    for (forced, limited) in options {
        let value = bytes as c_int;
        let is_set = set(socket, libc::SOL_SOCKET, forced, &value).is_ok();
        // Ignore an error: a shorter queue works too, but drops frames earlier.
        let _ = is_set || set(socket, libc::SOL_SOCKET, limited, &value).is_ok();
    }
}

/// Binds the packet socket to the interface with this index, to receive frames of all protocols.
pub(crate) fn bind(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` consists of integers, so all zeros are a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: bind(2) reads `len` bytes of `address`, a local.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })
}

/// Returns the number of frames that the kernel dropped since the last call because the receive
/// queue was full. Bypasses libc, because the program may replace libc's functions by the stack's.
pub(crate) fn missed(socket: BorrowedFd<'_>) -> u32 {
    let mut statistics = TpacketStats::default();
    let mut len = size_of::<TpacketStats>() as libc::socklen_t;
    let to = (&raw mut statistics).expose_provenance();
    let to_len = (&raw mut len).expose_provenance();
    let (level, option) = (libc::SOL_PACKET as usize, PACKET_STATISTICS as usize);
    let args = [socket.as_raw_fd() as usize, level, option, to, to_len, 0];
    // SAFETY: getsockopt(2) writes at most `len` bytes to `statistics`, a local.
    match unsafe { syscall(libc::SYS_getsockopt as usize, args) } {
        Ok(_) => statistics.drops,
        Err(_) => 0,
    }
}

/// Returns the memory in bytes of sent frames that the device has not freed yet (SIOCOUTQ).
/// Bypasses libc, because the program may replace libc's functions by the stack's.
pub(crate) fn queued(socket: BorrowedFd<'_>) -> u32 {
    let mut bytes: c_int = 0;
    let to = (&raw mut bytes).expose_provenance();
    let args = [socket.as_raw_fd() as usize, libc::TIOCOUTQ as usize, to, 0, 0, 0];
    // SAFETY: ioctl(2) with SIOCOUTQ writes an int to `bytes`, a local.
    match unsafe { syscall(libc::SYS_ioctl as usize, args) } {
        Ok(_) => bytes.max(0) as u32,
        Err(_) => 0,
    }
}

fn set(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: &c_int) -> io::Result<()> {
    set_plain(socket, level, option, value)
}

/// Sets a socket option whose value is a structure of the kernel.
fn set_plain<T>(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value: *const c_void = std::ptr::from_ref(value).cast();
    // SAFETY: setsockopt(2) reads `len` bytes of `value`, which is borrowed for the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) })
}

fn check(status: c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Buffer for a `struct cmsghdr` with [`AuxiliaryData`], aligned as the kernel requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// CMSG_SPACE(sizeof(struct tpacket_auxdata)): 16 bytes of header, 20 bytes of data, and padding.
const CONTROL_LEN: usize = 40;
const CONTROL_HEADER_LEN: usize = 16;

const _: () = assert!(size_of::<libc::cmsghdr>() == CONTROL_HEADER_LEN);

/// A frame received by the last call of recvmmsg(2).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub header: [u8; HEADER_LEN],
    /// Length of the frame in bytes, without the virtio header.
    pub len: usize,
    /// Whether the frame was truncated because it was longer than its buffer.
    pub is_cut: bool,
    /// VLAN tag that the kernel removed from the frame.
    pub tag: Option<Tag>,
}

/// An IEEE 802.1Q VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    /// EtherType of the VLAN tag.
    pub tpid: u16,
    /// Tag control information of the VLAN tag: priority and VLAN identifier.
    pub tci: u16,
}

/// EtherType of an IEEE 802.1Q tag. Linux removes 802.1ad tags (0x88a8) as well.
pub(crate) const TPID_8021Q: u16 = 0x8100;

/// Buffers for recvmmsg(2), reused by each call.
pub(crate) struct RecvMemory(Box<RecvBatch>);

struct RecvBatch {
    headers: [[u8; HEADER_LEN_LEGACY]; BATCH],
    controls: [Control; BATCH],
    parts: [[libc::iovec; 2]; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

// SAFETY: each call sets the pointers that it uses. The pointers refer to memory of this value or
// of the caller.
unsafe impl Send for RecvMemory {}

impl Default for RecvMemory {
    fn default() -> Self {
        // SAFETY: the structure consists of integers, and of pointers that each call sets before
        // use. Zeros are valid for both.
        Self(Box::new(unsafe { zeroed() }))
    }
}

impl RecvMemory {
    /// Receives one frame into the spare bytes of each packet, at most [`BATCH`] frames, without
    /// waiting. Returns the number of frames.
    ///
    /// # Errors
    /// Returns the errno: EAGAIN if there is no frame.
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        packets: &mut [Packet],
    ) -> Result<usize, i32> {
        let RecvBatch { headers, controls, parts, messages } = &mut *self.0;
        let count = packets.len().min(BATCH);
        for (n, packet) in packets.iter_mut().take(count).enumerate() {
            let room = packet.spare_mut();
            parts[n] = [
                libc::iovec {
                    iov_base: headers[n].as_mut_ptr().cast(),
                    iov_len: HEADER_LEN_LEGACY,
                },
                libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
            ];
            let message = &mut messages[n].msg_hdr;
            message.msg_iov = parts[n].as_mut_ptr();
            message.msg_iovlen = parts[n].len();
            message.msg_control = controls[n].0.as_mut_ptr().cast();
            message.msg_controllen = CONTROL_LEN;
        }
        let at = messages.as_mut_ptr().expose_provenance();
        let args = [socket.as_raw_fd() as usize, at, count, libc::MSG_DONTWAIT as usize, 0, 0];
        // SAFETY: the first `count` messages point to headers and control buffers of this value.
        // The spare bytes of the packets are borrowed mutably for the call.
        unsafe { syscall(libc::SYS_recvmmsg as usize, args) }
    }

    /// Returns frame `n` of the last call, which must have received more than `n` frames.
    pub fn frame(&self, n: usize) -> Received {
        let message = &self.0.messages[n];
        let mut header = [0; HEADER_LEN];
        header[..HEADER_LEN_LEGACY].copy_from_slice(&self.0.headers[n]);
        let is_cut = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let len = (message.msg_len as usize).saturating_sub(HEADER_LEN_LEGACY);
        let control = &self.0.controls[n].0[..message.msg_hdr.msg_controllen.min(CONTROL_LEN)];
        Received { header, len, is_cut, tag: tag(control) }
    }
}

/// Returns the VLAN tag of a received frame from its control data; `None` if it has none.
fn tag(control: &[u8]) -> Option<Tag> {
    let data = control.get(CONTROL_HEADER_LEN..CONTROL_HEADER_LEN + size_of::<AuxiliaryData>())?;
    let at = |n: usize| [data[n], data[n + 1]];
    let [a, b] = at(0);
    let [c, d] = at(2);
    let status = u32::from_ne_bytes([a, b, c, d]);
    let field = |offset| u16::from_ne_bytes(at(offset));
    let tpid = match status & TP_STATUS_VLAN_TPID_VALID {
        // Linux before 3.14 removes only 802.1Q tags, and does not report the EtherType.
        0 => TPID_8021Q,
        _ => field(std::mem::offset_of!(AuxiliaryData, vlan_tpid)),
    };
    let tci = field(std::mem::offset_of!(AuxiliaryData, vlan_tci));
    (status & TP_STATUS_VLAN_VALID != 0).then_some(Tag { tpid, tci })
}

/// Buffers for sendmmsg(2), reused by each call.
pub(crate) struct SendMemory(Box<SendBatch>);

struct SendBatch {
    headers: [[u8; HEADER_LEN_LEGACY]; BATCH],
    /// Parts of each frame: virtio header, packet buffer, and at most two ranges of a send FIFO.
    parts: [[libc::iovec; 4]; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

// SAFETY: each call sets the pointers that it uses. The pointers refer to memory of this value or
// of the caller.
unsafe impl Send for SendMemory {}

impl Default for SendMemory {
    fn default() -> Self {
        // SAFETY: the structure consists of integers, and of pointers that each call sets before
        // use. Zeros are valid for both.
        Self(Box::new(unsafe { zeroed() }))
    }
}

impl SendMemory {
    /// Sends up to [`BATCH`] frames, and returns the number of frames sent; 0 if there are no
    /// frames.
    ///
    /// # Errors
    /// Returns the errno for the first frame: EAGAIN if the socket's queue is full.
    pub fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        frames: impl Iterator<Item = ([u8; HEADER_LEN], &'a Packet)>,
    ) -> Result<usize, i32> {
        let mut count = 0;
        for (header, packet) in frames.take(BATCH) {
            self.set(count, &header, packet);
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        let at = self.0.messages.as_mut_ptr().expose_provenance();
        let args = [socket.as_raw_fd() as usize, at, count, libc::MSG_DONTWAIT as usize, 0, 0];
        // SAFETY: the messages point to headers of this value and to bytes of packets borrowed for
        // 'a, which the kernel only reads. A program that changes its send FIFO during the call
        // affects only its own data.
        unsafe { syscall(libc::SYS_sendmmsg as usize, args) }
    }

    /// Fills the entry of sendmmsg(2) for frame `n` with `packet`.
    fn set(&mut self, n: usize, header: &[u8; HEADER_LEN], packet: &Packet) {
        let SendBatch { headers, parts, messages } = &mut *self.0;
        headers[n].copy_from_slice(&header[..HEADER_LEN_LEGACY]);
        let mut used = 0;
        let mut push = |at: *const u8, len: usize| {
            parts[n][used] = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
            used += 1;
        };
        push(headers[n].as_ptr(), HEADER_LEN_LEGACY);
        push(packet.linear().as_ptr(), packet.linear().len());
        for stretch in packet.tail.iter() {
            push(stretch.as_ptr(), stretch.len() as usize);
        }
        let message = &mut messages[n].msg_hdr;
        message.msg_iov = parts[n].as_mut_ptr();
        message.msg_iovlen = used;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_where_the_kernel_says_that_there_is_one() {
        let mut control = [0; CONTROL_LEN];
        assert_eq!(tag(&control), None);
        control[CONTROL_HEADER_LEN..][..4].copy_from_slice(&TP_STATUS_VLAN_VALID.to_ne_bytes());
        control[CONTROL_HEADER_LEN + 16..][..2].copy_from_slice(&7u16.to_ne_bytes());
        control[CONTROL_HEADER_LEN + 18..][..2].copy_from_slice(&0x88a8u16.to_ne_bytes());
        assert_eq!(tag(&control), Some(Tag { tpid: TPID_8021Q, tci: 7 }));
        let with_type = TP_STATUS_VLAN_VALID | TP_STATUS_VLAN_TPID_VALID;
        control[CONTROL_HEADER_LEN..][..4].copy_from_slice(&with_type.to_ne_bytes());
        assert_eq!(tag(&control), Some(Tag { tpid: 0x88a8, tci: 7 }));
        assert_eq!(tag(&control[..CONTROL_HEADER_LEN + 19]), None);
        assert_eq!(tag(&[]), None);
    }
}
