//! Selects the sockets that receive a datagram.

use std::hash::BuildHasher;

use towpath_cbpf::Program;
use towpath_pool::LinkType;
use towpath_ring::Payload;

use crate::drop::DropReason;
use crate::host::{DatagramMeta, Host, SocketId};
use crate::limits;
use crate::net::{IfaceId, Local};
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::Flow;
use crate::udp::deliveries::{ArrivedDatagrams, DeliveryCount, Recipients, Undelivered};
use crate::udp::peers;
use crate::udp::socket_filter::{self, Around};

/// A socket that receives a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DatagramTaker {
    pub socket: u32,
    /// Whether the socket is connected to the sender of the datagram.
    pub connected: bool,
}

impl<H: Host> Stack<H> {
    /// Returns the socket that receives a unicast datagram or echo reply that arrived on `iface`.
    /// Sockets that are connected to the sender take precedence over other sockets bound to the
    /// address and port. Sockets that are restricted to another interface (SO_BINDTODEVICE) are
    /// skipped. `hash` is the hash of the datagram's addresses and ports.
    #[inline]
    pub(crate) fn datagram_taker(
        &self,
        hash: u64,
        flow: &Flow,
        iface: IfaceId,
        echo: bool,
    ) -> Option<DatagramTaker> {
        let (keys, sockets) = (self.keys.table, &self.sockets);
        let connected =
            self.datagrams.peers.first_connected(keys, sockets, hash, flow, iface, echo);
        if let Some(socket) = connected {
            return Some(DatagramTaker { socket, connected: true });
        }
        let binds = if echo { &self.ports.echo } else { &self.ports.udp };
        // With SO_REUSEPORT, the hash selects the socket, so that all datagrams of a sender reach
        // the same socket.
        let pick = (hash >> 32) as u32;
        let bound = binds.receivers.find(flow.local, flow.local_port, iface, pick);
        bound.map(|socket| DatagramTaker { socket, connected: false })
    }

    /// Returns the selected socket; `None` if it belongs to another shard (another stack of this
    /// host). Packets for such a socket are passed to that shard before, unless the socket was
    /// opened while the packet was in transit.
    fn own(&self, taker: DatagramTaker) -> Option<&StackSocket<H>> {
        self.sockets.get(taker.socket).filter(|socket| !socket.is_shadow())
    }

    /// Delivers a unicast datagram, or an ICMP echo reply, to the socket that receives it.
    #[inline]
    pub(crate) fn deliver_to_one(
        &mut self,
        host: &mut H,
        arrived: &ArrivedDatagrams<'_>,
        echo: bool,
    ) -> Result<(), Undelivered> {
        let meta = &arrived.meta;
        let flow = flow_of(meta);
        let hash = self.keys.table.ends(&flow);
        let taker = self.datagram_taker(hash, &flow, meta.iface, echo);
        let socket = taker.and_then(|taker| self.own(taker).zip(Some(taker.socket)));
        let none = if echo { DropReason::EchoNoSocket } else { DropReason::UdpNoSocket };
        let (socket, index) = socket.ok_or(none)?;
        if socket_filter_of(socket).is_some() {
            return self.deliver_filtered(host, arrived, hash, index);
        }
        let given = give(host, socket, arrived);
        Ok(self.count_given(given)?)
    }

    /// Delivers a packet to a socket with a filter, within the limit of filter instructions per
    /// turn of the event loop.
    #[cold]
    fn deliver_filtered(
        &mut self,
        host: &mut H,
        arrived: &ArrivedDatagrams<'_>,
        hash: u64,
        index: u32,
    ) -> Result<(), Undelivered> {
        let mut receivers = self.datagrams.deliveries.take_list();
        receivers.push(SocketId(self.sockets.id(index)));
        self.deliver(host, arrived, Recipients::new(receivers, hash))
    }

    /// Delivers a multicast or broadcast datagram to all sockets that receive it, within the limit
    /// of filter instructions per turn of the event loop.
    pub(crate) fn deliver_to_all(
        &mut self,
        host: &mut H,
        arrived: &ArrivedDatagrams<'_>,
    ) -> Result<(), Undelivered> {
        let meta = &arrived.meta;
        let flow = flow_of(meta);
        let hash = self.keys.table.ends(&flow);
        let mut list = self.datagrams.deliveries.take_list();
        if !self.datagrams.deliveries.is_empty() {
            // If an earlier packet of the same program waits, determine the receivers of this
            // packet later. Otherwise every waiting packet would cause a search for all its
            // receivers.
            let first = self.first_taker(arrived, hash);
            let payer = first.and_then(|index| self.payer(host, index));
            if payer.is_some_and(|payer| self.datagrams.deliveries.has_line(payer)) {
                return Err(Undelivered::Later(Recipients::unknown(list, hash)));
            }
        }
        self.list_takers(arrived, hash, &mut list);
        if list.is_empty() {
            self.datagrams.deliveries.give_list(list);
            return Err(DropReason::UdpNoSocket.into());
        }
        self.deliver(host, arrived, Recipients::new(list, hash))
    }

    /// Lists the sockets that receive a multicast or broadcast datagram. Sockets without a filter
    /// come first, so that they need not wait for the filters of other sockets.
    pub(crate) fn list_takers(
        &mut self,
        arrived: &ArrivedDatagrams<'_>,
        hash: u64,
        list: &mut Vec<SocketId>,
    ) {
        let meta = &arrived.meta;
        let flow = flow_of(meta);
        let mut filtered = self.datagrams.deliveries.take_list();
        for index in self.takers(&flow, hash, meta) {
            let has_filter = self.sockets.get(index).and_then(socket_filter_of).is_some();
            let list = if has_filter { &mut filtered } else { &mut *list };
            list.push(SocketId(self.sockets.id(index)));
        }
        list.append(&mut filtered);
        self.datagrams.deliveries.give_list(filtered);
        self.datagrams.filter_steps += list.len() * limits::LISTING_STEPS;
    }

    /// Iterates over the sockets that receive a multicast or broadcast datagram.
    fn takers<'a>(
        &'a self,
        flow: &Flow,
        hash: u64,
        meta: &'a DatagramMeta,
    ) -> impl Iterator<Item = u32> + use<'a, H> {
        let (keys, sockets) = (self.keys.table, &self.sockets);
        let connected =
            self.datagrams.peers.connected(keys, sockets, hash, flow, meta.iface, false);
        let connected = connected.flat_map(|index| peers::alike(sockets, index));
        let (ip, port) = (meta.local.ip(), meta.local.port());
        let bound = self.ports.udp.receivers.all(ip, port, meta.iface);
        connected.chain(bound).filter(move |index| {
            let Some(datagram) = sockets.datagram(*index) else { return false };
            // Skip sockets of other shards (stacks of this host), because these shards deliver
            // their own copies of the datagram.
            let is_own = datagram.shadow_of.is_none();
            is_own && hears(datagram.device, meta.iface) && datagram.takes_group(meta)
        })
    }

    /// Returns the index of the first socket that receives a multicast or broadcast datagram;
    /// `None` if there is none.
    pub(crate) fn first_taker(&self, arrived: &ArrivedDatagrams<'_>, hash: u64) -> Option<u32> {
        let flow = flow_of(&arrived.meta);
        self.takers(&flow, hash, &arrived.meta).next()
    }

    /// Delivers a new packet to its receivers. Returns [`Undelivered::Later`] if the packet, or a
    /// part of it, could not be delivered to all receivers in this turn of the event loop.
    fn deliver(
        &mut self,
        host: &mut H,
        arrived: &ArrivedDatagrams<'_>,
        mut receivers: Recipients,
    ) -> Result<(), Undelivered> {
        if !self.give_on(host, arrived, &mut receivers, limits::FILTER_STEPS_A_TURN, None) {
            return Err(Undelivered::Later(receivers));
        }
        let given = receivers.given;
        self.datagrams.deliveries.give_list(receivers.list);
        Ok(self.count_given(given)?)
    }

    /// Continues to deliver a packet to its receivers. Returns true if the packet was delivered to
    /// all receivers.
    ///
    /// Stops when filters have executed `steps_max` instructions in this turn of the event loop, or
    /// at a receiver for whose program earlier packets wait. `own` is the program in whose queue
    /// the packet itself waited.
    pub(crate) fn give_on(
        &mut self,
        host: &mut H,
        arrived: &ArrivedDatagrams<'_>,
        receivers: &mut Recipients,
        steps_max: usize,
        own: Option<u64>,
    ) -> bool {
        let is_single = receivers.list.len() == 1;
        while let Some(id) = receivers.list.get(receivers.next).copied() {
            let index = self.index(id);
            let socket = index.and_then(|index| self.sockets.get(index));
            let socket = socket.filter(|socket| matches!(socket.kind, SocketRole::Datagram(_)));
            let Some(socket) = socket else {
                receivers.end_one();
                continue;
            };
            if self.datagrams.filter_steps > steps_max {
                return false;
            }
            if !self.datagrams.deliveries.is_empty() {
                let payer = host.payer(socket.user);
                if own != Some(payer) && self.datagrams.deliveries.has_line(payer) {
                    return false;
                }
            }
            if let Some(filter) = socket_filter_of(socket) {
                let around = self.around(arrived.local, receivers.hash);
                let (user, mut steps) = (socket.user, self.datagrams.filter_steps);
                let done = judge(host, (user, filter), &around, arrived, receivers, |more| {
                    let has_room = steps <= steps_max;
                    steps += if has_room { more } else { 0 };
                    has_room
                });
                self.counters.filter_steps += (steps - self.datagrams.filter_steps) as u64;
                self.datagrams.filter_steps = steps;
                if !done {
                    return false;
                }
            } else {
                // Deliver the rest of the payload. The filter may have been removed after a part of
                // the packet was filtered.
                let rest = receivers.at;
                let payload = arrived.payload.slice(rest, arrived.payload.len() - rest);
                let steps = if is_single { 0 } else { limits::GIVING_STEPS };
                let rest = ArrivedDatagrams { payload, ..*arrived };
                self.datagrams.filter_steps += steps * rest.count();
                let given = give(host, socket, &rest);
                receivers.given.add(given);
            }
            receivers.end_one();
        }
        true
    }

    /// Returns the number of the program to which the filter instructions of a socket are charged.
    pub(crate) fn payer(&self, host: &H, index: u32) -> Option<u64> {
        self.sockets.get(index).map(|socket| host.payer(socket.user))
    }

    fn around<'a>(&self, local: &'a Local, hash: u64) -> Around<'a> {
        let link = self.net.interface(local.iface);
        Around {
            local,
            link: link.map_or(LinkType::Ip, |iface| iface.link()),
            shard: self.shards.number(),
            hash: (hash >> u32::BITS) as u32,
            random: self.keys.ports.hash_one(self.counters.udp_received) as u32,
        }
    }

    /// Counts the result of delivering a packet. If only some of its datagrams were filtered,
    /// counts these datagrams. Otherwise returns the reason for which the caller must drop the
    /// packet.
    pub(crate) fn count_given(&mut self, given: DeliveryCount) -> Result<(), DropReason> {
        match given {
            DeliveryCount { lost: 1.., .. } => Err(DropReason::UdpNoRoom),
            DeliveryCount { taken: 0, filtered: 1.., .. } => Err(DropReason::UdpFiltered),
            DeliveryCount { filtered, .. } => {
                (0..filtered).for_each(|_| self.net.count_drop(DropReason::UdpFiltered));
                Ok(())
            }
        }
    }
}

/// Delivers the datagrams of a packet to a socket that has no filter. The datagrams are delivered
/// one by one, unless the socket accepts merged datagrams.
fn give<H: Host>(
    host: &mut H,
    socket: &StackSocket<H>,
    arrived: &ArrivedDatagrams<'_>,
) -> DeliveryCount {
    let ArrivedDatagrams { local: _, meta, payload, size } = arrived;
    let (user, mut given) = (socket.user, DeliveryCount::default());
    if *size != 0 && payload.len() > *size && host.takes_merged(user) {
        let meta = DatagramMeta { segment_size: *size as u16, ..*meta };
        given.note(host.datagram(user, &meta, payload));
        return given;
    }
    each_datagram(payload, *size, |datagram| given.note(host.datagram(user, meta, &datagram)));
    given
}

/// Applies a socket's filter to the datagrams of a packet that were not filtered yet. Returns true
/// if all have been filtered. Before each datagram, `may_run` is called with the length of the
/// filter. The length is an upper bound of the executed instructions, because filters only jump
/// forward.
fn judge<H: Host>(
    host: &mut H,
    socket: (u32, &Program),
    around: &Around<'_>,
    arrived: &ArrivedDatagrams<'_>,
    receivers: &mut Recipients,
    mut may_run: impl FnMut(usize) -> bool,
) -> bool {
    let (user, filter) = socket;
    loop {
        if !may_run(filter.instructions().len()) {
            return false;
        }
        let datagram = arrived.datagram(receivers.at);
        match socket_filter::filter(filter, around, &datagram) {
            Some(len) => {
                let has_room = host.datagram(user, &arrived.meta, &datagram.slice(0, len));
                receivers.given.note(has_room);
            }
            None => {
                host.filtered(user);
                receivers.given.filtered += 1;
            }
        }
        receivers.at += datagram.len();
        if receivers.at >= arrived.payload.len() {
            return true;
        }
    }
}

fn socket_filter_of<H: Host>(socket: &StackSocket<H>) -> Option<&Program> {
    match &socket.kind {
        SocketRole::Datagram(datagram) => datagram.filter.as_deref(),
        _ => None,
    }
}

/// Returns whether a datagram socket that is restricted to `device` (SO_BINDTODEVICE) receives
/// packets from the interface `iface`.
fn hears(device: Option<IfaceId>, iface: IfaceId) -> bool {
    device.is_none_or(|device| device == iface)
}

/// Calls `take` for each datagram of a packet into which several were merged. Calls it once if
/// `size` is 0.
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
