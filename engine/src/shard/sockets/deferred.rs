//! Connections that cannot be accepted until their first bytes have arrived (TCP_DEFER_ACCEPT).

use std::collections::btree_map::Entry;
use std::time::Duration;

use towpath_ring::Payload;
use towpath_shm::layout::{AcceptRecord, Plain, event};
use towpath_stack::ListenerName;

use crate::shard::sockets::Sockets;
use crate::shard::sockets::children::Parent;
use crate::shard::sockets::slots::Child;

/// Time until the next attempt to add a connection to the accept queue, if there was no memory.
pub(super) const DEFERRAL_RETRY: Duration = Duration::from_millis(100);

impl Sockets {
    /// Delays the accept of a new connection if its listener has set TCP_DEFER_ACCEPT. Returns
    /// false if the connection can be accepted now.
    pub(super) fn defer(
        &mut self,
        parent: &Parent,
        slot: u32,
        elsewhere: Option<ListenerName>,
    ) -> bool {
        let seconds = parent.defer_accept_s;
        let until = self.now + Duration::from_secs(seconds.into());
        let Some(entry) = self.slots.get_mut(slot).filter(|_| seconds > 0) else { return false };
        entry
            .set_rare(|rare| (rare.waits.deferred, rare.waits.to_offer) = (Some(until), elsewhere));
        self.deferred.to_accept.insert((until, slot), entry.generation);
        if elsewhere.is_some() {
            *self.deferred.by_listener.entry(parent.slot).or_default() += 1;
        }
        true
    }

    /// Records that a connection with TCP_DEFER_ACCEPT can be accepted now. Returns false if it was
    /// not delayed.
    pub fn end_deferral(&mut self, slot: u32) -> bool {
        let Some(entry) = self.slots.get_mut(slot) else { return false };
        let Some(until) = entry.rare().waits.deferred else { return false };
        let is_elsewhere = entry.rare().waits.to_offer.is_some();
        entry.set_rare(|rare| (rare.waits.deferred, rare.waits.to_offer) = (None, None));
        if let Some((listener, _)) = entry.unclaimed().filter(|_| is_elsewhere)
            && let Entry::Occupied(mut count) = self.deferred.by_listener.entry(listener)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.deferred.to_accept.remove(&(until, slot)).is_some()
    }

    /// Makes a deferred connection acceptable, because bytes or a FIN have arrived on it.
    pub(super) fn arrived(&mut self, slot: u32) {
        if self.slots.get(slot).is_some_and(|entry| entry.rare().waits.deferred.is_some()) {
            self.accept_deferred(slot);
        }
    }

    /// Moves a connection with TCP_DEFER_ACCEPT to its listener's accept queue.
    fn accept_deferred(&mut self, slot: u32) {
        let to_offer = self.slots.get(slot).and_then(|entry| entry.rare().waits.to_offer);
        if !self.end_deferral(slot) {
            return;
        }
        let Some(entry) = self.slots.get(slot) else { return };
        let (generation, parent) = (entry.generation, entry.unclaimed());
        if let Some(listener) = to_offer {
            return self.deferred.to_offer.push((slot, generation, listener));
        }
        let Some((listener, _)) =
            parent.filter(|&(slot, generation)| self.slots.find(slot, generation).is_some())
        else {
            return;
        };
        let record = self.accept_record(slot, generation);
        if !self.push_accepted(listener, &record)
            && let Some(entry) = self.slots.get_mut(slot)
        {
            // The connection has a place in the backlog, but there is no memory for its entry in
            // the accept queue now. Try again later.
            let again = self.now + DEFERRAL_RETRY;
            entry.set_rare(|rare| rare.waits.deferred = Some(again));
            self.deferred.to_accept.insert((again, slot), generation);
        }
    }

    /// Moves connections with TCP_DEFER_ACCEPT to the accept queue if they have received no bytes
    /// within the listener's timeout.
    pub fn accept_long_deferred(&mut self) {
        while let Some(entry) = self.deferred.to_accept.first_entry()
            && entry.key().0 <= self.now
        {
            let slot = entry.key().1;
            self.accept_deferred(slot);
        }
    }

    /// Returns the record for the accept queue about a connection of this shard.
    pub(super) fn accept_record(&self, slot: u32, generation: u32) -> AcceptRecord {
        let shared = self.slots.shared(slot);
        let (local, remote) = (shared.local.load(), shared.remote.load());
        AcceptRecord { slot, generation, remote, local, reserved: 0 }
    }

    /// Adds a connection to an accept queue. Returns false if there is no memory for the queue, or
    /// no queue.
    pub(super) fn push_accepted(&mut self, listener: u32, record: &AcceptRecord) -> bool {
        let &AcceptRecord { slot, generation, .. } = record;
        let nothing = Payload::new(&[], towpath_shm::Fragments::empty());
        let Some(owned) = self.slots.get_mut(listener).and_then(|entry| entry.owned.as_deref_mut())
        else {
            return false;
        };
        let Some(rx) = &mut owned.rx else {
            return false;
        };
        if !rx.push_record(record.as_bytes(), &nothing) {
            return false;
        }
        let end = rx.tail();
        owned.children.push_back(Child { slot, generation, end, orphaned: false });
        self.watch_memory(listener);
        self.slots.post(listener, event::RX);
        true
    }
}
