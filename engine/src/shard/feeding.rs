//! Programs that wait for transmit memory get it in the order in which they asked. The attempts of
//! one turn are bounded, however many programs wait.

use std::time::Duration;

use towpath_ring::Attach;
use towpath_tcp::Instant;

use crate::shard::Shard;
use crate::shard::starved::LOCK_AGAIN;

/// When somebody waits for memory, the sweep comes so soon.
const SWEEP_WITHIN: Duration = Duration::from_millis(20);
/// Between two tries when there is no memory: it comes back when somebody reads, or with the sweep.
const MEMORY_AGAIN: Duration = Duration::from_millis(5);
/// Between two tries in the end, when the thread has been stopped in the midst of it. Each pause is
/// twice as long as the one before: nobody waits for more than twice as long as the lock was held.
const LOCK_AGAIN_MAX: Duration = Duration::from_millis(100);
/// Sockets that are tried in one turn, of those that wait for memory and of those with a lock each.
const TRIES_A_TURN: usize = 64;
/// After this many refusals in one turn the rest are not tried: there is no memory. More than one,
/// because a socket may want more than those behind it.
const REFUSALS_A_TURN: usize = 8;

impl Shard {
    /// Attaches transmit memory to a slot; if there is none now, it is tried again later.
    pub(crate) fn give_memory(&mut self, slot: u32) {
        if self.starved.queued.contains(slot) {
            return;
        }
        let attached = self.try_memory(slot);
        if attached == Attach::Busy {
            self.starved.try_locked_soon(self.host.now);
        }
        if attached != Attach::Done {
            self.host.counters.starved += 1;
            self.sweep_at = self.sweep_at.min(self.host.now + SWEEP_WITHIN);
        }
    }

    /// Tries to attach memory; a slot that cannot have it becomes the last in its queue.
    fn try_memory(&mut self, slot: u32) -> Attach {
        self.host.counters.memory_tries += 1;
        self.host.counters.work(1);
        let attached = self.attach_send(slot);
        let queue = match attached {
            Attach::Done => return attached,
            Attach::Busy => &mut self.starved.locked,
            Attach::NoMemory => &mut self.starved.memory,
        };
        queue.push_back(slot);
        self.starved.queued.insert(slot);
        attached
    }

    fn try_again(&mut self, slot: u32) -> Attach {
        self.starved.queued.remove(slot);
        self.try_memory(slot)
    }

    /// Gives memory to those who wait for it.
    pub(crate) fn feed_starved(&mut self, now: Instant) {
        if now >= self.starved.locked_at {
            let all = self.starved.locked.len();
            for _ in 0..all.min(TRIES_A_TURN) {
                let Some(slot) = self.starved.locked.pop_front() else { break };
                self.try_again(slot);
            }
            self.starved.locked_at = now + self.starved.locked_pause;
            // With more slots than one turn tries, the next ones are tried soon: they do not wait
            // for the locks of those in front.
            let longer = (self.starved.locked_pause * 2).min(LOCK_AGAIN_MAX);
            self.starved.locked_pause = if all <= TRIES_A_TURN { longer } else { LOCK_AGAIN };
        }
        if now >= self.starved.memory_at {
            let more = self.feed_hungry();
            self.starved.memory_at = if more { now } else { now + MEMORY_AGAIN };
        }
    }

    /// True: there is memory for more of them.
    fn feed_hungry(&mut self) -> bool {
        let tries = self.starved.memory.len();
        let mut refusals = 0;
        for _ in 0..tries.min(TRIES_A_TURN) {
            let Some(slot) = self.starved.memory.pop_front() else { return false };
            match self.try_again(slot) {
                Attach::Done => {}
                Attach::Busy => self.starved.try_locked_soon(self.host.now),
                Attach::NoMemory => refusals += 1,
            }
            if refusals == REFUSALS_A_TURN {
                return false;
            }
        }
        tries > TRIES_A_TURN
    }
}
