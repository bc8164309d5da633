//! Two hosts and a link each way in virtual time. Hosts have FIFOs of bytes. A test decides the
//! fate of packets that it knows, and the links (`core/link`) that of others by their dice.
#![allow(dead_code, reason = "each test binary uses its own part of the vocabulary")]

use std::collections::VecDeque;
use std::time::Duration;

use towpath_link::{Carried, Dropped, Link, Probability, Queueable};
pub use towpath_link::{Chance, Dice, LinkConfig, Loss};
use towpath_tcp::*;

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The byte at `index` of every stream.
pub fn pattern(index: usize) -> u8 {
    (index.wrapping_mul(2_654_435_761) >> 13) as u8
}

pub fn stream(len: usize) -> Vec<u8> {
    (0..len).map(pattern).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

use Side::{A, B};

impl Side {
    pub fn other(self) -> Side {
        if self == A { B } else { A }
    }
}

/// Fate of a packet that a script knows by its content. Chance is the links' own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Deliver,
    Drop,
    /// Later than the others.
    Late(Duration),
    /// Marked with CE if the packet has ECT.
    Mark,
}

/// An event that strikes so many packets of a thousand.
pub fn chance(of_a_thousand: u64) -> Chance {
    let probability = Probability::new(of_a_thousand as f64 / 1000.0);
    Chance::independent(probability.expect("not above 1"))
}

/// Losses of so many packets of a thousand.
pub fn losses(of_a_thousand: u64) -> Loss {
    Loss::Random(chance(of_a_thousand))
}

/// A packet on the wire.
#[derive(Debug, Clone)]
pub struct Packet {
    pub from: Side,
    pub segment: Segment,
    pub payload: Vec<u8>,
    pub retransmit: bool,
    pub sent: Instant,
}

impl Packet {
    pub fn has(&self, flags: Flags) -> bool {
        self.segment.flags.contains(flags)
    }

    pub fn is_data(&self) -> bool {
        !self.payload.is_empty()
    }
}

impl Queueable for Packet {
    fn bytes(&self) -> usize {
        40 + self.payload.len()
    }

    fn ecn(&self) -> Ecn {
        self.segment.ecn
    }

    fn mark_ce(&mut self) -> bool {
        if self.segment.ecn != Ecn::NotEct {
            self.segment.ecn = Ecn::Ce;
        }
        self.segment.ecn.is_ce()
    }
}

impl Carried for Packet {
    fn duplicate(&self) -> Self {
        self.clone()
    }

    fn flip_bit(&mut self, _: u64) {
        panic!("segments have no checksum here by which a receiver could tell");
    }
}

pub enum Life {
    Listening,
    HalfOpen(HalfOpen),
    Open(Box<Connection>),
    TimeWait(TimeWait),
    Gone,
}

pub struct Host {
    pub life: Life,
    pub config: Config,
    pub iss: SeqNum,
    pub send_fifo: VecDeque<u8>,
    pub send_capacity: usize,
    /// Bytes that the program still wants to write.
    pub to_write: VecDeque<u8>,
    /// Bytes the program writes at once.
    pub write_chunk: usize,
    pub recv_fifo: Vec<u8>,
    pub recv_ahead: Vec<u8>,
    pub recv_capacity: usize,
    /// The program reads at once whatever comes.
    pub reads: bool,
    /// The connection hears of the program's next read.
    pub awaits_reads: bool,
    /// The program has read since the connection was last idle.
    pub has_read: bool,
    pub received: Vec<u8>,
    pub shutdown_when_written: bool,
    pub close_at_eof: bool,
    /// Bytes go in its SYN, or those of the peer's SYN are taken: the cookie is valid.
    pub fast_open: bool,
    pub tso: u32,
    pub events: Vec<ConnectionEvent>,
    pub dispositions: Vec<Disposition>,
    pub idle: Option<Idle>,
    /// Urgent bytes: their places in the stream, the bytes if they came along, and whether the
    /// marks were new.
    pub marks: Vec<(usize, Option<u8>, bool)>,
    /// Timers of the connection that ran out.
    pub timeouts: Vec<TimerKind>,
    /// Its TIME-WAIT is over.
    pub waited: bool,
}

impl Host {
    fn new(config: Config, iss: u32) -> Host {
        Host {
            life: Life::Listening,
            config,
            iss: SeqNum(iss),
            send_fifo: VecDeque::new(),
            send_capacity: 1 << 20,
            to_write: VecDeque::new(),
            write_chunk: usize::MAX,
            recv_fifo: Vec::new(),
            recv_ahead: Vec::new(),
            recv_capacity: 1 << 20,
            reads: true,
            awaits_reads: false,
            has_read: false,
            received: Vec::new(),
            shutdown_when_written: false,
            close_at_eof: false,
            fast_open: false,
            tso: 65_000,
            events: Vec::new(),
            dispositions: Vec::new(),
            idle: None,
            marks: Vec::new(),
            timeouts: Vec::new(),
            waited: false,
        }
    }

    pub fn buffers(&self) -> FifoLevels {
        FifoLevels {
            recv_free: (self.recv_capacity - self.recv_fifo.len()) as u32,
            recv_capacity: self.recv_capacity as u32,
            recv_unread: self.recv_fifo.len() as u32,
            send_len: self.send_fifo.len() as u32,
            send_capacity: self.send_capacity as u32,
        }
    }

    /// The program has read; the connection is told if it asked for it, and once.
    fn tell_of_read(&mut self, now: Instant) {
        let buffers = self.buffers();
        if let Life::Open(connection) = &mut self.life
            && std::mem::take(&mut self.awaits_reads)
        {
            connection.on_recv_consumed(now, buffers);
        }
    }

    pub fn connection(&mut self) -> &mut Connection {
        match &mut self.life {
            Life::Open(connection) => connection,
            _ => panic!("there is no connection"),
        }
    }

    pub fn state(&self) -> Option<State> {
        match &self.life {
            Life::Open(connection) => Some(connection.state()),
            _ => None,
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        match &self.life {
            Life::HalfOpen(half) => Some(half.next_timeout()),
            Life::Open(connection) => connection.next_timeout().map(|timeout| timeout.0),
            Life::TimeWait(time_wait) => Some(time_wait.expires()),
            Life::Listening | Life::Gone => None,
        }
    }

    fn apply(&mut self, received: &FifoChanges, payload: &[u8]) {
        if let Some(write) = received.write {
            let from = write.payload_offset as usize;
            let bytes = &payload[from..from + write.len as usize];
            let at = write.fifo_offset as usize;
            assert!(
                self.recv_fifo.len() + at + bytes.len() <= self.recv_capacity,
                "written beyond the FIFO"
            );
            if self.recv_ahead.len() < at + bytes.len() {
                self.recv_ahead.resize(at + bytes.len(), 0);
            }
            self.recv_ahead[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.recv_fifo.extend(self.recv_ahead.drain(..received.commit as usize));
        self.send_fifo.drain(..received.released as usize);
    }
}

/// The world.
pub struct Pair {
    pub now: Instant,
    pub a: Host,
    pub b: Host,
    /// Properties of the links away from A and away from B.
    pub ways: [LinkConfig; 2],
    pub fate: Box<dyn FnMut(&Packet) -> Fate>,
    /// Coalesced segments arrive coalesced.
    pub gro: bool,
    /// All packets ever put on the wire, payload left out.
    pub log: Vec<Packet>,
    links: [Link<Packet>; 2],
    drops: Vec<Dropped<Packet>>,
}

impl Pair {
    /// A host that will connect and one that listens.
    pub fn new(a: Config, b: Config) -> Pair {
        Pair::with_iss(a, b, 1000, 5000)
    }

    pub fn with_iss(a: Config, b: Config, iss_a: u32, iss_b: u32) -> Pair {
        Pair {
            now: Instant(1_000_000_000),
            a: Host::new(a, iss_a),
            b: Host::new(b, iss_b),
            ways: [LinkConfig { delay_ns: 5_000_000, ..LinkConfig::default() }; 2],
            fate: Box::new(|_| Fate::Deliver),
            gro: false,
            log: Vec::new(),
            links: [0, 1].map(|way| Link::new(LinkConfig::default(), Dice::new(0, way))),
            drops: Vec::new(),
        }
    }

    /// Lays other links, with dice of another seed. Nothing is on its way.
    pub fn lay(&mut self, ways: [LinkConfig; 2], seed: u64) {
        assert!(self.links.iter().all(|link| link.held() == 0), "packets are on their way");
        self.ways = ways;
        let dice = |way: usize| Dice::new(seed, way as u64);
        self.links = [0, 1].map(|way| Link::new(ways[way], dice(way)));
    }

    pub fn set_delay(&mut self, delay: Duration) {
        self.ways.iter_mut().for_each(|way| way.delay_ns = delay.as_nanos() as u64);
    }

    /// Connected, with default settings.
    pub fn connected() -> Pair {
        Pair::connected_with(Config::default(), Config::default())
    }

    pub fn connected_with(a: Config, b: Config) -> Pair {
        let mut pair = Pair::new(a, b);
        pair.connect(A);
        pair.run_for(ms(100));
        assert_eq!(pair.a.state(), Some(State::Established));
        assert_eq!(pair.b.state(), Some(State::Established));
        pair.log.clear();
        pair
    }

    pub fn host(&mut self, side: Side) -> &mut Host {
        match side {
            A => &mut self.a,
            B => &mut self.b,
        }
    }

    pub fn connect(&mut self, side: Side) {
        let now = self.now;
        let host = self.host(side);
        let connection = match host.fast_open {
            true => Connection::connect_with_data(host.config, host.iss, 77, now),
            false => Connection::connect(host.config, host.iss, 77, now),
        };
        host.life = Life::Open(Box::new(connection));
        self.turn(side);
    }

    /// The program writes `len` bytes of the pattern, from its beginning.
    pub fn write(&mut self, side: Side, len: usize) {
        let host = self.host(side);
        host.to_write.extend((0..len).map(pattern));
        self.turn(side);
    }

    pub fn write_bytes(&mut self, side: Side, bytes: &[u8]) {
        self.host(side).to_write.extend(bytes);
        self.turn(side);
    }

    /// The program writes bytes of which the last is urgent (MSG_OOB).
    pub fn write_urgent(&mut self, side: Side, bytes: &[u8]) {
        let host = self.host(side);
        let end = host.send_fifo.len() + host.to_write.len() + bytes.len();
        host.connection().set_urgent(end as u32);
        self.write_bytes(side, bytes);
    }

    /// The program reads at most `len` bytes.
    pub fn read(&mut self, side: Side, len: usize) -> usize {
        let now = self.now;
        let host = self.host(side);
        let count = len.min(host.recv_fifo.len());
        host.received.extend(host.recv_fifo.drain(..count));
        host.tell_of_read(now);
        self.turn(side);
        count
    }

    pub fn shutdown(&mut self, side: Side) {
        self.host(side).connection().shutdown_send();
        self.turn(side);
    }

    pub fn close(&mut self, side: Side) {
        let now = self.now;
        self.host(side).connection().close(now);
        self.turn(side);
    }

    pub fn abort(&mut self, side: Side) {
        self.host(side).connection().abort();
        self.turn(side);
    }

    /// Everything the host can do now.
    pub fn turn(&mut self, side: Side) {
        let now = self.now;
        self.program(side);
        loop {
            let host = self.host(side);
            let buffers = host.buffers();
            let Life::Open(connection) = &mut host.life else { return };
            match connection.plan(now, buffers, host.tso) {
                Plan::Send(transmit) => {
                    let outgoing = connection.emit(now, transmit, buffers);
                    assert_eq!(outgoing.len, transmit.payload_len());
                    self.put(side, outgoing);
                }
                Plan::Nothing(idle) => {
                    connection.on_idle(now, idle, buffers);
                    host.awaits_reads = connection.awaits_reads(buffers);
                    // Reads from before `awaits_reads` was asked count, too.
                    let read = std::mem::take(&mut host.has_read);
                    if host.awaits_reads && read && connection.on_recv_consumed(now, buffers) {
                        continue;
                    }
                    host.idle = Some(idle);
                    break;
                }
            }
        }
        self.take_events(side);
    }

    fn program(&mut self, side: Side) {
        let now = self.now;
        let host = self.host(side);
        let room = (host.send_capacity - host.send_fifo.len())
            .min(host.to_write.len())
            .min(host.write_chunk);
        host.send_fifo.extend(host.to_write.drain(..room));
        if host.shutdown_when_written
            && host.to_write.is_empty()
            && let Life::Open(connection) = &mut host.life
        {
            connection.shutdown_send();
        }
        if host.reads && !host.recv_fifo.is_empty() {
            host.received.append(&mut host.recv_fifo);
            host.has_read = true;
            host.tell_of_read(now);
        }
    }

    fn take_events(&mut self, side: Side) {
        let now = self.now;
        let host = self.host(side);
        while let Life::Open(connection) = &mut host.life {
            let Some(event) = connection.poll_event() else { break };
            host.events.push(event);
            match event {
                ConnectionEvent::TimeWait(time_wait) => host.life = Life::TimeWait(time_wait),
                ConnectionEvent::Closed => host.life = Life::Gone,
                ConnectionEvent::PeerClosed if host.close_at_eof => connection.close(now),
                _ => continue,
            }
            if event == ConnectionEvent::PeerClosed {
                return self.turn(side);
            }
        }
    }

    /// Cuts a segment as the layers below do and puts it on the wire.
    fn put(&mut self, from: Side, out: Outgoing) {
        let host = self.host(from);
        let start = out.send_offset as usize;
        let payload: Vec<u8> =
            host.send_fifo.range(start..start + out.len as usize).copied().collect();
        let size = match self.gro {
            true => payload.len(),
            false => usize::from(out.segment_size),
        };
        let pieces = payload.len().div_ceil(size.max(1)).max(1);
        for piece in 0..pieces {
            let last = piece + 1 == pieces;
            let bytes = payload
                [(piece * size).min(payload.len())..((piece + 1) * size).min(payload.len())]
                .to_vec();
            let segment = Segment {
                seq: out.seq + (piece * size) as u32,
                ack: out.ack,
                flags: flags_of_piece(out.flags, piece == 0, last),
                window: out.window,
                urgent: out.urgent,
                options: out.options,
                payload_len: bytes.len() as u32,
                arrival: self.now,
                ecn: out.ecn,
                segments: bytes.len().div_ceil(usize::from(out.segment_size.max(1))).max(1) as u16,
            };
            self.send(Packet {
                from,
                segment,
                payload: bytes,
                retransmit: out.retransmit,
                sent: self.now,
            });
        }
    }

    /// Puts a packet on the wire, whoever made it.
    pub fn send(&mut self, mut packet: Packet) {
        self.log.push(Packet {
            payload: packet.payload.iter().take(1).copied().collect(),
            ..packet.clone()
        });
        let late = match (self.fate)(&packet) {
            Fate::Drop => return,
            Fate::Deliver => Duration::ZERO,
            Fate::Late(late) => late,
            Fate::Mark => {
                packet.mark_ce();
                Duration::ZERO
            }
        };
        let way = packet.from as usize;
        let delay_ns = self.ways[way].delay_ns + late.as_nanos() as u64;
        self.links[way].configure(LinkConfig { delay_ns, ..self.ways[way] });
        self.links[way].on_packet(self.now.0, packet, &mut self.drops);
        self.drops.clear();
    }

    /// A packet of the test's own making arrives at `to` now.
    pub fn inject(&mut self, to: Side, segment: Segment, payload: &[u8]) {
        let packet = Packet {
            from: to.other(),
            segment,
            payload: payload.to_vec(),
            retransmit: false,
            sent: self.now,
        };
        self.deliver(packet);
    }

    /// A segment of `from` without news: in order, with the right acknowledgement.
    pub fn segment_from(&mut self, from: Side, flags: Flags) -> Segment {
        let now = self.now;
        let (buffers, other) = (self.host(from).buffers(), from.other());
        let mine = self.host(from).connection().info(now, buffers);
        let theirs = self.host(other).connection().info(now, FifoLevels::default());
        let timestamps = mine.timestamps.then(|| {
            let offset = if from == A { 77 } else { 78 };
            Timestamps { value: (now.0 / 1_000_000) as u32 + offset, echo: 0 }
        });
        Segment {
            seq: theirs.rcv_nxt,
            ack: theirs.snd_nxt,
            flags,
            window: 1000,
            urgent: 0,
            options: Options { timestamps, ..Options::default() },
            payload_len: 0,
            arrival: now,
            ecn: Ecn::NotEct,
            segments: 1,
        }
    }

    fn deliver(&mut self, packet: Packet) {
        let now = self.now;
        let side = packet.from.other();
        let mut segment = packet.segment;
        segment.arrival = now;
        match &mut self.host(side).life {
            Life::Listening => self.on_listening(side, &segment, &packet.payload),
            Life::HalfOpen(_) => self.on_half_open(side, &segment, &packet.payload),
            Life::Open(_) => self.on_open(side, &segment, &packet.payload),
            Life::TimeWait(time_wait) => match time_wait.on_segment(now, &segment) {
                TimeWaitVerdict::Ack(out) => self.put(side, out),
                TimeWaitVerdict::Reopen => {
                    let min = time_wait.iss_min();
                    let host = self.host(side);
                    host.iss = min;
                    host.life = Life::Listening;
                    self.on_listening(side, &segment, &packet.payload);
                }
                TimeWaitVerdict::Drop(reason) => {
                    self.host(side).dispositions.push(Disposition::Dropped(reason))
                }
            },
            Life::Gone => {
                if let Some(out) = reset_for(&segment) {
                    self.put(side, out);
                }
            }
        }
    }

    fn on_listening(&mut self, side: Side, segment: &Segment, payload: &[u8]) {
        let now = self.now;
        if !segment.flags.contains(Flags::SYN) || segment.flags.intersects(Flags::ACK | Flags::RST)
        {
            if let Some(out) = reset_for(segment) {
                self.put(side, out);
            }
            return;
        }
        let host = self.host(side);
        if host.fast_open && segment.payload_len > 0 {
            let (connection, received) = Connection::accept_with_data(
                host.config,
                segment,
                host.iss,
                78,
                now,
                host.buffers(),
            );
            host.life = Life::Open(Box::new(connection));
            host.apply(&received, payload);
            return self.turn(side);
        }
        let window = host.buffers().recv_free;
        let mut half = HalfOpen::new(&host.config, segment, host.iss, 78, now);
        let out = half.syn_ack(now, window);
        host.life = Life::HalfOpen(half);
        self.put(side, out);
    }

    fn on_half_open(&mut self, side: Side, segment: &Segment, payload: &[u8]) {
        let now = self.now;
        let host = self.host(side);
        let window = host.buffers().recv_free;
        let Life::HalfOpen(half) = &mut host.life else { return };
        match half.on_segment(now, segment) {
            HalfOpenVerdict::Established(handshake) => {
                host.life = Life::Open(Box::new(Connection::accept(host.config, handshake, now)));
                self.on_open(side, segment, payload);
            }
            HalfOpenVerdict::Reset => host.life = Life::Listening,
            HalfOpenVerdict::ResendSynAck => {
                let out = half.syn_ack(now, window);
                self.put(side, out);
            }
            HalfOpenVerdict::ChallengeAck(out) | HalfOpenVerdict::SendReset(out) => {
                self.put(side, out)
            }
            HalfOpenVerdict::Drop(reason) => host.dispositions.push(Disposition::Dropped(reason)),
        }
    }

    fn on_open(&mut self, side: Side, segment: &Segment, payload: &[u8]) {
        let now = self.now;
        let host = self.host(side);
        let buffers = host.buffers();
        let disposition = host.connection().on_segment(now, segment, buffers);
        host.dispositions.push(disposition);
        if let Disposition::Accepted(received) = disposition {
            let mark = host.connection().take_urgent_mark();
            assert_eq!(mark.is_some(), received.urgent);
            let in_order = host.received.len() + host.recv_fifo.len();
            host.marks.extend(mark.map(|mark| {
                let byte = mark.payload_offset.map(|at| payload[at as usize]);
                (in_order + mark.offset as usize, byte, mark.is_new)
            }));
            host.apply(&received, payload);
        }
        self.turn(side);
    }

    fn on_timeout(&mut self, side: Side) {
        let now = self.now;
        let host = self.host(side);
        let window = host.buffers().recv_free;
        match &mut host.life {
            Life::HalfOpen(half) => {
                if half.on_timeout(now) {
                    let out = half.syn_ack(now, window);
                    self.put(side, out);
                } else {
                    host.life = Life::Gone;
                }
            }
            Life::Open(connection) => {
                host.timeouts.extend(connection.next_timeout().map(|timeout| timeout.1));
                connection.on_timeout(now, now);
                self.turn(side);
            }
            Life::TimeWait(_) => (host.life, host.waited) = (Life::Gone, true),
            Life::Listening | Life::Gone => {}
        }
    }

    /// When the next thing happens.
    pub fn next(&self) -> Option<Instant> {
        let arrivals = self.links.iter().filter_map(Link::next_timeout_ns).map(Instant);
        let timers = [self.a.next_timeout(), self.b.next_timeout()].into_iter().flatten();
        arrivals.chain(timers).min()
    }

    /// Lets the next thing happen; false when nothing will.
    pub fn step(&mut self) -> bool {
        let Some(next) = self.next() else { return false };
        self.now = self.now.max(next);
        let now_ns = self.now.0;
        let first =
            self.links.iter_mut().min_by_key(|link| link.next_timeout_ns().unwrap_or(u64::MAX));
        if let Some(packet) = first.and_then(|link| link.poll_packet(now_ns, &mut self.drops)) {
            self.deliver(packet);
            return true;
        }
        for side in [A, B] {
            if self.host(side).next_timeout().is_some_and(|at| at <= self.now) {
                self.on_timeout(side);
            }
        }
        true
    }

    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.next().is_some_and(|next| next <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Runs until `done`, and returns how long it took.
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Pair) -> bool,
    ) -> Duration {
        let start = self.now;
        while !done(self) {
            assert!(self.now - start <= limit, "not done after {:?}", self.now - start);
            assert!(self.step(), "nothing will happen any more, and it is not done");
        }
        self.now - start
    }

    /// The first `limit` bytes of what arrived at `side` are those sent.
    pub fn assert_received(&self, side: Side, len: usize) {
        let host = if side == A { &self.a } else { &self.b };
        assert_eq!(host.received.len(), len, "bytes received by {side:?}");
        let wrong =
            host.received.iter().enumerate().find(|(index, byte)| **byte != pattern(*index));
        assert_eq!(wrong, None, "bytes differ");
    }

    /// Packets sent by `side` that satisfy `filter`.
    pub fn sent(&self, side: Side, filter: impl Fn(&Packet) -> bool) -> usize {
        self.log.iter().filter(|packet| packet.from == side && filter(packet)).count()
    }
}

/// Drops the packets of `side` with payload whose ordinal numbers, from 0, are in `numbers`.
pub fn drop_data(side: Side, numbers: &[usize]) -> Box<dyn FnMut(&Packet) -> Fate> {
    let numbers = numbers.to_vec();
    let mut count = 0;
    Box::new(move |packet| {
        if packet.from != side || !packet.is_data() {
            return Fate::Deliver;
        }
        count += 1;
        if numbers.contains(&(count - 1)) { Fate::Drop } else { Fate::Deliver }
    })
}

/// Buffers of a connection in which everything has room.
pub const BUFFERS: FifoLevels = FifoLevels {
    recv_free: 65_536,
    recv_capacity: 65_536,
    recv_unread: 0,
    send_len: 0,
    send_capacity: 1 << 20,
};

/// Returns the flags of a piece of a long segment, as a device sets them.
fn flags_of_piece(flags: Flags, is_first: bool, is_last: bool) -> Flags {
    let flags = if is_first { flags } else { flags.without(Flags::CWR) };
    if is_last { flags } else { flags.without(Flags::FIN | Flags::PSH) }
}

/// A segment with ACK alone.
pub fn plain(seq: SeqNum, ack: SeqNum, window: u16, payload_len: u32) -> Segment {
    Segment {
        seq,
        ack,
        flags: Flags::ACK,
        window,
        urgent: 0,
        options: Options::default(),
        payload_len,
        arrival: Instant(2),
        ecn: Ecn::NotEct,
        segments: 1,
    }
}
