//! Creates and removes epoll sets.

use std::sync::atomic::Ordering::Relaxed;

use super::locked::LockedReactor;
use crate::hub::{EpollSet, Reactor};
use crate::watches::WatchTarget;

impl Reactor {
    /// Records a change of an epoll set's descriptor count, for the next thread that takes the
    /// lock. Used in a signal handler that cannot take it.
    pub fn defer_count(&self, number: u32, descriptors: i32) {
        if let Some(owed) = self.deferred_counts.get(number as usize) {
            owed.fetch_add(descriptors, Relaxed);
        }
        self.defer();
    }
}

impl LockedReactor<'_> {
    /// Creates an epoll set with one descriptor. Returns the set's number.
    pub fn make_set(&mut self) -> u32 {
        self.made += 1;
        let set = Some(EpollSet { refs: 1, id: self.made, ..EpollSet::default() });
        match self.sets.iter().position(Option::is_none) {
            Some(number) => {
                self.sets[number] = set;
                number as u32
            }
            None => {
                self.sets.push(set);
                self.sets.len() as u32 - 1
            }
        }
    }

    /// Removes the watches of sockets whose last descriptor was closed. Keeps watches of tasks,
    /// because sockets of async tasks have no descriptors.
    pub(super) fn forget_closed(&mut self) {
        for index in 0..self.watches.len() {
            let watch = &self.watches[index];
            let has_descriptor = !matches!(watch.target, WatchTarget::Task(_));
            if !watch.gone && has_descriptor && !self.process.descriptors.is_held(watch.socket) {
                self.remove_watch(index);
            }
        }
        for (number, owed) in (0..self.sets.len() as u32).zip(&self.process.reactor.deferred_counts)
        {
            if owed.load(Relaxed) != 0 {
                self.count(number, owed.swap(0, Relaxed));
            }
        }
    }

    /// Adds `descriptors`, which may be negative, to the descriptor count of an epoll set.
    pub fn count(&mut self, number: u32, descriptors: i32) {
        if let Some(set) = self.set(number) {
            set.refs = set.refs.saturating_add_signed(descriptors);
            self.remove_unused(number);
        }
    }

    /// Records the end of an epoll_wait call that has slept in an epoll set.
    pub(super) fn leave(&mut self, number: u32) {
        if let Some(set) = self.set(number) {
            set.calls_inside -= 1;
            self.remove_unused(number);
        }
    }

    pub(super) fn remove_unused(&mut self, number: u32) {
        if self.set(number).is_some_and(|set| set.refs == 0 && set.calls_inside == 0) {
            self.remove_set(number);
        }
    }

    /// Removes an epoll set if it has no descriptors, and no call sleeps in it.
    fn remove_set(&mut self, number: u32) {
        let Some(set) = self.set(number) else {
            return;
        };
        let watches: Vec<u32> = set.by_fd.values().copied().collect();
        for index in watches {
            self.remove_watch(index);
        }
        let ready = self.set(number).map(|set| std::mem::take(&mut set.ready)).unwrap_or_default();
        ready.into_iter().for_each(|index| self.watches.free(index));
        self.sets[number as usize] = None;
        for outer in self.sets.iter_mut().flatten() {
            outer.nested.retain(|nested| nested.set != number);
        }
    }
}
