//! Fuzzes the loss recovery of a sender. Its peer acknowledges, reports and repeats anything near
//! the bytes in flight, at any time. Then the peer becomes honest, and all bytes have to arrive.

use towpath_tcp::{
    Config, CongestionKind, Connection, Disposition, Duration, FifoLevels, Flags, Handshake,
    Instant, Options, Plan, SackBlocks, Segment, SeqNum, Timestamps,
};

use crate::input::Input;

/// Runs one case. Panics if the sender breaks an invariant, or does not recover.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut case = Case::new(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        case.step(&mut input);
    }
    case.finish();
}

/// Maximum hostile steps of a case.
const STEPS_MAX: usize = 300;
/// Maximum rounds until an honest peer has all bytes, because retransmission timeouts may have
/// backed off.
const ROUNDS_MAX: usize = 20_000;
const ISS: SeqNum = SeqNum(0xffff_8000);
const IRS: SeqNum = SeqNum(5000);
const CAPACITY: u32 = 1 << 19;
const WINDOW: u16 = 8192;

struct Case {
    connection: Connection,
    now: Instant,
    send_len: u32,
    max_payload: u32,
    has_timestamps: bool,
    /// Timestamp that the sender put on its last segment.
    echo: u32,
    /// Ranges that an honest peer received beyond SND.UNA.
    held: Vec<(SeqNum, SeqNum)>,
}

impl Case {
    fn new(input: &mut Input<'_>) -> Case {
        let (sack, timestamps) = (!input.one_in(8), input.bool());
        let config = Config {
            congestion: input.pick(CongestionKind::ALL),
            nodelay: input.bool(),
            retries: u8::MAX,
            ..Config::default()
        };
        let handshake = Handshake {
            mss_peer: Some(input.pick(&[1460, 536, 9000])),
            send_scale: Some(7),
            sack,
            timestamps,
            send_window: u32::from(WINDOW) << 7,
            rtt: input.bool().then_some(Duration::from_millis(20)),
            ..Handshake::without_options(ISS, IRS)
        };
        let now = Instant(5_000_000_000);
        Case {
            connection: Connection::accept(config, handshake, now),
            now,
            send_len: 0,
            max_payload: input.pick(&[0, 65_000]),
            has_timestamps: timestamps,
            echo: 0,
            held: Vec::new(),
        }
    }

    fn buffers(&self) -> FifoLevels {
        FifoLevels {
            recv_free: 65_536,
            recv_capacity: 65_536,
            recv_unread: 0,
            send_len: self.send_len,
            send_capacity: CAPACITY,
        }
    }

    fn edges(&self) -> (SeqNum, SeqNum) {
        let info = self.connection.info(self.now, self.buffers());
        (info.snd_una, info.snd_nxt)
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0 => self.send_len = (self.send_len + 1 + u32::from(input.u16())).min(CAPACITY),
            1 => self.now += Duration::from_micros(u64::from(input.u16()) * 4),
            2 => self.expire(),
            _ => self.acknowledge_anything(input),
        }
        self.connection.on_timeout(self.now, self.now);
        self.drain();
    }

    /// Advances to the next timer.
    fn expire(&mut self) {
        if let Some((at, _)) = self.connection.next_timeout() {
            self.now = self.now.max(at);
        }
    }

    /// Receives an ACK with blocks anywhere near the flight.
    fn acknowledge_anything(&mut self, input: &mut Input<'_>) {
        let (una, nxt) = self.edges();
        let near = |input: &mut Input<'_>| match input.u8() % 8 {
            0 => nxt,
            1 => una - u32::from(input.u16()),
            2 => SeqNum(input.u32()),
            _ => una + (u64::from(nxt - una) * u64::from(input.u8()) / 255) as u32,
        };
        let mut sack = SackBlocks::new();
        for _ in 0..input.u8() % 4 {
            let left = near(input);
            let len = input.pick(&[0, 1, 100, 1448, 14_480, 65_000]);
            sack.push(left, if input.bool() { near(input) } else { left + len });
        }
        let ack = if input.bool() { una } else { near(input) };
        let echo =
            if input.bool() { self.echo } else { self.echo.wrapping_sub(u32::from(input.u8())) };
        let window = if input.one_in(16) { input.u16() } else { WINDOW };
        self.receive(ack, sack, echo, window, u16::from(input.u8() % 3));
    }

    fn receive(&mut self, ack: SeqNum, sack: SackBlocks, echo: u32, window: u16, segments: u16) {
        let value = self.now.millis();
        let segment = Segment {
            seq: IRS + 1,
            ack,
            flags: Flags::ACK,
            window,
            urgent: 0,
            options: Options {
                timestamps: self.has_timestamps.then_some(Timestamps { value, echo }),
                sack,
                ..Options::default()
            },
            payload_len: 0,
            arrival: self.now,
            ecn: towpath_tcp::Ecn::NotEct,
            segments,
        };
        let disposition = self.connection.on_segment(self.now, &segment, self.buffers());
        if let Disposition::Accepted(changes) = disposition {
            assert!(changes.released <= self.send_len, "{changes:?}");
            self.send_len -= changes.released;
        }
    }

    /// Sends everything that is due. Returns the ranges sent.
    fn drain(&mut self) -> Vec<(SeqNum, SeqNum)> {
        let mut sent = Vec::new();
        loop {
            let buffers = self.buffers();
            match self.connection.plan(self.now, buffers, self.max_payload) {
                Plan::Send(transmit) => {
                    let out = self.connection.emit(self.now, transmit, buffers);
                    self.echo = out.options.timestamps.map_or(self.echo, |it| it.value);
                    sent.push((out.seq, out.seq + out.len));
                    assert!(out.send_offset + out.len <= self.send_len, "{out:?}");
                }
                Plan::Nothing(idle) => {
                    self.connection.on_idle(self.now, idle, buffers);
                    break;
                }
            }
            assert!(sent.len() <= 4 * CAPACITY as usize / 24, "more segments than bytes");
        }
        assert_eq!(self.connection.audit(self.buffers()), None);
        let info = self.connection.info(self.now, self.buffers());
        let flight = info.snd_nxt - info.snd_una;
        assert!(info.sacked + info.lost <= 2 * flight.div_ceil(info.snd_mss) + 2, "{info:?}");
        sent
    }

    /// Ends the case with an honest peer on a path of 10 ms. The peer has only what it acknowledged
    /// cumulatively: it discards everything that it reported by SACK.
    fn finish(&mut self) {
        let mut sent = self.drain();
        for _ in 0..ROUNDS_MAX {
            if self.send_len == 0 {
                return;
            }
            if sent.is_empty() {
                self.expire();
            } else {
                self.now += Duration::from_millis(10);
                let ack = self.take(&sent);
                let mut sack = SackBlocks::new();
                self.held.iter().take(3).for_each(|&(left, right)| {
                    sack.push(left, right);
                });
                self.receive(ack, sack, self.echo, WINDOW, 1);
            }
            self.connection.on_timeout(self.now, self.now);
            sent = self.drain();
        }
        panic!("{} bytes do not arrive: {:?}", self.send_len, self.connection.state());
    }

    /// Takes segments as an honest peer. Returns the cumulative acknowledgement.
    fn take(&mut self, sent: &[(SeqNum, SeqNum)]) -> SeqNum {
        let (mut una, _) = self.edges();
        self.held.extend(sent.iter().filter(|(left, right)| left != right));
        self.held.retain(|range| range.1.gt(una));
        self.held.sort_by_key(|range| range.0.max(una) - una);
        let mut apart: Vec<(SeqNum, SeqNum)> = Vec::new();
        for &(left, right) in &self.held {
            match apart.last_mut() {
                Some(last) if left.leq(last.1) => last.1 = last.1.max(right),
                _ => apart.push((left.max(una), right)),
            }
        }
        if let Some(first) = apart.first().filter(|range| range.0.leq(una)) {
            una = first.1;
            apart.remove(0);
        }
        self.held = apart;
        una
    }
}
