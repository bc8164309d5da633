//! Table of the watches of the [`crate::reactor`]. A watch is a registered interest in events of a
//! socket. The watches of each socket slot form a linked list.

use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::Waker;

use towpath_ring::WaitingTask;

use crate::Socket;

/// Maximum number of sockets in a list of poll(2) for which watches are created. A thread with a
/// longer list is woken by each event of the process, because creating watches would cost time at
/// each sleep.
pub(crate) const LIST_WATCHES_MAX: usize = 64;
/// Number of watches for which memory is reserved, enough for a few lists of poll(2). Unused pages
/// take no memory.
const RESERVED: usize = 4 * LIST_WATCHES_MAX;

/// A watch: the interest of an epoll set, a poll(2) list or a task in events of a socket.
#[derive(Debug)]
pub(crate) struct EventWatch {
    pub(crate) socket: Socket,
    /// Events to report, as bits of epoll_ctl(2).
    pub(crate) events: u32,
    pub(crate) target: WatchTarget,
    /// User data that epoll_wait(2) returns with the events.
    pub(crate) data: u64,
    /// Whether this registered interest is in the ready list of its epoll set.
    pub(crate) queued: bool,
    /// Events that have arrived since the last report. If there are none, an edge-triggered watch
    /// is not reported.
    pub(crate) fresh: u32,
    /// State of the socket's input ([`Socket::input`]) at the last edge-triggered report, or when
    /// the interest was registered.
    pub(crate) seen: u64,
    /// Whether the watch was removed from the list of its socket slot. Its index is reused after
    /// its epoll set or owner has released it.
    pub(crate) gone: bool,
    /// Index plus one of the next watch of the same socket slot; 0 for the last one.
    next: u32,
}

/// Recipient of the events of a watch.
#[derive(Debug)]
pub(crate) enum WatchTarget {
    /// The epoll set with this number, in which the socket is registered with the descriptor `fd`.
    Set { number: u32, fd: i32 },
    /// A thread that waits for a list of descriptors (poll, select). The value is an index in
    /// `Hub::lists`.
    List(usize),
    /// A task of an async runtime. After the task was woken, there is no waker until it polls
    /// again.
    Task(WaitingTask<Waker>),
}

impl EventWatch {
    pub(crate) fn new(socket: Socket, events: u32, target: WatchTarget, data: u64) -> Self {
        let (queued, gone, fresh, seen, next) = (false, false, 0, 0, 0);
        Self { socket, events, target, data, queued, fresh, seen, gone, next }
    }
}

/// All watches, by index. The indices of removed watches are reused.
#[derive(Debug)]
pub(crate) struct Watches {
    entries: Vec<EventWatch>,
    /// Indices of unused entries. The vector has capacity for all indices, so that [`Self::free`]
    /// does not allocate.
    free: Vec<u32>,
}

impl Default for Watches {
    /// Reserves memory for watches, because a signal handler that calls poll(2) must not allocate.
    fn default() -> Self {
        Self { entries: Vec::with_capacity(RESERVED), free: Vec::with_capacity(RESERVED) }
    }
}

impl Watches {
    /// Returns the number of watches, including unused entries.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Converts a link in a list of watches to an index. A link is an index plus one, or 0 at the
    /// end of the list.
    pub(crate) fn at(link: u32) -> Option<u32> {
        link.checked_sub(1)
    }

    /// Returns the link to the watch after `index` in the list of its socket slot.
    pub(crate) fn next(&self, index: u32) -> u32 {
        self[index].next
    }

    /// Returns whether [`Self::insert`] can add a watch without an allocation.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.entries.len() < self.entries.capacity()
    }

    /// Adds a watch to the list of a socket slot. `head` is the first link of the list. Returns the
    /// index of the watch.
    pub(crate) fn insert(&mut self, head: &AtomicU32, mut watch: EventWatch) -> u32 {
        watch.next = head.load(Relaxed);
        let index = match self.free.pop() {
            Some(index) => {
                self[index] = watch;
                index
            }
            None => {
                self.entries.push(watch);
                self.free.reserve(self.entries.capacity());
                self.len() - 1
            }
        };
        head.store(index + 1, Relaxed);
        index
    }

    /// Removes a watch from the list of a socket slot. `head` is the first link of the list.
    /// Returns false if it was already removed.
    pub(crate) fn unlink(&mut self, head: &AtomicU32, index: u32) -> bool {
        if std::mem::replace(&mut self[index].gone, true) {
            return false;
        }
        let next = self.next(index);
        let first = head.load(Relaxed);
        if first == index + 1 {
            head.store(next, Relaxed);
            return true;
        }
        let mut link = first;
        while let Some(before) = Self::at(link) {
            link = self.next(before);
            if link == index + 1 {
                self[before].next = next;
                break;
            }
        }
        true
    }

    /// Makes the index of an unlinked watch available for a new watch.
    pub(crate) fn free(&mut self, index: u32) {
        debug_assert!(self[index].gone);
        self.free.push(index);
    }
}

impl Index<u32> for Watches {
    type Output = EventWatch;

    #[inline]
    fn index(&self, index: u32) -> &EventWatch {
        &self.entries[index as usize]
    }
}

impl IndexMut<u32> for Watches {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut EventWatch {
        &mut self.entries[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> EventWatch {
        EventWatch::new(
            Socket { slot: 7, generation: 1 },
            0,
            WatchTarget::Task(WaitingTask::default()),
            0,
        )
    }

    fn list(watches: &Watches, head: &AtomicU32) -> Vec<u32> {
        let links = std::iter::successors(Watches::at(head.load(Relaxed)), |&index| {
            Watches::at(watches.next(index))
        });
        links.collect()
    }

    #[test]
    fn unlinks_watches_anywhere_in_a_list_and_reuses_their_indices() {
        let (mut watches, head) = (Watches::default(), AtomicU32::new(0));
        for index in 0..4 {
            assert_eq!(watches.insert(&head, watch()), index);
        }
        for (index, left) in [(1, vec![3, 2, 0]), (3, vec![2, 0]), (0, vec![2])] {
            assert!(watches.unlink(&head, index) && !watches.unlink(&head, index));
            assert_eq!(list(&watches, &head), left);
            watches.free(index);
        }
        assert_eq!([(); 4].map(|()| watches.insert(&head, watch())), [0, 3, 1, 4]);
        assert_eq!(list(&watches, &head), [4, 1, 3, 0, 2]);
    }

    #[test]
    fn neither_insert_nor_free_allocates_for_a_few_lists() {
        let (mut watches, head) = (Watches::default(), AtomicU32::new(0));
        let memory = (watches.entries.as_ptr(), watches.free.as_ptr());
        for _ in 0..2 {
            let indices = [(); RESERVED].map(|()| {
                assert!(watches.has_room());
                watches.insert(&head, watch())
            });
            for index in indices {
                watches.unlink(&head, index);
                watches.free(index);
            }
        }
        assert_eq!((watches.entries.as_ptr(), watches.free.as_ptr()), memory);
    }
}
