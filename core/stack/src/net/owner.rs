//! What the owner of a host decides, and what it asks about it.

use core::net::IpAddr;

use towpath_pool::Offloads;
use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::control::{Interface, Neighbor};
use super::iface::{IfaceId, InterfaceConfig};
use super::layer::Net;
use super::route::RouteEntry;

impl Net {
    /// Adds an interface with its addresses and the routes to their links.
    ///
    /// IPv6 addresses may be used at once, while duplicate address detection runs (RFC 4429). An
    /// Ethernet interface with `slaac` or an IPv6 address gets a link-local address too. Interfaces stay: the
    /// 65 537th panics.
    pub fn add_interface(&mut self, now: Instant, config: InterfaceConfig) -> IfaceId {
        let id = self.control.add_interface(now, config);
        self.follow();
        id
    }

    /// All interfaces; an [`IfaceId`] is an index.
    pub fn interfaces(&self) -> &[Interface] {
        self.control.interfaces()
    }

    /// Says what a device does by itself, when that was not known in time. Panics when there is no such interface.
    pub fn set_offloads(&mut self, iface: IfaceId, offloads: Offloads) {
        self.control.set_offloads(iface, offloads);
        self.follow();
    }

    /// Gives an interface an address and the route to its link. False when it has it already. Panics when there is no
    /// such interface.
    pub fn add_address(&mut self, now: Instant, iface: IfaceId, prefix: Prefix) -> bool {
        let added = self.control.add_address(now, iface, prefix);
        self.follow();
        added
    }

    /// Takes an address and the route to its link away. False when there is no such address.
    pub fn remove_address(&mut self, now: Instant, iface: IfaceId, addr: IpAddr) -> bool {
        let removed = self.control.remove_address(now, iface, addr);
        self.follow();
        removed
    }

    /// Adds a route; the same one again replaces its metric. False when there is no such interface, when the router is
    /// of the other family, or when there are as many routers as may be.
    pub fn add_route(
        &mut self,
        prefix: Prefix,
        next_hop: Option<IpAddr>,
        iface: IfaceId,
        metric: u32,
    ) -> bool {
        let added = self.control.add_route(prefix, next_hop, iface, metric);
        self.follow();
        added
    }

    /// Removes an operator's routes to `prefix`, all or those through `next_hop`; returns how many.
    pub fn remove_route(&mut self, prefix: Prefix, next_hop: Option<IpAddr>) -> usize {
        let removed = self.control.remove_route(prefix, next_hop);
        self.follow();
        removed
    }

    /// All routes, in order of adding.
    pub fn routes(&self) -> impl Iterator<Item = &RouteEntry> {
        self.control.routes()
    }

    /// All neighbours known, in no particular order.
    pub fn neighbors(&self) -> impl Iterator<Item = Neighbor> {
        self.control.neighbors()
    }

    /// Takes packets to `group` from `iface`. With `source` the routers of the link are asked for what comes
    /// from there only; which packets a member takes is its own concern. Joins count. False when it is no
    /// group or there is no room for another.
    pub fn join_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> bool {
        let joined = self.control.join_group(now, iface, group, source);
        self.follow();
        joined
    }

    /// Undoes one join. False when there was none.
    pub fn leave_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> bool {
        let left = self.control.leave_group(now, iface, group, source);
        self.follow();
        left
    }

    fn follow(&mut self) {
        self.data.follow(self.control.snapshot());
    }

    /// Whether packets to `ip` are for this host: its addresses, 127/8 and `::1`.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.data.is_local(ip)
    }

    /// The interface that a packet to `local` came in on, as sockets see it. What this host sends to an address of
    /// its own comes in on loopback, and counts as come in on the interface that has the address, as on Linux
    /// (`rt_iif`, `inet6_iif`).
    pub fn link_of(&self, iface: IfaceId, local: IpAddr) -> IfaceId {
        self.data.link_of(iface, local)
    }

    /// Whether every unicast destination is local on `iface`.
    pub fn is_any_address(&self, iface: IfaceId) -> bool {
        self.data.is_any_address(iface)
    }

    /// Whether packets to `group` that come from `iface` are for this host.
    pub fn is_member(&self, iface: IfaceId, group: IpAddr) -> bool {
        self.data.is_member(iface, group)
    }

    /// Whether `dst` is a broadcast address of some link of this host.
    pub(crate) fn is_broadcast(&self, dst: IpAddr) -> bool {
        self.data.is_broadcast(dst)
    }
}
