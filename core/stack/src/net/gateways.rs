//! Routers that routes lead through, one entry for each address on a link, however many routes it has:
//! whether it answers, and when one that does not is asked again.

use hashbrown::HashMap;
use towpath_tcp::Instant;

use super::hash::Keyed;
use super::limits::ROUTER_PROBE_INTERVAL;
use super::next_hop::HopKey;

/// Place of a router in [`Gateways`]; good for as long as a route holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GatewayId(u32);

/// All routers of all routes.
#[derive(Debug)]
pub(super) struct Gateways {
    index: HashMap<HopKey, GatewayId, Keyed>,
    gateways: Vec<Gateway>,
    free: Vec<GatewayId>,
    /// Not later than the first time when any router that does not answer may be asked.
    probe_at: Instant,
}

#[derive(Debug)]
struct Gateway {
    key: HopKey,
    /// Routes that lead through it; with none its place is free.
    routes: u32,
    failure: Option<Failure>,
}

/// It did not answer.
#[derive(Debug, Clone, Copy)]
struct Failure {
    /// When it was last found out.
    at: Instant,
    /// When it may be asked again.
    probe_at: Instant,
}

impl Gateways {
    pub(super) fn new(keys: Keyed) -> Self {
        Self {
            index: HashMap::with_hasher(keys),
            gateways: Vec::new(),
            free: Vec::new(),
            probe_at: Instant::FAR,
        }
    }

    /// The router of one more route.
    pub(super) fn hold(&mut self, key: HopKey) -> GatewayId {
        let id = *self.index.entry(key).or_insert_with(|| {
            let gateway = Gateway { key, routes: 0, failure: None };
            match self.free.pop() {
                Some(id) => {
                    self.gateways[id.0 as usize] = gateway;
                    id
                }
                None => {
                    self.gateways.push(gateway);
                    GatewayId((self.gateways.len() - 1) as u32)
                }
            }
        });
        self.gateways[id.0 as usize].routes += 1;
        id
    }

    /// One of its routes has gone.
    pub(super) fn release(&mut self, id: GatewayId) {
        let gateway = &mut self.gateways[id.0 as usize];
        gateway.routes -= 1;
        if gateway.routes == 0 {
            gateway.failure = None;
            self.index.remove(&gateway.key);
            self.free.push(id);
        }
    }

    /// Since when a router is known not to answer; `None` if it answers, or was not asked yet.
    #[inline]
    pub(super) fn failed_at(&self, id: GatewayId) -> Option<Instant> {
        self.gateways[id.0 as usize].failure.map(|failure| failure.at)
    }

    /// Whether `key` is a router that does not answer.
    pub(super) fn has_failed(&self, key: &HopKey) -> bool {
        self.index.get(key).is_some_and(|id| self.failed_at(*id).is_some())
    }

    /// A neighbour did not answer. False when no route leads over it.
    pub(super) fn on_failed(&mut self, now: Instant, key: &HopKey) -> bool {
        let Some(id) = self.index.get(key) else { return false };
        let probe_at = now + ROUTER_PROBE_INTERVAL;
        self.gateways[id.0 as usize].failure = Some(Failure { at: now, probe_at });
        self.probe_at = self.probe_at.min(probe_at);
        true
    }

    /// A neighbour answers (again). True when it is a router that did not before.
    pub(super) fn on_known(&mut self, key: &HopKey) -> bool {
        let Some(id) = self.index.get(key) else { return false };
        self.gateways[id.0 as usize].failure.take().is_some()
    }

    /// Before this time no router is to be asked again.
    #[inline]
    pub(super) fn probe_at(&self) -> Instant {
        self.probe_at
    }

    /// The router, if it is time to ask it again; from now on that is for the next interval.
    pub(super) fn take_probe(&mut self, now: Instant, id: GatewayId) -> Option<HopKey> {
        let gateway = &mut self.gateways[id.0 as usize];
        let failure = gateway.failure.as_mut().filter(|failure| failure.probe_at <= now)?;
        failure.probe_at = now + ROUTER_PROBE_INTERVAL;
        let key = gateway.key;
        let failures = self.gateways.iter().filter_map(|gateway| gateway.failure);
        let times = failures.map(|failure| failure.probe_at);
        self.probe_at = times.min().unwrap_or(Instant::FAR);
        Some(key)
    }
}
