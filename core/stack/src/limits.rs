//! Every limit of the socket layer, its origin, and the effect of changing it. Limits of the IP
//! layer are in [`crate::net`].

use std::time::Duration;

/// Most shards of a host, a power of two: more would each have less work than its wake-ups cost.
pub const SHARDS_MAX: usize = 16;

/// Packets and messages on their way from one shard to another; beyond, packets are lost (drop
/// reason `shard_full`). Two batches of a device, so that a shard can hand over a whole turn's
/// packets while the receiver is in its turn.
pub const MAIL_MAX: u32 = 512;

/// Packets and messages that a shard takes from each of the others before its own have their turn.
pub const MAIL_A_TURN: usize = 256;

/// How often a shard looks into the rings in one turn while they bring offers of connections:
/// twice, as a rule, for one offer. Beyond, as under a flood of connections, some may come into
/// their queue in another order.
pub const OFFER_LOOKS_MAX: usize = 4;

/// Neighbours whose last news a shard has not taken: twice as many as may be known. Beyond, all
/// news but failures are lost, and the shard asks for its neighbours again (counter
/// `shard_news_lost`).
pub const UPDATES_WAITING_MAX: usize = 2 * crate::net::limits::NEIGHBORS_MAX;

/// Path MTUs that a shard has not taken yet: as many as it keeps. Beyond, the oldest is lost, as it
/// would be there; the same counter.
pub const PATH_MTUS_WAITING_MAX: usize = crate::net::limits::PATH_MTUS_MAX;

/// Changes in the sockets that all shards know of, from which on a shard that sleeps is woken for
/// them. Each takes some 200 bytes.
pub const CHANGES_UNSEEN_MAX: u32 = 1_024;

/// Most sockets of a stack: events to programs have room for a socket index of 24 bits.
pub const SOCKETS_MAX: usize = 1 << 22;

/// Half-open connections of all listeners. Each costs some 200 bytes; floods of all listeners fill
/// 13 MB. A single flooded listener has half of them. By [`HALF_OPEN_PATIENCE`] a flood of 32 768
/// SYNs a second takes that half, and leaves every client a second to answer. Counters
/// `tcp_half_open_displaced` and, for SYNs that found no place, `syn_cache_full`.
pub const SYN_CACHE_MAX: usize = 65_536;

/// Age from which a half-open connection may be displaced: the initial retransmission timeout (RFC
/// 6298 §2). By then an existing client has answered, since a round trip is assumed to be shorter.
pub const HALF_OPEN_PATIENCE: Duration = Duration::from_secs(1);

/// Time for which the client of a displaced half-open connection may still answer. The first
/// SYN-ACK would have been repeated, and waited for, as long (1 + 2 + … + 32 s). Drop reason
/// `half_open_displaced`.
pub const DISPLACED_TIME: Duration = Duration::from_secs(63);

/// Servers that a client keeps a cookie of, or lost a SYN with the option to. The least recently
/// used makes room. Each costs some 100 bytes.
pub const FAST_OPEN_SERVERS_MAX: usize = 1_024;

/// Time without Fast Open to a server after the first SYN that was lost, which doubles with each.
pub const FAST_OPEN_PAUSE: Duration = Duration::from_secs(60);

/// Doublings of [`FAST_OPEN_PAUSE`]: beyond them, after four days, the next attempt is worth it.
pub const FAST_OPEN_DOUBLINGS_MAX: u8 = 12;

/// Time for which a handshake with Fast Open that was reset takes a place in TCP_FASTOPEN's limit.
/// Linux keeps such entries (`rskq_rst_head`) for 60 seconds.
pub const FAST_OPEN_RESET_TIME: Duration = Duration::from_secs(60);

/// Connections in TIME-WAIT: Linux's `tcp_max_tw_buckets` on a small machine. Each costs some 150
/// bytes; the oldest goes when there are more.
pub const TIME_WAIT_MAX: usize = 65_536;

/// A connect may take a port that has been in TIME-WAIT for this long: Linux's `tcp_tw_reuse`.
pub const TIME_WAIT_REUSE_AFTER: Duration = Duration::from_secs(1);

/// Ports tried for one bind or connect that names none. Each costs up to two lookups, so a connect
/// that finds all in use takes some 100 µs.
///
/// - A free port without connections is found whatever the limit is.
/// - A port to share, with other addresses or towards other peers, is found if one in a hundred is
///   free (one miss in 30 000). The last one is usually missed, where Linux tries all.
/// - With several shards a connect tries three times as many: its own shard's ports, others', and
///   shared ones.
///
/// Counter `ports_probed`; when the limit is reached, `ports_exhausted`.
pub const PORTS_PROBED_MAX: u32 = 1_024;

/// SYNs on any-address interfaces that wait for a decision; the one not repeated for longest makes
/// room.
pub const PENDING_MAX: usize = 4_096;

/// Time without a repeated SYN after which a decision about it is given up. Linux repeats its last
/// SYN after 32 s, and waits 64 s for the answer.
pub const PENDING_TIMEOUT: Duration = Duration::from_secs(75);

/// Connections whose program is gone: Linux's `tcp_max_orphans` on a small machine. Beyond, closing
/// a socket aborts its connection.
pub const ORPHANS_MAX: usize = 65_536;

/// Packets one connection sends before the next has its turn.
pub const TX_PACKETS_A_VISIT: usize = 4;

/// Bytes in a device's queue from which on connections wait for it. Half of its limit
/// ([`OUTPUT_BYTES_MAX`](crate::net::limits::OUTPUT_BYTES_MAX)) leaves room for packets that cannot
/// wait. Counter `tcp_waits_for_output`.
pub const TX_OUTPUT_BYTES: usize = crate::net::limits::OUTPUT_BYTES_MAX / 2;

/// The same in packets on the wire.
pub const TX_OUTPUT_PACKETS: usize = crate::net::limits::OUTPUT_PACKETS_MAX / 2;

/// Divisor of [`TX_OUTPUT_BYTES`] for the level at which waiting connections go on, in their order.
/// At half, enough of them are visited in a row to pay, and the device still has a queue meanwhile.
pub const TX_OUTPUT_LOW: usize = 2;

/// Bytes that one connection may have in a device's queue, however slow it is. Two of its largest
/// packets: the device has one while the connection makes the next (as Linux's
/// `tcp_small_queue_check`). The connection goes on at half of that. Counter `tcp_waits_for_share`.
pub const TX_SHARE_BYTES: u32 = 128 << 10;

/// Time whose bytes a faster connection may have in the queue, at its congestion window per round
/// trip: Linux's `sk_pacing_shift`, a millisecond. A turn takes less, so the device is never idle
/// for want of packets.
pub const TX_SHARE_TIME: Duration = Duration::from_millis(1);

/// Limit on a connection's bytes in the queue, whatever its rate. Half of the limit on all
/// together: a bulk sender over a short path leaves room for others.
pub const TX_SHARE_BYTES_MAX: u32 = (TX_OUTPUT_BYTES / 2) as u32;

/// Bytes of one packet with several segments: IPv4's total length is 16 bits, with headers and
/// options subtracted and some to spare.
pub const TX_BYTES_A_PACKET: u32 = 65_000;

/// Payload up to this is copied behind the headers; longer stays where it is. A further iovec costs
/// the device about as much as this copy.
pub const TX_COPY_MAX: u32 = 256;

/// Timers fired in one turn, and timers moved in the wheel, before packets have their turn again.
pub const TIMERS_A_TURN: usize = 4_096;

/// Window within which late timers fire together, before packets have their turn again. A longer
/// one, an eighth of the lateness, lets an owner who comes seldom catch up. Less than the distance
/// of a delayed acknowledgement (40 ms) to the retransmission that it saves (200 ms).
pub const TIMERS_AT_ONCE: Duration = Duration::from_millis(10);
/// The longest such time.
pub const TIMERS_AT_ONCE_MAX: Duration = Duration::from_millis(100);

/// Multicast groups one socket joins: Linux's `igmp_max_memberships`.
pub const MEMBERSHIPS_MAX: usize = 20;

/// Sources of one group that one socket wants: Linux's `igmp_max_msf`.
pub const SOURCES_MAX: usize = 10;

/// Datagrams cut from one: Linux's `UDP_MAX_SEGMENTS`.
pub const DATAGRAM_SEGMENTS_MAX: usize = 128;

/// Instructions of filters in one turn: some 50 µs. Datagrams beyond wait for the next turn. The
/// limit is looked at before each datagram, so the longest filter may exceed it by its length.
/// Counter `deliveries_put_off`.
pub const FILTER_STEPS_A_TURN: usize = 16_384;

/// Instructions for the datagrams of one program before another has its turn: those of the longest
/// filter.
pub const FILTER_STEPS_A_PORTION: usize = 4_096;

/// Cost of a multicast or broadcast datagram for each of several receivers, in instructions of
/// filters: some 100 ns.
pub const GIVING_STEPS: usize = 32;

/// Cost of finding such a receiver, likewise.
pub const LISTING_STEPS: usize = 4;

/// Packets of one program that wait for filters; more are dropped, drop reason `udp_filter_busy`. A
/// filter as tcpdump makes them, of some 20 instructions, is through with so many in two turns.
pub const WAITING_DELIVERIES_MAX: usize = 1_024;

/// Bytes of these packets, as much as 64 of the longest.
pub const WAITING_DELIVERY_BYTES_MAX: usize = 4 << 20;

/// Lists of receivers kept for later packets.
pub const LISTS_KEPT: usize = 4;

/// Entries that such a list has room for at most.
pub const LISTED_KEPT: usize = 4_096;

/// Rounds of loopback and transmission in one turn: a conversation over loopback goes that many
/// steps before ports are looked at again.
pub const ROUNDS_A_TURN: usize = 16;
