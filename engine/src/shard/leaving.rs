//! Data that programs leave behind: how much of it no peer has taken yet, and how long a run waits
//! for that.

use std::time::Duration;

use towpath_stack::net::limits::RESOLUTION_TIME;
use towpath_stack::{Budget, SocketId, SocketInfo, SocketState};
use towpath_tcp::{Instant, State};

use crate::mail::{Leavers, Notice};
use crate::shard::Shard;

/// Time between two counts of the last program's data, times the number of its sockets. A look at
/// one takes some 100 ns, so that counting takes a twentieth of the time, however many they are.
const COUNT_AGAIN: Duration = Duration::from_micros(2);

/// Turns of the stack for the last segments of all connections. A visit sends four packets of
/// 65,000 bytes, so that the largest window, 16 MiB, takes 65 of them.
const LAST_TURNS: usize = 80;

/// How far the sending is of what the last program left behind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    /// The least that [`Shard::unsent`] has been since the last program went.
    unsent: u64,
    /// When it fell to that.
    moved: Instant,
    /// When it may be counted again.
    count_at: Instant,
    /// A turn came before `count_at`: the shard does not sleep beyond that time.
    is_due: bool,
}

impl Leaving {
    /// When it is over if no less is unsent by then; `stalled` is for streams. Behind them only
    /// packets wait for devices and neighbours, among them a program's last datagram, which knows
    /// by then whether its neighbour is there. The engine cannot tell which of these packets are
    /// answers to strangers, and there are some as long as strangers ask. So it does not ask
    /// whether these packets become fewer.
    fn until(&self, stalled: Duration) -> Instant {
        self.moved + if self.unsent == 0 { RESOLUTION_TIME } else { stalled }
    }

    /// When a turn is due for it.
    pub fn next(&self, stalled: Duration) -> Instant {
        let until = self.until(stalled).max(self.count_at);
        if self.is_due { until.min(self.count_at) } else { until }
    }
}

impl Shard {
    /// From now on [`Self::leave`] looks what is left of these.
    pub(crate) fn begin_to_leave(&mut self, number: u64, whose: Leavers) {
        (self.unused, self.leaving) = (Some(number), None);
        self.left_behind = match whose {
            Leavers::All => None,
            // Sockets that others close from now on are not waited for.
            Leavers::Gone => {
                let closing = self.host.slots.iter().filter(|(_, entry)| entry.closing);
                Some(closing.filter_map(|(_, entry)| entry.id).collect())
            }
        };
    }

    /// Tells the registry when the last program has gone and nothing of it is left to be sent, or
    /// when no peer takes it. While some of it moves it may take as long as it does: the kernel too
    /// sends for processes that ended. Behind devices that have all gone there are no peers.
    pub(crate) fn leave(&mut self, now: Instant) {
        let Some(number) = self.unused else { return };
        if let Some(leaving) = self.leaving.as_mut().filter(|leaving| now < leaving.count_at) {
            leaving.is_due = true;
            return;
        }
        let unsent = self.unsent(now);
        self.host.counters.work(self.host.slots.len());
        let count_at = now + COUNT_AGAIN * self.host.slots.len() as u32;
        let first = Leaving { unsent, moved: now, count_at, is_due: false };
        let leaving = self.leaving.get_or_insert(first);
        (leaving.count_at, leaving.is_due) = (count_at, false);
        if unsent < leaving.unsent {
            (leaving.unsent, leaving.moved) = (unsent, now);
        }
        let delivered = unsent == 0 && self.stack.net.waiting() == 0 && self.to_send.is_empty();
        let is_cut_off = !self.ports.is_empty() && self.ports.iter().all(|port| port.is_gone());
        if delivered || is_cut_off || now >= leaving.until(self.leave_stalled) {
            self.unused = None;
            self.notices.push(Notice::Left(number));
        }
    }

    /// Units that would be lost now. Each of these counts: resets that have not left, bytes that
    /// ports hold, and unacknowledged bytes and ends of streams. A shard that waits for some
    /// sockets alone counts these, and bytes that ports hold of streams that have ended.
    pub(crate) fn unsent(&self, now: Instant) -> u64 {
        let of_socket = |info: SocketInfo| match info.state {
            SocketState::Tcp(State::FinWait2 | State::TimeWait) => 0,
            SocketState::Tcp(state) if state.is_synchronized() => u64::from(info.send_queue) + 1,
            // Its reset, and bytes before that, wait for their turn.
            SocketState::Tcp(State::Closed) if info.closing && info.tcp.is_some() => 1,
            _ => 0,
        };
        let of_id = |id: SocketId| self.stack.info(now, id).map_or(0, of_socket);
        let Some(some) = &self.left_behind else {
            let ids = self.host.slots.iter().filter_map(|(_, entry)| entry.id);
            return ids.map(of_id).chain(self.ports.iter().map(|port| port.undelivered())).sum();
        };
        let ports = self.ports.iter().map(|port| port.undelivered_of_ended());
        some.iter().copied().map(of_id).chain(ports).sum()
    }

    /// Resets what is not delivered by now, as it never will be: otherwise peers would take the
    /// part that they have for the whole. A connection that has bytes and room for them takes
    /// several turns to come to its reset.
    pub(crate) fn hang_up(&mut self) {
        let now = self.read_clocks();
        self.stack.reset_connections();
        for _ in 0..LAST_TURNS {
            let budget = Budget { rx_packets: 0, tx_packets: usize::MAX };
            let turn =
                self.stack.turn(now, &mut self.host, &mut self.ports, &mut self.pool, budget);
            if !turn.more {
                break;
            }
        }
    }

    /// Hears no program any more.
    pub(crate) fn forget_all(&mut self) {
        let ids: Vec<_> = self.host.channels.ids().collect();
        ids.iter().for_each(|id| self.forget(*id));
        // Threads that sleep on one socket look whether this thread lives, and it may.
        ids.into_iter().for_each(|id| self.status.wake(id.number()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::mail::Order;
    use crate::shard::slots::AF_INET;
    use crate::{Engine, EngineConfig};
    use towpath_shm::layout::Kind;

    #[test]
    fn what_is_left_of_many_sockets_is_counted_now_and_then() {
        const SOCKETS: u64 = 1000;
        let clock = Clock::ByHand(Instant(1_000_000_000));
        let engine = Engine::with_clock(EngineConfig::default(), vec![Vec::new()], [7; 32], clock);
        let mut engine = engine.expect("memory");
        let shard = &mut engine.shard;
        for _ in 0..SOCKETS {
            shard.host.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        }
        shard.obey(Order::Leave(1, Leavers::All));
        // Something has not been sent yet.
        shard.to_send.push_back(0);
        let count = |shard: &mut Shard, passed: Duration| {
            shard.clock.pass(passed);
            let now = shard.read_clocks();
            let before = shard.host.counters.work;
            (0..100).for_each(|_| shard.leave(now));
            shard.host.counters.work - before
        };
        assert_eq!(count(shard, Duration::ZERO), SOCKETS);
        assert_eq!(count(shard, Duration::from_micros(100)), 0);
        let again = COUNT_AGAIN * SOCKETS as u32;
        // The sleep before the next count is not longer, and there is none without a reason.
        shard.to_send.clear();
        let due = shard.leaving.map(|leaving| (leaving.is_due, leaving.count_at));
        assert_eq!(due, Some((true, shard.host.now + (again - Duration::from_micros(100)))));
        assert!(shard.time_left(shard.host.now).is_some_and(|left| left <= again));
        shard.leave(shard.host.now + again);
        assert!(shard.leaving.is_some_and(|leaving| !leaving.is_due));
        shard.obey(Order::Stay);
        assert_eq!(shard.time_left(shard.host.now), None);
    }
}
