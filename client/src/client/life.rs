//! Detects the end of the engine (the network stack), and detaches a forked child from its parent's
//! connection.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Client;

impl Client {
    /// Returns whether the engine has ended or no longer serves this process. Makes no system call,
    /// because even nonblocking socket calls check this.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) || self.has_ended() && self.set_dead()
    }

    #[inline]
    fn has_ended(&self) -> bool {
        // Check one shard only, because all shards end together, and stop serving a process
        // together.
        let end = &self.links[0];
        end.status.has_ended(self.number) || towpath_ring::has_ended(&end.channel)
    }

    /// Checks by a system call whether the engine is alive. Needed on kernels without robust futex
    /// lists, where [`Self::is_dead`] does not notice that an engine was killed.
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

    /// Returns a futex word that changes, or is woken, when the engine ends, and its value before.
    /// Returns `None` if threads that wait for the word would not be woken.
    pub(crate) fn life(&self) -> Option<(&AtomicU32, u32)> {
        self.links[0].status.life(self.number)
    }

    /// Records that the engine has ended, and returns true. The first call wakes all waiting
    /// threads, because the kernel wakes at most one.
    #[cold]
    pub(super) fn set_dead(&self) -> bool {
        if !self.dead.swap(true, Ordering::Relaxed) {
            self.links[0].status.wake(self.number);
        }
        true
    }

    /// Returns whether this thread is sending a command or a request to the engine, so that the
    /// caller is a signal handler. The signal handler must not fork: the interrupted call would
    /// continue in the child, on the parent's channel.
    pub fn is_in_midst(&self) -> bool {
        self.links.iter().any(|end| end.commands.is_mine() || end.calls.is_mine())
    }

    /// Closes the parent's control socket and notification descriptors in a forked child. Otherwise
    /// the engine would not notice the end of the parent. The shared memory stays mapped, because
    /// the child's call stack may contain references to it.
    ///
    /// If a signal handler has forked, the interrupted call continues in the child as well. There,
    /// the call neither writes to the parent's rings nor takes events. Requests fail with
    /// `Error::Forked`.
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

    /// [Abandons](Self::abandon) the parent's connection to the engine in a child that has none of
    /// its own, because it was forked without [`Self::clone_channel`]. Further calls fail with
    /// [`Error::Dead`](crate::Error::Dead).
    pub fn disown(&self) {
        self.abandon();
        self.process.reactor.disown();
        // Do not wake waiting threads: the parent's threads wait for the same futex words.
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Returns whether this is a forked child, so that the connection belongs to the parent. See
    /// [`Self::abandon`].
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
