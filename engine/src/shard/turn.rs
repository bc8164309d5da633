//! A turn of the stack, and what follows from it for sockets and their programs.

use towpath_ring::take_tx_wanted;
use towpath_shm::layout::event;
use towpath_stack::{Budget, Turn};
use towpath_tcp::Instant;

use crate::shard::{DroppedPacket, Shard};

/// Instructions of filters that take as long as a step of work, some 100 ns.
const FILTER_STEPS_OF_WORK: usize = 32;

impl Shard {
    /// Deals with commands of programs, work of the stack, and its consequences. True: there is
    /// more to do.
    pub(crate) fn do_turn(&mut self) -> bool {
        self.host.counters.turns += 1;
        self.status.begin_beat();
        let now = self.read_clocks();
        let commands = self.drain_commands(now);
        let turn = self.turn_stack(now);
        self.answer_askers(now, false);
        self.go_on_with_wholes();
        self.go_on_listing();
        let asked = !self.ends.is_empty() || self.rounds.has_work() || !self.to_go_on.is_empty();
        let asked = asked || !self.to_cut_off.is_empty() || !self.listings.is_empty();
        let asked = asked || self.host.has_more() || !self.rounds.acknowledged.is_empty();
        self.status.end_beat();
        turn.more || commands || asked || self.host.slots.has_news() || !self.to_tell.is_empty()
    }

    /// A turn of the stack, and what follows from it for sockets, programs and processes. A query
    /// has one of its own. Ends of sockets after the packets' part are told in the next turn, for
    /// which there is no sleep.
    pub(crate) fn turn_stack(&mut self, now: Instant) -> Turn {
        let turn = self.turn_packets(now);
        self.go_on_ending(now);
        self.follow_up(now);
        self.disinherit_unborn(now);
        self.restrict_strangers(now);
        self.cut_off_hostile(now);
        self.await_threads();
        self.leave(now);
        turn
    }

    /// A turn of the stack; then memory that packets lent is free again, and what failed ends.
    /// [`Self::follow_up`] is due afterwards.
    pub(crate) fn turn_packets(&mut self, now: Instant) -> Turn {
        let turn = self.turn_stack_alone(now);
        self.heed_shards(now);
        self.status.set_datagram_mtu(self.stack.net.path_mtu_least());
        self.return_lent();
        self.return_pinned();
        self.show_dropped(now);
        self.tell_conflicts();
        self.reset_hostile_sockets(now);
        self.host.accept_long_deferred();
        self.offer_deferred(now);
        self.offer_again(now);
        self.reset_failed(now);
        turn
    }

    /// The stack's turn and nothing else. Its results are looked at after the next
    /// [`Self::turn_packets`], or before the shard sleeps.
    pub(crate) fn turn_stack_alone(&mut self, now: Instant) -> Turn {
        let budget = Budget::default();
        if self.stack.minds_processor() {
            self.stack.runs_on(crate::shard::processor::current());
        }
        let turn = self.stack.turn(now, &mut self.host, &mut self.ports, &mut self.pool, budget);
        self.host.counters.work(turn.filter_steps / FILTER_STEPS_OF_WORK);
        // `turn.mail` is reported once: wake these shards now, or they sleep on.
        self.wake_shards(turn.mail);
        self.acknowledge_ends();
        self.rounds.settle(turn.more);
        turn
    }

    /// Sockets that are gone go, those who wait for memory get it, and programs are told what
    /// happened.
    pub(crate) fn follow_up(&mut self, now: Instant) {
        self.bury();
        self.feed_starved(now);
        self.reset_unclaimed(now);
        self.close_parked(now);
        self.sweep(now);
        self.tell(now);
    }

    /// Notes what the turn has cost, requests included.
    pub(crate) fn end_of_turn(&mut self) {
        let counters = &mut self.host.counters;
        let work = counters.work - std::mem::replace(&mut self.worked, counters.work);
        counters.work_turn_max = counters.work_turn_max.max(work);
    }

    pub(crate) fn read_clocks(&mut self) -> Instant {
        self.host.now = self.clock.now();
        self.host.unix_ns = self.clock.unix_ns();
        self.host.windows.set_time(self.host.unix_ns);
        self.host.now
    }

    /// The last packets that pointed to released bytes of some FIFOs have come back: programs that
    /// wait for room are told. Packets that keep too much memory of FIFOs that are gone are copied.
    fn return_pinned(&mut self) {
        while let Some(slot) = self.host.windows.pop_unpinned() {
            // Another socket may have the slot, whose FIFO looks in vain.
            let Some(entry) = self.host.slots.get_mut(slot) else { continue };
            let id = entry.id;
            if let Some(tx) = entry.owned.as_deref_mut().and_then(|owned| owned.tx.as_mut()) {
                tx.unpin();
            }
            if let Some(tx) = id.and_then(|id| self.stack.send_buffer(id)) {
                tx.unpin();
            }
            self.host.counters.unpinned += 1;
            if take_tx_wanted(self.host.slots.shared(slot)) {
                self.host.slots.post(slot, event::TX);
            }
        }
        if self.host.windows.take_forsaken() {
            self.stack.net.copy_forsaken(&mut self.pool);
        }
    }

    fn tell_conflicts(&mut self) {
        let Some(tell) = &self.on_conflict else { return };
        while let Some(conflict) = self.stack.net.take_conflict() {
            tell(&conflict);
        }
    }

    fn show_dropped(&mut self, now: Instant) {
        let Some(trace) = &self.drop_trace else { return };
        while let Some(dropped) = self.stack.net.take_dropped() {
            trace(DroppedPacket {
                now_ns: now.0,
                interface: dropped.iface.0,
                outbound: dropped.reason.is_outbound(),
                reason: dropped.reason.as_str(),
                bytes: &dropped.bytes,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use towpath_pool::Fragments;
    use towpath_ring::{Attach, EngineSend, SendBuffer, lock_tx, program_fifo};
    use towpath_shm::layout::Kind;

    use crate::shard::slots::AF_INET;
    use crate::{Engine, EngineConfig};

    /// Bytes of the FIFO of [`pinned`].
    const LEN: u32 = 64 << 10;

    /// A socket whose program waits for room: a packet points to all of its FIFO, where nothing is
    /// left to be sent.
    fn pinned() -> (Engine, u32, Fragments) {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let host = &mut engine.shard.host;
        let slot = host.slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
        let region = host.windows.region().clone();
        let shared = region.slot(slot).expect("it was allocated");
        let mut tx = EngineSend::new(&host.windows, slot, LEN, LEN);
        assert_eq!(tx.attach(), Attach::Done);
        {
            let _guard = lock_tx(shared, shared.generation.load(Relaxed), || true);
            let written = program_fifo::write(&region, shared, 0, &[7; LEN as usize]) as u32;
            assert!(program_fifo::publish(shared, written));
        }
        assert!(tx.pull());
        let packet = tx.peek(0, LEN);
        tx.release(LEN);
        program_fifo::want_room(shared);
        host.slots.get_mut(slot).expect("it is there").owned().tx = Some(tx);
        (engine, slot, packet)
    }

    /// All was acknowledged while a packet pointed there, so that nothing else would ever wake the
    /// program.
    #[test]
    fn who_waits_for_room_is_told_when_packets_have_come_back() {
        let (mut engine, slot, packet) = pinned();
        let shard = &mut engine.shard;
        let region = shard.host.windows.region().clone();
        let shared = region.slot(slot).expect("it was allocated");
        shard.return_pinned();
        assert_eq!((program_fifo::room(shared), shared.tx_wanted.load(Relaxed)), (0, 1));
        drop(packet);
        shard.return_pinned();
        assert_eq!((program_fifo::room(shared), shared.tx_wanted.load(Relaxed)), (LEN, 0));
        assert_eq!(shard.host.counters.unpinned, 1);
    }

    /// The sweep takes the memory of an empty FIFO, though the program still waits for room in it.
    /// Packets of the device that did not keep up point to all of it.
    #[test]
    fn who_waits_for_room_is_told_though_the_memory_was_swept_meanwhile() {
        let (mut engine, slot, packet) = pinned();
        let shard = &mut engine.shard;
        let region = shard.host.windows.region().clone();
        let shared = region.slot(slot).expect("it was allocated");
        shard.host.watch_memory(slot);
        shard.return_pinned();
        let start = shard.host.now;
        for seconds in 0..30 {
            shard.sweep(start + std::time::Duration::from_secs(seconds));
        }
        drop(packet);
        shard.return_pinned();
        assert_eq!(shared.tx_wanted.load(Relaxed), 0, "nobody else would wake the program");
    }
}
