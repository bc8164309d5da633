//! Boundaries in the byte stream that no segment crosses (MSG_EOR).

use std::collections::VecDeque;
use towpath_wire::tcp::SeqNum;

/// Maximum number of boundaries of a connection, 16 KiB. Bytes around further ones may share a
/// segment.
const BOUNDARIES_MAX: usize = 4096;

/// Sequence numbers after the last bytes of records, in ascending order and after SND.UNA.
#[derive(Debug, Default)]
pub(super) struct Boundaries(VecDeque<SeqNum>);

impl Boundaries {
    /// Adds a boundary after all others. Returns false if there are too many.
    pub(super) fn add(&mut self, end: SeqNum, una: SeqNum) -> bool {
        let is_last = self.0.back().is_none_or(|last| end - una > *last - una);
        if is_last && self.0.len() < BOUNDARIES_MAX {
            self.0.push_back(end);
        }
        !is_last || self.0.back() == Some(&end)
    }

    /// Returns the first boundary after `seq`, which is at SND.UNA or later.
    #[inline]
    pub(super) fn after(&self, seq: SeqNum, una: SeqNum) -> Option<SeqNum> {
        if self.0.is_empty() {
            return None;
        }
        let at = self.0.partition_point(|end| *end - una <= seq - una);
        self.0.get(at).copied()
    }

    /// Returns the last boundary before `seq`, which is at SND.UNA or later.
    pub(super) fn before(&self, seq: SeqNum, una: SeqNum) -> Option<SeqNum> {
        let count = self.0.partition_point(|end| *end - una < seq - una);
        self.0.get(count.checked_sub(1)?).copied()
    }

    /// Removes the boundaries up to SND.UNA. `old` is SND.UNA before.
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
