//! Sequence numbers and their arithmetic (RFC 9293 §3.4).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A TCP sequence number, with arithmetic modulo 2^32 (RFC 9293 §3.4). Comparisons use the shorter
/// of the two distances around the circle.
///
/// ```
/// use towpath_wire::tcp::SeqNum;
/// let (rcv_nxt, window) = (SeqNum(0xffff_fff0), 1000);
/// assert!((rcv_nxt + 999).is_within(rcv_nxt, window));
/// assert!(!(rcv_nxt - 1).is_within(rcv_nxt, window));
/// assert_eq!(SeqNum(16) - rcv_nxt, 32);
/// ```
///
/// Comparison is not transitive: three numbers may precede each other in a cycle. Therefore there
/// is no `Ord`, but two sets of methods:
///
/// * For a number that a peer chose, use [`is_within`](Self::is_within) with a known range.
///   Alternatively subtract a base (`seq - base`), and compare the resulting length with a known
///   one. A peer may send any number.
/// * To compare two numbers that we chose or validated, use `lt`, `leq`, `gt`, `geq`, `max` or
///   `min`. Two such numbers are never more than [`APART_MAX`](Self::APART_MAX) apart, which debug
///   builds assert. The assertion fails if a peer's number was not validated.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Maximum distance of two sequence numbers that one connection uses: the largest window (RFC
    /// 7323 §2.3), plus half of it for numbers before the window. The distance is well below 2^31,
    /// from where on comparisons would be inverted.
    pub const APART_MAX: u32 = 3 << 29;

    /// Returns whether this is one of the `count` sequence numbers that begin with `first`. The
    /// method is safe for any number, including one that a peer sent.
    #[inline]
    pub const fn is_within(self, first: SeqNum, count: u32) -> bool {
        self.0.wrapping_sub(first.0) < count
    }

    /// Returns the distance from `other` to `self`, along the shorter way around the circle of
    /// sequence numbers. The result is negative if `self` is before `other`. If a peer sent one of
    /// the numbers, the sign only states which way is shorter.
    #[inline]
    pub const fn distance(self, other: SeqNum) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Returns [`distance`](Self::distance) for two sequence numbers that were chosen by us or
    /// validated. The numbers must not be too far apart.
    #[inline]
    const fn ours(self, other: SeqNum) -> i32 {
        let distance = self.distance(other);
        debug_assert!(distance.unsigned_abs() <= Self::APART_MAX, "sequence numbers too far apart");
        distance
    }

    /// Returns whether `self` is before `other`. Both numbers must be chosen by us or validated.
    #[inline]
    pub const fn lt(self, other: SeqNum) -> bool {
        self.ours(other) < 0
    }

    /// Returns whether `self` is before or equal to `other`. Both numbers must be chosen by us or
    /// validated.
    #[inline]
    pub const fn leq(self, other: SeqNum) -> bool {
        self.ours(other) <= 0
    }

    /// Returns whether `self` is after `other`. Both numbers must be chosen by us or validated.
    #[inline]
    pub const fn gt(self, other: SeqNum) -> bool {
        self.ours(other) > 0
    }

    /// Returns whether `self` is after or equal to `other`. Both numbers must be chosen by us or
    /// validated.
    #[inline]
    pub const fn geq(self, other: SeqNum) -> bool {
        self.ours(other) >= 0
    }

    /// Returns the later of two sequence numbers. Both numbers must be chosen by us or validated.
    #[inline]
    pub const fn max(self, other: SeqNum) -> SeqNum {
        if self.geq(other) { self } else { other }
    }

    /// Returns the earlier of two sequence numbers. Both numbers must be chosen by us or validated.
    #[inline]
    pub const fn min(self, other: SeqNum) -> SeqNum {
        if self.leq(other) { self } else { other }
    }
}

impl Add<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn add(self, count: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn sub(self, count: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(count))
    }
}

/// Returns the number of sequence numbers from `other` to `self`, modulo 2^32.
impl Sub<SeqNum> for SeqNum {
    type Output = u32;
    #[inline]
    fn sub(self, other: SeqNum) -> u32 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
