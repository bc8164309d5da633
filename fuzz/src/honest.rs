//! The honest program of a case. [`Honest`] checks each byte of its streams, and counts the turns
//! that it waits for the engine.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use towpath_engine::Hand;
use towpath_ring::program_fifo;
use towpath_shm::control::{ControlReply, Request, call};
use towpath_shm::layout::{AcceptRecord, Command, DatagramHeader, Plain, RawAddr, Slot, flags, op};

use crate::program::{Handle, Heard, Program};

/// Maximum turns to wait. Later, the engine has lost the request or the bytes, and is not only
/// late.
const TURNS_MAX: u32 = 2000;
/// Constants of socket(2): address family and protocols.
const AF_INET: u32 = 2;
const TCP: u32 = 6;
const UDP: u32 = 17;
/// Length of the header before each datagram in a FIFO.
const HEADER: usize = size_of::<DatagramHeader>();

/// A program that connects to itself over loopback.
pub(crate) struct Honest {
    pub program: Program,
    pub listener: Handle,
    pub addr: SocketAddr,
    pub pair: Pair,
    datagrams: Handle,
    datagrams_addr: SocketAddr,
    /// Slots of the program's sockets, which no hostile program may get.
    pub slots: Vec<u32>,
}

/// Both ends of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    client: Handle,
    server: Handle,
    /// Bytes exchanged in each direction so far.
    done: u32,
}

/// Number of turns that the honest program waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waited {
    /// Until bytes reached the other end of a connection, and were returned.
    pub bytes: u32,
    /// Until a datagram arrived.
    pub datagram: u32,
    /// Until the reply to a request that does not depend on other programs.
    pub answer: u32,
    /// Until the reply to a request for all sockets, which waits for earlier commands of all
    /// programs.
    pub list: u32,
}

impl Honest {
    /// Attaches to an engine without hostile programs.
    pub fn new(hand: &mut Hand) -> Self {
        let mut program = Program::new(hand.attach().expect("room for a process"));
        let (reply, descriptors, _) = ask_for_all(&mut program, hand, &Program::hello(&[]));
        program.begin(&reply, descriptors);
        let none = Handle { slot: 0, generation: 0 };
        let mut honest = Self {
            program,
            listener: none,
            addr: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            pair: Pair { client: none, server: none, done: 0 },
            datagrams: none,
            datagrams_addr: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            slots: Vec::new(),
        };
        (honest.listener, honest.addr) = honest.bound(hand, TCP);
        let backlog = Request { a: 64, ..Program::about(call::LISTEN, honest.listener) };
        honest.ask(hand, &backlog);
        (honest.datagrams, honest.datagrams_addr) = honest.bound(hand, UDP);
        honest.pair = honest.connect(hand);
        honest
    }

    /// Uses each kind of socket and request once. Returns the turns that it waited.
    pub fn work(&mut self, hand: &mut Hand, len: u32) -> Waited {
        let mut pair = self.pair;
        let bytes = self.exchange(hand, &mut pair, len);
        self.pair = pair;
        let datagram = self.datagram(hand, len);
        let question = Request { call: call::INTERFACES, ..Request::default() };
        let (_, answer) = self.ask(hand, &question);
        let question = Request { call: call::SOCKETS, ..Request::default() };
        let (_, list) = self.ask(hand, &question);
        Waited { bytes, datagram, answer, list }
    }

    /// Opens a connection, exchanges bytes, and closes it.
    pub fn connect_and_close(&mut self, hand: &mut Hand) {
        let mut pair = self.connect(hand);
        self.exchange(hand, &mut pair, 1000);
        for handle in [pair.client, pair.server] {
            self.slots.retain(|slot| *slot != handle.slot);
            self.command(op::CLOSE, handle);
        }
        hand.turn(Duration::ZERO);
    }

    /// Sends bytes in both directions of a connection, and checks them. Returns the turns that it
    /// waited.
    fn exchange(&self, hand: &mut Hand, pair: &mut Pair, len: u32) -> u32 {
        let len = len.max(1);
        let mut turns = 0;
        for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
            let written: Vec<u8> = (pair.done..pair.done + len).map(byte_at).collect();
            turns += self.write(hand, from, &written);
            let mut read = vec![0; len as usize];
            let slot = self.slot(to);
            turns += self.until(hand, "the bytes' arrival", |_| program_fifo::unread(slot) >= len);
            assert_eq!(program_fifo::unread(slot), len, "bytes that nobody wrote");
            let region = &self.program.link.as_ref().expect("it said hello").region;
            assert_eq!(program_fifo::peek(region, slot, 0, &mut read), len as usize);
            assert!(read == written, "bytes changed on their way");
            if program_fifo::consume(slot, len) {
                self.command(op::RX_SPACE, to);
            }
        }
        pair.done = pair.done.wrapping_add(len);
        turns
    }

    fn write(&self, hand: &mut Hand, handle: Handle, bytes: &[u8]) -> u32 {
        let slot = self.slot(handle);
        let mut turns = 0;
        if slot.tx_cap.load(Acquire) == 0 {
            self.command(op::TX_WINDOW, handle);
            turns = self.until(hand, "memory", |_| slot.tx_cap.load(Acquire) != 0);
        }
        let region = &self.program.link.as_ref().expect("it said hello").region;
        assert!(program_fifo::room(slot) as usize >= bytes.len(), "earlier bytes are acknowledged");
        assert_eq!(program_fifo::write(region, slot, 0, bytes), bytes.len());
        if program_fifo::publish(slot, bytes.len() as u32) {
            self.command(op::TX, handle);
        }
        turns
    }

    /// Sends a datagram to itself.
    fn datagram(&self, hand: &mut Hand, len: u32) -> u32 {
        let handle = self.datagrams;
        let header = DatagramHeader {
            len,
            remote: RawAddr::new(self.datagrams_addr),
            tos: DatagramHeader::DEFAULT,
            ttl: DatagramHeader::DEFAULT,
            ..DatagramHeader::default()
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend((0..len).map(byte_at));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let turns = self.write(hand, handle, &bytes);
        turns + self.until(hand, "the datagram", |_| self.took_datagram(len))
    }

    /// Reads datagrams until the program's own one; hostile programs may have sent other ones.
    /// Returns whether it was found.
    fn took_datagram(&self, len: u32) -> bool {
        let slot = self.slot(self.datagrams);
        let region = &self.program.link.as_ref().expect("it said hello").region;
        loop {
            let mut bytes = [0; HEADER];
            if program_fifo::peek(region, slot, 0, &mut bytes) < HEADER {
                return false;
            }
            let header = DatagramHeader::from_bytes(&bytes);
            let mut data = vec![0; header.len as usize];
            let n = program_fifo::peek(region, slot, HEADER as u32, &mut data);
            assert_eq!(n, data.len(), "a part of a datagram");
            let taken = (HEADER + data.len()).next_multiple_of(8) as u32;
            let _ = program_fifo::consume(slot, taken);
            if header.remote.to_socket_addr() == Some(self.datagrams_addr) {
                assert_eq!(header.len, len);
                assert!(data.iter().copied().eq((0..len).map(byte_at)), "a datagram changed");
                return true;
            }
        }
    }

    fn bound(&mut self, hand: &mut Hand, protocol: u32) -> (Handle, SocketAddr) {
        let handle = self.socket(hand, protocol);
        let addr = RawAddr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let bind = Request { addr, ..Program::about(call::BIND, handle) };
        let (reply, _) = self.ask(hand, &bind);
        (handle, reply.addr.to_socket_addr().expect("an address"))
    }

    fn socket(&mut self, hand: &mut Hand, protocol: u32) -> Handle {
        let request = Request { call: call::SOCKET, a: AF_INET, b: protocol, ..Request::default() };
        let (reply, _) = self.ask(hand, &request);
        self.slots.push(reply.slot);
        Handle { slot: reply.slot, generation: reply.generation }
    }

    fn connect(&mut self, hand: &mut Hand) -> Pair {
        let client = self.socket(hand, TCP);
        let addr = RawAddr::new(self.addr);
        self.ask(hand, &Request { addr, ..Program::about(call::CONNECT, client) });
        let slot = self.slot(client);
        let is_connected = |_: &mut Hand| slot.flags.load(Acquire) & flags::CONNECTED != 0;
        self.until(hand, "the connection", is_connected);
        let mut server = None;
        self.until(hand, "the connection in the queue", |_| {
            server = self.accept(slot.local.load());
            server.is_some()
        });
        let server = server.expect("it is there");
        self.slots.push(server.slot);
        Pair { client, server, done: 0 }
    }

    /// Closes connections that hostile programs opened to the listener.
    pub fn close_strangers(&self) {
        let nobody = RawAddr::default();
        assert_eq!(self.accept(nobody), None, "a connection from no address");
    }

    /// Takes connections from the queue until one from the address `from`. Closes all other ones.
    fn accept(&self, from: RawAddr) -> Option<Handle> {
        let slot = self.slot(self.listener);
        let region = &self.program.link.as_ref().expect("it said hello").region;
        loop {
            let mut bytes = [0; size_of::<AcceptRecord>()];
            if program_fifo::peek(region, slot, 0, &mut bytes) < bytes.len() {
                return None;
            }
            let _ = program_fifo::consume(slot, bytes.len() as u32);
            let record = AcceptRecord::from_bytes(&bytes);
            let handle = Handle { slot: record.slot, generation: record.generation };
            self.command(op::ACCEPTED, handle);
            if record.remote == from {
                return Some(handle);
            }
            self.command(op::CLOSE, handle);
        }
    }

    /// Makes a request that must succeed.
    fn ask(&mut self, hand: &mut Hand, request: &Request) -> (ControlReply, u32) {
        let (reply, _, turns) = ask_for_all(&mut self.program, hand, request);
        assert_eq!(reply.errno, 0, "call {} of an honest program is refused", request.call);
        (reply, turns)
    }

    fn until(&self, hand: &mut Hand, what: &str, mut is_so: impl FnMut(&mut Hand) -> bool) -> u32 {
        for turns in 0..TURNS_MAX {
            if is_so(hand) {
                return turns;
            }
            hand.turn(Duration::ZERO);
        }
        panic!("{what} did not happen: {:#?}", hand.sockets());
    }

    fn command(&self, op: u32, handle: Handle) {
        let Handle { slot, generation } = handle;
        let command = Command { op, slot, generation, ..Command::default() };
        assert!(self.program.command(&command), "it says less than its ring holds");
    }

    fn slot(&self, handle: Handle) -> &Slot {
        self.program.slot(handle.slot).expect("slots of the engine exist")
    }
}

/// Makes a request, and runs turns until the reply, whether it is an error or not.
pub(crate) fn ask_for_all(
    program: &mut Program,
    hand: &mut Hand,
    request: &Request,
) -> (ControlReply, Vec<std::os::fd::OwnedFd>, u32) {
    assert!(program.say(request), "a request that nobody takes");
    for turns in 1..TURNS_MAX {
        hand.turn(Duration::ZERO);
        match program.hear() {
            Heard::Answer(_, reply, descriptors) => return (*reply, descriptors, turns),
            Heard::Nothing => {}
            Heard::Gone => panic!("call {}: the engine has hung up", request.call),
        }
    }
    panic!("call {} is not answered: {:#?}", request.call, hand.counters());
}

/// Returns the byte at a position of every stream.
fn byte_at(position: u32) -> u8 {
    (position.wrapping_mul(2_654_435_761) >> 24) as u8
}
