//! Every limit of the gateway. Reaching one is counted, see [`crate::Counters`].

/// TCP flows at once, also bounded by the descriptors this process may open.
pub const TCP_FLOWS_MAX: usize = 16_384;
/// Divisor: 1/FLOWS_LEFT_TO_PROGRAM of these flows is kept for connections that the program makes.
/// Clients of published ports can connect and then do nothing, and must not keep the program from
/// reaching others.
pub const FLOWS_LEFT_TO_PROGRAM: usize = 8;
/// Factor: one client may have CLIENT_PART times as many TCP flows as there are free places. A
/// client that is alone gets CLIENT_PART / (CLIENT_PART + 1) of all.
pub const CLIENT_PART: usize = 7;
/// Divisor: echo flows, and DNS queries, each have 1/SMALL_PART of the descriptors that are not
/// reserved.
pub const SMALL_PART: usize = 32;
/// UDP flows that the program began, at once, also bounded by descriptors. A new flow displaces an
/// unanswered one if there is any, of the client that has the most.
pub const UDP_FLOWS_MAX: usize = 4_096;
/// UDP flows of clients of published ports at once. The flows have no descriptors of their own, and
/// anybody can make them, with forged addresses too. So they make room among themselves, unanswered
/// ones first.
pub const UDP_CLIENTS_MAX: usize = 4_096;
/// Echo flows (one per `ping`) at once, which make room as UDP flows do.
pub const ECHO_FLOWS_MAX: usize = 256;
/// Limit on connections of clients of published ports that wait to be taken by the gateway of
/// another shard, counted among the TCP flows. When there are as many, the others wait in the
/// host's queue ([`BACKLOG`]).
pub const HANDED_MAX: usize = 256;
/// Pause in accepting when as many wait for another gateway: its thread takes them within a turn or
/// a few.
pub const HANDED_PAUSE_NS: u64 = 1_000_000;
/// Limit on connections of clients of one published port that are accepted and not handed over yet,
/// which are divided among the gateways at once. Each counts as a TCP flow, too.
pub const HELD_MAX: usize = 64;
/// Clients of one published port whose connections are kept in order, as long as some are on their
/// way to the program. Above this number of clients at once that connect more than once, some
/// connections may come in another order.
pub const CLIENTS_IN_ORDER_MAX: usize = 256;
/// How long a connection waits for those that its client made before, which another gateway has. A
/// handshake within this machine takes some 0.1 ms, more if its processors are busy. A connection
/// whose SYN the program's stack drops, as for a full accept queue, can take longer and is not
/// waited for.
pub const ORDER_WAIT_NS: u64 = 50_000_000;
/// Ports that are tried for a client of a published port that cannot be shown at its own. At worst,
/// with 16 shards, a sixteenth of them fits.
pub const PORTS_TRIED_MAX: usize = 1_024;
/// Descriptors left at least for the rest of the process: the engine's own, its threads and some
/// twenty processes of a run, with three each.
pub const DESCRIPTORS_RESERVED: usize = 64;
/// Divisor: 1/DESCRIPTORS_RESERVED_PART of all descriptors is left, if that is more. Each process
/// on the stack takes three, and clients must not keep the program from making some.
pub const DESCRIPTORS_RESERVED_PART: usize = 16;
/// Descriptors that a gateway has a use for: those of the limits above, and the part that is left.
pub const DESCRIPTORS_USED_MAX: usize =
    (TCP_FLOWS_MAX + 2 * UDP_FLOWS_MAX + ECHO_FLOWS_MAX + DNS_QUERIES_MAX) / 15 * 16;

/// Host socket events taken in one call; more wait for the next.
pub const EVENTS_MAX: usize = 256;
/// Datagrams or trains of them taken from one host socket before another has its turn.
pub const DATAGRAMS_PER_TURN: usize = 64;
/// Connections taken from one listener before the rest has its turn.
pub const ACCEPTS_PER_TURN: usize = 64;
/// Rounds of the inner stack in one call.
pub const ROUNDS_MAX: usize = 16;
/// Packets taken from a device before the gateway's own are given to it.
pub const DEVICE_PACKETS_PER_TURN: usize = 64;
/// Newest connections of the gateway's own sockets in which one that comes back is recognised. The
/// kernel brings it back at once, and fewer are begun until it is read.
pub const LOOPS_REMEMBERED_MAX: usize = 1_024;
/// Packets on the way to the program; the inner stack keeps what is more in its own queue.
pub const LINK_PACKETS_MAX: usize = 1_024;

/// Time for an answer of the program's stack to a client's SYN. The stack is in the same thread and
/// answers in the same turn, or has dropped the SYN, as while the accept queue is full. The first
/// client in line (`lines`) sends it again then, and waits twice as long each time.
pub const SYN_WAIT_NS: u64 = 1_000_000;
/// Limit on that time: a program that accepts nothing is sent 20 SYNs a second for each port,
/// however many clients wait.
pub const SYN_WAIT_NS_MAX: u64 = 50_000_000;

/// Idle time after which a UDP flow ends and its port on the host with it.
//= https://www.rfc-editor.org/rfc/rfc4787#section-4.3
//# REQ-5:  A NAT UDP mapping timer MUST NOT expire in less than two
//# minutes, unless REQ-5a applies.
//# c) A default value of five minutes or more for the NAT UDP mapping
//# timer is RECOMMENDED.
pub const UDP_IDLE_NS: u64 = 300_000_000_000;
/// The same for port 53 of other hosts than the forwarder: a question and an answer.
pub const DNS_IDLE_NS: u64 = 15_000_000_000;
/// Idle time after which an echo flow ends.
pub const ECHO_IDLE_NS: u64 = 15_000_000_000;
/// Time for an upstream server to make a connection, from when it is connected itself: as long as
/// nginx waits for a server (proxy_connect_timeout).
pub const NEGOTIATION_NS: u64 = 60_000_000_000;
/// Bytes that an upstream server may send before a connection is made: Node.js takes as many of
/// HTTP headers (--max-http-header-size).
pub const NEGOTIATION_BYTES_MAX: usize = 16_384;
/// Time for which a change of the host's addresses is not over. Routes and rules may come behind an
/// address.
pub const UNSETTLED_NS: u64 = 60_000_000_000;
/// Silence of a peer in that time, after which the source of its flow is looked at, and then again.
/// The look takes four system calls. TCP repeats a SYN after the same time (RFC 6298 §2).
pub const SOURCE_LOOK_NS: u64 = 1_000_000_000;
/// Time after which a program that takes nothing hears that its host failed, although bytes that
/// came before are still to be taken. The bytes are lost then, so the time is that of
/// a stuck program, and not that of a slow one.
pub const FAILED_WAIT_NS: u64 = 60_000_000_000;
/// Interval between looks at the host's resolv.conf, which happen when the program asks for
/// something. A tenth of the time after which resolvers repeat a question.
pub const RESOLV_CONF_LOOK_NS: u64 = 500_000_000;
/// Bytes of the host's resolv.conf that are read. Lines of 3 nameservers take 200, long lists of
/// domains 4 KiB.
pub const RESOLV_CONF_LEN_MAX: usize = 64 * 1024;
/// Nameservers that are asked: MAXNS of resolv.conf(5), as for the programs of the host.
pub const NAMESERVERS_MAX: usize = 3;
/// Seconds that a nameserver is waited for, RES_TIMEOUT of resolv.conf(5), and the most that
/// `timeout:` makes of them, RES_MAXRETRANS of <resolv.h>.
pub const NAMESERVER_TIMEOUT_S: u64 = 5;
/// See [`NAMESERVER_TIMEOUT_S`].
pub const NAMESERVER_TIMEOUT_S_MAX: u64 = 30;
/// How often all nameservers are asked as long as none answers, RES_DFLRETRY of resolv.conf(5), and
/// the most that `attempts:` makes of it, RES_MAXRETRY of <resolv.h>.
pub const NAMESERVER_ATTEMPTS: usize = 2;
/// See [`NAMESERVER_ATTEMPTS`].
pub const NAMESERVER_ATTEMPTS_MAX: usize = 5;
/// Time for which a nameserver that did not answer in time is asked after the others. The longest
/// `timeout:`, so that a dead one is tried, and waited for, no more than twice per minute.
pub const NAMESERVER_SILENT_NS: u64 = NAMESERVER_TIMEOUT_S_MAX * 1_000_000_000;
/// Time that a nameserver has before a repeated question goes to another one: the shortest
/// `timeout:` of resolv.conf(5).
pub const NAMESERVER_REPEAT_NS: u64 = 1_000_000_000;
/// Questions that wait for a nameserver at once, also bounded by descriptors; the one that has
/// waited for longest makes room. dnsmasq has 150 (dns-forward-max) for a whole network.
pub const DNS_QUERIES_MAX: usize = 256;
/// Pause in accepting when descriptors or flows ran out: a flow that is about to end leaves its
/// place to the next client. When none has ended by then, clients are refused until one does.
pub const ACCEPT_PAUSE_NS: u64 = 50_000_000;

/// Room below which bytes of the host are left in the host's socket, so that they come in few large
/// pieces. The room grows as soon as the program acknowledges.
pub const READ_ROOM_MIN: u32 = 16 * 1024;
/// Host connections that wait for `accept`: what Linux clips to `somaxconn` anyway.
pub const BACKLOG: i32 = 4_096;

/// Bytes a flow holds each way, a power of two; also the most that is moved before another flow has
/// its turn. The link's round trip is a turn, so a window of a few of its largest packets keeps it
/// busy.
pub const FIFO_LEN: u32 = 256 * 1024;
/// The same when there are [`FIFOS_LARGE_MAX`] of these: a packet of the link. No read from the
/// host is smaller.
pub const FIFO_LEN_SMALL: u32 = READ_ROOM_MIN;
/// Large FIFOs at once, of which a busy flow has two: 256 MiB when all of them are full. New flows
/// have half of them, so that idle ones leave the rest to busy ones.
pub const FIFOS_LARGE_MAX: usize = 1_024;
/// Free FIFO memory that is kept for the next flow: 16 MiB, and 1 MiB of small ones.
pub const FIFOS_KEPT_MAX: usize = 64;
/// Bytes of the longest datagram: what the length of an IPv6 packet can say, less the UDP header.
/// IPv4's is shorter by the IP header.
pub const DATAGRAM_LEN_MAX: usize = 65_535 - 8;
/// Bytes of datagrams sent to the host by one system call: what one IPv4 packet could carry.
pub const TRAIN_LEN_MAX: usize = 65_507;
/// Datagrams sent by one system call: half of Linux's `UDP_MAX_SEGMENTS`, which was 64 once.
pub const TRAIN_DATAGRAMS_MAX: usize = 64;
/// Errors that wait to be told to the program.
pub const ERRORS_MAX: usize = 256;
/// Reports taken from one host socket before another has its turn.
pub const ERRORS_PER_TURN: usize = 64;

/// The default TTL and hop limit of Towpath and of Linux (RFC 1700: 64). A packet that has it is
/// taken to ask for none of its own, and leaves with the host's default (net.ipv4.ip_default_ttl).
pub const PLAIN_TTL: u8 = 64;

/// How long the host's sockets are not asked by a stack that never sleeps, in ns.
pub const LISTEN_EVERY_NS: u64 = 20_000;

/// Published ports that one look at a kernel's sockets asks about (`polled`). Their questions take
/// half a millisecond together.
pub const PORTS_PER_LOOK: usize = 64;
