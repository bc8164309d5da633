//! Turns of threads of a process at work that one of them has to do, and how the next takes over.
//!
//! The word `holder` is 0, or the number of the thread that has the relay. Any thread may take it
//! that has nothing else to do; the thread that stands by is always there for it. The latter costs
//! the others nothing while they are busy:
//!
//! ```text
//!   waits:      take ─► (works) ─► lend ─► (sleeps) ─► take back ─► (works) ─► leave ─► pass on
//!                 │ somebody has it
//!                 └──► follow ─► sleeps on the hand-off word and its own words ─► unfollow
//!   stands by:  looks now and then; nobody has had it since? take … leave
//!                                   somebody sleeps at it?    rest, until somebody leaves
//! ```
//!
//! A thread that waits need not follow: it may sleep on words of its own alone, and leave it to
//! others.
//!
//! No wake-up is lost: either a thread has the relay, or the thread that stands by looks now and
//! then. Two pairs of steps ensure it. Each has a fence (SeqCst) between its steps, so that one of
//! two threads sees the other's step (checked with loom):
//! - A thread that finds the relay taken counts itself among the followers, then looks again
//!   whether it is. A thread that leaves frees the word, then looks whether any are counted. The
//!   hand-off word, on which followers sleep, changes then, and who was about to sleep on it does
//!   not;
//! - The thread that stands by says that it rests, then looks whether the relay is taken. A thread
//!   that leaves frees the word, then looks whether that one rests. So it does not matter if the
//!   followers that are counted are there no more: a signal handler may leave a call by siglongjmp.

use towpath_shm::atomic::{AtomicU32, Ordering, fence};
use towpath_shm::futex;

/// No thread has the relay.
const FREE: u32 = 0;
/// With a thread's number: it sleeps, and others may take it.
const LENT: u32 = 1 << 31;
/// With a thread's number: it is the one that stands by. Numbers of threads are lower
/// (PID_MAX_LIMIT).
const STAND_BY: u32 = 1 << 30;

/// A relay that one thread of the process has at a time; another takes it over when the thread
/// sleeps or leaves.
///
/// ```
/// use towpath_ring::{Relay, Who};
///
/// let relay = Relay::new();
/// let (me, other) = (Who::Waits.number(1), Who::Asks.number(2));
/// assert!(relay.take(me, Who::Waits).is_some());
/// assert!(relay.take(other, Who::Asks).is_none());
/// // While it sleeps another one may have it, which then leaves.
/// relay.lend(me);
/// assert!(relay.take(other, Who::Asks).is_some());
/// assert!(relay.leave(other) && !relay.take_back(me));
/// ```
#[derive(Debug)]
pub struct Relay {
    holder: AtomicU32,
    /// Word that followers sleep on; changes when the relay is passed on.
    baton: AtomicU32,
    /// Threads that sleep on `hand-off word`, or are about to.
    following: AtomicU32,
    /// Threads that sleep elsewhere, and are told otherwise.
    elsewhere: AtomicU32,
    /// 1: the thread that stands by sleeps on it until it is called.
    rests: AtomicU32,
    /// Times that a thread wanted the relay, or the work of its holder, while another had it.
    wanted: AtomicU32,
}

/// Kinds of threads that want the relay: they decide from which holder it may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A thread that would sleep otherwise.
    Waits,
    /// A thread with a request: others do not sleep the less for it.
    Asks,
    /// The thread that stands by.
    StandsBy,
}

/// From whom it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The relay was free.
    Free,
    /// A thread that sleeps, and is told by what it sleeps on.
    FromSleeper,
    /// The thread that stands by, which sleeps: it has to be told that it is to look now and then.
    FromStandBy,
}

impl Who {
    /// The number for a thread of this kind in the word `holder`.
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
    /// A free relay.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        let [holder, baton, following, elsewhere, rests, wanted] = [const { AtomicU32::new(0) }; 6];
        Self { holder, baton, following, elsewhere, rests, wanted }
    }

    /// A model's atomics cannot be made by constants.
    #[cfg(loom)]
    pub fn new() -> Self {
        let [holder, baton, following, elsewhere, rests, wanted] =
            std::array::from_fn(|_| AtomicU32::new(0));
        Self { holder, baton, following, elsewhere, rests, wanted }
    }

    /// Whether `who` may take the relay now.
    pub fn is_free_for(&self, who: Who) -> bool {
        who.may_take(self.holder.load(Ordering::Relaxed))
    }

    /// Takes the relay for the thread `me` ([`Who::number`]). None: another thread has it.
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

    /// Counts a thread that wants the relay, or the work of its holder, while another has it.
    pub fn want(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes with [`Self::want`], and wraps.
    pub fn wanted(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Whether the relay is this thread's, and not lent.
    pub fn has(&self, me: u32) -> bool {
        self.holder.load(Ordering::Relaxed) == me
    }

    /// Offers the relay to others: its holder is about to sleep on words that tell it of
    /// everything. The holder asks [`Self::has_followers`] afterwards: each follower is counted
    /// there, or sees that the relay is lent.
    pub fn lend(&self, me: u32) {
        self.holder.store(me | LENT, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Takes the lent relay back, after the sleep. False: another has taken it.
    pub fn take_back(&self, me: u32) -> bool {
        let back =
            self.holder.compare_exchange(me | LENT, me, Ordering::Acquire, Ordering::Relaxed);
        back.is_ok()
    }

    /// Gives the relay up. True: the thread had it, and [`Self::pass_on`] is due.
    pub fn leave(&self, me: u32) -> bool {
        self.holder.compare_exchange(me, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// The same where the relay may be lent: in a signal handler on top of a thread that sleeps.
    pub fn abandon(&self, me: u32) -> bool {
        self.leave(me) || self.leave(me | LENT)
    }

    /// Tells another thread, after the relay was left. `tell` wakes one of those that sleep
    /// elsewhere.
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

    /// Counts this thread among those that sleep on the hand-off word, until [`Self::unfollow`],
    /// and returns the hand-off word's value for the sleep. None: the relay can be taken now.
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

    /// The word that followers sleep on.
    pub fn handoff(&self) -> &AtomicU32 {
        &self.baton
    }

    /// Ends [`Self::follow`]: the thread sleeps no more. True: [`Self::pass_on`] is due, since the
    /// hand-off word may have woken a thread that does not need the relay any more.
    pub fn unfollow(&self) -> bool {
        self.following.fetch_sub(1, Ordering::Relaxed);
        self.holder.load(Ordering::Relaxed) == FREE && self.has_followers()
    }

    /// Counts this thread among those who sleep elsewhere, until [`Self::get_up`]. The holder may
    /// tell it from here on, before it sleeps.
    pub fn lie_down(&self) {
        self.elsewhere.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends [`Self::lie_down`]: the thread sleeps no more.
    pub fn get_up(&self) {
        self.elsewhere.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether any thread sleeps that would take the relay.
    pub fn has_followers(&self) -> bool {
        self.following.load(Ordering::Relaxed) > 0 || self.elsewhere.load(Ordering::Relaxed) > 0
    }

    /// The thread that stands by sleeps until a thread leaves, and does not sleep when the relay is
    /// free.
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
