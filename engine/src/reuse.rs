//! Slots and memory that a thread of a program is still in when its socket is gone.
//!
//! They are not used again before the thread has given its lock back ([`towpath_ring::end_generation`]).
//! It tells then, because the engine has marked the lock; or its process dies, and the engine gives the
//! lock back. Nothing is tried again before either happens.

use crate::channels::ChannelId;
use crate::engine::Engine;
use crate::holds::Holds;

/// Slots that one process may keep from being used again. A thread keeps one, for the time of a copy, if
/// another one closes its socket meanwhile; a process that is stopped keeps as many as it had threads at
/// that point. More are not its threads' (or are those of a program that leaves its calls by longjmp): the
/// locks are taken away. The process is not at fault, as every program of the run can write its number.
const INSIDE_MAX: u32 = 1024;
/// Attempts at a slot in a row. One is enough unless locks go from one dead process to another.
const ATTEMPTS: u32 = 4;

impl Engine {
    /// Sees to it that what could not be used again in this turn will be.
    pub(crate) fn await_threads(&mut self) {
        let mut awaited = self.host.slots.take_awaited();
        awaited.extend(self.host.windows.take_awaited());
        for slot in awaited {
            self.reuse(slot);
        }
    }

    /// Uses a slot and its memory again if no thread is inside any more.
    pub(crate) fn reuse(&mut self, slot: u32) {
        for _ in 0..ATTEMPTS {
            let (windows, place) = (self.host.windows.collect(slot), self.host.slots.collect(slot));
            let Err(number) = windows.and(place) else { return self.awaits(slot, None) };
            let owner = ChannelId::of_number(number);
            let attached = owner.and_then(|id| Some((id, self.host.channels.get(id)?)));
            // Otherwise the thread's process is gone, or never was.
            if let Some((id, attached)) = attached {
                if attached.inside < INSIDE_MAX || self.awaited.get(&slot) == Some(&id) {
                    return self.awaits(slot, Some(id));
                }
                self.host.counters.locks_disbelieved += 1;
            }
            towpath_ring::release_dead(self.host.slots.shared(slot), number);
        }
        self.awaits(slot, None);
        self.host.slots.await_again(slot);
    }

    /// A thread has given back a lock that was marked.
    pub(crate) fn unlocked(&mut self, slot: u32) {
        if self.awaited.contains_key(&slot) {
            self.reuse(slot);
        }
    }

    /// The threads that a process had are gone: what they were at is free.
    pub(crate) fn release_locks(&mut self, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        let closed = std::mem::take(&mut attached.closed);
        let mut awaited = Vec::new();
        for slot in attached.holds.iter().chain(closed.iter()) {
            towpath_ring::release_dead(self.host.slots.shared(slot), id.number());
            if self.awaited.contains_key(&slot) {
                awaited.push(slot);
            }
        }
        awaited.into_iter().for_each(|slot| self.reuse(slot));
    }

    /// A channel is gone whose number was in the locks of these slots.
    pub(crate) fn await_no_more(&mut self, id: ChannelId, slots: &Holds) {
        for slot in slots.iter() {
            if self.awaited.get(&slot) == Some(&id) {
                self.reuse(slot);
            }
        }
    }

    /// Notes for which process's thread a slot waits.
    fn awaits(&mut self, slot: u32, id: Option<ChannelId>) {
        let before = match id {
            Some(id) => self.awaited.insert(slot, id),
            None => self.awaited.remove(&slot),
        };
        if let Some(attached) = before.and_then(|before| self.host.channels.get_mut(before)) {
            attached.inside = attached.inside.saturating_sub(1);
        }
        let Some(id) = id else { return };
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        attached.inside += 1;
        // Looked at when the process dies.
        attached.closed.insert(slot);
    }
}
