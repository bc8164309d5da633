//! Counts unsent and unacknowledged data of ended programs, and decides how long the engine waits
//! for it.

use std::time::Duration;

use towpath_stack::net::limits::RESOLUTION_TIME;
use towpath_stack::{SocketId, SocketInfo, SocketState};
use towpath_tcp::{Instant, State};

use crate::mail::{Leavers, ShardReport};
use crate::shard::net::Net;
use crate::shard::processes::Processes;
use crate::shard::sockets::Sockets;

/// Minimum time between two counts of unsent data, per socket. Counting a socket takes about 100
/// ns, so counting uses at most a twentieth of the time.
const COUNT_AGAIN: Duration = Duration::from_micros(2);

/// Progress of sending the remaining data of ended programs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    /// Smallest value that [`Processes::unsent`] has returned since the wait began.
    unsent: u64,
    /// Time at which `unsent` last fell to a new minimum.
    moved: Instant,
    /// Earliest time of the next count of unsent data, see [`COUNT_AGAIN`].
    count_at: Instant,
    /// Whether [`Processes::leave`] was called before `count_at`. If so, the shard must wake up at
    /// `count_at`.
    is_due: bool,
}

impl Leaving {
    /// Returns the time at which the wait ends unless `unsent` decreases before. For streams, this
    /// is `stalled` after the last progress. If only packets wait for devices and neighbors, it is
    /// [`RESOLUTION_TIME`], enough to resolve the address for a last datagram. Their number may not
    /// decrease, because it includes replies to unrelated hosts.
    fn until(&self, stalled: Duration) -> Instant {
        self.moved + if self.unsent == 0 { RESOLUTION_TIME } else { stalled }
    }

    /// Returns the time at which [`Processes::leave`] must be called next.
    pub fn next(&self, stalled: Duration) -> Instant {
        let until = self.until(stalled).max(self.count_at);
        if self.is_due { until.min(self.count_at) } else { until }
    }
}

impl Processes {
    /// Starts to wait until the data of the processes in `whose` is sent. [`Self::leave`] reports
    /// the end of the wait to the registry.
    pub(crate) fn begin_to_leave(&mut self, sockets: &Sockets, number: u64, whose: Leavers) {
        (self.departure.number, self.departure.progress) = (Some(number), None);
        self.departure.left_behind = match whose {
            Leavers::All => None,
            // Wait only for sockets that are closing now, and not for sockets that other processes
            // close later.
            Leavers::Gone => {
                let closing = sockets.slots.iter().filter(|(_, entry)| entry.closing);
                Some(closing.filter_map(|(_, entry)| entry.id).collect())
            }
        };
    }

    /// Reports to the registry when all data is sent, or when sending makes no progress. The wait
    /// has no limit while there is progress: the kernel, too, sends data after a process has ended.
    /// If all devices were removed, no peer is reachable, so the wait ends.
    pub(crate) fn leave(&mut self, sockets: &mut Sockets, net: &Net) {
        let now = sockets.now;
        let Some(number) = self.departure.number else { return };
        if let Some(leaving) =
            self.departure.progress.as_mut().filter(|leaving| now < leaving.count_at)
        {
            leaving.is_due = true;
            return;
        }
        let unsent = self.unsent(sockets, net);
        sockets.counters.work(sockets.slots.len());
        let count_at = now + COUNT_AGAIN * sockets.slots.len() as u32;
        let first = Leaving { unsent, moved: now, count_at, is_due: false };
        let leaving = self.departure.progress.get_or_insert(first);
        (leaving.count_at, leaving.is_due) = (count_at, false);
        if unsent < leaving.unsent {
            (leaving.unsent, leaving.moved) = (unsent, now);
        }
        let delivered =
            unsent == 0 && net.stack.net.waiting() == 0 && sockets.outgoing.to_send.is_empty();
        let is_cut_off = !net.ports.list.is_empty() && net.ports.iter().all(|port| port.is_gone());
        if delivered || is_cut_off || now >= leaving.until(self.departure.stalled) {
            self.departure.number = None;
            self.notices.push(ShardReport::Left(number));
        }
    }

    /// Returns the amount of data that would be lost if the engine ended now. Counts unsent resets,
    /// unacknowledged bytes and FINs of streams, and bytes queued in ports. If the wait is for some
    /// sockets only, counts these sockets, and bytes of ended streams queued in ports.
    pub(crate) fn unsent(&self, sockets: &Sockets, net: &Net) -> u64 {
        let now = sockets.now;
        let of_socket = |info: SocketInfo| match info.state {
            SocketState::Tcp(State::FinWait2 | State::TimeWait) => 0,
            SocketState::Tcp(state) if state.is_synchronized() => u64::from(info.send_queue) + 1,
            // The connection was reset, but the RST, and bytes queued before it, are not sent yet.
            SocketState::Tcp(State::Closed) if info.closing && info.tcp.is_some() => 1,
            _ => 0,
        };
        let of_id = |id: SocketId| net.stack.info(now, id).map_or(0, of_socket);
        let Some(some) = &self.departure.left_behind else {
            let ids = sockets.slots.iter().filter_map(|(_, entry)| entry.id);
            return ids.map(of_id).chain(net.ports.iter().map(|port| port.undelivered())).sum();
        };
        let ports = net.ports.iter().map(|port| port.undelivered_of_ended());
        some.iter().copied().map(of_id).chain(ports).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::mail::ShardCommand;
    use crate::shard::Shard;
    use crate::shard::sockets::slots::AF_INET;
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
            shard.sockets.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        }
        shard.obey(ShardCommand::Leave(1, Leavers::All));
        // Simulate data that is left to be sent.
        shard.sockets.outgoing.to_send.push_back(0);
        let count = |shard: &mut Shard, passed: Duration| {
            shard.net.clock.pass(passed);
            let now = shard.read_clocks();
            let before = shard.sockets.counters.work;
            (0..100).for_each(|_| shard.leave(now));
            shard.sockets.counters.work - before
        };
        assert_eq!(count(shard, Duration::ZERO), SOCKETS);
        assert_eq!(count(shard, Duration::from_micros(100)), 0);
        let again = COUNT_AGAIN * SOCKETS as u32;
        // The shard must sleep until the next count. If no data is left then, it is the last count.
        shard.sockets.outgoing.to_send.clear();
        let due =
            shard.processes.departure.progress.map(|leaving| (leaving.is_due, leaving.count_at));
        assert_eq!(due, Some((true, shard.sockets.now + (again - Duration::from_micros(100)))));
        assert!(shard.time_left(shard.sockets.now).is_some_and(|left| left <= again));
        shard.leave(shard.sockets.now + again);
        assert!(shard.processes.departure.progress.is_some_and(|leaving| !leaving.is_due));
        shard.obey(ShardCommand::Stay);
        assert_eq!(shard.time_left(shard.sockets.now), None);
    }
}
