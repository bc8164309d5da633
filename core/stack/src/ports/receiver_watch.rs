//! Notification of the owner of a stack about sockets that accept packets from new peers. The owner
//! can then open or forward the same ports on another host.

use std::fmt::Debug;
use std::net::IpAddr;

use crate::host::{Host, SocketKind};
use crate::net::IfaceId;
use crate::ports::bind_addr::{BindAddr, PortProtocol};
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;

/// Receives the [`ReceiverChange`]s of all shards of a host ([`StackConfig::receivers`]).
///
/// The function or the turn of the event loop that makes a change calls the watch, so it was called
/// when [`Stack::listen`] or [`Stack::bind`] returns. Each shard calls it on its own thread;
/// changes of one socket are reported in order.
///
/// [`StackConfig::receivers`]: crate::StackConfig::receivers
pub trait ReceiverWatch: Debug + Send + Sync {
    /// Handles a change: a socket has started or stopped to receive packets, or changed its
    /// address.
    fn on_change(&self, change: &ReceiverChange);
}

/// Change of a listener or of a bound UDP socket. The new state may be the same as before.
#[derive(Debug, Clone, Copy)]
pub struct ReceiverChange {
    /// Kind of the socket: stream for listeners, datagram for UDP sockets. Connected UDP sockets
    /// are included.
    pub kind: SocketKind,
    /// Port at which the socket receives packets, or did before if it no longer receives any.
    pub port: u16,
    /// Number of the socket, which is unique among all shards. The number is reused after the
    /// socket's last change.
    pub seat: u32,
    /// Address at which the socket receives packets; `None` if it no longer receives packets.
    pub takes: Option<ReceiverAt>,
}

/// Local addresses and interface at which a socket receives packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverAt {
    addr: BindAddr,
    device: Option<IfaceId>,
}

impl ReceiverAt {
    /// Returns whether the socket receives packets from other hosts to `ip`, an address of its
    /// host.
    pub fn is_reached_at(&self, ip: IpAddr) -> bool {
        self.device != Some(IfaceId::LOOPBACK) && self.addr.overlaps(BindAddr::Ip(ip))
    }

    /// Returns whether the socket cannot receive packets from other hosts, because it is bound to
    /// the loopback interface or to a loopback address.
    pub fn is_loopback(&self) -> bool {
        let on_loopback = matches!(self.addr, BindAddr::Ip(ip) if ip.is_loopback());
        on_loopback || self.device == Some(IfaceId::LOOPBACK)
    }
}

impl<H: Host> StackSocket<H> {
    /// Returns the port and the addresses at which the socket receives packets. Returns `None`
    /// unless it is a listener or a bound datagram socket.
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
    /// Reports a change of a receiving socket to the observer ([`ReceiverWatch`]) that the owner of
    /// the stack has set.
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
