//! Forward RTO-Recovery (F-RTO, RFC 5682): detection of a spurious retransmission timeout by SACK
//! and cumulative ACKs, without timestamps.
//!
//! ```text
//!   timeout: the segment at SND.UNA is retransmitted ──▶ Retransmitted
//!                                                             │ ACK of a part of the flight
//!                    new bytes instead of retransmissions: Forward
//!                      │                                      │
//!   ACK of bytes that were sent once: spurious      another ACK: continue the retransmissions
//! ```

use super::{Phase, Recovery};
use towpath_wire::tcp::SeqNum;

/// Maximum number of new segments before the second ACK (step 2b).
const NEW_SEGMENTS_MAX: u32 = 2;

/// Progress of the check of a retransmission timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ForwardCheck {
    /// No timeout is being checked.
    #[default]
    Off,
    /// The timeout retransmitted the segment at SND.UNA, which is not acknowledged (step 2).
    Retransmitted,
    /// The segment is acknowledged, and new bytes precede retransmissions (step 3).
    Forward,
}

/// An ACK, as far as the check of a timeout depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForwardAck {
    /// Whether SND.UNA advanced.
    pub(crate) is_advance: bool,
    /// Whether SACK blocks reported bytes for the first time.
    pub(crate) has_news: bool,
    /// Whether the ACK delivered bytes that were sent once.
    pub(crate) has_original: bool,
}

impl Recovery {
    /// Starts the check of a timeout, unless losses were known before. Another timeout during the
    /// check restarts the check.
    //= https://www.rfc-editor.org/rfc/rfc5682#section-3.1
    //# a TCP sender MAY apply the SACK-enhanced F-RTO algorithm.
    //= https://www.rfc-editor.org/rfc/rfc5682#section-3.1
    //# This algorithm SHOULD NOT be applied if the TCP sender is already in loss recovery when a
    //# retransmission timeout occurs.
    //= https://www.rfc-editor.org/rfc/rfc5682#section-3.1
    //# If the retransmission timer expires again during the execution of the SACK-enhanced F-RTO
    //# algorithm, the TCP sender MUST re-start the algorithm processing from step 1.
    pub(super) fn start_forward_check(&mut self, phase_before: Phase) {
        let Some(outstanding) = &mut self.outstanding else { return };
        let is_new = phase_before == Phase::Open || outstanding.forward != ForwardCheck::Off;
        outstanding.forward = match self.sack && is_new {
            true => ForwardCheck::Retransmitted,
            false => ForwardCheck::Off,
        };
    }

    /// Continues the check of a timeout with an ACK. Returns true if the timeout was spurious: the
    /// peer answers to bytes that were sent before the timeout, and only once.
    //= https://www.rfc-editor.org/rfc/rfc5682#section-3.1
    //# If the sender applies the SACK-enhanced F-RTO algorithm, it MUST follow the steps below.
    #[inline]
    pub(crate) fn check_timeout(&mut self, ack: ForwardAck, snd_nxt: SeqNum) -> bool {
        let Some(outstanding) = &mut self.outstanding else { return false };
        if outstanding.forward == ForwardCheck::Off || !(ack.is_advance || ack.has_news) {
            return false;
        }
        let is_first = outstanding.forward == ForwardCheck::Retransmitted;
        if self.phase != Phase::Loss || !is_first {
            outstanding.forward = ForwardCheck::Off;
            // Step 3a of RFC 5682: an ACK of the new bytes shows that the bytes before them are
            // lost.
            let is_beyond =
                outstanding.record.as_ref().is_none_or(|it| it.rack.has_acked(self.point));
            return self.phase == Phase::Loss && ack.has_original && !is_beyond;
        }
        if ack.is_advance {
            // Check further only if no bytes were sent since the timeout. An ACK of such bytes
            // would look like one of bytes sent before the timeout.
            outstanding.forward = match snd_nxt == self.point {
                true => ForwardCheck::Forward,
                false => ForwardCheck::Off,
            };
        }
        false
    }

    /// Returns how many new bytes may be sent before lost ones, or `None` if lost bytes go first.
    #[inline]
    pub(crate) fn forward_room(&self, snd_nxt: SeqNum, mss: u32) -> Option<u32> {
        let outstanding = self.outstanding.as_ref()?;
        let sent = snd_nxt - self.point;
        (outstanding.forward == ForwardCheck::Forward)
            .then(|| (NEW_SEGMENTS_MAX * mss).saturating_sub(sent))
    }
}
