//! Models of the reuse of a socket's slot and memory while a thread still uses them. The code under
//! test is the code of programs and the engine, with loom's atomics in the slots.
//!
//! Bytes are not modelled, so a copy happens atomically with the load before it. There are two
//! slots: the threads use the first, and the second may reuse its memory.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use towpath_shm::Fragments;
use towpath_shm::layout::Slot;

use crate::append::{Appended, Wanted, append};
use crate::area::WINDOW_MIN;
use crate::buffer::{Payload, RecvBuffer, SendBuffer};
use crate::engine_recv::EngineRecv;
use crate::engine_send::{Attach, EngineSend};
use crate::lock::{Door, are_out, end_generation, lock_rx, release_dead};
use crate::program_fifo;
use crate::region::Region;
use crate::windows::Windows;

/// Generations of the slot: for the socket that the thread uses, and for the next socket in the
/// same slot.
pub(crate) const OLD: u32 = 1;
const NEXT: u32 = 3;

/// Explores all interleavings with at most two preemptions. The first stops a thread at any step,
/// the second stops the thread that runs instead.
pub(crate) fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

/// Test implementation of [`Door`](crate::Door) that counts notifications of the engine.
#[derive(Clone)]
pub(crate) struct Told(Arc<AtomicU32>);

impl Told {
    pub(crate) fn nothing() -> Self {
        Self(Arc::new(AtomicU32::new(0)))
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Door for &Told {
    fn channel(&self) -> u32 {
        0
    }

    fn engine_lives(&self) -> bool {
        true
    }

    fn tell_unlocked(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) fn world() -> (Region, Windows) {
    let region = Region::create().unwrap();
    let windows = Windows::new(&region, 1 << 30);
    region.slot(0).unwrap().generation.store(OLD, Ordering::Relaxed);
    (region, windows)
}

pub(crate) fn receive(recv: &mut EngineRecv, byte: u8) {
    assert!(recv.write_at(0, &Payload::new(&[byte], Fragments::empty())));
    recv.commit(1);
}

/// Tries to receive a byte once, like recv(2).
pub(crate) fn read(region: &Region, generation: u32, door: &Told) -> Option<u8> {
    let slot = region.slot(0).unwrap();
    let _guard = lock_rx(slot, generation, door)?;
    let (start, mut byte) = (program_fifo::start(slot), [0]);
    let n = program_fifo::peek(region, slot, 0, &mut byte) as u32;
    (n == 1 && program_fifo::consume_from(slot, start, n).is_some()).then_some(byte[0])
}

/// Initializes the slot for its next socket, which receives a byte.
fn next_receives(region: &Region, windows: &Windows) -> EngineRecv {
    let slot = region.slot(0).unwrap();
    slot.rx_head.store(0, Ordering::Relaxed);
    slot.rx_tail.store(0, Ordering::Relaxed);
    let mut next = EngineRecv::new(windows, 0, WINDOW_MIN, WINDOW_MIN);
    slot.generation.store(NEXT, Ordering::Release);
    receive(&mut next, b'n');
    next
}

/// Whether the engine, before it reuses a slot, waits for threads that hold a lock of the slot.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Waits,
    /// Wrong variant, which the model must reject: resets the locks to 0, and reuses slot and
    /// memory at once.
    DoesNotWait,
}

fn reuse_of_a_slot(rule: Rule) {
    model(move || {
        let (region, windows) = world();
        let slot = region.slot(0).unwrap();
        let told = Told::nothing();
        let mut old = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        receive(&mut old, b'o');
        let late = {
            let (region, told) = (region.clone(), told.clone());
            thread::spawn(move || read(&region, OLD, &told))
        };
        drop(old);
        let mut out = end_generation(slot, NEXT - 1);
        if out.is_err() && rule == Rule::DoesNotWait {
            windows.collect_blindly(0);
            slot.rx_lock.store(0, Ordering::Relaxed);
            out = Ok(());
        }
        let mut next = out.is_ok().then(|| next_receives(&region, &windows));
        let got = late.join().unwrap();
        assert!(matches!(got, None | Some(b'o')), "{got:?} is another connection's");
        if next.is_none() {
            assert_eq!(told.count(), 1, "nobody would ever look at the slot again");
            assert_eq!((windows.collect(0), are_out(slot)), (Ok(()), Ok(())));
            next = Some(next_receives(&region, &windows));
        }
        assert_eq!(read(&region, NEXT, &told), Some(b'n'), "a byte vanished");
        // The memory was reclaimed at once, or is reclaimed by this call.
        let _ = windows.collect(0);
        drop(next);
        assert_eq!(windows.usage().assigned, 0);
    });
}

#[test]
fn loom_a_slot_is_not_used_again_under_a_reader() {
    reuse_of_a_slot(Rule::Waits);
}

#[test]
#[should_panic]
fn loom_a_slot_used_again_at_once_loses_bytes() {
    reuse_of_a_slot(Rule::DoesNotWait);
}

/// Tries to send one byte once, like send(2).
pub(crate) fn write(
    region: &Region,
    index: u32,
    generation: u32,
    byte: u8,
    door: &Told,
) -> Appended {
    let slot = region.slot(index).unwrap();
    append(slot, generation, door, Wanted::All(1), |at, _| {
        program_fifo::write_at(region, slot, at, &[byte]);
    })
}

pub(crate) fn sent(send: &mut EngineSend) -> Vec<u8> {
    assert!(send.pull());
    let mut bytes = vec![0; send.len() as usize];
    send.peek(0, send.len()).copy_to(0, &mut bytes);
    bytes
}

fn reuse_of_memory(rule: Rule) {
    model(move || {
        let (region, windows) = world();
        let told = Told::nothing();
        let mut old = EngineSend::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(old.attach(), Attach::Done);
        let late = {
            let (region, told) = (region.clone(), told.clone());
            thread::spawn(move || write(&region, 0, OLD, b'o', &told))
        };
        drop(old);
        if rule == Rule::DoesNotWait {
            windows.collect_blindly(0);
        }
        // Another socket, possibly of another process, gets the memory.
        let mut other = EngineSend::new(&windows, 1, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(other.attach(), Attach::Done);
        let appended = write(&region, 1, 0, b'n', &Told::nothing());
        assert_eq!(appended, Appended::Bytes { n: 1, tell: true });
        late.join().unwrap();
        assert_eq!(sent(&mut other), b"n");
        drop(other);
        let kept = windows.usage().assigned;
        assert_eq!(told.count() > 0, kept > 0, "who is waited for tells, nobody else does");
        assert_eq!(windows.collect(0), Ok(()));
        assert_eq!(windows.usage().assigned, 0);
    });
}

#[test]
fn loom_memory_is_not_used_again_under_a_writer() {
    reuse_of_memory(Rule::Waits);
}

#[test]
#[should_panic]
fn loom_memory_used_again_at_once_gets_foreign_bytes() {
    reuse_of_memory(Rule::DoesNotWait);
}

/// Models a socket that is disconnected (connect(2) with AF_UNSPEC) and connected again. The slot
/// then has a new FIFO, but the same generation.
#[test]
fn loom_a_writer_publishes_nothing_in_a_new_fifo() {
    model(|| {
        let (region, windows) = world();
        let mut old = EngineSend::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(old.attach(), Attach::Done);
        let late = {
            let region = region.clone();
            thread::spawn(move || write(&region, 0, OLD, b'o', &Told::nothing()))
        };
        old.retire();
        let mut new = EngineSend::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        let mut attached = new.attach();
        late.join().unwrap();
        if attached != Attach::Done {
            assert!(new.pull(), "what is published is the old one's");
            attached = new.attach();
        }
        drop(old);
        assert_eq!(attached, Attach::Done);
        let before = sent(&mut new);
        assert!(before.is_empty() || before == b"o");
        let appended = write(&region, 0, OLD, b'n', &Told::nothing());
        assert!(matches!(appended, Appended::Bytes { n: 1, .. }), "{appended:?}");
        assert_eq!(sent(&mut new).last(), Some(&b'n'));
        assert!(windows.take_hostile().is_empty());
    });
}

/// Models a reader, which must not take a byte of the new FIFO for one of the old.
#[test]
fn loom_a_reader_takes_nothing_of_a_new_fifo_for_old() {
    model(|| {
        let (region, windows) = world();
        let mut old = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        receive(&mut old, b'o');
        let late = {
            let region = region.clone();
            thread::spawn(move || read(&region, OLD, &Told::nothing()))
        };
        old.retire();
        let mut new = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        let byte = [b'n'];
        let payload = Payload::new(&byte, Fragments::empty());
        // The write fails while the reader holds the lock. The peer would then retransmit the byte.
        let mut arrived = new.write_at(0, &payload);
        if arrived {
            new.commit(1);
        }
        let got = late.join().unwrap();
        if !arrived {
            assert!(matches!(got, None | Some(b'o')));
            arrived = new.write_at(0, &payload);
            new.commit(1);
        }
        assert!(arrived);
        if got != Some(b'n') {
            assert_eq!(read(&region, OLD, &Told::nothing()), Some(b'n'));
        }
        assert_eq!(new.unread(), 0);
        assert!(windows.take_hostile().is_empty());
    });
}

/// Models a process that dies while it holds a lock. Another thread waits for the lock, and the
/// socket is closed.
#[test]
fn loom_the_lock_of_a_dead_thread_comes_back() {
    model(|| {
        let (region, _) = world();
        let slot = |region: &Region| -> &'static Slot {
            // SAFETY: the region outlives the threads, because they are joined.
            unsafe { &*std::ptr::from_ref(region.slot(0).unwrap()) }
        };
        let told = Told::nothing();
        let dead = {
            let (slot, told) = (slot(&region), told.clone());
            thread::spawn(move || std::mem::forget(lock_rx(slot, OLD, &told)))
        };
        let waiter = {
            let (slot, told) = (slot(&region), told.clone());
            thread::spawn(move || drop(lock_rx(slot, OLD, &told)))
        };
        let out = end_generation(slot(&region), NEXT - 1);
        dead.join().unwrap();
        // The threads of a process without a channel have channel number 0.
        release_dead(slot(&region), 0);
        waiter.join().unwrap();
        if out.is_ok() {
            // The thread that dies locked after the generation changed, so it released the lock
            // itself.
            assert_eq!(told.count(), 0);
        }
        assert_eq!(are_out(slot(&region)), Ok(()));
    });
}
