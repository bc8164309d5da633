//! Properties that hold on every wire and for every peer.

use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};
use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// Impairments of a link, in thousandths and microseconds.
#[derive(Debug, Clone, Copy)]
struct Impairment {
    loss: u64,
    jitter_us: u64,
    reorder: u64,
    duplicate: u64,
    seed: u64,
}

impl Impairment {
    fn impair(self, pair: &mut Pair) {
        let [way, _] = pair.ways;
        let way = LinkConfig {
            loss: losses(self.loss),
            jitter_ns: self.jitter_us * 1000,
            reorder: chance(self.reorder),
            duplicate: chance(self.duplicate),
            ..way
        };
        pair.lay([way; 2], self.seed);
    }
}

prop_compose! {
    fn impairment()(
        loss in 0u64..300,
        // Where there is any, nearly all packets overtake others.
        jitter_us in prop_oneof![Just(0u64), 0u64..10_000],
        reorder in 0u64..300,
        duplicate in 0u64..100,
        seed: u64,
    ) -> Impairment {
        Impairment { loss, jitter_us, reorder, duplicate, seed }
    }
}

prop_compose! {
    fn config()(
        sack: bool,
        timestamps: bool,
        nodelay: bool,
        cubic: bool,
        window_scale in 0u8..8,
        mss in 200u16..1460,
    ) -> Config {
        Config {
            sack,
            timestamps,
            nodelay,
            window_scale,
            mss_recv: mss,
            congestion: if cubic { CongestionKind::Cubic } else { CongestionKind::NewReno },
            ..Config::default()
        }
    }
}

prop_compose! {
    fn unusual_config()(
        config in config(),
        window_scale in 0u8..15,
        mss in prop_oneof![Just(64u16), 64u16..300, Just(9000u16)],
    ) -> Config {
        Config { window_scale, mss_recv: mss, ..config }
    }
}

/// Where cases that failed are kept. The default needs a `lib.rs` or `main.rs` in a folder above,
/// and warns without one.
fn beside_this_file() -> Option<Box<dyn FailurePersistence>> {
    Some(Box::new(FileFailurePersistence::WithSource("regressions")))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: beside_this_file(),
        ..ProptestConfig::default()
    })]

    /// Both programs write, shut down, read to the end; in the end all is there and all is closed.
    #[test]
    fn all_bytes_arrive_and_both_sides_end(
        config_a in config(),
        config_b in config(),
        iss_a in prop_oneof![Just(0xffff_ff00u32), any::<u32>()],
        iss_b in prop_oneof![Just(0x7fff_ff00u32), any::<u32>()],
        impairment in impairment(),
        len_a in 0usize..120_000,
        len_b in 0usize..60_000,
        chunk_a in 1usize..20_000,
        chunk_b in 1usize..5_000,
        capacity in 3_000usize..100_000,
        tso in prop_oneof![Just(0u32), Just(65_000)],
        gro: bool,
        fast_open: (bool, bool),
    ) {
        let mut pair = Pair::with_iss(config_a, config_b, iss_a, iss_b);
        pair.gro = gro;
        (pair.a.fast_open, pair.b.fast_open) = fast_open;
        impairment.impair(&mut pair);
        for (side, len, chunk) in [(A, len_a, chunk_a), (B, len_b, chunk_b)] {
            let host = pair.host(side);
            host.to_write.extend(stream(len));
            // No more than 200 writes, or short segments make it a test of patience.
            host.write_chunk = chunk.max(len / 200);
            host.shutdown_when_written = true;
            host.recv_capacity = capacity;
            host.send_capacity = capacity;
            host.tso = tso;
        }
        pair.connect(A);
        let mut steps = 0u32;
        while pair.step() {
            steps += 1;
            prop_assert!(steps < 500_000, "it does not end");
            for (side, len) in [(A, len_b), (B, len_a)] {
                prop_assert!(pair.host(side).received.len() <= len);
                // The program writes whenever it is woken; here it is woken by everything.
                if steps.is_multiple_of(16) && matches!(pair.host(side).life, Life::Open(_)) {
                    pair.turn(side);
                }
            }
        }
        // With the most loss 16 tries in a row do fail now and then, on either side.
        if is_cut_short(&pair) && !is_reset_by_one_that_waited(&pair) {
            prop_assert!(impairment.loss >= 150, "given up in {impairment:?}");
            assert_nothing_is_wrong(&pair);
            return Ok(());
        }
        pair.assert_received(B, len_a);
        pair.assert_received(A, len_b);
        for host in [&pair.a, &pair.b] {
            prop_assert!(matches!(host.life, Life::Gone));
            prop_assert!(host.events.contains(&ConnectionEvent::PeerClosed));
            // Not SendClosed: a LAST-ACK whose every answer gets lost outlives the peer's
            // TIME-WAIT.
        }
    }

    /// Both sides open, now at the same time and now one in the other's handshake, over near and
    /// far wires. Segments are tiny, window scales of every size, and a side may close at the
    /// other's end of file.
    #[test]
    fn both_sides_open_and_both_end(
        config_a in unusual_config(),
        config_b in unusual_config(),
        iss_a in prop_oneof![Just(0xffff_ff00u32), any::<u32>()],
        iss_b in prop_oneof![Just(0x7fff_ff00u32), any::<u32>()],
        impairment in impairment(),
        len_a in 0usize..60_000,
        len_b in 0usize..30_000,
        // A unit of the largest scale is 16 KiB: a smaller FIFO could never offer a window.
        capacity in 33_000usize..200_000,
        delay_us in prop_oneof![Just(0u64), 0u64..1000, 0u64..300_000],
        gap in 0u64..150,
        closes in prop::option::of(prop::bool::ANY),
        fast_open: (bool, bool),
    ) {
        let mut pair = Pair::with_iss(config_a, config_b, iss_a, iss_b);
        (pair.a.fast_open, pair.b.fast_open) = fast_open;
        pair.set_delay(Duration::from_micros(delay_us));
        impairment.impair(&mut pair);
        for (side, len) in [(A, len_a), (B, len_b)] {
            let host = pair.host(side);
            host.to_write.extend(stream(len));
            host.shutdown_when_written = true;
            (host.recv_capacity, host.send_capacity) = (capacity, capacity);
            host.close_at_eof = closes == Some(side == A);
        }
        pair.connect(A);
        pair.run_for(Duration::from_micros(delay_us * gap / 100));
        if matches!(pair.b.life, Life::Listening) {
            pair.connect(B);
        }
        let mut steps = 0u32;
        while pair.step() {
            steps += 1;
            prop_assert!(steps < 500_000, "it does not end");
            for side in [A, B] {
                if steps.is_multiple_of(16) && matches!(pair.host(side).life, Life::Open(_)) {
                    pair.turn(side);
                }
            }
        }
        // A program that is gone tries 8 times in a row, one that is there 15 times.
        let bad = if closes.is_some() { 60 } else { 150 };
        if is_cut_short(&pair) && impairment.loss >= bad {
            assert_nothing_is_wrong(&pair);
            return Ok(());
        }
        let excused = is_reset_by_one_that_waited(&pair);
        for host in [&pair.a, &pair.b].into_iter().filter(|_| !excused) {
            for event in [ConnectionEvent::TimedOut, ConnectionEvent::Reset] {
                prop_assert!(!host.events.contains(&event), "{:?} in {:?}", event, impairment);
            }
        }
        for host in [&pair.a, &pair.b] {
            prop_assert!(matches!(host.life, Life::Gone), "{:?}", host.state());
        }
        if closes.is_none() {
            pair.assert_received(B, len_a);
            pair.assert_received(A, len_b);
        }
    }

    /// On a wire without fault nothing is sent twice, and no timer is needed to go on.
    #[test]
    fn nothing_stalls_on_a_good_wire(
        config_a in config(),
        config_b in config(),
        len in 1usize..300_000,
        chunk in 500usize..20_000,
        send_capacity in 3_000usize..100_000,
        recv_capacity in 6_000usize..100_000,
        tso in prop_oneof![Just(0u32), Just(65_000)],
        gro: bool,
    ) {
        let mut pair = Pair::new(config_a, config_b);
        pair.gro = gro;
        pair.b.recv_capacity = recv_capacity;
        pair.a.send_capacity = send_capacity;
        pair.a.write_chunk = chunk;
        pair.a.tso = tso;
        pair.connect(A);
        pair.write(A, len);
        let took = pair.run_until(Duration::from_secs(1000), |pair| pair.b.received.len() == len);
        prop_assert_eq!(pair.sent(A, |packet| packet.retransmit), 0);
        prop_assert!(
            pair.a.timeouts.iter().all(|kind| *kind == TimerKind::DelayedAck),
            "{:?}",
            pair.a.timeouts
        );
        // A round trip and a delayed ACK a chunk or window, and slow start.
        let trips = len.div_ceil(chunk.min(send_capacity).min(recv_capacity / 2)) + 10;
        let limit = ms(50) * trips as u32;
        prop_assert!(took < limit, "{:?} of {:?}", took, limit);
        pair.assert_received(B, len);
    }

    /// Arbitrary segments, near the windows and far from them, at a connection in any state. Timers
    /// and the program act in between: no panic, no write outside the FIFO, no endless plan.
    #[test]
    fn no_segment_is_too_odd(
        config in config(),
        steps in prop::collection::vec(step(), 1..60),
        iss in prop_oneof![Just(0xffff_fff0u32), any::<u32>()],
        opening in 0u8..3,
    ) {
        let mut victim = Victim::new(config, iss, opening);
        for step in steps {
            victim.apply(&step);
        }
    }
}

/// A side gave up, or was told that the other did.
fn is_cut_short(pair: &Pair) -> bool {
    let ended = |host: &Host, event| host.events.contains(&event);
    let unlucky =
        |host: &Host| ended(host, ConnectionEvent::TimedOut) || ended(host, ConnectionEvent::Reset);
    unlucky(&pair.a) || unlucky(&pair.b) || !ended(&pair.b, ConnectionEvent::PeerClosed)
}

/// A side's last retransmission came when the other one, which had all bytes, was through with
/// TIME-WAIT. Without measurements, as of bytes that were all sent twice, timeouts only become
/// longer (Karn). The longest is twice as long as TIME-WAIT. There all has arrived.
fn is_reset_by_one_that_waited(pair: &Pair) -> bool {
    [(&pair.a, &pair.b), (&pair.b, &pair.a)].into_iter().any(|(reset, waited)| {
        waited.waited
            && reset.events.contains(&ConnectionEvent::Reset)
            && reset.events.contains(&ConnectionEvent::PeerClosed)
    })
}

/// However it ended, what arrived is what was written, from its beginning.
fn assert_nothing_is_wrong(pair: &Pair) {
    for host in [&pair.a, &pair.b] {
        let wrong = host.received.iter().enumerate().find(|(at, byte)| **byte != pattern(*at));
        assert_eq!(wrong, None, "bytes differ");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Arrives {
        seq: i64,
        ack: i64,
        flags: u16,
        window: u16,
        len: u32,
        stamp: Option<i32>,
        sack: Vec<(i64, i64)>,
        /// Numbers that lie in the other half of the space: 1 the segment's, 2 the acknowledged, 4
        /// those of SACK blocks.
        far: u8,
    },
    Wait(u64),
    Write(u32),
    Read,
    Shutdown,
    Close,
    Abort,
    PathMtu(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let near = prop_oneof![Just(0i64), -3i64..3, -70_000i64..70_000];
    let flags = prop_oneof![
        4 => Just(0x10u16),
        1 => Just(0x11),
        1 => Just(0x12),
        1 => Just(0x02),
        1 => 0u16..256,
    ];
    let arrives = (
        near.clone(),
        near.clone(),
        flags,
        prop_oneof![Just(0u16), any::<u16>()],
        prop_oneof![Just(0u32), 0u32..3000, 0u32..70_000],
        prop::option::of(prop_oneof![Just(0i32), any::<i32>()]),
        prop::collection::vec((near.clone(), near), 0..4),
        prop_oneof![16 => Just(0u8), 1 => Just(4u8), 1 => 0u8..8],
    )
        .prop_map(|(seq, ack, flags, window, len, stamp, sack, far)| Step::Arrives {
            seq,
            ack,
            flags,
            window,
            len,
            stamp,
            sack,
            far,
        });
    prop_oneof![
        8 => arrives,
        2 => (0u64..100_000).prop_map(Step::Wait),
        2 => (1u32..50_000).prop_map(Step::Write),
        2 => Just(Step::Read),
        1 => Just(Step::Shutdown),
        1 => Just(Step::Close),
        1 => Just(Step::Abort),
        1 => any::<u16>().prop_map(Step::PathMtu),
    ]
}

/// A connection whose peer is the test; its FIFOs are only lengths.
struct Victim {
    connection: Connection,
    now: Instant,
    unread: u32,
    send_len: u32,
}

const CAPACITY: u32 = 60_000;

impl Victim {
    /// `opening`: 0 actively, 1 with bytes in the SYN, 2 by a SYN with bytes.
    fn new(config: Config, iss: u32, opening: u8) -> Victim {
        let (now, iss) = (Instant(5_000_000_000), SeqNum(iss));
        let empty =
            FifoLevels { recv_free: CAPACITY, recv_capacity: CAPACITY, ..FifoLevels::default() };
        let (connection, unread) = match opening {
            0 => (Connection::connect(config, iss, 0, now), 0),
            1 => (Connection::connect_with_data(config, iss, 0, now), 0),
            _ => {
                let syn = Segment {
                    seq: SeqNum(0xffff_ff00),
                    ack: SeqNum(0),
                    flags: Flags::SYN,
                    window: 30_000,
                    urgent: 0,
                    options: Options::default(),
                    payload_len: 700,
                    arrival: now,
                    ecn: towpath_tcp::Ecn::NotEct,
                    segments: 1,
                };
                let opened = Connection::accept_with_data(config, &syn, iss, 0, now, empty);
                (opened.0, opened.1.commit)
            }
        };
        let mut victim = Victim { connection, now, unread, send_len: 0 };
        victim.drain();
        victim
    }

    fn buffers(&self) -> FifoLevels {
        FifoLevels {
            recv_free: CAPACITY - self.unread,
            recv_capacity: CAPACITY,
            recv_unread: self.unread,
            send_len: self.send_len,
            send_capacity: CAPACITY,
        }
    }

    fn apply(&mut self, step: &Step) {
        let (now, buffers) = (self.now, self.buffers());
        match *step {
            Step::Arrives { seq, ack, flags, window, len, stamp, ref sack, far } => {
                self.arrives(seq, ack, flags, window, len, stamp, sack, far);
            }
            Step::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                self.connection.on_timeout(self.now, self.now);
            }
            Step::Write(len) => self.send_len = (self.send_len + len).min(CAPACITY),
            Step::Read => {
                self.unread = 0;
                self.connection.on_recv_consumed(now, self.buffers());
            }
            Step::Shutdown => self.connection.shutdown_send(),
            Step::Close => self.connection.close(now),
            Step::Abort => self.connection.abort(),
            Step::PathMtu(mss) => self.connection.on_path_mtu(mss),
        }
        let _ = self.connection.info(now, buffers);
        self.drain();
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a step")]
    fn arrives(
        &mut self,
        seq: i64,
        ack: i64,
        flags: u16,
        window: u16,
        len: u32,
        stamp: Option<i32>,
        sack: &[(i64, i64)],
        far: u8,
    ) {
        let buffers = self.buffers();
        let info = self.connection.info(self.now, buffers);
        let place = |bit: u8, base: SeqNum, offset: i64| {
            let half = if far & bit == 0 { 0 } else { 1 << 31 };
            SeqNum(base.0.wrapping_add((offset + half) as u32))
        };
        let mut options = Options {
            mss: Some(window),
            window_scale: Some((window >> 8) as u8),
            sack_permitted: true,
            timestamps: stamp.map(|value| Timestamps { value: value as u32, echo: window.into() }),
            ..Options::default()
        };
        for &(left, right) in sack {
            options.sack.push(place(4, info.snd_una, left), place(4, info.snd_una, right));
        }
        let segment = Segment {
            seq: place(1, info.rcv_nxt, seq),
            ack: place(2, info.snd_nxt, ack),
            flags: Flags(flags),
            window,
            urgent: 0,
            options,
            payload_len: len,
            arrival: self.now,
            ecn: towpath_tcp::Ecn::NotEct,
            segments: 1,
        };
        if let Disposition::Accepted(received) =
            self.connection.on_segment(self.now, &segment, buffers)
        {
            if let Some(write) = received.write {
                assert!(write.payload_offset + write.len <= len);
                assert!(write.fifo_offset + write.len <= buffers.recv_free);
            }
            assert!(received.commit <= buffers.recv_free);
            assert!(received.released <= self.send_len);
            self.unread += received.commit;
            self.send_len -= received.released;
        }
    }

    fn drain(&mut self) {
        for _ in 0..3000 {
            let buffers = self.buffers();
            let Plan::Send(transmit) = self.connection.plan(self.now, buffers, 65_000) else {
                while self.connection.poll_event().is_some() {}
                return;
            };
            let out = self.connection.emit(self.now, transmit, buffers);
            assert!(out.send_offset + out.len <= self.send_len, "bytes that are not in the FIFO");
        }
        panic!("plan does not end");
    }
}
