//! Adds sockets to epoll sets, and reports which are ready.

use rustix::io::Errno;

use super::locked::{
    ALWAYS, EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, LockedReactor, PRIVATE, Result,
};
use crate::watches::{EventWatch, WatchTarget};
use crate::{Client, Socket, ready};

impl LockedReactor<'_> {
    /// Adds a socket of the stack to an epoll set (EPOLL_CTL_ADD).
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
        let index =
            self.watch(EventWatch::new(socket, events, WatchTarget::Set { number, fd }, data));
        if let Some(set) = self.set(number) {
            set.by_fd.insert((fd, socket.slot), index);
        }
        self.check_new(client, index);
        Ok(())
    }

    /// Changes the events that an epoll set reports for a socket (EPOLL_CTL_MOD).
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
        let watch = &mut self.watches[index];
        if watch.events & EPOLLEXCLUSIVE != 0 {
            return Err(Errno::INVAL.into());
        }
        watch.events = events;
        watch.data = data;
        self.check_new(client, index);
        Ok(())
    }

    /// Removes a socket from an epoll set (EPOLL_CTL_DEL).
    pub fn delete(&mut self, number: u32, fd: i32, socket: Socket) -> Result<()> {
        let index = self.index(number, fd, socket)?;
        self.remove_watch(index);
        Ok(())
    }

    /// Reports up to `most` ready sockets of an epoll set. Returns the number of remaining entries
    /// that may be ready. If there are any, wakes the next sleeping thread, which reports them, as
    /// on Linux.
    pub(super) fn collect(
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
            let watch = &mut self.watches[index];
            watch.queued = false;
            if watch.gone {
                self.watches.free(index);
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

    /// Reports nested epoll sets that contain ready sockets. Returns their number.
    pub(super) fn collect_nested(
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

    /// Returns whether epoll_wait on an epoll set would report a socket. Removes entries that are
    /// not ready from the ready list, as `collect` does.
    pub fn is_ready(&mut self, client: &Client, number: u32) -> bool {
        while let Some(&index) = self.set(number).and_then(|set| set.ready.front()) {
            let watch = &mut self.watches[index];
            if !watch.gone && watch.report(client) != 0 {
                return true;
            }
            watch.queued = false;
            if watch.gone {
                self.watches.free(index);
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

    /// Queues a new or changed watch (registered interest) for a report, if its socket is already
    /// ready.
    fn check_new(&mut self, client: &Client, index: u32) {
        self.watches[index].note_input(client);
        if self.watches[index].ready_now(client) != 0 {
            self.queue(index, u32::MAX);
            self.wake_ready();
        }
    }

    /// Adds a watch (registered interest in events) to a socket. Returns its index.
    pub(super) fn watch(&mut self, watch: EventWatch) -> u32 {
        let head = &self.process.reactor.heads[watch.socket.slot as usize];
        self.watches.insert(head, watch)
    }

    /// Removes a watch, which then gets no further events. For a watch of a poll(2) list or a task,
    /// call [`Self::release`] instead.
    pub(super) fn remove_watch(&mut self, index: u32) {
        let slot = self.watches[index].socket.slot;
        let head = &self.process.reactor.heads[slot as usize];
        if !self.watches.unlink(head, index) {
            return;
        }
        if let WatchTarget::Set { number, fd } = self.watches[index].target {
            if let Some(set) = self.set(number) {
                set.by_fd.remove(&(fd, slot));
            }
            // A queued watch is still in a ready list. The entry is freed when it is removed from
            // this list.
            if !self.watches[index].queued {
                self.watches.free(index);
            }
        }
    }

    /// Removes the watch of a poll(2) list or a task, and frees its index.
    pub(super) fn release(&mut self, index: u32) {
        self.remove_watch(index);
        self.watches.free(index);
    }
}

impl EventWatch {
    /// Stores the state of a socket's input before an edge-triggered report. Bytes that arrive
    /// during the report then cause a new event.
    pub(super) fn note_input(&mut self, client: &Client) {
        if self.events & EPOLLET != 0 {
            self.seen = self.socket.input(client);
        }
    }

    /// Returns the events that epoll_wait must report for this socket; 0 if there are none.
    fn report(&self, client: &Client) -> u32 {
        let mask = self.ready_now(client);
        if self.events & EPOLLET != 0 && mask & self.fresh == 0 { 0 } else { mask }
    }

    /// Returns those of the wanted events for which the socket is ready. If EPOLLOUT is wanted and
    /// the send buffer is full, requests an event from the engine.
    pub(super) fn ready_now(&self, client: &Client) -> u32 {
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
