//! Routers that do not answer, for lookups of routes.

use std::collections::BTreeMap;

use towpath_tcp::Instant;

/// A router that routes lead through; good for as long as one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GatewayId(pub u32);

/// The routers that do not answer. There are few: a change copies all of them.
#[derive(Debug, Clone)]
pub(super) struct UnreachableRouters {
    of: BTreeMap<GatewayId, Failure>,
    /// The first time when any of them may be asked.
    probe_at: Instant,
}

/// Failure of a router to answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    /// When it was last found out.
    pub at: Instant,
    /// When it may be asked again.
    pub probe_at: Instant,
}

impl Default for UnreachableRouters {
    fn default() -> Self {
        Self { of: BTreeMap::new(), probe_at: Instant::FAR }
    }
}

impl UnreachableRouters {
    /// Since when a router is known not to answer; `None` if it answers, or was not asked yet.
    #[inline]
    pub(super) fn failed_at(&self, id: GatewayId) -> Option<Instant> {
        self.of.get(&id).map(|failure| failure.at)
    }

    /// Whether a router may be asked again.
    pub(super) fn is_due(&self, now: Instant, id: GatewayId) -> bool {
        self.of.get(&id).is_some_and(|failure| failure.probe_at <= now)
    }

    /// Before this time no router is to be asked again.
    #[inline]
    pub(super) fn probe_at(&self) -> Instant {
        self.probe_at
    }

    /// Changes some of them.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut BTreeMap<GatewayId, Failure>)) {
        change(&mut self.of);
        let times = self.of.values().map(|failure| failure.probe_at);
        self.probe_at = times.min().unwrap_or(Instant::FAR);
    }
}
