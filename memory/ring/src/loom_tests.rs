//! Every interleaving of the protocols, as far as memory orderings allow them.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p towpath-ring --release loom`

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use loom::thread;

use crate::protocol::{Bits, Word, consume, doze, enter, post, produce, rouse, signal, take};

impl Word for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }
    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl Bits for AtomicU8 {
    fn fetch_or(&self, bits: u8, order: Ordering) -> u8 {
        self.fetch_or(bits, order)
    }
    fn swap(&self, bits: u8, order: Ordering) -> u8 {
        self.swap(bits, order)
    }
}

const CAP: u32 = 2;

struct Ring {
    head: AtomicU32,
    tail: AtomicU32,
    items: [UnsafeCell<u32>; CAP as usize],
}

impl Ring {
    fn new() -> Self {
        let items = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Self { head: AtomicU32::new(0), tail: AtomicU32::new(0), items }
    }

    fn push(&self, at: u32, item: u32) -> bool {
        // SAFETY: loom checks that no two threads are at one place at a time.
        let write = |i: u32| self.items[i as usize].with_mut(|p| unsafe { *p = item });
        produce(&self.head, &self.tail, at, CAP, write).expect("positions are honest")
    }

    fn pop(&self, at: u32) -> Option<u32> {
        // SAFETY: as above.
        let read = |i: u32| self.items[i as usize].with(|p| unsafe { *p });
        consume(&self.head, &self.tail, at, CAP, read).expect("positions are honest")
    }

    fn is_empty(&self, at: u32) -> bool {
        self.tail.load(Ordering::Acquire) == at
    }
}

#[test]
fn loom_ring_keeps_order_and_reuses_places_safely() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut at = 0;
                while at < 3 {
                    if ring.push(at, at + 10) {
                        at += 1;
                    } else {
                        thread::yield_now();
                    }
                }
            })
        };
        let mut at = 0;
        while at < 3 {
            match ring.pop(at) {
                Some(item) => {
                    assert_eq!(item, at + 10);
                    at += 1;
                }
                None => thread::yield_now(),
            }
        }
        producer.join().unwrap();
    });
}

/// The event path: bits, the ring, the sleep flag and the doorbell (modelled by a count that is
/// looked at once the waker is done: a sleeper without a ring would sleep for ever).
#[test]
fn loom_no_event_is_lost_and_no_sleeper_forgotten() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let pending = Arc::new(AtomicU8::new(0));
        let sleeping = Arc::new(AtomicU32::new(0));
        let rung = Arc::new(AtomicU32::new(0));
        let engine = {
            let (ring, pending) = (Arc::clone(&ring), Arc::clone(&pending));
            let (sleeping, rung) = (Arc::clone(&sleeping), Arc::clone(&rung));
            thread::spawn(move || {
                let mut at = 0;
                for bits in [1, 2] {
                    if post(&*pending, bits) {
                        assert!(ring.push(at, 7));
                        at += 1;
                    }
                    if rouse(&*sleeping) {
                        rung.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        };
        let (mut at, mut seen) = (0, 0);
        let mut drain = |at: &mut u32| {
            while let Some(slot) = ring.pop(*at) {
                assert_eq!(slot, 7);
                *at += 1;
                seen |= take(&*pending);
            }
        };
        drain(&mut at);
        let asleep = doze(&*sleeping, || ring.is_empty(at));
        engine.join().unwrap();
        if asleep {
            // Either everything was seen before, or somebody rang.
            let unseen = !ring.is_empty(at) || pending.load(Ordering::SeqCst) != 0;
            assert!(!unseen || rung.load(Ordering::SeqCst) > 0);
        }
        drain(&mut at);
        assert_eq!(seen, 3);
    });
}

/// The command path: two programs push to rings of their own, one engine sleeps on one flag.
#[test]
fn loom_the_engine_never_sleeps_on_commands() {
    loom::model(|| {
        let rings = Arc::new([Ring::new(), Ring::new()]);
        let sleeping = Arc::new(AtomicU32::new(0));
        let rung = Arc::new(AtomicU32::new(0));
        let programs: Vec<_> = (0..2)
            .map(|i| {
                let (rings, sleeping, rung) =
                    (Arc::clone(&rings), Arc::clone(&sleeping), Arc::clone(&rung));
                thread::spawn(move || {
                    assert!(rings[i].push(0, 1));
                    if rouse(&*sleeping) {
                        rung.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let asleep = doze(&*sleeping, || rings.iter().all(|ring| ring.is_empty(0)));
        for program in programs {
            program.join().unwrap();
        }
        if asleep {
            assert_eq!(rung.load(Ordering::SeqCst), 1);
        }
    });
}

/// Threads blocked on one socket: a waiter that saw nothing sleeps on a sequence that has moved on,
/// or is counted by the engine and woken.
#[test]
fn loom_a_waiter_is_woken_or_does_not_sleep() {
    loom::model(|| {
        let state = Arc::new(AtomicU32::new(0));
        let seq = Arc::new(AtomicU32::new(0));
        let waiters = Arc::new(AtomicU32::new(0));
        let engine = {
            let (state, seq, waiters) =
                (Arc::clone(&state), Arc::clone(&seq), Arc::clone(&waiters));
            thread::spawn(move || {
                state.store(1, Ordering::Release);
                signal(&*seq, &*waiters)
            })
        };
        let expected = enter(&*seq, &*waiters);
        let saw = state.load(Ordering::Acquire) == 1;
        // The kernel compares the word once more before it lets us sleep.
        let sleeps = seq.load(Ordering::Relaxed) == expected;
        let woke = engine.join().unwrap();
        assert!(saw || woke || !sleeps);
    });
}

/// The transmit flag: every published byte is pulled by a visit that a command asked for.
#[test]
fn loom_published_bytes_are_told() {
    loom::model(|| {
        let tail = Arc::new(AtomicU32::new(0));
        let dirty = Arc::new(AtomicU32::new(0));
        let told = Arc::new(AtomicU32::new(0));
        let program = {
            let (tail, dirty, told) = (Arc::clone(&tail), Arc::clone(&dirty), Arc::clone(&told));
            thread::spawn(move || {
                for end in [1, 2] {
                    tail.store(end, Ordering::Release);
                    if dirty.swap(1, Ordering::AcqRel) == 0 {
                        told.fetch_add(1, Ordering::Release);
                    }
                }
            })
        };
        let (mut handled, mut pulled) = (0, 0);
        let mut visit = |handled: &mut u32| {
            while *handled < told.load(Ordering::Acquire) {
                *handled += 1;
                dirty.swap(0, Ordering::AcqRel);
                pulled = tail.load(Ordering::Acquire);
            }
        };
        visit(&mut handled);
        program.join().unwrap();
        visit(&mut handled);
        assert_eq!(pulled, 2);
    });
}
