//! Interface between a stack and its owner: callbacks and their argument types.

use std::net::{IpAddr, SocketAddr};

use towpath_ring::{Payload, RecvBuffer, SendBuffer};
use towpath_tcp::Instant;

use crate::net::{IcmpError, IfaceId};
use crate::received::ReceivedFields;
use crate::shards::ShardId;

/// Socket id: index in the lower half, generation in the upper half. Ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// Id of an undecided SYN on an any-address interface, for [`crate::Stack::accept_pending`] or
/// [`crate::Stack::refuse_pending`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingId(pub u64);

/// Owner of a stack, which supplies buffers and receives events. Called only from
/// [`crate::Stack::turn`].
///
/// `user` is the number that the owner assigned when it created the socket. The number belongs to
/// the socket until [`SocketEvent::Closed`], the last event of every socket, which is sent exactly
/// once.
pub trait Host {
    /// Receive buffer.
    type Recv: RecvBuffer;
    /// Send buffer.
    type Send: SendBuffer;

    /// Returns the receive buffer capacity in bytes of new children, which SYN-ACKs of the listener
    /// advertise. `listener` is its user. If the actual buffer is smaller, excess bytes are dropped
    /// and retransmitted.
    fn recv_room(&self, listener: u32) -> u32;

    /// Like [`Host::recv_room`], for a listener of another shard.
    fn recv_room_for(&self, listener: &Elsewhere) -> u32 {
        self.recv_room(listener.user)
    }

    /// Handles a completed handshake of the listener whose user is `listener`. Returns the child's
    /// user and buffers, or `None` if there is no room: the final ACK is then dropped, so that the
    /// peer retransmits.
    ///
    /// The child is in the listener's accept queue until the owner calls
    /// [`crate::Stack::accepted`]. When the owner closes the listener, it must abort the children
    /// in the queue.
    fn accept(
        &mut self,
        listener: u32,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, Self::Recv, Self::Send)>;

    /// Same as [`Host::accept`] for a listener of another shard. The child is not in a queue yet:
    /// its user is passed to [`Host::enqueue`] of the listener's shard, or to [`Host::refused`] of
    /// this shard.
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

    /// Adds a child of another shard to the accept queue of the listener whose user is `listener`.
    /// `child` is the child's user and [tag](ChildElsewhere::tag). As for other children, the owner
    /// later calls [`crate::Stack::accepted`]. Returns false if the queue is full; the child then
    /// waits until [`crate::Stack::offer_again`].
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

    /// Reports that a child for another shard's listener, given by user and
    /// [tag](ChildElsewhere::tag), was refused because the listener is closed.
    /// [`SocketEvent::Closed`] follows unless it was already sent.
    fn refused(&mut self, child: u32, tag: u32) {
        let _ = (child, tag);
    }

    /// Reports that a listener of another shard was closed. The owner must abort the children that
    /// [wait](ChildElsewhere::waits) for it.
    fn listener_gone(&mut self, listener: &Elsewhere) {
        let _ = listener;
    }

    /// Receives a message that another shard's owner sent using [`crate::Stack::tell_owner`].
    /// Messages arrive in order, and after everything that the stack of that shard sent before.
    fn told(&mut self, from: ShardId, words: [u64; 3]) {
        let _ = (from, words);
    }

    /// Reports the IP fields of a processed segment of a connection. Most owners ignore them.
    fn received_fields(&mut self, user: u32, fields: ReceivedFields) {
        let _ = (user, fields);
    }

    /// Reports a SYN on an any-address interface without a matching listener. The stack does not
    /// answer until the owner decides.
    fn syn(&mut self, pending: PendingId, local: SocketAddr, remote: SocketAddr) {
        let _ = (pending, local, remote);
    }

    /// Reports that an undecided SYN was retransmitted.
    fn syn_repeated(&mut self, pending: PendingId) {
        let _ = pending;
    }

    /// Chooses an undecided SYN to evict for a SYN from `remote`. `None` lets the stack evict the
    /// one whose last retransmission is the oldest.
    fn displace_syn(&mut self, remote: SocketAddr) -> Option<PendingId> {
        let _ = remote;
        None
    }

    /// Reports that an undecided SYN was dropped: its sender has not retransmitted for
    /// [`PENDING_TIMEOUT`](crate::limits::PENDING_TIMEOUT), or it was evicted
    /// ([`Host::displace_syn`]). The id is invalid from now on.
    fn syn_forgotten(&mut self, pending: PendingId) {
        let _ = pending;
    }

    /// Receives a datagram (for echo sockets, an ICMP message including its header). Returns false
    /// if there is no room, so that the stack counts it as dropped.
    fn datagram(&mut self, user: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool;

    /// Returns whether the socket of `user` accepts coalesced datagrams (UDP_GRO), whose length is
    /// in [`DatagramMeta::segment_size`].
    fn takes_merged(&self, user: u32) -> bool {
        let _ = user;
        false
    }

    /// Returns the number of the program that owns the socket of `user`. Datagrams deferred because
    /// of long filters delay only datagrams of the same program.
    fn payer(&self, user: u32) -> u64 {
        let _ = user;
        0
    }

    /// Reports that the socket's filter ([`crate::Stack::set_filter`]) dropped a datagram.
    fn filtered(&mut self, user: u32) {
        let _ = user;
    }

    /// Receives a datagram on an any-address interface without a matching socket.
    fn stray_datagram(&mut self, meta: &DatagramMeta, payload: &Payload<'_>) {
        let _ = (meta, payload);
    }

    /// Receives an echo request on an any-address interface to a foreign address, to be answered
    /// using [`crate::Stack::send_echo_from`].
    fn stray_echo(&mut self, meta: &EchoMeta, payload: &Payload<'_>) {
        let _ = (meta, payload);
    }

    /// Receives an ICMP error about a datagram of [`crate::Stack::send_datagram_from`]. Returns
    /// false if the owner does not know the datagram, so that the error is counted as stray.
    /// Otherwise the stack lowers the path MTU if the error reports one.
    fn stray_error(&mut self, error: &IcmpError) -> bool {
        let _ = error;
        false
    }

    /// Receives an ICMP error about a datagram of a socket with
    /// [`crate::SocketOption::RecvErrors`].
    fn datagram_error(&mut self, user: u32, error: DatagramError) {
        let _ = (user, error);
    }

    /// Receives an event of the socket of `user`.
    fn event(&mut self, user: u32, event: SocketEvent);
}

/// Opaque data of a listener's owner, available in all shards that create connections for it.
pub type ListenerNote = [u32; 10];

/// Listener of another shard.
#[derive(Debug, Clone, Copy)]
pub struct Elsewhere {
    /// Number assigned by the listener's owner.
    pub user: u32,
    /// Opaque data of the owner.
    pub note: ListenerNote,
    /// Id of the listener, for [`crate::Stack::offer_to`].
    pub name: ListenerName,
}

/// Id of a listener that is unique among all shards; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerName {
    pub(crate) shard: ShardId,
    pub(crate) id: SocketId,
}

/// User number and buffers of a child whose listener is in another shard.
#[derive(Debug)]
pub struct ChildElsewhere<R, S> {
    /// User number of the child.
    pub user: u32,
    /// Additional number from the owner, which the stack returns in [`Host::enqueue`] and
    /// [`Host::refused`].
    pub tag: u32,
    /// Receive buffer.
    pub recv: R,
    /// Send buffer.
    pub send: S,
    /// Whether the child must not be accepted before the owner calls [`crate::Stack::offer_to`].
    pub waits: bool,
}

/// Event of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketEvent {
    /// Bytes were added to the receive buffer.
    Readable,
    /// Bytes were acknowledged and released from the send buffer. With TCP_NOTSENT_LOWAT, which
    /// limits unsent bytes, also: bytes were sent.
    Writable,
    /// The peer sent or announced urgent data; its mark is in the receive buffer.
    Urgent {
        /// Whether the mark has moved, so that SIGURG is due.
        is_new: bool,
    },
    /// The handshake of a connect has completed.
    Connected,
    /// The peer sent a FIN: the stream ends after the unread bytes.
    PeerClosed,
    /// The connection has failed, or an ICMP error arrived for a datagram.
    Error(SocketError),
    /// The socket was removed with its buffers, and its id is invalid. Always the last event.
    Closed,
}

/// Error of a connection or datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer reset an established connection.
    Reset,
    /// The peer refused the connection.
    Refused,
    /// Retransmissions, keepalive probes or the user timeout expired.
    TimedOut,
    /// The host is unreachable according to a router or the neighbour table.
    HostUnreachable,
    /// The network is unreachable according to a router or the routing table.
    NetUnreachable,
    /// No socket uses the peer's port.
    PortUnreachable,
    /// The peer does not support the protocol.
    ProtocolUnreachable,
    /// A router could not follow a source route.
    SourceRouteFailed,
    /// The host is unknown to a router.
    HostUnknown,
    /// The host is isolated according to a router.
    HostIsolated,
    /// A packet filter on the path prohibits the communication.
    Prohibited,
    /// A router or the peer rejected the packet's headers.
    BadHeader,
    /// A datagram exceeded this path MTU, given as IP packet length in bytes.
    MessageTooBig(u32),
    /// Another connection uses the same local port and peer. Only with several shards: a single
    /// stack fails at once ([`crate::ConnectError::AddrInUse`]).
    AddrNotAvailable,
}

/// Error report about a sent datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatagramError {
    /// Error for a socket without detailed reports.
    pub reason: SocketError,
    /// ICMP message, of the same IP version as `remote`; `None` if the error originates on this
    /// host.
    pub message: Option<Message>,
    /// Destination of the datagram.
    pub remote: SocketAddr,
    /// Part of the datagram's payload that the ICMP message quotes.
    pub payload: Vec<u8>,
}

/// ICMP message about a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// Sender of the ICMP message.
    pub from: IpAddr,
    /// Interface that received the message.
    pub iface: IfaceId,
}

/// Metadata of a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramMeta {
    /// Destination. For echo sockets the port is the identifier.
    pub local: SocketAddr,
    /// Source address. For echo sockets the port is the identifier.
    pub remote: SocketAddr,
    /// Receiving interface. For a datagram of this host to itself, the interface with the
    /// destination address.
    pub iface: IfaceId,
    /// Received TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// IPv4 don't-fragment bit.
    pub dont_fragment: bool,
    /// Time at which the device received the datagram.
    pub arrival: Instant,
    /// Length in bytes of each of several coalesced datagrams; the last may be shorter. 0 for a
    /// single datagram.
    pub segment_size: u16,
}

/// Datagram to send from any source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramFrom {
    /// Source address.
    pub local: SocketAddr,
    /// Destination address.
    pub remote: SocketAddr,
    /// TTL or hop limit; `None` uses the default.
    pub ttl: Option<u8>,
    /// Type of service or traffic class.
    pub tos: u8,
}

/// Metadata of a received echo request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoMeta {
    /// Destination address.
    pub local: IpAddr,
    /// Source address.
    pub remote: IpAddr,
    /// Identifier of the echo request (RFC 792, RFC 4443 §4).
    pub ident: u16,
    /// Sequence number of the echo request (RFC 792, RFC 4443 §4).
    pub seq: u16,
    /// Received TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// IPv4 don't-fragment bit.
    pub dont_fragment: bool,
}

/// Datagram to send.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatagramOut {
    /// Destination; `None` uses the connected peer.
    pub remote: Option<SocketAddr>,
    /// Source address; overrides the bound or chosen one.
    pub local: Option<IpAddr>,
    /// Sending interface; overrides the route's.
    pub iface: Option<IfaceId>,
    /// TTL or hop limit; overrides the socket's.
    pub ttl: Option<u8>,
    /// Type of service or traffic class; overrides the socket's.
    pub tos: Option<u8>,
    /// Segment the payload into datagrams of this length in bytes (UDP_SEGMENT).
    pub segment_size: Option<u16>,
}

/// Kind of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// Stream socket (TCP).
    Stream,
    /// Datagram socket (UDP).
    Datagram,
    /// ICMP echo ("ping socket"); the identifier is used as the port.
    Echo,
}

/// Address family of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6, and IPv4 unless bound with `v6_only`.
    ///
    /// The stack accepts IPv4-mapped addresses but always returns plain IPv4 addresses.
    V6,
}

/// Options of a bind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// SO_REUSEADDR: stream sockets share a port if none listens, and datagram sockets always,
    /// provided that all of them set the option (socket(7)).
    pub reuse_addr: bool,
    /// SO_REUSEPORT: several listeners or datagram sockets share the load.
    pub reuse_port: bool,
    /// IPV6_V6ONLY: a [`Family::V6`] socket does not use IPv4.
    pub v6_only: bool,
    /// IP_FREEBIND: the address need not belong to this host.
    pub free_bind: bool,
    /// IP_LOCAL_PORT_RANGE: first and last ephemeral port, within
    /// [`StackConfig::ephemeral`](crate::StackConfig::ephemeral); 0 sets no bound.
    pub ports: (u16, u16),
    /// SO_INCOMING_CPU: among sockets with `reuse_port`, packets go to the socket with the CPU that
    /// the stack [runs on](crate::Stack::runs_on).
    pub processor: Option<u32>,
}

impl BindOptions {
    /// All options unset; same as [`BindOptions::default`], but const.
    pub const PLAIN: Self = Self {
        reuse_addr: false,
        reuse_port: false,
        v6_only: false,
        free_bind: false,
        ports: (0, 0),
        processor: None,
    };
}

/// Close behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linger {
    /// Sends the remaining bytes in the background, then a FIN.
    Default,
    /// Sends a RST (SO_LINGER with zero) after the bytes that fit the windows now: see
    /// [`Connection::abort`](towpath_tcp::Connection::abort).
    Abort,
}

/// Answer to an undecided SYN that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Answer by a RST, so that the peer's connect is refused.
    Reset,
    /// Answer by the ICMP error "host unreachable".
    HostUnreachable,
    /// Answer by the ICMP error "network unreachable".
    NetUnreachable,
    /// Answer by the ICMP error "communication administratively prohibited".
    AdminProhibited,
    /// No answer; a retransmitted SYN is reported again.
    Ignore,
}

/// Work limit of a turn, so that neither direction and no connection starves another.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Maximum number of packets received from each port.
    pub rx_packets: usize,
    /// Maximum number of packets (up to 64 KiB each) sent by connections.
    pub tx_packets: usize,
}

impl Default for Budget {
    /// 256 ordinary frames, or 4 MiB in large packets, take about 100 µs. The engine's other tasks
    /// wait no longer than that.
    fn default() -> Self {
        Self { rx_packets: 256, tx_packets: 256 }
    }
}

/// Result of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// Number of packets received from ports.
    pub received: usize,
    /// Number of packets passed to ports.
    pub sent: usize,
    /// Work of datagrams with filters or many receivers, in filter instructions.
    pub filter_steps: usize,
    /// More work is pending: call again without sleeping.
    pub more: bool,
    /// Bit set of shards with new messages, which must be woken if they sleep. 0 for a single
    /// stack.
    pub mail: u16,
}
