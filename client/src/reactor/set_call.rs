//! Determines which descriptors a call of epoll_wait(2) checks, and prepares and ends its sleep.

use rustix::io::Errno;

use super::locked::{EPOLLET, LockedReactor, Result};
use crate::hub::{Hub, NestedSet, SleepPlace};
use crate::{Client, Error, Process, UnderWay, ready};

/// Number of calls after which the kernel descriptors of an epoll set are checked, if its sockets
/// of the stack are always ready. The check costs a system call, and most kernel descriptors of
/// event loops are seldom ready.
const KERNEL_EVERY: u32 = 8;
/// Number of calls that check the kernel descriptors of an epoll set, after one of them was ready
/// or was added.
const EAGER: u32 = 16;

/// Maximum number of sockets in an epoll set for which [`SetCall::await_senders`] checks each
/// socket.
const AWAITED_MAX: usize = 32;

/// Number of iterations of the engine's event loop in which [`SetCall::await_senders`] waits for
/// the event of a ready socket. The event is usually written at the end of the iteration in which
/// the socket's state changes, otherwise at the end of the next one.
const EVENT_TURNS: u32 = 3;

/// Kinds of descriptors in an epoll set that a call of epoll_wait(2) checks, and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookOrder {
    /// Only sockets of the stack. The set has no kernel descriptors, or the call has already
    /// checked them.
    Ours,
    /// Sockets of the stack first. Kernel descriptors are checked when no socket is ready, or in
    /// any case if `eager`.
    OursFirst {
        /// Whether a kernel descriptor was ready recently, or has just been added.
        eager: bool,
    },
    /// Kernel descriptors first, because ready sockets of the stack have delayed them for several
    /// calls.
    KernelFirst,
}

/// A ready socket or nested epoll set, as epoll_wait(2) reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadySocket {
    /// Events that are ready, as bits of [`crate::ready`].
    pub events: u32,
    /// User data that the program passed to epoll_ctl(2).
    pub data: u64,
    /// Whether the entry is a nested epoll set. The kernel may report the same set, because of
    /// kernel descriptors in it.
    pub is_set: bool,
}

/// Change of a kernel descriptor in an epoll set, made by epoll_ctl(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelChange {
    /// The descriptor was added to the set.
    Added,
    /// The events to report for the descriptor were changed.
    Modified,
    /// The descriptor was removed from the set.
    Removed,
}

impl LockedReactor<'_> {
    /// Records a change of the kernel descriptors in an epoll set. `nested` is the changed
    /// descriptor, if it is an epoll set with sockets of the stack.
    pub fn note_kernel(&mut self, number: u32, change: KernelChange, nested: Option<NestedSet>) {
        let Some(set) = self.set(number) else { return };
        match change {
            KernelChange::Added => {
                set.kernel += 1;
                set.eager = EAGER;
            }
            KernelChange::Modified => set.eager = EAGER,
            KernelChange::Removed => set.kernel = set.kernel.saturating_sub(1),
        }
        if let Some(nested) = nested {
            set.nested.retain(|known| known.fd != nested.fd);
            if change != KernelChange::Removed {
                set.nested.push(nested);
            }
        }
    }
}

impl LockedReactor<'_> {
    /// Queues level-triggered sockets of an epoll set that are ready, although their event has not
    /// arrived yet. Returns whether edge-triggered sockets are ready as well. For these, the caller
    /// must wait for the event, because an event after the report would count as another edge. If
    /// `is_last` is true, the caller does not wait any more. The current input is then stored, so
    /// that a later event is not another edge.
    fn queue_unreported(&mut self, client: &Client, number: u32, is_last: bool) -> bool {
        let mut awaits = false;
        let mut indices = [0; AWAITED_MAX];
        let count = self.set(number).map_or(0, |set| {
            indices.iter_mut().zip(set.by_fd.values()).map(|(to, &index)| *to = index).count()
        });
        for &index in &indices[..count] {
            let watch = &self.watches[index];
            if watch.queued {
                continue;
            }
            let mask = watch.ready_now(client);
            if watch.events & EPOLLET == 0 {
                if mask != 0 {
                    self.queue(index, mask);
                }
            } else if mask & !ready::OUT != 0 && watch.seen != watch.socket.input(client) {
                awaits = true;
                if is_last {
                    self.watches[index].note_input(client);
                }
            }
        }
        awaits
    }
}

/// State of one call of epoll_wait(2) on an epoll set.
#[derive(Debug)]
pub struct SetCall<'a> {
    process: &'a Process,
    number: u32,
    /// ID of the epoll set that had this number when the call began.
    id: Option<u64>,
    /// Number of forks of the process when the call first slept. `None` before its first sleep.
    /// From then on, `EpollSet::calls_inside` includes the call.
    slept: Option<u32>,
    /// Whether the call is included in the set's number of sleepers.
    asleep: bool,
    /// Whether the call is counted among the sleepers that run the engine when they are woken.
    willing: bool,
}

impl<'a> SetCall<'a> {
    /// Creates the state of a call on the epoll set with this number.
    pub fn new(process: &'a Process, number: u32) -> Self {
        Self { process, number, id: None, slept: None, asleep: false, willing: false }
    }

    /// Returns which descriptors the call must check now. `kernel_done` is true if it has already
    /// checked the kernel descriptors.
    ///
    /// # Errors
    /// `Refused` with EBADF if the epoll set does not exist, or its number was reused; otherwise as
    /// for [`Process::lock_reactor`].
    pub fn turn(&mut self, kernel_done: bool) -> Result<LookOrder> {
        let mut hub = self.process.lock_reactor()?;
        let set = match self.id {
            Some(id) => hub.known(self.number, id)?,
            None => hub.set(self.number).ok_or(Errno::BADF)?,
        };
        self.id = Some(set.id);
        if set.kernel == 0 || kernel_done {
            return Ok(LookOrder::Ours);
        }
        set.calls += 1;
        if set.calls < KERNEL_EVERY {
            return Ok(LookOrder::OursFirst { eager: set.eager > 0 });
        }
        set.calls = 0;
        Ok(LookOrder::KernelFirst)
    }

    /// Reads events from the rings, and reports up to `most` ready sockets of the set.
    ///
    /// # Errors
    /// As for [`Self::turn`].
    pub fn collect(
        &self,
        client: &Client,
        most: usize,
        mut report: impl FnMut(ReadySocket),
    ) -> Result<()> {
        let number = self.number;
        let mut hub = self.process.lock_reactor()?;
        hub.known(number, self.id.unwrap_or_default())?;
        hub.drain(client);
        let nested = hub.collect_nested(client, number, most, |events, data| {
            report(ReadySocket { events, data, is_set: true });
        });
        let left = hub.collect(client, number, most - nested, |events, data| {
            report(ReadySocket { events, data, is_set: false });
        });
        hub.pass_on(number, left);
        Ok(())
    }

    /// Waits for bytes that other programs using the stack have sent, and that are about to arrive,
    /// if the set has only a few sockets. Called before a call returns without events. Returns
    /// whether the sockets must be checked again.
    ///
    /// # Errors
    /// As for [`Self::turn`].
    pub fn await_senders(&self, client: &Client) -> Result<bool> {
        let mut under_way = UnderWay::new(client);
        {
            let mut hub = self.process.lock_reactor()?;
            hub.known(self.number, self.id.unwrap_or_default())?;
            let Hub { sets, watches, .. } = &*hub;
            let Some(set) = &sets[self.number as usize] else { return Ok(false) };
            if set.by_fd.len() > AWAITED_MAX {
                return Ok(false);
            }
            for &index in set.by_fd.values() {
                under_way.add(watches[index].socket);
            }
        }
        if !under_way.wait() {
            return Ok(false);
        }
        // The state of a socket changes before the engine reports the event. So a socket may be
        // ready although it is not yet in the ready list.
        for turns_left in (0..EVENT_TURNS).rev() {
            let mut hub = self.process.lock_reactor()?;
            hub.known(self.number, self.id.unwrap_or_default())?;
            hub.drain(client);
            if !hub.queue_unreported(client, self.number, turns_left == 0) {
                break;
            }
            drop(hub);
            client.await_turns();
        }
        Ok(true)
    }

    /// Records that the call has checked the kernel descriptors, of which `ready` were ready.
    pub fn saw_kernel(&self, ready: usize) {
        if let Ok(mut hub) = self.process.lock_reactor()
            && let Some(set) = hub.set(self.number)
        {
            set.eager = if ready > 0 { EAGER } else { set.eager.saturating_sub(1) };
        }
    }

    /// Prepares a sleep on the returned descriptor. Returns `None` if a socket has become ready.
    /// `epfd` is the kernel's epoll set. If `is_willing` is true, the thread will run the engine
    /// (take the driver lock) when it is woken.
    ///
    /// # Errors
    /// As for [`Self::turn`]; `Refused` if the kernel provides no descriptors to sleep on.
    pub fn go_to_sleep(
        &mut self,
        client: &Client,
        epfd: i32,
        is_willing: bool,
    ) -> Result<Option<i32>> {
        let number = self.number;
        let mut hub = self.process.lock_reactor()?;
        if client.is_abandoned() {
            return Err(Error::Forked);
        }
        hub.known(number, self.id.unwrap_or_default())?;
        hub.begin_sleep(client);
        if client.is_dead() || hub.is_ready(client, number) {
            hub.end_sleep(client);
            // Sockets of an engine that has ended cause no further event, so sleep on the kernel's
            // epoll set alone.
            let idle = client.is_dead() && !hub.is_ready(client, number);
            return if idle { Ok(Some(epfd)) } else { Ok(None) };
        }
        let forks = self.process.forks();
        let set = hub.known(number, self.id.unwrap_or_default())?;
        if set.place.as_ref().is_none_or(|place| place.forks != forks) {
            set.place = None;
            match SleepPlace::new(client, epfd) {
                Ok(place) => set.place = Some(place),
                Err(error) => {
                    hub.end_sleep(client);
                    return Err(error);
                }
            }
        }
        set.sleepers += 1;
        set.willing += u32::from(is_willing);
        (self.asleep, self.willing) = (true, is_willing);
        if self.slept.is_none() {
            self.slept = Some(forks);
            set.calls_inside += 1;
        }
        Ok(set.place.as_ref().map(|place| place.epoll.get()))
    }

    /// Ends the sleep that [`Self::go_to_sleep`] prepared.
    pub fn get_up(&mut self, client: &Client) {
        // A call that slept in the program's own epoll set is not counted. In a forked child, the
        // counts are those of the parent's threads.
        if std::mem::take(&mut self.asleep)
            && self.slept == Some(self.process.forks())
            // Taking the lock does not fail: a thread that has slept cannot have interrupted a
            // holder of the lock.
            && let Ok(mut hub) = self.process.lock_reactor()
        {
            if let Some(set) = hub.set(self.number) {
                set.sleepers -= 1;
                set.willing -= u32::from(self.willing);
            }
            hub.end_sleep(client);
        }
    }
}

impl Drop for SetCall<'_> {
    fn drop(&mut self) {
        if self.slept == Some(self.process.forks())
            && let Ok(mut hub) = self.process.lock_reactor()
        {
            hub.leave(self.number);
        }
    }
}
