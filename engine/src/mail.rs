//! Messages between the registry and a shard, and the mailboxes between their threads.
//!
//! ```text
//!   registry ── commands ──► shard    requests of processes from control sockets; queries
//!            ◄── reports ───          results; descriptors to be closed; ended processes
//! ```
//!
//! A thread waits for the other thread only to lock the mailbox. Messages are delivered in order,
//! so the registry's last commands about a process arrive before its id is reused. The number of
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
    /// A process has attached to the run.
    Open(Newcomer),
    /// The shard's part of a request of a process, which has one such request at a time. The shard
    /// answers each request by [`ShardReport::Done`] or [`ShardReport::Refused`].
    For(ChannelId, Box<Want>),
    /// The reply to the [`ShardReport::Asks`] with this number.
    Answer(ChannelId, u64, Box<ControlReply>),
    /// A process's control socket was closed, usually because the process has ended. The shard may
    /// know this already.
    Gone(ChannelId),
    /// A process violated the protocol of the control socket.
    CutOff(ChannelId),
    /// A job to do after all earlier commands. The shard reports it by [`ShardReport::Answered`] or
    /// [`ShardReport::Settled`].
    Job(ShardJob),
    /// Work for the first shard, which does it at once and reports it by [`ShardReport::Answered`].
    Work(Box<dyn ShardQuery>),
    /// No process is left, or the process with which the engine ends has ended. The shard sends
    /// [`ShardReport::Left`] with this number after all data of [`Leavers`] is sent.
    Leave(u64, Leavers),
    /// Cancels `Leave`, because a process has attached.
    Stay,
    /// The shard must stop at once.
    Stop,
}

/// A new process without sockets.
#[derive(Debug, Clone)]
pub(crate) struct Newcomer {
    pub id: ChannelId,
    pub family: Option<Family>,
    /// The registry's end of the control socket, which hangs up when the process ends.
    pub life: Arc<Fd>,
}

/// A request that a process sent on its control socket.
#[derive(Debug)]
pub(crate) enum Want {
    /// Lists sockets by (slot, generation), before the process's HELLO is complete. Sockets of
    /// other shards may be among them.
    List(Vec<(u32, u32)>),
    /// Begins the process with these rings, and with these sockets in addition to those of `List`.
    Hello { pid: u32, listed: Vec<(u32, u32)>, link: ChannelLink },
    /// Requests a reply after all earlier work, so that ended processes have released their
    /// sockets.
    Nothing,
    /// Checks, after all earlier work, whether a channel may be created for this
    /// [`purpose`](towpath_shm::control::purpose).
    MayClone(u32),
    /// Creates a channel that holds the process's sockets. Sent after `MayClone` was granted.
    Clone { purpose: u32, clone: Newcomer, link: ChannelLink },
    /// Asks which of these sockets, by (slot, generation), the process holds in this shard.
    Tokens(Vec<(u32, u32)>),
    /// Clears the process's list of sockets, because a channel cannot be created for this reason.
    NoClone(Errno),
}

/// Reports of a shard to the registry.
#[derive(Debug)]
pub(crate) enum ShardReport {
    /// A process's request was executed. For [`Want::Tokens`], contains a bit set of the sockets
    /// that the process holds.
    Done(ChannelId, u64),
    /// A process's request was refused. Contains the request with its descriptors, if they were not
    /// used.
    Refused(ChannelId, Errno, Option<Box<Want>>),
    /// A process sent a request in its request slot that the registry has to answer. Contains the
    /// request's number, the process id as sent, and the request.
    Asks(ChannelId, u64, u32, Box<Request>),
    /// A process image has ended or was cut off. Contains its notification descriptors to be
    /// closed.
    Unlinked(ChannelId, [Arc<Fd>; 2]),
    /// A process violated the protocol, and all shards have to end it.
    CutOff(ChannelId),
    /// The shard has removed the process. Contains the descriptor by which the shard watched it.
    Ended(ChannelId, Arc<Fd>),
    /// A reply to [`ShardJob::Ask`], for the thread that sent the query.
    Answered(ShardAnswer),
    /// The shard has done [`ShardJob::Settle`].
    Settled,
    /// See [`ShardCommand::Leave`].
    Left(u64),
    /// The shard's thread has failed (panicked).
    Failed,
    /// The shard's loop has ended.
    Finished,
}

/// Processes whose data has to be sent before the engine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leavers {
    /// All processes, because all have ended.
    All,
    /// Processes that have ended by now. Data of other processes is not waited for, and their
    /// sockets end with the engine.
    Gone,
}

/// A queue of messages from one thread to another.
#[derive(Debug)]
pub(crate) struct Mailbox<T>(Arc<MailboxState<T>>);

#[derive(Debug)]
struct MailboxState<T> {
    queue: Mutex<VecDeque<T>>,
    /// Whether messages are queued, readable without the lock.
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
        // Unlock first, because the woken thread may run at once and needs the lock.
        drop(queue);
        if was_empty {
            notification::ring(self.notifier());
        }
    }

    /// Returns whether messages may be queued.
    pub fn has_some(&self) -> bool {
        self.0.has_some.load(Ordering::Relaxed)
    }

    /// Takes all queued messages.
    pub fn take(&self) -> VecDeque<T> {
        if !self.has_some() {
            return VecDeque::new();
        }
        let mut queue = self.lock();
        self.0.has_some.store(false, Ordering::Release);
        std::mem::take(&mut *queue)
    }

    /// Returns the notification, which is sent when the queue was empty. We never clear it, because
    /// the poller is edge-triggered.
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
