//! Models of the protocols between programs and the engine. Loom explores all interleavings and
//! allowed memory orderings.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p towpath-ring --profile loom loom`

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

use crate::protocol::{
    Number, amend, consume, doze, enter, fall_asleep, produce, rouse, signal, take, unrung, wake_up,
};

impl Number for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
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
        // SAFETY: loom checks that no two threads access a place at the same time.
        let write = |i: u32| self.items[i as usize].with_mut(|p| unsafe { *p = item });
        produce(&self.head, &self.tail, at, CAP, write).expect("positions are honest")
    }

    fn pop(&self, at: u32) -> Option<u32> {
        // SAFETY: loom checks that no two threads access a place at the same time.
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

/// A ring of events. Bits may be added to an event while it waits in the ring.
#[derive(Default)]
struct Events {
    head: AtomicU32,
    tail: AtomicU32,
    items: [AtomicU32; CAP as usize],
}

impl Events {
    /// Reports an event of the only socket. `at` is the end of the ring, and the last event is just
    /// before it.
    fn push(&self, at: &mut u32, bits: u32) {
        let last = &self.items[(at.wrapping_sub(1) & (CAP - 1)) as usize];
        if amend(last, |item| item != 0, bits) {
            return;
        }
        let write = |i: u32| self.items[i as usize].store(bits, Ordering::Relaxed);
        let is_in = produce(&self.head, &self.tail, *at, CAP, write);
        assert!(is_in.expect("positions are honest"), "there is one event of a socket at a time");
        *at += 1;
    }

    fn pop(&self, at: &mut u32) -> Option<u32> {
        let read = |i: u32| take(&self.items[i as usize]);
        let item =
            consume(&self.head, &self.tail, *at, CAP, read).expect("positions are honest")?;
        *at += 1;
        Some(item)
    }

    fn is_empty(&self, at: u32) -> bool {
        self.tail.load(Ordering::Acquire) == at
    }
}

/// Models the delivery of events: the ring, bits added to queued events, the sleep flag and the
/// notification descriptor. A counter models the descriptor; it is read after the sender has
/// finished. A receiver that sleeps without a notification would sleep for ever.
#[test]
fn loom_no_event_is_lost_and_no_sleeper_forgotten() {
    loom::model(|| {
        let ring = Arc::new(Events::default());
        let sleeping = Arc::new(AtomicU32::new(0));
        let rung = Arc::new(AtomicU32::new(0));
        let engine = {
            let (ring, sleeping, rung) =
                (Arc::clone(&ring), Arc::clone(&sleeping), Arc::clone(&rung));
            thread::spawn(move || {
                let mut at = 0;
                for bits in [1, 2] {
                    ring.push(&mut at, bits);
                    if rouse(&*sleeping) {
                        rung.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        };
        let (mut at, mut seen) = (0, 0);
        let mut drain = |at: &mut u32| {
            while let Some(bits) = ring.pop(at) {
                assert_ne!(bits, 0);
                assert_eq!(seen & bits, 0, "told twice");
                seen |= bits;
            }
        };
        drain(&mut at);
        let asleep = doze(&*sleeping, || ring.is_empty(at));
        engine.join().unwrap();
        if asleep {
            // Either all events were seen before, or there is a notification.
            assert!(ring.is_empty(at) || rung.load(Ordering::SeqCst) > 0);
        }
        drain(&mut at);
        assert_eq!(seen, 3);
    });
}

/// A program whose threads add commands to one ring, with its knowledge of the engine's sleeps. A
/// counter models the notification descriptor; it is read after all threads have finished. An
/// engine that sleeps without a notification would sleep for ever.
struct Waker {
    ring: Ring,
    rung: AtomicU64,
    bell: AtomicU32,
}

impl Waker {
    fn new() -> Self {
        Self { ring: Ring::new(), rung: AtomicU64::new(0), bell: AtomicU32::new(0) }
    }

    fn push(&self, at: u32, epoch: &AtomicU64) {
        assert!(self.ring.push(at, 1));
        self.ring_for(epoch);
    }

    fn ring_for(&self, epoch: &AtomicU64) {
        if let Some(sleep) = unrung(epoch, &self.rung) {
            self.bell.fetch_add(1, Ordering::SeqCst);
            self.rung.store(sleep, Ordering::Relaxed);
        }
    }
}

/// Models the delivery of commands: two programs add to separate rings, and the engine sleeps. A
/// program that never notifies the engine must not prevent the other program from doing so.
#[test]
fn loom_the_engine_never_sleeps_on_commands() {
    loom::model(|| {
        let programs = Arc::new([Waker::new(), Waker::new()]);
        let epoch = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|i| {
                let (programs, epoch) = (Arc::clone(&programs), Arc::clone(&epoch));
                thread::spawn(move || programs[i].push(0, &epoch))
            })
            .collect();
        let mut at = 0;
        let idle = || programs.iter().all(|program| program.ring.is_empty(0));
        let asleep = fall_asleep(&*epoch, &mut at, idle);
        for thread in threads {
            thread.join().unwrap();
        }
        if asleep {
            assert!(programs.iter().all(|program| program.bell.load(Ordering::SeqCst) == 1));
        }
    });
}

/// Models two sleeps of the engine. A notification during the first does not count for the second.
#[test]
fn loom_a_ring_for_one_sleep_is_none_for_the_next() {
    loom::model(|| {
        let program = Arc::new(Waker::new());
        let epoch = Arc::new(AtomicU64::new(0));
        let pushes = {
            let (program, epoch) = (Arc::clone(&program), Arc::clone(&epoch));
            thread::spawn(move || (0..2).for_each(|at| program.push(at, &epoch)))
        };
        let (mut at, mut head) = (0, 0);
        let mut heard = 0;
        // The first sleep ends without a notification, as when a packet arrives.
        if fall_asleep(&*epoch, &mut at, || program.ring.is_empty(head)) {
            heard = program.bell.load(Ordering::SeqCst);
            wake_up(&*epoch, &mut at);
        }
        while program.ring.pop(head).is_some() {
            head += 1;
        }
        let asleep = fall_asleep(&*epoch, &mut at, || program.ring.is_empty(head));
        pushes.join().unwrap();
        if asleep && !program.ring.is_empty(head) {
            assert!(program.bell.load(Ordering::SeqCst) > heard);
        }
    });
}

/// Models two threads of a program. The second may omit the notification of the engine only if the
/// first has sent it.
#[test]
fn loom_a_thread_that_does_not_ring_was_rung_for() {
    loom::model(|| {
        let program = Arc::new(Waker::new());
        let epoch = Arc::new(AtomicU64::new(1));
        let other = {
            let (program, epoch) = (Arc::clone(&program), Arc::clone(&epoch));
            thread::spawn(move || program.ring_for(&epoch))
        };
        program.ring_for(&epoch);
        assert!(program.bell.load(Ordering::SeqCst) > 0);
        other.join().unwrap();
    });
}

/// Words shared by the engine and threads that wait for one socket, and a model of the kernel's
/// futex. A thread does not sleep if the sequence number has changed. A sleeping thread sleeps
/// until the engine wakes all threads.
struct Sleepers {
    state: AtomicU32,
    seq: AtomicU32,
    asleep: AtomicU32,
    /// Bit set of the sequence numbers for which all sleeping threads were woken.
    woken: AtomicU32,
}

impl Sleepers {
    fn new() -> Self {
        let word = || AtomicU32::new(0);
        Self { state: word(), seq: word(), asleep: word(), woken: word() }
    }

    /// Publishes an event, as the engine does.
    fn publish(&self) {
        self.state.fetch_add(1, Ordering::Release);
        if signal(&self.seq, &self.asleep) {
            self.woken.fetch_or((1 << self.seq.load(Ordering::SeqCst)) - 1, Ordering::SeqCst);
        }
    }

    /// Waits until `state` events were published. Returns the sequence number with which the thread
    /// sleeps, or `None` if it has seen the events.
    fn sleep_until(&self, state: u32) -> Option<u32> {
        loop {
            let seq = enter(&self.seq, &self.asleep);
            if self.state.load(Ordering::Acquire) >= state {
                return None;
            }
            // The kernel compares the word again before the thread sleeps.
            if self.seq.load(Ordering::SeqCst) == seq {
                return Some(seq);
            }
        }
    }

    /// Returns whether a thread is awake after all events were published. If it still sleeps, its
    /// wake-up was lost.
    fn is_woken(&self, seq: Option<u32>) -> bool {
        seq.is_none_or(|seq| self.woken.load(Ordering::SeqCst) & (1 << seq) != 0)
    }
}

/// Models two threads that wait for a socket: one for the first event, one for the second. The
/// first event wakes both, and no wake-up may be lost.
#[test]
fn loom_a_waiter_is_woken_or_does_not_sleep() {
    let mut builder = loom::model::Builder::new();
    // More preemptions find no further errors, but take minutes.
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let sleepers = Arc::new(Sleepers::new());
        sleepers.asleep.store(1, Ordering::Relaxed);
        let engine = {
            let sleepers = Arc::clone(&sleepers);
            thread::spawn(move || (0..2).for_each(|_| sleepers.publish()))
        };
        let slept = sleepers.sleep_until(2);
        engine.join().unwrap();
        assert!(sleepers.is_woken(slept));
    });
}

/// Models a thread that was killed while asleep. The dead thread costs one wake-up, and no further
/// system calls.
#[test]
fn loom_a_waiter_that_was_killed_costs_one_wake_up() {
    loom::model(|| {
        let (seq, asleep) = (AtomicU32::new(0), AtomicU32::new(0));
        enter(&seq, &asleep);
        let wakes = (0..3).filter(|_| signal(&seq, &asleep)).count();
        assert_eq!(wakes, 1);
    });
}
