//! Congestion window and slow-start threshold, and the slow start that loss-based algorithms share.

use super::algorithm::Acked;

/// Maximum congestion window: the largest receive window of RFC 7323.
pub(super) const CWND_MAX: u32 = 1 << 30;

/// Congestion window and slow-start threshold of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct CongestionWindow {
    /// Congestion window in bytes.
    pub(super) cwnd: u32,
    /// Slow-start threshold in bytes; [`CWND_MAX`] before the first loss.
    pub(super) ssthresh: u32,
}

impl CongestionWindow {
    pub(super) fn new(cwnd: u32) -> CongestionWindow {
        CongestionWindow { cwnd, ssthresh: CWND_MAX }
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Returns whether the connection is in its first slow start, without any loss so far.
    pub(super) fn in_initial_slow_start(&self) -> bool {
        self.ssthresh == CWND_MAX && self.cwnd < CWND_MAX
    }

    /// Returns whether a loss-based algorithm may raise the congestion window for this ACK.
    pub(super) fn may_grow(&self, acked: &Acked) -> bool {
        // Do not grow a window that the sender has not used (RFC 5681 §4.1, RFC 9438 §5.8). An
        // unused window has not been tested against the path.
        //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.2
        //# The sending
        //# TCP SHOULD NOT increase the congestion window in response to the
        //# receipt of an ECN-Echo ACK packet.
        acked.limited && !acked.in_recovery && acked.bytes > 0 && acked.marked == 0
    }

    /// Grows the window by up to `bytes` in slow start, but not beyond the threshold. Returns the
    /// number of bytes left for congestion avoidance.
    pub(super) fn slow_start(&mut self, acked: &Acked, bytes: u32) -> u32 {
        if !self.in_slow_start() {
            return bytes;
        }
        // RFC 3465's limit of L = 2 segments per ACK assumes a receiver that acknowledges every
        // second segment. A receiver with coalescing acknowledges dozens at once, and the limit
        // would slow slow start by a factor of twenty. We therefore apply it only after a timeout,
        // as RFC 9406 §4.2 allows.
        //= https://www.rfc-editor.org/rfc/rfc9406#section-4.3
        //# A paced TCP implementation SHOULD use L = infinity.
        let limit = if acked.after_timeout { 2 * acked.mss } else { bytes };
        let grow = bytes.min(limit).min(self.ssthresh - self.cwnd);
        self.cwnd += grow;
        if self.in_slow_start() || acked.after_timeout { 0 } else { bytes - grow }
    }

    /// Sets the congestion window in bytes, at most [`CWND_MAX`].
    pub(super) fn set(&mut self, cwnd: u32) {
        self.cwnd = cwnd.min(CWND_MAX);
    }
}
