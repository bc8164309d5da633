//! Runs the network stack, and applies the results to the sockets of programs.

use towpath_ring::{SocketSend, take_tx_wanted};
use towpath_shm::layout::event;
use towpath_stack::Turn;

use crate::shard::net::Net;
use crate::shard::peers::ShardPeers;
use crate::shard::processes::channels::Channels;
use crate::shard::sockets::Sockets;

/// Number of instructions of a socket filter that count as one work step, since they take about 100
/// ns. Work steps measure the duration of an iteration of the event loop.
const FILTER_STEPS_OF_WORK: usize = 32;

impl Sockets {
    /// Runs the network stack once: receives, processes and sends packets. Applies the results to
    /// sockets. The caller must call [`Self::follow_up`] afterwards.
    pub(crate) fn turn_packets(&mut self, net: &mut Net, peers: &ShardPeers) {
        self.turn_stack(net, peers);
        self.after_turn(net);
    }

    /// Applies the results of [`Self::turn_stack`] to sockets. Frees buffer memory that packets no
    /// longer refer to, and resets sockets that failed.
    pub(crate) fn after_turn(&mut self, net: &mut Net) {
        net.status.set_datagram_mtu(net.stack.net.path_mtu_least());
        self.return_lent();
        self.return_pinned(net);
        self.stamp_streams(net);
        net.notify_observers(self.now, false);
        self.reset_hostile_sockets(net);
        self.accept_long_deferred();
        self.offer_deferred(net);
        self.offer_again(net);
        self.reset_failed(net);
    }

    /// Runs the network stack once: receives, processes and sends packets. The caller must call
    /// [`Self::after_turn`] before the shard sleeps.
    pub(crate) fn turn_stack(&mut self, net: &mut Net, peers: &ShardPeers) -> Turn {
        let now = self.now;
        if net.stack.minds_processor() {
            net.stack.runs_on(crate::shard::sockets::options::processor::current());
        }
        let turn = net.stack.turn(now, self, &mut net.ports.list, &mut net.pool, net.budget);
        self.counters.work(turn.filter_steps / FILTER_STEPS_OF_WORK);
        // Wake the shards to which the stack has just sent messages. `turn.mail` reports each of
        // them only once, so a shard that is not woken here would continue to sleep.
        peers.wake_shards(turn.mail);
        self.acknowledge_ends(net);
        self.ends.settle(turn.more);
        turn
    }

    /// Frees the slots of sockets that have ended, provides memory to waiting programs, and
    /// notifies programs of events.
    pub(crate) fn follow_up(&mut self, net: &mut Net, channels: &mut Channels) {
        self.free_ended(net);
        self.give_memory(net);
        self.reset_unclaimed(net);
        self.close_overdue_in_flight(net, channels.is_empty());
        self.sweep(net);
        self.tell(net, channels);
    }

    /// Frees acknowledged bytes that packets no longer refer to, and notifies threads that wait for
    /// send buffer space. Copies packets that keep too much memory of closed sockets allocated.
    pub(crate) fn return_pinned(&mut self, net: &mut Net) {
        while let Some(slot) = self.windows.pop_unpinned() {
            // The slot may have been reused for a new socket. The calls below have no effect on the
            // new socket.
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
