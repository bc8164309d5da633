//! Notifies programs of socket events. The cost is one ring entry per socket and process, one
//! notification per process, and one futex wake-up per socket.
//!
//! Thousands of processes may share a listener. The processes are notified in batches, alternating
//! with other sockets, so that the work per iteration of the event loop is bounded.

use crate::shard::net::Net;
use crate::shard::processes::channels::Channels;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::queues::Telling;

/// Maximum number of processes that are notified of a socket's event in one batch. Most sockets are
/// open in one process.
const EVENTS_A_PORTION: usize = 16;
/// Maximum number of notifications per iteration of the event loop for sockets that need several
/// batches. Each takes about 50 ns.
const EVENTS_A_TURN: usize = 4096;

impl Sockets {
    /// Notifies programs of the events of the current turn of the event loop.
    pub(crate) fn tell(&mut self, net: &mut Net, channels: &mut Channels) {
        self.tell_lingering(net);
        let mut changed = std::mem::take(&mut self.telling.to_publish);
        for slot in changed.drain(..) {
            self.publish_state(net, slot);
            self.slots.set_flags(slot, 0, 0);
        }
        self.telling.to_publish = changed;
        let before = self.counters.events;
        let posted = self.slots.take_posted();
        for &slot in &posted {
            self.begin_telling(channels, slot);
        }
        self.slots.reuse_posted(posted);
        self.continue_telling(channels);
        channels.ring();
        let told = self.counters.events - before;
        self.counters.events_turn_max = self.counters.events_turn_max.max(told);
    }

    fn begin_telling(&mut self, channels: &mut Channels, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        // Without event bits, the socket has ended and its slot was reused.
        if entry.news != 0 {
            // If some processes have not been notified of the previous event yet,
            // `continue_telling` will notify them of this one as well.
            if !self.telling.queued.contains(slot) {
                let bits = std::mem::take(&mut entry.news);
                let (generation, left) = (entry.generation, entry.holders.len());
                self.tell_portion(channels, Telling { slot, generation, bits, left });
            }
            let woken = towpath_ring::wake(self.slots.shared(slot));
            self.counters.wakes += u64::from(woken);
        }
    }

    /// Continues to notify the processes of shared sockets, up to the limit per iteration of the
    /// event loop.
    fn continue_telling(&mut self, channels: &mut Channels) {
        let mut budget = EVENTS_A_TURN;
        while budget > 0
            && let Some(telling) = self.telling.to_tell.pop_front()
        {
            self.telling.queued.remove(telling.slot);
            let told = self.tell_portion(channels, telling);
            if !self.telling.queued.contains(telling.slot) {
                // Queue the remaining event bits for notification. The bits may belong to this
                // socket, or to the next one in the slot.
                self.slots.post_again(telling.slot);
            }
            budget = budget.saturating_sub(told.max(1));
        }
    }

    /// Notifies one batch of the processes that share a socket, and queues the others. Returns the
    /// number of notified processes.
    fn tell_portion(&mut self, channels: &mut Channels, telling: Telling) -> usize {
        let Telling { slot, generation, bits, left } = telling;
        let entry = self.slots.get_mut(slot);
        let Some(entry) = entry.filter(|entry| entry.generation == generation) else { return 0 };
        // Some processes may have released the socket since it was queued.
        let end = left.min(entry.holders.len());
        let start = end.saturating_sub(EVENTS_A_PORTION);
        for holder in entry.holders[start..end].iter_mut().rev() {
            if !channels.push_event(holder, slot, bits) {
                channels.to_cut_off.push(holder.id);
            }
        }
        self.counters.events += (end - start) as u64;
        self.counters.work((end - start).max(1));
        if start > 0 {
            self.telling.to_tell.push_back(Telling { left: start, ..telling });
            self.telling.queued.insert(slot);
        }
        end - start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ChannelId;
    use crate::shard::sockets::slots::AF_INET;
    use crate::{Engine, EngineConfig};
    use towpath_shm::layout::{Kind, event};

    #[test]
    fn a_turn_of_telling_has_an_end() {
        const SOCKETS: u64 = 300;
        const HOLDERS: u64 = 40;
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.sockets.now;
        let open = |engine: &mut Engine| engine.open_channel();
        let holders: Vec<_> = (0..HOLDERS).map(|_| open(&mut engine)).collect();
        let ids: Vec<ChannelId> = holders.iter().map(|(id, _)| *id).collect();
        let mut slots = Vec::new();
        for _ in 0..SOCKETS {
            let slot =
                engine.shard.sockets.slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
            ids.iter().for_each(|&id| engine.shard.hold(id, slot));
            engine.shard.sockets.slots.post(slot, event::RX);
            slots.push(slot);
        }
        let portion = EVENTS_A_PORTION as u64;
        let most = SOCKETS * portion + EVENTS_A_TURN as u64 + portion;
        engine.shard.tell(now);
        let first = engine.shard.sockets.counters.events;
        assert!(first <= most && first >= SOCKETS * portion, "{first}");
        assert!(!engine.shard.sockets.telling.to_tell.is_empty());
        // The process of an unshared socket is notified in this iteration. New events of a shared
        // socket that is still queued reach its processes in later iterations.
        let alone = engine.shard.sockets.slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
        engine.shard.hold(ids[0], alone);
        engine.shard.sockets.slots.post(alone, event::RX);
        let last = slots[SOCKETS as usize - 1];
        assert!(engine.shard.sockets.telling.queued.contains(last));
        engine.shard.sockets.slots.post(last, event::RX);
        engine.shard.tell(now);
        assert!(!engine.shard.sockets.telling.queued.contains(alone));
        while engine.shard.sockets.slots.has_events()
            || !engine.shard.sockets.telling.to_tell.is_empty()
        {
            engine.shard.tell(now);
        }
        assert_eq!(engine.shard.sockets.counters.events, (SOCKETS + 1) * HOLDERS + 1);
        assert!(engine.shard.sockets.counters.events_turn_max <= most);
    }
}
