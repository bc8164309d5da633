//! How long a neighbour counts as reachable, for ARP and neighbour discovery alike.

use std::time::Duration;

use towpath_tcp::Instant;

use super::iface::IfaceId;
use super::neighbor::{Key, reachable_time};
use super::{Net, Route};

/// A neighbour counts as reachable for half a minute (RFC 4861 §10), so that this is often enough to say so again.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(1);

/// The neighbour that was confirmed last, and when.
#[derive(Debug)]
pub(super) struct Confirmed {
    key: Key,
    at: Instant,
}

impl Net {
    /// The transport heard from beyond the first hop of `route`: it need not be probed (RFC 4861 §7.3.1).
    #[inline]
    pub fn confirm_reachable(&mut self, now: Instant, route: &Route) {
        if !self.has_neighbors(route.iface) {
            return;
        }
        let key = (route.iface, route.next_hop);
        // Asked with each acknowledgement, and nearly always about the same router.
        let is_recent = |last: &Confirmed| last.key == key && now.since(last.at) < CONFIRM_INTERVAL;
        if !self.confirmed.as_ref().is_some_and(is_recent) {
            self.confirmed = Some(Confirmed { key, at: now });
            let until = self.reachable_until(now, route.iface);
            self.neighbors.confirm(&key, until);
        }
    }

    /// Until when a neighbour confirmed now counts as reachable.
    pub(super) fn reachable_until(&mut self, now: Instant, iface: IfaceId) -> Instant {
        let base = self.ifaces[iface.index()].discovery.reachable;
        now + reachable_time(base, self.random.below(1024))
    }
}
