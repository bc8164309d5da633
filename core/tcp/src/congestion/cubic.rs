//! CUBIC (RFC 9438), in integers, with the slow start of HyStart++ (RFC 9406).

use super::algorithm::{Acked, CongestionControl, IdlePeriod};
use super::epoch::Epoch;
use super::hystart::HyStart;
use super::window::{CWND_MAX, CongestionWindow};

/// State of CUBIC. A new connection is in slow start, and needs no curve until its first loss or
/// until HyStart++ ends slow start.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cubic {
    SlowStart(HyStart),
    Curve(CubicCurve),
}

impl Default for Cubic {
    fn default() -> Cubic {
        Cubic::SlowStart(HyStart::default())
    }
}

/// Curve of CUBIC after the first slow start (RFC 9438 §4.1). Computed with integers, so that
/// windows are identical on all machines.
#[derive(Debug, Clone, Copy)]
pub(super) struct CubicCurve {
    /// W_max of RFC 9438: congestion window in bytes at the last reduction.
    w_max: u32,
    /// Congestion window in bytes just before the last reduction, without the adjustment by fast
    /// convergence.
    cwnd_prior: u32,
    /// W_est of RFC 9438: estimated window of Reno in bytes, at most [`CWND_MAX`].
    w_est: u32,
    /// Time since the curve reached its plateau W_max, negative before.
    epoch: Epoch,
    /// Fraction of a byte of `w_est`, in units of 1/256.
    w_est_fraction: u8,
    /// Fraction of a byte by which the window has grown, in units of 1/256, carried over to the
    /// next ACK.
    fraction: u8,
}

/// beta_cubic = 0.7.
//= https://www.rfc-editor.org/rfc/rfc9438#section-4.6
//# The parameter β_cubic SHOULD be set to 0.7
const BETA: (u32, u32) = (7, 10);
/// Factor by which the window is reduced after an ECN mark: beta_ecn of RFC 8511 section 3.1, 0.85.
/// A queue whose packets are marked is short, so a smaller reduction keeps the link busy.
const BETA_ECN: (u32, u32) = (17, 20);

impl CongestionControl for Cubic {
    fn on_idle_sent(&mut self, _window: &mut CongestionWindow, idle: &IdlePeriod) {
        if let Cubic::Curve(curve) = self {
            curve.epoch.leave_out(idle.length);
        }
    }

    fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked) {
        if acked.in_recovery || acked.bytes == 0 || acked.marked > 0 {
            return;
        }
        if let Cubic::SlowStart(hystart) = self {
            //= https://www.rfc-editor.org/rfc/rfc9438#section-4.10
            //# CUBIC SHOULD use the HyStart++ slow start algorithm [RFC9406]
            let is_over = hystart.on_ack(acked);
            //= https://www.rfc-editor.org/rfc/rfc9406#section-4.3
            //# An implementation SHOULD use HyStart++ only for the initial slow start (when the
            //# ssthresh is at its initial value of arbitrarily high per [RFC5681]) and fall back to
            //# using standard slow start for the remainder of the connection lifetime.
            if window.in_initial_slow_start() {
                if !is_over {
                    if acked.limited {
                        window.slow_start(acked, hystart.growth(acked.bytes));
                    }
                    return;
                }
                window.ssthresh = window.cwnd;
            }
        }
        self.curve(window.cwnd).on_ack(window, acked);
    }

    fn on_loss(&mut self, window: &CongestionWindow, _flight: u32) -> u32 {
        self.reduce(window.cwnd, BETA)
    }

    fn on_ecn(&mut self, window: &CongestionWindow, _flight: u32) -> u32 {
        self.reduce(window.cwnd, BETA_ECN)
    }

    //= https://www.rfc-editor.org/rfc/rfc9438#section-4.8
    //# During the first congestion avoidance stage after a timeout, CUBIC increases its congestion
    //# window size using Figure 1, where t is the elapsed time since the beginning of the current
    //# congestion avoidance stage, K is set to 0, and W_max is set to the congestion window size at the
    //# beginning of the current congestion avoidance stage.
    fn on_timeout(&mut self, _window: &CongestionWindow) {
        // With `w_max` 0, the first ACK of congestion avoidance sets W_max to cwnd, and K becomes 0
        // (see `grow`).
        let curve = self.curve(0);
        (curve.w_max, curve.epoch) = (0, Epoch::NONE);
    }

    fn on_restart(&mut self) {
        if let Cubic::Curve(curve) = self {
            curve.epoch = Epoch::NONE;
        }
    }
}

impl Cubic {
    /// Returns the slow-start threshold after a reduction by `beta`.
    ///
    /// The window is reduced, not the bytes in flight. Otherwise a loss would shrink the window of
    /// a program that has little to send at that moment. A window grows only while it is fully used
    /// ([`WindowUsage`](super::usage::WindowUsage)), so the path has carried a full window before.
    fn reduce(&mut self, cwnd: u32, beta: (u32, u32)) -> u32 {
        self.curve(0).on_loss(cwnd);
        (u64::from(cwnd) * u64::from(beta.0) / u64::from(beta.1)) as u32
    }

    /// Returns the curve; ends the first slow start with the window `cwnd` if there is none.
    //= https://www.rfc-editor.org/rfc/rfc9438#section-4.10
    //# In
    //# this special case, CUBIC sets cwnd_prior = cwnd and switches to
    //# congestion avoidance.
    fn curve(&mut self, cwnd: u32) -> &mut CubicCurve {
        if let Cubic::SlowStart(_) = self {
            *self = Cubic::Curve(CubicCurve {
                w_max: 0,
                cwnd_prior: cwnd,
                w_est: 0,
                epoch: Epoch::NONE,
                w_est_fraction: 0,
                fraction: 0,
            });
        }
        match self {
            Cubic::Curve(curve) => curve,
            Cubic::SlowStart(_) => unreachable!("it was replaced above"),
        }
    }
}

impl CubicCurve {
    fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked) {
        if !acked.limited {
            return self.epoch.pause(acked.now);
        }
        self.epoch.go_on(acked.now);
        //= https://www.rfc-editor.org/rfc/rfc9438#section-4.10
        //# When cwnd is no more than ssthresh, CUBIC MUST employ a slow start algorithm.
        let bytes = window.slow_start(acked, acked.bytes);
        if bytes > 0 {
            window.set(self.grow(window.cwnd, bytes, acked));
        }
    }

    fn on_loss(&mut self, cwnd: u32) {
        self.epoch = Epoch::NONE;
        // Fast convergence (RFC 9438 §4.7): a flow that lost before reaching its last window
        // releases bandwidth.
        //= https://www.rfc-editor.org/rfc/rfc9438#section-4.7
        //# the following fast convergence mechanism SHOULD be implemented.
        self.w_max = if cwnd < self.w_max { (u64::from(cwnd) * 17 / 20) as u32 } else { cwnd };
        self.cwnd_prior = cwnd;
    }

    /// Returns the new congestion window after `bytes` were acknowledged in congestion avoidance.
    fn grow(&mut self, cwnd: u32, bytes: u32, acked: &Acked) -> u32 {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
        //# An endpoint MAY implement such alternative algorithms provided that the algorithms are
        //# conformant with the TCP specifications from the IETF Standards Track as described in
        //# RFC 2914, RFC 5033 [7], and RFC 8961 [15] (MAY-18).
        if self.epoch == Epoch::NONE {
            //= https://www.rfc-editor.org/rfc/rfc9438#section-4.8
            //# for the Reno-friendly region, W_est SHOULD be set to the congestion window size at
            //# the beginning of the current congestion avoidance stage.
            self.w_est = cwnd;
            self.w_est_fraction = 0;
            self.fraction = 0;
            self.w_max = self.w_max.max(cwnd);
            // K = cbrt((W_max - cwnd) / C), C = 0.4 segments/s^3.
            //= https://www.rfc-editor.org/rfc/rfc9438#section-5.1
            //# it is NOT RECOMMENDED to set C to a very low value like 0.04
            let deficit = u64::from(self.w_max - cwnd) * 2_500_000_000 / u64::from(acked.mss);
            self.epoch = Epoch::begin(acked.now, cube_root(deficit));
        }
        let since_plateau_ms = self.epoch.since_plateau_ms(acked.now);
        let reno = self.reno(cwnd, bytes, acked.mss);
        let w_cubic = self.window_at(since_plateau_ms, acked.mss);
        //= https://www.rfc-editor.org/rfc/rfc9438#section-4.3
        //# CUBIC is in the Reno-friendly region and cwnd SHOULD be set to W_est at each reception
        //# of a new ACK.
        if w_cubic < u64::from(reno) {
            return cwnd.max(reno);
        }
        let srtt_ms = acked.srtt.as_millis() as i64;
        let target = self.window_at(since_plateau_ms + srtt_ms, acked.mss);
        let target = target.clamp(u64::from(cwnd), u64::from(cwnd) * 3 / 2);
        //= https://www.rfc-editor.org/rfc/rfc9438#section-4.4
        //# In this region, cwnd MUST be incremented by (target - cwnd) / cwnd for each received new
        //# ACK
        //= https://www.rfc-editor.org/rfc/rfc9438#section-4.5
        //# In this region, cwnd MUST be incremented by (target - cwnd) / cwnd for each received new
        //# ACK
        let growth = ((target - u64::from(cwnd)) << 8) * u64::from(bytes.min(cwnd))
            / u64::from(cwnd)
            + u64::from(self.fraction);
        self.fraction = (growth & 255) as u8;
        cwnd.saturating_add((growth >> 8) as u32)
    }

    /// Returns W_cubic(t) = C (t - K)^3 + W_max (RFC 9438 equation 1), in bytes. The argument is
    /// t - K.
    fn window_at(&self, since_plateau_ms: i64, mss: u32) -> u64 {
        // Clamp the time to avoid an overflow. More than a minute from the plateau, the limit of
        // 1.5 windows per RTT applies anyway.
        let x = since_plateau_ms.clamp(-60_000, 60_000);
        //= https://www.rfc-editor.org/rfc/rfc9438#section-5.1
        //# C SHOULD be set to 0.4.
        let growth = x * x * x / 1_000 * i64::from(mss) * 4 / 10 / 1_000_000;
        u64::try_from(i64::from(self.w_max) + growth).unwrap_or(0)
    }

    /// Updates and returns W_est, the estimate of Reno's window with CUBIC's beta (RFC 9438 §4.3).
    fn reno(&mut self, cwnd: u32, bytes: u32, mss: u32) -> u32 {
        let step = ((u64::from(bytes) * u64::from(mss)) << 8) / u64::from(cwnd.max(1));
        // alpha_cubic is 3 (1 - beta) / (1 + beta) = 9/17 until the previous window is reached
        // again.
        //= https://www.rfc-editor.org/rfc/rfc9438#section-4.3
        //# the sender SHOULD set α_cubic to 1 to ensure that it can achieve the same congestion
        //# window increment rate as Reno, which uses AIMD(1, 0.5).
        let below = self.w_est < self.cwnd_prior;
        let w_est = (u64::from(self.w_est) << 8 | u64::from(self.w_est_fraction))
            + if below { step * 9 / 17 } else { step };
        let w_est = w_est.min(u64::from(CWND_MAX) << 8);
        self.w_est_fraction = (w_est & 255) as u8;
        self.w_est = (w_est >> 8) as u32;
        self.w_est
    }
}

/// Returns the integer cube root: the largest r with r^3 <= n.
pub(super) fn cube_root(n: u64) -> u32 {
    let (mut low, mut high) = (0u64, 2_642_245);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if middle * middle * middle <= n { low = middle } else { high = middle - 1 }
    }
    low as u32
}
