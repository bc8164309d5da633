//! A thread stops in the middle of a call while another thread closes the socket, and new
//! connections reuse the slot. The tests make the thread's steps themselves.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::program::{Handle, Program, Running, eventually};
use towpath_engine::EngineConfig;
use towpath_ring::program_fifo;
use towpath_shm::layout::{LOCK_CHANNEL_SHIFT, LOCK_CONTENDED, LOCK_ENGINE, op};

/// Lock owner: a thread of the first program that attaches.
const FIRST: u32 = 1 << LOCK_CHANNEL_SHIFT | 5;
/// Lock owner: a thread of the second program.
const SECOND: u32 = 2 << LOCK_CHANNEL_SHIFT | 7;
/// More bytes than all FIFOs of one direction hold, so that some stay in the sender's FIFO.
const MUCH: usize = 32 << 20;

/// A stopped thread that holds a lock, and its next steps.
struct Inside<'a> {
    program: &'a Program,
    handle: Handle,
    word: &'a AtomicU32,
    owner: u32,
}

impl<'a> Inside<'a> {
    fn at(
        program: &'a Program,
        handle: Handle,
        end: impl Fn(&towpath_shm::layout::Slot) -> &AtomicU32,
        owner: u32,
    ) -> Self {
        let word = end(program.slot(handle));
        assert_eq!(word.swap(owner, Ordering::Acquire), 0);
        Self { program, handle, word, owner }
    }

    /// Releases the lock, and notifies the engine if the lock word requests it. Returns whether it
    /// did.
    fn leave(self) -> bool {
        let held = self.word.swap(0, Ordering::Release);
        assert_eq!(held & !(LOCK_ENGINE | LOCK_CONTENDED), self.owner);
        let wanted = held & LOCK_ENGINE != 0;
        if wanted {
            self.program.command(op::UNLOCKED, self.handle, 0);
        }
        wanted
    }
}

/// Connects to a listener at `addr`. Returns client and server.
fn pair(program: &Program, listener: Handle, addr: std::net::SocketAddr) -> (Handle, Handle) {
    let client = program.connect(addr);
    (client, program.accept(listener))
}

fn has_arrived(program: &Program, handle: Handle, n: usize) {
    let slot = program.slot(handle);
    eventually("the bytes' arrival", || (program_fifo::unread(slot) as usize == n).then_some(()));
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Closes a connection, and waits until the engine has freed both sockets.
fn bury(engine: &Running, program: &Program, pair: [Handle; 2], left: u64) {
    pair.into_iter().for_each(|handle| program.close(handle));
    engine.wait_for("sockets", left);
}

#[test]
fn a_thread_in_recv_takes_nothing_of_the_next_connection() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    // The thread stops either after the generation check, or after the copy.
    for has_copied in [false, true] {
        let (client, server) = pair(&program, listener, addr);
        program.send(client, b"old!");
        has_arrived(&program, server, 4);
        let slot = program.slot(server);
        let inside = Inside::at(&program, server, |slot| &slot.rx_lock, FIRST);
        let (start, mut bytes) = (program_fifo::start(slot), [0; 4]);
        if has_copied {
            assert_eq!(program_fifo::peek(&program.region, slot, 0, &mut bytes), 4);
        }
        bury(&engine, &program, [client, server], 1);

        let new = pair(&program, listener, addr);
        program.send(new.0, b"new!");
        program.send(new.1, b"also");
        has_arrived(&program, new.0, 4);
        has_arrived(&program, new.1, 4);

        let n = match has_copied {
            true => 4,
            false => program_fifo::peek(&program.region, slot, 0, &mut bytes) as u32,
        };
        assert!(n == 0 || bytes == *b"old!", "{bytes:?}");
        if n > 0 {
            let _ = program_fifo::consume_from(slot, start, n);
        }
        for end in [new.0, new.1] {
            assert_eq!(program_fifo::unread(program.slot(end)), 4, "its bytes vanished");
        }
        assert_eq!(program.recv(new.1, 4), b"new!");
        assert_eq!(program.recv(new.0, 4), b"also");
        inside.leave();
        bury(&engine, &program, new.into(), 1);
    }
}

#[test]
fn a_thread_in_send_writes_nothing_into_the_next_connection() {
    let engine = Running::start(EngineConfig::default());
    // The next connections belong to another process.
    let (program, other) = (engine.program(), engine.program());
    let (listener, addr) = other.listen("127.0.0.1:0");
    let client = program.connect(addr);
    let server = other.accept(listener);
    program.send(client, b"x");
    assert_eq!(other.recv(server, 1), b"x");
    let slot = program.slot(client);
    let inside = Inside::at(&program, client, |slot| &slot.tx_lock, FIRST);
    // The thread has stopped during the copy, and keeps the address of the memory.
    let base = slot.tx_base.load(Ordering::Relaxed) as usize;
    program.close(client);
    other.close(server);
    engine.wait_for("sockets", 1);

    let data = pattern(MUCH);
    let new = pair(&other, listener, addr);
    let sent = [new.0, new.1].map(|end| {
        let (mut idle, mut sent) = (0, 0);
        while idle < 20 && sent < MUCH {
            match other.try_send(end, &data[sent..]) {
                0 => {
                    idle += 1;
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                n => (sent, idle) = (sent + n, 0),
            }
            program.region.mapping().write(base, &[0xee; 60_000]);
        }
        assert!(sent < MUCH, "some is left in the sender's FIFO");
        sent
    });
    for (end, sent) in [(new.1, sent[0]), (new.0, sent[1])] {
        let received = other.recv(end, sent);
        assert!(received == data[..sent], "another connection's bytes are among these");
    }
    inside.leave();
    bury(&engine, &other, new.into(), 1);
}

/// Slot and memory become free again, whether the owner of the lock releases it or dies.
#[test]
fn who_lets_go_tells_the_engine_and_who_dies_frees() {
    let engine = Running::start(EngineConfig::default());
    let (program, other) = (engine.program(), engine.program());
    let (listener, addr) = program.listen("127.0.0.1:0");
    let (client, server) = pair(&program, listener, addr);
    let shared = other.connect(addr);
    let accepted = program.accept(listener);
    let first = [
        Inside::at(&program, client, |slot| &slot.rx_lock, FIRST),
        Inside::at(&program, client, |slot| &slot.tx_lock, FIRST),
        Inside::at(&program, server, |slot| &slot.tx_lock, FIRST),
    ];
    let second = Inside::at(&other, shared, |slot| &slot.rx_lock, SECOND);
    for handle in [client, server, accepted] {
        program.close(handle);
    }
    other.close(shared);
    engine.wait_for("sockets", 1);
    assert_eq!(engine.counter("slots_awaited"), 3);
    assert_eq!(second.word.load(Ordering::Relaxed), SECOND | LOCK_ENGINE);
    let [a, b, c] = first;
    assert!(a.leave());
    assert!(c.leave());
    engine.wait_for("slots_awaited", 2);
    assert!(b.leave());
    engine.wait_for("slots_awaited", 1);
    drop(other);
    engine.wait_for("slots_awaited", 0);
    program.close(listener);
    engine.wait_for("windows_assigned", 0);
}

/// A connection outlives its last process, and another process gets the dead process's number.
#[test]
fn the_lock_of_a_dead_process_is_not_its_successors() {
    let engine = Running::start(EngineConfig::default());
    let (program, dying) = (engine.program(), engine.program());
    let (listener, addr) = program.listen("127.0.0.1:0");
    let client = dying.connect(addr);
    let server = program.accept(listener);
    let inside = Inside::at(&dying, client, |slot| &slot.tx_lock, SECOND);
    dying.close(client);
    program.recv_end(server);
    assert_eq!(inside.word.load(Ordering::Relaxed), SECOND);
    drop(dying);
    engine.wait_for("channels", 1);
    let successor = engine.program();
    program.close(server);
    program.close(listener);
    engine.wait_for("sockets", 0);
    assert_eq!(engine.counter("slots_awaited"), 0);
    engine.wait_for("windows_assigned", 0);
    drop(successor);
}
