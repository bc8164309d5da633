//! Closes sockets, and frees their slots after the stack has ended their connections.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use towpath_ring::EngineRecv;
use towpath_shm::layout::Kind;
use towpath_stack::Linger;

use crate::ids::ChannelId;
use crate::shard::net::Net;
use crate::shard::peers::message::PeerMessage;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::ends::PendingEnd;
use crate::shard::sockets::slots::Child;

/// Time in which a process can still report that it has accepted a connection, after the listener
/// was closed or a process died. The report may be in the ring of another process.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// Maximum number of connections, removed from an accept queue but not reported as accepted, that
/// are reset per iteration of the event loop. Finding one in its listener's list takes some
/// microseconds.
const ORPHANS_A_TURN: usize = 16;

/// Maximum number of overdue sockets in flight that are closed per iteration of the event loop.
const IN_FLIGHT_A_TURN: usize = 64;

impl Sockets {
    /// Closes sockets in flight that no process has received in time. `is_alone` is true if no
    /// process is left that could receive them.
    pub(crate) fn close_overdue_in_flight(&mut self, net: &mut Net, is_alone: bool) {
        let now = self.now;
        for _ in 0..IN_FLIGHT_A_TURN {
            let Some(first) = self.released.to_close_in_flight.first_entry() else { return };
            let (until, slot) = *first.key();
            if until > now && !is_alone {
                return;
            }
            first.remove();
            self.close_in_flight(net, slot);
        }
    }

    /// Closes the sockets in flight that were sent by a process which has violated the protocol.
    pub(crate) fn close_in_flight_of(&mut self, net: &mut Net, id: ChannelId) {
        self.counters.work(self.released.to_close_in_flight.len() / 64);
        let its = self.released.to_close_in_flight.iter().filter(|(_, by)| **by == Some(id));
        let its: Vec<u32> = its.map(|(&(_, slot), _)| slot).collect();
        its.into_iter().for_each(|slot| self.close_in_flight(net, slot));
    }

    fn close_in_flight(&mut self, net: &mut Net, slot: u32) {
        self.counters.work(1);
        self.end_flight(slot);
        self.close(net, slot);
    }

    /// Handles changes of a socket whose command may be missing. A process may be killed, or call
    /// exec, between its write to shared memory and the command. Other processes will not send the
    /// command.
    pub(crate) fn catch_up(&mut self, net: &mut Net, slot: u32) {
        if self.slots.get(slot).is_some_and(|entry| entry.kind == Kind::Listener) {
            self.expect_claims(slot);
        } else {
            self.transmit(net, slot);
            self.received(net, slot);
        }
    }

    /// Closes a socket, because no process has it open any more. A stream sends the written bytes,
    /// then a FIN. If bytes are unread, or with SO_LINGER 0, it sends what the windows allow, then
    /// an RST.
    pub(crate) fn close(&mut self, net: &mut Net, slot: u32) {
        let now = self.now;
        let Some(kind) = self.slots.get(slot).map(|entry| entry.kind) else { return };
        match kind {
            Kind::Listener => self.close_queue(net, slot),
            Kind::Datagram | Kind::Echo => {
                if !self.flush_datagrams(net, slot) {
                    // Invalidate the processes' references and free the port now. The remaining
                    // datagrams are sent later.
                    let entry = self.slots.get_mut(slot);
                    if let Some(id) = entry.and_then(|entry| {
                        entry.closing = true;
                        entry.id
                    }) {
                        net.stack.withdraw(now, id);
                    }
                    return;
                }
            }
            _ => self.transmit(net, slot),
        }
        // Reset the connection if SO_LINGER is 0 seconds (the slot contains seconds + 1). A longer
        // time only makes the program wait in close(2).
        let abort = kind == Kind::Stream && self.slots.shared(slot).linger.load(Relaxed) == 1;
        self.end(net, slot, if abort { Linger::Abort } else { Linger::Default });
    }

    /// Closes all connections in an accept queue. For connections that a process has removed from
    /// the queue, waits [`CLAIM_WITHIN`] for the report that it has accepted them.
    pub(crate) fn close_queue(&mut self, net: &mut Net, listener: u32) {
        self.expect_claims(listener);
        let entry = self.slots.get_mut(listener);
        let children = entry.map(|entry| std::mem::take(&mut entry.owned().children));
        for child in children.into_iter().flatten().filter(|child| !child.orphaned) {
            self.end_child(net, child.slot, child.generation);
        }
        self.counters.work(self.deferred.to_accept.len() / 64);
        let is_its = |slot: &u32| {
            let unclaimed = self.slots.get(*slot).and_then(|entry| entry.unclaimed());
            unclaimed.is_some_and(|(parent, _)| parent == listener)
        };
        let deferred = self.deferred.to_accept.keys().map(|(_, slot)| *slot).filter(is_its);
        for slot in deferred.collect::<Vec<_>>() {
            self.end_deferral(slot);
            let generation = self.slots.get(slot).map_or(0, |entry| entry.generation);
            self.ends.push(PendingEnd::Connection(slot, generation));
        }
    }

    /// Schedules the reset of connections that were removed from an accept queue but are not
    /// claimed. Each is recorded once, because a process may close a shared listener any number of
    /// times.
    fn expect_claims(&mut self, listener: u32) {
        let now = self.now;
        let Some(entry) = self.slots.get_mut(listener) else { return };
        let Some(owned) = entry.owned.as_deref_mut() else { return };
        let Some(head) = owned.rx.as_ref().map(EngineRecv::head) else { return };
        self.counters.work(owned.children.len() / 64);
        let is_popped = |child: &Child| head.wrapping_sub(child.end) < 1 << 31;
        for child in owned.children.iter_mut().filter(|child| !child.orphaned && is_popped(child)) {
            child.orphaned = true;
            self.released.to_reset_unclaimed.push_back((
                now + CLAIM_WITHIN,
                child.slot,
                child.generation,
            ));
        }
    }

    /// Resets connections that were removed from an accept queue and not claimed in time.
    pub(crate) fn reset_unclaimed(&mut self, net: &mut Net) {
        let now = self.now;
        for _ in 0..ORPHANS_A_TURN {
            let Some(&(due, slot, generation)) = self.released.to_reset_unclaimed.front() else {
                return;
            };
            if due > now {
                return;
            }
            self.released.to_reset_unclaimed.pop_front();
            self.counters.work(1);
            match self.place.elsewhere(slot) {
                None => self.end_unclaimed(net, slot, generation),
                Some(shard) => net.tell_shard(shard, PeerMessage::EndUnclaimed(slot, generation)),
            }
        }
    }

    /// Resets sockets because their programs have written invalid FIFO positions to the slots.
    pub(crate) fn reset_hostile_sockets(&mut self, net: &mut Net) {
        for slot in self.windows.take_hostile() {
            self.counters.work(1);
            self.reset_socket(net, slot);
        }
    }

    /// Resets connections that failed while TCP_DEFER_ACCEPT delayed their accept, and frees their
    /// places in the backlog.
    pub(crate) fn reset_failed(&mut self, net: &mut Net) {
        while let Some(slot) = self.deferred.to_reset.pop() {
            self.free_place_of(net, slot);
            self.end(net, slot, Linger::Abort);
        }
    }

    /// Frees the place in the backlog of a connection with TCP_DEFER_ACCEPT. Before it is in the
    /// accept queue, it has a place only if its listener is in this shard (event loop).
    fn free_place_of(&mut self, net: &mut Net, slot: u32) {
        let unclaimed = self.slots.get(slot).and_then(|entry| entry.unclaimed());
        unclaimed.inspect(|listener| self.free_place(net, *listener));
    }

    /// Frees the slots of sockets that have ended.
    pub(crate) fn free_ended(&mut self, net: &mut Net) {
        while let Some(slot) = self.released.to_free.pop() {
            self.counters.work(1);
            // If a connection ends while it is in an accept queue, keep its slot, because the
            // queue's entry refers to it.
            let deferred = self.end_deferral(slot);
            if deferred {
                self.free_place_of(net, slot);
            }
            let Some(entry) = self.slots.get(slot) else { continue };
            if entry.unclaimed().is_some() && !entry.closing && !deferred {
                self.slots.fail(slot, crate::errno::ECONNRESET);
                continue;
            }
            if entry.kind == Kind::Listener && !entry.closing {
                // The listener was reset while it was in flight (SCM_RIGHTS), so its accept queue
                // was not closed yet.
                self.close_queue(net, slot);
            }
            self.forget_unclaimed(net, slot);
            self.end_flight(slot);
            self.slots.release(slot);
        }
    }

    fn forget_unclaimed(&mut self, net: &mut Net, slot: u32) {
        let entry = self.slots.get(slot);
        let unclaimed = entry.and_then(|entry| Some((entry.unclaimed()?, entry.generation)));
        if let Some((listener, own)) = unclaimed {
            self.leave_listener(net, listener, (slot, own), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::sockets::in_flight::{ADOPT_WITHIN, IN_FLIGHT_MAX};
    use crate::shard::sockets::lingering::{LINGERING_A_TURN, LINGERING_AGAIN};
    use crate::shard::sockets::linux::state;
    use crate::shard::sockets::slots::{AF_INET, Holders, Slots};
    use crate::{Engine, EngineConfig};

    #[test]
    fn a_turn_looks_at_some_of_those_that_linger() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.sockets.now;
        for _ in 0..3 * LINGERING_A_TURN {
            let slot = engine.shard.sockets.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
            engine.shard.sockets.slots.get_mut(slot).expect("it is there").closing = true;
            engine.shard.sockets.slots.shared(slot).state.store(state::FIN_WAIT1, Relaxed);
            engine.shard.sockets.telling.lingering.push_back(slot);
        }
        // Half of the sockets end, and the others continue to linger. Three iterations must check
        // all of them.
        for slot in (0..3 * LINGERING_A_TURN as u32).step_by(2) {
            engine.shard.sockets.slots.shared(slot).state.store(state::FIN_WAIT2, Relaxed);
        }
        let gone = LINGERING_A_TURN / 2;
        for turn in 1..=3 {
            engine.shard.tell_lingering(now);
            assert_eq!(
                engine.shard.sockets.telling.lingering.len(),
                3 * LINGERING_A_TURN - turn * gone
            );
            assert_eq!(engine.shard.sockets.telling.lingering_at, Some(now + LINGERING_AGAIN));
        }
        engine.shard.sockets.telling.lingering.truncate(LINGERING_A_TURN);
        engine.shard.tell_lingering(now);
        assert_eq!(engine.shard.sockets.telling.lingering_at, None);
    }

    /// Tests a server that sends connections to other processes and closes them at once, usually
    /// before the receiver has read the message.
    #[test]
    fn sockets_in_messages_count_until_they_arrive_or_end() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.sockets.now;
        let (id, _control) = engine.open_channel();
        let _descriptors = engine.link(id);
        let open = |engine: &mut Engine| {
            let slot =
                engine.shard.sockets.slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
            engine.shard.sockets.slots.shared(slot).in_flight.store(1, Relaxed);
            engine.shard.hold(id, slot);
            slot
        };
        let arrives = open(&mut engine);
        for _ in 0..2 * IN_FLIGHT_MAX {
            engine.shard.let_go(now, id, arrives);
            assert!(!engine.shard.sockets.slots.get(arrives).expect("it is kept").closing);
            engine.shard.adopt(id, arrives);
        }
        assert_eq!(engine.shard.sockets.released.to_close_in_flight.len(), 0);
        for _ in 0..IN_FLIGHT_MAX {
            let ends = open(&mut engine);
            engine.shard.let_go(now, id, ends);
            engine.shard.sockets.released.to_free.push(ends);
            engine.shard.free_ended();
        }
        engine.shard.let_go(now, id, arrives);
        assert_eq!(engine.shard.sockets.released.to_close_in_flight.len(), 1);
        engine.shard.close_overdue_in_flight(now + ADOPT_WITHIN);
        assert!(
            engine.shard.sockets.released.to_close_in_flight.is_empty()
                && engine.shard.sockets.slots.get(arrives).expect("not yet").closing
        );
    }

    /// Tests a process that repeatedly closes a shared listener and receives it again. A connection
    /// that is not reported as accepted must be recorded only once.
    #[test]
    fn a_connection_that_nobody_claims_is_noted_once() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.sockets.now;
        let channels = [(); 2].map(|()| engine.open_channel());
        let [stays, goes] = [channels[0].0, channels[1].0];
        let [listener, slot] = with_queue(&mut engine);
        engine.shard.hold(stays, listener);
        for _ in 0..100 {
            engine.shard.hold(goes, listener);
            engine.shard.let_go(now, goes, listener);
        }
        assert_eq!(engine.shard.sockets.released.to_reset_unclaimed.len(), 1);
        engine.shard.let_go(now, stays, listener);
        assert_eq!(engine.shard.sockets.released.to_reset_unclaimed.len(), 1);
        engine.shard.reset_unclaimed(now + CLAIM_WITHIN);
        assert!(engine.shard.sockets.released.to_reset_unclaimed.is_empty());
        assert!(engine.shard.sockets.slots.get(slot).expect("not buried").closing);
        assert_eq!(engine.shard.sockets.counters.unclaimed, 1);
    }

    /// Tests a listener that is reset while it is in flight. No process has it open, so the engine
    /// must close its accept queue.
    #[test]
    fn a_listener_that_is_reset_in_a_message_takes_its_queue_along() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.sockets.now;
        let (id, _control) = engine.open_channel();
        let _bell = engine.link(id);
        let [listener, slot] = with_queue(&mut engine);
        engine.shard.hold(id, listener);
        engine.shard.sockets.slots.shared(listener).in_flight.store(1, Relaxed);
        engine.shard.let_go(now, id, listener);
        assert_eq!(engine.shard.sockets.released.to_close_in_flight.len(), 1);
        // Create the same state as the `Closed` event of the stack does.
        engine.shard.sockets.released.to_free.push(listener);
        engine.shard.free_ended();
        engine.shard.reset_unclaimed(now + CLAIM_WITHIN);
        assert!(engine.shard.sockets.slots.get(slot).expect("not buried").closing);
    }

    /// Creates a listener with a connection in its accept queue. Returns both slots.
    fn with_queue(engine: &mut Engine) -> [u32; 2] {
        let slots = &mut engine.shard.sockets.slots;
        let listener = slots.allocate(Kind::Listener, AF_INET, 6).expect("room");
        let slot = slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        let of = |slots: &Slots, slot| slots.get(slot).expect("it is there").generation;
        let (parent, generation) = (of(slots, listener), of(slots, slot));
        slots.get_mut(slot).expect("it is there").holders = Holders::Unclaimed(listener, parent);
        let owned = slots.get_mut(listener).expect("it is there").owned();
        owned.rx = Some(EngineRecv::new(&engine.shard.sockets.windows, listener, 4096, 4096));
        owned.children.push_back(Child { slot, generation, end: 0, orphaned: false });
        [listener, slot]
    }

    /// Tests that a connection cannot be accepted after its listener was closed.
    #[test]
    fn what_is_ending_is_not_claimed_any_more() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.sockets.now;
        let (id, _control) = engine.open_channel();
        let _descriptors = engine.link(id);
        let slots = &mut engine.shard.sockets.slots;
        let listener = slots.allocate(Kind::Listener, AF_INET, 6).expect("room");
        let slot = slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        let [parent, generation] =
            [listener, slot].map(|slot| slots.get(slot).expect("it is there").generation);
        slots.get_mut(slot).expect("it is there").holders = Holders::Unclaimed(listener, parent);
        engine.shard.hold(id, listener);
        engine.shard.end_unclaimed(now, slot, generation);
        engine.shard.adopt(id, slot);
        engine.shard.free_ended();
        assert!(engine.shard.sockets.slots.get(slot).is_none());
        assert!(!engine.shard.is_held(id, slot), "the next socket in the slot would be");
    }
}
