//! How a process sees the end of its engine, and leaves its parent's attachment after fork.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Client;

impl Client {
    /// Whether the engine is gone, or has given this process up. Without a system call, since a
    /// program may make only calls that do not wait.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) || self.has_ended() && self.set_dead()
    }

    #[inline]
    fn has_ended(&self) -> bool {
        // A process that one shard gave up is given up by all, and shards end together.
        let end = &self.links[0];
        end.status.has_ended(self.number) || towpath_ring::has_ended(&end.channel)
    }

    /// The same by a system call, for where [`Self::is_dead`] says nothing of an engine that was
    /// killed: on kernels without robust lists.
    pub fn check_alive(&self) -> bool {
        if self.is_dead() || self.is_abandoned() {
            return false;
        }
        let mut byte = [MaybeUninit::uninit(); 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let gone = match recv(self.control.borrow(), &mut byte, flags) {
            Ok((_, received)) => received == 0,
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        };
        if gone {
            self.set_dead();
        }
        !gone
    }

    /// A futex word that changes, or is woken, when [`Self::is_dead`] becomes true, and its value
    /// until then. None: a thread that sleeps on it would not be woken.
    pub(crate) fn life(&self) -> Option<(&AtomicU32, u32)> {
        self.links[0].status.life(self.number)
    }

    /// Notes that the engine is gone. The kernel has woken at most one of the sleeping threads, so
    /// the first one that sees the end wakes the others. Always returns true.
    #[cold]
    pub(super) fn set_dead(&self) -> bool {
        if !self.dead.swap(true, Ordering::Relaxed) {
            self.links[0].status.wake(self.number);
        }
        true
    }

    /// Whether this thread is in a command or a call. The caller is then a signal handler; in a
    /// child that it forks, the interrupted call would go on with the parent's channel.
    pub fn is_in_midst(&self) -> bool {
        self.links.iter().any(|end| end.commands.is_mine() || end.calls.is_mine())
    }

    /// In the child after fork: gives up the parent's control socket and notification descriptors.
    /// Otherwise the engine would not notice the parent's end. The memory stays mapped: references
    /// to it may live on the stack of the thread that forked.
    ///
    /// A handler may have forked on top of a call. When that goes on, it must not write into the
    /// parent's rings nor take its events; requests fail with `Error::Forked`.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        let fds = [&self.control, &self.notifier, &self.blank, &self.spare];
        let notifiers = self.links.iter().map(|end| &end.engine_notifier);
        for fd in fds.into_iter().chain(&self.death_pipe).chain(notifiers) {
            fd.close();
        }
        if let Some(driver) = self.driver {
            driver.forget();
        }
    }

    /// In a child that forks without the care of [`Self::clone_channel`]:
    /// [abandons](Self::abandon) the parent's attachment, and has every further call fail with
    /// [`Error::Dead`](crate::Error::Dead).
    pub fn disown(&self) {
        self.abandon();
        self.process.reactor.disown();
        // The parent's threads sleep on the same words: they are not woken.
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Whether it was the parent's, and this is the child. See [`Self::abandon`].
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
