//! Reports of sockets that receive packets from new peers, for an owner that forwards or opens
//! ports for them elsewhere.

use std::fmt::Debug;
use std::net::IpAddr;

use crate::host::{Host, SocketKind};
use crate::net::IfaceId;
use crate::ports::bind_addr::{BindAddr, PortProtocol};
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;

/// Receives the [`ReceiverChange`]s of all shards of a host ([`StackConfig::receivers`]).
///
/// Called within the call, or the turn of the shard, that makes the change. When [`Stack::listen`]
/// or [`Stack::bind`] returns, the watch has been called. Shards call on their own threads; changes
/// of one socket are reported in order.
///
/// [`StackConfig::receivers`]: crate::StackConfig::receivers
pub trait ReceiverWatch: Debug + Send + Sync {
    /// Reports that a socket started or stopped to receive packets, or changed its address.
    fn on_change(&self, change: &ReceiverChange);
}

/// Change of a listener or of a bound UDP socket; the state may be the same as before.
#[derive(Debug, Clone, Copy)]
pub struct ReceiverChange {
    /// Stream for listeners; datagram for UDP sockets, including connected ones.
    pub kind: SocketKind,
    /// Port of the socket; its previous port if the socket no longer receives.
    pub port: u16,
    /// Number of the socket, unique among all shards; reused after its last change.
    pub seat: u32,
    /// Address where the socket receives packets; `None` if it no longer receives packets.
    pub takes: Option<ReceiverAt>,
}

/// Local addresses and device at which a socket receives packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverAt {
    addr: BindAddr,
    device: Option<IfaceId>,
}

impl ReceiverAt {
    /// Returns whether the socket receives packets from the network to `ip`, an address of its
    /// host.
    pub fn is_reached_at(&self, ip: IpAddr) -> bool {
        self.device != Some(IfaceId::LOOPBACK) && self.addr.overlaps(BindAddr::Ip(ip))
    }

    /// Returns whether the socket cannot receive packets from the network, because it is bound to
    /// the loopback interface or to a loopback address.
    pub fn is_loopback(&self) -> bool {
        let on_loopback = matches!(self.addr, BindAddr::Ip(ip) if ip.is_loopback());
        on_loopback || self.device == Some(IfaceId::LOOPBACK)
    }
}

impl<H: Host> StackSocket<H> {
    /// Returns the port and addresses at which the socket receives packets, if it is a listener or
    /// a bound datagram socket.
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
