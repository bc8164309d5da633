//! Messages between the registry and a shard, and their way from one thread to the other.
//!
//! ```text
//!   registry ── orders ──► shard      requests of processes from their control sockets; queries
//!            ◄── notices ──           what became of it; descriptors to be closed; who has ended
//! ```
//!
//! Neither waits for the other, except for the moment in which the other is at a box. Both ways are
//! in order. So the registry's last orders about a process reach a shard before the process's
//! number is used again. The length of a box is bounded: a process has one request at a time with
//! the registry, and one life. A listing goes in portions, one per turn.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_shm::Fd;

use towpath_ring::notification;
use towpath_shm::control::{ControlReply, Request};

use crate::errno::Errno;
use crate::ids::{ChannelId, Family};
use crate::link::ChannelLink;
use crate::query::{ShardJob, ShardQuery};

/// Orders of the registry to a shard.
#[derive(Debug)]
pub(crate) enum ShardCommand {
    /// A process was let in.
    Open(Newcomer),
    /// A want of a process, of which the shard does a part. A process has one want at a time, and
    /// the shard answers each by [`ShardReport::Done`] or [`ShardReport::Refused`].
    For(ChannelId, Box<Want>),
    /// The answer to what [`ShardReport::Asks`] said, by its number.
    Answer(ChannelId, u64, Box<ControlReply>),
    /// A process says nothing on its control socket any more: it is gone, as a rule, which the
    /// shard may know.
    Gone(ChannelId),
    /// A process broke the rules of the control socket.
    CutOff(ChannelId),
    /// A job that the shard does after all earlier commands, and reports by
    /// [`ShardReport::Answered`].
    Job(ShardJob),
    /// Work for the first shard, done at once and reported likewise.
    Work(Box<dyn ShardQuery>),
    /// No process is left, or the engine ends with one that is gone. The shard says
    /// [`ShardReport::Left`] with this number when no data of [`Leavers`] is left to be sent.
    Leave(u64, Leavers),
    /// There is one again.
    Stay,
    /// The end, at once.
    Stop,
}

/// A process that has no sockets.
#[derive(Debug, Clone)]
pub(crate) struct Newcomer {
    pub id: ChannelId,
    pub family: Option<Family>,
    /// Hangs up when the process is gone: the registry's end of the control socket.
    pub life: Arc<Fd>,
}

/// A want of a process that came on its control socket.
#[derive(Debug)]
pub(crate) enum Want {
    /// Declares sockets, by (slot, generation), before the process's HELLO is complete. Sockets of
    /// other shards are among them.
    List(Vec<(u32, u32)>),
    /// Begins the process, with these rings, and with its sockets beside those that it declared by
    /// `List`.
    Hello { pid: u32, listed: Vec<(u32, u32)>, link: ChannelLink },
    /// Waits until all earlier work is done: processes that have ended have given their sockets
    /// back.
    Nothing,
    /// Asks leave for a channel for this [`purpose`](towpath_shm::control::purpose), after all
    /// earlier work.
    MayClone(u32),
    /// Makes a channel that holds the process's sockets, after leave was given by `MayClone`.
    Clone { purpose: u32, clone: Newcomer, link: ChannelLink },
    /// Asks which of these, by (slot, generation), the process holds in this shard.
    Tokens(Vec<(u32, u32)>),
    /// Reports that a channel cannot be made, and why: the list that the process made for it is
    /// forgotten.
    NoClone(Errno),
}

/// News of a shard for the registry.
#[derive(Debug)]
pub(crate) enum ShardReport {
    /// A process's want is done. The bits are for [`Want::Tokens`]: one for each socket, set if the
    /// process holds it.
    Done(ChannelId, u64),
    /// A process's want is refused. The want comes back with its descriptors, if it was not made
    /// use of.
    Refused(ChannelId, Errno, Option<Box<Want>>),
    /// A process asks in its cell what the registry knows: the number of that, how the process
    /// calls itself, and what it asks.
    Asks(ChannelId, u64, u32, Box<Request>),
    /// A process's image is gone, or was cut off: what programs may have, too.
    Unlinked(ChannelId, [Arc<Fd>; 2]),
    /// A process broke the rules: no shard hears it any more.
    CutOff(ChannelId),
    /// Every trace of a process is gone. The descriptor by which the shard watched it comes back.
    Ended(ChannelId, Arc<Fd>),
    /// The shard has done a job.
    Answered(ShardJob),
    /// See [`ShardCommand::Leave`].
    Left(u64),
    /// The shard cannot go on.
    Failed,
    /// The shard's loop is over.
    Finished,
}

/// Processes whose last bytes an engine waits for before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leavers {
    /// All processes: there is none.
    All,
    /// Processes that have gone by now. The sockets of others end with the engine.
    Gone,
}

/// A box between two threads, for one direction.
#[derive(Debug)]
pub(crate) struct Mailbox<T>(Arc<MailboxState<T>>);

#[derive(Debug)]
struct MailboxState<T> {
    queue: Mutex<VecDeque<T>>,
    /// There is something in it: a look that takes no lock.
    has_some: AtomicBool,
    bell: Fd,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Mailbox<T> {
    pub fn new() -> io::Result<Self> {
        let (queue, has_some) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self(Arc::new(MailboxState { queue, has_some, bell: notification::create()? })))
    }

    /// Enqueues all messages, and notifies the receiver if the queue was empty.
    pub fn send(&self, all: &mut Vec<T>) {
        if all.is_empty() {
            return;
        }
        let mut queue = self.lock();
        queue.extend(all.drain(..));
        let was_empty = !self.0.has_some.swap(true, Ordering::Release);
        // The woken thread may have the processor at once, and wants the lock.
        drop(queue);
        if was_empty {
            notification::ring(self.notifier());
        }
    }

    /// Whether a look into it is worthwhile.
    pub fn has_some(&self) -> bool {
        self.0.has_some.load(Ordering::Relaxed)
    }

    /// All that is in it.
    pub fn take(&self) -> VecDeque<T> {
        if !self.has_some() {
            return VecDeque::new();
        }
        let mut queue = self.lock();
        self.0.has_some.store(false, Ordering::Release);
        std::mem::take(&mut *queue)
    }

    /// Rung when something comes into the empty box, and never cleared: for an edge-triggered
    /// poller, which tells of each ring once.
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll;

    #[test]
    fn all_that_is_sent_is_taken_in_order_by_who_sleeps_on_the_bell() {
        const ALL: u32 = 20_000;
        let boxed = Mailbox::new().expect("a descriptor");
        let sender = boxed.clone();
        let thread = std::thread::spawn(move || {
            for n in 0..ALL {
                sender.send(&mut vec![n]);
            }
        });
        let mut next = 0;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, boxed.notifier(), epoll::EventData::new_u64(0), wanted).expect("room");
        while next < ALL {
            let mut events = Vec::with_capacity(1);
            let space = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&epoll, space, None).expect("it is open");
            for n in boxed.take() {
                assert_eq!(n, next);
                next += 1;
            }
        }
        thread.join().expect("it does not panic");
        assert!(!boxed.has_some() && boxed.take().is_empty());
    }
}
