//! Limits of the socket layer, their origin, and the effect of changing them. See [`crate::net`]
//! for the limits of the IP layer.

use std::time::Duration;

/// Maximum number of shards of a host, a power of two. Further shards would cost more in wake-ups
/// than they gain.
pub const SHARDS_MAX: usize = 16;

/// Maximum number of packets and messages queued from one shard to another; further packets are
/// dropped (drop reason `shard_full`). Two device batches, so that a shard can hand over a whole
/// turn's packets while the receiver is in its turn.
pub const MAIL_MAX: u32 = 512;

/// Maximum number of packets and messages taken from each peer shard before the shard's own
/// packets.
pub const MAIL_A_TURN: usize = 256;

/// Maximum number of times per turn that a shard polls the rings while they contain offered
/// connections. Two are usually needed for one offer. Under a flood of connections, further offers
/// may be queued out of order.
pub const OFFER_LOOKS_MAX: usize = 4;

/// Maximum number of neighbours with updates that a shard has not taken: twice the neighbour limit.
/// Beyond it, all updates except failures are dropped, and the shard requests its neighbours again
/// (counter `shard_news_lost`).
pub const UPDATES_WAITING_MAX: usize = 2 * crate::net::limits::NEIGHBORS_MAX;

/// Maximum number of path MTUs that a shard has not taken; equals the number it can store. The
/// oldest is dropped first, as in its table; same counter.
pub const PATH_MTUS_WAITING_MAX: usize = crate::net::limits::PATH_MTUS_MAX;

/// Number of changes in the shared socket tables after which a sleeping shard is woken. Each takes
/// about 200 bytes.
pub const CHANGES_UNSEEN_MAX: u32 = 1_024;

/// Maximum number of sockets of a stack: events to programs have 24 bits for a socket index.
pub const SOCKETS_MAX: usize = 1 << 22;

/// Maximum number of half-open connections of all listeners. Each takes about 200 bytes, 13 MB in
/// total. A single listener may use half of them; further SYNs get a SYN cookie (counter
/// `tcp_syn_cookies_sent`).
///
/// Without cookies, entries older than [`HALF_OPEN_PATIENCE`] are evicted. A flood of 32,768 SYNs
/// per second then leaves clients a second to answer. Counters `tcp_half_open_displaced` and, for
/// SYNs without a free entry, `syn_cache_full`.
pub const SYN_CACHE_MAX: usize = 65_536;

/// Minimum age for evicting a half-open connection: the initial retransmission timeout (RFC 6298
/// §2). A real client has answered by then, because round trips are assumed to be shorter.
pub const HALF_OPEN_PATIENCE: Duration = Duration::from_secs(1);

/// Time during which the client of an evicted half-open connection may still answer. Equals the
/// time for which its SYN-ACK would have been retransmitted (1 + 2 + … + 32 s). Drop reason
/// `half_open_displaced`.
pub const DISPLACED_TIME: Duration = Duration::from_secs(63);

/// Maximum number of servers for which a client stores a cookie or a failed attempt, about 100
/// bytes each. The least recently used entry is evicted.
pub const FAST_OPEN_SERVERS_MAX: usize = 1_024;

/// Time without Fast Open to a server after a lost SYN; doubles with each further loss.
pub const FAST_OPEN_PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of doublings of [`FAST_OPEN_PAUSE`], four days; by then another attempt is
/// worthwhile.
pub const FAST_OPEN_DOUBLINGS_MAX: u8 = 12;

/// Time for which a reset Fast Open handshake counts towards TCP_FASTOPEN's limit. Linux keeps
/// these entries (`rskq_rst_head`) for 60 seconds, too.
pub const FAST_OPEN_RESET_TIME: Duration = Duration::from_secs(60);

/// Maximum number of connections in TIME-WAIT: Linux's `tcp_max_tw_buckets` on a small machine.
/// Each takes about 150 bytes; the oldest is evicted.
pub const TIME_WAIT_MAX: usize = 65_536;

/// Age after which a connect may reuse a port in TIME-WAIT: Linux's `tcp_tw_reuse`.
pub const TIME_WAIT_REUSE_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of ports probed by a bind or connect without a given port. Each takes up to two
/// lookups, so a connect that finds none takes about 100 µs.
///
/// - A free port without connections is always found.
/// - A shareable port is found if one in a hundred is free (one miss in 30,000). The last free one
///   is usually missed, whereas Linux tries all.
/// - With several shards a connect probes three times as many: ports of its own shard, of peer
///   shards, and shared ones.
///
/// Counters `ports_probed` and, at the limit, `ports_exhausted`.
pub const PORTS_PROBED_MAX: u32 = 1_024;

/// Maximum number of undecided SYNs on any-address interfaces; the one with the oldest last
/// retransmission is evicted.
pub const PENDING_MAX: usize = 4_096;

/// Time since the last retransmission after which an undecided SYN is dropped. Linux sends its last
/// SYN after 32 s and then waits 64 s.
pub const PENDING_TIMEOUT: Duration = Duration::from_secs(75);

/// Maximum number of connections whose socket was closed: Linux's `tcp_max_orphans` on a small
/// machine. Beyond it, closing a socket aborts its connection.
pub const ORPHANS_MAX: usize = 65_536;

/// Maximum number of packets that a connection sends before the next connection.
pub const TX_PACKETS_A_VISIT: usize = 4;

/// Device queue length in bytes at which connections have to wait. Half of the limit
/// ([`OUTPUT_BYTES_MAX`](crate::net::limits::OUTPUT_BYTES_MAX)), to reserve space for packets that
/// cannot wait. Counter `tcp_waits_for_output`.
pub const TX_OUTPUT_BYTES: usize = crate::net::limits::OUTPUT_BYTES_MAX / 2;

/// Device queue length in wire packets at which connections have to wait.
pub const TX_OUTPUT_PACKETS: usize = crate::net::limits::OUTPUT_PACKETS_MAX / 2;

/// Divisor of [`TX_OUTPUT_BYTES`] for the level at which waiting connections continue, in order. At
/// half, enough connections are visited in one batch, and the device still has packets meanwhile.
pub const TX_OUTPUT_LOW: usize = 2;

/// Minimum per-connection limit of bytes in a device's queue. Two maximum-size packets, so that the
/// device sends one while the connection produces the next (as in Linux's `tcp_small_queue_check`).
/// The connection continues at half of it. Counter `tcp_waits_for_share`.
pub const TX_SHARE_BYTES: u32 = 128 << 10;

/// Sending time that a fast connection may queue, at a rate of one congestion window per round
/// trip: Linux's `sk_pacing_shift`, a millisecond. A turn takes less, so the device does not become
/// idle.
pub const TX_SHARE_TIME: Duration = Duration::from_millis(1);

/// Maximum per-connection limit of bytes in a device's queue. Half of the total limit, so that a
/// bulk sender over a short path leaves space for other connections.
pub const TX_SHARE_BYTES_MAX: u32 = (TX_OUTPUT_BYTES / 2) as u32;

/// Maximum payload of a packet with several segments: the IPv4 limit of 16 bits minus headers and
/// options, with some margin.
pub const TX_BYTES_A_PACKET: u32 = 65_000;

/// Maximum payload that is copied after the headers instead of referenced. An additional iovec
/// costs the device about as much as this copy.
pub const TX_COPY_MAX: u32 = 256;

/// Maximum number of timers fired in a turn, and of timers moved in the wheel, before packets are
/// handled again.
pub const TIMERS_A_TURN: usize = 4_096;

/// Time window of late timers that fire together before packets are handled again. An eighth of the
/// lateness if that is longer, so that an owner that calls rarely catches up. Shorter than the
/// interval between a delayed ACK (40 ms) and the retransmission that it avoids (200 ms).
pub const TIMERS_AT_ONCE: Duration = Duration::from_millis(10);
/// Maximum of the time window that [`TIMERS_AT_ONCE`] describes.
pub const TIMERS_AT_ONCE_MAX: Duration = Duration::from_millis(100);

/// Maximum number of multicast groups per socket: Linux's `igmp_max_memberships`.
pub const MEMBERSHIPS_MAX: usize = 20;

/// Maximum number of sources per group and socket: Linux's `igmp_max_msf`.
pub const SOURCES_MAX: usize = 10;

/// Maximum number of segments of one datagram: Linux's `UDP_MAX_SEGMENTS`.
pub const DATAGRAM_SEGMENTS_MAX: usize = 128;

/// Maximum number of filter instructions per turn, about 50 µs. Further datagrams wait for the next
/// turn. Checked before each datagram, so one filter may exceed it by its length. Counter
/// `deliveries_put_off`.
pub const FILTER_STEPS_A_TURN: usize = 16_384;

/// Maximum number of instructions for one program's datagrams before those of another program: the
/// length of the longest filter.
pub const FILTER_STEPS_A_PORTION: usize = 4_096;

/// Cost per receiver of a multicast or broadcast datagram, in filter instructions: about 100 ns.
pub const GIVING_STEPS: usize = 32;

/// Cost of finding a receiver of a multicast or broadcast datagram, in filter instructions.
pub const LISTING_STEPS: usize = 4;

/// Maximum number of packets per program that wait for filters; drop reason `udp_filter_busy`. A
/// typical tcpdump filter of 20 instructions handles that many in two turns.
pub const WAITING_DELIVERIES_MAX: usize = 1_024;

/// Maximum total length in bytes of the packets per program that wait for filters: 64 of maximum
/// size.
pub const WAITING_DELIVERY_BYTES_MAX: usize = 4 << 20;

/// Maximum number of receiver lists cached for later packets.
pub const LISTS_KEPT: usize = 4;

/// Maximum number of entries of a cached receiver list.
pub const LISTED_KEPT: usize = 4_096;

/// Maximum number of rounds of loopback and transmission per turn, before ports are polled again.
pub const ROUNDS_A_TURN: usize = 16;
