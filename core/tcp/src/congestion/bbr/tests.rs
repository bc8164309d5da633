//! Tests of BBR's model against the draft's equations.

use super::*;
use crate::congestion::tests::{ISS, MSS, acked};
use core::time::Duration;

/// Runs BBR on a path of 1,000,000 bytes per second and 100 ms. Each ACK is for one segment, with
/// `in_flight` bytes in flight.
struct BbrRun {
    bbr: Bbr,
    window: CongestionWindow,
    now: Instant,
    delivered: u64,
    in_flight: u32,
    rate: u64,
    /// Rate at which the sender sends, in bytes per second.
    sent_rate: u64,
    in_recovery: bool,
}

impl BbrRun {
    fn new() -> BbrRun {
        let mut run = BbrRun {
            bbr: Bbr::default(),
            window: CongestionWindow::new(10 * MSS),
            now: Instant(1_000_000_000),
            delivered: 0,
            in_flight: 100 * MSS,
            rate: 1_000_000,
            sent_rate: 1_000_000,
            in_recovery: false,
        };
        let srtt = Some(Duration::from_millis(100));
        run.bbr.on_start(&mut run.window, &CongestionStart { mss: MSS, srtt });
        run
    }

    fn ack(&mut self, lost: u32, lost_since_sent: u32) {
        self.now += Duration::from_millis(1);
        self.delivered += u64::from(MSS);
        let sample = RateSample {
            rate: self.rate,
            delivered: self.in_flight.into(),
            send_elapsed: Duration::from_nanos(
                u64::from(self.in_flight + lost_since_sent) * 1_000_000_000 / self.sent_rate,
            ),
            prior_delivered: self.delivered.saturating_sub(self.in_flight.into()),
            total_delivered: self.delivered,
            lost: lost_since_sent,
            newly_lost: lost,
            in_flight: self.in_flight,
            is_app_limited: false,
            rtt: Some(Duration::from_millis(100)),
        };
        let acked = Acked {
            in_flight: self.in_flight,
            sample: Some(sample),
            in_recovery: self.in_recovery,
            snd_nxt: ISS + self.delivered as u32,
            ..acked(self.now, MSS)
        };
        self.bbr.on_ack(&mut self.window, &acked);
    }

    fn model(&self) -> &BbrModel {
        &self.bbr.0
    }

    /// Acknowledges segments until the state is reached.
    fn run_until(&mut self, state: BbrState) {
        for _ in 0..10_000 {
            if self.model().state == state {
                return;
            }
            self.ack(0, 0);
        }
        panic!("{:?} instead of {state:?}", self.model().state);
    }
}

#[test]
fn paces_the_initial_window_with_the_startup_gain() {
    // 2.77 times ten segments in 100 ms.
    assert_eq!(BbrRun::new().bbr.pacing_rate().map(NonZeroU64::get), Some(277_000));
}

#[test]
fn three_rounds_without_growth_end_startup() {
    let mut run = BbrRun::new();
    run.in_flight = 150 * MSS;
    run.run_until(BbrState::Drain);
    assert!(run.model().path.full.is_reached);
    // The baseline is set in the second round, and three further rounds have 150 ACKs each.
    assert!((450..=800).contains(&run.delivered.div_ceil(MSS.into())), "{}", run.delivered);
    assert_eq!(run.model().path.max_bw(), 1_000_000);
}

#[test]
fn unreliable_samples_do_not_end_startup() {
    let mut run = BbrRun::new();
    (0..200).for_each(|_| run.ack(0, 0));
    run.rate = 0;
    (0..1000).for_each(|_| run.ack(0, 0));
    assert!(!run.model().path.full.is_reached);
}

#[test]
fn rate_and_window_follow_the_bandwidth_delay_product() {
    let mut run = BbrRun::new();
    run.run_until(BbrState::Cruise);
    for _ in 0..300 {
        run.ack(0, 0);
        if run.model().state != BbrState::Cruise {
            break;
        }
        assert_eq!(run.bbr.pacing_rate().map(NonZeroU64::get), Some(990_000), "99 % of bw");
    }
    // 2 BDP, extra_acked, and at least three bursts.
    let cwnd = run.window.cwnd;
    assert!((200 * MSS..=310 * MSS).contains(&cwnd), "{cwnd}");
}

#[test]
fn a_loss_while_cruising_reduces_the_short_term_model() {
    let mut run = BbrRun::new();
    run.run_until(BbrState::Cruise);
    run.rate = 500_000;
    (0..250).for_each(|_| run.ack(0, 0));
    run.ack(MSS, MSS);
    for _ in 0..250 {
        run.ack(0, MSS);
    }
    let path = &run.model().path;
    // Beta, because the latest rate is lower.
    assert_eq!(path.bw_shortterm, 700_000);
    assert_eq!(path.bw, 700_000);
    assert!(path.inflight_shortterm < 1 << 20, "{}", path.inflight_shortterm);
}

#[test]
fn a_late_sender_does_not_reduce_the_short_term_model() {
    let mut run = BbrRun::new();
    run.run_until(BbrState::Cruise);
    // The network delivers all but one percent of the bytes at the rate at which they were sent.
    (run.rate, run.sent_rate) = (495_000, 500_000);
    (0..100).for_each(|_| run.ack(0, 0));
    for n in 0..300 {
        run.ack(if n % 100 == 0 { MSS } else { 0 }, MSS);
    }
    assert_eq!(run.model().path.bw, 1_000_000);
}

#[test]
fn a_loss_of_a_late_sender_does_not_raise_the_short_term_model() {
    let mut run = BbrRun::new();
    run.run_until(BbrState::Cruise);
    (run.rate, run.sent_rate) = (99_000, 100_000);
    (0..250).for_each(|_| run.ack(0, 0));
    run.ack(MSS, MSS);
    (0..250).for_each(|_| run.ack(0, MSS));
    // The window is at most 310 segments, and ten times the bytes in flight are 1000.
    let path = &run.model().path;
    assert!(path.inflight_shortterm <= 400 * u64::from(MSS), "{}", path.inflight_shortterm);
}

#[test]
fn too_many_losses_while_probing_set_the_long_term_bound() {
    let mut run = BbrRun::new();
    run.run_until(BbrState::Up);
    run.in_flight = 150 * MSS;
    // 3 of 150 segments are exactly 2 %, 4 are more.
    run.ack(3 * MSS, 3 * MSS);
    assert_eq!(run.model().state, BbrState::Up);
    run.ack(MSS, 4 * MSS);
    assert_eq!(run.model().state, BbrState::Down);
    let longterm = run.model().path.inflight_longterm;
    assert!((148 * u64::from(MSS)..=150 * u64::from(MSS)).contains(&longterm), "{longterm}");
    // A spurious loss restores the bounds, and probes again.
    let mut window = run.window;
    run.bbr.on_undo(&mut window);
    assert_eq!(run.model().path.inflight_longterm, INFINITE);
    assert_eq!(run.model().state, BbrState::Refill);
}

#[test]
fn one_lost_segment_of_a_small_flight_is_not_too_much() {
    let mut run = BbrRun::new();
    run.run_until(BbrState::Up);
    run.in_flight = 30 * MSS;
    run.ack(MSS, MSS);
    assert_eq!(run.model().state, BbrState::Up, "3 %, but one segment");
    assert_eq!(run.model().path.inflight_longterm, INFINITE);
    run.ack(MSS, 2 * MSS);
    assert_ne!(run.model().state, BbrState::Up);
    assert!(run.model().path.inflight_longterm < INFINITE);
}

#[test]
fn six_losses_in_a_round_end_startup() {
    let mut run = BbrRun::new();
    run.in_recovery = true;
    for n in 0..400u64 {
        // The rate keeps growing, so that there is no plateau.
        run.rate = 1_000_000 << (n / 100);
        run.ack(if n % 10 == 0 { MSS } else { 0 }, 10 * MSS);
    }
    assert!(run.model().path.full.is_reached && run.model().state != BbrState::Startup);
    assert!(run.model().path.inflight_longterm != INFINITE);
}

#[test]
fn probes_for_the_round_trip_time_after_five_seconds() {
    let mut run = BbrRun::new();
    run.run_until(BbrState::ProbeRtt);
    let entered = run.now;
    assert!(entered > Instant(1_000_000_000).after_millis(5000));
    assert!(run.window.cwnd <= 50 * MSS, "half of the BDP");
    run.in_flight = 50 * MSS;
    run.ack(0, 0);
    run.run_until(BbrState::Cruise);
    assert!(run.now >= entered.after_millis(200), "200 ms, and a round trip");
    assert!(run.window.cwnd >= 200 * MSS, "the window is restored");
}

#[test]
fn the_window_survives_a_timeout() {
    let mut run = BbrRun::new();
    run.run_until(BbrState::Cruise);
    let before = run.window.cwnd;
    run.bbr.on_timeout(&run.window);
    run.window.set(MSS);
    run.ack(0, 0);
    assert!(run.window.cwnd * 10 >= before * 9, "{} of {before}", run.window.cwnd);
}
