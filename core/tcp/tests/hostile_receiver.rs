//! A sender of bulk data against a receiver that acknowledges and reports arbitrary bytes.

use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};
use std::time::Duration;
use towpath_tcp::*;

const MSS: u32 = 1448;
/// Bytes that the program keeps in the send FIFO.
const SEND_LEN: u32 = 4 << 20;
const ISS: SeqNum = SeqNum(u32::MAX - 100_000);

/// Action of the receiver. Positions are fractions of the flight, in 1/65536.
#[derive(Debug, Clone)]
enum Act {
    Ack {
        advance: u16,
        sacks: Vec<(u16, u16)>,
        /// Distance before the acknowledged byte, and length, of a D-SACK block.
        dsack: Option<(u32, u32)>,
        /// Age of the echoed timestamp in milliseconds.
        echo_age: u32,
    },
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let advance = prop_oneof![3 => Just(0u16), 2 => 1u16..200, 1 => any::<u16>()];
    let sack = (any::<u16>(), prop_oneof![1u16..200, any::<u16>()]);
    let ack = (
        advance,
        prop::collection::vec(sack, 0..4),
        prop::option::of((0u32..200_000, 1u32..20_000)),
        prop_oneof![Just(0u32), 0u32..2000],
    )
        .prop_map(|(advance, sacks, dsack, echo_age)| Act::Ack {
            advance,
            sacks,
            dsack,
            echo_age,
        });
    prop_oneof![6 => ack, 1 => (0u64..400).prop_map(Act::Wait)]
}

/// Bytes that the receiver has claimed to have, each counted once.
#[derive(Debug, Default)]
struct Claims {
    ranges: Vec<(u64, u64)>,
    total: u64,
}

impl Claims {
    fn add(&mut self, left: u64, right: u64) {
        let (mut all, mut new) = ((left, right), right - left);
        self.ranges.retain(|&(l, r)| {
            let is_apart = r < left || right < l;
            if !is_apart {
                all = (all.0.min(l), all.1.max(r));
                new -= r.min(right).saturating_sub(l.max(left));
            }
            is_apart
        });
        self.ranges.push(all);
        self.total += new;
    }
}

struct Sender {
    connection: Connection,
    now: Instant,
    /// Payload acknowledged, and sent for the first time, from the beginning of the stream.
    acked: u64,
    sent_end: u64,
    /// Payload sent, and the segments and timeouts that may each cause a segment.
    sent: u64,
    causes: u64,
    claims: Claims,
}

impl Sender {
    fn new(config: Config) -> Sender {
        let now = Instant(5_000_000_000);
        let mut sender = Sender {
            connection: Connection::connect(config, ISS, 0, now),
            now,
            acked: 0,
            sent_end: 0,
            sent: 0,
            causes: 0,
            claims: Claims::default(),
        };
        sender.send();
        sender.now += Duration::from_millis(20);
        let options = Options {
            mss: Some(1460),
            window_scale: Some(10),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 5000 }),
            ..Options::default()
        };
        sender.receive(Flags::SYN | Flags::ACK, ISS + 1, options);
        sender.send();
        sender
    }

    fn buffers(&self) -> FifoLevels {
        FifoLevels {
            recv_free: 65_536,
            recv_capacity: 65_536,
            recv_unread: 0,
            send_len: SEND_LEN,
            send_capacity: SEND_LEN,
        }
    }

    fn receive(&mut self, flags: Flags, ack: SeqNum, options: Options) {
        let is_syn = flags.contains(Flags::SYN);
        let segment = Segment {
            seq: SeqNum(if is_syn { 100 } else { 101 }),
            ack,
            flags,
            window: u16::MAX,
            urgent: 0,
            options,
            payload_len: 0,
            arrival: self.now,
            ecn: towpath_tcp::Ecn::NotEct,
            segments: 1,
        };
        self.connection.on_segment(self.now, &segment, self.buffers());
        self.causes += 1;
    }

    fn send(&mut self) {
        let buffers = self.buffers();
        let idle = loop {
            let transmit = match self.connection.plan(self.now, buffers, 16 * MSS) {
                Plan::Send(transmit) => transmit,
                Plan::Nothing(idle) => break idle,
            };
            let out = self.connection.emit(self.now, transmit, buffers);
            assert!(out.send_offset + out.len <= SEND_LEN, "bytes that are not in the FIFO");
            self.sent += u64::from(out.len);
            let end = self.acked + u64::from(out.send_offset + out.len);
            self.sent_end = self.sent_end.max(end);
        };
        self.connection.on_idle(self.now, idle, buffers);
        assert_eq!(self.connection.audit(buffers), None);
    }

    fn apply(&mut self, act: &Act) {
        match act {
            &Act::Wait(ms) => self.wait(Duration::from_millis(ms)),
            Act::Ack { advance, sacks, dsack, echo_age } => {
                self.ack(*advance, sacks, *dsack, *echo_age);
            }
        }
        self.send();
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((due, _)) = self.connection.next_timeout().filter(|next| next.0 <= end) {
            self.now = self.now.max(due);
            self.connection.on_timeout(self.now, self.now);
            self.causes += 1;
            self.send();
        }
        self.now = end;
    }

    fn ack(&mut self, advance: u16, sacks: &[(u16, u16)], dsack: Option<(u32, u32)>, age: u32) {
        let flight = self.sent_end - self.acked;
        let part = |fraction: u16, of: u64| (of * u64::from(fraction)).div_ceil(1 << 16);
        let acked = self.acked + part(advance, flight);
        let first = ISS + 1;
        let seq = |position: u64| first + position as u32;
        let echo = self.now.millis().saturating_sub(age).max(1);
        let timestamps = Some(Timestamps { value: 2, echo });
        let mut options = Options { timestamps, ..Options::default() };
        if let Some((distance, len)) = dsack {
            let left = acked.saturating_sub(distance.into());
            options.sack.push(seq(left), seq(left + u64::from(len)));
        }
        for &(from, len) in sacks.iter().take(3 - options.sack.len()) {
            let left = acked + 1 + part(from, flight);
            let right = (left + 1 + part(len, flight)).min(self.sent_end);
            if left < right {
                options.sack.push(seq(left), seq(right));
                self.claims.add(left, right);
            }
        }
        if acked > self.acked {
            self.claims.add(self.acked, acked);
        }
        self.acked = acked;
        self.receive(Flags::ACK, seq(acked), options);
    }
}

/// Returns where failed cases are kept.
fn beside_this_file() -> Option<Box<dyn FailurePersistence>> {
    Some(Box::new(FileFailurePersistence::WithSource("regressions")))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: beside_this_file(),
        ..ProptestConfig::default()
    })]

    /// The initial window, twice the bytes that the receiver claims, and a few segments for each
    /// ACK and timeout: no receiver draws more.
    #[test]
    fn draws_no_more_than_it_claims(
        acts in prop::collection::vec(act(), 1..120),
        control in 0usize..4,
        timestamps: bool,
        sack in prop::bool::weighted(0.9),
    ) {
        // BBR paces instead of counting ACKs.
        let kinds = [
            CongestionKind::NewReno,
            CongestionKind::Cubic,
            CongestionKind::Vegas,
            CongestionKind::Dctcp,
        ];
        let config = Config { congestion: kinds[control], timestamps, sack, ..Config::default() };
        let mut sender = Sender::new(config);
        let initial = sender.sent;
        for act in &acts {
            sender.apply(act);
            let limit = initial + 2 * sender.claims.total + 4 * u64::from(MSS) * sender.causes;
            prop_assert!(sender.sent <= limit, "{} of {limit} bytes after {act:?}", sender.sent);
        }
    }
}
