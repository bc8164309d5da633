//! Frees the buffer memory of idle sockets (the sweep). A receive FIFO is freed as soon as it is
//! empty. A send FIFO is kept for some time after the last write, because the program would have to
//! request memory again.

use std::time::Duration;

use towpath_ring::{EngineRecv, EngineSend, SendBuffer, SocketRecv, SocketSend};
use towpath_tcp::Instant;

use crate::shard::net::Net;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::queues::Swept;

/// Interval at which a socket is checked for idle memory.
const PERIOD: Duration = Duration::from_secs(1);
/// Interval at which a socket is checked for idle memory while memory is short.
const PERIOD_TIGHT: Duration = Duration::from_millis(20);
/// Time after the last write for which the send FIFO of an idle socket keeps its memory.
const TX_IDLE: Duration = Duration::from_secs(10);
/// Time for which the send FIFO of an idle socket keeps its memory while buffer memory is scarce.
const TX_IDLE_TIGHT: Duration = Duration::from_millis(100);
/// Maximum number of sockets that are checked for idle memory in one iteration of the event loop. A
/// check takes about 50 ns.
const SOCKETS_A_TURN: usize = 1024;

impl Sockets {
    /// Checks some of the sockets in the sweep's queue, and frees the buffer memory of idle ones.
    /// Removes a socket from the queue when it has no memory.
    pub(crate) fn sweep(&mut self, net: &mut Net) {
        let now = self.now;
        if self.sweep.queue.is_empty() || now < self.sweep.at {
            return;
        }
        let tight = self.windows.is_tight() || !self.starved.is_empty();
        let left = self.sweep.queue.len().saturating_sub(SOCKETS_A_TURN);
        for _ in left..self.sweep.queue.len() {
            let Some(mut swept) = self.sweep.queue.pop_front() else { break };
            self.counters.work(1);
            if self.collect(net, &mut swept, tight) {
                if let Some(entry) = self.slots.get_mut(swept.slot) {
                    entry.swept = false;
                }
                self.sweep.queued.remove(swept.slot);
            } else {
                self.sweep.queue.push_back(swept);
            }
        }
        // Free memory of the queue after many sockets have left it.
        if self.sweep.queue.len() < self.sweep.queue.capacity() / 4 {
            self.sweep.queue.shrink_to(2 * self.sweep.queue.len() + SOCKETS_A_TURN);
        }
        let period = if tight { PERIOD_TIGHT } else { PERIOD };
        self.sweep.at = now + if left > 0 { period / 16 } else { period };
    }

    /// Frees the idle memory of a socket. Returns true if the socket has no memory left.
    fn collect(&mut self, net: &mut Net, seen: &mut Swept, tight: bool) -> bool {
        let now = self.now;
        let Some(entry) = self.slots.get_mut(seen.slot) else { return true };
        let idle = if tight { TX_IDLE_TIGHT } else { TX_IDLE };
        let (mut rx_free, mut tx_free) = (true, true);
        if let Some(owned) = entry.owned.as_deref_mut() {
            rx_free = owned.rx.as_mut().is_none_or(EngineRecv::release_if_empty);
            tx_free = owned.tx_lent == 0
                && owned.tx.as_mut().is_none_or(|tx| collect_send(now, tx, seen, idle));
        }
        if let Some(id) = entry.id {
            rx_free &= net
                .stack
                .recv_buffer(id)
                .and_then(SocketRecv::slot)
                .is_none_or(EngineRecv::release_if_empty);
            tx_free &= net
                .stack
                .send_buffer(id)
                .and_then(SocketSend::slot)
                .is_none_or(|tx| collect_send(now, tx, seen, idle));
            if tx_free {
                net.stack.release_idle_memory(id);
            }
        }
        rx_free && tx_free
    }
}

fn collect_send(now: Instant, tx: &mut EngineSend, seen: &mut Swept, idle: Duration) -> bool {
    if !tx.is_attached() {
        return true;
    }
    let at = tx.position();
    if seen.position != at || !tx.is_empty() {
        (seen.position, seen.since) = (at, now);
        return false;
    }
    now.since(seen.since) >= idle && tx.release_if_empty()
}

#[cfg(test)]
mod tests {
    use crate::shard::sockets::slots::AF_INET;
    use crate::{Engine, EngineConfig};
    use towpath_shm::layout::Kind;

    /// Connections are opened and closed several times between two checks of a slot for idle
    /// memory.
    #[test]
    fn a_slot_stands_in_the_queue_once_however_often_it_is_used() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        for _ in 0..100 {
            let slot = engine.shard.sockets.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
            engine.shard.sockets.watch_memory(slot);
            engine.shard.sockets.slots.release(slot);
        }
        assert_eq!(engine.shard.sockets.sweep.queue.len(), 1);
        engine.shard.sweep(engine.shard.sockets.now);
        assert!(engine.shard.sockets.sweep.queue.is_empty());
        let slot = engine.shard.sockets.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        engine.shard.sockets.watch_memory(slot);
        assert_eq!(engine.shard.sockets.sweep.queue.len(), 1);
    }
}
