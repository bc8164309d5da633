//! Requests of programs and replies of the engine, for everything that needs a reply or carries a
//! descriptor. The engine drains the channel's command ring before it handles a request, so their
//! order is preserved.
//!
//! A request is written to the request slot ([`RequestSlot`]) of the channel of the shard that owns
//! the socket. Requests made before there is a channel, and those whose reply carries descriptors
//! ([`goes_by_socket`]), use the Unix socket (SOCK_SEQPACKET) instead. Each path has one request at
//! a time. A program that makes another request on the Unix socket before the reply is
//! disconnected. Requests that concern no socket may be sent to any shard. Exceptions are
//! [`call::OUTSIDE`], and calls whose `a` is a slot ([`call::SOCKETS`], [`call::SOCKET_ROWS`],
//! [`call::SOCKET_FIGURES`], [`call::TALLY`]).
//!
//! If a process sees the end of this socket, its engine has ended, and every call on a socket fails
//! from then on. If the engine sees it, the process has ended. Sockets that only this process holds
//! are reset, as the kernel does when a process is killed.

use std::sync::atomic;

use crate::layout::{COMMANDS_OFFSET, ChannelHeader, Plain, RawAddr, SHARDS_MAX};

/// Environment variable that passes the descriptor number of the control socket through exec.
pub const ENV_CONTROL: &str = "TOWPATH_CONTROL";

/// Maximum length of an option value or of reply data, in bytes.
pub const DATA_MAX: usize = 1024;

/// Maximum tokens per [`call::TOKENS`]: each takes the engine some 5 µs, during which no other
/// process is served.
pub const TOKENS_MAX: usize = 16;

/// Maximum sockets per [`call::SOCKET`].
pub const SOCKETS_MAX: usize = 16;
/// Maximum descriptors per message: those of the reply to HELLO with [`SHARDS_MAX`] shards.
pub const DESCRIPTORS_MAX: usize = 6 + SHARDS_MAX as usize;
const _: () = assert!(DESCRIPTORS_MAX >= TOKENS_MAX);

/// Offset of the request slot in a channel.
pub const REQUEST_SLOT_OFFSET: usize = size_of::<ChannelHeader>();

/// Holds a request without descriptors, and its reply. A program has one request in progress at a
/// time.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RequestSlot {
    /// Number of the last answered request; stored after the reply was written. Written by the
    /// engine.
    pub answered: atomic::AtomicU32,
    /// Futex word of the waiting thread; changes with `answered`, and when [`ChannelHeader::ended`]
    /// changes. Written by the engine.
    pub seq: atomic::AtomicU32,
    // Padding, so that words of the program and of the engine are in different cache lines.
    _pad0: [atomic::AtomicU32; 14],
    /// Nonzero if a thread sleeps on `seq` or is about to. Modified by swap.
    pub asleep: atomic::AtomicU32,
    _pad1: [atomic::AtomicU32; 15],
}

/// Offset of the request's bytes ([`Request::wire`]); written by the program.
pub const REQUEST_OFFSET: usize = REQUEST_SLOT_OFFSET + size_of::<RequestSlot>();
/// Offset of the reply's bytes; written by the engine.
pub const REPLY_OFFSET: usize = REQUEST_OFFSET + size_of::<Request>();

/// A program's request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Number of the call, see [`call`].
    pub call: u32,
    /// Slot of the socket, if the call concerns one.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// First argument, whose meaning depends on the call; see [`call`].
    pub a: u32,
    /// Second argument, whose meaning depends on the call; see [`call`].
    pub b: u32,
    /// Number of valid bytes in `data`.
    pub len: u32,
    /// Address, if the call has one; see [`call`].
    pub addr: RawAddr,
    /// Data of the call, such as an option's value; see [`call`]. The first `len` bytes are valid.
    pub data: [u8; DATA_MAX],
}

/// The engine's reply to a request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ControlReply {
    /// 0, or the errno that Linux would return.
    pub errno: i32,
    /// Result whose meaning depends on the call, usually a slot; see [`call`].
    pub slot: u32,
    /// Result whose meaning depends on the call, usually the generation of `slot`; see [`call`].
    pub generation: u32,
    /// First result, whose meaning depends on the call; see [`call`].
    pub a: u32,
    /// Second result, whose meaning depends on the call; see [`call`].
    pub b: u32,
    /// Number of valid bytes in `data`.
    pub len: u32,
    /// Address, if the call returns one; see [`call`].
    pub addr: RawAddr,
    /// Data that the call returns; see [`call`]. The first `len` bytes are valid.
    pub data: [u8; DATA_MAX],
}

numbered! {
/// Numbers for [`Request::call`], with arguments and results.
pub mod call {
    /// First message of a new process image (at the start, or after exec). `a` = pid, `data` = up
    /// to 126 (slot, generation) pairs of u32 that it holds, `b` = 1 if more follow in further
    /// HELLOs. Sockets that this channel held and that are not listed are dropped; the rings start
    /// empty.
    ///
    /// Reply: `a` = layout version, `b` = number of the channels, `slot` = number of shards.
    /// Descriptors: region, status pages, memory of the channels, the program's notification
    /// descriptor, a blank [`crate::token`], the notification descriptor of each shard. If a
    /// guardian supervises the run, the read end of a pipe follows. The pipe hangs up when the last
    /// process that could end the run has exited.
    pub const HELLO: u32 = 1;
    /// Before fork, exec or posix_spawn: creates further channels; `a` = their [`super::purpose`].
    /// Reply: `b` = number of the channels. Descriptors: control socket, memory of the channels,
    /// the program's notification descriptor, the notification descriptor of each shard. Region and
    /// status pages stay the same.
    pub const CLONE: u32 = 2;
    /// socket(2): `a` = AF_INET or AF_INET6, `b` = protocol (6, 17, 1, 58), `slot` = number of
    /// sockets to create, from 1 to [`super::SOCKETS_MAX`]. Reply: slot and generation of the
    /// first; `data` = (slot, generation) pairs of u32 of further ones.
    pub const SOCKET: u32 = 3;
    /// bind(2): `addr`. The slot contains the bound address afterwards.
    pub const BIND: u32 = 4;
    /// listen(2): `a` = backlog. The slot's kind is Listener afterwards.
    pub const LISTEN: u32 = 5;
    /// connect(2): `addr`. With family 0, dissolves a UDP association, or makes a TCP socket
    /// unconnected. With `a` = [`super::IF_FAILED`], makes a TCP socket unconnected only if a
    /// connect failed. For TCP this only starts the connection and returns immediate errors; the
    /// outcome is in the slot's flags and error.
    pub const CONNECT: u32 = 6;
    /// A descriptor was received by SCM_RIGHTS: this channel holds the slot, too.
    pub const ADOPT: u32 = 7;
    /// getsockopt(2) of options that only the engine knows: `a` = level, `b` = option. Reply:
    /// `data`. TCP_INFO returns struct tcp_info, TCP_CONGESTION a name, IP_MTU and TCP_MAXSEG a
    /// u32. For SO_ATTACH_FILTER, `data` = number of the first instruction to return, a u32. Reply:
    /// as many instructions as fit; `a` = total number of instructions.
    pub const GET_OPTION: u32 = 8;
    /// setsockopt(2) of options that the engine may refuse (TCP_CONGESTION, memberships,
    /// SO_BINDTODEVICE): `a` = level, `b` = option, `data` = value. For SO_ATTACH_FILTER, `data` is
    /// a part of the filter. Two u16 hold the total number of instructions and the number of the
    /// first one here; the instructions follow. Parts are sent in order; the last one attaches the
    /// filter.
    pub const SET_OPTION: u32 = 9;
    /// Returns the interfaces of the stack. Reply: `data` = [`super::Interface`] structs, `a` =
    /// their number.
    pub const INTERFACES: u32 = 10;
    /// Returns sockets for `towpath ss`: `a` = first slot to look at. Reply: `data` = JSON lines,
    /// `a` = next slot, 0 at the end. A reply may have no line and a next slot, because few slots
    /// are in use. Handled by the shard that owns the first slot.
    pub const SOCKETS: u32 = 11;
    /// Returns the region, before HELLO: a new process image uses it to find the sockets of its
    /// descriptors. Reply: `a` = layout version, `data` = the run ([`crate::token::Run`]);
    /// descriptor: region.
    pub const REGION: u32 = 12;
    /// Sends a [`crate::layout::Command`] in `data` instead of the command ring. Used by a signal
    /// handler that interrupted a call while it used the ring.
    pub const COMMAND: u32 = 13;
    /// Takes the oldest report of the error queue. Reply: `a` = errno, `b` = ICMP type << 8 | code,
    /// or [`super::LOCAL_REPORT`], `addr` = destination of the datagram, `slot` = path MTU. `data`
    /// = address of the reporter (16 bytes, IPv4 in the first four), its scope id (a u32), then the
    /// payload.
    pub const ERROR_QUEUE: u32 = 14;
    /// Descriptors of sockets are about to be passed to another program: `data` = up to
    /// [`super::TOKENS_MAX`] (slot, generation) pairs of u32. Reply: `a` = how many pairs were
    /// handled, from the first, at least one. `b` = a bit per pair, from the lowest: 1 if it has a
    /// token, 0 if it is no socket of this process (any more). Descriptors: a named
    /// [`crate::token`] for each set bit, in order. The engine creates them because a program may
    /// be in a chroot without /proc, or behind a seccomp filter.
    pub const TOKENS: u32 = 15;
    /// Checks the length of a datagram: `data` = its [`crate::layout::DatagramHeader`], including
    /// `len`. EMSGSIZE if it is too long; if the program enabled the error queue, that contains the
    /// maximum length.
    pub const CHECK_LENGTH: u32 = 16;
    /// A program is about to be executed whose sockets will be the kernel's: `a` = reason
    /// ([`crate::image::Outside`]), `data` = path of the file. Fails with EACCES if such programs
    /// are not allowed; otherwise the reply is empty. Handled by the first shard.
    pub const OUTSIDE: u32 = 20;
    /// Returns the routing table: `a` = number of the first route to return. Reply: `data` =
    /// [`super::Route`] structs, `a` = number of the next one, 0 at the end.
    pub const ROUTES: u32 = 21;
    /// Returns the nameserver to use instead of those in /etc/resolv.conf. Reply: `addr` = address
    /// (family 0: use the file), `a` = 1 if it replaces only servers on a loopback address.
    pub const RESOLVER: u32 = 22;
    /// Returns sockets for /proc/net and NETLINK_SOCK_DIAG: `a` = first slot to look at. `b` = 0,
    /// or 1 plus the number of connections without a slot that this shard has already returned.
    /// Reply: `data` = [`super::SocketRow`] structs; `a` and `b` for the next request, both 0 at
    /// the end. A reply without rows does not imply the end.
    pub const SOCKET_ROWS: u32 = 23;
    /// Returns statistics of any socket of the run: `a` = slot. Reply: `data` = struct tcp_info,
    /// then the name of the congestion control. `a` = length of the struct in bytes, `b` = 1 if
    /// there is a connection; otherwise the name is empty.
    pub const SOCKET_FIGURES: u32 = 24;
    /// Returns counters of one shard: `a` = its first slot (0 for the first shard). Reply: `data` =
    /// [`super::Tally`], then a [`super::Traffic`] for each interface by index; `a` = first slot of
    /// the next shard, 0 at the end.
    pub const TALLY: u32 = 25;
    /// Returns neighbours: `a` = number of the first one to return. Reply: `data` =
    /// [`super::NeighborRecord`] structs, `a` = number of the next one, 0 at the end.
    pub const NEIGHBORS: u32 = 26;
    /// Returns host names configured for the run: `a` = offset in the text. Reply: `data` = bytes
    /// of the text, `a` = next offset, 0 at the end. The first line is the host's own name, empty
    /// to use the kernel's; further lines are in the format of hosts(5). The text is empty if no
    /// names are configured.
    pub const NAMES: u32 = 27;
}
}

/// Length of the header of a filter part ([`call::SET_OPTION`]), in bytes.
pub const FILTER_PART_HEADER: usize = 4;

/// Returns whether a [`call`] must use the control socket, because its reply carries descriptors.
pub fn goes_by_socket(number: u32) -> bool {
    matches!(number, call::HELLO | call::CLONE | call::REGION | call::TOKENS)
}

/// `b` of the reply to [`call::ERROR_QUEUE`]: this host detected the error itself.
pub const LOCAL_REPORT: u32 = 1 << 16;
/// `b` of the reply to [`call::ERROR_QUEUE`]: not an error, but a transmit timestamp
/// (SO_TIMESTAMPING). `a` = SCM_TSTAMP_SND, _SCHED or _ACK, `slot` = number of the datagram or byte
/// (SOF_TIMESTAMPING_OPT_ID), `data` = Unix time in ns, a u64.
pub const STAMP_REPORT: u32 = 1 << 17;
/// `b` of the reply to [`call::ERROR_QUEUE`]: not an error, but completed sends with MSG_ZEROCOPY,
/// whose bytes may be overwritten. `slot` = number of the first one, `a` = of the last one.
pub const COPIED_REPORT: u32 = 1 << 18;

/// `a` of [`call::CONNECT`] with family 0: applies only if a connect failed. Another thread may
/// have started the next connection since the failure, which must continue.
pub const IF_FAILED: u32 = 1;

/// `b` of [`call::CONNECT`]: use Fast Open (RFC 7413). As `a` of the reply, it means that the SYN
/// waits for bytes, of which `slot` fit.
pub const FAST_OPEN: u32 = 1;

numbered! {
/// `a` of [`call::CLONE`]: the future owner of the channels, and which sockets they hold.
pub mod purpose {
    /// The channels are for a child created by fork, which holds the sockets of this process.
    pub const FORK: u32 = 0;
    /// The channels are for the program that this process executes, which holds the sockets listed
    /// by [`crate::layout::op::LIST`].
    pub const EXEC: u32 = 1;
    /// The channels are for a program that this process spawns, which holds the sockets of this
    /// process until its HELLO. If there is no HELLO within some seconds of
    /// [`crate::layout::op::SPAWNED`], it holds the sockets listed by [`crate::layout::op::LIST`].
    pub const SPAWN: u32 = 2;
}
}

/// An interface, for SIOCGIFCONF, getifaddrs and similar calls.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interface {
    /// NUL-padded name.
    pub name: [u8; 16],
    /// Index, from 1.
    pub index: u32,
    /// MTU in bytes.
    pub mtu: u32,
    /// IFF_* flags with Linux's values.
    pub flags: u32,
    /// Prefix length of `addr`.
    pub prefix_len: u32,
    /// Hardware address.
    pub mac: [u8; 6],
    /// Reserved, 0.
    pub reserved: u16,
    /// An address; an interface with several addresses has several entries.
    pub addr: RawAddr,
}

/// A route, for netlink. The route in use precedes further routes to the same network.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Route {
    /// Destination network.
    pub dst: RawAddr,
    /// The gateway; family 0 if the network is on-link.
    pub gateway: RawAddr,
    /// Prefix length of the network.
    pub prefix_len: u32,
    /// Index of the interface, from 1.
    pub index: u32,
    /// Metric: the smallest among routes to the same network is used.
    pub metric: u32,
    /// Origin, see [`route_origin`].
    pub origin: u32,
    /// Maximum packet length in bytes; 0 for the link's MTU.
    pub mtu: u32,
    /// Relative weight among routes to the same network, 1 to 256.
    pub weight: u32,
}

/// A socket, or a connection without one (half-open, TIME-WAIT), for /proc/net and
/// NETLINK_SOCK_DIAG.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketRow {
    /// Local address, as returned by getsockname(2); family 0 if none.
    pub local: RawAddr,
    /// Peer address; family 0 if none.
    pub remote: RawAddr,
    /// Slot; [`u32::MAX`] if there is no socket (any more).
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// AF_INET or AF_INET6.
    pub family: u32,
    /// Protocol: 6, 17, 1 or 58.
    pub protocol: u32,
    /// State, with Linux's numbers for TCP.
    pub state: u32,
    /// Unread bytes; for a listener, connections to accept.
    pub recv_q: u32,
    /// Unacknowledged bytes; for a listener, the backlog.
    pub send_q: u32,
    /// Capacity of the receive buffer in bytes.
    pub recv_buffer: u32,
    /// Capacity of the send buffer in bytes.
    pub send_buffer: u32,
    /// Running timer, numbered as in /proc/net/tcp: 0 none, 1 retransmission, 2 keep-alive, 3
    /// TIME-WAIT, 4 window probe.
    pub timer: u32,
    /// Milliseconds until the timer expires.
    pub timer_ms: u32,
    /// Consecutive retransmission timeouts.
    pub retransmits: u32,
    /// Retransmission timeout in milliseconds.
    pub rto_ms: u32,
    /// Maximum delay of an ACK in milliseconds.
    pub ato_ms: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Slow-start threshold in segments; [`u32::MAX`] if unlimited.
    pub ssthresh: u32,
    /// 1 if IPV6_V6ONLY is set.
    pub v6_only: u32,
    /// Index of the interface to which the socket is bound; 0 if none.
    pub device: u32,
}

/// Counters of one shard, for IPv4 and IPv6 together.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// IP packets received.
    pub ip_received: u64,
    /// Bytes in received IP packets.
    pub ip_received_bytes: u64,
    /// IP packets delivered to sockets.
    pub ip_delivered: u64,
    /// IP packets sent.
    pub ip_sent: u64,
    /// Bytes in sent IP packets.
    pub ip_sent_bytes: u64,
    /// IP packets forwarded.
    pub ip_forwarded: u64,
    /// Fragments received.
    pub fragments: u64,
    /// Packets reassembled from fragments.
    pub reassembled: u64,
    /// Packets that were fragmented.
    pub fragmented: u64,
    /// ICMP errors received.
    pub icmp_errors_received: u64,
    /// ICMP errors sent.
    pub icmp_errors_sent: u64,
    /// Echo requests answered.
    pub echoes_answered: u64,
    /// Echo replies received.
    pub echo_received: u64,
    /// Echo requests sent.
    pub echo_sent: u64,
    /// Connections opened by this host.
    pub tcp_connects: u64,
    /// Connections opened by peers.
    pub tcp_accepts: u64,
    /// Connections ended by a reset or timeout.
    pub tcp_failures: u64,
    /// TCP segments received.
    pub tcp_received: u64,
    /// TCP segments sent.
    pub tcp_sent: u64,
    /// TCP segments retransmitted.
    pub tcp_retransmits: u64,
    /// TCP resets sent.
    pub tcp_resets_sent: u64,
    /// SYN cookies sent.
    pub tcp_syn_cookies_sent: u64,
    /// Connections created from a valid SYN cookie.
    pub tcp_syn_cookies_valid: u64,
    /// ACKs without a valid SYN cookie.
    pub tcp_syn_cookies_invalid: u64,
    /// TIME-WAIT states ended early by a new connection.
    pub tcp_time_wait_reused: u64,
    /// UDP datagrams received.
    pub udp_received: u64,
    /// UDP datagrams sent.
    pub udp_sent: u64,
}

/// Packets and bytes of one interface in one shard.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets dropped after reception.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped before transmission.
    pub tx_dropped: u64,
}

/// A neighbour on a link.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NeighborRecord {
    /// IP address.
    pub addr: RawAddr,
    /// Index of the interface, from 1.
    pub index: u32,
    /// State NUD_*, with Linux's values.
    pub state: u32,
    /// Flags NTF_*, with Linux's values.
    pub flags: u32,
    /// 1 if `mac` is known.
    pub known: u32,
    /// Hardware address.
    pub mac: [u8; 6],
    /// Reserved, 0.
    pub reserved: u16,
}

/// [`Route::origin`]: the source of a route.
pub mod route_origin {
    /// The operator configured the route.
    pub const STATIC: u32 = 0;
    /// The stack derived the route from an interface's address.
    pub const LINK: u32 = 1;
    /// A router advertised the route.
    pub const ROUTER: u32 = 2;
}

impl Default for Request {
    fn default() -> Self {
        Self {
            call: 0,
            slot: 0,
            generation: 0,
            a: 0,
            b: 0,
            len: 0,
            addr: RawAddr::default(),
            data: [0; DATA_MAX],
        }
    }
}

impl Default for ControlReply {
    fn default() -> Self {
        Self {
            errno: 0,
            slot: 0,
            generation: 0,
            a: 0,
            b: 0,
            len: 0,
            addr: RawAddr::default(),
            data: [0; DATA_MAX],
        }
    }
}

impl Request {
    /// Returns the valid part of `data`; an excessive length is truncated.
    pub fn payload(&self) -> &[u8] {
        &self.data[..(self.len as usize).min(DATA_MAX)]
    }

    /// Returns the bytes to send: header and valid part of `data`.
    pub fn wire(&self) -> &[u8] {
        &self.as_bytes()[..size_of::<Self>() - DATA_MAX + self.payload().len()]
    }
}

impl ControlReply {
    /// Returns the valid part of `data`; an excessive length is truncated.
    pub fn payload(&self) -> &[u8] {
        &self.data[..(self.len as usize).min(DATA_MAX)]
    }

    /// Returns the bytes to send: header and valid part of `data`.
    pub fn wire(&self) -> &[u8] {
        &self.as_bytes()[..size_of::<Self>() - DATA_MAX + self.payload().len()]
    }
}

const _: () = {
    assert!(size_of::<Request>() == 24 + 24 + DATA_MAX);
    assert!(size_of::<ControlReply>() == 24 + 24 + DATA_MAX);
    assert!(size_of::<RequestSlot>() == 128);
    assert!(REPLY_OFFSET + size_of::<ControlReply>() <= COMMANDS_OFFSET);
    assert!(size_of::<Interface>() == 64);
    assert!(size_of::<Route>() == 2 * 24 + 6 * 4);
    assert!(size_of::<SocketRow>() == 2 * 24 + 18 * 4);
    assert!(size_of::<Tally>() == 27 * 8);
    assert!(size_of::<Traffic>() == 6 * 8);
    assert!(size_of::<NeighborRecord>() == 24 + 4 * 4 + 8);
};

// SAFETY: integers only; the sizes asserted above show that there is no padding.
unsafe impl Plain for Request {}
// SAFETY: integers only; the sizes asserted above show that there is no padding.
unsafe impl Plain for ControlReply {}
// SAFETY: integers only; the sizes asserted above show that there is no padding.
unsafe impl Plain for Interface {}
// SAFETY: integers only; the sizes asserted above show that there is no padding.
unsafe impl Plain for Route {}
// SAFETY: integers only; the sizes asserted above show that there is no padding.
unsafe impl Plain for SocketRow {}
// SAFETY: integers only; the sizes asserted above show that there is no padding.
unsafe impl Plain for Tally {}
// SAFETY: integers only; the sizes asserted above show that there is no padding.
unsafe impl Plain for Traffic {}
// SAFETY: integers only; the sizes asserted above show that there is no padding.
unsafe impl Plain for NeighborRecord {}

#[cfg(test)]
mod tests {
    use super::{call, purpose};
    use crate::layout::{op, setting};

    /// A loop over numbers would not detect a number that is used twice, or one beyond the last.
    #[test]
    fn numbers_stand_for_one_thing_and_ascend() {
        for (list, first) in [(call::ALL, 1), (purpose::ALL, 0), (op::ALL, 1), (setting::ALL, 1)] {
            assert_eq!(list[0].1, first);
            assert!(list.is_sorted_by(|(_, one), (_, next)| one < next));
        }
    }
}
