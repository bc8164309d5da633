//! Every limit and interval of the IP layer, with its origin, and the effect of changing it.

use core::time::Duration;

/// Bytes that wait on one interface for its device, connections apart. The size is that on the
/// wire: with the headers of every packet that a larger one is cut into. 4 MiB are 34 ms at 1
/// Gbit/s, more than a device needs to be busy until the next turn. Bytes beyond would only add
/// delay, and are dropped. Drop reason `output_full`, counter `output_bytes_full`.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// The same in packets on the wire: small packets cost the device and the next router by their
/// number. Counter `output_packets_full`.
pub const OUTPUT_PACKETS_MAX: usize = 4096;
/// Bytes that all but connections may have on one interface whose device is behind, while
/// connections have as little. 512 KiB delay a connection's first bytes by 34 ms at 128 Mbit/s.
pub const OUTPUT_BESIDE_BYTES: usize = 512 << 10;
/// The same in packets: half of the queue that Linux gives an Ethernet device (`txqueuelen`).
pub const OUTPUT_BESIDE_PACKETS: usize = 512;
/// Bytes beyond [`OUTPUT_BYTES_MAX`] for packets that serve a protocol: acknowledgements, resets,
/// ICMP errors, ARP, neighbour discovery and group membership. Counters `output_reserve_used`, and
/// `output_reserve_full` for packets dropped all the same.
pub const OUTPUT_RESERVE_BYTES: usize = 256 << 10;
/// The same beyond [`OUTPUT_PACKETS_MAX`]: an acknowledgement for each of 512 connections.
pub const OUTPUT_RESERVE_PACKETS: usize = 512;
/// Packets, up to 64 KiB each, that this host sends to itself and has not received; they are
/// received in the turn that sends them. More are dropped; drop reason `loopback_full`.
pub const LOOPBACK_LEN_MAX: usize = 4096;

/// The loopback interface takes packets of any length that IP can state, in bytes.
pub const LOOPBACK_MTU: u32 = 65535;
/// The same as programs see it: Linux's value, which is more than IP can state.
pub const LOOPBACK_MTU_TOLD: u32 = 65536;

/// Neighbours that packets of ours go to, all interfaces together: Linux's `gc_thresh3`. Beyond it
/// the least recently used goes, so that a scan of a large prefix costs a bounded amount of memory
/// (RFC 6583); counter `neighbors_displaced`.
pub const NEIGHBORS_MAX: usize = 1024;
/// Most that [`NEIGHBORS_MAX`] may be replaced by ([`super::NetConfig::neighbors_max`]): a
/// connection names the place of its next hop by 14 bits.
pub const NEIGHBORS_MOST: usize = 16_000;
/// Neighbours among [`NEIGHBORS_MAX`] that were asked for and have not answered. Beyond, the oldest
/// of these goes: a sender to absent hosts, or a flood of requests, displaces no neighbour that
/// answers (RFC 6583 §7.1).
pub const NEIGHBORS_ASKED_MAX: usize = 512;
/// Neighbours with a link header ready, for all that is sent: as many as are known. Beyond it one
/// that was not used lately goes, and costs a look-up when it is used again; counter
/// `next_hops_displaced`.
pub const NEXT_HOPS_MAX: usize = NEIGHBORS_MAX;
/// Interval of reports of a neighbour's use to its state machine, which needs them to find the
/// least recently used ones.
pub const NEIGHBOR_USE_INTERVAL: Duration = Duration::from_secs(1);
/// Notices that a shard has for the first one: neighbours in use, confirmed or avoided, and path
/// MTUs. A neighbour is reported once until there is an answer, or a second is over. More than two
/// for each of [`NEXT_HOPS_MAX`] therefore come from a sender to ever new addresses, whose packets
/// are dropped. Drop reason `neighbor_queue_full`, counter `neighbor_notices_full`.
pub const NEIGHBOR_REPORTS_MAX: usize = 2 * NEXT_HOPS_MAX;
/// Bytes of packets that wait for one neighbour's MAC address: Linux's `unres_qlen_bytes`. RFC 1122
/// §2.3.2.2 wants at least one packet; a program that begins with many connections or datagrams to
/// one host loses none. Beyond, the oldest go; drop reason `neighbor_queue_full`.
pub const NEIGHBOR_QUEUE_BYTES_MAX: usize = 212_992;
/// The same of all neighbours together: as much as fragments may have ([`REASSEMBLY_BYTES_MAX`]),
/// and room for twenty neighbours with all that one may have. [`NEIGHBORS_MAX`] of these would be
/// 218 MB, which a program that sends to every address of an empty subnet could fill. Beyond, the
/// neighbour with the longest queue loses its oldest packet; drop reason `neighbor_queues_full`.
/// Each shard has its part.
pub const NEIGHBOR_QUEUES_BYTES_MAX: usize = 4 << 20;
const _: () =
    assert!(NEIGHBOR_QUEUES_BYTES_MAX / crate::limits::SHARDS_MAX >= NEIGHBOR_QUEUE_BYTES_MAX);
/// Memory that a waiting packet costs beside its bytes: its buffer is longer, and has a place in
/// the queue.
pub const NEIGHBOR_PACKET_COST: usize = 512;
/// Neighbours that asked for us, or advertised a route, without traffic from us since. Beyond, the
/// one heard of longest ago goes; a later packet to it costs a request. The same counter.
pub const NEIGHBORS_HEARD_MAX: usize = 256;
/// Greatest weight of a route, as in Linux (`rtnh_hops` of rtnetlink(7) is a byte).
pub const WEIGHT_MAX: u16 = 256;
/// Neighbours that the operator gives, of all interfaces: as many as [`NEIGHBORS_MAX`].
/// Permanent entries make no room, so that the operator is refused further ones.
pub const NEIGHBORS_PERMANENT_MAX: usize = 1024;

/// Multicast solicitations before a neighbour counts as unreachable (RFC 4861 §10).
pub const MULTICAST_SOLICITS_MAX: u8 = 3;
/// Unicast probes before a neighbour's MAC address is forgotten (RFC 4861 §10).
pub const UNICAST_SOLICITS_MAX: u8 = 3;
/// Between solicitations, unless routers say otherwise for IPv6 (RFC 4861 §10); also keeps ARP
/// requests at one per second per destination (RFC 1122 §2.3.2.1).
pub const RETRANS_TIME: Duration = Duration::from_secs(1);
/// Least time between solicitations that a router may set. RFC 4861 §6.3.4 has no bound. 10 ms as
/// on Linux: otherwise one advertisement could make the host send all its solicitations at once.
pub const RETRANS_TIME_MIN: Duration = Duration::from_millis(10);
/// Most time between solicitations that a router may set: ten times the default. RFC 4861 §6.3.4
/// has no bound, and 2³² ms are 50 days. For so long the host would neither give up a neighbour nor
/// use a new address.
pub const RETRANS_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a packet waits for its neighbour's MAC address, at most, where routers set no other
/// time: for an answer to each solicitation.
pub const RESOLUTION_TIME: Duration =
    Duration::from_secs(RETRANS_TIME.as_secs() * MULTICAST_SOLICITS_MAX as u64);
/// Base of the time a confirmation lasts (RFC 4861 §10); each use is drawn from 0.5 to 1.5 of it.
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// How long an answer to an ARP request holds against another one: Linux's `locktime`.
pub const ARP_LOCK_TIME: Duration = Duration::from_secs(1);
/// Routers that routes lead through, on all interfaces together. A router's failure is remembered
/// for as long as a route leads through it, so no router makes room for another. A route through
/// one more is refused ([`crate::net::Net::add_route`]), or counted in `router_routes_refused`.
pub const GATEWAYS_MAX: usize = 65_536;
/// Between questions whether a router that does not answer does so again, while packets go another
/// way (RFC 4191 §3.5: at most one per minute).
pub const ROUTER_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Between the first use of a stale neighbour and its first probe (RFC 4861 §10).
pub const DELAY_FIRST_PROBE_TIME: Duration = Duration::from_secs(5);

/// Bytes of memory for incomplete datagrams, in all: Linux's `ipfrag_high_thresh`. Beyond, the
/// source with most datagrams in reassembly loses its oldest. Among sources with a few each, that
/// is the source not heard from for longest; counter `reassembly_full`.
pub const REASSEMBLY_BYTES_MAX: usize = 4 << 20;
/// The same from one source: a quarter, so that a sender with one address leaves room for others.
/// Beyond it the source loses its oldest datagram; counter `reassembly_source_full`.
pub const REASSEMBLY_SOURCE_BYTES_MAX: usize = 1 << 20;
/// Datagrams in reassembly at once; beyond, as with [`REASSEMBLY_BYTES_MAX`]. Each then has 4 KiB
/// of the 4 MiB: two fragments with their overhead.
pub const REASSEMBLY_DATAGRAMS_MAX: usize = 1024;
/// The same from one source; beyond, as with [`REASSEMBLY_SOURCE_BYTES_MAX`]. Linux's
/// `ipfrag_max_dist`: a datagram of which nothing came while 64 others of its source began has lost
/// a fragment.
pub const REASSEMBLY_SOURCE_DATAGRAMS_MAX: usize = 64;
/// Leading bits of an IPv6 address that make a source. A host may take any address of its link's
/// prefix, which has 64 bits (RFC 4291 §2.5.1).
pub const REASSEMBLY_SOURCE_V6_BITS: u32 = 64;
/// Fragments of one datagram: 64 KiB in pieces of 1280 bytes are 53. Beyond, the datagram is lost;
/// counter `fragments_too_many`.
pub const FRAGMENTS_MAX: usize = 64;
/// How long IPv6 fragments wait (RFC 8200 §4.5).
pub const REASSEMBLY_V6_TIME: Duration = Duration::from_secs(60);
/// Time that IPv4 fragments wait. RFC 1122 §3.3.2 recommends 60 to 120 s, for slower links. Linux's
/// 30 s halve the risk that repeated identifications mix up datagrams (RFC 4963).
pub const REASSEMBLY_V4_TIME: Duration = Duration::from_secs(30);

/// Destinations of datagrams with a path MTU smaller than their link's; the least recently learnt
/// goes. Also connections with one: the first to have learnt it then tries its link's MTU again
/// (counter `path_mtus_full`).
pub const PATH_MTUS_MAX: usize = 1024;
/// Path MTUs of datagrams that shards pass on to each other a second: all together, at least one
/// each. Enough for many paths through one tunnel. Further ones are passed on when a router reports
/// them again; counter `path_mtus_untold`.
pub const PATH_MTUS_TOLD_PER_SECOND: u32 = 256;
/// How long a path MTU is believed (RFC 1191 §6.3, RFC 8201 §4 recommend 10 minutes).
pub const PATH_MTU_TIME: Duration = Duration::from_secs(600);
/// Least size that IPv4 packets are cut to (Linux's `min_pmtu`). RFC 791 allows links of 68 bytes,
/// but tiny packets are an amplification (RFC 5927 §7). Where a link takes less, its router
/// fragments, for DF is clear.
pub const PATH_MTU_MIN_V4: u32 = 552;
/// Size that every IPv6 link takes (RFC 8200 §5).
pub const PATH_MTU_MIN_V6: u32 = 1280;

/// ICMP errors sent a second, on average (RFC 4443 §2.4 f). Each shard has an equal part of this
/// limit and the following ones, but may always send one error at once.
pub const ICMP_ERRORS_PER_SECOND: u64 = 1000;
/// ICMP errors sent at once. The value in force varies at random by [`ICMP_BURST_JITTER`], so that
/// the limit does not reveal how many errors other hosts caused (CVE-2020-25705).
pub const ICMP_BURST: u64 = 50;
/// Most that is taken off [`ICMP_BURST`].
pub const ICMP_BURST_JITTER: u64 = 25;

/// Reports of a path MTU ("fragmentation needed", "packet too big") sent a second, apart from
/// [`ICMP_ERRORS_PER_SECOND`]: other errors must not use them up, because connections stall without
/// them. Linux has no limit on them. A report is no longer than the packet that it is about, so
/// that it amplifies nothing; the limit bounds the work. Counter `icmp_too_big_limited`.
pub const ICMP_TOO_BIG_PER_SECOND: u64 = 10_000;
/// The same at once.
pub const ICMP_TOO_BIG_BURST: u64 = 1000;

/// [`ICMP_ERRORS_PER_SECOND`] to one host, or to one IPv6 link: a tenth. Otherwise a host that
/// provokes errors, or an attacker that forges its address, could use up the limit. Counter
/// `icmp_errors_limited_host`.
pub const ICMP_HOST_ERRORS_PER_SECOND: u64 = 100;
/// The same at once: more than Linux's 6, for programs try several addresses of a service at a
/// time.
pub const ICMP_HOST_BURST: u64 = 10;
/// Hosts that these limits distinguish, by a secret hash: 8 KiB.
pub const ICMP_HOSTS: usize = 1024;

/// Groups of hosts that redirects are counted for, by a secret hash: 8 KiB of a router.
pub const REDIRECT_HOSTS: usize = 256;
/// Redirects that a host may ignore before it gets no more (ip_rt_redirect_number of Linux).
pub const REDIRECTS_IGNORED: u8 = 9;
/// Least time between two redirects to a host, doubled with each (ip_rt_redirect_load).
pub const REDIRECT_LOAD: Duration = Duration::from_millis(20);
/// Pause after which a host is new (ip_rt_redirect_silence: 1024 times the load).
pub const REDIRECT_SILENCE: Duration = Duration::from_millis(20 << 10);

/// Dropped packets kept for the trace; beyond, the newest are lost.
pub const DROPPED_MAX: usize = 256;
/// Packets that rules want logged, kept until the owner fetches them; more are left out (counter
/// `rules_unlogged`).
pub const LOGGED_MAX: usize = 256;
/// Errors about packets of our own kept until the socket layer fetches them.
pub const ERRORS_MAX: usize = 256;

/// Addresses of one interface, static and autoconfigured: Linux's `max_addresses`. Router
/// advertisements make no more, so that a hostile router cannot fill memory; counter
/// `addresses_refused`.
pub const ADDRESSES_MAX: usize = 16;
/// Addresses of an interface beyond which the operator is refused more: a program that adds them in
/// a loop gets an error. The configuration may give more.
pub const ADDRESSES_OWN_MAX: usize = 1024;
/// Routers learnt on one interface. RFC 4861 §6.3.4 wants two at least; a link with more than eight
/// is rare. Another one displaces one; counter `routers_displaced`.
pub const ROUTERS_MAX: usize = 8;
/// Destinations that one router may advertise, the default among them (RFC 4191): a few networks of
/// its own. More are refused; counter `router_routes_refused`.
pub const ROUTER_ROUTES_MAX: usize = 17;
/// Prefixes learnt to be on the link of one interface, as many as there can be addresses. Another
/// one displaces one; counter `prefixes_displaced`.
pub const ROUTER_PREFIXES_MAX: usize = 16;
/// Groups that programs join on one interface; more are refused. Groups that the host's own
/// addresses need come on top, one an address.
pub const GROUPS_MAX: usize = 256;
/// Sources that programs want of one group of an interface. A record with all of them fits a report
/// on the smallest IPv6 link.
pub const GROUP_SOURCES_MAX: usize = 64;
/// How often a change of membership is reported: reports may be lost (RFC 3376 §8.1, RFC 3810
/// §9.1).
pub const ROBUSTNESS: u8 = 2;
/// Changes of groups that are still to be reported, of all interfaces together: those of four
/// interfaces with all groups that each may have. When a program joins and leaves faster, one
/// report of all groups takes the place of those beyond; counter `group_reports_full`.
pub const GROUP_REPORTS_MAX: usize = 4 * GROUPS_MAX;
/// Tasks of interfaces that are done before packets have their turn again, each of them a frame or
/// two.
pub const TASKS_A_TURN: usize = 256;
/// Between the reports of a change, at most (RFC 3376 §8.11, RFC 3810 §9.11).
pub const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a querier of an older version counts as present after its query (RFC 3376 §8.12,
/// RFC 3810 §9.12). By the RFCs it is the robustness variable times the query interval, plus 10 s
/// for answers. The interval is not in the query: 125 s is the default.
pub const OLDER_QUERIER_TIME: Duration = Duration::from_secs(ROBUSTNESS as u64 * 125 + 10);
/// Router solicitations sent when an interface comes up (RFC 4861 §10).
pub const ROUTER_SOLICITS_MAX: u8 = 3;
/// Between router solicitations (RFC 4861 §10).
pub const ROUTER_SOLICIT_INTERVAL: Duration = Duration::from_secs(4);
/// Most of a random delay before the first solicitation (RFC 4861 §10).
pub const ROUTER_SOLICIT_DELAY: Duration = Duration::from_secs(1);
/// Neighbour solicitations of duplicate address detection (RFC 4862 §5.1).
pub const DAD_TRANSMITS: u8 = 1;
/// New interface identifiers tried after a duplicate (RFC 7217 §6, IDGEN_RETRIES).
pub const DAD_RETRIES_MAX: u8 = 3;
