//! Handles requests whose work grows with the number of a process's sockets: CLONE (a new process),
//! and the HELLO of an executed program. The requests are handled in batches of work steps, so that
//! other work can run in between.
//!
//! ```text
//!   CLONE   a channel without sockets ─► a reference to each socket ─► done
//!   HELLO   new rings ─► locks of each socket released ─► unlisted sockets released, done
//! ```
//!
//! To programs, both take effect when the request is received. Sockets that a process opens or
//! receives during its CLONE are also given to the clone (the channel of the new process). Sockets
//! that it closes during its CLONE are given to the clone first. An executed program locks no
//! socket before the reply to HELLO, so a lock with the channel's number belongs to the program
//! before exec.

use std::time::Duration;

use crate::ids::ChannelId;
use crate::mail::ShardReport;
use crate::shard::processes::Processes;
use crate::shard::processes::channels::{Batch, BatchWork};
use crate::shard::sockets::Sockets;

/// Number of work steps for one request before other work runs, about 50 µs. The first batch runs
/// when the request is received, so that a process with few sockets is not delayed. Each later
/// iteration of the event loop runs one batch of one request. (Tests use a small value.)
pub(crate) const PORTION: u64 = if cfg!(test) { 4 } else { 512 };
/// Maximum time between a CLONE and the first message of the new process, which lists its sockets.
/// fork and posix_spawn take milliseconds, or seconds on a machine that swaps. After this time, the
/// process gets no more sockets that its parent opens.
const BORN_WITHIN: Duration = Duration::from_secs(30);

impl Processes {
    /// Starts a batch of work on all sockets of a process, and runs its first steps. The batch may
    /// add up to `holds` references to sockets.
    pub(crate) fn begin_batch(
        &mut self,
        sockets: &mut Sockets,
        id: ChannelId,
        what: BatchWork,
        holds: usize,
    ) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.batch = Some(Batch { next: 0, what, holds });
        if !self.run_portion(sockets, id) {
            self.to_continue.push_back(id);
        }
    }

    /// Continues an incomplete batch. Batches of several processes are continued in turn.
    pub(crate) fn continue_batches(&mut self, sockets: &mut Sockets) {
        if let Some(id) = self.to_continue.pop_front()
            && !self.run_portion(sockets, id)
        {
            self.to_continue.push_back(id);
        }
    }

    /// Runs some steps of a process's batch. Returns true if the batch is done or the process has
    /// ended.
    fn run_portion(&mut self, sockets: &mut Sockets, id: ChannelId) -> bool {
        sockets.counters.request_portions += 1;
        let before = sockets.counters.work;
        while sockets.counters.work - before < PORTION {
            if !self.run_step(sockets, id) {
                self.finish_batch(sockets, id);
                return true;
            }
        }
        false
    }

    /// Runs one step of a process's batch. Returns false if no step is left.
    fn run_step(&mut self, sockets: &mut Sockets, id: ChannelId) -> bool {
        let channels = &mut self.channels;
        let Some(attached) = channels.get_mut(id) else { return false };
        let Some(Batch { next: from, what, .. }) = attached.batch else { return false };
        let next = match what {
            BatchWork::Give { clone, only_listed: true } => {
                let expected =
                    channels.get(clone).and_then(|clone| clone.lineage.expected.as_ref());
                expected.and_then(|expected| expected.inherits.first_from(from))
            }
            _ => attached.holds.first_from(from),
        };
        let Some(slot) = next else {
            sockets.counters.work(1);
            return what == BatchWork::Unlock && sockets.free_closed(&mut self.channels, id);
        };
        if let Some(portion) = channels.get_mut(id).and_then(|it| it.batch.as_mut()) {
            portion.next = slot + 1;
        }
        match what {
            BatchWork::Give { clone, .. } => self.hold(sockets, clone, slot),
            BatchWork::Unlock => {
                sockets.counters.work(1);
                sockets.release_locks_of(&mut self.channels, id, slot);
            }
        }
        true
    }

    fn finish_batch(&mut self, sockets: &mut Sockets, id: ChannelId) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        let Some(portion) = attached.batch.take() else { return };
        self.promised -= portion.holds;
        match portion.what {
            BatchWork::Give { clone, .. } => self.expect_birth(sockets, clone),
            BatchWork::Unlock => {
                let listed = std::mem::take(&mut attached.listed);
                self.keep_only(sockets, id, &listed);
            }
        }
        self.notices.push(ShardReport::Done(id, 0));
    }
}

impl Processes {
    /// Sets the deadline of a clone, whose channel is about to be passed to the new process.
    pub(crate) fn expect_birth(&mut self, sockets: &mut Sockets, clone: ChannelId) {
        let until = sockets.now + BORN_WITHIN;
        if let Some(attached) = self.channels.get_mut(clone) {
            attached.lineage.unborn_until = Some(until);
            self.to_disinherit.push_back((until, clone));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use std::os::fd::OwnedFd;

    use super::*;
    use crate::shard::sockets::slots::AF_INET;
    use crate::{Engine, EngineConfig};
    use towpath_shm::control::{Request, call, purpose};
    use towpath_shm::layout::{Command, Kind, LOCK_CHANNEL_SHIFT, op};

    /// Number of sockets for which a CLONE takes several batches.
    const MANY: u32 = 3 * PORTION as u32 + 2;

    /// Creates an engine with a process that has sockets. Also returns the process's control socket
    /// and the slots of the sockets.
    fn engine() -> (Engine, ChannelId, OwnedFd, Vec<u32>) {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let (id, control) = engine.open_channel();
        engine.link(id);
        let slots = (0..MANY).map(|_| open(&mut engine, id)).collect();
        (engine, id, control.into(), slots)
    }

    fn open(engine: &mut Engine, id: ChannelId) -> u32 {
        let slots = &mut engine.shard.sockets.slots;
        let slot = slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
        engine.shard.sockets.slots.publish(slot);
        engine.shard.hold(id, slot);
        slot
    }

    fn command(engine: &mut Engine, id: ChannelId, op: u32, slot: u32) {
        let generation = engine.shard.sockets.slots.get(slot).expect("it is there").generation;
        let command = Command { op, slot, generation, ..Command::default() };
        engine.shard.command(engine.shard.sockets.now, id, &command);
    }

    /// Starts a CLONE. Returns the ID of the clone, which is not complete yet.
    fn begin_clone(engine: &mut Engine, id: ChannelId, wanted: u32) -> ChannelId {
        engine.grant(id, &Request { call: call::CLONE, a: wanted, ..Request::default() });
        let clone = engine
            .shard
            .processes
            .channels
            .get(id)
            .expect("it is there")
            .lineage
            .clones
            .last()
            .copied();
        assert!(!engine.shard.processes.to_continue.is_empty(), "one portion does not do");
        clone.expect("it was begun")
    }

    fn go_on(engine: &mut Engine) {
        let before = engine.shard.sockets.counters.work;
        engine.shard.continue_batches();
        assert!(engine.shard.sockets.counters.work - before <= PORTION + 1);
    }

    fn end(engine: &mut Engine) {
        while !engine.shard.processes.to_continue.is_empty() {
            go_on(engine);
        }
        assert_eq!(engine.shard.processes.promised, 0);
        engine.exchange();
        assert!(engine.shard.processes.channels.to_cut_off.is_empty(), "the answer was sent");
    }

    #[test]
    fn a_clone_has_what_its_parent_had_when_it_asked_and_came_by_since() {
        let (mut engine, id, _control, slots) = engine();
        let clone = begin_clone(&mut engine, id, purpose::FORK);
        let (first, last) = (slots[0], slots[MANY as usize - 1]);
        assert!(engine.shard.is_held(clone, first) && !engine.shard.is_held(clone, last));
        command(&mut engine, id, op::CLOSE, first);
        command(&mut engine, id, op::CLOSE, last);
        go_on(&mut engine);
        let new = open(&mut engine, id);
        end(&mut engine);
        assert!(slots.iter().chain([&new]).all(|&slot| engine.shard.is_held(clone, slot)));
        assert!(!engine.shard.is_held(id, first) && !engine.shard.is_held(id, last));
    }

    /// Tests a new program that never sends HELLO (first request of a program). The program keeps
    /// only the sockets that were listed for it, and no new sockets in their slots.
    #[test]
    fn what_is_listed_for_a_program_is_held_by_it() {
        for wanted in [purpose::EXEC, purpose::SPAWN] {
            let (mut engine, id, _control, slots) = engine();
            let (apart, listed) = slots.split_first().expect("there are some");
            listed.iter().for_each(|&slot| command(&mut engine, id, op::LIST, slot));
            let clone = begin_clone(&mut engine, id, wanted);
            let last = slots[MANY as usize - 1];
            command(&mut engine, id, op::CLOSE, last);
            engine.shard.turn_stack();
            assert_ne!(open(&mut engine, id), last, "its slot is not free");
            end(&mut engine);
            let clones = engine.shard.processes.channels.get(clone).expect("it is there");
            let inherits = &clones.lineage.expected.as_ref().expect("it has said nothing").inherits;
            assert_eq!(inherits.iter().collect::<Vec<_>>(), listed);
            assert!(listed.iter().all(|&slot| engine.shard.is_held(clone, slot)));
            assert_eq!(engine.shard.is_held(clone, *apart), wanted == purpose::SPAWN);
        }
    }

    #[test]
    fn of_a_process_that_dies_while_it_clones_nothing_is_left() {
        let (mut engine, id, control, _) = engine();
        let clone = begin_clone(&mut engine, id, purpose::FORK);
        drop(control);
        engine.shard.detach(engine.shard.sockets.now, id);
        assert_eq!(engine.shard.processes.promised, 0);
        for _ in 0..MANY {
            engine.shard.turn_stack();
        }
        go_on(&mut engine);
        assert!(engine.shard.processes.to_continue.is_empty());
        assert!([id, clone].iter().all(|id| engine.shard.processes.channels.get(*id).is_none()));
        assert_eq!((engine.shard.processes.holds, engine.shard.sockets.slots.len()), (0, 0));
    }

    /// Threads of the old process image were ended by exec while they held the locks of an open and
    /// of a closed socket.
    #[test]
    fn locks_of_the_image_before_are_free_when_hello_is_answered() {
        let (mut engine, id, _control, slots) = engine();
        let owner = id.number() << LOCK_CHANNEL_SHIFT | 5;
        let other = (id.number() + 1) << LOCK_CHANNEL_SHIFT | 5;
        let closed = slots[1];
        let (second, _second_control) = engine.open_channel();
        engine.shard.hold(second, closed);
        command(&mut engine, id, op::CLOSE, closed);
        let locks = |engine: &Engine, slot| {
            let shared = engine.shard.sockets.slots.shared(slot);
            (shared.rx_lock.load(Relaxed), shared.tx_lock.load(Relaxed))
        };
        for &slot in &slots {
            let shared = engine.shard.sockets.slots.shared(slot);
            shared.rx_lock.store(owner, Relaxed);
            shared.tx_lock.store(other, Relaxed);
        }
        slots.iter().filter(|slot| **slot != closed).for_each(|&slot| {
            command(&mut engine, id, op::LIST, slot);
        });
        engine.grant(id, &Request { call: call::HELLO, ..Request::default() });
        assert_eq!(locks(&engine, slots[MANY as usize - 1]), (owner, other), "not at once");
        end(&mut engine);
        assert!(slots.iter().all(|&slot| locks(&engine, slot) == (0, other)));
    }

    /// Tests that a process is removed if it sends a request before the reply to its previous one.
    /// Otherwise its amount of queued work would be unbounded.
    #[test]
    fn who_asks_again_before_such_an_answer_is_cut_off() {
        let (mut engine, id, control, _) = engine();
        begin_clone(&mut engine, id, purpose::FORK);
        let again = Request { call: call::CLONE, ..Request::default() };
        rustix::net::send(&control, again.wire(), rustix::net::SendFlags::empty()).expect("room");
        (0..4).for_each(|_| engine.turn_and_look());
        assert_eq!(engine.shard.sockets.counters.hostile_channels, 1);
        let attached = engine.shard.processes.channels.get(id);
        assert!(attached.is_none_or(|attached| attached.has_ended));
    }

    #[test]
    fn requests_go_on_in_turn() {
        let (mut engine, one, _control, slots) = engine();
        let (other, _other_control) = engine.open_channel();
        engine.link(other);
        slots.iter().for_each(|&slot| engine.shard.hold(other, slot));
        begin_clone(&mut engine, one, purpose::FORK);
        begin_clone(&mut engine, other, purpose::FORK);
        let goes_on = |engine: &Engine| {
            [one, other].map(|id| {
                engine.shard.processes.channels.get(id).expect("it lives").batch.is_some()
            })
        };
        // The first request needs two more batches and one step, which run in turn with batches of
        // the second request.
        for _ in 0..4 {
            go_on(&mut engine);
            assert_eq!(goes_on(&engine), [true, true]);
        }
        go_on(&mut engine);
        assert_eq!(goes_on(&engine), [false, true]);
        end(&mut engine);
    }
}
