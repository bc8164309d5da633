//! Which sockets take a datagram.

use std::net::SocketAddr;

use towpath_pool::Pool;
use towpath_ring::Payload;
use towpath_tcp::Instant;

use crate::drop::DropReason;
use crate::flow::Flow;
use crate::host::{DatagramMeta, EchoMeta, Host};
use crate::net::{Echo, IfaceId};
use crate::rx::{arrival, dont_fragment, payload_of};
use crate::socket::Kind;
use crate::stack::Stack;

impl<H: Host> Stack<H> {
    /// The socket that takes a datagram to one receiver: with this peer, else bound.
    pub(crate) fn deliver_to_one(
        &mut self,
        host: &mut H,
        meta: &DatagramMeta,
        payload: &Payload<'_>,
        size: u32,
    ) -> Result<(), DropReason> {
        let flow = flow_of(meta);
        let hash = self.keys.table.flow(&flow);
        let index = match self.find_peer(hash, &flow, false) {
            Some(index) => index,
            None => {
                let (ip, port) = (meta.local.ip(), meta.local.port());
                // SO_REUSEPORT: one sender always meets the same socket.
                let bound = self.udp_binds.receiver(ip, port, meta.iface, (hash >> 32) as usize);
                bound.ok_or(DropReason::UdpNoSocket)?
            }
        };
        let Some(socket) = self.sockets.get(index) else { return Err(DropReason::UdpNoSocket) };
        if !hears(&socket.kind, meta.iface) {
            return Err(DropReason::UdpNoSocket);
        }
        let mut room = true;
        each_datagram(payload, size, |datagram| {
            room &= host.datagram(socket.user, meta, &datagram)
        });
        if room { Ok(()) } else { Err(DropReason::UdpNoRoom) }
    }

    /// Groups and broadcasts reach every socket that would take the datagram.
    pub(crate) fn deliver_to_all(
        &mut self,
        host: &mut H,
        meta: &DatagramMeta,
        payload: &Payload<'_>,
        size: u32,
    ) -> Result<(), DropReason> {
        let flow = flow_of(meta);
        let connected = self.find_connected(self.keys.table.flow(&flow), &flow, false);
        let any_port = self.find_peer_any_port(&flow, false);
        let (ip, port) = (meta.local.ip(), meta.local.port());
        let bound = self.udp_binds.all_receivers(ip, port);
        let (mut any, mut room) = (false, true);
        for index in connected.into_iter().chain(any_port).chain(bound) {
            let Some(socket) = self.sockets.get(index) else { continue };
            let Kind::Datagram(datagram) = &socket.kind else { continue };
            if hears(&socket.kind, meta.iface) && datagram.takes_group(meta) {
                any = true;
                each_datagram(payload, size, |bytes| {
                    room &= host.datagram(socket.user, meta, &bytes)
                });
            }
        }
        match (any, room) {
            (false, _) => Err(DropReason::UdpNoSocket),
            (true, false) => Err(DropReason::UdpNoRoom),
            (true, true) => Ok(()),
        }
    }

    /// An answer to a ping of ours.
    pub(crate) fn receive_echo_reply(
        &mut self,
        now: Instant,
        host: &mut H,
        echo: Echo,
        pool: &mut Pool,
    ) {
        let Echo { local, ident, .. } = echo;
        let meta = DatagramMeta {
            local: SocketAddr::new(local.dst, ident),
            remote: SocketAddr::new(local.src, 0),
            iface: self.net.link_of(local.iface, local.dst),
            ttl: local.ttl,
            tos: local.tos,
            dont_fragment: dont_fragment(&local),
            arrival: arrival(now, &local),
        };
        let flow = flow_of(&meta);
        let connected = self.find_peer(self.keys.table.flow(&flow), &flow, true);
        let bound = self.echo_binds.receiver(meta.local.ip(), ident, meta.iface, 0);
        let user =
            connected.or(bound).and_then(|index| self.sockets.get(index)).map(|socket| socket.user);
        let Some(user) = user else {
            return self.drop_local(local, DropReason::EchoNoSocket, pool);
        };
        self.counters.echo_received += 1;
        if host.datagram(user, &meta, &payload_of(&local, 0)) {
            pool.give(local.packet);
        } else {
            self.drop_local(local, DropReason::UdpNoRoom, pool);
        }
    }
}

/// Whether a datagram socket takes what comes in there (SO_BINDTODEVICE).
fn hears<H: Host>(kind: &Kind<H>, iface: IfaceId) -> bool {
    match kind {
        Kind::Datagram(datagram) => datagram.device.is_none_or(|device| device == iface),
        _ => false,
    }
}

/// An echo request to somebody behind an any-address interface.
pub(crate) fn stray_echo<H: Host>(host: &mut H, echo: Echo, pool: &mut Pool) {
    let Echo { local, ident, seq, data_offset, data_len } = echo;
    let (ttl, tos) = (local.ttl, local.tos);
    let meta = EchoMeta { local: local.dst, remote: local.src, ident, seq, ttl, tos };
    if let Some(data) = local.packet.linear().get(data_offset..data_offset + data_len) {
        host.stray_echo(&meta, &Payload::new(data, Default::default()));
    }
    pool.give(local.packet);
}

/// Calls `take` for each datagram of a merged one; once when `size` is 0.
pub(crate) fn each_datagram<'a>(
    payload: &Payload<'a>,
    size: u32,
    mut take: impl FnMut(Payload<'a>),
) {
    let len = payload.len();
    if size == 0 || len <= size {
        return take(payload.clone());
    }
    let mut at = 0;
    while at < len {
        let part = size.min(len - at);
        take(payload.slice(at, part));
        at += part;
    }
}

fn flow_of(meta: &DatagramMeta) -> Flow {
    Flow {
        local: meta.local.ip(),
        remote: meta.remote.ip(),
        local_port: meta.local.port(),
        remote_port: meta.remote.port(),
    }
}
