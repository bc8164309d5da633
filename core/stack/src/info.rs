//! Socket properties for getsockname, getsockopt and `ss`.

use std::net::SocketAddr;

use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_tcp::{Info, Instant, State};

use crate::host::{Host, SocketId, SocketKind};
use crate::net::IfaceId;
use crate::net::limits::{LOOPBACK_MTU, LOOPBACK_MTU_TOLD};
use crate::socket::{BoundAddr, SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::Flow;
use crate::udp::socket::DatagramSocket;

/// Snapshot of a socket.
#[derive(Debug, Clone, Copy)]
pub struct SocketInfo {
    /// Id for further calls; invalid once the socket is removed.
    pub id: SocketId,
    /// User number that the owner assigned to the socket.
    pub user: u32,
    /// Protocol of the socket: TCP, UDP or echo.
    pub kind: SocketKind,
    /// State of the socket.
    pub state: SocketState,
    /// Local address, if bound or connected. For echo sockets the port is the identifier.
    pub local: Option<SocketAddr>,
    /// Peer address, if connected.
    pub remote: Option<SocketAddr>,
    /// Unread bytes; for a listener, the number of children in its accept queue.
    pub recv_queue: u32,
    /// Unacknowledged bytes; for a listener, its backlog.
    pub send_queue: u32,
    /// Path MTU towards the peer in bytes, if the route is known.
    pub mtu: Option<u32>,
    /// Whether the owner has closed the socket.
    pub closing: bool,
    /// TCP statistics of a connection; `None` for other sockets and closed connections.
    pub tcp: Option<Info>,
}

/// State of a socket of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    /// The socket is neither connected nor listening.
    Unconnected,
    /// The socket listens for connections.
    Listening,
    /// A datagram socket with a peer.
    Connected,
    /// The owner accepted the socket before its handshake has completed.
    SynReceived,
    /// State of the TCP connection (RFC 9293 §3.3.2).
    Tcp(State),
}

/// Number of entries in each table; all zero after everything has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of sockets of all kinds.
    pub sockets: usize,
    /// TCP 4-tuples: connections, half-open connections, TIME-WAITs, and SYNs that the owner has
    /// neither accepted nor refused yet.
    pub flows: usize,
    /// Number of connected datagram sockets.
    pub peers: usize,
    /// Bound ports and receiving addresses of TCP, UDP and echo.
    pub binds: usize,
    /// Number of half-open connections in the SYN cache.
    pub half_open: usize,
    /// Number of SYNs on any-address interfaces that wait for the owner's decision.
    pub pending: usize,
    /// Number of connections in TIME-WAIT.
    pub time_wait: usize,
    /// Number of connections whose socket was closed.
    pub orphans: usize,
    /// Number of multicast groups joined by sockets.
    pub memberships: usize,
    /// Number of armed connection timers.
    pub timers: usize,
}

impl<H: Host> Stack<H> {
    /// Returns the number of entries in each table.
    pub fn usage(&self) -> Usage {
        Usage {
            sockets: self.sockets.len() - self.shards.shadows(),
            flows: self.flows.len(),
            peers: self.datagrams.peers.table.len(),
            binds: self.ports.len(),
            half_open: self.handshakes.half_open.len(),
            pending: self.handshakes.pending.len(),
            time_wait: self.time_waits.len(),
            orphans: self.ended.orphans,
            memberships: self.datagrams.memberships,
            timers: self.wheel.len(),
        }
    }

    /// Returns a snapshot of a socket; `None` if the id is invalid.
    pub fn info(&self, now: Instant, id: SocketId) -> Option<SocketInfo> {
        let index = self.index(id)?;
        Some(self.info_of(now, index, self.sockets.get(index)?))
    }

    /// Returns snapshots of all sockets.
    pub fn sockets(&self, now: Instant) -> impl Iterator<Item = SocketInfo> + '_ {
        let own = self.sockets.iter().filter(|(_, socket)| !socket.is_shadow());
        own.map(move |(index, socket)| self.info_of(now, index, socket))
    }

    /// Iterates over connections without a socket: their addresses and state, TIME-WAIT or
    /// half-open.
    pub fn embryos(&self) -> impl Iterator<Item = (SocketAddr, SocketAddr, SocketState)> + '_ {
        let half_open = self.handshakes.half_open.iter();
        let half_open = half_open.map(|entry| (&entry.flow, SocketState::SynReceived));
        let waiting =
            self.time_waits.iter().map(|entry| (&entry.flow, SocketState::Tcp(State::TimeWait)));
        half_open.chain(waiting).map(|(flow, state)| (flow.local(), flow.remote(), state))
    }

    /// Returns IP_MTU of a connected datagram socket. Looks up the route again, because the route
    /// may have changed since the last datagram.
    fn datagram_mtu(&self, now: Instant, datagram: &DatagramSocket, peer: &Flow) -> Option<u32> {
        let iface = datagram.way_to(peer.remote);
        let route = self.net.route(now, Some(peer.local), peer.remote, iface).ok()?;
        // Linux's `lo` has an MTU above the IPv4 maximum (`ipv4_mtu`).
        let is_whole = route.iface == IfaceId::LOOPBACK && route.mtu == LOOPBACK_MTU;
        Some(if is_whole && peer.remote.is_ipv6() { LOOPBACK_MTU_TOLD } else { route.mtu })
    }

    fn info_of(&self, now: Instant, index: u32, socket: &StackSocket<H>) -> SocketInfo {
        let info = SocketInfo {
            id: SocketId(self.sockets.id(index)),
            user: socket.user,
            kind: SocketKind::Stream,
            state: SocketState::Unconnected,
            local: socket.bound.as_deref().map(BoundAddr::socket_addr),
            remote: None,
            recv_queue: 0,
            send_queue: 0,
            mtu: None,
            closing: socket.orphan,
            tcp: None,
        };
        match &socket.kind {
            SocketRole::Fresh(_) => info,
            SocketRole::Listener(listener) => SocketInfo {
                state: SocketState::Listening,
                recv_queue: listener.waiting,
                send_queue: listener.backlog,
                ..info
            },
            SocketRole::EarlyAccept(early) => SocketInfo {
                state: SocketState::SynReceived,
                local: Some(early.flow.local()),
                remote: Some(early.flow.remote()),
                ..info
            },
            SocketRole::Stream(stream) => {
                let current = stream.connection.as_ref().map(|c| c.info(now, stream.buffers()));
                let tcp = current.or_else(|| self.ended.info(index));
                SocketInfo {
                    state: SocketState::Tcp(tcp.map_or(State::Closed, |tcp| tcp.state)),
                    local: Some(stream.flow.local()),
                    remote: Some(stream.flow.remote()),
                    recv_queue: stream.recv.unread(),
                    send_queue: stream.send.len(),
                    mtu: stream.path.map(|path| path.mtu()),
                    tcp,
                    ..info
                }
            }
            SocketRole::Datagram(datagram) => {
                let peer = datagram.peer.as_ref();
                SocketInfo {
                    kind: if datagram.echo { SocketKind::Echo } else { SocketKind::Datagram },
                    state: peer.map_or(SocketState::Unconnected, |_| SocketState::Connected),
                    local: peer.map(|flow| flow.local()).or(info.local),
                    remote: peer.map(|flow| flow.remote()),
                    mtu: peer.and_then(|flow| self.datagram_mtu(now, datagram, flow)),
                    ..info
                }
            }
        }
    }
}
