//! The engine's main loop.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use towpath_ring::Life;

use crate::engine::Engine;
use crate::report::Report;
use crate::shard::Shard;
use crate::team::{self, Team, Threads};

/// The next step after a [turn](Engine::turn).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Run another turn, because more work is left.
    Turn,
    /// [Sleep](Engine::sleep) until something happens, and at most for this time since the turn.
    /// `None`: without a time limit.
    Sleep(Option<Duration>),
    /// Call [`Engine::finish`], because the engine was stopped or its last program has ended.
    End,
}

impl Engine {
    /// Runs until [`crate::Remote::stop`] is called. If
    /// [`exit_when_unused`](crate::EngineConfig::exit_when_unused) is set, also ends after the last
    /// program. The calling thread sleeps while there is no work. Another thread handles processes
    /// meanwhile, for example fork and exec, so that packets are not delayed.
    ///
    /// At the end, resets every connection whose peer has not received all bytes and the FIN.
    /// Programs that still run get ENETDOWN.
    pub fn run(mut self) -> Report {
        let _life = self.live();
        if let Some(desks) = self.control.begin_thread(&mut self.shard, 1 + self.others.len()) {
            for (other, desk) in self.others.iter_mut().zip(&desks[1..]) {
                other.watch_mail(desk.notifier()).expect("the shard's own epoll works");
            }
            let threads = Threads { desks, need: self.threads_by_need };
            self.helpers = threads.work(&mut self.team());
            return self.finish();
        }
        loop {
            match self.turn() {
                Next::Turn => {}
                Next::Sleep(timeout) => self.team().rest(timeout),
                Next::End => return self.finish(),
            }
        }
    }

    /// Returns the shards that run on this thread.
    fn team(&mut self) -> Team<'_> {
        Team { first: &mut self.shard, others: &mut self.others, busy: &mut self.busy }
    }

    /// Ends the threads, and takes the registry and all shards back.
    pub(crate) fn end_threads(&mut self) {
        self.control.end_thread(&mut self.shard, &mut self.others);
        self.others.extend(self.helpers.drain(..).flat_map(team::join));
        // Threads may end in any order, but other code expects the shards in order of their
        // numbers.
        self.others.sort_by_key(|shard| shard.sockets.place.number);
    }

    /// Registers this thread as the engine's. Until the result is dropped, programs take the end of
    /// this thread, for any reason, as the end of the engine.
    pub fn live(&self) -> Life {
        self.shard.net.status.live()
    }

    /// Does the work that is due, or a part of it. For threads that also poll their own
    /// descriptors; see [`Self::begin_sleep`].
    pub fn turn(&mut self) -> Next {
        let timeout = self.team().turn();
        let told = self.exchange();
        self.team().end_of_turn();
        if self.shard.sleep.stopped {
            Next::End
        } else if told || timeout == Some(Duration::ZERO) {
            Next::Turn
        } else {
            Next::Sleep(self.control.time_left(&self.shard, timeout))
        }
    }

    /// Sleeps until something happens. Commands of programs cannot be missed: see
    /// [`towpath_ring::EngineStatus::fall_asleep`].
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        if self.begin_sleep() {
            self.team().sleep(timeout);
        }
    }

    /// Polls for work for a moment before a sleep with this timeout, if that was worthwhile before.
    /// Yields the processor to other threads meanwhile; see [`crate::EngineConfig::busy_poll`].
    /// Returns true if there is work, so the caller must not sleep. Otherwise up to twice that time
    /// has passed, or more if other threads ran.
    pub fn busy_poll(&mut self, timeout: Option<Duration>) -> bool {
        self.team().busy_poll(timeout)
    }

    /// Prepares a sleep of the caller's own, after a turn that returned [`Next::Sleep`]. The caller
    /// may then sleep until the engine's descriptor ([`AsFd`]) is readable, at most for the
    /// returned time. Afterwards it has to call [`Self::end_sleep`]. Returns false if there is
    /// work; then do neither.
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
        self.team().begin_sleep()
    }

    /// Ends a sleep begun by [`Self::begin_sleep`].
    pub fn end_sleep(&mut self) {
        self.team().sleep(Some(Duration::ZERO));
    }

    /// Resets connections whose peers have not received all data, and ends the engine.
    pub fn finish(mut self) -> Report {
        let shards = std::iter::once(&self.shard).chain(&self.others);
        let unsent = shards.map(|shard| shard.processes.unsent(&shard.sockets, &shard.net)).sum();
        self.shard.hang_up();
        self.others.iter_mut().for_each(Shard::hang_up);
        self.end_threads();
        Report { counters: self.counters(), unsent }
    }
}

/// The descriptor is readable when there is work, while the engine [sleeps](Engine::begin_sleep).
impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shard.as_fd()
    }
}
