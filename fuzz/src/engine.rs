//! An engine with a program that has attached by the rules and keeps to none from then on, and an
//! honest program beside it. The input decides the hostile program's steps. A step is a write to
//! any word, a request or command with any argument, a flood of them, any descriptor, or its end.
//!
//! All programs of a run share one region, so there are two kinds of case. In [`Reach::Own`] the
//! hostile program writes to everything of its own sockets and channel. The program also names the
//! sockets of others, except where it would be given them. No step of the honest program may fail,
//! change or be late. In [`Reach::All`] it writes to the honest one's sockets, too, as far as a
//! program reaches today (`docs/security.md`). Then the engine must live, its work in a turn is
//! bounded, and nothing is left of anybody in the end.
//!
//! [`Case`] is what the tests use, and what is asked of the engine; `steps` is what the input is
//! taken for.

mod steps;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use towpath_engine::{EngineConfig, Hand};
use towpath_ring::program_fifo;
use towpath_shm::control::{REQUEST_OFFSET, Request, call};
use towpath_shm::layout::{
    CHANNEL_LEN, COMMANDS_MAX, COMMANDS_OFFSET, Command, DatagramHeader, LOCK_CHANNEL_SHIFT,
    LOCK_CONTENDED, LOCK_ENGINE, Plain, RawAddr, SLOTS_MAX, SLOTS_OFFSET, Slot, op, setting,
};

use crate::honest::{Honest, Waited, ask_for_all};
use crate::input::Input;
pub use crate::program::Handle;
use crate::program::{Heard, Program};

/// Runs one case; panics when the engine does what it may not.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let reach = if input.one_in(4) { Reach::All } else { Reach::Own };
    let mut case = Case::new(reach);
    case.attack(input.rest());
    case.end();
}

/// Steps of a case, at most: longer ones took longer and found nothing more.
const STEPS_MAX: usize = 300;
/// Processes of the hostile kind at a time: what floods cost grows with their number.
const PROGRAMS_MAX: usize = 6;
/// Requests of a flood: more than a control socket holds (`net.unix.max_dgram_qlen` is 10 or 512).
const REQUESTS_MAX: usize = 600;
/// 32-bit words of a slot. The words are written to by number, so that no field is left out.
pub const SLOT_WORDS: usize = size_of::<Slot>() / 4;
/// 32-bit words of the header of a channel, and of the cell for requests.
pub const CHANNEL_WORDS: usize = REQUEST_OFFSET / 4;
/// Time long enough for everything that time ends. TIME-WAIT lasts a minute, and a socket in a
/// message waits for half of one. A connection whose peer does not answer is given up after some
/// minutes.
const THE_END: Duration = Duration::from_secs(3600);
/// How long threads may take to close descriptors, none of which sleeps.
const CLOSING_MS_MAX: u32 = 50_000;
/// Turns in which everything is done that was asked for.
const TURNS_MAX: u32 = 20_000;
/// Bytes that the honest program sends at a time.
const LEN: u32 = 2000;
/// Most steps of work in one turn of these cases. Each of the few rings, of requests, events and
/// sockets that end has a share; see `engine/src/commands.rs`. Each is some 100 ns.
pub const WORK_A_TURN_MAX: u64 = 4096;

/// How far the hostile program goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Everything that the program holds.
    Own,
    /// All that is mapped.
    All,
}

/// An engine and its programs.
pub struct Case {
    hand: Hand,
    honest: Honest,
    /// Turns that the honest program waits without other programs.
    calm: Waited,
    /// Baseline: what the engine holds for the honest program alone; None until [`Case::kill_all`]
    /// has measured it.
    alone: Option<Vec<(&'static str, u64)>>,
    reach: Reach,
    programs: Vec<Program>,
    /// Sockets of hostile programs that there have been.
    opened: u32,
    /// Slots with words that were written against the rules since they were opened.
    spoilt: HashSet<u32>,
    /// Descriptors that can be passed in a message.
    descriptors: Vec<OwnedFd>,
}

impl Case {
    /// A case with one hostile program, which has said hello.
    pub fn new(reach: Reach) -> Self {
        let config = EngineConfig {
            sockets_max: 8192,
            channels_max: 64,
            memory_cap: 256 << 20,
            ..EngineConfig::default()
        };
        let mut hand = Hand::new(config, Vec::new(), [7; 32]).expect("memory and descriptors");
        let mut honest = Honest::new(&mut hand);
        honest.work(&mut hand, LEN);
        let calm = honest.work(&mut hand, LEN);
        let descriptors = steps::every_kind_of_descriptor();
        let (programs, spoilt) = (Vec::new(), HashSet::new());
        let (alone, opened) = (None, 0);
        let mut case =
            Self { hand, honest, calm, alone, reach, programs, opened, spoilt, descriptors };
        case.attach();
        case
    }

    /// Lets the programs do what the bytes say.
    pub fn attack(&mut self, bytes: &[u8]) {
        let mut input = Input::new(bytes);
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            self.step(&mut input);
        }
    }

    /// Adds a program, which has not said hello.
    pub fn attach_in_silence(&mut self) {
        if let Ok(control) = self.hand.attach() {
            self.programs.push(Program::new(control));
        }
    }

    /// Adds a program that begins by the rules.
    pub fn attach(&mut self) {
        let Ok(control) = self.hand.attach() else { return };
        let mut program = Program::new(control);
        let (reply, descriptors, _) =
            ask_for_all(&mut program, &mut self.hand, &Program::hello(&[]));
        program.begin(&reply, descriptors);
        self.programs.push(program);
    }

    /// Sockets of each kind, connections with bytes in both directions among them, of the last
    /// program.
    pub fn open_all(&mut self) {
        let at = self.programs.len() - 1;
        let local = RawAddr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        for protocol in [6, 6, 17, 1] {
            let socket = Request { call: call::SOCKET, a: 2, b: protocol, ..Request::default() };
            self.ask(at, &socket);
        }
        let [listener, client, datagrams, echo] = self.last_handles(at);
        let bind = |handle| Request { addr: local, ..Program::about(call::BIND, handle) };
        self.ask(at, &bind(listener));
        self.ask(at, &bind(datagrams));
        self.ask(at, &bind(echo));
        self.ask(at, &Request { a: 8, ..Program::about(call::LISTEN, listener) });
        let addr = self.slot(at, listener).local.load();
        self.ask(at, &Request { addr, ..Program::about(call::CONNECT, client) });
        (0..4).for_each(|_| self.turn(Duration::ZERO));
        self.accept(at, listener);
        self.turn(Duration::ZERO);
    }

    /// So many sockets of the last program.
    pub fn open(&mut self, protocol: u32, count: usize) {
        let at = self.programs.len() - 1;
        let wanted = self.programs[at].handles.len() + count;
        let request = Request { call: call::SOCKET, a: 2, b: protocol, ..Request::default() };
        while self.programs[at].handles.len() < wanted {
            self.ask(at, &request);
        }
    }

    /// A listener of the last program's with so many connections in its queue, which the program
    /// itself has made.
    pub fn fill_queue(&mut self, connections: usize) -> Handle {
        let at = self.programs.len() - 1;
        self.open(6, 1);
        let [listener] = self.last_handles(at);
        let addr = RawAddr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        self.ask(at, &Request { addr, ..Program::about(call::BIND, listener) });
        self.ask(at, &Request { a: 4096, ..Program::about(call::LISTEN, listener) });
        let addr = self.slot(at, listener).local.load();
        for _ in 0..connections {
            self.open(6, 1);
            let [client] = self.last_handles(at);
            self.ask(at, &Request { addr, ..Program::about(call::CONNECT, client) });
        }
        self.turn(Duration::ZERO);
        listener
    }

    /// Fills the transmit FIFO of the last program's last socket with the smallest datagrams, and
    /// says nothing of them.
    pub fn fill_with_datagrams(&mut self) {
        let at = self.programs.len() - 1;
        let [handle] = self.last_handles(at);
        let a = setting::SNDBUF;
        self.tell(Command { a, b: 16 << 20, ..about(op::SETTING, handle) });
        self.tell(about(op::TX_WINDOW, handle));
        let nobody = RawAddr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)));
        let header = DatagramHeader { remote: nobody, ..DatagramHeader::default() };
        let link = self.programs[at].link.as_ref().expect("it said hello");
        let (slot, mut n) = (self.slot(at, handle), 0);
        while program_fifo::write(&link.region, slot, n, header.as_bytes())
            == size_of::<DatagramHeader>()
        {
            n += size_of::<DatagramHeader>() as u32;
        }
        let _ = program_fifo::publish(slot, n);
        assert!(n > 15 << 20, "{n} bytes");
    }

    /// Puts a command about each of the sockets of every program into its ring, as many as fit.
    pub fn fill_rings(&mut self, command: Command) {
        (0..self.programs.len()).for_each(|at| self.fill_ring_of(at, command));
    }

    /// The same for the last program.
    pub fn fill_ring(&mut self, command: Command) {
        self.fill_ring_of(self.programs.len() - 1, command);
    }

    fn fill_ring_of(&mut self, at: usize, command: Command) {
        let handles = self.programs[at].handles.clone();
        let mut all = handles.iter().rev().cycle();
        while let Some(handle) = all.next()
            && self.say(at, Command { slot: handle.slot, generation: handle.generation, ..command })
        {
        }
    }

    /// The last program forks; its child, which is the last one then, must hold what it held.
    pub fn fork(&mut self) {
        let (at, before) = (self.programs.len() - 1, self.programs.len());
        self.programs[at].say(&Request { call: call::CLONE, ..Request::default() });
        for _ in 0..TURNS_MAX {
            self.turn(Duration::ZERO);
            self.hear(at);
            if self.programs.len() > before {
                let child = self.programs.last().expect("there is one");
                let is_held = |handle: &Handle| self.hand.is_held(child.number, handle.slot);
                assert!(child.handles.iter().all(is_held));
                return;
            }
        }
        panic!("there is no child: {:#?}", self.hand.counters().engine);
    }

    /// The last program asks for a fork, and is not answered yet.
    pub fn begin_fork(&mut self) {
        let at = self.programs.len() - 1;
        self.programs[at].say(&Request { call: call::CLONE, ..Request::default() });
        self.turn(Duration::ZERO);
    }

    /// Says of all sockets of the last program's that they lie in messages.
    pub fn mark_in_flight(&mut self) {
        let at = self.programs.len() - 1;
        for handle in &self.programs[at].handles {
            self.slot(at, *handle).in_flight.store(1, Relaxed);
        }
    }

    /// The last program is killed.
    pub fn kill(&mut self) {
        drop(self.programs.pop());
    }

    /// All hostile programs are killed, and have as much time as anything takes. Panics when the
    /// engine has more afterwards than the first time that this was called.
    pub fn kill_all(&mut self) {
        self.programs.clear();
        self.spoilt.clear();
        let mut left = Vec::new();
        for _ in 0..CLOSING_MS_MAX {
            (0..20).for_each(|_| self.hand.turn(Duration::from_millis(1)));
            self.honest.close_strangers();
            self.hand.turn(THE_END);
            left = left_of_programs(&self.hand);
            let has_ended = left.iter().all(|(name, n)| match *name {
                "channels" => *n == 1,
                "descriptors_to_close" => false,
                _ => true,
            });
            if has_ended && is_no_more(&left, self.alone.get_or_insert_with(|| left.clone())) {
                // The honest one's own windows go back when they have been idle: from then on this
                // counts.
                self.alone = Some(left);
                return self.honest_works();
            }
            // Descriptors are closed by other threads, on a clock of their own.
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{left:?}, and {:?} before: {:#?}", self.alone, self.hand.sockets());
    }

    /// Takes what waits in the queue of a listener of the last program's, and claims nothing.
    pub fn pop_all(&mut self, listener: Handle) {
        let at = self.programs.len() - 1;
        let slot = self.slot(at, listener);
        let _ = program_fifo::consume(slot, program_fifo::unread(slot));
    }

    /// Turns until the engine has done all that it was asked to.
    pub fn turn_until(&mut self, counter: &str, value: u64) {
        for _ in 0..TURNS_MAX {
            if self.counter(counter) == value {
                return;
            }
            self.turn(Duration::ZERO);
        }
        panic!("{counter} is not {value}: {:#?}", self.hand.counters().engine);
    }

    /// Slots of the sockets that a program has, or once had.
    pub fn handles(&self) -> Vec<(u32, u32)> {
        let last = self.programs.last().into_iter().flat_map(|program| &program.handles);
        last.map(|handle| (handle.slot, handle.generation)).collect()
    }

    /// The sockets that [`Self::open_all`] opened last: a listener, both ends of a connection, a
    /// UDP and an ICMP socket.
    pub fn last_sockets(&self) -> Vec<(u32, u32)> {
        let handles = self.handles();
        handles[handles.len() - 5..].to_vec()
    }

    /// Writes a word of a slot of the last program's, if it holds it, and says everything about it
    /// that it can.
    pub fn spoil_slot(&mut self, slot: u32, generation: u32, word: usize, value: u32) {
        let at = self.programs.len() - 1;
        self.write_slot_word(at, slot, word, value);
        for (_, op) in op::ALL {
            if ![op::SETTLED, op::CLOSE].contains(op) {
                self.say(at, Command { op: *op, slot, generation, a: 1, b: 1, c: 0 });
            }
        }
        self.turn(Duration::ZERO);
        self.turn(Duration::from_millis(1));
    }

    /// Writes a word of the last program's channel.
    pub fn spoil_channel(&mut self, word: usize, value: u32) {
        let Some(link) = self.programs.last().and_then(|program| program.link.as_ref()) else {
            return;
        };
        link.channel.mapping().u32(4 * word).store(value, Relaxed);
        self.turn(Duration::ZERO);
    }

    /// Writes a value to all words of the last program's rings, and of the marks for events.
    pub fn spoil_rings(&mut self, value: u32) {
        let Some(link) = self.programs.last().and_then(|program| program.link.as_ref()) else {
            return;
        };
        let mapping = link.channel.mapping();
        let words = (COMMANDS_OFFSET..CHANNEL_LEN).step_by(4);
        words.for_each(|offset| mapping.u32(offset).store(value, Relaxed));
    }

    /// Writes a value to all words of the region that are no socket's.
    pub fn spoil_first_page(&mut self, value: u32) {
        let Some(link) = self.programs.last().and_then(|program| program.link.as_ref()) else {
            return;
        };
        let mapping = link.region.mapping();
        (0..SLOTS_OFFSET).step_by(4).for_each(|at| mapping.u32(at).store(value, Relaxed));
    }

    /// Lets the last program ask something in its cell, where it may not belong. The errno; None:
    /// no answer.
    pub fn request_in_cell(&mut self, request: &Request) -> Option<i32> {
        let at = self.programs.len() - 1;
        self.programs[at].say_in_cell(request);
        (0..4).for_each(|_| self.turn(Duration::ZERO));
        self.hear(at).last().copied()
    }

    /// Lets the last program ask the same thing as often as its control socket takes it, and hear
    /// nothing.
    pub fn ask_often(&mut self, request: &Request) {
        let Some(program) = self.programs.last_mut() else { return };
        (0..REQUESTS_MAX).take_while(|_| program.say(request)).for_each(drop);
        self.turn(Duration::ZERO);
    }

    /// Lets the last program ask something, whatever it is answered. The errno; None: no answer.
    pub fn request(&mut self, request: &Request) -> Option<i32> {
        let at = self.programs.len() - 1;
        let asked = self.programs[at].say(request);
        (0..4).for_each(|_| self.turn(Duration::ZERO));
        let answers = self.hear(at);
        asked.then_some(answers.last().copied()).flatten()
    }

    /// Lets the last program ask something, and waits until it is answered. The errno.
    pub fn answer(&mut self, request: &Request) -> i32 {
        let at = self.programs.len() - 1;
        assert!(self.programs[at].say(request));
        for _ in 0..TURNS_MAX {
            self.turn(Duration::ZERO);
            if let Some(errno) = self.hear(at).last() {
                return *errno;
            }
        }
        panic!("no answer: {:#?}", self.hand.counters().engine);
    }

    /// Lets the last program say something.
    pub fn tell(&mut self, command: Command) {
        self.say(self.programs.len() - 1, command);
        self.turn(Duration::ZERO);
    }

    /// A counter of the engine.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.hand.counters();
        let found = counters.engine.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no counter is called {name}")).1
    }

    /// Makes a turn, and asserts that it does not do too much.
    pub fn turn(&mut self, passed: Duration) {
        self.hand.turn(passed);
        let work = self.counter("work_turn_max");
        assert!(
            work <= WORK_A_TURN_MAX,
            "a turn did {work} steps of work: {:#?}",
            self.hand.counters().engine
        );
    }

    /// The honest program is served as ever, in up to three times as many turns.
    pub fn honest_works(&mut self) {
        if self.reach == Reach::All {
            return;
        }
        let waited = self.honest.work(&mut self.hand, LEN);
        let calm = self.calm;
        let late = |now: u32, calm: u32| now > 3 * calm.max(1);
        assert!(
            !late(waited.bytes, calm.bytes)
                && !late(waited.datagram, calm.datagram)
                && !late(waited.answer, calm.answer),
            "{waited:?}, undisturbed {calm:?}"
        );
        assert!(waited.list <= 3 * calm.list.max(1) + self.turns_of_others(), "{waited:?}");
        self.turn(Duration::ZERO);
    }

    /// Earlier commands, and earlier ends, come before a list, in portions. Rings of all programs
    /// that ever attached count, since a killed one stays until its ring is empty. The number of
    /// sockets that there ever were counts, too.
    fn turns_of_others(&self) -> u32 {
        let rings = self.counter("attached") as u32 + 1;
        rings * COMMANDS_MAX / COMMANDS_A_PORTION + self.opened / SOCKETS_A_PORTION
    }

    /// Everybody goes, and nothing is left.
    pub fn end(mut self) {
        self.honest_works();
        self.programs.clear();
        self.settle();
        if self.reach == Reach::Own {
            self.honest.connect_and_close(&mut self.hand);
            self.honest_works();
        }
        let Self { mut hand, honest, .. } = self;
        drop(honest);
        for _ in 0..CLOSING_MS_MAX {
            for _ in 0..4 {
                (0..20).for_each(|_| hand.turn(Duration::from_millis(1)));
                hand.turn(THE_END);
            }
            if left_of_programs(&hand).is_empty() {
                return;
            }
            // Descriptors are closed by other threads, on a clock of their own.
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{:?} {:#?}", left_of_programs(&hand), hand.sockets());
    }

    /// Until all is done that has been asked for.
    fn settle(&mut self) {
        let before = self.programs.len() as u64 + 1;
        for _ in 0..200 {
            self.turn(Duration::ZERO);
            if self.counter("channels") <= before {
                break;
            }
        }
    }

    fn slot(&self, at: usize, handle: Handle) -> &Slot {
        let slot = self.programs[at].slot(handle.slot % SLOTS_MAX);
        slot.expect("a slot of the region")
    }

    fn last_handles<const N: usize>(&self, at: usize) -> [Handle; N] {
        let handles = &self.programs[at].handles;
        let last = handles.last_chunk::<N>();
        *last.expect("so many sockets were opened")
    }

    /// Asks, and takes what is answered.
    fn ask(&mut self, at: usize, request: &Request) {
        if self.programs[at].say(request) {
            self.turn(Duration::ZERO);
            self.hear(at);
        }
    }

    fn say(&self, at: usize, command: Command) -> bool {
        self.programs[at].command(&command)
    }

    fn hear_all(&mut self) {
        (0..self.programs.len()).for_each(|at| drop(self.hear(at)));
        self.programs.retain(|program| !program.is_gone);
    }

    /// Takes all answers: sockets and processes that came of them, and the errnos. A program that
    /// was cut off is gone.
    fn hear(&mut self, at: usize) -> Vec<i32> {
        let mut errnos = Vec::new();
        loop {
            let program = &mut self.programs[at];
            match program.hear() {
                Heard::Nothing => return errnos,
                Heard::Gone => {
                    program.is_gone = true;
                    return errnos;
                }
                Heard::Answer(call, reply, descriptors) => {
                    errnos.push(reply.errno);
                    match call {
                        _ if reply.errno != 0 => {}
                        call::SOCKET => {
                            let (slot, generation) = (reply.slot, reply.generation);
                            program.handles.push(Handle { slot, generation });
                            self.spoilt.remove(&slot);
                            self.opened += 1;
                        }
                        call::HELLO => program.begin(&reply, descriptors),
                        call::CLONE => {
                            let child = program.child(&reply, descriptors);
                            let room = self.programs.len() < PROGRAMS_MAX;
                            self.programs.extend(child.filter(|_| room));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Counters of an engine that are some program's.
fn left_of_programs(hand: &Hand) -> Vec<(&'static str, u64)> {
    const OF_PROGRAMS: [&str; 5] =
        ["channels", "sockets", "slots_awaited", "windows_assigned", "descriptors_to_close"];
    let is_left = |(name, n): &(&str, u64)| OF_PROGRAMS.contains(name) && *n > 0;
    hand.counters().engine.into_iter().filter(is_left).collect()
}

/// Whether there is no more of anything than there was.
fn is_no_more(now: &[(&str, u64)], before: &[(&str, u64)]) -> bool {
    now.iter().all(|(name, n)| before.iter().any(|(other, most)| name == other && n <= most))
}

fn about(op: u32, handle: Handle) -> Command {
    Command { op, slot: handle.slot, generation: handle.generation, ..Command::default() }
}

/// Values that every word is given in turn. The list has the ends of its range, numbers that are no
/// power of two, and positions just out of reach. Locks of the engine, of the first processes and
/// of nobody are there, too.
pub const VALUES: &[u32] = &[
    0,
    1,
    2,
    3,
    u32::MAX,
    1 << 31,
    (1 << 16) + 1,
    1 << 24,
    LOCK_ENGINE,
    LOCK_CONTENDED,
    1 << LOCK_CHANNEL_SHIFT | 5,
    2 << LOCK_CHANNEL_SHIFT | 5,
];

/// As in `engine/src/commands.rs`: commands of one ring in one turn.
const COMMANDS_A_PORTION: u32 = 128;
/// As in `engine/src/shard/ends.rs`: sockets that end in one turn, at some eight steps of work
/// each.
const SOCKETS_A_PORTION: u32 = 64;
