//! Connections for a listener of another shard. The shard that owns the flow makes the connection,
//! buffers and all; the listener's shard has the accept queue:
//!
//! ```text
//!  shard of the flow                       shard of the listener
//!  last ACK of the handshake:
//!  Host::accept_for, connection ─ Offer ─► place in the queue? Host::enqueue
//!  waits here                   ◄─ Full ── no
//!                               ◄─ Room ── Stack::accepted
//!  the oldest                   ─ Offer ─► ...
//!  or nobody                    ─ Pass ──► Room for another shard
//! ```
//!
//! Two connections of one client enter the queue in their order, whichever shards have them. For
//! that, offers have the time of the turn that made them, and the rings are read until no ring has
//! another offer.
//!
//! The listener's shard writes the number of places left in the queue into a word that the other
//! shards read. When there is none they drop SYNs and last ACKs, as the listener's own shard does.
//! `Full` answers offers that were on the way when the queue became full.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use towpath_tcp::Instant;

use super::ShardId;
use super::post::{Child, Mail, Message, Offer};
use crate::host::{Elsewhere, Host, Linger, ListenerName, ListenerNote, SocketId};
use crate::net::IfaceId;
use crate::ports::bind_addr::Table;
use crate::ports::binds::Binds;
use crate::socket::{AmongShards, Kind, Listener, Stream};
use crate::stack::Stack;
use crate::tcp::active::{loopback_if_unspecified, with_scope};

impl Listener {
    /// The listener that it is the shadow of, whose owner calls it `user`.
    pub(crate) fn elsewhere(&self, user: u32) -> Option<Elsewhere> {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { shard, id, note, .. }) => {
                Some(Elsewhere { user, note: *note, name: ListenerName { shard: *shard, id: *id } })
            }
            _ => None,
        }
    }

    /// Publishes the number of free places in the queue to other shards, after a change.
    pub(crate) fn publish(&self) {
        if let Some(AmongShards::Original { room, .. }) = self.among.as_deref() {
            room.store(self.room(), Ordering::Relaxed);
        }
    }
}

impl<H: Host> Stack<H> {
    pub(crate) fn on_message(&mut self, now: Instant, host: &mut H, message: Message) {
        match message {
            Message::Owner { from, words } => host.told(from, words),
            // `take_offers` has put the child into its queue.
            Message::Offer(_) => {}
            Message::Full { listener, from, child, again } => {
                let listener = ListenerName { shard: from, id: listener };
                self.put_off(now, host, listener, child, again);
            }
            Message::Refused { child } => self.refuse(now, host, &child),
            Message::Room { listener, from } => {
                self.offer_next(now, host, ListenerName { shard: from, id: listener });
            }
            Message::Pass { listener } => {
                if let Some(index) = self.index(listener) {
                    self.tell_of_room(index);
                }
            }
            Message::Claim { flow, socket, by } => self.on_claim(now, flow, socket, by),
            Message::Claimed { flow, socket, iss_min } => self.on_claimed(flow, socket, iss_min),
            Message::InUse { socket } => self.on_flow_in_use(socket),
        }
    }

    /// Closes the children of listeners that are gone.
    pub(crate) fn close_forsaken(&mut self, now: Instant, host: &mut H) {
        while let Some(child) = self.member.as_mut().and_then(|it| it.forsaken.pop_front()) {
            self.refuse(now, host, &child);
        }
        while let Some(listener) = self.member.as_mut().and_then(|it| it.gone.pop_front()) {
            host.listener_gone(&listener);
        }
    }

    /// A child is refused by its listener, and aborted here. Its connection may have ended before.
    fn refuse(&mut self, now: Instant, host: &mut H, child: &Child) {
        host.refused(child.user, child.tag);
        self.close(now, child.id, Linger::Abort);
    }

    /// Offers an established child to its listener, which is in another shard. `tag` is the
    /// owner's. The outcome is [`Host::enqueue`] there or [`Host::refused`] here; false: the child
    /// is gone, and neither follows. Offers of several shards enter the queue in the order of
    /// `now`, the turn's time.
    pub fn offer_to(
        &mut self,
        now: Instant,
        listener: ListenerName,
        child: SocketId,
        tag: u32,
    ) -> bool {
        let socket = self.index(child).and_then(|index| self.sockets.get(index));
        let Some(user) = socket.map(|socket| socket.user) else { return false };
        self.offer(now, listener, Child { id: child, user, tag }, None)
    }

    /// The same. `more`: it was put off, and others wait behind it, or none.
    fn offer(&mut self, at: Instant, to: ListenerName, child: Child, more: Option<bool>) -> bool {
        let socket = self.index(child.id).and_then(|index| self.sockets.get(index));
        let Some(Kind::Stream(stream)) = socket.map(|socket| &socket.kind) else { return false };
        let Stream { flow, iface, .. } = **stream;
        // Only link-local addresses need it, and their connections have it.
        let iface = self.net.link_of(iface.unwrap_or(IfaceId::LOOPBACK), flow.local);
        let (local, remote) = (with_scope(flow.local(), iface), with_scope(flow.remote(), iface));
        let Some(from) = self.member.as_ref().map(|member| member.id) else { return false };
        let (again, more) = (more.is_some(), more == Some(true));
        let listener = to.id;
        let offer = Offer { listener, from, child, local, remote, at, again, more };
        self.tell_shard(to.shard, Message::Offer(offer));
        true
    }

    /// The shards whose listeners may take a connection of this host to itself, a bit each; of many
    /// that share the port perhaps all shards.
    pub fn listening_shards(&self, to: SocketAddr) -> u16 {
        /// Listeners looked at.
        const LOOKED_AT: usize = 64;
        let (ip, port) = (loopback_if_unspecified(to.ip().to_canonical()), to.port());
        let iface = self.net.link_of(IfaceId::LOOPBACK, ip);
        let own = self.member.as_ref().map_or(0, |member| member.id.0);
        let mut shards = 0;
        for (n, index) in self.tcp_binds.receivers.all(ip, port, iface).enumerate() {
            if n == LOOKED_AT {
                return self.member.as_ref().map_or(1, |member| member.everybody());
            }
            let socket = self.sockets.get(index);
            let Some(Kind::Listener(listener)) = socket.map(|socket| &socket.kind) else {
                continue;
            };
            let shard = listener.elsewhere(0).map_or(own, |listener| listener.name.shard.0);
            shards |= 1 << shard;
        }
        shards
    }

    /// Sends the owner of another shard a message, which arrives in one of its next turns
    /// ([`Host::told`]). No message is lost; a single stack has no receivers.
    pub fn tell_owner(&mut self, shard: ShardId, words: [u64; 3]) {
        let Some(from) = self.member.as_ref().map(|member| member.id) else { return };
        self.tell_shard(shard, Message::Owner { from, words });
    }

    /// Says something else of a listener from now on, for connections that are made afterwards.
    pub fn set_note(&mut self, listener: SocketId, note: ListenerNote) {
        let Some(index) = self.index(listener) else { return };
        let socket = self.sockets.get_mut(index);
        if let Some(Kind::Listener(state)) = socket.map(|socket| &mut socket.kind)
            && let Some(AmongShards::Original { note: before, .. }) = state.among.as_deref_mut()
            && *before != note
        {
            *before = note;
            self.in_order(Table::Tcp, index, 0, |_| true);
        }
    }

    pub(crate) fn tell_shard(&mut self, shard: ShardId, message: Message) {
        if let Some(pair) = self.member.as_mut().and_then(|member| member.pair(shard)) {
            pair.tell(message);
        }
    }

    /// Puts the children offered in `batch` into their queues, in the order of their offers across
    /// shards. Other messages of the batch come later, since they may be about these children.
    pub(super) fn take_offers(&mut self, host: &mut H, batch: &VecDeque<Mail>) {
        let mut offers: Vec<Offer> = batch.iter().filter_map(Mail::offer).collect();
        // Offers of one shard and time are in order, and the sort is stable.
        offers.sort_by_key(|offer| offer.at);
        for offer in &offers {
            self.on_offer(host, offer);
        }
    }

    fn on_offer(&mut self, host: &mut H, offer: &Offer) {
        let Offer { listener, from, child, again, .. } = *offer;
        let answer = self.enqueue(host, offer);
        let Some(member) = &self.member else { return };
        match answer {
            // Several places may have become free, but only one shard is told at a time: go on with
            // the next.
            Queued::Yes => {
                if let Some(index) = self.index(listener) {
                    self.tell_of_room(index);
                }
            }
            Queued::Full => {
                let full = Message::Full { listener, from: member.id, child, again };
                self.tell_shard(from, full);
            }
            Queued::Never => self.tell_shard(from, Message::Refused { child }),
        }
    }

    fn enqueue(&mut self, host: &mut H, offer: &Offer) -> Queued {
        let socket = self.index(offer.listener).and_then(|index| self.sockets.get_mut(index));
        let Some(socket) = socket else { return Queued::Never };
        let Kind::Listener(listener) = &mut socket.kind else { return Queued::Never };
        let is_full = listener.is_full();
        let Some(AmongShards::Original { turned_away, .. }) = listener.among.as_deref_mut() else {
            return Queued::Never;
        };
        if is_full || offer.more {
            *turned_away |= 1 << offer.from.0;
        }
        if is_full {
            return Queued::Full;
        }
        let child = (offer.child.user, offer.child.tag);
        if !host.enqueue(socket.user, child, offer.local, offer.remote) {
            *turned_away |= 1 << offer.from.0;
            return Queued::Full;
        }
        listener.waiting += 1;
        listener.publish();
        Queued::Yes
    }

    /// The owner has room for children again that it had none for in [`Host::enqueue`].
    pub fn offer_again(&mut self, listener: SocketId) {
        if let Some(index) = self.index(listener) {
            self.tell_of_room(index);
        }
    }

    /// Tells one shard that was turned away that the listener's queue may have room. Its offer says
    /// whether it has further children.
    pub(crate) fn tell_of_room(&mut self, index: u32) {
        let listener = SocketId(self.sockets.id(index));
        let socket = self.sockets.get_mut(index);
        let Some(Kind::Listener(state)) = socket.map(|socket| &mut socket.kind) else { return };
        state.publish();
        let is_full = state.is_full();
        let Some(AmongShards::Original { turned_away, told_last, .. }) = state.among.as_deref_mut()
        else {
            return;
        };
        if is_full || *turned_away == 0 {
            return;
        }
        // In turn, so that none waits for ever.
        let behind =
            *turned_away & u16::MAX.checked_shl(told_last.0.into()).map_or(0, |it| it << 1);
        let next = if behind != 0 { behind } else { *turned_away };
        let shard = ShardId(next.trailing_zeros() as u8);
        *turned_away &= !(1 << shard.0);
        *told_last = shard;
        let Some(from) = self.member.as_ref().map(|member| member.id) else { return };
        self.tell_shard(shard, Message::Room { listener, from });
    }

    /// There was no place for a child: it waits here.
    fn put_off(
        &mut self,
        now: Instant,
        host: &mut H,
        listener: ListenerName,
        child: Child,
        again: bool,
    ) {
        match self.unqueued(listener) {
            Some(unqueued) if again => unqueued.push_front(child),
            Some(unqueued) => unqueued.push_back(child),
            None => self.refuse(now, host, &child),
        }
    }

    /// There is a place: for the first child that is still there.
    fn offer_next(&mut self, now: Instant, host: &mut H, listener: ListenerName) {
        while let Some(unqueued) = self.unqueued(listener) {
            let Some(child) = unqueued.pop_front() else { break };
            let more = !unqueued.is_empty();
            if self.offer(now, listener, child, Some(more)) {
                return;
            }
            self.refuse(now, host, &child);
        }
        // The place is for another shard.
        self.tell_shard(listener.shard, Message::Pass { listener: listener.id });
    }

    /// The children that wait for a place with a listener, of which there is a shadow here.
    fn unqueued(&mut self, listener: ListenerName) -> Option<&mut VecDeque<Child>> {
        let ListenerName { shard: home, id: listener } = listener;
        let seat = Binds::seat_of(home, listener.0 as u32);
        let index = *self.member.as_ref()?.shadows.get(&(Table::Tcp, seat))?;
        let Kind::Listener(state) = &mut self.sockets.get_mut(index)?.kind else { return None };
        match state.among.as_deref_mut()? {
            // Its number may be another listener's by now.
            AmongShards::Shadow { id, unqueued, .. } if *id == listener => Some(unqueued),
            _ => None,
        }
    }
}

/// Outcome of an offer.
enum Queued {
    Yes,
    Full,
    Never,
}
