//! Control messages (cmsg(3)) of sendmsg(2) and recvmsg(2).

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_shm::layout::{DatagramHeader, Kind, RawAddr, flags, option_bit};

use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Result, address, interface};

const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;
/// Type of the control message that contains the number of unread bytes (Linux's TCP_CM_INQ). The
/// option TCP_INQ has the same number.
const TCP_CM_INQ: i32 = 36;
const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();

/// Settings for one datagram, parsed from the control messages of sendmsg(2).
#[derive(Debug, Clone, Copy)]
pub struct SendControl {
    /// Index of the outgoing interface. 0: any interface.
    pub ifindex: u32,
    /// Source address. Family 0: the local address of the socket.
    pub local: RawAddr,
    /// IPv4 TOS or IPv6 traffic class. [`DatagramHeader::DEFAULT`]: the value set by the socket's
    /// options.
    pub tos: u16,
    /// IPv4 TTL or IPv6 hop limit. [`DatagramHeader::DEFAULT`]: the value set by the socket's
    /// options.
    pub ttl: u16,
    /// Segment size in bytes (UDP_SEGMENT). None: the value set by the socket's option.
    pub segment_size: Option<u16>,
}

impl Default for SendControl {
    fn default() -> Self {
        Self {
            ifindex: 0,
            local: RawAddr::default(),
            tos: DatagramHeader::DEFAULT,
            ttl: DatagramHeader::DEFAULT,
            segment_size: None,
        }
    }
}

/// Protocol of a socket. Control messages for other protocols are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Tcp,
    V4,
    V6,
}

impl For {
    fn of(handle: &OpenSocket) -> Self {
        match handle.slot.family.load(Relaxed) {
            _ if handle.is_tcp() => Self::Tcp,
            address::INET => Self::V4,
            _ => Self::V6,
        }
    }

    fn hears(self, level: i32) -> bool {
        match level {
            libc::SOL_SOCKET => true,
            libc::IPPROTO_IP | libc::IPPROTO_UDP => self != Self::Tcp,
            libc::IPPROTO_IPV6 => self == Self::V6,
            _ => false,
        }
    }
}

impl SendControl {
    /// Parses the control messages in `bytes` for a socket.
    pub(crate) fn parse(bytes: &[u8], handle: &OpenSocket) -> Result<Self> {
        parse(bytes, For::of(handle))
    }
}

fn parse(mut bytes: &[u8], whose: For) -> Result<SendControl> {
    let mut control = SendControl::default();
    while bytes.len() >= HEADER {
        let len = usize::from_ne_bytes(bytes[..8].try_into().map_err(|_| Errno(libc::EINVAL))?);
        let word = |at: usize| {
            i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if len < HEADER || len > bytes.len() {
            return fail(libc::EINVAL);
        }
        let (level, kind, data) = (word(8), word(12), &bytes[HEADER..len]);
        if whose.hears(level) {
            apply(&mut control, level, kind, data)?;
        }
        bytes = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
    }
    Ok(control)
}

fn apply(control: &mut SendControl, level: i32, kind: i32, data: &[u8]) -> Result<()> {
    let int = || match *data {
        [a, b, c, d, ..] => Ok(i32::from_ne_bytes([a, b, c, d])),
        _ => fail(libc::EINVAL),
    };
    // As hop limit or traffic class, -1 selects the default (RFC 3542 §6.3 and §6.5).
    let byte = |value: i32| match value {
        -1 => Ok(DatagramHeader::DEFAULT),
        0..=255 => Ok(value as u16),
        _ => fail(libc::EINVAL),
    };
    match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) if data.len() >= 12 => {
            control.ifindex = int()? as u32;
            control.local = source(&data[4..8]);
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if data.len() >= 20 => {
            control.local = source(&data[..16]);
            control.ifindex = u32::from_ne_bytes([data[16], data[17], data[18], data[19]]);
        }
        (libc::IPPROTO_IP, libc::IP_TTL) if int()? < 1 => return fail(libc::EINVAL),
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            control.ttl = byte(int()?)?
        }
        (libc::IPPROTO_IP, libc::IP_TOS) if data.len() == 1 => control.tos = u16::from(data[0]),
        (libc::IPPROTO_IP, libc::IP_TOS) if int()? < 0 => return fail(libc::EINVAL),
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            control.tos = byte(int()?)?
        }
        // Ignore SCM_RIGHTS and SCM_CREDENTIALS, as Linux does for sockets other than AF_UNIX.
        (libc::SOL_SOCKET, libc::SCM_RIGHTS | libc::SCM_CREDENTIALS) => {}
        (libc::IPPROTO_UDP, UDP_SEGMENT) => match *data {
            [a, b] => control.segment_size = Some(u16::from_ne_bytes([a, b])),
            _ => return fail(libc::EINVAL),
        },
        _ => return fail(libc::EINVAL),
    }
    Ok(())
}

/// Parses a source address. Returns family 0, which selects the local address of the socket, for an
/// unspecified address.
fn source(ip: &[u8]) -> RawAddr {
    if ip.iter().all(|&byte| byte == 0) {
        return RawAddr::default();
    }
    let family = if ip.len() == 4 { address::INET } else { address::INET6 };
    let mut addr = RawAddr { family: family as u16, ..RawAddr::default() };
    addr.ip[..ip.len()].copy_from_slice(ip);
    addr
}

/// Writes control messages to the program's buffer (`msg_control` of recvmsg(2)).
pub(crate) struct ControlWriter<'a> {
    room: &'a mut [u8],
    /// Number of bytes written to `room`.
    pub used: usize,
    /// Whether a message was truncated or dropped because the buffer is too small (MSG_CTRUNC).
    pub truncated: bool,
}

impl<'a> ControlWriter<'a> {
    /// Creates a writer for the buffer `room`, which is empty.
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { room, used: 0, truncated: false }
    }

    /// Appends a control message, truncated if it does not fit the buffer.
    pub fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let Some(at) = self.room.get_mut(self.used..).filter(|at| at.len() >= HEADER) else {
            self.truncated = true;
            return;
        };
        // Truncate a message that does not fit the buffer, as Linux does (put_cmsg).
        let len = (HEADER + data.len()).min(at.len());
        self.truncated |= len < HEADER + data.len();
        at[..8].copy_from_slice(&len.to_ne_bytes());
        at[8..12].copy_from_slice(&level.to_ne_bytes());
        at[12..16].copy_from_slice(&kind.to_ne_bytes());
        at[HEADER..len].copy_from_slice(&data[..len - HEADER]);
        self.used = (self.used + len.next_multiple_of(ALIGN)).min(self.room.len());
    }
}

/// Writes control messages after `len` bytes were read from a stream: the arrival time of the
/// newest byte, and the number of unread bytes (TCP_INQ).
pub(crate) fn write_about_stream(handle: &OpenSocket, len: usize, out: &mut ControlWriter<'_>) {
    let time_ns = handle.slot.rx_time_ns.load(Relaxed);
    if len != 0 && time_ns != 0 {
        write_times(handle, time_ns, out);
    }
    if handle.is_tcp() && handle.posix.remembered.wants_inq(handle.socket) {
        // Count the end of the stream as an unread byte, as Linux does. If TCP_INQ were 0, the
        // program would not call read(2) to detect the end.
        let has_end = handle.slot.flags.load(Acquire) & flags::RX_EOF != 0;
        let unread = towpath_client::stream::unread(handle.client, handle.socket) as i32;
        let left = unread + i32::from(has_end);
        out.put(libc::IPPROTO_TCP, TCP_CM_INQ, &left.to_ne_bytes());
    }
}

/// Writes the arrival time in each format that the program has enabled (SO_TIMESTAMP,
/// SO_TIMESTAMPNS, SO_TIMESTAMPING).
fn write_times(handle: &OpenSocket, time_ns: u64, out: &mut ControlWriter<'_>) {
    let bits = handle.slot.option_bits.load(Relaxed);
    let (seconds, ns) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let pair = |a: u64, b: u64| [a.to_ne_bytes(), b.to_ne_bytes()].concat();
    if bits & option_bit::TIMESTAMPNS != 0 {
        out.put(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &pair(seconds, ns));
    } else if bits & option_bit::TIMESTAMP != 0 {
        out.put(libc::SOL_SOCKET, libc::SO_TIMESTAMP, &pair(seconds, ns / 1000));
    }
    if bits & option_bit::TIMESTAMPING_RX != 0 {
        out.put(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &in_software(time_ns));
    }
}

/// Writes the control messages about a received datagram, in the order in which Linux writes them.
pub(crate) fn write_about_datagram(
    handle: &OpenSocket,
    header: &DatagramHeader,
    out: &mut ControlWriter<'_>,
) {
    let bits = handle.slot.option_bits.load(Relaxed);
    write_times(handle, header.time_ns, out);
    // Report a counter of 32 bits, and nothing before the first dropped datagram, as Linux does
    // (sock_recv_drops).
    if bits & option_bit::RXQ_OVFL != 0 && header.drops != 0 {
        out.put(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &(header.drops as u32).to_ne_bytes());
    }
    if bits & option_bit::UDP_GRO != 0 && header.segment_size != 0 {
        out.put(libc::IPPROTO_UDP, UDP_GRO, &i32::from(header.segment_size).to_ne_bytes());
    }
    let (tos, ttl) = (i32::from(header.tos), i32::from(header.ttl));
    let v6_socket = handle.slot.family.load(Relaxed) == address::INET6;
    let shown =
        address::shown(header.local, if v6_socket { address::INET6 } else { address::INET });
    let is_v4 = !v6_socket || address::is_mapped(&shown);
    if bits & option_bit::PKTINFO_V6 != 0 && v6_socket {
        let info = [&shown.ip[..], &header.ifindex.to_ne_bytes()].concat();
        out.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
    }
    if bits & option_bit::PKTINFO != 0 && is_v4 {
        let ip = if v6_socket { &shown.ip[12..] } else { &shown.ip[..4] };
        // Determine ipi_spec_dst, the local address from which the program should answer. For a
        // datagram to a multicast group or a broadcast address, use the address of the interface.
        let own = interface::answering(handle.posix, ip, header.ifindex);
        let own = match handle.kind() {
            // Linux leaves ipi_spec_dst unset for ping sockets.
            Kind::Echo => &[0; 4],
            _ => own.as_ref().map_or(ip, |own| &own[..4]),
        };
        let info = [&header.ifindex.to_ne_bytes()[..], own, ip].concat();
        out.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
    }
    if bits & option_bit::RECVTTL != 0 && is_v4 {
        out.put(libc::IPPROTO_IP, libc::IP_TTL, &ttl.to_ne_bytes());
    }
    if bits & option_bit::RECVTOS != 0 && is_v4 {
        out.put(libc::IPPROTO_IP, libc::IP_TOS, &[tos as u8]);
    }
    let is_udp = handle.kind() == Kind::Datagram;
    if bits & option_bit::ORIGDSTADDR != 0 && is_v4 && is_udp {
        let (name, len) = address::encode(&address::shown(shown, address::INET));
        out.put(libc::IPPROTO_IP, libc::IP_ORIGDSTADDR, &name[..len]);
    }
    if bits & option_bit::RECVHOPLIMIT != 0 && !is_v4 {
        out.put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &ttl.to_ne_bytes());
    }
    if bits & option_bit::RECVTCLASS != 0 && !is_v4 {
        out.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &tos.to_ne_bytes());
    }
    if bits & option_bit::ORIGDSTADDR_V6 != 0 && !is_v4 && is_udp {
        let (name, len) = address::encode(&shown);
        out.put(libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR, &name[..len]);
    }
}

/// Encodes a struct scm_timestamping, which has three times. Only the first, the software
/// timestamp, is set.
pub(crate) fn in_software(time_ns: u64) -> [u8; 48] {
    let mut times = [0; 48];
    times[..8].copy_from_slice(&(time_ns / 1_000_000_000).to_ne_bytes());
    times[8..16].copy_from_slice(&(time_ns % 1_000_000_000).to_ne_bytes());
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_round_trip() {
        let mut room = [0u8; 128];
        let mut writer = ControlWriter::new(&mut room);
        writer.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &[3, 0, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        writer.put(libc::IPPROTO_IP, libc::IP_TTL, &9i32.to_ne_bytes());
        writer.put(libc::IPPROTO_UDP, UDP_SEGMENT, &1200u16.to_ne_bytes());
        let used = writer.used;
        assert!(!writer.truncated);
        let control = parse(&room[..used], For::V4).unwrap();
        assert_eq!((control.ifindex, control.ttl, control.tos), (3, 9, DatagramHeader::DEFAULT));
        assert_eq!(control.segment_size, Some(1200));
        assert_eq!(control.local, RawAddr::new("10.0.0.1:0".parse().unwrap()));
        assert_eq!(parse(&[0xff; 24], For::V4).unwrap_err(), Errno(libc::EINVAL));
        let nothing = parse(&room[..used], For::Tcp).unwrap();
        assert_eq!((nothing.ifindex, nothing.segment_size), (0, None));
    }

    #[test]
    fn what_does_not_fit_is_said_to_be_cut() {
        let mut room = [0u8; 20];
        let mut writer = ControlWriter::new(&mut room);
        writer.put(libc::SOL_SOCKET, libc::SO_TIMESTAMP, &[7; 16]);
        assert!(writer.truncated);
        assert_eq!((writer.used, writer.room[0], writer.room[19]), (20, 20, 7));
        writer.put(libc::IPPROTO_IP, libc::IP_TTL, &[1; 4]);
        assert_eq!(writer.used, 20);
    }
}
