//! Models of a FIFO whose two sides run concurrently. A side that waits for space or for a read
//! must be notified. Bytes must not change when the FIFO moves to another buffer. A lock must have
//! one owner. The code under test is the code of programs and the engine.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use towpath_shm::layout::Slot;

use crate::append::Appended;
use crate::area::WINDOW_MIN;
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::engine_recv::EngineRecv;
use crate::engine_send::{Attach, EngineSend, take_tx_wanted};
use crate::lock::{lock_rx, try_lock_engine, unlock_engine};
use crate::loom_reuse::{OLD, Told, model, read, receive, sent, world, write};
use crate::program_fifo;

/// Capacity of a FIFO in bytes. The smallest capacity of which a third is not 0.
const FULL: u32 = 3;

/// Models the flag `tx_dirty`. A program that sets it notifies the engine, which must then read all
/// published bytes.
#[test]
fn loom_published_bytes_are_told() {
    model(|| {
        let (region, windows) = world();
        let mut send = EngineSend::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(send.attach(), Attach::Done);
        let commands = Arc::new(AtomicU32::new(0));
        let program = {
            let (region, commands) = (region.clone(), Arc::clone(&commands));
            thread::spawn(move || {
                for byte in *b"ab" {
                    match write(&region, 0, OLD, byte, &Told::nothing()) {
                        Appended::Bytes { n: 1, tell } => {
                            commands.fetch_add(tell.into(), Ordering::Release);
                        }
                        appended => panic!("{appended:?}: there is room"),
                    }
                }
            })
        };
        let mut handled = 0;
        let mut visit = |send: &mut EngineSend| {
            while handled < commands.load(Ordering::Acquire) {
                handled += 1;
                assert!(send.pull());
            }
        };
        visit(&mut send);
        program.join().unwrap();
        visit(&mut send);
        assert_eq!(send.len(), 2, "bytes that nobody told of");
    });
}

/// Models a program that finds no space while the engine frees some. Either the engine sees the
/// request for a notification, or the program sees the space.
#[test]
fn loom_who_finds_no_room_is_told() {
    model(|| {
        let (region, windows) = world();
        let slot = region.slot(0).unwrap();
        let mut send = EngineSend::new(&windows, 0, FULL, FULL);
        assert_eq!(send.attach(), Attach::Done);
        for _ in 0..FULL {
            let appended = write(&region, 0, OLD, b'x', &Told::nothing());
            assert!(matches!(appended, Appended::Bytes { n: 1, .. }));
        }
        assert!(send.pull());
        let writer = {
            let region = region.clone();
            thread::spawn(move || write(&region, 0, OLD, b'y', &Told::nothing()))
        };
        send.release(FULL);
        let told = take_tx_wanted(slot);
        match writer.join().unwrap() {
            Appended::NoRoom => assert!(told, "it waits for ever"),
            appended => assert!(matches!(appended, Appended::Bytes { n: 1, .. })),
        }
    });
}

/// Models the engine's request to be notified of the next read, for a window update. Either the
/// engine sees the read, or the program notifies it.
#[test]
fn loom_a_read_that_the_window_waits_for_is_told() {
    model(|| {
        let (region, windows) = world();
        let mut recv = EngineRecv::new(&windows, 0, 2, 2);
        let reader = {
            let region = region.clone();
            thread::spawn(move || {
                let slot = region.slot(0).unwrap();
                let told = Told::nothing();
                let _guard = lock_rx(slot, OLD, &told)?;
                (program_fifo::unread(slot) == 2).then(|| program_fifo::consume(slot, 2))
            })
        };
        assert!(recv.write_at(0, &crate::Payload::new(b"ab", towpath_shm::Fragments::empty())));
        recv.commit(2);
        // Like a TCP connection, first request the notification, then check the free space.
        recv.await_read();
        let is_small = recv.free() < recv.capacity() / 2;
        if let Some(told) = reader.join().unwrap() {
            assert!(told || !is_small, "the peer waits for ever");
        }
    });
}

/// Models a transmit FIFO that the engine moves to a larger extent while a program writes. The
/// engine may have to postpone the move.
#[test]
fn loom_bytes_move_with_their_memory() {
    model(|| {
        let (region, windows) = world();
        let mut send = EngineSend::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(send.attach(), Attach::Done);
        write(&region, 0, OLD, b'a', &Told::nothing());
        let writer = {
            let region = region.clone();
            thread::spawn(move || write(&region, 0, OLD, b'b', &Told::nothing()))
        };
        send.set_capacity(4 * WINDOW_MIN);
        assert!(matches!(writer.join().unwrap(), Appended::Bytes { n: 1, .. }));
        assert_eq!(sent(&mut send), b"ab");
        assert!(windows.take_hostile().is_empty());
    });
}

/// Models a receive FIFO whose memory is released and attached at a different place while a program
/// reads.
#[test]
fn loom_a_reader_finds_its_bytes_wherever_they_are() {
    model(|| {
        let (region, windows) = world();
        let mut recv = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        receive(&mut recv, b'a');
        let reader = {
            let region = region.clone();
            thread::spawn(move || read(&region, OLD, &Told::nothing()))
        };
        recv.release_if_empty();
        receive(&mut recv, b'b');
        let first = reader.join().unwrap();
        assert_eq!(first, Some(b'a'));
        assert_eq!(read(&region, OLD, &Told::nothing()), Some(b'b'));
        assert!(windows.take_hostile().is_empty());
    });
}

struct Guarded {
    region: crate::Region,
    value: UnsafeCell<u32>,
}

// SAFETY: loom checks that no two threads access the cell at the same time, which the model tests.
unsafe impl Sync for Guarded {}
// SAFETY: loom checks that no two threads access the cell at the same time.
unsafe impl Send for Guarded {}

impl Guarded {
    fn slot(&self) -> &Slot {
        self.region.slot(0).unwrap()
    }

    fn add_one(&self) {
        // SAFETY: the lock is held, so no other thread accesses the cell.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }
}

/// Models a lock that passes from one thread to a waiting thread, while the engine tries to take
/// it.
#[test]
fn loom_a_lock_is_handed_over_and_is_one_owners() {
    model(|| {
        let guarded = Arc::new(Guarded { region: world().0, value: UnsafeCell::new(0) });
        let thread = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || {
                let told = Told::nothing();
                let _guard = lock_rx(guarded.slot(), OLD, &told).unwrap();
                guarded.add_one();
            })
        };
        let word = &guarded.slot().rx_lock;
        let mut expected = 2;
        if try_lock_engine(word) {
            guarded.add_one();
            expected += 1;
            assert!(unlock_engine(word), "nobody takes a lock from the engine so soon");
        }
        let told = Told::nothing();
        let guard = lock_rx(guarded.slot(), OLD, &told).unwrap();
        guarded.add_one();
        drop(guard);
        thread.join().unwrap();
        assert_eq!(word.load(Ordering::SeqCst), 0);
        // SAFETY: the second thread has ended, so no other thread accesses the cell.
        assert_eq!(guarded.value.with(|value| unsafe { *value }), expected);
    });
}
