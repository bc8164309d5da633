//! What is done with all sockets of a process at once, as its program sees it, and in portions here: the others have
//! their turns between them.

use crate::ids::ChannelId;
use crate::shard::Shard;
use crate::shard::channels::{Portion, Whole};

/// Steps of work for one request before the others have their turn, some 50 µs. The first portion is done when
/// the request is taken, so that nobody waits for few sockets; then one request a turn gets one. (In tests of
/// this crate a few sockets take several.)
pub(crate) const PORTION: u64 = if cfg!(test) { 4 } else { 512 };

impl Shard {
    /// The first portion is due.
    pub(crate) fn begin_whole(&mut self, id: ChannelId, what: Whole) {
        if let Some(attached) = self.host.channels.get_mut(id) {
            attached.portion = Some(Portion { next: 0, what });
        }
    }

    /// One portion. True: it was the last, or there is none.
    pub(crate) fn do_portion(&mut self, id: ChannelId) -> bool {
        self.host.counters.request_portions += 1;
        let before = self.host.counters.work;
        while self.host.counters.work - before < PORTION {
            if !self.do_step(id) {
                if let Some(attached) = self.host.channels.get_mut(id) {
                    attached.portion = None;
                }
                return true;
            }
        }
        false
    }

    /// False: there was nothing to do.
    fn do_step(&mut self, id: ChannelId) -> bool {
        let channels = &mut self.host.channels;
        let Some(attached) = channels.get(id) else { return false };
        let Some(Portion { next: from, what }) = attached.portion else { return false };
        let next = match what {
            Whole::Give { clone, only_listed: true } => {
                let inherits = channels.get(clone).and_then(|clone| clone.inherits.as_ref());
                inherits.and_then(|inherits| inherits.first_from(from))
            }
            _ => attached.holds.first_from(from),
        };
        let Some(slot) = next else {
            self.host.counters.work(1);
            return what == Whole::Unlock && self.free_closed(id);
        };
        if let Some(attached) = channels.get_mut(id) {
            attached.portion = Some(Portion { next: slot + 1, what });
        }
        match what {
            Whole::Give { clone, .. } => self.hold(clone, slot),
            Whole::Unlock => {
                self.host.counters.work(1);
                self.release_locks_of(id, slot);
            }
        }
        true
    }

    /// Before a process lets go of a socket: a clone that is being made has held it since it was asked for.
    pub(crate) fn give_to_clone(&mut self, id: ChannelId, slot: u32) {
        let Some(attached) = self.host.channels.get(id) else { return };
        let Some(Portion { what: Whole::Give { clone, only_listed }, .. }) = attached.portion
        else {
            return;
        };
        let inherits = || self.host.channels.get(clone)?.inherits.as_ref();
        let is_its = !only_listed || inherits().is_some_and(|inherits| inherits.contains(slot));
        if is_its && attached.holds.contains(slot) {
            self.hold(clone, slot);
        }
    }
}
