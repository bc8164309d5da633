//! Fuzzes an engine with an honest program and a hostile one, which attaches correctly and then
//! ignores all rules. The input decides the hostile program's steps. Steps are writes to any word,
//! requests and commands with any argument, floods of them, any descriptor, and the end of the
//! program.
//!
//! All programs of a run share one region, so there are two kinds of case. In [`Reach::Own`] the
//! hostile program writes only to its own sockets and channel. Its requests also name sockets of
//! the honest program, except where it would get them. No step of the honest program may fail,
//! change or be late. In [`Reach::All`] it also writes to the honest program's sockets, as far as
//! any program can today (`docs/security.md`). Then the engine must survive, its work per turn is
//! bounded, and no state is left at the end.
//!
//! [`Case`] has the steps and checks that tests call; `steps` derives steps from the input.

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

/// Runs one case. Panics if the engine violates an invariant.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let reach = if input.one_in(4) { Reach::All } else { Reach::Own };
    let mut case = Case::new(reach);
    case.attack(input.rest());
    case.end();
}

/// Maximum steps of a case. Longer cases take more time and have found nothing more.
const STEPS_MAX: usize = 300;
/// Maximum hostile processes at a time, because the cost of floods grows with their number.
const PROGRAMS_MAX: usize = 6;
/// Requests of a flood: more than a control socket holds (`net.unix.max_dgram_qlen` is 10 or 512).
const REQUESTS_MAX: usize = 600;
/// 32-bit words of a slot. The words are written to by number, so that no field is left out.
pub const SLOT_WORDS: usize = size_of::<Slot>() / 4;
/// 32-bit words of a channel's header, and of its request slot.
pub const CHANNEL_WORDS: usize = REQUEST_OFFSET / 4;
/// Time after which all timers have fired. TIME-WAIT lasts a minute, and a socket in a message is
/// kept for half a minute. A connection without answers fails after some minutes.
const THE_END: Duration = Duration::from_secs(3600);
/// Maximum time in ms for threads to close descriptors, none of which makes close(2) block.
const CLOSING_MS_MAX: u32 = 50_000;
/// Maximum turns until all requests and commands have been handled.
const TURNS_MAX: u32 = 20_000;
/// Bytes that the honest program sends at a time.
const LEN: u32 = 2000;
/// Maximum steps of work in one turn of these cases. Rings, requests, events and closed sockets
/// each have a limit (`engine/src/commands.rs`). A step takes about 100 ns.
pub const WORK_A_TURN_MAX: u64 = 4096;

/// Memory to which the hostile program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All memory that the program has mapped.
    Own,
    /// All that is mapped.
    All,
}

/// An engine and its programs.
pub struct Case {
    hand: Hand,
    honest: Honest,
    /// Turns that the honest program waits without hostile programs.
    calm: Waited,
    /// Baseline: resources that the engine holds for the honest program alone. `None` until
    /// [`Case::kill_all`] has measured it.
    alone: Option<Vec<(&'static str, u64)>>,
    reach: Reach,
    programs: Vec<Program>,
    /// Number of sockets that hostile programs have opened so far.
    opened: u32,
    /// Slots of which a hostile program has overwritten words since they were opened.
    spoilt: HashSet<u32>,
    /// Descriptors that can be passed in a message.
    descriptors: Vec<OwnedFd>,
}

impl Case {
    /// Creates a case with one hostile program, which has sent HELLO.
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

    /// Executes the steps that `bytes` describe.
    pub fn attack(&mut self, bytes: &[u8]) {
        let mut input = Input::new(bytes);
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            self.step(&mut input);
        }
    }

    /// Adds a program that has not sent HELLO.
    pub fn attach_in_silence(&mut self) {
        if let Ok(control) = self.hand.attach() {
            self.programs.push(Program::new(control));
        }
    }

    /// Adds a program that sends HELLO correctly.
    pub fn attach(&mut self) {
        let Ok(control) = self.hand.attach() else { return };
        let mut program = Program::new(control);
        let (reply, descriptors, _) =
            ask_for_all(&mut program, &mut self.hand, &Program::hello(&[]));
        program.begin(&reply, descriptors);
        self.programs.push(program);
    }

    /// Opens sockets of each kind for the last program, including connections with bytes in both
    /// directions.
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

    /// Opens `count` sockets for the last program.
    pub fn open(&mut self, protocol: u32, count: usize) {
        let at = self.programs.len() - 1;
        let wanted = self.programs[at].handles.len() + count;
        let request = Request { call: call::SOCKET, a: 2, b: protocol, ..Request::default() };
        while self.programs[at].handles.len() < wanted {
            self.ask(at, &request);
        }
    }

    /// Creates a listener of the last program with `connections` connections of the same program in
    /// its queue.
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

    /// Fills the transmit FIFO of the last program's last socket with minimal datagrams, without a
    /// command to send them.
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

    /// Fills the command ring of every program with `command`, for each of its sockets in turn.
    pub fn fill_rings(&mut self, command: Command) {
        (0..self.programs.len()).for_each(|at| self.fill_ring_of(at, command));
    }

    /// Fills the command ring of the last program, like [`Case::fill_rings`].
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

    /// Forks the last program. The child, which becomes the last program, must hold the same
    /// sockets.
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

    /// Requests a fork of the last program, without waiting for the answer.
    pub fn begin_fork(&mut self) {
        let at = self.programs.len() - 1;
        self.programs[at].say(&Request { call: call::CLONE, ..Request::default() });
        self.turn(Duration::ZERO);
    }

    /// Marks all sockets of the last program as in flight in messages.
    pub fn mark_in_flight(&mut self) {
        let at = self.programs.len() - 1;
        for handle in &self.programs[at].handles {
            self.slot(at, *handle).in_flight.store(1, Relaxed);
        }
    }

    /// Kills the last program.
    pub fn kill(&mut self) {
        drop(self.programs.pop());
    }

    /// Kills all hostile programs, and lets all timers fire. Panics if the engine holds more
    /// resources afterwards than after the first call.
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
                // The honest program's own extents are freed after they have been idle, so lower
                // the baseline.
                self.alone = Some(left);
                return self.honest_works();
            }
            // Other threads close the descriptors, in real time.
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{left:?}, and {:?} before: {:#?}", self.alone, self.hand.sockets());
    }

    /// Takes all connections from the queue of a listener of the last program, without ACCEPTED
    /// commands.
    pub fn pop_all(&mut self, listener: Handle) {
        let at = self.programs.len() - 1;
        let slot = self.slot(at, listener);
        let _ = program_fifo::consume(slot, program_fifo::unread(slot));
    }

    /// Runs turns until a counter of the engine has this value.
    pub fn turn_until(&mut self, counter: &str, value: u64) {
        for _ in 0..TURNS_MAX {
            if self.counter(counter) == value {
                return;
            }
            self.turn(Duration::ZERO);
        }
        panic!("{counter} is not {value}: {:#?}", self.hand.counters().engine);
    }

    /// Returns slots and generations of the sockets that the last program holds or has held.
    pub fn handles(&self) -> Vec<(u32, u32)> {
        let last = self.programs.last().into_iter().flat_map(|program| &program.handles);
        last.map(|handle| (handle.slot, handle.generation)).collect()
    }

    /// Returns the sockets that [`Self::open_all`] opened last: a listener, both ends of a
    /// connection, a UDP and an ICMP socket.
    pub fn last_sockets(&self) -> Vec<(u32, u32)> {
        let handles = self.handles();
        handles[handles.len() - 5..].to_vec()
    }

    /// Overwrites a word of a slot that the last program holds, and sends every command about the
    /// slot except CLOSE and SETTLED.
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

    /// Overwrites a word of the last program's channel.
    pub fn spoil_channel(&mut self, word: usize, value: u32) {
        let Some(link) = self.programs.last().and_then(|program| program.link.as_ref()) else {
            return;
        };
        link.channel.mapping().u32(4 * word).store(value, Relaxed);
        self.turn(Duration::ZERO);
    }

    /// Writes a value to all words of the last program's command and event rings.
    pub fn spoil_rings(&mut self, value: u32) {
        let Some(link) = self.programs.last().and_then(|program| program.link.as_ref()) else {
            return;
        };
        let mapping = link.channel.mapping();
        let words = (COMMANDS_OFFSET..CHANNEL_LEN).step_by(4);
        words.for_each(|offset| mapping.u32(offset).store(value, Relaxed));
    }

    /// Writes a value to all words of the region before its slots.
    pub fn spoil_first_page(&mut self, value: u32) {
        let Some(link) = self.programs.last().and_then(|program| program.link.as_ref()) else {
            return;
        };
        let mapping = link.region.mapping();
        (0..SLOTS_OFFSET).step_by(4).for_each(|at| mapping.u32(at).store(value, Relaxed));
    }

    /// Makes a request of the last program in its request slot, even if it belongs on the control
    /// socket. Returns the errno; `None` without a reply.
    pub fn request_in_cell(&mut self, request: &Request) -> Option<i32> {
        let at = self.programs.len() - 1;
        self.programs[at].say_in_cell(request);
        (0..4).for_each(|_| self.turn(Duration::ZERO));
        self.hear(at).last().copied()
    }

    /// Sends a request as often as the last program's control socket accepts it, without reading
    /// replies.
    pub fn ask_often(&mut self, request: &Request) {
        let Some(program) = self.programs.last_mut() else { return };
        (0..REQUESTS_MAX).take_while(|_| program.say(request)).for_each(drop);
        self.turn(Duration::ZERO);
    }

    /// Makes a request of the last program. Returns the errno; `None` without a reply.
    pub fn request(&mut self, request: &Request) -> Option<i32> {
        let at = self.programs.len() - 1;
        let asked = self.programs[at].say(request);
        (0..4).for_each(|_| self.turn(Duration::ZERO));
        let answers = self.hear(at);
        asked.then_some(answers.last().copied()).flatten()
    }

    /// Makes a request of the last program, and waits for the reply. Returns the errno.
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

    /// Sends a command of the last program.
    pub fn tell(&mut self, command: Command) {
        self.say(self.programs.len() - 1, command);
        self.turn(Duration::ZERO);
    }

    /// Returns a counter of the engine.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.hand.counters();
        let found = counters.engine.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no counter is called {name}")).1
    }

    /// Runs a turn, and checks that its work is bounded.
    pub fn turn(&mut self, passed: Duration) {
        self.hand.turn(passed);
        let work = self.counter("work_turn_max");
        assert!(
            work <= WORK_A_TURN_MAX,
            "a turn did {work} steps of work: {:#?}",
            self.hand.counters().engine
        );
    }

    /// Checks that the honest program is served in at most three times as many turns as without
    /// hostile programs.
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

    /// Returns the maximum turns that a list waits for earlier commands and closed sockets. Rings
    /// of all programs that ever attached count, because a killed one stays until its ring is
    /// empty. All sockets that were ever opened count, too.
    fn turns_of_others(&self) -> u32 {
        let rings = self.counter("attached") as u32 + 1;
        rings * COMMANDS_MAX / COMMANDS_A_PORTION + self.opened / SOCKETS_A_PORTION
    }

    /// Ends all programs, and checks that the engine holds nothing for them.
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
            // Other threads close the descriptors, in real time.
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{:?} {:#?}", left_of_programs(&hand), hand.sockets());
    }

    /// Runs turns until the channels of killed programs are closed.
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

    /// Makes a request, runs a turn, and reads the replies.
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

    /// Reads all replies. Records new sockets and processes, and returns the errnos. Marks a
    /// program that the engine disconnected.
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

/// Returns the engine's nonzero counters of resources that programs hold.
fn left_of_programs(hand: &Hand) -> Vec<(&'static str, u64)> {
    const OF_PROGRAMS: [&str; 5] =
        ["channels", "sockets", "slots_awaited", "windows_assigned", "descriptors_to_close"];
    let is_left = |(name, n): &(&str, u64)| OF_PROGRAMS.contains(name) && *n > 0;
    hand.counters().engine.into_iter().filter(is_left).collect()
}

/// Returns whether no counter exceeds its former value.
fn is_no_more(now: &[(&str, u64)], before: &[(&str, u64)]) -> bool {
    now.iter().all(|(name, n)| before.iter().any(|(other, most)| name == other && n <= most))
}

fn about(op: u32, handle: Handle) -> Command {
    Command { op, slot: handle.slot, generation: handle.generation, ..Command::default() }
}

/// Values that are written to every word in turn: limits of the range, numbers other than powers of
/// two, and positions just out of range. Further values are locks of the engine, of the first
/// processes, and of no process.
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

/// Maximum commands of one ring in a turn, as in `engine/src/commands.rs`.
const COMMANDS_A_PORTION: u32 = 128;
/// Maximum sockets that are closed in a turn, at about eight steps of work each, as in
/// `engine/src/shard/ends.rs`.
const SOCKETS_A_PORTION: u32 = 64;
