//! Tests of the algorithms over many round trips, and of CUBIC against its equations.

use super::cubic::cube_root;
use super::hystart::HyStart;
use super::*;
use crate::time::Instant;
use core::time::Duration;

pub(super) const ISS: SeqNum = SeqNum(1);

pub(super) const MSS: u32 = 1000;

/// Returns an ACK of `bytes`, on a path of 100 ms.
pub(super) fn acked(now: Instant, bytes: u32) -> Acked {
    let rtt = Duration::from_millis(100);
    Acked {
        now,
        bytes,
        delivered: bytes,
        marked: 0,
        mss: MSS,
        srtt: rtt,
        rtt: Some(rtt),
        sample: None,
        in_flight: 10 * MSS,
        snd_una: ISS,
        snd_nxt: ISS,
        limited: true,
        in_recovery: false,
        after_timeout: false,
        sack: true,
    }
}

/// Acknowledges whole windows for `rtts` round trips of 100 ms.
fn round_trips(cc: &mut Congestion, now: &mut Instant, rtts: u32) {
    for _ in 0..rtts {
        let acks = cc.cwnd().div_ceil(2 * MSS);
        for _ in 0..acks {
            cc.on_ack(&acked(*now, 2 * MSS));
        }
        *now += Duration::from_millis(100);
    }
}

#[test]
fn slow_start_doubles_and_reno_adds_a_segment() {
    let mut cc = Congestion::new(CongestionKind::NewReno, MSS, 10, ISS);
    let mut now = Instant(0);
    round_trips(&mut cc, &mut now, 3);
    assert_eq!(cc.cwnd(), 80 * MSS);
    cc.on_loss(LossEvent { flight: 80 * MSS, mss: MSS });
    assert_eq!((cc.cwnd(), cc.ssthresh()), (40 * MSS, 40 * MSS));
    round_trips(&mut cc, &mut now, 5);
    assert!((44 * MSS..=46 * MSS).contains(&cc.cwnd()), "{}", cc.cwnd());
}

#[test]
fn selecting_cubic_keeps_slow_start_after_a_timeout() {
    let mut cc = Congestion::new(CongestionKind::NewReno, MSS, 20, ISS);
    cc.on_timeout(20 * MSS, MSS, false);
    cc.set_kind(CongestionKind::Cubic, &CongestionStart { mss: MSS, srtt: None });
    cc.on_ack(&acked(Instant(0), MSS));
    assert_eq!((cc.cwnd(), cc.ssthresh()), (2 * MSS, 10 * MSS));
}

#[test]
fn late_undo_keeps_a_window_that_has_grown_beyond_the_former_one() {
    for kind in [CongestionKind::Cubic, CongestionKind::NewReno] {
        let mut cc = Congestion::new(kind, MSS, 10, ISS);
        let prior = cc.prior();
        cc.on_loss(LossEvent { flight: 10 * MSS, mss: MSS });
        let mut now = Instant(0);
        round_trips(&mut cc, &mut now, 40);
        let (cwnd, ssthresh) = (cc.cwnd(), cc.ssthresh());
        assert!(cwnd > 10 * MSS, "{kind:?}: {cwnd}");
        cc.undo(prior);
        assert_eq!((cc.cwnd(), cc.ssthresh()), (cwnd, ssthresh), "{kind:?}");
    }
}

#[test]
fn limited_transmit_does_not_soften_a_loss() {
    let mut cc = Congestion::new(CongestionKind::NewReno, MSS, 6, ISS);
    cc.on_loss(LossEvent { flight: 8 * MSS, mss: MSS });
    assert_eq!((cc.cwnd(), cc.ssthresh()), (3 * MSS, 3 * MSS));
}

#[test]
fn an_unused_window_does_not_grow() {
    let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 10, ISS);
    cc.on_ack(&Acked { limited: false, ..acked(Instant(0), 10 * MSS) });
    assert_eq!(cc.cwnd(), 10 * MSS);
}

#[test]
fn cubic_returns_to_its_old_window_in_k_seconds() {
    let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 100, ISS);
    let mut now = Instant(0);
    cc.window.cwnd = 1000 * MSS;
    cc.on_loss(LossEvent { flight: 1000 * MSS, mss: MSS });
    assert_eq!(cc.cwnd(), 700 * MSS);
    // K = cbrt(300 / 0.4) = 9.09 s.
    round_trips(&mut cc, &mut now, 45);
    assert!((850 * MSS..990 * MSS).contains(&cc.cwnd()), "{}", cc.cwnd());
    round_trips(&mut cc, &mut now, 50);
    assert!((985 * MSS..1015 * MSS).contains(&cc.cwnd()), "{}", cc.cwnd());
    round_trips(&mut cc, &mut now, 60);
    assert!(cc.cwnd() > 1050 * MSS, "{}", cc.cwnd());
}

/// Evaluates RFC 9438's figures 1, 2 and 4 in floating point, for a flow that its window always
/// limits. Returns the window in segments after `t` seconds of congestion avoidance that began
/// below a plateau at `w_max`.
fn reference(w_max: f64, start: f64, t: f64, rtt: f64) -> f64 {
    let (c, beta) = (0.4, 0.7);
    let k = ((w_max - start) / c).cbrt();
    let w_cubic = c * (t - k).powi(3) + w_max;
    let alpha = 3.0 * (1.0 - beta) / (1.0 + beta);
    // Reno adds alpha per round trip until it reaches the old window, and one segment per round
    // trip after.
    let slow = ((w_max - start) / alpha).min(t / rtt);
    let w_est = start + alpha * slow + (t / rtt - slow);
    w_cubic.max(w_est)
}

#[test]
fn cubic_follows_the_equations() {
    for (segments, rtt_ms) in [(20u32, 20u64), (100, 100), (1000, 10), (1000, 100), (4000, 200)] {
        let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 100, ISS);
        let mut now = Instant(0);
        cc.window.cwnd = segments * MSS;
        cc.on_loss(LossEvent { flight: segments * MSS, mss: MSS });
        let start = f64::from(cc.cwnd()) / f64::from(MSS);
        let begin = now + Duration::from_millis(rtt_ms);
        for _ in 0..40_000 / rtt_ms {
            now += Duration::from_millis(rtt_ms);
            let srtt = Duration::from_millis(rtt_ms);
            let (window, mut left) = (cc.cwnd(), cc.cwnd());
            while left > 0 {
                let bytes = left.min(2 * MSS);
                cc.on_ack(&Acked { bytes, srtt, ..acked(now, bytes) });
                left -= bytes;
            }
            // Each ACK adds part of the growth of the next round trip (RFC 9438 §4.4). The window
            // is therefore between the curve's value now and one round trip later.
            let (t, rtt) = (now.since(begin).as_secs_f64(), rtt_ms as f64 / 1000.0);
            let most = 1.5 * f64::from(window) / f64::from(MSS);
            let [from, to] = [t, t + rtt].map(|t| reference(f64::from(segments), start, t, rtt));
            let within = 0.995 * from.min(most)..1.005 * to.min(most);
            let is = f64::from(cc.cwnd()) / f64::from(MSS);
            assert!(within.contains(&is), "{segments}, {rtt_ms} ms, {t} s: {is} in {within:?}");
        }
    }
}

/// After an idle period the flow continues with its former window. The window neither jumps to the
/// curve's current value, nor starts on the flat part of a new curve.
#[test]
fn cubic_leaves_out_what_the_program_left_unused() {
    let run = |pause: Option<bool>| {
        let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 100, ISS);
        let mut now = Instant(0);
        cc.window.cwnd = 100 * MSS;
        cc.on_loss(LossEvent { flight: 100 * MSS, mss: MSS });
        // Past the plateau, which is after 4.2 s.
        round_trips(&mut cc, &mut now, 80);
        match pause {
            None => {}
            // Application limited with little in flight, or idle with nothing in flight.
            Some(true) => {
                for _ in 0..200 {
                    cc.on_ack(&Acked { limited: false, ..acked(now, MSS) });
                    now += Duration::from_millis(100);
                }
            }
            Some(false) => {
                now += Duration::from_secs(20);
                let length = Duration::from_secs(20);
                cc.on_idle_over(&IdlePeriod { now, length, is_app_limited: true });
            }
        }
        round_trips(&mut cc, &mut now, 20);
        cc.cwnd()
    };
    let busy = run(None);
    assert!(busy > 130 * MSS);
    for paused in [run(Some(true)), run(Some(false))] {
        // Times are rounded to 66 us at a pause.
        assert!(paused.abs_diff(busy) < MSS / 10, "{paused}, not {busy}");
    }
}

#[test]
fn cubic_is_no_slower_than_reno_in_small_windows() {
    let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 10, ISS);
    let mut now = Instant(0);
    cc.on_loss(LossEvent { flight: 10 * MSS, mss: MSS });
    assert_eq!(cc.cwnd(), 7 * MSS);
    round_trips(&mut cc, &mut now, 10);
    assert!(cc.cwnd() >= 12 * MSS, "{}", cc.cwnd());
}

#[test]
fn a_timeout_leaves_one_segment() {
    let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 10, ISS);
    cc.on_timeout(10 * MSS, MSS, false);
    assert_eq!((cc.cwnd(), cc.ssthresh()), (MSS, 7 * MSS));
    cc.on_timeout(MSS, MSS, true);
    assert_eq!((cc.cwnd(), cc.ssthresh()), (MSS, 7 * MSS), "held for the same segment");
}

#[test]
fn cubic_does_not_hurry_back_after_a_timeout() {
    let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 100, ISS);
    let mut now = Instant(0);
    cc.window.cwnd = 1000 * MSS;
    cc.on_timeout(1000 * MSS, MSS, false);
    while cc.window.in_slow_start() {
        cc.on_ack(&acked(now, cc.cwnd()));
    }
    assert_eq!(cc.cwnd() / MSS, 700);
    // Grows by Reno's 9/17 of a segment per round trip, not along the 9 s curve towards 1000.
    round_trips(&mut cc, &mut now, 10);
    assert!((704 * MSS..708 * MSS).contains(&cc.cwnd()), "{}", cc.cwnd());
}

#[test]
fn cube_roots_are_exact() {
    for root in [0u64, 1, 2, 9085, 2_642_245] {
        let cube = root * root * root;
        assert_eq!(u64::from(cube_root(cube)), root);
        assert_eq!(u64::from(cube_root(cube + 1)), root.max(u64::from(cube == 0)));
    }
}

/// Acknowledges one round of `segments` segments with this round-trip time. Returns whether slow
/// start is over.
fn hystart_round(hystart: &mut HyStart, una: &mut SeqNum, segments: u32, rtt_ms: u64) -> bool {
    let (begin, mut is_over) = (*una, false);
    for n in 1..=segments {
        *una = begin + n * MSS;
        let rtt = Some(Duration::from_millis(rtt_ms));
        let snd_nxt = begin + (segments + 2 * n) * MSS;
        is_over |= hystart.on_ack(&Acked { rtt, snd_una: *una, snd_nxt, ..acked(Instant(0), MSS) });
    }
    is_over
}

#[test]
fn hystart_leaves_slow_start_after_five_slow_rounds() {
    let (mut hystart, mut una) = (HyStart::default(), ISS);
    assert!(!hystart_round(&mut hystart, &mut una, 10, 100));
    assert_eq!(hystart.growth(4 * MSS), 4 * MSS);
    // An eighth of 100 ms; 12 ms more is not enough.
    assert!(!hystart_round(&mut hystart, &mut una, 10, 112));
    assert_eq!(hystart.growth(4 * MSS), 4 * MSS);
    let mut rounds = 0;
    while !hystart_round(&mut hystart, &mut una, 40, 128) {
        assert_eq!(hystart.growth(4 * MSS), MSS, "conservative slow start");
        rounds += 1;
    }
    assert!((1..=5).contains(&rounds), "{rounds}");
}

#[test]
fn hystart_resumes_when_the_delay_falls() {
    let (mut hystart, mut una) = (HyStart::default(), ISS);
    hystart_round(&mut hystart, &mut una, 10, 20);
    // At least 4 ms.
    hystart_round(&mut hystart, &mut una, 20, 24);
    assert_eq!(hystart.growth(4 * MSS), MSS);
    hystart_round(&mut hystart, &mut una, 40, 20);
    assert_eq!(hystart.growth(4 * MSS), 4 * MSS);
}

#[test]
fn hystart_ignores_rounds_with_few_samples() {
    let (mut hystart, mut una) = (HyStart::default(), ISS);
    for _ in 0..10 {
        assert!(!hystart_round(&mut hystart, &mut una, 7, 20));
        assert!(!hystart_round(&mut hystart, &mut una, 7, 200));
        assert_eq!(hystart.growth(4 * MSS), 4 * MSS);
    }
}

#[test]
fn only_the_first_slow_start_uses_hystart() {
    let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 10, ISS);
    cc.on_timeout(10 * MSS, MSS, false);
    for n in 1..30u32 {
        let rtt = Some(Duration::from_millis(u64::from(n) * 100));
        let (snd_una, snd_nxt) = (ISS + n * MSS, ISS + (n + 5) * MSS);
        cc.on_ack(&Acked { rtt, snd_una, snd_nxt, ..acked(Instant(0), MSS) });
        assert_eq!(cc.ssthresh(), 7 * MSS);
    }
}
