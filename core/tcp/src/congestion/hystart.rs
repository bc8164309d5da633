//! HyStart++ (RFC 9406): ends slow start when the round-trip time rises, before packets are lost.

use super::algorithm::Acked;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// Bounds in microseconds of the increase of the round-trip time that ends slow start.
//= https://www.rfc-editor.org/rfc/rfc9406#section-4.3
//# It is RECOMMENDED that a HyStart++ implementation use the following constants:
const MIN_RTT_THRESH_US: u32 = 4_000;
const MAX_RTT_THRESH_US: u32 = 16_000;
/// Divisor of the minimum RTT. The quotient is the RTT increase that ends slow start, within a
/// minimum and a maximum.
const MIN_RTT_DIVISOR: u32 = 8;
/// Minimum number of RTT samples in a round. Rounds with fewer are ignored.
const N_RTT_SAMPLE: u8 = 8;
/// Divides the growth in conservative slow start (CSS).
//= https://www.rfc-editor.org/rfc/rfc9406#section-4.3
//# The minimum value of CSS_GROWTH_DIVISOR MUST be at least 2.
const CSS_GROWTH_DIVISOR: u32 = 4;
/// Maximum number of rounds in conservative slow start (CSS).
const CSS_ROUNDS: u8 = 5;
/// Value of a round-trip time that has not been measured.
const INFINITE: u32 = u32::MAX;

/// State of the slow start of a new connection. Times are in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct HyStart {
    /// Sequence number at which the current round trip ends.
    window_end: SeqNum,
    /// Minimum round-trip times in the previous and the current round trip, in microseconds.
    last_round_min_us: u32,
    current_round_min_us: u32,
    /// Minimum round-trip time at the start of conservative slow start (CSS), or [`INFINITE`] in
    /// slow start.
    css_baseline_us: u32,
    is_started: bool,
    samples: u8,
    css_rounds: u8,
}

//= https://www.rfc-editor.org/rfc/rfc9406#section-4.2
//# lastRoundMinRTT and currentRoundMinRTT are initialized to infinity at
//# the initialization time.
impl Default for HyStart {
    fn default() -> HyStart {
        HyStart {
            window_end: SeqNum(0),
            last_round_min_us: INFINITE,
            current_round_min_us: INFINITE,
            css_baseline_us: INFINITE,
            is_started: false,
            samples: 0,
            css_rounds: 0,
        }
    }
}

impl HyStart {
    /// Returns the part of `bytes` by which the window may grow.
    //= https://www.rfc-editor.org/rfc/rfc9406#section-4.2
    //# For each arriving ACK in CSS, where N is the number of previously
    //# unacknowledged bytes acknowledged in the arriving ACK:
    pub(super) fn growth(&self, bytes: u32) -> u32 {
        if self.is_conservative() { bytes / CSS_GROWTH_DIVISOR } else { bytes }
    }

    fn is_conservative(&self) -> bool {
        self.css_baseline_us != INFINITE
    }

    /// Handles an ACK of new bytes. Returns true if slow start has ended.
    pub(super) fn on_ack(&mut self, acked: &Acked) -> bool {
        if !self.is_started {
            (self.is_started, self.window_end) = (true, acked.snd_nxt);
        }
        //= https://www.rfc-editor.org/rfc/rfc9406#section-4.3
        //# implementations of HyStart++ are RECOMMENDED to take at least N_RTT_SAMPLE RTT samples.
        if let Some(rtt) = acked.rtt {
            self.on_sample(rtt);
        }
        //= https://www.rfc-editor.org/rfc/rfc9406#section-4.2
        //# When windowEnd is ACKed, the current round ends and windowEnd is
        //# set to SND.NXT.
        let left = acked.snd_nxt - acked.snd_una;
        left <= acked.snd_nxt - self.window_end && self.on_round(acked.snd_nxt)
    }

    fn on_sample(&mut self, rtt: Duration) {
        let rtt_us = u32::try_from(rtt.as_micros()).unwrap_or(INFINITE - 1);
        self.current_round_min_us = self.current_round_min_us.min(rtt_us);
        self.samples = self.samples.saturating_add(1);
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc9406#section-4.2
        //# For CSS rounds where at least N_RTT_SAMPLE RTT samples have been
        //# obtained, check to see if the current round's minRTT drops below
        //# baseline (cssBaselineMinRtt) indicating that slow start exit was
        //# spurious:
        if self.is_conservative() {
            if self.current_round_min_us < self.css_baseline_us {
                self.css_baseline_us = INFINITE;
            }
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc9406#section-4.2
        //# For rounds where at least N_RTT_SAMPLE RTT samples have been obtained
        //# and currentRoundMinRTT and lastRoundMinRTT are valid, check to see if
        //# delay increase triggers slow start exit:
        let last_us = self.last_round_min_us;
        let threshold_us = (last_us / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
        if last_us != INFINITE && self.current_round_min_us >= last_us.saturating_add(threshold_us)
        {
            self.css_baseline_us = self.current_round_min_us;
            self.css_rounds = 0;
        }
    }

    /// Starts the next round trip. Returns true if the last round trip of conservative slow start
    /// has ended.
    fn on_round(&mut self, snd_nxt: SeqNum) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc9406#section-4.2
        //# At the start of each round during standard slow start [RFC5681] and
        //# CSS, initialize the variables used to compute the last round's and
        //# current round's minimum RTT:
        self.last_round_min_us = std::mem::replace(&mut self.current_round_min_us, INFINITE);
        self.samples = 0;
        self.window_end = snd_nxt;
        //= https://www.rfc-editor.org/rfc/rfc9406#section-4.2
        //# CSS lasts at most CSS_ROUNDS rounds.  If the transition into CSS
        //# happens in the middle of a round, that partial round counts towards
        //# the limit.
        if self.is_conservative() {
            self.css_rounds += 1;
        }
        self.css_rounds >= CSS_ROUNDS
    }
}
