//! Rules whose breach shows late: after 4 GiB, on slow paths, with a peer that started again.

use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// The send FIFO is a length; the peer acknowledges what it is told to.
struct Sender {
    connection: Connection,
    now: Instant,
    send_len: u32,
    rcv_nxt: SeqNum,
}

impl Sender {
    fn accept(iss: SeqNum) -> Sender {
        let handshake = Handshake {
            mss_peer: Some(1460),
            send_scale: Some(10),
            sack: true,
            send_window: 0xffff << 10,
            ..Handshake::without_options(iss, SeqNum(500))
        };
        let now = Instant(1_000_000_000);
        let connection = Connection::accept(Config::default(), handshake, now);
        Sender { connection, now, send_len: 0, rcv_nxt: SeqNum(501) }
    }

    fn buffers(&self) -> FifoLevels {
        FifoLevels { send_len: self.send_len, send_capacity: 1 << 30, ..FifoLevels::default() }
    }

    /// Writes `len` bytes and returns what goes out.
    fn write(&mut self, len: u32) -> Vec<Outgoing> {
        self.send_len += len;
        let mut sent = Vec::new();
        while let Plan::Send(transmit) = self.connection.plan(self.now, self.buffers(), 65_000) {
            sent.push(self.connection.emit(self.now, transmit, self.buffers()));
        }
        sent
    }

    /// Writes `len` bytes from `una` on, and has each acknowledged; returns SND.UNA.
    fn advance(&mut self, mut una: SeqNum, len: u32) -> SeqNum {
        let mut left = len;
        while left > 0 {
            let len = left.min(10_000);
            self.write(len);
            assert_eq!(self.acknowledge(una + len), len);
            una += len;
            left -= len;
        }
        una
    }

    /// The peer acknowledges up to `ack`; returns the bytes released.
    fn acknowledge(&mut self, ack: SeqNum) -> u32 {
        self.now += ms(1);
        let segment = Segment {
            seq: self.rcv_nxt,
            ack,
            flags: Flags::ACK,
            window: 0xffff,
            urgent: 0,
            options: Options::default(),
            payload_len: 0,
            arrival: self.now,
            ecn: towpath_tcp::Ecn::NotEct,
            segments: 1,
        };
        let buffers = self.buffers();
        match self.connection.on_segment(self.now, &segment, buffers) {
            Disposition::Accepted(received) => {
                self.send_len -= received.released;
                received.released
            }
            Disposition::Dropped(reason) => panic!("{reason}"),
        }
    }
}

#[test]
fn the_number_of_the_syn_comes_around() {
    let iss = SeqNum(77);
    let mut sender = Sender::accept(iss);
    // Everything up to the number that the SYN had 4 GiB ago.
    let una = sender.advance(iss + 1, u32::MAX);
    assert_eq!(una, iss);
    let sent = sender.write(1000);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].seq, sent[0].send_offset, sent[0].len), (iss, 0, 1000));
    sender.write(1000);
    assert_eq!(sender.acknowledge(iss + 1000), 1000);
}

/// SND.UNA is the number of the SYN, and in CLOSED no SYN is in flight.
#[test]
fn bytes_before_a_reset_are_counted_right_when_the_number_of_the_syn_comes_around() {
    let iss = SeqNum(77);
    let mut sender = Sender::accept(iss);
    sender.advance(iss + 1, u32::MAX);
    sender.write(1000);
    sender.connection.abort();
    let sent: Vec<_> =
        sender.write(500).iter().map(|out| (out.seq, out.send_offset, out.len)).collect();
    assert_eq!(sent, [(iss + 1000, 1000, 500), (iss + 1500, 0, 0)]);
}

#[test]
fn a_timeout_that_was_too_short_is_not_used_again() {
    let config = Config { timestamps: false, sack: false, nodelay: true, ..Config::default() };
    let mut pair = Pair::connected_with(config, config);
    // The path becomes slower than the timeout of 200 ms at once, as when a radio link wakes.
    pair.set_delay(ms(300));
    let mut again = Vec::new();
    for _ in 0..6 {
        pair.log.clear();
        pair.write_bytes(A, &[1; 100]);
        pair.run_for(Duration::from_secs(3));
        again.push(pair.sent(A, |packet| packet.retransmit));
    }
    assert!(again[0] > 0, "the first one cannot know");
    // RFC 6298 section 5: the doubled timeout stays until bytes sent once were measured with it.
    assert_eq!(again[2..], [0, 0, 0, 0], "{again:?}");
}

#[test]
fn a_steady_path_leaves_room_for_a_delayed_ack() {
    for (rtt, timestamps) in [(300, true), (300, false), (1000, true)] {
        let config = Config { timestamps, nodelay: true, ..Config::default() };
        let mut pair = Pair::connected_with(config, config);
        pair.set_delay(ms(rtt) / 2);
        pair.b.connection().set_delayed_ack(ms(100));
        // Many equal samples: the variance goes to nothing.
        for _ in 0..60 {
            pair.write_bytes(A, &[1; 2 * 1448]);
            pair.run_for(ms(2 * rtt));
        }
        pair.log.clear();
        pair.b.connection().set_quickack(false);
        pair.write_bytes(A, &[1; 10]);
        pair.run_for(ms(3 * rtt));
        assert_eq!(pair.sent(A, |packet| packet.retransmit), 0, "{rtt} ms");
    }
}

#[test]
fn a_peer_that_started_again_without_timestamps_is_challenged() {
    let mut pair = Pair::connected();
    let mut syn = pair.segment_from(A, Flags::SYN);
    for seq in [SeqNum(99), syn.seq] {
        syn.seq = seq;
        syn.options.timestamps = None;
        pair.log.clear();
        pair.inject(B, syn, b"");
        assert_eq!(pair.sent(B, |packet| packet.segment.flags == Flags::ACK), 1, "RFC 5961 4.2");
    }
}

#[test]
fn repeated_syns_do_not_use_up_the_patience_of_a_half_open_connection() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.fate = Box::new(|packet| if packet.from == B { Fate::Drop } else { Fate::Deliver });
    pair.connect(A);
    // 1 s, 3 s, 7 s, 15 s, 31 s, and 32 s of waiting after the last.
    pair.run_for(Duration::from_secs(62));
    assert!(matches!(pair.b.life, Life::HalfOpen(_)));
    pair.run_for(Duration::from_secs(3));
    assert!(matches!(pair.b.life, Life::Gone));
}

#[test]
fn a_window_that_was_taken_back_and_given_again_is_used_at_once() {
    let mut pair = Pair::connected();
    let data = 10 * 1448;
    pair.fate = Box::new(|packet| if packet.from == A { Fate::Drop } else { Fate::Deliver });
    pair.write(A, data);
    let mut window = pair.segment_from(B, Flags::ACK);
    window.ack = pair.log[0].segment.seq;
    // While the peer keeps its window shut, it answers what is sent again.
    for _ in 0..12 {
        window.window = 0;
        window.options.timestamps = pair.segment_from(B, Flags::ACK).options.timestamps;
        pair.inject(A, window, b"");
        pair.run_for(Duration::from_secs(5));
    }
    pair.fate = Box::new(|_| Fate::Deliver);
    window.window = 1000;
    window.options.timestamps = pair.segment_from(B, Flags::ACK).options.timestamps;
    pair.inject(A, window, b"");
    let took = pair.run_until(Duration::from_secs(100), |pair| pair.b.received.len() == data);
    assert!(took < ms(500), "{took:?}");
}

/// As the probes of a window that was shut with nothing in flight.
#[test]
fn a_closed_connection_is_given_up_when_its_window_was_taken_back() {
    let mut pair = Pair::connected();
    pair.fate = Box::new(|packet| if packet.from == A { Fate::Drop } else { Fate::Deliver });
    pair.write(A, 10 * 1448);
    pair.close(A);
    let mut answer = pair.segment_from(B, Flags::ACK);
    (answer.ack, answer.window) = (pair.log[0].segment.seq, 0);
    for _ in 0..600 {
        if pair.a.events.contains(&ConnectionEvent::TimedOut) {
            return;
        }
        answer.options.timestamps = pair.segment_from(B, Flags::ACK).options.timestamps;
        pair.inject(A, answer, b"");
        pair.run_for(Duration::from_secs(1));
    }
    panic!("its peer keeps it for ever");
}

#[test]
fn a_larger_segment_size_does_not_outgrow_the_window() {
    let mut pair = Pair::connected();
    pair.a.connection().on_path_mtu(536);
    pair.fate = Box::new(|_| Fate::Drop);
    pair.write(A, 100);
    // A timeout leaves one segment of 524 bytes.
    pair.run_for(ms(250));
    pair.fate = Box::new(|_| Fate::Deliver);
    pair.run_for(Duration::from_secs(1));
    pair.a.connection().on_path_mtu(1460);
    pair.a.send_fifo.extend(std::iter::repeat_n(1, 5000));
    pair.turn(A);
    pair.run_until(Duration::from_secs(2), |pair| pair.b.received.len() == 5100);
}

/// Average window in segments of a bulk transfer under random loss, and how often the timer fired.
fn window_under_loss(config: Config, delay: Duration, per_mille: u64, len: usize) -> (f64, usize) {
    let mut pair = Pair::connected_with(config, config);
    let way = LinkConfig { delay_ns: delay.as_nanos() as u64, ..LinkConfig::default() };
    // Data go one way, and nothing else does.
    pair.lay([LinkConfig { loss: losses(per_mille), ..way }, way], 7);
    for host in [&mut pair.a, &mut pair.b] {
        (host.send_capacity, host.recv_capacity) = (4 << 20, 4 << 20);
    }
    pair.a.to_write.extend(std::iter::repeat_n(0, len));
    pair.turn(A);
    let took = pair.run_until(Duration::from_secs(3600), |pair| pair.b.received.len() == len);
    let timeouts = pair.a.timeouts.iter().filter(|kind| **kind == TimerKind::Retransmit).count();
    let round_trips = took.as_secs_f64() / (2.0 * delay.as_secs_f64());
    (len as f64 / 1448.0 / round_trips, timeouts)
}

#[test]
fn goodput_under_loss_follows_the_equation() {
    let reno = Config { congestion: CongestionKind::NewReno, ..Config::default() };
    let cubic = Config::default();
    let len = 12_000_000;
    for (name, config) in [("NewReno", reno), ("CUBIC", cubic)] {
        for (delay, per_mille) in [(ms(5), 10), (ms(25), 10), (ms(100), 10), (ms(25), 30)] {
            let (window, timeouts) = window_under_loss(config, delay, per_mille, len);
            // The square-root law knows no timeouts and bounds from above (Mathis et al., 1997).
            // Reno with timeouts and without SACK bounds from below (Padhye et al., 1998). CUBIC is
            // Reno-friendly at such loss (RFC 9438 section 4.3).
            let loss = per_mille as f64 / 1000.0;
            let most = (1.5 / loss).sqrt();
            let timeout = 1.0 + 0.2 / (2.0 * delay.as_secs_f64());
            let timed_out = 1.0f64.min(3.0 * (3.0 * loss / 8.0).sqrt()) * loss * timeout;
            let least = 1.0 / (1.0 / most + timed_out);
            let within = 0.9 * least..1.2 * most;
            assert!(within.contains(&window), "{name} {delay:?} {loss}: {window:.2} {within:?}");
            // Nearly all losses are found by ACKs.
            let losses = len as f64 / 1448.0 * loss;
            assert!((timeouts as f64) < losses / 50.0, "{name} {delay:?} {loss}: {timeouts}");
        }
    }
}
