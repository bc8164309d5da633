//! Detection of the engine's end, and the leave from the parent's attachment after fork.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Client;

impl Client {
    /// Returns whether the engine has ended, or has given this process up. Makes no system call,
    /// since a program may make only calls that do not wait.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) || self.has_ended() && self.set_dead()
    }

    #[inline]
    fn has_ended(&self) -> bool {
        // Look at one shard only, because all shards give up a process together, and end together.
        let end = &self.links[0];
        end.status.has_ended(self.number) || towpath_ring::has_ended(&end.channel)
    }

    /// Returns whether the engine is alive, by a system call. Kernels without robust lists need it,
    /// because [`Self::is_dead`] does not notice that an engine was killed there.
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

    /// Returns a futex word that changes, or is woken, when [`Self::is_dead`] becomes true, and its
    /// value until then. `None` if a thread that sleeps on it would not be woken.
    pub(crate) fn life(&self) -> Option<(&AtomicU32, u32)> {
        self.links[0].status.life(self.number)
    }

    /// Notes that the engine has ended. The kernel has woken at most one of the sleeping threads,
    /// so the first thread that sees the end wakes all of them. Always returns true.
    #[cold]
    pub(super) fn set_dead(&self) -> bool {
        if !self.dead.swap(true, Ordering::Relaxed) {
            self.links[0].status.wake(self.number);
        }
        true
    }

    /// Returns whether this thread is in a command or a call, so that the caller is a signal
    /// handler. In a child that the handler forks, the interrupted call would go on with the
    /// parent's channel.
    pub fn is_in_midst(&self) -> bool {
        self.links.iter().any(|end| end.commands.is_mine() || end.calls.is_mine())
    }

    /// Closes the parent's control socket and notification descriptors in a child after fork.
    /// Otherwise the engine would not notice the parent's end. The memory stays mapped, because
    /// references to it may live on the stack of the thread that forked.
    ///
    /// A handler may have forked on top of a call. The interrupted call must neither write into the
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

    /// [Abandons](Self::abandon) the parent's attachment in a child that was forked without
    /// [`Self::clone_channel`]. Each further call fails with [`Error::Dead`](crate::Error::Dead).
    pub fn disown(&self) {
        self.abandon();
        self.process.reactor.disown();
        // Do not wake sleeping threads, since those of the parent sleep on the same words.
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Returns whether the attachment belongs to the parent. See [`Self::abandon`].
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
