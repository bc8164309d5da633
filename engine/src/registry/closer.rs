//! Closes descriptors on separate threads, because close(2) may block.
//!
//! A program can make the last close of an open file block. For example, a kernel socket that it
//! has sent to the engine may have SO_LINGER. If the file is in an epoll set, its close takes the
//! set's mutex. epoll_wait(2) holds this mutex while it writes to memory that faults slowly
//! (userfaultfd, FUSE). Programs also decide whether a close is the last. Therefore the engine's
//! main threads close only descriptors that no program can have or modify.
//!
//! A family of processes (a process with its descendants) gets one thread at a time, so a blocked
//! close delays only descriptors of this family. A family is clogged if a close has been blocked
//! for over a second (`CLOGGED_AFTER`), and more descriptors are queued than one message contains
//! (`SENT_MAX`). A clogged family gets no new processes ([`Closer::is_clogged`]), so that it cannot
//! exhaust the engine's descriptors.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_shm::Fd;

use crate::ids::Family;
use crate::registry::wire::SENT_MAX;

/// Maximum number of threads that close descriptors. There is one, plus one for each family of
/// processes whose close blocks. If all are blocked, other families' descriptors must wait as well.
/// A thread takes its kernel stack and some pages.
const THREADS_MAX: usize = 64;
/// Time after which a close counts as blocked. Normally it takes microseconds.
const CLOGGED_AFTER: Duration = Duration::from_secs(1);

/// Closes descriptors that programs may share, on separate threads, because close(2) may block.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    shared: Arc<CloserState>,
}

#[derive(Debug, Default)]
struct CloserState {
    queue: Mutex<CloseQueue>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct CloseQueue {
    /// Families of processes with descriptors that are not closed yet.
    families: HashMap<Family, CloseWait>,
    /// Families in `families` for which no thread is closing a descriptor.
    ready: VecDeque<Family>,
    waiting: usize,
    threads: usize,
    /// Number of threads that are idle or have not started yet, included in `threads`.
    idle: usize,
    ended: bool,
}

/// Descriptors to be closed for one family of processes.
#[derive(Debug, Default)]
struct CloseWait {
    descriptors: VecDeque<Fd>,
    /// Time at which the close in progress began. `None` if no thread is closing a descriptor of
    /// the family.
    since: Option<Instant>,
}

impl Closer {
    /// Queues descriptors to be closed. `whose` is the family of the processes that may share them.
    pub fn close(&self, whose: Family, descriptors: impl IntoIterator<Item = Fd>) {
        let mut queue = self.shared.lock();
        queue.push(whose, descriptors);
        if queue.ready.len() > queue.idle && queue.threads < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("towpath-close".into());
            // Ignore an error: if no thread can be created, an existing thread or the next call
            // closes the descriptors.
            if builder.spawn(move || shared.work()).is_ok() {
                queue.threads += 1;
                queue.idle += 1;
            }
        }
        drop(queue);
        self.shared.more.notify_all();
    }

    /// Returns whether any descriptors are queued or being closed.
    pub fn is_busy(&self) -> bool {
        !self.shared.lock().families.is_empty()
    }

    /// Returns whether a close is blocked for a family, while more of its descriptors are queued
    /// than one message can contain.
    pub fn is_clogged(&self, by: Family) -> bool {
        let queue = self.shared.lock();
        queue.families.get(&by).is_some_and(|waiting| {
            let is_long = |since: Instant| since.elapsed() >= CLOGGED_AFTER;
            waiting.descriptors.len() > SENT_MAX && waiting.since.is_some_and(is_long)
        })
    }

    /// Returns the number of descriptors that are queued to be closed.
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting
    }
}

impl Drop for Closer {
    /// Makes the threads end after they have closed all descriptors. Does not wait for them.
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.more.notify_all();
    }
}

impl CloseQueue {
    fn push(&mut self, whose: Family, descriptors: impl IntoIterator<Item = Fd>) {
        let waiting = self.families.entry(whose).or_default();
        let before = waiting.descriptors.len();
        waiting.descriptors.extend(descriptors);
        let now = waiting.descriptors.len();
        self.waiting += now - before;
        if waiting.since.is_some() {
            return;
        }
        if now == 0 {
            self.families.remove(&whose);
        } else if before == 0 {
            self.ready.push_back(whose);
        }
    }

    /// Removes and returns the next descriptor to be closed, of a family for which no thread is
    /// closing one.
    fn pop(&mut self) -> Option<(Family, Fd)> {
        let whose = self.ready.pop_front()?;
        let waiting = self.families.get_mut(&whose)?;
        waiting.since = Some(Instant::now());
        self.waiting -= 1;
        Some((whose, waiting.descriptors.pop_front()?))
    }

    /// Records that a descriptor of a family is closed.
    fn closed(&mut self, whose: Family) {
        let Some(waiting) = self.families.get_mut(&whose) else { return };
        waiting.since = None;
        if waiting.descriptors.is_empty() {
            self.families.remove(&whose);
        } else {
            self.ready.push_back(whose);
        }
    }
}

impl CloserState {
    fn work(&self) {
        let mut queue = self.lock();
        queue.idle -= 1;
        loop {
            if let Some((whose, descriptor)) = queue.pop() {
                drop(queue);
                drop(descriptor);
                queue = self.lock();
                queue.closed(whose);
            } else if queue.ended && queue.waiting == 0 {
                return;
            } else {
                queue.idle += 1;
                queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, CloseQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    const FIRST: Family = Family(1);
    const SECOND: Family = Family(2);

    /// Maximum time for which a test waits for a condition.
    const PATIENCE: Duration = Duration::from_secs(50);

    /// Waits until a condition holds, after the threads that close descriptors have run.
    fn wait_until(is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < PATIENCE, "the threads that close do not get there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Creates a kernel socket whose last close blocks for an hour, or until its peer has closed.
    /// Returns it with its peer.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("accepted");
        let (peer, _) = listener.accept().expect("connected");
        stream.set_nonblocking(true).expect("open");
        while (&stream).write(&[0; 65536]).is_ok() {}
        stream.set_nonblocking(false).expect("open");
        let hour = Duration::from_secs(3600);
        rustix::net::sockopt::set_socket_linger(&stream, Some(hour)).expect("open");
        (stream, peer)
    }

    #[test]
    fn a_close_that_sleeps_holds_up_nobody() {
        let closer = Closer::default();
        let (stream, peer) = lingering();
        closer.close(FIRST, [OwnedFd::from(stream).into()]);
        for _ in 0..3 {
            let (mut end, other) = std::io::pipe().expect("a pipe");
            closer.close(SECOND, [OwnedFd::from(other).into()]);
            // The write end of the pipe is closed if reading returns 0 (end of file).
            assert_eq!(end.read(&mut [0]).expect("open"), 0);
        }
        drop((closer, peer));
    }

    /// Any number of blocked closes must not delay descriptors of another family.
    #[test]
    fn closes_that_sleep_hold_up_no_other_family() {
        let closer = Closer::default();
        let mut peers = Vec::new();
        for _ in 0..2 * SENT_MAX / 25 {
            let (stream, peer) = lingering();
            closer.close(FIRST, [OwnedFd::from(stream).into()]);
            peers.push(peer);
        }
        let (mut end, other) = std::io::pipe().expect("a pipe");
        closer.close(SECOND, [OwnedFd::from(other).into()]);
        assert_eq!(end.read(&mut [0]).expect("open"), 0);
        assert!(!closer.is_clogged(FIRST) && closer.is_busy());
        assert_eq!(closer.waiting(), peers.len() - 1);
        assert_eq!(closer.shared.lock().threads, 2);
        drop(peers);
        wait_until(|| !closer.is_busy());
    }

    #[test]
    fn a_family_that_makes_many_closes_sleep_is_known() {
        let closer = Closer::default();
        let (stream, peer) = lingering();
        let (_end, other) = std::io::pipe().expect("a pipe");
        let others = || {
            (0..=SENT_MAX).map(|_| Fd::from(OwnedFd::from(other.try_clone().expect("a number"))))
        };
        let begin = Instant::now();
        closer.close(FIRST, [OwnedFd::from(stream).into()]);
        closer.close(FIRST, others());
        closer.close(SECOND, others());
        let is_known = closer.is_clogged(FIRST);
        assert!(!is_known || begin.elapsed() >= CLOGGED_AFTER, "it is not known yet");
        wait_until(|| closer.is_clogged(FIRST) && !closer.is_clogged(SECOND));
        drop(peer);
        wait_until(|| !closer.is_busy());
        assert!(!closer.is_clogged(FIRST));
    }
}
