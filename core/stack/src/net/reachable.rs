//! How long a neighbour counts as reachable, for ARP and neighbour discovery alike.

use towpath_tcp::Instant;

use super::iface::IfaceId;
use super::neighbor::reachable_time;
use super::{Net, Route};

impl Net {
    /// The transport heard from beyond the first hop of `route`: it need not be probed (RFC 4861 §7.3.1).
    /// Once in some seconds is enough.
    pub fn confirm_reachable(&mut self, now: Instant, route: &Route) {
        let until = self.reachable_until(now, route.iface);
        self.neighbors.confirm(&(route.iface, route.next_hop), until);
    }

    /// Until when a neighbour confirmed now counts as reachable.
    pub(super) fn reachable_until(&mut self, now: Instant, iface: IfaceId) -> Instant {
        let base = self.ifaces[iface.index()].discovery.reachable;
        now + reachable_time(base, self.random.below(1024))
    }
}
