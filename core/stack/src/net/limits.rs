//! Every limit and interval of the IP layer in one place: where it comes from, and what changes
//! with it.

use core::time::Duration;

/// Bytes that wait on one interface for its device, those of connections apart, as they will be on the wire: with the
/// headers of every packet that a larger one is cut into. 4 MiB are 34 ms of 1 Gbit/s, more than a device needs to be busy until the next turn;
/// what is beyond would only add delay, and is dropped. Drop reason `output_full`, counter `output_bytes_full`.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// The same in packets on the wire: what costs the device and the next router is their number where they are short.
/// Counter `output_packets_full`.
pub const OUTPUT_PACKETS_MAX: usize = 4096;
/// Bytes that all but connections may have on one interface whose device is behind, while connections have as little as
/// that: 34 ms of 128 Mbit/s, by which the first bytes of a connection are late.
pub const OUTPUT_BESIDE_BYTES: usize = 512 << 10;
/// The same in packets: half of the queue that Linux gives an Ethernet device (`txqueuelen`).
pub const OUTPUT_BESIDE_PACKETS: usize = 512;
/// Bytes beyond [`OUTPUT_BYTES_MAX`] for what keeps others going: acknowledgements, resets, ICMP errors, ARP,
/// neighbour discovery and group membership. Counters `output_reserve_used`, and `output_reserve_full` for what is
/// dropped all the same.
pub const OUTPUT_RESERVE_BYTES: usize = 256 << 10;
/// The same beyond [`OUTPUT_PACKETS_MAX`]: an acknowledgement for each of 512 connections.
pub const OUTPUT_RESERVE_PACKETS: usize = 512;
/// Packets, up to 64 KiB each, that this host sends to itself and has not received; they are received in the turn
/// that sends them. More are dropped; drop reason `loopback_full`.
pub const LOOPBACK_LEN_MAX: usize = 4096;

/// The loopback interface takes packets of any length that IP can state, in bytes.
pub const LOOPBACK_MTU: u32 = 65535;
/// The same as programs are told: Linux's, which is more than IP can state.
pub const LOOPBACK_MTU_TOLD: u32 = 65536;

/// Neighbours that packets of ours go to, all interfaces together: Linux's `gc_thresh3`. Beyond it the least
/// recently used goes, so that a scan of a large prefix costs a bounded amount of memory (RFC 6583); counter
/// `neighbors_displaced`.
pub const NEIGHBORS_MAX: usize = 1024;
/// Most that [`NEIGHBORS_MAX`] may be replaced by ([`super::NetConfig::neighbors_max`]): a
/// connection names the place of its next hop by 14 bits.
pub const NEIGHBORS_MOST: usize = 16_000;
/// Of those that are asked for and have not answered, so many: they have places of their own, so that who sends to hosts
/// that are not there, or has answers sent to them, displaces none that is (RFC 6583 §7.1).
pub const NEIGHBORS_ASKED_MAX: usize = 512;
/// Neighbours with a link header ready, for all that is sent: as many as are known. Beyond it one that was not used
/// lately goes, and costs a look-up when it is used again; counter `next_hops_displaced`.
pub const NEXT_HOPS_MAX: usize = NEIGHBORS_MAX;
/// Between uses of a neighbour that are told to its state machine, which learns by them which were used least
/// recently.
pub const NEIGHBOR_USE_INTERVAL: Duration = Duration::from_secs(1);
/// What a shard has to tell the first one of its neighbours and has not: those it uses, heard from beyond, and passes
/// over, and path MTUs. Each neighbour is told of once until there is an answer, or a second is over, so that more than two
/// for each of [`NEXT_HOPS_MAX`] are those of a sender to ever new addresses, whose packets are dropped then: drop reason
/// `neighbor_queue_full`, counter `neighbor_notices_full`.
pub const NEIGHBOR_NOTICES_MAX: usize = 2 * NEXT_HOPS_MAX;
/// Bytes of packets that wait for one neighbour's MAC address: Linux's `unres_qlen_bytes`. RFC 1122 §2.3.2.2
/// wants at least one packet; a program that begins with many connections or datagrams to one host loses
/// none. Beyond, the oldest go; drop reason `neighbor_queue_full`.
pub const NEIGHBOR_QUEUE_BYTES_MAX: usize = 212_992;
/// The same of all neighbours together: as much as fragments may have ([`REASSEMBLY_BYTES_MAX`]), and room for
/// twenty neighbours with all that one may have. [`NEIGHBORS_MAX`] of these would be 218 MB, which a program that
/// sends to every address of an empty subnet could fill. Beyond, the neighbour with the longest queue loses its
/// oldest packet; drop reason `neighbor_queues_full`. Each shard has its part.
pub const NEIGHBOR_QUEUES_BYTES_MAX: usize = 4 << 20;
const _: () =
    assert!(NEIGHBOR_QUEUES_BYTES_MAX / crate::limits::SHARDS_MAX >= NEIGHBOR_QUEUE_BYTES_MAX);
/// What a waiting packet costs beside its bytes: its buffer is longer, and has a place in the queue.
pub const NEIGHBOR_PACKET_COST: usize = 512;
/// Neighbours that asked for us, or advertised a route, and that nothing was sent to since. Beyond it the one
/// heard of longest ago goes, and costs a question when a packet goes there after all; the same counter.
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
/// Between solicitations, unless routers say otherwise for IPv6 (RFC 4861 §10); also keeps ARP requests at one
/// per second per destination (RFC 1122 §2.3.2.1).
pub const RETRANS_TIME: Duration = Duration::from_secs(1);
/// Least time between solicitations that a router may set. RFC 4861 §6.3.4 has no bound; as on Linux 10 ms, so
/// that one advertisement does not make the host send its solicitations all at once.
pub const RETRANS_TIME_MIN: Duration = Duration::from_millis(10);
/// Most time between solicitations that a router may set. RFC 4861 §6.3.4 has no bound, and 2³² ms are 50 days,
/// for which the host would neither give up a neighbour nor use a new address: ten times the default.
pub const RETRANS_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a packet waits for its neighbour's MAC address, at most, where routers set no other time: for an
/// answer to each solicitation.
pub const RESOLUTION_TIME: Duration =
    Duration::from_secs(RETRANS_TIME.as_secs() * MULTICAST_SOLICITS_MAX as u64);
/// Base of the time a confirmation lasts (RFC 4861 §10); each use is drawn from 0.5 to 1.5 of it.
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// How long an answer to an ARP request holds against another one: Linux's `locktime`.
pub const ARP_LOCK_TIME: Duration = Duration::from_secs(1);
/// Routers that routes lead through, on all interfaces together. One that does not answer is remembered as such for as
/// long as a route leads through it, so that none of these ever makes room for another: a route through one more is
/// refused, as [`crate::net::Net::add_route`] says, or counted in `router_routes_refused`.
pub const GATEWAYS_MAX: usize = 65_536;
/// Between questions whether a router that does not answer does so again, while packets go another way
/// (RFC 4191 §3.5: at most one per minute).
pub const ROUTER_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Between the first use of a stale neighbour and its first probe (RFC 4861 §10).
pub const DELAY_FIRST_PROBE_TIME: Duration = Duration::from_secs(5);

/// Bytes of memory for fragments that wait for others of their datagram, in all: Linux's `ipfrag_high_thresh`.
/// Beyond it the source that has most datagrams in reassembly loses its oldest, of those with a few each the one
/// that was not heard of for longest; counter `reassembly_full`.
pub const REASSEMBLY_BYTES_MAX: usize = 4 << 20;
/// The same from one source: a quarter, so that a sender with one address leaves room for others. Beyond it
/// the source loses its oldest datagram; counter `reassembly_source_full`.
pub const REASSEMBLY_SOURCE_BYTES_MAX: usize = 1 << 20;
/// Datagrams in reassembly at once; beyond, as with [`REASSEMBLY_BYTES_MAX`]. Of 4 MiB each may have 4 KiB,
/// two fragments and what they cost besides.
pub const REASSEMBLY_DATAGRAMS_MAX: usize = 1024;
/// The same from one source; beyond, as with [`REASSEMBLY_SOURCE_BYTES_MAX`]. Linux's `ipfrag_max_dist`: a
/// datagram of which nothing came while 64 others of its source began has lost a fragment.
pub const REASSEMBLY_SOURCE_DATAGRAMS_MAX: usize = 64;
/// Leading bits of an IPv6 address that make a source: a host may take any address of its link's prefix,
/// which has 64 (RFC 4291 §2.5.1).
pub const REASSEMBLY_SOURCE_V6_BITS: u32 = 64;
/// Fragments of one datagram: 64 KiB in pieces of 1280 bytes are 53. Beyond, the datagram is lost; counter
/// `fragments_too_many`.
pub const FRAGMENTS_MAX: usize = 64;
/// How long IPv6 fragments wait (RFC 8200 §4.5).
pub const REASSEMBLY_V6_TIME: Duration = Duration::from_secs(60);
/// How long IPv4 fragments wait. RFC 1122 §3.3.2 recommends 60 to 120 s, which was for slower links;
/// 30 s is what Linux uses, and halves what idents that repeat can mix up (RFC 4963).
pub const REASSEMBLY_V4_TIME: Duration = Duration::from_secs(30);

/// Destinations of datagrams with a path MTU smaller than their link's; the least recently learnt goes. Also
/// connections with one, of which the first to have learnt it then tries again what its link takes
/// (counter `path_mtus_full`).
pub const PATH_MTUS_MAX: usize = 1024;
/// Path MTUs of datagrams that shards tell each other a second, all shards together, one each at least: enough for those
/// that many paths through one tunnel have. The others are told when a router reports them again; counter
/// `path_mtus_untold`.
pub const PATH_MTUS_TOLD_PER_SECOND: u32 = 256;
/// How long a path MTU is believed (RFC 1191 §6.3, RFC 8201 §4 recommend 10 minutes).
pub const PATH_MTU_TIME: Duration = Duration::from_secs(600);
/// What IPv4 packets are cut to at least (Linux's `min_pmtu`). RFC 791 allows links of 68 bytes, but tiny
/// packets are an amplification (RFC 5927 §7): where a link takes less its router cuts, for DF is clear.
pub const PATH_MTU_MIN_V4: u32 = 552;
/// What every IPv6 link takes (RFC 8200 §5).
pub const PATH_MTU_MIN_V6: u32 = 1280;

/// ICMP errors sent a second, on average (RFC 4443 §2.4 f). Of this limit and those that follow each shard has its part,
/// of what may be sent at once one error at least.
pub const ICMP_ERRORS_PER_SECOND: u64 = 1000;
/// ICMP errors sent at once. The value in force varies at random by [`ICMP_BURST_JITTER`], so that
/// nobody can learn from the limit how many errors others caused (CVE-2020-25705).
pub const ICMP_BURST: u64 = 50;
/// Most that is taken off [`ICMP_BURST`].
pub const ICMP_BURST_JITTER: u64 = 25;

/// The same to one host, or to one IPv6 link: a tenth, so that a host that makes us send errors, or an attacker that
/// forges its address, does not keep others from theirs. Counter `icmp_errors_limited_host`.
pub const ICMP_HOST_ERRORS_PER_SECOND: u64 = 100;
/// The same at once: more than Linux's 6, for programs try several addresses of a service at a time.
pub const ICMP_HOST_BURST: u64 = 10;
/// Hosts told apart by these limits, by a secret hash: 8 KiB.
pub const ICMP_HOSTS: usize = 1024;

/// Groups of hosts that redirects are counted for, by a secret hash: 8 KiB of a router.
pub const REDIRECT_HOSTS: usize = 256;
/// Redirects that a host may ignore before it gets no more (ip_rt_redirect_number of Linux).
pub const REDIRECTS_IGNORED: u8 = 9;
/// Least time between two redirects to a host, doubled with each (ip_rt_redirect_load).
pub const REDIRECT_LOAD: Duration = Duration::from_millis(20);
/// Pause after which a host is new (ip_rt_redirect_silence: 1024 times the load).
pub const REDIRECT_SILENCE: Duration = Duration::from_millis(20 << 10);

/// Dropped packets kept for the trace; when nobody fetches them the newest are lost.
pub const DROPPED_MAX: usize = 256;
/// Packets that rules want to be told of, kept until the owner fetches them; more are left out
/// (counter `rules_unlogged`).
pub const LOGGED_MAX: usize = 256;
/// Errors about packets of our own kept until the socket layer fetches them.
pub const ERRORS_MAX: usize = 256;

/// Addresses of one interface, static and autoconfigured: Linux's `max_addresses`. Router advertisements make
/// no more, so that a hostile router cannot fill memory; counter `addresses_refused`.
pub const ADDRESSES_MAX: usize = 16;
/// Addresses of an interface beyond which the operator is refused more: a program that adds them in
/// a loop is to hear of it. The configuration may give more.
pub const ADDRESSES_OWN_MAX: usize = 1024;
/// Routers learnt on one interface. RFC 4861 §6.3.4 wants two at least; a link with more than eight is rare.
/// Another one displaces one; counter `routers_displaced`.
pub const ROUTERS_MAX: usize = 8;
/// Destinations that one router may advertise, the default among them (RFC 4191): a few networks of its own.
/// More are refused; counter `router_routes_refused`.
pub const ROUTER_ROUTES_MAX: usize = 17;
/// Prefixes learnt to be on the link of one interface, as many as there can be addresses. Another one
/// displaces one; counter `prefixes_displaced`.
pub const ROUTER_PREFIXES_MAX: usize = 16;
/// Groups that programs join on one interface; more are refused them. Those that the host's own addresses need
/// come on top, one an address.
pub const GROUPS_MAX: usize = 256;
/// Sources that programs want of one group of an interface. A record with all of them fits a report on the
/// smallest IPv6 link.
pub const GROUP_SOURCES_MAX: usize = 64;
/// How often a change of membership is reported: reports may be lost (RFC 3376 §8.1, RFC 3810 §9.1).
pub const ROBUSTNESS: u8 = 2;
/// Changes of groups that are still to be reported, of all interfaces together: those of four interfaces with all groups
/// that each may have. When a program joins and leaves faster, one report of all groups takes the place of those beyond;
/// counter `group_reports_full`.
pub const GROUP_REPORTS_MAX: usize = 4 * GROUPS_MAX;
/// Tasks of interfaces that are done before packets have their turn again, each of them a frame or two.
pub const TASKS_A_TURN: usize = 256;
/// Between the reports of a change, at most (RFC 3376 §8.11, RFC 3810 §9.11).
pub const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a querier of an older version counts as present after its query (RFC 3376 §8.12, RFC 3810 §9.12):
/// the robustness variable times its query interval, which it does not tell and is 125 s by default, and the
/// time that it gives for answers, 10 s.
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
