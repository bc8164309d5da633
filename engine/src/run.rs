//! The loop.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread::Builder;
use std::time::Duration;
use std::{panic, thread};

use towpath_ring::Life;

use crate::control::Desk;
use crate::engine::Engine;
use crate::report::Report;
use crate::shard::Shard;

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
    /// there is nothing to do. What concerns processes, as fork and exec, is dealt with by another thread meanwhile,
    /// so that no packet waits for it.
    ///
    /// In the end every connection is reset whose peer does not have all bytes and the end of the stream, and programs
    /// that are left get ENETDOWN.
    pub fn run(mut self) -> Report {
        let _life = self.live();
        self.begin_threads();
        loop {
            match self.turn() {
                Next::Turn => {}
                Next::Sleep(timeout) => self.sleep(timeout),
                Next::End => return self.finish(),
            }
        }
    }

    /// The registry and all shards but the first get threads, if there are threads for all of them.
    fn begin_threads(&mut self) {
        let shards = 1 + self.others.len();
        let Some(desks) = self.control.begin_thread(&mut self.shard, shards) else { return };
        for (shard, desk) in self.others.drain(..).zip(&desks[1..]) {
            self.shard.watch_registry_no_more(shard.as_fd());
            let theirs = desk.clone();
            let work = move || run_shard(shard, &theirs);
            let thread = Builder::new().name("towpath-shard".into()).spawn(work);
            // There is memory for it as a rule: all of the engine's is taken already.
            let thread = thread.expect("a thread for each shard");
            self.threads.push((desk.clone(), thread));
        }
    }

    /// Ends them: the registry and all shards are here again.
    pub(crate) fn end_threads(&mut self) {
        self.threads.iter().for_each(|(desk, _)| desk.stop());
        for (_, thread) in self.threads.drain(..) {
            match thread.join() {
                Ok(shard) => self.others.push(shard),
                Err(panic) if !thread::panicking() => panic::resume_unwind(panic),
                Err(_) => {}
            }
        }
        self.control.end_thread(&mut self.shard);
    }

    /// Makes this thread the one whose end, however it comes, is the engine's for its programs, until the result is
    /// dropped.
    pub fn live(&self) -> Life {
        self.shard.status.live()
    }

    /// Does what there is to do now, some of it at least. For threads that wait for other things, too; see
    /// [`Self::begin_sleep`].
    pub fn turn(&mut self) -> Next {
        let timeout = self.shard.turn();
        let each = self.others.iter_mut().filter_map(Shard::turn);
        let timeout = each.chain(timeout).min();
        let told = self.exchange();
        self.shard.end_of_turn();
        self.others.iter_mut().for_each(Shard::end_of_turn);
        if self.shard.stopped {
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
            self.wake_from(timeout);
        }
    }

    /// The first shard's poller has the others'.
    fn wake_from(&mut self, timeout: Option<Duration>) {
        self.shard.sleep(timeout);
        self.others.iter_mut().for_each(|other| other.sleep(Some(Duration::ZERO)));
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
        let mut shards = std::iter::once(&mut self.shard).chain(&mut self.others);
        let Some(awake) = shards.position(|shard| !shard.begin_sleep()) else { return true };
        let shards = std::iter::once(&mut self.shard).chain(&mut self.others);
        shards.take(awake).for_each(|asleep| asleep.sleep(Some(Duration::ZERO)));
        false
    }

    /// After such a sleep.
    pub fn end_sleep(&mut self) {
        self.wake_from(Some(Duration::ZERO));
    }

    /// Resets the connections whose peers do not have everything, and hangs up.
    pub fn finish(mut self) -> Report {
        self.shard.hang_up();
        self.others.iter_mut().for_each(Shard::hang_up);
        self.end_threads();
        Report { counters: self.counters() }
    }
}

/// What the thread of a shard does until it is stopped.
fn run_shard(mut shard: Shard, desk: &Desk) -> Shard {
    let _life = shard.status.live();
    let _alarm = Alarm(desk);
    shard.watch_mail(desk.bell()).expect("the shard's own epoll works");
    loop {
        let timeout = shard.turn();
        let told = desk.exchange(&mut shard);
        shard.end_of_turn();
        if shard.stopped {
            break;
        }
        if !told && timeout != Some(Duration::ZERO) && shard.begin_sleep() {
            shard.sleep(timeout);
        }
    }
    shard.hang_up();
    desk.finish(&mut shard);
    shard.watch_registry_no_more(desk.bell());
    shard
}

/// Ends the other threads when a shard's ends first, which it does by a panic.
struct Alarm<'a>(&'a Desk);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abandon();
        }
    }
}

/// What is readable when there is something to do, while the engine [sleeps](Engine::begin_sleep).
impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shard.as_fd()
    }
}
