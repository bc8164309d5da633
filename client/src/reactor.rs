//! Where the events of a process arrive, and how its sleeping threads learn of them.
//!
//! The engine reports events of all sockets of a process through one ring and one notification
//! descriptor. A thread that looks takes all events out of the ring, under one lock, and sorts them
//! into the ready lists of the sets. Threads that wait for a list of sockets, as in poll, keep no
//! lists: they look at their sockets.
//!
//! A *set* is the interest list of epoll(7): sockets, each with the events wanted. Beside it may
//! stand an epoll set of the kernel, for descriptors of the kernel.
//!
//! Rules that keep wake-ups from being lost:
//! - a thread that goes to sleep counts itself first and then empties the ring
//!   ([`Locked::begin_sleep`]);
//! - a thread that empties the ring while others sleep asks for the notification descriptor again
//!   ([`Locked::drain`]), and wakes those whose sets became ready.

mod sets;
mod sleep;
mod stay;

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::Relaxed;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use towpath_ring::LockGuard;
use towpath_shm::layout::event;

use crate::hub::{ListWakeup, Watch};
use crate::{Client, Error, Process, Socket, ready};

pub use crate::hub::{Hub, Nested, Reactor};
use sleep::{RINGS, new_wakeup, wake};
pub use sleep::{clear, cookie};
pub use stay::{KernelChange, ReadySocket, Stay, Turn};

type Result<T> = std::result::Result<T, Error>;

/// EPOLLERR and EPOLLHUP, which are reported whether the program asked for them or not.
pub const ALWAYS: u32 = ready::ERR | ready::HUP;
const EPOLLET: u32 = EventFlags::ET.bits();
const EPOLLONESHOT: u32 = EventFlags::ONESHOT.bits();
const EPOLLEXCLUSIVE: u32 = EventFlags::EXCLUSIVE.bits();
/// Bits of an interest that EPOLLONESHOT leaves after a report.
const PRIVATE: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EventFlags::WAKEUP.bits();

/// The hub of a [`Reactor`], locked.
#[derive(Debug)]
pub struct Locked<'a> {
    hub: LockGuard<'a, Option<Box<Hub>>>,
    process: &'a Process,
}

impl Deref for Locked<'_> {
    type Target = Hub;

    fn deref(&self) -> &Hub {
        self.hub.as_ref().expect(MADE)
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Hub {
        self.hub.as_mut().expect(MADE)
    }
}

/// Message for a hub that is locked, but missing.
const MADE: &str = "who locks it has made it";

impl Process {
    /// Waits for the reactor's lock.
    ///
    /// # Errors
    /// `Refused` with EDEADLK in a signal handler on top of a call that has the lock: epoll's
    /// functions are not async-signal-safe. Functions that are do not need this lock: close leaves
    /// the work to the next call.
    pub fn lock_reactor(&self) -> Result<Locked<'_>> {
        let hub = self.reactor.lock()?;
        let mut locked = Locked { hub, process: self };
        if self.reactor.overdue.load(Relaxed) {
            self.reactor.overdue.store(false, Relaxed);
            locked.forget_closed();
        }
        Ok(locked)
    }

    /// The process's last descriptor for this socket is being closed.
    pub fn forget(&self, socket: Socket) {
        let head = &self.reactor.heads[socket.slot as usize];
        if head.load(Relaxed) == 0 {
            return;
        }
        let Ok(mut hub) = self.lock_reactor() else {
            return self.reactor.defer();
        };
        let mut at = head.load(Relaxed);
        while let Some(index) = at.checked_sub(1) {
            at = hub.watches[index as usize].next;
            if hub.watches[index as usize].socket == socket {
                hub.remove_watch(index);
            }
        }
    }
}

impl Locked<'_> {
    /// In the child after fork: no other thread exists, and wake-ups of the parent do not reach us.
    pub fn forked(&mut self) {
        self.sleepers = 0;
        self.list_kicks.clear();
        for set in self.sets.iter_mut().flatten() {
            (set.sleepers, set.willing, set.guests) = (0, 0, 0);
            set.bed = None;
        }
        for number in 0..self.sets.len() as u32 {
            self.remove_unused(number);
        }
        self.queue_all();
    }

    /// Takes all events out of the rings.
    pub fn drain(&mut self, client: &Client) {
        if client.is_abandoned() {
            // A handler has forked, and this is the child: they are its parent's.
            return;
        }
        if client.is_dead() {
            if !self.dead {
                self.dead = true;
                self.queue_all();
                self.wake_all();
            }
            return;
        }
        let mut any = false;
        loop {
            any |= self.take_events(client);
            if self.sleepers == 0 {
                client.channels().for_each(towpath_ring::cancel_sleep);
                break;
            }
            // Each promise to sleep is rung for at most once. A full bell could not be rung, and
            // clearing it after each ring would cost every wake-up a system call. Events of the
            // rings cleared here are still in the rings, or a thread took them and has woken the
            // sleepers concerned.
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
    }

    /// Whether there were any.
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

    /// Counts this thread among the sleepers and empties the rings. From here on an event rings the
    /// notification descriptor.
    pub fn begin_sleep(&mut self, client: &Client) {
        self.sleepers += 1;
        self.drain(client);
    }

    /// Awake again.
    pub fn end_sleep(&mut self, client: &Client) {
        self.sleepers -= 1;
        self.drain(client);
    }

    /// A wake-up for a thread that waits for a list of sockets: its number, for [`Self::wakeup_of`]
    /// and [`Self::leave_list`]. `is_willing`: the thread takes the driver lock when woken.
    ///
    /// # Errors
    /// `Refused` when the kernel has no eventfd to give.
    pub fn join_list(&mut self, client: &Client, is_willing: bool) -> Result<usize> {
        if let Some(at) = self.list_kicks.iter().position(|kick| !kick.is_taken) {
            let kick = &mut self.list_kicks[at];
            (kick.is_taken, kick.is_willing) = (true, is_willing);
            return Ok(at);
        }
        let fd = new_wakeup(client)?;
        self.list_kicks.push(ListWakeup { fd, is_taken: true, is_willing, is_rung: false });
        Ok(self.list_kicks.len() - 1)
    }

    /// The descriptor to sleep on, which becomes readable when there is something to look at.
    pub fn wakeup_of(&self, at: usize) -> i32 {
        self.list_kicks.get(at).map_or(-1, |kick| kick.fd.get())
    }

    /// Gives it back.
    pub fn leave_list(&mut self, at: usize) {
        if let Some(kick) = self.list_kicks.get_mut(at) {
            if std::mem::take(&mut kick.is_rung) {
                clear(kick.fd.get());
            }
            kick.is_taken = false;
        }
    }

    fn on_event(&mut self, slot: u32, bits: u8) {
        let mask = mask_of(bits);
        let mut at = self.process.reactor.heads[slot as usize].load(Relaxed);
        while let Some(index) = at.checked_sub(1) {
            let watch = &self.watches[index as usize];
            at = watch.next;
            if mask & (watch.events | ALWAYS) != 0 && watch.events & !PRIVATE != 0 {
                self.queue(index, mask);
            }
        }
    }

    fn queue(&mut self, index: u32, mask: u32) {
        let watch = &mut self.watches[index as usize];
        watch.fresh |= mask;
        if watch.queued || watch.gone {
            return;
        }
        watch.queued = true;
        let number = watch.set;
        let Some(set) = self.sets[number as usize].as_mut() else {
            return;
        };
        set.ready.push_back(index);
        set.kicked = false;
        for outer in self.sets.iter_mut().flatten() {
            for nested in outer.nested.iter_mut().filter(|nested| nested.set == number) {
                nested.fresh = true;
                outer.kicked = false;
            }
        }
    }

    fn queue_all(&mut self) {
        for index in 0..self.watches.len() {
            self.queue(index as u32, u32::MAX);
        }
    }

    fn wake_all(&mut self) {
        for set in self.sets.iter_mut().flatten() {
            set.kicked = false;
        }
        self.wake_ready();
    }

    /// Wakes the threads that have something to look at now. A thread in poll looks for itself.
    fn wake_ready(&mut self) {
        for set in self.sets.iter_mut().flatten() {
            let worth = !set.ready.is_empty() || set.nested.iter().any(|nested| nested.fresh);
            if set.sleepers > 0 && worth && !set.kicked {
                set.kicked = true;
                if let Some(bed) = &set.bed {
                    wake(bed.kick.get());
                }
            }
        }
        for list_kick in self.list_kicks.iter_mut().filter(|kick| kick.is_taken && !kick.is_rung) {
            list_kick.is_rung = true;
            wake(list_kick.fd.get());
        }
    }

    /// Wakes one of the threads that sleep in lists and are willing to become the driver.
    pub(crate) fn wake_one(&mut self) {
        let Hub { sets, list_kicks, .. } = &mut **self;
        let mut sets = sets.iter().flatten().filter(|set| set.willing > 0);
        let mut lists = list_kicks.iter_mut().filter(|kick| kick.is_taken && kick.is_willing);
        if let Some(bed) = sets.find_map(|set| set.bed.as_ref()) {
            wake(bed.kick.get());
        } else if let Some(list_kick) = lists.find(|kick| !kick.is_rung) {
            list_kick.is_rung = true;
            wake(list_kick.fd.get());
        }
    }

    /// After a call has taken its entries from a set: the rest is for another thread.
    fn pass_on(&mut self, number: u32, left: usize) {
        if let Some(set) = self.set(number)
            && left > 0
            && set.sleepers > 0
            && let Some(bed) = &set.bed
        {
            wake(bed.kick.get());
        }
    }

    /// EPOLL_CTL_ADD of one of our sockets.
    pub fn add(
        &mut self,
        client: &Client,
        number: u32,
        fd: i32,
        socket: Socket,
        events: u32,
        data: u64,
    ) -> Result<()> {
        let set = self.set(number).ok_or(Errno::BADF)?;
        if set.by_fd.contains_key(&(fd, socket.slot)) {
            return Err(Errno::EXIST.into());
        }
        let head = &self.process.reactor.heads[socket.slot as usize];
        let next = head.load(Relaxed);
        let watch = Watch {
            set: number,
            fd,
            socket,
            events,
            data,
            queued: false,
            fresh: 0,
            seen: 0,
            gone: false,
            next,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.watches[index as usize] = watch;
                index
            }
            None => {
                self.watches.push(watch);
                self.watches.len() as u32 - 1
            }
        };
        head.store(index + 1, Relaxed);
        if let Some(set) = self.set(number) {
            set.by_fd.insert((fd, socket.slot), index);
        }
        self.check_new(client, index);
        Ok(())
    }

    /// EPOLL_CTL_MOD.
    pub fn modify(
        &mut self,
        client: &Client,
        number: u32,
        fd: i32,
        socket: Socket,
        events: u32,
        data: u64,
    ) -> Result<()> {
        let index = self.index(number, fd, socket)?;
        let watch = &mut self.watches[index as usize];
        if watch.events & EPOLLEXCLUSIVE != 0 {
            return Err(Errno::INVAL.into());
        }
        watch.events = events;
        watch.data = data;
        self.check_new(client, index);
        Ok(())
    }

    /// EPOLL_CTL_DEL.
    pub fn delete(&mut self, number: u32, fd: i32, socket: Socket) -> Result<()> {
        let index = self.index(number, fd, socket)?;
        self.remove_watch(index);
        Ok(())
    }

    /// Reports ready entries of a set, at most `most`. Returns how many may still be ready: those
    /// not looked at, and level-triggered ones. As in Linux the next sleeper is then woken, which
    /// may serve them while the caller's thread is busy.
    fn collect(
        &mut self,
        client: &Client,
        number: u32,
        most: usize,
        mut report: impl FnMut(u32, u64),
    ) -> usize {
        let Some(mut ready) = self.set(number).map(|set| std::mem::take(&mut set.ready)) else {
            return 0;
        };
        let mut done = 0;
        let mut unseen = ready.len();
        while unseen > 0 && done < most {
            unseen -= 1;
            let Some(index) = ready.pop_front() else { break };
            let watch = &mut self.watches[index as usize];
            watch.queued = false;
            if watch.gone {
                self.free.push(index);
                continue;
            }
            watch.note_input(client);
            let mask = watch.report(client);
            watch.fresh = 0;
            if mask == 0 {
                continue;
            }
            report(mask, watch.data);
            done += 1;
            if watch.events & EPOLLONESHOT != 0 {
                watch.events &= PRIVATE;
            } else if watch.events & EPOLLET == 0 {
                watch.queued = true;
                ready.push_back(index);
            }
        }
        let left = ready.len();
        if let Some(set) = self.set(number) {
            set.ready = ready;
        }
        left
    }

    /// Reports the sets inside a set that have something of ours; returns how many.
    fn collect_nested(
        &mut self,
        client: &Client,
        number: u32,
        most: usize,
        mut report: impl FnMut(u32, u64),
    ) -> usize {
        let nested = self.set(number).map(|set| set.nested.clone()).unwrap_or_default();
        let mut done = 0;
        for inner in nested {
            let wanted =
                inner.events & ready::IN != 0 && (inner.fresh || inner.events & EPOLLET == 0);
            if done == most || !wanted || !self.is_ready(client, inner.set) {
                continue;
            }
            report(inner.events & ready::IN, inner.data);
            done += 1;
            if let Some(set) = self.set(number) {
                for entry in set.nested.iter_mut().filter(|entry| entry.fd == inner.fd) {
                    entry.fresh = false;
                    if inner.events & EPOLLONESHOT != 0 {
                        entry.events &= PRIVATE;
                    }
                }
            }
        }
        done
    }

    /// Whether epoll_wait on a set would give something of ours. Entries that are not ready leave
    /// the ready list, as in `collect`.
    pub fn is_ready(&mut self, client: &Client, number: u32) -> bool {
        while let Some(&index) = self.set(number).and_then(|set| set.ready.front()) {
            let watch = &mut self.watches[index as usize];
            if !watch.gone && watch.report(client) != 0 {
                return true;
            }
            watch.queued = false;
            if watch.gone {
                self.free.push(index);
            }
            if let Some(set) = self.set(number) {
                set.ready.pop_front();
            }
        }
        let nested = self.set(number).map(|set| set.nested.clone()).unwrap_or_default();
        nested.iter().any(|inner| inner.events & ready::IN != 0 && self.is_ready(client, inner.set))
    }

    fn index(&mut self, number: u32, fd: i32, socket: Socket) -> Result<u32> {
        let set = self.set(number).ok_or(Errno::BADF)?;
        set.by_fd.get(&(fd, socket.slot)).copied().ok_or(Errno::NOENT.into())
    }

    /// A new or changed interest is reported at once when it is ready already.
    fn check_new(&mut self, client: &Client, index: u32) {
        self.watches[index as usize].note_input(client);
        if self.watches[index as usize].ready_now(client) != 0 {
            self.queue(index, u32::MAX);
            self.wake_ready();
        }
    }

    fn remove_watch(&mut self, index: u32) {
        let watch = &mut self.watches[index as usize];
        if watch.gone {
            return;
        }
        watch.gone = true;
        let (number, key, next, queued) =
            (watch.set, (watch.fd, watch.socket.slot), watch.next, watch.queued);
        if let Some(set) = self.set(number) {
            set.by_fd.remove(&key);
        }
        let head = &self.process.reactor.heads[key.1 as usize];
        if head.load(Relaxed) == index + 1 {
            head.store(next, Relaxed);
        } else {
            let mut at = head.load(Relaxed);
            while let Some(before) = at.checked_sub(1) {
                at = self.watches[before as usize].next;
                if at == index + 1 {
                    self.watches[before as usize].next = next;
                    break;
                }
            }
        }
        if !queued {
            self.free.push(index);
        }
    }
}

impl Watch {
    /// Notes the state of the socket's input before a report of an edge-triggered interest.
    /// Bytes that arrive during the report have an event of their own.
    fn note_input(&mut self, client: &Client) {
        if self.events & EPOLLET != 0 {
            self.seen = self.socket.input(client);
        }
    }

    /// Events for epoll_wait: 0 for none.
    fn report(&self, client: &Client) -> u32 {
        let mask = self.ready_now(client);
        if self.events & EPOLLET != 0 && mask & self.fresh == 0 { 0 } else { mask }
    }

    /// Wanted events that are ready; asks the engine for an event when room is wanted and lacking.
    fn ready_now(&self, client: &Client) -> u32 {
        if self.events & !PRIVATE == 0 {
            return 0;
        }
        let wanted = self.events | ALWAYS;
        let mut mask = self.socket.readiness(client);
        if wanted & ready::OUT & !mask != 0 && mask & ready::OUT == 0 {
            self.socket.want_room(client);
            mask = self.socket.readiness(client);
        }
        mask & wanted
    }
}

fn mask_of(bits: u8) -> u32 {
    let mut mask = 0;
    if bits & event::RX != 0 {
        // As `sock_def_readable`: an announced urgent byte may be among them.
        mask |= ready::IN | ready::PRI;
    }
    if bits & event::TX != 0 {
        mask |= ready::OUT;
    }
    if bits & event::RDHUP != 0 {
        mask |= ready::RDHUP | ready::IN;
    }
    if bits & event::ERROR != 0 {
        mask |= ready::ERR | ready::IN | ready::OUT;
    }
    if bits & event::PRI != 0 {
        mask |= ready::PRI | ready::IN;
    }
    if bits & event::HUP != 0 {
        mask |= ready::HUP | ready::IN | ready::OUT | ready::RDHUP;
    }
    mask
}
