//! Limits and intervals of the IP layer, with the reasons for their values.

use core::time::Duration;

/// Maximum bytes that an interface queues for its device, except those of connections. Bytes count
/// as on the wire, with the headers of each segment. 4 MiB are 34 ms at 1 Gbit/s, longer than a
/// device is busy between two turns. More would only add delay, so further packets are dropped
/// (drop reason `output_full`, counter `output_bytes_full`).
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Like [`OUTPUT_BYTES_MAX`], but in packets on the wire: for small packets, device and routers are
/// limited by the packet rate. Counter `output_packets_full`.
pub const OUTPUT_PACKETS_MAX: usize = 4096;
/// Maximum queued bytes of all senders except connections, while the device is slow and connections
/// have no more queued. 512 KiB delay a connection's first bytes by 34 ms at 128 Mbit/s.
pub const OUTPUT_BESIDE_BYTES: usize = 512 << 10;
/// Like [`OUTPUT_BESIDE_BYTES`], but in packets: half of Linux's queue length for Ethernet devices
/// (`txqueuelen`).
pub const OUTPUT_BESIDE_PACKETS: usize = 512;
/// Bytes beyond [`OUTPUT_BYTES_MAX`] that are reserved for control packets: acknowledgements,
/// resets, ICMP errors, ARP, neighbour discovery and group membership. Counters
/// `output_reserve_used`, and `output_reserve_full` for packets dropped although they may use the
/// reserve.
pub const OUTPUT_RESERVE_BYTES: usize = 256 << 10;
/// Packets beyond [`OUTPUT_PACKETS_MAX`] that are reserved for control packets: an acknowledgement
/// for each of 512 connections.
pub const OUTPUT_RESERVE_PACKETS: usize = 512;
/// Maximum number of packets, up to 64 KiB each, that this host sent to itself and has not
/// received. Loopback packets are received in the turn that sends them. Further packets are dropped
/// (drop reason `loopback_full`).
pub const LOOPBACK_LEN_MAX: usize = 4096;

/// MTU of the loopback interface in bytes: the maximum length of an IP packet.
pub const LOOPBACK_MTU: u32 = 65535;
/// MTU of the loopback interface that programs see: Linux's value, which is above the maximum
/// length of an IP packet.
pub const LOOPBACK_MTU_TOLD: u32 = 65536;

/// Maximum number of neighbours to which this host sends, on all interfaces together: Linux's
/// `gc_thresh3`. Beyond it, the least recently used one is evicted (counter `neighbors_displaced`).
/// A scan of a large prefix therefore takes a bounded amount of memory (RFC 6583).
pub const NEIGHBORS_MAX: usize = 1024;
/// Maximum value of [`super::NetConfig::neighbors_max`], which replaces [`NEIGHBORS_MAX`]: a
/// connection stores the index of its next hop in 14 bits.
pub const NEIGHBORS_MOST: usize = 16_000;
/// Maximum number of neighbours that have not answered solicitations yet. Beyond it, the oldest of
/// these is evicted. A sender to absent hosts, or a flood of requests, therefore evicts no
/// neighbour that answers (RFC 6583 §7.1).
pub const NEIGHBORS_ASKED_MAX: usize = 512;
/// Maximum number of next hops with a link header ready for sending: one for each known neighbour.
/// Beyond it, one that was not used lately is evicted, and needs a lookup when used again; counter
/// `next_hops_displaced`.
pub const NEXT_HOPS_MAX: usize = NEIGHBORS_MAX;
/// Interval at which the use of a neighbour is reported to control, which evicts the least recently
/// used one.
pub const NEIGHBOR_USE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of reports that a shard queues for the first shard: neighbours used, confirmed or
/// avoided, and path MTUs. A neighbour is reported again only after an answer or after one second.
/// More than two reports for each of [`NEXT_HOPS_MAX`] therefore come from a sender to ever new
/// addresses, whose packets are dropped. Drop reason `neighbor_queue_full`, counter
/// `neighbor_notices_full`.
pub const NEIGHBOR_REPORTS_MAX: usize = 2 * NEXT_HOPS_MAX;
/// Maximum bytes of packets that wait for one neighbour's MAC address: Linux's `unres_qlen_bytes`.
/// RFC 1122 §2.3.2.2 requires at least one packet. The limit keeps all packets of a program that
/// starts many connections to one host. Beyond it, the oldest packets are dropped (drop reason
/// `neighbor_queue_full`).
pub const NEIGHBOR_QUEUE_BYTES_MAX: usize = 212_992;
/// Maximum bytes of packets that wait for the MAC addresses of all neighbours together; the shards
/// share it equally. The same as for fragments ([`REASSEMBLY_BYTES_MAX`]), and enough for twenty
/// neighbours with full queues. Without this limit, a program that sends to all addresses of an
/// empty subnet could fill [`NEIGHBORS_MAX`] queues, 218 MB. Beyond it, the neighbour with the
/// longest queue loses its oldest packet (drop reason `neighbor_queues_full`).
pub const NEIGHBOR_QUEUES_BYTES_MAX: usize = 4 << 20;
const _: () =
    assert!(NEIGHBOR_QUEUES_BYTES_MAX / crate::limits::SHARDS_MAX >= NEIGHBOR_QUEUE_BYTES_MAX);
/// Memory in bytes that a waiting packet takes besides its bytes: unused space in its buffer, and
/// its queue entry.
pub const NEIGHBOR_PACKET_COST: usize = 512;
/// Maximum number of neighbours that sent this host a request or advertised a route, and to which
/// this host sent no packet since. Beyond it, the one heard from longest ago is evicted (counter
/// `neighbors_displaced`); a later packet to it needs a solicitation.
pub const NEIGHBORS_HEARD_MAX: usize = 256;
/// Maximum number of interfaces of a host, including loopback and removed interfaces whose index is
/// not reused yet. Each costs a few hundred bytes in every snapshot.
pub const INTERFACES_MAX: usize = 256;
/// Time after which the index of a removed interface is reused. Covers the states that name an
/// interface: path MTUs expire after [`PATH_MTU_TIME`], incomplete datagrams earlier.
pub const INTERFACE_REUSE_TIME: Duration = PATH_MTU_TIME;
/// Maximum weight of a route, as on Linux (`rtnh_hops` of rtnetlink(7) is a byte).
pub const WEIGHT_MAX: u16 = 256;
/// Maximum number of permanent neighbours set by the operator, on all interfaces together: as many
/// as [`NEIGHBORS_MAX`]. Permanent entries are not evicted, so further ones are refused.
pub const NEIGHBORS_PERMANENT_MAX: usize = 1024;

/// Number of multicast solicitations without an answer after which a neighbour is unreachable (RFC
/// 4861 §10).
pub const MULTICAST_SOLICITS_MAX: u8 = 3;
/// Number of unicast probes without an answer after which a neighbour's MAC address is removed (RFC
/// 4861 §10).
pub const UNICAST_SOLICITS_MAX: u8 = 3;
/// Interval between solicitations; routers can set another one for IPv6 (RFC 4861 §10). Also limits
/// ARP requests to one per second per destination (RFC 1122 §2.3.2.1).
pub const RETRANS_TIME: Duration = Duration::from_secs(1);
/// Minimum solicitation interval that a router can set: 10 ms, as on Linux; RFC 4861 §6.3.4 has no
/// bound. Otherwise one advertisement could make the host send all its solicitations at once.
pub const RETRANS_TIME_MIN: Duration = Duration::from_millis(10);
/// Maximum solicitation interval that a router can set: ten times the default. RFC 4861 §6.3.4 has
/// no bound, and 2³² ms are 50 days. During that time the host would neither give up a neighbour
/// nor use a new address.
pub const RETRANS_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time that a packet waits for its neighbour's MAC address, unless a router sets the
/// solicitation interval. The time is enough for all solicitations and the last answer.
pub const RESOLUTION_TIME: Duration =
    Duration::from_secs(RETRANS_TIME.as_secs() * MULTICAST_SOLICITS_MAX as u64);
/// Base of the time for which a neighbour is reachable after a confirmation (RFC 4861 §10). The
/// actual time is random, from 0.5 to 1.5 times this.
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// Time for which the answer to an ARP request is kept although another host sends a different one:
/// Linux's `locktime`.
pub const ARP_LOCK_TIME: Duration = Duration::from_secs(1);
/// Maximum number of routers that routes use, on all interfaces together. A router's failure is
/// remembered as long as a route uses the router, so no router is evicted. A route through another
/// router is refused ([`crate::net::Net::add_route`]), or counted in `router_routes_refused`.
pub const GATEWAYS_MAX: usize = 65_536;
/// Interval between probes of a failed router, while packets use another router (RFC 4191 §3.5: at
/// most one per minute).
pub const ROUTER_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Time from the first use of a stale neighbour to its first probe (RFC 4861 §10).
pub const DELAY_FIRST_PROBE_TIME: Duration = Duration::from_secs(5);

/// Maximum memory in bytes for incomplete datagrams: Linux's `ipfrag_high_thresh`. Beyond it, the
/// source with the most incomplete datagrams loses its oldest one. Sources with few datagrams count
/// as equal; among them, the one that sent no fragment for longest loses. Counter
/// `reassembly_full`.
pub const REASSEMBLY_BYTES_MAX: usize = 4 << 20;
/// Maximum memory in bytes for incomplete datagrams of one source. A quarter of the total, so that
/// a sender with one address leaves room for others. Beyond it, the source loses its oldest
/// datagram; counter `reassembly_source_full`.
pub const REASSEMBLY_SOURCE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of incomplete datagrams; beyond it, as for [`REASSEMBLY_BYTES_MAX`]. Each then
/// has 4 KiB of the 4 MiB: two fragments with their overhead.
pub const REASSEMBLY_DATAGRAMS_MAX: usize = 1024;
/// Maximum number of incomplete datagrams of one source; beyond it, as for
/// [`REASSEMBLY_SOURCE_BYTES_MAX`]. Linux's `ipfrag_max_dist`: a datagram that received no fragment
/// while 64 other datagrams of its source started has lost a fragment.
pub const REASSEMBLY_SOURCE_DATAGRAMS_MAX: usize = 64;
/// Number of leading bits of an IPv6 address that identify a source. A host can use any address in
/// its link's prefix of 64 bits (RFC 4291 §2.5.1).
pub const REASSEMBLY_SOURCE_V6_BITS: u32 = 64;
/// Maximum number of fragments of one datagram. 64 KiB in fragments of 1280 bytes are 53. Beyond
/// it, the datagram is dropped; counter `fragments_too_many`.
pub const FRAGMENTS_MAX: usize = 64;
/// Time after the first fragment for which an IPv6 datagram waits for the missing fragments (RFC
/// 8200 §4.5).
pub const REASSEMBLY_V6_TIME: Duration = Duration::from_secs(60);
/// Time after the first fragment for which an IPv4 datagram waits for the missing fragments. RFC
/// 1122 §3.3.2 recommends 60 to 120 s, for slower links. Linux's 30 s halve the risk that repeated
/// identifications mix up datagrams (RFC 4963).
pub const REASSEMBLY_V4_TIME: Duration = Duration::from_secs(30);

/// Maximum number of destinations of datagrams with a path MTU below the link's; the least recently
/// learnt one is evicted. Also the maximum number of such connections. Beyond it, the first
/// connection that learnt one tries its link's MTU again (counter `path_mtus_full`).
pub const PATH_MTUS_MAX: usize = 1024;
/// Maximum number of path MTUs of datagrams that all shards together pass on per second; at least
/// one per shard. Enough for many paths through one tunnel. Further ones are passed on when a
/// router reports them again; counter `path_mtus_untold`.
pub const PATH_MTUS_TOLD_PER_SECOND: u32 = 256;
/// Time for which a path MTU is valid (RFC 1191 §6.3 and RFC 8201 §4 recommend 10 minutes).
pub const PATH_MTU_TIME: Duration = Duration::from_secs(600);
/// Minimum path MTU in bytes that this host accepts for IPv4 (Linux's `min_pmtu`). RFC 791 allows
/// links of 68 bytes, but tiny packets amplify an attack (RFC 5927 §7). For a smaller path MTU,
/// packets are sent without DF, and routers fragment them.
pub const PATH_MTU_MIN_V4: u32 = 552;
/// Minimum MTU in bytes of an IPv6 link (RFC 8200 §5).
pub const PATH_MTU_MIN_V6: u32 = 1280;

/// Maximum average rate of sent ICMP errors, per second (RFC 4443 §2.4 f). Each shard has an equal
/// part of this limit and the following ones, but can always send one error at once.
pub const ICMP_ERRORS_PER_SECOND: u64 = 1000;
/// Maximum number of ICMP errors sent at once. A random number up to [`ICMP_BURST_JITTER`] is
/// subtracted, so that the limit does not reveal how many errors other hosts caused
/// (CVE-2020-25705).
pub const ICMP_BURST: u64 = 50;
/// Maximum random number that is subtracted from [`ICMP_BURST`].
pub const ICMP_BURST_JITTER: u64 = 25;

/// Maximum rate of sent path MTU reports ("fragmentation needed", "packet too big"), per second.
/// Path MTU reports do not count for [`ICMP_ERRORS_PER_SECOND`], because connections stall without
/// them. Linux does not limit them. A report is not longer than the packet that it quotes, so it
/// amplifies no attack; the limit bounds the work. Counter `icmp_too_big_limited`.
pub const ICMP_TOO_BIG_PER_SECOND: u64 = 10_000;
/// Maximum number of path MTU reports sent at once.
pub const ICMP_TOO_BIG_BURST: u64 = 1000;

/// Maximum average rate of ICMP errors to one IPv4 host or one IPv6 link, per second: a tenth of
/// [`ICMP_ERRORS_PER_SECOND`]. Otherwise a host that provokes errors, or an attacker that forges
/// its address, could use up the limit. Counter `icmp_errors_limited_host`.
pub const ICMP_HOST_ERRORS_PER_SECOND: u64 = 100;
/// Maximum number of ICMP errors sent to one host or link at once. Above Linux's 6, because
/// programs try several addresses of a service at a time.
pub const ICMP_HOST_BURST: u64 = 10;
/// Number of buckets of the per-host limits; a secret hash chooses a host's bucket. The buckets
/// take 8 KiB.
pub const ICMP_HOSTS: usize = 1024;

/// Number of buckets that count redirects; a secret hash chooses a host's bucket. The buckets take
/// 8 KiB of a router's memory.
pub const REDIRECT_HOSTS: usize = 256;
/// Number of redirects that a host may ignore before it gets no more (Linux's
/// `ip_rt_redirect_number`).
pub const REDIRECTS_IGNORED: u8 = 9;
/// Minimum interval between the first two redirects to a host; doubled with each (Linux's
/// `ip_rt_redirect_load`).
pub const REDIRECT_LOAD: Duration = Duration::from_millis(20);
/// Time without redirects after which the count for a host restarts (Linux's
/// `ip_rt_redirect_silence`, 1024 times the load).
pub const REDIRECT_SILENCE: Duration = Duration::from_millis(20 << 10);

/// Maximum number of copies of dropped packets that wait for the trace. Further dropped packets are
/// counted, but not copied.
pub const DROPPED_MAX: usize = 256;
/// Maximum number of packets kept for rules that log, until the owner takes them; further ones are
/// not logged (counter `rules_unlogged`).
pub const LOGGED_MAX: usize = 256;
/// Maximum number of queued errors about this host's own packets whose next hop could not be
/// resolved, until the sockets take them. Further errors are discarded.
pub const ERRORS_MAX: usize = 256;

/// Number of addresses of an interface from which on router advertisements add no more (Linux's
/// `max_addresses`). Otherwise a hostile router could fill memory; counter `addresses_refused`.
pub const ADDRESSES_MAX: usize = 16;
/// Maximum number of addresses of an interface that the operator can add, so that a program that
/// adds addresses in a loop gets an error. Does not limit the initial configuration.
pub const ADDRESSES_OWN_MAX: usize = 1024;
/// Maximum number of routers learnt on one interface. RFC 4861 §6.3.4 requires at least two; more
/// than eight on a link are rare. Beyond it, a router is evicted; counter `routers_displaced`.
pub const ROUTERS_MAX: usize = 8;
/// Maximum number of destinations that one router can advertise, including the default route (RFC
/// 4191). More are refused; counter `router_routes_refused`.
pub const ROUTER_ROUTES_MAX: usize = 17;
/// Maximum number of on-link prefixes learnt on one interface: as many as addresses. Beyond it, a
/// prefix is evicted; counter `prefixes_displaced`.
pub const ROUTER_PREFIXES_MAX: usize = 16;
/// Maximum number of groups that programs join on one interface; further joins are refused. The
/// groups of the host's own addresses do not count.
pub const GROUPS_MAX: usize = 256;
/// Maximum number of sources that programs request of one group on one interface. A record with all
/// of them fits a report on an IPv6 link with the minimum MTU.
pub const GROUP_SOURCES_MAX: usize = 64;
/// Number of times that a change of membership is reported, because reports may be lost (RFC 3376
/// §8.1, RFC 3810 §9.1).
pub const ROBUSTNESS: u8 = 2;
/// Maximum number of group changes whose reports are pending, on all interfaces together: four
/// interfaces with [`GROUPS_MAX`] each. Beyond it, one report of all groups replaces further single
/// reports; counter `group_reports_full`.
pub const GROUP_REPORTS_MAX: usize = 4 * GROUPS_MAX;
/// Maximum number of interface tasks that are run before packets are received again; a task sends
/// one or two frames.
pub const TASKS_A_TURN: usize = 256;
/// Maximum interval between the repeated reports of a change (RFC 3376 §8.11, RFC 3810 §9.11).
pub const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time after a query of an older version for which this version is used (RFC 3376 §8.12, RFC 3810
/// §9.12). The RFCs define the robustness variable times the query interval, plus 10 s for answers.
/// A query does not state the interval, so the default of 125 s is used.
pub const OLDER_QUERIER_TIME: Duration = Duration::from_secs(ROBUSTNESS as u64 * 125 + 10);
/// Number of router solicitations sent after an interface comes up (RFC 4861 §10).
pub const ROUTER_SOLICITS_MAX: u8 = 3;
/// Interval between router solicitations (RFC 4861 §10).
pub const ROUTER_SOLICIT_INTERVAL: Duration = Duration::from_secs(4);
/// Maximum random delay before the first solicitation (RFC 4861 §10).
pub const ROUTER_SOLICIT_DELAY: Duration = Duration::from_secs(1);
/// Number of neighbour solicitations of duplicate address detection (RFC 4862 §5.1).
pub const DAD_TRANSMITS: u8 = 1;
/// Maximum number of new interface identifiers tried after a duplicate (RFC 7217 §6,
/// IDGEN_RETRIES).
pub const DAD_RETRIES_MAX: u8 = 3;
