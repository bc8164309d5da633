//! Multicast groups of an interface: their sources, and the IGMP and MLD versions of the queriers
//! on the link.

use core::net::IpAddr;

use towpath_tcp::Instant;
use towpath_wire::{addr, igmp, mld};

use crate::net::limits::{GROUP_SOURCES_MAX, GROUPS_MAX, OLDER_QUERIER_TIME};
use crate::net::locals::is_of_all_hosts;

/// Multicast groups that an interface has joined, and the timers of older querier versions.
#[derive(Debug, Default)]
pub(super) struct Groups {
    list: Vec<Group>,
    /// Times until which a querier of an older version counts as present, for IGMPv1, IGMPv2 and
    /// MLDv1.
    older: [Instant; 3],
}

/// A multicast group that was joined, with the number of joins.
#[derive(Debug)]
struct Group {
    addr: IpAddr,
    /// Number of joins of the group for all sources.
    all: u32,
    /// Sources for which the group was joined, each with its number of joins.
    sources: Vec<(IpAddr, u32)>,
}

/// Change of a multicast group that must be reported to the routers on the link (RFC 3376 §5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// The filter mode changed between all sources and selected sources, or the last member left
    /// the group.
    Filter,
    /// A source was added to the group or removed from it.
    Source(IpAddr),
}

/// Sources from which the host wants a group's packets: the filter mode and the source list of a
/// report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All sources: filter mode EXCLUDE with an empty list.
    All,
    /// The listed sources: filter mode INCLUDE.
    Only(Vec<IpAddr>),
}

/// Version of the reports that the queriers on a link support, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// IGMPv1: reports without leave messages.
    Igmp1,
    /// IGMPv2 and MLDv1: one report per group, and leave messages.
    Single,
    /// IGMPv3 and MLDv2: reports with group records.
    Records,
}

impl Groups {
    /// Returns whether this host receives packets to the multicast group.
    pub(super) fn contains(&self, group: IpAddr) -> bool {
        is_of_all_hosts(group) || self.list.iter().any(|joined| joined.addr == group)
    }

    /// Adds a join by a program, for all sources or for one. Returns `None` if a limit is reached.
    pub(super) fn join(&mut self, group: IpAddr, source: Option<IpAddr>) -> Option<Change> {
        let at = self.list.iter().position(|joined| joined.addr == group);
        match (at, source) {
            (None, _) if self.list.len() >= GROUPS_MAX => return None,
            (Some(at), Some(source)) => {
                let sources = &self.list[at].sources;
                let known = sources.iter().any(|(known, _)| *known == source);
                if !known && sources.len() >= GROUP_SOURCES_MAX {
                    return None;
                }
            }
            _ => {}
        }
        Some(self.add(group, source))
    }

    /// Joins a group that an address of this host requires. Limits do not apply, because the number
    /// of addresses bounds these groups. Otherwise programs could prevent the join by exhausting
    /// the limits.
    pub(super) fn join_own(&mut self, group: IpAddr) -> Change {
        self.add(group, None)
    }

    fn add(&mut self, addr: IpAddr, source: Option<IpAddr>) -> Change {
        let at = self.list.iter().position(|joined| joined.addr == addr).unwrap_or_else(|| {
            self.list.push(Group { addr, all: 0, sources: Vec::new() });
            self.list.len() - 1
        });
        let Group { all, sources, .. } = &mut self.list[at];
        let Some(source) = source else {
            *all += 1;
            return if *all == 1 { Change::Filter } else { Change::Nothing };
        };
        match sources.iter_mut().find(|(known, _)| *known == source) {
            Some((_, count)) => {
                *count += 1;
                Change::Nothing
            }
            None => {
                sources.push((source, 1));
                if *all == 0 { Change::Source(source) } else { Change::Nothing }
            }
        }
    }

    /// Removes one join of a multicast group. Returns `None` if the group was not joined.
    pub(super) fn leave(&mut self, addr: IpAddr, source: Option<IpAddr>) -> Option<Change> {
        let at = self.list.iter().position(|joined| joined.addr == addr)?;
        let Group { all, sources, .. } = &mut self.list[at];
        let change = match source {
            None => {
                *all = all.checked_sub(1)?;
                if *all == 0 { Change::Filter } else { Change::Nothing }
            }
            Some(source) => {
                let place = sources.iter().position(|(known, _)| *known == source)?;
                sources[place].1 -= 1;
                if sources[place].1 > 0 {
                    return Some(Change::Nothing);
                }
                sources.remove(place);
                if *all == 0 { Change::Source(source) } else { Change::Nothing }
            }
        };
        if *all == 0 && sources.is_empty() {
            self.list.remove(at);
        }
        Some(change)
    }

    /// Returns the sources from which the host wants packets to a group. For a group without
    /// members, this is `Only` with an empty list.
    pub(super) fn wanted(&self, group: IpAddr) -> Wanted {
        match self.list.iter().find(|joined| joined.addr == group) {
            Some(Group { all: 1.., .. }) => Wanted::All,
            Some(Group { sources, .. }) => {
                Wanted::Only(sources.iter().map(|(source, _)| *source).collect())
            }
            None => Wanted::Only(Vec::new()),
        }
    }

    /// Iterates over the joined groups. The groups of all hosts, which are never left, are not
    /// included.
    pub(super) fn joined(&self) -> impl Iterator<Item = IpAddr> {
        self.list.iter().map(|joined| joined.addr)
    }

    /// Iterates over the joined multicast groups of one IP version whose membership is reported to
    /// routers.
    pub(super) fn reported(&self, ipv6: bool) -> impl Iterator<Item = IpAddr> {
        let groups = self.list.iter().map(|joined| joined.addr);
        groups.filter(move |group| group.is_ipv6() == ipv6 && is_reported(*group))
    }

    /// Handles a general IGMP query. Returns true if it changes the version of our reports.
    pub(super) fn on_igmp_query(&mut self, now: Instant, version: igmp::Version) -> bool {
        let before = self.version(now, false);
        match version {
            igmp::Version::V1 => self.older[0] = now + OLDER_QUERIER_TIME,
            igmp::Version::V2 => self.older[1] = now + OLDER_QUERIER_TIME,
            igmp::Version::V3 => {}
        }
        before != self.version(now, false)
    }

    /// Handles a general MLD query. Returns true if it changes the version of our reports.
    pub(super) fn on_mld_query(&mut self, now: Instant, version: mld::Version) -> bool {
        let before = self.version(now, true);
        if version == mld::Version::V1 {
            self.older[2] = now + OLDER_QUERIER_TIME;
        }
        before != self.version(now, true)
    }

    /// Returns the report version that the link's queriers currently support.
    //= https://www.rfc-editor.org/rfc/rfc3376#section-7.2.1
    //# In order to be compatible with older version
    //# routers, IGMPv3 hosts MUST operate in version 1 and version 2
    //# compatibility modes.
    pub(super) fn version(&self, now: Instant, ipv6: bool) -> Version {
        let [igmp1, igmp2, mld1] = self.older.map(|until| now < until);
        match ipv6 {
            false if igmp1 => Version::Igmp1,
            false if igmp2 => Version::Single,
            true if mld1 => Version::Single,
            _ => Version::Records,
        }
    }
}

//= https://www.rfc-editor.org/rfc/rfc2710#section-5
//# MLD messages are never sent for multicast addresses whose scope is 0
//# (reserved) or 1 (node-local).
pub(super) fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => addr::may_be_on_link(v6),
    }
}
