//! A call of epoll_wait(2): which descriptors it checks, and its sleep.

use rustix::io::Errno;

use super::locked::{EPOLLET, LockedReactor, Result};
use crate::hub::{Hub, NestedSet, SleepPlace};
use crate::{Client, Error, Process, UnderWay, ready};

/// Number of calls after which kernel descriptors are checked, if our sockets are always ready. The
/// check is a system call, and most kernel descriptors of event loops are seldom ready.
const KERNEL_EVERY: u32 = 8;
/// Number of calls that check kernel descriptors after one of them was ready or was added.
const EAGER: u32 = 16;

/// Maximum number of sockets in a set for which [`SetCall::await_senders`] checks each socket.
const AWAITED_MAX: usize = 32;

/// Number of turns that [`SetCall::await_senders`] waits for the event of a ready socket. Usually
/// the event is in the ring at the end of the turn in which the slot changed. A change after the
/// turn's events were pushed has its event at the end of the next turn.
const EVENT_TURNS: u32 = 3;

/// Descriptors that a call of epoll_wait(2) checks, and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookOrder {
    /// Only our sockets, because the set has no kernel descriptors or the call has checked them.
    Ours,
    /// Our sockets first. Kernel descriptors are reported when a thread is idle or sleeps, or at
    /// once if `eager`.
    OursFirst {
        /// A kernel descriptor was ready recently, or has just been added.
        eager: bool,
    },
    /// Kernel descriptors first, because our sockets have delayed them for several calls.
    KernelFirst,
}

/// A socket or set that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadySocket {
    /// Bits of [`crate::ready`].
    pub events: u32,
    /// Data that the program gave with its interest.
    pub data: u64,
    /// The entry is an epoll set inside the set. The kernel may report the same entry because of
    /// kernel descriptors in the inner set.
    pub is_set: bool,
}

/// Change of a kernel descriptor in a set by epoll_ctl(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelChange {
    /// The descriptor was added.
    Added,
    /// The wanted events of the descriptor were changed.
    Modified,
    /// The descriptor was removed.
    Removed,
}

impl LockedReactor<'_> {
    /// Notes a change of the kernel's part of a set. `nested` is the changed descriptor, if it is
    /// an epoll set with sockets of ours.
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
    /// Queues level-triggered sockets of a set that are ready although their event has not arrived.
    /// Returns whether edge-triggered sockets are ready, too. The caller waits for the events of
    /// these, because an event after the report would be a second edge. With `is_last` the caller
    /// stops waiting. Then the current input is noted, so that a later event is no second edge.
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

/// A call of epoll_wait(2) on an epoll set.
#[derive(Debug)]
pub struct SetCall<'a> {
    process: &'a Process,
    number: u32,
    /// Id of the set that had the number when the call began.
    id: Option<u64>,
    /// Number of forks of the process when the call first slept, or `None` before. From then on
    /// `EpollSet::calls_inside` counts the call.
    slept: Option<u32>,
    /// The call counts among the sleepers.
    asleep: bool,
    /// The call counts among the sleepers that take the driver lock.
    willing: bool,
}

impl<'a> SetCall<'a> {
    /// Creates a call on the set `number`.
    pub fn new(process: &'a Process, number: u32) -> Self {
        Self { process, number, id: None, slept: None, asleep: false, willing: false }
    }

    /// Returns the descriptors to check now. `kernel_done`: the call has checked the kernel's.
    ///
    /// # Errors
    /// `Refused` with EBADF if the set does not exist, or its number was reused; otherwise as
    /// [`Process::lock_reactor`].
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

    /// Takes the events and reports at most `most` ready sockets.
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

    /// Waits for bytes that programs of the run have sent to the sockets of the set, if there are
    /// few. Called before a call returns without events. Returns whether to check them again.
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
        // The slot of a socket changes before the engine reports the event, so the ready list may
        // lack sockets that are ready.
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

    /// Notes that the call has checked the kernel's descriptors, `ready` of which were ready.
    pub fn saw_kernel(&self, ready: usize) {
        if let Ok(mut hub) = self.process.lock_reactor()
            && let Some(set) = hub.set(self.number)
        {
            set.eager = if ready > 0 { EAGER } else { set.eager.saturating_sub(1) };
        }
    }

    /// Prepares to sleep on the returned descriptor. Returns `None` if something became ready
    /// meanwhile. `epfd` is the kernel's set. With `is_willing` the thread takes the driver lock
    /// when it is woken.
    ///
    /// # Errors
    /// As for [`Self::turn`]; `Refused` when the kernel gives no descriptors to sleep on.
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
            // Sockets of an engine that has ended report no further event, so the thread sleeps on
            // the kernel's descriptors.
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

    /// Ends the sleep that [`Self::go_to_sleep`] began.
    pub fn get_up(&mut self, client: &Client) {
        // Not counted are calls that slept in the program's set, and those of the parent in a
        // forked child.
        if std::mem::take(&mut self.asleep)
            && self.slept == Some(self.process.forks())
            // The lock succeeds, because a call that slept did not interrupt a call with the lock.
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
