//! Choice of the sockets that take a datagram.

use std::hash::BuildHasher;
use std::net::SocketAddr;

use towpath_cbpf::Program;
use towpath_pool::{LinkType, Pool};
use towpath_ring::Payload;
use towpath_tcp::Instant;

use crate::drop::DropReason;
use crate::flow::Flow;
use crate::host::{DatagramMeta, EchoMeta, Host};
use crate::incoming::{arrival, dont_fragment, payload_of};
use crate::net::{Echo, IfaceId, Local};
use crate::peers;
use crate::socket::{Kind, Socket};
use crate::socket_filter::{self, Around};
use crate::stack::Stack;

/// The socket that a datagram is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taker {
    pub socket: u32,
    /// The socket is connected to the sender.
    pub connected: bool,
}

/// Datagrams of one packet, which a device or a sender may have merged.
#[derive(Debug)]
pub(crate) struct Arrived<'a> {
    pub local: &'a Local,
    pub meta: DatagramMeta,
    /// Payloads of all.
    pub payload: Payload<'a>,
    /// Length of each but the last; 0: there is one.
    pub size: u32,
}

/// Datagrams of a packet, by their outcome.
#[derive(Debug, Clone, Copy, Default)]
struct Given {
    taken: u32,
    /// The socket had no room.
    lost: u32,
    filtered: u32,
    /// Instructions of filters that judged them, at most: jumps lead forward.
    steps: usize,
}

impl Given {
    fn note(&mut self, has_room: bool) {
        *(if has_room { &mut self.taken } else { &mut self.lost }) += 1;
    }

    fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.lost += other.lost;
        self.filtered += other.filtered;
        self.steps += other.steps;
    }
}

impl<H: Host> Stack<H> {
    /// The socket that takes a unicast datagram or echo reply that came in on `iface`. A socket
    /// connected to the sender comes before one that is bound to the address and port. Sockets
    /// bound to another device (SO_BINDTODEVICE) are passed over. `hash` is the flow's.
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

    /// The socket of a taker; `None` if another shard has it. Packets for such a socket go to that
    /// shard, unless they were on their way when it was opened.
    fn own(&self, taker: Taker) -> Option<&Socket<H>> {
        self.sockets.get(taker.socket).filter(|socket| !socket.is_shadow())
    }

    /// Gives a unicast datagram to its receiver.
    pub(crate) fn deliver_to_one(
        &mut self,
        host: &mut H,
        arrived: &Arrived<'_>,
    ) -> Result<(), DropReason> {
        let meta = &arrived.meta;
        let flow = flow_of(meta);
        let hash = self.keys.table.ends(&flow);
        let taker = self.datagram_taker(hash, &flow, meta.iface, false);
        let socket = taker.and_then(|taker| self.own(taker));
        let socket = socket.ok_or(DropReason::UdpNoSocket)?;
        let given = self.give(host, socket, arrived, hash);
        self.count_given(given)
    }

    /// Gives a multicast or broadcast datagram to every socket that takes it.
    pub(crate) fn deliver_to_all(
        &mut self,
        host: &mut H,
        arrived: &Arrived<'_>,
    ) -> Result<(), DropReason> {
        let meta = &arrived.meta;
        let flow = flow_of(meta);
        let hash = self.keys.table.ends(&flow);
        let (keys, sockets) = (self.keys.table, &self.sockets);
        let connected = self.peers.connected(keys, sockets, hash, &flow, meta.iface, false);
        let connected = connected.flat_map(|index| peers::alike(sockets, index));
        let (ip, port) = (meta.local.ip(), meta.local.port());
        let bound = self.udp_binds.receivers.all(ip, port, meta.iface);
        let (mut any, mut all) = (false, Given::default());
        for index in connected.chain(bound) {
            let Some(socket) = self.sockets.get(index) else { continue };
            let Kind::Datagram(datagram) = &socket.kind else { continue };
            // Its shard has a copy.
            if datagram.shadow_of.is_some() {
                continue;
            }
            if hears(&socket.kind, meta.iface) && datagram.takes_group(meta) {
                any = true;
                let given = self.give(host, socket, arrived, hash);
                all.add(given);
            }
        }
        if any { self.count_given(all) } else { Err(DropReason::UdpNoSocket) }
    }

    /// Gives the datagrams of a packet to a socket, each on its own unless the program wants them
    /// together.
    fn give(&self, host: &mut H, socket: &Socket<H>, arrived: &Arrived<'_>, hash: u64) -> Given {
        let Arrived { local, meta, payload, size } = arrived;
        let (user, mut given) = (socket.user, Given::default());
        if let Some(filter) = socket_filter_of(socket) {
            let around = self.around(local, hash);
            each_datagram(payload, *size, |datagram| {
                given.steps += filter.instructions().len();
                match socket_filter::filter(filter, &around, &datagram) {
                    Some(len) => given.note(host.datagram(user, meta, &datagram.slice(0, len))),
                    None => {
                        host.filtered(user);
                        given.filtered += 1;
                    }
                }
            });
            return given;
        }
        if *size != 0 && payload.len() > *size && host.takes_merged(user) {
            let meta = DatagramMeta { segment_size: *size as u16, ..*meta };
            given.note(host.datagram(user, &meta, payload));
            return given;
        }
        each_datagram(payload, *size, |datagram| given.note(host.datagram(user, meta, &datagram)));
        given
    }

    fn around<'a>(&self, local: &'a Local, hash: u64) -> Around<'a> {
        let link = self.net.interfaces().get(local.iface.index());
        Around {
            local,
            link: link.map_or(LinkType::Ip, |iface| iface.link()),
            shard: self.member.as_ref().map_or(0, |member| member.id.0),
            hash: (hash >> u32::BITS) as u32,
            random: self.keys.ports.hash_one(self.counters.udp_received) as u32,
        }
    }

    /// Outcome of a packet whose datagrams were given so. `count_given` itself counts the lost ones
    /// of a packet that is partly lost.
    fn count_given(&mut self, given: Given) -> Result<(), DropReason> {
        self.filter_steps += given.steps;
        match given {
            Given { lost: 1.., .. } => Err(DropReason::UdpNoRoom),
            Given { taken: 0, filtered: 1.., .. } => Err(DropReason::UdpFiltered),
            Given { filtered, .. } => {
                (0..filtered).for_each(|_| self.net.count_drop(DropReason::UdpFiltered));
                Ok(())
            }
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
            segment_size: 0,
        };
        let flow = flow_of(&meta);
        let taker = self.datagram_taker(self.keys.table.ends(&flow), &flow, meta.iface, true);
        let Some(socket) = taker.and_then(|taker| self.own(taker)) else {
            return self.drop_local(local, DropReason::EchoNoSocket, pool);
        };
        let (user, payload) = (socket.user, payload_of(&local, 0));
        let (kept, steps) = match socket_filter_of(socket) {
            Some(filter) => {
                let around = self.around(&local, self.keys.table.ends(&flow));
                let steps = filter.instructions().len();
                (socket_filter::filter(filter, &around, &payload), steps)
            }
            None => (Some(payload.len()), 0),
        };
        self.filter_steps += steps;
        self.counters.echo_received += 1;
        let Some(kept) = kept else {
            host.filtered(user);
            return self.drop_local(local, DropReason::UdpFiltered, pool);
        };
        if host.datagram(user, &meta, &payload.slice(0, kept)) {
            pool.give(local.packet);
        } else {
            self.drop_local(local, DropReason::UdpNoRoom, pool);
        }
    }
}

fn socket_filter_of<H: Host>(socket: &Socket<H>) -> Option<&Program> {
    match &socket.kind {
        Kind::Datagram(datagram) => datagram.filter.as_deref(),
        _ => None,
    }
}

/// Whether a datagram socket takes packets of `iface` (SO_BINDTODEVICE).
fn hears<H: Host>(kind: &Kind<H>, iface: IfaceId) -> bool {
    match kind {
        Kind::Datagram(datagram) => datagram.device.is_none_or(|device| device == iface),
        _ => false,
    }
}

/// Shows the owner an echo request that an any-address interface took for an address of another
/// host.
pub(crate) fn stray_echo<H: Host>(host: &mut H, echo: Echo, pool: &mut Pool) {
    let Echo { local, ident, seq, data_offset, data_len } = echo;
    let (ttl, tos) = (local.ttl, local.tos);
    let meta = EchoMeta {
        local: local.dst,
        remote: local.src,
        ident,
        seq,
        ttl,
        tos,
        dont_fragment: dont_fragment(&local),
    };
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
