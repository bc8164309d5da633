//! Steps of a case's hostile programs, as decided by the input.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use towpath_ring::program_fifo;
use towpath_shm::control::{DATA_MAX, Request, call, purpose};
use towpath_shm::layout::{
    AcceptRecord, CHANNEL_LEN, COMMANDS_MAX, COMMANDS_OFFSET, Command, DatagramHeader,
    EVENTS_OFFSET, LOCK_CHANNEL_SHIFT, Plain, RawAddr, SLOTS_MAX, SLOTS_OFFSET, Slot, op, setting,
};

use super::{CHANNEL_WORDS, Case, Handle, PROGRAMS_MAX, REQUESTS_MAX, Reach, SLOT_WORDS, about};
use crate::input::Input;
use crate::program::{Program, SENT_MAX};

impl Case {
    /// Executes one step of a hostile program, and possibly a turn.
    pub(super) fn step(&mut self, input: &mut Input<'_>) {
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

    /// Executes an ordinary operation of a program.
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

    /// Overwrites a word of a socket's slot.
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

    pub(super) fn write_slot_word(&mut self, at: usize, slot: u32, word: usize, value: u32) {
        if !self.may_write(at, slot) {
            return;
        }
        let Some(link) = &self.programs[at].link else { return };
        let base = SLOTS_OFFSET + slot as usize * size_of::<Slot>();
        link.region.mapping().u32(base + 4 * word).store(value, Relaxed);
        self.spoilt.insert(slot);
    }

    /// Returns whether the program may write to the memory of a slot in this case.
    fn may_write(&self, at: usize, slot: u32) -> bool {
        self.reach == Reach::All
            || (self.hand.is_held(self.programs[at].number, slot)
                && !self.honest.slots.contains(&slot))
    }

    /// Overwrites a word of the channel: of its header, a command, or an event.
    fn write_channel(&mut self, input: &mut Input<'_>, at: usize) {
        let Some(link) = &self.programs[at].link else { return };
        let word = usize::from(input.u16());
        let (from, len) = input.pick(&[
            (0, CHANNEL_WORDS * 4),
            (COMMANDS_OFFSET, COMMANDS_MAX as usize * size_of::<Command>()),
            (EVENTS_OFFSET, 64 * size_of::<u32>()),
            (EVENTS_OFFSET, CHANNEL_LEN - EVENTS_OFFSET),
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

    /// Returns whether a command in the ring would give a socket of the honest program to this one.
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

    /// Overwrites words of the region outside slots: in its first page, and with [`Reach::All`] in
    /// the FIFO area.
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

    /// Writes bytes, or a datagram header with any length, to a transmit FIFO.
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
        // If words of its slot were overwritten, the program might write to a FIFO of the honest
        // program.
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
        if input.one_in(3) {
            return self.programs[at].say_in_cell(&request);
        }
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

    /// Sends a request with descriptors.
    fn pass(&mut self, input: &mut Input<'_>, at: usize) {
        let count = input.pick(&[1, 2, SENT_MAX]);
        let first = usize::from(input.u8());
        // Include the program's own end of the control socket. In a message that is never received,
        // it keeps the control socket open after the program has ended.
        let own = [self.programs[at].control.as_fd()].map(|fd| fd.try_clone_to_owned());
        let own = own.into_iter().flatten().collect::<Vec<_>>();
        let all: Vec<_> = self.descriptors.iter().chain(&own).map(OwnedFd::as_fd).collect();
        let chosen: Vec<BorrowedFd<'_>> =
            (0..count).map(|n| all[(first + n) % all.len()]).collect();
        let request = Request { call: call::INTERFACES, ..Request::default() };
        self.programs[at].say_with(request.wire(), request.call, &chosen);
    }

    /// Misuses the notification descriptors, which a program may write, read or shut down at will.
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

    /// Takes an entry from an accept queue, if it is complete.
    pub(super) fn accept(&mut self, at: usize, listener: Handle) {
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

    /// Returns a socket of the program or of the honest program, or an invalid handle.
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

    /// Returns the address of a listener, or any other.
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
}

fn fill_with(request: &mut Request, input: &mut Input<'_>, n: usize) {
    request.data[..n].iter_mut().for_each(|byte| *byte = input.pick(&[0, 1, 2, 127, 224, 255]));
    request.len = u32::from(input.u8()) % (n as u32 + 2);
}

/// Returns a value near a limit, near the old value, equal to another word, or any value.
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

/// Times between two turns.
const TIMES: [Duration; 6] = [
    Duration::from_micros(50),
    Duration::from_millis(1),
    Duration::from_millis(25),
    Duration::from_secs(1),
    Duration::from_secs(6),
    Duration::from_secs(31),
];

/// Returns files of many kinds, none of which blocks the thread that closes it.
pub(super) fn every_kind_of_descriptor() -> Vec<OwnedFd> {
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
    // The epoll set watches a socket that is passed together with it, because the kernel searches
    // for cycles among such files.
    let event = epoll::EventFlags::IN;
    epoll::add(&set, &one, epoll::EventData::new_u64(0), event).expect("a place in the set");
    let linger = Some(Duration::from_secs(3600));
    rustix::net::sockopt::set_socket_linger(&tcp, linger).expect("an open socket");
    vec![null, folder, count, read, write, one, other, tcp, memory, set]
}
