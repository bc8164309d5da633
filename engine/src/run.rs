//! The main event loop of the engine.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use towpath_ring::Life;

use crate::engine::Engine;
use crate::report::Report;
use crate::shard::Shard;
use crate::team::{self, Team, Threads};

/// Next step of the caller after an iteration ([turn](Engine::turn)) of the event loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Run another iteration now, because more work is left.
    Turn,
    /// [Sleep](Engine::sleep) until there is work, at most until this time after the iteration.
    /// `None` means no limit.
    Sleep(Option<Duration>),
    /// Call [`Engine::finish`], because the engine was stopped or its last program has ended.
    End,
}

impl Engine {
    /// Runs until [`crate::Remote::stop`] is called. If
    /// [`exit_when_unused`](crate::EngineConfig::exit_when_unused) is set, also ends when the last
    /// program has ended. The calling thread sleeps while there is no work. A second thread handles
    /// processes, for example fork and exec, so that they do not delay packets.
    ///
    /// At the end, resets every connection whose peer has not received all bytes and the FIN.
    /// Socket calls of programs that still run return ENETDOWN.
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

    /// Returns the shards that the calling thread runs.
    fn team(&mut self) -> Team<'_> {
        Team { first: &mut self.shard, others: &mut self.others, busy: &mut self.busy }
    }

    /// Ends all other threads of the engine, and takes back their shards and the registry (process
    /// manager).
    pub(crate) fn end_threads(&mut self) {
        self.control.end_thread(&mut self.shard, &mut self.others);
        self.others.extend(self.helpers.drain(..).flat_map(team::join));
        // Sort the shards by number, because threads may end in any order.
        self.others.sort_by_key(|shard| shard.sockets.place.number);
    }

    /// Registers this thread as the engine's. Until the result is dropped, programs regard the end
    /// of this thread, for any reason, as the end of the engine.
    pub fn live(&self) -> Life {
        self.shard.net.status.live()
    }

    /// Runs one iteration (turn) of the event loop, which executes the work that is due or a part
    /// of it. For threads that poll other descriptors as well; see [`Self::begin_sleep`].
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

    /// Sleeps until there is work, or for at most `timeout`. No command of a program is missed: see
    /// [`towpath_ring::EngineStatus::fall_asleep`].
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        if self.begin_sleep() {
            self.team().sleep(timeout);
        }
    }

    /// Polls for work for a short time before a sleep with this timeout, if polling has usually
    /// found work. Yields the CPU to other threads in between; see
    /// [`crate::EngineConfig::busy_poll`]. Returns true if there is work, so that the caller must
    /// not sleep. Otherwise up to twice the configured time has passed, or more if other threads
    /// ran.
    pub fn busy_poll(&mut self, timeout: Option<Duration>) -> bool {
        self.team().busy_poll(timeout)
    }

    /// Prepares a sleep of the calling thread in its own poll(2) call, after [`Self::turn`] has
    /// returned [`Next::Sleep`]. The caller may then sleep until the engine's descriptor ([`AsFd`])
    /// is readable, at most for the returned time. Then it must call [`Self::end_sleep`]. Returns
    /// false if there is work; the caller must neither sleep nor call [`Self::end_sleep`].
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

    /// Ends a sleep that [`Self::begin_sleep`] has prepared.
    pub fn end_sleep(&mut self) {
        self.team().sleep(Some(Duration::ZERO));
    }

    /// Resets connections whose peers have not received all data, then ends the engine.
    pub fn finish(mut self) -> Report {
        let shards = std::iter::once(&self.shard).chain(&self.others);
        let unsent = shards.map(|shard| shard.processes.unsent(&shard.sockets, &shard.net)).sum();
        self.shard.hang_up();
        self.others.iter_mut().for_each(Shard::hang_up);
        self.end_threads();
        Report { counters: self.counters(), unsent }
    }
}

/// Returns the engine's descriptor. While the engine [sleeps](Engine::begin_sleep), it is readable
/// when there is work.
impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shard.as_fd()
    }
}
