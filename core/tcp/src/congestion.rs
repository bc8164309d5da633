//! Congestion control: NewReno (RFC 5681) and CUBIC (RFC 9438), in bytes, behind one closed enum.
//!
//! The module only decides how large the window is. `recovery` decides when bytes count as lost,
//! and `plan` how much the window lets go.

use crate::time::Instant;
use core::time::Duration;

/// Algorithms of congestion control.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum CongestionKind {
    /// RFC 5681, with the byte counting of RFC 3465.
    NewReno,
    /// Linux's default, and so ours.
    #[default]
    Cubic,
}

/// The congestion window of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Congestion {
    epoch: Epoch,
    cwnd: u32,
    ssthresh: u32,
    algorithm: Algorithm,
}

#[derive(Debug, Clone, Copy)]
enum Algorithm {
    /// Bytes acknowledged towards the next segment of growth (RFC 3465).
    NewReno {
        counted: u32,
    },
    Cubic(Cubic),
}

/// Bytes and circumstances of an acknowledgement of new bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    pub(crate) bytes: u32,
    pub(crate) mss: u32,
    pub(crate) srtt: Duration,
    /// The window held the sender back when these bytes were sent.
    pub(crate) limited: bool,
    /// Slow start after a timeout.
    pub(crate) after_timeout: bool,
}

/// No window grows past this: RFC 7323's largest receive window.
const CWND_MAX: u32 = 1 << 30;

impl Congestion {
    pub(crate) fn new(kind: CongestionKind, mss: u32, initial_window: u8) -> Congestion {
        Congestion {
            epoch: Epoch::NONE,
            cwnd: mss * u32::from(initial_window.max(1)),
            ssthresh: CWND_MAX,
            algorithm: Algorithm::new(kind),
        }
    }

    pub(crate) fn cwnd(&self) -> u32 {
        self.cwnd
    }

    pub(crate) fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    pub(crate) fn kind(&self) -> CongestionKind {
        match self.algorithm {
            Algorithm::NewReno { .. } => CongestionKind::NewReno,
            Algorithm::Cubic(_) => CongestionKind::Cubic,
        }
    }

    /// Changes the algorithm and keeps the window.
    pub(crate) fn set_kind(&mut self, kind: CongestionKind) {
        if self.kind() != kind {
            self.algorithm = Algorithm::new(kind);
            self.epoch = Epoch::NONE;
        }
    }

    /// The segment size became known or changed; the window counts in bytes and stays, but is never
    /// less than a segment.
    pub(crate) fn on_mss(&mut self, mss: u32) {
        self.cwnd = self.cwnd.max(mss);
    }

    /// The handshake is over: RFC 6928's window, or one segment when a SYN was lost.
    pub(crate) fn on_established(&mut self, mss: u32, initial_window: u8, syn_lost: bool) {
        let segments = if syn_lost { 1 } else { u32::from(initial_window.max(1)) };
        self.cwnd = mss * segments;
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion
    //# avoidance, and exponential backoff of RTO to avoid creating congestion collapse conditions
    //# (MUST-19).
    pub(crate) fn on_ack(&mut self, now: Instant, acked: Acked) {
        // RFC 5681 §4.1, RFC 9438 §5.8: a window that was not used was not tested, and does not
        // grow.
        if !acked.limited {
            return self.epoch.pause(now);
        }
        self.epoch.go_on(now);
        let mut bytes = acked.bytes;
        if self.in_slow_start() {
            // RFC 3465's L = 2 segments an ACK is for receivers that acknowledge every second
            // segment. A receiver that coalesces acknowledges dozens at once, and the limit would
            // cut slow start to a twentieth. So, as RFC 9406 §4.2 allows, it holds only after a
            // timeout.
            let limit = if acked.after_timeout { 2 * acked.mss } else { bytes };
            let grow = bytes.min(limit).min(self.ssthresh - self.cwnd);
            self.cwnd += grow;
            bytes -= grow;
            if self.cwnd < self.ssthresh || bytes == 0 || acked.after_timeout {
                return;
            }
        }
        self.cwnd = match &mut self.algorithm {
            Algorithm::NewReno { counted } => {
                *counted = counted.saturating_add(bytes);
                if *counted >= self.cwnd {
                    *counted -= self.cwnd;
                    self.cwnd.saturating_add(acked.mss)
                } else {
                    self.cwnd
                }
            }
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
            //# An endpoint MAY implement such alternative algorithms provided that the algorithms
            //# are conformant with the TCP specifications from the IETF Standards Track as
            //# described in RFC 2914, RFC 5033 [7], and RFC 8961 [15] (MAY-18).
            Algorithm::Cubic(cubic) => cubic.on_ack(&mut self.epoch, now, self.cwnd, bytes, &acked),
        }
        .min(CWND_MAX);
    }

    /// The sender begins again after `idle` with nothing in flight.
    pub(crate) fn on_idle_over(&mut self, idle: Duration) {
        self.epoch.leave_out(idle);
    }

    /// Loss was found by duplicate or selective ACKs: the window is reduced once for all of it.
    pub(crate) fn on_loss(&mut self, flight: u32, mss: u32) {
        self.reduce(flight, mss);
        self.cwnd = self.ssthresh;
    }

    /// The retransmission timer fired; `again`: for a segment that it has sent again before, so
    /// that ssthresh stays.
    pub(crate) fn on_timeout(&mut self, flight: u32, mss: u32, again: bool) {
        if !again {
            self.reduce(flight, mss);
        }
        self.epoch = Epoch::NONE;
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.on_timeout();
        }
        self.cwnd = mss;
    }

    fn reduce(&mut self, flight: u32, mss: u32) {
        self.epoch = Epoch::NONE;
        self.ssthresh = match &mut self.algorithm {
            //= https://www.rfc-editor.org/rfc/rfc5681#section-3.2
            //# As specified in [RFC3042], the additional data sent in limited transmit MUST NOT be
            //# included in this calculation.
            // Flight above cwnd is limited transmit; leave it out.
            Algorithm::NewReno { counted } => {
                *counted = 0;
                flight.min(self.cwnd) / 2
            }
            Algorithm::Cubic(cubic) => cubic.on_loss(self.cwnd, flight),
        }
        .max(2 * mss);
    }

    /// The window for a sender that was silent for longer than a timeout.
    pub(crate) fn restart_window(&self, mss: u32, initial_window: u8) -> u32 {
        self.cwnd.min(mss * u32::from(initial_window.max(1)))
    }

    /// Sends begin again after silence (RFC 5681 §4.1).
    pub(crate) fn on_restart(&mut self, mss: u32, initial_window: u8) {
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        self.cwnd = self.restart_window(mss, initial_window);
        self.epoch = Epoch::NONE;
    }
}

impl Algorithm {
    fn new(kind: CongestionKind) -> Algorithm {
        match kind {
            CongestionKind::NewReno => Algorithm::NewReno { counted: 0 },
            CongestionKind::Cubic => Algorithm::Cubic(Cubic::default()),
        }
    }
}

/// The time that CUBIC's window is a function of. The time begins with the first ACK of a
/// congestion avoidance, and stands still while the window is not what holds the sender back.
///
/// An epoch has eight bytes, for a connection is small. The bytes hold the moment of its begin in
/// ns, or with [`Epoch::PAUSED`] the time that it had run when it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Epoch(u64);

impl Epoch {
    /// The epoch has not begun.
    const NONE: Epoch = Epoch(u64::MAX);
    /// No clock of ours reaches this bit: 2^63 ns are 292 years.
    const PAUSED: u64 = 1 << 63;

    fn begin(now: Instant) -> Epoch {
        Epoch(now.0)
    }

    fn is_running(self) -> bool {
        self.0 & Epoch::PAUSED == 0
    }

    //= https://www.rfc-editor.org/rfc/rfc9438#section-4.2
    //# The elapsed time MUST NOT include periods during which cwnd has not been updated due to
    //# application-limited behavior (see Section 5.8).
    fn pause(&mut self, now: Instant) {
        if self.is_running() {
            self.0 = Epoch::PAUSED | now.0.saturating_sub(self.0);
        }
    }

    fn go_on(&mut self, now: Instant) {
        if !self.is_running() && *self != Epoch::NONE {
            self.0 = now.0.saturating_sub(self.0 & !Epoch::PAUSED);
        }
    }

    /// Excludes the last `time` from the elapsed time. While the epoch is paused, it is excluded
    /// already.
    fn leave_out(&mut self, time: Duration) {
        if self.is_running() {
            self.0 += time.as_nanos() as u64;
        }
    }

    /// How long it has run.
    fn elapsed(self, now: Instant) -> Duration {
        now.since(Instant(self.0))
    }
}

/// CUBIC's state (RFC 9438 §4.1), in integers so that all machines agree to the byte.
#[derive(Debug, Clone, Copy, Default)]
struct Cubic {
    /// Window in bytes at the last reduction.
    w_max: u32,
    /// Window just before the last reduction, without fast convergence.
    cwnd_prior: u32,
    /// Milliseconds from the epoch to the plateau.
    k_ms: u32,
    /// Window that Reno would have, in whole bytes, at most [`CWND_MAX`], and 1/1024 bytes.
    w_est: u32,
    w_est_fraction: u16,
    /// Growth not yet worth a byte, in 1/1024 bytes.
    fraction: u16,
}

/// beta_cubic = 0.7.
const BETA: (u32, u32) = (7, 10);

impl Cubic {
    fn on_loss(&mut self, cwnd: u32, flight: u32) -> u32 {
        // RFC 9438 §4.7: a flow that lost before it reached its last window yields room.
        self.w_max = if cwnd < self.w_max { (u64::from(cwnd) * 17 / 20) as u32 } else { cwnd };
        self.cwnd_prior = cwnd;
        // RFC 9438 §4.6: of what is in flight, so that an unused window is not carried along.
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

    fn on_ack(
        &mut self,
        epoch: &mut Epoch,
        now: Instant,
        cwnd: u32,
        bytes: u32,
        acked: &Acked,
    ) -> u32 {
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

    /// W_cubic(t) = C (t - K)^3 + W_max (RFC 9438 equation 1), in bytes.
    fn window_at(&self, elapsed: Duration, mss: u32) -> u64 {
        // A minute from the plateau the bound of 1.5 windows an RTT decides anyway.
        let t_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX / 2);
        let x = (t_ms - i64::from(self.k_ms)).clamp(-60_000, 60_000);
        let growth = x * x * x / 1_000 * i64::from(mss) * 4 / 10 / 1_000_000;
        u64::try_from(i64::from(self.w_max) + growth).unwrap_or(0)
    }

    /// RFC 9438 §4.3: what Reno with CUBIC's beta would have.
    fn reno(&mut self, cwnd: u32, bytes: u32, mss: u32) -> u32 {
        let step = ((u64::from(bytes) * u64::from(mss)) << 10) / u64::from(cwnd.max(1));
        // alpha_cubic = 3 (1 - beta) / (1 + beta) = 9/17 until the old window is reached again.
        let below = self.w_est < self.cwnd_prior;
        let w_est = (u64::from(self.w_est) << 10 | u64::from(self.w_est_fraction))
            + if below { step * 9 / 17 } else { step };
        let w_est = w_est.min(u64::from(CWND_MAX) << 10);
        self.w_est_fraction = (w_est & 1023) as u16;
        self.w_est = (w_est >> 10) as u32;
        self.w_est
    }
}

/// Largest r with r^3 <= n.
fn cube_root(n: u64) -> u32 {
    let (mut low, mut high) = (0u64, 2_642_245);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if middle * middle * middle <= n { low = middle } else { high = middle - 1 }
    }
    low as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn acked(bytes: u32) -> Acked {
        Acked {
            bytes,
            mss: MSS,
            srtt: Duration::from_millis(100),
            limited: true,
            after_timeout: false,
        }
    }

    /// Acknowledges whole windows for `rtts` round trips of 100 ms.
    fn round_trips(cc: &mut Congestion, now: &mut Instant, rtts: u32) {
        for _ in 0..rtts {
            let acks = cc.cwnd().div_ceil(2 * MSS);
            for _ in 0..acks {
                cc.on_ack(*now, acked(2 * MSS));
            }
            *now += Duration::from_millis(100);
        }
    }

    #[test]
    fn slow_start_doubles_and_reno_adds_a_segment() {
        let mut cc = Congestion::new(CongestionKind::NewReno, MSS, 10);
        let mut now = Instant(0);
        round_trips(&mut cc, &mut now, 3);
        assert_eq!(cc.cwnd(), 80 * MSS);
        cc.on_loss(80 * MSS, MSS);
        assert_eq!((cc.cwnd(), cc.ssthresh()), (40 * MSS, 40 * MSS));
        round_trips(&mut cc, &mut now, 5);
        assert!((44 * MSS..=46 * MSS).contains(&cc.cwnd()), "{}", cc.cwnd());
    }

    #[test]
    fn limited_transmit_does_not_soften_a_loss() {
        let mut cc = Congestion::new(CongestionKind::NewReno, MSS, 6);
        cc.on_loss(8 * MSS, MSS);
        assert_eq!((cc.cwnd(), cc.ssthresh()), (3 * MSS, 3 * MSS));
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 10);
        cc.on_ack(Instant(0), Acked { limited: false, ..acked(10 * MSS) });
        assert_eq!(cc.cwnd(), 10 * MSS);
    }

    #[test]
    fn cubic_returns_to_its_old_window_in_k_seconds() {
        let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 100);
        let mut now = Instant(0);
        cc.cwnd = 1000 * MSS;
        cc.on_loss(1000 * MSS, MSS);
        assert_eq!(cc.cwnd(), 700 * MSS);
        // K = cbrt(300 / 0.4) = 9.09 s.
        round_trips(&mut cc, &mut now, 45);
        assert!((850 * MSS..990 * MSS).contains(&cc.cwnd()), "{}", cc.cwnd());
        round_trips(&mut cc, &mut now, 50);
        assert!((985 * MSS..1015 * MSS).contains(&cc.cwnd()), "{}", cc.cwnd());
        round_trips(&mut cc, &mut now, 60);
        assert!(cc.cwnd() > 1050 * MSS, "{}", cc.cwnd());
    }

    /// RFC 9438's figures 1, 2 and 4 in real numbers, for a flow that is always limited by its
    /// window. Returns segments after `t` seconds of congestion avoidance that began below a
    /// plateau at `w_max`.
    fn reference(w_max: f64, start: f64, t: f64, rtt: f64) -> f64 {
        let (c, beta) = (0.4, 0.7);
        let k = ((w_max - start) / c).cbrt();
        let w_cubic = c * (t - k).powi(3) + w_max;
        let alpha = 3.0 * (1.0 - beta) / (1.0 + beta);
        // A round trip adds alpha until the old window is reached, and one segment from there on.
        let slow = ((w_max - start) / alpha).min(t / rtt);
        let w_est = start + alpha * slow + (t / rtt - slow);
        w_cubic.max(w_est)
    }

    #[test]
    fn cubic_follows_the_equations() {
        for (segments, rtt_ms) in [(20u32, 20u64), (100, 100), (1000, 10), (1000, 100), (4000, 200)]
        {
            let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 100);
            let mut now = Instant(0);
            cc.cwnd = segments * MSS;
            cc.on_loss(segments * MSS, MSS);
            let start = f64::from(cc.cwnd()) / f64::from(MSS);
            let begin = now + Duration::from_millis(rtt_ms);
            for _ in 0..40_000 / rtt_ms {
                now += Duration::from_millis(rtt_ms);
                let srtt = Duration::from_millis(rtt_ms);
                let (window, mut left) = (cc.cwnd(), cc.cwnd());
                while left > 0 {
                    let bytes = left.min(2 * MSS);
                    cc.on_ack(now, Acked { bytes, srtt, ..acked(bytes) });
                    left -= bytes;
                }
                // Each ACK adds a part of the curve's growth in the coming round trip (RFC 9438
                // §4.4). So the window is where the curve is between now and then.
                let (t, rtt) = (now.since(begin).as_secs_f64(), rtt_ms as f64 / 1000.0);
                let most = 1.5 * f64::from(window) / f64::from(MSS);
                let [from, to] =
                    [t, t + rtt].map(|t| reference(f64::from(segments), start, t, rtt));
                let within = 0.995 * from.min(most)..1.005 * to.min(most);
                let is = f64::from(cc.cwnd()) / f64::from(MSS);
                assert!(within.contains(&is), "{segments}, {rtt_ms} ms, {t} s: {is} in {within:?}");
            }
        }
    }

    /// A program that had nothing to send for a while goes on with its former window. The window
    /// neither jumps to the curve's present value, nor begins with the flat part of a new curve.
    #[test]
    fn cubic_leaves_out_what_the_program_left_unused() {
        let run = |pause: Option<bool>| {
            let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 100);
            let mut now = Instant(0);
            cc.cwnd = 100 * MSS;
            cc.on_loss(100 * MSS, MSS);
            // Past the plateau, which is after 4.2 s.
            round_trips(&mut cc, &mut now, 80);
            match pause {
                None => {}
                // Little was in flight, or nothing at all.
                Some(true) => {
                    for _ in 0..200 {
                        cc.on_ack(now, Acked { limited: false, ..acked(MSS) });
                        now += Duration::from_millis(100);
                    }
                }
                Some(false) => {
                    now += Duration::from_secs(20);
                    cc.on_idle_over(Duration::from_secs(20));
                }
            }
            round_trips(&mut cc, &mut now, 20);
            cc.cwnd()
        };
        let busy = run(None);
        assert!(busy > 130 * MSS);
        assert_eq!([run(Some(true)), run(Some(false))], [busy; 2]);
    }

    #[test]
    fn cubic_is_no_slower_than_reno_in_small_windows() {
        let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 10);
        let mut now = Instant(0);
        cc.on_loss(10 * MSS, MSS);
        assert_eq!(cc.cwnd(), 7 * MSS);
        round_trips(&mut cc, &mut now, 10);
        assert!(cc.cwnd() >= 12 * MSS, "{}", cc.cwnd());
    }

    #[test]
    fn a_timeout_leaves_one_segment() {
        let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 10);
        cc.on_timeout(10 * MSS, MSS, false);
        assert_eq!((cc.cwnd(), cc.ssthresh()), (MSS, 7 * MSS));
        cc.on_timeout(MSS, MSS, true);
        assert_eq!((cc.cwnd(), cc.ssthresh()), (MSS, 7 * MSS), "held for the same segment");
    }

    #[test]
    fn cubic_does_not_hurry_back_after_a_timeout() {
        let mut cc = Congestion::new(CongestionKind::Cubic, MSS, 100);
        let mut now = Instant(0);
        cc.cwnd = 1000 * MSS;
        cc.on_timeout(1000 * MSS, MSS, false);
        while cc.in_slow_start() {
            cc.on_ack(now, acked(cc.cwnd()));
        }
        assert_eq!(cc.cwnd() / MSS, 700);
        // Reno's 9/17 of a segment a round trip, not the second's worth of 9 s towards 1000.
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
}
