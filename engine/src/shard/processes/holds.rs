//! Records which processes have a descriptor of which sockets.

use towpath_shm::layout::event;

use crate::ids::ChannelId;
use crate::shard::net::Net;
use crate::shard::processes::Processes;
use crate::shard::processes::channels::{Batch, BatchWork};
use crate::shard::sockets::Sockets;
use crate::shard::sockets::slot_set::SlotSet;

impl Processes {
    /// Returns whether the process with channel `id` has a descriptor of the socket in `slot`.
    pub(crate) fn is_held(&self, id: ChannelId, slot: u32) -> bool {
        self.channels.get(id).is_some_and(|attached| attached.holds.contains(slot))
    }

    /// Records that a process has the socket in `slot` open.
    pub(crate) fn hold(&mut self, sockets: &mut Sockets, id: ChannelId, slot: u32) {
        sockets.counters.work(1);
        let (Some(entry), Some(attached)) =
            (sockets.slots.get_mut(slot), self.channels.get_mut(id))
        else {
            return;
        };
        let is_new = attached.holds.insert(slot);
        // If the slot is in `former`, the socket's `holders` list still contains the process.
        // Removing it from `former` cancels the pending release.
        if is_new && !attached.former.remove(slot) {
            entry.holders.push(id);
            attached.held += 1;
            self.holds += 1;
            sockets.counters.holds_made += 1;
        }
        let clones = attached.lineage.clones.len();
        sockets.end_flight(slot);
        // Child processes that were just forked may have inherited the socket. Record it for them
        // as well, until they have listed their own sockets.
        for at in 0..clones {
            let Some(&clone) = self.channels.get(id).and_then(|it| it.lineage.clones.get(at))
            else {
                break;
            };
            self.hold(sockets, clone, slot);
        }
    }

    /// Records that a process has received a descriptor of a socket: by accept(2), by SCM_RIGHTS,
    /// or from its parent.
    pub(crate) fn adopt(&mut self, sockets: &mut Sockets, net: &mut Net, id: ChannelId, slot: u32) {
        if sockets.slots.get(slot).is_some_and(|entry| entry.unclaimed().is_some()) {
            self.claim(sockets, net, id, slot);
        } else {
            self.hold(sockets, id, slot);
        }
    }

    /// Records that a process has accepted a connection, which it has removed from an accept queue.
    pub(crate) fn claim(&mut self, sockets: &mut Sockets, net: &mut Net, id: ChannelId, slot: u32) {
        // Ignore a connection that is being closed, because its listener was closed or the ACCEPTED
        // command came too late. Otherwise the process would still be recorded when the slot is
        // reused.
        let entry = sockets.slots.get(slot).filter(|entry| !entry.closing);
        let Some((listener, generation)) = entry.and_then(|entry| entry.unclaimed()) else {
            sockets.counters.commands_stale += 1;
            return;
        };
        sockets.end_deferral(slot);
        let own = sockets.slots.get(slot).map_or(0, |entry| entry.generation);
        sockets.leave_listener(net, (listener, generation), (slot, own), true);
        self.hold(sockets, id, slot);
        // Post an event, because earlier ones were sent to no process, and bytes may have arrived
        // since the program read the FIFO. A spurious event is harmless, but a lost one would stall
        // the connection.
        sockets.slots.post(slot, event::RX);
    }

    /// Records that a process has closed its last descriptor of a socket. Closes the socket if no
    /// other process has it open.
    pub(crate) fn let_go(
        &mut self,
        sockets: &mut Sockets,
        net: &mut Net,
        id: ChannelId,
        slot: u32,
    ) {
        sockets.counters.work(1);
        self.give_to_clone(sockets, id, slot);
        if let Some(attached) = self.channels.get_mut(id)
            && (attached.holds.remove(slot) || attached.former.remove(slot))
        {
            attached.held -= 1;
            self.holds -= 1;
            attached.closed.insert(slot);
            // Remove the slot from these lists, because it may be reused for another socket.
            attached.listed.remove(slot);
            if let Some(expected) = &mut attached.lineage.expected {
                expected.inherits.remove(slot);
            }
        }
        let Some(entry) = sockets.slots.get_mut(slot) else { return };
        entry.holders.remove(id);
        if !entry.holders.is_empty() {
            sockets.catch_up(net, slot);
        } else if entry.unclaimed().is_none() {
            // Close the socket, unless it is in flight to another process (SCM_RIGHTS). A process
            // without a link was removed for a protocol violation, so do not trust its count of
            // messages in flight.
            let is_honest = self.channels.get(id).is_some_and(|attached| attached.link.is_some());
            if !is_honest || !sockets.keep_in_flight(id, slot) {
                sockets.close(net, slot);
            }
        }
    }

    /// Gives a socket to the channel that is being cloned, before the parent releases the socket.
    /// The new process gets all sockets that its parent had at the time of the CLONE request.
    pub(crate) fn give_to_clone(&mut self, sockets: &mut Sockets, id: ChannelId, slot: u32) {
        let Some(attached) = self.channels.get(id) else { return };
        let Some(Batch { what: BatchWork::Give { clone, only_listed }, .. }) = attached.batch
        else {
            return;
        };
        let expected = || self.channels.get(clone)?.lineage.expected.as_ref();
        let is_its =
            !only_listed || expected().is_some_and(|expected| expected.inherits.contains(slot));
        if is_its && attached.holds.contains(slot) {
            self.hold(sockets, clone, slot);
        }
    }

    /// Releases all sockets of a process, except those in `listed`.
    pub(crate) fn keep_only(&mut self, sockets: &mut Sockets, id: ChannelId, listed: &SlotSet) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.holds.move_others(listed, &mut attached.former);
        self.begin_end_of_holds(sockets, id);
    }

    /// Queues a process, so that its sockets in `former` are released in batches.
    pub(crate) fn begin_end_of_holds(&mut self, sockets: &mut Sockets, id: ChannelId) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        if !std::mem::replace(&mut attached.is_ending, true) {
            sockets.ends.push_holds(id);
        }
    }
}
