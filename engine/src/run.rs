//! The loop.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use towpath_ring::Life;
use towpath_stack::{Budget, SocketInfo, SocketState, Turn};
use towpath_tcp::{Instant, State};

use crate::engine::{Engine, Leaving};
use crate::poller::Source;
use crate::remote::Wish;
use crate::report::{Left, Report};

/// While it never sleeps, the engine looks at its descriptors this often: a system call per turn would
/// cost a busy engine a tenth of its time.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// Between two counts of what the last program left behind, times the number of its sockets: a look at one takes
/// some 100 ns, so that counting takes a twentieth of the time, however many they are.
const COUNT_AGAIN: Duration = Duration::from_micros(2);

/// What comes after a [turn](Engine::turn).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another one: there is more to do.
    Turn,
    /// [Sleep](Engine::sleep) until something happens, and no longer than this from the turn on. None: nothing has a
    /// deadline.
    Sleep(Option<Duration>),
    /// [`Engine::finish`]: it was stopped, or the last program has gone and is not waited for.
    End,
}

impl Engine {
    /// Works until stopped through [`crate::Remote::stop`], or until the last program has gone if the configuration
    /// says so ([`exit_when_unused`](crate::EngineConfig::exit_when_unused)). On the calling thread, which sleeps while
    /// there is nothing to do.
    ///
    /// In the end every connection is reset whose peer does not have all bytes and the end of the stream, and programs
    /// that are left get ENETDOWN.
    pub fn run(mut self) -> Report {
        let _life = self.live();
        loop {
            match self.turn() {
                Next::Turn => {}
                Next::Sleep(timeout) => self.sleep(timeout),
                Next::End => return self.finish(),
            }
        }
    }

    /// Makes this thread the one whose end, however it comes, is the engine's for its programs, until the result is
    /// dropped.
    pub fn live(&self) -> Life {
        self.shard.status.live()
    }

    /// Does what there is to do now, some of it at least. For threads that wait for other things, too; see
    /// [`Self::begin_sleep`].
    pub fn turn(&mut self) -> Next {
        let more = self.do_turn();
        let now = self.shard.host.now;
        let timeout = if more { Some(Duration::ZERO) } else { self.time_left(now) };
        let next = if self.stopped {
            Next::End
        } else if timeout == Some(Duration::ZERO) {
            if now.since(self.looked) >= LOOK_EVERY || self.rounds.is_due() {
                self.look();
            }
            Next::Turn
        } else if self.spin() {
            Next::Turn
        } else {
            Next::Sleep(timeout)
        };
        self.end_of_turn();
        next
    }

    /// Sleeps until something happens. No program's command is overlooked: see
    /// [`towpath_ring::EngineStatus::fall_asleep`].
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        if self.begin_sleep() {
            self.poll(timeout);
            self.wake();
        }
    }

    /// Before a sleep of the host's own, after a turn that ended with [`Next::Sleep`]: it lasts until the descriptor of the
    /// engine ([`AsFd`]) is readable, or as long as that said, and [`Self::end_sleep`] follows. False: do not sleep,
    /// there is something to do, and no end of a sleep.
    ///
    /// ```
    /// use std::os::fd::AsFd;
    /// use std::time::Duration;
    ///
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    /// use towpath_engine::{Engine, EngineConfig, EngineError, Next};
    ///
    /// # fn main() -> Result<(), EngineError> {
    /// let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32])?;
    /// # engine.remote().stop();
    /// let _life = engine.live();
    /// let report = loop {
    ///     match engine.turn() {
    ///         Next::Turn => {}
    ///         Next::Sleep(timeout) if engine.begin_sleep() => {
    ///             let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    ///             // And the host's own descriptors.
    ///             let mut descriptors = [PollFd::new(&engine, PollFlags::IN)];
    ///             poll(&mut descriptors, timeout.as_ref()).expect("what is polled is open");
    ///             engine.end_sleep();
    ///         }
    ///         Next::Sleep(_) => {}
    ///         Next::End => break engine.finish(),
    ///     }
    /// };
    /// # drop(report);
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin_sleep(&mut self) -> bool {
        let channels = &self.shard.host.channels;
        if !self.shard.status.fall_asleep(|| !channels.have_something()) {
            return false;
        }
        self.shard.host.counters.sleeps += 1;
        // epoll can only fail for want of a valid descriptor: nothing would ever wake us again.
        self.poller.watch_ports(&self.shard.ports).expect("the engine's own epoll works");
        true
    }

    /// After such a sleep.
    pub fn end_sleep(&mut self) {
        self.poll(Some(Duration::ZERO));
        self.wake();
    }

    /// Resets the connections whose peers do not have everything, and hangs up.
    pub fn finish(mut self) -> Report {
        self.hang_up();
        self.remote.close();
        Report { counters: self.counters() }
    }

    /// Awake again, and the descriptors were looked at.
    fn wake(&mut self) {
        self.shard.status.wake_up();
        // What is served now happens now, not when we fell asleep.
        self.looked = self.read_clocks();
        self.serve();
    }

    /// What programs have said, what the stack has to do, and what follows. True: there is more to do.
    pub(crate) fn do_turn(&mut self) -> bool {
        self.shard.host.counters.turns += 1;
        let now = self.read_clocks();
        let commands = self.drain_commands(now);
        let turn = self.turn_stack(now);
        self.answer_askers(now, false);
        self.go_on_with_lengthy(now);
        let asked =
            !self.shard.ends.is_empty() || !self.rounds.is_empty() || !self.lengthy.is_empty();
        let asked = asked || !self.shard.to_cut_off.is_empty();
        turn.more
            || commands
            || asked
            || self.shard.host.slots.has_news()
            || !self.shard.to_tell.is_empty()
    }

    /// Notes what the turn has cost, requests included.
    pub(crate) fn end_of_turn(&mut self) {
        let counters = &mut self.shard.host.counters;
        let work = counters.work - std::mem::replace(&mut self.worked, counters.work);
        counters.work_turn_max = counters.work_turn_max.max(work);
    }

    /// What is not delivered now never will be, and no peer shall take the part that it has for the whole.
    fn hang_up(&mut self) {
        let now = self.read_clocks();
        self.shard.stack.reset_connections();
        let budget = Budget { rx_packets: 0, tx_packets: usize::MAX };
        self.shard.stack.turn(
            now,
            &mut self.shard.host,
            &mut self.shard.ports,
            &mut self.shard.pool,
            budget,
        );
    }

    /// A turn of the stack, and what follows from it for sockets, programs and processes. A listing that another thread
    /// asks for has one of its own. What ends sockets after the shard's part is told of in the next turn, for which
    /// there is no sleep.
    pub(crate) fn turn_stack(&mut self, now: Instant) -> Turn {
        let turn = self.shard.turn_stack(now);
        self.go_on_ending(now);
        self.shard.follow_up(now);
        self.disinherit_unborn(now);
        self.restrict_strangers(now);
        self.cut_off_hostile(now);
        self.shard.await_threads();
        self.answer_waiting(now);
        self.leave(now);
        turn
    }

    fn read_clocks(&mut self) -> Instant {
        self.shard.host.now = self.shard.clock.now();
        self.shard.host.unix_ns = self.shard.clock.unix_ns();
        self.shard.host.windows.set_time(self.shard.host.unix_ns);
        self.shard.host.now
    }

    /// Looks at the descriptors without sleeping.
    pub(crate) fn look(&mut self) {
        self.looked = self.shard.host.now;
        self.poller.watch_ports(&self.shard.ports).expect("the engine's own epoll works");
        self.poll(Some(Duration::ZERO));
        self.serve();
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        self.rounds.gather();
        self.poller.wait(timeout, &mut self.woken).expect("the engine's own epoll works");
    }

    /// Detaches processes that are gone, and notes requests. In this order, so that the answers reflect those ends.
    fn serve(&mut self) {
        let now = self.shard.host.now;
        let woken = std::mem::take(&mut self.woken);
        for &source in &woken {
            match source {
                Source::Gone(id) => self.detach(now, id),
                Source::Remote => self.note_remote(),
                Source::Control(id) => self.note_request(id),
                // Rings and ports are looked at in every turn.
                Source::Doorbell | Source::Port => {}
            }
        }
        self.woken = woken;
        self.answer_askers(now, true);
    }

    pub(crate) fn grant_wishes(&mut self) {
        for wish in self.remote.take() {
            // The thread that asked may have gone meanwhile: then nobody receives the answer.
            match wish {
                Wish::Stop => self.stopped = true,
                Wish::Attach(answer) => drop(answer.send(self.attach())),
                Wish::Sockets(answer) => drop(answer.send(self.sockets())),
                Wish::Counters(answer) => drop(answer.send(self.counters())),
                Wish::Left(answer) => {
                    let processes = self.registry.len();
                    let unsent =
                        self.unsent(self.shard.host.now) + self.shard.stack.net.waiting() as u64;
                    let _ = answer.send(Left { processes, unsent });
                }
            }
        }
    }

    /// Time to the earliest deadline; None: nothing has a deadline.
    fn time_left(&self, now: Instant) -> Option<Duration> {
        let ports = self.shard.ports.iter().filter_map(|port| port.next_timeout_ns()).map(Instant);
        let own = [
            self.shard.stack.next_timeout(),
            self.shard.starved.next(),
            self.shard.lingering_at,
            self.waiting.next(),
            self.registry.to_disinherit.front().map(|(until, _)| *until),
            (!self.shard.host.to_sweep.is_empty()).then_some(self.shard.sweep_at),
            self.shard.to_reset_unclaimed.front().map(|orphan| orphan.0),
            self.shard.to_close_parked.first_key_value().map(|(&(until, _), _)| until),
            self.registry.to_restrict.front().map(|(until, _)| *until),
            self.shard.host.to_accept.first_key_value().map(|(&(until, _), _)| until),
            self.leaving.map(|leaving| leaving.until(self.leave_stalled).max(leaving.count_at)),
            self.leaving.filter(|leaving| leaving.is_due).map(|leaving| leaving.count_at),
            (!self.shard.to_send.is_empty()).then_some(now),
        ];
        own.into_iter().flatten().chain(ports).min().map(|at| at.since(now))
    }

    /// Stops when the last program has gone and nothing of it is left to be sent, or when nobody takes it.
    /// While some of it moves it may take as long as it does: the kernel too sends for processes that ended.
    fn leave(&mut self, now: Instant) {
        if !self.exit_when_unused
            || self.registry.len() > 0
            || self.shard.host.counters.attached == 0
        {
            return;
        }
        if let Some(leaving) = self.leaving.as_mut().filter(|leaving| now < leaving.count_at) {
            leaving.is_due = true;
            return;
        }
        let unsent = self.unsent(now);
        self.shard.host.counters.work(self.shard.host.slots.len());
        let count_at = now + COUNT_AGAIN * self.shard.host.slots.len() as u32;
        let first = Leaving { unsent, moved: now, count_at, is_due: false };
        let leaving = self.leaving.get_or_insert(first);
        (leaving.count_at, leaving.is_due) = (count_at, false);
        if unsent < leaving.unsent {
            (leaving.unsent, leaving.moved) = (unsent, now);
        }
        let delivered =
            unsent == 0 && self.shard.stack.net.waiting() == 0 && self.shard.to_send.is_empty();
        self.stopped |= delivered || now >= leaving.until(self.leave_stalled);
    }

    /// What would be lost now: bytes and ends of streams that no peer or port has acknowledged, and those
    /// that ports hold.
    pub(crate) fn unsent(&self, now: Instant) -> u64 {
        let ids = self.shard.host.slots.iter().filter_map(|(_, entry)| entry.id);
        let of_socket = |info: SocketInfo| match info.state {
            SocketState::Tcp(State::FinWait2 | State::TimeWait) => 0,
            SocketState::Tcp(state) if state.is_synchronized() => u64::from(info.send_queue) + 1,
            _ => 0,
        };
        let sockets = ids.filter_map(|id| self.shard.stack.info(now, id)).map(of_socket);
        let ports = self.shard.ports.iter().map(|port| port.undelivered());
        sockets.chain(ports).sum()
    }

    /// Looks at the rings for a moment before sleeping, if that has been worth it.
    fn spin(&mut self) -> bool {
        if !self.spin.is_worthwhile(self.to_spare) {
            return false;
        }
        let found = (0..SPINS).any(|_| {
            std::hint::spin_loop();
            self.shard.host.channels.have_something()
        });
        self.spin.learn(found);
        found
    }
}

/// What is readable when there is something to do, while the engine [sleeps](Engine::begin_sleep).
impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// Looks before a sleep: some 20 µs, about what a sleep and its wake-up cost.
const SPINS: u32 = 400;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineConfig;
    use crate::clock::Clock;
    use crate::shard::slots::AF_INET;
    use towpath_shm::layout::Kind;

    #[test]
    fn what_is_left_of_many_sockets_is_counted_now_and_then() {
        const SOCKETS: u64 = 1000;
        let config = EngineConfig { exit_when_unused: true, ..EngineConfig::default() };
        let clock = Clock::ByHand(Instant(1_000_000_000));
        let mut engine = Engine::with_clock(config, Vec::new(), [7; 32], clock).expect("memory");
        for _ in 0..SOCKETS {
            engine.shard.host.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        }
        engine.shard.host.counters.attached = 1;
        // Something has not been sent yet.
        engine.shard.to_send.push_back(0);
        let count = |engine: &mut Engine, passed: Duration| {
            engine.shard.clock.pass(passed);
            let now = engine.read_clocks();
            let before = engine.shard.host.counters.work;
            (0..100).for_each(|_| engine.leave(now));
            engine.shard.host.counters.work - before
        };
        assert_eq!(count(&mut engine, Duration::ZERO), SOCKETS);
        assert_eq!(count(&mut engine, Duration::from_micros(100)), 0);
        let again = COUNT_AGAIN * SOCKETS as u32;
        // The sleep before the next count is not longer, and there is none without a reason.
        engine.shard.to_send.clear();
        let due = engine.leaving.map(|leaving| (leaving.is_due, leaving.count_at));
        assert_eq!(due, Some((true, engine.shard.host.now + (again - Duration::from_micros(100)))));
        assert!(engine.time_left(engine.shard.host.now).is_some_and(|left| left <= again));
        engine.leave(engine.shard.host.now + again);
        assert!(engine.leaving.is_some_and(|leaving| !leaving.is_due));
    }
}
