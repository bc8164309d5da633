//! The locks of a slot's two ends, shared by the threads and processes that hold the socket.
//!
//! The word is 0 or identifies the owner by its process's channel number and its thread id, with
//! [`LOCK_CONTENDED`] if a thread sleeps. A process that dies with a lock (for example by kill -9)
//! must not block other processes. Only the engine can detect this reliably: a thread id is
//! meaningless in another PID namespace, but a dead process has closed its control socket. The
//! engine then releases its locks ([`release_dead`]). Sleepers check whether the engine itself is
//! alive.
//!
//! A lock also prevents the reuse of a slot and its memory while a thread uses them. The thread
//! locks, then checks whether the slot still belongs to its socket. The engine first invalidates
//! the generation or a FIFO's geometry, then checks the lock ([`end_generation`], [`are_out`]):
//!
//! ```text
//!   thread: lock, check the generation, use positions and bytes, unlock
//!   engine: next generation, lock free? yes: reuse the slot
//!                                       no:  set LOCK_ENGINE; the thread notifies when it unlocks
//! ```
//!
//! All these steps except the checks of the generation are read-modify-writes of one word, so they
//! have a total order. If a thread locks before the engine checks, the engine sees it. If it locks
//! later, the thread sees the engine's earlier writes.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::time::Duration;

use towpath_shm::atomic::{AtomicU32, Ordering, compiler_fence};

use towpath_shm::futex::{self, Woken};
use towpath_shm::layout::{LOCK_CHANNEL_SHIFT, LOCK_CONTENDED, LOCK_ENGINE, Slot};

use crate::word::{self, Next};

/// Time that a thread waits for a lock before it first checks whether the engine is alive. Much
/// longer than a lock is usually held.
const SLICE_MIN: Duration = Duration::from_millis(2);
/// Maximum time between two checks of a waiting thread whether the engine is alive.
const SLICE_MAX: Duration = Duration::from_millis(100);
/// Maximum time for which the engine holds a lock, normally the time of a copy. If it holds one for
/// longer, it is dead or stopped, and the waiter steals the lock. The engine detects the theft when
/// it unlocks, and resets the connection.
const ENGINE_HOLDS_MAX: Duration = Duration::from_secs(2);

/// The bits of a lock word that identify the owner.
const OWNER: u32 = !(LOCK_CONTENDED | LOCK_ENGINE);
/// Maximum locks recorded per thread, so that a signal handler can recognize the locks of its own
/// thread. A thread holds two when it moves bytes between sockets, and an interrupting handler may
/// hold as many.
const DEPTH: usize = 4;
/// Maximum attempts to update a word that a hostile program keeps changing, before it counts as
/// held. Correct threads change it once or twice per call.
const LOOKS: u32 = 1000;

/// The part of a process's attachment to the engine that a locking thread needs.
pub trait Door {
    /// Returns the number of the process's channel, from 1 to
    /// [`towpath_shm::layout::CHANNELS_MAX`]; 0 if it has none yet. Identifies the locks that its
    /// threads own.
    fn channel(&self) -> u32;

    /// Returns whether the engine is alive.
    fn engine_lives(&self) -> bool;

    /// Notifies the engine, which waits for the lock that was just released, by
    /// [`towpath_shm::layout::op::UNLOCKED`].
    fn tell_unlocked(&self);
}

/// Door for tests, which play both ends. The closure tells whether the engine is alive; the engine
/// is never notified.
impl<F: Fn() -> bool> Door for F {
    fn channel(&self) -> u32 {
        0
    }

    fn engine_lives(&self) -> bool {
        self()
    }

    fn tell_unlocked(&self) {}
}

/// A held lock; unlocks on drop.
#[derive(Debug)]
pub struct Guard<'a, D: Door> {
    word: &'a AtomicU32,
    owner: u32,
    nested: bool,
    door: D,
    /// Locks are recorded per thread, so a guard must be dropped by the thread that created it.
    _of_this_thread: PhantomData<*const ()>,
}

impl<D: Door> Guard<'_, D> {
    /// Returns whether the thread already held the lock. If so, this is a signal handler that
    /// interrupts a call at the same end of the same socket. The interrupted call must expect the
    /// handler's bytes; see [`crate::append`] and [`crate::program_fifo::consume_from`].
    pub fn is_nested(&self) -> bool {
        self.nested
    }
}

/// Locks the read end of the socket that owns the slot in this generation. Returns `None` if the
/// engine has ended, or if the slot no longer belongs to the socket.
#[inline]
pub fn lock_rx<D: Door>(slot: &Slot, generation: u32, door: D) -> Option<Guard<'_, D>> {
    let guard = lock(&slot.rx_lock, door)?;
    is_still(slot, generation).then_some(guard)
}

/// Locks the write end of a socket, which protects the transmit FIFO. Returns `None` as [`lock_rx`]
/// does.
#[inline]
pub fn lock_tx<D: Door>(slot: &Slot, generation: u32, door: D) -> Option<Guard<'_, D>> {
    let guard = lock(&slot.tx_lock, door)?;
    is_still(slot, generation).then_some(guard)
}

#[inline]
pub(crate) fn is_still(slot: &Slot, generation: u32) -> bool {
    slot.generation.load(Ordering::Acquire) == generation
}

/// Invalidates all handles of a slot; `next` is its new generation. Called by the engine. Returns
/// `Ok` if no thread uses the slot under a lock; then the slot can be reused.
///
/// # Errors
/// As for [`are_out`]. Call that function again later.
pub fn end_generation(slot: &Slot, next: u32) -> Result<(), u32> {
    slot.generation.store(next, Ordering::Release);
    are_out(slot)
}

/// Checks that no thread uses the slot under a lock any more. Called by the engine after
/// [`end_generation`]; never waits.
///
/// # Errors
/// Returns the number of the channel whose thread is inside. The thread notifies the engine when it
/// unlocks ([`Door::tell_unlocked`]), unless it dies. Programs write the number, so the channel may
/// not exist.
pub fn are_out(slot: &Slot) -> Result<(), u32> {
    let (rx, tx) = (is_out(&slot.rx_lock), is_out(&slot.tx_lock));
    rx.and(tx)
}

/// Checks one lock like [`are_out`], after the data that the lock protects was invalidated.
pub(crate) fn is_out(word: &AtomicU32) -> Result<(), u32> {
    let mut held = 0;
    for _ in 0..LOOKS {
        // A word without owner bits is a free lock, regardless of its remaining bits.
        let next = if held & OWNER == 0 { 0 } else { held | LOCK_ENGINE };
        // The exchange is needed even if it changes nothing. A load might return an old value, and
        // a later locker would not be guaranteed to see our earlier writes.
        match word.compare_exchange(held, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) if next == 0 => return Ok(()),
            Ok(_) => break,
            Err(now) => held = now,
        }
    }
    Err((held & OWNER) >> LOCK_CHANNEL_SHIFT)
}

/// Clears the cached thread id. Call it in the child after fork, because its thread has a new id.
pub fn forget_thread_id() {
    THREAD.with(|thread| thread.id.set(0));
}

/// Releases the socket's locks that a dead process on `channel` held. Called by the engine.
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
        // Thread ids are truncated in the word, so another thread may have the same owner bits.
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

/// Returns whether this thread holds a lock. If so, the caller is a signal handler.
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.held.get()) > 0
}

// Records a lock before it is taken; it stays recorded until after it is released. Returns true if
// a call that this one interrupts has recorded it already.
#[inline]
fn enter(thread: &ThreadIdentity, word: &AtomicU32) -> bool {
    let (at, word) = (thread.held.get(), ptr::from_ref(word).addr());
    thread.held.set(at + 1);
    compiler_fence(Ordering::SeqCst);
    // A handler that interrupts here records its locks after this position, and removes them again.
    let (outer, own) = thread.words.split_at(at.min(DEPTH));
    let is_ours = outer.iter().any(|outer| outer.get() == word);
    if let Some(own) = own.first() {
        own.set(word);
    }
    compiler_fence(Ordering::SeqCst);
    // If the record is full, only the owner bits in the word decide.
    is_ours || at > DEPTH
}

// Locks may be released in any order.
#[inline]
fn leave(thread: &ThreadIdentity, word: &AtomicU32) {
    compiler_fence(Ordering::SeqCst);
    let (last, word) = (thread.held.get() - 1, ptr::from_ref(word).addr());
    if let Some(at) = thread.words.iter().position(|own| own.get() == word) {
        // A handler that interrupts here sees the last entry twice.
        let last = &thread.words[last.min(DEPTH - 1)];
        thread.words[at].set(last.get());
        compiler_fence(Ordering::SeqCst);
        last.set(0);
    }
    compiler_fence(Ordering::SeqCst);
    thread.held.set(last);
}

// Removes only the newest record, which belongs to this handler, so that the record of the
// interrupted call stays.
fn leave_nested(thread: &ThreadIdentity) {
    let last = thread.held.get() - 1;
    if let Some(own) = thread.words.get(last) {
        own.set(0);
    }
    compiler_fence(Ordering::SeqCst);
    thread.held.set(last);
}

/// Waits for the lock, and takes it. Returns false if the engine has ended.
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
        // If the word does not contain our owner bits, the engine considered this process dead and
        // released the lock.
        let held = unlock(self.word, |held| held & OWNER == self.owner);
        THREAD.with(|thread| leave(thread, self.word));
        if held.is_some_and(|held| held & LOCK_ENGINE != 0) {
            self.door.tell_unlocked();
        }
    }
}

/// Locks for the engine, which never waits.
pub(crate) fn try_lock_engine(word: &AtomicU32) -> bool {
    word::try_acquire(word, LOCK_ENGINE).is_ok()
}

/// Unlocks for the engine. Returns false if a thread has stolen the lock, and may have used the
/// protected data.
pub(crate) fn unlock_engine(word: &AtomicU32) -> bool {
    unlock(word, |held| held & !LOCK_CONTENDED == LOCK_ENGINE).is_some()
}

/// Unlocks and returns the previous word; `None` if the lock is not the caller's.
fn unlock(word: &AtomicU32, is_ours: impl Fn(u32) -> bool) -> Option<u32> {
    word::release(word, is_ours, || futex::wake(word, 1))
}

/// Thread-local state of the locks. A single variable, because each lookup may cost a call in a
/// library.
struct ThreadIdentity {
    /// Cached thread id; 0 if unknown. gettid(2) is a system call, and every read and write takes a
    /// lock.
    id: Cell<u32>,
    /// Number of locks that this thread holds or is about to take.
    held: Cell<usize>,
    /// Addresses of these locks.
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

    /// Returns the owner bits that this thread writes into a lock word; never 0.
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
        // SAFETY: the cell is only accessed under the lock, which is what the test checks.
        unsafe impl Sync for Shared<'_> {}
        let shared = &Shared(&word, &count);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = lock(shared.0, || true);
                        // SAFETY: the lock is held.
                        unsafe { *shared.1.get() += 1 };
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 80_000);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    /// Truncated ids may be equal in a signal handler, or for another socket's lock.
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

    /// A handler that finds its thread's lock must keep it recorded. Otherwise the next handler
    /// would deadlock.
    #[test]
    fn a_lock_stays_known_where_there_is_no_room_to_note_another() {
        let words: [AtomicU32; DEPTH] = std::array::from_fn(|_| AtomicU32::new(0));
        // The engine has ended, so a blocked thread gives up at once.
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
        // Without an engine no one would ever release the lock.
        word.store(other, Ordering::Relaxed);
        assert!(lock(&word, || false).is_none());
    }

    /// The slot's next socket is locked by another thread when the former owner unlocks late.
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
