//! Loss recovery: tracks which bytes are lost, in flight, or to be retransmitted.
//!
//! With SACK, losses are detected by time (RACK, RFC 8985), and tail loss probes are sent. Without
//! SACK, RFC 6582 (NewReno) applies. Each duplicate ACK then counts as a segment that left the
//! network, and only the first outstanding byte is known to be lost. In both cases, proportional
//! rate reduction (RFC 9937) sets the congestion window.
//!
//! ```text
//!   snd_una                   lost_end                 snd_nxt
//!      |  sacked, lost, resent   |  sacked or in flight   |
//! ```
//!
//! First transmissions are in the order of sequence numbers, so one number (`lost_end`) separates
//! those already checked for loss. Retransmissions are checked in the order of their send times.

mod boundaries;
mod episode;
mod forward;
mod prr;
mod scoreboard;
mod tail;
#[cfg(test)]
mod tests;
mod undo;

use self::boundaries::Boundaries;
pub(crate) use self::forward::ForwardAck;
use self::forward::ForwardCheck;
use self::prr::Prr;
pub(crate) use self::prr::RecoveryAck;
use self::scoreboard::Scoreboard;
pub(crate) use self::scoreboard::{Detected, Hole};
pub(crate) use self::tail::ProbeAck;
use self::tail::TailProbe;
use self::undo::Undo;
use crate::config::DUP_THRESH;
use crate::flight::{DeliveryRate, FlightRecord, Transmission};
use crate::rack::{AckTiming, LossTiming};
use crate::ranges::Ranges;
use crate::time::Instant;
use std::collections::VecDeque;
use towpath_wire::tcp::SeqNum;

/// Phase of loss recovery. All phases but `Open` end when SND.UNA reaches the value that SND.NXT
/// had at their start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No loss is known.
    Open,
    /// Loss was detected by ACKs.
    Recovery,
    /// Loss was detected by the retransmission timer.
    Loss,
    /// Segments in flight are retransmitted for a reason other than congestion. Either they exceed
    /// the path MTU, or they were lost because the peer closed its window.
    Resend,
}

impl Phase {
    /// Whether lost bytes are being repaired.
    pub(crate) fn is_repairing(self) -> bool {
        matches!(self, Phase::Recovery | Phase::Loss)
    }
}

/// State of loss recovery of a connection.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Present while several transmissions are in flight or bytes are missing. Afterwards the box
    /// keeps its allocations for reuse, until [`Self::release_idle_memory`].
    outstanding: Option<Box<Outstanding>>,
    /// Value of SND.NXT when the loss was detected (`recover` of RFC 6582).
    pub(crate) point: SeqNum,
    pub(crate) phase: Phase,
    sack: bool,
    /// Number of bytes, at most 65535, from the end of the last segment that is too long for some
    /// paths (more than `PAYLOAD_ALWAYS_FITS`) to SND.NXT. When the path MTU falls, only segments
    /// before that end are retransmitted.
    pub(crate) short_tail: u16,
}

/// Maximum capacity, in transmissions, of the list that is kept for reuse when all bytes are
/// acknowledged (5 KiB). A longer list is freed at once. `release_idle_memory` frees a kept list.
const SPARE_MAX: usize = 128;

/// Parts of [`Recovery`] that a connection without outstanding bytes does not need.
#[derive(Debug, Default)]
struct Outstanding {
    /// Record of the transmissions in flight. Present from the second transmission on.
    record: Option<FlightRecord>,
    board: Option<Scoreboard>,
    /// Congestion window during the current fast recovery.
    prr: Prr,
    probe: TailProbe,
    /// Check of the last retransmission timeout.
    forward: ForwardCheck,
    /// State before the last reduction of the congestion window; `None` if the reduction cannot be
    /// undone any more.
    undo: Option<Undo>,
    /// Value of SND.NXT when the last D-SACK arrived (`RACK.dsack_round` of RFC 8985); `None` after
    /// this number was acknowledged, one round trip later.
    dsack_round: Option<SeqNum>,
    /// Value of SND.NXT at the last undo of a reduction of the congestion window. No further
    /// reduction is undone before this number is acknowledged. Otherwise a peer could make us
    /// examine all transmissions again with each ACK.
    undone_until: Option<SeqNum>,
    /// Value of SND.NXT when the peer discarded bytes that it had reported by SACK. SACK blocks are
    /// ignored before this number is acknowledged. Otherwise a peer could report all bytes again
    /// with each ACK.
    reneged_until: Option<SeqNum>,
    /// Ends of records (MSG_EOR) in the unacknowledged part of the send buffer.
    boundaries: Boundaries,
    /// Allocation of the last flight record, reused for the next one.
    spare: VecDeque<Transmission>,
}

impl Outstanding {
    /// Records that the peer has received the bytes `left..right`. Returns true if some of these
    /// bytes were not reported before.
    fn on_sack(&mut self, ack: AckTiming, left: SeqNum, right: SeqNum) -> bool {
        let Some(board) = &mut self.board else { return false };
        if self.reneged_until.is_some() || !board.sacked.has_room(left, right) {
            return false;
        }
        if let Some(record) = &mut self.record {
            let sacked = &board.sacked;
            let is_held = |start: SeqNum, end: SeqNum| {
                sacked.missing_in(start, left) == 0 && sacked.missing_in(right, end) == 0
            };
            let mut from = left;
            while let Some((gap_left, gap_right)) = sacked.first_missing(from, right) {
                record.on_sacked(ack, gap_left, gap_right, is_held);
                from = gap_right;
            }
        }
        board.on_sack(left, right)
    }

    /// Handles an ACK that advances SND.UNA from `old` to `una`.
    fn on_advance(&mut self, ack: AckTiming, old: SeqNum, una: SeqNum, nxt: SeqNum, mss: u32) {
        let nothing = Ranges::default();
        let sacked = self.board.as_ref().map_or(&nothing, |board| &board.sacked);
        if let Some(record) = &mut self.record {
            record.on_acked(ack, una, sacked);
        }
        if let Some(board) = &mut self.board
            && board.on_advance(old, una, nxt, mss)
        {
            self.reneged_until = Some(nxt);
        }
        self.boundaries.trim(old, una);
        // D-SACKs arrive within a round trip. Drop the state for undoing before sequence numbers
        // wrap.
        if self.undo.as_ref().is_some_and(|undo| undo.is_old(una)) {
            self.undo = None;
        }
        for until in [&mut self.dsack_round, &mut self.undone_until, &mut self.reneged_until] {
            until.take_if(|end| end.leq(una));
        }
    }

    fn is_needed(&self) -> bool {
        self.record.is_some()
            || self.board.is_some()
            || self.undo.is_some()
            || !self.probe.is_clear()
            || !self.boundaries.is_empty()
            || self.spare.capacity() > 0
    }
}

impl Recovery {
    pub(crate) fn new(iss: SeqNum) -> Recovery {
        Recovery {
            outstanding: None,
            //= https://www.rfc-editor.org/rfc/rfc6582#section-3.2
            //# When the TCP protocol control block is initialized, recover is set to the initial
            //# send sequence number.
            point: iss,
            phase: Phase::Open,
            sack: false,
            short_tail: u16::MAX,
        }
    }

    pub(crate) fn set_sack(&mut self, sack: bool) {
        self.sack = sack;
    }

    /// Returns whether the next retransmission may exceed the congestion window.
    pub(crate) fn is_forced(&self) -> bool {
        self.board().is_some_and(|board| board.force)
    }

    /// Returns the number of bytes that the peer has received beyond its cumulative
    /// acknowledgement.
    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.board().map_or(0, |board| board.sacked_bytes())
    }

    /// Returns the number of bytes marked as lost, including those that were retransmitted.
    pub(crate) fn lost_bytes(&self, snd_una: SeqNum) -> u32 {
        self.board().map_or(0, |board| board.lost_bytes(snd_una))
    }

    /// Returns the number of bytes that were retransmitted and are not yet acknowledged.
    pub(crate) fn retransmitted_bytes(&self, snd_una: SeqNum) -> u32 {
        self.board().map_or(0, |board| board.resent_bytes(snd_una))
    }

    /// Returns Linux's `tcpi_ca_state` of the current phase: 0 open, 1 disorder, 3 recovery, 4
    /// loss.
    pub(crate) fn ca_state(&self) -> u8 {
        let is_disordered =
            || self.board().is_some_and(|it| it.dup_acks > 0 || it.sacked_bytes() > 0);
        match self.phase {
            Phase::Open if is_disordered() => 1,
            Phase::Open => 0,
            Phase::Recovery => 3,
            Phase::Loss | Phase::Resend => 4,
        }
    }

    /// Returns whether all entries of the scoreboard and the flight record lie between SND.UNA and
    /// SND.NXT.
    pub(crate) fn is_in_order(&self, snd_una: SeqNum, snd_nxt: SeqNum) -> bool {
        self.board().is_none_or(|board| board.is_in_order(snd_una, snd_nxt))
            && self.record().is_none_or(|record| record.is_in_order(snd_una, snd_nxt))
    }

    /// Returns the bytes that are assumed to be in the network (RFC 6675 `pipe`).
    //= https://www.rfc-editor.org/rfc/rfc9937#section-6.2
    //# SACK-enabled connections using RACK-TLP loss detection [RFC8985] or other loss detection
    //# algorithms MUST calculate inflight by starting with SND.NXT - SND.UNA, subtracting out bytes
    //# SACKed in the scoreboard, subtracting out bytes marked lost in the scoreboard, and adding
    //# bytes in the scoreboard that have been retransmitted since they were last marked lost.
    #[inline]
    pub(crate) fn pipe(&self, snd_una: SeqNum, snd_nxt: SeqNum) -> u32 {
        //= https://www.rfc-editor.org/rfc/rfc6675#section-4
        //# MUST set the "pipe" variable to an estimate of the number of octets that are currently
        //# in transit between the TCP sender and the TCP receiver.
        let flight = snd_nxt - snd_una;
        let Some(board) = self.board() else { return flight };
        flight.saturating_sub(board.sacked_bytes()).saturating_sub(board.lost.total())
    }

    /// Returns the next hole to retransmit: lost, not yet retransmitted, and not SACKed.
    //= https://www.rfc-editor.org/rfc/rfc6675#section-4
    //# the sequence range of one segment of up to SMSS octets starting with S2 MUST be returned.
    pub(crate) fn next_hole(&self) -> Option<Hole> {
        self.board()?.next_hole()
    }

    /// Records that the start of a hole was retransmitted, up to sequence number `right`.
    pub(crate) fn on_retransmit(
        &mut self,
        now: Instant,
        left: SeqNum,
        right: SeqNum,
        snd_una: SeqNum,
    ) {
        let nxt = self.record().map_or(right, FlightRecord::end);
        let board = self.make_board(snd_una);
        board.on_retransmit(now, left, right, nxt);
        let Some(outstanding) = &mut self.outstanding else { return };
        if outstanding.forward == ForwardCheck::Forward {
            outstanding.forward = ForwardCheck::Off;
        }
        if let Some(record) = &mut outstanding.record {
            record.on_resent(now, left, right);
        }
        if let Some(undo) = &mut outstanding.undo {
            undo.on_retransmit(now.millis(), right - left);
        }
    }

    /// Counts `bytes` sent in fast recovery, which proportional rate reduction limits.
    #[inline]
    pub(crate) fn on_bytes_sent(&mut self, bytes: u32) {
        if self.phase == Phase::Recovery
            && let Some(outstanding) = &mut self.outstanding
        {
            outstanding.prr.on_sent(bytes);
        }
    }

    /// Records a SACK block above SND.UNA. Returns true if it reports new bytes.
    pub(crate) fn on_sack(
        &mut self,
        ack: AckTiming,
        left: SeqNum,
        right: SeqNum,
        snd_una: SeqNum,
    ) -> bool {
        self.make_board(snd_una);
        self.outstanding.as_mut().is_some_and(|it| it.on_sack(ack, left, right))
    }

    /// Records an ACK that does not advance SND.UNA, but shows that a segment arrived.
    pub(crate) fn on_dup_ack(&mut self, segments: u16, mss: u32, snd_una: SeqNum, snd_nxt: SeqNum) {
        let sack = self.sack;
        let recover_fs = self.recover_fs();
        let board = self.make_board(snd_una);
        board.dup_acks = board.dup_acks.saturating_add(segments);
        if !sack {
            //= https://www.rfc-editor.org/rfc/rfc9937#section-6.2
            //# For non-SACK-enabled connections, instead of subtracting out bytes SACKed in the SACK
            //# scoreboard, senders MUST subtract out: min(RecoverFS, 1 SMSS for each preceding
            //# duplicate ACK in the fast recovery episode); the min() with RecoverFS is to protect
            //# against misbehaving receivers [Savage99].
            // The first segment in flight is missing, so duplicate ACKs cannot account for all
            // bytes in flight.
            let most = (snd_nxt - snd_una).saturating_sub(mss).min(recover_fs);
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

    fn make_board(&mut self, snd_una: SeqNum) -> &mut Scoreboard {
        let outstanding = self.outstanding.get_or_insert_default();
        outstanding.board.get_or_insert_with(|| Scoreboard::new(snd_una))
    }

    /// Returns the record of transmissions; `None` while fewer than two are in flight.
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

    /// Takes the allocation of the last flight record, for reuse.
    #[cold]
    pub(crate) fn take_spare(&mut self) -> VecDeque<Transmission> {
        self.outstanding.as_mut().map(|it| std::mem::take(&mut it.spare)).unwrap_or_default()
    }

    /// Drops the flight record when all its bytes are acknowledged, and returns its last delivery
    /// rate. Keeps the allocation for reuse unless it is large.
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

    /// Frees allocations that are kept for the next time that bytes are in flight.
    pub(crate) fn release_idle_memory(&mut self) {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.spare = VecDeque::new();
            outstanding.undo = None;
            outstanding.probe = TailProbe::default();
            self.end_outstanding();
        }
    }

    fn end_outstanding(&mut self) {
        if !self.outstanding.as_deref().is_some_and(Outstanding::is_needed) {
            self.outstanding = None;
        }
    }

    /// Adds the end of a record (MSG_EOR); no segment may contain bytes from before and after it.
    /// Returns false if there are too many record ends.
    #[cold]
    pub(crate) fn add_boundary(&mut self, end: SeqNum, snd_una: SeqNum) -> bool {
        self.outstanding.get_or_insert_default().boundaries.add(end, snd_una)
    }

    /// Returns how many of the `len` bytes from `seq` on may be in one segment, because of record
    /// boundaries (MSG_EOR).
    #[inline]
    pub(crate) fn within_boundary(&self, seq: SeqNum, len: u32, snd_una: SeqNum) -> u32 {
        let boundary = self.outstanding.as_ref().and_then(|it| it.boundaries.after(seq, snd_una));
        boundary.map_or(len, |end| len.min(end - seq))
    }

    /// Returns the last record boundary (MSG_EOR) before `seq` that is not before SND.UNA.
    pub(crate) fn boundary_before(&self, seq: SeqNum, snd_una: SeqNum) -> Option<SeqNum> {
        self.outstanding.as_ref()?.boundaries.before(seq, snd_una)
    }

    /// Returns whether losses are detected without waiting for the reordering window. The result is
    /// true in recovery, or if three segments have arrived beyond a hole (RFC 8985 §6.2, step 4).
    pub(crate) fn is_loss_certain(&self, mss: u32) -> bool {
        let thresh = u32::from(DUP_THRESH);
        self.phase.is_repairing()
            || self.board().is_some_and(|board| {
                board.dup_acks >= DUP_THRESH
                    || board.sacked.as_slice().len() >= usize::from(DUP_THRESH)
                    || board.sacked.total() > (thresh - 1) * mss
            })
    }

    /// Returns whether bytes may be missing, so that [`Self::detect`] must be called.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        self.board().is_some()
    }

    /// Returns whether there is a flight record, or other state about outstanding bytes.
    #[inline]
    pub(crate) fn is_tracking(&self) -> bool {
        self.outstanding.is_some()
    }

    /// Marks lost bytes: by time with SACK, otherwise the first segment after three duplicate ACKs.
    //= https://www.rfc-editor.org/rfc/rfc8985#section-1
    //# it is RECOMMENDED as an alternative to that earlier approach.
    pub(crate) fn detect(
        &mut self,
        timing: LossTiming,
        mss: u32,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
    ) -> Detected {
        let (may_enter, sack) = (self.may_enter(snd_una), self.sack);
        let Some(outstanding) = &mut self.outstanding else { return Detected::default() };
        let Some(board) = &mut outstanding.board else { return Detected::default() };
        match &outstanding.record {
            //= https://www.rfc-editor.org/rfc/rfc8985#section-4
            //# The connection MUST use selective acknowledgment (SACK) options [RFC2018], and the
            //# sender MUST keep SACK scoreboard information on a per-connection basis
            Some(record) if sack => board.detect(record, timing, snd_una),
            //= https://www.rfc-editor.org/rfc/rfc6582#section-3.2
            //# When the third duplicate ACK is received, the TCP sender first checks the value of
            //# recover to see if the Cumulative Acknowledgment field covers more than recover.
            _ if board.dup_acks >= DUP_THRESH && may_enter && !sack => {
                let lost = board.mark_lost_until(snd_una, snd_nxt.min(snd_una + mss));
                Detected { lost, again: false }
            }
            _ => Detected::default(),
        }
    }

    /// Returns the time at which overtaken bytes count as lost, or [`Instant::FAR`] if there are
    /// none.
    #[inline]
    pub(crate) fn reorder_deadline(&self) -> Instant {
        self.board().map_or(Instant::FAR, |board| board.reorder_at)
    }

    fn end_board(&mut self) {
        let Some(outstanding) = &mut self.outstanding else { return };
        outstanding.board = None;
        self.end_outstanding();
    }

    /// Returns whether bytes are marked as lost and recovery should start.
    pub(crate) fn should_enter(&self, snd_una: SeqNum) -> bool {
        self.may_enter(snd_una) && self.board().is_some_and(|board| board.lost.total() > 0)
    }

    /// Returns whether recovery may start. Without SACK, duplicate ACKs for bytes sent during an
    /// earlier recovery are ignored (RFC 6582 §3.2).
    fn may_enter(&self, snd_una: SeqNum) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5.1
        //# a new recovery phase (as described in Section 5) MUST NOT be initiated until HighACK is
        //# greater than or equal to the new value of RecoveryPoint.
        self.phase == Phase::Open && (self.sack || snd_una.gt(self.point))
    }

    /// Returns the window of fast recovery after an ACK, or `None` to keep the current one.
    //= https://www.rfc-editor.org/rfc/rfc9937#section-5
    //# Thus, PRR MAY be used in conjunction with the loss detection algorithms specified or
    //# described in the following documents:
    //= https://www.rfc-editor.org/rfc/rfc9937#section-5
    //# it is RECOMMENDED that PRR is implemented together with RACK-TLP loss recovery [RFC8985].
    pub(crate) fn window(&mut self, ack: RecoveryAck) -> Option<u32> {
        if self.phase != Phase::Recovery {
            return None;
        }
        self.outstanding.as_mut()?.prr.on_ack(ack)
    }

    /// Returns the bytes in flight when the current fast recovery began, or the maximum if there is
    /// none.
    fn recover_fs(&self) -> u32 {
        match (&self.outstanding, self.phase) {
            (Some(outstanding), Phase::Recovery) => outstanding.prr.recover_fs(),
            _ => u32::MAX,
        }
    }

    /// Handles an advance of SND.UNA from `old` to `snd_una`. Returns true if it ends a recovery.
    pub(crate) fn on_advance(
        &mut self,
        ack: AckTiming,
        old: SeqNum,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
        mss: u32,
    ) -> bool {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.on_advance(ack, old, snd_una, snd_nxt, mss);
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
                //= https://www.rfc-editor.org/rfc/rfc6582#section-3.2
                //# then this is a partial ACK. In this case, retransmit the first unacknowledged
                //# segment.
                board.mark_lost_until(snd_una, snd_nxt.min(snd_una + mss));
                board.force = true;
            }
            return false;
        }
        let over = self.phase != Phase::Open;
        if over {
            //= https://www.rfc-editor.org/rfc/rfc6675#section-5
            //# An incoming cumulative ACK for a sequence number greater than RecoveryPoint signals
            //# the end of loss recovery, and the loss recovery phase MUST be terminated.
            self.phase = Phase::Open;
            if let Some(board) = self.board_mut() {
                board.dup_bytes = 0;
                board.force = false;
            }
        } else {
            // Move the mark along with SND.UNA. Otherwise it could fall half the sequence space
            // behind, where comparisons of sequence numbers are inverted.
            //= https://www.rfc-editor.org/rfc/rfc6582#section-6
            //# the state variable recover may also need to be updated in order to continue to
            //# permit possible entry into fast recovery
            self.point = snd_una - 1;
        }
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5
        //# Any information contained in the scoreboard for sequence numbers greater than the new
        //# value of HighACK SHOULD NOT be cleared when leaving the loss recovery phase.
        if self.board().is_some_and(|board| board.is_clear()) {
            self.end_board();
        }
        over
    }

    /// Returns whether the timestamp echoed by an ACK that advances SND.UNA shows that the original
    /// transmission arrived. The retransmission was then unnecessary.
    pub(crate) fn is_refuted_by_echo(&self, echo: u32) -> bool {
        let undo = self.outstanding.as_ref().and_then(|it| it.undo.as_ref());
        undo.is_some_and(|undo| undo.is_refuted_by_echo(echo))
    }

    /// Handles a D-SACK of the bytes `left..right`. Returns true if all retransmissions of the last
    /// recovery are now known to be spurious.
    pub(crate) fn on_dsack(&mut self, left: SeqNum, right: SeqNum) -> bool {
        let undo = self.outstanding.as_mut().and_then(|it| it.undo.as_mut());
        undo.is_some_and(|undo| undo.on_dsack(left, right))
    }

    /// Starts a round trip, after a D-SACK has widened the reordering window. Further D-SACKs in
    /// this round trip do not widen it. Returns false if such a round trip is already in progress.
    pub(crate) fn start_dsack_round(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) -> bool {
        let Some(outstanding) = &mut self.outstanding else { return true };
        let is_in_round = outstanding.dsack_round.is_some_and(|end| snd_una.lt(end));
        if !is_in_round {
            outstanding.dsack_round = Some(snd_nxt);
        }
        !is_in_round
    }
}
