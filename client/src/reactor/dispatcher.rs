//! [`Dispatcher`], which delivers events to tasks of an async runtime.

use std::os::fd::BorrowedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use towpath_shm::spin::LOOKS_FOR_ANSWER;

use super::locked::Result;
use super::sleep::{cookie, new_place};
use crate::{Client, Error, HighFd, Process};

/// Takes the events of a process out of its rings, and wakes the async tasks that wait for them
/// ([`Registration`](super::Registration)). An async runtime needs one dispatcher, independent of
/// the number of its sockets and threads.
///
/// Poll [`Self::descriptor`] for input, level-triggered or edge-triggered, and call
/// [`Self::dispatch`] when it is readable.
///
/// Drop the dispatcher before the [`Client`].
#[derive(Debug)]
pub struct Dispatcher {
    process: &'static Process,
    /// Kernel epoll set that contains the notification descriptor and the control socket.
    place: HighFd,
    /// Number of forks of the process when the dispatcher was created.
    forks: u32,
}

impl Dispatcher {
    /// Creates a dispatcher. From now on, the engine (the network stack) notifies the process of
    /// each event.
    ///
    /// # Errors
    /// `Refused` if no descriptor is free; `Forked` in a forked child without a connection to the
    /// engine of its own; otherwise as for [`Process::lock_reactor`].
    pub fn new(client: &Client) -> Result<Self> {
        let process = client.process();
        let place = new_place(client)?;
        let mut hub = process.lock_reactor()?;
        if client.is_abandoned() {
            return Err(Error::Forked);
        }
        hub.begin_sleep(client);
        Ok(Self { process, place, forks: process.forks() })
    }

    /// Returns a descriptor that is readable when [`Self::dispatch`] must be called.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.place.borrow()
    }

    /// Reads all events and wakes their tasks, on the calling thread. Does not wait.
    ///
    /// # Errors
    /// As for [`Process::lock_reactor`].
    pub fn dispatch(&self, client: &Client) -> Result<()> {
        if self.process.lock_reactor()?.drain(client) {
            return Ok(());
        }
        // There are no events, so the end of the engine may have caused the wake-up: it closes the
        // control socket. Check for it only in this case, because an engine in this process records
        // its end where `drain` finds it.
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let none = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; 2];
        let count = epoll::wait(self.place.borrow(), &mut events, Some(&NOW)).unwrap_or(0);
        if events[..count].iter().any(|event| event.data.u64() == cookie::CONTROL) {
            client.check_alive();
        }
        self.process.lock_reactor()?.drain(client);
        Ok(())
    }

    /// Polls the rings for events for about 20 µs before a task waits, and wakes the tasks of the
    /// events. Skipped if polling has rarely found events lately. Meanwhile the engine need not
    /// notify this process, and the thread of an idle runtime does not sleep.
    ///
    /// # Errors
    /// As for [`Process::lock_reactor`].
    pub fn look_on(&self, client: &Client) -> Result<()> {
        // Do not poll on a single processor, because that would delay the engine. In a forked
        // child, the rings belong to the parent.
        if client.processors() < 2 || client.is_abandoned() {
            return Ok(());
        }
        let mut hub = self.process.lock_reactor()?;
        // If several tasks were woken together, the others are ready to run, so do not delay them.
        if hub.is_looking || hub.woken_last > 1 || !hub.look.is_worthwhile() {
            return Ok(());
        }
        hub.is_looking = true;
        client.channels().for_each(towpath_ring::cancel_sleep);
        drop(hub);
        let found = (0..LOOKS_FOR_ANSWER).any(|_| {
            std::hint::spin_loop();
            client.channels().any(towpath_ring::events_waiting)
        });
        let mut hub = self.process.lock_reactor()?;
        hub.is_looking = false;
        hub.look.learn(found);
        // Request the next notification, too.
        hub.drain(client);
        Ok(())
    }

    /// Wakes all waiting tasks of the process. Call it when the runtime that polls
    /// [`Self::descriptor`] ends. Otherwise tasks on other runtimes would wait for events that are
    /// never dispatched.
    ///
    /// # Errors
    /// As for [`Process::lock_reactor`].
    pub fn wake_all(&self) -> Result<()> {
        self.process.lock_reactor()?.wake_all();
        Ok(())
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        if self.forks == self.process.forks()
            && !self.process.reactor.is_disowned()
            && let Ok(mut hub) = self.process.lock_reactor()
        {
            hub.sleepers -= 1;
        }
    }
}
