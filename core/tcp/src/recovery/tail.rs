//! Tail loss probe (RFC 8985 section 7). The probe is sent before the retransmission timer expires,
//! and makes the peer report the loss of the last segments of a flight.

use super::{Phase, Recovery};
use towpath_wire::tcp::SeqNum;

/// State of the tail loss probe of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TailProbe {
    /// `TLP.end_seq` of RFC 8985: SND.NXT when the probe was sent; `None` if no probe is in flight.
    end: Option<SeqNum>,
    /// `TLP.is_retrans` of RFC 8985: whether the probe was a retransmission.
    is_resent: bool,
    /// Whether the probe timer expired, so that a probe must be sent.
    is_due: bool,
    /// Whether no RTT has been measured since the last probe.
    is_unmeasured: bool,
}

/// Fields of an ACK that matter for a tail loss probe.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeAck {
    pub(crate) ack: SeqNum,
    /// Right edge of the ACK's D-SACK block, if present.
    pub(crate) dsack: Option<SeqNum>,
    /// Whether the ACK repeats SND.UNA without a SACK block, data or window change.
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

    /// Records that the tail loss probe was sent. `end` is the value of SND.NXT afterwards.
    pub(super) fn on_sent(&mut self, end: SeqNum, is_resent: bool) {
        *self = TailProbe { end: Some(end), is_resent, is_due: false, is_unmeasured: true };
    }

    pub(super) fn on_rtt_sample(&mut self) {
        self.is_unmeasured = false;
    }

    /// Cancels the tail loss probe, because recovery or a retransmission timeout has begun.
    pub(super) fn cancel(&mut self) {
        (self.end, self.is_due) = (None, false);
    }

    /// Handles an ACK after a tail loss probe. Returns whether the probe repaired a loss, which
    /// counts as congestion.
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

    /// Returns whether the state is the initial one, so that it can be freed.
    pub(super) fn is_clear(&self) -> bool {
        self.end.is_none() && !self.is_due && !self.is_unmeasured
    }
}

impl Recovery {
    /// Returns whether a tail loss probe may be scheduled: no byte is missing, and no probe is in
    /// flight.
    #[inline]
    pub(crate) fn may_probe(&self) -> bool {
        self.phase == Phase::Open
            && self.sack
            && self.outstanding.as_ref().is_none_or(|it| {
                it.probe.may_schedule() && it.board.as_ref().is_none_or(|it| it.sacked.total() == 0)
            })
    }

    /// Returns whether a tail loss probe must be sent now.
    #[inline]
    pub(crate) fn is_probe_due(&self) -> bool {
        self.outstanding.as_ref().is_some_and(|it| it.probe.is_due())
    }

    /// Makes the next transmission a tail loss probe.
    pub(crate) fn set_probe_due(&mut self) {
        self.outstanding.get_or_insert_default().probe.set_due(true);
    }

    /// Cancels a tail loss probe that is due.
    pub(crate) fn withdraw_probe(&mut self) {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.probe.set_due(false);
        }
    }

    /// Records that the tail loss probe that was due has been sent. `snd_nxt` is the value of
    /// SND.NXT afterwards.
    #[cold]
    pub(crate) fn on_probe_sent(&mut self, snd_nxt: SeqNum, is_resent: bool) {
        self.outstanding.get_or_insert_default().probe.on_sent(snd_nxt, is_resent);
    }

    /// Handles an ACK after a tail loss probe. Returns whether the probe repaired a loss.
    pub(crate) fn on_probe_ack(&mut self, ack: ProbeAck) -> bool {
        self.outstanding.as_mut().is_some_and(|it| {
            it.probe.set_due(false);
            it.probe.on_ack(ack)
        })
    }

    /// Permits the next tail loss probe, because an RTT was measured.
    #[inline]
    pub(crate) fn on_rtt_sample(&mut self) {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.probe.on_rtt_sample();
        }
    }
}
