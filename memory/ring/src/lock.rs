//! The locks of a slot's two ends, shared by the threads and processes that hold the socket.
//!
//! The word is 0, or the owner: the number of its process's channel and its thread id, with
//! [`LOCK_CONTENDED`] when somebody sleeps. A process that dies with a lock (kill -9 of one of
//! several) must not stop the others. Only the engine can tell for sure. A thread id means nothing
//! in another PID namespace, but a dead process has closed its control socket. The engine then
//! gives its locks back ([`release_dead`]). Sleepers look whether the engine itself still lives.
//!
//! A lock also keeps a slot and its memory from being used again under a thread. The thread locks,
//! then looks whether the slot is still its socket's. The engine first takes back the generation or
//! a FIFO's geometry, then looks at the lock ([`end_generation`], [`are_out`]):
//!
//! ```text
//!   thread: lock, look at the generation, use positions and bytes, unlock
//!   engine: next generation, lock free? yes: use the slot again
//!                                       no:  LOCK_ENGINE into the word; the unlocking thread tells
//! ```
//!
//! All of these steps but the looks at the generation are read-modify-writes of one word, which
//! have one order. A thread that locked before the engine looked is seen by it; one that locks
//! later sees what the engine wrote before.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::time::Duration;

use towpath_shm::atomic::{AtomicU32, Ordering, compiler_fence};

use towpath_shm::futex::{self, Woken};
use towpath_shm::layout::{LOCK_CHANNEL_SHIFT, LOCK_CONTENDED, LOCK_ENGINE, Slot};

use crate::word::{self, Next};

/// Before the first look whether the engine lives: far longer than anybody holds a lock.
const SLICE_MIN: Duration = Duration::from_millis(2);
/// Between two such looks, in the end.
const SLICE_MAX: Duration = Duration::from_millis(100);
/// The engine holds a lock for the time of a copy. If it holds one for longer than this, it is dead
/// or stopped, and the lock is taken from it. The engine notices the loss when it gives the lock
/// back, and resets the connection.
const ENGINE_HOLDS_MAX: Duration = Duration::from_secs(2);

/// The bits of a lock word that say who has it.
const OWNER: u32 = !(LOCK_CONTENDED | LOCK_ENGINE);
/// Locks of one thread whose addresses are noted, so that a signal handler knows them for its own
/// thread's. A thread has two when it moves bytes from one socket to another, and a handler on top
/// of it may have as many.
const DEPTH: usize = 4;
/// Attempts to change a word that a hostile program changes all the time, before it counts as held.
/// Honest threads change it once or twice per call.
const LOOKS: u32 = 1000;

/// The part of its process's attachment that a locking thread needs.
pub trait Door {
    /// The number of its process's channel, from 1 to [`towpath_shm::layout::CHANNELS_MAX`]: what
    /// its threads own is known by it. 0 before it has one.
    fn channel(&self) -> u32;

    /// Whether the engine is still there.
    fn engine_lives(&self) -> bool;

    /// The engine waits for the lock that was just given back: send
    /// [`towpath_shm::layout::op::UNLOCKED`].
    fn tell_unlocked(&self);
}

/// Says whether the engine lives, and tells nobody: for those who play both ends, as tests do.
impl<F: Fn() -> bool> Door for F {
    fn channel(&self) -> u32 {
        0
    }

    fn engine_lives(&self) -> bool {
        self()
    }

    fn tell_unlocked(&self) {}
}

/// A held lock; dropping it unlocks.
#[derive(Debug)]
pub struct Guard<'a, D: Door> {
    word: &'a AtomicU32,
    owner: u32,
    nested: bool,
    door: D,
    /// Locks of a thread are in a list of its own, which another thread's drop would miss.
    _of_this_thread: PhantomData<*const ()>,
}

impl<D: Door> Guard<'_, D> {
    /// Whether the thread had the lock already. If so this is a signal handler, on top of a call at
    /// the same end of the same socket, which stands still. The interrupted call has to expect the
    /// handler's bytes; see [`crate::append`] and [`crate::program_fifo::consume_from`].
    pub fn is_nested(&self) -> bool {
        self.nested
    }
}

/// Locks the read end of the socket that has the slot in this generation. None: the engine is gone,
/// or the socket: while this thread was on its way to the lock the slot may have become another
/// one's.
#[inline]
pub fn lock_rx<D: Door>(slot: &Slot, generation: u32, door: D) -> Option<Guard<'_, D>> {
    let guard = lock(&slot.rx_lock, door)?;
    is_still(slot, generation).then_some(guard)
}

/// Locks the write end of a socket, for what the program writes: the transmit FIFO. None: as for
/// [`lock_rx`].
#[inline]
pub fn lock_tx<D: Door>(slot: &Slot, generation: u32, door: D) -> Option<Guard<'_, D>> {
    let guard = lock(&slot.tx_lock, door)?;
    is_still(slot, generation).then_some(guard)
}

#[inline]
pub(crate) fn is_still(slot: &Slot, generation: u32) -> bool {
    slot.generation.load(Ordering::Acquire) == generation
}

/// For the engine: no handle of the slot is valid any more; `next` is its new generation. Ok:
/// nobody is inside either, and the slot can be used again.
///
/// # Errors
/// As for [`are_out`], which is to be asked again.
pub fn end_generation(slot: &Slot, next: u32) -> Result<(), u32> {
    slot.generation.store(next, Ordering::Release);
    are_out(slot)
}

/// For the engine, after [`end_generation`]: whether nobody is inside any more. Never waits.
///
/// # Errors
/// The number of the channel whose thread is inside; that thread tells when it unlocks
/// ([`Door::tell_unlocked`]), unless it dies. The number is written by programs: there may be no
/// such channel.
pub fn are_out(slot: &Slot) -> Result<(), u32> {
    let (rx, tx) = (is_out(&slot.rx_lock), is_out(&slot.tx_lock));
    rx.and(tx)
}

/// The same for one lock, after that was taken back which is used under it.
pub(crate) fn is_out(word: &AtomicU32) -> Result<(), u32> {
    let mut held = 0;
    for _ in 0..LOOKS {
        // A word without an owner's bits is a free lock, whatever else a program has written there.
        let next = if held & OWNER == 0 { 0 } else { held | LOCK_ENGINE };
        // The exchange is needed even where it changes nothing. A load might see an old value, and
        // a later locker would not have to see our writes before it.
        match word.compare_exchange(held, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) if next == 0 => return Ok(()),
            Ok(_) => break,
            Err(now) => held = now,
        }
    }
    Err((held & OWNER) >> LOCK_CHANNEL_SHIFT)
}

/// Forgets the cached thread id. The child calls it after fork, because its thread has a new id.
pub fn forget_thread_id() {
    THREAD.with(|thread| thread.id.set(0));
}

/// For the engine, when the process on a channel is gone: what it held of a socket is free.
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
        // Thread ids are cut off in the word: that of another thread may look like ours.
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

/// Whether this thread has a lock: then this is a signal handler.
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.held.get()) > 0
}

// Noted before the lock is taken and until after it is given back, as a handler sees it. True: it
// was noted before, by a call that this one interrupts.
#[inline]
fn enter(thread: &ThreadIdentity, word: &AtomicU32) -> bool {
    let (at, word) = (thread.held.get(), ptr::from_ref(word).addr());
    thread.held.set(at + 1);
    compiler_fence(Ordering::SeqCst);
    // A handler that strikes in here notes its own behind this place, and takes them away.
    let (outer, own) = thread.words.split_at(at.min(DEPTH));
    let is_ours = outer.iter().any(|outer| outer.get() == word);
    if let Some(own) = own.first() {
        own.set(word);
    }
    compiler_fence(Ordering::SeqCst);
    // Beyond, the owner in the word has to do.
    is_ours || at > DEPTH
}

// In whatever order they were taken.
#[inline]
fn leave(thread: &ThreadIdentity, word: &AtomicU32) {
    compiler_fence(Ordering::SeqCst);
    let (last, word) = (thread.held.get() - 1, ptr::from_ref(word).addr());
    if let Some(at) = thread.words.iter().position(|own| own.get() == word) {
        // A handler in between sees the last one twice.
        let last = &thread.words[last.min(DEPTH - 1)];
        thread.words[at].set(last.get());
        compiler_fence(Ordering::SeqCst);
        last.set(0);
    }
    compiler_fence(Ordering::SeqCst);
    thread.held.set(last);
}

// The note of the interrupted call stays: ours is the newest, or was not noted.
fn leave_nested(thread: &ThreadIdentity) {
    let last = thread.held.get() - 1;
    if let Some(own) = thread.words.get(last) {
        own.set(0);
    }
    compiler_fence(Ordering::SeqCst);
    thread.held.set(last);
}

/// False: the engine is gone.
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
        // Where it is not ours any more it is not ours to give back: the engine took this process
        // for dead.
        let held = unlock(self.word, |held| held & OWNER == self.owner);
        THREAD.with(|thread| leave(thread, self.word));
        if held.is_some_and(|held| held & LOCK_ENGINE != 0) {
            self.door.tell_unlocked();
        }
    }
}

/// The engine's only way to a lock: it never waits.
pub(crate) fn try_lock_engine(word: &AtomicU32) -> bool {
    word::try_acquire(word, LOCK_ENGINE).is_ok()
}

/// Gives it back. False: somebody took it from us meanwhile, and may have used what it protects.
pub(crate) fn unlock_engine(word: &AtomicU32) -> bool {
    unlock(word, |held| held & !LOCK_CONTENDED == LOCK_ENGINE).is_some()
}

/// Unlocks, and returns the former word. None: the lock is not the caller's.
fn unlock(word: &AtomicU32, is_ours: impl Fn(u32) -> bool) -> Option<u32> {
    word::release(word, is_ours, || futex::wake(word, 1))
}

/// A thread's knowledge of itself. All of it is one thread-local variable, because looking one up
/// costs a call in a library.
struct ThreadIdentity {
    /// 0: not asked yet. gettid(2) is a system call, and a lock is taken for every read and write.
    id: Cell<u32>,
    /// Locks that this thread has, or is about to take.
    held: Cell<usize>,
    /// Where these are.
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

    /// The owner bits that this thread writes into a lock word. Never 0. Never 0.
    #[inline]
    fn owner(&self, channel: u32) -> u32 {
        const THREAD_MASK: u32 = (1 << LOCK_CHANNEL_SHIFT) - 1;
        channel << LOCK_CHANNEL_SHIFT | (self.id() & THREAD_MASK).max(1)
    }
}

/// Id of the calling thread as gettid(2) gives it, without a system call after the first. The id is
/// of the thread's PID namespace: in another one it may be another thread's.
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
        // SAFETY: the cell is only touched under the lock, which is what the test checks.
        unsafe impl Sync for Shared<'_> {}
        let shared = &Shared(&word, &count);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = lock(shared.0, || true);
                        // SAFETY: under the lock.
                        unsafe { *shared.1.get() += 1 };
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 80_000);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    /// In a signal handler, or with another socket's lock.
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

    /// A handler that finds its thread's lock must leave it known as such: the next one would wait
    /// for it for ever.
    #[test]
    fn a_lock_stays_known_where_there_is_no_room_to_note_another() {
        let words: [AtomicU32; DEPTH] = std::array::from_fn(|_| AtomicU32::new(0));
        // A blocked thread gives up at once: the engine is gone.
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
        // Without an engine nobody would ever give it back.
        word.store(other, Ordering::Relaxed);
        assert!(lock(&word, || false).is_none());
    }

    /// The slot's next socket is locked by another thread when the late owner comes to run.
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
