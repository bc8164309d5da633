//! Sequence numbers and their arithmetic (RFC 9293 §3.4).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A sequence number: arithmetic wraps (RFC 9293 §3.4), and order is that of the nearer way round.
///
/// ```
/// use towpath_wire::tcp::SeqNum;
/// let (rcv_nxt, window) = (SeqNum(0xffff_fff0), 1000);
/// assert!((rcv_nxt + 999).is_within(rcv_nxt, window));
/// assert!(!(rcv_nxt - 1).is_within(rcv_nxt, window));
/// assert_eq!(SeqNum(16) - rcv_nxt, 32);
/// ```
///
/// The order is not transitive: of three numbers each may be before the next. So there is no `Ord`,
/// and there are two kinds of questions, with methods of their own:
///
/// * Where is a number that a peer chose? [`is_within`](Self::is_within) a range that we know, or
///   subtract (`seq - base`) and compare the length against one that we know. A number of the peer
///   may lie anywhere.
/// * For the later of two numbers of our own, use `lt`, `leq`, `gt`, `geq`, `max` or `min`. `lt`,
///   `leq`, `gt`, `geq`, `max`, `min`. Both are never more than [`APART_MAX`](Self::APART_MAX)
///   apart, which debug builds assert. So the first hostile test finds a peer's number that gets
///   here unchecked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Largest distance of two numbers of one connection that are in use. The largest window (RFC
    /// 7323 §2.3) counts, and half as much again for what lies before it. Well below 2^31, where
    /// order turns round.
    pub const APART_MAX: u32 = 3 << 29;

    /// Whether it is one of the `count` numbers from `first` on. Right for every number, wherever
    /// it comes from.
    #[inline]
    pub const fn is_within(self, first: SeqNum, count: u32) -> bool {
        self.0.wrapping_sub(first.0) < count
    }

    /// How far `self` is past `other` by the nearer way round; negative when it is before. The sign
    /// says nothing but which way is nearer if a peer chose a number.
    #[inline]
    pub const fn distance(self, other: SeqNum) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// As `distance`, of two numbers of our own.
    #[inline]
    const fn ours(self, other: SeqNum) -> i32 {
        let distance = self.distance(other);
        debug_assert!(distance.unsigned_abs() <= Self::APART_MAX, "sequence numbers too far apart");
        distance
    }

    /// `self` is before `other`; both are ours.
    #[inline]
    pub const fn lt(self, other: SeqNum) -> bool {
        self.ours(other) < 0
    }

    /// `self` is `other` or before it; both are ours.
    #[inline]
    pub const fn leq(self, other: SeqNum) -> bool {
        self.ours(other) <= 0
    }

    /// `self` is past `other`; both are ours.
    #[inline]
    pub const fn gt(self, other: SeqNum) -> bool {
        self.ours(other) > 0
    }

    /// `self` is `other` or past it; both are ours.
    #[inline]
    pub const fn geq(self, other: SeqNum) -> bool {
        self.ours(other) >= 0
    }

    /// The later of the two; both are ours.
    #[inline]
    pub const fn max(self, other: SeqNum) -> SeqNum {
        if self.geq(other) { self } else { other }
    }

    /// The earlier of the two; both are ours.
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

/// The count of numbers from `other` on to `self`, modulo 2^32.
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
