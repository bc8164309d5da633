//! Memory of idle sockets comes back. A receive FIFO gives it up as soon as it is read empty. A
//! transmit FIFO does when nothing was written for a while, because the program would have to ask
//! for memory again.

use std::time::Duration;

use towpath_ring::{EngineRecv, EngineSend, SendBuffer};
use towpath_tcp::Instant;

use crate::shard::Shard;
use crate::shard::host::Swept;

/// Between two looks at the same socket.
const PERIOD: Duration = Duration::from_secs(1);
/// The same when memory is short.
const PERIOD_TIGHT: Duration = Duration::from_millis(20);
/// How long a transmit FIFO keeps its memory.
const TX_IDLE: Duration = Duration::from_secs(10);
/// The same when memory is short.
const TX_IDLE_TIGHT: Duration = Duration::from_millis(100);
/// Sockets looked at in one turn; each costs some 50 ns.
const SOCKETS_A_TURN: usize = 1024;

impl Shard {
    /// Looks at some of the sockets that have memory. Each is in the queue once; a socket without
    /// memory leaves it.
    pub(crate) fn sweep(&mut self, now: Instant) {
        if self.host.to_sweep.is_empty() || now < self.sweep_at {
            return;
        }
        let tight = self.host.windows.is_tight() || !self.starved.is_empty();
        let left = self.host.to_sweep.len().saturating_sub(SOCKETS_A_TURN);
        for _ in left..self.host.to_sweep.len() {
            let Some(mut swept) = self.host.to_sweep.pop_front() else { break };
            self.host.counters.work(1);
            if self.collect(now, &mut swept, tight) {
                if let Some(entry) = self.host.slots.get_mut(swept.slot) {
                    entry.swept = false;
                }
                self.host.in_sweep.remove(swept.slot);
            } else {
                self.host.to_sweep.push_back(swept);
            }
        }
        // The places of those that are idle now are memory, too.
        if self.host.to_sweep.len() < self.host.to_sweep.capacity() / 4 {
            self.host.to_sweep.shrink_to(2 * self.host.to_sweep.len() + SOCKETS_A_TURN);
        }
        let period = if tight { PERIOD_TIGHT } else { PERIOD };
        self.sweep_at = now + if left > 0 { period / 16 } else { period };
    }

    /// True: it has no memory any more.
    fn collect(&mut self, now: Instant, seen: &mut Swept, tight: bool) -> bool {
        let Some(entry) = self.host.slots.get_mut(seen.slot) else { return true };
        let idle = if tight { TX_IDLE_TIGHT } else { TX_IDLE };
        let (mut rx_free, mut tx_free) = (true, true);
        if let Some(owned) = entry.owned.as_deref_mut() {
            rx_free = owned.rx.as_mut().is_none_or(EngineRecv::release_if_empty);
            tx_free = owned.tx_lent == 0
                && owned.tx.as_mut().is_none_or(|tx| collect_send(now, tx, seen, idle));
        }
        if let Some(id) = entry.id {
            rx_free &= self.stack.recv_buffer(id).is_none_or(EngineRecv::release_if_empty);
            tx_free &=
                self.stack.send_buffer(id).is_none_or(|tx| collect_send(now, tx, seen, idle));
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
    use crate::shard::slots::AF_INET;
    use crate::{Engine, EngineConfig};
    use towpath_shm::layout::Kind;

    /// Connections that come and go faster than the sweep looks.
    #[test]
    fn a_slot_stands_in_the_queue_once_however_often_it_is_used() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        for _ in 0..100 {
            let slot = engine.shard.host.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
            engine.shard.host.watch_memory(slot);
            engine.shard.host.slots.release(slot);
        }
        assert_eq!(engine.shard.host.to_sweep.len(), 1);
        engine.shard.sweep(engine.shard.host.now);
        assert!(engine.shard.host.to_sweep.is_empty());
        let slot = engine.shard.host.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        engine.shard.host.watch_memory(slot);
        assert_eq!(engine.shard.host.to_sweep.len(), 1);
    }
}
