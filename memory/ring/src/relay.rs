//! The relay is the right to run the engine (the network stack), which passes between the threads
//! of a process. When the thread that runs the engine sleeps or stops, another thread takes over.
//!
//! The word `holder` contains 0 or the number of the thread that holds the relay. Any thread
//! without other work may take the relay. A dedicated standby thread takes it if no other thread
//! does. While other threads take the relay, the standby thread costs almost nothing:
//!
//! ```text
//!   waits:      take ─► (works) ─► lend ─► (sleeps) ─► take back ─► (works) ─► leave ─► pass on
//!                 │ another thread holds it
//!                 └──► follow ─► sleeps on the hand-off word and its own words ─► unfollow
//!   stands by:  polls from time to time; not taken since the last poll? take … leave
//!                                        the holder sleeps? rest until a thread leaves
//! ```
//!
//! A thread that waits for an event need not wait for the relay as well. The thread may sleep on
//! its own futex words only.
//!
//! No wake-up is lost: at any time a thread holds the relay, or the standby thread polls. The
//! guarantee relies on two pairs of steps, with a SeqCst fence between the steps of each thread. At
//! least one of two threads sees the other's first step (checked by loom):
//! - A thread that finds the relay taken counts itself as a follower (a thread that waits for the
//!   relay), then checks the relay again. A thread that releases the relay checks for followers
//!   afterwards. Releasing also changes the hand-off word, so that a follower that is about to
//!   sleep on that word does not sleep;
//! - The standby thread announces that it sleeps, then checks whether the relay is taken. A thread
//!   that releases the relay then checks whether the standby thread sleeps. A count of followers
//!   that is too high does no harm; it can occur if a signal handler leaves a call by siglongjmp.

use towpath_shm::atomic::{AtomicU32, Ordering, fence};
use towpath_shm::futex;

/// Value of `holder` if no thread holds the relay (the right to run the engine).
const FREE: u32 = 0;
/// Flag in `holder`: the thread that holds the relay (the right to run the engine) sleeps, so
/// another thread may take it.
const LENT: u32 = 1 << 31;
/// Flag in `holder`: the standby thread holds the relay. Thread numbers are below this value
/// (PID_MAX_LIMIT).
const STAND_BY: u32 = 1 << 30;

/// The right to run the engine (the network stack), which one thread of the process has at a time.
/// Another thread takes it when this thread sleeps or releases it.
///
/// ```
/// use towpath_ring::{Relay, Who};
///
/// let relay = Relay::new();
/// let (me, other) = (Who::Waits.number(1), Who::Asks.number(2));
/// assert!(relay.take(me, Who::Waits).is_some());
/// assert!(relay.take(other, Who::Asks).is_none());
/// // While the holder sleeps, another thread may take the relay and leave it again.
/// relay.lend(me);
/// assert!(relay.take(other, Who::Asks).is_some());
/// assert!(relay.leave(other) && !relay.take_back(me));
/// ```
#[derive(Debug)]
pub struct Relay {
    holder: AtomicU32,
    /// Futex word on which threads sleep that wait for the relay (followers). The word changes when
    /// the relay is released.
    baton: AtomicU32,
    /// Number of threads that wait for the relay (the right to run the engine): they sleep on
    /// `baton`, or are about to.
    following: AtomicU32,
    /// Number of threads that would take the relay (the right to run the engine), but sleep on
    /// other futex words than `baton`. The closure passed to `pass_on` wakes them.
    elsewhere: AtomicU32,
    /// Futex word of the standby thread, which takes the relay (the right to run the engine) if no
    /// other thread does; 1 while it sleeps.
    rests: AtomicU32,
    /// Number of times that a thread wanted the relay (the right to run the engine), or progress of
    /// the engine, while another thread held it.
    wanted: AtomicU32,
}

/// Kind of thread. The kind determines whether the thread may take the relay (the right to run the
/// engine) from a sleeping thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A thread that would otherwise sleep. The thread may take the relay (the right to run the
    /// engine) if it is free or held by the sleeping standby thread.
    Waits,
    /// A thread with a request to the engine. The thread may take the relay (the right to run the
    /// engine) if it is free or held by any sleeping thread.
    Asks,
    /// The standby thread. The thread may take the relay (the right to run the engine) only if it
    /// is free.
    StandsBy,
}

/// State of the relay (the right to run the engine) before it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// No thread held the relay.
    Free,
    /// A sleeping thread held the relay (the right to run the engine). An event on its own futex
    /// words will wake it.
    FromSleeper,
    /// The sleeping standby thread held the relay (the right to run the engine). Tell it to poll
    /// again later.
    FromStandBy,
}

impl Who {
    /// Returns the value of `holder` if a thread of this kind with number `thread` holds the relay.
    pub const fn number(self, thread: u32) -> u32 {
        match self {
            Self::StandsBy => thread | STAND_BY,
            Self::Waits | Self::Asks => thread,
        }
    }

    fn may_take(self, holder: u32) -> bool {
        let is_lent_by_stand_by = holder & (LENT | STAND_BY) == LENT | STAND_BY;
        match self {
            Self::Waits => holder == FREE || is_lent_by_stand_by,
            Self::Asks => holder == FREE || holder & LENT != 0,
            Self::StandsBy => holder == FREE,
        }
    }
}

impl Default for Relay {
    fn default() -> Self {
        Self::new()
    }
}

impl Relay {
    /// Creates a free relay.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        let [holder, baton, following, elsewhere, rests, wanted] = [const { AtomicU32::new(0) }; 6];
        Self { holder, baton, following, elsewhere, rests, wanted }
    }

    /// Creates a free relay. Not `const`, because loom's atomics cannot be created in constants.
    #[cfg(loom)]
    pub fn new() -> Self {
        let [holder, baton, following, elsewhere, rests, wanted] =
            std::array::from_fn(|_| AtomicU32::new(0));
        Self { holder, baton, following, elsewhere, rests, wanted }
    }

    /// Returns whether a thread of the kind `who` may take the relay (the right to run the engine)
    /// now.
    pub fn is_free_for(&self, who: Who) -> bool {
        who.may_take(self.holder.load(Ordering::Relaxed))
    }

    /// Takes the relay (the right to run the engine) for the thread with number `me`
    /// ([`Who::number`]). Returns `None` if `who` may not take it now.
    pub fn take(&self, me: u32, who: Who) -> Option<Taken> {
        let before = self.holder.load(Ordering::Relaxed);
        if !who.may_take(before) {
            return None;
        }
        let taken =
            self.holder.compare_exchange(before, me, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(match taken {
            FREE => Taken::Free,
            holder if holder & STAND_BY != 0 => Taken::FromStandBy,
            _ => {
                self.want();
                Taken::FromSleeper
            }
        })
    }

    /// Counts that a thread wanted the relay (the right to run the engine), or progress of the
    /// engine, while another thread held it.
    pub fn want(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often [`Self::want`] was called; wraps.
    pub fn wanted(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Returns whether thread `me` holds the relay (the right to run the engine) and does not
    /// sleep.
    pub fn has(&self, me: u32) -> bool {
        self.holder.load(Ordering::Relaxed) == me
    }

    /// Lends the relay (the right to run the engine): thread `me` holds it and is about to sleep,
    /// so other threads may take it. Then the thread must check [`Self::has_followers`]. A thread
    /// that waits for the relay is either counted there, or sees that the relay is lent.
    pub fn lend(&self, me: u32) {
        self.holder.store(me | LENT, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Takes back the relay (the right to run the engine), which this thread lent to others during
    /// its sleep. Returns false if another thread has taken it.
    pub fn take_back(&self, me: u32) -> bool {
        let back =
            self.holder.compare_exchange(me | LENT, me, Ordering::Acquire, Ordering::Relaxed);
        back.is_ok()
    }

    /// Releases the relay. Returns true if the thread held it; the caller must then call
    /// [`Self::pass_on`].
    pub fn leave(&self, me: u32) -> bool {
        self.holder.compare_exchange(me, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Releases the relay (the right to run the engine) even if it is lent. Used by a signal
    /// handler that interrupted a sleeping thread which holds the relay.
    pub fn abandon(&self, me: u32) -> bool {
        self.leave(me) || self.leave(me | LENT)
    }

    /// Wakes a thread that waits for the relay (the right to run the engine), after the relay was
    /// released. `tell` wakes one that sleeps on other words than the hand-off word.
    pub fn pass_on(&self, tell: impl FnOnce()) {
        fence(Ordering::SeqCst);
        if self.following.load(Ordering::Relaxed) > 0 {
            self.baton.fetch_add(1, Ordering::Release);
            futex::wake(&self.baton, 1);
        } else if self.elsewhere.load(Ordering::Relaxed) > 0 {
            tell();
        }
        if self.rests.load(Ordering::Relaxed) != 0 && self.rests.swap(0, Ordering::Relaxed) != 0 {
            futex::wake(&self.rests, 1);
        }
    }

    /// Counts this thread as waiting for the relay (the right to run the engine) until
    /// [`Self::unfollow`]. Returns the value of the hand-off word for the futex wait; `None` if the
    /// relay can be taken now.
    pub fn follow(&self) -> Option<u32> {
        let baton = self.baton.load(Ordering::Acquire);
        self.following.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_free_for(Who::Waits) {
            self.following.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.want();
        Some(baton)
    }

    /// Returns the futex word on which followers (threads that wait for the relay) sleep.
    pub fn handoff(&self) -> &AtomicU32 {
        &self.baton
    }

    /// Ends the wait that [`Self::follow`] began. Returns true if the caller must call
    /// [`Self::pass_on`]: a release of the relay may have woken this thread instead of another one
    /// that waits for it.
    pub fn unfollow(&self) -> bool {
        self.following.fetch_sub(1, Ordering::Relaxed);
        self.holder.load(Ordering::Relaxed) == FREE && self.has_followers()
    }

    /// Counts this thread as sleeping on other futex words, until [`Self::get_up`]. From now on, a
    /// thread that releases the relay (the right to run the engine) may wake it, even before it
    /// sleeps.
    pub fn lie_down(&self) {
        self.elsewhere.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends the sleep that [`Self::lie_down`] began.
    pub fn get_up(&self) {
        self.elsewhere.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether a sleeping thread would take the relay (the right to run the engine) if it
    /// were released.
    pub fn has_followers(&self) -> bool {
        self.following.load(Ordering::Relaxed) > 0 || self.elsewhere.load(Ordering::Relaxed) > 0
    }

    /// Makes the standby thread sleep until another thread releases the relay. Returns at once if
    /// the relay is free.
    pub fn rest(&self) {
        self.rests.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.holder.load(Ordering::Relaxed) == FREE {
            self.rests.store(0, Ordering::Relaxed);
            return;
        }
        while self.rests.load(Ordering::Relaxed) != 0 {
            futex::wait(&self.rests, 1, None);
        }
    }
}
