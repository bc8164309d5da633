//! Multicast groups of an interface: the wanted sources of each, and the protocol versions of
//! queriers.

use core::net::IpAddr;

use towpath_tcp::Instant;
use towpath_wire::{addr, igmp, mld};

use crate::net::limits::{GROUP_SOURCES_MAX, GROUPS_MAX, OLDER_QUERIER_TIME};
use crate::net::locals::is_of_all_hosts;

/// Joined groups of an interface and its querier compatibility timers.
#[derive(Debug, Default)]
pub(super) struct Groups {
    list: Vec<Group>,
    /// Time until which an older querier counts as present: IGMPv1, IGMPv2, MLDv1.
    older: [Instant; 3],
}

/// Joined group with reference counts.
#[derive(Debug)]
struct Group {
    addr: IpAddr,
    /// Number of joins for all sources.
    all: u32,
    /// Joined sources, each with its number of joins.
    sources: Vec<(IpAddr, u32)>,
}

/// Change of a group that must be reported to the link's routers (RFC 3376 §5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// The filter mode changed between all and selected sources, or the last member left.
    Filter,
    /// A source was added or removed.
    Source(IpAddr),
}

/// Wanted sources of a group: the filter mode and source list of a report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// EXCLUDE {}: all sources.
    All,
    /// INCLUDE: the listed sources.
    Only(Vec<IpAddr>),
}

/// Report format that the queriers of a link support, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// IGMPv1: reports without leave messages.
    Igmp1,
    /// IGMPv2 and MLDv1: a report per group, and leave messages.
    Single,
    /// IGMPv3 and MLDv2: reports with group records.
    Records,
}

impl Groups {
    /// Returns whether this host receives packets to `group`.
    pub(super) fn contains(&self, group: IpAddr) -> bool {
        is_of_all_hosts(group) || self.list.iter().any(|joined| joined.addr == group)
    }

    /// Joins for a program. Returns `None` if a limit is reached.
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

    /// Joins a group required by an address of this host. Limits do not apply, because the number
    /// of addresses bounds these groups and programs must not be able to exhaust them.
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

    /// Reverts one join. Returns `None` if there was none.
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

    /// Returns the wanted sources of a group; an empty `Only` for a group without members.
    pub(super) fn wanted(&self, group: IpAddr) -> Wanted {
        match self.list.iter().find(|joined| joined.addr == group) {
            Some(Group { all: 1.., .. }) => Wanted::All,
            Some(Group { sources, .. }) => {
                Wanted::Only(sources.iter().map(|(source, _)| *source).collect())
            }
            None => Wanted::Only(Vec::new()),
        }
    }

    /// Iterates over the joined groups, without the groups of all hosts.
    pub(super) fn joined(&self) -> impl Iterator<Item = IpAddr> {
        self.list.iter().map(|joined| joined.addr)
    }

    /// Iterates over the groups of a family that are reported.
    pub(super) fn reported(&self, ipv6: bool) -> impl Iterator<Item = IpAddr> {
        let groups = self.list.iter().map(|joined| joined.addr);
        groups.filter(move |group| group.is_ipv6() == ipv6 && is_reported(*group))
    }

    /// Records a general IGMP query. Returns true if the report version changes.
    pub(super) fn on_igmp_query(&mut self, now: Instant, version: igmp::Version) -> bool {
        let before = self.version(now, false);
        match version {
            igmp::Version::V1 => self.older[0] = now + OLDER_QUERIER_TIME,
            igmp::Version::V2 => self.older[1] = now + OLDER_QUERIER_TIME,
            igmp::Version::V3 => {}
        }
        before != self.version(now, false)
    }

    /// Records a general MLD query. Returns true if the report version changes.
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
