//! Fuzzes a [`Connection`]: the input decides what its peer, program and clock do. Its FIFOs are
//! represented by their lengths.

use std::num::NonZeroU64;

use towpath_tcp::{
    Config, CongestionKind, Connection, ConnectionEvent, Disposition, Duration, EcnState,
    FifoChanges, FifoLevels, Flags, Handshake, Instant, KeepAliveConfig, Options, Plan, SackBlocks,
    Segment, SeqNum, TimeWait, TimeWaitVerdict, Timestamps, Write,
};

use crate::input::Input;
use crate::ledger::{Ledger, Sent};
use crate::peer::{Edges, Peer};

/// Runs one case. Panics if the connection violates an invariant.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut case = Case::new(&mut input);
    case.drain();
    for _ in 0..STEPS_MAX {
        if input.is_empty() || case.over {
            break;
        }
        case.step(&mut input);
    }
    if let Some(time_wait) = case.time_wait.take() {
        case.wait_out(&mut input, time_wait);
    }
}

/// Maximum steps of a case. Longer cases take more time and have found nothing more.
const STEPS_MAX: usize = 400;
/// Maximum bytes that the program writes in a case, so that sequence numbers from the ISS on do not
/// wrap.
const WRITTEN_MAX: u32 = 1 << 22;

struct Case {
    connection: Connection,
    ledger: Ledger,
    peer: Peer,
    now: Instant,
    capacity: u32,
    unread: u32,
    send_len: u32,
    /// Whether each byte beyond the in-order ones is in the receive FIFO.
    ahead: Vec<bool>,
    max_payload: u32,
    /// The program has closed or aborted the connection, and reads no more.
    closed: bool,
    over: bool,
    time_wait: Option<TimeWait>,
}

impl Case {
    fn new(input: &mut Input<'_>) -> Case {
        let config = config(input);
        let now = Instant(5_000_000_000);
        let iss = SeqNum(initial(input));
        let capacity = input.pick(&[65_536u32, 16_384, 3_000, 1 << 20]);
        let peer = Peer { stamp: initial(input), seen: 0 };
        let passive = input.bool();
        let (connection, ledger) = if passive {
            let handshake = handshake(input, &config, iss, peer.stamp, capacity);
            (Connection::accept(config, handshake, now), Ledger::established(iss, 0))
        } else {
            (Connection::connect(config, iss, input.u32(), now), Ledger::new(iss, 0))
        };
        let mut case = Case {
            connection,
            ledger,
            peer,
            now,
            capacity,
            unread: 0,
            send_len: 0,
            ahead: Vec::new(),
            max_payload: input.pick(&[0, 65_000]),
            closed: false,
            over: false,
            time_wait: None,
        };
        case.drain();
        if !passive && !input.one_in(4) {
            case.answer_syn(input);
        }
        case
    }

    /// Sends the SYN-ACK of a peer that behaves correctly so far.
    fn answer_syn(&mut self, input: &mut Input<'_>) {
        let edges = self.edges();
        let segment = Segment {
            seq: SeqNum(initial(input)),
            ack: edges.snd_nxt,
            flags: Flags::SYN | Flags::ACK,
            window: input.u16(),
            urgent: 0,
            options: Options {
                mss: Some(input.pick(&[1460u16, 536, 0, 65_535])),
                window_scale: input.pick(&[None, Some(0), Some(7), Some(14), Some(255)]),
                sack_permitted: true,
                timestamps: Some(Timestamps { value: self.peer.stamp, echo: self.peer.seen }),
                sack: SackBlocks::new(),
            },
            payload_len: 0,
            arrival: self.now,
            ecn: towpath_tcp::Ecn::NotEct,
            segments: 1,
        };
        self.arrives(&segment);
        self.drain();
    }

    fn buffers(&self) -> FifoLevels {
        FifoLevels {
            recv_free: self.capacity - self.unread,
            recv_capacity: self.capacity,
            recv_unread: self.unread,
            send_len: self.send_len,
            send_capacity: self.capacity,
        }
    }

    fn edges(&self) -> Edges {
        let info = self.connection.info(self.now, self.buffers());
        Edges {
            snd_una: info.snd_una,
            snd_nxt: info.snd_nxt,
            rcv_nxt: info.rcv_nxt,
            rcv_adv: info.rcv_nxt + info.rcv_wnd,
            mss: info.snd_mss,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0..8 => {
                let segment = self.peer.forge(input, &self.edges(), self.now);
                self.arrives(&segment);
            }
            8 | 9 => self.write(1 + u32::from(input.u16())),
            10 => self.read(u32::from(input.u16())),
            11 => {
                self.now += Duration::from_micros(u64::from(input.u16()) * 40);
                self.connection.on_timeout(self.now, self.now);
            }
            12 => {
                if let Some((at, _)) = self.connection.next_timeout() {
                    self.now = self.now.max(at);
                }
                self.connection.on_timeout(self.now, self.now);
            }
            13 => self.set_option(input),
            14 => {
                let edges = self.edges();
                let segment = self.peer.forge(input, &edges, self.now);
                self.connection.on_unreachable(input.bool(), segment.seq);
                self.connection.on_path_mtu(input.pick(&[1460u16, 536, 0, 64, 256, 65_535]));
            }
            _ => self.end(input),
        }
        self.drain();
    }

    fn set_option(&mut self, input: &mut Input<'_>) {
        let connection = &mut self.connection;
        match input.u8() % 9 {
            0 => connection.set_nodelay(input.bool()),
            1 => connection.set_cork(input.bool()),
            2 => connection.more_coming(input.bool()),
            3 => connection.on_path_mtu(input.u16()),
            4 => connection.set_quickack(input.bool()),
            5 => connection.set_keepalive(input.bool().then(KeepAliveConfig::default)),
            6 => {
                let patience = Duration::from_millis(u64::from(input.u16()));
                connection.set_user_timeout(input.bool().then_some(patience));
            }
            7 => connection.set_max_pacing_rate(NonZeroU64::new(u64::from(input.u16()) << 8)),
            _ => connection.set_congestion(input.pick(CongestionKind::ALL)),
        }
    }

    /// Shuts down, closes or aborts. Rare, because little can happen to a connection that has
    /// ended.
    fn end(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0 | 1 => {
                self.ledger.on_shutdown();
                self.connection.shutdown_send();
            }
            2 => {
                self.ledger.on_shutdown();
                self.closed = true;
                self.connection.close(self.now);
            }
            3 => {
                self.ledger.on_shutdown();
                self.closed = true;
                self.connection.abort();
            }
            _ => {}
        }
    }

    fn write(&mut self, len: u32) {
        let len = len.min(self.capacity - self.send_len).min(WRITTEN_MAX - self.ledger.written());
        if !self.ledger.is_shut() {
            self.send_len += len;
            self.ledger.on_write(len);
        }
    }

    fn read(&mut self, len: u32) {
        if !self.closed {
            self.unread -= len.min(self.unread);
            self.connection.on_recv_consumed(self.now, self.buffers());
        }
    }

    fn arrives(&mut self, segment: &Segment) {
        let buffers = self.buffers();
        self.ledger.on_peer(segment.ack);
        let disposition = self.connection.on_segment(self.now, segment, buffers);
        if let Disposition::Accepted(received) = disposition {
            if let Some(write) = received.write {
                self.store(write, segment, buffers);
            }
            self.apply(received);
        }
        let info = self.connection.info(self.now, self.buffers());
        self.ledger.on_edges(info.snd_una, info.snd_nxt);
    }

    fn store(&mut self, write: Write, segment: &Segment, buffers: FifoLevels) {
        let from = write.payload_offset.checked_add(write.len);
        assert!(from.is_some_and(|end| end <= segment.payload_len), "{write:?} of {segment:?}");
        let to = write.fifo_offset.checked_add(write.len);
        assert!(to.is_some_and(|end| end <= buffers.recv_free), "{write:?} into {buffers:?}");
        let (start, end) = (write.fifo_offset as usize, (write.fifo_offset + write.len) as usize);
        if self.ahead.len() < end {
            self.ahead.resize(end, false);
        }
        self.ahead[start..end].fill(true);
    }

    fn apply(&mut self, received: FifoChanges) {
        let commit = received.commit as usize;
        assert!(commit <= self.ahead.len(), "bytes that never came go to the program");
        assert!(self.ahead.drain(..commit).all(|written| written), "as do the contents of a hole");
        self.unread += received.commit;
        let most = self.ledger.bytes_in_flight();
        assert!(received.released <= most, "{} of {most} bytes released", received.released);
        self.send_len -= received.released;
    }

    /// Sends everything that the connection wants to send now.
    fn drain(&mut self) {
        // Every byte twice, in segments of at least 24 bytes (the minimum MSS less 40 bytes of
        // options), and segments without payload.
        let most = 2 * self.send_len.div_ceil(24) + 300;
        for _ in 0..most {
            let buffers = self.buffers();
            match self.connection.plan(self.now, buffers, self.max_payload) {
                Plan::Send(transmit) => {
                    let out = self.connection.emit(self.now, transmit, buffers);
                    let info = self.connection.info(self.now, self.buffers());
                    if let Some(stamps) = out.options.timestamps {
                        self.peer.seen = stamps.value;
                    }
                    if out.len > 0 {
                        let end = out.send_offset.checked_add(out.len);
                        assert!(end.is_some_and(|end| end <= self.send_len), "{out:?}");
                        assert_eq!(out.seq, info.snd_una + out.send_offset, "{out:?}");
                    }
                    self.ledger.on_sent(Sent {
                        seq: out.seq,
                        flags: out.flags,
                        len: out.len,
                        payload: None,
                        snd_wnd: info.snd_wnd,
                    });
                    self.ledger.on_edges(info.snd_una, info.snd_nxt);
                }
                Plan::Nothing(idle) => {
                    self.connection.on_idle(self.now, idle, buffers);
                    return self.take_events();
                }
            }
        }
        panic!("more than {most} segments at once");
    }

    fn take_events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            match event {
                ConnectionEvent::Closed => self.over = true,
                ConnectionEvent::TimeWait(time_wait) => {
                    self.time_wait = Some(time_wait);
                    self.over = true;
                }
                _ => {}
            }
        }
    }

    /// Receives segments in TIME-WAIT, to which the only valid answer is its ACK.
    fn wait_out(&mut self, input: &mut Input<'_>, mut time_wait: TimeWait) {
        let edges = self.edges();
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                return;
            }
            self.now += Duration::from_millis(u64::from(input.u16()));
            let segment = self.peer.forge(input, &edges, self.now);
            if let TimeWaitVerdict::Ack(out) = time_wait.on_segment(self.now, &segment) {
                assert_eq!((out.seq, out.ack, out.len), (edges.snd_nxt, edges.rcv_nxt, 0));
                assert_eq!(out.flags, Flags::ACK);
            }
        }
    }
}

/// Returns an initial sequence number: any, or one that wraps soon.
fn initial(input: &mut Input<'_>) -> u32 {
    match input.u8() % 4 {
        0 => input.u32(),
        1 => 0xffff_ff00,
        2 => 0x7fff_ff00,
        _ => 1000,
    }
}

fn config(input: &mut Input<'_>) -> Config {
    Config {
        sack: !input.one_in(4),
        timestamps: input.bool(),
        nodelay: input.bool(),
        window_scale: input.u8() % 15,
        mss_recv: input.pick(&[1460u16, 536, 64, 9000, 65_495]),
        mss_send_max: input.pick(&[1460u16, 536, 64, 9000, 65_495]),
        initial_window: input.pick(&[10u8, 1, 255]),
        congestion: input.pick(CongestionKind::ALL),
        ..Config::default()
    }
}

fn handshake(
    input: &mut Input<'_>,
    config: &Config,
    iss: SeqNum,
    stamp: u32,
    capacity: u32,
) -> Handshake {
    let send_scale = input.pick(&[None, Some(0u8), Some(7), Some(14)]);
    Handshake {
        iss,
        irs: SeqNum(initial(input)),
        mss_peer: input.pick(&[Some(1460u16), Some(536), Some(0), None, Some(65_535)]),
        send_scale,
        recv_scale: None,
        sack: config.sack,
        timestamps: config.timestamps,
        ecn: input.pick(&[EcnState::default(), EcnState::CLASSIC]),
        ts_recent: stamp,
        ts_offset: input.u32(),
        send_window: u32::from(input.u16()) << send_scale.unwrap_or(0),
        recv_window: capacity.min(65_535) as u16,
        rtt: None,
        retransmitted: input.bool(),
    }
}
