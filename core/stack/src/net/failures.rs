//! Routers that do not answer, for route lookups.

use std::collections::BTreeMap;

use towpath_tcp::Instant;

/// Id of a router that routes use; valid as long as a route uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GatewayId(pub u32);

/// Routers that do not answer. A change copies the whole map, because such routers are few.
#[derive(Debug, Clone)]
pub(super) struct UnreachableRouters {
    of: BTreeMap<GatewayId, Failure>,
    /// Earliest time at which one of the routers may be probed.
    probe_at: Instant,
}

/// Failure of a router to answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    /// Time of the last failure.
    pub at: Instant,
    /// Time from which the router may be probed again.
    pub probe_at: Instant,
}

impl Default for UnreachableRouters {
    fn default() -> Self {
        Self { of: BTreeMap::new(), probe_at: Instant::FAR }
    }
}

impl UnreachableRouters {
    /// Returns the time of a router's last failure; `None` if it answers, or was not asked yet.
    #[inline]
    pub(super) fn failed_at(&self, id: GatewayId) -> Option<Instant> {
        self.of.get(&id).map(|failure| failure.at)
    }

    /// Returns whether a failed router may be probed.
    pub(super) fn is_due(&self, now: Instant, id: GatewayId) -> bool {
        self.of.get(&id).is_some_and(|failure| failure.probe_at <= now)
    }

    /// Returns the earliest time at which one of the routers may be probed.
    #[inline]
    pub(super) fn probe_at(&self) -> Instant {
        self.probe_at
    }

    /// Changes the map by `change`, and updates the time of the first probe.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut BTreeMap<GatewayId, Failure>)) {
        change(&mut self.of);
        let times = self.of.values().map(|failure| failure.probe_at);
        self.probe_at = times.min().unwrap_or(Instant::FAR);
    }
}
