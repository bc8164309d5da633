//! Interface between a stack and its owner: the trait of callbacks, and the types of their
//! arguments.

use std::net::{IpAddr, SocketAddr};

use towpath_ring::{Payload, RecvBuffer, SendBuffer};
use towpath_tcp::Instant;

use crate::net::{IcmpError, IfaceId};
use crate::received::ReceivedFields;
use crate::shards::ShardId;

/// Socket identifier: table index in the lower half, generation in the upper half. An identifier is
/// never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// Identifier of a SYN that waits for [`crate::Stack::accept_pending`] or
/// [`crate::Stack::refuse_pending`]. The SYNs arrive on interfaces that accept packets to any
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingId(pub u64);

/// Owner of a stack, which supplies buffers and receives events. The stack calls these functions
/// only in [`crate::Stack::turn`].
///
/// `user` is the number that the owner assigned when it created the socket. The number must not be
/// reused until [`SocketEvent::Closed`] was sent, which is the last event of every socket.
pub trait Host {
    /// Type of the receive buffers of connections.
    type Recv: RecvBuffer;
    /// Type of the send buffers of connections.
    type Send: SendBuffer;

    /// Returns the receive buffer size in bytes of connections that a listener will accept.
    /// SYN-ACKs advertise this size as window. `listener` is the listener's user number. If the
    /// buffer of a connection is smaller, excess bytes are dropped, and the peer retransmits them.
    fn recv_room(&self, listener: u32) -> u32;

    /// Like [`Host::recv_room`], for a listener of another shard (another stack of this host).
    fn recv_room_for(&self, listener: &Elsewhere) -> u32 {
        self.recv_room(listener.user)
    }

    /// Handles the completed handshake of a connection to a listener. `listener` is the listener's
    /// user number. Returns the user number and the buffers of the new connection (the child).
    /// Returns `None` if the owner has no memory for a connection. The last ACK of the handshake is
    /// then dropped, and the peer retransmits it.
    ///
    /// The child is in the listener's accept queue until the owner calls
    /// [`crate::Stack::accepted`]. When the owner closes the listener, it must abort the
    /// connections in this queue.
    fn accept(
        &mut self,
        listener: u32,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, Self::Recv, Self::Send)>;

    /// Same as [`Host::accept`], for a listener of another shard (another stack of this host). The
    /// connection is not in an accept queue yet. Its user number is later passed to
    /// [`Host::enqueue`] in the listener's shard, or to [`Host::refused`] in this shard.
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

    /// Adds a connection of another shard (another stack of this host) to a listener's accept
    /// queue. `listener` is the user number of the listener, `child` the user number and
    /// [tag](ChildElsewhere::tag) of the connection. The owner later calls
    /// [`crate::Stack::accepted`], as for connections of its own shard.
    ///
    /// Returns false if the queue is full. The connection then waits until
    /// [`crate::Stack::offer_again`].
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

    /// Reports that a connection for a listener of another shard was refused, because the listener
    /// is closed. `child` is the user number of the connection, and `tag` its
    /// [tag](ChildElsewhere::tag). [`SocketEvent::Closed`] follows unless it was already sent.
    fn refused(&mut self, child: u32, tag: u32) {
        let _ = (child, tag);
    }

    /// Reports that a listener of another shard (another stack of this host) was closed. The owner
    /// must abort the connections that [wait](ChildElsewhere::waits) for this listener.
    fn listener_gone(&mut self, listener: &Elsewhere) {
        let _ = listener;
    }

    /// Receives a message that the owner of another shard sent using [`crate::Stack::tell_owner`].
    /// Messages of one shard arrive in order, also relative to the packets and connections that it
    /// passed to this shard.
    fn told(&mut self, from: ShardId, words: [u64; 3]) {
        let _ = (from, words);
    }

    /// Reports the IP header fields of a segment that a connection has processed. Most owners
    /// ignore them.
    fn received_fields(&mut self, user: u32, fields: ReceivedFields) {
        let _ = (user, fields);
    }

    /// Reports a SYN to any address that matches no listener, on an interface that accepts packets
    /// to any address. The stack does not answer until the owner accepts or refuses the SYN.
    fn syn(&mut self, pending: PendingId, local: SocketAddr, remote: SocketAddr) {
        let _ = (pending, local, remote);
    }

    /// Reports that a SYN was retransmitted while it waits to be accepted or refused.
    fn syn_repeated(&mut self, pending: PendingId) {
        let _ = pending;
    }

    /// Chooses which of the SYNs that wait for a decision is evicted to make room for a SYN from
    /// `remote`. If this returns `None`, the stack evicts the SYN that was not retransmitted for
    /// the longest time.
    fn displace_syn(&mut self, remote: SocketAddr) -> Option<PendingId> {
        let _ = remote;
        None
    }

    /// Reports that a SYN was dropped before the owner accepted or refused it. Either its sender
    /// has not retransmitted it for [`PENDING_TIMEOUT`](crate::limits::PENDING_TIMEOUT), or another
    /// SYN replaced it ([`Host::displace_syn`]). Its identifier is invalid from now on.
    fn syn_forgotten(&mut self, pending: PendingId) {
        let _ = pending;
    }

    /// Receives a datagram for the socket with the number `user`. For an ICMP echo socket, this is
    /// an ICMP message with its header. Returns false if the receive queue is full; the stack then
    /// counts the datagram as dropped.
    fn datagram(&mut self, user: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool;

    /// Returns whether the socket `user` accepts several datagrams that were merged into one
    /// (UDP_GRO). [`DatagramMeta::segment_size`] is the length of each.
    fn takes_merged(&self, user: u32) -> bool {
        let _ = user;
        false
    }

    /// Returns the number of the program that owns the socket with the number `user`. If the socket
    /// filters of one program are slow, only datagrams of this program are delayed.
    fn payer(&self, user: u32) -> u64 {
        let _ = user;
        0
    }

    /// Reports that the socket filter ([`crate::Stack::set_filter`]) of the socket `user` dropped a
    /// datagram.
    fn filtered(&mut self, user: u32) {
        let _ = user;
    }

    /// Receives a datagram that matches no socket, on an interface that accepts packets to any
    /// address.
    fn stray_datagram(&mut self, meta: &DatagramMeta, payload: &Payload<'_>) {
        let _ = (meta, payload);
    }

    /// Receives an ICMP echo request to an address that is not the host's own, on an interface that
    /// accepts packets to any address. Answer it using [`crate::Stack::send_echo_from`].
    fn stray_echo(&mut self, meta: &EchoMeta, payload: &Payload<'_>) {
        let _ = (meta, payload);
    }

    /// Receives an ICMP error about a datagram that [`crate::Stack::send_datagram_from`] sent.
    /// Returns false if the owner did not send such a datagram; the error is then counted as
    /// dropped. Otherwise the stack lowers the path MTU if the error reports one.
    fn stray_error(&mut self, error: &IcmpError) -> bool {
        let _ = error;
        false
    }

    /// Receives an ICMP error about a datagram that the socket `user` sent. Called only for sockets
    /// with [`crate::SocketOption::RecvErrors`].
    fn datagram_error(&mut self, user: u32, error: DatagramError) {
        let _ = (user, error);
    }

    /// Receives an event of the socket `user`.
    fn event(&mut self, user: u32, event: SocketEvent);
}

/// Data that the owner attaches to a listener. The stack does not interpret the data. All shards
/// (stacks of this host) that accept connections for the listener get a copy.
pub type ListenerNote = [u32; 10];

/// A listener of another shard (another stack of this host), for which this shard accepts
/// connections.
#[derive(Debug, Clone, Copy)]
pub struct Elsewhere {
    /// User number that the listener's owner assigned to the listener.
    pub user: u32,
    /// Data that the owner attached to the listener. The stack does not interpret them.
    pub note: ListenerNote,
    /// Identifier of the listener, for [`crate::Stack::offer_to`].
    pub name: ListenerName,
}

/// Identifier of a listener that is unique among all shards, and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerName {
    pub(crate) shard: ShardId,
    pub(crate) id: SocketId,
}

/// User number and buffers of an accepted connection whose listener is in another shard (another
/// stack of this host).
#[derive(Debug)]
pub struct ChildElsewhere<R, S> {
    /// User number of the connection.
    pub user: u32,
    /// Additional number that the owner assigns to the connection. The stack does not interpret the
    /// number, and passes it to [`Host::enqueue`] and [`Host::refused`].
    pub tag: u32,
    /// Receive buffer of the connection.
    pub recv: R,
    /// Send buffer of the connection.
    pub send: S,
    /// Whether the connection must not enter the accept queue before the owner calls
    /// [`crate::Stack::offer_to`].
    pub waits: bool,
}

/// Event of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketEvent {
    /// Bytes were added to the connection's receive buffer.
    Readable,
    /// Bytes were removed from the send buffer, because the peer acknowledged them. With
    /// TCP_NOTSENT_LOWAT, which limits unsent bytes, this event also reports that bytes were sent.
    Writable,
    /// The peer sent or announced urgent data. The urgent mark is in the receive buffer.
    Urgent {
        /// Whether the position of the urgent byte has changed, so that the program must get
        /// SIGURG.
        is_new: bool,
    },
    /// The handshake of a connection that this host opened has completed.
    Connected,
    /// The peer sent a FIN; the stream ends after the unread bytes.
    PeerClosed,
    /// The connection has failed, or an ICMP error arrived for a datagram that the socket sent.
    Error(SocketError),
    /// The socket and its buffers were removed, and its identifier is invalid. `Closed` is always
    /// the last event of a socket.
    Closed,
}

/// Error of a connection, or of a datagram that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer reset the established connection.
    Reset,
    /// The peer refused the connection attempt.
    Refused,
    /// The peer did not answer retransmissions or keepalive probes in time, or the user timeout
    /// expired.
    TimedOut,
    /// The host is unreachable according to a router or the neighbour table.
    HostUnreachable,
    /// The network is unreachable according to a router or the routing table.
    NetUnreachable,
    /// The peer has no socket for the destination port.
    PortUnreachable,
    /// The peer does not support the transport protocol.
    ProtocolUnreachable,
    /// A router could not follow a source route.
    SourceRouteFailed,
    /// The host is unknown to a router.
    HostUnknown,
    /// The host is isolated according to a router.
    HostIsolated,
    /// A packet filter on the path prohibits the communication.
    Prohibited,
    /// A router or the peer reported that the packet's headers are invalid.
    BadHeader,
    /// The datagram that the socket sent was longer than the path MTU. Contains the path MTU as the
    /// maximum length of an IP packet in bytes.
    MessageTooBig(u32),
    /// Another connection uses the same local port and peer. A single stack detects this in the
    /// call, and returns [`crate::ConnectError::AddrInUse`]. With several shards (stacks of one
    /// host), it is detected after the call.
    AddrNotAvailable,
}

/// Error report about a datagram that a socket sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatagramError {
    /// The error, as reported to a socket without IP_RECVERR.
    pub reason: SocketError,
    /// ICMP message that reported the error; `None` if the error was detected on this host. The
    /// message has the IP version of `remote`.
    pub message: Option<Message>,
    /// Destination of the datagram that the error is about.
    pub remote: SocketAddr,
    /// Part of the datagram's payload that the ICMP message quotes.
    pub payload: Vec<u8>,
}

/// ICMP message about a datagram that a socket sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Type field of the ICMP message.
    pub kind: u8,
    /// Code field of the ICMP message.
    pub code: u8,
    /// Source address of the ICMP message.
    pub from: IpAddr,
    /// Interface that received the ICMP message.
    pub iface: IfaceId,
}

/// Metadata of a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramMeta {
    /// Destination address and port. For ICMP echo sockets, the port is the echo identifier.
    pub local: SocketAddr,
    /// Source address and port. For ICMP echo sockets, the port is the echo identifier.
    pub remote: SocketAddr,
    /// Interface that received the datagram. For a datagram that this host sent to itself, this is
    /// the interface with the destination address.
    pub iface: IfaceId,
    /// TTL or hop limit of the received datagram.
    pub ttl: u8,
    /// Type of service or traffic class of the received datagram.
    pub tos: u8,
    /// Whether the IPv4 don't-fragment bit of the datagram was set.
    pub dont_fragment: bool,
    /// Time at which the device received the datagram.
    pub arrival: Instant,
    /// Length in bytes of each datagram, if several were merged into one; the last one may be
    /// shorter. 0 for a single datagram.
    pub segment_size: u16,
}

/// A datagram to send from any source address, even one that is not the host's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramFrom {
    /// Source address and port of the datagram.
    pub local: SocketAddr,
    /// Destination address and port of the datagram.
    pub remote: SocketAddr,
    /// TTL or hop limit of the datagram; `None` for the default.
    pub ttl: Option<u8>,
    /// Type of service or traffic class of the datagram.
    pub tos: u8,
}

/// Metadata of a received ICMP echo request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoMeta {
    /// Destination address of the echo request.
    pub local: IpAddr,
    /// Source address of the echo request.
    pub remote: IpAddr,
    /// Identifier of the echo request (RFC 792, RFC 4443 §4).
    pub ident: u16,
    /// Sequence number of the echo request (RFC 792, RFC 4443 §4).
    pub seq: u16,
    /// TTL or hop limit of the received echo request.
    pub ttl: u8,
    /// Type of service or traffic class of the received echo request.
    pub tos: u8,
    /// Whether the IPv4 don't-fragment bit of the echo request was set.
    pub dont_fragment: bool,
}

/// Options of a datagram that a socket sends.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatagramOut {
    /// Destination address; `None` for the peer to which the socket is connected.
    pub remote: Option<SocketAddr>,
    /// Source address; `None` for the address to which the socket is bound, or which the stack
    /// chooses.
    pub local: Option<IpAddr>,
    /// Interface by which the datagram is sent; `None` selects the interface of the route.
    pub iface: Option<IfaceId>,
    /// TTL or hop limit; `None` selects the value of the socket.
    pub ttl: Option<u8>,
    /// Type of service or traffic class; `None` for that of the socket.
    pub tos: Option<u8>,
    /// Length in bytes of the datagrams into which the payload is segmented (UDP_SEGMENT); `None`
    /// for a single datagram.
    pub segment_size: Option<u16>,
}

/// Kind of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// Stream socket (TCP).
    Stream,
    /// Datagram socket (UDP).
    Datagram,
    /// ICMP echo socket ("ping socket"), whose port is the echo identifier.
    Echo,
}

/// Address family of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// The socket uses IPv4 only.
    V4,
    /// The socket uses IPv6, and also IPv4 unless it is bound with `v6_only`.
    ///
    /// The stack accepts IPv4-mapped addresses, but always returns plain IPv4 addresses.
    V6,
}

/// Options of binding a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// SO_REUSEADDR: sockets may share a port if all of them set this option (socket(7)). For
    /// stream sockets, none of them may listen.
    pub reuse_addr: bool,
    /// SO_REUSEPORT: several listeners or datagram sockets may share a port. Connections or
    /// datagrams are distributed among them.
    pub reuse_port: bool,
    /// IPV6_V6ONLY: the [`Family::V6`] socket does not use IPv4.
    pub v6_only: bool,
    /// IP_FREEBIND: the local address need not belong to this host.
    pub free_bind: bool,
    /// IP_LOCAL_PORT_RANGE: first and last ephemeral port of the socket, within
    /// [`StackConfig::ephemeral`](crate::StackConfig::ephemeral). 0 means that the bound is not
    /// set.
    pub ports: (u16, u16),
    /// SO_INCOMING_CPU: preferred CPU number. Among sockets with `reuse_port`, a packet goes to the
    /// socket that prefers the CPU on which the stack [runs](crate::Stack::runs_on).
    pub processor: Option<u32>,
}

impl BindOptions {
    /// Options of which none is set. Same as [`BindOptions::default`], but usable in constants.
    pub const PLAIN: Self = Self {
        reuse_addr: false,
        reuse_port: false,
        v6_only: false,
        free_bind: false,
        ports: (0, 0),
        processor: None,
    };
}

/// Effect of closing a socket on its connection (SO_LINGER).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linger {
    /// Sends the remaining bytes in the background, and then a FIN.
    Default,
    /// Sends the bytes that the receive and congestion windows permit now, and then a RST
    /// (SO_LINGER with zero). See [`Connection::abort`](towpath_tcp::Connection::abort).
    Abort,
}

/// Answer to a SYN that the owner refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Answer with a RST, so that the peer's connect fails with "connection refused".
    Reset,
    /// Answer with the ICMP error "host unreachable".
    HostUnreachable,
    /// Answer with the ICMP error "network unreachable".
    NetUnreachable,
    /// Answer with the ICMP error "communication administratively prohibited".
    AdminProhibited,
    /// Do not answer. If the peer retransmits the SYN, it is reported to the owner again.
    Ignore,
}

/// Limit of the work in one turn of the event loop. Without it, receiving could starve sending, or
/// one connection could starve another.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Maximum number of packets that are received from each port (device).
    pub rx_packets: usize,
    /// Maximum number of packets, of up to 64 KiB each, that connections send.
    pub tx_packets: usize,
}

impl Default for Budget {
    /// Returns a limit of 256 packets. Receiving and sending 256 frames of Ethernet's MTU takes
    /// about 100 µs, and so do 4 MiB in large packets. Other tasks on the stack's thread wait no
    /// longer than that.
    fn default() -> Self {
        Self { rx_packets: 256, tx_packets: 256 }
    }
}

/// Result of one turn of the event loop ([`crate::Stack::turn`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// Number of packets received from ports (devices).
    pub received: usize,
    /// Number of packets passed to ports (devices).
    pub sent: usize,
    /// Work for datagrams with socket filters or many receivers. The unit is one instruction of a
    /// socket filter.
    pub filter_steps: usize,
    /// Whether more work is pending. If so, the owner must call [`crate::Stack::turn`] again
    /// without sleeping.
    pub more: bool,
    /// Bit set of the shards to which messages were sent, and which must be woken if they sleep. 0
    /// for a host with a single stack.
    pub mail: u16,
}
