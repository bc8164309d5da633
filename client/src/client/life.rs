//! Detects that the engine has ended, and gives up the parent's attachment after fork.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Client;

impl Client {
    /// Returns whether the engine has ended, or no longer serves this process. Makes no system
    /// call, because nonblocking socket calls check this, too.
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

    /// Returns a futex word that changes, or is woken, when the engine ends, and the value that it
    /// has until then. Returns `None` if a thread that sleeps on the word would not be woken.
    pub(crate) fn life(&self) -> Option<(&AtomicU32, u32)> {
        self.links[0].status.life(self.number)
    }

    /// Records that the engine has ended, and returns true. The first call wakes all sleeping
    /// threads, because the kernel has woken at most one of them.
    #[cold]
    pub(super) fn set_dead(&self) -> bool {
        if !self.dead.swap(true, Ordering::Relaxed) {
            self.links[0].status.wake(self.number);
        }
        true
    }

    /// Returns whether this thread is sending a command or making a request to the engine. If so,
    /// the caller is a signal handler. If it forked, the interrupted call would continue in the
    /// child on the parent's channel.
    pub fn is_in_midst(&self) -> bool {
        self.links.iter().any(|end| end.commands.is_mine() || end.calls.is_mine())
    }

    /// Closes the parent's control socket and notification descriptors in a forked child. Otherwise
    /// the engine would not notice the parent's end. The memory stays mapped, because the stack of
    /// the thread that forked may contain references to it.
    ///
    /// If a signal handler has forked, the interrupted call continues in the child. There, the
    /// call must neither write into the parent's rings nor take events. Requests fail with
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

    /// [Abandons](Self::abandon) the parent's attachment in a child that was forked without
    /// [`Self::clone_channel`], and so has no channel. Each further call fails with
    /// [`Error::Dead`](crate::Error::Dead).
    pub fn disown(&self) {
        self.abandon();
        self.process.reactor.disown();
        // Do not wake sleeping threads here, because the parent's threads sleep on the same futex
        // words.
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Returns whether the attachment belongs to the parent process, because this is a forked
    /// child. See [`Self::abandon`].
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
