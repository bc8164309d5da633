//! A reply must reflect what other processes did before the request, regardless of the order in
//! which the engine notices both. The tests stop the engine before it polls its descriptors, so
//! that all events are pending at once.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use towpath_engine::EngineConfig;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
use towpath_shm::control::{Request, call};
use towpath_shm::layout::{RawAddr, op};

use crate::options::{Void, interface};
use crate::program::{Handle, Program, Running, eventually};

const ECONNREFUSED: i32 = 111;

/// Lock that a test holds to stop its engine at a [`Gate`].
#[derive(Default)]
pub struct Lock {
    gate: Mutex<()>,
    /// Whether the engine waits for the lock.
    waits: AtomicBool,
}

/// A port that stops the engine before it polls its descriptors.
pub struct Gate<P> {
    port: P,
    lock: Arc<Lock>,
    /// Pipe that never becomes readable. The engine calls `blocked` only for ports with a
    /// descriptor.
    wake: (PipeReader, PipeWriter),
}

impl<P> Gate<P> {
    /// Wraps a port.
    pub fn new(port: P, lock: Arc<Lock>) -> Self {
        Self { port, lock, wake: std::io::pipe().unwrap() }
    }
}

impl<P: Port> Port for Gate<P> {
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
        self.lock.waits.store(true, Ordering::SeqCst);
        let _gate = self.lock.gate.lock();
        self.lock.waits.store(false, Ordering::SeqCst);
        self.port.blocked()
    }
}

impl Lock {
    /// Runs `then` while the engine waits at the gate.
    pub fn hold_up(&self, program: &Program, then: impl FnOnce(MutexGuard<'_, ()>)) {
        let gate = self.gate.lock().unwrap();
        // The command wakes a sleeping engine. `program` sends no earlier command in this turn.
        program.command(op::RX_SPACE, Handle { slot: u32::MAX, generation: 0 }, 0);
        eventually("the engine at the gate", || self.waits.load(Ordering::SeqCst).then_some(()));
        then(gate);
    }
}

/// Returns the answer to a request that is sent after `before` has run.
fn ask_after(
    lock: &Lock,
    program: &Program,
    before: impl FnOnce(),
    request: &Request,
) -> Result<(), i32> {
    lock.hold_up(program, |_gate| {
        before();
        program.begin_call(request);
    });
    program.end_call().map(drop)
}

/// Returns a socket's unread bytes, as `towpath ss` shows them if it is started after `before` has
/// run.
fn unread_after(
    (engine, lock): (&Running, &Lock),
    program: &Program,
    of: Handle,
    before: impl FnOnce(),
) -> u32 {
    let mut sockets = Vec::new();
    lock.hold_up(program, |gate| {
        before();
        sockets = std::thread::scope(|scope| {
            let asks = scope.spawn(|| engine.remote.sockets().unwrap());
            // Let the query be sent. If the time is too short, the test covers less.
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
    let lock = Arc::<Lock>::default();
    let gate = Gate::new(Void, Arc::clone(&lock));
    let engine = Running::start_with(config, move || vec![Box::new(gate)]);
    let (program, other) = (engine.program(), engine.program());

    // A process has ended and was waited for, so its listener is closed.
    let client = program.socket(6);
    let (_, addr) = other.listen("127.0.0.1:0");
    let connect = Request { addr: RawAddr::new(addr), ..program.about(call::CONNECT, client) };
    assert_eq!(ask_after(&lock, &program, || drop(other), &connect), Ok(()));
    assert_eq!(program.error(client), ECONNREFUSED);

    // A process has closed a listener, so its port is free.
    let other = engine.program();
    let (listener, addr) = other.listen("127.0.0.1:0");
    let socket = program.socket(6);
    let bind = Request { addr: RawAddr::new(addr), ..program.about(call::BIND, socket) };
    assert_eq!(ask_after(&lock, &program, || other.close(listener), &bind), Ok(()));

    // A process has closed a socket with more queued datagrams than one turn sends. The port is
    // free, but its datagrams still have it as source, because Linux sends a datagram during
    // send(2).
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
    assert_eq!(ask_after(&lock, &program, send_and_close, &bind), Ok(()));
    for n in 0..200 {
        assert_eq!(program.recv_from(receiver), (from, vec![n]));
    }

    // A process has sent bytes, so they are counted as unread.
    let (listener, addr) = program.listen("127.0.0.1:0");
    let client = program.connect(addr);
    let server = program.accept(listener);
    program.send(client, b"first");
    program.recv(server, 5);
    let send = || program.send(client, b"second");
    assert_eq!(unread_after((&engine, &lock), &program, server, send), 6);
}
