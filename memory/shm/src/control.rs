//! Requests of programs to the engine (the network stack), and its replies. Operations use them if
//! they need a reply or pass a descriptor; other operations are commands. The engine processes all
//! commands in the channel's ring before it handles a request, so their order is preserved.
//!
//! A request is written to the [`RequestSlot`] of the channel to the shard (engine thread) that
//! owns the socket. Requests made before there is a channel, and those whose reply carries
//! descriptors ([`goes_by_socket`]), use a Unix socket (SOCK_SEQPACKET) instead. On each of these
//! paths, a program has one request in progress at a time. A program that makes another request on
//! the Unix socket before the reply is disconnected. Requests that concern no socket may be sent to
//! any shard. Exceptions are [`call::OUTSIDE`], and calls whose `a` is a slot ([`call::SOCKETS`],
//! [`call::SOCKET_ROWS`], [`call::SOCKET_FIGURES`], [`call::TALLY`]).
//!
//! If a process finds that the Unix socket is closed, its engine has ended, and all calls on its
//! sockets fail from then on. If the engine finds that the Unix socket is closed, the process has
//! ended. Sockets that only this process has open are reset, as the kernel does when a process is
//! killed.

use std::sync::atomic;

use crate::layout::{COMMANDS_OFFSET, ChannelHeader, Plain, RawAddr, SHARDS_MAX};

/// Environment variable by which the descriptor number of the control socket is passed to an
/// executed program.
pub const ENV_CONTROL: &str = "TOWPATH_CONTROL";

/// Maximum length in bytes of an option value or of data in a reply.
pub const DATA_MAX: usize = 1024;

/// Maximum number of sockets per [`call::TOKENS`] request. Each takes the engine about 5 µs, during
/// which it serves no other process.
pub const TOKENS_MAX: usize = 16;

/// Maximum number of sockets created per [`call::SOCKET`].
pub const SOCKETS_MAX: usize = 16;
/// Maximum number of descriptors per message: those of the reply to HELLO with [`SHARDS_MAX`]
/// shards.
pub const DESCRIPTORS_MAX: usize = 6 + SHARDS_MAX as usize;
const _: () = assert!(DESCRIPTORS_MAX >= TOKENS_MAX);

/// Offset in bytes of the [`RequestSlot`] in the memory of a channel.
pub const REQUEST_SLOT_OFFSET: usize = size_of::<ChannelHeader>();

/// State of a request without descriptors and its reply. A program has one request in progress at a
/// time.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RequestSlot {
    /// Number of the last request that was answered, stored after the reply. Written by the engine.
    pub answered: atomic::AtomicU32,
    /// Futex word on which a thread waits for the reply. The word changes together with `answered`,
    /// and when [`ChannelHeader::ended`] changes. Written by the engine.
    pub seq: atomic::AtomicU32,
    // Padding: the words that the program writes are in a different cache line from those of the
    // engine.
    _pad0: [atomic::AtomicU32; 14],
    /// Nonzero if a thread sleeps on `seq` or is about to. Changed by atomic swap.
    pub asleep: atomic::AtomicU32,
    _pad1: [atomic::AtomicU32; 15],
}

/// Offset in bytes of the request ([`Request::wire`]) in the memory of a channel. Written by the
/// program.
pub const REQUEST_OFFSET: usize = REQUEST_SLOT_OFFSET + size_of::<RequestSlot>();
/// Offset in bytes of the reply in the memory of a channel. Written by the engine.
pub const REPLY_OFFSET: usize = REQUEST_OFFSET + size_of::<Request>();

/// A request of a program to the engine.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Number of the requested operation, see [`call`].
    pub call: u32,
    /// Slot (number) of the socket that the request concerns, if any.
    pub slot: u32,
    /// Generation of the socket's slot, which changes when the slot is reused.
    pub generation: u32,
    /// First argument; its meaning depends on `call` and is documented in [`call`].
    pub a: u32,
    /// Second argument of the request, whose meaning depends on the operation; see [`call`].
    pub b: u32,
    /// Number of valid bytes in `data`.
    pub len: u32,
    /// Address argument of the request, if the operation has one; see [`call`].
    pub addr: RawAddr,
    /// Data of the call, such as an option's value; see [`call`]. The first `len` bytes are valid.
    pub data: [u8; DATA_MAX],
}

/// The engine's reply to a request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ControlReply {
    /// 0 for success, or Linux's errno value.
    pub errno: i32,
    /// First result, usually the slot (number) of a socket. The meaning depends on the request; see
    /// [`call`].
    pub slot: u32,
    /// Second result, usually the generation of `slot`. The meaning depends on the request; see
    /// [`call`].
    pub generation: u32,
    /// Third result; its meaning depends on the request, see [`call`].
    pub a: u32,
    /// Second result of the request, whose meaning depends on the operation; see [`call`].
    pub b: u32,
    /// Number of valid bytes in `data`.
    pub len: u32,
    /// Address returned by some requests; see [`call`].
    pub addr: RawAddr,
    /// Data that the call returns; see [`call`]. The first `len` bytes are valid.
    pub data: [u8; DATA_MAX],
}

numbered! {
/// Numbers of the operations in [`Request::call`], with their arguments and results.
pub mod call {
    /// HELLO: first request of a new process image (at the start, or after exec). `a` = pid, `data`
    /// = up to 126 (slot, generation) pairs of u32 of its sockets, `b` = 1 if further HELLOs list
    /// more. The engine closes the channel's previous sockets that are not listed. The rings start
    /// empty.
    ///
    /// Reply: `a` = layout version, `b` = number of the channels, `slot` = number of shards.
    /// Descriptors: region, status pages, memory of the channels, the program's notification
    /// descriptor, a blank [`crate::token`], the notification descriptor of each shard. If a
    /// guardian process supervises the engine, the read end of a pipe follows. The pipe hangs up
    /// when the last supervising process has exited.
    pub const HELLO: u32 = 1;
    /// CLONE: creates channels for another process, before fork, exec or posix_spawn. `a` = their
    /// [`super::purpose`]. Reply: `b` = number of the channels. Descriptors: control socket, memory
    /// of the channels, the new process's notification descriptor, the notification descriptor of
    /// each shard (event loop). The new process uses the same region and status pages.
    pub const CLONE: u32 = 2;
    /// SOCKET: socket(2). `a` = AF_INET or AF_INET6, `b` = protocol (6 TCP, 17 UDP, 1 ICMP, 58
    /// ICMPv6), `slot` = number of sockets to create, from 1 to [`super::SOCKETS_MAX`]. Reply: slot
    /// and generation of the first socket; `data` = (slot, generation) pairs of u32 of the others.
    pub const SOCKET: u32 = 3;
    /// BIND: bind(2) to `addr`. Afterwards, the slot contains the bound address.
    pub const BIND: u32 = 4;
    /// LISTEN: listen(2). `a` = backlog. Afterwards, the slot's kind is Listener.
    pub const LISTEN: u32 = 5;
    /// CONNECT: connect(2) to `addr`. With family 0, dissolves a UDP association, or makes a TCP
    /// socket unconnected. With `a` = [`super::IF_FAILED`], makes a TCP socket unconnected only if
    /// a connect failed. For TCP this only starts the connection and returns immediate errors; the
    /// outcome is in the slot's flags and error.
    pub const CONNECT: u32 = 6;
    /// ADOPT: the process of this channel has received a descriptor of the socket by SCM_RIGHTS, so
    /// it has the socket open as well.
    pub const ADOPT: u32 = 7;
    /// GET_OPTION: getsockopt(2) for options that only the engine knows. `a` = level, `b` = option.
    /// Reply: `data`. TCP_INFO returns struct tcp_info, TCP_CONGESTION a name, IP_MTU and
    /// TCP_MAXSEG a u32. For SO_ATTACH_FILTER, `data` = number of the first instruction to return,
    /// a u32. Reply: as many instructions as fit; `a` = total number of instructions.
    pub const GET_OPTION: u32 = 8;
    /// SET_OPTION: setsockopt(2) for options that the engine may reject (TCP_CONGESTION,
    /// memberships, SO_BINDTODEVICE). `a` = level, `b` = option, `data` = value. For
    /// SO_ATTACH_FILTER, `data` is a part of the filter. The part starts with two u16: the total
    /// number of instructions, and the number of the first one in this part. The instructions
    /// follow. Parts are sent in order; the last one attaches the filter.
    pub const SET_OPTION: u32 = 9;
    /// INTERFACES: returns the interfaces of the stack. Reply: `data` = [`super::Interface`]
    /// structs, `a` = their number.
    pub const INTERFACES: u32 = 10;
    /// SOCKETS: lists sockets for `towpath ss`. `a` = first slot to examine. Reply: `data` = JSON
    /// lines, `a` = first slot of the next request, 0 at the end. A reply may have no lines
    /// although it is not the last. Handled by the shard (event loop) that owns the first slot.
    pub const SOCKETS: u32 = 11;
    /// REGION: requests the region (shared memory), before HELLO. A new process image uses it to
    /// find the sockets of its descriptors. Reply: `a` = layout version, `data` =
    /// [`crate::token::Run`], the random number of the engine; descriptor: region.
    pub const REGION: u32 = 12;
    /// COMMAND: sends the [`crate::layout::Command`] in `data` without the command ring. Used by a
    /// signal handler that interrupted a call while it was using the ring.
    pub const COMMAND: u32 = 13;
    /// ERROR_QUEUE: removes the oldest report from the socket's error queue (MSG_ERRQUEUE). Reply:
    /// `a` = errno, `b` = ICMP type << 8 | code, or [`super::LOCAL_REPORT`], `addr` = destination
    /// of the datagram, `slot` = path MTU. `data` = address of the reporter (16 bytes, IPv4 in the
    /// first four), its scope id (a u32), then the payload.
    pub const ERROR_QUEUE: u32 = 14;
    /// TOKENS: requests tokens, because descriptors of sockets will be passed to another program. A
    /// named [`crate::token`] is a kernel object that identifies a socket. `data` = up to
    /// [`super::TOKENS_MAX`] (slot, generation) pairs of u32. Reply: `a` = number of pairs handled,
    /// at least one. `b` = one bit per pair, from the lowest: 1 if the pair got a token, 0 if it is
    /// not a socket of this process. Descriptors: the tokens, in order. The engine creates them,
    /// because a program may be in a chroot without /proc, or behind a seccomp filter.
    pub const TOKENS: u32 = 15;
    /// CHECK_LENGTH: checks the length of a datagram. `data` = its
    /// [`crate::layout::DatagramHeader`], including `len`. Returns EMSGSIZE if it is too long. If
    /// the socket's error queue is enabled, the maximum length is reported there.
    pub const CHECK_LENGTH: u32 = 16;
    /// OUTSIDE: a program that cannot use this stack is about to be executed; its sockets will be
    /// the kernel's. `a` = reason ([`crate::image::Outside`]), `data` = path of the file. Returns
    /// EACCES if such programs are not allowed; otherwise the reply is empty. Handled by the first
    /// shard (event loop).
    pub const OUTSIDE: u32 = 20;
    /// ROUTES: returns the routing table. `a` = number of the first route to return. Reply: `data`
    /// = [`super::Route`] structs, `a` = number of the next one, 0 at the end.
    pub const ROUTES: u32 = 21;
    /// RESOLVER: returns the nameserver to use instead of those in /etc/resolv.conf. Reply: `addr`
    /// = address (family 0: use the file), `a` = 1 if it replaces only nameservers on a loopback
    /// address.
    pub const RESOLVER: u32 = 22;
    /// SOCKET_ROWS: lists sockets for /proc/net and NETLINK_SOCK_DIAG. `a` = first slot to examine.
    /// `b` = 0, or 1 plus the number of connections without a slot that this shard (event loop) has
    /// already returned. Reply: `data` = [`super::SocketRow`] structs; `a` and `b` for the next
    /// request, both 0 at the end. A reply may have no rows although it is not the last.
    pub const SOCKET_ROWS: u32 = 23;
    /// SOCKET_FIGURES: returns statistics of a socket of any program that uses the engine. `a` =
    /// slot. Reply: `data` = struct tcp_info, then the name of the congestion control. `a` = length
    /// of the struct in bytes, `b` = 1 if there is a connection; otherwise the name is empty.
    pub const SOCKET_FIGURES: u32 = 24;
    /// TALLY: returns counters of one shard. `a` = its first slot (0 for the first shard). Reply:
    /// `data` = [`super::Tally`], then a [`super::Traffic`] for each interface by index. `a` =
    /// first slot of the next shard, 0 after the last.
    pub const TALLY: u32 = 25;
    /// NEIGHBORS: returns neighbours. `a` = number of the first one to return. Reply: `data` =
    /// [`super::NeighborRecord`] structs, `a` = number of the next one, 0 at the end.
    pub const NEIGHBORS: u32 = 26;
    /// NAMES: returns host names configured for the run. `a` = offset in the text. Reply: `data` =
    /// bytes of the text, `a` = next offset, 0 at the end. The first line is the host's own name,
    /// empty to use the kernel's; further lines are in the format of hosts(5). The text is empty if
    /// no names are configured.
    pub const NAMES: u32 = 27;
}
}

/// Length in bytes of the two u16 at the start of each part of a filter ([`call::SET_OPTION`]).
pub const FILTER_PART_HEADER: usize = 4;

/// Returns whether a request with this [`call`] number must use the Unix socket, because its reply
/// contains descriptors.
pub fn goes_by_socket(number: u32) -> bool {
    matches!(number, call::HELLO | call::CLONE | call::REGION | call::TOKENS)
}

/// Value of `b` in the reply to [`call::ERROR_QUEUE`]: this host detected the error itself.
pub const LOCAL_REPORT: u32 = 1 << 16;
/// Value of `b` in the reply to [`call::ERROR_QUEUE`] for a transmit timestamp (SO_TIMESTAMPING).
/// `a` = SCM_TSTAMP_SND, _SCHED or _ACK, `slot` = number of the datagram or byte
/// (SOF_TIMESTAMPING_OPT_ID), `data` = Unix time in nanoseconds, a u64.
pub const STAMP_REPORT: u32 = 1 << 17;
/// Value of `b` in the reply to [`call::ERROR_QUEUE`] for completed sends with MSG_ZEROCOPY, whose
/// bytes may be overwritten now. `slot` = number of the first such send, `a` = number of the last
/// one.
pub const COPIED_REPORT: u32 = 1 << 18;

/// Value of `a` in [`call::CONNECT`] with family 0 (disconnect): disconnect only if the last
/// connect failed. Another thread may have started a new connection since, which must continue.
pub const IF_FAILED: u32 = 1;

/// Value of `b` in [`call::CONNECT`]: use TCP Fast Open (RFC 7413). As `a` of the reply: the SYN is
/// delayed until there is data, of which it can carry `slot` bytes.
pub const FAST_OPEN: u32 = 1;

numbered! {
/// Values of `a` in [`call::CLONE`]: which process will use the new channels, and which sockets it
/// has.
pub mod purpose {
    /// The channels are for a child process created by fork(2), which inherits all sockets of this
    /// process.
    pub const FORK: u32 = 0;
    /// The channels are for the program that this process will execute. The program inherits the
    /// sockets listed by [`crate::layout::op::LIST`] commands.
    pub const EXEC: u32 = 1;
    /// The channels are for a program that this process spawns. Until its HELLO, it counts as
    /// having all sockets of this process. If there is no HELLO within some seconds of
    /// [`crate::layout::op::SPAWNED`], it has those listed by [`crate::layout::op::LIST`].
    pub const SPAWN: u32 = 2;
}
}

/// An interface of the stack, as returned to programs for SIOCGIFCONF, getifaddrs and similar
/// calls.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, padded with NUL bytes.
    pub name: [u8; 16],
    /// Index of the interface, starting at 1.
    pub index: u32,
    /// MTU of the interface in bytes.
    pub mtu: u32,
    /// Flags of the interface: IFF_* with Linux's values.
    pub flags: u32,
    /// Prefix length of the network of `addr`.
    pub prefix_len: u32,
    /// Hardware address of the interface.
    pub mac: [u8; 6],
    /// Reserved; always 0.
    pub reserved: u16,
    /// An address of the interface. An interface with several addresses has several entries.
    pub addr: RawAddr,
}

/// A route of the stack, as returned to programs for netlink. The route in use precedes further
/// routes to the same network.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Route {
    /// Address of the destination network.
    pub dst: RawAddr,
    /// Address of the gateway; family 0 if the network is directly connected.
    pub gateway: RawAddr,
    /// Prefix length of the destination network.
    pub prefix_len: u32,
    /// Index of the outgoing interface, starting at 1.
    pub index: u32,
    /// Metric of the route. If several routes lead to the same network, the one with the smallest
    /// metric is used.
    pub metric: u32,
    /// Origin of the route, see [`route_origin`].
    pub origin: u32,
    /// Maximum packet length in bytes on this route; 0 if the MTU of the link applies.
    pub mtu: u32,
    /// Relative weight among several next hops to the same network, 1 to 256.
    pub weight: u32,
}

/// A socket of the run, or a connection without a socket (half-open, TIME-WAIT), for /proc/net and
/// NETLINK_SOCK_DIAG.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketRow {
    /// Local address, as returned by getsockname(2); family 0 if the socket has none.
    pub local: RawAddr,
    /// Address of the peer; family 0 if the socket has none.
    pub remote: RawAddr,
    /// Slot of the socket; [`u32::MAX`] for a connection without a socket, for example after
    /// close(2).
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// Address family: AF_INET or AF_INET6.
    pub family: u32,
    /// IP protocol number: 6, 17, 1 or 58.
    pub protocol: u32,
    /// State of the socket, with Linux's numbers for TCP states.
    pub state: u32,
    /// Number of unread bytes; for a listener, number of connections to accept.
    pub recv_q: u32,
    /// Number of unacknowledged bytes; for a listener, the backlog.
    pub send_q: u32,
    /// Capacity of the socket's receive buffer in bytes.
    pub recv_buffer: u32,
    /// Capacity of the socket's send buffer in bytes.
    pub send_buffer: u32,
    /// Kind of the running timer, as in /proc/net/tcp: 0 none, 1 retransmission, 2 keep-alive, 3
    /// TIME-WAIT, 4 window probe.
    pub timer: u32,
    /// Milliseconds until the timer of field `timer` expires.
    pub timer_ms: u32,
    /// Number of consecutive retransmission timeouts.
    pub retransmits: u32,
    /// Current retransmission timeout in milliseconds.
    pub rto_ms: u32,
    /// Maximum delay of an ACK in milliseconds.
    pub ato_ms: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Slow-start threshold in segments; [`u32::MAX`] if unlimited.
    pub ssthresh: u32,
    /// 1 if the socket option IPV6_V6ONLY is set, otherwise 0.
    pub v6_only: u32,
    /// Index of the interface to which the socket is bound; 0 if none.
    pub device: u32,
}

/// Counters of one shard (thread of the engine), for IPv4 and IPv6 together.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// IP packets received.
    pub ip_received: u64,
    /// Total length of received IP packets in bytes.
    pub ip_received_bytes: u64,
    /// IP packets delivered to sockets.
    pub ip_delivered: u64,
    /// IP packets sent.
    pub ip_sent: u64,
    /// Total length of sent IP packets in bytes.
    pub ip_sent_bytes: u64,
    /// IP packets forwarded to other hosts.
    pub ip_forwarded: u64,
    /// IP fragments received.
    pub fragments: u64,
    /// IP packets reassembled from fragments.
    pub reassembled: u64,
    /// Outgoing packets that were fragmented.
    pub fragmented: u64,
    /// ICMP error messages received.
    pub icmp_errors_received: u64,
    /// ICMP error messages sent.
    pub icmp_errors_sent: u64,
    /// ICMP echo requests that the stack answered.
    pub echoes_answered: u64,
    /// ICMP echo replies received.
    pub echo_received: u64,
    /// ICMP echo requests sent.
    pub echo_sent: u64,
    /// TCP connections opened by this host.
    pub tcp_connects: u64,
    /// TCP connections opened by peers.
    pub tcp_accepts: u64,
    /// TCP connections ended by a reset or timeout.
    pub tcp_failures: u64,
    /// TCP segments received.
    pub tcp_received: u64,
    /// TCP segments sent.
    pub tcp_sent: u64,
    /// TCP segments retransmitted.
    pub tcp_retransmits: u64,
    /// TCP segments with RST sent.
    pub tcp_resets_sent: u64,
    /// SYN cookies sent.
    pub tcp_syn_cookies_sent: u64,
    /// TCP connections created from a valid SYN cookie.
    pub tcp_syn_cookies_valid: u64,
    /// Received ACKs that match no connection and contain no valid SYN cookie.
    pub tcp_syn_cookies_invalid: u64,
    /// TCP connections in TIME-WAIT that were replaced early by a new connection.
    pub tcp_time_wait_reused: u64,
    /// UDP datagrams received.
    pub udp_received: u64,
    /// UDP datagrams sent.
    pub udp_sent: u64,
}

/// Packet and byte counters of one interface in one shard (thread of the engine).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets received on the interface.
    pub rx_packets: u64,
    /// Bytes received on the interface.
    pub rx_bytes: u64,
    /// Received packets that were dropped.
    pub rx_dropped: u64,
    /// Packets sent on the interface.
    pub tx_packets: u64,
    /// Bytes sent on the interface.
    pub tx_bytes: u64,
    /// Packets to be sent that were dropped before transmission.
    pub tx_dropped: u64,
}

/// An entry of the neighbour table (ARP, NDP), as returned to programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NeighborRecord {
    /// IP address of the neighbour.
    pub addr: RawAddr,
    /// Index of the interface, starting at 1.
    pub index: u32,
    /// State of the entry: NUD_* with Linux's values.
    pub state: u32,
    /// Flags of the neighbour entry (NTF_*), with Linux's values.
    pub flags: u32,
    /// 1 if the hardware address `mac` is known, otherwise 0.
    pub known: u32,
    /// Hardware address of the neighbour.
    pub mac: [u8; 6],
    /// Reserved; always 0.
    pub reserved: u16,
}

/// Values of [`Route::origin`]: where a route came from.
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
    /// Returns the valid part of `data`: the first `len` bytes, or all if `len` is too large.
    pub fn payload(&self) -> &[u8] {
        &self.data[..(self.len as usize).min(DATA_MAX)]
    }

    /// Returns the bytes to be sent: all fields, and the valid part of `data`.
    pub fn wire(&self) -> &[u8] {
        &self.as_bytes()[..size_of::<Self>() - DATA_MAX + self.payload().len()]
    }
}

impl ControlReply {
    /// Returns the valid part of `data`: the first `len` bytes, or all if `len` is too large.
    pub fn payload(&self) -> &[u8] {
        &self.data[..(self.len as usize).min(DATA_MAX)]
    }

    /// Returns the bytes to be sent: all fields, and the valid part of `data`.
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

// SAFETY: the struct consists of integers; the sizes asserted above show that there is no padding.
unsafe impl Plain for Request {}
// SAFETY: the struct consists of integers; the sizes asserted above show that there is no padding.
unsafe impl Plain for ControlReply {}
// SAFETY: the struct consists of integers; the sizes asserted above show that there is no padding.
unsafe impl Plain for Interface {}
// SAFETY: the struct consists of integers; the sizes asserted above show that there is no padding.
unsafe impl Plain for Route {}
// SAFETY: the struct consists of integers; the sizes asserted above show that there is no padding.
unsafe impl Plain for SocketRow {}
// SAFETY: the struct consists of integers; the sizes asserted above show that there is no padding.
unsafe impl Plain for Tally {}
// SAFETY: the struct consists of integers; the sizes asserted above show that there is no padding.
unsafe impl Plain for Traffic {}
// SAFETY: the struct consists of integers; the sizes asserted above show that there is no padding.
unsafe impl Plain for NeighborRecord {}

#[cfg(test)]
mod tests {
    use super::{call, purpose};
    use crate::layout::{op, setting};

    /// Tests that message numbers are unique and ascending, which the macro does not check.
    #[test]
    fn numbers_stand_for_one_thing_and_ascend() {
        for (list, first) in [(call::ALL, 1), (purpose::ALL, 0), (op::ALL, 1), (setting::ALL, 1)] {
            assert_eq!(list[0].1, first);
            assert!(list.is_sorted_by(|(_, one), (_, next)| one < next));
        }
    }
}
