//! Loss recovery: bytes that are lost, in flight, or to be retransmitted.
//!
//! Follows RFC 6675 with SACK, and RFC 6582 (NewReno) without it, using the same variables. Without
//! SACK each duplicate ACK counts as a segment that left the network, and only the first
//! outstanding byte is known to be lost.
//!
//! ```text
//!   snd_una        high_rxt        lost_end                 snd_nxt
//!      |  sent again   |  to be sent    |     in flight        |
//!      |               |  again         |                      |     minus everything in `sacked`
//! ```
//!
//! A single mark for lost bytes suffices because loss is monotone. If a byte is lost, every byte
//! before it that the peer lacks is lost, too.

#[cfg(test)]
mod tests;

use crate::config::DUP_THRESH;
use crate::flight::{DeliveryRate, FlightRecord, Transmission};
use crate::ranges::{Inserted, Ranges};
use crate::time::Instant;
use std::collections::VecDeque;
use towpath_wire::tcp::{SackBlocks, SeqNum};

/// Phase of loss recovery. Except for `Open`, a phase ends when SND.UNA reaches the SND.NXT of its
/// start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No loss is known.
    Open,
    /// Loss was detected by ACKs.
    Recovery,
    /// Loss was detected by the retransmission timer.
    Loss,
    /// Segments in flight are retransmitted although there was no congestion. Either they exceed
    /// the path MTU, or the peer closed its window before they arrived.
    Resend,
}

/// The sender's state of its outstanding bytes.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Exists while several transmissions are in flight or bytes are missing. Afterwards the box
    /// keeps memory for the next flight, until [`Self::release_idle_memory`].
    outstanding: Option<Box<Outstanding>>,
    /// SND.NXT when the loss was detected (RFC 6582's `recover`).
    pub(crate) point: SeqNum,
    pub(crate) phase: Phase,
    sack: bool,
    /// Distance to SND.NXT from the end of the last segment that may be too long for some path
    /// (more than `PAYLOAD_ALWAYS_FITS`). At most 65535. When the path MTU falls, only segments
    /// before that end are retransmitted.
    pub(crate) short_tail: u16,
}

/// Maximum capacity, in transmissions, of the list kept for the next flight when all bytes are
/// acknowledged (5 KiB). A longer list is freed at once, a kept one by `release_idle_memory`.
const SPARE_MAX: usize = 128;

/// Parts of [`Recovery`] that an idle connection does not need.
#[derive(Debug, Default)]
struct Outstanding {
    /// Transmissions in flight; exists from the second transmission of a flight on.
    record: Option<FlightRecord>,
    /// Exists only while bytes are missing, or retransmitted and not acknowledged.
    board: Option<Scoreboard>,
    /// Memory of the last record, reused to avoid an allocation per flight.
    spare: VecDeque<Transmission>,
}

/// Scoreboard of RFC 6675: the bytes that the peer has, and the bytes that it lacks.
#[derive(Debug)]
struct Scoreboard {
    /// Selectively acknowledged bytes.
    sacked: Ranges,
    /// SND.NXT when the first hole was last retransmitted.
    head_mark: SeqNum,
    /// Bytes below this were retransmitted, except those in `sacked`.
    high_rxt: SeqNum,
    /// SND.NXT when any hole was last retransmitted.
    rxt_mark: SeqNum,
    /// Bytes below this are lost, except those in `sacked`.
    lost_end: SeqNum,
    /// Without SACK: bytes that have arrived according to duplicate ACKs.
    dup_bytes: u32,
    dup_acks: u16,
    /// Whether the next retransmission may exceed the congestion window (RFC 6675 §5 step 4.3).
    force: bool,
    /// Whether the rescue retransmission of this recovery was used (RFC 6675 §4, NextSeg rule 4).
    rescued: bool,
    /// Whether the retransmission of the first hole was lost, too.
    head_again: bool,
    /// Whether the retransmissions of the current timeout were repeated because the window
    /// reopened.
    reopened: bool,
}

impl Scoreboard {
    /// Creates a scoreboard on which nothing is missing.
    fn new(snd_una: SeqNum, snd_nxt: SeqNum) -> Scoreboard {
        Scoreboard {
            sacked: Ranges::default(),
            head_mark: snd_nxt,
            high_rxt: snd_una,
            rxt_mark: snd_nxt,
            lost_end: snd_una,
            dup_bytes: 0,
            dup_acks: 0,
            force: false,
            rescued: false,
            head_again: false,
            reopened: false,
        }
    }

    /// Returns the bytes that the peer has beyond its cumulative acknowledgement.
    fn sacked_bytes(&self) -> u32 {
        self.sacked.total() + self.dup_bytes
    }

    /// Whether nothing is reported, lost or retransmitted. The scoreboard then equals a new one and
    /// can be freed.
    fn is_clear(&self, snd_una: SeqNum) -> bool {
        self.dup_acks == 0
            && self.sacked_bytes() == 0
            && self.high_rxt.leq(snd_una)
            && self.lost_end.leq(snd_una)
    }

    /// Handles an advance of SND.UNA from `old` to `snd_una`.
    fn on_advance(&mut self, old: SeqNum, snd_una: SeqNum, snd_nxt: SeqNum, mss: u32) {
        self.dup_acks = 0;
        self.head_again = false;
        self.head_mark = snd_nxt;
        self.sacked.trim_below(snd_una);
        // If SND.UNA itself is SACKed, the receiver reneged (RFC 2018 §8); drop the scoreboard.
        if self.sacked.as_slice().first().is_some_and(|range| range.0 == snd_una) {
            self.sacked = Ranges::default();
        }
        // Without SACK: one acknowledged segment was the missing one. Each of the remaining ones
        // was counted when its duplicate ACK arrived.
        let counted = (snd_una - old).saturating_sub(mss);
        self.dup_bytes =
            self.dup_bytes.saturating_sub(counted).min((snd_nxt - snd_una).saturating_sub(mss));
        self.high_rxt = self.high_rxt.max(snd_una);
        self.lost_end = self.lost_end.max(snd_una);
    }
}

impl Outstanding {
    /// Records that the peer has `left..right`. Returns true if part of it was not reported before.
    fn on_sack(&mut self, now: Instant, left: SeqNum, right: SeqNum) -> bool {
        let Some(board) = &mut self.board else { return false };
        if let Some(record) = &mut self.record {
            let sacked = &board.sacked;
            let is_held = |start: SeqNum, end: SeqNum| {
                sacked.missing_in(start, left) == 0 && sacked.missing_in(right, end) == 0
            };
            let mut from = left;
            while let Some((gap_left, gap_right)) = sacked.first_missing(from, right) {
                record.on_sacked(now, gap_left, gap_right, is_held);
                from = gap_right;
            }
        }
        board.sacked.insert(left, right) == Inserted::New
    }
}

/// A range of bytes to retransmit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) left: SeqNum,
    pub(crate) right: SeqNum,
}

impl Recovery {
    pub(crate) fn new(iss: SeqNum) -> Recovery {
        Recovery {
            outstanding: None,
            point: iss,
            phase: Phase::Open,
            sack: false,
            short_tail: u16::MAX,
        }
    }

    pub(crate) fn set_sack(&mut self, sack: bool) {
        self.sack = sack;
    }

    pub(crate) fn dup_acks(&self) -> u16 {
        self.board().map_or(0, |board| board.dup_acks)
    }

    /// Whether a retransmission may exceed the congestion window.
    pub(crate) fn is_forced(&self) -> bool {
        self.board().is_some_and(|board| board.force)
    }

    /// Returns the bytes that the peer has beyond its cumulative acknowledgement.
    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.board().map_or(0, |board| board.sacked_bytes())
    }

    /// Returns the bytes deemed lost, including those that were retransmitted.
    pub(crate) fn lost_bytes(&self, snd_una: SeqNum) -> u32 {
        self.board().map_or(0, |board| board.sacked.missing_in(snd_una, board.lost_end))
    }

    /// Returns the bytes that were retransmitted and not acknowledged.
    pub(crate) fn retransmitted_bytes(&self, snd_una: SeqNum) -> u32 {
        self.board().map_or(0, |board| board.sacked.missing_in(snd_una, board.high_rxt))
    }

    /// Whether the scoreboard lies within SND.UNA and SND.NXT, and its ranges are ascending.
    pub(crate) fn is_in_order(&self, snd_una: SeqNum, snd_nxt: SeqNum) -> bool {
        if self.record().is_some_and(|record| !record.is_in_order(snd_una, snd_nxt)) {
            return false;
        }
        let Some(board) = self.board() else { return true };
        let is_within = |seq: SeqNum| seq.is_within(snd_una, snd_nxt - snd_una + 1);
        let sacked = board.sacked.as_slice();
        [board.high_rxt, board.lost_end, board.head_mark].into_iter().all(is_within)
            && sacked.iter().all(|range| is_within(range.0) && is_within(range.1))
            && sacked.iter().all(|range| range.0.lt(range.1))
            && sacked.is_sorted_by(|a, b| a.1.lt(b.0))
            && sacked.first().is_none_or(|range| range.0 != snd_una)
    }

    /// Returns the bytes that are assumed to be in the network (RFC 6675 `pipe`).
    #[inline]
    pub(crate) fn pipe(&self, snd_una: SeqNum, snd_nxt: SeqNum) -> u32 {
        let flight = snd_nxt - snd_una;
        let Some(board) = self.board() else { return flight };
        let lost_end = board.lost_end.min(snd_nxt);
        let waiting = board.sacked.missing_in(board.high_rxt.max(snd_una), lost_end);
        flight.saturating_sub(board.sacked_bytes()).saturating_sub(waiting)
    }

    /// Returns the next hole to retransmit: lost, not yet retransmitted, and not SACKed.
    pub(crate) fn next_hole(&self, snd_una: SeqNum) -> Option<Hole> {
        let board = self.board()?;
        let from = board.high_rxt.max(snd_una);
        if from.geq(board.lost_end) {
            return None;
        }
        let (left, right) = board.sacked.first_missing(from, board.lost_end)?;
        Some(Hole { left, right })
    }

    /// Returns the first hole if its retransmission was lost, because later bytes have arrived.
    /// Otherwise only the timer could repair a lost retransmission.
    pub(crate) fn lost_head(&self, snd_una: SeqNum) -> Option<Hole> {
        let board = self.board().filter(|board| board.head_again)?;
        let right = board.sacked.as_slice().first()?.0;
        Some(Hole { left: snd_una, right })
    }

    /// Returns the hole to retransmit when recovery has nothing else to send (NextSeg rule 4). We
    /// take the last hole, because no later SACK can reveal its loss.
    pub(crate) fn rescue_hole(&self, snd_una: SeqNum, mss: u32) -> Option<Hole> {
        let board = self.board()?;
        if self.phase != Phase::Recovery || board.rescued || !self.sack {
            return None;
        }
        let (mut left, mut right) = (board.high_rxt.max(board.lost_end).max(snd_una), self.point);
        for &(l, r) in board.sacked.as_slice().iter().rev() {
            if r.lt(right) {
                left = left.max(r);
                break;
            }
            right = right.min(l);
        }
        left.lt(right).then(|| Hole { left: left.max(right - mss), right })
    }

    /// Records that a hole was retransmitted up to `right`.
    pub(crate) fn on_retransmit(
        &mut self,
        left: SeqNum,
        right: SeqNum,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
    ) {
        let Some(board) = self.board_mut() else { return };
        board.force = false;
        if left == snd_una {
            board.head_again = false;
            board.head_mark = snd_nxt;
        }
        if left.lt(board.lost_end) {
            board.high_rxt = board.high_rxt.max(right);
            board.rxt_mark = snd_nxt;
        } else {
            board.rescued = true;
        }
    }

    /// Records the SACK blocks of an ACK. Returns true if they report new bytes.
    pub(crate) fn on_sack(
        &mut self,
        now: Instant,
        blocks: &SackBlocks,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
    ) -> bool {
        if !self.sack {
            return false;
        }
        let flight = snd_nxt - snd_una;
        let mut news = false;
        for (left, right) in blocks.iter() {
            // The peer may send arbitrary edges, so we compare their distances from SND.UNA with
            // the flight. Old blocks and D-SACK blocks (RFC 2883) are below SND.UNA and ignored.
            let (start, end) = (left - snd_una, right - snd_una);
            //= https://www.rfc-editor.org/rfc/rfc2018#section-3
            //# Each block represents received bytes of data that are contiguous and
            //# isolated; that is, the bytes just below the block, (Left Edge of
            //# Block - 1), and just above the block, (Right Edge of Block), have not
            //# been received.
            // A block that starts at SND.UNA would have been acknowledged instead.
            if 0 < start && start < end && end <= flight {
                self.make_board(snd_una, snd_nxt);
                news |= self.outstanding.as_mut().is_some_and(|it| it.on_sack(now, left, right));
            }
        }
        news
    }

    /// Records an ACK that does not advance SND.UNA, but shows that a segment arrived.
    pub(crate) fn on_dup_ack(&mut self, segments: u16, mss: u32, snd_una: SeqNum, snd_nxt: SeqNum) {
        let sack = self.sack;
        let board = self.make_board(snd_una, snd_nxt);
        board.dup_acks = board.dup_acks.saturating_add(segments);
        if !sack {
            // At least the first segment is missing, so the count stays below the flight.
            let most = (snd_nxt - snd_una).saturating_sub(mss);
            board.dup_bytes =
                board.dup_bytes.saturating_add(u32::from(segments).saturating_mul(mss)).min(most);
        }
    }

    #[inline]
    fn board(&self) -> Option<&Scoreboard> {
        self.outstanding.as_ref()?.board.as_ref()
    }

    #[inline]
    fn board_mut(&mut self) -> Option<&mut Scoreboard> {
        self.outstanding.as_mut()?.board.as_mut()
    }

    fn make_board(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) -> &mut Scoreboard {
        let outstanding = self.outstanding.get_or_insert_default();
        outstanding.board.get_or_insert_with(|| Scoreboard::new(snd_una, snd_nxt))
    }

    /// Returns the record of the flight; `None` while fewer than two transmissions are in flight.
    #[inline]
    pub(crate) fn record(&self) -> Option<&FlightRecord> {
        self.outstanding.as_ref()?.record.as_ref()
    }

    #[inline]
    pub(crate) fn record_mut(&mut self) -> Option<&mut FlightRecord> {
        self.outstanding.as_mut()?.record.as_mut()
    }

    #[cold]
    pub(crate) fn set_record(&mut self, record: FlightRecord) {
        self.outstanding.get_or_insert_default().record = Some(record);
    }

    /// Takes the memory of the last record for reuse.
    #[cold]
    pub(crate) fn take_spare(&mut self) -> VecDeque<Transmission> {
        self.outstanding.as_mut().map(|it| std::mem::take(&mut it.spare)).unwrap_or_default()
    }

    /// Ends the record when its flight is acknowledged, and returns its rate. Keeps the memory for
    /// reuse unless it is large.
    #[cold]
    pub(crate) fn end_record(&mut self) -> Option<DeliveryRate> {
        let outstanding = self.outstanding.as_mut()?;
        let record = outstanding.record.take()?;
        let rate = record.rate();
        let spare = record.into_transmissions();
        if spare.capacity() <= SPARE_MAX {
            outstanding.spare = spare;
        }
        self.end_outstanding();
        Some(rate)
    }

    /// Frees memory that is kept for the next flight.
    pub(crate) fn release_idle_memory(&mut self) {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.spare = VecDeque::new();
            self.end_outstanding();
        }
    }

    fn end_outstanding(&mut self) {
        let is_needed =
            |it: &Outstanding| it.record.is_some() || it.board.is_some() || it.spare.capacity() > 0;
        if !self.outstanding.as_deref().is_some_and(is_needed) {
            self.outstanding = None;
        }
    }

    /// Marks bytes as lost according to the scoreboard (RFC 6675 IsLost). Returns true if
    /// retransmissions were lost, which counts as congestion again (RFC 5681 section 4.3).
    pub(crate) fn detect(&mut self, mss: u32, snd_una: SeqNum, snd_nxt: SeqNum) -> bool {
        let (may_enter, phase, sack) = (self.may_enter(snd_una), self.phase, self.sack);
        let Some(board) = self.board_mut() else { return false };
        let mut above = 0;
        for (count, &(left, right)) in board.sacked.as_slice().iter().rev().enumerate() {
            above += right - left;
            if count + 1 >= usize::from(DUP_THRESH) || above > (u32::from(DUP_THRESH) - 1) * mss {
                board.lost_end = board.lost_end.max(left);
                break;
            }
        }
        let head_only = !sack || board.lost_end.leq(snd_una);
        if head_only && board.dup_acks >= DUP_THRESH && may_enter {
            let end = board.sacked.as_slice().first();
            let head = snd_nxt.min(snd_una + mss);
            board.lost_end = board.lost_end.max(end.map_or(head, |range| head.min(range.0)));
        }
        if phase != Phase::Open && board.high_rxt.gt(snd_una) {
            let highest = board.sacked.as_slice().last();
            let is_beyond = |mark| {
                let beyond = highest.map_or(0, |range| range.1.distance(mark));
                i64::from(beyond) >= i64::from(DUP_THRESH) * i64::from(mss)
            };
            board.head_again |= is_beyond(board.head_mark);
            if phase != Phase::Resend && is_beyond(board.rxt_mark) {
                // New bytes sent after the last retransmission have arrived, so every hole that
                // remains is lost once more. Retransmit all of them in this recovery. Otherwise
                // each hole would take a round trip, because only the head is repaired, or a
                // timeout.
                board.lost_end = board.lost_end.max(board.high_rxt);
                board.high_rxt = snd_una;
                board.rxt_mark = snd_nxt;
                board.head_again = false;
                self.point = snd_nxt;
                return true;
            }
        }
        false
    }

    fn end_board(&mut self) {
        let Some(outstanding) = &mut self.outstanding else { return };
        outstanding.board = None;
        self.end_outstanding();
    }

    /// Whether a loss is known and recovery should start.
    pub(crate) fn should_enter(&self, snd_una: SeqNum) -> bool {
        self.may_enter(snd_una) && self.board().is_some_and(|board| board.lost_end.gt(snd_una))
    }

    /// Whether recovery may start. Without SACK, duplicate ACKs for bytes sent during an earlier
    /// recovery are ignored (RFC 6582 §3.2).
    fn may_enter(&self, snd_una: SeqNum) -> bool {
        self.phase == Phase::Open && (self.sack || snd_una.gt(self.point))
    }

    pub(crate) fn enter(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) {
        self.phase = Phase::Recovery;
        self.point = snd_nxt;
        let board = self.make_board(snd_una, snd_nxt);
        // Retransmissions of the previous recovery are still in flight, and not lost again.
        board.high_rxt = board.high_rxt.max(snd_una);
        board.head_mark = snd_nxt;
        board.force = true;
        board.rescued = false;
    }

    /// Handles a retransmission timeout: marks every byte as lost that the peer has not SACKed.
    pub(crate) fn enter_loss(&mut self, snd_una: SeqNum, snd_nxt: SeqNum, again: bool) {
        self.phase = Phase::Loss;
        self.point = snd_nxt;
        let board = self.make_board(snd_una, snd_nxt);
        if again {
            // A receiver may discard bytes that it has SACKed (RFC 2018 §8); assume so after two
            // timeouts.
            board.sacked = Ranges::default();
        }
        board.reopened = false;
        board.high_rxt = snd_una;
        board.rxt_mark = snd_nxt;
        board.lost_end = snd_nxt;
        board.dup_acks = 0;
        board.dup_bytes = 0;
        board.head_again = false;
        board.head_mark = snd_nxt;
        board.force = true;
        board.rescued = false;
    }

    /// Retransmits the segments in flight below `end`, which did not arrive for a reason other than
    /// congestion.
    pub(crate) fn resend(&mut self, snd_una: SeqNum, end: SeqNum, snd_nxt: SeqNum) {
        // Keep the phase `Loss`, so that another timeout of the same segment is recognized as a
        // repetition and does not reduce ssthresh again.
        if self.phase != Phase::Loss {
            self.phase = Phase::Resend;
        }
        self.point = snd_nxt;
        let board = self.make_board(snd_una, snd_nxt);
        board.high_rxt = snd_una;
        board.lost_end = board.lost_end.max(end);
        board.head_again = false;
        board.head_mark = snd_nxt;
        board.force = true;
        board.rescued = false;
    }

    /// Handles a window that reopened with data in flight. The peer had shrunk its window, and
    /// dropped the segments in flight. Retransmit from SND.UNA now instead of waiting for the
    /// backed-off RTO. A reopened window does not indicate congestion.
    ///
    /// Bytes are retransmitted in this way only once per flight, and once per timeout. Otherwise a
    /// peer that closes and opens its window could make us send a congestion window for every two
    /// ACKs. Returns true if bytes are to be retransmitted.
    pub(crate) fn on_window_reopened(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) -> bool {
        match (self.phase, self.board_mut()) {
            (Phase::Open, _) => self.resend(snd_una, snd_nxt, snd_nxt),
            // The timer retransmitted some bytes while the window was still closed.
            (Phase::Loss, Some(board)) if !board.reopened => {
                board.high_rxt = snd_una;
                board.force = true;
                board.reopened = true;
            }
            _ => return false,
        }
        true
    }

    /// Handles an advance of SND.UNA from `old` to `snd_una`. Returns true if it ends a recovery.
    pub(crate) fn on_advance(
        &mut self,
        old: SeqNum,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
        mss: u32,
    ) -> bool {
        if let Some(board) = self.board_mut() {
            board.on_advance(old, snd_una, snd_nxt, mss);
        }
        if snd_una.lt(self.point) {
            if self.phase == Phase::Recovery
                && !self.sack
                && let Some(board) = self.board_mut()
                && board.high_rxt == snd_una
            {
                // After a partial acknowledgement the next segment is lost, too (RFC 6582 §3.2 step
                // 3). An ACK of only part of a retransmission does not count. Otherwise a peer that
                // acknowledges byte by byte would cause a retransmission for each ACK.
                board.lost_end = board.lost_end.max(snd_nxt.min(snd_una + mss));
                board.force = true;
            }
            return false;
        }
        let over = self.phase != Phase::Open;
        if over {
            self.phase = Phase::Open;
            if let Some(board) = self.board_mut() {
                board.dup_bytes = 0;
                board.force = false;
            }
        } else {
            // Move the mark along with SND.UNA. Otherwise it could fall half the sequence space
            // behind, where comparisons of sequence numbers are inverted.
            self.point = snd_una - 1;
        }
        if self.board().is_some_and(|board| board.is_clear(snd_una)) {
            self.end_board();
        }
        over
    }
}
