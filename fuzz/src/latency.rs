//! Measures how long an honest program waits while a hostile one is active. [`crate::engine`]
//! counts turns instead; here the engine runs on a separate thread, in real time. Run it by hand
//! (`examples/latency.rs`), because results depend on the machine.
//!
//! The honest program sleeps while it waits, like ordinary programs. A spinning program would lose
//! its processor to other threads, and measure the scheduler instead of the engine.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use towpath_engine::{Engine, EngineConfig, Remote};
use towpath_ring::{Waiter, await_answer, notification, program_fifo};
use towpath_shm::control::{ControlReply, Request, call};
use towpath_shm::futex;
use towpath_shm::layout::{AcceptRecord, Command, Plain, RawAddr, Slot, flags, op, setting};

use crate::program::{Handle, Heard, Program};

/// Load on the machine in addition to the honest program and the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Number of computing threads. A hostile program loads two processors: its own, and that of
    /// the engine.
    Computation(usize),
    /// A program that floods its ring and its control socket, opens hundreds of sockets, and is
    /// repeatedly killed and restarted.
    Attack,
}

/// Times of all rounds in ascending order, so that a percentile is an index.
#[derive(Debug)]
pub struct Times {
    /// Until 100 bytes reached the other end of a connection over loopback.
    pub bytes: Vec<Duration>,
    /// Until the replies to socket(2), and to bind(2) with a free port.
    pub answer: Vec<Duration>,
}

/// Bytes of a round.
const LEN: usize = 100;
/// Number of sockets that a hostile program opens before it is killed.
const SOCKETS: usize = 200;

/// Runs an engine and an honest program with the given load. Returns the times of `rounds` rounds.
pub fn measure(beside: Beside, rounds: usize) -> Times {
    let (tell, told) = mpsc::channel();
    let engine = thread::spawn(move || {
        let engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("an engine");
        tell.send(engine.remote()).expect("somebody waits");
        engine.run()
    });
    let remote = told.recv().expect("the engine starts");
    let done = AtomicBool::new(false);
    let times = thread::scope(|scope| {
        match beside {
            Beside::Computation(threads) => {
                for _ in 0..threads {
                    scope.spawn(|| {
                        while !done.load(Relaxed) {
                            std::hint::spin_loop();
                        }
                    });
                }
            }
            Beside::Attack => {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        let Ok(control) = remote.attach() else { continue };
                        let mut process =
                            attacker(control).spawn().expect("this program starts again");
                        process.wait().expect("it is ours");
                    }
                });
            }
        }
        let times = Honest::new(&remote).rounds(rounds);
        done.store(true, Relaxed);
        times
    });
    remote.stop();
    engine.join().expect("the engine lives to the end");
    times
}

/// Command-line argument with which a program calls [attack].
pub const ATTACK: &str = "attack";

/// Returns the command that runs this program again, to attack over a control socket.
fn attacker(control: OwnedFd) -> process::Command {
    let this = std::env::current_exe().expect("this program has a file");
    let mut command = process::Command::new(this);
    command.arg(ATTACK).stdin(control);
    command
}

/// Runs a hostile process, whose control socket is its standard input.
pub fn attack() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().expect("a control socket");
    let Some(mut program) = begin(control) else { return };
    let socket = Request { call: call::SOCKET, a: 2, b: 6, ..Request::default() };
    while program.handles.len() < SOCKETS {
        let Some(reply) = ask(&mut program, &socket) else { return };
        program.handles.push(Handle { slot: reply.slot, generation: reply.generation });
        let handle = program.handles[program.handles.len() - 1];
        let Handle { slot, generation } = handle;
        for op in [op::SETTING, op::TX_WINDOW, op::TX, op::RX_SPACE] {
            let (a, b) = (setting::SNDBUF, 16 << 20);
            while program.command(&Command { op, slot, generation, a, b, c: 0 }) {}
            ring(&program);
        }
        while program.say(&Request { call: call::SOCKETS, ..Request::default() }) {}
        while !matches!(program.hear(), Heard::Nothing | Heard::Gone) {}
    }
}

struct Honest {
    program: Program,
    client: Handle,
    server: Handle,
}

impl Honest {
    fn new(remote: &Remote) -> Self {
        let control = remote.attach().expect("room for a process");
        let mut program = begin(control).expect("the engine says hello");
        let mut socket = || {
            let request = Request { call: call::SOCKET, a: 2, b: 6, ..Request::default() };
            let reply = ask(&mut program, &request).expect("a socket");
            Handle { slot: reply.slot, generation: reply.generation }
        };
        let (listener, client) = (socket(), socket());
        let addr = RawAddr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        ask(&mut program, &Request { addr, ..Program::about(call::BIND, listener) });
        ask(&mut program, &Request { a: 8, ..Program::about(call::LISTEN, listener) });
        let addr = slot(&program, listener).local.load();
        ask(&mut program, &Request { addr, ..Program::about(call::CONNECT, client) });
        let connecting = slot(&program, client);
        until(connecting, || connecting.flags.load(Acquire) & flags::CONNECTED != 0);
        let mut bytes = [0; size_of::<AcceptRecord>()];
        let region = &program.link.as_ref().expect("it said hello").region;
        let queue = slot(&program, listener);
        until(queue, || program_fifo::peek(region, queue, 0, &mut bytes) == bytes.len());
        let _ = program_fifo::consume(queue, bytes.len() as u32);
        let record = AcceptRecord::from_bytes(&bytes);
        let server = Handle { slot: record.slot, generation: record.generation };
        let honest = Self { program, client, server };
        honest.tell(op::ACCEPTED, server);
        honest.tell(op::TX_WINDOW, client);
        let sending = slot(&honest.program, client);
        until(sending, || sending.tx_cap.load(Acquire) != 0);
        honest
    }

    fn rounds(mut self, rounds: usize) -> Times {
        let (mut bytes, mut answer) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let start = Instant::now();
            self.send();
            bytes.push(start.elapsed());
            self.ask_for_a_port(&mut answer);
        }
        bytes.sort();
        answer.sort();
        Times { bytes, answer }
    }

    fn ask_for_a_port(&mut self, times: &mut Vec<Duration>) {
        let request = Request { call: call::SOCKET, a: 2, b: 17, ..Request::default() };
        let reply = self.timed(&request, times);
        let handle = Handle { slot: reply.slot, generation: reply.generation };
        let addr = RawAddr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let reply = self.timed(&Request { addr, ..Program::about(call::BIND, handle) }, times);
        assert_eq!(reply.errno, 0, "there are ports");
        self.tell(op::CLOSE, handle);
    }

    fn timed(&mut self, request: &Request, times: &mut Vec<Duration>) -> ControlReply {
        let start = Instant::now();
        let reply = ask(&mut self.program, request).expect("the engine lives");
        times.push(start.elapsed());
        reply
    }

    fn send(&self) {
        let region = &self.program.link.as_ref().expect("it said hello").region;
        let (from, to) = (slot(&self.program, self.client), slot(&self.program, self.server));
        until(from, || program_fifo::room(from) as usize >= LEN);
        assert_eq!(program_fifo::write(region, from, 0, &[7; LEN]), LEN);
        if program_fifo::publish(from, LEN as u32) {
            self.tell(op::TX, self.client);
        }
        until(to, || program_fifo::unread(to) as usize >= LEN);
        if program_fifo::consume(to, LEN as u32) {
            self.tell(op::RX_SPACE, self.server);
        }
    }

    fn tell(&self, op: u32, Handle { slot, generation }: Handle) {
        let command = Command { op, slot, generation, ..Command::default() };
        assert!(self.program.command(&command), "it says less than its ring holds");
        ring(&self.program);
    }
}

fn begin(control: OwnedFd) -> Option<Program> {
    let mut program = Program::new(control);
    let (reply, descriptors) = exchange(&mut program, &Program::hello(&[]))?;
    program.begin(&reply, descriptors);
    Some(program)
}

fn ask(program: &mut Program, request: &Request) -> Option<ControlReply> {
    exchange(program, request).map(|(reply, _)| reply)
}

/// Makes a request and waits for its reply. Returns `None` if the engine has disconnected the
/// program.
fn exchange(program: &mut Program, request: &Request) -> Option<(ControlReply, Vec<OwnedFd>)> {
    while !say(program, request) {
        match program.hear() {
            Heard::Gone => return None,
            Heard::Nothing => thread::yield_now(),
            Heard::Answer(..) => {}
        }
    }
    loop {
        match program.hear() {
            Heard::Answer(_, reply, descriptors) => return Some((*reply, descriptors)),
            Heard::Nothing => wait(program),
            Heard::Gone => return None,
        }
    }
}

fn say(program: &mut Program, request: &Request) -> bool {
    let is_said = program.say(request);
    ring(program);
    is_said
}

/// Sleeps like a program that waits for a reply.
fn wait(program: &mut Program) {
    let Some(channel) = program.awaits_cell() else {
        let mut control = [PollFd::new(&program.control, PollFlags::IN)];
        poll(&mut control, None).expect("a control socket can be waited for");
        return;
    };
    let (word, expected) = await_answer(channel);
    if !program.is_answered() {
        futex::wait(word, expected, Some(Duration::from_millis(50)));
    }
}

fn ring(program: &Program) {
    if let Some(bell) = program.engine_bell() {
        notification::ring(bell.as_fd());
    }
}

fn slot(program: &Program, handle: Handle) -> &Slot {
    program.slot(handle.slot).expect("slots of the engine exist")
}

/// Sleeps like a program that waits for one socket.
fn until(slot: &Slot, mut is_so: impl FnMut() -> bool) {
    let mut waiter = Waiter::new(slot);
    while !is_so() {
        waiter.sleep(Some(Duration::from_millis(50)));
    }
}
