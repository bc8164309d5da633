//! Estimators of BBR's path model: bandwidth, round-trip time, bytes in flight, and aggregation of
//! ACKs.

use super::super::algorithm::Acked;
use super::{BETA_PERCENT, INFINITE, LOSS_THRESH_PERCENT, PACING_MARGIN_PERCENT};
use crate::flight::RateSample;
use crate::time::Instant;
use core::time::Duration;

/// BBR.MinRTTFilterLen of the BBR draft: time for which a minimum of the round-trip time stays
/// valid.
const MIN_RTT_FILTER: Duration = Duration::from_secs(10);
/// BBR.ProbeRTTInterval of the BBR draft: time between two probes for the minimum round-trip time.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// Losses reduce the short-term bounds on bandwidth and bytes in flight only if they exceed this
/// percentage of the bytes of a round trip.
///
/// The sender sends less than the bound by the pacing margin, and up to BBR.LossThresh of the bytes
/// may be lost at random. Without this tolerance, as in the draft, each round trip with a loss
/// would reduce the bounds. The bounds would stay low until the next probe for bandwidth.
const TOLERANCE_PERCENT: u64 = LOSS_THRESH_PERCENT + PACING_MARGIN_PERCENT;
/// Half of BBR.ExtraAckedFilterLen of the BBR draft, in round trips. The filter stores one maximum
/// for each half, called a slot.
const EXTRA_ACKED_ROUNDS: u32 = 5;

/// BBR's model of the network path. Rates are in bytes per second, amounts of data in bytes.
#[derive(Debug)]
pub(super) struct PathModel {
    /// BBR.max_bw_filter of the BBR draft: maximum bandwidth of the previous and of the current
    /// probing cycle.
    max_bw: [u64; 2],
    pub(super) bw: u64,
    pub(super) bw_shortterm: u64,
    pub(super) inflight_longterm: u64,
    pub(super) inflight_shortterm: u64,
    /// Bounds saved for a spurious loss: BBR.undo_bw_shortterm, BBR.undo_inflight_shortterm and
    /// BBR.undo_inflight_longterm of the BBR draft.
    undo: [u64; 3],
    pub(super) full: FullBandwidth,
    min_rtt: MinRtt,
    aggregation: Aggregation,
}

impl Default for PathModel {
    fn default() -> PathModel {
        PathModel {
            max_bw: [0; 2],
            bw: 0,
            bw_shortterm: INFINITE,
            inflight_longterm: INFINITE,
            inflight_shortterm: INFINITE,
            undo: [0; 3],
            full: FullBandwidth::default(),
            min_rtt: MinRtt::default(),
            aggregation: Aggregation::default(),
        }
    }
}

/// Detector of the end of bandwidth growth, at which BBR leaves the state Startup.
#[derive(Debug, Default)]
pub(super) struct FullBandwidth {
    bw: u64,
    count: u8,
    pub(super) is_now: bool,
    pub(super) is_reached: bool,
}

/// Estimate of the minimum round-trip time, and the time of the next probe for it.
#[derive(Debug)]
struct MinRtt {
    /// BBR.min_rtt of the BBR draft, and the time at which it was measured.
    value: Duration,
    stamp: Instant,
    /// BBR.probe_rtt_min_delay of the BBR draft, and the time at which it was measured.
    probe_delay: Duration,
    probe_stamp: Instant,
    is_expired: bool,
    /// Whether the two times have been initialized, which happens at the first ACK.
    is_begun: bool,
}

impl Default for MinRtt {
    fn default() -> MinRtt {
        MinRtt {
            value: Duration::MAX,
            stamp: Instant::ZERO,
            probe_delay: Duration::MAX,
            probe_stamp: Instant::ZERO,
            is_expired: false,
            is_begun: false,
        }
    }
}

/// Estimate of BBR.extra_acked of the BBR draft: bytes acknowledged beyond the estimated bandwidth,
/// because ACKs arrive in bursts.
#[derive(Debug, Default)]
struct Aggregation {
    interval_start: Instant,
    delivered: u64,
    /// Maximum number of bytes acknowledged in excess of the estimated bandwidth, in the previous
    /// and the current filter slot.
    extra: [u64; 2],
    /// Number of the round trip in which the current slot of the filter began.
    slot_round: u32,
}

/// Counter of round trips. A round trip ends when data sent after its start is acknowledged.
#[derive(Debug, Default)]
pub(super) struct RoundCount {
    pub(super) count: u32,
    pub(super) is_start: bool,
    next_delivered: u64,
    /// C.delivered of the BBR draft at the last ACK: bytes delivered since the connection began.
    pub(super) delivered: u64,
}

impl RoundCount {
    /// Counts round trips: UpdateRound() of the BBR draft.
    pub(super) fn update(&mut self, rs: &RateSample) {
        self.delivered = rs.total_delivered;
        self.is_start = rs.prior_delivered >= self.next_delivered;
        if self.is_start {
            self.start(rs.total_delivered);
            self.count = self.count.wrapping_add(1);
        }
    }

    /// Starts a new round trip: StartRound() of the BBR draft.
    pub(super) fn start(&mut self, delivered: u64) {
        self.next_delivered = delivered;
    }
}

/// Losses and delivery rates of the current round trip.
#[derive(Debug, Default)]
pub(super) struct LossRound {
    pub(super) is_in_round: bool,
    pub(super) is_start: bool,
    pub(super) round_delivered: u64,
    /// Number of ACKs in this round trip that revealed losses.
    pub(super) events: u8,
    bw_latest: u64,
    pub(super) inflight_latest: u64,
    /// Bytes sent for the sample of `bw_latest`, lost ones included, and the time of sending them.
    sent_latest: (u64, Duration),
}

impl LossRound {
    /// Updates the maxima of the current round trip: UpdateLatestDeliverySignals() of the BBR
    /// draft.
    pub(super) fn update_latest(&mut self, rs: &RateSample) {
        if rs.rate > self.bw_latest {
            self.set_bw_latest(rs);
        }
        self.inflight_latest = self.inflight_latest.max(rs.delivered);
        self.is_start = rs.prior_delivered >= self.round_delivered;
        if self.is_start {
            self.round_delivered = rs.total_delivered;
        }
    }

    /// Replaces the maxima at the start of a round trip: AdvanceLatestDeliverySignals() of the BBR
    /// draft.
    pub(super) fn advance_latest(&mut self, rs: &RateSample) {
        if self.is_start {
            self.set_bw_latest(rs);
            self.inflight_latest = rs.delivered;
            self.events = 0;
        }
    }

    fn set_bw_latest(&mut self, rs: &RateSample) {
        self.bw_latest = rs.rate;
        self.sent_latest = (rs.delivered + u64::from(rs.lost), rs.send_elapsed);
    }

    /// Returns the rate at which the sender sent the bytes of `bw_latest`, or [`INFINITE`] if the
    /// bytes were sent at once.
    fn sent_rate(&self) -> u64 {
        let (bytes, elapsed) = self.sent_latest;
        let rate = (u128::from(bytes) * 1_000_000_000).checked_div(elapsed.as_nanos());
        rate.map_or(INFINITE, |rate| u64::try_from(rate).unwrap_or(INFINITE))
    }

    /// Clears the losses and maxima of the round trip: ResetCongestionSignals() of the BBR draft.
    pub(super) fn reset(&mut self) {
        self.is_in_round = false;
        (self.bw_latest, self.inflight_latest) = (0, 0);
    }
}

impl FullBandwidth {
    /// Restarts the detection from the bandwidth `bw`, in bytes per second: ResetFullBW() of the
    /// BBR draft.
    pub(super) fn reset(&mut self, bw: u64) {
        (self.bw, self.count, self.is_now) = (bw, 0, false);
    }

    /// Checks whether the bandwidth has stopped growing: CheckFullBWReached() of the BBR draft.
    pub(super) fn check(&mut self, rs: &RateSample, is_round_start: bool) {
        // Ignore a sample with rate 0, which is unreliable.
        if self.is_now || !is_round_start || rs.is_app_limited || rs.rate == 0 {
            return;
        }
        if u128::from(rs.rate) * 4 >= u128::from(self.bw) * 5 {
            return self.reset(rs.rate);
        }
        self.count += 1;
        self.is_now = self.count >= 3;
        self.is_reached |= self.is_now;
    }
}

impl PathModel {
    /// Initializes the times of the estimators at the first ACK.
    pub(super) fn begin(&mut self, now: Instant) {
        if !self.min_rtt.is_begun {
            self.min_rtt.is_begun = true;
            (self.min_rtt.stamp, self.min_rtt.probe_stamp) = (now, now);
            self.aggregation.interval_start = now;
        }
    }

    pub(super) fn begin_min_rtt(&mut self, srtt: Duration) {
        self.min_rtt.value = self.min_rtt.value.min(srtt);
    }

    pub(super) fn min_rtt(&self) -> Option<Duration> {
        (self.min_rtt.value != Duration::MAX).then_some(self.min_rtt.value)
    }

    pub(super) fn max_bw(&self) -> u64 {
        self.max_bw[0].max(self.max_bw[1])
    }

    /// Returns a percentage of the bandwidth-delay product in bytes; 0 before the first
    /// measurement.
    pub(super) fn bdp(&self, gain_percent: u64) -> u64 {
        let Some(min_rtt) = self.min_rtt() else { return 0 };
        let bytes = u128::from(self.bw) * min_rtt.as_nanos() / 1_000_000_000;
        // Cap the result: windows are below 2^30 bytes, so a larger one would have no effect.
        u64::try_from(bytes * u128::from(gain_percent) / 100).unwrap_or(u64::MAX).min(1 << 40)
    }

    /// Updates the maximum bandwidth from a sample: UpdateMaxBw() of the BBR draft, without its
    /// call of UpdateRound().
    pub(super) fn update_max_bw(&mut self, rs: &RateSample) {
        if rs.rate >= self.max_bw() || !rs.is_app_limited {
            self.max_bw[1] = self.max_bw[1].max(rs.rate);
        }
    }

    /// Begins a new cycle of the maximum filter: AdvanceMaxBwFilter() of the BBR draft. Keeps the
    /// old maximum if the current cycle has no sample.
    pub(super) fn advance_max_bw(&mut self) {
        if self.max_bw[1] > 0 {
            self.max_bw = [self.max_bw[1], 0];
        }
    }

    /// Updates the minimum round-trip time: UpdateMinRTT() of the BBR draft.
    pub(super) fn update_min_rtt(&mut self, acked: &Acked) {
        let (now, it) = (acked.now, &mut self.min_rtt);
        it.is_expired = now > it.probe_stamp + PROBE_RTT_INTERVAL;
        if let Some(rtt) = acked.rtt
            && (rtt < it.probe_delay || it.is_expired)
        {
            (it.probe_delay, it.probe_stamp) = (rtt, now);
        }
        if it.probe_delay < it.value || now > it.stamp + MIN_RTT_FILTER {
            (it.value, it.stamp) = (it.probe_delay, it.probe_stamp);
        }
    }

    /// Returns whether a probe for the minimum round-trip time is due.
    pub(super) fn is_rtt_expired(&self) -> bool {
        self.min_rtt.is_expired
    }

    /// Schedules the next probe for the minimum round-trip time, one interval after `now`.
    pub(super) fn schedule_probe_rtt(&mut self, now: Instant) {
        self.min_rtt.probe_stamp = now;
    }

    pub(super) fn extra_acked(&self) -> u64 {
        self.aggregation.extra[0].max(self.aggregation.extra[1])
    }

    pub(super) fn restart_aggregation(&mut self, now: Instant) {
        self.aggregation.interval_start = now;
    }

    /// Updates the estimate of ACK aggregation: UpdateACKAggregation() of the BBR draft.
    pub(super) fn update_aggregation(
        &mut self,
        acked: &Acked,
        cwnd: u32,
        round: u32,
        is_full: bool,
    ) {
        let (bw, it) = (self.bw, &mut self.aggregation);
        let interval = acked.now.since(it.interval_start).as_nanos();
        let expected = u128::from(bw) * interval / 1_000_000_000;
        let mut expected = u64::try_from(expected).unwrap_or(u64::MAX);
        if it.delivered <= expected {
            (it.delivered, it.interval_start, expected) = (0, acked.now, 0);
        }
        it.delivered += u64::from(acked.delivered);
        let extra = it.delivered.saturating_sub(expected).min(cwnd.into());
        let slot_rounds = if is_full { EXTRA_ACKED_ROUNDS } else { 1 };
        if round.wrapping_sub(it.slot_round) >= slot_rounds {
            (it.extra, it.slot_round) = ([it.extra[1], 0], round);
        }
        it.extra[1] = it.extra[1].max(extra);
    }

    /// Reduces the short-term bounds after a loss: InitLowerBounds() and LossLowerBounds() of the
    /// BBR draft, with a tolerance of [`TOLERANCE_PERCENT`].
    ///
    /// A sender that was late, or limited by a buffer, has sent less than the bounds allow. The
    /// network then delivers less, too. Unlike the draft, the bounds are therefore reduced by the
    /// fraction of the sent bytes that did not arrive in time.
    pub(super) fn reduce_shortterm(&mut self, loss: &LossRound, cwnd: u32) {
        let bw = self.bw_shortterm.min(self.max_bw());
        let inflight = self.inflight_shortterm.min(cwnd.into());
        let sent = loss.sent_rate().min(bw).max(1);
        // A loss never raises a bound because of bytes that were not sent.
        let if_all_sent = |latest: u64, bound: u64| {
            let scaled = u128::from(latest) * u128::from(bw) / u128::from(sent);
            u64::try_from(scaled).unwrap_or(INFINITE).min(bound).max(latest)
        };
        self.bw_shortterm = reduced(bw, if_all_sent(loss.bw_latest, bw));
        self.inflight_shortterm = reduced(inflight, if_all_sent(loss.inflight_latest, inflight));
    }

    /// Removes the short-term bounds: ResetShortTermModel() of the BBR draft.
    pub(super) fn reset_shortterm(&mut self) {
        (self.bw_shortterm, self.inflight_shortterm) = (INFINITE, INFINITE);
    }

    /// Saves the bounds of the model, in case a loss turns out to be spurious.
    pub(super) fn save(&mut self) {
        self.undo = [self.bw_shortterm, self.inflight_shortterm, self.inflight_longterm];
    }

    pub(super) fn restore(&mut self) {
        self.bw_shortterm = self.bw_shortterm.max(self.undo[0]);
        self.inflight_shortterm = self.inflight_shortterm.max(self.undo[1]);
        self.inflight_longterm = self.inflight_longterm.max(self.undo[2]);
    }
}

/// Returns the short-term bound after a round trip with losses in which the maximum was `latest`.
fn reduced(bound: u64, latest: u64) -> u64 {
    let tolerant = latest.saturating_mul(100) / (100 - TOLERANCE_PERCENT);
    latest.max(tolerant.min(bound)).max(bound / 100 * BETA_PERCENT)
}
