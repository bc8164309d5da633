//! Congestion control in virtual time: goodput, queue and reaction to losses of each algorithm on a
//! path with a bottleneck.

use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::A;
use crate::world::*;

/// Rate of the bottleneck in bytes per second.
const RATE: u64 = 2_500_000;
/// Payload that a path of this rate carries in full segments.
const GOODPUT: f64 = RATE as f64 * 1448.0 / 1488.0;

/// Result of a transfer.
#[derive(Debug)]
struct Outcome {
    /// Fraction of the bottleneck's rate after the first second.
    goodput: f64,
    /// Mean round-trip time, sampled each 100 ms.
    rtt: Duration,
}

struct Scenario {
    kind: CongestionKind,
    /// Delay each way.
    delay: Duration,
    /// Queue of the bottleneck, in packets.
    queue: usize,
    loss_of_a_thousand: u64,
}

fn connected(scenario: &Scenario) -> Pair {
    let config = Config { congestion: scenario.kind, window_scale: 10, ..Config::default() };
    let mut pair = Pair::new(config, config);
    let delay_ns = scenario.delay.as_nanos() as u64;
    let link = LinkConfig { delay_ns, ..LinkConfig::default() };
    let in_transit = RATE as usize * delay_ns as usize / 1_000_000_000 / 1500;
    let bottleneck = LinkConfig {
        rate: Some(RATE * 8),
        limit: Some(in_transit + scenario.queue),
        loss: losses(scenario.loss_of_a_thousand),
        ..link
    };
    pair.lay([bottleneck, link], 5);
    for host in [&mut pair.a, &mut pair.b] {
        (host.send_capacity, host.recv_capacity) = (8 << 20, 8 << 20);
    }
    pair.connect(A);
    pair.run_for(ms(500));
    pair
}

fn info(pair: &mut Pair) -> Info {
    let (now, buffers) = (pair.now, pair.a.buffers());
    pair.a.connection().info(now, buffers)
}

/// Runs a transfer for `seconds` after the first second.
fn run(scenario: &Scenario, seconds: usize) -> Outcome {
    let mut pair = connected(scenario);
    pair.write(A, RATE as usize * (seconds + 2));
    pair.run_for(Duration::from_secs(1));
    let before = pair.b.received.len();
    let mut rtt = Duration::ZERO;
    for _ in 0..10 * seconds {
        pair.run_for(ms(100));
        rtt += info(&mut pair).rtt;
    }
    let bytes = pair.b.received.len() - before;
    let goodput = bytes as f64 / seconds as f64 / GOODPUT;
    Outcome { goodput, rtt: rtt / (10 * seconds as u32) }
}

#[test]
fn each_algorithm_fills_the_path() {
    for &kind in CongestionKind::ALL {
        let scenario = Scenario { kind, delay: ms(10), queue: 33, loss_of_a_thousand: 0 };
        let outcome = run(&scenario, 4);
        assert!(outcome.goodput > 0.9, "{}: {outcome:?}", kind.name());
    }
}

#[test]
fn bbr_and_vegas_keep_a_deep_queue_short() {
    let round_trip =
        |kind| run(&Scenario { kind, delay: ms(10), queue: 330, loss_of_a_thousand: 0 }, 4).rtt;
    for kind in [CongestionKind::Bbr, CongestionKind::Vegas] {
        let rtt = round_trip(kind);
        assert!(rtt < ms(26), "{}: {rtt:?}", kind.name());
    }
    let rtt = round_trip(CongestionKind::NewReno);
    assert!(rtt > ms(60), "NewReno fills the queue: {rtt:?}");
}

#[test]
fn bbr_keeps_a_shallow_queue_short() {
    let scenario =
        Scenario { kind: CongestionKind::Bbr, delay: ms(10), queue: 33, loss_of_a_thousand: 0 };
    let outcome = run(&scenario, 10);
    assert!(outcome.rtt < ms(24) && outcome.goodput > 0.95, "{outcome:?}");
}

#[test]
fn bbr_tolerates_random_losses() {
    let goodput =
        |kind| run(&Scenario { kind, delay: ms(10), queue: 33, loss_of_a_thousand: 10 }, 6).goodput;
    let (bbr, cubic) = (goodput(CongestionKind::Bbr), goodput(CongestionKind::Cubic));
    assert!(bbr > 0.8 && cubic < 0.6, "{bbr} and {cubic}");
}

/// A queue that holds many windows gives HyStart++ time to see its delay.
#[test]
fn hystart_ends_slow_start_before_a_loss() {
    let kind = CongestionKind::Cubic;
    let mut pair = connected(&Scenario { kind, delay: ms(50), queue: 3000, loss_of_a_thousand: 0 });
    // Each round of conservative slow start takes longer, because the queue grows.
    pair.write(A, RATE as usize * 12);
    pair.run_for(Duration::from_secs(10));
    let info = info(&mut pair);
    assert_eq!(info.total_retrans, 0);
    assert!(info.ssthresh < 3000, "{} segments", info.ssthresh);
}

/// The same numbers as on Linux: an idle program's window grows to twice its flight at most.
#[test]
fn a_program_that_sends_little_does_not_raise_its_window() {
    for (segments, cwnd) in [(2, 10), (5, 10), (6, 12), (9, 18)] {
        let mut pair = Pair::connected();
        for _ in 0..3 {
            pair.write(A, segments * 1448);
            pair.run_for(ms(30));
        }
        assert_eq!(info(&mut pair).cwnd, cwnd, "{segments} segments");
    }
}

fn bbr_after(seconds: u64) -> Pair {
    let kind = CongestionKind::Bbr;
    let mut pair = connected(&Scenario { kind, delay: ms(10), queue: 100, loss_of_a_thousand: 0 });
    pair.write(A, (RATE * seconds) as usize);
    pair.run_for(Duration::from_secs(seconds));
    pair
}

fn gains(pair: &mut Pair) -> (u32, u32) {
    match info(pair).congestion_info {
        CongestionInfo::Bbr { pacing_gain_percent, cwnd_gain_percent, .. } => {
            (pacing_gain_percent, cwnd_gain_percent)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bbr_measures_the_path() {
    let mut pair = bbr_after(3);
    let CongestionInfo::Bbr { bandwidth, min_rtt, .. } = info(&mut pair).congestion_info else {
        panic!("it is BBR")
    };
    let ratio = bandwidth as f64 / GOODPUT;
    assert!((0.98..1.02).contains(&ratio), "{ratio}");
    // The link sends a segment in 0.6 ms.
    let min_rtt = min_rtt.expect("it was measured");
    assert!((ms(20)..ms(22)).contains(&min_rtt), "{min_rtt:?}");
}

#[test]
fn bbr_cycles_through_its_states_and_probes_for_the_round_trip_time() {
    let kind = CongestionKind::Bbr;
    let mut pair = connected(&Scenario { kind, delay: ms(10), queue: 100, loss_of_a_thousand: 0 });
    pair.write(A, RATE as usize * 8);
    let mut seen = Vec::new();
    for _ in 0..1500 {
        pair.run_for(ms(5));
        let gains = gains(&mut pair);
        if seen.last() != Some(&gains) {
            seen.push(gains);
        }
    }
    assert_eq!(seen[..2], [(277, 200), (50, 200)], "Startup and Drain");
    let probe_rtt = seen.iter().position(|&gains| gains == (100, 50));
    let probe_rtt = probe_rtt.expect("no ProbeRTT within 7.5 s");
    let cycle = &seen[2..probe_rtt];
    for gains in [(90, 200), (100, 200), (125, 225)] {
        assert!(cycle.contains(&gains), "{gains:?} is not in {seen:?}");
    }
    assert!(seen.len() > probe_rtt + 1, "ProbeRTT ends");
}

#[test]
fn bbr_keeps_its_window_while_idle() {
    let mut pair = bbr_after(2);
    pair.run_for(Duration::from_secs(3));
    let before = info(&mut pair).cwnd;
    pair.run_for(Duration::from_secs(20));
    let from = pair.now;
    pair.write(A, RATE as usize / 5);
    pair.run_until(Duration::from_secs(5), |pair| pair.a.send_fifo.is_empty());
    assert!(info(&mut pair).cwnd * 10 >= before * 9, "{} of {before}", info(&mut pair).cwnd);
    // 200 ms at the rate of the path, and a round trip.
    let took = pair.now - from;
    assert!(took < ms(260), "{took:?}");
    assert!(gains(&mut pair) != (100, 50), "idleness replaces a ProbeRTT");
}

/// The program's limit also holds for an algorithm that paces.
#[test]
fn a_maximum_rate_caps_that_of_bbr() {
    let limit = std::num::NonZeroU64::new(500_000);
    let kind = CongestionKind::Bbr;
    let mut pair = connected(&Scenario { kind, delay: ms(10), queue: 100, loss_of_a_thousand: 0 });
    pair.a.connection().set_max_pacing_rate(limit);
    pair.write(A, 2_000_000);
    pair.run_for(Duration::from_secs(2));
    let received = pair.b.received.len();
    assert!((900_000..=1_030_000).contains(&received), "{received}");
    let rate = info(&mut pair).pacing_rate;
    assert!(rate.is_some() && rate <= limit, "{rate:?}");
    pair.a.connection().set_max_pacing_rate(None);
    assert_eq!(info(&mut pair).max_pacing_rate, None);
    assert!(info(&mut pair).pacing_rate.is_some(), "the algorithm still paces");
}

#[test]
#[ignore = "prints a table to compare versions by"]
fn table_of_goodput() {
    for (delay, queue, loss_of_a_thousand) in [
        (10, 33, 0),
        (10, 330, 0),
        (10, 33, 1),
        (10, 33, 10),
        (50, 166, 0),
        (50, 166, 10),
        (50, 30, 0),
    ] {
        for &kind in CongestionKind::ALL {
            let scenario = Scenario { kind, delay: ms(delay), queue, loss_of_a_thousand };
            let outcome = run(&scenario, 19);
            println!("{delay} ms, queue {queue}, loss {loss_of_a_thousand}: {kind:?} {outcome:?}");
        }
    }
}
