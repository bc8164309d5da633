//! Wakes threads that wait for lists of descriptors, as in poll(2) and select(2).

use super::locked::{LockedReactor, Result};
use super::sleep::{clear, new_wakeup};
use crate::hub::ListWakeup;
use crate::watches::{EventWatch, LIST_WATCHES_MAX, WatchTarget};
use crate::{Client, Socket};

impl LockedReactor<'_> {
    /// Reserves an eventfd for a thread that waits for a list of descriptors, until
    /// [`Self::leave_list`]. Returns its index. If `is_willing` is true, the thread will run the
    /// engine (take the driver lock) when it is woken.
    ///
    /// # Errors
    /// `Refused` if no eventfd can be created.
    pub fn join_list(&mut self, client: &Client, is_willing: bool) -> Result<usize> {
        let at = match self.lists.iter().position(|list| !list.is_taken) {
            Some(at) => at,
            None => {
                self.lists.push(ListWakeup::new(new_wakeup(client)?));
                self.lists.len() - 1
            }
        };
        let list = &mut self.lists[at];
        (list.is_taken, list.is_willing) = (true, is_willing);
        (list.is_due, list.is_for_all) = (false, false);
        Ok(at)
    }

    /// Makes events of `socket` wake the thread that uses the eventfd with index `at`. Check the
    /// socket afterwards, because earlier events do not wake the thread.
    pub fn watch_in_list(&mut self, at: usize, socket: Socket, events: u32) {
        if self.lists[at].watches.len() == LIST_WATCHES_MAX || !self.watches.has_room() {
            return self.watch_all_in_list(at);
        }
        let index = self.watch(EventWatch::new(socket, events, WatchTarget::List(at), 0));
        self.lists[at].watches.push(index);
    }

    /// Makes every event of the process wake the thread that uses the eventfd with index `at`.
    pub fn watch_all_in_list(&mut self, at: usize) {
        self.lists[at].is_for_all = true;
    }

    /// Returns the eventfd with index `at`, which becomes readable when its thread must wake up.
    pub fn wakeup_of(&self, at: usize) -> i32 {
        self.lists.get(at).map_or(-1, |list| list.fd.get())
    }

    /// Releases the eventfd with index `at`, and removes the watches of its thread.
    pub fn leave_list(&mut self, at: usize) {
        let Some(list) = self.lists.get_mut(at) else { return };
        if std::mem::take(&mut list.is_rung) {
            clear(list.fd.get());
        }
        list.is_taken = false;
        while let Some(index) = self.lists[at].watches.pop() {
            self.release(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use rustix::event::{EventfdFlags, eventfd};
    use towpath_shm::layout::event;

    use super::*;
    use crate::{HighFd, MappedProcess, Process, ready};

    /// Adds an eventfd to the list, as `join_list` does, but without a client.
    fn join(hub: &mut LockedReactor<'_>) -> usize {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor");
        // SAFETY: the test closes the reactor before it drops the process.
        let process: &'static Process = unsafe { &*std::ptr::from_ref(hub.process) };
        let fd = HighFd::new(fd.into(), &process.descriptors);
        hub.lists.push(ListWakeup { is_taken: true, ..ListWakeup::new(fd) });
        hub.lists.len() - 1
    }

    fn woken(hub: &LockedReactor<'_>) -> Vec<bool> {
        hub.lists.iter().map(|list| list.is_rung).collect()
    }

    #[test]
    fn an_event_wakes_the_lists_of_its_socket_and_lists_for_all_events() {
        let process = MappedProcess::new().expect("address space");
        let mut hub = process.lock_reactor().expect("no signal handler");
        let socket = |slot| Socket { slot, generation: 1 };
        let lists = [(); 4].map(|()| join(&mut hub));
        hub.watch_in_list(lists[0], socket(7), ready::IN);
        hub.watch_in_list(lists[1], socket(7), ready::OUT);
        hub.watch_in_list(lists[1], socket(8), ready::IN);
        (0..=LIST_WATCHES_MAX as u32)
            .for_each(|slot| hub.watch_in_list(lists[2], socket(100 + slot), ready::IN));
        hub.watch_in_list(lists[3], socket(9), ready::IN);
        hub.on_event(7, event::RX);
        hub.wake_ready();
        assert_eq!(woken(&hub), [true, false, true, false]);
        hub.leave_list(lists[0]);
        hub.on_event(7, event::RX);
        hub.on_event(9, event::ERROR);
        hub.wake_ready();
        assert_eq!(woken(&hub), [false, false, true, true]);
        lists.iter().for_each(|&at| hub.leave_list(at));
        assert!(process.reactor.heads.iter().all(|head| head.load(Relaxed) == 0));
        drop(hub);
        process.close();
    }
}
