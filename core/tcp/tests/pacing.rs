//! A bound on the rate of sending (SO_MAX_PACING_RATE): it is held, by all bytes, and by nothing
//! else than bytes.

use std::num::NonZeroU64;
use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// Payload of a full segment with timestamps.
const MSS: u64 = 1448;

fn rate(bytes: u64) -> Option<NonZeroU64> {
    Some(NonZeroU64::new(bytes).expect("not zero"))
}

/// Connected, with room for everything; A's rate is bounded.
fn paced(bytes_per_second: u64) -> Pair {
    let config = Config { max_pacing_rate: rate(bytes_per_second), ..Config::default() };
    let mut pair = Pair::connected_with(config, Config::default());
    pair.set_delay(ms(1));
    for host in [&mut pair.a, &mut pair.b] {
        (host.send_capacity, host.recv_capacity) = (4 << 20, 4 << 20);
    }
    pair
}

/// Payload that A put on the wire since `from`, sent again or not.
fn bytes_since(pair: &Pair, from: Instant) -> u64 {
    let sent = pair.log.iter().filter(|packet| packet.from == A && packet.sent >= from);
    sent.map(|packet| u64::from(packet.segment.payload_len)).sum()
}

fn assert_rate(pair: &Pair, from: Instant, expected: u64) {
    let seconds = (pair.now - from).as_secs_f64();
    let got = bytes_since(pair, from) as f64 / seconds;
    let ratio = got / expected as f64;
    assert!((0.97..=1.03).contains(&ratio), "{got:.0} bytes a second, not {expected}");
}

/// Bytes that may go at one moment: a burst, and another that a late sender catches up with.
fn assert_bursts(pair: &Pair, bytes_per_second: u64) {
    let most = 2 * (bytes_per_second >> 10).max(2 * MSS);
    let mut at = (Instant::ZERO, 0);
    for packet in pair.log.iter().filter(|packet| packet.from == A) {
        let before = if packet.sent == at.0 { at.1 } else { 0 };
        at = (packet.sent, before + u64::from(packet.segment.payload_len));
        assert!(at.1 <= most, "{} bytes at once, more than {most}", at.1);
    }
}

fn retransmit_timeouts(pair: &Pair) -> usize {
    pair.a.timeouts.iter().filter(|kind| **kind == TimerKind::Retransmit).count()
}

#[test]
fn the_rate_is_held() {
    for (bytes_per_second, seconds) in [(10_000, 60), (1_000_000, 10), (100_000_000, 1)] {
        let mut pair = paced(bytes_per_second);
        // Slow start comes before.
        let len = bytes_per_second * (seconds + 1);
        pair.write(A, len as usize);
        pair.run_for(ms(100));
        let from = pair.now;
        pair.run_for(Duration::from_secs(seconds).mul_f64(0.9));
        assert_rate(&pair, from, bytes_per_second);
        assert_bursts(&pair, bytes_per_second);
        assert_eq!(pair.sent(A, |packet| packet.retransmit), 0);
        assert_eq!(retransmit_timeouts(&pair), 0, "its silence is no loss");
    }
}

/// Not the round trip nor the timeout has the time in it that bytes waited for the rate.
#[test]
fn the_timers_are_those_of_the_path() {
    let mut pair = paced(10_000);
    pair.write(A, 100_000);
    pair.run_for(Duration::from_secs(5));
    let (now, buffers) = (pair.now, pair.a.buffers());
    let info = pair.a.connection().info(now, buffers);
    assert_eq!(info.max_pacing_rate, rate(10_000));
    assert!(info.rtt < ms(10), "{:?}", info.rtt);
    assert!(info.rto < ms(300), "{:?}", info.rto);
    // As on Linux the sender is busy while its bytes wait.
    assert!(info.busy_time > ms(4900), "{:?}", info.busy_time);
    assert!(matches!(info.timer, Some((TimerKind::Pacing, _))), "{:?}", info.timer);
}

#[test]
fn a_timer_wakes_it_once_for_each_burst() {
    let mut pair = paced(100_000);
    pair.write(A, 1_000_000);
    pair.run_until(Duration::from_secs(20), |pair| pair.b.received.len() == 1_000_000);
    let wakes = pair.a.timeouts.iter().filter(|kind| **kind == TimerKind::Pacing).count();
    let bursts = 1_000_000usize.div_ceil(2 * MSS as usize);
    assert!((bursts - 2..=bursts).contains(&wakes), "{wakes} wakes for {bursts} bursts");
    // With nothing to send none runs.
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.a.connection().next_timeout(), None);
}

#[test]
fn the_rate_changes_at_once() {
    let mut pair = paced(100_000);
    pair.write(A, 40_000_000);
    pair.run_for(Duration::from_secs(2));
    for bytes_per_second in [1_000_000, 50_000, 2_000_000] {
        pair.a.connection().set_max_pacing_rate(rate(bytes_per_second));
        pair.turn(A);
        let from = pair.now;
        pair.run_for(Duration::from_secs(4));
        assert_rate(&pair, from, bytes_per_second);
    }
    let left = 40_000_000 - pair.b.received.len();
    pair.a.connection().set_max_pacing_rate(None);
    pair.turn(A);
    let took = pair.run_until(Duration::from_secs(2), |pair| pair.b.received.len() == 40_000_000);
    assert!(took < ms(500), "{left} bytes took {took:?} without a bound");
    pair.assert_received(B, 40_000_000);
}

/// A wait of half a minute ends when the rate allows it.
#[test]
fn a_slow_burst_does_not_outlast_its_rate() {
    let mut pair = paced(100);
    pair.write(A, 100_000);
    pair.run_for(ms(100));
    assert_eq!(pair.b.received.len(), 2 * MSS as usize);
    pair.a.connection().set_max_pacing_rate(rate(1_000_000));
    pair.turn(A);
    pair.run_for(ms(150));
    pair.assert_received(B, 100_000);
}

#[test]
fn what_is_lost_goes_again_within_the_rate() {
    for sack in [true, false] {
        let bytes_per_second = 500_000;
        let config = Config { max_pacing_rate: rate(bytes_per_second), sack, ..Config::default() };
        let mut pair = Pair::connected_with(config, config);
        let way = LinkConfig { delay_ns: 2_000_000, loss: losses(30), ..LinkConfig::default() };
        pair.lay([way; 2], 5);
        let from = pair.now;
        pair.write(A, 3_000_000);
        pair.run_until(Duration::from_secs(120), |pair| pair.b.received.len() == 3_000_000);
        pair.assert_received(B, 3_000_000);
        let again = pair.sent(A, |packet| packet.retransmit);
        assert!(again > 20, "{again} segments were sent again");
        // Segments that a timeout sends do not wait, but count.
        let most = (pair.now - from).as_secs_f64() * bytes_per_second as f64 * 1.02;
        let got = bytes_since(&pair, from) as f64;
        assert!(got <= most, "{got} bytes, and the rate allows {most:.0}");
        assert_bursts(&pair, bytes_per_second);
    }
}

/// A timeout does not wait for a rate that is slower than it: the path would seem to be dead.
#[test]
fn a_timeout_sends_at_once() {
    let mut pair = paced(100);
    pair.fate = drop_data(A, &[0, 1]);
    pair.write(A, 10_000);
    let took = pair.run_until(Duration::from_secs(10), |pair| !pair.b.received.is_empty());
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(retransmit_timeouts(&pair), 1);
}

#[test]
fn a_window_that_opens_lets_no_burst_through() {
    let bytes_per_second = 1_000_000;
    let mut pair = paced(bytes_per_second);
    pair.b.recv_capacity = 100_000;
    pair.b.reads = false;
    pair.write(A, 1_000_000);
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.a.idle, Some(Idle::ClosedWindow));
    assert!(pair.a.timeouts.contains(&TimerKind::Persist), "it asks");
    pair.log.clear();
    let from = pair.now;
    pair.b.reads = true;
    pair.turn(B);
    pair.read(B, usize::MAX);
    pair.run_until(Duration::from_secs(10), |pair| pair.b.received.len() == 1_000_000);
    pair.assert_received(B, 1_000_000);
    let most = (pair.now - from).as_secs_f64() * bytes_per_second as f64 * 1.03;
    assert!(bytes_since(&pair, from) as f64 <= most);
    assert_bursts(&pair, bytes_per_second);
}

#[test]
fn a_close_waits_for_its_bytes() {
    let mut pair = paced(100_000);
    pair.b.close_at_eof = true;
    pair.write(A, 500_000);
    pair.run_for(ms(10));
    let from = pair.now;
    pair.close(A);
    pair.run_until(Duration::from_secs(20), |pair| {
        pair.b.events.contains(&ConnectionEvent::PeerClosed)
    });
    pair.assert_received(B, 500_000);
    assert_rate(&pair, from, 100_000);
    pair.run_for(Duration::from_secs(1));
    assert!(matches!(pair.a.life, Life::TimeWait(_)));
    assert!(matches!(pair.b.life, Life::Gone));
}

/// As on Linux: what was not sent is lost.
#[test]
fn an_abort_does_not_wait() {
    let mut pair = paced(10_000);
    pair.write(A, 500_000);
    pair.run_for(ms(10));
    let sent = bytes_since(&pair, Instant::ZERO);
    pair.abort(A);
    pair.run_for(ms(10));
    assert!(matches!(pair.a.life, Life::Gone));
    assert!(pair.b.events.contains(&ConnectionEvent::Reset));
    assert_eq!(bytes_since(&pair, Instant::ZERO), sent, "no burst goes before the RST");
}

/// The peer's bytes are acknowledged as without a rate.
#[test]
fn acknowledgements_do_not_wait() {
    let mut pair = paced(1000);
    pair.write(A, 100_000);
    pair.run_for(ms(10));
    pair.write(B, 300_000);
    let took = pair.run_until(Duration::from_secs(1), |pair| pair.a.received.len() == 300_000);
    assert!(took < ms(100), "{took:?}");
    pair.run_for(ms(100));
    let (now, buffers) = (pair.now, pair.b.buffers());
    assert_eq!(pair.b.connection().info(now, buffers).bytes_acked, 300_000);
    assert_eq!(bytes_since(&pair, Instant::ZERO), 2 * MSS, "none of its own went with them");
}

#[test]
fn short_writes_go_as_the_rate_allows() {
    let mut pair = paced(10_000);
    pair.a.connection().set_nodelay(true);
    let from = pair.now;
    for _ in 0..40 {
        pair.write_bytes(A, &[7; 500]);
    }
    pair.run_until(Duration::from_secs(10), |pair| pair.b.received.len() == 20_000);
    let took = (pair.now - from).as_secs_f64();
    // The last burst need not be waited for.
    assert!((1.4..=2.05).contains(&took), "{took} s");
}

/// An accepted connection has its listener's rate.
#[test]
fn an_accepted_connection_has_it_from_the_start() {
    let config = Config { max_pacing_rate: rate(100_000), ..Config::default() };
    let mut pair = Pair::connected_with(Config::default(), config);
    let start = pair.now;
    pair.write(B, 200_000);
    pair.run_until(Duration::from_secs(10), |pair| pair.a.received.len() == 200_000);
    let took = (pair.now - start).as_secs_f64();
    assert!((1.9..=2.05).contains(&took), "{took} s");
}

#[test]
fn bytes_of_a_syn_count() {
    let config = Config { max_pacing_rate: rate(1000), ..Config::default() };
    let mut pair = Pair::new(config, Config::default());
    (pair.a.fast_open, pair.b.fast_open) = (true, true);
    pair.a.to_write.extend([7; 1400]);
    pair.connect(A);
    pair.write_bytes(A, &[7; 3000]);
    pair.run_for(ms(200));
    let sent = bytes_since(&pair, Instant::ZERO);
    assert_eq!(sent, 496, "the SYN's cost a quarter of a second");
    pair.run_for(ms(100));
    assert!(bytes_since(&pair, Instant::ZERO) > sent);
}
