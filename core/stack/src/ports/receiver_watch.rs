//! News of the sockets that take packets from strangers, for an owner that opens ports for them
//! elsewhere.

use std::fmt::Debug;
use std::net::IpAddr;

use crate::host::{Host, SocketKind};
use crate::net::IfaceId;
use crate::ports::bind_addr::{BindAddr, PortProtocol};
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;

/// A listener for [`ReceiverChange`]s of all shards of a host ([`StackConfig::receivers`]).
///
/// Called within the call, or the turn, that makes the change. So an answer that the owner gives
/// after [`Stack::listen`] or [`Stack::bind`] comes after the watch has acted. Shards call on
/// their own threads; changes of one socket come in their order.
///
/// [`StackConfig::receivers`]: crate::StackConfig::receivers
pub trait ReceiverWatch: Debug + Send + Sync {
    /// A socket takes packets from now on, takes them elsewhere, or takes none any more.
    fn on_change(&self, change: &ReceiverChange);
}

/// Change of a listener, or of a bound UDP socket; possibly none.
#[derive(Debug, Clone, Copy)]
pub struct ReceiverChange {
    /// Stream for listeners; datagram for UDP sockets, also for those with a peer.
    pub kind: SocketKind,
    /// Port of the socket, which was its port before where it takes nothing any more.
    pub port: u16,
    /// Number of the socket among those of all shards; free again after its last change.
    pub seat: u32,
    /// Packets that it takes; None: none.
    pub takes: Option<ReceiverAt>,
}

/// Local addresses and devices for which a socket takes packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverAt {
    addr: BindAddr,
    device: Option<IfaceId>,
}

impl ReceiverAt {
    /// Whether the socket takes packets to `ip`, an address of its host, from the network.
    pub fn is_reached_at(&self, ip: IpAddr) -> bool {
        self.device != Some(IfaceId::LOOPBACK) && self.addr.overlaps(BindAddr::Ip(ip))
    }

    /// Whether no packet from the network can be for the socket, because it is bound to the
    /// loopback interface or to one of its addresses.
    pub fn is_loopback(&self) -> bool {
        let on_loopback = matches!(self.addr, BindAddr::Ip(ip) if ip.is_loopback());
        on_loopback || self.device == Some(IfaceId::LOOPBACK)
    }
}

impl<H: Host> StackSocket<H> {
    /// Port and addresses for which the socket takes packets: it listens, or is a bound datagram
    /// socket.
    pub(crate) fn receiver(&self) -> Option<(u16, ReceiverAt)> {
        let bound = self.bound.as_deref().filter(|bound| bound.has_port())?;
        let addr = match &self.kind {
            SocketRole::Listener(_) => bound.addr,
            SocketRole::Datagram(datagram) => {
                datagram.peer.map_or(bound.addr, |peer| BindAddr::Ip(peer.local))
            }
            _ => return None,
        };
        Some((bound.port, ReceiverAt { addr, device: self.device() }))
    }
}

impl<H: Host> Stack<H> {
    /// Reports a change by [`Stack::in_order`] to the watch.
    pub(crate) fn tell_watch(&self, table: PortProtocol, index: u32, port: u16, takes: bool) {
        let Some(watch) = &self.config.receivers else { return };
        let kind = match table {
            PortProtocol::Tcp => SocketKind::Stream,
            PortProtocol::Udp => SocketKind::Datagram,
            PortProtocol::Echo => return,
        };
        let socket = self.sockets.get(index).filter(|_| takes);
        let receiver = socket.and_then(StackSocket::receiver);
        let port = receiver.map_or(port, |(port, _)| port);
        let (seat, _) = self.ports.of(table).seat(index);
        let takes = receiver.map(|(_, at)| at);
        watch.on_change(&ReceiverChange { kind, port, seat, takes });
    }
}
