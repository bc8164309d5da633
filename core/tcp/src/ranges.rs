//! A bounded set of disjoint ranges of sequence numbers: out-of-order data received, and ranges
//! that the peer reports by SACK.

use towpath_wire::tcp::{SackBlocks, SeqNum};

/// Maximum number of out-of-order ranges per direction of a connection. A list takes at most 2 KiB,
/// and suffices for 1 % loss with 35 MB in flight.
const RANGES_MAX: usize = 256;

/// Maximum number of changed ranges that are remembered in the order of their changes. A turn of
/// the event loop rarely receives more segments behind holes, unless half of the segments are lost.
const RECENT_MAX: usize = 32;

/// Set of half-open ranges of sequence numbers, in ascending order. Ranges neither overlap nor
/// touch, and all are within 2^31 of each other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranges {
    list: Vec<(SeqNum, SeqNum)>,
    total: u32,
}

/// Result of adding a range to a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// At least a part of the range was not in the set before.
    New,
    /// The set already contained the whole range.
    Known,
    /// The set is full. There are [`RANGES_MAX`] ranges, and the new range touches none of them.
    Full,
}

impl Ranges {
    /// Adds the range `left..right`, and merges it with ranges that overlap or touch it.
    pub(crate) fn insert(&mut self, left: SeqNum, right: SeqNum) -> Inserted {
        debug_assert!(left.lt(right));
        let first = self.list.partition_point(|range| range.1.lt(left));
        let mut last = first;
        let (mut joined_left, mut joined_right, mut covered) = (left, right, 0);
        while let Some(&(l, r)) = self.list.get(last) {
            if l.gt(right) {
                break;
            }
            joined_left = joined_left.min(l);
            joined_right = joined_right.max(r);
            covered += r - l;
            last += 1;
        }
        let added = (joined_right - joined_left) - covered;
        if added == 0 {
            return Inserted::Known;
        }
        if first == last {
            if self.list.len() >= RANGES_MAX {
                return Inserted::Full;
            }
            self.list.insert(first, (joined_left, joined_right));
        } else {
            self.list[first] = (joined_left, joined_right);
            self.list.drain(first + 1..last);
        }
        self.total += added;
        Inserted::New
    }

    /// Returns whether [`Self::insert`] has room for `left..right`.
    pub(crate) fn has_room(&self, left: SeqNum, right: SeqNum) -> bool {
        let joins = |range: &(SeqNum, SeqNum)| range.0.leq(right);
        let first = self.list.partition_point(|range| range.1.lt(left));
        self.list.len() < RANGES_MAX || self.list.get(first).is_some_and(joins)
    }

    /// Removes all sequence numbers below `seq`.
    pub(crate) fn trim_below(&mut self, seq: SeqNum) {
        let gone = self.list.partition_point(|range| range.1.leq(seq));
        let removed: u32 = self.list.drain(..gone).map(|(left, right)| right - left).sum();
        self.total -= removed;
        if let Some(first) = self.list.first_mut()
            && first.0.lt(seq)
        {
            self.total -= seq - first.0;
            first.0 = seq;
        }
    }

    /// Removes the range `left..right`. If this splits a range, the set may exceed its maximum size
    /// by one.
    pub(crate) fn remove(&mut self, left: SeqNum, right: SeqNum) {
        let mut first = self.list.partition_point(|range| range.1.leq(left));
        let mut last = first;
        let mut rest = [None; 2];
        while let Some(&(l, r)) = self.list.get(last)
            && l.lt(right)
        {
            if l.lt(left) {
                rest[0] = Some((l, left));
            }
            if right.lt(r) {
                rest[1] = Some((right, r));
            }
            self.total -= r.min(right) - l.max(left);
            last += 1;
        }
        for range in rest.into_iter().flatten() {
            if first == last {
                self.list.insert(first, range);
                last += 1;
            }
            self.list[first] = range;
            first += 1;
        }
        self.list.drain(first..last);
    }

    /// Returns the total number of bytes in all ranges.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn as_slice(&self) -> &[(SeqNum, SeqNum)] {
        &self.list
    }

    /// Returns the number of bytes of `left..right` that are in no range.
    pub(crate) fn missing_in(&self, left: SeqNum, right: SeqNum) -> u32 {
        if left.geq(right) {
            return 0;
        }
        let from = self.list.partition_point(|range| range.1.leq(left));
        let mut missing = right - left;
        for &(l, r) in self.list.iter().skip(from).take_while(|range| range.0.lt(right)) {
            missing -= r.min(right) - l.max(left);
        }
        missing
    }

    /// Returns the first gap between ranges at or after `from`, limited to `end`.
    pub(crate) fn first_missing(&self, from: SeqNum, end: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let mut left = from;
        let at = self.list.partition_point(|range| range.1.leq(from));
        for &(l, r) in self.list.iter().skip(at) {
            if left.lt(l) {
                return left.lt(end).then(|| (left, l.min(end)));
            }
            left = r;
        }
        left.lt(end).then_some((left, end))
    }

    fn containing(&self, seq: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let at = self.list.partition_point(|range| range.1.leq(seq));
        self.list.get(at).copied().filter(|range| range.0.leq(seq))
    }
}

/// Ranges of data received out of order, and the order in which they arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assembler {
    ranges: Ranges,
    /// Sequence number of the peer's FIN, if it arrived out of order.
    pub(crate) fin: Option<SeqNum>,
    recent: RecentRanges,
}

/// Order in which the ranges of an [`Assembler`] changed.
#[derive(Debug, Clone, Default)]
struct RecentRanges {
    /// A sequence number in each changed range, most recent first.
    list: [SeqNum; RECENT_MAX],
    len: u8,
    /// Number of entries at the front that no ACK has reported in its first SACK block.
    unreported: u8,
}

impl RecentRanges {
    /// Moves the range `left..right` to the front. `seq` is a sequence number in it.
    fn note(&mut self, seq: SeqNum, left: SeqNum, right: SeqNum) {
        self.retain(|old| old.lt(left) || old.geq(right));
        self.unreported += 1;
        self.len = (self.len + 1).min(RECENT_MAX as u8);
        self.list[..usize::from(self.len)].rotate_right(1);
        self.list[0] = seq;
    }

    fn retain(&mut self, is_kept: impl Fn(SeqNum) -> bool) {
        let (mut kept, mut unreported) = (0, 0);
        for at in 0..usize::from(self.len) {
            let seq = self.list[at];
            if is_kept(seq) {
                self.list[kept] = seq;
                kept += 1;
                unreported += u8::from(at < usize::from(self.unreported));
            }
        }
        (self.len, self.unreported) = (kept as u8, unreported.min(RECENT_MAX as u8 - 1));
    }

    /// Returns the entries from index `skip` on.
    fn from(&self, skip: usize) -> &[SeqNum] {
        self.list[..usize::from(self.len)].get(skip..).unwrap_or_default()
    }
}

impl Assembler {
    /// Returns the total number of bytes in the out-of-order ranges.
    pub(crate) fn total(&self) -> u32 {
        self.ranges.total()
    }

    /// Returns the out-of-order ranges in ascending order.
    pub(crate) fn ranges(&self) -> &[(SeqNum, SeqNum)] {
        self.ranges.as_slice()
    }

    //= https://www.rfc-editor.org/rfc/rfc2018#section-4
    //# The first SACK block (i.e., the one immediately following the kind and length fields in the
    //# option) MUST specify the contiguous block of data containing the segment which triggered this
    //# ACK
    pub(crate) fn insert(&mut self, left: SeqNum, right: SeqNum) -> Inserted {
        let inserted = self.ranges.insert(left, right);
        if let Some((start, end)) = self.ranges.containing(left) {
            self.recent.note(left, start, end);
        }
        inserted
    }

    /// Returns the first part of `left..right` that was already received.
    pub(crate) fn repeated(&self, left: SeqNum, right: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let list = self.ranges.as_slice();
        let &(l, r) = list.get(list.partition_point(|range| range.1.leq(left)))?;
        l.lt(right).then(|| (l.max(left), r.min(right)))
    }

    /// Handles in-order data up to `rcv_nxt`. Removes the ranges of out-of-order data that are now
    /// in order. Returns the sequence number after all in-order data.
    pub(crate) fn advance(&mut self, rcv_nxt: SeqNum) -> SeqNum {
        let end =
            match self.ranges.as_slice().iter().take_while(|range| range.0.leq(rcv_nxt)).last() {
                Some(&(_, right)) => right.max(rcv_nxt),
                None => rcv_nxt,
            };
        self.ranges.trim_below(end);
        self.recent.retain(|seq| seq.geq(end));
        end
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.as_slice().is_empty() && self.fin.is_none()
    }

    /// Returns the number of changed ranges that no ACK has reported in its first SACK block.
    pub(crate) fn unreported(&self) -> u8 {
        self.recent.unreported
    }

    /// Records that an ACK has reported the oldest of these ranges.
    pub(crate) fn on_reported(&mut self) {
        self.recent.unreported = self.recent.unreported.saturating_sub(1);
    }

    /// Returns the number of SACK blocks that `blocks` will return, to reserve option space.
    pub(crate) fn blocks_count(&self, max: usize) -> usize {
        self.blocks(max, 0).len()
    }

    /// Returns at most `max` SACK blocks, the most recently changed first. Leaves out the last
    /// `skip` changes.
    pub(crate) fn blocks(&self, max: usize, skip: u8) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        for seq in self.recent.from(skip.into()) {
            if blocks.len() >= max {
                break;
            }
            if let Some((left, right)) = self.ranges.containing(*seq)
                && !blocks.iter().any(|block| block.0 == left)
            {
                blocks.push(left, right);
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seq(n: u32) -> SeqNum {
        SeqNum(0xffff_ff80) + n
    }

    #[test]
    fn the_limit_is_kept() {
        let mut ranges = Ranges::default();
        for n in 0..RANGES_MAX as u32 {
            assert_eq!(ranges.insert(seq(n * 4), seq(n * 4 + 2)), Inserted::New);
        }
        assert_eq!(ranges.insert(seq(9000), seq(9001)), Inserted::Full);
        assert_eq!(ranges.insert(seq(2), seq(4)), Inserted::New, "joining needs no room");
        assert_eq!(ranges.as_slice().len(), RANGES_MAX - 1);
    }

    #[test]
    fn blocks_come_most_recent_first() {
        let mut assembler = Assembler::default();
        for n in [10, 30, 50, 70, 90] {
            assembler.insert(seq(n), seq(n + 5));
        }
        assembler.insert(seq(35), seq(40));
        let blocks: Vec<_> = assembler.blocks(3, 0).iter().collect();
        assert_eq!(blocks, [(seq(30), seq(40)), (seq(90), seq(95)), (seq(70), seq(75))]);
        assert_eq!(assembler.advance(seq(10)), seq(15));
        assert_eq!(assembler.blocks(4, 0).len(), 4);
    }

    #[test]
    fn each_change_is_reported_first_once() {
        let mut assembler = Assembler::default();
        for n in [10, 30, 50, 70, 90] {
            assembler.insert(seq(n), seq(n + 5));
            assembler.insert(seq(n + 5), seq(n + 10));
        }
        assert_eq!(assembler.unreported(), 5);
        let firsts = (0..5).rev().map(|skip| assembler.blocks(3, skip).iter().next());
        let expected = [10, 30, 50, 70, 90].map(|n| Some((seq(n), seq(n + 10))));
        assert_eq!(firsts.collect::<Vec<_>>(), expected);
        // A filled hole makes one range of two.
        assembler.insert(seq(60), seq(70));
        assert_eq!(assembler.unreported(), 4);
        assembler.on_reported();
        assert_eq!(assembler.unreported(), 3);
        assert_eq!(assembler.advance(seq(45)), seq(45));
        assert_eq!(assembler.unreported(), 2, "ranges below RCV.NXT need no report");
        for n in 100..100 + 3 * RECENT_MAX as u32 {
            assembler.insert(seq(n * 2), seq(n * 2 + 1));
        }
        assert_eq!(usize::from(assembler.unreported()), RECENT_MAX);
    }

    proptest! {
        /// Compares the set with a model that has one bit per sequence number.
        #[test]
        fn behaves_as_a_set(
            steps in prop::collection::vec((0u32..200, 1u32..20), 0..60),
            holes in prop::collection::vec((0u32..200, 1u32..20), 0..10),
            cut in 0u32..220,
        ) {
            let mut ranges = Ranges::default();
            let mut model = [false; 256];
            for (at, len) in steps {
                let new = model[at as usize..(at + len) as usize].iter().any(|bit| !bit);
                model[at as usize..(at + len) as usize].fill(true);
                let inserted = ranges.insert(seq(at), seq(at + len));
                prop_assert_eq!(inserted, if new { Inserted::New } else { Inserted::Known });
            }
            for (at, len) in holes {
                model[at as usize..(at + len) as usize].fill(false);
                ranges.remove(seq(at), seq(at + len));
            }
            model[..cut as usize].fill(false);
            ranges.trim_below(seq(cut));
            prop_assert_eq!(ranges.total() as usize, model.iter().filter(|bit| **bit).count());
            let missing = model[cut as usize..230].iter().filter(|bit| !**bit).count();
            prop_assert_eq!(ranges.missing_in(seq(cut), seq(230)) as usize, missing);
            let first = (cut..230).find(|n| !model[*n as usize]);
            prop_assert_eq!(
                ranges.first_missing(seq(cut), seq(230)).map(|range| range.0),
                first.map(seq)
            );
            for pair in ranges.as_slice().windows(2) {
                prop_assert!(pair[0].1.lt(pair[1].0));
            }
        }
    }
}
