//! A thread's sleep until the next request is due, or its sockets have news.
//!
//! epoll's own limit of time is in whole milliseconds, longer than most answers take. A timerfd of
//! the same epoll set has ns. The thread still wakes some 50 µs after the timer on an idle machine,
//! the processor's way out of its sleep. [`TimerAlarm`] is therefore set [`SPIN_NS`] early, and the
//! thread polls without sleeping for the rest.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Time before a deadline in which a thread polls instead of sleeping: about a wake-up's delay.
/// Longer costs the server processor time where both share it; shorter makes requests late.
pub const SPIN_NS: u64 = 50_000;

/// ns since the run began: 584 years of them.
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

/// A timer of the kernel that makes its token readable.
pub struct TimerAlarm {
    timer: OwnedFd,
    /// Time for which it is set; past once it has rung.
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

    /// Rings at `at` or before. An earlier time that is set already stays: the thread then wakes
    /// spuriously and sets the rest. A system call at every sleep would cost more.
    pub fn set(&mut self, now: u64, at: u64) -> io::Result<()> {
        if self.at > now && self.at <= at {
            return Ok(());
        }
        // Zero would disarm the timer.
        let time = Duration::from_nanos(at.saturating_sub(now).max(1));
        let time = Timespec::try_from(time).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value: time };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.at = at;
        Ok(())
    }
}
