//! The loop of a router: turns as long as packets come, and sleeps on the ports' descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::remote::{JobQueue, RouterRemote};
use crate::router::Router;

/// Turns a [`Router`] until it is told to end.
pub struct RouterRunner {
    router: Router,
    epoll: OwnedFd,
    desk: JobQueue,
    remote: RouterRemote,
    /// For each port, whether its descriptor is watched for writability.
    awaits_room: Vec<bool>,
    /// For each port, whether its device was removed.
    gone: Vec<bool>,
}

/// Reason for which the owner of a [`RouterRunner`] is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunnerWoken {
    /// Turns moved something.
    Turned,
    /// The owner's descriptor of this number is readable.
    By(usize),
    /// The device of this port was removed. Its interface is down from now on.
    PortGone(usize),
}

/// Why [`RouterRunner::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its owner said so.
    Stopped,
    /// The devices of all ports were removed.
    NoPorts,
}

/// Turns in a row after which the owner's descriptors are looked at.
const BUSY_TURNS_MAX: u32 = 64;
/// Name of the desk's bell among the descriptors; ports and wakes have small numbers.
const BELL: u64 = u64::MAX;
/// Descriptors that are told of at once; others follow in the next turn.
const TOLD_MAX: usize = 64;

impl RouterRunner {
    /// A loop that has done nothing yet.
    ///
    /// # Errors
    /// The host gives no descriptor.
    pub fn new(router: Router) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (port, name) in router.ports().iter().zip(0..) {
            // A port without a descriptor is polled by its timeouts.
            let Some(wake) = port.wake_fd() else { continue };
            epoll::add(&epoll, wake, EventData::new_u64(name), EventFlags::IN)?;
        }
        let (desk, remote) = JobQueue::open()?;
        epoll::add(&epoll, desk.notifier(), EventData::new_u64(BELL), EventFlags::IN)?;
        let awaits_room = vec![false; router.ports().len()];
        let gone = awaits_room.clone();
        Ok(Self { router, epoll, desk, remote, awaits_room, gone })
    }

    /// A handle for other threads.
    pub fn remote(&self) -> RouterRemote {
        self.remote.clone()
    }

    /// The router.
    pub fn router(&mut self) -> &mut Router {
        &mut self.router
    }

    /// Turns until `woken` says so, which is told the reason for each call, or until no port is
    /// left.
    ///
    /// # Errors
    /// The host refuses to wait, for want of memory.
    pub fn run(
        &mut self,
        wakes: &[BorrowedFd<'_>],
        mut woken: impl FnMut(RunnerWoken, &mut Router) -> ControlFlow<()>,
    ) -> io::Result<Ended> {
        let first_wake = self.router.ports().len() as u64;
        for (wake, name) in wakes.iter().zip(first_wake..) {
            epoll::add(&self.epoll, wake, EventData::new_u64(name), EventFlags::IN)?;
        }
        let mut busy_turns = 0;
        loop {
            let now_ns = now_ns();
            let turn = self.router.turn(now_ns);
            while let Some(n) = self.newly_gone() {
                self.take_down(now_ns, n);
                if woken(RunnerWoken::PortGone(n), &mut self.router).is_break() {
                    return Ok(Ended::Stopped);
                }
                if self.gone.iter().all(|gone| *gone) {
                    return Ok(Ended::NoPorts);
                }
            }
            let is_busy = turn.more || turn.received > 0;
            // A port that is never empty must not keep the owner's word from being heard.
            busy_turns = if is_busy { busy_turns + 1 } else { 0 };
            if is_busy && busy_turns < BUSY_TURNS_MAX {
                continue;
            }
            busy_turns = 0;
            if woken(RunnerWoken::Turned, &mut self.router).is_break() {
                return Ok(Ended::Stopped);
            }
            let due = self.router.next_timeout_ns();
            let wait_ns = if is_busy { Some(0) } else { due.map(|due| due.saturating_sub(now_ns)) };
            if self.wait(wait_ns, first_wake, &mut woken)?.is_break() {
                return Ok(Ended::Stopped);
            }
        }
    }

    /// A port whose device was removed since the last look.
    fn newly_gone(&self) -> Option<usize> {
        let mut ports = self.router.ports().iter().zip(&self.gone);
        ports.position(|(port, known)| !known && port.is_gone())
    }

    /// Stops waiting for a port whose descriptor would wake for ever, and takes its routes away.
    fn take_down(&mut self, now_ns: u64, port: usize) {
        self.gone[port] = true;
        if let Some(wake) = self.router.ports()[port].wake_fd() {
            // Fails for a descriptor that is not watched, which is what is wanted.
            let _ = epoll::delete(&self.epoll, wake);
        }
        self.router.take_down(now_ns, port);
    }

    /// Sleeps until something is to be done, `wait_ns` at most.
    fn wait(
        &mut self,
        wait_ns: Option<u64>,
        first_wake: u64,
        woken: &mut impl FnMut(RunnerWoken, &mut Router) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        self.await_room()?;
        let timeout = wait_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let mut list = [const { MaybeUninit::<Event>::uninit() }; TOLD_MAX];
        let told = match epoll::wait(&self.epoll, &mut list[..], timeout.as_ref()) {
            Ok((told, _)) => &*told,
            Err(Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        for (port, name) in self.router.ports_mut().iter_mut().zip(0u64..) {
            port.looked(told.iter().any(|event| event.data.u64() == name));
        }
        for event in told {
            if event.data.u64() == BELL {
                self.desk.work(&mut self.router);
            } else if let Some(n) = event.data.u64().checked_sub(first_wake)
                && woken(RunnerWoken::By(n as usize), &mut self.router).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Watches ports for room as long as they refuse packets.
    fn await_room(&mut self) -> io::Result<()> {
        let ports = self.router.ports().iter().zip(&mut self.awaits_room).zip(0..);
        for ((port, awaits), name) in ports {
            if self.gone[name as usize] {
                continue;
            }
            let blocked = port.blocked();
            if blocked == std::mem::replace(awaits, blocked) {
                continue;
            }
            let Some(wake) = port.wake_fd() else { continue };
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, blocked);
            epoll::modify(&self.epoll, wake, EventData::new_u64(name), flags)?;
        }
        Ok(())
    }
}

/// CLOCK_MONOTONIC.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
