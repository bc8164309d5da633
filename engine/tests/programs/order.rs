//! What one process did before another asks counts for the answer, in whatever order the engine comes
//! to hear of both. The engine is held up just before it looks at its descriptors, so that it finds
//! everything at once.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use towpath_engine::EngineConfig;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
use towpath_shm::control::{Request, call};
use towpath_shm::layout::{RawAddr, op};

use crate::options::{Void, interface};
use crate::program::{Handle, Program, Running, eventually};

const ECONNREFUSED: i32 = 111;

/// Held by a test: its engine waits at the gate.
static GATE: Mutex<()> = Mutex::new(());
/// The engine waits there.
static WAITS: AtomicBool = AtomicBool::new(false);

/// A port through which the engine has to go before it looks at its descriptors.
struct Gate {
    port: Void,
    /// Never has anything: only what is waited for is asked whether it is blocked.
    wake: (PipeReader, PipeWriter),
}

impl Port for Gate {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.port.poll(now_ns, pool, out, max)
    }
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.port.submit(now_ns, pool, batch)
    }
    fn offloads(&self) -> Offloads {
        self.port.offloads()
    }
    fn link_type(&self) -> LinkType {
        self.port.link_type()
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.0.as_fd())
    }
    fn blocked(&self) -> bool {
        WAITS.store(true, Ordering::SeqCst);
        let _gate = GATE.lock();
        WAITS.store(false, Ordering::SeqCst);
        self.port.blocked()
    }
}

/// Does something while the engine waits at the gate.
fn hold_up(program: &Program, then: impl FnOnce(MutexGuard<'_, ()>)) {
    let gate = GATE.lock().unwrap();
    // It may sleep beyond the gate: this wakes it. And from now on it has something of `program`'s.
    program.command(op::RX_SPACE, Handle { slot: u32::MAX, generation: 0 }, 0);
    eventually("the engine at the gate", || WAITS.load(Ordering::SeqCst).then_some(()));
    then(gate);
}

/// What a request is answered that was made after `before` was over.
fn ask_after(program: &Program, before: impl FnOnce(), request: &Request) -> Result<(), i32> {
    hold_up(program, |_gate| {
        before();
        program.begin_call(request);
    });
    program.end_call().map(drop)
}

/// Bytes that wait at a socket, as `towpath ss` would tell that asks after `before` was over.
fn unread_after(engine: &Running, program: &Program, of: Handle, before: impl FnOnce()) -> u32 {
    let mut sockets = Vec::new();
    hold_up(program, |gate| {
        before();
        sockets = std::thread::scope(|scope| {
            let asks = scope.spawn(|| engine.remote.sockets().unwrap());
            // Should it ask later than that, the test is only weaker.
            std::thread::sleep(Duration::from_millis(50));
            drop(gate);
            asks.join().unwrap()
        });
    });
    sockets.iter().find(|socket| socket.slot == of.slot).unwrap().recv_q
}

#[test]
fn what_was_before_a_request_counts_for_its_answer() {
    let config = EngineConfig { interfaces: vec![interface()], ..EngineConfig::default() };
    let engine = Running::start_with(config, || {
        vec![Box::new(Gate { port: Void, wake: std::io::pipe().unwrap() })]
    });
    let (program, other) = (engine.program(), engine.program());

    // A process has ended, as whoever waited for it knows: its listener is gone.
    let client = program.socket(6);
    let (_, addr) = other.listen("127.0.0.1:0");
    let connect = Request { addr: RawAddr::new(addr), ..program.about(call::CONNECT, client) };
    assert_eq!(ask_after(&program, || drop(other), &connect), Ok(()));
    assert_eq!(program.error(client), ECONNREFUSED);

    // A process has closed a listener: its port is free.
    let other = engine.program();
    let (listener, addr) = other.listen("127.0.0.1:0");
    let socket = program.socket(6);
    let bind = Request { addr: RawAddr::new(addr), ..program.about(call::BIND, socket) };
    assert_eq!(ask_after(&program, || other.close(listener), &bind), Ok(()));

    // A process has closed a socket with more datagrams queued than a turn sends: its port is free, and they
    // come from there all the same, as on Linux, which sends a datagram while send(2) lasts.
    let receiver = program.socket(17);
    let to = program.bind(receiver, "127.0.0.1:0").unwrap();
    let sender = other.socket(17);
    let from = other.bind(sender, "127.0.0.1:0").unwrap();
    other.send_to(sender, Some(to), b"first");
    assert_eq!(program.recv_from(receiver), (from, b"first".to_vec()));
    let next = program.socket(17);
    let bind = Request { addr: RawAddr::new(from), ..program.about(call::BIND, next) };
    let send_and_close = || {
        (0..200).for_each(|n| other.send_to(sender, Some(to), &[n]));
        other.close(sender);
    };
    assert_eq!(ask_after(&program, send_and_close, &bind), Ok(()));
    for n in 0..200 {
        assert_eq!(program.recv_from(receiver), (from, vec![n]));
    }

    // A process has sent something.
    let (listener, addr) = program.listen("127.0.0.1:0");
    let client = program.connect(addr);
    let server = program.accept(listener);
    program.send(client, b"first");
    program.recv(server, 5);
    let send = || program.send(client, b"second");
    assert_eq!(unread_after(&engine, &program, server, send), 6);
}
