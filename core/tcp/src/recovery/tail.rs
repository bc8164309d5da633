//! Tail loss probe (RFC 8985 section 7). The probe is sent before the retransmission timer expires,
//! and makes the peer report the loss of the last segments of a flight.

use towpath_wire::tcp::SeqNum;

/// State of the probe of one flight.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TailProbe {
    /// `TLP.end_seq`: SND.NXT when the probe was sent; `None` if no probe is in flight.
    end: Option<SeqNum>,
    /// `TLP.is_retrans`: whether the probe was a retransmission.
    is_resent: bool,
    /// Whether the timer expired and the probe is to be sent.
    is_due: bool,
    /// Whether no RTT was measured since the last probe.
    is_unmeasured: bool,
}

/// An ACK, as far as a probe depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeAck {
    pub(crate) ack: SeqNum,
    /// Right edge of the D-SACK block.
    pub(crate) dsack: Option<SeqNum>,
    /// Whether the ACK repeats SND.UNA and has no SACK block.
    pub(crate) is_plain_duplicate: bool,
}

impl TailProbe {
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    pub(super) fn set_due(&mut self, is_due: bool) {
        self.is_due = is_due;
    }

    /// Whether a probe may be scheduled. At most one is in flight, and each needs a new RTT sample.
    //= https://www.rfc-editor.org/rfc/rfc8985#section-7.3
    //# Second, the sender has obtained an RTT measurement since the last loss probe transmission
    pub(super) fn may_schedule(&self) -> bool {
        self.end.is_none() && !self.is_due && !self.is_unmeasured
    }

    /// Records that the probe was sent. `end` is SND.NXT afterwards.
    pub(super) fn on_sent(&mut self, end: SeqNum, is_resent: bool) {
        *self = TailProbe { end: Some(end), is_resent, is_due: false, is_unmeasured: true };
    }

    pub(super) fn on_rtt_sample(&mut self) {
        self.is_unmeasured = false;
    }

    /// Ends the episode, because recovery or a timeout takes over.
    pub(super) fn cancel(&mut self) {
        (self.end, self.is_due) = (None, false);
    }

    /// Handles an ACK. Returns whether the probe repaired a loss, which counts as congestion.
    pub(super) fn on_ack(&mut self, ack: ProbeAck) -> bool {
        let Some(end) = self.end.filter(|end| ack.ack.geq(*end)) else { return false };
        let is_unneeded = ack.dsack == Some(end) || ack.is_plain_duplicate;
        let is_beyond = ack.ack.gt(end);
        if !self.is_resent || is_unneeded || is_beyond {
            self.end = None;
        }
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.4.2
        //# it MUST assume that the original data segment, the TLP retransmission, or a
        //# corresponding ACK was lost for congestion control purposes.
        self.is_resent && !is_unneeded && is_beyond
    }

    /// Whether the state equals a new one, and may be freed.
    pub(super) fn is_clear(&self) -> bool {
        self.end.is_none() && !self.is_due && !self.is_unmeasured
    }
}
