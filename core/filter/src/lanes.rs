//! Numeric form of packets and rules: a packet is a point in several dimensions (lanes), a rule a
//! box.
//!
//! | lane, IPv4 | lane, IPv6 | number |
//! |---|---|---|
//! | 0 | 0 to 3 | source address, its highest bits first |
//! | 1 | 4 to 7 | destination address |
//! | 2, 3 | 8, 9 | source and destination port |
//! | 4 | 10 | protocol |
//! | 5, 6 | 11, 12 | receiving and sending interface |
//! | 7 | 13 | ICMP type and code |
//!
//! An IPv6 prefix is a range in each of its four 32-bit lanes. TCP flags and flow states are sets,
//! not ranges. Both are compared separately after the box has matched. The box of a list of
//! prefixes or ports reaches from its first member to its last one. The box of a named set has all
//! numbers. The members are then looked up separately. Named sets can therefore change without a
//! new tree.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_wire::{IpProtocol, Prefix};

use crate::fields::{Fields, FlowStates};
use crate::linear::Resolved;
use crate::sets::{AddressMatch, PortMatch};

/// Number of lanes (32-bit numbers compared per packet) for IPv4.
pub(crate) const LANES_V4: usize = 8;
/// Number of lanes (32-bit numbers compared per packet) for IPv6. Two are unused, because vector
/// comparison needs a power of two.
pub(crate) const LANES_V6: usize = 16;

/// Lane value for a header field that the packet lacks; above all values of 16-bit fields.
const ABSENT: u32 = 1 << 16;
/// Range that contains every value of a 16-bit field but not the value for a missing field.
const PRESENT: Range = Range { first: 0, last: ABSENT - 1 };
const ANY: Range = Range { first: 0, last: u32::MAX };

/// Inclusive range of lane values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl Range {
    const fn one(number: u32) -> Self {
        Self { first: number, last: number }
    }

    pub(crate) const fn covers(self, other: Self) -> bool {
        self.first <= other.first && self.last >= other.last
    }

    /// Returns the intersection of two ranges, which must overlap.
    pub(crate) fn clip(self, other: Self) -> Self {
        Self { first: self.first.max(other.first), last: self.last.min(other.last) }
    }
}

/// Rule as one range per lane, with the TCP flags and flow states to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleBox<const LANES: usize> {
    pub(crate) lanes: [Range; LANES],
    pub(crate) flags_mask: u8,
    pub(crate) flags_set: u8,
    pub(crate) states: FlowStates,
}

/// Converts the fields of an IPv4 packet to lane values.
#[inline(always)]
pub(crate) fn point_v4(src: Ipv4Addr, dst: Ipv4Addr, fields: &Fields) -> [u32; LANES_V4] {
    let [sport, dport, protocol, input, output, icmp] = point_of_rest(fields);
    [src.to_bits(), dst.to_bits(), sport, dport, protocol, input, output, icmp]
}

/// Converts the fields of an IPv6 packet to lane values.
#[inline(always)]
pub(crate) fn point_v6(src: Ipv6Addr, dst: Ipv6Addr, fields: &Fields) -> [u32; LANES_V6] {
    let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (lanes_of(src.to_bits()), lanes_of(dst.to_bits()));
    let [sport, dport, protocol, input, output, icmp] = point_of_rest(fields);
    [s0, s1, s2, s3, d0, d1, d2, d3, sport, dport, protocol, input, output, icmp, 0, 0]
}

#[inline(always)]
fn point_of_rest(fields: &Fields) -> [u32; 6] {
    let (sport, dport) = match fields.ports {
        Some((src, dst)) => (src.into(), dst.into()),
        None => (ABSENT, ABSENT),
    };
    let is_icmp = matches!(IpProtocol(fields.protocol), IpProtocol::ICMP | IpProtocol::ICMPV6);
    let icmp = match fields.icmp {
        Some((kind, code)) if is_icmp => u32::from(kind) << 8 | u32::from(code),
        _ => ABSENT,
    };
    let iface = |iface: Option<u16>| iface.map_or(ABSENT, u32::from);
    let (input, output) = (iface(fields.iface_in), iface(fields.iface_out));
    [sport, dport, fields.protocol.into(), input, output, icmp]
}

/// Converts a rule to ranges of the IPv4 lanes. Returns `None` if no IPv4 packet can match the
/// rule.
pub(crate) fn box_v4(resolved: &Resolved) -> Option<RuleBox<LANES_V4>> {
    let address = |prefixes: &Option<AddressMatch>| {
        let Some((first, last)) = bounds(prefixes, false)? else { return Some(ANY) };
        match (first.network(), last.last()) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                Some(Range { first: first.to_bits(), last: last.to_bits() })
            }
            _ => None,
        }
    };
    let (src, dst) = (address(&resolved.rule.src)?, address(&resolved.rule.dst)?);
    let [sport, dport, protocol, input, output, icmp] = box_of_rest(resolved)?;
    Some(with_flags(resolved, [src, dst, sport, dport, protocol, input, output, icmp]))
}

/// Converts a rule to ranges of the IPv6 lanes. Returns `None` if no IPv6 packet can match the
/// rule.
pub(crate) fn box_v6(resolved: &Resolved) -> Option<RuleBox<LANES_V6>> {
    let address = |prefixes: &Option<AddressMatch>| {
        let Some((first, last)) = bounds(prefixes, true)? else { return Some([ANY; 4]) };
        let (IpAddr::V6(low), IpAddr::V6(high)) = (first.network(), last.last()) else {
            return None;
        };
        let (low, high) = (lanes_of(low.to_bits()), lanes_of(high.to_bits()));
        // The lower lanes of an address between two different prefixes can have any value.
        let equal = low.iter().zip(&high).take_while(|(low, high)| low == high).count();
        let is_one = first == last;
        let range = |lane: usize| match is_one || lane <= equal {
            true => Range { first: low[lane], last: high[lane] },
            false => ANY,
        };
        Some([0, 1, 2, 3].map(range))
    };
    let ([s0, s1, s2, s3], [d0, d1, d2, d3]) =
        (address(&resolved.rule.src)?, address(&resolved.rule.dst)?);
    let [sport, dport, protocol, input, output, icmp] = box_of_rest(resolved)?;
    let lanes =
        [s0, s1, s2, s3, d0, d1, d2, d3, sport, dport, protocol, input, output, icmp, ANY, ANY];
    Some(with_flags(resolved, lanes))
}

/// Returns the prefixes of a condition for one IP version that have the lowest and the highest
/// address. `Some(None)` means any address; `None` means that no address of this version matches.
fn bounds(prefixes: &Option<AddressMatch>, is_v6: bool) -> Option<Option<(Prefix, Prefix)>> {
    let of_version = |prefix: &&Prefix| prefix.addr().is_ipv6() == is_v6;
    match prefixes {
        None | Some(AddressMatch::Set(_)) => Some(None),
        Some(known) => {
            let all = || known.prefixes().iter().filter(of_version);
            let last = all().max_by_key(|prefix| prefix.last())?;
            Some(Some((*all().next()?, *last)))
        }
    }
}

fn box_of_rest(resolved: &Resolved) -> Option<[Range; 6]> {
    let rule = &resolved.rule;
    let ports = |ports: &Option<PortMatch>| match ports {
        None => Some(ANY),
        Some(PortMatch::Set(_)) => Some(PRESENT),
        Some(known) => {
            let first = known.ranges().first()?.first;
            let last = known.ranges().iter().map(|ports| ports.last).max()?;
            (first <= last).then_some(Range { first: first.into(), last: last.into() })
        }
    };
    let mut protocol = rule.protocol.map_or(ANY, |protocol| Range::one(protocol.into()));
    let (mut sport, dport) = (ports(&rule.sport)?, ports(&rule.dport)?);
    if rule.flags.is_some() {
        let tcp = Range::one(IpProtocol::TCP.0.into());
        if !protocol.covers(tcp) {
            return None;
        }
        protocol = tcp;
        sport = sport.clip(PRESENT);
    }
    let icmp = rule.icmp.map_or(ANY, |icmp| {
        let first = u32::from(icmp.kind) << 8;
        match icmp.code {
            Some(code) => Range::one(first | u32::from(code)),
            None => Range { first, last: first | 0xff },
        }
    });
    let iface = |iface: Option<u16>| iface.map_or(ANY, |iface| Range::one(iface.into()));
    Some([sport, dport, protocol, iface(resolved.iface_in), iface(resolved.iface_out), icmp])
}

fn with_flags<const LANES: usize>(resolved: &Resolved, lanes: [Range; LANES]) -> RuleBox<LANES> {
    let (flags_mask, flags_set) = resolved.rule.flags.map_or((0, 0), |it| (it.mask, it.set));
    RuleBox {
        lanes,
        flags_mask,
        flags_set,
        states: resolved.rule.states.unwrap_or(FlowStates::ANY),
    }
}

fn lanes_of(address: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (address >> shift) as u32)
}
