//! Detects spurious retransmissions by timestamps (Eifel, RFC 3522 and RFC 4015) and D-SACK (RFC
//! 2883, RFC 3708). The reduction of the congestion window is then undone.

use crate::congestion::PriorWindow;
use crate::rack::is_before;
use towpath_wire::tcp::SeqNum;

/// Largest receive window in bytes (RFC 7323).
const WINDOW_MAX: i32 = 1 << 30;

/// State of the last reduction of the congestion window, until it is undone or confirmed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Undo {
    /// SND.UNA at the time of the reduction. No byte before it was retransmitted.
    marker: SeqNum,
    /// SND.NXT at the time of the reduction.
    end: SeqNum,
    pub(super) prior: PriorWindow,
    /// Time of the first retransmission after the reduction, in milliseconds of our clock.
    first_resent: Option<u32>,
    /// Number of bytes that were retransmitted and not reported by D-SACK.
    resent: u32,
}

impl Undo {
    pub(super) fn new(marker: SeqNum, end: SeqNum, prior: PriorWindow) -> Undo {
        Undo { marker, end, prior, first_resent: None, resent: 0 }
    }

    pub(super) fn on_retransmit(&mut self, now_ms: u32, bytes: u32) {
        self.first_resent.get_or_insert(now_ms);
        self.resent = self.resent.saturating_add(bytes);
    }

    /// Returns whether the reduction was so long ago that D-SACKs for its retransmissions cannot
    /// arrive any more.
    pub(super) fn is_old(&self, una: SeqNum) -> bool {
        una.distance(self.end) > WINDOW_MAX
    }

    /// Returns whether the timestamp echoed by an ACK that advances SND.UNA shows that the original
    /// transmission arrived. The retransmission was then unnecessary.
    pub(super) fn is_refuted_by_echo(&self, echo: u32) -> bool {
        self.first_resent.is_some_and(|first| is_before(echo, first))
    }

    /// Handles a D-SACK of `left..right`. Returns true if the peer has now reported all
    /// retransmissions as duplicates.
    pub(super) fn on_dsack(&mut self, left: SeqNum, right: SeqNum) -> bool {
        let (start, end) = (left - self.marker, right - self.marker);
        if self.resent == 0 || start >= end || end > self.end - self.marker {
            return false;
        }
        self.resent = self.resent.saturating_sub(end - start);
        self.resent == 0
    }
}
