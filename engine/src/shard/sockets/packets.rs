//! A turn of the stack, and its consequences for sockets.

use towpath_ring::{SocketSend, take_tx_wanted};
use towpath_shm::layout::event;
use towpath_stack::Turn;

use crate::shard::net::Net;
use crate::shard::peers::ShardPeers;
use crate::shard::processes::channels::Channels;
use crate::shard::sockets::Sockets;

/// Instructions of filters that take as long as a step of work, some 100 ns.
const FILTER_STEPS_OF_WORK: usize = 32;

impl Sockets {
    /// A turn of the stack with its consequences for sockets. [`Self::follow_up`] is due then.
    pub(crate) fn turn_packets(&mut self, net: &mut Net, peers: &ShardPeers) {
        self.turn_stack(net, peers);
        self.after_turn(net);
    }

    /// After a turn of the stack: frees memory that packets lent, and ends sockets that failed.
    pub(crate) fn after_turn(&mut self, net: &mut Net) {
        net.status.set_datagram_mtu(net.stack.net.path_mtu_least());
        self.return_lent();
        self.return_pinned(net);
        net.notify_observers(self.now);
        self.reset_hostile_sockets(net);
        self.accept_long_deferred();
        self.offer_deferred(net);
        self.offer_again(net);
        self.reset_failed(net);
    }

    /// A turn of the stack. Its results are handled by the next [`Self::after_turn`], at the latest
    /// before the shard sleeps.
    pub(crate) fn turn_stack(&mut self, net: &mut Net, peers: &ShardPeers) -> Turn {
        let now = self.now;
        if net.stack.minds_processor() {
            net.stack.runs_on(crate::shard::sockets::options::processor::current());
        }
        let turn = net.stack.turn(now, self, &mut net.ports, &mut net.pool, net.budget);
        self.counters.work(turn.filter_steps / FILTER_STEPS_OF_WORK);
        // `turn.mail` is reported once: wake these shards now, or they sleep on.
        peers.wake_shards(turn.mail);
        self.acknowledge_ends(net);
        self.ends.settle(turn.more);
        turn
    }

    /// Frees slots of ended sockets, gives memory to waiting programs, and tells programs what
    /// happened.
    pub(crate) fn follow_up(&mut self, net: &mut Net, channels: &mut Channels) {
        self.free_ended(net);
        self.give_memory(net);
        self.reset_unclaimed(net);
        self.close_overdue_in_flight(net, channels.is_empty());
        self.sweep(net);
        self.tell(net, channels);
    }

    /// The last packets that pointed to released bytes of some FIFOs have come back: programs that
    /// wait for room are told. Packets that keep too much memory of FIFOs that are gone are copied.
    pub(crate) fn return_pinned(&mut self, net: &mut Net) {
        while let Some(slot) = self.windows.pop_unpinned() {
            // Another socket may have the slot, whose FIFO looks in vain.
            let Some(entry) = self.slots.get_mut(slot) else { continue };
            let id = entry.id;
            if let Some(tx) = entry.owned.as_deref_mut().and_then(|owned| owned.tx.as_mut()) {
                tx.unpin();
            }
            if let Some(tx) = id.and_then(|id| net.stack.send_buffer(id).and_then(SocketSend::slot))
            {
                tx.unpin();
            }
            self.counters.unpinned += 1;
            if take_tx_wanted(self.slots.shared(slot)) {
                self.slots.post(slot, event::TX);
            }
        }
        if self.windows.take_forsaken() {
            net.stack.net.copy_forsaken(&mut net.pool);
        }
    }
}
