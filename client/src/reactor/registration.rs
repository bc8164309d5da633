//! [`Registration`], with which an event of a socket wakes a task of an async runtime.

use std::task::{Poll, Waker};

use towpath_ring::WaitingTask;

use super::locked::{ALWAYS, LockedReactor, Result};
use crate::watches::{EventWatch, WatchTarget};
use crate::{Client, Process, Socket, ready, stream};

/// Interest of an async task in a socket: an event wakes the task by its [`Waker`]. Dropping this
/// value ends the interest.
///
/// A waker may be any callback ([`std::task::Wake`]). The waker is called by a thread that takes
/// events out of the rings, without a lock of this crate. Therefore it may call functions of this
/// crate.
///
/// Several registrations for one socket are independent of each other. If several threads poll one
/// registration, the last waker is woken. A registration needs no descriptor and no system call,
/// and allocates memory only while the table of watches grows.
///
/// Drop a registration before the [`Client`], and not in a signal handler.
#[derive(Debug)]
pub struct Registration {
    process: &'static Process,
    socket: Socket,
    index: u32,
}

impl Registration {
    /// Creates a registration that wakes no task yet.
    ///
    /// # Errors
    /// As for [`Process::lock_reactor`].
    pub fn new(client: &Client, socket: Socket) -> Result<Self> {
        let process = client.process();
        let watch = EventWatch::new(socket, 0, WatchTarget::Task(WaitingTask::default()), 0);
        let index = process.lock_reactor()?.watch(watch);
        Ok(Self { process, socket, index })
    }

    /// Returns the events of `interest` for which the socket is ready, as bits of [`ready`]. Errors
    /// and hang-ups ([`ALWAYS`]) are always included.
    ///
    /// If there are none, stores `waker` in place of the former one, and wakes it once when an
    /// event arrives. Wake-ups may be spurious, so poll again.
    ///
    /// A socket is also ready if it was closed or its engine has ended.
    ///
    /// # Errors
    /// As for [`Process::lock_reactor`].
    pub fn poll_ready(&self, client: &Client, interest: u32, waker: &Waker) -> Poll<Result<u32>> {
        self.poll(client, interest | ALWAYS, waker, || self.socket.readiness(client))
    }

    /// Like [`Self::poll_ready`], after a write has failed with `WouldBlock` or
    /// [`stream::request_memory`] was called.
    ///
    /// [`Socket::readiness`] reports a socket without send buffer memory as writable, because its
    /// first write requests memory. Here, the socket is writable only after the engine has answered
    /// the request.
    ///
    /// # Errors
    /// As for [`Process::lock_reactor`].
    pub fn poll_room(&self, client: &Client, interest: u32, waker: &Waker) -> Poll<Result<u32>> {
        self.poll(client, interest | ALWAYS, waker, || {
            // Read this before the readiness. If the engine provides memory in between, an event
            // follows.
            let lacks_memory = stream::lacks_memory(client, self.socket);
            let mask = self.socket.readiness(client);
            if lacks_memory && mask & ALWAYS == 0 { mask & !ready::OUT } else { mask }
        })
    }

    /// Like [`Self::poll_ready`], but waits for the next event even if the socket is ready. Only a
    /// socket that was closed is ready at once.
    ///
    /// # Errors
    /// As for [`Process::lock_reactor`].
    pub fn poll_event(&self, client: &Client, interest: u32, waker: &Waker) -> Poll<Result<u32>> {
        self.poll(client, interest | ALWAYS, waker, || 0)
    }

    fn poll(
        &self,
        client: &Client,
        wanted: u32,
        waker: &Waker,
        readiness: impl Fn() -> u32,
    ) -> Poll<Result<u32>> {
        let mask = readiness() & wanted;
        if mask != 0 {
            return Poll::Ready(Ok(mask));
        }
        // Clone and drop wakers without holding the lock, because both run code of the async
        // runtime.
        let waker = waker.clone();
        let (mask, unused) = match self.process.lock_reactor() {
            Ok(mut hub) => hub.wake_task(self.index, wanted, waker, || {
                if wanted & ready::OUT != 0 {
                    self.socket.want_room(client);
                }
                readiness()
            }),
            Err(error) => return Poll::Ready(Err(error)),
        };
        drop(unused);
        if mask == 0 { Poll::Pending } else { Poll::Ready(Ok(mask)) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.process.reactor.is_disowned() {
            return;
        }
        let Ok(mut hub) = self.process.lock_reactor() else { return };
        let waker = hub.forget_task(self.index);
        drop(hub);
        drop(waker);
    }
}

impl LockedReactor<'_> {
    /// Arranges that the next event wakes a task, unless the socket is ready for one of the
    /// `wanted` events. Returns the events for which it is ready, and the waker that is not needed
    /// any more.
    fn wake_task(
        &mut self,
        index: u32,
        wanted: u32,
        waker: Waker,
        readiness: impl FnOnce() -> u32,
    ) -> (u32, Option<Waker>) {
        let watch = &mut self.watches[index];
        if watch.gone {
            return (ready::ERR | ready::HUP, Some(waker));
        }
        watch.events = wanted;
        let WatchTarget::Task(task) = &mut watch.target else { return (0, Some(waker)) };
        // The watch is already in the table, so a later event wakes the task. The effect of an
        // earlier event is visible in the readiness, which is read now.
        task.wait(waker, || readiness() & wanted)
    }

    /// Removes a task's watch (registered interest). Returns its waker, which the caller must drop
    /// after releasing the lock.
    fn forget_task(&mut self, index: u32) -> Option<Waker> {
        let WatchTarget::Task(task) = &mut self.watches[index].target else { return None };
        let waker = task.take();
        self.release(index);
        waker
    }
}
