//! Hand-over of a task between threads of a process: one thread performs it, and another continues
//! when it sleeps or leaves.
//!
//! The word `holder` is 0, or the number of the thread that holds the relay. Any thread with
//! nothing else to do may take it; the standby thread takes it if no other thread does. While other
//! threads are busy, the standby thread costs nothing:
//!
//! ```text
//!   waits:      take ─► (works) ─► lend ─► (sleeps) ─► take back ─► (works) ─► leave ─► pass on
//!                 │ another thread holds it
//!                 └──► follow ─► sleeps on the hand-off word and its own words ─► unfollow
//!   stands by:  polls from time to time; not taken since the last poll? take … leave
//!                                        the holder sleeps? rest until a thread leaves
//! ```
//!
//! A thread that waits need not follow: it may sleep only on its own words, and leave the relay to
//! other threads.
//!
//! No wake-up is lost: either a thread holds the relay, or the standby thread polls. The rule
//! relies on two pairs of steps, with a SeqCst fence between the steps of each thread. At least one
//! of two threads sees the other's step (checked by loom):
//! - A thread that finds the relay taken counts itself as a follower, then checks the relay again.
//!   A thread that leaves frees the relay, then checks for followers. Leaving also changes the
//!   hand-off word, so that a follower that is about to sleep on it does not;
//! - The standby thread announces that it rests, then checks whether the relay is taken. A thread
//!   that leaves frees the relay, then checks whether the standby thread rests. Stale counts of
//!   followers therefore do no harm: a signal handler may leave a call by siglongjmp.

use towpath_shm::atomic::{AtomicU32, Ordering, fence};
use towpath_shm::futex;

/// No thread holds the relay.
const FREE: u32 = 0;
/// Flag of a holder that sleeps, so that other threads may take the relay.
const LENT: u32 = 1 << 31;
/// Flag of a holder that is the standby thread. Thread numbers are below it (PID_MAX_LIMIT).
const STAND_BY: u32 = 1 << 30;

/// A relay that one thread of the process holds at a time; another thread takes it when the holder
/// sleeps or leaves.
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
    /// Futex word of the followers; changes when the relay is passed on.
    baton: AtomicU32,
    /// Number of threads that sleep on `baton`, or are about to.
    following: AtomicU32,
    /// Number of threads that sleep on other words, and are woken through `pass_on`'s argument.
    elsewhere: AtomicU32,
    /// Futex word of the standby thread; 1 while it rests.
    rests: AtomicU32,
    /// Number of times that a thread wanted the relay, or the holder's work, while another thread
    /// held it.
    wanted: AtomicU32,
}

/// Kinds of threads that want the relay, which determine from which holder they may take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A thread that would sleep otherwise. May take the relay if it is free, or lent by the
    /// standby thread.
    Waits,
    /// A thread with a request. May take the relay if it is free, or lent by any thread.
    Asks,
    /// The standby thread. May take the relay if it is free.
    StandsBy,
}

/// Holder from which the relay was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The relay was free.
    Free,
    /// A sleeping thread, which its own words will wake.
    FromSleeper,
    /// The sleeping standby thread, which has to be notified that it should poll.
    FromStandBy,
}

impl Who {
    /// Returns the value of `holder` for thread number `thread` of this kind.
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

    /// Creates a free relay; loom's atomics cannot be created in a constant function.
    #[cfg(loom)]
    pub fn new() -> Self {
        let [holder, baton, following, elsewhere, rests, wanted] =
            std::array::from_fn(|_| AtomicU32::new(0));
        Self { holder, baton, following, elsewhere, rests, wanted }
    }

    /// Returns whether `who` may take the relay now.
    pub fn is_free_for(&self, who: Who) -> bool {
        who.may_take(self.holder.load(Ordering::Relaxed))
    }

    /// Takes the relay for the thread `me` ([`Who::number`]). Returns `None` if another thread
    /// holds it.
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

    /// Counts a thread that wants the relay, or the holder's work, while another thread holds it.
    pub fn want(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counter of [`Self::want`], which wraps.
    pub fn wanted(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Returns whether this thread holds the relay, and has not lent it.
    pub fn has(&self, me: u32) -> bool {
        self.holder.load(Ordering::Relaxed) == me
    }

    /// Lends the relay, because its holder is about to sleep on words that report every event. The
    /// holder checks [`Self::has_followers`] afterwards: each follower is either counted there, or
    /// sees that the relay is lent.
    pub fn lend(&self, me: u32) {
        self.holder.store(me | LENT, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Takes the lent relay back after the sleep. Returns false if another thread has taken it.
    pub fn take_back(&self, me: u32) -> bool {
        let back =
            self.holder.compare_exchange(me | LENT, me, Ordering::Acquire, Ordering::Relaxed);
        back.is_ok()
    }

    /// Gives the relay up. Returns true if the thread held it; then call [`Self::pass_on`].
    pub fn leave(&self, me: u32) -> bool {
        self.holder.compare_exchange(me, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Gives the relay up even if it is lent, for a signal handler that interrupted a sleeping
    /// thread.
    pub fn abandon(&self, me: u32) -> bool {
        self.leave(me) || self.leave(me | LENT)
    }

    /// Wakes another thread after the relay was left. `tell` wakes a thread that sleeps on other
    /// words.
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

    /// Counts this thread as a follower until [`Self::unfollow`], and returns the value of the
    /// hand-off word to sleep on. Returns `None` if the relay can be taken now.
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

    /// Returns the hand-off word on which followers sleep.
    pub fn handoff(&self) -> &AtomicU32 {
        &self.baton
    }

    /// Ends [`Self::follow`]. Returns true if [`Self::pass_on`] is due, because the hand-off may
    /// have woken this thread, which no longer needs the relay.
    pub fn unfollow(&self) -> bool {
        self.following.fetch_sub(1, Ordering::Relaxed);
        self.holder.load(Ordering::Relaxed) == FREE && self.has_followers()
    }

    /// Counts this thread among those that sleep on other words, until [`Self::get_up`]. The holder
    /// may wake it from now on, even before it sleeps.
    pub fn lie_down(&self) {
        self.elsewhere.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends [`Self::lie_down`].
    pub fn get_up(&self) {
        self.elsewhere.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether any sleeping thread would take the relay.
    pub fn has_followers(&self) -> bool {
        self.following.load(Ordering::Relaxed) > 0 || self.elsewhere.load(Ordering::Relaxed) > 0
    }

    /// Rests until another thread leaves the relay. Called by the standby thread. Returns at once
    /// if the relay is free.
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
