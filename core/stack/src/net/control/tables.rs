//! State of the control part of the IP layer. Other files of this folder add methods to
//! [`Control`].

use core::net::IpAddr;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use towpath_pool::Packet;

use super::interface::Interface;
use super::neighbor::Neighbors;
use super::routes::RouteTable;
use super::schedule::TaskSchedule;
use crate::drop::DropReason;
use crate::net::config::NetConfig;
use crate::net::hash::{Cheap, Keyed, Random};
use crate::net::iface::IfaceId;
use crate::net::keys::Keys;
use crate::net::messages::{DataCommand, HopKey};
use crate::net::received::Conflict;
use crate::net::rule_set::RuleSet;
use crate::net::snapshot::Snapshot;
use crate::net::source;
use crate::net::trace::ControlCounters;

/// Control part of the IP layer: configuration, neighbours and timers of a host. The
/// [module](super) has an overview.
#[derive(Debug)]
pub(in crate::net) struct Control {
    /// Whether the stack forwards packets to other hosts, as a router.
    pub(super) forwards: bool,
    pub(in crate::net) counters: ControlCounters,
    pub(super) ifaces: Vec<Interface>,
    pub(super) routes: RouteTable,
    pub(super) neighbors: Neighbors,
    pub(super) schedule: TaskSchedule,
    pub(super) interface_ids: Keyed,
    pub(super) random: Random,
    pub(super) addresses_hash: Cheap,
    /// Current snapshot of the configuration, which the data parts use.
    pub(super) snapshot: Arc<Snapshot>,
    /// Rules of the packet filter.
    pub(super) rules: Option<Arc<RuleSet>>,
    /// Parts of the configuration snapshot that are out of date and must be rebuilt.
    pub(super) changed: Changed,
    pub(super) orders: VecDeque<DataCommand>,
    /// Address conflicts that were not reported to the owner yet, and the addresses for which a
    /// conflict was already reported.
    pub(super) conflicts: VecDeque<Conflict>,
    pub(super) conflicts_told: BTreeSet<HopKey>,
}

/// Flags of the parts of a configuration snapshot that must be rebuilt. Routes have a separate
/// flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Changed {
    pub links: bool,
    pub addresses: bool,
    pub groups: bool,
    pub rules: bool,
}

impl Control {
    /// Creates the control part of a host without interfaces.
    pub(in crate::net) fn new(config: NetConfig, keys: &Keys) -> Self {
        let (tables, addresses_hash) = (Keyed(keys.tables), Cheap(keys.addresses));
        Self {
            forwards: config.forwarding.is_some(),
            counters: ControlCounters::default(),
            ifaces: Vec::new(),
            routes: RouteTable::new(tables, config.forwarding.is_some()),
            neighbors: Neighbors::new(tables, config.neighbors()),
            schedule: TaskSchedule::default(),
            interface_ids: Keyed(keys.interface_ids),
            random: Random::new(keys.random),
            addresses_hash,
            snapshot: Arc::new(Snapshot::empty(addresses_hash)),
            rules: None,
            changed: Changed::default(),
            orders: VecDeque::new(),
            conflicts: VecDeque::new(),
            conflicts_told: BTreeSet::new(),
        }
    }

    /// Returns the current snapshot of the configuration, for the data parts.
    #[inline]
    pub(in crate::net) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns an interface; `None` if it was removed.
    pub(super) fn interface(&self, iface: IfaceId) -> Option<&Interface> {
        self.ifaces.get(iface.index()).filter(|known| known.removed_at.is_none())
    }

    /// Removes and returns the next command for the data parts.
    pub(in crate::net) fn take_command(&mut self) -> Option<DataCommand> {
        let news = || self.neighbors.take_update().map(|(to, news)| DataCommand::News { to, news });
        self.orders.pop_front().or_else(news)
    }

    /// Returns whether a command for the data parts is pending.
    #[inline]
    pub(in crate::net) fn has_commands(&self) -> bool {
        !self.orders.is_empty() || self.neighbors.has_updates()
    }

    /// Removes and returns the oldest address conflict that was not reported to the owner yet.
    pub(in crate::net) fn take_conflict(&mut self) -> Option<Conflict> {
        self.conflicts.pop_front()
    }

    /// Queues an address conflict for the owner. Further conflicts of the same address are ignored.
    pub(super) fn note_conflict(&mut self, conflict: Conflict) {
        if self.conflicts_told.insert((conflict.iface, conflict.addr)) {
            self.conflicts.push_back(conflict);
        }
    }

    /// Returns our source address for packets to `dst` on the link of an interface.
    pub(super) fn own_source(&self, iface: IfaceId, dst: IpAddr) -> Option<IpAddr> {
        let others = self.ifaces[1..].iter().filter(|other| other.id != iface);
        let others = others.map(|other| &other.addresses[..]);
        source::choose(&self.ifaces[iface.index()].addresses, others, dst, dst)
    }

    /// Sends a command to the data part to drop a received packet.
    pub(super) fn drop(&mut self, iface: IfaceId, packet: Packet, reason: DropReason) {
        self.orders.push_back(DataCommand::Drop { iface, packet, reason });
    }
}
