//! State of sockets, for getsockname, getsockopt and `ss`.

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

/// State of a socket at one time.
#[derive(Debug, Clone, Copy)]
pub struct SocketInfo {
    /// Identifier of the socket for further calls. The identifier becomes invalid when the socket
    /// is removed.
    pub id: SocketId,
    /// Number that the owner of the stack assigned to the socket.
    pub user: u32,
    /// Kind of the socket: TCP, UDP or ICMP echo.
    pub kind: SocketKind,
    /// State of the socket.
    pub state: SocketState,
    /// Local address and port; `None` if the socket is neither bound nor connected. For ICMP echo
    /// sockets, the port is the echo identifier.
    pub local: Option<SocketAddr>,
    /// Address and port of the peer; `None` if the socket is not connected.
    pub remote: Option<SocketAddr>,
    /// Number of received bytes that are unread. For a listener, the number of connections in its
    /// accept queue.
    pub recv_queue: u32,
    /// Number of sent bytes that are not acknowledged. For a listener, its backlog.
    pub send_queue: u32,
    /// Path MTU to the peer in bytes; `None` if the route is not known.
    pub mtu: Option<u32>,
    /// Whether the owner of the stack has closed the socket.
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
    /// The datagram socket is connected to a peer.
    Connected,
    /// The owner of the stack accepted the connection before its handshake completed.
    SynReceived,
    /// State of the TCP connection (RFC 9293 §3.3.2).
    Tcp(State),
}

/// Number of entries in each table of the stack. All are zero after all sockets and connections
/// have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of sockets of all kinds.
    pub sockets: usize,
    /// Number of TCP 4-tuples in use: by connections, half-open connections, TIME-WAIT states, and
    /// SYNs that the owner has neither accepted nor refused yet.
    pub flows: usize,
    /// Number of connected datagram sockets.
    pub peers: usize,
    /// Number of ports and addresses to which TCP, UDP and ICMP echo sockets are bound.
    pub binds: usize,
    /// Number of half-open connections in the SYN cache.
    pub half_open: usize,
    /// Number of SYNs that wait until the owner of the stack accepts or refuses them. The SYNs
    /// arrived on interfaces that accept packets to any address.
    pub pending: usize,
    /// Number of connections in TIME-WAIT.
    pub time_wait: usize,
    /// Number of connections whose socket the program has closed.
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

    /// Returns the state of a socket; `None` if it was removed.
    pub fn info(&self, now: Instant, id: SocketId) -> Option<SocketInfo> {
        let index = self.index(id)?;
        Some(self.info_of(now, index, self.sockets.get(index)?))
    }

    /// Returns the states of all sockets.
    pub fn sockets(&self, now: Instant) -> impl Iterator<Item = SocketInfo> + '_ {
        let own = self.sockets.iter().filter(|(_, socket)| !socket.is_shadow());
        own.map(move |(index, socket)| self.info_of(now, index, socket))
    }

    /// Iterates over connections that have no socket, because they are half-open or in TIME-WAIT.
    /// Returns their local address, remote address and state.
    pub fn embryos(&self) -> impl Iterator<Item = (SocketAddr, SocketAddr, SocketState)> + '_ {
        let half_open = self.handshakes.half_open.iter();
        let half_open = half_open.map(|entry| (&entry.flow, SocketState::SynReceived));
        let waiting =
            self.time_waits.iter().map(|entry| (&entry.flow, SocketState::Tcp(State::TimeWait)));
        half_open.chain(waiting).map(|(flow, state)| (flow.local(), flow.remote(), state))
    }

    /// Returns the path MTU of a connected datagram socket (IP_MTU). The route is looked up again,
    /// because it may have changed since the last datagram.
    fn datagram_mtu(&self, now: Instant, datagram: &DatagramSocket, peer: &Flow) -> Option<u32> {
        let iface = datagram.way_to(peer.remote);
        let route = self.net.route(now, Some(peer.local), peer.remote, iface).ok()?;
        // Over loopback, report an IPv6 MTU of 65536 bytes, like Linux. For IPv4, Linux reports the
        // maximum packet length, 65535 bytes.
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
