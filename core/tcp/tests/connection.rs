//! A connection between two hosts, case by case.

use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

const MSS: usize = 1448;

/// Configurations that every transfer has to survive.
fn variants() -> Vec<(&'static str, Config, u32)> {
    let plain = Config::default();
    vec![
        ("plain", plain, 1000),
        ("wrap", plain, 0xffff_ff00),
        ("reno", Config { congestion: CongestionKind::NewReno, ..plain }, 1000),
        ("no sack", Config { sack: false, ..plain }, 0xffff_f000),
        ("bare", Config { sack: false, timestamps: false, window_scale: 0, ..plain }, 0xffff_ff00),
    ]
}

#[test]
fn handshake() {
    let mut pair = Pair::new(Config::default(), Config { window_scale: 9, ..Config::default() });
    pair.connect(A);
    pair.run_for(ms(100));
    assert_eq!(pair.a.events, [ConnectionEvent::Connected]);
    assert_eq!(pair.a.state(), Some(State::Established));
    assert_eq!(pair.b.state(), Some(State::Established));
    let flags: Vec<_> = pair.log.iter().map(|packet| packet.segment.flags).collect();
    assert_eq!(flags, [Flags::SYN, Flags::SYN | Flags::ACK, Flags::ACK]);
    let syn = pair.log[0].segment.options;
    assert_eq!((syn.mss, syn.window_scale, syn.sack_permitted), (Some(1460), Some(7), true));
    let (now, buffers) = (pair.now, pair.a.buffers());
    let info = pair.a.connection().info(now, buffers);
    assert_eq!((info.snd_wscale, info.rcv_wscale, info.snd_mss), (9, 7, MSS as u32));
    assert_eq!(info.rtt, ms(10));
    let (now, buffers) = (pair.now, pair.b.buffers());
    assert_eq!(pair.b.connection().info(now, buffers).rtt, ms(10));
}

#[test]
fn options_that_one_side_lacks_are_off() {
    let bare = Config { timestamps: false, sack: false, ..Config::default() };
    let mut pair = Pair::connected_with(Config::default(), bare);
    let now = pair.now;
    for side in [A, B] {
        let info = pair.host(side).connection().info(now, FifoLevels::default());
        assert!(!info.timestamps && !info.sack && info.window_scaling);
        assert_eq!(info.snd_mss, 1460);
    }
}

#[test]
fn data_both_ways() {
    for (name, config, iss) in variants() {
        let mut pair = Pair::with_iss(config, config, iss, iss.wrapping_add(7));
        pair.connect(A);
        pair.write(A, 300_000);
        pair.run_until(Duration::from_secs(5), |pair| pair.b.received.len() == 300_000);
        pair.write(B, 200_000);
        let took = pair.run_until(Duration::from_secs(5), |pair| pair.a.received.len() == 200_000);
        println!("{name}: {took:?}");
        pair.assert_received(B, 300_000);
        pair.assert_received(A, 200_000);
        assert_eq!(pair.sent(A, |packet| packet.retransmit), 0, "{name}");
        pair.run_for(Duration::from_secs(1));
        assert!(pair.a.send_fifo.is_empty() && pair.b.send_fifo.is_empty());
    }
}

#[test]
fn the_last_segment_of_a_write_is_pushed() {
    let mut pair = Pair::connected();
    pair.write(A, 3 * MSS + 10);
    pair.run_for(ms(100));
    let pushed: Vec<_> = pair
        .log
        .iter()
        .filter(|packet| packet.from == A && packet.is_data())
        .map(|packet| packet.has(Flags::PSH))
        .collect();
    assert_eq!(pushed, [false, false, false, true]);
}

#[test]
fn simultaneous_open() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.connect(A);
    pair.connect(B);
    pair.run_for(ms(100));
    for side in [A, B] {
        assert_eq!(pair.host(side).state(), Some(State::Established), "{side:?}");
        assert_eq!(pair.host(side).events, [ConnectionEvent::Connected]);
    }
    pair.write(A, 5000);
    pair.write(B, 5000);
    pair.run_for(ms(200));
    pair.assert_received(A, 5000);
    pair.assert_received(B, 5000);
}

#[test]
fn a_lost_syn_is_sent_again_and_a_dead_peer_times_out() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.fate = Box::new(|_| Fate::Drop);
    pair.connect(A);
    let took = pair.run_until(Duration::from_secs(600), |pair| {
        pair.a.events.contains(&ConnectionEvent::TimedOut)
    });
    assert_eq!(pair.sent(A, |packet| packet.has(Flags::SYN)), 12);
    assert!(took >= Duration::from_secs(180), "MUST-23, {took:?}");
    assert_eq!(pair.a.events.last(), Some(&ConnectionEvent::Closed));
}

#[test]
fn retransmitted_syns_and_fins_are_no_segments_with_data() {
    let mut pair = Pair::new(Config::default(), Config::default());
    let (mut syns, mut fins) = (0, 0);
    pair.fate = Box::new(move |packet| {
        if packet.from != A {
            return Fate::Deliver;
        }
        syns += usize::from(packet.has(Flags::SYN));
        fins += usize::from(packet.has(Flags::FIN));
        let is_first = packet.has(Flags::SYN) && syns == 1 || packet.has(Flags::FIN) && fins == 1;
        if is_first { Fate::Drop } else { Fate::Deliver }
    });
    let info = |pair: &mut Pair| {
        let (now, buffers) = (pair.now, pair.a.buffers());
        pair.a.connection().info(now, buffers)
    };
    pair.connect(A);
    pair.run_for(Duration::from_secs(3));
    let opened = info(&mut pair);
    assert_eq!((opened.total_retrans, opened.delivered, opened.data_segs_out), (1, 1, 0));
    pair.write(A, 100);
    pair.run_for(Duration::from_secs(1));
    assert_eq!((info(&mut pair).delivered, info(&mut pair).data_segs_out), (2, 1));
    pair.shutdown(A);
    pair.run_for(Duration::from_secs(3));
    let closed = info(&mut pair);
    assert_eq!((closed.total_retrans, closed.delivered, closed.data_segs_out), (2, 3, 1));
}

/// As Linux documents `net.ipv4.tcp_syn_linear_timeouts`: timeouts of "1, 1, 1, 1, 1, 2, 4, ...".
#[test]
fn syns_are_repeated_each_second_before_the_interval_doubles() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.fate = Box::new(|_| Fate::Drop);
    pair.connect(A);
    let start = pair.now;
    pair.run_for(Duration::from_secs(80));
    let syns = pair.log.iter().filter(|packet| packet.from == A && packet.has(Flags::SYN));
    let times: Vec<u64> = syns.map(|packet| packet.sent.since(start).as_secs()).collect();
    assert_eq!(times, [0, 1, 2, 3, 4, 5, 7, 11, 19, 35, 67]);
}

/// Measured on Linux 6.18 with TCP_SYNCNT: ETIMEDOUT after 3.06, 7.13 and 19.47 s.
#[test]
fn few_syn_retries_end_after_the_time_of_doubled_timeouts() {
    for (syn_retries, syns, seconds) in [(1, 3, 3), (2, 6, 7), (3, 8, 19)] {
        let config = Config { syn_retries, ..Config::default() };
        let mut pair = Pair::new(config, Config::default());
        pair.fate = Box::new(|_| Fate::Drop);
        pair.connect(A);
        let took = pair.run_until(Duration::from_secs(600), |pair| {
            pair.a.events.contains(&ConnectionEvent::TimedOut)
        });
        let sent = pair.sent(A, |packet| packet.has(Flags::SYN));
        assert_eq!((sent, took.as_secs()), (syns, seconds), "{syn_retries} retries");
    }
}

#[test]
fn every_packet_of_the_handshake_may_get_lost() {
    for lost in 0..3 {
        let mut pair = Pair::new(Config::default(), Config::default());
        let mut count = 0;
        pair.fate = Box::new(move |_| {
            count += 1;
            if count - 1 == lost { Fate::Drop } else { Fate::Deliver }
        });
        pair.connect(A);
        pair.write(A, 10);
        pair.run_until(Duration::from_secs(10), |pair| pair.b.received.len() == 10);
        pair.run_for(Duration::from_secs(5));
        assert_eq!(pair.b.state(), Some(State::Established));
    }
}

#[test]
fn refused() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.b.life = Life::Gone;
    pair.connect(A);
    pair.run_for(ms(100));
    assert_eq!(pair.a.events, [ConnectionEvent::Refused, ConnectionEvent::Closed]);
}

#[test]
fn unreachable_ends_only_a_connection_being_opened() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.connect(A);
    let iss = pair.a.iss;
    assert!(!pair.a.connection().on_unreachable(true, iss + 5), "not in flight");
    assert!(!pair.a.connection().on_unreachable(false, iss), "soft");
    assert!(pair.a.connection().on_unreachable(true, iss));
    pair.turn(A);
    assert_eq!(pair.a.events, [ConnectionEvent::Unreachable, ConnectionEvent::Closed]);

    let mut pair = Pair::connected();
    pair.fate = Box::new(|_| Fate::Drop);
    pair.write(A, 10);
    let una = pair.log[0].segment.seq;
    assert!(!pair.a.connection().on_unreachable(true, una));
    pair.run_until(Duration::from_secs(3000), |pair| {
        pair.a.events.contains(&ConnectionEvent::Unreachable)
    });
    assert!(!pair.a.events.contains(&ConnectionEvent::TimedOut));
}

#[test]
fn half_close() {
    let mut pair = Pair::connected();
    pair.write(A, 100);
    pair.shutdown(A);
    pair.run_for(ms(50));
    assert_eq!(pair.a.state(), Some(State::FinWait2));
    assert_eq!(pair.a.events, [ConnectionEvent::Connected, ConnectionEvent::SendClosed]);
    assert_eq!(pair.b.state(), Some(State::CloseWait));
    assert_eq!(pair.b.events, [ConnectionEvent::PeerClosed]);
    pair.write(B, 50_000);
    pair.run_for(ms(500));
    pair.assert_received(A, 50_000);
    pair.shutdown(B);
    pair.run_for(ms(50));
    assert!(matches!(pair.a.life, Life::TimeWait(_)));
    assert!(matches!(pair.b.life, Life::Gone));
    assert_eq!(
        pair.b.events,
        [ConnectionEvent::PeerClosed, ConnectionEvent::SendClosed, ConnectionEvent::Closed]
    );
    pair.run_for(Duration::from_secs(61));
    assert!(matches!(pair.a.life, Life::Gone));
}

#[test]
fn the_fin_rides_on_the_last_bytes() {
    let mut pair = Pair::connected();
    pair.host(A).shutdown_when_written = true;
    pair.write(A, 100);
    assert_eq!(pair.sent(A, |packet| packet.is_data() && packet.has(Flags::FIN)), 1);
}

#[test]
fn simultaneous_close() {
    let mut pair = Pair::connected();
    pair.shutdown(A);
    pair.shutdown(B);
    pair.run_for(ms(50));
    for side in [A, B] {
        assert!(matches!(pair.host(side).life, Life::TimeWait(_)), "{side:?}");
        assert!(pair.host(side).events.contains(&ConnectionEvent::PeerClosed));
        assert!(pair.host(side).events.contains(&ConnectionEvent::SendClosed));
    }
}

#[test]
fn a_lost_fin_and_a_lost_last_ack_are_repaired() {
    for lost in 0..4 {
        let mut pair = Pair::connected();
        pair.b.close_at_eof = true;
        let mut count = 0;
        pair.fate = Box::new(move |_| {
            count += 1;
            if count - 1 == lost { Fate::Drop } else { Fate::Deliver }
        });
        pair.shutdown(A);
        pair.run_until(Duration::from_secs(10), |pair| matches!(pair.b.life, Life::Gone));
        assert!(matches!(pair.a.life, Life::TimeWait(_)), "lost {lost}");
    }
}

#[test]
fn bytes_for_a_program_that_is_gone_are_reset() {
    let mut pair = Pair::connected();
    pair.close(A);
    pair.run_for(ms(50));
    assert_eq!(pair.a.state(), Some(State::FinWait2));
    pair.write(B, 10);
    pair.run_for(ms(50));
    assert_eq!(pair.sent(A, |packet| packet.has(Flags::RST)), 1);
    assert!(pair.b.events.contains(&ConnectionEvent::Reset));
    assert!(matches!(pair.a.life, Life::Gone) && matches!(pair.b.life, Life::Gone));
}

#[test]
fn a_closed_socket_does_not_wait_for_ever() {
    let mut pair = Pair::connected();
    pair.close(A);
    pair.run_for(Duration::from_secs(59));
    assert_eq!(pair.a.state(), Some(State::FinWait2));
    pair.run_for(Duration::from_secs(2));
    assert!(matches!(pair.a.life, Life::Gone));
}

#[test]
fn abort_resets_the_peer() {
    let mut pair = Pair::connected();
    pair.abort(A);
    pair.run_for(ms(50));
    assert_eq!(pair.a.events, [ConnectionEvent::Connected, ConnectionEvent::Closed]);
    assert_eq!(pair.b.events, [ConnectionEvent::Reset, ConnectionEvent::Closed]);
}

#[test]
fn zero_window_is_probed_and_reopens() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.b.recv_capacity = 10_000;
    pair.b.reads = false;
    pair.connect(A);
    pair.write(A, 60_000);
    pair.run_for(Duration::from_secs(1));
    // A remainder below a unit of the scaled window cannot be offered.
    assert!(pair.b.recv_fifo.len() > 10_000 - 128);
    pair.log.clear();
    pair.run_for(Duration::from_secs(30));
    assert_eq!(pair.sent(A, Packet::is_data), 0);
    let probes = pair.sent(A, |packet| !packet.is_data());
    assert!((4..40).contains(&probes), "{probes} probes in 30 s");
    pair.run_for(Duration::from_secs(4000));
    assert_eq!(pair.a.state(), Some(State::Established), "MUST-37");
    pair.b.reads = true;
    pair.read(B, 10_000);
    pair.run_until(Duration::from_secs(20), |pair| pair.b.received.len() == 60_000);
    pair.assert_received(B, 60_000);
}

/// Windows offered by `side` since the log was cleared, scaled by 2^7.
fn windows(pair: &Pair, side: Side) -> Vec<u32> {
    pair.log
        .iter()
        .filter(|packet| packet.from == side)
        .map(|packet| u32::from(packet.segment.window) << 7)
        .collect()
}

#[test]
fn reading_opens_the_window_at_once_but_not_by_crumbs() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.b.recv_capacity = 16_384;
    pair.b.reads = false;
    pair.connect(A);
    pair.write(A, 60_000);
    pair.run_for(Duration::from_secs(3));
    assert!(pair.b.recv_fifo.len() > 16_384 - 128);
    assert_eq!(windows(&pair, B).last(), Some(&0));
    pair.log.clear();
    pair.read(B, 100);
    assert_eq!(windows(&pair, B), [0u32; 0], "a crumb is no news");
    pair.read(B, 8_000);
    assert_eq!(windows(&pair, B).len(), 1);
    let before = pair.now;
    pair.run_until(Duration::from_secs(1), |pair| pair.b.recv_fifo.len() > 15_000);
    assert!(pair.now - before < ms(30), "no probe was needed");
}

#[test]
fn the_window_never_shrinks() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.b.recv_capacity = 50_000;
    pair.b.reads = false;
    pair.connect(A);
    pair.write(A, 100_000);
    pair.run_for(Duration::from_secs(2));
    let mut edge: Option<SeqNum> = None;
    for packet in pair.log.iter().filter(|packet| packet.from == B && !packet.has(Flags::SYN)) {
        let right = packet.segment.ack + (u32::from(packet.segment.window) << 7);
        if let Some(edge) = edge {
            assert!(right.distance(edge) > -128, "moved left by more than a unit");
        }
        edge = Some(edge.map_or(right, |edge| edge.max(right)));
    }
}

#[test]
fn nagle_holds_a_second_short_segment() {
    let mut pair = Pair::connected();
    pair.write(A, 10);
    pair.write_bytes(A, b"more");
    pair.write_bytes(A, b"and more");
    assert_eq!(pair.sent(A, Packet::is_data), 1);
    assert_eq!(pair.a.idle, Some(Idle::Nagle));
    pair.run_for(ms(100));
    assert_eq!(pair.sent(A, Packet::is_data), 2);
    assert_eq!(pair.b.received.len(), 22);

    let mut pair =
        Pair::connected_with(Config { nodelay: true, ..Config::default() }, Config::default());
    pair.write(A, 10);
    pair.write_bytes(A, b"more");
    assert_eq!(pair.sent(A, Packet::is_data), 2);
}

#[test]
fn a_cork_holds_for_200_ms() {
    let mut pair = Pair::connected();
    pair.a.connection().set_cork(true);
    pair.write(A, MSS + 10);
    pair.run_for(ms(150));
    assert_eq!(pair.b.received.len(), MSS);
    assert_eq!(pair.a.idle, Some(Idle::Corked));
    pair.run_for(ms(100));
    pair.assert_received(B, MSS + 10);
    pair.write_bytes(A, b"x");
    pair.a.connection().set_cork(false);
    pair.turn(A);
    pair.run_for(ms(10));
    assert_eq!(pair.b.received.len(), MSS + 11);
}

/// tcp(7): TCP_NODELAY "forces an explicit flush of pending output".
#[test]
fn nodelay_flushes_held_bytes_and_not_later_ones() {
    for cork in [true, false] {
        let mut pair = Pair::connected();
        let hold = |pair: &mut Pair| match cork {
            true => pair.a.connection().set_cork(true),
            false => pair.a.connection().more_coming(true),
        };
        hold(&mut pair);
        pair.a.connection().set_nodelay(true);
        pair.turn(A);
        pair.write(A, 80);
        pair.run_for(ms(50));
        assert_eq!(pair.b.received.len(), 0, "nothing was pending when it was set");
        pair.a.connection().set_nodelay(true);
        pair.turn(A);
        pair.run_for(ms(10));
        pair.assert_received(B, 80);
        hold(&mut pair);
        pair.write_bytes(A, b"later");
        pair.run_for(ms(50));
        assert_eq!((pair.b.received.len(), pair.a.idle), (80, Some(Idle::Corked)));
    }
}

#[test]
fn acks_are_delayed_once_a_connection_is_not_new() {
    let mut pair = Pair::connected();
    // The first bytes bring the first window wider than a SYN can say.
    pair.write(A, 10);
    pair.run_for(ms(100));
    pair.b.connection().set_quickack(false);
    pair.b.reads = false;
    pair.log.clear();
    pair.write(A, 10);
    pair.run_for(ms(6));
    assert_eq!(pair.sent(B, |_| true), 0);
    pair.run_for(ms(41));
    assert_eq!(pair.sent(B, |_| true), 1);
    pair.b.reads = true;
    pair.run_for(ms(41));
    pair.log.clear();
    pair.write(A, 8 * MSS);
    pair.run_for(ms(6));
    assert_eq!(pair.sent(B, |_| true), 4, "every second full segment");
    for _ in 0..2 {
        pair.log.clear();
        pair.b.reads = false;
        pair.write(A, 10);
        pair.run_for(ms(7));
        pair.b.reads = true;
        pair.write(B, 10);
        assert_eq!(pair.sent(B, |_| true), 1, "the answer carries it");
        pair.run_for(ms(100));
        assert_eq!(pair.sent(B, |_| true), 1);
    }
}

/// A peer with Nagle's algorithm sends the next record when this one is acknowledged.
#[test]
fn what_ends_a_write_is_acknowledged_when_it_is_read() {
    let mut pair = Pair::connected();
    pair.write(A, 10);
    pair.run_for(ms(100));
    pair.b.connection().set_quickack(false);
    let start = pair.now;
    let mut sent = 10;
    for _ in 0..20 {
        pair.write(A, 10);
        pair.write(A, 10);
        sent += 20;
        pair.run_until(ms(100), |pair| pair.b.received.len() == sent);
    }
    assert!(pair.sent(A, Packet::is_data) >= 20);
    assert!(pair.now - start < ms(15 * 20), "a round trip and a half each, {:?}", pair.now - start);
    // A program that answers has its answers carry the acknowledgements, until none comes in time.
    pair.write(B, 10);
    pair.run_for(ms(100));
    for acknowledged_after in [45, 5] {
        pair.log.clear();
        pair.write(A, 10);
        pair.run_for(ms(acknowledged_after - 1));
        assert_eq!(pair.sent(B, |_| true), 0, "{acknowledged_after}");
        pair.run_for(ms(2));
        assert_eq!(pair.sent(B, |_| true), 1, "{acknowledged_after}");
        pair.run_for(ms(100));
    }
}

/// On a link with segments of 64 KiB there may be room for one only. Waiting for a second one would
/// cost the delay each time.
#[test]
fn a_very_large_segment_is_acknowledged_at_once() {
    let large = Config { mss_recv: 60_000, mss_send_max: 60_000, ..Config::default() };
    let mut pair = Pair::connected_with(large, large);
    pair.write(A, 10);
    pair.run_for(ms(100));
    pair.b.reads = false;
    pair.b.connection().set_quickack(false);
    pair.log.clear();
    pair.write(A, 15_000);
    pair.run_for(ms(6));
    assert_eq!(pair.sent(B, |_| true), 0);
    pair.run_for(ms(100));
    pair.log.clear();
    pair.write(A, 20_000);
    pair.run_for(ms(6));
    assert_eq!(pair.sent(B, |_| true), 1);
}

#[test]
fn coalesced_segments_are_acknowledged_at_once() {
    let mut pair = Pair::connected();
    pair.gro = true;
    pair.b.connection().set_quickack(false);
    pair.write(A, 2 * MSS);
    pair.run_for(ms(6));
    assert_eq!(pair.sent(A, Packet::is_data), 1);
    assert_eq!(pair.sent(B, |_| true), 1);
}

/// Sends `len` bytes with some packets lost; returns the time and the packets sent again.
fn transfer_with_loss(config: Config, iss: u32, len: usize, lost: &[usize]) -> (Duration, usize) {
    let mut pair = Pair::with_iss(config, config, iss, 1);
    pair.connect(A);
    pair.run_for(ms(100));
    pair.fate = drop_data(A, lost);
    pair.write(A, len);
    let took = pair.run_until(Duration::from_secs(20), |pair| pair.b.received.len() == len);
    pair.assert_received(B, len);
    (took, pair.sent(A, |packet| packet.retransmit))
}

#[test]
fn fast_retransmit() {
    for (name, config, iss) in variants() {
        let (took, again) = transfer_with_loss(config, iss, 60_000, &[3]);
        assert!(took < ms(100), "{name}: {took:?}");
        assert_eq!(again, 1, "{name}");
    }
}

#[test]
fn what_was_sent_twice_is_not_measured() {
    for lost in [3, 13] {
        let config = Config { timestamps: false, ..Config::default() };
        let mut pair = Pair::connected_with(config, config);
        pair.fate = drop_data(A, &[lost]);
        pair.write(A, 14 * 1460);
        pair.run_for(Duration::from_secs(1));
        pair.assert_received(B, 14 * 1460);
        let now = pair.now;
        let rtt = pair.a.connection().info(now, FifoLevels::default()).rtt;
        assert!(rtt <= ms(11), "Karn: {rtt:?}");
    }
}

/// The bytes arrive, but their acknowledgement does not. So the peer has them already when they
/// come again, and its answer carries the timestamp of the first time.
#[test]
fn a_lost_acknowledgement_makes_no_round_trip_long() {
    let mut pair = Pair::connected();
    for _ in 0..4 {
        let mut lost = false;
        pair.fate = Box::new(move |packet| match packet.from {
            B if !std::mem::replace(&mut lost, true) => Fate::Drop,
            _ => Fate::Deliver,
        });
        pair.write(A, 100);
        pair.run_for(Duration::from_secs(3));
        let now = pair.now;
        let info = pair.a.connection().info(now, FifoLevels::default());
        assert_eq!(info.snd_una, info.snd_nxt);
        assert!(info.rtt <= ms(11), "{:?}", info.rtt);
    }
    assert_eq!(pair.sent(A, |packet| packet.retransmit), 4);
}

#[test]
fn a_delayed_ack_echoes_the_first_timestamp() {
    let mut pair = Pair::connected();
    pair.write(A, 10);
    pair.run_for(ms(100));
    pair.b.reads = false;
    pair.b.connection().set_quickack(false);
    pair.log.clear();
    pair.a.connection().set_nodelay(true);
    pair.write(A, 10);
    pair.run_for(ms(20));
    pair.write(A, 10);
    pair.run_for(ms(100));
    let first = pair.log.iter().find(|packet| packet.from == A).unwrap().segment;
    let ack = pair.log.iter().find(|packet| packet.from == B).unwrap().segment;
    assert_eq!(pair.sent(B, |_| true), 1);
    let (sent, echoed) = (first.options.timestamps.unwrap(), ack.options.timestamps.unwrap());
    assert_eq!(echoed.echo, sent.value, "RFC 7323 section 4.3");
}

#[test]
fn window_updates_are_not_duplicate_acks() {
    let bare = Config { sack: false, timestamps: false, ..Config::default() };
    let mut pair = Pair::connected_with(bare, bare);
    pair.fate = Box::new(|packet| if packet.from == A { Fate::Drop } else { Fate::Deliver });
    pair.write(A, 10_000);
    let mut segment = pair.segment_from(B, Flags::ACK);
    segment.ack = pair.log[0].segment.seq;
    for window in 1000..1010 {
        pair.inject(A, Segment { window, ..segment }, b"");
    }
    assert_eq!(pair.sent(A, |packet| packet.retransmit), 0);
    for _ in 0..3 {
        pair.inject(A, Segment { window: 1009, ..segment }, b"");
    }
    assert_eq!(pair.sent(A, |packet| packet.retransmit), 1);
}

#[test]
fn several_losses_in_a_window() {
    for (name, config, iss) in variants() {
        let (took, again) = transfer_with_loss(config, iss, 200_000, &[30, 33, 36, 37]);
        // NewReno repairs one loss a round trip; SACK all of them in one.
        let limit = if config.sack { ms(80) } else { ms(160) };
        assert!(took < limit, "{name}: {took:?}");
        assert!(again >= 4 && again <= if config.sack { 4 } else { 8 }, "{name}: {again}");
    }
}

#[test]
fn a_lost_retransmission_is_sent_again_without_the_timer() {
    // Number 80 or so is the retransmission of number 30.
    let config = Config::default();
    let mut pair = Pair::connected_with(config, config);
    let (mut count, mut again) = (0, 0);
    pair.fate = Box::new(move |packet| {
        if packet.from != A || !packet.is_data() {
            return Fate::Deliver;
        }
        count += 1;
        again += u32::from(packet.retransmit);
        if count == 30 || packet.retransmit && again == 1 { Fate::Drop } else { Fate::Deliver }
    });
    pair.write(A, 600_000);
    let took = pair.run_until(Duration::from_secs(20), |pair| pair.b.received.len() == 600_000);
    assert!(took < ms(200), "{took:?}");
}

#[test]
fn reordering_of_two_is_not_loss() {
    for (name, config, iss) in variants() {
        let mss_send_max = 1400 + if config.timestamps { 12 } else { 0 };
        let mut pair = Pair::with_iss(Config { mss_send_max, ..config }, config, iss, 1);
        pair.connect(A);
        pair.run_for(ms(100));
        let mut count = 0;
        pair.fate = Box::new(move |packet| {
            count += u32::from(packet.is_data());
            if packet.is_data() && count % 3 == 1 {
                Fate::Late(Duration::from_micros(1))
            } else {
                Fate::Deliver
            }
        });
        let bytes = stream(90 * 1400);
        for three in bytes.chunks(3 * 1400) {
            pair.write_bytes(A, three);
            pair.run_for(ms(60));
        }
        pair.assert_received(B, bytes.len());
        assert_eq!(pair.sent(A, |packet| packet.retransmit), 0, "{name}");
    }
}

#[test]
fn a_lost_tail_waits_for_the_timer() {
    for (name, config, iss) in variants() {
        let (took, again) = transfer_with_loss(config, iss, 1000, &[0]);
        assert!(took >= ms(200) && took < ms(300), "{name}: {took:?}");
        assert_eq!(again, 1, "{name}");
    }
}

#[test]
fn all_of_a_window_lost() {
    for (name, config, iss) in variants() {
        let (took, _) = transfer_with_loss(config, iss, 100_000, &(0..10).collect::<Vec<_>>());
        assert!(took < ms(500), "{name}: {took:?}");
    }
}

#[test]
fn the_timeout_doubles_and_gives_up() {
    let mut pair = Pair::connected();
    pair.fate = Box::new(|_| Fate::Drop);
    pair.write(A, 10);
    pair.run_until(Duration::from_secs(3000), |pair| {
        pair.a.events.contains(&ConnectionEvent::TimedOut)
    });
    let times: Vec<_> =
        pair.log.iter().filter(|packet| packet.from == A).map(|packet| packet.sent).collect();
    assert_eq!(times.len(), 17);
    let gaps: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    // The round trip of 10 ms and 200 ms on top. The tail loss probe precedes the first timeout.
    assert_eq!(gaps[..5], [210, 210, 420, 840, 1680]);
    assert_eq!(gaps[15], 120_000);
}

#[test]
fn an_old_timestamp_is_dropped() {
    let mut pair = Pair::connected();
    let mut segment = pair.segment_from(A, Flags::ACK);
    segment.payload_len = 3;
    segment.options.timestamps = Some(Timestamps { value: 1, echo: 0 });
    pair.inject(B, segment, b"old");
    assert_eq!(pair.b.dispositions.last(), Some(&Disposition::Dropped(SegmentDropReason::Paws)));
    assert_eq!(pair.sent(B, |packet| packet.has(Flags::ACK)), 1, "it is answered");
    segment.options.timestamps = None;
    pair.inject(B, segment, b"old");
    assert_eq!(
        pair.b.dispositions.last(),
        Some(&Disposition::Dropped(SegmentDropReason::TimestampMissing))
    );
    assert!(pair.b.received.is_empty());
}

#[test]
fn a_reset_has_to_be_exact() {
    let mut pair = Pair::connected();
    let exact = pair.segment_from(A, Flags::RST);
    let outside = Segment { seq: exact.seq - 1, ..exact };
    pair.inject(B, outside, b"");
    assert_eq!(
        pair.b.dispositions.last(),
        Some(&Disposition::Dropped(SegmentDropReason::OutOfWindow))
    );
    assert_eq!(pair.log.len(), 0, "silence");
    let inside = Segment { seq: exact.seq + 100, ..exact };
    pair.inject(B, inside, b"");
    assert_eq!(
        pair.b.dispositions.last(),
        Some(&Disposition::Dropped(SegmentDropReason::ResetInWindow))
    );
    assert_eq!(pair.sent(B, |packet| packet.segment.flags == Flags::ACK), 1, "a challenge ACK");
    assert_eq!(pair.b.state(), Some(State::Established));
    // RCV.NXT + RCV.WND is behind the window, though ACKs are taken there.
    let now = pair.now;
    let window = pair.host(B).connection().info(now, FifoLevels::default()).rcv_wnd;
    for (seq, reason) in [
        (exact.seq + window, SegmentDropReason::OutOfWindow),
        (exact.seq + (window - 1), SegmentDropReason::ResetInWindow),
    ] {
        pair.inject(B, Segment { seq, ..exact }, b"");
        assert_eq!(pair.b.dispositions.last(), Some(&Disposition::Dropped(reason)));
    }
    pair.inject(B, exact, b"");
    assert_eq!(pair.b.events, [ConnectionEvent::Reset, ConnectionEvent::Closed]);
}

#[test]
fn a_syn_on_a_connection_is_challenged_within_a_limit() {
    let mut pair = Pair::connected();
    for _ in 0..50 {
        let syn = pair.segment_from(A, Flags::SYN);
        pair.inject(B, syn, b"");
        assert_eq!(
            pair.b.dispositions.last(),
            Some(&Disposition::Dropped(SegmentDropReason::SynInWindow))
        );
    }
    assert_eq!(pair.sent(B, |_| true), 10);
    assert_eq!(pair.b.state(), Some(State::Established));
    pair.run_for(Duration::from_secs(5));
    let syn = pair.segment_from(A, Flags::SYN);
    pair.inject(B, syn, b"");
    assert_eq!(pair.sent(B, |_| true), 11);
}

#[test]
fn acknowledgements_of_the_future_and_of_the_far_past_are_dropped() {
    let mut pair = Pair::connected();
    let good = pair.segment_from(A, Flags::ACK);
    for ack in [good.ack + 1, good.ack - (1 << 30)] {
        pair.inject(B, Segment { ack, ..good }, b"");
        assert_eq!(
            pair.b.dispositions.last(),
            Some(&Disposition::Dropped(SegmentDropReason::BadAck))
        );
    }
    pair.inject(B, Segment { flags: Flags::NONE, ..good }, b"");
    assert_eq!(pair.b.dispositions.last(), Some(&Disposition::Dropped(SegmentDropReason::NoAck)));
}

#[test]
fn keepalive_finds_a_dead_peer_and_leaves_a_living_one() {
    let keepalive = Some(KeepAliveConfig {
        idle: Duration::from_secs(10),
        interval: Duration::from_secs(2),
        probes: 3,
    });
    let mut pair =
        Pair::connected_with(Config { keepalive, ..Config::default() }, Config::default());
    pair.run_for(Duration::from_secs(100));
    assert_eq!(pair.a.state(), Some(State::Established));
    assert!((8..=10).contains(&pair.sent(A, |_| true)), "{}", pair.sent(A, |_| true));
    pair.fate = Box::new(|_| Fate::Drop);
    let took = pair.run_until(Duration::from_secs(60), |pair| {
        pair.a.events.contains(&ConnectionEvent::TimedOut)
    });
    assert!(took < Duration::from_secs(17), "{took:?}");
}

#[test]
fn user_timeout() {
    let config = Config { user_timeout: Some(Duration::from_secs(7)), ..Config::default() };
    let mut pair = Pair::connected_with(config, Config::default());
    pair.run_for(Duration::from_secs(100));
    assert_eq!(pair.a.state(), Some(State::Established), "nothing is unacknowledged");
    pair.fate = Box::new(|_| Fate::Drop);
    pair.write(A, 10);
    let took = pair.run_until(Duration::from_secs(60), |pair| {
        pair.a.events.contains(&ConnectionEvent::TimedOut)
    });
    assert_eq!(took, Duration::from_secs(7));
}

#[test]
fn a_user_timeout_can_be_set_while_bytes_are_in_flight() {
    let mut pair = Pair::connected();
    pair.fate = Box::new(|_| Fate::Drop);
    pair.write(A, 10);
    pair.run_for(Duration::from_secs(2));
    pair.a.connection().set_keepalive(Some(KeepAliveConfig::default()));
    pair.a.connection().set_user_timeout(Some(Duration::from_secs(5)));
    pair.a.connection().set_keepalive(None);
    let timed_out = |pair: &mut Pair| pair.a.events.contains(&ConnectionEvent::TimedOut);
    let took = pair.run_until(Duration::from_secs(60), timed_out);
    // From the last retransmission before it was set, which is less than two seconds ago.
    assert!((ms(3000)..ms(5000)).contains(&took), "{took:?}");
}

/// A and B are over, A in TIME-WAIT.
fn in_time_wait() -> (Pair, Segment) {
    let mut pair = Pair::connected();
    pair.b.close_at_eof = true;
    let last = pair.segment_from(B, Flags::ACK);
    pair.shutdown(A);
    pair.run_for(ms(100));
    assert!(matches!(pair.a.life, Life::TimeWait(_)));
    pair.log.clear();
    (pair, last)
}

#[test]
fn time_wait_takes_a_new_syn_and_nothing_else() {
    let (mut pair, last) = in_time_wait();
    pair.inject(A, Segment { flags: Flags::RST, seq: last.seq + 1, ..last }, b"");
    assert!(matches!(pair.a.life, Life::TimeWait(_)), "RFC 1337");
    let mut syn = Segment { flags: Flags::SYN, ..last };
    syn.options.timestamps = Some(Timestamps { value: 1, echo: 0 });
    pair.inject(A, syn, b"");
    assert!(matches!(pair.a.life, Life::TimeWait(_)), "an old SYN");
    assert_eq!(pair.sent(A, |packet| packet.segment.flags == Flags::ACK), 1);
    syn.options.timestamps =
        Some(Timestamps { value: last.options.timestamps.unwrap().value + 5000, echo: 0 });
    let old_nxt = pair.log[0].segment.seq;
    pair.inject(A, syn, b"");
    assert!(matches!(pair.a.life, Life::HalfOpen(_)));
    let syn_ack = pair.log.last().unwrap().segment;
    assert_eq!(syn_ack.flags, Flags::SYN | Flags::ACK);
    assert!(syn_ack.seq.gt(old_nxt + 65_535));
}

#[test]
fn time_wait_answers_no_segment_without_the_timestamp_it_agreed_on() {
    let (mut pair, last) = in_time_wait();
    let mut late = Segment { payload_len: 3, ..last };
    late.options.timestamps = None;
    pair.inject(A, late, b"old");
    let dropped = Disposition::Dropped(SegmentDropReason::TimestampMissing);
    assert_eq!(pair.a.dispositions.last(), Some(&dropped));
    assert_eq!(pair.sent(A, |_| true), 0);
}

#[test]
fn a_smaller_path_mtu_cuts_what_is_in_flight_anew() {
    let mut pair = Pair::connected();
    pair.fate =
        Box::new(|packet| if packet.payload.len() > 1000 { Fate::Drop } else { Fate::Deliver });
    pair.write(A, 20_000);
    pair.run_for(ms(20));
    pair.a.connection().on_path_mtu(1000);
    pair.turn(A);
    let took = pair.run_until(Duration::from_secs(2), |pair| pair.b.received.len() == 20_000);
    assert!(took < ms(100), "no timeout was needed: {took:?}");
    pair.assert_received(B, 20_000);
}

#[test]
fn only_what_may_be_too_long_is_sent_again_in_smaller_segments() {
    for (long, short) in [(0, 4), (2896, 0), (2896, 4)] {
        let config = Config { nodelay: true, ..Config::default() };
        let mut pair = Pair::connected_with(config, config);
        if long > 0 {
            pair.write(A, long);
        }
        for n in 0..short {
            pair.write_bytes(A, &stream(long + 100 * n + 100)[long + 100 * n..]);
        }
        pair.a.connection().on_path_mtu(1000);
        pair.turn(A);
        pair.run_for(ms(100));
        let again: usize = pair
            .log
            .iter()
            .filter(|packet| packet.from == A && packet.retransmit)
            .map(|packet| packet.segment.payload_len as usize)
            .sum();
        assert_eq!(again, long, "{short} short ones");
        pair.assert_received(B, long + 100 * short);
    }
}

/// A smaller path MTU is no congestion; that nothing arrives afterwards is.
#[test]
fn a_timeout_after_a_smaller_path_mtu_is_congestion() {
    let mut pair = Pair::connected();
    pair.write(A, 100_000);
    pair.run_for(ms(300));
    pair.fate = Box::new(|_| Fate::Drop);
    let look = |pair: &mut Pair| {
        let (now, buffers) = (pair.now, pair.a.buffers());
        pair.a.connection().info(now, buffers)
    };
    pair.write_bytes(A, &stream(120_000)[100_000..]);
    let before = look(&mut pair);
    pair.a.connection().on_path_mtu(1000);
    pair.turn(A);
    let resized = look(&mut pair);
    assert_eq!(resized.ssthresh_bytes, before.ssthresh_bytes);
    assert_eq!(resized.cwnd_bytes, before.cwnd_bytes);
    pair.run_until(Duration::from_secs(5), |pair| pair.a.timeouts.contains(&TimerKind::Retransmit));
    let after = look(&mut pair);
    assert!(
        after.ssthresh_bytes < before.cwnd_bytes,
        "{} {}",
        after.ssthresh_bytes,
        before.cwnd_bytes
    );
}

#[test]
fn an_idle_sender_starts_again_with_the_initial_window() {
    let mut pair = Pair::connected();
    pair.write(A, 500_000);
    pair.run_for(Duration::from_secs(3));
    pair.assert_received(B, 500_000);
    let now = pair.now;
    assert!(pair.a.connection().info(now, FifoLevels::default()).cwnd > 50);
    pair.log.clear();
    pair.a.to_write.extend((0..500_000).map(pattern));
    pair.turn(A);
    assert_eq!(pair.sent(A, Packet::is_data), 10);
}

#[test]
fn a_program_that_sends_little_keeps_its_window() {
    let mut pair = Pair::connected();
    for _ in 0..200 {
        pair.write_bytes(A, &[0; 100]);
        pair.run_for(ms(20));
    }
    let now = pair.now;
    assert_eq!(pair.a.connection().info(now, FifoLevels::default()).cwnd, 10);
}

#[test]
fn a_peer_that_takes_back_its_window_is_survived() {
    let mut pair = Pair::connected();
    pair.fate = Box::new(|packet| if packet.from == A { Fate::Drop } else { Fate::Deliver });
    pair.write(A, 14_000);
    let mut shrink = pair.segment_from(B, Flags::ACK);
    shrink.ack = pair.log[0].segment.seq;
    shrink.window = 0;
    pair.inject(A, shrink, b"");
    pair.write(A, 14_000);
    pair.run_for(ms(150));
    assert_eq!(pair.a.idle, Some(Idle::ClosedWindow));
    pair.fate = Box::new(|_| Fate::Deliver);
    pair.run_until(Duration::from_secs(10), |pair| pair.b.received.len() == 28_000);
}

#[test]
fn a_peer_may_not_hold_a_closed_connection_with_a_shut_window() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.b.recv_capacity = 10_000;
    pair.b.reads = false;
    pair.connect(A);
    pair.write(A, 60_000);
    pair.run_for(Duration::from_secs(1));
    pair.close(A);
    pair.run_until(Duration::from_secs(300), |pair| {
        pair.a.events.contains(&ConnectionEvent::TimedOut)
    });
}

#[test]
fn a_closed_connection_waits_for_a_slow_reader() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.b.recv_capacity = 10_000;
    pair.b.reads = false;
    pair.connect(A);
    pair.write(A, 60_000);
    pair.run_for(Duration::from_secs(1));
    pair.close(A);
    // Longer than the probes of nine timeouts, had nobody answered them.
    pair.run_for(Duration::from_secs(150));
    assert!(!pair.a.events.contains(&ConnectionEvent::TimedOut));
    pair.b.reads = true;
    pair.read(B, 10_000);
    pair.run_until(Duration::from_secs(300), |pair| pair.b.received.len() == 60_000);
}

#[test]
fn ranges_out_of_order_have_a_limit() {
    let mut pair = Pair::connected();
    pair.b.recv_capacity = 60_000;
    for n in 0..300 {
        let mut segment = pair.segment_from(A, Flags::ACK);
        segment.seq += 10 + n * 20;
        segment.payload_len = 10;
        pair.inject(B, segment, &[0; 10]);
        let Some(Disposition::Accepted(received)) = pair.b.dispositions.last() else {
            panic!("not accepted")
        };
        assert_eq!(received.write.is_some(), n < 256, "{n}");
        assert_eq!(
            received.payload_dropped,
            (n >= 256).then_some(SegmentDropReason::TooManyRanges)
        );
    }
    pair.write(A, 20_000);
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.b.received.len(), 20_000);
}

#[test]
fn selective_acknowledgements_report_the_most_recent_first() {
    let mut pair = Pair::connected();
    pair.fate = drop_data(A, &[0, 2, 4, 6]);
    let start = pair.segment_from(A, Flags::ACK).seq;
    pair.write(A, 8 * MSS);
    pair.run_for(ms(6));
    let last = pair.log.iter().rfind(|packet| packet.from == B).unwrap().segment;
    let block = |n: usize| (start + (n * MSS) as u32, start + ((n + 1) * MSS) as u32);
    assert_eq!(last.ack, start);
    assert_eq!(last.options.sack.iter().collect::<Vec<_>>(), [block(7), block(5), block(3)]);
}

/// A listener that has sent its SYN-ACK, and the SYN.
fn half_open() -> (HalfOpen, Segment, Instant) {
    let now = Instant(1_000_000_000);
    let syn = Segment {
        seq: SeqNum(0xffff_ffff),
        ack: SeqNum(0),
        flags: Flags::SYN,
        window: 1000,
        urgent: 0,
        options: Options { mss: Some(1400), ..Options::default() },
        payload_len: 0,
        arrival: now,
        ecn: towpath_tcp::Ecn::NotEct,
        segments: 1,
    };
    let mut half = HalfOpen::new(&Config::default(), &syn, SeqNum(500), 0, now);
    let out = half.syn_ack(now, 100_000);
    assert_eq!((out.seq, out.ack, out.window), (SeqNum(500), SeqNum(0), 65_535));
    assert_eq!(out.options, Options { mss: Some(1460), ..Options::default() });
    (half, syn, now)
}

#[test]
fn a_half_open_connection_answers_by_the_book() {
    let (mut half, syn, now) = half_open();
    assert_eq!(half.on_segment(now, &syn), HalfOpenVerdict::ResendSynAck);
    let ack = Segment { seq: SeqNum(0), ack: SeqNum(501), flags: Flags::ACK, ..syn };
    let HalfOpenVerdict::SendReset(reset) =
        half.on_segment(now, &Segment { ack: SeqNum(502), ..ack })
    else {
        panic!("a wrong ACK is reset")
    };
    assert_eq!((reset.seq, reset.flags), (SeqNum(502), Flags::RST));
    let other = Segment { seq: SeqNum(70_000_000), ..syn };
    assert!(matches!(half.on_segment(now, &other), HalfOpenVerdict::ChallengeAck(_)));
    let reset = Segment { flags: Flags::RST, ..ack };
    assert!(matches!(
        half.on_segment(now, &Segment { seq: SeqNum(5), ..reset }),
        HalfOpenVerdict::ChallengeAck(_)
    ));
    assert_eq!(
        half.on_segment(now, &Segment { seq: SeqNum(70_000), ..reset }),
        HalfOpenVerdict::Drop(SegmentDropReason::OutOfWindow)
    );
    // RCV.NXT + RCV.WND, where an ACK is taken, and the last number of the window.
    assert_eq!(
        half.on_segment(now, &Segment { seq: SeqNum(65_535), ..reset }),
        HalfOpenVerdict::Drop(SegmentDropReason::OutOfWindow)
    );
    assert!(matches!(
        half.on_segment(now, &Segment { seq: SeqNum(65_534), ..reset }),
        HalfOpenVerdict::ChallengeAck(_)
    ));
    assert_eq!(half.on_segment(now, &reset), HalfOpenVerdict::Reset);
    let late = Segment { arrival: now + ms(30), ..ack };
    let HalfOpenVerdict::Established(handshake) = half.on_segment(now, &late) else {
        panic!("a good ACK")
    };
    assert_eq!(
        (handshake.mss_peer, handshake.rtt, handshake.send_window),
        (Some(1400), Some(ms(30)), 1000)
    );
}

#[test]
fn a_half_open_connection_gives_up() {
    let (mut half, _, start) = half_open();
    let mut sent = 1;
    while half.on_timeout(half.next_timeout()) {
        half.syn_ack(half.next_timeout(), 1000);
        sent += 1;
    }
    assert_eq!(sent, 6);
    assert_eq!(half.next_timeout() - start, Duration::from_secs(63));
}

#[test]
fn a_transfer_fills_the_window() {
    let mut pair = Pair::connected();
    pair.a.send_capacity = 4 << 20;
    pair.b.recv_capacity = 4 << 20;
    let len = 10 << 20;
    pair.write(A, len);
    let took = pair.run_until(Duration::from_secs(5), |pair| pair.b.received.len() == len);
    // Slow start needs 8 round trips of 10 ms to 4 MiB.
    assert!(took < ms(200), "{took:?}");
    assert_eq!(pair.sent(A, |packet| packet.retransmit), 0);
    pair.assert_received(B, len);
}

#[test]
fn a_transfer_with_loss_ends_in_bounded_time() {
    for (name, config, iss) in variants() {
        let mut pair = Pair::with_iss(config, config, iss, 1);
        pair.a.send_capacity = 1 << 20;
        let [way, _] = pair.ways;
        pair.lay([LinkConfig { loss: losses(10), ..way }; 2], 7);
        pair.connect(A);
        let len = 10_000_000;
        pair.write(A, len);
        let took = pair.run_until(Duration::from_secs(100), |pair| pair.b.received.len() == len);
        pair.assert_received(B, len);
        let again = pair.sent(A, |packet| packet.retransmit);
        let sent = pair.sent(A, Packet::is_data);
        println!("{name}: 10 MB, 10 ms, 1 %: {took:?}, {again} of {sent} segments again");
        assert!(took < Duration::from_secs(16), "{name}: {took:?}");
        assert!(again < sent / 30, "{name}: {again} of {sent}");
    }
}

/// The block begins half the space beyond SND.UNA. Any two of SND.UNA, the block's edges and
/// SND.NXT seem to be in order, and yet none of its bytes was sent.
#[test]
fn a_sack_block_from_the_other_half_of_the_space_is_no_news() {
    for iss in [1000, 0x7fff_f000, 0xffff_f000] {
        let mut pair = Pair::with_iss(Config::default(), Config::default(), iss, 5000);
        pair.connect(A);
        pair.run_for(ms(100));
        pair.fate = Box::new(|_| Fate::Drop);
        pair.write(A, 6000);
        let (now, buffers) = (pair.now, pair.a.buffers());
        let before = pair.a.connection().info(now, buffers);
        let flight = before.snd_nxt - before.snd_una;
        assert_eq!(flight, 6000);
        for beyond in [0, 1, 3 * MSS as u32, 1 << 20] {
            let mut segment = pair.segment_from(B, Flags::ACK);
            segment.ack = before.snd_una;
            segment.window = u16::MAX;
            let left = before.snd_una + 0x7fff_ffff;
            segment.options.sack.push(left, left + flight + beyond);
            pair.log.clear();
            pair.inject(A, segment, &[]);
            // Less than the time to the tail loss probe, for all cases together.
            pair.run_for(ms(4));
            let info = pair.a.connection().info(pair.now, buffers);
            assert_eq!((info.sacked, info.lost, info.ca_state), (0, 0, 0), "iss {iss} + {beyond}");
            let sent = pair.log.iter().filter(|packet| packet.from == A && packet.is_data());
            assert_eq!(sent.count(), 0, "nothing is lost, so nothing is sent again");
        }
    }
}

/// A connection accepted from a peer, its numbers from 100 and 200 on, without Nagle's algorithm.
fn accepted() -> Connection {
    let handshake = Handshake {
        mss_peer: Some(1460),
        send_scale: Some(7),
        sack: true,
        send_window: 1000 << 7,
        ..Handshake::without_options(SeqNum(100), SeqNum(200))
    };
    Connection::accept(Config { nodelay: true, ..Config::default() }, handshake, Instant(1))
}

/// Acknowledgements that are old move no mark of the window, and the peer's numbers go on for more
/// than half the space.
#[test]
fn a_window_is_news_after_half_the_space_of_old_acks() {
    let mut connection = accepted();
    let buffers = FifoLevels { send_len: 10, ..BUFFERS };
    let Plan::Send(transmit) = connection.plan(Instant(2), buffers, 0) else { panic!("10 bytes") };
    connection.emit(Instant(2), transmit, buffers);
    connection.on_segment(Instant(2), &plain(SeqNum(201), SeqNum(111), 1000, 0), buffers);
    let mut seq = SeqNum(201);
    while seq - SeqNum(201) <= 1 << 31 {
        let segment = plain(seq, SeqNum(101), 1000, 60_000);
        assert!(matches!(
            connection.on_segment(Instant(2), &segment, BUFFERS),
            Disposition::Accepted(FifoChanges { commit: 60_000, .. })
        ));
        while let Plan::Send(transmit) = connection.plan(Instant(2), BUFFERS, 0) {
            connection.emit(Instant(2), transmit, BUFFERS);
        }
        seq += 60_000;
    }
    connection.on_segment(Instant(2), &plain(seq, SeqNum(111), 3, 0), BUFFERS);
    assert_eq!(connection.info(Instant(2), BUFFERS).snd_wnd, 3 << 7);
}

/// The peer's segments repeat old bytes, which moves no mark of the window either, while it
/// acknowledges more than half the space.
#[test]
fn a_window_is_news_after_half_the_space_of_old_bytes() {
    let mut connection = accepted();
    // A segment ahead of its turn has the latest number of all.
    connection.on_segment(Instant(2), &plain(SeqNum(301), SeqNum(101), 1000, 10), BUFFERS);
    let buffers = FifoLevels { send_len: 60_000, ..BUFFERS };
    let mut ack = SeqNum(101);
    while ack - SeqNum(101) <= 1 << 31 {
        while let Plan::Send(transmit) = connection.plan(Instant(2), buffers, 60_000) {
            connection.emit(Instant(2), transmit, buffers);
        }
        ack = connection.info(Instant(2), buffers).snd_nxt;
        connection.on_segment(Instant(2), &plain(SeqNum(201), ack, 1000, 0), buffers);
    }
    connection.on_segment(Instant(2), &plain(SeqNum(301), ack, 3, 0), BUFFERS);
    assert_eq!(connection.info(Instant(2), BUFFERS).snd_wnd, 3 << 7);
}
