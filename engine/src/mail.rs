//! Messages between the registry (process manager) and a shard (an event loop), and the mailboxes
//! between their threads.
//!
//! ```text
//!   registry ── commands ──► shard    requests of processes from control sockets; queries
//!            ◄── reports ───          results; descriptors to be closed; ended processes
//! ```
//!
//! A thread waits for another thread only while it locks a mailbox. Messages are delivered in
//! order, so the registry's last commands about a process arrive before its ID is reused. The
//! number of queued messages is bounded, because a process has at most one request at the registry,
//! and ends once. Long listings take one message per iteration of the event loop.

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
    /// A new process has attached. The process has no sockets yet.
    Open(Newcomer),
    /// A request of a process, in which this shard (event loop) takes part. A process has only one
    /// such request at a time. The shard answers it by [`ShardReport::Done`] or
    /// [`ShardReport::Refused`].
    For(ChannelId, Box<Want>),
    /// The reply to the [`ShardReport::Asks`] with this number.
    Answer(ChannelId, u64, Box<ControlReply>),
    /// The control socket of a process was closed, usually because the process has ended. The shard
    /// (event loop) may already know this.
    Gone(ChannelId),
    /// A process has violated the protocol on its control socket. The shard (event loop) must
    /// remove it.
    CutOff(ChannelId),
    /// A job for the shard (event loop), to be done after all earlier commands. The shard then
    /// sends [`ShardReport::Answered`] or [`ShardReport::Settled`].
    Job(ShardJob),
    /// A job for the first shard (event loop), to be done at once. The shard then sends
    /// [`ShardReport::Answered`].
    Work(Box<dyn ShardQuery>),
    /// The engine is about to end, because no process is left or its host process has ended. When
    /// all data of [`Leavers`] is sent, the shard (event loop) must send [`ShardReport::Left`] with
    /// this number.
    Leave(u64, Leavers),
    /// Cancels [`ShardCommand::Leave`], because a process has attached.
    Stay,
    /// Ends the shard's event loop at once.
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

/// A request that a process has sent on its control socket, and that the registry (process manager)
/// forwards to shards.
#[derive(Debug)]
pub(crate) enum Want {
    /// Lists sockets of the process by slot and generation, including sockets of other shards. Sent
    /// before a HELLO (first request of a program) that is too short for all of them.
    List(Vec<(u32, u32)>),
    /// Starts serving the process over these rings. `listed` contains its sockets in addition to
    /// those of [`Want::List`].
    Hello { pid: u32, listed: Vec<(u32, u32)>, link: ChannelLink },
    /// Requests a reply after all earlier work is done. The sockets of processes that have already
    /// ended are then released.
    Nothing,
    /// Requests a check, after all earlier work is done, whether a channel (connection to the
    /// engine) may be created for this [`purpose`](towpath_shm::control::purpose).
    MayClone(u32),
    /// Creates a channel (connection to the engine) for a process that inherits the sockets of this
    /// one, after [`Want::MayClone`] was granted.
    Clone { purpose: u32, clone: Newcomer, link: ChannelLink },
    /// Requests which of these sockets of this shard (event loop), by slot and generation, the
    /// process has open.
    Tokens(Vec<(u32, u32)>),
    /// Discards the list of sockets that the process has sent for a clone, because no channel can
    /// be created. Contains the reason.
    NoClone(Errno),
}

/// Reports of a shard to the registry.
#[derive(Debug)]
pub(crate) enum ShardReport {
    /// The shard (event loop) has executed a request of a process. For [`Want::Tokens`], the number
    /// is a bit set of the sockets that the process has.
    Done(ChannelId, u64),
    /// The shard (event loop) has rejected a request of a process. Contains the request with its
    /// descriptors, if the shard has not used them.
    Refused(ChannelId, Errno, Option<Box<Want>>),
    /// A process has written a request to its request slot in shared memory that the registry
    /// (process manager) must answer. Contains the number of the request, the process ID according
    /// to the process, and the request.
    Asks(ChannelId, u64, u32, Box<Request>),
    /// A program has ended or was removed. Contains its notification descriptors, which the
    /// registry (process manager) must close.
    Unlinked(ChannelId, [Arc<Fd>; 2]),
    /// A process has violated the protocol. The registry (process manager) makes all shards remove
    /// it.
    CutOff(ChannelId),
    /// The shard (event loop) has removed the process. Contains the descriptor by which the shard
    /// has detected its end.
    Ended(ChannelId, Arc<Fd>),
    /// The answer to [`ShardJob::Ask`], for the thread that has sent the query.
    Answered(ShardAnswer),
    /// The shard (event loop) has executed all commands before [`ShardJob::Settle`].
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
    /// All processes. All of them have ended.
    All,
    /// Only processes that have already ended. Sockets of running processes are reset when the
    /// engine ends.
    Gone,
}

/// A queue of messages between two threads of the engine.
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

    /// Returns the eventfd that is written when a message arrives in an empty queue. The eventfd is
    /// never read, because the receiver watches it edge-triggered.
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
