//! Lists of prefixes and ports: members of named sets, and conditions with several values.

use core::fmt;
use core::net::IpAddr;
use std::collections::BTreeMap;

use towpath_wire::Prefix;

use crate::error::RuleError;

/// Inclusive port range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    /// Lowest port of the range.
    pub first: u16,
    /// Highest port, at least `first`.
    pub last: u16,
}

/// Formats one port as `80`, and a range as `80-90`.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

/// Named sets of an access list.
pub(crate) type NamedSets = BTreeMap<String, SetMembers>;

/// Prefixes in ascending order, each of them once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PrefixList(Vec<Prefix>);

impl PrefixList {
    /// Creates a list without the prefixes that another prefix contains.
    #[must_use]
    pub fn new(prefixes: impl IntoIterator<Item = Prefix>) -> Self {
        let mut all: Vec<Prefix> = prefixes.into_iter().map(|prefix| prefix.trunc()).collect();
        // A prefix sorts directly before the prefixes that it contains.
        all.sort_unstable_by_key(|prefix| (prefix.addr(), prefix.len()));
        all.dedup_by(|later, earlier| earlier.contains_prefix(later));
        Self(all)
    }

    /// Creates a list of all prefixes, which may contain each other.
    #[must_use]
    pub fn with_overlaps(prefixes: impl IntoIterator<Item = Prefix>) -> Self {
        let all = prefixes.into_iter().map(|prefix| prefix.trunc()).collect();
        Self(sorted(all))
    }

    /// Returns the prefixes in ascending order.
    #[must_use]
    pub fn as_slice(&self) -> &[Prefix] {
        &self.0
    }
}

/// Port ranges in ascending order, each of them once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PortRanges(Vec<Ports>);

impl PortRanges {
    /// Creates a list, and merges overlapping and adjacent ranges. Ranges whose first port is above
    /// their last one are left out, because they contain no port.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = Ports>) -> Self {
        let Self(mut all) = Self::with_overlaps(ranges);
        all.dedup_by(|later, earlier| {
            let joins = u32::from(later.first) <= u32::from(earlier.last) + 1;
            if joins {
                earlier.last = earlier.last.max(later.last);
            }
            joins
        });
        Self(all)
    }

    /// Creates a list of all ranges, which may overlap. Ranges without a port are left out, as by
    /// [`new`](Self::new).
    #[must_use]
    pub fn with_overlaps(ranges: impl IntoIterator<Item = Ports>) -> Self {
        let is_range = |ports: &Ports| ports.first <= ports.last;
        Self(sorted(ranges.into_iter().filter(is_range).collect()))
    }

    /// Returns the ranges in ascending order.
    #[must_use]
    pub fn as_slice(&self) -> &[Ports] {
        &self.0
    }
}

/// Sorts members, and removes repetitions. A stable sort merges two sorted lists in linear time,
/// so that a few more members of a large set cost little.
fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort();
    all.dedup();
    all
}

/// Condition on an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AddressMatch {
    /// The address is in this prefix.
    One(Prefix),
    /// The address is in one of these prefixes.
    List(PrefixList),
    /// The address is in the set with this name.
    Set(String),
}

/// Condition on a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PortMatch {
    /// The port is in this range.
    One(Ports),
    /// The port is in one of these ranges.
    List(PortRanges),
    /// The port is in the set with this name.
    Set(String),
}

impl From<Prefix> for AddressMatch {
    fn from(prefix: Prefix) -> Self {
        Self::One(prefix)
    }
}

impl From<Ports> for PortMatch {
    fn from(ports: Ports) -> Self {
        Self::One(ports)
    }
}

/// A list of one prefix is the prefix itself.
impl From<PrefixList> for AddressMatch {
    fn from(list: PrefixList) -> Self {
        match list.as_slice() {
            [prefix] => Self::One(*prefix),
            _ => Self::List(list),
        }
    }
}

/// A list of one range is the range itself.
impl From<PortRanges> for PortMatch {
    fn from(list: PortRanges) -> Self {
        match list.as_slice() {
            [ports] => Self::One(*ports),
            _ => Self::List(list),
        }
    }
}

/// IP versions of the packets that a condition can match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpVersions {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

impl IpVersions {
    pub(crate) const BOTH: Self = Self { v4: true, v6: true };

    pub(crate) const fn and(self, other: Self) -> Self {
        Self { v4: self.v4 && other.v4, v6: self.v6 && other.v6 }
    }

    pub(crate) const fn is_none(self) -> bool {
        !self.v4 && !self.v6
    }
}

impl AddressMatch {
    /// Returns the prefixes of the condition; none for a named set.
    #[must_use]
    pub fn prefixes(&self) -> &[Prefix] {
        match self {
            Self::One(prefix) => core::slice::from_ref(prefix),
            Self::List(list) => list.as_slice(),
            Self::Set(_) => &[],
        }
    }

    /// Returns the name of the set that the condition refers to.
    #[must_use]
    pub fn set(&self) -> Option<&str> {
        if let Self::Set(name) = self { Some(name) } else { None }
    }

    pub(crate) fn versions(&self) -> IpVersions {
        match self {
            Self::Set(_) => IpVersions::BOTH,
            known => {
                let has = |is_v6| known.prefixes().iter().any(|it| it.addr().is_ipv6() == is_v6);
                IpVersions { v4: has(false), v6: has(true) }
            }
        }
    }
}

impl PortMatch {
    /// Returns the port ranges of the condition; none for a named set.
    #[must_use]
    pub fn ranges(&self) -> &[Ports] {
        match self {
            Self::One(ports) => core::slice::from_ref(ports),
            Self::List(list) => list.as_slice(),
            Self::Set(_) => &[],
        }
    }

    /// Returns the name of the set that the condition refers to.
    #[must_use]
    pub fn set(&self) -> Option<&str> {
        if let Self::Set(name) = self { Some(name) } else { None }
    }
}

/// Members of a named set, as they were added. Members may overlap. Otherwise the removal of a
/// member would also remove the members that it contains, or fail after it was merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SetMembers {
    /// No members. Conditions on addresses and on ports may refer to the set, and never match.
    #[default]
    Empty,
    /// Prefixes, of both IP versions.
    Prefixes(PrefixList),
    /// Port ranges.
    Ports(PortRanges),
}

/// An empty list has no kind.
impl From<PrefixList> for SetMembers {
    fn from(list: PrefixList) -> Self {
        if list.as_slice().is_empty() { Self::Empty } else { Self::Prefixes(list) }
    }
}

/// An empty list has no kind.
impl From<PortRanges> for SetMembers {
    fn from(list: PortRanges) -> Self {
        if list.as_slice().is_empty() { Self::Empty } else { Self::Ports(list) }
    }
}

impl SetMembers {
    /// Returns the number of prefixes or port ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prefixes().len() + self.ranges().len()
    }

    /// Returns whether the set has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the prefixes; none if the members are ports.
    #[must_use]
    pub fn prefixes(&self) -> &[Prefix] {
        if let Self::Prefixes(list) = self { list.as_slice() } else { &[] }
    }

    /// Returns the port ranges; none if the members are prefixes.
    #[must_use]
    pub fn ranges(&self) -> &[Ports] {
        if let Self::Ports(list) = self { list.as_slice() } else { &[] }
    }

    pub(crate) fn compiled(&self) -> MemberRanges {
        MemberRanges::new(self.prefixes(), self.ranges())
    }

    /// Adds members of the same kind.
    ///
    /// # Errors
    /// Returns an error if one has prefixes, and `more` has ports, or vice versa.
    pub fn add(&mut self, more: &Self) -> Result<(), RuleError> {
        match (core::mem::take(self), more) {
            (Self::Empty, more) => *self = more.clone(),
            (known, Self::Empty) => *self = known,
            (Self::Prefixes(PrefixList(mut known)), Self::Prefixes(more)) => {
                known.extend_from_slice(more.as_slice());
                *self = Self::Prefixes(PrefixList(sorted(known)));
            }
            (Self::Ports(PortRanges(mut known)), Self::Ports(more)) => {
                known.extend_from_slice(more.as_slice());
                *self = Self::Ports(PortRanges(sorted(known)));
            }
            (known, _) => {
                *self = known;
                return Err(two_kinds());
            }
        }
        Ok(())
    }

    /// Removes members.
    ///
    /// # Errors
    /// Returns an error if a member is not in the set.
    pub fn remove(&mut self, members: &Self) -> Result<(), RuleError> {
        match (&mut *self, members.prefixes(), members.ranges()) {
            (_, [], []) => {}
            (Self::Prefixes(known), prefixes, []) => remove_sorted(&mut known.0, prefixes)?,
            (Self::Ports(known), [], ranges) => remove_sorted(&mut known.0, ranges)?,
            (_, [prefix, ..], _) => return Err(absent(prefix)),
            (_, _, [ports, ..]) => return Err(absent(ports)),
        }
        if self.is_empty() {
            *self = Self::Empty;
        }
        Ok(())
    }
}

/// Members of a set that a text gives in several parts. The parts are sorted once, at the end.
/// Otherwise the time for a long text would be quadratic.
#[derive(Debug, Default)]
pub(crate) struct SetDraft {
    prefixes: Vec<Prefix>,
    ports: Vec<Ports>,
}

impl SetDraft {
    /// Adds members. Returns an error if the set then has members of both kinds.
    pub(crate) fn add(&mut self, more: &SetMembers) -> Result<(), RuleError> {
        self.prefixes.extend_from_slice(more.prefixes());
        self.ports.extend_from_slice(more.ranges());
        if self.prefixes.is_empty() || self.ports.is_empty() { Ok(()) } else { Err(two_kinds()) }
    }

    /// Returns the members.
    pub(crate) fn finish(self) -> SetMembers {
        if self.ports.is_empty() {
            PrefixList::with_overlaps(self.prefixes).into()
        } else {
            PortRanges::with_overlaps(self.ports).into()
        }
    }
}

fn two_kinds() -> RuleError {
    RuleError::new("a set has prefixes or ports, not both", "expected members of the same kind")
}

/// Removes members from a list. Both are sorted, and have no repetitions.
fn remove_sorted<T: Ord + fmt::Display>(
    known: &mut Vec<T>,
    removed: &[T],
) -> Result<(), RuleError> {
    let place = |member: &T| known.binary_search(member).map_err(|_| absent(member));
    let places = removed.iter().map(place).collect::<Result<Vec<_>, _>>()?;
    let (mut places, mut at) = (places.into_iter().peekable(), 0usize);
    known.retain(|_| {
        let is_kept = places.next_if_eq(&at).is_none();
        at += 1;
        is_kept
    });
    Ok(())
}

fn absent(member: &impl fmt::Display) -> RuleError {
    RuleError::new(format!("\"{member}\" is not in the set"), "expected one of its members")
}

/// Disjoint ranges of numbers in ascending order.
#[derive(Debug, Clone)]
struct NumberRanges<T>(Vec<(T, T)>);

impl<T: Ord + Copy> NumberRanges<T> {
    /// Creates ranges, and merges those that overlap.
    fn new(mut all: Vec<(T, T)>) -> Self {
        all.sort_unstable();
        all.dedup_by(|later, earlier| {
            let overlaps = later.0 <= earlier.1;
            if overlaps {
                earlier.1 = earlier.1.max(later.1);
            }
            overlaps
        });
        Self(all)
    }

    fn contains(&self, number: T) -> bool {
        let next = self.0.partition_point(|(first, _)| *first <= number);
        next > 0 && self.0[next - 1].1 >= number
    }
}

/// Members of a set or list in the form in which packets are compared with them. A look-up is a
/// binary search.
#[derive(Debug, Clone)]
pub(crate) struct MemberRanges {
    v4: NumberRanges<u32>,
    v6: NumberRanges<u128>,
    ports: NumberRanges<u16>,
}

impl MemberRanges {
    /// Creates the ranges of prefixes and ports, which may overlap.
    pub(crate) fn new(prefixes: &[Prefix], ports: &[Ports]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for prefix in prefixes {
            match (prefix.network(), prefix.last()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => v4.push((first.to_bits(), last.to_bits())),
                (IpAddr::V6(first), IpAddr::V6(last)) => v6.push((first.to_bits(), last.to_bits())),
                _ => {}
            }
        }
        let ports = ports.iter().map(|ports| (ports.first, ports.last)).collect();
        Self {
            v4: NumberRanges::new(v4),
            v6: NumberRanges::new(v6),
            ports: NumberRanges::new(ports),
        }
    }

    pub(crate) fn contains_addr(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(addr) => self.v4.contains(addr.to_bits()),
            IpAddr::V6(addr) => self.v6.contains(addr.to_bits()),
        }
    }

    pub(crate) fn contains_port(&self, port: u16) -> bool {
        self.ports.contains(port)
    }
}
