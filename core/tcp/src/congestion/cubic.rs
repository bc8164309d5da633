//! CUBIC (RFC 9438), in integers.

use super::epoch::Epoch;
use super::{Acked, CWND_MAX, CongestionControl};
use crate::time::Instant;
use core::time::Duration;

/// State of CUBIC (RFC 9438 §4.1). Uses integers so that all machines compute identical windows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cubic {
    /// Window in bytes at the last reduction.
    w_max: u32,
    /// Window just before the last reduction, without fast convergence.
    cwnd_prior: u32,
    /// K in milliseconds: time from the begin of the epoch until the window reaches `w_max`.
    k_ms: u32,
    /// Estimated window of Reno in bytes, at most [`CWND_MAX`]; the fraction counts 1/1024 bytes.
    w_est: u32,
    w_est_fraction: u16,
    /// Growth below one byte, carried over to the next ACK, in 1/1024 bytes.
    fraction: u16,
}

/// beta_cubic = 0.7.
const BETA: (u32, u32) = (7, 10);

impl CongestionControl for Cubic {
    fn on_ack(
        &mut self,
        epoch: &mut Epoch,
        now: Instant,
        cwnd: u32,
        bytes: u32,
        acked: &Acked,
    ) -> u32 {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
        //# An endpoint MAY implement such alternative algorithms provided that the algorithms are
        //# conformant with the TCP specifications from the IETF Standards Track as described in
        //# RFC 2914, RFC 5033 [7], and RFC 8961 [15] (MAY-18).
        if *epoch == Epoch::NONE {
            *epoch = Epoch::begin(now);
            self.w_est = cwnd;
            self.w_est_fraction = 0;
            self.fraction = 0;
            self.w_max = self.w_max.max(cwnd);
            // K = cbrt((W_max - cwnd) / C), C = 0.4 segments/s^3.
            let deficit = u64::from(self.w_max - cwnd) * 2_500_000_000 / u64::from(acked.mss);
            self.k_ms = cube_root(deficit);
        }
        let elapsed = epoch.elapsed(now);
        let reno = self.reno(cwnd, bytes, acked.mss);
        let w_cubic = self.window_at(elapsed, acked.mss);
        if w_cubic < u64::from(reno) {
            return cwnd.max(reno);
        }
        let target = self.window_at(elapsed + acked.srtt, acked.mss);
        let target = target.clamp(u64::from(cwnd), u64::from(cwnd) * 3 / 2);
        let growth = ((target - u64::from(cwnd)) << 10) * u64::from(bytes.min(cwnd))
            / u64::from(cwnd)
            + u64::from(self.fraction);
        self.fraction = (growth & 1023) as u16;
        cwnd.saturating_add((growth >> 10) as u32)
    }

    fn on_loss(&mut self, cwnd: u32, flight: u32) -> u32 {
        // Fast convergence (RFC 9438 §4.7): a flow that lost before reaching its last window
        // releases bandwidth.
        self.w_max = if cwnd < self.w_max { (u64::from(cwnd) * 17 / 20) as u32 } else { cwnd };
        self.cwnd_prior = cwnd;
        // Reduce the bytes in flight, not the window (RFC 9438 §4.6), so that an unused window does
        // not count.
        (u64::from(flight.min(cwnd)) * u64::from(BETA.0) / u64::from(BETA.1)) as u32
    }

    //= https://www.rfc-editor.org/rfc/rfc9438#section-4.8
    //# During the first congestion avoidance stage after a timeout, CUBIC increases its congestion
    //# window size using Figure 1, where t is the elapsed time since the beginning of the current
    //# congestion avoidance stage, K is set to 0, and W_max is set to the congestion window size at the
    //# beginning of the current congestion avoidance stage.
    fn on_timeout(&mut self) {
        // With 0, the first ACK of this stage sets W_max to cwnd, and K becomes 0 (see `on_ack`).
        self.w_max = 0;
    }
}

impl Cubic {
    /// Returns W_cubic(t) = C (t - K)^3 + W_max (RFC 9438 equation 1), in bytes.
    fn window_at(&self, elapsed: Duration, mss: u32) -> u64 {
        // More than a minute from the plateau, the bound of 1.5 windows per RTT applies anyway, so
        // clamping is safe and avoids an overflow.
        let t_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX / 2);
        let x = (t_ms - i64::from(self.k_ms)).clamp(-60_000, 60_000);
        let growth = x * x * x / 1_000 * i64::from(mss) * 4 / 10 / 1_000_000;
        u64::try_from(i64::from(self.w_max) + growth).unwrap_or(0)
    }

    /// Updates and returns the estimate of Reno's window with CUBIC's beta (RFC 9438 §4.3).
    fn reno(&mut self, cwnd: u32, bytes: u32, mss: u32) -> u32 {
        let step = ((u64::from(bytes) * u64::from(mss)) << 10) / u64::from(cwnd.max(1));
        // alpha_cubic is 3 (1 - beta) / (1 + beta) = 9/17 until the previous window is reached
        // again.
        let below = self.w_est < self.cwnd_prior;
        let w_est = (u64::from(self.w_est) << 10 | u64::from(self.w_est_fraction))
            + if below { step * 9 / 17 } else { step };
        let w_est = w_est.min(u64::from(CWND_MAX) << 10);
        self.w_est_fraction = (w_est & 1023) as u16;
        self.w_est = (w_est >> 10) as u32;
        self.w_est
    }
}

/// Returns the largest r with r^3 <= n.
pub(super) fn cube_root(n: u64) -> u32 {
    let (mut low, mut high) = (0u64, 2_642_245);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if middle * middle * middle <= n { low = middle } else { high = middle - 1 }
    }
    low as u32
}
