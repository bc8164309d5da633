//! The lives of epoll sets.

use std::sync::atomic::Ordering::Relaxed;

use super::locked::Locked;
use crate::hub::{Reactor, Set};
use crate::watches::Target;

impl Reactor {
    /// Adds to a set's descriptors at the next lock: for signal handlers, which cannot take it.
    pub fn owe(&self, number: u32, descriptors: i32) {
        if let Some(owed) = self.owed.get(number as usize) {
            owed.fetch_add(descriptors, Relaxed);
        }
        self.defer();
    }
}

impl Locked<'_> {
    /// A new set, with one descriptor; gives its number.
    pub fn make_set(&mut self) -> u32 {
        self.made += 1;
        let set = Some(Set { refs: 1, id: self.made, ..Set::default() });
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

    /// Removes the watches of sockets that have no descriptor any more. Sockets of tasks have none.
    pub(super) fn forget_closed(&mut self) {
        for index in 0..self.watches.len() {
            let watch = &self.watches[index];
            let has_descriptor = !matches!(watch.target, Target::Task(_));
            if !watch.gone && has_descriptor && !self.process.descriptors.is_held(watch.socket) {
                self.remove_watch(index);
            }
        }
        for (number, owed) in (0..self.sets.len() as u32).zip(&self.process.reactor.owed) {
            if owed.load(Relaxed) != 0 {
                self.count(number, owed.swap(0, Relaxed));
            }
        }
    }

    /// A set has `descriptors` more, or fewer if negative.
    pub fn count(&mut self, number: u32, descriptors: i32) {
        if let Some(set) = self.set(number) {
            set.refs = set.refs.saturating_add_signed(descriptors);
            self.remove_unused(number);
        }
    }

    /// A call that has slept in a set ends.
    pub(super) fn leave(&mut self, number: u32) {
        if let Some(set) = self.set(number) {
            set.guests -= 1;
            self.remove_unused(number);
        }
    }

    pub(super) fn remove_unused(&mut self, number: u32) {
        if self.set(number).is_some_and(|set| set.refs == 0 && set.guests == 0) {
            self.remove_set(number);
        }
    }

    /// The program closed its last descriptor of a set, and no call is in it.
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
