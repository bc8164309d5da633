//! TCP Vegas (Brakmo and Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global
//! Internet", IEEE JSAC 13(8), 1995). Keeps a few segments queued in the network, as estimated from
//! the round-trip time.

use super::algorithm::{Acked, CongestionControl, CongestionInfo};
use super::newreno::NewReno;
use super::window::CongestionWindow;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// Bounds of the number of segments queued in the network, alpha and beta of the paper. Values are
/// those of Linux and ns-3.
const ALPHA: u64 = 2;
const BETA: u64 = 4;
/// Number of queued segments that ends slow start: gamma of the paper.
const GAMMA: u64 = 1;
/// Minimum number of RTT samples in a round trip. Fewer samples may all come from delayed ACKs, so
/// the window then grows as in NewReno.
const SAMPLES_MIN: u8 = 3;
/// Value of a round-trip time that has not been measured.
const INFINITE: u32 = u32::MAX;

/// State of Vegas. Times are in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vegas {
    reno: NewReno,
    /// Minimum round-trip time of the connection in microseconds.
    base_rtt_us: u32,
    /// Minimum round-trip time in the current round trip, in microseconds.
    min_rtt_us: u32,
    /// Sequence number at which the current round trip ends.
    round_end: SeqNum,
    samples: u8,
    /// Whether the queue is being estimated, which requires a round trip without losses.
    is_measuring: bool,
}

impl Default for Vegas {
    fn default() -> Vegas {
        Vegas {
            reno: NewReno::default(),
            base_rtt_us: INFINITE,
            min_rtt_us: INFINITE,
            round_end: SeqNum(0),
            samples: 0,
            is_measuring: false,
        }
    }
}

impl CongestionControl for Vegas {
    fn on_ack(&mut self, window: &mut CongestionWindow, acked: &Acked) {
        if let Some(rtt) = acked.rtt {
            self.on_sample(rtt);
        }
        // RTT samples do not reflect the queue while lost segments are retransmitted.
        if acked.in_recovery || acked.after_timeout {
            self.is_measuring = false;
            return self.reno.on_ack(window, acked);
        }
        if !self.is_measuring {
            self.begin_round(acked.snd_nxt);
            self.is_measuring = true;
            return self.reno.on_ack(window, acked);
        }
        if acked.snd_nxt - acked.snd_una <= acked.snd_nxt - self.round_end {
            self.on_round(window, acked);
            self.begin_round(acked.snd_nxt);
        } else if window.in_slow_start() {
            self.reno.on_ack(window, acked);
        }
    }

    fn on_loss(&mut self, window: &CongestionWindow, flight: u32) -> u32 {
        self.is_measuring = false;
        self.reno.on_loss(window, flight)
    }

    fn on_restart(&mut self) {
        self.is_measuring = false;
    }

    fn info(&self) -> CongestionInfo {
        let micros = |us: u32| (us != INFINITE).then(|| Duration::from_micros(us.into()));
        CongestionInfo::Vegas {
            is_enabled: self.is_measuring,
            samples: self.samples.into(),
            base_rtt: micros(self.base_rtt_us),
            min_rtt: micros(self.min_rtt_us),
        }
    }
}

impl Vegas {
    fn on_sample(&mut self, rtt: Duration) {
        // Avoid a division by zero below.
        let rtt_us = u32::try_from(rtt.as_micros()).unwrap_or(INFINITE - 1).max(1);
        self.base_rtt_us = self.base_rtt_us.min(rtt_us);
        self.min_rtt_us = self.min_rtt_us.min(rtt_us);
        self.samples = self.samples.saturating_add(1);
    }

    fn begin_round(&mut self, snd_nxt: SeqNum) {
        (self.round_end, self.samples, self.min_rtt_us) = (snd_nxt, 0, INFINITE);
    }

    /// Adjusts the congestion window once per round trip.
    fn on_round(&mut self, window: &mut CongestionWindow, acked: &Acked) {
        if self.samples < SAMPLES_MIN {
            return self.reno.on_ack(window, acked);
        }
        let (cwnd, mss) = (u64::from(window.cwnd), u64::from(acked.mss));
        let (base, rtt) = (u64::from(self.base_rtt_us), u64::from(self.min_rtt_us));
        // Bytes of the window that are queued in the network, beyond those that fit on the path
        // (Diff × BaseRTT of the paper).
        let target = cwnd * base / rtt;
        let queued = cwnd * (rtt - base) / base;
        if window.in_slow_start() {
            if queued > GAMMA * mss {
                window.set(cwnd.min((target + mss).max(2 * mss)) as u32);
                window.ssthresh = window.ssthresh.min(window.cwnd);
            } else if acked.limited {
                window.slow_start(acked, acked.bytes);
            }
        } else if queued > BETA * mss {
            window.set((cwnd - mss.min(cwnd)).max(2 * mss) as u32);
            window.ssthresh = window.ssthresh.min(window.cwnd);
        } else if queued < ALPHA * mss && acked.limited {
            window.set((cwnd + mss) as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ISS, MSS, acked};
    use super::*;
    use crate::time::Instant;

    /// Simulates round trips on a path that carries `bdp` segments in 100 ms, with an unlimited
    /// queue.
    fn round_trips(window: &mut CongestionWindow, bdp: u32, rounds: u32) {
        let (mut vegas, mut una) = (Vegas::default(), ISS);
        for _ in 0..rounds {
            let flight = window.cwnd;
            let rtt_us = 100_000 * u64::from(flight.max(bdp * MSS)) / u64::from(bdp * MSS);
            let end = una + flight;
            while una != end {
                una += MSS.min(end - una);
                let rtt = Some(Duration::from_micros(rtt_us));
                let snd_nxt = una + flight;
                vegas.on_ack(
                    window,
                    &Acked { rtt, snd_una: una, snd_nxt, ..acked(Instant(0), MSS) },
                );
            }
        }
        assert_eq!(vegas.base_rtt_us, 100_000);
    }

    #[test]
    fn keeps_two_to_four_segments_in_the_queue() {
        for bdp in [20, 100] {
            // Start in slow start, and in congestion avoidance with a small window.
            for ssthresh in [1 << 30, MSS] {
                let mut window = CongestionWindow::new(bdp * MSS / 2);
                window.ssthresh = ssthresh;
                round_trips(&mut window, bdp, 200);
                let queued = i64::from(window.cwnd / MSS) - i64::from(bdp);
                assert!((1..=5).contains(&queued), "{bdp}: {queued} segments");
            }
        }
    }

    #[test]
    fn keeps_two_segments_however_long_the_queue() {
        let mut window = CongestionWindow::new(10 * MSS);
        let (mut vegas, round_end) = (Vegas::default(), ISS + 3 * MSS);
        for (segment, rtt_ms) in [(0, 1), (1, 1000), (2, 1000), (3, 1000)] {
            let rtt = Some(Duration::from_millis(rtt_ms));
            let (snd_una, snd_nxt) = (ISS + segment * MSS, round_end.max(ISS + segment * MSS));
            vegas.on_ack(&mut window, &Acked { rtt, snd_una, snd_nxt, ..acked(Instant(0), MSS) });
        }
        assert_eq!(window.cwnd, 2 * MSS);
    }

    #[test]
    fn leaves_slow_start_when_a_queue_forms() {
        let mut window = CongestionWindow::new(10 * MSS);
        round_trips(&mut window, 100, 8);
        assert!(!window.in_slow_start());
        // Slow start doubles the window once more before it detects the queue.
        assert!(window.cwnd <= 201 * MSS, "{}", window.cwnd);
    }
}
