//! Boundaries between records in the byte stream (MSG_EOR), which no segment crosses.

use std::collections::VecDeque;
use towpath_wire::tcp::SeqNum;

/// Maximum number of record boundaries per connection, which take 16 KiB. Further boundaries are
/// ignored, so a segment may contain the end of one record and the start of the next.
const BOUNDARIES_MAX: usize = 4096;

/// Sequence numbers after the last byte of each record, in ascending order and after SND.UNA.
#[derive(Debug, Default)]
pub(super) struct Boundaries(VecDeque<SeqNum>);

impl Boundaries {
    /// Adds a record boundary after all existing boundaries. Returns false if there are too many.
    pub(super) fn add(&mut self, end: SeqNum, una: SeqNum) -> bool {
        let is_last = self.0.back().is_none_or(|last| end - una > *last - una);
        if is_last && self.0.len() < BOUNDARIES_MAX {
            self.0.push_back(end);
        }
        !is_last || self.0.back() == Some(&end)
    }

    /// Returns the first record boundary after `seq`, which must not be before SND.UNA.
    #[inline]
    pub(super) fn after(&self, seq: SeqNum, una: SeqNum) -> Option<SeqNum> {
        if self.0.is_empty() {
            return None;
        }
        let at = self.0.partition_point(|end| *end - una <= seq - una);
        self.0.get(at).copied()
    }

    /// Returns the last record boundary before `seq`, which must not be before SND.UNA.
    pub(super) fn before(&self, seq: SeqNum, una: SeqNum) -> Option<SeqNum> {
        let count = self.0.partition_point(|end| *end - una < seq - una);
        self.0.get(count.checked_sub(1)?).copied()
    }

    /// Removes the record boundaries up to `una`. `old` is the previous value of SND.UNA.
    pub(super) fn trim(&mut self, old: SeqNum, una: SeqNum) {
        while self.0.front().is_some_and(|end| *end - old <= una - old) {
            self.0.pop_front();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_next_boundary_across_the_wrap() {
        let una = SeqNum(u32::MAX - 10);
        let mut boundaries = Boundaries::default();
        assert!(boundaries.add(una + 5, una) && boundaries.add(una + 20, una));
        assert_eq!(boundaries.after(una, una), Some(una + 5));
        assert_eq!(boundaries.after(una + 5, una), Some(una + 20));
        assert_eq!(boundaries.after(una + 20, una), None);
        assert_eq!(boundaries.before(una + 5, una), None);
        assert_eq!(boundaries.before(una + 20, una), Some(una + 5));
        assert_eq!(boundaries.before(una + 21, una), Some(una + 20));
        boundaries.trim(una, una + 5);
        assert_eq!(boundaries.after(una + 5, una + 5), Some(una + 20));
        boundaries.trim(una + 5, una + 30);
        assert!(boundaries.is_empty());
    }

    #[test]
    fn keeps_a_bounded_number() {
        let una = SeqNum(7);
        let mut boundaries = Boundaries::default();
        let added = (1..10_000).filter(|end| boundaries.add(una + *end, una)).count();
        assert_eq!(added, BOUNDARIES_MAX);
    }

    #[test]
    fn ignores_a_boundary_before_another() {
        let una = SeqNum(7);
        let mut boundaries = Boundaries::default();
        boundaries.add(una + 10, una);
        boundaries.add(una + 4, una);
        assert_eq!(boundaries.after(una, una), Some(una + 10));
    }
}
