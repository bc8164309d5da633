//! A shard among those of its engine: which it is, how it wakes the others, and what they tell each
//! other. Their stacks are one host and deal with packets, ports and accept queues themselves
//! ([`Stack::shards`](towpath_stack::Stack::shards)). Each [`Word`] is about the slot of a
//! connection in another shard than its listener, or about a round (`rounds.rs`).
//!
//! ```text
//!  shard of the connection                shard of the listener
//!  unclaimed: (listener, generation)      children: the connection, behind what record
//!  a process claims it  ─── Claimed ────► its place in the backlog is free
//!  it is gone           ─── Forgotten ──► nothing to be reset any more
//!  it is reset          ◄── End ───────── the listener is closed, nobody has popped it
//!  nobody claimed it?   ◄── EndUnclaimed  somebody popped it and told nobody in time
//! ```

use std::os::fd::AsFd;
use std::sync::Arc;

use towpath_ring::{Status, doorbell};
use towpath_shm::Fd;
use towpath_shm::layout::Kind;
use towpath_stack::{Linger, ShardId};
use towpath_tcp::Instant;

use crate::shard::Shard;
use crate::shard::askers::Asker;
use crate::shard::ends::End;
use crate::shard::host::Parent;
use crate::shard::place::Peer;

/// Message from one shard to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// A process has the connection `child` of that listener, or nobody will.
    Claimed { listener: (u32, u32), child: (u32, u32) },
    /// The slot `child` is free. The place in the backlog is not: it is counted elsewhere, or the
    /// listener is closed.
    Forgotten { listener: (u32, u32), child: (u32, u32) },
    /// No process will accept the connection of that slot and generation.
    End(u32, u32),
    /// The same if no process has said by now that it has it.
    EndUnclaimed(u32, u32),
    /// The connections that it was told to [end](Word::End) are gone, as many of them as there were
    /// such words before.
    Ended,
    /// To be answered by `Done` with this number when all is dealt with that was said before
    /// (`rounds.rs`).
    AskRound(u64),
    /// The same when what the sender told this shard before is dealt with.
    Echo(u64),
    /// See `AskRound` and `Echo`.
    Done(u64),
}

impl From<Word> for [u64; 3] {
    fn from(word: Word) -> Self {
        let both = |(one, other): (u32, u32)| u64::from(one) << 32 | u64::from(other);
        match word {
            Word::Claimed { listener, child } => [0, both(listener), both(child)],
            Word::Forgotten { listener, child } => [1, both(listener), both(child)],
            Word::End(slot, generation) => [2, both((slot, generation)), 0],
            Word::EndUnclaimed(slot, generation) => [3, both((slot, generation)), 0],
            Word::Ended => [4, 0, 0],
            Word::AskRound(number) => [5, number, 0],
            Word::Echo(number) => [6, number, 0],
            Word::Done(number) => [7, number, 0],
        }
    }
}

impl From<[u64; 3]> for Word {
    fn from([kind, pair, child]: [u64; 3]) -> Self {
        let (one, other) = ((pair >> 32) as u32, pair as u32);
        let (listener, child) = ((one, other), ((child >> 32) as u32, child as u32));
        match kind {
            0 => Word::Claimed { listener, child },
            1 => Word::Forgotten { listener, child },
            2 => Word::End(one, other),
            3 => Word::EndUnclaimed(one, other),
            4 => Word::Ended,
            5 => Word::AskRound(pair),
            6 => Word::Echo(pair),
            _ => Word::Done(pair),
        }
    }
}

impl Shard {
    /// Tells a shard something, or does it if that is this one.
    pub(crate) fn tell_shard(&mut self, now: Instant, shard: ShardId, word: Word) {
        if u32::from(shard.0) == self.host.place.number {
            self.heed(now, shard, word);
        } else {
            self.stack.tell_owner(shard, word.into());
        }
    }

    /// Does what other shards have said.
    pub(crate) fn heed_shards(&mut self, now: Instant) {
        for at in 0..self.host.told.len() {
            let (from, words) = self.host.told[at];
            self.host.counters.work(1);
            self.heed(now, from, words.into());
        }
        self.host.told.clear();
    }

    fn heed(&mut self, now: Instant, from: ShardId, word: Word) {
        match word {
            Word::Claimed { listener, child } => self.free_child(listener, child, true),
            Word::Forgotten { listener, child } => self.free_child(listener, child, false),
            Word::End(slot, generation) => {
                self.ends.push(End::Connection(slot, generation));
                self.ends.push(End::Told(from));
            }
            Word::EndUnclaimed(slot, generation) => self.end_unclaimed(now, slot, generation),
            Word::Ended => self.rounds.elsewhere.entry(from).or_default().1 += 1,
            Word::AskRound(number) => self.rounds.next.push_back(Asker::Shard(from, number)),
            Word::Echo(number) => self.tell_shard(now, from, Word::Done(number)),
            Word::Done(number) => self.note_done(from, number),
        }
    }

    /// A connection of another shard is not a child of that listener any more. `place`: nor does it
    /// count against the backlog.
    fn free_child(&mut self, listener: (u32, u32), child: (u32, u32), place: bool) {
        // A connection that is in no queue, which a program may name as well, has no place.
        if self.remove_child(listener, child) && place {
            self.free_place(listener);
        }
    }

    /// Takes a connection out of the listener's children: it was popped and claimed, or is gone.
    /// False: it was not there.
    fn remove_child(&mut self, listener: (u32, u32), child: (u32, u32)) -> bool {
        let Some(entry) = self.host.slots.find(listener.0, listener.1) else { return false };
        let children = &mut entry.owned().children;
        self.host.counters.work(children.len() / 64);
        let at = children.iter().position(|it| (it.slot, it.generation) == child);
        at.is_some_and(|at| children.remove(at).is_some())
    }

    /// A connection will not be accepted, or has been: it counts no more against its listener's
    /// backlog.
    pub(crate) fn free_place(&mut self, listener: (u32, u32)) {
        if let Some(id) = self.host.slots.find(listener.0, listener.1).and_then(|entry| entry.id) {
            self.stack.accepted(id);
        }
    }

    /// The same, wherever the listener is.
    pub(crate) fn leave_listener(
        &mut self,
        now: Instant,
        listener: (u32, u32),
        child: (u32, u32),
        place: bool,
    ) {
        let word = match place {
            true => Word::Claimed { listener, child },
            false => Word::Forgotten { listener, child },
        };
        match self.host.place.elsewhere(listener.0) {
            Some(shard) => self.tell_shard(now, shard, word),
            None => {
                // A connection that waits for its first bytes has a place, and is not in the queue.
                self.remove_child(listener, child);
                if place {
                    self.free_place(listener);
                }
            }
        }
    }

    /// Resets a connection that was popped, unless a process has claimed it.
    pub(crate) fn end_unclaimed(&mut self, now: Instant, slot: u32, generation: u32) {
        let Some(entry) = self.host.slots.find(slot, generation) else { return };
        let Some(listener) = entry.unclaimed() else { return };
        self.host.counters.unclaimed += 1;
        self.end(now, slot, Linger::Abort);
        self.leave_listener(now, listener, (slot, generation), true);
    }

    /// Lets other shards know what has changed of a listener.
    pub(crate) fn renote(&mut self, slot: u32) {
        let Some(entry) = self.host.slots.get(slot) else { return };
        if self.host.place.of > 1 && entry.kind == Kind::Listener {
            let note = Parent::of_entry(slot, entry).note();
            if let Some(id) = entry.id {
                self.stack.set_note(id, note);
            }
        }
    }

    /// Ends a connection, perhaps in another shard, that no process will accept.
    pub(crate) fn end_child(&mut self, now: Instant, slot: u32, generation: u32) {
        let Some(shard) = self.host.place.elsewhere(slot) else {
            return self.end_unaccepted(slot, generation);
        };
        self.rounds.elsewhere.entry(shard).or_default().0 += 1;
        self.tell_shard(now, shard, Word::End(slot, generation));
    }

    /// The stack has had a turn since these shards' connections were closed.
    pub(crate) fn acknowledge_ends(&mut self) {
        for shard in std::mem::take(&mut self.rounds.acknowledged) {
            self.stack.tell_owner(shard, Word::Ended.into());
        }
    }

    /// Offers connections whose first bytes have come to their listeners in other shards.
    pub(crate) fn offer_deferred(&mut self, now: Instant) {
        for (slot, generation, listener) in std::mem::take(&mut self.host.to_offer) {
            let Some(entry) = self.host.slots.find(slot, generation) else { continue };
            let id = entry.id;
            if !id.is_some_and(|id| self.stack.offer_to(now, listener, id, generation)) {
                // The listener has ended meanwhile, so no process hears of the connection.
                self.end(now, slot, Linger::Abort);
            }
        }
    }

    /// Lets other shards offer connections again for which there was no memory.
    pub(crate) fn offer_again(&mut self, now: Instant) {
        if self.host.offer_again_at.is_none_or(|at| at > now) {
            return;
        }
        self.host.offer_again_at = None;
        for (slot, generation) in std::mem::take(&mut self.host.to_offer_again) {
            if let Some(id) = self.host.slots.find(slot, generation).and_then(|entry| entry.id) {
                self.stack.offer_again(id);
            }
        }
    }

    /// Wakes those of the shards that sleep, a bit each.
    pub(crate) fn wake_shards(&self, shards: u16) {
        for (n, peer) in self.peers.iter().enumerate() {
            if let Some(peer) = peer.as_ref().filter(|_| shards & 1 << n != 0) {
                peer.wake();
            }
        }
    }
}

/// A bell and a way to it for each of several shards, all of which get to know the others.
pub(crate) fn introduce(shards: &mut [Shard]) -> std::io::Result<()> {
    let bells = shards.iter_mut().map(|shard| {
        let bell = Arc::new(doorbell::create()?);
        shard.watch_mail(bell.as_fd())?;
        Ok((shard.status.view(), bell))
    });
    let bells = bells.collect::<std::io::Result<Vec<_>>>()?;
    for (number, shard) in shards.iter_mut().enumerate() {
        let peers = bells.iter().enumerate();
        let peer = |(n, (status, bell)): (usize, &(Status, Arc<Fd>))| {
            (n != number).then(|| Peer::new(status.clone(), Arc::clone(bell)))
        };
        shard.peers = peers.map(peer).collect();
        // The bell lives as long as another thread, or this one, may ring it.
        shard.bell = bells.get(number).map(|(_, bell)| Arc::clone(bell));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_they_were() {
        let listener = (u32::MAX, 7);
        for word in [
            Word::Claimed { listener, child: (u32::MAX - 1, 4) },
            Word::Forgotten { listener, child: (3, u32::MAX) },
            Word::End(1, u32::MAX),
            Word::EndUnclaimed(u32::MAX, 2),
            Word::Ended,
            Word::AskRound(1 << 40),
            Word::Echo(u64::MAX),
            Word::Done(7),
        ] {
            assert_eq!(Word::from(<[u64; 3]>::from(word)), word);
        }
    }
}
