//! Routers that do not answer, so that route lookups avoid them.

use std::collections::BTreeMap;

use towpath_tcp::Instant;

/// Identifier of a router that routes use. The identifier is valid as long as a route uses the
/// router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GatewayId(pub u32);

/// Routers that do not answer. The map is small, so a change copies it as a whole.
#[derive(Debug, Clone)]
pub(super) struct UnreachableRouters {
    of: BTreeMap<GatewayId, Failure>,
    /// Earliest time at which one of these failed routers may be probed.
    probe_at: Instant,
}

/// Failure of a router that does not answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    /// Time at which the router last failed to answer.
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
    /// Returns the time at which a router last failed; `None` if it answers, or was not used yet.
    #[inline]
    pub(super) fn failed_at(&self, id: GatewayId) -> Option<Instant> {
        self.of.get(&id).map(|failure| failure.at)
    }

    /// Returns whether a failed router may be probed at the time `now`.
    pub(super) fn is_due(&self, now: Instant, id: GatewayId) -> bool {
        self.of.get(&id).is_some_and(|failure| failure.probe_at <= now)
    }

    /// Returns the earliest time at which one of the routers may be probed.
    #[inline]
    pub(super) fn probe_at(&self) -> Instant {
        self.probe_at
    }

    /// Calls `change` to modify the map, and then updates the earliest time of a probe.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut BTreeMap<GatewayId, Failure>)) {
        change(&mut self.of);
        let times = self.of.values().map(|failure| failure.probe_at);
        self.probe_at = times.min().unwrap_or(Instant::FAR);
    }
}
