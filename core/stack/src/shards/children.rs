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
//!  or no child                  ─ Pass ──► Room for another shard
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

use super::post::{Mail, Offer, OfferedChild, ShardMessage};
use crate::cx::Cx;
use crate::host::{Host, Linger, ListenerName};
use crate::ports::bind_addr::PortProtocol;
use crate::ports::binds::Binds;
use crate::socket::SocketRole;
use crate::stack::Stack;
use crate::tcp::listener::AmongShards;

impl<H: Host> Stack<H> {
    pub(crate) fn on_message(&mut self, cx: &mut Cx<'_, H>, message: ShardMessage) {
        match message {
            ShardMessage::Owner { from, words } => cx.host.told(from, words),
            // `take_offers` has put the child into its queue.
            ShardMessage::Offer(_) => {}
            ShardMessage::Full { listener, from, child, again } => {
                let listener = ListenerName { shard: from, id: listener };
                self.put_off(cx, listener, child, again);
            }
            ShardMessage::Refused { child } => self.refuse(cx, &child),
            ShardMessage::Room { listener, from } => {
                self.offer_next(cx, ListenerName { shard: from, id: listener });
            }
            ShardMessage::Pass { listener } => {
                if let Some(index) = self.index(listener) {
                    self.tell_of_room(index);
                }
            }
            ShardMessage::Claim { flow, socket, by } => self.on_claim(cx.now, flow, socket, by),
            ShardMessage::Claimed { flow, socket, iss_min } => {
                self.on_claimed(flow, socket, iss_min)
            }
            ShardMessage::InUse { socket } => self.on_flow_in_use(socket),
        }
    }

    /// Closes the children of listeners that are gone.
    pub(crate) fn close_forsaken(&mut self, cx: &mut Cx<'_, H>) {
        while let Some(child) = self.shards.member.as_mut().and_then(|it| it.forsaken.pop_front()) {
            self.refuse(cx, &child);
        }
        while let Some(listener) = self.shards.member.as_mut().and_then(|it| it.gone.pop_front()) {
            cx.host.listener_gone(&listener);
        }
    }

    /// A child is refused by its listener, and aborted here. Its connection may have ended before.
    fn refuse(&mut self, cx: &mut Cx<'_, H>, child: &OfferedChild) {
        cx.host.refused(child.user, child.tag);
        self.close(cx.now, child.id, Linger::Abort);
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
        let Some(member) = &self.shards.member else { return };
        match answer {
            // Several places may have become free, but only one shard is notified at a time: notify
            // the next.
            Queued::Yes => {
                if let Some(index) = self.index(listener) {
                    self.tell_of_room(index);
                }
            }
            Queued::Full => {
                let full = ShardMessage::Full { listener, from: member.id, child, again };
                self.shards.tell(from, full);
            }
            Queued::Never => self.shards.tell(from, ShardMessage::Refused { child }),
        }
    }

    fn enqueue(&mut self, host: &mut H, offer: &Offer) -> Queued {
        let socket = self.index(offer.listener).and_then(|index| self.sockets.get_mut(index));
        let Some(socket) = socket else { return Queued::Never };
        let SocketRole::Listener(listener) = &mut socket.kind else { return Queued::Never };
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

    /// There was no place for a child: it waits here.
    fn put_off(
        &mut self,
        cx: &mut Cx<'_, H>,
        listener: ListenerName,
        child: OfferedChild,
        again: bool,
    ) {
        match self.unqueued(listener) {
            Some(unqueued) if again => unqueued.push_front(child),
            Some(unqueued) => unqueued.push_back(child),
            None => self.refuse(cx, &child),
        }
    }

    /// There is a place: for the first child that is still there.
    fn offer_next(&mut self, cx: &mut Cx<'_, H>, listener: ListenerName) {
        while let Some(unqueued) = self.unqueued(listener) {
            let Some(child) = unqueued.pop_front() else { break };
            let more = !unqueued.is_empty();
            if self.offer(cx.now, listener, child, Some(more)) {
                return;
            }
            self.refuse(cx, &child);
        }
        // The place is for another shard.
        self.shards.tell(listener.shard, ShardMessage::Pass { listener: listener.id });
    }

    /// The children that wait for a place with a listener, of which there is a shadow here.
    fn unqueued(&mut self, listener: ListenerName) -> Option<&mut VecDeque<OfferedChild>> {
        let ListenerName { shard: home, id: listener } = listener;
        let seat = Binds::seat_of(home, listener.0 as u32);
        let index = *self.shards.member.as_ref()?.shadows.get(&(PortProtocol::Tcp, seat))?;
        let SocketRole::Listener(state) = &mut self.sockets.get_mut(index)?.kind else {
            return None;
        };
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
