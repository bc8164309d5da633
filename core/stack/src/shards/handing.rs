//! Distribution of packets among shards: finds the shard to which a packet belongs, and passes the
//! packet on.

use std::collections::VecDeque;
use std::net::IpAddr;

use towpath_pool::{LinkType, Packet, Pool};
use towpath_wire::addr;

use super::ShardId;
use super::member::Member;
use super::post::{Mail, ShardPair};
use super::subject::Subject;
use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::Host;
use crate::limits::OFFER_LOOKS_MAX;
use crate::net::{IfaceId, Local, Looped, Received};
use crate::socket::SocketRole;
use crate::stack::Stack;
use crate::tables::flow::Flow;

/// Maximum number of times that a packet is passed from one shard to another. Two times are enough
/// even if a socket is added while the packet is in transit.
const HOPS_MAX: u8 = 4;

/// The shards to which a packet belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PacketOwner {
    /// The packet belongs to this shard (stack), or no shard has a socket for it. Contains the
    /// packet's hash in the flow table, if it was already computed.
    Mine(Option<u64>),
    Of(ShardId),
    /// The packet is a datagram for several shards (stacks), given as a bit set. Each of them
    /// receives a copy.
    Copies(u16),
}

impl<H: Host> Stack<H> {
    /// Finds the shard (stack) to which a packet from a device belongs, and passes the packet to
    /// it. `hops` is the number of times that the packet was passed on before.
    pub(crate) fn judge_packet(
        &mut self,
        cx: &mut Cx<'_, H>,
        iface: IfaceId,
        mut packet: Packet,
        hops: u8,
    ) {
        let interface = self.net.interface(iface);
        let link = interface.map_or(LinkType::Ip, |interface| interface.link());
        // A packet to another host belongs to no shard, so the shard on which it arrived forwards
        // it.
        if self.net.is_router()
            && let Some(dst) = Subject::destination(link, packet.linear())
            && self.net.is_beyond(iface, dst)
        {
            return match self.net.has_tracker() {
                true => self.receive_unowned(cx, iface, packet),
                false => self.receive_packet(cx, iface, packet, None),
            };
        }
        let subject = Subject::of_frame(link, packet.linear());
        let is_fragment = matches!(subject, Subject::Fragment { .. });
        match self.verdict(iface, subject) {
            PacketOwner::Of(shard) if hops < HOPS_MAX => {
                // Copy the payload. The payload may be in a send buffer that is freed after this
                // turn of the event loop.
                packet.linearize(cx.pool);
                let hops = hops + 1;
                self.hand_over_mail(shard, Mail::Packet { iface, packet, hops }, cx.pool);
            }
            PacketOwner::Copies(shards) if hops == 0 => {
                for shard in self.shards.others_in(shards) {
                    let packet = copy(&packet, cx.pool);
                    let mail = Mail::Packet { iface, packet, hops: 1 };
                    self.hand_over_mail(shard, mail, cx.pool);
                }
                match self.shards.is_in(shards) {
                    true => self.receive_packet(cx, iface, packet, None),
                    false => cx.pool.give(packet),
                }
            }
            _ if is_fragment => self.receive_unowned(cx, iface, packet),
            PacketOwner::Mine(_) if self.net.has_tracker() => {
                self.receive_unowned(cx, iface, packet);
            }
            PacketOwner::Mine(hash) => self.receive_packet(cx, iface, packet, hash),
            // Receive the packet here, because it was passed on too often, or is already a copy.
            PacketOwner::Of(_) | PacketOwner::Copies(_) => {
                self.receive_packet(cx, iface, packet, None)
            }
        }
    }

    /// Finds the shard (stack) to which a packet from this host to itself belongs, and passes the
    /// packet to it. `hops` is the number of times that the packet was passed on before.
    pub(crate) fn judge_looped(&mut self, cx: &mut Cx<'_, H>, mut looped: Looped, hops: u8) {
        match self.verdict(looped.iface, Subject::of_ip(looped.packet.linear())) {
            PacketOwner::Of(shard) if hops < HOPS_MAX => {
                // Copy the payload. The payload may be in a send buffer that is freed after this
                // turn of the event loop.
                looped.packet.linearize(cx.pool);
                self.hand_over_mail(shard, Mail::Looped { looped, hops: hops + 1 }, cx.pool);
            }
            PacketOwner::Copies(shards) if hops == 0 => {
                for shard in self.shards.others_in(shards) {
                    let packet = copy(&looped.packet, cx.pool);
                    let looped = Looped { iface: looped.iface, packet };
                    let mail = Mail::Looped { looped, hops: 1 };
                    self.hand_over_mail(shard, mail, cx.pool);
                }
                match self.shards.is_in(shards) {
                    true => self.receive_looped(cx, looped, None),
                    false => cx.pool.give(looped.packet),
                }
            }
            PacketOwner::Mine(hash) => self.receive_looped(cx, looped, hash),
            PacketOwner::Of(_) | PacketOwner::Copies(_) => self.receive_looped(cx, looped, None),
        }
    }

    /// Receives a packet whose flow is known only after the IP layer has processed the packet. A
    /// reassembled datagram may belong to another shard, and a tracker (NAT) may have rewritten
    /// addresses.
    fn receive_unowned(&mut self, cx: &mut Cx<'_, H>, iface: IfaceId, packet: Packet) {
        let Some(received) = self.net.receive(cx.now, iface, packet, cx.pool) else { return };
        match self.verdict(iface, Subject::of_received(&received)) {
            PacketOwner::Mine(hash) => self.on_received(cx, received, hash),
            PacketOwner::Of(shard) => {
                self.hand_over_mail(shard, Mail::Received(Box::new(received)), cx.pool);
            }
            PacketOwner::Copies(shards) => {
                if let Received::Local(local) = &received {
                    for shard in self.shards.others_in(shards) {
                        let copy = Box::new(Received::Local(copy_local(local, cx.pool)));
                        self.hand_over_mail(shard, Mail::Received(copy), cx.pool);
                    }
                }
                match received {
                    Received::Local(local) if !self.shards.is_in(shards) => {
                        cx.pool.give(local.packet)
                    }
                    received => self.on_received(cx, received, None),
                }
            }
        }
    }

    /// Receives the packets and messages that other shards have sent.
    pub(crate) fn receive_mail(&mut self, cx: &mut Cx<'_, H>) {
        let Some(member) = &mut self.shards.member else { return };
        let mut batch = std::mem::take(&mut member.batch);
        let has_offers = take_mail(&mut member.pairs, cx.pool, &mut batch);
        // Apply changes of sockets before the messages are handled, because a message may depend on
        // a change that was posted earlier.
        self.catch_up_for_batch();
        self.close_forsaken(cx);
        self.receive_updates(cx);
        if has_offers {
            self.take_offers(cx.host, &batch);
        }
        for mail in batch.drain(..) {
            match mail {
                // The interface was removed or set down while the packet was in transit. Other
                // packets are distributed again, because sockets may have been added or removed.
                Mail::Packet { iface, packet, .. } if self.net.is_down(iface) => {
                    self.net.drop(iface, packet, DropReason::LinkDown, cx.pool);
                }
                Mail::Packet { iface, packet, hops } => {
                    self.judge_packet(cx, iface, packet, hops);
                }
                Mail::Looped { looped, hops } => self.judge_looped(cx, looped, hops),
                Mail::Received(received) => self.on_received(cx, *received, None),
                Mail::Message(message) => self.on_message(cx, message),
                Mail::ToControl { from, told } => self.net.on_told(cx.now, from.0, told, cx.pool),
                Mail::Empty(packet) => cx.pool.give(packet),
            }
        }
        if let Some(member) = &mut self.shards.member {
            member.batch = batch;
        }
    }

    /// Receives neighbour updates from the first shard. The resulting errors are delivered one by
    /// one, so that none is lost if many neighbours fail at the same time.
    fn receive_updates(&mut self, cx: &mut Cx<'_, H>) {
        let Some(member) = &mut self.shards.member else { return };
        let Some(unheard) = member.common.update_queue(member.id).hear(&mut member.heard) else {
            return;
        };
        for news in unheard.into_update() {
            self.net.on_neighbor_update(cx.now, news, cx.pool);
            while let Some(error) = self.net.take_error() {
                self.receive_error(cx, &error);
            }
        }
    }

    /// Sends queued packets and messages to the other shards. Returns the set of shards to which
    /// something was sent, as bits.
    pub(crate) fn flush_mail(&mut self, pool: &mut Pool) -> u16 {
        let mut shards = self.tell_of_host(pool);
        let wakes = self.net.take_wakes();
        let Some(member) = &mut self.shards.member else { return 0 };
        shards |= member.common.far_behind();
        for (n, pair) in member.pairs.iter_mut().enumerate() {
            if pair.as_mut().is_some_and(|pair| pair.flush(pool) || wakes.has(n)) {
                shards |= 1 << n;
            }
        }
        shards
    }

    /// Sends updates about the host to the other shards, and control packets and reports to the
    /// first shard. Called after the packets of a turn of the event loop; a neighbour in use is
    /// reported once a second. Returns the set of shards with updates, as bits.
    fn tell_of_host(&mut self, pool: &mut Pool) -> u16 {
        let mut have_news = 0;
        let Some(member) = &mut self.shards.member else { return have_news };
        while let Some((to, news)) = self.net.take_neighbor_update() {
            for n in (0..member.pairs.len()).filter(|n| to.has(*n)) {
                let has_room = member.common.update_queue(ShardId(n as u8)).say(news);
                self.counters.shard_news_lost += u64::from(!has_room);
                have_news |= 1 << n;
            }
        }
        let from = member.id;
        let Some(first) = member.pair(ShardId::FIRST) else { return have_news };
        let mut has_room = first.has_room(pool);
        while has_room && let Some(told) = self.net.take_for_control(pool) {
            has_room = first.tell_control(from, told, pool);
        }
        // The queue to the first shard is full. Reports are kept and sent later. Control packets
        // are dropped, because their senders retransmit them.
        self.net.drop_for_control(pool);
        have_news
    }

    /// Returns whether other shards have sent messages or work to this shard, or whether messages
    /// to them wait for space. Takes no lock.
    ///
    /// A thread that is about to sleep first announces that it will sleep. The thread then calls
    /// this method again, so that it misses no message.
    pub fn has_mail(&self) -> bool {
        self.shards.member.as_ref().is_some_and(|member| {
            member.has_work()
                || member.common.is_urgent(member.id)
                || self.net.has_for_others()
                || self.net.has_unseen()
        })
    }

    /// Returns the shard to which a packet belongs. Takes no lock, and the time does not depend on
    /// the number of sockets.
    #[inline(always)]
    fn verdict(&self, iface: IfaceId, subject: Subject) -> PacketOwner {
        let Some(member) = &self.shards.member else { return PacketOwner::Mine(None) };
        let of = |shard, hash| match shard == member.id {
            true => PacketOwner::Mine(hash),
            false => PacketOwner::Of(shard),
        };
        match subject {
            Subject::Tcp(flow) => {
                let hash = self.keys.table.ends(&flow);
                of(member.home_of_hashed(&flow, hash), Some(hash))
            }
            Subject::Udp(flow) => self.verdict_of_datagram(member, iface, &flow, false),
            Subject::Echo(flow) => self.verdict_of_datagram(member, iface, &flow, true),
            Subject::Fragment { src, dst } => of(member.common.owners.of_fragments(src, dst), None),
            Subject::Host => of(ShardId::FIRST, None),
            Subject::Any => PacketOwner::Mine(None),
        }
    }

    fn is_to_many(&self, ip: IpAddr) -> bool {
        !addr::is_unicast(ip) || self.net.is_broadcast(ip)
    }

    /// Returns the shards (stacks) that have a socket for a datagram. Most ports are used by only
    /// one shard. If several shards use a port, each of them knows all sockets on the port.
    #[inline(always)]
    fn verdict_of_datagram(
        &self,
        member: &Member,
        iface: IfaceId,
        flow: &Flow,
        echo: bool,
    ) -> PacketOwner {
        let shards = member.common.port_shards(echo).get(flow.local_port);
        let shard = match shards.count_ones() {
            // No shard uses the port. Let this shard receive the datagram, so that the drop is
            // counted.
            0 => return PacketOwner::Mine(None),
            1 => Some(ShardId(shards.trailing_zeros() as u8)),
            _ if !echo && self.is_to_many(flow.local) => return PacketOwner::Copies(shards),
            _ => self.taker_of(iface, flow, echo),
        };
        match shard {
            Some(shard) if shard != member.id => PacketOwner::Of(shard),
            _ => PacketOwner::Mine(None),
        }
    }

    /// Returns the shard of the socket that receives a datagram; `None` if there is no such socket.
    fn taker_of(&self, iface: IfaceId, flow: &Flow, echo: bool) -> Option<ShardId> {
        let member = self.shards.member.as_ref()?;
        let iface = self.net.link_of(iface, flow.local);
        let taker = self.datagram_taker(self.keys.table.ends(flow), flow, iface, echo)?;
        match &self.sockets.get(taker.socket)?.kind {
            SocketRole::Datagram(datagram) => Some(datagram.shadow_of.unwrap_or(member.id)),
            _ => None,
        }
    }

    fn hand_over_mail(&mut self, shard: ShardId, mail: Mail, pool: &mut Pool) {
        let pair = self.shards.member.as_mut().and_then(|member| member.pair(shard));
        let Some(pair) = pair else { return };
        self.counters.shard_handed_over += 1;
        let (iface, packet) = match pair.hand_over(mail, pool) {
            None => return,
            Some(Mail::Packet { iface, packet, .. }) => (iface, packet),
            Some(Mail::Looped { looped, .. }) => (IfaceId::LOOPBACK, looped.packet),
            Some(Mail::Received(received)) => match *received {
                Received::Local(local) => (local.iface, local.packet),
                Received::EchoReply(echo) | Received::EchoRequest(echo) => {
                    (echo.local.iface, echo.local.packet)
                }
                Received::IcmpError(_) => return self.count_drop(DropReason::ShardFull),
            },
            Some(_) => return,
        };
        self.net.drop(iface, packet, DropReason::ShardFull, pool);
    }
}

/// Takes all packets and messages from the rings of other shards. Returns true if the messages
/// include offers of connections.
fn take_mail(pairs: &mut [Option<ShardPair>], pool: &mut Pool, batch: &mut VecDeque<Mail>) -> bool {
    for looks in 0..OFFER_LOOKS_MAX {
        let before = batch.len();
        for pair in pairs.iter_mut().flatten() {
            pair.take(pool, batch);
        }
        if batch.range(before..).all(|mail| mail.offer().is_none()) {
            return looks > 0;
        }
        // Read the rings again, because an older offer may have been added to a ring after that
        // ring was read.
    }
    true
}

fn copy(packet: &Packet, pool: &mut Pool) -> Packet {
    let mut copy = pool.take(packet.len());
    let to = copy.push_back(packet.len()).expect("taken with room");
    packet.copy_to(0, to);
    copy.meta = packet.meta;
    copy
}

fn copy_local(local: &Local, pool: &mut Pool) -> Local {
    let Local { packet, iface, src, dst, protocol, ttl, tos, .. } = local;
    let Local { ip_offset, offset, len, broadcast_or_multicast, looped, .. } = *local;
    Local {
        packet: copy(packet, pool),
        iface: *iface,
        src: *src,
        dst: *dst,
        protocol: *protocol,
        ttl: *ttl,
        tos: *tos,
        ip_offset,
        offset,
        len,
        broadcast_or_multicast,
        looped,
    }
}
