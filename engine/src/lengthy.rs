//! Requests whose work grows with the number of a process's sockets: CLONE, and the HELLO of a new process image.
//! They are dealt with in portions, with work for others between them, and answered after the last one.
//!
//! ```text
//!   CLONE   a channel without sockets ─► its hold on each socket ─► the answer, with the channel
//!   HELLO   fresh rings ─► the locks of each socket freed ─► what was not listed let go of, the answer
//! ```
//!
//! To programs both look as if they were done at once, when the request was taken. A socket that a process opens
//! or is sent while its CLONE goes on is given to its clone too, as after it; one that it closes meanwhile is given
//! to the clone first (`shard/portions.rs`). The new image locks no socket before the answer to HELLO, so
//! that a lock with the channel's number is one of the image before.

use std::os::fd::OwnedFd;

use towpath_shm::control::Reply;
use towpath_shm::layout::VERSION;
use towpath_tcp::Instant;

use crate::answer::{Answer, Passed};
use crate::engine::Engine;
use crate::ids::ChannelId;
use crate::requests::{By, Cloning, Lengthy};
use crate::shard::channels::Whole;

impl Engine {
    /// Gives a clone what its parent holds, and then the parent its answer. `only_listed`: what the parent listed.
    pub(crate) fn begin_cloning(
        &mut self,
        now: Instant,
        id: ChannelId,
        cloning: Cloning,
        only_listed: bool,
    ) {
        self.lengthy.holds += cloning.holds;
        let what = Whole::Give { clone: cloning.clone, only_listed };
        self.begin_lengthy(now, id, Lengthy::Clone(cloning), what);
    }

    /// Frees the locks that threads had of the process image before, and then answers the new one's HELLO.
    pub(crate) fn begin_image(&mut self, now: Instant, id: ChannelId, bell: OwnedFd) {
        self.begin_lengthy(now, id, Lengthy::Hello(bell), Whole::Unlock);
    }

    fn begin_lengthy(&mut self, now: Instant, id: ChannelId, lengthy: Lengthy, what: Whole) {
        let Some(process) = self.registry.get_mut(id) else { return };
        process.lengthy = Some(Box::new(lengthy));
        self.shard.begin_whole(id, what);
        if !self.do_portion(now, id) {
            self.lengthy.queue.push_back(id);
        }
    }

    /// Goes on with one of the requests, each in its turn.
    pub(crate) fn go_on_with_lengthy(&mut self, now: Instant) {
        if let Some(id) = self.lengthy.queue.pop_front()
            && !self.do_portion(now, id)
        {
            self.lengthy.queue.push_back(id);
        }
    }

    /// True: it is done and answered, or nobody waits for it.
    fn do_portion(&mut self, now: Instant, id: ChannelId) -> bool {
        let is_done = self.shard.do_portion(id);
        if is_done {
            self.end_lengthy(now, id);
        }
        is_done
    }

    fn end_lengthy(&mut self, now: Instant, id: ChannelId) {
        let Some(process) = self.registry.get_mut(id) else { return };
        let Some(lengthy) = process.lengthy.take() else { return };
        self.lengthy.holds -= lengthy.holds();
        let answer = match *lengthy {
            Lengthy::Clone(cloning) => self.end_cloning(cloning),
            Lengthy::Hello(bell) => self.end_hello(now, id, bell),
        };
        if !self.send_answer(id, By::Socket, answer) {
            self.shard.to_cut_off.push(id);
        }
    }

    fn end_cloning(&mut self, cloning: Cloning) -> Answer {
        let Cloning { clone, control, bell, .. } = cloning;
        self.expect_birth(clone);
        let reply = Reply { b: clone.number(), ..Reply::default() };
        let passed = vec![
            Passed::Own(control),
            Passed::Memory(clone),
            Passed::EngineBell(clone),
            Passed::Own(bell),
        ];
        Ok((reply, passed))
    }

    fn end_hello(&mut self, now: Instant, id: ChannelId, bell: OwnedFd) -> Answer {
        let attached = self.shard.host.channels.get_mut(id);
        let listed = attached.map(|it| std::mem::take(&mut it.listed)).unwrap_or_default();
        self.keep_only(now, id, &listed);
        let reply = Reply { a: VERSION, b: id.number(), ..Reply::default() };
        let mut passed = vec![
            Passed::Region,
            Passed::Status,
            Passed::Memory(id),
            Passed::EngineBell(id),
            Passed::Own(bell),
            Passed::Blank,
        ];
        passed.extend(self.registry.lifeline.is_some().then_some(Passed::Lifeline));
        Ok((reply, passed))
    }

    /// The process that asked is gone: nobody will have the clone.
    pub(crate) fn abandon(&mut self, now: Instant, lengthy: Lengthy) {
        self.lengthy.holds -= lengthy.holds();
        let Lengthy::Clone(Cloning { clone, control, bell, .. }) = lengthy else { return };
        self.registry.close(clone, [control, bell]);
        self.detach(now, clone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::EngineConfig;
    use crate::shard::portions::PORTION;
    use crate::shard::slots::AF_INET;
    use towpath_shm::control::{Request, call, purpose};
    use towpath_shm::layout::{Command, Kind, LOCK_CHANNEL_SHIFT, op};

    /// More than one portion has.
    const MANY: u32 = 3 * PORTION as u32 + 2;

    /// An engine with a process, the process's end of its control socket, and sockets of it.
    fn engine() -> (Engine, ChannelId, OwnedFd, Vec<u32>) {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let (id, control) = engine.open_channel(None).expect("descriptors");
        engine.link(id, false).expect("descriptors");
        let slots = (0..MANY).map(|_| open(&mut engine, id)).collect();
        (engine, id, control, slots)
    }

    fn open(engine: &mut Engine, id: ChannelId) -> u32 {
        let slots = &mut engine.shard.host.slots;
        let slot = slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
        engine.shard.host.slots.publish(slot);
        engine.shard.hold(id, slot);
        slot
    }

    fn command(engine: &mut Engine, id: ChannelId, op: u32, slot: u32) {
        let generation = engine.shard.host.slots.get(slot).expect("it is there").generation;
        let command = Command { op, slot, generation, ..Command::default() };
        engine.command(engine.shard.host.now, id, &command);
    }

    /// The clone, which is being made.
    fn begin_clone(engine: &mut Engine, id: ChannelId, wanted: u32) -> ChannelId {
        engine.clone_channel(engine.shard.host.now, id, wanted).expect("room");
        let clone = engine.shard.host.channels.get(id).expect("it is there").clones.last().copied();
        assert!(!engine.lengthy.is_empty(), "one portion does not do");
        clone.expect("it was begun")
    }

    fn go_on(engine: &mut Engine) {
        let before = engine.shard.host.counters.work;
        engine.go_on_with_lengthy(engine.shard.host.now);
        assert!(engine.shard.host.counters.work - before <= PORTION + 1);
    }

    fn end(engine: &mut Engine) {
        while !engine.lengthy.is_empty() {
            go_on(engine);
        }
        assert_eq!(engine.lengthy.holds(), 0);
        assert!(engine.shard.to_cut_off.is_empty(), "the answer was sent");
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

    /// The program that the process becomes may never say HELLO: then it has what was listed, and nothing that
    /// got a slot of that meanwhile.
    #[test]
    fn what_is_listed_for_a_program_is_held_by_it() {
        for wanted in [purpose::EXEC, purpose::SPAWN] {
            let (mut engine, id, _control, slots) = engine();
            let (apart, listed) = slots.split_first().expect("there are some");
            listed.iter().for_each(|&slot| command(&mut engine, id, op::LIST, slot));
            let clone = begin_clone(&mut engine, id, wanted);
            let last = slots[MANY as usize - 1];
            command(&mut engine, id, op::CLOSE, last);
            engine.turn_stack(engine.shard.host.now);
            assert_ne!(open(&mut engine, id), last, "its slot is not free");
            end(&mut engine);
            let clones = engine.shard.host.channels.get(clone).expect("it is there");
            let inherits = clones.inherits.as_ref().expect("it has said nothing");
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
        engine.detach(engine.shard.host.now, id);
        assert_eq!(engine.lengthy.holds(), 0);
        for _ in 0..MANY {
            engine.turn_stack(engine.shard.host.now);
        }
        go_on(&mut engine);
        assert!(engine.lengthy.is_empty());
        assert!([id, clone].iter().all(|id| engine.shard.host.channels.get(*id).is_none()));
        assert_eq!((engine.shard.host.holds, engine.shard.host.slots.len()), (0, 0));
    }

    /// Threads of the image before stood still at sockets that it had, and at one that it had closed.
    #[test]
    fn locks_of_the_image_before_are_free_when_hello_is_answered() {
        let (mut engine, id, _control, slots) = engine();
        let owner = id.number() << LOCK_CHANNEL_SHIFT | 5;
        let other = (id.number() + 1) << LOCK_CHANNEL_SHIFT | 5;
        let closed = slots[1];
        let (second, _second_control) = engine.open_channel(None).expect("descriptors");
        engine.shard.hold(second, closed);
        command(&mut engine, id, op::CLOSE, closed);
        let locks = |engine: &Engine, slot| {
            let shared = engine.shard.host.slots.shared(slot);
            (shared.rx_lock.load(Relaxed), shared.tx_lock.load(Relaxed))
        };
        for &slot in &slots {
            let shared = engine.shard.host.slots.shared(slot);
            shared.rx_lock.store(owner, Relaxed);
            shared.tx_lock.store(other, Relaxed);
        }
        slots.iter().filter(|slot| **slot != closed).for_each(|&slot| {
            command(&mut engine, id, op::LIST, slot);
        });
        let bell = engine.link(id, false).expect("descriptors");
        engine.begin_image(engine.shard.host.now, id, bell);
        assert_eq!(locks(&engine, slots[MANY as usize - 1]), (owner, other), "not at once");
        end(&mut engine);
        assert!(slots.iter().all(|&slot| locks(&engine, slot) == (0, other)));
    }

    /// The answer to the next one might be taken for that to the first, or be given in its midst.
    #[test]
    fn who_asks_again_before_such_an_answer_is_cut_off() {
        let (mut engine, id, _control, _) = engine();
        let link = engine.shard.host.channels.get(id).and_then(|attached| attached.link.as_ref());
        let channel = link.expect("it was linked").ring.channel().clone();
        begin_clone(&mut engine, id, purpose::FORK);
        towpath_ring::ask(&channel, &Request { call: call::INTERFACES, ..Request::default() });
        engine.do_turn();
        engine.do_turn();
        assert_eq!(engine.shard.host.counters.hostile_channels, 1);
        assert!(towpath_ring::has_ended(&channel));
    }

    #[test]
    fn requests_go_on_in_turn() {
        let (mut engine, one, _control, slots) = engine();
        let (other, _other_control) = engine.open_channel(None).expect("descriptors");
        engine.link(other, false).expect("descriptors");
        slots.iter().for_each(|&slot| engine.shard.hold(other, slot));
        begin_clone(&mut engine, one, purpose::FORK);
        begin_clone(&mut engine, other, purpose::FORK);
        let goes_on = |engine: &Engine| {
            [one, other].map(|id| engine.registry.get(id).expect("it lives").lengthy.is_some())
        };
        // The first one needs two more and a step, which comes after the other's second portion.
        for _ in 0..4 {
            go_on(&mut engine);
            assert_eq!(goes_on(&engine), [true, true]);
        }
        go_on(&mut engine);
        assert_eq!(goes_on(&engine), [false, true]);
        end(&mut engine);
    }
}
