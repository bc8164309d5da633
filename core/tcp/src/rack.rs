//! Recent acknowledgment (RACK, RFC 8985): decides which transmissions count as lost because later
//! ones have arrived, and how much reordering is tolerated.

use crate::time::Instant;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// Times of an ACK, from which delivery times are computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AckTiming {
    /// Time at which the network device received the ACK.
    pub(crate) now: Instant,
    /// Timestamp echoed by the ACK, in milliseconds of our clock; `None` without the option.
    pub(crate) echo: Option<u32>,
    /// Minimum round-trip time measured so far.
    pub(crate) rtt_min: Duration,
}

/// Times that decide when overdue transmissions count as lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossTiming {
    pub(crate) now: Instant,
    /// Reordering window: time by which a transmission may be overdue before it counts as lost.
    pub(crate) window: Duration,
    /// Smoothed RTT, used until the first bytes of the current flight are delivered.
    pub(crate) srtt: Duration,
}

/// The most recently sent bytes among those delivered (`RACK.xmit_ts`, `RACK.end_seq`, `RACK.rtt`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rack {
    sent: Instant,
    end: SeqNum,
    rtt: Duration,
    /// Whether the most recently sent of the delivered bytes were a retransmission.
    is_resent: bool,
    /// Highest sequence number that was acknowledged, cumulatively or by SACK (`RACK.fack`).
    fack: SeqNum,
    /// Value of `fack` before the current ACK. The order in which bytes of one ACK arrived is
    /// unknown, so they are compared with this value only.
    fack_before: SeqNum,
    arrivals: AckArrivals,
}

/// Arrivals of bytes that one ACK revealed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AckArrivals {
    /// Maximum distance in bytes by which bytes arrived out of order.
    pub(crate) reordered: u32,
    /// Whether bytes arrived that were sent only once.
    pub(crate) has_original: bool,
}

impl Rack {
    /// Creates the state for a flight that starts at sequence number `una`, of which nothing is
    /// delivered.
    pub(crate) fn new(una: SeqNum) -> Rack {
        Rack {
            sent: Instant::ZERO,
            end: una,
            rtt: Duration::ZERO,
            is_resent: false,
            fack: una,
            fack_before: una,
            arrivals: AckArrivals::default(),
        }
    }

    /// Handles the delivery of the bytes `start..end`, which were last sent at `sent`. With
    /// `is_resent`, an earlier copy may have been delivered instead.
    pub(crate) fn on_delivered(
        &mut self,
        ack: AckTiming,
        sent: Instant,
        start: SeqNum,
        end: SeqNum,
        is_resent: bool,
    ) {
        if end.gt(self.fack) {
            self.fack = end;
        }
        let it = &mut self.arrivals;
        it.has_original |= !is_resent;
        if end.leq(self.fack_before) && !is_resent {
            it.reordered = it.reordered.max(self.fack_before - start);
        }
        let rtt = ack.now.since(sent);
        //= https://www.rfc-editor.org/rfc/rfc8985#section-6.2
        //# ignore a segment as invalid if any of its sequence range has been retransmitted before
        //# and if either of two conditions is true:
        let is_of_earlier_copy = ack.echo.is_some_and(|echo| is_before(echo, sent.millis()));
        if is_resent && (is_of_earlier_copy || rtt < ack.rtt_min) {
            return;
        }
        if (sent, end.distance(self.end)) > (self.sent, 0) {
            (self.sent, self.end, self.rtt) = (sent, end, rtt);
            self.is_resent = is_resent;
        }
    }

    /// Returns the end of those bytes of the transmission `start..end` that were sent before the
    /// most recently delivered bytes. Returns `None` if there are no such bytes. `sent` is the time
    /// at which the transmission was sent.
    pub(crate) fn overtaken(&self, sent: Instant, start: SeqNum, end: SeqNum) -> Option<SeqNum> {
        if sent < self.sent {
            return Some(end);
        }
        (sent == self.sent && start.lt(self.end)).then(|| end.min(self.end))
    }

    /// Returns whether the most recently delivered bytes were first sent at `sent`, and not a
    /// retransmission.
    pub(crate) fn is_first_sent_at(&self, sent: Instant) -> bool {
        sent == self.sent && !self.is_resent
    }

    /// Returns whether the most recently delivered bytes end beyond sequence number `nxt`.
    pub(crate) fn has_passed(&self, nxt: SeqNum) -> bool {
        self.end.gt(nxt)
    }

    /// Returns the time at which bytes sent at `sent` are overdue if `window` of reordering is
    /// tolerated. Before the first delivery, `srtt` is used as the round-trip time.
    pub(crate) fn due(&self, sent: Instant, window: Duration, srtt: Duration) -> Instant {
        let rtt = if self.sent == Instant::ZERO { srtt } else { self.rtt };
        sent + rtt + window
    }

    /// Whether bytes beyond `end` were acknowledged, cumulatively or selectively.
    pub(crate) fn has_acked(&self, end: SeqNum) -> bool {
        self.fack.gt(end)
    }

    /// Forgets the delivery of a retransmission, because the original was delivered instead.
    /// Otherwise everything sent before the retransmission would count as overtaken.
    pub(crate) fn forget_resent(&mut self) {
        if self.is_resent {
            (self.sent, self.rtt, self.is_resent) = (Instant::ZERO, Duration::ZERO, false);
        }
    }

    /// Ends the current ACK, and returns the arrivals that it revealed.
    pub(crate) fn take_arrivals(&mut self) -> AckArrivals {
        self.fack_before = self.fack;
        core::mem::take(&mut self.arrivals)
    }
}

/// Returns whether timestamp `a` is before `b`. The clock of the timestamps option wraps.
pub(crate) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Number of recoveries without a D-SACK after which the reordering window is reduced again (RFC
/// 8985 section 6.2).
const PERSIST: u8 = 16;

/// Reordering observed on the path of a connection, and the tolerance derived from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reordering {
    /// Maximum number of segments by which packets were reordered; 0 if none was observed.
    degree: u8,
    /// `RACK.reo_wnd_mult` of RFC 8985: reordering window in quarters of the minimum RTT.
    quarters: u8,
    /// `RACK.reo_wnd_persist` of RFC 8985: number of recoveries until the reordering window is
    /// reduced again.
    persist: u8,
}

impl Default for Reordering {
    fn default() -> Reordering {
        Reordering { degree: 0, quarters: 1, persist: PERSIST }
    }
}

impl Reordering {
    /// Records that packets were reordered by `segments` segments.
    pub(crate) fn note(&mut self, segments: u32) {
        let segments = u8::try_from(segments.max(1)).unwrap_or(u8::MAX);
        self.degree = self.degree.max(segments);
    }

    /// Returns whether reordering was observed (`RACK.reordering_seen`).
    pub(crate) fn is_seen(&self) -> bool {
        self.degree > 0
    }

    /// Returns the maximum number of segments by which packets were reordered.
    pub(crate) fn degree(&self) -> u8 {
        self.degree
    }

    /// Widens the window in a round trip with D-SACK: the last retransmissions were spurious.
    //= https://www.rfc-editor.org/rfc/rfc8985#section-4
    //# RACK DSACK-based reordering window adaptation is RECOMMENDED
    pub(crate) fn widen(&mut self) {
        self.quarters = self.quarters.saturating_add(1);
        self.persist = PERSIST;
    }

    /// Handles the end of a recovery, which may reduce the reordering window.
    pub(crate) fn on_recovery_exit(&mut self) {
        //= https://www.rfc-editor.org/rfc/rfc8985#section-6.2
        //# RACK persists using the inflated RACK.reo_wnd for up to 16 loss recoveries, after which
        //# it resets RACK.reo_wnd to its starting value, min_RTT / 4.
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    /// Returns the reordering window for an RTT of at least `min`; at most `srtt`.
    //= https://www.rfc-editor.org/rfc/rfc8985#section-3.3.2
    //# The RACK reordering window MUST be bounded, and this bound SHOULD be SRTT.
    pub(crate) fn window(&self, min: Duration, srtt: Duration) -> Duration {
        (min * u32::from(self.quarters) / 4).min(srtt)
    }
}
