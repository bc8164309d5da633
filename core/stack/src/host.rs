//! The interface between a stack and its owner: callbacks, and the values that pass.

use std::net::{IpAddr, SocketAddr};

use towpath_ring::{Payload, RecvBuffer, SendBuffer};
use towpath_tcp::Instant;

use crate::net::{IcmpError, IfaceId};
use crate::shards::ShardId;

/// Names a socket: index in the low half, generation in the high one. Dead ids stay dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// Names a SYN on an any-address interface that waits for [`crate::Stack::accept_pending`] or
/// [`crate::Stack::refuse_pending`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingId(pub u64);

/// The owner of a stack: supplies buffers and takes events. Called back within
/// [`crate::Stack::turn`] only.
///
/// `user` is the number that the owner gave when the socket was made. The number belongs to that
/// socket until [`SocketEvent::Closed`], the last event of every socket, which comes exactly once.
pub trait Host {
    /// Where received bytes go.
    type Recv: RecvBuffer;
    /// Where bytes to be sent come from.
    type Send: SendBuffer;

    /// Bytes that the receive buffer of a new child will have room for. SYN-ACKs of the listener
    /// whose user is `listener` offer that. Bytes beyond a smaller buffer are dropped, and sent
    /// again.
    fn recv_room(&self, listener: u32) -> u32;

    /// The same for a listener of another shard.
    fn recv_room_for(&self, listener: &Elsewhere) -> u32 {
        self.recv_room(listener.user)
    }

    /// A handshake finished on the listener whose user is `listener`. Returns the child's user and
    /// buffers, or `None` when there is no room: the final ACK is then dropped and the peer repeats
    /// it.
    ///
    /// The child waits in the listener's accept queue until the owner calls
    /// [`crate::Stack::accepted`]. When the listener is closed, the owner has to abort its
    /// children.
    fn accept(
        &mut self,
        listener: u32,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, Self::Recv, Self::Send)>;

    /// As [`Host::accept`], of a listener of another shard. The child waits in no queue yet: its
    /// user is given to [`Host::enqueue`] of the listener's shard, or to [`Host::refused`] of this
    /// one.
    fn accept_for(
        &mut self,
        listener: &Elsewhere,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ChildElsewhere<Self::Recv, Self::Send>> {
        let _ = (listener, child, local, remote);
        None
    }

    /// Puts a child of another shard into the accept queue of the listener whose user is
    /// `listener`, with its addresses. `child` is its user and its [tag](ChildElsewhere::tag).
    /// There the owner calls [`crate::Stack::accepted`] as for any other. False: there is no room,
    /// and the child waits until [`crate::Stack::offer_again`].
    fn enqueue(
        &mut self,
        listener: u32,
        child: (u32, u32),
        local: SocketAddr,
        remote: SocketAddr,
    ) -> bool {
        let _ = (listener, child, local, remote);
        false
    }

    /// The child of another shard's listener, with its [tag](ChildElsewhere::tag), comes into no
    /// accept queue: the listener is gone. [`SocketEvent::Closed`] follows if it has not come yet.
    fn refused(&mut self, child: u32, tag: u32) {
        let _ = (child, tag);
    }

    /// A listener of another shard is gone. Children that [wait](ChildElsewhere::waits) for it are
    /// the owner's to abort.
    fn listener_gone(&mut self, listener: &Elsewhere) {
        let _ = listener;
    }

    /// A message that the owner of another shard sent with [`crate::Stack::tell_owner`]. Messages
    /// arrive in order, and after everything that its stack sent before.
    fn told(&mut self, from: ShardId, words: [u64; 3]) {
        let _ = (from, words);
    }

    /// A SYN came in on an any-address interface and no listener is there. Nothing is answered
    /// until the owner decides.
    fn syn(&mut self, pending: PendingId, local: SocketAddr, remote: SocketAddr) {
        let _ = (pending, local, remote);
    }

    /// A SYN that the owner has not decided about came again.
    fn syn_repeated(&mut self, pending: PendingId) {
        let _ = pending;
    }

    /// A SYN from `remote` needs the place of one that the owner has not decided about. Returns the
    /// one that is given up for it; None: the one that was repeated longest ago.
    fn displace_syn(&mut self, remote: SocketAddr) -> Option<PendingId> {
        let _ = remote;
        None
    }

    /// A SYN that the owner has not decided about is given up. Its sender has not repeated it for
    /// [`PENDING_TIMEOUT`](crate::limits::PENDING_TIMEOUT), or there were too many
    /// ([`Host::displace_syn`]). The id is dead; work that was begun for it is in vain.
    fn syn_forgotten(&mut self, pending: PendingId) {
        let _ = pending;
    }

    /// A datagram (or, on an echo socket, an ICMP message from its header on). False when there is
    /// no room for it: it is dropped and counted.
    fn datagram(&mut self, user: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool;

    /// Whether the socket of `user` takes datagrams together that the device or their sender merged
    /// (UDP_GRO). [`DatagramMeta::segment_size`] says then how long each is.
    fn takes_merged(&self, user: u32) -> bool {
        let _ = user;
        false
    }

    /// The program of the socket of `user`, a number that its owner chose. Datagrams that wait for
    /// long filters wait for those of their own program alone.
    fn payer(&self, user: u32) -> u64 {
        let _ = user;
        0
    }

    /// The socket's filter ([`crate::Stack::set_filter`]) dropped a datagram.
    fn filtered(&mut self, user: u32) {
        let _ = user;
    }

    /// A datagram on an any-address interface that no socket takes.
    fn stray_datagram(&mut self, meta: &DatagramMeta, payload: &Payload<'_>) {
        let _ = (meta, payload);
    }

    /// An echo request on an any-address interface to an address that is not ours; answered with
    /// [`crate::Stack::send_echo_from`].
    fn stray_echo(&mut self, meta: &EchoMeta, payload: &Payload<'_>) {
        let _ = (meta, payload);
    }

    /// An ICMP error about a datagram of [`crate::Stack::send_datagram_from`], in the name of
    /// another host. False when the owner does not know the datagram: the error is counted as
    /// stray. Otherwise the stack lowers the path MTU if the error reports one.
    fn stray_error(&mut self, error: &IcmpError) -> bool {
        let _ = error;
        false
    }

    /// An ICMP error about a datagram of a socket that has [`crate::SocketOption::RecvErrors`].
    fn datagram_error(&mut self, user: u32, error: DatagramError) {
        let _ = (user, error);
    }

    /// Something happened to the socket of `user`.
    fn event(&mut self, user: u32, event: SocketEvent);
}

/// Data of a listener's owner that all shards have which make connections for it. The stack does
/// not interpret it.
pub type ListenerNote = [u32; 10];

/// A listener as another shard knows it.
#[derive(Debug, Clone, Copy)]
pub struct Elsewhere {
    /// The number that its owner gave it.
    pub user: u32,
    /// Data of its owner.
    pub note: ListenerNote,
    /// For [`crate::Stack::offer_to`].
    pub name: ListenerName,
}

/// Names a listener in all shards. Dead names stay dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerName {
    pub(crate) shard: ShardId,
    pub(crate) id: SocketId,
}

/// Number and buffers that the owner gives a child whose listener is in another shard.
#[derive(Debug)]
pub struct ChildElsewhere<R, S> {
    /// Its number.
    pub user: u32,
    /// A number beside it, for [`Host::enqueue`].
    pub tag: u32,
    /// Where received bytes go.
    pub recv: R,
    /// Where bytes to be sent come from.
    pub send: S,
    /// The child is not to be accepted before the owner calls [`crate::Stack::offer_to`].
    pub waits: bool,
}

/// An event of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketEvent {
    /// Bytes were committed to the receive buffer.
    Readable,
    /// Bytes were released from the send buffer, or sent from one of which little may be unsent.
    Writable,
    /// The peer sent urgent data, or announced it: the receive buffer has its mark.
    Urgent {
        /// The mark is another one than before: SIGURG is due.
        is_new: bool,
    },
    /// The handshake of a connect is done.
    Connected,
    /// The peer sends no more (FIN): after the unread bytes comes the end of the stream.
    PeerClosed,
    /// The connection failed and is over, or an ICMP error came for a datagram.
    Error(SocketError),
    /// The socket is gone, its buffers are dropped, its id is dead. Always the last event.
    Closed,
}

/// Why a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer reset an established connection.
    Reset,
    /// The peer refused the connection.
    Refused,
    /// Retransmissions, keepalive probes or the user timeout gave up.
    TimedOut,
    /// A router or the neighbour table says the host cannot be reached.
    HostUnreachable,
    /// A router or the route table says the network cannot be reached.
    NetUnreachable,
    /// No socket has the peer's port.
    PortUnreachable,
    /// The peer does not speak the protocol.
    ProtocolUnreachable,
    /// A router could not follow a source route.
    SourceRouteFailed,
    /// A router knows no such host.
    HostUnknown,
    /// The host is isolated, a router says.
    HostIsolated,
    /// A filter on the way forbids it.
    Prohibited,
    /// A router or the peer makes no sense of the packet's headers.
    BadHeader,
    /// A datagram was longer than this path MTU, in bytes of IP packet.
    MessageTooBig(u32),
    /// Another connection has the program's port towards the same peer. Only with several shards: a
    /// single stack fails at once ([`crate::ConnectError::AddrInUse`]).
    AddrNotAvailable,
}

/// A report about a datagram that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatagramError {
    /// Error that a socket without reports would get.
    pub reason: SocketError,
    /// The ICMP message, which is of the IP version of `remote`. None: this host found it out
    /// itself.
    pub message: Option<Message>,
    /// Where the datagram was sent to.
    pub remote: SocketAddr,
    /// As much of its payload as is quoted.
    pub payload: Vec<u8>,
}

/// The ICMP message about a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// Sender of the message.
    pub from: IpAddr,
    /// The interface that it came in on.
    pub iface: IfaceId,
}

/// About a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramMeta {
    /// Where it was sent to. For echo sockets the port is the identifier.
    pub local: SocketAddr,
    /// Sender of the datagram.
    pub remote: SocketAddr,
    /// Interface it came in on. For a datagram of this host to itself, the interface that has the
    /// destination address.
    pub iface: IfaceId,
    /// TTL or hop limit it arrived with.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// IPv4: its sender forbade to fragment it.
    pub dont_fragment: bool,
    /// When the device received it.
    pub arrival: Instant,
    /// Length of each of several datagrams that come together; the last may be shorter. 0: there is
    /// one.
    pub segment_size: u16,
}

/// A datagram in the name of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramFrom {
    /// The sender that it names.
    pub local: SocketAddr,
    /// Destination.
    pub remote: SocketAddr,
    /// TTL or hop limit; `None` for the default.
    pub ttl: Option<u8>,
    /// Type of service or traffic class.
    pub tos: u8,
}

/// About a received echo request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoMeta {
    /// The address that is asked.
    pub local: IpAddr,
    /// The address that asks.
    pub remote: IpAddr,
    /// Identifier.
    pub ident: u16,
    /// Sequence number.
    pub seq: u16,
    /// TTL or hop limit it arrived with.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// The IPv4 header forbids to fragment it.
    pub dont_fragment: bool,
}

/// A datagram to be sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatagramOut {
    /// Destination; the connected peer when `None`.
    pub remote: Option<SocketAddr>,
    /// Source address, instead of the bound or chosen one.
    pub local: Option<IpAddr>,
    /// Over which interface, instead of the routed one.
    pub iface: Option<IfaceId>,
    /// TTL or hop limit, instead of the socket's.
    pub ttl: Option<u8>,
    /// Type of service or traffic class, instead of the socket's.
    pub tos: Option<u8>,
    /// Cut the payload into datagrams of this many bytes (UDP_SEGMENT).
    pub segment_size: Option<u16>,
}

/// Type of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// TCP.
    Stream,
    /// UDP.
    Datagram,
    /// ICMP echo ("ping socket"); the identifier takes the place of the port.
    Echo,
}

/// Address family of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6, and IPv4 too unless bound with `v6_only`.
    ///
    /// The stack itself never shows IPv4-mapped addresses: it takes them and gives plain IPv4 ones.
    V6,
}

/// How to bind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// SO_REUSEADDR: streams share a port as long as none listens, datagram sockets always, if all
    /// of them say so (socket(7)).
    pub reuse_addr: bool,
    /// SO_REUSEPORT: several listeners share the load, several datagram sockets too.
    pub reuse_port: bool,
    /// IPV6_V6ONLY: a [`Family::V6`] socket has nothing to do with IPv4.
    pub v6_only: bool,
    /// IP_FREEBIND: the address need not be ours.
    pub free_bind: bool,
    /// IP_LOCAL_PORT_RANGE: first and last port to be chosen, as far as they lie in
    /// [`StackConfig::ephemeral`](crate::StackConfig::ephemeral); 0: no bound of its own.
    pub ports: (u16, u16),
    /// SO_INCOMING_CPU: among sockets with `reuse_port`, packets go to the one with the processor
    /// that the stack [runs on](crate::Stack::runs_on).
    pub processor: Option<u32>,
}

impl BindOptions {
    /// Without any option: as [`BindOptions::default`], for constants.
    pub const PLAIN: Self = Self {
        reuse_addr: false,
        reuse_port: false,
        v6_only: false,
        free_bind: false,
        ports: (0, 0),
        processor: None,
    };
}

/// How to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linger {
    /// Bytes in the send buffer go out in the background, then FIN.
    Default,
    /// RST (SO_LINGER with zero), behind the bytes for which the windows have room now: see
    /// [`Connection::abort`](towpath_tcp::Connection::abort).
    Abort,
}

/// The answer to a pending SYN that is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// RST: connection refused.
    Reset,
    /// ICMP: host unreachable.
    HostUnreachable,
    /// ICMP: network unreachable.
    NetUnreachable,
    /// ICMP: administratively prohibited.
    AdminProhibited,
    /// No answer; a repeated SYN asks again.
    Ignore,
}

/// How much one turn may do, so that neither direction nor one connection starves another.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Packets taken from each port.
    pub rx_packets: usize,
    /// Packets (up to 64 KiB each) made by connections.
    pub tx_packets: usize,
}

impl Default for Budget {
    /// 256 ordinary frames, or 4 MiB in large packets, are some 100 µs of work: no other duty of
    /// the engine's thread waits longer.
    fn default() -> Self {
        Self { rx_packets: 256, tx_packets: 256 }
    }
}

/// Result of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// Packets received from ports.
    pub received: usize,
    /// Packets given to ports.
    pub sent: usize,
    /// Work of datagrams with filters, or with many receivers, in instructions of filters.
    pub filter_steps: usize,
    /// There is more to do now: turn again without sleeping.
    pub more: bool,
    /// The shards that have mail, a bit each: wake those that sleep. 0 for a single stack.
    pub mail: u16,
}
