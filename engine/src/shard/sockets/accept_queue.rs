//! Accept queues of listeners, with connections of this shard and of peer shards.

use towpath_shm::layout::Kind;
use towpath_stack::Linger;

use crate::shard::net::Net;
use crate::shard::peers::message::PeerMessage;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::children::Parent;
use crate::shard::sockets::ends::PendingEnd;

impl Sockets {
    /// Removes a connection of a peer shard (event loop) from its listener's list of connections.
    /// If `place` is true, also frees the connection's place in the backlog.
    pub(crate) fn free_child(
        &mut self,
        net: &mut Net,
        listener: (u32, u32),
        child: (u32, u32),
        place: bool,
    ) {
        // Free a place only if the connection was in the list. A program may name any connection
        // here, even one without a place in the backlog.
        if self.remove_child(listener, child) && place {
            self.free_place(net, listener);
        }
    }

    /// Removes a connection from its listener's list of connections, because a process has accepted
    /// it or it has ended. Returns false if it was not in the list.
    fn remove_child(&mut self, listener: (u32, u32), child: (u32, u32)) -> bool {
        let Some(entry) = self.slots.find(listener.0, listener.1) else { return false };
        let children = &mut entry.owned().children;
        self.counters.work(children.len() / 64);
        let at = children.iter().position(|it| (it.slot, it.generation) == child);
        at.is_some_and(|at| children.remove(at).is_some())
    }

    /// Frees one place in a listener's backlog, because a connection was accepted or will never be
    /// accepted.
    pub(crate) fn free_place(&mut self, net: &mut Net, listener: (u32, u32)) {
        if let Some(id) = self.slots.find(listener.0, listener.1).and_then(|entry| entry.id) {
            net.stack.accepted(id);
        }
    }

    /// Removes a connection from its listener's list of connections, even if the listener is in a
    /// peer shard (event loop). If `place` is true, also frees the connection's place in the
    /// backlog.
    pub(crate) fn leave_listener(
        &mut self,
        net: &mut Net,

        listener: (u32, u32),
        child: (u32, u32),
        place: bool,
    ) {
        let word = match place {
            true => PeerMessage::Claimed { listener, child },
            false => PeerMessage::Forgotten { listener, child },
        };
        match self.place.elsewhere(listener.0) {
            Some(shard) => net.tell_shard(shard, word),
            None => {
                // Ignore the result: a connection that is not accepted until bytes arrive has a
                // place in the backlog, but is not in the list.
                self.remove_child(listener, child);
                if place {
                    self.free_place(net, listener);
                }
            }
        }
    }

    /// Resets a connection that a process has removed from the accept queue, unless the process has
    /// reported that it has accepted it.
    pub(crate) fn end_unclaimed(&mut self, net: &mut Net, slot: u32, generation: u32) {
        let Some(entry) = self.slots.find(slot, generation) else { return };
        let Some(listener) = entry.unclaimed() else { return };
        self.counters.unclaimed += 1;
        self.end(net, slot, Linger::Abort);
        self.leave_listener(net, listener, (slot, generation), true);
    }

    /// Sends the changed properties of a listener to the peer shards.
    pub(crate) fn update_note(&mut self, net: &mut Net, slot: u32) {
        let Some(entry) = self.slots.get(slot) else { return };
        if self.place.of > 1 && entry.kind == Kind::Listener {
            let note = Parent::of_entry(slot, entry).note();
            if let Some(id) = entry.id {
                net.stack.set_note(id, note);
            }
        }
    }

    /// Closes a connection that no process will accept, even if it is in a peer shard (event loop).
    pub(crate) fn end_child(&mut self, net: &mut Net, slot: u32, generation: u32) {
        let Some(shard) = self.place.elsewhere(slot) else {
            return self.ends.push(PendingEnd::Connection(slot, generation));
        };
        self.ends.elsewhere.entry(shard).or_default().0 += 1;
        net.tell_shard(shard, PeerMessage::End(slot, generation));
    }

    /// Tells peer shards (event loops) that connections are closed, as they requested. Called after
    /// the stack has run since the close.
    pub(crate) fn acknowledge_ends(&mut self, net: &mut Net) {
        for shard in self.ends.take_acknowledged() {
            net.tell_shard(shard, PeerMessage::Ended);
        }
    }

    /// Offers connections with TCP_DEFER_ACCEPT to their listeners in peer shards (event loops),
    /// because their first bytes have arrived.
    pub(crate) fn offer_deferred(&mut self, net: &mut Net) {
        let now = self.now;
        for (slot, generation, listener) in std::mem::take(&mut self.deferred.to_offer) {
            let Some(entry) = self.slots.find(slot, generation) else { continue };
            let id = entry.id;
            if !id.is_some_and(|id| net.stack.offer_to(now, listener, id, generation)) {
                // The listener was closed meanwhile, so no process can accept the connection.
                self.end(net, slot, Linger::Abort);
            }
        }
    }

    /// Asks peer shards (event loops) to offer their connections to this shard's listeners again.
    /// Before, there was no memory to queue them.
    pub(crate) fn offer_again(&mut self, net: &mut Net) {
        let now = self.now;
        if self.deferred.offer_again_at.is_none_or(|at| at > now) {
            return;
        }
        self.deferred.offer_again_at = None;
        for (slot, generation) in std::mem::take(&mut self.deferred.to_offer_again) {
            if let Some(id) = self.slots.find(slot, generation).and_then(|entry| entry.id) {
                net.stack.offer_again(id);
            }
        }
    }
}
