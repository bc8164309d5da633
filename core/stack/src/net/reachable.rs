//! How long a neighbour counts as reachable, for ARP and neighbour discovery alike.

use towpath_tcp::Instant;

use super::confirmed::Confirmed;
use super::iface::IfaceId;
use super::layer::Net;
use super::neighbor::reachable_time;
use super::route::Route;

impl Net {
    /// The transport heard from beyond the first hop of `route`: it need not be probed (RFC 4861 §7.3.1).
    #[inline]
    pub fn confirm_reachable(&mut self, now: Instant, route: &Route) {
        if !self.has_neighbors(route.iface) {
            return;
        }
        let key = (route.iface, route.next_hop);
        // Asked with each acknowledgement, and nearly always about the same router.
        if !self.confirmed.as_ref().is_some_and(|last| last.is_recent(now, key)) {
            self.confirmed = Some(Confirmed::new(now, key));
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
