//! Limits of the gateway. Hitting a limit is counted, see [`crate::Counters`].

/// Maximum number of TCP flows, also bounded by the process's descriptor limit.
pub const TCP_FLOWS_MAX: usize = 16_384;
/// Divisor: 1/FLOWS_LEFT_TO_PROGRAM of the TCP flows is reserved for the program's own connections.
/// Otherwise, idle clients of published ports could use up all flows.
pub const FLOWS_LEFT_TO_PROGRAM: usize = 8;
/// Factor: a client may have at most CLIENT_PART times as many TCP flows as are free. A single
/// client can use CLIENT_PART / (CLIENT_PART + 1) of the flows.
pub const CLIENT_PART: usize = 7;
/// Divisor: echo flows and DNS queries may each use 1/SMALL_PART of the unreserved descriptors.
pub const SMALL_PART: usize = 32;
/// Maximum number of UDP flows begun by the program, also bounded by descriptors. A new flow evicts
/// one of the client with the most flows, unanswered ones first.
pub const UDP_FLOWS_MAX: usize = 4_096;
/// Maximum number of UDP flows of published ports' clients. Clients can create any number, because
/// a flow needs no descriptor and addresses can be forged. Therefore they evict only each other,
/// unanswered ones first.
pub const UDP_CLIENTS_MAX: usize = 4_096;
/// Maximum number of echo flows (one per `ping`), evicted in the same way as UDP flows.
pub const ECHO_FLOWS_MAX: usize = 256;
/// Maximum number of accepted connections queued for the gateway of another shard; they count as
/// TCP flows. Further connections wait in the host's accept queue ([`BACKLOG`]).
pub const HANDED_MAX: usize = 256;
/// Pause in accepting after another gateway's queue of [`HANDED_MAX`] connections was full. The
/// gateway empties the queue within a few turns.
pub const HANDED_PAUSE_NS: u64 = 1_000_000;
/// Maximum number of accepted connections per published port that are held before they are divided
/// among the gateways. Each counts as a TCP flow.
pub const HELD_MAX: usize = 64;
/// Maximum number of clients per published port whose connections are kept in order while some are
/// in flight to the program. Connections of further clients may be reordered.
pub const CLIENTS_IN_ORDER_MAX: usize = 256;
/// Maximum time that a connection waits for its client's earlier connections in another gateway. A
/// local handshake takes about 0.1 ms, or more if CPUs are busy. The handshake can take longer if
/// the program's stack drops the SYN, e.g. because of a full accept queue; then we stop waiting.
pub const ORDER_WAIT_NS: u64 = 50_000_000;
/// Maximum number of ports tried for a client whose own port cannot be used. In the worst case,
/// with 16 shards, a sixteenth of them is suitable.
pub const PORTS_TRIED_MAX: usize = 1_024;
/// Minimum number of descriptors reserved for the engine, its threads and about twenty processes of
/// a run with three descriptors each.
pub const DESCRIPTORS_RESERVED: usize = 64;
/// Divisor: at least 1/DESCRIPTORS_RESERVED_PART of the descriptors is reserved. Each process on
/// the stack needs three, and clients must not prevent the program from starting processes.
pub const DESCRIPTORS_RESERVED_PART: usize = 16;
/// Number of descriptors needed to reach all limits above, including the reserved part.
pub const DESCRIPTORS_USED_MAX: usize =
    (TCP_FLOWS_MAX + 2 * UDP_FLOWS_MAX + ECHO_FLOWS_MAX + DNS_QUERIES_MAX) / 15 * 16;

/// Maximum number of host socket events taken per call.
pub const EVENTS_MAX: usize = 256;
/// Maximum number of datagrams or trains received from one host socket before the next is served.
pub const DATAGRAMS_PER_TURN: usize = 64;
/// Maximum number of connections accepted on one listener before the next is served.
pub const ACCEPTS_PER_TURN: usize = 64;
/// Maximum number of inner stack turns per call.
pub const ROUNDS_MAX: usize = 16;
/// Maximum number of packets received from a device before the gateway's packets are sent.
pub const DEVICE_PACKETS_PER_TURN: usize = 64;
/// Number of recent connections of own sockets kept for loop detection. The kernel loops a packet
/// back at once, and we open fewer connections before reading it.
pub const LOOPS_REMEMBERED_MAX: usize = 1_024;
/// Maximum number of packets on the link to the program; the inner stack queues further ones.
pub const LINK_PACKETS_MAX: usize = 1_024;

/// Initial time to wait for the answer to a client's SYN. The program's stack is on the same thread
/// and answers in the same turn, unless it dropped the SYN. The first client in line (`lines`) then
/// retransmits, with exponential backoff.
pub const SYN_WAIT_NS: u64 = 1_000_000;
/// Maximum of [`SYN_WAIT_NS`] after backoff. If a program accepts no connections, each port sends
/// it 20 SYNs a second, for any number of clients.
pub const SYN_WAIT_NS_MAX: u64 = 50_000_000;

/// Idle timeout of a UDP flow and its port on the host.
//= https://www.rfc-editor.org/rfc/rfc4787#section-4.3
//# REQ-5:  A NAT UDP mapping timer MUST NOT expire in less than two
//# minutes, unless REQ-5a applies.
//# c) A default value of five minutes or more for the NAT UDP mapping
//# timer is RECOMMENDED.
pub const UDP_IDLE_NS: u64 = 300_000_000_000;
/// Idle timeout of UDP flows to port 53, other than to the forwarder; a query needs only one
/// answer.
pub const DNS_IDLE_NS: u64 = 15_000_000_000;
/// Idle timeout of an echo flow.
pub const ECHO_IDLE_NS: u64 = 15_000_000_000;
/// Time for an upstream server to establish a connection after the gateway has connected to it:
/// nginx's default for proxy_connect_timeout.
pub const NEGOTIATION_NS: u64 = 60_000_000_000;
/// Maximum number of bytes that an upstream server may send before a connection is established:
/// Node.js's limit on HTTP headers (--max-http-header-size).
pub const NEGOTIATION_BYTES_MAX: usize = 16_384;
/// Time for which an address change counts as recent, because routes and rules may follow an
/// address.
pub const UNSETTLED_NS: u64 = 60_000_000_000;
/// Interval at which the source address of an unanswered flow is checked after an address change. A
/// check takes four system calls. Equals TCP's initial RTO (RFC 6298 §2).
pub const SOURCE_LOOK_NS: u64 = 1_000_000_000;
/// Time for the program to read the remaining bytes after its host failed; then they are discarded
/// and the error is reported. Chosen for a stuck program rather than a slow one.
pub const FAILED_WAIT_NS: u64 = 60_000_000_000;
/// Minimum interval between checks of the host's resolv.conf, which queries trigger. Equals a tenth
/// of the time after which resolvers repeat a query.
pub const RESOLV_CONF_LOOK_NS: u64 = 500_000_000;
/// Maximum number of bytes read from resolv.conf. Three nameservers need 200 bytes, long search
/// lists 4 KiB.
pub const RESOLV_CONF_LEN_MAX: usize = 64 * 1024;
/// Maximum number of nameservers used: MAXNS of resolv.conf(5), as for the host's programs.
pub const NAMESERVERS_MAX: usize = 3;
/// Default nameserver timeout in seconds: RES_TIMEOUT of resolv.conf(5).
pub const NAMESERVER_TIMEOUT_S: u64 = 5;
/// Maximum of `timeout:` in seconds: RES_MAXRETRANS of <resolv.h>.
pub const NAMESERVER_TIMEOUT_S_MAX: u64 = 30;
/// Default number of rounds over all nameservers: RES_DFLRETRY of resolv.conf(5).
pub const NAMESERVER_ATTEMPTS: usize = 2;
/// Maximum of `attempts:`: RES_MAXRETRY of <resolv.h>.
pub const NAMESERVER_ATTEMPTS_MAX: usize = 5;
/// Time for which a nameserver that timed out is tried last. Equals the maximum `timeout:`, so that
/// a dead server is tried at most twice per minute.
pub const NAMESERVER_SILENT_NS: u64 = NAMESERVER_TIMEOUT_S_MAX * 1_000_000_000;
/// Time before a repeated query goes to another nameserver: the minimum `timeout:` of
/// resolv.conf(5).
pub const NAMESERVER_REPEAT_NS: u64 = 1_000_000_000;
/// Maximum number of pending DNS queries, also bounded by descriptors; the oldest is evicted.
/// dnsmasq allows 150 (dns-forward-max) for a whole network.
pub const DNS_QUERIES_MAX: usize = 256;
/// Pause in accepting after descriptors or flows ran out, so that an ending flow can make room. If
/// none has ended by then, clients are refused until one does.
pub const ACCEPT_PAUSE_NS: u64 = 50_000_000;

/// Minimum free FIFO space for reading from the host, to avoid many small reads. Space grows as the
/// program acknowledges.
pub const READ_ROOM_MIN: u32 = 16 * 1024;
/// Backlog of listening sockets; Linux limits it to `somaxconn`.
pub const BACKLOG: i32 = 4_096;

/// FIFO length per direction in bytes, a power of two; also the maximum moved before the next flow
/// is served. The link's round trip is one turn, so a window of a few maximum-size packets keeps it
/// busy.
pub const FIFO_LEN: u32 = 256 * 1024;
/// FIFO length in bytes when [`FIFOS_LARGE_MAX`] are in use: one packet of the link, and the
/// smallest read from the host.
pub const FIFO_LEN_SMALL: u32 = READ_ROOM_MIN;
/// Maximum number of large FIFOs; a busy flow uses two. Full FIFOs use 256 MiB. New flows may take
/// only half of the large FIFOs, so that the other half is left for busy flows.
pub const FIFOS_LARGE_MAX: usize = 1_024;
/// Maximum number of unused FIFO mappings kept for reuse: 16 MiB of large and 1 MiB of small FIFOs.
pub const FIFOS_KEPT_MAX: usize = 64;
/// Maximum datagram length in bytes: the IPv6 payload limit minus the UDP header. For IPv4 it is
/// smaller by the IP header.
pub const DATAGRAM_LEN_MAX: usize = 65_535 - 8;
/// Maximum number of bytes in one sendmsg call with UDP_SEGMENT: the maximum payload of an IPv4
/// packet.
pub const TRAIN_LEN_MAX: usize = 65_507;
/// Maximum number of datagrams per sendmsg call: half of Linux's `UDP_MAX_SEGMENTS`, which was 64
/// in older versions.
pub const TRAIN_DATAGRAMS_MAX: usize = 64;
/// Maximum number of errors queued for the program.
pub const ERRORS_MAX: usize = 256;
/// Maximum number of reports taken from one host socket before the next is served.
pub const ERRORS_PER_TURN: usize = 64;

/// Default TTL and hop limit of Towpath and Linux (RFC 1700: 64). Packets with this value leave
/// with the host's default (net.ipv4.ip_default_ttl).
pub const PLAIN_TTL: u8 = 64;

/// Interval in nanoseconds at which a stack that never sleeps polls the host's sockets.
pub const LISTEN_EVERY_NS: u64 = 20_000;

/// Maximum number of published ports queried per kernel lookup (`polled`); their queries take about
/// half a millisecond.
pub const PORTS_PER_LOOK: usize = 64;
