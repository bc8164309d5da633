//! Which sockets take a datagram.

use std::net::SocketAddr;

use towpath_pool::Pool;
use towpath_ring::Payload;
use towpath_tcp::Instant;

use crate::drop::DropReason;
use crate::flow::Flow;
use crate::host::{DatagramMeta, EchoMeta, Host};
use crate::incoming::{arrival, dont_fragment, payload_of};
use crate::net::{Echo, IfaceId};
use crate::peers;
use crate::socket::{Kind, Socket};
use crate::stack::Stack;

/// The socket that a datagram is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taker {
    pub socket: u32,
    /// It has the sender for its peer.
    pub connected: bool,
}

impl<H: Host> Stack<H> {
    /// The socket that takes a datagram, or an echo reply, that came in on `iface` for one receiver: the one that is
    /// connected to the sender, else the one that is bound to the address and port. Sockets that are bound to another
    /// device (SO_BINDTODEVICE) are passed over. `hash` is the flow's.
    #[inline]
    pub(crate) fn datagram_taker(
        &self,
        hash: u64,
        flow: &Flow,
        iface: IfaceId,
        echo: bool,
    ) -> Option<Taker> {
        let (keys, sockets) = (self.keys.table, &self.sockets);
        let connected = self.peers.first_connected(keys, sockets, hash, flow, iface, echo);
        if let Some(socket) = connected {
            return Some(Taker { socket, connected: true });
        }
        let binds = if echo { &self.echo_binds } else { &self.udp_binds };
        // SO_REUSEPORT: one sender always meets the same socket.
        let pick = (hash >> 32) as u32;
        let bound = binds.receivers.find(flow.local, flow.local_port, iface, pick);
        bound.map(|socket| Taker { socket, connected: false })
    }

    /// A socket that takes a datagram. Not one of another shard: packets for that go there, and one that comes in here for
    /// it was on its way when the socket came.
    fn own(&self, taker: Taker) -> Option<&Socket<H>> {
        self.sockets.get(taker.socket).filter(|socket| !socket.is_shadow())
    }

    /// Gives a unicast datagram to its receiver.
    pub(crate) fn deliver_to_one(
        &mut self,
        host: &mut H,
        meta: &DatagramMeta,
        payload: &Payload<'_>,
        size: u32,
    ) -> Result<(), DropReason> {
        let flow = flow_of(meta);
        let hash = self.keys.table.ends(&flow);
        let taker = self.datagram_taker(hash, &flow, meta.iface, false);
        let socket = taker.and_then(|taker| self.own(taker));
        let socket = socket.ok_or(DropReason::UdpNoSocket)?;
        let mut room = true;
        each_datagram(payload, size, |datagram| {
            room &= host.datagram(socket.user, meta, &datagram)
        });
        if room { Ok(()) } else { Err(DropReason::UdpNoRoom) }
    }

    /// Gives a multicast or broadcast datagram to every socket that takes it.
    pub(crate) fn deliver_to_all(
        &mut self,
        host: &mut H,
        meta: &DatagramMeta,
        payload: &Payload<'_>,
        size: u32,
    ) -> Result<(), DropReason> {
        let flow = flow_of(meta);
        let hash = self.keys.table.ends(&flow);
        let (keys, sockets) = (self.keys.table, &self.sockets);
        let connected = self.peers.connected(keys, sockets, hash, &flow, meta.iface, false);
        let connected = connected.flat_map(|index| peers::alike(sockets, index));
        let (ip, port) = (meta.local.ip(), meta.local.port());
        let bound = self.udp_binds.receivers.all(ip, port, meta.iface);
        let (mut any, mut room) = (false, true);
        for index in connected.chain(bound) {
            let Some(socket) = self.sockets.get(index) else { continue };
            let Kind::Datagram(datagram) = &socket.kind else { continue };
            // Its shard has a copy.
            if datagram.shadow_of.is_some() {
                continue;
            }
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
        let taker = self.datagram_taker(self.keys.table.ends(&flow), &flow, meta.iface, true);
        let socket = taker.and_then(|taker| self.own(taker));
        let Some(user) = socket.map(|socket| socket.user) else {
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

/// Whether a datagram socket takes what comes in on `iface` (SO_BINDTODEVICE).
fn hears<H: Host>(kind: &Kind<H>, iface: IfaceId) -> bool {
    match kind {
        Kind::Datagram(datagram) => datagram.device.is_none_or(|device| device == iface),
        _ => false,
    }
}

/// Shows the owner an echo request to an address that is none of this host's but that an any-address interface took.
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
