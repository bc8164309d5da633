//! Parts of a rule that are not numbers in the lanes of the search tree: lists, sets and marks.

use crate::fields::Fields;
use crate::rule::Rule;
use crate::sets::{AddressMatch, MemberRanges, NamedSets, PortMatch, SetMembers};

/// Place of the members with which a condition compares an address or port.
#[derive(Debug, Clone, Copy)]
enum MemberPlace {
    /// The rule has no list or set in this place.
    Any,
    /// Index of a list of the rules.
    List(u32),
    /// Index of a named set, in order of name.
    Set(u32),
}

/// Conditions of a rule that are compared after its box has matched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleExtras {
    src: MemberPlace,
    dst: MemberPlace,
    sport: MemberPlace,
    dport: MemberPlace,
    mark: Option<u32>,
}

/// Lists of all rules, and named sets, in the form in which packets are compared with them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberTables<'a> {
    pub(crate) lists: &'a [MemberRanges],
    pub(crate) sets: &'a [MemberRanges],
}

impl MemberTables<'_> {
    fn at(&self, place: MemberPlace) -> Option<&MemberRanges> {
        match place {
            MemberPlace::Any => None,
            MemberPlace::List(index) => self.lists.get(index as usize),
            MemberPlace::Set(index) => self.sets.get(index as usize),
        }
    }
}

impl RuleExtras {
    /// Creates the extras of a rule, and adds its lists to `lists`. Returns `None` if the search
    /// tree contains the whole rule. `sets` has the names of all sets in ascending order. The sets
    /// of the rule must exist.
    pub(crate) fn new(rule: &Rule, sets: &[&str], lists: &mut Vec<MemberRanges>) -> Option<Self> {
        if !rule.is_special() {
            return None;
        }
        let mut list = |ranges: MemberRanges| {
            lists.push(ranges);
            MemberPlace::List(lists.len() as u32 - 1)
        };
        let set = |name: &str| {
            let place = sets.binary_search(&name);
            place.map_or(MemberPlace::Any, |place| MemberPlace::Set(place as u32))
        };
        let mut prefixes = |condition: &Option<AddressMatch>| match condition {
            None | Some(AddressMatch::One(_)) => MemberPlace::Any,
            Some(AddressMatch::List(all)) => list(MemberRanges::new(all.as_slice(), &[])),
            Some(AddressMatch::Set(name)) => set(name),
        };
        let (src, dst) = (prefixes(&rule.src), prefixes(&rule.dst));
        let mut ports = |condition: &Option<PortMatch>| match condition {
            None | Some(PortMatch::One(_)) => MemberPlace::Any,
            Some(PortMatch::List(all)) => list(MemberRanges::new(&[], all.as_slice())),
            Some(PortMatch::Set(name)) => set(name),
        };
        let (sport, dport) = (ports(&rule.sport), ports(&rule.dport));
        Some(Self { src, dst, sport, dport, mark: rule.mark })
    }

    /// Returns whether a packet meets these conditions.
    pub(crate) fn accept(&self, fields: &Fields, tables: MemberTables<'_>) -> bool {
        let has = |place, port: Option<u16>| {
            let members = tables.at(place);
            members.is_none_or(|it| port.is_some_and(|port| it.contains_port(port)))
        };
        self.mark.is_none_or(|mark| mark == fields.mark)
            && has(self.sport, fields.ports.map(|(port, _)| port))
            && has(self.dport, fields.ports.map(|(_, port)| port))
            && tables.at(self.src).is_none_or(|it| it.contains_addr(fields.src))
            && tables.at(self.dst).is_none_or(|it| it.contains_addr(fields.dst))
    }
}

/// Converts the members of all sets, in order of name.
pub(crate) fn tables_of(sets: &NamedSets) -> Vec<MemberRanges> {
    sets.values().map(SetMembers::compiled).collect()
}
