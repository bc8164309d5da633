//! An engine with a program that has attached by the rules and keeps to none from then on, and an honest
//! program beside it. What the hostile one does is the input: every word that it can write, every request
//! and command with any argument in any order, floods of them, descriptors of every kind, its end.
//!
//! All programs of a run share one region, so there are two kinds of case. In one the hostile program
//! writes to everything that belongs to its own sockets and its own channel, and names the sockets of
//! others in all that it says but where it would be given them ([`Reach::Own`]): nothing that the honest
//! program does may fail, change or be late. In the other it writes to the honest one's sockets, too
//! ([`Reach::All`], which is how far a program reaches today: `docs/security.md`): the engine lives, what
//! it does in a turn is bounded, and nothing is left of anybody in the end.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use towpath_engine::{EngineConfig, Hand};
use towpath_ring::program_fifo;
use towpath_shm::control::{DATA_MAX, Request, call, purpose};
use towpath_shm::layout::{
    AcceptRecord, CHANNEL_LEN, COMMANDS_MAX, COMMANDS_OFFSET, ChannelHeader, Command,
    DatagramHeader, EVENTS_OFFSET, LOCK_CHANNEL_SHIFT, LOCK_CONTENDED, LOCK_ENGINE, PENDING_OFFSET,
    Plain, RawAddr, SLOTS_MAX, SLOTS_OFFSET, Slot, op, setting,
};

use crate::honest::{Honest, Waited, ask_for_all};
use crate::input::Input;
pub use crate::program::Handle;
use crate::program::{Heard, Program, SENT_MAX};

/// Runs one case; panics when the engine does what it may not.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let reach = if input.one_in(4) { Reach::All } else { Reach::Own };
    let mut case = Case::new(reach);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        case.step(&mut input);
    }
    case.end();
}

/// Longer cases take longer and find nothing more.
const STEPS_MAX: usize = 300;
/// Processes of the hostile kind at a time: what floods cost grows with their number.
const PROGRAMS_MAX: usize = 6;
/// Requests of a flood: more than a control socket holds (`net.unix.max_dgram_qlen` is 10 or 512).
const REQUESTS_MAX: usize = 600;
/// 32-bit words of a slot. All of them are written to, whatever they are called.
pub const SLOT_WORDS: usize = size_of::<Slot>() / 4;
/// 32-bit words of the header of a channel.
pub const CHANNEL_WORDS: usize = size_of::<ChannelHeader>() / 4;
/// Long enough for everything to end that time ends: TIME-WAIT lasts a minute, a socket in a message waits
/// for half of one, and a connection whose peer does not answer is given up after some minutes.
const THE_END: Duration = Duration::from_secs(3600);
/// How long threads may take to close descriptors, none of which sleeps.
const CLOSING_MS_MAX: u32 = 10_000;
/// Turns in which everything is done that was asked for.
const TURNS_MAX: u32 = 20_000;
/// What the honest program sends at a time.
const LEN: u32 = 2000;
/// Most steps of work in one turn of these cases: a share of each of the few rings, of requests, events
/// and sockets that end; see `engine/src/commands.rs`. Each is some 100 ns.
pub const WORK_A_TURN_MAX: u64 = 4096;

/// How far the hostile program goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// What it holds.
    Own,
    /// All that is mapped.
    All,
}

/// An engine and its programs.
pub struct Case {
    hand: Hand,
    honest: Honest,
    /// What the honest program waits for without anybody else.
    calm: Waited,
    reach: Reach,
    programs: Vec<Program>,
    /// Sockets of hostile programs that there have been.
    opened: u32,
    /// Slots with words that were written against the rules since they were opened.
    spoilt: HashSet<u32>,
    /// What can be passed in a message.
    descriptors: Vec<OwnedFd>,
}

impl Case {
    /// One hostile program, which has said hello.
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
        let descriptors = every_kind_of_descriptor();
        let (programs, spoilt) = (Vec::new(), HashSet::new());
        let mut case = Self { hand, honest, calm, reach, programs, opened: 0, spoilt, descriptors };
        case.attach();
        case
    }

    /// One more program that begins by the rules.
    pub fn attach(&mut self) {
        let Ok(control) = self.hand.attach() else { return };
        let mut program = Program::new(control);
        let (reply, descriptors, _) =
            ask_for_all(&mut program, &mut self.hand, &Program::hello(&[]));
        program.begin(&reply, descriptors);
        self.programs.push(program);
    }

    /// Sockets of each kind, connections with bytes in both directions among them, of the last program.
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

    /// A listener of the last program's with so many connections in its queue, which the program itself
    /// has made.
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

    /// Fills the transmit FIFO of the last program's last socket with the smallest datagrams, and says
    /// nothing of them.
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

    /// Writes a word of a slot of the last program's, if it holds it, and says everything about it that it
    /// can.
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

    /// One turn, of which it is asked that it does not do too much.
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
            !late(waited.bytes, calm.bytes) && !late(waited.datagram, calm.datagram),
            "{waited:?}, undisturbed {calm:?}"
        );
        assert!(waited.answer <= 3 * calm.answer.max(1) + self.turns_of_others(), "{waited:?}");
        self.turn(Duration::ZERO);
    }

    /// What programs said before a request, and what ended before it, is dealt with first, in portions: the
    /// rings of those who live and of those who were killed, and as many sockets as there ever were.
    fn turns_of_others(&self) -> u32 {
        let rings = PROGRAMS_MAX as u32 + 1;
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

    fn step(&mut self, input: &mut Input<'_>) {
        if self.programs.is_empty() {
            self.attach();
        }
        if self.programs.is_empty() {
            return self.turn(Duration::from_secs(1));
        }
        let at = usize::from(input.u8()) % self.programs.len();
        match input.u8() % 24 {
            0..=3 => self.write_slot(input, at),
            4 | 5 => self.write_channel(input, at),
            6 => self.write_memory(input, at),
            7..=9 => self.any_request(input, at),
            10..=12 => {
                let command = self.any_command(input, at);
                self.say(at, command);
            }
            13 => self.flood_of_commands(input, at),
            14 => self.flood_of_requests(input, at),
            15 => self.pass(input, at),
            16 => self.ring(input, at),
            17 => self.clone_or_attach(input, at),
            18 => drop(self.programs.swap_remove(at)),
            19 => self.turn(input.pick(&TIMES)),
            20 => self.honest_works(),
            _ => self.live(input, at),
        }
        if input.bool() {
            self.turn(Duration::ZERO);
        }
        self.hear_all();
    }

    /// Something that a program does.
    fn live(&mut self, input: &mut Input<'_>, at: usize) {
        let handle = self.any_handle(input, at);
        match input.u8() % 6 {
            0 => {
                let (a, b) = input.pick(&[(2, 6), (2, 6), (2, 17), (10, 6), (10, 17), (2, 1)]);
                self.ask(at, &Request { call: call::SOCKET, a, b, ..Request::default() });
            }
            1 => {
                let addr = self.any_addr(input, at);
                let call = input.pick(&[call::BIND, call::CONNECT]);
                self.ask(at, &Request { addr, ..Program::about(call, handle) });
            }
            2 => {
                let a = u32::from(input.u8());
                self.ask(at, &Request { a, ..Program::about(call::LISTEN, handle) });
            }
            3 => self.accept(at, handle),
            _ => self.write_bytes(input, at, handle),
        }
    }

    /// A word of a socket's slot.
    fn write_slot(&mut self, input: &mut Input<'_>, at: usize) {
        let slot = self.any_handle(input, at).slot % SLOTS_MAX;
        let word = usize::from(input.u8()) % SLOT_WORDS;
        let Some(link) = &self.programs[at].link else { return };
        let base = SLOTS_OFFSET + slot as usize * size_of::<Slot>();
        let mapping = link.region.mapping();
        let other = mapping.u32(base + usize::from(input.u8()) % SLOT_WORDS * 4).load(Relaxed);
        let value = any_value(input, mapping.u32(base + 4 * word).load(Relaxed), other);
        self.write_slot_word(at, slot, word, value);
    }

    fn write_slot_word(&mut self, at: usize, slot: u32, word: usize, value: u32) {
        if !self.may_write(at, slot) {
            return;
        }
        let Some(link) = &self.programs[at].link else { return };
        let base = SLOTS_OFFSET + slot as usize * size_of::<Slot>();
        link.region.mapping().u32(base + 4 * word).store(value, Relaxed);
        self.spoilt.insert(slot);
    }

    /// Whether what a slot has is within the program's reach.
    fn may_write(&self, at: usize, slot: u32) -> bool {
        self.reach == Reach::All
            || (self.hand.is_held(self.programs[at].number, slot)
                && !self.honest.slots.contains(&slot))
    }

    /// A word of the channel: of its header, of a command, of an event, or the pending bits of slots.
    fn write_channel(&mut self, input: &mut Input<'_>, at: usize) {
        let Some(link) = &self.programs[at].link else { return };
        let word = usize::from(input.u16());
        let (from, len) = input.pick(&[
            (0, CHANNEL_WORDS * 4),
            (COMMANDS_OFFSET, COMMANDS_MAX as usize * size_of::<Command>()),
            (EVENTS_OFFSET, PENDING_OFFSET - EVENTS_OFFSET),
            (PENDING_OFFSET, CHANNEL_LEN - PENDING_OFFSET),
        ]);
        let offset = from + word * 4 % len;
        let mapping = link.channel.mapping();
        let old = mapping.u32(offset).load(Relaxed);
        let value = any_value(input, old, COMMANDS_MAX);
        mapping.u32(offset).store(value, Relaxed);
        if from == COMMANDS_OFFSET && self.is_theft(at, (offset - from) / size_of::<Command>()) {
            mapping.u32(offset).store(old, Relaxed);
        }
    }

    /// Whether a command in the ring would give the program a socket of the honest one's.
    fn is_theft(&self, at: usize, index: usize) -> bool {
        let Some(link) = &self.programs[at].link else { return false };
        let mut bytes = [0; size_of::<Command>()];
        link.channel.mapping().read(COMMANDS_OFFSET + index * size_of::<Command>(), &mut bytes);
        let command = Command::from_bytes(&bytes);
        self.is_foreign(command.slot) && [op::ACCEPTED, op::LIST].contains(&command.op)
    }

    fn is_foreign(&self, slot: u32) -> bool {
        self.reach == Reach::Own && self.honest.slots.contains(&slot)
    }

    /// Bytes of the region that are no slot's: its first page, or anywhere among the FIFOs.
    fn write_memory(&mut self, input: &mut Input<'_>, at: usize) {
        let Some(link) = &self.programs[at].link else { return };
        let mapping = link.region.mapping();
        let word = usize::from(input.u16());
        mapping.u32(word % (SLOTS_OFFSET / 4) * 4).store(input.u32(), Relaxed);
        if self.reach == Reach::All {
            let window = u64::from(input.pick(&[0u8, 1, 2, 200])) << 16;
            let offset = towpath_shm::layout::FIFO_OFFSET + window as usize + word % 16_384 * 4;
            mapping.u32(offset).store(input.u32(), Relaxed);
        }
    }

    /// Bytes, or a datagram's header with any length, in a transmit FIFO.
    fn write_bytes(&mut self, input: &mut Input<'_>, at: usize, handle: Handle) {
        if !self.may_write(at, handle.slot) {
            return;
        }
        let header = DatagramHeader {
            len: input.pick(&[0, 1, 100, 65_535, 65_536, u32::MAX]),
            ifindex: u32::from(input.u8() % 4),
            remote: self.any_addr(input, at),
            tos: input.u16(),
            ttl: input.u16(),
            segment_size: input.pick(&[0, 1, 100, u16::MAX]),
            ..DatagramHeader::default()
        };
        let Some(link) = &self.programs[at].link else { return };
        let slot = self.slot(at, handle);
        // Words that it wrote may lead anywhere by now.
        if self.reach == Reach::Own && self.spoilt.contains(&handle.slot) {
            return;
        }
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(size_of::<DatagramHeader>() + usize::from(input.u16() % 2048), 7);
        bytes.truncate(bytes.len() / 8 * 8);
        for _ in 0..input.pick(&[1, 2, 700]) {
            let n = program_fifo::write(&link.region, slot, 0, &bytes);
            let _ = program_fifo::publish(slot, n as u32);
        }
        self.say(at, about(op::TX, handle));
    }

    fn any_request(&mut self, input: &mut Input<'_>, at: usize) {
        let request = self.request_of(input, at);
        let bytes = request.wire();
        let len = if input.one_in(8) { usize::from(input.u8()) } else { bytes.len() };
        self.programs[at].say_with(&bytes[..len.min(bytes.len())], request.call, &[]);
    }

    fn request_of(&self, input: &mut Input<'_>, at: usize) -> Request {
        let call = u32::from(input.u8()) % (call::LAST + 2);
        let mut handle = self.any_handle(input, at);
        if [call::ADOPT, call::HELLO, call::COMMAND].contains(&call) && self.is_foreign(handle.slot)
        {
            handle = Handle { slot: u32::MAX, generation: 1 };
        }
        let mut request = Request {
            a: any_value(input, handle.slot, handle.generation),
            b: any_value(input, 6, 41),
            len: any_value(input, DATA_MAX as u32, 8),
            addr: self.any_addr(input, at),
            ..Program::about(call, handle)
        };
        match call {
            call::COMMAND => {
                let command = self.any_command(input, at);
                request.data[..size_of::<Command>()].copy_from_slice(command.as_bytes());
                request.len = size_of::<Command>() as u32;
            }
            call::HELLO | call::TOKENS => {
                let hello = Program::hello(&vec![handle; 1 + usize::from(input.u8() % 32)]);
                (request.data, request.len) = (hello.data, hello.len);
            }
            call::GET_OPTION | call::SET_OPTION => {
                request.a = input.pick(&[0, 1, 6, 41, 255]);
                request.b = u32::from(input.u8());
                fill_with(&mut request, input, 24);
            }
            _ => request.data[..16].iter_mut().for_each(|byte| *byte = input.u8()),
        }
        request
    }

    fn any_command(&self, input: &mut Input<'_>, at: usize) -> Command {
        let handle = self.any_handle(input, at);
        let mut command = Command {
            a: u32::from(input.u8()) % (setting::LAST + 2),
            b: u64::from(any_value(input, 1, 65_536)) << (8 * (input.u8() % 2)),
            c: input.u32().into(),
            ..about(u32::from(input.u8()) % (op::LAST + 2), handle)
        };
        if input.one_in(16) {
            command.generation = command.generation.wrapping_add(u32::from(input.u8()));
        }
        if [op::ACCEPTED, op::LIST].contains(&command.op) && self.is_foreign(command.slot) {
            command.slot = u32::MAX;
        }
        command
    }

    fn flood_of_commands(&mut self, input: &mut Input<'_>, at: usize) {
        let (one, other) = (self.any_command(input, at), self.any_command(input, at));
        while self.say(at, one) && self.say(at, other) {}
        if input.bool() {
            self.honest_works();
        }
    }

    fn flood_of_requests(&mut self, input: &mut Input<'_>, at: usize) {
        let request = self.request_of(input, at);
        for _ in 0..REQUESTS_MAX {
            if !self.programs[at].say(&request) {
                break;
            }
            if input.one_in(32) {
                self.turn(Duration::ZERO);
                self.hear(at);
            }
        }
        if input.bool() {
            self.honest_works();
        }
    }

    /// Sends descriptors along.
    fn pass(&mut self, input: &mut Input<'_>, at: usize) {
        let count = input.pick(&[1, 2, SENT_MAX]);
        let first = usize::from(input.u8());
        let all = self.descriptors.len();
        let chosen: Vec<BorrowedFd<'_>> =
            (0..count).map(|n| self.descriptors[(first + n) % all].as_fd()).collect();
        let request = Request { call: call::INTERFACES, ..Request::default() };
        self.programs[at].say_with(request.wire(), request.call, &chosen);
    }

    /// The doorbells are files that the program can do with as it likes.
    fn ring(&mut self, input: &mut Input<'_>, at: usize) {
        let Some(bell) = self.programs[at].engine_bell() else { return };
        let count = input.pick(&[1, u64::MAX - 1, 0]);
        let _ = rustix::io::write(bell, &count.to_ne_bytes());
        if input.bool() {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        let Some(link) = &self.programs[at].link else { return };
        link.channel.header().sleeping.store(input.u8().into(), Relaxed);
        if input.bool() {
            let _ = rustix::net::shutdown(&link.bell, rustix::net::Shutdown::Both);
        }
    }

    fn clone_or_attach(&mut self, input: &mut Input<'_>, at: usize) {
        if self.programs.len() >= PROGRAMS_MAX {
            return;
        }
        if input.one_in(4) {
            return self.attach();
        }
        let (_, a) = input.pick(purpose::ALL);
        self.programs[at].say(&Request { call: call::CLONE, a, ..Request::default() });
    }

    /// Takes a connection off a queue, if what lies there looks like one.
    fn accept(&mut self, at: usize, listener: Handle) {
        let Some(link) = &self.programs[at].link else { return };
        if !self.may_write(at, listener.slot) {
            return;
        }
        let mut bytes = [0; size_of::<AcceptRecord>()];
        let slot = self.slot(at, listener);
        if program_fifo::peek(&link.region, slot, 0, &mut bytes) < bytes.len() {
            return;
        }
        let _ = program_fifo::consume(slot, bytes.len() as u32);
        let record = AcceptRecord::from_bytes(&bytes);
        let handle = Handle { slot: record.slot, generation: record.generation };
        if !self.is_foreign(handle.slot) {
            self.say(at, about(op::ACCEPTED, handle));
            self.programs[at].handles.push(handle);
        }
    }

    /// A socket of its own, of another program, or none.
    fn any_handle(&self, input: &mut Input<'_>, at: usize) -> Handle {
        let own = &self.programs[at].handles;
        let which = usize::from(input.u8());
        let foreign = || {
            let slot = self.honest.slots[which % self.honest.slots.len()];
            let shared = self.honest.program.slot(slot).expect("slots of the engine exist");
            Handle { slot, generation: shared.generation.load(Acquire) }
        };
        match input.u8() % 8 {
            0 => foreign(),
            1 => Handle { slot: input.u32(), generation: input.u32() },
            _ if own.is_empty() => Handle { slot: which as u32, generation: 1 },
            2 => own[which % own.len()],
            _ => own[own.len() - 1 - which % own.len().min(8)],
        }
    }

    /// An address where somebody listens, or any other.
    fn any_addr(&self, input: &mut Input<'_>, at: usize) -> RawAddr {
        let own = &self.programs[at].handles;
        let which = usize::from(input.u8());
        match input.u8() % 8 {
            0 => RawAddr::new(self.honest.addr),
            1..=4 if !own.is_empty() => {
                let handle = own[which % own.len()];
                self.programs[at].slot(handle.slot).map_or(RawAddr::default(), |it| it.local.load())
            }
            5 => RawAddr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, which as u16))),
            6 => RawAddr::new(SocketAddr::from((Ipv6Addr::LOCALHOST, which as u16))),
            7 => RawAddr { family: input.u16(), port: input.u16(), ..RawAddr::default() },
            _ => RawAddr::default(),
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

    /// Takes all answers: sockets and processes that came of them, and the errnos. A program that was cut
    /// off is gone.
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

/// What an engine has that is some program's.
fn left_of_programs(hand: &Hand) -> Vec<(&'static str, u64)> {
    const OF_PROGRAMS: [&str; 5] =
        ["channels", "sockets", "slots_awaited", "windows_assigned", "descriptors_to_close"];
    let is_left = |(name, n): &(&str, u64)| OF_PROGRAMS.contains(name) && *n > 0;
    hand.counters().engine.into_iter().filter(is_left).collect()
}

fn about(op: u32, handle: Handle) -> Command {
    Command { op, slot: handle.slot, generation: handle.generation, ..Command::default() }
}

fn fill_with(request: &mut Request, input: &mut Input<'_>, n: usize) {
    request.data[..n].iter_mut().for_each(|byte| *byte = input.pick(&[0, 1, 2, 127, 224, 255]));
    request.len = u32::from(input.u8()) % (n as u32 + 2);
}

/// A word that is near to a limit, to what was there, or to another word; or any.
fn any_value(input: &mut Input<'_>, old: u32, other: u32) -> u32 {
    match input.u8() % 10 {
        0 => 0,
        1 => 1,
        2 => u32::MAX,
        3 => old.wrapping_add(1),
        4 => old.wrapping_sub(1),
        5 => old ^ (1 << (input.u8() % 32)),
        6 => other,
        7 => 1 << (input.u8() % 32),
        8 => u32::from(input.u8() % 8) << LOCK_CHANNEL_SHIFT | 5,
        _ => input.u32(),
    }
}

/// Values that every word is given in turn: the ends of its range, what is not a power of two, positions
/// just out of reach, and locks of the engine, of the first processes and of nobody.
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

/// What passes between two turns.
const TIMES: [Duration; 6] = [
    Duration::from_micros(50),
    Duration::from_millis(1),
    Duration::from_millis(25),
    Duration::from_secs(1),
    Duration::from_secs(6),
    Duration::from_secs(31),
];

/// Files of many kinds, none of which makes whoever closes it here sleep.
fn every_kind_of_descriptor() -> Vec<OwnedFd> {
    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket, socketpair};
    let null = open("/dev/null", OFlags::RDWR, Mode::empty()).expect("a device");
    let folder = open("/", OFlags::PATH, Mode::empty()).expect("a folder");
    let count = eventfd(0, EventfdFlags::empty()).expect("an eventfd, which blocks");
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let flags = SocketFlags::empty();
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a pair");
    let tcp = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let memory = memfd_create("hostile", MemfdFlags::empty()).expect("memory");
    let set = epoll::create(epoll::CreateFlags::empty()).expect("an epoll set");
    // Its own end is in it: a cycle that the kernel has to look for when it is passed.
    let event = epoll::EventFlags::IN;
    epoll::add(&set, &one, epoll::EventData::new_u64(0), event).expect("a place in the set");
    let linger = Some(Duration::from_secs(3600));
    rustix::net::sockopt::set_socket_linger(&tcp, linger).expect("an open socket");
    vec![null, folder, count, read, write, one, other, tcp, memory, set]
}

/// As in `engine/src/commands.rs`: commands of one ring in one turn.
const COMMANDS_A_PORTION: u32 = 256;
/// As in `engine/src/ends.rs`: sockets that end in one turn, at some eight steps of work each.
const SOCKETS_A_PORTION: u32 = 64;
