//! Fuzzes a [`Stack`] with one connection, whose FIFOs are in shared memory as in an engine. The
//! input decides what peer, program and clock do. Every sent packet is checked.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use towpath_pool::{Batch, LinkType, Offloads, Owner, Packet, Pool, Port};
use towpath_ring::{
    Attach, EngineRecv, EngineSend, Payload, Region, WINDOW_MIN, Windows, lock_rx, lock_tx,
    program_fifo,
};
use towpath_shm::layout::Slot;
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{
    Budget, DatagramMeta, Family, Host, Linger, SocketEvent, SocketId, SocketKind, SocketOption,
    Stack, StackConfig,
};
use towpath_tcp::{
    Config, CongestionKind, Duration, Flags, Info, Instant, KeepAliveConfig, Options, SackBlocks,
    Segment, SeqNum, Timestamps,
};
use towpath_wire::{IpProtocol, MacAddr, checksum, ipv4, tcp};

use crate::input::Input;
use crate::ledger::{Ledger, Sent, stream};
use crate::peer::{Edges, Peer};

/// Runs one case. Panics if the stack violates an invariant.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut case = Case::new(&mut input);
    case.shake_hands(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        case.step(&mut input);
    }
    case.finish();
}

/// Maximum steps of a case, as in [`crate::connection`].
const STEPS_MAX: usize = 400;
/// Maximum bytes that the program writes in a case, so that sequence numbers from the ISS on do not
/// wrap.
const WRITTEN_MAX: u32 = 1 << 22;
/// Size to which FIFOs grow with autotuning: the second class of extents.
const GROWN: u32 = 256 << 10;
/// Maximum turns until there is no more work; each sends up to 256 packets.
const TURNS_MAX: usize = 64;
/// The socket's slot in the region.
const SLOT: u32 = 1;
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 80;

thread_local! {
    /// Memory shared by all cases. A reused extent contains bytes of an earlier case, whose streams
    /// have another seed. If such bytes are sent, the ledger detects them.
    static MEMORY: (Region, Windows) = {
        let region = Region::create().expect("shared memory");
        let windows = Windows::new(&region, 1 << 30);
        (region, windows)
    };
    static CASES: RefCell<u8> = const { RefCell::new(0) };
    /// Frames of the device for received packets. Each case takes over the frames of the previous
    /// one, so a case that loses frames affects later cases.
    static FRAMES: RefCell<Vec<&'static mut [u8]>> = const { RefCell::new(Vec::new()) };
}

/// Maximum bytes of a packet in a frame; longer packets use a buffer of the pool.
const FRAME_LEN: usize = 2048;
/// Number of frames of the device, which gets each frame back in the turn that receives its packet.
const FRAMES_COUNT: usize = 4;

struct Case {
    stack: Stack<Program>,
    program: Program,
    pool: Pool,
    ports: Vec<Box<dyn Port>>,
    wire: Rc<RefCell<Wire>>,
    now: Instant,
    region: Region,
    windows: Windows,
    id: SocketId,
    ledger: Ledger,
    peer: Peer,
    /// Seed of the streams of this case.
    seed: u8,
    /// Local port in the SYN.
    port: u16,
    /// The peer's initial number.
    irs: SeqNum,
    /// Bytes that the program has read.
    read: u32,
    closed: bool,
    /// Last statistics of the connection; `None` after it has ended.
    info: Option<Info>,
}

impl Case {
    fn new(input: &mut Input<'_>) -> Case {
        let now = Instant(5_000_000_000);
        let config = StackConfig { tcp: config(input), ..StackConfig::default() };
        let seed = CASES.with_borrow_mut(|cases| {
            *cases = cases.wrapping_add(1);
            *cases
        });
        let mut stack = Stack::new(config, [input.u8(); 32], now);
        let offloads = Offloads {
            checksum: input.bool(),
            tcp_segmentation: input.bool(),
            ..Offloads::default()
        };
        let mtu = input.pick(&[1500u32, 576, 9000, 65_535]);
        let interface = InterfaceConfig {
            name: "eth0".to_string(),
            link: LinkType::Ip,
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            mtu,
            offloads,
            addresses: vec![format!("{OURS}/24").parse().expect("a prefix")],
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        };
        stack.net.add_interface(now, interface);
        let wire = Rc::new(RefCell::new(Wire { offloads, ..Wire::default() }));
        let ports: Vec<Box<dyn Port>> = vec![Box::new(End(Rc::clone(&wire)))];
        let id = stack.open(SocketKind::Stream, Family::V4, 0).expect("room for a socket");
        let (region, windows) = MEMORY.with(Clone::clone);
        let capacity = input.pick(&[WINDOW_MIN, 16_384, 3_000]);
        let capacity_max = if input.bool() { GROWN } else { capacity };
        let recv = EngineRecv::new(&windows, SLOT, capacity, capacity_max);
        let send = EngineSend::new(&windows, SLOT, capacity, capacity_max);
        let remote = SocketAddr::V4(SocketAddrV4::new(THEIRS, PORT));
        stack.connect(now, id, remote, recv, send).expect("a way to the peer");
        Case {
            stack,
            program: Program,
            pool: Pool::default(),
            ports,
            wire,
            now,
            region,
            windows,
            id,
            ledger: Ledger::new(SeqNum(0), seed),
            peer: Peer { stamp: input.u32(), seen: 0 },
            seed,
            port: 0,
            irs: SeqNum(input.u32()),
            read: 0,
            closed: false,
            info: None,
        }
    }

    /// Completes the handshake, in which the peer behaves correctly.
    fn shake_hands(&mut self, input: &mut Input<'_>) {
        self.turn();
        let syn = self.wire.borrow_mut().sent.pop_front().expect("a SYN");
        let (header, _) = parse(&syn);
        assert!(header.flags == Flags::SYN, "{header:?}");
        self.port = header.src_port;
        self.ledger = Ledger::established(header.seq, self.seed);
        let timestamps = header.options.timestamps.filter(|_| !input.one_in(4));
        let segment = Segment {
            seq: self.irs,
            ack: header.seq + 1,
            flags: Flags::SYN | Flags::ACK,
            window: input.u16(),
            urgent: 0,
            options: Options {
                mss: Some(input.pick(&[1460u16, 536, 0, 256, 65_535])),
                window_scale: input.pick(&[None, Some(0), Some(7), Some(14), Some(255)]),
                sack_permitted: !input.one_in(4),
                timestamps: timestamps
                    .map(|ours| Timestamps { value: self.peer.stamp, echo: ours.value }),
                sack: SackBlocks::new(),
            },
            payload_len: 0,
            arrival: self.now,
            ecn: towpath_tcp::Ecn::NotEct,
            segments: 1,
        };
        self.arrives(&segment);
        self.settle();
        assert!(self.info.is_some_and(|info| info.state.is_synchronized()), "the handshake failed");
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0..7 => {
                let segment = self.peer.forge(input, &self.edges(), self.now);
                self.arrives(&segment);
            }
            7 => self.wire.borrow_mut().give_back(input, &mut self.pool),
            8 | 9 => self.write(1 + u32::from(input.u16())),
            10 => self.read(u32::from(input.u16())),
            11 => self.now += Duration::from_micros(u64::from(input.u16()) * 40),
            12 => {
                if let Some(at) = self.stack.next_timeout() {
                    self.now = self.now.max(at);
                }
            }
            13 => self.set_option(input),
            14 => self.tend_buffers(input),
            _ => self.end(input),
        }
        self.settle();
    }

    fn edges(&self) -> Edges {
        let Some(info) = &self.info else {
            let zero = SeqNum(0);
            return Edges { snd_una: zero, snd_nxt: zero, rcv_nxt: zero, rcv_adv: zero, mss: 1460 };
        };
        Edges {
            snd_una: info.snd_una,
            snd_nxt: info.snd_nxt,
            rcv_nxt: info.rcv_nxt,
            rcv_adv: info.rcv_nxt + info.rcv_wnd,
            mss: info.snd_mss,
        }
    }

    fn slot(&self) -> &Slot {
        self.region.slot(SLOT).expect("the first slots exist")
    }

    fn write(&mut self, len: u32) {
        if self.closed || self.ledger.is_shut() {
            return;
        }
        let Some(send) = self.stack.send_buffer(self.id) else { return };
        assert_eq!(send.attach(), Attach::Done);
        let from = self.ledger.written();
        let len = len.min(program_fifo::room(self.slot())).min(WRITTEN_MAX - from);
        let bytes: Vec<u8> = (from..from + len).map(|index| stream(self.seed, index)).collect();
        {
            let slot = self.slot();
            let generation = slot.generation.load(Relaxed);
            let _guard = lock_tx(slot, generation, || true);
            assert_eq!(program_fifo::write(&self.region, slot, 0, &bytes), bytes.len());
            let _ = program_fifo::publish(slot, len);
        }
        self.ledger.on_write(len);
        let pulled = self.stack.send_buffer(self.id).is_some_and(EngineSend::pull);
        assert!(pulled, "what the program wrote was not believed");
        self.stack.send_ready(self.id);
    }

    /// Reads up to `len` bytes. The byte of a sequence number is always the same, so that misplaced
    /// bytes are detected.
    fn read(&mut self, len: u32) {
        if self.closed {
            return;
        }
        let slot = self.slot();
        let mut bytes = vec![0; len.min(program_fifo::unread(slot)) as usize];
        {
            let generation = slot.generation.load(Relaxed);
            let _guard = lock_rx(slot, generation, || true);
            assert_eq!(program_fifo::peek(&self.region, slot, 0, &mut bytes), bytes.len());
            let _ = program_fifo::consume(slot, bytes.len() as u32);
        }
        for byte in bytes {
            self.read += 1;
            let number = (self.irs + self.read).0;
            assert_eq!(byte, stream(self.seed, number), "byte {} of the peer", self.read);
        }
        self.stack.recv_taken(self.now, self.id);
    }

    fn set_option(&mut self, input: &mut Input<'_>) {
        let option = match input.u8() % 8 {
            0 => SocketOption::NoDelay(input.bool()),
            1 => SocketOption::Cork(input.bool()),
            2 => SocketOption::MoreComing(input.bool()),
            3 => SocketOption::MaxSegment(input.pick(&[0u16, 88, 256, 257, 1000])),
            4 => SocketOption::QuickAck(input.bool()),
            5 => SocketOption::KeepAlive(input.bool().then(KeepAliveConfig::default)),
            6 => {
                let patience = Duration::from_millis(u64::from(input.u16()));
                SocketOption::UserTimeout(input.bool().then_some(patience))
            }
            _ => SocketOption::Congestion(input.pick(CongestionKind::ALL)),
        };
        // Fails if the connection has ended.
        let _ = self.stack.set_option(self.id, option);
    }

    /// Manages buffers like an engine: releases memory, and sets SO_SNDBUF and SO_RCVBUF.
    fn tend_buffers(&mut self, input: &mut Input<'_>) {
        let (which, bytes) = (input.u8() % 4, 1 + u32::from(input.u16()));
        if let Some(send) = self.stack.send_buffer(self.id) {
            match which {
                0 => drop(send.release_if_empty()),
                1 => send.set_capacity(bytes),
                _ => {}
            }
        }
        if let Some(recv) = self.stack.recv_buffer(self.id) {
            match which {
                2 => drop(recv.release_if_empty()),
                3 => recv.set_capacity(bytes),
                _ => {}
            }
        }
    }

    /// Shuts down or closes. Rare, because little can happen to a socket that has ended.
    fn end(&mut self, input: &mut Input<'_>) {
        let what = input.u8() % 16;
        if what < 4 {
            self.ledger.on_shutdown();
        }
        match what {
            0 | 1 => self.stack.shutdown_send(self.id),
            2 | 3 => {
                self.closed = true;
                let linger = if what == 2 { Linger::Default } else { Linger::Abort };
                self.stack.close(self.now, self.id, linger);
            }
            _ => {}
        }
    }

    fn arrives(&mut self, segment: &Segment) {
        self.ledger.on_peer(segment.ack);
        let packet = self.packet(segment);
        self.wire.borrow_mut().arriving.push_back(packet);
    }

    fn packet(&self, segment: &Segment) -> Vec<u8> {
        let header = tcp::Header {
            src_port: PORT,
            dst_port: self.port,
            seq: segment.seq,
            ack: segment.ack,
            flags: segment.flags,
            window: segment.window,
            checksum: 0,
            urgent: segment.urgent,
            header_len: 0,
            options: segment.options,
        };
        let len = header.emitted_len() + segment.payload_len as usize;
        let ip = ipv4::Header {
            tos: segment.ecn as u8,
            total_len: (20 + len) as u16,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: IpProtocol::TCP,
            src: THEIRS,
            dst: OURS,
            options: ipv4::Options::EMPTY,
        };
        let mut bytes = vec![0; 20 + len];
        let at = ip.emit(&mut bytes);
        let payload = at + header.emit(&mut bytes[at..]);
        // The first byte of the stream follows the SYN.
        let first = segment.seq.0.wrapping_sub(self.irs.0);
        let first = first.wrapping_add(u32::from(segment.flags.contains(Flags::SYN)));
        for (byte, offset) in bytes[payload..].iter_mut().zip(0u32..) {
            let number = self.irs.0.wrapping_add(first).wrapping_add(offset);
            *byte = stream(self.seed, number);
        }
        let pseudo = checksum::pseudo_v4(THEIRS, OURS, IpProtocol::TCP, len as u16);
        let sum = checksum::finish(checksum::sum(&bytes[at..], pseudo));
        let place = at + tcp::CHECKSUM_OFFSET;
        bytes[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn turn(&mut self) -> bool {
        let Self { stack, program, pool, ports, now, id, windows, .. } = self;
        let more = stack.turn(*now, program, ports, pool, Budget::default()).more;
        while windows.pop_unpinned().is_some() {
            if let Some(send) = stack.send_buffer(*id) {
                send.unpin();
            }
        }
        more
    }

    /// Ends the socket while the device may have its packets. Checks that another socket's memory
    /// is not that of these packets.
    fn finish(self) {
        let Self { stack, region, windows, wire, ports, mut pool, .. } = self;
        wire.borrow_mut().end_frames(&mut pool);
        drop((stack, ports));
        let mut other = EngineSend::new(&windows, SLOT + 1, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(other.attach(), Attach::Done);
        let slot = region.slot(SLOT + 1).expect("the first slots exist");
        {
            let _guard = lock_tx(slot, slot.generation.load(Relaxed), || true);
            let bytes = vec![0xdd; program_fifo::room(slot) as usize];
            assert_eq!(program_fifo::write(&region, slot, 0, &bytes), bytes.len());
        }
        for (packet, before) in wire.borrow_mut().kept.drain(..) {
            assert_eq!(bytes_of(&packet), before, "a packet was changed on its way");
        }
        drop(other);
        assert_eq!(windows.usage().assigned, 0, "a window was lost");
    }

    /// Runs turns until there is no work at this time, and checks all sent packets.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let more = self.turn();
            self.info = self.stack.info(self.now, self.id).and_then(|socket| socket.tcp);
            if let Some(info) = &self.info {
                self.ledger.on_una(info.snd_una);
            }
            let sent = std::mem::take(&mut self.wire.borrow_mut().sent);
            for packet in sent {
                self.check(&packet);
            }
            if !more {
                return;
            }
        }
        panic!("the stack never comes to rest");
    }

    fn check(&mut self, packet: &[u8]) {
        let (header, payload) = parse(packet);
        if let Some(stamps) = header.options.timestamps {
            self.peer.seen = stamps.value;
        }
        if self.info.is_none() && payload.is_empty() {
            // Skip resets of a connection that has ended, and ACKs of its TIME-WAIT.
            return;
        }
        self.ledger.on_sent(Sent {
            seq: header.seq,
            flags: header.flags,
            len: payload.len() as u32,
            payload: Some(payload),
            // Bytes that precede a reset are checked when the connection is gone, and its window is
            // unknown.
            snd_wnd: self.info.as_ref().map_or(u32::MAX, |info| info.snd_wnd),
        });
    }
}

/// The owner of the stack, which ignores all events, because the case inspects the socket itself.
struct Program;

impl Host for Program {
    type Recv = EngineRecv;
    type Send = EngineSend;

    fn recv_room(&self, _: u32) -> u32 {
        0
    }

    fn accept(
        &mut self,
        _: u32,
        _: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<(u32, EngineRecv, EngineSend)> {
        None
    }

    fn datagram(&mut self, _: u32, _: &DatagramMeta, _: &Payload<'_>) -> bool {
        false
    }

    fn event(&mut self, _: u32, _: SocketEvent) {}
}

/// Packets in both directions.
#[derive(Debug, Default)]
struct Wire {
    offloads: Offloads,
    arriving: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    /// Whether the device keeps packets until [`Wire::give_back`].
    keeps: bool,
    /// Packets that the device keeps, with their bytes at the time of transmission.
    kept: Vec<(Packet, Vec<u8>)>,
    /// Number of the device for the pool.
    owner: Option<Owner>,
    /// Frames that contain no packet.
    frames: Vec<&'static mut [u8]>,
}

impl Wire {
    /// Creates a received packet with these bytes.
    fn receive(&mut self, bytes: &[u8], pool: &mut Pool) -> Packet {
        let owner = *self.owner.get_or_insert_with(|| {
            self.frames = FRAMES.with_borrow_mut(std::mem::take);
            self.frames.resize_with(FRAMES_COUNT, || vec![0; Pool::HEADROOM + FRAME_LEN].leak());
            pool.add_owner()
        });
        while let Some(frame) = pool.take_frame(owner) {
            self.frames.push(frame);
        }
        let mut packet = match self.frames.pop() {
            Some(frame) if bytes.len() <= FRAME_LEN => Packet::in_frame(frame, owner),
            frame => {
                self.frames.extend(frame);
                pool.take(bytes.len())
            }
        };
        packet.spare_mut()[..bytes.len()].copy_from_slice(bytes);
        packet.received(bytes.len());
        packet
    }

    /// Takes back all frames, when no received packet is left.
    fn end_frames(&mut self, pool: &mut Pool) {
        let Some(owner) = self.owner else { return };
        while let Some(frame) = pool.take_frame(owner) {
            self.frames.push(frame);
        }
        assert_eq!(self.frames.len(), FRAMES_COUNT, "a frame was lost");
        FRAMES.set(std::mem::take(&mut self.frames));
    }

    /// Sets whether the device keeps packets, and returns some kept packets in any order. Checks
    /// that their bytes were not overwritten meanwhile.
    fn give_back(&mut self, input: &mut Input<'_>, pool: &mut Pool) {
        self.keeps = input.bool();
        for _ in 0..input.u8() % 16 {
            if self.kept.is_empty() {
                return;
            }
            let at = usize::from(input.u8()) % self.kept.len();
            let (packet, before) = self.kept.swap_remove(at);
            assert_eq!(bytes_of(&packet), before, "a packet was changed on its way");
            pool.give(packet);
        }
    }
}

fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.copy_to(0, &mut bytes);
    bytes
}

/// The stack's end of a wire.
struct End(Rc<RefCell<Wire>>);

impl Port for End {
    fn poll(&mut self, _: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut wire = self.0.borrow_mut();
        let n = max.min(wire.arriving.len());
        for _ in 0..n {
            let Some(bytes) = wire.arriving.pop_front() else { break };
            out.push_back(wire.receive(&bytes, pool));
        }
        n
    }

    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut wire = self.0.borrow_mut();
        let mut n = 0;
        for packet in batch.drain(..) {
            let bytes = bytes_of(&packet);
            wire.sent.push_back(bytes.clone());
            match wire.keeps {
                true => wire.kept.push((packet, bytes)),
                false => pool.give(packet),
            }
            n += 1;
        }
        n
    }

    fn offloads(&self) -> Offloads {
        self.0.borrow().offloads
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn parse(packet: &[u8]) -> (tcp::Header, &[u8]) {
    let (ip, payload) = ipv4::Header::parse(packet).expect("the stack sends IPv4");
    assert_eq!((ip.src, ip.dst, ip.protocol), (OURS, THEIRS, IpProtocol::TCP));
    let segment = &packet[payload];
    let header = tcp::Header::parse(segment).expect("with TCP in it");
    (header, &segment[usize::from(header.header_len)..])
}

fn config(input: &mut Input<'_>) -> Config {
    Config {
        sack: !input.one_in(4),
        timestamps: input.bool(),
        nodelay: input.bool(),
        window_scale: input.u8() % 15,
        initial_window: input.pick(&[10u8, 1, 255]),
        congestion: input.pick(CongestionKind::ALL),
        ..Config::default()
    }
}
