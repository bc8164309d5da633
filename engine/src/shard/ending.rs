//! Sockets that are let go of in numbers are ended in portions, with the turns of others between
//! them. A process ends, or becomes a program that does not have them, or closes a listener with a
//! full queue.
//!
//! A process that ends stays on its channel until that is done, with nobody at the other end:
//!
//! ```text
//!   its commands → its locks and holds, socket by socket → locks of closed sockets → gone
//! ```
//!
//! Ends before a request count for its answer, as on Linux, where they are done when the last
//! process has been waited for. [`Ends::done`](crate::shard::ends::Ends::done) says how far they
//! are (`rounds.rs`).

use std::os::fd::AsFd;

use towpath_stack::Linger;
use towpath_tcp::Instant;

use crate::errno::{EPROTO, Errno};
use crate::ids::ChannelId;
use crate::mail::Notice;
use crate::shard::Shard;
use crate::shard::commands::COMMANDS_A_TURN;
use crate::shard::ends::End;
use crate::shard::holds::Holds;

/// Steps of work for what ends in one turn, some 50 µs.
const WORK_A_TURN: u64 = 512;

impl Shard {
    /// A process is gone, or has to go: what only it held is closed, as the kernel does with a
    /// process that is killed.
    pub(crate) fn detach(&mut self, now: Instant, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        if std::mem::replace(&mut attached.has_ended, true) {
            return;
        }
        let (portion, want) = (attached.portion.take(), attached.want.take());
        // Commands from before the process's death count, except in a ring that makes no sense.
        // Commands that others with the memory write later, as its children may, do not.
        if let Some(link) = &mut attached.link {
            link.ring.mark();
            link.ring.end();
        }
        if std::mem::take(&mut attached.is_watched) {
            self.poller.remove(attached.life.as_fd());
        }
        self.status.wake(id.number());
        if let Some(portion) = portion {
            self.abandon(now, id, portion);
        }
        if want.is_some() {
            self.notices.push(Notice::Refused(id, Errno(EPROTO), want));
        }
        self.no_more_a_clone(id);
        self.begin_end_of_holds(id);
        self.go_on_ending(now);
    }

    /// A process holds what is listed and nothing else.
    pub(crate) fn keep_only(&mut self, now: Instant, id: ChannelId, listed: &Holds) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        attached.holds.move_others(listed, &mut attached.former);
        self.begin_end_of_holds(id);
        self.go_on_ending(now);
    }

    /// Detaches the processes that broke the rules of the channel, and looks at nothing more that
    /// they wrote.
    pub(crate) fn cut_off_hostile(&mut self, now: Instant) {
        while let Some(id) = self.to_cut_off.pop() {
            if let Some(attached) = self.host.channels.get_mut(id) {
                if !attached.has_ended {
                    self.host.counters.hostile_channels += 1;
                    self.notices.push(Notice::CutOff(id));
                }
                if let Some(link) = attached.link.take() {
                    self.unlink(id, link);
                }
                self.close_parked_by(now, id);
                self.detach(now, id);
            }
        }
    }

    fn begin_end_of_holds(&mut self, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        if !std::mem::replace(&mut attached.is_ending, true) {
            self.ends.push(End::Holds(id));
        }
    }

    /// Goes on with what ends, until the turn's share is used up.
    pub(crate) fn go_on_ending(&mut self, now: Instant) {
        // Among the commands of a process that ends there may be one that ends something.
        if std::mem::replace(&mut self.ends.is_busy, true) {
            return;
        }
        let before = self.host.counters.work;
        while self.host.counters.work - before < WORK_A_TURN
            && let Some(end) = self.ends.first()
        {
            self.host.counters.work(1);
            match end {
                End::Holds(id) if self.let_go_of_next(now, id) => continue,
                End::Holds(id) => self.end_of_holds(now, id),
                End::Connection(slot, generation) => {
                    let entry = self.host.slots.find(slot, generation);
                    if entry.is_some_and(|entry| entry.unclaimed().is_some()) {
                        self.end(now, slot, Linger::Abort);
                    }
                }
                End::Told(shard) => self.rounds.acknowledged.push(shard),
            }
            self.ends.end_first();
        }
        self.ends.is_busy = false;
    }

    /// Makes one step of the end of a process, or of its hold on some sockets. False: it was the
    /// last.
    fn let_go_of_next(&mut self, now: Instant, id: ChannelId) -> bool {
        let Some(attached) = self.host.channels.get_mut(id) else { return false };
        if !attached.has_ended {
            let next = attached.former.first();
            next.inspect(|&slot| self.let_go(now, id, slot));
            return next.is_some();
        }
        if attached.link.as_ref().is_some_and(|link| link.ring.is_behind_mark()) {
            // Without progress its ring makes no sense, and it is cut off at the end of the turn.
            let before = self.host.counters.commands;
            self.drain_ring(now, id, COMMANDS_A_TURN, WORK_A_TURN);
            if self.host.counters.commands > before {
                return true;
            }
        }
        let Some(attached) = self.host.channels.get_mut(id) else { return false };
        if let Some(slot) = attached.holds.first().or_else(|| attached.former.first()) {
            self.release_locks_of(id, slot);
            self.let_go(now, id, slot);
            return true;
        }
        self.free_closed(id)
    }

    /// Nothing is left of what a process held no more, or of a process.
    fn end_of_holds(&mut self, now: Instant, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        attached.is_ending = false;
        if !attached.has_ended {
            return;
        }
        self.spawned(now, id);
        self.orphan_clones(id);
        self.forget(id);
        self.host.counters.work(self.to_close_parked.len() / 64);
        for by in self.to_close_parked.values_mut().filter(|by| **by == Some(id)) {
            *by = None;
        }
        self.to_cut_off.retain(|hostile| *hostile != id);
    }
}
