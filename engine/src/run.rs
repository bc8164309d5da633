//! The loop.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use towpath_ring::Life;

use crate::engine::Engine;
use crate::report::Report;
use crate::shard::Shard;
use crate::team::{self, Team, Threads};

/// Step that follows a [turn](Engine::turn).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another one: there is more to do.
    Turn,
    /// [Sleep](Engine::sleep) until something happens, and no longer than this from the turn on.
    /// None: nothing has a deadline.
    Sleep(Option<Duration>),
    /// [`Engine::finish`]: it was stopped, or the last program has gone and is not waited for.
    End,
}

impl Engine {
    /// Works until stopped through [`crate::Remote::stop`], or until the last program has gone if
    /// the configuration says so ([`exit_when_unused`](crate::EngineConfig::exit_when_unused)). On
    /// the calling thread, which sleeps while there is nothing to do. Another thread deals with
    /// processes meanwhile, as at fork and exec, so that no packet waits for it.
    ///
    /// In the end every connection is reset whose peer does not have all bytes and the end of the
    /// stream. Programs that are left get ENETDOWN.
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

    /// Its shards, of which others have threads of their own while it runs.
    fn team(&mut self) -> Team<'_> {
        Team { first: &mut self.shard, others: &mut self.others, busy: &mut self.busy }
    }

    /// Ends the threads: the registry and all shards are here again.
    pub(crate) fn end_threads(&mut self) {
        self.control.end_thread(&mut self.shard, &mut self.others);
        self.others.extend(self.helpers.drain(..).flat_map(team::join));
        // Helpers' threads end in any order, but the code that tells shards apart by their places
        // counts on this order.
        self.others.sort_by_key(|shard| shard.sockets.place.number);
    }

    /// Makes this thread the one whose end, however it comes, is the engine's for its programs,
    /// until the result is dropped.
    pub fn live(&self) -> Life {
        self.shard.net.status.live()
    }

    /// Does what there is to do now, some of it at least. For threads that wait for other things,
    /// too; see [`Self::begin_sleep`].
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

    /// Sleeps until something happens. No program's command is overlooked: see
    /// [`towpath_ring::EngineStatus::fall_asleep`].
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        if self.begin_sleep() {
            self.team().sleep(timeout);
        }
    }

    /// Instead of a sleep with this timeout: looks for work for a moment, if that has been worth
    /// it. Other threads may have the processor meanwhile; see [`crate::EngineConfig::busy_poll`].
    /// True: there is something, so do not sleep. After false, up to twice that time has passed, or
    /// more where others took the processor.
    pub fn busy_poll(&mut self, timeout: Option<Duration>) -> bool {
        self.team().busy_poll(timeout)
    }

    /// Before a sleep of the host's own, after a turn that ended with [`Next::Sleep`]. The sleep
    /// lasts until the engine's descriptor ([`AsFd`]) is readable, or for the time in
    /// [`Next::Sleep`], and [`Self::end_sleep`] follows. False: do not sleep, there is something to
    /// do, and no end of a sleep.
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

    /// After such a sleep.
    pub fn end_sleep(&mut self) {
        self.team().sleep(Some(Duration::ZERO));
    }

    /// Resets the connections whose peers do not have everything, and hangs up.
    pub fn finish(mut self) -> Report {
        let shards = std::iter::once(&self.shard).chain(&self.others);
        let unsent = shards.map(|shard| shard.processes.unsent(&shard.sockets, &shard.net)).sum();
        self.shard.hang_up();
        self.others.iter_mut().for_each(Shard::hang_up);
        self.end_threads();
        Report { counters: self.counters(), unsent }
    }
}

/// A descriptor that is readable when there is work, while the engine
/// [sleeps](Engine::begin_sleep).
impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shard.as_fd()
    }
}
