//! Queues of sockets whose programs wait for send buffer memory, which `feeding.rs` provides.

use std::collections::VecDeque;
use std::time::Duration;

use towpath_tcp::Instant;

use crate::shard::sockets::slot_set::SlotSet;

/// Time until the first retry if a program's thread holds the lock of the FIFO, as during a copy.
pub(crate) const LOCK_AGAIN: Duration = Duration::from_micros(50);

/// Sockets whose programs wait for send buffer memory, in the order of the requests.
#[derive(Debug)]
pub(crate) struct AwaitingMemory {
    /// Slots of sockets that wait because no memory was free.
    pub memory: VecDeque<u32>,
    pub memory_at: Instant,
    /// Slots of sockets that wait because a thread of a program holds their lock.
    pub locked: VecDeque<u32>,
    pub locked_at: Instant,
    pub locked_pause: Duration,
    /// Slots in the queue `memory` or `locked`. Each slot is queued only once, even if it is reused
    /// for another socket.
    pub queued: SlotSet,
}

impl AwaitingMemory {
    pub fn new(now: Instant) -> Self {
        Self {
            memory: VecDeque::new(),
            memory_at: now,
            locked: VecDeque::new(),
            locked_at: now,
            locked_pause: LOCK_AGAIN,
            queued: SlotSet::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.locked.is_empty()
    }

    /// Returns the time of the next attempt to provide memory. `None`: no socket waits.
    pub fn next(&self) -> Option<Instant> {
        let memory = (!self.memory.is_empty()).then_some(self.memory_at);
        let locked = (!self.locked.is_empty()).then_some(self.locked_at);
        memory.into_iter().chain(locked).min()
    }

    /// Schedules a retry after [`LOCK_AGAIN`], because a thread of a program holds a slot's lock.
    pub fn try_locked_soon(&mut self, now: Instant) {
        self.locked_pause = LOCK_AGAIN;
        self.locked_at = self.locked_at.min(now + LOCK_AGAIN);
    }
}
