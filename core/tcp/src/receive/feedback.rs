//! Passes the result of each ACK to congestion control: acknowledged and lost bytes, round-trip
//! time, and delivery rate.

use core::time::Duration;

use crate::congestion::{Acked, CongestionStart};
use crate::connection::Connection;
use crate::flight::RateSample;
use crate::recovery::Phase;
use crate::time::Instant;

/// Effects of one ACK. The steps that process the ACK collect them for congestion control.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AckProgress {
    /// Number of payload bytes that this ACK acknowledges cumulatively.
    pub(super) bytes: u32,
    /// Bytes newly marked as lost because of this ACK.
    pub(super) lost: u32,
    /// Number of packets that this ACK reports as marked with CE.
    pub(super) marks: u32,
    /// Round-trip time measured with this ACK, if any.
    pub(super) rtt: Option<Duration>,
    /// Whether the connection is in slow start after a retransmission timeout.
    pub(super) after_timeout: bool,
    /// Whether recovery was in progress before this ACK or was started by it.
    pub(super) in_recovery: bool,
    sample: Option<RateSample>,
    /// Total bytes that the peer had received before this ACK.
    delivered_before: u64,
}

impl Connection {
    /// Saves the state of the connection before an ACK is processed.
    #[inline]
    pub(super) fn begin_progress(&self) -> AckProgress {
        AckProgress {
            delivered_before: self.delivered(),
            in_recovery: self.recovery.phase == Phase::Recovery,
            ..AckProgress::default()
        }
    }

    /// Returns the number of payload bytes that the peer has acknowledged, cumulatively or by SACK.
    fn delivered(&self) -> u64 {
        self.counters.bytes_acked + u64::from(self.recovery.sacked_bytes())
    }

    /// Takes the delivery rate sample of this ACK. Drops the record of transmissions if nothing is
    /// in flight any more.
    #[inline]
    pub(super) fn update_delivery_rate(&mut self, now: Instant, progress: &mut AckProgress) {
        let Some(record) = self.recovery.record_mut() else { return };
        progress.sample = record.take_sample(now, self.rtt.min().unwrap_or_default());
        if self.snd.flight() == 0
            && let Some(rate) = self.recovery.end_record()
        {
            self.counters.rare_mut().delivery_rate = rate;
        }
    }

    /// Updates the congestion window and the pacing rate after an ACK that delivered bytes or
    /// revealed a loss.
    #[inline]
    pub(super) fn update_congestion(&mut self, now: Instant, progress: &AckProgress) {
        let delivered = self.delivered().saturating_sub(progress.delivered_before);
        if delivered == 0 && progress.lost == 0 {
            return;
        }
        let mss = self.mss();
        let delivered = u32::try_from(delivered).unwrap_or(u32::MAX);
        let acked = Acked {
            now,
            bytes: progress.bytes,
            delivered,
            marked: progress.marks.saturating_mul(mss).min(delivered),
            mss,
            srtt: self.rtt.srtt().unwrap_or_default(),
            rtt: progress.sample.map_or(progress.rtt, |sample| sample.rtt),
            sample: progress.sample,
            in_flight: self.recovery.pipe(self.snd.una, self.snd.nxt),
            snd_una: self.snd.una,
            snd_nxt: self.snd.nxt,
            limited: self.congestion.is_limited(),
            in_recovery: progress.in_recovery,
            after_timeout: progress.after_timeout,
            sack: self.ext.sack,
        };
        self.congestion.on_ack(&acked);
        self.update_pacing();
        if self.congestion.is_probing_rtt()
            && let Some(record) = self.recovery.record_mut()
        {
            record.set_app_limited(acked.in_flight);
        }
    }

    /// Returns the state with which a congestion control algorithm is initialized.
    pub(crate) fn congestion_start(&self) -> CongestionStart {
        CongestionStart { mss: self.mss(), srtt: self.rtt.srtt() }
    }
}
