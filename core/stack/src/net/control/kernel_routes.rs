//! Replaces the routes that were copied from the host's kernel.

use towpath_wire::Prefix;

use super::draft::route_mtu;
use super::tables::Control;
use crate::net::iface::{IfaceId, Origin};
use crate::net::kernel_routes::{KernelRoute, KernelRoutes};
use crate::net::limits::WEIGHT_MAX;
use crate::net::route::{RouteEntry, RouteKind};

impl Control {
    /// Replaces the routes of the kernel to each network, with a single snapshot. Returns the
    /// number of refused routes.
    pub(in crate::net) fn set_kernel_routes(&mut self, updates: &[KernelRoutes]) -> usize {
        let refused = updates.iter().map(|update| self.replace_kernel_routes(update)).sum();
        self.publish();
        refused
    }

    fn replace_kernel_routes(&mut self, update: &KernelRoutes) -> usize {
        let entry = |route| self.kernel_route(update.prefix.trunc(), route);
        let entries: Vec<_> = update.routes.iter().filter_map(entry).collect();
        self.routes.remove(update.prefix, |known| {
            matches!(known.origin, Origin::Kernel(_)) && !entries.contains(known)
        });
        let added = entries.into_iter().filter(|entry| self.routes.add(*entry)).count();
        update.routes.len() - added
    }

    /// Returns the entry of a route, if its interface and router can be used.
    fn kernel_route(&self, prefix: Prefix, route: &KernelRoute) -> Option<RouteEntry> {
        let KernelRoute { next_hop, iface, metric, protocol, kind, mtu, weight } = *route;
        let (next_hop, iface) = match kind {
            RouteKind::Unicast => (next_hop, iface),
            _ => (None, IfaceId::LOOPBACK),
        };
        let is_of_family = next_hop.is_none_or(|hop| hop.is_ipv4() == prefix.addr().is_ipv4());
        let is_up = self.interface(iface).is_some_and(|interface| !interface.down);
        let is_usable = is_of_family && is_up && (1..=WEIGHT_MAX).contains(&weight);
        // Linux accepts any MTU; those below the minimum of IP are ignored.
        let mtu = mtu.filter(|mtu| route_mtu(prefix, (*mtu).into()).is_ok());
        let origin = Origin::Kernel(protocol);
        let entry = RouteEntry { prefix, next_hop, iface, metric, origin, kind, mtu, weight };
        is_usable.then_some(entry)
    }
}
