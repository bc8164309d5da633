//! How sockets are shared, let go of and end; how processes end.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use towpath_ring::EngineRecv;
use towpath_shm::layout::{Kind, event, option_bit};
use towpath_stack::{Linger, SocketOption};
use towpath_tcp::Instant;

use crate::ids::ChannelId;
use crate::shard::Shard;
use crate::shard::among::Word;
use crate::shard::ends::End;
use crate::shard::linux::{state, state_number};
use crate::shard::slots::Child;

/// Time after a process died, or a listener closed, in which a connection may be claimed that was
/// taken off the accept queue. The command may be in another process's ring.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// How long a socket is kept that lies in a message and is held by no process.
const ADOPT_WITHIN: Duration = Duration::from_secs(30);
/// The end of a socket in steps of work: the stack lets go of it, tells the peer, and its slot is
/// used again.
const END: usize = 4;
/// Most sockets in messages; beyond, the last close is the last.
const PARKED_MAX: usize = 4096;

/// Parked sockets closed in one turn when their time is up.
const PARKED_A_TURN: usize = 64;
/// Connections that nobody claimed, reset in one turn: each is looked for in its listener's queue,
/// which takes some microseconds.
const ORPHANS_A_TURN: usize = 16;

/// Sockets that linger and are looked at in one turn; each costs some 100 ns.
const LINGERING_A_TURN: usize = 256;
/// When there are more the next are looked at so soon, also if nothing happens: a program waits.
const LINGERING_AGAIN: Duration = Duration::from_millis(1);

impl Shard {
    /// Resets a connection that nobody accepted.
    pub(crate) fn end_unaccepted(&mut self, slot: u32, generation: u32) {
        self.ends.push(End::Connection(slot, generation));
    }

    /// Whether the process on channel `id` holds the socket in `slot`.
    pub(crate) fn is_held(&self, id: ChannelId, slot: u32) -> bool {
        self.host.channels.get(id).is_some_and(|attached| attached.holds.contains(slot))
    }

    /// A process has a descriptor for the socket.
    pub(crate) fn hold(&mut self, id: ChannelId, slot: u32) {
        self.host.counters.work(1);
        let (Some(entry), Some(attached)) =
            (self.host.slots.get_mut(slot), self.host.channels.get_mut(id))
        else {
            return;
        };
        let is_new = attached.holds.insert(slot);
        // Otherwise it stands in `holders` still: it was about to be taken out, and stays.
        if is_new && !attached.former.remove(slot) {
            entry.holders.push(id);
            attached.held += 1;
            self.host.holds += 1;
            self.host.counters.holds_made += 1;
        }
        let clones = attached.clones.len();
        self.unpark(slot);
        // Children that were forked just now may have it too; they will say.
        for at in 0..clones {
            let Some(&clone) = self.host.channels.get(id).and_then(|it| it.clones.get(at)) else {
                break;
            };
            self.hold(clone, slot);
        }
    }

    /// A process has got a descriptor for the socket without opening it: by accept, by SCM_RIGHTS,
    /// or from the process that started it.
    pub(crate) fn adopt(&mut self, id: ChannelId, slot: u32) {
        if self.host.slots.get(slot).is_some_and(|entry| entry.unclaimed().is_some()) {
            self.claim(id, slot);
        } else {
            self.hold(id, slot);
        }
    }

    /// A process took the connection off an accept queue.
    pub(crate) fn claim(&mut self, id: ChannelId, slot: u32) {
        // A connection that is being closed already, with its listener or because it was claimed
        // too late, comes to its end. A holder would outlive it, and hold the next socket in the
        // slot.
        let entry = self.host.slots.get(slot).filter(|entry| !entry.closing);
        let Some((listener, generation)) = entry.and_then(|entry| entry.unclaimed()) else {
            self.host.counters.commands_stale += 1;
            return;
        };
        self.host.end_deferral(slot);
        let own = self.host.slots.get(slot).map_or(0, |entry| entry.generation);
        self.leave_listener(self.host.now, (listener, generation), (slot, own), true);
        self.hold(id, slot);
        // Events from before the claim were told to no process: bytes may have come since the
        // program looked. An event too many costs a look, one too few a connection.
        self.host.slots.post(slot, event::RX);
    }

    /// A process has no descriptor for the socket any more. When the last holder lets go the socket
    /// is closed.
    pub(crate) fn let_go(&mut self, now: Instant, id: ChannelId, slot: u32) {
        self.host.counters.work(1);
        self.give_to_clone(id, slot);
        if let Some(attached) = self.host.channels.get_mut(id)
            && (attached.holds.remove(slot) || attached.former.remove(slot))
        {
            attached.held -= 1;
            self.host.holds -= 1;
            attached.closed.insert(slot);
            // Another socket may have the slot next.
            attached.listed.remove(slot);
            if let Some(expected) = &mut attached.expected {
                expected.inherits.remove(slot);
            }
        }
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        entry.holders.remove(id);
        if !entry.holders.is_empty() {
            self.catch_up(now, slot);
        } else if entry.unclaimed().is_none() && !self.park(now, id, slot) {
            self.close(now, slot);
        }
    }

    /// A killed process may have written a word in shared memory and not sent the command that
    /// tells of it. So may a process that became another program. The other holders rely on that
    /// command: a set flag says that it was sent, and the process that popped a connection claims
    /// it. So the engine does now what the command would have asked for.
    fn catch_up(&mut self, now: Instant, slot: u32) {
        if self.host.slots.get(slot).is_some_and(|entry| entry.kind == Kind::Listener) {
            self.expect_claims(now, slot);
        } else {
            self.transmit(now, slot);
            self.received(now, slot);
        }
    }

    /// Keeps a socket that lies in a message for its receiver to adopt. A program that claims to
    /// have sent a socket, and has not, only delays the end of its own.
    fn park(&mut self, now: Instant, id: ChannelId, slot: u32) -> bool {
        let in_flight = self.host.slots.shared(slot).in_flight.load(Acquire);
        // A process that broke the rules of the channel (it has no link any more) is not believed.
        let honest = self.host.channels.get(id).is_some_and(|attached| attached.link.is_some());
        let Some(entry) = self.host.slots.get_mut(slot) else { return false };
        if in_flight == 0
            || !honest
            || entry.hostile
            || entry.closing
            || self.to_close_parked.len() >= PARKED_MAX
        {
            return false;
        }
        let until = now + ADOPT_WITHIN;
        entry.set_rare(|rare| rare.parked = Some(until));
        self.to_close_parked.insert((until, slot), Some(id));
        true
    }

    /// A process has adopted the socket, or it has ended: it does not count as parked any more.
    fn unpark(&mut self, slot: u32) {
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        if let Some(until) = entry.rare().parked {
            entry.set_rare(|rare| rare.parked = None);
            self.to_close_parked.remove(&(until, slot));
        }
    }

    /// Closes what was in messages that nobody received in time, or can receive any more.
    pub(crate) fn close_parked(&mut self, now: Instant) {
        for _ in 0..PARKED_A_TURN {
            let Some(first) = self.to_close_parked.first_entry() else { return };
            let (until, slot) = *first.key();
            if until > now && !self.host.channels.is_empty() {
                return;
            }
            first.remove();
            self.close_unadopted(now, slot);
        }
    }

    /// Closes what a process left in messages that broke the rules.
    pub(crate) fn close_parked_by(&mut self, now: Instant, id: ChannelId) {
        self.host.counters.work(self.to_close_parked.len() / 64);
        let its = self.to_close_parked.iter().filter(|(_, by)| **by == Some(id));
        let its: Vec<u32> = its.map(|(&(_, slot), _)| slot).collect();
        its.into_iter().for_each(|slot| self.close_unadopted(now, slot));
    }

    fn close_unadopted(&mut self, now: Instant, slot: u32) {
        self.host.counters.work(1);
        self.unpark(slot);
        self.close(now, slot);
    }

    /// close(2) by the last holder. A stream sends what was written and then FIN. If bytes are
    /// unread, or with SO_LINGER 0, it sends what the windows have room for and then RST.
    fn close(&mut self, now: Instant, slot: u32) {
        let Some(kind) = self.host.slots.get(slot).map(|entry| entry.kind) else { return };
        match kind {
            Kind::Listener => self.close_queue(now, slot),
            Kind::Datagram | Kind::Echo => {
                if !self.flush_datagrams(now, slot) {
                    // Its handles are not valid any more, and its port is another one's to bind.
                    let entry = self.host.slots.get_mut(slot);
                    if let Some(id) = entry.and_then(|entry| {
                        entry.closing = true;
                        entry.id
                    }) {
                        self.stack.withdraw(now, id);
                    }
                    return;
                }
            }
            _ => self.transmit(now, slot),
        }
        // SO_LINGER with zero seconds (the slot has seconds + 1). A longer one makes the program
        // wait in close(2), and is nothing to the stack.
        let abort = kind == Kind::Stream && self.host.slots.shared(slot).linger.load(Relaxed) == 1;
        self.end(now, slot, if abort { Linger::Abort } else { Linger::Default });
    }

    pub(crate) fn end(&mut self, now: Instant, slot: u32, linger: Linger) {
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        if !std::mem::replace(&mut entry.closing, true) {
            self.end_of_closing(now, slot, linger);
        }
    }

    /// The stack closes a socket that has nothing more to send of its own; without one in the stack
    /// it is buried.
    pub(crate) fn end_of_closing(&mut self, now: Instant, slot: u32, linger: Linger) {
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        self.host.counters.work(END);
        match entry.id {
            Some(id) => {
                self.stack.close(now, id, linger);
                self.rounds.unsettle();
                if self.host.slots.shared(slot).linger.load(Relaxed) > 1 {
                    self.to_tell_lingering.push_back(slot);
                }
            }
            None => self.host.to_bury.push(slot),
        }
    }

    /// Shows those who wait in close(2) how far their connections are.
    pub(crate) fn tell_lingering(&mut self, now: Instant) {
        for _ in 0..self.to_tell_lingering.len().min(LINGERING_A_TURN) {
            let Some(slot) = self.to_tell_lingering.pop_front() else { break };
            self.host.counters.work(1);
            if self.is_still_lingering(now, slot) {
                self.to_tell_lingering.push_back(slot);
            }
        }
        let more = self.to_tell_lingering.len() > LINGERING_A_TURN;
        self.lingering_at = more.then(|| now + LINGERING_AGAIN);
    }

    fn is_still_lingering(&mut self, now: Instant, slot: u32) -> bool {
        if self.host.slots.get(slot).is_none_or(|entry| !entry.closing) {
            return false;
        }
        let before = self.host.slots.shared(slot).state.load(Relaxed);
        self.publish_state(now, slot);
        let shared = self.host.slots.shared(slot);
        let after = shared.state.load(Relaxed);
        if after != before {
            towpath_ring::wake(shared);
        }
        !matches!(after, state::FIN_WAIT2 | state::TIME_WAIT | state::CLOSE)
    }

    /// Resets the connections that nobody took; those that somebody took, and has not claimed, get
    /// a while.
    pub(crate) fn close_queue(&mut self, now: Instant, listener: u32) {
        self.expect_claims(now, listener);
        let entry = self.host.slots.get_mut(listener);
        let children = entry.map(|entry| std::mem::take(&mut entry.owned().children));
        for child in children.into_iter().flatten().filter(|child| !child.orphaned) {
            self.end_child(now, child.slot, child.generation);
        }
        self.host.counters.work(self.host.to_accept.len() / 64);
        let is_its = |slot: &u32| {
            let unclaimed = self.host.slots.get(*slot).and_then(|entry| entry.unclaimed());
            unclaimed.is_some_and(|(parent, _)| parent == listener)
        };
        let deferred = self.host.to_accept.keys().map(|(_, slot)| *slot).filter(is_its);
        for slot in deferred.collect::<Vec<_>>() {
            self.host.end_deferral(slot);
            let generation = self.host.slots.get(slot).map_or(0, |entry| entry.generation);
            self.end_unaccepted(slot, generation);
        }
    }

    /// Notes the connections that were popped and are not claimed, each once: a process may receive
    /// a listener and close it any number of times.
    fn expect_claims(&mut self, now: Instant, listener: u32) {
        let Some(entry) = self.host.slots.get_mut(listener) else { return };
        let Some(owned) = entry.owned.as_deref_mut() else { return };
        let Some(head) = owned.rx.as_ref().map(EngineRecv::head) else { return };
        self.host.counters.work(owned.children.len() / 64);
        let is_popped = |child: &Child| head.wrapping_sub(child.end) < 1 << 31;
        for child in owned.children.iter_mut().filter(|child| !child.orphaned && is_popped(child)) {
            child.orphaned = true;
            self.to_reset_unclaimed.push_back((now + CLAIM_WITHIN, child.slot, child.generation));
        }
    }

    /// Connections that were popped and are not claimed in time are reset.
    pub(crate) fn reset_unclaimed(&mut self, now: Instant) {
        for _ in 0..ORPHANS_A_TURN {
            let Some(&(due, slot, generation)) = self.to_reset_unclaimed.front() else { return };
            if due > now {
                return;
            }
            self.to_reset_unclaimed.pop_front();
            self.host.counters.work(1);
            match self.host.place.elsewhere(slot) {
                None => self.end_unclaimed(now, slot, generation),
                Some(shard) => self.tell_shard(now, shard, Word::EndUnclaimed(slot, generation)),
            }
        }
    }

    /// Resets the sockets whose programs wrote impossible positions.
    pub(crate) fn reset_hostile_sockets(&mut self, now: Instant) {
        for slot in self.host.windows.take_hostile() {
            self.host.counters.work(1);
            self.reset_socket(now, slot);
        }
    }

    /// Resets a socket in whose slot a program wrote nonsense; the slot's words are not read any
    /// more. All processes that can write to it are of one trust domain, so the socket is reset,
    /// and no process is cut off.
    pub(crate) fn reset_socket(&mut self, now: Instant, slot: u32) {
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        if std::mem::replace(&mut entry.hostile, true) {
            return;
        }
        self.host.counters.hostile_sockets += 1;
        if let (false, Some(id)) = (entry.closing, entry.id) {
            // The slot stays with its holders; `Closed` tells them.
            self.stack.close(now, id, Linger::Abort);
        }
    }

    /// Connections that failed while they waited for their first bytes go, and with them their
    /// places in the backlog.
    pub(crate) fn reset_failed(&mut self, now: Instant) {
        while let Some(slot) = self.host.to_reset_failed.pop() {
            self.free_place_of(slot);
            self.end(now, slot, Linger::Abort);
        }
    }

    /// The same for one that waited for its first bytes. Only with a listener of this shard it has
    /// a place by then.
    fn free_place_of(&mut self, slot: u32) {
        let unclaimed = self.host.slots.get(slot).and_then(|entry| entry.unclaimed());
        unclaimed.inspect(|listener| self.free_place(*listener));
    }

    /// Slots of sockets that are gone are free again.
    pub(crate) fn bury(&mut self) {
        while let Some(slot) = self.host.to_bury.pop() {
            self.host.counters.work(1);
            // A connection that ended in an accept queue stays there: its record names it.
            let deferred = self.host.end_deferral(slot);
            if deferred {
                self.free_place_of(slot);
            }
            let Some(entry) = self.host.slots.get(slot) else { continue };
            if entry.unclaimed().is_some() && !entry.closing && !deferred {
                self.host.slots.fail(slot, crate::errno::ECONNRESET);
                continue;
            }
            if entry.kind == Kind::Listener && !entry.closing {
                // The listener was reset while it lay in a message, so that no holder has closed
                // it.
                self.close_queue(self.host.now, slot);
            }
            self.forget_unclaimed(slot);
            self.unpark(slot);
            self.host.slots.release(slot);
        }
    }

    fn forget_unclaimed(&mut self, slot: u32) {
        let entry = self.host.slots.get(slot);
        let unclaimed = entry.and_then(|entry| Some((entry.unclaimed()?, entry.generation)));
        if let Some((listener, own)) = unclaimed {
            self.leave_listener(self.host.now, listener, (slot, own), false);
        }
    }

    /// Publishes the TCP state, and what could only be set once there is a connection.
    pub(crate) fn publish_state(&mut self, now: Instant, slot: u32) {
        let Some(id) = self.host.slots.get(slot).and_then(|entry| entry.id) else { return };
        let Some(info) = self.stack.info(now, id) else { return };
        let shared = self.host.slots.shared(slot);
        let number = state_number(info.state);
        shared.state.store(number, std::sync::atomic::Ordering::Release);
        if number == state::ESTABLISHED && shared.option_bits.load(Relaxed) & option_bit::CORK != 0
        {
            // Refused only without a connection.
            let _ = self.stack.set_option(id, SocketOption::Cork(true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::slots::{AF_INET, Holders, Slots};
    use crate::{Engine, EngineConfig};

    #[test]
    fn a_turn_looks_at_some_of_those_that_linger() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.host.now;
        for _ in 0..3 * LINGERING_A_TURN {
            let slot = engine.shard.host.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
            engine.shard.host.slots.get_mut(slot).expect("it is there").closing = true;
            engine.shard.host.slots.shared(slot).state.store(state::FIN_WAIT1, Relaxed);
            engine.shard.to_tell_lingering.push_back(slot);
        }
        // Half of them come to an end; the others stay, and all are looked at in three turns.
        for slot in (0..3 * LINGERING_A_TURN as u32).step_by(2) {
            engine.shard.host.slots.shared(slot).state.store(state::FIN_WAIT2, Relaxed);
        }
        let gone = LINGERING_A_TURN / 2;
        for turn in 1..=3 {
            engine.shard.tell_lingering(now);
            assert_eq!(engine.shard.to_tell_lingering.len(), 3 * LINGERING_A_TURN - turn * gone);
            assert_eq!(engine.shard.lingering_at, Some(now + LINGERING_AGAIN));
        }
        engine.shard.to_tell_lingering.truncate(LINGERING_A_TURN);
        engine.shard.tell_lingering(now);
        assert_eq!(engine.shard.lingering_at, None);
    }

    /// A server that hands its connections to other processes closes each at once. As a rule the
    /// receiver has not yet taken it out of the message.
    #[test]
    fn sockets_in_messages_count_until_they_arrive_or_end() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.host.now;
        let (id, _control) = engine.open_channel();
        let _descriptors = engine.link(id);
        let open = |engine: &mut Engine| {
            let slot = engine.shard.host.slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
            engine.shard.host.slots.shared(slot).in_flight.store(1, Relaxed);
            engine.shard.hold(id, slot);
            slot
        };
        let arrives = open(&mut engine);
        for _ in 0..2 * PARKED_MAX {
            engine.shard.let_go(now, id, arrives);
            assert!(!engine.shard.host.slots.get(arrives).expect("it is kept").closing);
            engine.shard.adopt(id, arrives);
        }
        assert_eq!(engine.shard.to_close_parked.len(), 0);
        for _ in 0..PARKED_MAX {
            let ends = open(&mut engine);
            engine.shard.let_go(now, id, ends);
            engine.shard.host.to_bury.push(ends);
            engine.shard.bury();
        }
        engine.shard.let_go(now, id, arrives);
        assert_eq!(engine.shard.to_close_parked.len(), 1);
        engine.shard.close_parked(now + ADOPT_WITHIN);
        assert!(
            engine.shard.to_close_parked.is_empty()
                && engine.shard.host.slots.get(arrives).expect("not yet").closing
        );
    }

    /// A process that shares a listener may close it and receive it again as often as it likes.
    #[test]
    fn a_connection_that_nobody_claims_is_noted_once() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.host.now;
        let channels = [(); 2].map(|()| engine.open_channel());
        let [stays, goes] = [channels[0].0, channels[1].0];
        let [listener, slot] = with_queue(&mut engine);
        engine.shard.hold(stays, listener);
        for _ in 0..100 {
            engine.shard.hold(goes, listener);
            engine.shard.let_go(now, goes, listener);
        }
        assert_eq!(engine.shard.to_reset_unclaimed.len(), 1);
        engine.shard.let_go(now, stays, listener);
        assert_eq!(engine.shard.to_reset_unclaimed.len(), 1);
        engine.shard.reset_unclaimed(now + CLAIM_WITHIN);
        assert!(engine.shard.to_reset_unclaimed.is_empty());
        assert!(engine.shard.host.slots.get(slot).expect("not buried").closing);
        assert_eq!(engine.shard.host.counters.unclaimed, 1);
    }

    /// Its connections are in nobody's queue then.
    #[test]
    fn a_listener_that_is_reset_in_a_message_takes_its_queue_along() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.host.now;
        let (id, _control) = engine.open_channel();
        let _bell = engine.link(id);
        let [listener, slot] = with_queue(&mut engine);
        engine.shard.hold(id, listener);
        engine.shard.host.slots.shared(listener).in_flight.store(1, Relaxed);
        engine.shard.let_go(now, id, listener);
        assert_eq!(engine.shard.to_close_parked.len(), 1);
        // As when the stack says that it is closed.
        engine.shard.host.to_bury.push(listener);
        engine.shard.bury();
        engine.shard.reset_unclaimed(now + CLAIM_WITHIN);
        assert!(engine.shard.host.slots.get(slot).expect("not buried").closing);
    }

    /// A listener and a connection in its queue.
    fn with_queue(engine: &mut Engine) -> [u32; 2] {
        let slots = &mut engine.shard.host.slots;
        let listener = slots.allocate(Kind::Listener, AF_INET, 6).expect("room");
        let slot = slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        let of = |slots: &Slots, slot| slots.get(slot).expect("it is there").generation;
        let (parent, generation) = (of(slots, listener), of(slots, slot));
        slots.get_mut(slot).expect("it is there").holders = Holders::Unclaimed(listener, parent);
        let owned = slots.get_mut(listener).expect("it is there").owned();
        owned.rx = Some(EngineRecv::new(&engine.shard.host.windows, listener, 4096, 4096));
        owned.children.push_back(Child { slot, generation, end: 0, orphaned: false });
        [listener, slot]
    }

    /// A program that takes a connection off the queue after its listener was closed.
    #[test]
    fn what_is_ending_is_not_claimed_any_more() {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let now = engine.shard.host.now;
        let (id, _control) = engine.open_channel();
        let _descriptors = engine.link(id);
        let slots = &mut engine.shard.host.slots;
        let listener = slots.allocate(Kind::Listener, AF_INET, 6).expect("room");
        let slot = slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        let [parent, generation] =
            [listener, slot].map(|slot| slots.get(slot).expect("it is there").generation);
        slots.get_mut(slot).expect("it is there").holders = Holders::Unclaimed(listener, parent);
        engine.shard.hold(id, listener);
        engine.shard.end_unclaimed(now, slot, generation);
        engine.shard.adopt(id, slot);
        engine.shard.bury();
        assert!(engine.shard.host.slots.get(slot).is_none());
        assert!(!engine.shard.is_held(id, slot), "the next socket in the slot would be");
    }
}
