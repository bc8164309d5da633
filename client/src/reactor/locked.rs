//! Locks the reactor, and reads events from the rings while it is locked.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use rustix::event::epoll::EventFlags;
use towpath_ring::LockGuard;

use super::sleep::{RINGS, clear};
use crate::hub::{Hub, Reactor};
use crate::watches::{WatchTarget, Watches};
use crate::{Client, Error, Process, Socket, ready};

pub(super) type Result<T> = std::result::Result<T, Error>;

/// Events EPOLLERR and EPOLLHUP, which epoll always reports.
pub const ALWAYS: u32 = ready::ERR | ready::HUP;
pub(super) const EPOLLET: u32 = EventFlags::ET.bits();
pub(super) const EPOLLONESHOT: u32 = EventFlags::ONESHOT.bits();
pub(super) const EPOLLEXCLUSIVE: u32 = EventFlags::EXCLUSIVE.bits();
/// Flags of a watch that stay set after a one-shot report (EPOLLONESHOT).
pub(super) const PRIVATE: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EventFlags::WAKEUP.bits();

/// Guard of the locked [`Reactor`].
#[derive(Debug)]
pub struct LockedReactor<'a> {
    hub: LockGuard<'a, Option<Box<Hub>>>,
    pub(super) process: &'a Process,
    /// Wakers of tasks. The field is dropped after `hub`, so the wakers are called after the lock
    /// is released.
    woken: WokenTasks<'a>,
}

/// Wakers of tasks, which are called on drop.
#[derive(Debug)]
struct WokenTasks<'a> {
    wakers: Vec<Waker>,
    reactor: &'a Reactor,
}

impl Drop for LockedReactor<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.due_wakers.is_empty() {
            let count = self.due_wakers.len();
            self.woken_last = count;
            self.woken.wakers = std::mem::take(&mut self.due_wakers);
        }
    }
}

impl Drop for WokenTasks<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.wakers.is_empty() {
            self.wake();
        }
    }
}

impl WokenTasks<'_> {
    #[cold]
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
        // Keep the vector's memory for later wakers, unless another thread has stored a vector
        // there since.
        if let Ok(mut hub) = self.reactor.lock()
            && let Some(hub) = hub.as_mut()
            && hub.due_wakers.capacity() == 0
        {
            hub.due_wakers = std::mem::take(&mut self.wakers);
        }
    }
}

impl Deref for LockedReactor<'_> {
    type Target = Hub;

    fn deref(&self) -> &Hub {
        self.hub.as_ref().expect(MADE)
    }
}

impl DerefMut for LockedReactor<'_> {
    fn deref_mut(&mut self) -> &mut Hub {
        self.hub.as_mut().expect(MADE)
    }
}

/// Panic message if a locked reactor has no state, which cannot happen.
const MADE: &str = "who locks it has made it";

impl Process {
    /// Locks the reactor.
    ///
    /// # Errors
    /// `Refused` with EDEADLK in a signal handler that interrupted a holder of the lock. Epoll's
    /// functions may fail in this way, because they are not async-signal-safe. close(2) must
    /// succeed, so it defers its work to the next thread that takes the lock.
    pub fn lock_reactor(&self) -> Result<LockedReactor<'_>> {
        let hub = self.reactor.lock()?;
        let woken = WokenTasks { wakers: Vec::new(), reactor: &self.reactor };
        let mut locked = LockedReactor { hub, process: self, woken };
        if self.reactor.has_deferred.load(Relaxed) {
            self.reactor.has_deferred.store(false, Relaxed);
            locked.forget_closed();
        }
        Ok(locked)
    }

    /// Removes the watches (registered interests) of a socket, because its last descriptor in the
    /// process is being closed. Wakes the tasks that wait for it.
    pub fn forget(&self, socket: Socket) {
        let head = &self.reactor.heads[socket.slot as usize];
        if head.load(Relaxed) == 0 || self.reactor.is_disowned() {
            return;
        }
        let Ok(mut hub) = self.lock_reactor() else {
            return self.reactor.defer();
        };
        let mut link = head.load(Relaxed);
        while let Some(index) = Watches::at(link) {
            link = hub.watches.next(index);
            if hub.watches[index].socket == socket {
                if let WatchTarget::Task(_) = hub.watches[index].target {
                    hub.queue(index, u32::MAX);
                }
                hub.remove_watch(index);
            }
        }
    }
}

impl LockedReactor<'_> {
    /// Removes the records of sleeping threads and their eventfds in a forked child, where these
    /// threads do not exist.
    pub fn forked(&mut self) {
        (self.sleepers, self.is_looking) = (0, false);
        for list in std::mem::take(&mut self.lists) {
            list.watches.into_iter().for_each(|index| self.release(index));
        }
        for set in self.sets.iter_mut().flatten() {
            (set.sleepers, set.willing, set.calls_inside) = (0, 0, 0);
            set.place = None;
        }
        for number in 0..self.sets.len() as u32 {
            self.remove_unused(number);
        }
        self.queue_all();
    }

    /// Takes all events out of the rings, and queues them for epoll sets, threads and tasks.
    /// Returns whether there were any.
    pub fn drain(&mut self, client: &Client) -> bool {
        if client.is_abandoned() {
            // In a forked child, do not read the rings, because they belong to the parent.
            return false;
        }
        if client.is_dead() {
            if !self.dead {
                self.dead = true;
                self.wake_all();
            }
            return false;
        }
        let mut any = false;
        loop {
            any |= self.take_events(client);
            if self.sleepers == 0 {
                client.channels().for_each(towpath_ring::cancel_sleep);
                break;
            }
            // The engine sends at most one notification per sleep. If the descriptor's buffer were
            // full, notifications would be lost. Reading the descriptor after each notification
            // would cost a system call per wake-up, so read several at once. Their events are still
            // in the rings, or a thread has already taken them and woken the threads that wait for
            // them.
            if self.rings >= RINGS {
                clear(client.notifier().get());
                self.rings = 0;
            }
            let mut is_empty = true;
            for channel in client.channels() {
                self.rings += 1;
                is_empty &= towpath_ring::prepare_sleep(channel);
            }
            if is_empty {
                break;
            }
        }
        if any {
            self.wake_ready();
        }
        any
    }

    /// Takes events out of the rings, and queues them for epoll sets, threads and tasks. Returns
    /// whether there were any.
    fn take_events(&mut self, client: &Client) -> bool {
        let mut any = false;
        for channel in client.channels() {
            if towpath_ring::take_events_lost(channel) {
                self.queue_all();
                any = true;
            }
            while let Some((slot, bits)) = towpath_ring::pop_event(channel) {
                self.on_event(slot, bits);
                any = true;
            }
        }
        any
    }

    /// Counts this thread as a sleeper, and reads all events from the rings. From now on, the
    /// engine writes to the notification descriptor when an event occurs.
    pub fn begin_sleep(&mut self, client: &Client) {
        self.sleepers += 1;
        self.drain(client);
    }

    /// Ends the sleep of this thread, and takes all events out of the rings.
    pub fn end_sleep(&mut self, client: &Client) {
        self.sleepers -= 1;
        self.drain(client);
    }
}
