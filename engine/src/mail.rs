//! Messages between the registry and a shard, and the mailboxes between their threads.
//!
//! ```text
//!   registry ── commands ──► shard    requests of processes from control sockets; queries
//!            ◄── reports ───          results; descriptors to be closed; ended processes
//! ```
//!
//! A thread waits for another thread only to lock a mailbox. Messages are delivered in order, so
//! the registry's last commands about a process arrive before its ID is reused. The number of
//! queued messages is bounded: a process has at most one request at the registry, and ends once.
//! Long listings take one message per turn.

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
use crate::query::{ShardAnswer, ShardJob, ShardQuery};

/// Commands of the registry to a shard.
#[derive(Debug)]
pub(crate) enum ShardCommand {
    /// A process has attached to the run, and has no sockets yet.
    Open(Newcomer),
    /// A request of a process, of which the shard must do its part. A process has only one such
    /// request at a time. The shard answers each by [`ShardReport::Done`] or
    /// [`ShardReport::Refused`].
    For(ChannelId, Box<Want>),
    /// The reply to the [`ShardReport::Asks`] that had this number.
    Answer(ChannelId, u64, Box<ControlReply>),
    /// A process's control socket was closed, usually because the process has ended. The shard may
    /// have noticed the end already.
    Gone(ChannelId),
    /// A process has violated the protocol of the control socket, so the shard must remove it.
    CutOff(ChannelId),
    /// A job that the shard must do after all earlier commands. The shard then sends
    /// [`ShardReport::Answered`] or [`ShardReport::Settled`].
    Job(ShardJob),
    /// A job that the first shard must do at once. The shard then sends [`ShardReport::Answered`].
    Work(Box<dyn ShardQuery>),
    /// The engine is about to end: no process is left, or its host process has ended. The shard
    /// must send [`ShardReport::Left`] with this number after all data of [`Leavers`] is sent.
    Leave(u64, Leavers),
    /// Cancels [`ShardCommand::Leave`], because a process has attached.
    Stay,
    /// The shard must end its event loop at once.
    Stop,
}

/// A new process, which has no sockets yet.
#[derive(Debug, Clone)]
pub(crate) struct Newcomer {
    pub id: ChannelId,
    pub family: Option<Family>,
    /// The registry's end of the process's control socket, which reports a hang-up when the process
    /// ends.
    pub life: Arc<Fd>,
}

/// A request that a process has sent on its control socket, forwarded by the registry.
#[derive(Debug)]
pub(crate) enum Want {
    /// Lists sockets that the process has, by slot and generation. Precedes a HELLO that is too
    /// short for all of them. Sockets of other shards may be among them.
    List(Vec<(u32, u32)>),
    /// Starts serving the process over these rings. `listed` are sockets that it has in addition to
    /// those of [`Want::List`].
    Hello { pid: u32, listed: Vec<(u32, u32)>, link: ChannelLink },
    /// Requests only a reply after all earlier work. Processes that have ended by then have
    /// released their sockets.
    Nothing,
    /// Checks whether a channel may be created for this [`purpose`](towpath_shm::control::purpose),
    /// after all earlier work is done.
    MayClone(u32),
    /// Creates a channel for a process that inherits the sockets of this one. Sent after
    /// [`Want::MayClone`] was granted.
    Clone { purpose: u32, clone: Newcomer, link: ChannelLink },
    /// Asks which of these sockets of this shard, listed by slot and generation, the process has a
    /// descriptor for.
    Tokens(Vec<(u32, u32)>),
    /// Discards the list of sockets that the process has sent for a clone, because no channel can
    /// be created. Contains the reason.
    NoClone(Errno),
}

/// Reports of a shard to the registry.
#[derive(Debug)]
pub(crate) enum ShardReport {
    /// A process's request was executed. For [`Want::Tokens`], the number is a bit set of the
    /// sockets that the process has.
    Done(ChannelId, u64),
    /// A process's request was refused. Contains the request with its descriptors, if the shard has
    /// not used them.
    Refused(ChannelId, Errno, Option<Box<Want>>),
    /// A process has written a request that the registry must answer to its request slot in shared
    /// memory. Contains the number of the request, the process ID as the process sent it, and the
    /// request.
    Asks(ChannelId, u64, u32, Box<Request>),
    /// A process image has ended or was removed. Contains its notification descriptors, which must
    /// be closed.
    Unlinked(ChannelId, [Arc<Fd>; 2]),
    /// A process has violated the protocol, so all shards must remove it.
    CutOff(ChannelId),
    /// The shard has removed the process. Contains the descriptor with which the shard noticed its
    /// end.
    Ended(ChannelId, Arc<Fd>),
    /// The answer to [`ShardJob::Ask`], for the thread that sent the query.
    Answered(ShardAnswer),
    /// The shard has handled all commands that preceded [`ShardJob::Settle`].
    Settled,
    /// The shard has sent the data of [`ShardCommand::Leave`]. Contains the number from that
    /// command.
    Left(u64),
    /// The thread of the shard has panicked.
    Failed,
    /// The event loop of the shard has ended.
    Finished,
}

/// Processes whose unsent data delays the end of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leavers {
    /// All processes, which have all ended.
    All,
    /// Only processes that have ended by now. Sockets of running processes end with the engine,
    /// without a wait for their data.
    Gone,
}

/// A queue of messages from one thread to another.
#[derive(Debug)]
pub(crate) struct Mailbox<T>(Arc<MailboxState<T>>);

#[derive(Debug)]
struct MailboxState<T> {
    queue: Mutex<VecDeque<T>>,
    /// Whether messages are queued. Can be read without the lock.
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

    /// Enqueues all messages, and notifies the receiving thread if the queue was empty.
    pub fn send(&self, all: &mut Vec<T>) {
        if all.is_empty() {
            return;
        }
        let mut queue = self.lock();
        queue.extend(all.drain(..));
        let was_empty = !self.0.has_some.swap(true, Ordering::Release);
        // Release the lock before the notification, because the woken thread needs it and may run
        // at once.
        drop(queue);
        if was_empty {
            notification::ring(self.notifier());
        }
    }

    /// Returns whether messages may be queued. Takes no lock.
    pub fn has_some(&self) -> bool {
        self.0.has_some.load(Ordering::Relaxed)
    }

    /// Removes and returns all queued messages.
    pub fn take(&self) -> VecDeque<T> {
        if !self.has_some() {
            return VecDeque::new();
        }
        let mut queue = self.lock();
        self.0.has_some.store(false, Ordering::Release);
        std::mem::take(&mut *queue)
    }

    /// Returns the descriptor that notifies the receiver of messages in an empty queue. The
    /// descriptor is never read, because the poller watches it edge-triggered.
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
