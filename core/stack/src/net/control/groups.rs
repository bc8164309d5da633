//! The groups of an interface: which sources are wanted of each, and which versions its queriers
//! speak.

use core::net::IpAddr;

use towpath_tcp::Instant;
use towpath_wire::{addr, igmp, mld};

use crate::net::limits::{GROUP_SOURCES_MAX, GROUPS_MAX, OLDER_QUERIER_TIME};
use crate::net::locals::is_of_all_hosts;

/// The groups of an interface.
#[derive(Debug, Default)]
pub(super) struct Groups {
    list: Vec<Group>,
    /// Until when a querier of IGMPv1, of IGMPv2 and of MLDv1 counts as present.
    older: [Instant; 3],
}

/// A group that this host joined. Joins count.
#[derive(Debug)]
struct Group {
    addr: IpAddr,
    /// For all sources.
    all: u32,
    /// For one source each.
    sources: Vec<(IpAddr, u32)>,
}

/// Change of a group that routers of the link must learn by a report (RFC 3376 §5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// All sources are wanted where only some were, or the reverse; or the last one left.
    Filter,
    /// The source is wanted, or no longer.
    Source(IpAddr),
}

/// Sources wanted of a group: the filter mode and source list of a report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// EXCLUDE {}.
    All,
    /// INCLUDE these.
    Only(Vec<IpAddr>),
}

/// Reports that the queriers of a link understand, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// IGMPv1: reports, and no leaves.
    Igmp1,
    /// IGMPv2 and MLDv1: a report for each group, and leaves.
    Single,
    /// IGMPv3 and MLDv2: records.
    Records,
}

impl Groups {
    /// Whether packets to `group` are for this host.
    pub(super) fn contains(&self, group: IpAddr) -> bool {
        is_of_all_hosts(group) || self.list.iter().any(|joined| joined.addr == group)
    }

    /// A program joins; `None` when there is no room.
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

    /// Joins a group that an address of this host needs. Limits do not apply: addresses bound their
    /// number, and a full list of programs' groups must not refuse them.
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

    /// Undoes one join; `None` when there was none.
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

    /// Sources wanted of a group; `Only` none for a group without members.
    pub(super) fn wanted(&self, group: IpAddr) -> Wanted {
        match self.list.iter().find(|joined| joined.addr == group) {
            Some(Group { all: 1.., .. }) => Wanted::All,
            Some(Group { sources, .. }) => {
                Wanted::Only(sources.iter().map(|(source, _)| *source).collect())
            }
            None => Wanted::Only(Vec::new()),
        }
    }

    /// Groups that this host joined, without those to which every host belongs.
    pub(super) fn joined(&self) -> impl Iterator<Item = IpAddr> {
        self.list.iter().map(|joined| joined.addr)
    }

    /// Groups of a family that reports name.
    pub(super) fn reported(&self, ipv6: bool) -> impl Iterator<Item = IpAddr> {
        let groups = self.list.iter().map(|joined| joined.addr);
        groups.filter(move |group| group.is_ipv6() == ipv6 && is_reported(*group))
    }

    /// Notes an IGMP query about all groups; true when later answers need another version.
    pub(super) fn on_igmp_query(&mut self, now: Instant, version: igmp::Version) -> bool {
        let before = self.version(now, false);
        match version {
            igmp::Version::V1 => self.older[0] = now + OLDER_QUERIER_TIME,
            igmp::Version::V2 => self.older[1] = now + OLDER_QUERIER_TIME,
            igmp::Version::V3 => {}
        }
        before != self.version(now, false)
    }

    /// Notes an MLD query likewise.
    pub(super) fn on_mld_query(&mut self, now: Instant, version: mld::Version) -> bool {
        let before = self.version(now, true);
        if version == mld::Version::V1 {
            self.older[2] = now + OLDER_QUERIER_TIME;
        }
        before != self.version(now, true)
    }

    /// Reports that the link's queriers understand now.
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
