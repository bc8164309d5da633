//! Limits of the gateway. A counter of [`crate::Counters`] shows how often each was reached.

/// Maximum number of TCP flows. The process's descriptor limit may reduce it.
pub const TCP_FLOWS_MAX: usize = 16_384;
/// Divisor: 1/FLOWS_LEFT_TO_PROGRAM of the TCP flows is reserved for connections that the program
/// initiates. Otherwise, idle clients of published ports could use up all flows.
pub const FLOWS_LEFT_TO_PROGRAM: usize = 8;
/// Factor: a client may have at most CLIENT_PART times as many TCP flows as are still free. If 1
/// flow in 8 is free, for example, a single client may have the other 7.
pub const CLIENT_PART: usize = 7;
/// Divisor: echo flows may use 1/SMALL_PART of the unreserved descriptors. DNS queries may use
/// another 1/SMALL_PART.
pub const SMALL_PART: usize = 32;
/// Maximum number of UDP flows that the program initiates. The descriptor limit may reduce it. At
/// the limit, a new flow evicts a flow of the client with the most flows, unanswered ones first.
pub const UDP_FLOWS_MAX: usize = 4_096;
/// Maximum number of UDP flows of clients of published ports. Clients could create any number,
/// because such a flow needs no descriptor and source addresses can be forged. Therefore these
/// flows evict only each other, unanswered ones first.
pub const UDP_CLIENTS_MAX: usize = 4_096;
/// Maximum number of echo flows (one per `ping`). At the limit, flows are evicted like UDP flows.
pub const ECHO_FLOWS_MAX: usize = 256;
/// Maximum number of accepted connections that wait for the gateway of another shard. Waiting
/// connections count as TCP flows. Further connections wait in the host's accept queue
/// ([`BACKLOG`]).
pub const HANDED_MAX: usize = 256;
/// Pause in accepting, in ns, after the queue of another gateway ([`HANDED_MAX`] connections) was
/// full. A gateway empties its queue within a few iterations of its event loop.
pub const HANDED_PAUSE_NS: u64 = 1_000_000;
/// Maximum number of accepted connections per published port that are held until they are
/// distributed to the gateways of the shards. Each counts as a TCP flow.
pub const HELD_MAX: usize = 64;
/// Maximum number of clients per published port whose connections reach the program in the order in
/// which they were accepted. Connections of further clients may be reordered.
pub const CLIENTS_IN_ORDER_MAX: usize = 256;
/// Maximum time in ns that a connection waits until another gateway has delivered earlier
/// connections of the same client to the program. A local handshake takes about 0.1 ms, or more if
/// CPUs are busy. The handshake can take longer if the program's stack drops the SYN, e.g. because
/// of a full accept queue; in this case we stop waiting.
pub const ORDER_WAIT_NS: u64 = 50_000_000;
/// Maximum number of source ports that are tried for a client whose own port cannot be used. With
/// the maximum of 16 shards, only one port in 16 leads to the shard that must own the connection.
pub const PORTS_TRIED_MAX: usize = 1_024;
/// Minimum number of descriptors that are not used for flows. Enough for the engine, its threads
/// and about twenty processes of a run with three descriptors each.
pub const DESCRIPTORS_RESERVED: usize = 64;
/// Divisor: at least 1/DESCRIPTORS_RESERVED_PART of the descriptors is not used for flows. Each
/// process on the stack needs three descriptors, and clients must not prevent the program from
/// starting processes.
pub const DESCRIPTORS_RESERVED_PART: usize = 16;
/// Number of descriptors with which all limits above can be reached, including the reserved
/// descriptors.
pub const DESCRIPTORS_USED_MAX: usize =
    (TCP_FLOWS_MAX + 2 * UDP_FLOWS_MAX + ECHO_FLOWS_MAX + DNS_QUERIES_MAX) / 15 * 16;

/// Maximum number of epoll events of host sockets taken per call.
pub const EVENTS_MAX: usize = 256;
/// Maximum number of receive calls on one host socket before the next socket is served. A call may
/// return several datagrams.
pub const DATAGRAMS_PER_TURN: usize = 64;
/// Maximum number of connections accepted on one listener before the next is served.
pub const ACCEPTS_PER_TURN: usize = 64;
/// Maximum number of turns of the inner stack's event loop per call.
pub const ROUNDS_MAX: usize = 16;
/// Maximum number of packets received from a device before the gateway's packets are sent.
pub const DEVICE_PACKETS_PER_TURN: usize = 64;
/// Number of recent connections of the gateway's own sockets kept for loop detection. A looped
/// packet returns at once, before the gateway has opened as many further connections.
pub const LOOPS_REMEMBERED_MAX: usize = 1_024;
/// Maximum number of packets queued on the link to the program. Further packets stay in the inner
/// stack's own queue.
pub const LINK_PACKETS_MAX: usize = 1_024;

/// Initial time in ns to wait until the program's stack answers the SYN for a client of a published
/// port. The program's stack runs on the same thread and answers at once, unless it drops the SYN.
/// The first client in the queue (`lines`) then retransmits, with exponential backoff.
pub const SYN_WAIT_NS: u64 = 1_000_000;
/// Maximum of [`SYN_WAIT_NS`] after exponential backoff. If a program accepts no connections, it
/// gets 20 SYNs a second for each port, whatever the number of clients.
pub const SYN_WAIT_NS_MAX: u64 = 50_000_000;

/// Idle timeout of a UDP flow and its port on the host.
//= https://www.rfc-editor.org/rfc/rfc4787#section-4.3
//# REQ-5:  A NAT UDP mapping timer MUST NOT expire in less than two
//# minutes, unless REQ-5a applies.
//# c) A default value of five minutes or more for the NAT UDP mapping
//# timer is RECOMMENDED.
pub const UDP_IDLE_NS: u64 = 300_000_000_000;
/// Idle timeout in ns of UDP flows to port 53 of other hosts than the DNS forwarder. Short, because
/// a query needs only one answer.
pub const DNS_IDLE_NS: u64 = 15_000_000_000;
/// Idle timeout of an echo flow in ns.
pub const ECHO_IDLE_NS: u64 = 15_000_000_000;
/// Maximum time in ns for an upstream server (a proxy) to establish a connection. Measured from the
/// time when the gateway has connected to the server. Equals nginx's default for
/// proxy_connect_timeout.
pub const NEGOTIATION_NS: u64 = 60_000_000_000;
/// Maximum number of bytes that an upstream server (a proxy) may send before its connection to the
/// destination is established. Equals Node.js's limit on HTTP headers (--max-http-header-size).
pub const NEGOTIATION_BYTES_MAX: usize = 16_384;
/// Time in ns for which a change of the host's addresses counts as recent, because routes and rules
/// may change some time after an address.
pub const UNSETTLED_NS: u64 = 60_000_000_000;
/// Interval in ns at which the source address of an unanswered flow is checked after the host's
/// addresses have changed. A check takes four system calls. Equals TCP's initial RTO (RFC 6298 §2).
pub const SOURCE_LOOK_NS: u64 = 1_000_000_000;
/// Time in ns for the program to read remaining bytes after the host connection has failed. Then
/// the bytes are discarded, and the program gets the error. Long enough for slow programs, so that
/// only programs that do not read are affected.
pub const FAILED_WAIT_NS: u64 = 60_000_000_000;
/// Minimum interval in ns between checks of the host's resolv.conf, which DNS queries trigger.
/// Equals a tenth of the time after which resolvers repeat a query.
pub const RESOLV_CONF_LOOK_NS: u64 = 500_000_000;
/// Maximum number of bytes read from resolv.conf. Three nameservers need 200 bytes, long search
/// lists 4 KiB.
pub const RESOLV_CONF_LEN_MAX: usize = 64 * 1024;
/// Maximum number of nameservers used: MAXNS of resolv.conf(5), as for the host's programs.
pub const NAMESERVERS_MAX: usize = 3;
/// Default nameserver timeout in seconds: RES_TIMEOUT of resolv.conf(5).
pub const NAMESERVER_TIMEOUT_S: u64 = 5;
/// Maximum value of the option `timeout:` of resolv.conf(5) in seconds: RES_MAXRETRANS of
/// <resolv.h>.
pub const NAMESERVER_TIMEOUT_S_MAX: u64 = 30;
/// Default number of times that each nameserver is tried: RES_DFLRETRY of resolv.conf(5).
pub const NAMESERVER_ATTEMPTS: usize = 2;
/// Maximum of the option `attempts:` of resolv.conf(5). Equals RES_MAXRETRY of <resolv.h>.
pub const NAMESERVER_ATTEMPTS_MAX: usize = 5;
/// Time in ns for which a nameserver that timed out is tried after all others. Equals the maximum
/// `timeout:`, so that a dead server is tried at most twice per minute.
pub const NAMESERVER_SILENT_NS: u64 = NAMESERVER_TIMEOUT_S_MAX * 1_000_000_000;
/// Minimum time in ns after which a query that the program repeats is sent to another nameserver.
/// Equals the minimum `timeout:` of resolv.conf(5).
pub const NAMESERVER_REPEAT_NS: u64 = 1_000_000_000;
/// Maximum number of pending DNS queries. The descriptor limit may reduce it. At the limit, the
/// oldest query is evicted. dnsmasq allows 150 (dns-forward-max) for a whole network.
pub const DNS_QUERIES_MAX: usize = 256;
/// Pause in accepting, in ns, after descriptors or flows ran out, to wait for flows to end. If no
/// flow has ended by then, clients are refused until one ends.
pub const ACCEPT_PAUSE_NS: u64 = 50_000_000;

/// Minimum free space of a FIFO in bytes at which we read from the host, to avoid many small reads.
/// The space grows when the program acknowledges data.
pub const READ_ROOM_MIN: u32 = 16 * 1024;
/// Backlog of listening sockets; Linux limits it to `somaxconn`.
pub const BACKLOG: i32 = 4_096;

/// Length in bytes of the FIFO for each direction of a TCP flow, a power of two. Also the maximum
/// number of bytes that are moved before the next flow is served. The round-trip time of the link
/// is one iteration of the event loop, so a window of a few packets suffices.
pub const FIFO_LEN: u32 = 256 * 1024;
/// Length in bytes of FIFOs that are created while [`FIFOS_LARGE_MAX`] large ones are in use. Fits
/// one packet of the link, and the smallest read from the host socket.
pub const FIFO_LEN_SMALL: u32 = READ_ROOM_MIN;
/// Maximum number of FIFOs with the length [`FIFO_LEN`]. A busy flow uses two. When all are full,
/// they use 256 MiB. New flows may take only half of them, so that the other half is left for busy
/// flows.
pub const FIFOS_LARGE_MAX: usize = 1_024;
/// Maximum number of unused FIFO mappings kept for reuse: 16 MiB of large and 1 MiB of small FIFOs.
pub const FIFOS_KEPT_MAX: usize = 64;
/// Maximum datagram payload in bytes: the maximum IPv6 payload minus the UDP header. For IPv4, the
/// maximum is smaller by the length of the IP header.
pub const DATAGRAM_LEN_MAX: usize = 65_535 - 8;
/// Maximum number of bytes in one sendmsg call that the kernel splits into datagrams (UDP_SEGMENT).
/// Equals the maximum UDP payload of an IPv4 packet.
pub const TRAIN_LEN_MAX: usize = 65_507;
/// Maximum number of datagrams that one sendmsg call sends (UDP_SEGMENT). Equals `UDP_MAX_SEGMENTS`
/// of older Linux versions, half of today's value.
pub const TRAIN_DATAGRAMS_MAX: usize = 64;
/// Maximum number of ICMP errors queued for the program.
pub const ERRORS_MAX: usize = 256;
/// Maximum number of error reports taken from the error queue of one host socket before the next
/// socket is served.
pub const ERRORS_PER_TURN: usize = 64;

/// Default TTL and hop limit of Towpath and Linux (RFC 1700: 64). If the program sends this value,
/// the host socket uses the host's own default (net.ipv4.ip_default_ttl).
pub const PLAIN_TTL: u8 = 64;

/// Interval in ns at which a stack that is never idle polls the host sockets.
pub const LISTEN_EVERY_NS: u64 = 20_000;

/// Maximum number of published ports for which the program's kernel is queried at a time
/// (`polled`). The queries for as many ports take about half a millisecond.
pub const PORTS_PER_LOOK: usize = 64;
