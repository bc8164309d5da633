//! Routers that routes use as next hops. The table has one entry per router, regardless of the
//! number of routes that use it. An entry records whether the router answers, and when a router
//! that failed is probed next.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use towpath_tcp::Instant;

use crate::net::failures::{Failure, GatewayId, UnreachableRouters};
use crate::net::hash::Keyed;
use crate::net::iface::IfaceId;
use crate::net::limits::{GATEWAYS_MAX, ROUTER_PROBE_INTERVAL};
use crate::net::messages::HopKey;

/// Table of the routers that routes use as next hops.
#[derive(Debug)]
pub(super) struct Gateways {
    index: HashMap<HopKey, GatewayId, Keyed>,
    gateways: Vec<GatewayUse>,
    free: Vec<GatewayId>,
    failures: Arc<UnreachableRouters>,
    /// Interfaces without carrier, with the time at which the carrier was lost.
    no_carrier: BTreeMap<IfaceId, Instant>,
}

#[derive(Debug)]
struct GatewayUse {
    key: HopKey,
    /// Number of routes through this router. The entry is free if the number is 0.
    routes: u32,
}

impl Gateways {
    pub(super) fn new(keys: Keyed) -> Self {
        Self {
            index: HashMap::with_hasher(keys),
            gateways: Vec::new(),
            free: Vec::new(),
            failures: Arc::default(),
            no_carrier: BTreeMap::new(),
        }
    }

    /// Returns the routers that have failed, for the next snapshot.
    pub(super) fn failures(&self) -> &Arc<UnreachableRouters> {
        &self.failures
    }

    /// Adds a reference to a router, for a route that uses the router. Returns `None` if the table
    /// of routers is full.
    pub(super) fn hold(&mut self, key: HopKey) -> Option<GatewayId> {
        let id = match self.index.get(&key) {
            Some(id) => *id,
            None => self.begin(key)?,
        };
        self.gateways[id.0 as usize].routes += 1;
        Some(id)
    }

    fn begin(&mut self, key: HopKey) -> Option<GatewayId> {
        let gateway = GatewayUse { key, routes: 0 };
        let id = match self.free.pop() {
            Some(id) => {
                self.gateways[id.0 as usize] = gateway;
                id
            }
            None if self.gateways.len() < GATEWAYS_MAX => {
                self.gateways.push(gateway);
                GatewayId((self.gateways.len() - 1) as u32)
            }
            None => return None,
        };
        self.index.insert(key, id);
        if let Some(since) = self.no_carrier.get(&key.0).copied() {
            self.on_failed(since, &key);
        }
        Some(id)
    }

    /// Records that the interface `iface` has lost or regained its carrier. Without carrier, its
    /// routers immediately count as failed; with carrier, they count as reachable.
    pub(super) fn set_carrier(&mut self, now: Instant, iface: IfaceId, carrier: bool) {
        let change = match carrier {
            true => self.no_carrier.remove(&iface).is_some(),
            false => self.no_carrier.insert(iface, now).is_none(),
        };
        if !change {
            return;
        }
        let is_its = |gateway: &&GatewayUse| gateway.key.0 == iface && gateway.routes > 0;
        let keys: Vec<_> = self.gateways.iter().filter(is_its).map(|it| it.key).collect();
        for key in keys {
            match carrier {
                true => self.on_known(&key),
                false => self.on_failed(now, &key),
            };
        }
    }

    /// Drops a route's reference to its router. The last reference frees the table entry.
    pub(super) fn release(&mut self, id: GatewayId) {
        let gateway = &mut self.gateways[id.0 as usize];
        gateway.routes -= 1;
        if gateway.routes == 0 {
            self.index.remove(&gateway.key);
            self.free.push(id);
            self.forget_failure(id);
        }
    }

    /// Returns the number of routers that can still be added to the table.
    pub(super) fn room(&self) -> usize {
        GATEWAYS_MAX - self.gateways.len() + self.free.len()
    }

    /// Returns whether at least one route uses the router `key`.
    pub(super) fn holds(&self, key: &HopKey) -> bool {
        self.index.contains_key(key)
    }

    /// Returns whether `key` is a router that has failed.
    pub(super) fn has_failed(&self, key: &HopKey) -> bool {
        self.index.get(key).is_some_and(|id| self.failures.failed_at(*id).is_some())
    }

    /// Marks a router as failed. Returns false if no route uses this neighbour as router.
    pub(super) fn on_failed(&mut self, now: Instant, key: &HopKey) -> bool {
        let Some(id) = self.index.get(key) else { return false };
        let failure = Failure { at: now, probe_at: now + ROUTER_PROBE_INTERVAL };
        Arc::make_mut(&mut self.failures).change(|of| {
            of.insert(*id, failure);
        });
        true
    }

    /// Marks a router as reachable. Returns true if it had failed before.
    pub(super) fn on_known(&mut self, key: &HopKey) -> bool {
        if self.no_carrier.contains_key(&key.0) {
            return false;
        }
        self.index.get(key).copied().is_some_and(|id| self.forget_failure(id))
    }

    fn forget_failure(&mut self, id: GatewayId) -> bool {
        let failed = self.failures.failed_at(id).is_some();
        if failed {
            Arc::make_mut(&mut self.failures).change(|of| {
                of.remove(&id);
            });
        }
        failed
    }

    /// Returns whether a failed router must be probed now, and schedules the next probe in this
    /// case.
    pub(super) fn take_probe(&mut self, now: Instant, key: &HopKey) -> bool {
        let Some(id) = self.index.get(key).copied() else { return false };
        let due = self.failures.is_due(now, id);
        if due {
            Arc::make_mut(&mut self.failures).change(|of| {
                if let Some(failure) = of.get_mut(&id) {
                    failure.probe_at = now + ROUTER_PROBE_INTERVAL;
                }
            });
        }
        due
    }
}
