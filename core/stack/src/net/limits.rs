//! Limits and intervals of the IP layer, with the reasons for their values.

use core::time::Duration;

/// Maximum number of bytes in the output queue of an interface, without those of connections. Bytes
/// count as on the wire, with the headers of each segment. 4 MiB are 34 ms at 1 Gbit/s, longer than
/// a device is busy between two turns of the event loop. More bytes would only add delay, so
/// further packets are dropped (drop reason `output_full`, counter `output_bytes_full`).
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Maximum number of packets in the output queue of an interface, counted like [`OUTPUT_BYTES_MAX`]
/// (counter `output_packets_full`). For small packets, devices and routers are limited by the rate
/// of packets.
pub const OUTPUT_PACKETS_MAX: usize = 4096;
/// Number of bytes that all senders except connections may queue together while the device is slow
/// and connections wait. If connections have more bytes queued, their number is the limit. 512 KiB
/// delay a connection's first bytes by 34 ms at 128 Mbit/s.
pub const OUTPUT_BESIDE_BYTES: usize = 512 << 10;
/// Same limit as [`OUTPUT_BESIDE_BYTES`], in packets: half of Linux's queue length for Ethernet
/// devices (`txqueuelen`).
pub const OUTPUT_BESIDE_PACKETS: usize = 512;
/// Number of bytes beyond [`OUTPUT_BYTES_MAX`] that are reserved for control packets:
/// acknowledgments, resets, ICMP errors, ARP, neighbour discovery and group membership. Packets
/// that use the reserve are counted in `output_reserve_used`, those dropped because it is full in
/// `output_reserve_full`.
pub const OUTPUT_RESERVE_BYTES: usize = 256 << 10;
/// Number of packets beyond [`OUTPUT_PACKETS_MAX`] that are reserved for control packets. The
/// reserve is enough for an acknowledgment of each of 512 connections.
pub const OUTPUT_RESERVE_PACKETS: usize = 512;
/// Maximum number of packets in the loopback queue: packets of up to 64 KiB that this host sent to
/// itself and has not received. The packets are normally received in the turn of the event loop
/// that sends them. Further packets are dropped (drop reason `loopback_full`).
pub const LOOPBACK_LEN_MAX: usize = 4096;

/// MTU of the loopback interface in bytes: the maximum length of an IP packet.
pub const LOOPBACK_MTU: u32 = 65535;
/// MTU of the loopback interface in bytes that programs see. The MTU is Linux's value, which is
/// above the maximum length of an IP packet.
pub const LOOPBACK_MTU_TOLD: u32 = 65536;

/// Maximum number of neighbours to which this host sends packets, on all interfaces together;
/// Linux's `gc_thresh3`. Beyond the limit, the least recently used neighbour is evicted (counter
/// `neighbors_displaced`). The limit bounds the memory for a scan of a large prefix (RFC 6583).
pub const NEIGHBORS_MAX: usize = 1024;
/// Upper bound of the setting [`super::NetConfig::neighbors_max`], whose default is
/// [`NEIGHBORS_MAX`]. The bound must fit in the 14 bits in which a connection stores the index of
/// its next hop.
pub const NEIGHBORS_MOST: usize = 16_000;
/// Maximum number of neighbours that have not answered solicitations yet. Beyond the limit, the
/// oldest of these neighbours is evicted. Programs that send to absent hosts therefore cannot evict
/// neighbours that answer (RFC 6583 §7.1).
pub const NEIGHBORS_ASKED_MAX: usize = 512;
/// Maximum number of next hops whose link header is stored: one for each known neighbour. Beyond
/// the limit, a next hop that was not used recently is evicted (counter `next_hops_displaced`). The
/// next packet to it must look up the neighbour again.
pub const NEXT_HOPS_MAX: usize = NEIGHBORS_MAX;
/// Time between two reports to the control part that a neighbour is in use. With these reports, the
/// control part can evict the least recently used neighbour.
pub const NEIGHBOR_USE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of reports that a shard (stack) queues for the first shard: neighbours that are
/// used, confirmed or avoided, and path MTUs. A neighbour is reported again only after an answer,
/// or after one second.
///
/// Only a program that sends to many new addresses causes more than two reports for each of
/// [`NEXT_HOPS_MAX`] next hops. Its packets are then dropped (drop reason `neighbor_queue_full`,
/// counter `neighbor_notices_full`).
pub const NEIGHBOR_REPORTS_MAX: usize = 2 * NEXT_HOPS_MAX;
/// Maximum number of bytes of packets that wait for the MAC address of one neighbour; Linux's
/// `unres_qlen_bytes`. RFC 1122 §2.3.2.2 requires at least one packet. The limit is enough for all
/// packets of a program that opens many connections to one host. Beyond it, the oldest packets are
/// dropped (drop reason `neighbor_queue_full`).
pub const NEIGHBOR_QUEUE_BYTES_MAX: usize = 212_992;
/// Maximum number of bytes of packets that wait for the MAC addresses of all neighbours together.
/// Each shard has an equal part. The limit is the same as for fragments ([`REASSEMBLY_BYTES_MAX`]),
/// and enough for twenty neighbours with full queues.
///
/// Without this limit, a program that sends to all addresses of an empty subnet could fill
/// [`NEIGHBORS_MAX`] queues with 218 MB. Beyond the limit, the oldest packet of the longest queue
/// is dropped (drop reason `neighbor_queues_full`).
pub const NEIGHBOR_QUEUES_BYTES_MAX: usize = 4 << 20;
const _: () =
    assert!(NEIGHBOR_QUEUES_BYTES_MAX / crate::limits::SHARDS_MAX >= NEIGHBOR_QUEUE_BYTES_MAX);
/// Memory in bytes that a waiting packet needs in addition to its length. The value is the unused
/// space in its buffer, and its queue entry.
pub const NEIGHBOR_PACKET_COST: usize = 512;
/// Maximum number of neighbours that sent this host a request or an advertised route, and to which
/// this host has sent no packet since. Beyond the limit, the neighbour that has sent nothing for
/// the longest time is evicted (counter `neighbors_displaced`). A later packet to this neighbour
/// needs a solicitation.
pub const NEIGHBORS_HEARD_MAX: usize = 256;
/// Maximum number of interfaces of a host, including loopback. Removed interfaces count until their
/// index is reused. Each interface takes a few hundred bytes in every snapshot of the
/// configuration.
pub const INTERFACES_MAX: usize = 256;
/// Time after which the index of a removed interface is reused. By then, no state refers to the
/// interface: path MTUs expire after [`PATH_MTU_TIME`], and incomplete datagrams earlier.
pub const INTERFACE_REUSE_TIME: Duration = PATH_MTU_TIME;
/// Maximum weight of one next hop of a multipath route, as on Linux (`rtnh_hops` of rtnetlink(7) is
/// a byte).
pub const WEIGHT_MAX: u16 = 256;
/// Maximum number of permanent neighbours that the operator can set, on all interfaces together;
/// the same as [`NEIGHBORS_MAX`]. Permanent neighbours are not evicted, so beyond the limit the
/// operator gets an error.
pub const NEIGHBORS_PERMANENT_MAX: usize = 1024;

/// Number of multicast solicitations without an answer after which a neighbour counts as
/// unreachable (RFC 4861 §10).
pub const MULTICAST_SOLICITS_MAX: u8 = 3;
/// Number of unicast probes without an answer after which the MAC address of a neighbour is removed
/// (RFC 4861 §10).
pub const UNICAST_SOLICITS_MAX: u8 = 3;
/// Time between two solicitations of a neighbour. For IPv6, routers can change this time (RFC 4861
/// §10). The time also limits ARP requests to one per second and destination (RFC 1122 §2.3.2.1).
pub const RETRANS_TIME: Duration = Duration::from_secs(1);
/// Minimum time between solicitations that a router can set; 10 ms, as on Linux. RFC 4861 §6.3.4
/// has no minimum. Without a minimum, a router advertisement could make the host send all its
/// solicitations at once.
pub const RETRANS_TIME_MIN: Duration = Duration::from_millis(10);
/// Maximum time between solicitations that a router can set; ten times the default. RFC 4861 §6.3.4
/// has no maximum, and the field allows 2³² ms, which are 50 days. With such a time between
/// solicitations, the host would neither give up a neighbour nor use a new address for days.
pub const RETRANS_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time that a packet waits for the MAC address of its next hop, with the default time
/// between solicitations. The time is enough for all solicitations and the last answer.
pub const RESOLUTION_TIME: Duration =
    Duration::from_secs(RETRANS_TIME.as_secs() * MULTICAST_SOLICITS_MAX as u64);
/// Base of the time for which a neighbour counts as reachable after a confirmation (RFC 4861 §10).
/// The actual time is a random number between 0.5 and 1.5 times this.
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// Time for which the answer to an ARP request is kept, even if another answer with a different MAC
/// address arrives; Linux's `locktime`.
pub const ARP_LOCK_TIME: Duration = Duration::from_secs(1);
/// Maximum number of routers that routes use, on all interfaces together. The failure of a router
/// is remembered as long as a route uses it, so no router is evicted. Beyond the limit, a route
/// through another router is rejected ([`crate::net::Net::add_route`]), or counted in
/// `router_routes_refused`.
pub const GATEWAYS_MAX: usize = 65_536;
/// Time between two probes of a failed router, while packets use another router. RFC 4191 §3.5
/// permits one probe per minute.
pub const ROUTER_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Time from the first packet to a neighbour in state STALE to its first probe (RFC 4861 §10).
pub const DELAY_FIRST_PROBE_TIME: Duration = Duration::from_secs(5);

/// Maximum memory in bytes for incomplete datagrams; Linux's `ipfrag_high_thresh` (counter
/// `reassembly_full`). Beyond the limit, the oldest datagram of the source with the most incomplete
/// datagrams is dropped. Sources with few datagrams count as equal; among them, a datagram of the
/// source that has sent no fragment for the longest time is dropped.
pub const REASSEMBLY_BYTES_MAX: usize = 4 << 20;
/// Maximum memory in bytes for incomplete datagrams of one source (counter
/// `reassembly_source_full`). The limit is a quarter of the total, so that one address leaves space
/// for others. Beyond the limit, the oldest datagram of the source is dropped.
pub const REASSEMBLY_SOURCE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of incomplete datagrams. Beyond it, a datagram is dropped as for
/// [`REASSEMBLY_BYTES_MAX`]. With this number, each datagram can use 4 KiB of the total of 4 MiB,
/// enough for two fragments with their overhead.
pub const REASSEMBLY_DATAGRAMS_MAX: usize = 1024;
/// Maximum number of incomplete datagrams of one source; Linux's `ipfrag_max_dist`. Beyond it, a
/// datagram is dropped as for [`REASSEMBLY_SOURCE_BYTES_MAX`]. If 64 other datagrams of a source
/// have begun since a datagram's last fragment arrived, one of its fragments was lost.
pub const REASSEMBLY_SOURCE_DATAGRAMS_MAX: usize = 64;
/// Number of leading bits of an IPv6 address that identify a source of fragments. A host can use
/// any address in its link's prefix of 64 bits (RFC 4291 §2.5.1).
pub const REASSEMBLY_SOURCE_V6_BITS: u32 = 64;
/// Maximum number of fragments of one datagram (counter `fragments_too_many`). 64 KiB in fragments
/// of 1280 bytes need 53. Beyond the limit, the datagram is dropped.
pub const FRAGMENTS_MAX: usize = 64;
/// Time from the first fragment of an IPv6 datagram after which the datagram is dropped if
/// fragments are missing (RFC 8200 §4.5).
pub const REASSEMBLY_V6_TIME: Duration = Duration::from_secs(60);
/// Time from the first fragment of an IPv4 datagram after which the datagram is dropped if
/// fragments are missing. RFC 1122 §3.3.2 recommends 60 to 120 s, for slower links. With Linux's 30
/// s, the risk is half as large that fragments of two datagrams with the same identification are
/// mixed (RFC 4963).
pub const REASSEMBLY_V4_TIME: Duration = Duration::from_secs(30);

/// Maximum number of destinations of datagrams whose path MTU is below the MTU of the link. Beyond
/// it, the path MTU that was learned the longest time ago is evicted.
///
/// The same maximum applies to connections with such a path MTU. Beyond it, the connection that
/// learned its path MTU first uses the MTU of its link again (counter `path_mtus_full`).
pub const PATH_MTUS_MAX: usize = 1024;
/// Maximum number of path MTUs of datagrams that the shards (stacks of one host) together send to
/// each other per second. Each shard can send at least one. The number is enough for many paths
/// through one tunnel. Further path MTUs are sent when a router reports them again (counter
/// `path_mtus_untold`).
pub const PATH_MTUS_TOLD_PER_SECOND: u32 = 256;
/// Time for which a reported path MTU is valid. RFC 1191 §6.3 and RFC 8201 §4 recommend 10 minutes.
pub const PATH_MTU_TIME: Duration = Duration::from_secs(600);
/// Minimum path MTU in bytes that this host accepts for IPv4; Linux's `min_pmtu`. RFC 791 permits
/// links with 68 bytes. With reports of so small an MTU, an attacker could cause many tiny packets
/// (RFC 5927 §7). If the path MTU is smaller than this minimum, packets are sent without DF, so
/// that routers fragment them.
pub const PATH_MTU_MIN_V4: u32 = 552;
/// Minimum MTU in bytes of an IPv6 link (RFC 8200 §5).
pub const PATH_MTU_MIN_V6: u32 = 1280;

/// Maximum average number of ICMP errors that the host sends per second (RFC 4443 §2.4 f). Each
/// shard has an equal part of this limit and of the other limits of ICMP errors, but can always
/// send one error at once.
pub const ICMP_ERRORS_PER_SECOND: u64 = 1000;
/// Maximum number of ICMP errors sent at once. A random number of up to [`ICMP_BURST_JITTER`] is
/// subtracted from this limit. Otherwise a host could infer how many errors were sent to other
/// hosts (CVE-2020-25705).
pub const ICMP_BURST: u64 = 50;
/// Maximum random number that is subtracted from [`ICMP_BURST`].
pub const ICMP_BURST_JITTER: u64 = 25;

/// Maximum number of path MTU reports ("fragmentation needed", "packet too big") that the host
/// sends per second (counter `icmp_too_big_limited`).
///
/// The reports do not count toward [`ICMP_ERRORS_PER_SECOND`], because connections stall without
/// them. Linux does not limit them. A report is not longer than the packet that it quotes, so
/// attackers cannot use it for amplification. The limit only bounds the work.
pub const ICMP_TOO_BIG_PER_SECOND: u64 = 10_000;
/// Maximum number of path MTU reports sent at once.
pub const ICMP_TOO_BIG_BURST: u64 = 1000;

/// Maximum average number of ICMP errors per second to one IPv4 host or one IPv6 link (counter
/// `icmp_errors_limited_host`); a tenth of [`ICMP_ERRORS_PER_SECOND`]. Otherwise a host that causes
/// errors, or an attacker that forges its address, could use up the total limit.
pub const ICMP_HOST_ERRORS_PER_SECOND: u64 = 100;
/// Maximum number of ICMP errors sent at once to one IPv4 host or one IPv6 link. The maximum is
/// above Linux's 6, because programs try several addresses of a service at the same time.
pub const ICMP_HOST_BURST: u64 = 10;
/// Number of buckets for the limits per host; a secret hash assigns each host to a bucket. The
/// buckets take 8 KiB of memory.
pub const ICMP_HOSTS: usize = 1024;

/// Number of buckets in which redirects are counted; a secret hash assigns each host to a bucket.
/// On a router, the buckets take 8 KiB of memory.
pub const REDIRECT_HOSTS: usize = 256;
/// Number of redirects after which a host that ignores them gets no more (Linux's
/// `ip_rt_redirect_number`).
pub const REDIRECTS_IGNORED: u8 = 9;
/// Minimum time between the first two redirects to a host. The time doubles with each further
/// redirect (Linux's `ip_rt_redirect_load`).
pub const REDIRECT_LOAD: Duration = Duration::from_millis(20);
/// Time without a redirect to a host after which the count of its redirects begins again at 0. Like
/// Linux's `ip_rt_redirect_silence`, it is 1024 times [`REDIRECT_LOAD`].
pub const REDIRECT_SILENCE: Duration = Duration::from_millis(20 << 10);

/// Maximum number of copies of dropped packets that wait until the owner of the stack reads them
/// for tracing. Further dropped packets are counted, but not copied.
pub const DROPPED_MAX: usize = 256;
/// Maximum number of packets logged by filter rules that wait for the owner of the stack to read
/// them. Further packets are not logged (counter `rules_unlogged`).
pub const LOGGED_MAX: usize = 256;
/// Maximum number of ICMP errors that wait to be passed to sockets. The errors are about packets of
/// this host whose next hop did not answer. Further errors are discarded.
pub const ERRORS_MAX: usize = 256;

/// Maximum number of addresses of an interface up to which router advertisements can add addresses;
/// Linux's `max_addresses` (counter `addresses_refused`). Otherwise a hostile router could fill the
/// memory.
pub const ADDRESSES_MAX: usize = 16;
/// Number of addresses of one interface at which the operator can add no further address. A program
/// that adds addresses in a loop then gets an error. The initial configuration is not limited.
pub const ADDRESSES_OWN_MAX: usize = 1024;
/// Maximum number of routers that one interface learns from router advertisements (counter
/// `routers_displaced`). RFC 4861 §6.3.4 requires at least two, and more than eight on a link are
/// rare. Beyond the limit, a router is evicted.
pub const ROUTERS_MAX: usize = 8;
/// Maximum number of destinations that one router can advertise, including the default route (RFC
/// 4191). Further destinations are rejected (counter `router_routes_refused`).
pub const ROUTER_ROUTES_MAX: usize = 17;
/// Maximum number of on-link prefixes that one interface learns from router advertisements (counter
/// `prefixes_displaced`). The limit equals the maximum of addresses. Beyond the limit, a prefix is
/// evicted.
pub const ROUTER_PREFIXES_MAX: usize = 16;
/// Maximum number of multicast groups that programs can join on one interface; further joins fail.
/// Groups that the host's own addresses require are not counted.
pub const GROUPS_MAX: usize = 256;
/// Maximum number of sources that programs can request for one multicast group on one interface. A
/// group record with this number of sources fits in one report on an IPv6 link with the minimum
/// MTU.
pub const GROUP_SOURCES_MAX: usize = 64;
/// Number of times that a change of multicast membership is reported, because reports may be lost
/// (RFC 3376 §8.1, RFC 3810 §9.1).
pub const ROBUSTNESS: u8 = 2;
/// Maximum number of multicast group changes whose reports are scheduled, on all interfaces
/// together. The value is enough for four interfaces with [`GROUPS_MAX`] groups each. Beyond it,
/// one report of all groups replaces further reports of single groups (counter
/// `group_reports_full`).
pub const GROUP_REPORTS_MAX: usize = 4 * GROUPS_MAX;
/// Maximum number of scheduled tasks of interfaces that run before packets are received again. Each
/// task sends one or two frames.
pub const TASKS_A_TURN: usize = 256;
/// Maximum time between the repeated reports of a change of multicast membership (RFC 3376 §8.11,
/// RFC 3810 §9.11).
pub const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time after an IGMP or MLD query of an older version for which this older version is used (RFC
/// 3376 §8.12, RFC 3810 §9.12). The RFCs define it as the robustness variable times the query
/// interval, plus 10 s for answers. A query does not state the interval, so its default of 125 s is
/// used.
pub const OLDER_QUERIER_TIME: Duration = Duration::from_secs(ROBUSTNESS as u64 * 125 + 10);
/// Number of router solicitations that are sent after an interface is set up (RFC 4861 §10).
pub const ROUTER_SOLICITS_MAX: u8 = 3;
/// Time between two router solicitations (RFC 4861 §10).
pub const ROUTER_SOLICIT_INTERVAL: Duration = Duration::from_secs(4);
/// Maximum random delay before the first router solicitation (RFC 4861 §10).
pub const ROUTER_SOLICIT_DELAY: Duration = Duration::from_secs(1);
/// Number of neighbour solicitations that duplicate address detection sends (RFC 4862 §5.1).
pub const DAD_TRANSMITS: u8 = 1;
/// Maximum number of further interface identifiers that are tried if an address is a duplicate
/// (IDGEN_RETRIES of RFC 7217 §6).
pub const DAD_RETRIES_MAX: u8 = 3;
