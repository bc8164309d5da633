//! Limits of the socket layer, with their origin and the effect of a change. The limits of the IP
//! layer are in [`crate::net`].

use std::time::Duration;

/// Maximum number of shards (stacks, each on its own thread) of a host; a power of two. With more
/// shards, the cost of waking threads would exceed the gain.
pub const SHARDS_MAX: usize = 16;

/// Maximum number of packets and messages in the queue from one shard (stack) to another. Further
/// packets are dropped (drop reason `shard_full`). The limit is two batches of a device. A shard
/// can thus pass on all packets of one turn while the receiver is busy.
pub const MAIL_MAX: u32 = 512;

/// Maximum number of packets and messages that a shard (stack) takes from each other shard in one
/// turn of the event loop. The shard then handles its own packets.
pub const MAIL_A_TURN: usize = 256;

/// Maximum number of times per turn that a shard reads its queues from other shards while they
/// contain offers of connections. A shard reads again, because an older offer may have been added
/// to a queue that was already read. If the limit is reached, later offers may be queued out of
/// order.
pub const OFFER_LOOKS_MAX: usize = 4;

/// Maximum number of neighbours for which a shard (stack) has unread updates; twice the limit of
/// neighbours. Beyond it, all updates except failures are dropped, and the shard requests the
/// neighbours again (counter `shard_news_lost`).
pub const UPDATES_WAITING_MAX: usize = 2 * crate::net::limits::NEIGHBORS_MAX;

/// Maximum number of path MTUs that were sent to a shard (stack) and that it has not read. The
/// maximum equals the number that the shard can store. Beyond it, the oldest path MTU is dropped
/// (counter `shard_news_lost`).
pub const PATH_MTUS_WAITING_MAX: usize = crate::net::limits::PATH_MTUS_MAX;

/// Number of changes of the socket tables that shards (stacks) share after which a sleeping shard
/// is woken to read them. Each unread change takes about 200 bytes of memory.
pub const CHANGES_UNSEEN_MAX: u32 = 1_024;

/// Maximum number of sockets of a stack. The maximum must fit in the 24 bits that events to
/// programs have for a socket index.
pub const SOCKETS_MAX: usize = 1 << 22;

/// Maximum number of half-open connections of all listeners. Each takes about 200 bytes, 13 MB in
/// total. A single listener may have half of these connections; further SYNs are answered by a SYN
/// cookie (counter `tcp_syn_cookies_sent`).
///
/// Without cookies, entries older than [`HALF_OPEN_PATIENCE`] are evicted. In a flood of 32,768
/// SYNs per second, a client then has one second to answer. Evictions are counted in
/// `tcp_half_open_displaced`, and SYNs dropped because no entry was free in `syn_cache_full`.
pub const SYN_CACHE_MAX: usize = 65_536;

/// Minimum age at which a half-open connection may be evicted; the initial retransmission timeout
/// (RFC 6298 §2). Round-trip times are assumed to be shorter, so a real client has answered before
/// this age.
pub const HALF_OPEN_PATIENCE: Duration = Duration::from_secs(1);

/// Time for which a listener remembers that it evicted half-open connections, because their clients
/// may still answer. The value equals the time for which a SYN-ACK is retransmitted (1 + 2 + … + 32
/// s). Answers of these clients are dropped with drop reason `half_open_displaced`.
pub const DISPLACED_TIME: Duration = Duration::from_secs(63);

/// Maximum number of servers for which a client stores a TCP Fast Open cookie or a failed attempt.
/// Each takes about 100 bytes. The least recently used entry is evicted.
pub const FAST_OPEN_SERVERS_MAX: usize = 1_024;

/// Time for which a client does not use TCP Fast Open with a server, after its SYN to the server
/// was lost. The time doubles with each further loss.
pub const FAST_OPEN_PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of times that [`FAST_OPEN_PAUSE`] is doubled, which gives a pause of about three
/// days.
pub const FAST_OPEN_DOUBLINGS_MAX: u8 = 12;

/// Time for which a Fast Open handshake that the client reset counts toward the limit of
/// TCP_FASTOPEN. Linux keeps these entries (`rskq_rst_head`) for 60 seconds, too.
pub const FAST_OPEN_RESET_TIME: Duration = Duration::from_secs(60);

/// Maximum number of connections in TIME-WAIT; Linux's `tcp_max_tw_buckets` on a small machine.
/// Each takes about 150 bytes. Beyond the limit, the oldest one is evicted.
pub const TIME_WAIT_MAX: usize = 65_536;

/// Time in TIME-WAIT after which a connect may reuse the port; as with Linux's `tcp_tw_reuse`.
pub const TIME_WAIT_REUSE_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of ports that are checked by a bind or connect that chooses a port. Each takes up
/// to two lookups, so a connect that finds none takes about 100 µs.
///
/// - A free port without connections is always found.
/// - If one port in a hundred can be shared, a search fails only once in 30,000 calls. If a single
///   port can be shared, it is usually missed, whereas Linux checks all ports.
/// - With several shards a connect checks three times as many ports: those of its own shard, of
///   peer shards, and shared ones.
///
/// The checks are counted in `ports_probed`, and calls that reach the limit in `ports_exhausted`.
pub const PORTS_PROBED_MAX: u32 = 1_024;

/// Maximum number of SYNs that the owner has neither accepted nor refused yet. The SYNs arrive on
/// interfaces that accept packets to any address. Beyond the limit, the SYN that was not
/// retransmitted for the longest time is evicted.
pub const PENDING_MAX: usize = 4_096;

/// Time after the last retransmission of a SYN at which it is dropped if the owner has neither
/// accepted nor refused it. Linux sends its last SYN after 32 s and then waits 64 s.
pub const PENDING_TIMEOUT: Duration = Duration::from_secs(75);

/// Maximum number of connections whose socket the program has closed; Linux's `tcp_max_orphans` on
/// a small machine. Beyond the limit, closing a socket resets its connection.
pub const ORPHANS_MAX: usize = 65_536;

/// Maximum number of packets that a connection sends before the next connection may send.
pub const TX_PACKETS_A_VISIT: usize = 4;

/// Number of bytes in a device queue at which connections must wait (counter
/// `tcp_waits_for_output`). The number is half of the queue's limit
/// ([`OUTPUT_BYTES_MAX`](crate::net::limits::OUTPUT_BYTES_MAX)), because packets that cannot wait
/// need space, too.
pub const TX_OUTPUT_BYTES: usize = crate::net::limits::OUTPUT_BYTES_MAX / 2;

/// Number of packets on the wire in a device queue at which connections must wait.
pub const TX_OUTPUT_PACKETS: usize = crate::net::limits::OUTPUT_PACKETS_MAX / 2;

/// Connections that wait for space in a device queue continue once it has at most `TX_OUTPUT_BYTES
/// / TX_OUTPUT_LOW` bytes. At half, there is space for a batch of packets, and the device still has
/// packets to send.
pub const TX_OUTPUT_LOW: usize = 2;

/// Lower bound of the limit of bytes that one connection may have in a device queue (counter
/// `tcp_waits_for_share`). Two packets of maximum size let the device send one while the connection
/// creates the next, as in Linux's `tcp_small_queue_check`. A connection that reached the limit
/// continues when its queued bytes fall to half of it.
pub const TX_SHARE_BYTES: u32 = 128 << 10;

/// Maximum time that the bytes of one connection may wait in a device queue, at its rate of one
/// congestion window per round trip. The value is Linux's `sk_pacing_shift`, a millisecond. A turn
/// of the event loop takes less time, so the device does not become idle.
pub const TX_SHARE_TIME: Duration = Duration::from_millis(1);

/// Upper bound of the limit of bytes that one connection may have in a device queue. The bound is
/// half of the total limit, so that a connection with much data leaves space for other connections.
pub const TX_SHARE_BYTES_MAX: u32 = (TX_OUTPUT_BYTES / 2) as u32;

/// Maximum payload in bytes of a packet with several segments. The maximum is the 16-bit limit of
/// IPv4 minus headers and options, with some margin.
pub const TX_BYTES_A_PACKET: u32 = 65_000;

/// Maximum payload in bytes that is copied into the packet after its headers. Longer payload is
/// referenced. An additional iovec costs the device about as much as copying this number of bytes.
pub const TX_COPY_MAX: u32 = 256;

/// Maximum number of timers that expire or are moved in the timer wheel per turn of the event loop,
/// before packets are handled again.
pub const TIMERS_A_TURN: usize = 4_096;

/// Overdue timers expire in groups, and packets are handled between two groups. A group contains
/// timers whose deadlines lie within this time span. If the stack is more than eight times this
/// span late, a group spans an eighth of the lateness, so that the stack catches up. The span must
/// be shorter than the interval from a delayed ACK (40 ms) to the retransmission that it avoids
/// (200 ms).
pub const TIMERS_AT_ONCE: Duration = Duration::from_millis(10);
/// Upper bound of the time span of one group of overdue timers, see [`TIMERS_AT_ONCE`].
pub const TIMERS_AT_ONCE_MAX: Duration = Duration::from_millis(100);

/// Maximum number of multicast groups that a socket may join; Linux's `igmp_max_memberships`.
pub const MEMBERSHIPS_MAX: usize = 20;

/// Maximum number of sources that a socket may join or block for one multicast group; Linux's
/// `igmp_max_msf`.
pub const SOURCES_MAX: usize = 10;

/// Maximum number of segments into which one datagram is divided (UDP_SEGMENT); Linux's
/// `UDP_MAX_SEGMENTS`.
pub const DATAGRAM_SEGMENTS_MAX: usize = 128;

/// Maximum number of socket filter instructions per turn of the event loop, about 50 µs. Further
/// datagrams wait for the next turn (counter `deliveries_put_off`). The limit is checked before
/// each datagram, so the filter of the last datagram may exceed the limit by its length.
pub const FILTER_STEPS_A_TURN: usize = 16_384;

/// Maximum number of filter instructions for datagrams of one program before datagrams of another
/// program are handled. The number is the length of the longest filter.
pub const FILTER_STEPS_A_PORTION: usize = 4_096;

/// Cost of delivering a multicast or broadcast datagram to one receiver, about 100 ns, counted in
/// socket filter instructions.
pub const GIVING_STEPS: usize = 32;

/// Cost of finding one receiver of a multicast or broadcast datagram. The unit is one instruction
/// of a socket filter, as in [`FILTER_STEPS_A_TURN`].
pub const LISTING_STEPS: usize = 4;

/// Maximum number of packets of one program that wait for its socket filters; further ones are
/// dropped (drop reason `udp_filter_busy`). A typical tcpdump filter of 20 instructions handles
/// that many packets in two turns of the event loop.
pub const WAITING_DELIVERIES_MAX: usize = 1_024;

/// Maximum total length in bytes of the packets of one program that wait for its socket filters: 64
/// packets of maximum size.
pub const WAITING_DELIVERY_BYTES_MAX: usize = 4 << 20;

/// Maximum number of receiver lists of multicast or broadcast datagrams that are cached for later
/// packets.
pub const LISTS_KEPT: usize = 4;

/// Maximum number of sockets in a list of multicast or broadcast receivers that is cached.
pub const LISTED_KEPT: usize = 4_096;

/// Maximum number of times per turn of the event loop that connections send and loopback packets
/// are received, before the devices are polled again.
pub const ROUNDS_A_TURN: usize = 16;
