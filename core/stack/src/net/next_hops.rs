//! Routers that routes lead through, one entry for each address on a link, however many routes it has:
//! whether it answers, and when one that does not is asked again.

use core::net::IpAddr;

use hashbrown::HashMap;
use towpath_tcp::Instant;

use super::hash::Keyed;
use super::iface::IfaceId;
use super::limits::ROUTER_PROBE_INTERVAL;

/// A router's address on a link.
pub(super) type HopKey = (IfaceId, IpAddr);

/// Place of a router in [`NextHops`]; good for as long as a route holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HopId(u32);

/// All routers of all routes.
#[derive(Debug)]
pub(super) struct NextHops {
    index: HashMap<HopKey, HopId, Keyed>,
    hops: Vec<NextHop>,
    free: Vec<HopId>,
    /// Not later than the first time when any router that does not answer may be asked.
    probe_at: Instant,
}

#[derive(Debug)]
struct NextHop {
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

impl NextHops {
    pub(super) fn new(keys: Keyed) -> Self {
        Self {
            index: HashMap::with_hasher(keys),
            hops: Vec::new(),
            free: Vec::new(),
            probe_at: Instant::FAR,
        }
    }

    /// The router of one more route.
    pub(super) fn hold(&mut self, key: HopKey) -> HopId {
        let id = *self.index.entry(key).or_insert_with(|| {
            let hop = NextHop { key, routes: 0, failure: None };
            match self.free.pop() {
                Some(id) => {
                    self.hops[id.0 as usize] = hop;
                    id
                }
                None => {
                    self.hops.push(hop);
                    HopId((self.hops.len() - 1) as u32)
                }
            }
        });
        self.hops[id.0 as usize].routes += 1;
        id
    }

    /// One of its routes has gone.
    pub(super) fn release(&mut self, id: HopId) {
        let hop = &mut self.hops[id.0 as usize];
        hop.routes -= 1;
        if hop.routes == 0 {
            hop.failure = None;
            self.index.remove(&hop.key);
            self.free.push(id);
        }
    }

    /// Since when a router is known not to answer; `None` if it answers, or was not asked yet.
    #[inline]
    pub(super) fn failed_at(&self, id: HopId) -> Option<Instant> {
        self.hops[id.0 as usize].failure.map(|failure| failure.at)
    }

    /// Whether `key` is a router that does not answer.
    pub(super) fn has_failed(&self, key: &HopKey) -> bool {
        self.index.get(key).is_some_and(|id| self.failed_at(*id).is_some())
    }

    /// A neighbour did not answer. False when no route leads over it.
    pub(super) fn on_failed(&mut self, now: Instant, key: &HopKey) -> bool {
        let Some(id) = self.index.get(key) else { return false };
        let probe_at = now + ROUTER_PROBE_INTERVAL;
        self.hops[id.0 as usize].failure = Some(Failure { at: now, probe_at });
        self.probe_at = self.probe_at.min(probe_at);
        true
    }

    /// A neighbour answers (again). True when it is a router that did not before.
    pub(super) fn on_known(&mut self, key: &HopKey) -> bool {
        let Some(id) = self.index.get(key) else { return false };
        self.hops[id.0 as usize].failure.take().is_some()
    }

    /// Before this time no router is to be asked again.
    #[inline]
    pub(super) fn probe_at(&self) -> Instant {
        self.probe_at
    }

    /// The router, if it is time to ask it again; from now on that is for the next interval.
    pub(super) fn take_probe(&mut self, now: Instant, id: HopId) -> Option<HopKey> {
        let hop = &mut self.hops[id.0 as usize];
        let failure = hop.failure.as_mut().filter(|failure| failure.probe_at <= now)?;
        failure.probe_at = now + ROUTER_PROBE_INTERVAL;
        let key = hop.key;
        let times = self.hops.iter().filter_map(|hop| hop.failure.map(|failure| failure.probe_at));
        self.probe_at = times.min().unwrap_or(Instant::FAR);
        Some(key)
    }
}
