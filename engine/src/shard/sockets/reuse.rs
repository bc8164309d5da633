//! Delays the reuse of a closed socket's slot and FIFO memory while a program's thread still
//! accesses them.
//!
//! The engine marks the lock that the thread holds ([`towpath_ring::end_generation`]). When the
//! thread releases the lock, it notifies the engine, which then reuses the memory. If the process
//! dies, the engine releases the lock itself.

use crate::ids::ChannelId;
use crate::shard::processes::channels::Channels;
use crate::shard::sockets::Sockets;

/// Maximum number of closed slots whose reuse one process may delay. A thread delays the reuse of a
/// slot while it copies data of a socket that another thread closes. Beyond the limit, the engine
/// releases the locks by force: they are forged, or were left by longjmp. The process may continue,
/// because other programs could have written its number to the locks.
const INSIDE_MAX: u32 = 1024;
/// Maximum number of attempts to free a slot before the engine continues with other work. A second
/// attempt is necessary only if another process has taken the lock meanwhile.
const ATTEMPTS: u32 = 4;

impl Sockets {
    /// Tries to reuse the slots whose locks were held when they were freed. Records those whose
    /// locks are still held, to reuse them later.
    pub(crate) fn await_threads(&mut self, channels: &mut Channels) {
        let mut awaited = self.slots.take_awaited();
        awaited.extend(self.windows.take_awaited());
        for slot in awaited {
            self.reuse(channels, slot);
        }
    }

    /// Makes a freed slot and its buffer memory available again if no thread accesses them any
    /// more.
    pub(crate) fn reuse(&mut self, channels: &mut Channels, slot: u32) {
        for _ in 0..ATTEMPTS {
            self.counters.work(1);
            let (windows, place) = (self.windows.collect(slot), self.slots.collect(slot));
            let Err(number) = windows.and(place) else { return self.awaits(channels, slot, None) };
            let owner = ChannelId::of_number(number);
            let attached = owner.and_then(|id| Some((id, channels.get(id)?)));
            // Wait only for a process that has not ended. Otherwise the thread no longer exists, or
            // the lock contains an invalid channel number.
            if let Some((id, attached)) = attached.filter(|(_, attached)| !attached.has_ended) {
                if attached.inside < INSIDE_MAX || self.released.to_reuse.get(&slot) == Some(&id) {
                    return self.awaits(channels, slot, Some(id));
                }
                self.counters.locks_disbelieved += 1;
            }
            towpath_ring::release_dead(self.slots.shared(slot), number);
        }
        self.awaits(channels, slot, None);
        self.slots.await_again(slot);
    }

    /// Handles the notification that a program's thread has released a lock which the engine waits
    /// for.
    pub(crate) fn unlocked(&mut self, channels: &mut Channels, slot: u32) {
        if self.released.to_reuse.contains_key(&slot) {
            self.reuse(channels, slot);
        }
    }

    /// Releases locks of a socket that threads of an ended process held.
    pub(crate) fn release_locks_of(&mut self, channels: &mut Channels, id: ChannelId, slot: u32) {
        towpath_ring::release_dead(self.slots.shared(slot), id.number());
        if self.released.to_reuse.contains_key(&slot) {
            self.reuse(channels, slot);
        }
    }

    /// Releases the locks that an ended process holds on one of its closed sockets. Returns false
    /// if it holds no such lock.
    pub(crate) fn free_closed(&mut self, channels: &mut Channels, id: ChannelId) -> bool {
        let Some(attached) = channels.get_mut(id) else { return false };
        let Some(slot) = attached.closed.first() else { return false };
        attached.closed.remove(slot);
        self.release_locks_of(channels, id, slot);
        true
    }

    /// Records the process `id`, whose thread holds the lock of a freed slot. `None` if no thread
    /// holds the lock any more.
    fn awaits(&mut self, channels: &mut Channels, slot: u32, id: Option<ChannelId>) {
        let before = match id {
            Some(id) => self.released.to_reuse.insert(slot, id),
            None => self.released.to_reuse.remove(&slot),
        };
        if let Some(attached) = before.and_then(|before| channels.get_mut(before)) {
            attached.inside = attached.inside.saturating_sub(1);
        }
        let Some(id) = id else { return };
        let Some(attached) = channels.get_mut(id) else { return };
        attached.inside += 1;
        // Record the slot with the process, so that the lock is released when the process ends.
        attached.closed.insert(slot);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::IoSliceMut;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;
    use crate::shard::Shard;
    use crate::shard::sockets::queues::Released;
    use crate::shard::sockets::slots::{AF_INET, Holder};
    use crate::{Engine, EngineConfig};
    use towpath_dice::Dice;
    use towpath_ring::{Attach, EngineSend};
    use towpath_shm::control::{ControlReply, Request, call, purpose};
    use towpath_shm::layout::{Command, Kind, LOCK_CHANNEL_SHIFT, Plain, op};
    use towpath_tcp::Instant;

    struct World {
        engine: Engine,
        now: Instant,
        dice: Dice,
        /// The programs' ends of the control sockets, by channel, kept open.
        controls: BTreeMap<ChannelId, OwnedFd>,
    }

    impl World {
        fn new(seed: u64) -> Self {
            let engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
            let now = engine.shard.sockets.now;
            Self { engine, now, dice: Dice::new(seed, 0), controls: BTreeMap::new() }
        }

        fn channel(&mut self) -> Option<ChannelId> {
            let all: Vec<ChannelId> = self.channels();
            (!all.is_empty()).then(|| all[self.dice.index(all.len())])
        }

        fn channels(&self) -> Vec<ChannelId> {
            let channels = &self.engine.shard.processes.channels;
            channels.ids().filter(|id| channels.get(*id).is_some()).collect()
        }

        fn begin(&mut self) {
            let (id, control) = self.engine.open_channel();
            self.engine.link(id);
            self.controls.insert(id, control.into());
        }

        /// Receives the replies to CLONE requests, with the control sockets of the clones.
        fn take_answers(&mut self) {
            for id in self.channels() {
                while let Some((clone, control)) = self.controls.get(&id).and_then(take_answer) {
                    self.controls.insert(clone, control);
                }
            }
        }

        fn open(&mut self, id: ChannelId) {
            let Some(slot) = self.engine.shard.sockets.slots.allocate(Kind::Datagram, AF_INET, 17)
            else {
                return;
            };
            let mut tx = EngineSend::new(&self.engine.shard.sockets.windows, slot, 4096, 4096);
            let attached = tx.attach();
            assert_ne!(attached, Attach::NoMemory);
            self.engine.shard.sockets.slots.get_mut(slot).expect("it is there").owned().tx =
                Some(tx);
            self.engine.shard.sockets.slots.publish(slot);
            self.engine.shard.hold(id, slot);
        }

        fn command(&mut self, id: ChannelId, slot: u32) {
            let ops = [op::CLOSE, op::LIST, op::SPAWNED, op::SETTLED, op::UNLOCKED, op::ACCEPTED];
            let op = ops[self.dice.index(ops.len())];
            let generation =
                self.engine.shard.sockets.slots.get(slot).map_or(0, |entry| entry.generation);
            let command = Command { op, slot, generation, ..Command::default() };
            self.engine.shard.command(self.now, id, &command);
        }

        fn scribble(&mut self, slot: u32) {
            let number = self.dice.below(12) as u32;
            let owner = if number < 4 { 0 } else { (number - 4) << LOCK_CHANNEL_SHIFT | 5 };
            let ends = self.dice.below(3) as u32;
            let shared = self.engine.shard.sockets.slots.shared(slot);
            if ends != 0 {
                shared.rx_lock.store(owner, Relaxed);
            }
            if ends != 1 {
                shared.tx_lock.store(owner, Relaxed);
            }
            shared.in_flight.store(self.dice.below(2) as u32, Relaxed);
        }

        fn turn(&mut self, seconds: u32) {
            self.now += Duration::from_secs(seconds.into());
            self.engine.shard.sockets.now = self.now;
            self.engine.shard.turn_stack();
            self.engine.shard.continue_batches();
            self.engine.shard.look();
            self.engine.exchange();
        }

        fn ask_for_clone(&mut self, id: ChannelId) {
            let wanted = [purpose::FORK, purpose::SPAWN, purpose::EXEC];
            let wanted = wanted[self.dice.index(3)];
            // Send a request only if the process has no pending request: it must wait for a reply
            // before it sends the next one.
            let attached = self.engine.shard.processes.channels.get(id);
            if attached.is_some_and(|it| it.batch.is_none() && !it.has_ended) {
                // The engine must refuse the request if the process has not yet sent HELLO or
                // SETTLED.
                let request = Request { call: call::CLONE, a: wanted, ..Request::default() };
                self.engine.grant(id, &request);
            }
        }

        fn step(&mut self) {
            self.take_answers();
            let slot = self.dice.below(24) as u32;
            match ((self.dice.below(16) as u32), self.channel()) {
                (0, _) | (_, None) => self.begin(),
                (1..=4, Some(id)) => self.open(id),
                (5, Some(id)) => self.ask_for_clone(id),
                (6..=9, Some(id)) => self.command(id, slot),
                (10 | 11, _) => self.scribble(slot),
                (12, Some(id)) => self.engine.shard.detach(self.now, id),
                (13, Some(id)) if (self.dice.below(4) as u32) == 0 => {
                    self.engine.shard.processes.channels.to_cut_off.push(id)
                }
                _ => {
                    let seconds = self.dice.below(8) as u32;
                    self.turn(seconds);
                }
            }
        }

        /// Checks that all counters match the sets whose entries they count, and that recorded
        /// processes exist.
        fn check(&self) {
            let Shard { sockets, processes, .. } = &self.engine.shard;
            let Released { to_reuse: awaited, to_close_in_flight: parked, .. } = &sockets.released;
            let mut held = 0;
            for id in self.channels() {
                let attached = processes.channels.get(id).expect("it is there");
                assert_eq!(attached.held, attached.holds.iter().count());
                held += attached.held;
                let inside = awaited.iter().filter(|(_, owner)| **owner == id);
                assert_eq!(attached.inside as usize, inside.clone().count());
                assert!(inside.clone().all(|(slot, _)| attached.closed.contains(*slot)));
            }
            let promised = self
                .channels()
                .into_iter()
                .filter_map(|id| processes.channels.get(id)?.batch.map(|portion| portion.holds));
            assert_eq!(processes.promised, promised.sum::<usize>());
            assert!(awaited.values().all(|id| processes.channels.get(*id).is_some()));
            assert_eq!(processes.holds, held);
            for (slot, entry) in sockets.slots.iter() {
                let holds = |holder: &Holder| {
                    processes
                        .channels
                        .get(holder.id)
                        .is_some_and(|attached| attached.holds.contains(slot))
                };
                assert!(entry.holders.iter().all(holds));
                held -= entry.holders.len();
                let until = entry.rare().waits.in_flight_until;
                assert!(until.is_none_or(|until| parked.contains_key(&(until, slot))));
            }
            assert_eq!(held, 0);
            let is_parked = |&(until, slot): &(Instant, u32)| {
                sockets.slots.get(slot).and_then(|entry| entry.rare().waits.in_flight_until)
                    == Some(until)
            };
            assert!(parked.keys().all(is_parked));
        }
    }

    fn take_answer(control: &OwnedFd) -> Option<(ChannelId, OwnedFd)> {
        let mut bytes = [0; size_of::<ControlReply>()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(control, &mut parts, &mut ancillary, flags).ok()?;
        let first = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        Some((ChannelId::of_number(ControlReply::from_bytes(&bytes).b)?, first?))
    }

    /// Runs simulated processes that start, fork, list sockets, release sockets, stop while they
    /// hold locks, violate the protocol and end, in random order.
    #[test]
    fn nothing_is_left_of_processes_whatever_they_did() {
        for seed in 1..=40 {
            let mut world = World::new(seed);
            for _ in 0..600 {
                world.step();
                world.check();
            }
            for id in world.channels() {
                world.engine.shard.detach(world.now, id);
                world.check();
            }
            (0..4).for_each(|_| world.turn(60));
            let shard = &world.engine.shard;
            let host = &shard.sockets;
            assert!(shard.processes.to_continue.is_empty() && shard.processes.promised == 0);
            assert_eq!((shard.processes.holds, host.slots.len()), (0, 0), "seed {seed}");
            assert!(
                world.engine.shard.sockets.released.to_reuse.is_empty()
                    && world.engine.shard.sockets.released.to_close_in_flight.is_empty()
            );
            assert!(
                world.engine.shard.processes.to_disinherit.is_empty()
                    && world.engine.shard.processes.to_restrict.is_empty()
            );
            assert_eq!(host.windows.usage().assigned, 0);
        }
    }
}
