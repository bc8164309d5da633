//! Start and end of the phases of loss recovery.

use super::prr::Prr;
use super::undo::Undo;
use super::{Phase, Recovery};
use crate::congestion::PriorWindow;
use crate::flight::FlightRecord;
use crate::rack::LossTiming;
use crate::ranges::Ranges;
use crate::time::Instant;
use towpath_wire::tcp::SeqNum;

impl Recovery {
    /// Starts fast recovery. `recover_fs` are the bytes in flight before the current ACK.
    pub(crate) fn enter(
        &mut self,
        now: Instant,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
        recover_fs: u32,
    ) {
        self.enter_again(now, snd_una, snd_nxt, recover_fs);
        self.make_board(snd_una).force = true;
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.probe.cancel();
        }
    }

    /// Continues in fast recovery after a retransmission was lost, also one of a timeout, as if
    /// the recovery had begun now. The reduction cannot be undone any more.
    pub(crate) fn enter_again(
        &mut self,
        now: Instant,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
        recover_fs: u32,
    ) {
        self.phase = Phase::Recovery;
        self.point = snd_nxt;
        self.make_board(snd_una).reduced_at = now;
        if let Some(outstanding) = &mut self.outstanding {
            //= https://www.rfc-editor.org/rfc/rfc9937#section-6.1
            //# a data sender using PRR MUST initialize the PRR state.
            outstanding.prr = Prr::new(recover_fs);
            outstanding.undo = None;
        }
    }

    /// Saves the congestion window before a reduction, to restore it if the loss was spurious. At
    /// most one reduction per round trip is undone.
    pub(crate) fn set_prior(&mut self, snd_una: SeqNum, snd_nxt: SeqNum, prior: PriorWindow) {
        let undo = Undo::new(snd_una, snd_nxt, prior);
        let outstanding = self.outstanding.get_or_insert_default();
        outstanding.undo = outstanding.undone_until.is_none().then_some(undo);
    }

    /// Drops the congestion window saved before the last reduction, which can then not be undone.
    pub(crate) fn clear_prior(&mut self) {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.undo = None;
        }
    }

    /// Handles a retransmission timeout. `head` is the end of the segment at SND.UNA, if only this
    /// segment and overdue ones count as lost. `None` means that all bytes in flight count as lost.
    /// Returns the number of bytes newly marked as lost.
    pub(crate) fn enter_loss(
        &mut self,
        timing: LossTiming,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
        head: Option<SeqNum>,
    ) -> u32 {
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5.1
        //# If an RTO occurs during loss recovery as specified in this document, RecoveryPoint MUST
        //# be set to HighData.
        //= https://www.rfc-editor.org/rfc/rfc6582#section-3.2
        //# After a retransmit timeout, record the highest sequence number transmitted in the
        //# variable recover, and exit the fast recovery procedure if applicable.
        let phase_before = std::mem::replace(&mut self.phase, Phase::Loss);
        self.point = snd_nxt;
        let head = head.filter(|_| self.sack);
        self.make_board(snd_una);
        self.start_forward_check(phase_before);
        let Some(outstanding) = &mut self.outstanding else { return 0 };
        outstanding.probe.cancel();
        let Some(board) = &mut outstanding.board else { return 0 };
        let lost = match (&outstanding.record, head) {
            (Some(record), Some(head)) => board.on_timeout(record, timing, snd_una, head),
            _ => {
                // After two timeouts, assume that the receiver has discarded bytes that it had
                // reported by SACK. RFC 2018 §8 permits a receiver to do this.
                board.sacked = Ranges::default();
                board.mark_all(snd_una, snd_nxt)
            }
        };
        board.reopened = false;
        board.reduced_at = timing.now;
        board.dup_acks = 0;
        board.dup_bytes = 0;
        board.force = true;
        lost
    }

    /// Marks the segments in flight below `end` to be retransmitted, because they were lost for a
    /// reason other than congestion.
    pub(crate) fn resend(&mut self, snd_una: SeqNum, end: SeqNum, snd_nxt: SeqNum) {
        // Keep the phase `Loss`, so that another timeout of the same segment is recognized as a
        // repetition and does not reduce ssthresh again.
        if self.phase != Phase::Loss {
            self.phase = Phase::Resend;
        }
        self.point = snd_nxt;
        let board = self.make_board(snd_una);
        board.mark_all(snd_una, end);
        board.force = true;
    }

    /// Handles a peer's window that reopened with data in flight. The peer had shrunk its window
    /// and dropped the segments. Retransmit from SND.UNA now instead of waiting for the backed-off
    /// RTO. A reopened window does not indicate congestion.
    ///
    /// We retransmit for this reason only once per flight and once per timeout. Otherwise a peer
    /// that closes and opens its window could make us send a whole congestion window for every two
    /// ACKs. Returns true if bytes are to be retransmitted.
    pub(crate) fn on_window_reopened(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) -> bool {
        match (self.phase, self.board_mut()) {
            (Phase::Open, _) => self.resend(snd_una, snd_nxt, snd_nxt),
            // While the peer's window was still closed, the retransmission timer resent some bytes,
            // which the peer dropped. Send them again.
            (Phase::Loss, Some(board)) if !board.reopened => {
                board.mark_all(snd_una, snd_nxt);
                board.force = true;
                board.reopened = true;
            }
            _ => return false,
        }
        true
    }

    /// Ends a recovery from a loss that was spurious. Returns the congestion window before the
    /// reduction.
    pub(crate) fn undo(&mut self, snd_una: SeqNum) -> Option<PriorWindow> {
        let outstanding = self.outstanding.as_mut()?;
        let undo = outstanding.undo.take()?;
        outstanding.undone_until = outstanding.record.as_ref().map(FlightRecord::end);
        if let Some(record) = &mut outstanding.record {
            record.rack.forget_resent();
        }
        // Bytes marked by `resend` did not arrive, so keep them marked as lost.
        if self.phase != Phase::Resend {
            if let Some(board) = &mut outstanding.board {
                board.unmark_lost(snd_una);
            }
            self.phase = Phase::Open;
        }
        Some(undo.prior)
    }
}
