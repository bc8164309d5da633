//! Estimates the round-trip time of an endpoint that receives data and sends none, to size its
//! receive buffer.
//!
//! An endpoint without sent data cannot time ACKs. With timestamps, the peer's data echoes its
//! timestamps (RFC 7323). Without timestamps, receiving a window of data takes at least a round
//! trip (dynamic right-sizing, Feng et al. 2002). Linux uses the same two methods
//! (`tcp_rcv_rtt_measure_ts`, `tcp_rcv_rtt_measure`).

use crate::time::Instant;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// Maximum age of an echoed timestamp in milliseconds. An echo with a higher age is invalid and
/// ignored.
const ECHO_AGE_MAX_MS: u32 = 60_000;

/// Estimator of the round-trip time of an endpoint that only receives data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecvRtt {
    /// Time at which the measured window of data began; used without timestamps.
    since: Instant,
    /// Current estimate in microseconds; 0 before the first sample.
    rtt_us: u32,
    /// With timestamps: the echo of the last sample. Without: the sequence number at which the
    /// measured window of data ends.
    mark: u32,
}

impl RecvRtt {
    /// Returns the estimated round-trip time, or `None` before the first sample.
    pub(crate) fn get(&self) -> Option<Duration> {
        (self.rtt_us != 0).then(|| Duration::from_micros(self.rtt_us.into()))
    }

    /// Takes a sample from data that echoes our timestamp `echo`. `now_ms` is the current value of
    /// our timestamp clock.
    ///
    /// Only the first data with a given echo is used, because later data may have waited for the
    /// sender's program.
    #[inline]
    pub(crate) fn on_echo(&mut self, now_ms: u32, echo: u32) {
        if echo == self.mark || echo == 0 {
            return;
        }
        self.mark = echo;
        let elapsed_ms = now_ms.wrapping_sub(echo);
        if elapsed_ms > ECHO_AGE_MAX_MS {
            return;
        }
        let sample = elapsed_ms.max(1) * 1000;
        // If the sender paused, it echoes an old timestamp, so samples may be too long. Therefore
        // adopt a lower sample at once.
        self.rtt_us = match self.rtt_us {
            0 => sample,
            rtt if sample < rtt => sample,
            rtt => rtt + (sample - rtt) / 8,
        };
    }

    /// Handles data up to sequence number `nxt`. The current receive window ends at `window_end`.
    ///
    /// The time for receiving a window is an upper bound, because the sender may not use the whole
    /// window. The estimate is therefore the minimum of all samples.
    #[inline]
    pub(crate) fn on_data(&mut self, now: Instant, nxt: SeqNum, window_end: SeqNum) {
        let is_begun = self.since != Instant::ZERO;
        if is_begun && nxt.lt(SeqNum(self.mark)) {
            return;
        }
        if is_begun {
            let sample =
                u32::try_from(now.since(self.since).as_micros()).unwrap_or(u32::MAX).max(1);
            self.rtt_us = if self.rtt_us == 0 { sample } else { self.rtt_us.min(sample) };
        }
        (self.since, self.mark) = (now, window_end.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(1_000_000_000 + ms * 1_000_000)
    }

    #[test]
    fn a_window_of_data_takes_a_round_trip() {
        let mut rtt = RecvRtt::default();
        let nxt = SeqNum(u32::MAX - 999);
        rtt.on_data(at(0), nxt, nxt + 2000);
        rtt.on_data(at(10), nxt + 1000, nxt + 3000);
        assert_eq!(rtt.get(), None, "half of a window");
        rtt.on_data(at(30), nxt + 2000, nxt + 4000);
        assert_eq!(rtt.get(), Some(Duration::from_millis(30)));
        rtt.on_data(at(130), nxt + 4000, nxt + 6000);
        assert_eq!(rtt.get(), Some(Duration::from_millis(30)), "the sender paused");
        rtt.on_data(at(150), nxt + 6000, nxt + 8000);
        assert_eq!(rtt.get(), Some(Duration::from_millis(20)));
    }

    #[test]
    fn an_echo_counts_once() {
        let mut rtt = RecvRtt::default();
        rtt.on_echo(1100, 1000);
        rtt.on_echo(1190, 1000);
        assert_eq!(rtt.get(), Some(Duration::from_millis(100)));
        rtt.on_echo(1380, 1200);
        assert_eq!(rtt.get(), Some(Duration::from_millis(110)), "a slower sample weighs an eighth");
        rtt.on_echo(1340, 1300);
        assert_eq!(rtt.get(), Some(Duration::from_millis(40)));
    }

    #[test]
    fn invalid_echoes_are_ignored() {
        let mut rtt = RecvRtt::default();
        for echo in [0, 2000, 1001u32.wrapping_sub(ECHO_AGE_MAX_MS + 2)] {
            rtt.on_echo(1000, echo);
        }
        assert_eq!(rtt.get(), None);
        rtt.on_echo(5, u32::MAX - 4);
        assert_eq!(rtt.get(), Some(Duration::from_millis(10)), "the clock wrapped");
    }
}
