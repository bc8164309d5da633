//! The locks of a socket's read and write end, in the shared memory of its slot. All threads and
//! processes that have the socket use them.
//!
//! The lock word is 0, or identifies its owner: the process by its number (channel), and the thread
//! by its id. [`LOCK_CONTENDED`] is set if a thread sleeps. A process that dies with a lock (for
//! example by kill -9) must not block other processes. Only the engine can detect a death reliably.
//! Thread ids have no meaning in another PID namespace, but the control socket of a dead process is
//! closed. The engine then releases the locks of the process ([`release_dead`]). Threads that wait
//! for a lock check whether the engine itself is alive.
//!
//! A lock also prevents the reuse of a slot and its memory while a thread uses them. The thread
//! locks, then checks whether the slot still belongs to its socket. The engine first invalidates
//! the slot's generation or the FIFO's memory, then checks the lock ([`end_generation`],
//! [`are_out`]):
//!
//! ```text
//!   thread: lock, check the generation, use positions and bytes, unlock
//!   engine: next generation, lock free? yes: reuse the slot
//!                                       no:  set LOCK_ENGINE; the thread notifies when it unlocks
//! ```
//!
//! All these steps except the checks of the generation are read-modify-writes of one word, so they
//! have a total order. If a thread locks before the engine checks, the engine sees the lock. If it
//! locks later, it sees the engine's earlier writes.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::time::Duration;

use towpath_shm::atomic::{AtomicU32, Ordering, compiler_fence};

use towpath_shm::futex::{self, Woken};
use towpath_shm::layout::{LOCK_CHANNEL_SHIFT, LOCK_CONTENDED, LOCK_ENGINE, Slot};

use crate::word::{self, Next};

/// Time after which a thread that waits for a lock first checks whether the engine is alive. The
/// time is much longer than a lock is usually held.
const SLICE_MIN: Duration = Duration::from_millis(2);
/// Maximum time for which a thread waits for a lock before it checks whether the engine is alive.
const SLICE_MAX: Duration = Duration::from_millis(100);
/// Time after which a thread takes over a lock that the engine (the network stack) holds, because
/// the engine is dead or stopped. Normally the engine holds a lock only while it copies. When the
/// engine resumes, it detects the loss of the lock and resets the connection.
const ENGINE_HOLDS_MAX: Duration = Duration::from_secs(2);

/// Mask of the bits of a lock word that identify the owner.
const OWNER: u32 = !(LOCK_CONTENDED | LOCK_ENGINE);
/// Maximum number of locks recorded per thread, by which a signal handler recognizes its own
/// thread's locks. A call that moves bytes between sockets holds two. A signal handler that
/// interrupts it may hold two more.
const DEPTH: usize = 4;
/// Maximum number of attempts to update a lock word, because a hostile program might change it all
/// the time. After them, the lock counts as held. Correct threads change the word at most twice per
/// call.
const LOOKS: u32 = 1000;

/// Access to a process's connection to the engine, as needed by a thread that takes a lock.
pub trait Door {
    /// Returns the number of the process's channel, from 1 to
    /// [`towpath_shm::layout::CHANNELS_MAX`], or 0 if the process has none yet. The number is part
    /// of the owner in lock words.
    fn channel(&self) -> u32;

    /// Returns whether the engine is alive.
    fn engine_lives(&self) -> bool;

    /// Notifies the engine that a lock was released for which it waits
    /// ([`towpath_shm::layout::op::UNLOCKED`]).
    fn tell_unlocked(&self);
}

/// Implementation for tests with program and engine in one process. The closure returns whether the
/// engine is alive; notifications are ignored.
impl<F: Fn() -> bool> Door for F {
    fn channel(&self) -> u32 {
        0
    }

    fn engine_lives(&self) -> bool {
        self()
    }

    fn tell_unlocked(&self) {}
}

/// A held lock. Dropping this value releases it.
#[derive(Debug)]
pub struct Guard<'a, D: Door> {
    word: &'a AtomicU32,
    owner: u32,
    nested: bool,
    door: D,
    /// Makes the guard `!Send`: locks are recorded per thread, so the thread that locked must drop
    /// it.
    _of_this_thread: PhantomData<*const ()>,
}

impl<D: Door> Guard<'_, D> {
    /// Returns whether the thread already held the lock, so that this is a signal handler. The call
    /// that it interrupted uses the same end of the same socket, and must take the handler's bytes
    /// into account. See [`crate::append`] and [`crate::program_fifo::consume_from`].
    pub fn is_nested(&self) -> bool {
        self.nested
    }
}

/// Locks the read end of the socket in `slot`. Returns `None` if the engine has ended. Also returns
/// `None` if the slot's generation has changed, because the slot belongs to another socket then.
#[inline]
pub fn lock_rx<D: Door>(slot: &Slot, generation: u32, door: D) -> Option<Guard<'_, D>> {
    let guard = lock(&slot.rx_lock, door)?;
    is_still(slot, generation).then_some(guard)
}

/// Locks the write end of a socket, which protects the transmit FIFO. Returns `None` for the
/// reasons given at [`lock_rx`].
#[inline]
pub fn lock_tx<D: Door>(slot: &Slot, generation: u32, door: D) -> Option<Guard<'_, D>> {
    let guard = lock(&slot.tx_lock, door)?;
    is_still(slot, generation).then_some(guard)
}

#[inline]
pub(crate) fn is_still(slot: &Slot, generation: u32) -> bool {
    slot.generation.load(Ordering::Acquire) == generation
}

/// Invalidates all handles of a slot by changing its generation to `next`. Called by the engine.
/// Returns `Ok` if no thread holds a lock of the slot; the slot can then be reused.
///
/// # Errors
/// Returns the error of [`are_out`] if a thread holds a lock. Call [`are_out`] again later.
pub fn end_generation(slot: &Slot, next: u32) -> Result<(), u32> {
    slot.generation.store(next, Ordering::Release);
    are_out(slot)
}

/// Checks that no thread holds a lock of the slot any more. Called by the engine after
/// [`end_generation`]; never waits.
///
/// # Errors
/// Returns the channel number of the process that holds a lock. Its thread notifies the engine when
/// it unlocks ([`Door::tell_unlocked`]), unless it dies. The number is written by programs, so
/// there may be no such channel.
pub fn are_out(slot: &Slot) -> Result<(), u32> {
    let (rx, tx) = (is_out(&slot.rx_lock), is_out(&slot.tx_lock));
    rx.and(tx)
}

/// Checks one lock like [`are_out`]. The data that the lock protects must have been invalidated
/// before.
pub(crate) fn is_out(word: &AtomicU32) -> Result<(), u32> {
    let mut held = 0;
    for _ in 0..LOOKS {
        // If the owner bits are 0, the lock is free, whatever the remaining bits are. Otherwise
        // LOCK_ENGINE requests a notification.
        let next = if held & OWNER == 0 { 0 } else { held | LOCK_ENGINE };
        // Exchange even if the value stays the same. A plain load might return an old value, and a
        // thread that locks later might not see the engine's earlier writes.
        match word.compare_exchange(held, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) if next == 0 => return Ok(()),
            Ok(_) => break,
            Err(now) => held = now,
        }
    }
    Err((held & OWNER) >> LOCK_CHANNEL_SHIFT)
}

/// Clears the cached thread id. Must be called in the child process after fork(2), whose thread has
/// a new id.
pub fn forget_thread_id() {
    THREAD.with(|thread| thread.id.set(0));
}

/// Releases the slot's locks that are held by the process with this channel number, which has died.
/// Called by the engine.
pub fn release_dead(slot: &Slot, channel: u32) {
    release(&slot.rx_lock, channel);
    release(&slot.tx_lock, channel);
}

fn release(word: &AtomicU32, channel: u32) {
    word::release(word, |held| is_owned_by(held, channel), || futex::wake(word, 1));
}

fn is_owned_by(held: u32, channel: u32) -> bool {
    let owner = held & OWNER;
    owner != 0 && owner >> LOCK_CHANNEL_SHIFT == channel
}

fn lock<D: Door>(word: &AtomicU32, door: D) -> Option<Guard<'_, D>> {
    let (me, is_ours) = THREAD.with(|thread| (thread.owner(door.channel()), enter(thread, word)));
    match word::try_acquire(word, me) {
        // The owner bits match, and this thread has recorded the lock. The record is needed because
        // the word contains only a truncated thread id, which another thread may share.
        Err(held) if is_ours && held & OWNER == me => {
            THREAD.with(leave_nested);
            Some(Guard { word, owner: me, nested: true, door, _of_this_thread: PhantomData })
        }
        Err(_) if !lock_slowly(word, me, &door) => {
            THREAD.with(|thread| leave(thread, word));
            None
        }
        _ => Some(Guard { word, owner: me, nested: false, door, _of_this_thread: PhantomData }),
    }
}

/// Returns whether this thread holds a lock. At the start of a call, this means that the caller is
/// a signal handler that interrupted another call.
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.held.get()) > 0
}

// Records a lock before it is taken; `leave` removes the record after it is released. Returns true
// if a call that this one interrupts has already recorded the lock.
#[inline]
fn enter(thread: &ThreadIdentity, word: &AtomicU32) -> bool {
    let (at, word) = (thread.held.get(), ptr::from_ref(word).addr());
    thread.held.set(at + 1);
    compiler_fence(Ordering::SeqCst);
    // A signal handler that interrupts this function records its locks after this position. The
    // handler removes its records before it returns.
    let (outer, own) = thread.words.split_at(at.min(DEPTH));
    let is_ours = outer.iter().any(|outer| outer.get() == word);
    if let Some(own) = own.first() {
        own.set(word);
    }
    compiler_fence(Ordering::SeqCst);
    // If too many locks are held to record all of them, only the owner bits in the lock word
    // decide.
    is_ours || at > DEPTH
}

// Removes the record of a lock. Locks may be released in any order.
#[inline]
fn leave(thread: &ThreadIdentity, word: &AtomicU32) {
    compiler_fence(Ordering::SeqCst);
    let (last, word) = (thread.held.get() - 1, ptr::from_ref(word).addr());
    if let Some(at) = thread.words.iter().position(|own| own.get() == word) {
        // A signal handler that interrupts here sees the last entry twice, which is harmless.
        let last = &thread.words[last.min(DEPTH - 1)];
        thread.words[at].set(last.get());
        compiler_fence(Ordering::SeqCst);
        last.set(0);
    }
    compiler_fence(Ordering::SeqCst);
    thread.held.set(last);
}

// Removes only the newest record, which belongs to this signal handler. The record of the
// interrupted call stays.
fn leave_nested(thread: &ThreadIdentity) {
    let last = thread.held.get() - 1;
    if let Some(own) = thread.words.get(last) {
        own.set(0);
    }
    compiler_fence(Ordering::SeqCst);
    thread.held.set(last);
}

/// Waits for the lock and takes it. Returns false if the engine ends.
#[cold]
fn lock_slowly(word: &AtomicU32, me: u32, door: &impl Door) -> bool {
    let (mut slice, mut engine_held) = (SLICE_MIN, Duration::ZERO);
    word::acquire(word, me, |contended| {
        if futex::wait(word, contended, Some(slice)) != Woken::TimedOut {
            return Next::Look;
        }
        if contended & !LOCK_CONTENDED == LOCK_ENGINE {
            engine_held += slice;
            let mine = me | LOCK_CONTENDED;
            if engine_held > ENGINE_HOLDS_MAX
                && word
                    .compare_exchange(contended, mine, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Next::Taken;
            }
        }
        slice = (slice * 2).min(SLICE_MAX);
        if door.engine_lives() { Next::Look } else { Next::GiveUp }
    })
}

impl<D: Door> Drop for Guard<'_, D> {
    #[inline]
    fn drop(&mut self) {
        if self.nested {
            return;
        }
        // If the word has another owner, the engine has released this lock because it considered
        // this process dead.
        let held = unlock(self.word, |held| held & OWNER == self.owner);
        THREAD.with(|thread| leave(thread, self.word));
        if held.is_some_and(|held| held & LOCK_ENGINE != 0) {
            self.door.tell_unlocked();
        }
    }
}

/// Tries to take the lock for the engine, without waiting. Returns false if another thread holds
/// it.
pub(crate) fn try_lock_engine(word: &AtomicU32) -> bool {
    word::try_acquire(word, LOCK_ENGINE).is_ok()
}

/// Releases the lock for the engine. Returns false if a thread has stolen the lock, and may have
/// used the protected data.
pub(crate) fn unlock_engine(word: &AtomicU32) -> bool {
    unlock(word, |held| held & !LOCK_CONTENDED == LOCK_ENGINE).is_some()
}

/// Releases the lock, and returns the previous value of its word. Returns `None` if the caller no
/// longer holds it.
fn unlock(word: &AtomicU32, is_ours: impl Fn(u32) -> bool) -> Option<u32> {
    word::release(word, is_ours, || futex::wake(word, 1))
}

/// Locks held by a thread. A single thread-local variable contains everything, because each access
/// may cost a function call in a shared library.
struct ThreadIdentity {
    /// Cached thread id; 0 if unknown. Without the cache, each read and write would call gettid(2)
    /// for the lock word.
    id: Cell<u32>,
    /// Number of locks that this thread holds or is about to take.
    held: Cell<usize>,
    /// Addresses of the lock words that this thread holds or is about to take.
    words: [Cell<usize>; DEPTH],
}

thread_local_value! {
    THREAD: ThreadIdentity = ThreadIdentity {
        id: Cell::new(0),
        held: Cell::new(0),
        words: [const { Cell::new(0) }; DEPTH],
    }
}

impl ThreadIdentity {
    #[inline]
    fn id(&self) -> u32 {
        if self.id.get() == 0 {
            self.id.set(crate::tls::gettid());
        }
        self.id.get()
    }

    /// Returns the bits by which a lock word identifies this thread; never 0.
    #[inline]
    fn owner(&self, channel: u32) -> u32 {
        const THREAD_MASK: u32 = (1 << LOCK_CHANNEL_SHIFT) - 1;
        channel << LOCK_CHANNEL_SHIFT | (self.id() & THREAD_MASK).max(1)
    }
}

/// Returns the id of the calling thread like gettid(2), cached after the first call. The id is only
/// valid in the thread's PID namespace.
pub fn thread_id() -> u32 {
    THREAD.with(ThreadIdentity::id)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn excludes_and_wakes() {
        let word = AtomicU32::new(0);
        let count = std::cell::UnsafeCell::new(0u64);
        struct Shared<'a>(&'a AtomicU32, &'a std::cell::UnsafeCell<u64>);
        // SAFETY: the cell is only accessed under the lock; the test checks that this excludes
        // concurrent access.
        unsafe impl Sync for Shared<'_> {}
        let shared = &Shared(&word, &count);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = lock(shared.0, || true);
                        // SAFETY: the lock is held, so no other thread accesses the counter.
                        unsafe { *shared.1.get() += 1 };
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 80_000);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    /// Tests owner bits that equal those of this thread although another thread holds the lock,
    /// because thread ids are truncated.
    #[test]
    fn a_thread_whose_id_looks_the_same_is_another() {
        let (own, others) = (AtomicU32::new(0), AtomicU32::new(0));
        let guard = lock(&own, || true).expect("it is free");
        others.store(THREAD.with(|thread| thread.owner(0)), Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                others.store(0, Ordering::Release);
                futex::wake(&others, 1);
            });
            let other = lock(&others, || true).expect("it is given back");
            assert!(!other.is_nested());
        });
        let nested = lock(&own, || true).expect("it is ours");
        assert!(nested.is_nested());
        drop((nested, guard));
        assert!(!is_inside());
    }

    /// Tests a signal handler that finds its own thread's lock when the record of locks is full.
    /// The lock must stay recorded; otherwise the next handler would deadlock.
    #[test]
    fn a_lock_stays_known_where_there_is_no_room_to_note_another() {
        let words: [AtomicU32; DEPTH] = std::array::from_fn(|_| AtomicU32::new(0));
        // The closure reports that the engine has ended, so a thread that would wait gives up at
        // once.
        let gone = || false;
        let guards: Vec<_> =
            words.iter().map(|word| lock(word, gone).expect("it is free")).collect();
        for word in words.iter().chain(&words) {
            assert!(lock(word, gone).expect("it is this thread's").is_nested());
        }
        drop(guards);
        assert!(
            !is_inside() && THREAD.with(|thread| thread.words.iter().all(|own| own.get() == 0))
        );
    }

    #[test]
    fn the_dead_give_back_what_they_held() {
        let (dead, other) = (7 << LOCK_CHANNEL_SHIFT | 99, 8 << LOCK_CHANNEL_SHIFT | 99);
        let word = AtomicU32::new(dead);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock(&word, || true)));
            let start = std::time::Instant::now();
            while word.load(Ordering::Relaxed) == dead {
                assert!(start.elapsed().as_secs() < 50, "the waiter does not say that it waits");
                std::thread::yield_now();
            }
            release(&word, 8);
            assert!(!waiter.is_finished());
            release(&word, 7);
        });
        assert_eq!(word.load(Ordering::Relaxed), 0);
        // Without an engine, the lock of a dead thread would never be released.
        word.store(other, Ordering::Relaxed);
        assert!(lock(&word, || false).is_none());
    }

    /// Tests that a former owner cannot unlock a lock that another thread holds now.
    #[test]
    fn who_has_lost_it_does_not_free_it() {
        let word = AtomicU32::new(0);
        let guard = lock(&word, || true);
        word.store(1, Ordering::Relaxed);
        drop(guard);
        assert_eq!(word.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_engine_notices_a_theft() {
        let word = AtomicU32::new(0);
        assert!(try_lock_engine(&word));
        assert!(!try_lock_engine(&word));
        drop(lock(&word, || true));
        assert!(!unlock_engine(&word));
        assert!(try_lock_engine(&word));
        assert!(unlock_engine(&word));
    }
}
