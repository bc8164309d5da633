//! Scoreboard of loss recovery: the bytes that the peer has received, the bytes that are lost, and
//! the retransmissions in flight.

use crate::flight::{FlightRecord, LossVerdict};
use crate::rack::LossTiming;
use crate::ranges::{Inserted, Ranges};
use crate::time::Instant;
use std::collections::VecDeque;
use towpath_wire::tcp::SeqNum;

/// A range of sequence numbers to retransmit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) left: SeqNum,
    pub(crate) right: SeqNum,
}

/// Maximum number of retransmissions that are tracked individually: 4 MB of single segments. The
/// loss of further retransmissions is detected only by the retransmission timer.
const RESENT_MAX: usize = 4096;

/// Scoreboard of loss recovery. Present only while bytes are missing, or retransmitted but not yet
/// acknowledged.
#[derive(Debug)]
pub(super) struct Scoreboard {
    /// Bytes that the peer has reported by SACK.
    pub(super) sacked: Ranges,
    /// Lost bytes that are still to be retransmitted; disjoint from `sacked`.
    pub(super) lost: Ranges,
    /// Retransmissions in flight, oldest first.
    resent: VecDeque<Resent>,
    /// Bytes below this sequence number have arrived, are lost, or were retransmitted. Their first
    /// transmission need not be checked for loss.
    lost_end: SeqNum,
    /// Sequence number after the last retransmission, at least SND.UNA.
    pub(super) high_rxt: SeqNum,
    /// Number of bytes that have arrived according to duplicate ACKs; used without SACK.
    pub(super) dup_bytes: u32,
    pub(super) dup_acks: u16,
    /// Whether the next retransmission may exceed the congestion window.
    pub(super) force: bool,
    /// Whether the retransmissions after the current timeout were repeated because the peer's
    /// window reopened.
    pub(super) reopened: bool,
    /// Time of the last reduction of the congestion window in this recovery.
    pub(super) reduced_at: Instant,
    /// Time at which the oldest transmission that a later transmission has overtaken counts as
    /// lost; [`Instant::FAR`] if there is none.
    pub(super) reorder_at: Instant,
    /// Number of times that first transmissions were checked for loss.
    #[cfg(test)]
    pub(super) judgements: usize,
}

/// A retransmission of a range of bytes that is in flight.
#[derive(Debug, Clone, Copy)]
struct Resent {
    left: SeqNum,
    right: SeqNum,
    sent: Instant,
    /// Value of SND.NXT when the retransmission was sent. Bytes beyond it were sent later, even if
    /// at the same time.
    nxt: SeqNum,
    /// Whether the bytes were marked as lost before. False for a tail loss probe.
    was_lost: bool,
}

/// Result of loss detection after an ACK or timeout.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Detected {
    /// Number of bytes newly marked as lost.
    pub(crate) lost: u32,
    /// Whether retransmissions sent after the last reduction of the congestion window were lost,
    /// which indicates congestion again (RFC 5681 section 4.3).
    pub(crate) again: bool,
}

impl Scoreboard {
    /// Creates a scoreboard without missing bytes. The oldest unacknowledged sequence number is
    /// `una`.
    pub(super) fn new(una: SeqNum) -> Scoreboard {
        Scoreboard {
            sacked: Ranges::default(),
            lost: Ranges::default(),
            resent: VecDeque::new(),
            lost_end: una,
            high_rxt: una,
            dup_bytes: 0,
            dup_acks: 0,
            force: false,
            reopened: false,
            reduced_at: Instant::ZERO,
            reorder_at: Instant::FAR,
            #[cfg(test)]
            judgements: 0,
        }
    }

    /// Returns the number of bytes that the peer has received beyond its cumulative
    /// acknowledgement.
    pub(super) fn sacked_bytes(&self) -> u32 {
        self.sacked.total() + self.dup_bytes
    }

    /// Returns the number of retransmitted bytes that are not yet acknowledged.
    pub(super) fn resent_bytes(&self, una: SeqNum) -> u32 {
        self.union_of_resent(una, |_| true).map(|(left, right)| self.missing(left, right)).sum()
    }

    /// Returns the number of bytes marked as lost, including those that were retransmitted.
    pub(super) fn lost_bytes(&self, una: SeqNum) -> u32 {
        let resent = self.union_of_resent(una, |it| it.was_lost).map(|(left, right)| {
            let lost_again = (right - left) - self.lost.missing_in(left, right);
            self.missing(left, right) - lost_again
        });
        self.lost.total() + resent.sum::<u32>()
    }

    fn missing(&self, left: SeqNum, right: SeqNum) -> u32 {
        self.sacked.missing_in(left, right)
    }

    /// Returns disjoint ranges with the bytes of the selected retransmissions, which may overlap
    /// after a timeout.
    fn union_of_resent(
        &self,
        una: SeqNum,
        is_wanted: impl Fn(&Resent) -> bool,
    ) -> impl Iterator<Item = (SeqNum, SeqNum)> {
        let wanted = self.resent.iter().filter(|it| is_wanted(it) && una.lt(it.right));
        let mut ranges: Vec<_> = wanted.map(|it| (it.left.max(una), it.right)).collect();
        ranges.sort_by_key(|range| range.0 - una);
        let mut end = una;
        ranges.into_iter().filter_map(move |(left, right)| {
            let left = left.max(end);
            end = end.max(right);
            left.lt(right).then_some((left, right))
        })
    }

    /// Returns whether no byte is reported by SACK, lost or retransmitted. The scoreboard is then
    /// as new and can be freed.
    pub(super) fn is_clear(&self) -> bool {
        self.dup_acks == 0
            && self.sacked_bytes() == 0
            && self.lost.total() == 0
            && self.resent.is_empty()
    }

    /// Returns whether all ranges lie in `una..nxt`, and no byte is both lost and reported by SACK.
    pub(super) fn is_in_order(&self, una: SeqNum, nxt: SeqNum) -> bool {
        let is_within = |seq: SeqNum| una.leq(seq) && seq.leq(nxt);
        let is_sound = |ranges: &[(SeqNum, SeqNum)]| {
            ranges.iter().all(|range| is_within(range.0) && is_within(range.1))
                && ranges.iter().all(|range| range.0.lt(range.1))
                && ranges.is_sorted_by(|a, b| a.1.lt(b.0))
        };
        let missing = |&(left, right): &(SeqNum, SeqNum)| self.sacked.missing_in(left, right);
        let lost = self.lost.as_slice();
        [self.high_rxt, self.lost_end].into_iter().all(is_within)
            && is_sound(self.sacked.as_slice())
            && is_sound(lost)
            && lost.iter().all(|range| missing(range) == range.1 - range.0)
            && self.sacked.as_slice().first().is_none_or(|range| range.0 != una)
    }

    /// Records that the peer has `left..right`. Returns true if part of it was not reported before.
    //= https://www.rfc-editor.org/rfc/rfc6675#section-5.1
    //# a SACK TCP sender SHOULD utilize all SACK information made available during the loss
    //# recovery following an RTO.
    //= https://www.rfc-editor.org/rfc/rfc6675#section-5.1
    //# Update () SHOULD continue to be used appropriately upon receipt of ACKs.
    pub(super) fn on_sack(&mut self, left: SeqNum, right: SeqNum) -> bool {
        if self.sacked.insert(left, right) != Inserted::New {
            return false;
        }
        self.lost.remove(left, right);
        true
    }

    /// Handles an advance of SND.UNA from `old` to `una`. Returns true if the receiver has
    /// discarded bytes that it had reported by SACK (reneging).
    pub(super) fn on_advance(&mut self, old: SeqNum, una: SeqNum, nxt: SeqNum, mss: u32) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5
        //# If the incoming ACK is a cumulative acknowledgment, the TCP MUST reset DupAcks to zero.
        self.dup_acks = 0;
        self.sacked.trim_below(una);
        self.lost.trim_below(una);
        // A SACK report of the byte at SND.UNA means that the receiver has discarded the byte (RFC
        // 2018 §8). Ignore all earlier reports in this case.
        let has_reneged = self.sacked.as_slice().first().is_some_and(|range| range.0 == una);
        if has_reneged {
            self.sacked = Ranges::default();
        }
        // Without SACK, this ACK acknowledges one missing segment and the segments after it. The
        // latter were already counted when their duplicate ACKs arrived.
        let counted = (una - old).saturating_sub(mss);
        self.dup_bytes =
            self.dup_bytes.saturating_sub(counted).min((nxt - una).saturating_sub(mss));
        self.high_rxt = self.high_rxt.max(una);
        self.lost_end = self.lost_end.max(una);
        while self.resent.front().is_some_and(|it| it.right.leq(una)) {
            self.resent.pop_front();
        }
        has_reneged
    }

    /// Marks those bytes of `left..right` as lost that the peer has not reported. Returns the
    /// number of bytes newly marked, or `None` if there are too many ranges.
    fn mark_lost(&mut self, left: SeqNum, right: SeqNum) -> Option<u32> {
        let before = self.lost.total();
        let mut from = left;
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5.1
        //# a TCP sender SHOULD use this SACK information when determining what data should be sent
        //# in each segment following an RTO.
        while let Some((gap, end)) = self.sacked.first_missing(from, right) {
            if self.lost.insert(gap, end) == Inserted::Full {
                return None;
            }
            from = end;
        }
        Some(self.lost.total() - before)
    }

    /// Marks the bytes below `end` as lost, except those reported by SACK.
    pub(super) fn mark_lost_until(&mut self, una: SeqNum, end: SeqNum) -> u32 {
        let marked = self.mark_lost(una, end).unwrap_or_default();
        self.lost_end = self.lost_end.max(end);
        marked
    }

    /// Marks all bytes below `end` as lost, including their retransmissions.
    pub(super) fn mark_all(&mut self, una: SeqNum, end: SeqNum) -> u32 {
        self.resent.clear();
        self.reorder_at = Instant::FAR;
        self.mark_lost_until(una, end)
    }

    /// Returns the next range of sequence numbers to retransmit.
    pub(super) fn next_hole(&self) -> Option<Hole> {
        let &(left, right) = self.lost.as_slice().first()?;
        Some(Hole { left, right })
    }

    /// Records that `left..right` was retransmitted, at a time when bytes up to `nxt` had been
    /// sent.
    pub(super) fn on_retransmit(&mut self, now: Instant, left: SeqNum, right: SeqNum, nxt: SeqNum) {
        self.force = false;
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5
        //# HighRxt MUST be set to the highest sequence number of the retransmitted segment
        self.high_rxt = right;
        let before = self.lost.total();
        self.lost.remove(left, right);
        let was_lost = self.lost.total() < before;
        let has_room = self.resent.len() < RESENT_MAX;
        match self.resent.back_mut() {
            Some(last) if last.sent == now && last.right == left => {
                (last.right, last.nxt) = (right, nxt);
            }
            _ if has_room => {
                self.resent.push_back(Resent { left, right, sent: now, nxt, was_lost });
            }
            _ => {}
        }
    }

    /// Marks transmissions as lost if they are overdue and later transmissions have arrived.
    pub(super) fn detect(
        &mut self,
        record: &FlightRecord,
        timing: LossTiming,
        una: SeqNum,
    ) -> Detected {
        self.reorder_at = Instant::FAR;
        let mut detected = self.detect_resent(record, timing, una);
        detected.lost += self.detect_first(record, timing);
        detected
    }

    /// Detects lost transmissions among those that were sent only once. First transmissions are in
    /// the order of sequence numbers, so those below `lost_end` have already been checked.
    fn detect_first(&mut self, record: &FlightRecord, timing: LossTiming) -> u32 {
        let mut lost = 0;
        loop {
            #[cfg(test)]
            {
                self.judgements += 1;
            }
            let (from, judgement) = record.judge(self.lost_end, timing);
            self.lost_end = self.lost_end.max(from);
            match judgement {
                LossVerdict::Lost(end) => {
                    let Some(bytes) = self.mark_lost(from, end) else { return lost };
                    lost += bytes;
                    self.lost_end = end;
                }
                LossVerdict::Overtaken(due) => {
                    //= https://www.rfc-editor.org/rfc/rfc8985#section-6.2
                    //# it is RECOMMENDED that the sender install a reordering timer.
                    self.reorder_at = self.reorder_at.min(due);
                    return lost;
                }
                LossVerdict::Pending => return lost,
            }
        }
    }

    /// Detects lost retransmissions, oldest first.
    //= https://www.rfc-editor.org/rfc/rfc8985#section-9.2
    //# the algorithm [RFC6675] MUST NOT be used with RACK-TLP; instead, a modified recovery
    //# algorithm that carefully addresses such a case is needed.
    fn detect_resent(
        &mut self,
        record: &FlightRecord,
        timing: LossTiming,
        una: SeqNum,
    ) -> Detected {
        let mut detected = Detected::default();
        while let Some(&Resent { left, right, sent, nxt, .. }) = self.resent.front() {
            let left = left.max(una);
            if self.sacked.missing_in(left, right) > 0 {
                let overtaken = match record.rack.is_first_sent_at(sent) {
                    // Bytes sent at the same time as the retransmission were sent after it only if
                    // they are new, beyond `nxt`.
                    true => record.rack.has_passed(nxt).then_some(right),
                    false => record.rack.overtaken(sent, left, right),
                };
                let Some(end) = overtaken else { break };
                if self.sacked.missing_in(left, end) == 0 {
                    break;
                }
                let due = record.rack.due(sent, timing.window, timing.srtt);
                if due > timing.now {
                    self.reorder_at = due;
                    break;
                }
                let Some(bytes) = self.mark_lost(left, end) else { break };
                detected.lost += bytes;
                detected.again |= bytes > 0 && sent >= self.reduced_at;
                if end != right
                    && let Some(rest) = self.resent.front_mut()
                {
                    rest.left = end;
                    break;
                }
            }
            self.resent.pop_front();
        }
        detected
    }

    /// Marks transmissions as lost that are overdue when the retransmission timer expires, and the
    /// segment at SND.UNA. Returns the number of bytes.
    //= https://www.rfc-editor.org/rfc/rfc8985#section-6.3
    //# RACK marks the first outstanding segment as lost (since it was sent an RTO ago); for all the
    //# other segments, RACK only marks the segment as lost if the time elapsed since the segment
    //# was transmitted is at least the sum of the recent RTT and the reordering window.
    pub(super) fn on_timeout(
        &mut self,
        record: &FlightRecord,
        timing: LossTiming,
        una: SeqNum,
        head: SeqNum,
    ) -> u32 {
        let mut lost = self.mark_lost(una, head).unwrap_or_default();
        // The first segment is about to be retransmitted again. Stop checking whether its earlier
        // copies are lost.
        for resent in &mut self.resent {
            resent.left = resent.left.max(head.min(resent.right));
        }
        self.resent.retain(|it| it.left.lt(it.right));
        while let Some(&Resent { left, right, sent, .. }) = self.resent.front()
            && record.rack.due(sent, timing.window, timing.srtt) <= timing.now
        {
            lost += self.mark_lost(left.max(una), right).unwrap_or_default();
            self.resent.pop_front();
        }
        // If no retransmission is in flight, all bytes below `lost_end` that the peer lacks are
        // lost. Some of them may be in no list, because the peer discarded them or because a list
        // was full.
        if self.resent.is_empty() {
            lost += self.mark_lost(una, self.lost_end).unwrap_or_default();
        }
        let end = record.overdue_end(self.lost_end, timing);
        lost += self.mark_lost(self.lost_end, end).unwrap_or_default();
        self.lost_end = self.lost_end.max(end);
        lost
    }

    /// Clears the marks of lost bytes because these arrived late, and checks all bytes for loss
    /// again.
    pub(super) fn unmark_lost(&mut self, una: SeqNum) {
        self.lost = Ranges::default();
        self.lost_end = una;
        self.force = false;
    }
}
