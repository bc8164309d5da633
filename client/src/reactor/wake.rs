//! Passes events from the rings to the threads and async tasks that wait for them.

use std::sync::atomic::Ordering::Relaxed;

use towpath_shm::layout::event;

use super::locked::{ALWAYS, LockedReactor, PRIVATE};
use super::sleep::wake;
use crate::hub::{Hub, ListWakeup};
use crate::ready;
use crate::watches::{WatchTarget, Watches};

impl LockedReactor<'_> {
    /// Queues an event of a socket for all watches (registered interests) of its slot.
    pub(super) fn on_event(&mut self, slot: u32, bits: u8) {
        let mask = mask_of(bits);
        let mut link = self.process.reactor.heads[slot as usize].load(Relaxed);
        while let Some(index) = Watches::at(link) {
            let watch = &self.watches[index];
            if mask & (watch.events | ALWAYS) != 0 && watch.events & !PRIVATE != 0 {
                self.queue(index, mask);
            }
            link = self.watches.next(index);
        }
    }

    /// Queues the events `mask` for a watch (registered interest). Adds it to the ready list of its
    /// epoll set, or marks its poll(2) list or task to be woken.
    pub(super) fn queue(&mut self, index: u32, mask: u32) {
        let watch = &mut self.watches[index];
        watch.fresh |= mask;
        if watch.queued || watch.gone {
            return;
        }
        let number = match &mut watch.target {
            WatchTarget::Set { number, .. } => *number,
            &mut WatchTarget::List(at) => {
                self.lists[at].is_due = true;
                return;
            }
            WatchTarget::Task(task) => {
                let due = task.take();
                self.due_wakers.extend(due);
                return;
            }
        };
        watch.queued = true;
        let Some(set) = self.sets[number as usize].as_mut() else {
            return;
        };
        set.ready.push_back(index);
        set.is_woken = false;
        for outer in self.sets.iter_mut().flatten() {
            for nested in outer.nested.iter_mut().filter(|nested| nested.set == number) {
                nested.fresh = true;
                outer.is_woken = false;
            }
        }
    }

    /// Queues all watches, because any of their sockets may be ready.
    pub(super) fn queue_all(&mut self) {
        for index in 0..self.watches.len() {
            self.queue(index, u32::MAX);
        }
    }

    /// Wakes all threads and tasks, because the engine has ended.
    pub(super) fn wake_all(&mut self) {
        self.queue_all();
        for set in self.sets.iter_mut().flatten() {
            set.is_woken = false;
        }
        self.wake_ready();
    }

    /// Wakes threads whose epoll sets or poll(2) lists have new events. Tasks are woken when the
    /// lock is released.
    pub(super) fn wake_ready(&mut self) {
        for set in self.sets.iter_mut().flatten() {
            let worth = !set.ready.is_empty() || set.nested.iter().any(|nested| nested.fresh);
            if set.sleepers > 0 && worth && !set.is_woken {
                set.is_woken = true;
                if let Some(place) = &set.place {
                    wake(place.wakeup.get());
                }
            }
        }
        let is_due = |list: &&mut ListWakeup| {
            list.is_taken && !list.is_rung && (list.is_due || list.is_for_all)
        };
        for list in self.lists.iter_mut().filter(is_due) {
            list.is_rung = true;
            wake(list.fd.get());
        }
    }

    /// Wakes one sleeping thread that is willing to run the engine.
    pub(crate) fn wake_one(&mut self) {
        let Hub { sets, lists, .. } = &mut **self;
        let mut sets = sets.iter().flatten().filter(|set| set.willing > 0);
        let mut lists = lists.iter_mut().filter(|list| list.is_taken && list.is_willing);
        if let Some(place) = sets.find_map(|set| set.place.as_ref()) {
            wake(place.wakeup.get());
        } else if let Some(list) = lists.find(|list| !list.is_rung) {
            list.is_rung = true;
            wake(list.fd.get());
        }
    }

    /// Wakes another thread that waits for an epoll set, if a call has left ready entries in the
    /// set; `left` is their number.
    pub(super) fn pass_on(&mut self, number: u32, left: usize) {
        if let Some(set) = self.set(number)
            && left > 0
            && set.sleepers > 0
            && let Some(place) = &set.place
        {
            wake(place.wakeup.get());
        }
    }
}

/// Returns the readiness bits that may have changed if an event has these bits.
fn mask_of(bits: u8) -> u32 {
    let mut mask = 0;
    if bits & event::RX != 0 {
        // As Linux's `sock_def_readable` does, include POLLPRI, because the new bytes may contain
        // an announced urgent byte.
        mask |= ready::IN | ready::PRI;
    }
    if bits & event::TX != 0 {
        mask |= ready::OUT;
    }
    if bits & event::RDHUP != 0 {
        mask |= ready::RDHUP | ready::IN;
    }
    if bits & event::ERROR != 0 {
        mask |= ready::ERR | ready::IN | ready::OUT;
    }
    if bits & event::PRI != 0 {
        mask |= ready::PRI | ready::IN;
    }
    if bits & event::HUP != 0 {
        mask |= ready::HUP | ready::IN | ready::OUT | ready::RDHUP;
    }
    mask
}
