//! Addresses and permanent neighbours: which of them the engine has from the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use towpath_engine::{Change, How};
use towpath_stack::IfaceId;
use towpath_wire::{MacAddr, Prefix};

/// Addresses and permanent neighbours of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KernelHosts {
    pub addresses: BTreeSet<(IfaceId, Prefix)>,
    pub neighbors: BTreeMap<(IfaceId, IpAddr), MacAddr>,
}

/// Addresses and neighbours that were passed to the engine.
#[derive(Debug, Default)]
pub(crate) struct AdoptedHosts {
    passed: KernelHosts,
    /// Addresses that the engine did not have before, so that they end with those of the kernel.
    adopted: BTreeSet<(IfaceId, Prefix)>,
}

impl AdoptedHosts {
    /// Returns the changes that lead to `wanted`.
    pub(crate) fn changes(&self, wanted: &KernelHosts) -> Vec<Change> {
        let (before, after) = (&self.passed, wanted);
        let gone = before.addresses.difference(&after.addresses);
        let gone = gone.filter(|known| self.adopted.contains(*known));
        let removed = gone.map(|(iface, prefix)| {
            let (addr, len) = (prefix.addr(), Some(prefix.len()));
            Change::RemoveAddress { iface: *iface, addr, len }
        });
        let new = after.addresses.difference(&before.addresses);
        let added =
            new.map(|(iface, prefix)| Change::AddAddress { iface: *iface, prefix: *prefix });
        let lost = before.neighbors.keys().filter(|key| !after.neighbors.contains_key(*key));
        let lost = lost.map(|(iface, addr)| Change::RemoveNeighbor { iface: *iface, addr: *addr });
        let is_new = |key, mac| before.neighbors.get(key) != Some(mac);
        let set = after.neighbors.iter().filter(|(key, mac)| is_new(*key, *mac));
        let set = set.map(|((iface, addr), mac)| {
            let (iface, addr, mac, how) = (*iface, *addr, *mac, How::Replace);
            Change::SetNeighbor { iface, addr, mac, how }
        });
        removed.chain(added).chain(lost).chain(set).collect()
    }

    /// Records that the engine has applied a change.
    pub(crate) fn on_applied(&mut self, change: &Change) {
        match *change {
            Change::AddAddress { iface, prefix } => {
                self.adopted.insert((iface, prefix));
            }
            Change::RemoveAddress { iface, addr, .. } => {
                self.adopted.retain(|(known, prefix)| (*known, prefix.addr()) != (iface, addr));
            }
            _ => {}
        }
    }

    /// Records that all changes to `wanted` were passed to the engine, applied or refused.
    pub(crate) fn on_passed(&mut self, wanted: &KernelHosts) {
        self.passed = wanted.clone();
    }

    /// Returns the addresses that the engine has from the kernel.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.adopted.iter().map(|(_, prefix)| prefix.addr())
    }
}
