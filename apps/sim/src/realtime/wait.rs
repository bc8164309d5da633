//! Waits for devices and for a time, by epoll and a timer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Token of the timer. Devices have their indices.
const TIMER: u64 = u64::MAX;

/// Waits for descriptors of devices, and for a time of the monotonic clock.
///
/// The timer is a descriptor, because the timeout of epoll_wait(2) is rounded up to milliseconds.
pub struct DeviceWaiter {
    epoll: OwnedFd,
    timer: OwnedFd,
    events: Vec<epoll::Event>,
    /// Devices that the last [`DeviceWaiter::wait`] has reported.
    ready: Vec<bool>,
}

impl DeviceWaiter {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, timer.as_fd(), EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Self { epoll, timer, events: Vec::with_capacity(16), ready: Vec::new() })
    }

    /// Watches the descriptor of device `at`.
    pub fn add(&mut self, fd: BorrowedFd<'_>, at: usize) -> io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(at as u64), EventFlags::IN)?;
        self.ready.resize(self.ready.len().max(at + 1), false);
        Ok(())
    }

    /// Chooses whether device `at` is also reported when its descriptor is writable.
    pub fn change(&mut self, fd: BorrowedFd<'_>, at: usize, is_blocked: bool) -> io::Result<()> {
        let writable = if is_blocked { EventFlags::OUT } else { EventFlags::empty() };
        let wanted = EventFlags::IN | writable;
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(at as u64), wanted)?)
    }

    /// Sleeps until a device is ready, or until this monotonic time in ns. `None` does not sleep.
    pub fn wait(&mut self, until_ns: Option<u64>) -> io::Result<()> {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Some(ns) = until_ns {
            let it_value = Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            };
            // Setting the time also clears an earlier expiration.
            let setting = Itimerspec { it_interval: NOW, it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting)?;
        }
        self.ready.fill(false);
        self.events.clear();
        let timeout = if until_ns.is_some() { None } else { Some(&NOW) };
        let space = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, space, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            if let Some(ready) = self.ready.get_mut(event.data.u64() as usize) {
                *ready = true;
            }
        }
        Ok(())
    }

    /// Returns whether device `at` was ready at the last [`DeviceWaiter::wait`].
    pub fn is_ready(&self, at: usize) -> bool {
        self.ready.get(at).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic_ns;

    #[test]
    fn a_device_or_the_time_ends_the_wait() {
        let mut waiter = DeviceWaiter::new().expect("descriptors");
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        waiter.add(read.as_fd(), 0).expect("a pipe can be watched");
        let until = monotonic_ns() + 1_000_000;
        waiter.wait(Some(until)).expect("epoll");
        assert!(monotonic_ns() >= until && !waiter.is_ready(0));
        rustix::io::write(&write, b"x").expect("room");
        // The test would hang if the descriptor were not watched.
        waiter.wait(Some(u64::MAX / 4)).expect("epoll");
        assert!(waiter.is_ready(0));
        waiter.wait(None).expect("epoll");
        assert!(waiter.is_ready(0), "the pipe is still readable");
    }
}
