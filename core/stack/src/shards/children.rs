//! Connections for a listener of another shard. The connection and its buffers are in the shard to
//! which the flow belongs. The accept queue is in the listener's shard:
//!
//! ```text
//!  shard of the flow                       shard of the listener
//!  last ACK of the handshake:
//!  Host::accept_for, connection ─ Offer ─► place in the queue? Host::enqueue
//!  waits here                   ◄─ Full ── no
//!                               ◄─ Room ── Stack::accepted
//!  oldest waiting child         ─ Offer ─► ...
//!  or no child waits            ─ Pass ──► Room to another shard
//! ```
//!
//! Connections of one client must enter the queue in order, even if they are in different shards.
//! An offer therefore contains the time of the event loop's turn that made it. The rings are read
//! until none of them has another offer.
//!
//! The listener's shard publishes the number of free places in the queue to the other shards. If
//! the number is 0, they drop SYNs and last ACKs of handshakes, like the listener's own shard.
//! `Full` is the answer to an offer that was in transit when the queue became full.

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
            // Do nothing: `take_offers` has already added the offered connection to the accept
            // queue of its listener.
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

    /// Closes the connections that wait for a listener of another shard that no longer exists.
    pub(crate) fn close_forsaken(&mut self, cx: &mut Cx<'_, H>) {
        while let Some(child) = self.shards.member.as_mut().and_then(|it| it.forsaken.pop_front()) {
            self.refuse(cx, &child);
        }
        while let Some(listener) = self.shards.member.as_mut().and_then(|it| it.gone.pop_front()) {
            cx.host.listener_gone(&listener);
        }
    }

    /// Resets a connection that its listener refused. The connection may have ended since it was
    /// offered.
    fn refuse(&mut self, cx: &mut Cx<'_, H>, child: &OfferedChild) {
        cx.host.refused(child.user, child.tag);
        self.close(cx.now, child.id, Linger::Abort);
    }

    /// Adds the connections that are offered in `batch` to the accept queues, in the order of the
    /// times at which they were offered. The other messages of the batch are handled later, because
    /// they may refer to these connections.
    pub(super) fn take_offers(&mut self, host: &mut H, batch: &VecDeque<Mail>) {
        let mut offers: Vec<Offer> = batch.iter().filter_map(Mail::offer).collect();
        // The sort is stable, and the offers of one shard are already in order. Offers with the
        // same time therefore remain in order.
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
            // Several places in the queue may have become free, but only one shard at a time is
            // notified. Notify the next one.
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

    /// Keeps a connection for which the accept queue had no free place.
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

    /// Handles a free place in the accept queue of a listener in another shard. Offers the listener
    /// the first waiting connection that still exists.
    fn offer_next(&mut self, cx: &mut Cx<'_, H>, listener: ListenerName) {
        while let Some(unqueued) = self.unqueued(listener) {
            let Some(child) = unqueued.pop_front() else { break };
            let more = !unqueued.is_empty();
            if self.offer(cx.now, listener, child, Some(more)) {
                return;
            }
            self.refuse(cx, &child);
        }
        // No connection waits in this shard. Notify the listener's shard, so that it offers the
        // free place to another shard.
        self.shards.tell(listener.shard, ShardMessage::Pass { listener: listener.id });
    }

    /// Returns the connections that wait for a free place in the accept queue of a listener in
    /// another shard. The connections are stored in the entry that represents the listener in this
    /// shard.
    fn unqueued(&mut self, listener: ListenerName) -> Option<&mut VecDeque<OfferedChild>> {
        let ListenerName { shard: home, id: listener } = listener;
        let seat = Binds::seat_of(home, listener.0 as u32);
        let index = *self.shards.member.as_ref()?.shadows.get(&(PortProtocol::Tcp, seat))?;
        let SocketRole::Listener(state) = &mut self.sockets.get_mut(index)?.kind else {
            return None;
        };
        match state.among.as_deref_mut()? {
            // A new listener may have reused the number of an old one, so compare the whole
            // identifier.
            AmongShards::Shadow { id, unqueued, .. } if *id == listener => Some(unqueued),
            _ => None,
        }
    }
}

/// Result of adding an offered connection to an accept queue.
enum Queued {
    Yes,
    Full,
    Never,
}
