//! Requests and their answers: everything that needs an answer or carries a descriptor. The engine
//! drains the channel's command ring before it handles a request, so the two keep their order.
//!
//! A request goes into the cell of the channel ([`RequestSlot`]) of the shard that has the socket.
//! Requests from before there is a channel, and those answered with descriptors
//! ([`goes_by_socket`]), go over the Unix socket (SOCK_SEQPACKET) beside it. Each of these has one
//! request at a time. A program that makes another one on the Unix socket before the answer is cut
//! off. Any shard answers a request about no socket, but for [`call::OUTSIDE`] and
//! for calls whose `a` is a slot ([`call::SOCKETS`], [`call::SOCKET_ROWS`],
//! [`call::SOCKET_FIGURES`], [`call::TALLY`]).
//!
//! A process that loses this socket (end of file) has lost its engine: every call on a socket fails
//! from then on. An engine that loses it has lost the process. Sockets of that process alone are
//! reset, as the kernel does with a process that is killed.

use std::sync::atomic;

use crate::layout::{COMMANDS_OFFSET, ChannelHeader, Plain, RawAddr, SHARDS_MAX};

/// Environment variable that carries the descriptor number of the control socket over exec.
pub const ENV_CONTROL: &str = "TOWPATH_CONTROL";

/// Longest option value or reply data.
pub const DATA_MAX: usize = 1024;

/// Most tokens of one [`call::TOKENS`]: the engine needs some 5 µs for each, and deals with no
/// other process meanwhile.
pub const TOKENS_MAX: usize = 16;

/// Most sockets of one [`call::SOCKET`].
pub const SOCKETS_MAX: usize = 16;
/// Most descriptors that come with one message: those of HELLO's answer where there are
/// [`SHARDS_MAX`] shards.
pub const DESCRIPTORS_MAX: usize = 6 + SHARDS_MAX as usize;
const _: () = assert!(DESCRIPTORS_MAX >= TOKENS_MAX);

/// Where the cell of a channel is.
pub const REQUEST_SLOT_OFFSET: usize = size_of::<ChannelHeader>();

/// A request that takes and gives no descriptor, and its answer. The program has one at a time.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RequestSlot {
    /// Number of the last request from here that was answered; written when the answer is there.
    /// Engine.
    pub answered: atomic::AtomicU32,
    /// Changes when that changes, and when [`ChannelHeader::ended`] does: the thread that waits
    /// sleeps on it. Engine.
    pub seq: atomic::AtomicU32,
    // The words of the other side's: not in a cache line with those above.
    _pad0: [atomic::AtomicU32; 14],
    /// Not 0: a thread sleeps on `seq`, or is about to. Swap.
    pub asleep: atomic::AtomicU32,
    _pad1: [atomic::AtomicU32; 15],
}

/// Where the bytes of a request are, as [`Request::wire`] has them: program.
pub const REQUEST_OFFSET: usize = REQUEST_SLOT_OFFSET + size_of::<RequestSlot>();
/// Where those of the answer are: engine.
pub const REPLY_OFFSET: usize = REQUEST_OFFSET + size_of::<Request>();

/// A program's request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// [`call`].
    pub call: u32,
    /// Slot and generation, where the call is about a socket.
    pub slot: u32,
    /// See `slot`.
    pub generation: u32,
    /// Depends on the call.
    pub a: u32,
    /// Depends on the call.
    pub b: u32,
    /// Valid bytes of `data`.
    pub len: u32,
    /// Depends on the call.
    pub addr: RawAddr,
    /// Depends on the call.
    pub data: [u8; DATA_MAX],
}

/// The engine's answer.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ControlReply {
    /// 0, or the errno Linux would give.
    pub errno: i32,
    /// Depends on the call.
    pub slot: u32,
    /// Depends on the call.
    pub generation: u32,
    /// Depends on the call.
    pub a: u32,
    /// Depends on the call.
    pub b: u32,
    /// Valid bytes of `data`.
    pub len: u32,
    /// Depends on the call.
    pub addr: RawAddr,
    /// Depends on the call.
    pub data: [u8; DATA_MAX],
}

numbered! {
/// [`Request::call`]: what each takes and gives.
pub mod call {
    /// First message of a new process image (start, or after exec). `a` = pid, `data` = up to 126
    /// (slot, generation) pairs of u32 that it holds, `b` = 1 when more follow in further HELLOs.
    /// Everything this channel held and does not list is dropped; the rings start empty. Reply: `a`
    /// = layout version, `b` = number of the channels, `slot` = how many shards there are.
    /// Descriptors: region, status pages, memory of the channels, own notification descriptor, a
    /// blank [`crate::token`], the notification descriptor of each shard. Where a guardian watches
    /// the run, a pipe's read end follows, which hangs up when the last process that could end the
    /// run has gone.
    pub const HELLO: u32 = 1;
    /// Before fork, exec or posix_spawn: other channels; `a` says for what ([`super::purpose`]).
    /// Reply: `b` = their number; descriptors: control socket, memory of the channels, own
    /// notification descriptor, the notification descriptor of each shard. (Region and status pages
    /// are the same.)
    pub const CLONE: u32 = 2;
    /// socket(2): `a` = AF_INET or AF_INET6, `b` = protocol (6, 17, 1, 58), `slot` = how many are
    /// wanted, at least one, at most [`super::SOCKETS_MAX`]. Reply: slot, generation; `data` =
    /// (slot, generation) pairs of u32 of further ones.
    pub const SOCKET: u32 = 3;
    /// bind(2): `addr`. The bound address is in the slot afterwards.
    pub const BIND: u32 = 4;
    /// listen(2): `a` = backlog. The slot's kind is Listener afterwards.
    pub const LISTEN: u32 = 5;
    /// connect(2): `addr` (family 0: dissolve a UDP association; a TCP socket becomes unconnected,
    /// `a` =
    /// [`super::IF_FAILED`]: where a
    /// connect failed, otherwise in any case). TCP: starts, errors that are known at once are
    /// returned; the outcome is in the slot's flags and error.
    pub const CONNECT: u32 = 6;
    /// A descriptor arrived by SCM_RIGHTS: this channel holds the slot too.
    pub const ADOPT: u32 = 7;
    /// getsockopt of something only the engine knows: `a` = level, `b` = option. Reply: `data`.
    /// TCP_INFO gives struct tcp_info; TCP_CONGESTION a name; IP_MTU a u32; TCP_MAXSEG a u32.
    /// SO_ATTACH_FILTER: `data` = number of the first instruction to tell, a u32. Reply: as
    /// many instructions as fit; `a` = how many the filter has.
    pub const GET_OPTION: u32 = 8;
    /// setsockopt that can fail in the engine (TCP_CONGESTION, memberships, SO_BINDTODEVICE):
    /// `a` = level, `b` = option, `data` as given to setsockopt. SO_ATTACH_FILTER: a part of the
    /// program. `data` = how many instructions it has and the number of the first one here, each a
    /// u16; then these instructions. The parts come in order; the last one attaches the program.
    pub const SET_OPTION: u32 = 9;
    /// Interface list: reply `data` = [`super::Interface`] structs, `a` = their number.
    pub const INTERFACES: u32 = 10;
    /// `towpath ss`: `a` = first slot to look at. Reply: `data` = JSON lines, `a` = next slot, 0 at
    /// the end. There may be no line and a next slot: few of the slots there are sockets. The shard
    /// that has the first slot answers.
    pub const SOCKETS: u32 = 11;
    /// Before HELLO: the region, in which a new process image finds what its descriptors stand for.
    /// Reply: `a` = layout version, `data` = the run as [`crate::token::Run`] has it; descriptor:
    /// region.
    pub const REGION: u32 = 12;
    /// A [`crate::layout::Command`] in `data`, from a signal handler that finds the ring in use by
    /// the call that it interrupts.
    pub const COMMAND: u32 = 13;
    /// The oldest report of the error queue, which is taken off. Reply: `a` = errno,
    /// `b` = ICMP type << 8 | code, or [`super::LOCAL_REPORT`], `addr` = where the datagram was
    /// sent, `slot` = path MTU. `data` = the reporter (16 bytes, IPv4 in the first four), the scope
    /// id of that address (a u32), then the payload.
    pub const ERROR_QUEUE: u32 = 14;
    /// Descriptors of sockets are about to go to another program: `data` = up to
    /// [`super::TOKENS_MAX`] (slot, generation) pairs of u32. Reply: `a` = how many of them, from
    /// the first, were dealt with, at least one. `b` = which of these have a token, a bit each from
    /// the lowest: the others are no sockets of this process (any more). Descriptors: a
    /// [`crate::token`] with its name for each bit, in this order. The engine makes them, as a
    /// program may be in a chroot without /proc, or behind a filter.
    pub const TOKENS: u32 = 15;
    /// Whether a datagram may be as long as it is: `data` = its [`crate::layout::DatagramHeader`],
    /// `len` included. EMSGSIZE: it may not, and the error queue, if the program asked for one,
    /// says how long it may be.
    pub const CHECK_LENGTH: u32 = 16;
    /// A program is about to be executed whose sockets will be the kernel's: `a` = why, as
    /// [`crate::image::Outside`] has it, `data` = the file's path. Refused with EACCES where such
    /// programs are not allowed; otherwise an answer without content. The first shard answers.
    pub const OUTSIDE: u32 = 20;
    /// Routing table: `a` = number of the first route to tell. Reply: `data` = [`super::Route`]
    /// structs, `a` = number of the next one, 0 at the end.
    pub const ROUTES: u32 = 21;
    /// The nameserver for the program's /etc/resolv.conf. Reply: `addr` = where (family 0: what
    /// stands in the file), `a` = 1 when it replaces only those on a loopback address.
    pub const RESOLVER: u32 = 22;
    /// Sockets for /proc/net and NETLINK_SOCK_DIAG: `a` = first slot to look at. `b` = 0, or 1 and
    /// the connections without a slot that were told of its shard. Reply: `data` =
    /// [`super::SocketRow`] structs; `a` and `b` for the next request, both 0 at the end. There may
    /// be no row and more beyond.
    pub const SOCKET_ROWS: u32 = 23;
    /// Figures of any socket of the run: `a` = slot. Reply: `data` = struct tcp_info, then the name
    /// of the congestion control. `a` = bytes of the struct, `b` = 1 when there is a connection.
    /// Without a connection the name is empty.
    pub const SOCKET_FIGURES: u32 = 24;
    /// Counters of one shard: `a` = its first slot (0 for the first one). Reply: `data` =
    /// [`super::Tally`], then a [`super::Traffic`] for each interface by index; `a` = the first
    /// slot of the next shard, 0 at the end.
    pub const TALLY: u32 = 25;
    /// Neighbours: `a` = number of the first to tell. Reply: `data` = [`super::NeighborRecord`]
    /// structs, `a` = number of the next one, 0 at the end.
    pub const NEIGHBORS: u32 = 26;
    /// Names that the run was given: `a` = byte of the text to begin with. Reply: `data` = bytes of
    /// the text, `a` = the next one, 0 at the end. Its first line is the machine's name, empty for
    /// the kernel's; the others are lines of hosts(5). Without such names it is empty.
    pub const NAMES: u32 = 27;
}
}

/// Bytes before the instructions in a part of a filter ([`call::SET_OPTION`]).
pub const FILTER_PART_HEADER: usize = 4;

/// Whether a [`call`] is taken on the control socket only, because descriptors go with the answer.
pub fn goes_by_socket(number: u32) -> bool {
    matches!(number, call::HELLO | call::CLONE | call::REGION | call::TOKENS)
}

/// `b` of the answer to [`call::ERROR_QUEUE`]: nobody told this host, it found out itself.
pub const LOCAL_REPORT: u32 = 1 << 16;
/// The same: no error, but when a datagram was sent (SOF_TIMESTAMPING_TX_SOFTWARE). `slot` = its
/// number (SOF_TIMESTAMPING_OPT_ID), `data` = Unix time in ns, a u64.
pub const STAMP_REPORT: u32 = 1 << 17;
/// The same: no error, but sends with MSG_ZEROCOPY whose bytes may be overwritten. `slot` = the
/// first one's number, `a` = the last one's.
pub const COPIED_REPORT: u32 = 1 << 18;

/// `a` of [`call::CONNECT`] to no family: only where a connect failed. Between the failure and this
/// call another thread may have begun the next connection, which goes on.
pub const IF_FAILED: u32 = 1;

/// In [`call::CONNECT`]: with Fast Open (RFC 7413).
pub const FAST_OPEN: u32 = 1;

numbered! {
/// `a` of [`call::CLONE`]: who will have the channel, and what it holds.
pub mod purpose {
    /// A child of fork: what this process holds.
    pub const FORK: u32 = 0;
    /// The program that this process becomes: what was told by [`crate::layout::op::LIST`].
    pub const EXEC: u32 = 1;
    /// A program that this process spawns: what it holds, until it says HELLO. If it does not
    /// within some seconds of [`crate::layout::op::SPAWNED`]: what was told by
    /// [`crate::layout::op::LIST`].
    pub const SPAWN: u32 = 2;
}
}

/// An interface, for SIOCGIFCONF, getifaddrs and the like.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interface {
    /// NUL-padded name.
    pub name: [u8; 16],
    /// 1-based.
    pub index: u32,
    /// Bytes.
    pub mtu: u32,
    /// IFF_* as Linux numbers them.
    pub flags: u32,
    /// Prefix length of `addr`.
    pub prefix_len: u32,
    /// Hardware address.
    pub mac: [u8; 6],
    /// 0.
    pub reserved: u16,
    /// An address; an interface with several appears several times.
    pub addr: RawAddr,
}

/// A route, for netlink. Among routes to the same network the one in use comes first.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Route {
    /// The network.
    pub dst: RawAddr,
    /// The router; family 0 when the network is on the link.
    pub gateway: RawAddr,
    /// Length of the network's prefix.
    pub prefix_len: u32,
    /// Index of the interface, 1-based.
    pub index: u32,
    /// Metric: among routes to the same network the smallest is used.
    pub metric: u32,
    /// [`route_origin`].
    pub origin: u32,
    /// Longest packet in bytes that takes it; 0: as long as the link takes.
    pub mtu: u32,
    /// Share of flows among routes to the same network, 1 to 256.
    pub weight: u32,
}

/// A socket, or a connection without one (half-open, TIME-WAIT), for /proc/net and
/// NETLINK_SOCK_DIAG.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketRow {
    /// Its own end, as getsockname(2) tells it; family 0: none.
    pub local: RawAddr,
    /// The peer; family 0: none.
    pub remote: RawAddr,
    /// Slot; [`u32::MAX`]: no socket (any more).
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// AF_INET or AF_INET6.
    pub family: u32,
    /// 6, 17, 1 or 58.
    pub protocol: u32,
    /// State, as Linux numbers TCP's.
    pub state: u32,
    /// Unread bytes; of a listener, connections to accept.
    pub recv_q: u32,
    /// Bytes not acknowledged; of a listener, the backlog.
    pub send_q: u32,
    /// Bytes that the receive buffer may hold.
    pub recv_buffer: u32,
    /// Bytes that the send buffer may hold.
    pub send_buffer: u32,
    /// Timer that runs, as /proc/net/tcp numbers it: 0 none, 1 retransmission, 2 keepalive, 3
    /// TIME-WAIT, 4 window probe.
    pub timer: u32,
    /// Milliseconds until it fires.
    pub timer_ms: u32,
    /// Timeouts in a row.
    pub retransmits: u32,
    /// Retransmission timeout in milliseconds.
    pub rto_ms: u32,
    /// Milliseconds that an ACK waits at most.
    pub ato_ms: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Slow-start threshold in segments; [`u32::MAX`]: none yet.
    pub ssthresh: u32,
    /// 1: IPV6_V6ONLY.
    pub v6_only: u32,
    /// Index of the interface that it is bound to; 0: none.
    pub device: u32,
}

/// Counters of one shard, both families of IP together.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// IP packets received.
    pub ip_received: u64,
    /// Bytes of them.
    pub ip_received_bytes: u64,
    /// Packets given to sockets.
    pub ip_delivered: u64,
    /// Packets sent.
    pub ip_sent: u64,
    /// Bytes of them.
    pub ip_sent_bytes: u64,
    /// Packets forwarded.
    pub ip_forwarded: u64,
    /// Fragments received.
    pub fragments: u64,
    /// Packets put together of fragments.
    pub reassembled: u64,
    /// Packets cut into fragments.
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
    /// Connections that this host began to open.
    pub tcp_connects: u64,
    /// Connections that peers opened.
    pub tcp_accepts: u64,
    /// Connections that ended by reset or timeout.
    pub tcp_failures: u64,
    /// Segments received.
    pub tcp_received: u64,
    /// Segments sent.
    pub tcp_sent: u64,
    /// Segments sent again.
    pub tcp_retransmits: u64,
    /// Resets sent.
    pub tcp_resets_sent: u64,
    /// TIME-WAITs ended early.
    pub tcp_time_wait_reused: u64,
    /// Datagrams received.
    pub udp_received: u64,
    /// Datagrams sent.
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
    /// Packets dropped after they came in.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped on their way out.
    pub tx_dropped: u64,
}

/// A neighbour on a link.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NeighborRecord {
    /// Its address.
    pub addr: RawAddr,
    /// Index of the interface, from 1.
    pub index: u32,
    /// NUD_*, as Linux numbers it.
    pub state: u32,
    /// NTF_*, as Linux numbers it.
    pub flags: u32,
    /// 1: `mac` is known.
    pub known: u32,
    /// Hardware address.
    pub mac: [u8; 6],
    /// 0.
    pub reserved: u16,
}

/// [`Route::origin`]: who made it.
pub mod route_origin {
    /// The operator.
    pub const STATIC: u32 = 0;
    /// The route follows from an interface's address.
    pub const LINK: u32 = 1;
    /// A router advertised it.
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
    /// The valid part of `data`; a length from the other side is cut to what there is.
    pub fn payload(&self) -> &[u8] {
        &self.data[..(self.len as usize).min(DATA_MAX)]
    }

    /// The bytes to send: header and the valid part of `data`.
    pub fn wire(&self) -> &[u8] {
        &self.as_bytes()[..size_of::<Self>() - DATA_MAX + self.payload().len()]
    }
}

impl ControlReply {
    /// The valid part of `data`.
    pub fn payload(&self) -> &[u8] {
        &self.data[..(self.len as usize).min(DATA_MAX)]
    }

    /// The bytes to send.
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
    assert!(size_of::<Tally>() == 24 * 8);
    assert!(size_of::<Traffic>() == 6 * 8);
    assert!(size_of::<NeighborRecord>() == 24 + 4 * 4 + 8);
};

// SAFETY: integers only; the sizes above show that there is no padding.
unsafe impl Plain for Request {}
// SAFETY: as above.
unsafe impl Plain for ControlReply {}
// SAFETY: as above.
unsafe impl Plain for Interface {}
// SAFETY: as above.
unsafe impl Plain for Route {}
// SAFETY: as above.
unsafe impl Plain for SocketRow {}
// SAFETY: as above.
unsafe impl Plain for Tally {}
// SAFETY: as above.
unsafe impl Plain for Traffic {}
// SAFETY: as above.
unsafe impl Plain for NeighborRecord {}

#[cfg(test)]
mod tests {
    use super::{call, purpose};
    use crate::layout::{op, setting};

    /// A loop over the numbers of the list would notice neither a number that stands for two
    /// things, nor one beyond the last.
    #[test]
    fn numbers_stand_for_one_thing_and_ascend() {
        for (list, first) in [(call::ALL, 1), (purpose::ALL, 0), (op::ALL, 1), (setting::ALL, 1)] {
            assert_eq!(list[0].1, first);
            assert!(list.is_sorted_by(|(_, one), (_, next)| one < next));
        }
    }
}
