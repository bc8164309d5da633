//! Sleep of a thread until the next request is due, or a socket is ready.
//!
//! epoll's timeout has a resolution of milliseconds, longer than most answers take. A timerfd in
//! the same epoll set has a resolution of ns. On an idle machine the thread still wakes some 50 µs
//! after the timer, because the processor must leave its sleep state. [`TimerAlarm`] is therefore
//! set [`SPIN_NS`] early, and the thread polls without sleeping until the deadline.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Time in ns before a deadline in which a thread polls instead of sleeping. The value is about the
/// delay of a wake-up. A longer time takes CPU time from a server on the same machine. A shorter
/// time makes requests late.
pub const SPIN_NS: u64 = 50_000;

/// Clock of a run. Times are in ns since the start of the run, which fit into u64 for 584 years.
#[derive(Clone, Copy)]
pub struct RunClock(Instant);

impl RunClock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// Kernel timer (timerfd). When the timer expires, mio reports an event with the timer's token.
pub struct TimerAlarm {
    timer: OwnedFd,
    /// Time at which the timer expires, or has expired.
    at: u64,
}

impl TimerAlarm {
    pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { timer, at: 0 })
    }

    /// Ensures that the timer expires at the time `at` or earlier. Keeps an earlier time that is
    /// already set, which avoids a system call per sleep. The thread then wakes too early, and sets
    /// the timer again.
    pub fn set(&mut self, now: u64, at: u64) -> io::Result<()> {
        if self.at > now && self.at <= at {
            return Ok(());
        }
        // Use at least 1 ns, because zero would disarm the timer.
        let time = Duration::from_nanos(at.saturating_sub(now).max(1));
        let time = Timespec::try_from(time).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value: time };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.at = at;
        Ok(())
    }
}
