//! Methods by which the owner of a host configures and queries the IP layer. With several shards,
//! only the first one may be configured. The other shards adopt the configuration at their next
//! turn of the event loop, or when a program binds, connects or sends on this shard. All shards
//! answer queries.

use core::net::IpAddr;
use std::sync::Arc;

use towpath_filter::Rules;
use towpath_pool::Offloads;
use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::changes::Fault;
use super::control::{Control, NeighborInfo};
use super::control_access::ControlAccess;
use super::data::Tracker;
use super::iface::{Address, IfaceId, InterfaceConfig};
use super::layer::Net;
use super::received::Conflict;
use super::route::RouteEntry;
use super::rule_set::{Logged, RuleSet};
use super::snapshot::Link;

impl Net {
    /// Adds an interface with its addresses and the routes to their networks.
    ///
    /// IPv6 addresses can be used at once, while duplicate address detection runs (RFC 4429). An
    /// Ethernet interface with `slaac` or an IPv6 address also gets a link-local address.
    /// [`Change::RemoveInterface`](super::Change::RemoveInterface) removes the interface.
    ///
    /// # Errors
    ///
    /// [`Fault::Exists`] if another interface has the same name, [`Fault::Full`] if there are
    /// [`INTERFACES_MAX`](super::limits::INTERFACES_MAX) interfaces. Removed interfaces count until
    /// their index may be reused.
    ///
    /// # Panics
    ///
    /// Panics on a shard other than the first. All methods that change the configuration panic
    /// there, because otherwise a change could be made twice.
    pub fn try_add_interface(
        &mut self,
        now: Instant,
        config: &InterfaceConfig,
    ) -> Result<IfaceId, Fault> {
        self.decide(|control| control.add_interface(now, config))
    }

    /// Adds an interface, like [`Net::try_add_interface`].
    ///
    /// # Panics
    ///
    /// Panics if the interface cannot be added, and on a shard other than the first.
    pub fn add_interface(&mut self, now: Instant, config: InterfaceConfig) -> IfaceId {
        let added = self.try_add_interface(now, &config);
        added.unwrap_or_else(|why| panic!("interface {}: {why}", config.name))
    }

    /// Returns all interfaces, sorted by index.
    pub fn interfaces(&self) -> impl Iterator<Item = &Link> {
        self.data.here().links()
    }

    /// Returns an interface; `None` if it was removed or never existed.
    pub fn interface(&self, iface: IfaceId) -> Option<&Link> {
        self.data.here().link(iface)
    }

    /// Sets the offloads of an interface's device, if they become known after the interface was
    /// added.
    ///
    /// # Panics
    /// Panics if the interface never existed.
    pub fn set_offloads(&mut self, iface: IfaceId, offloads: Offloads) {
        self.decide(|control| control.set_offloads(iface, offloads));
    }

    /// Sets whether the device of an interface has a carrier. If it has none, the neighbours of the
    /// interface are removed, and multipath routes avoid its routers. Has no effect if the
    /// interface does not exist.
    pub fn set_carrier(&mut self, now: Instant, iface: IfaceId, carrier: bool) {
        self.decide(|control| control.set_carrier(now, iface, carrier));
    }

    /// Adds an address to an interface, and the route to the network of the address. Returns false
    /// if the interface already has the address.
    ///
    /// # Panics
    /// Panics if the interface does not exist.
    pub fn add_address(&mut self, now: Instant, iface: IfaceId, prefix: Prefix) -> bool {
        self.decide(|control| control.add_address(now, iface, prefix))
    }

    /// Removes an address and the route to its network. Returns false if the interface does not
    /// have the address.
    pub fn remove_address(&mut self, now: Instant, iface: IfaceId, addr: IpAddr) -> bool {
        self.decide(|control| control.remove_address(now, iface, addr))
    }

    /// Adds a route, or changes the metric of an existing route to the same network through the
    /// same router. Returns false if the interface does not exist, the router is of the other IP
    /// version, or the limit of routers is reached.
    pub fn add_route(
        &mut self,
        prefix: Prefix,
        next_hop: Option<IpAddr>,
        iface: IfaceId,
        metric: u32,
    ) -> bool {
        self.decide(|control| control.add_route(prefix, next_hop, iface, metric))
    }

    /// Removes the operator's routes to `prefix`; if `next_hop` is given, only the route through
    /// this router. Returns the number of removed routes.
    pub fn remove_route(&mut self, prefix: Prefix, next_hop: Option<IpAddr>) -> usize {
        self.decide(|control| control.remove_route(prefix, next_hop))
    }

    /// Replaces the rules of the packet filter; `None` removes them. Each packet is checked against
    /// either the old or the new rules.
    pub fn set_rules(&mut self, rules: Option<Rules>) {
        let shards = self.data.shards;
        let before = self.rules().cloned();
        let new = |rules| Arc::new(RuleSet::new(rules, shards, before.as_deref()));
        let rules = rules.map(new);
        self.decide(|control| control.set_rules(rules));
    }

    /// Returns the current rules of the packet filter.
    pub fn rules(&self) -> Option<&Arc<RuleSet>> {
        self.data.snapshot.rules.as_ref()
    }

    /// Replaces the [`Tracker`] of this shard, such as NAT, which is called for each packet; `None`
    /// removes it.
    pub fn set_tracker(&mut self, tracker: Option<Box<dyn Tracker>>) {
        self.data.set_tracker(tracker);
    }

    /// Returns the [`Tracker`] of this shard, such as NAT, if its type is `T`.
    pub fn tracker_mut<T: Tracker>(&mut self) -> Option<&mut T> {
        self.data.tracker_mut()
    }

    /// Returns whether this shard has a tracker, which may rewrite packets.
    #[inline]
    pub(crate) fn has_tracker(&self) -> bool {
        self.data.hooks.has_tracker()
    }

    /// Removes and returns the oldest packet that a rule logged.
    pub fn take_logged(&mut self) -> Option<Logged> {
        self.data.hooks.take_logged()
    }

    /// Returns the addresses of an interface, with the current lifetimes from router
    /// advertisements.
    pub fn addresses(&self, iface: IfaceId) -> Vec<Address> {
        self.seat.ask(|control| control.addresses_of(iface))
    }

    /// Returns all routes, in the order of insertion.
    pub fn routes(&self) -> impl Iterator<Item = RouteEntry> {
        let (list, mut next) = (self.seat.ask(|control| control.routes()), 0);
        core::iter::from_fn(move || {
            let (nth, route) = list.range(next..).next()?;
            next = nth + 1;
            Some(*route)
        })
    }

    /// Removes and returns the oldest address conflict. Returns `None` on shards other than the
    /// first.
    pub fn take_conflict(&mut self) -> Option<Conflict> {
        match &mut self.seat {
            ControlAccess::Alone(control) => control.take_conflict(),
            ControlAccess::First(shared) => shared.with(Control::take_conflict),
            ControlAccess::Other(_) => None,
        }
    }

    /// Returns all known neighbours, in no particular order. With several shards (stacks of one
    /// host), the entries are copied.
    pub fn neighbors(&self) -> impl Iterator<Item = NeighborInfo> {
        let (own, copied) = match &self.seat {
            ControlAccess::Alone(control) => (Some(control.neighbors()), None),
            seat => (None, Some(seat.ask(|control| control.neighbors().collect::<Vec<_>>()))),
        };
        own.into_iter().flatten().chain(copied.into_iter().flatten())
    }

    /// Joins the multicast group `group` on the interface `iface`. If `source` is given, the
    /// routers on the link are requested to forward only packets from this source. Each member
    /// socket filters sources itself. A group that was joined twice must be left twice. Returns
    /// false if the address is not a multicast group, or a limit is reached.
    ///
    /// Any shard may call this. All shards receive packets to the group from their next batch on.
    pub fn join_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> bool {
        self.change(|control| control.join_group(now, iface, group, source))
    }

    /// Removes one join of a multicast group. Returns false if the group was not joined.
    pub fn leave_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> bool {
        self.change(|control| control.leave_group(now, iface, group, source))
    }

    /// Calls `change` to change the configuration of the host.
    ///
    /// # Panics
    /// Panics on a shard other than the first.
    pub(super) fn decide<R>(&mut self, change: impl FnOnce(&mut Control) -> R) -> R {
        assert!(
            !matches!(self.seat, ControlAccess::Other(_)),
            "the first shard alone is told what the host is"
        );
        self.change(change)
    }

    fn change<R>(&mut self, change: impl FnOnce(&mut Control) -> R) -> R {
        let result = match &mut self.seat {
            ControlAccess::Alone(control) => change(control),
            ControlAccess::First(shared) => shared.with(change),
            ControlAccess::Other(shared) => {
                let (result, sooner) = shared.with_from_other(change);
                // Wake the first shard (stack), because the change gave the control part an earlier
                // deadline. Only the first shard runs its timers, and sends MLD and IGMP reports.
                self.hurries_first |= sooner;
                result
            }
        };
        self.data.follow(&self.seat.snapshot());
        result
    }

    /// Returns whether `ip` is an address of this host, including 127.0.0.0/8 and `::1`.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.data.is_local(ip)
    }

    /// Returns whether this host forwards packets to other hosts.
    pub(crate) fn is_router(&self) -> bool {
        self.data.is_router()
    }

    /// Returns whether packets to `dst` that arrive on the interface `iface` are for another host.
    pub(crate) fn is_beyond(&self, iface: IfaceId, dst: IpAddr) -> bool {
        self.data.is_beyond(iface, dst)
    }

    /// Returns the interface that sockets see for a packet to `local` that was received on `iface`.
    /// As on Linux (`rt_iif`, `inet6_iif`), a packet from this host to itself does not count as
    /// received on loopback. The packet counts as received on the interface with its destination
    /// address.
    pub fn link_of(&self, iface: IfaceId, local: IpAddr) -> IfaceId {
        self.data.link_of(iface, local)
    }

    /// Returns whether the host on the other side of the link of `iface` is a stack in the same
    /// process.
    pub fn is_in_process(&self, iface: IfaceId) -> bool {
        self.data.is_in_process(iface)
    }

    /// Returns whether the interface `iface` accepts packets to every unicast address as if it were
    /// an address of the interface.
    pub fn is_any_address(&self, iface: IfaceId) -> bool {
        self.data.is_any_address(iface)
    }

    /// Returns whether this host receives packets to the multicast group `group` on the interface
    /// `iface`.
    pub fn is_member(&self, iface: IfaceId, group: IpAddr) -> bool {
        self.data.is_member(iface, group)
    }

    /// Returns whether `dst` is a broadcast address of one of this host's links.
    pub(crate) fn is_broadcast(&self, dst: IpAddr) -> bool {
        self.data.is_broadcast(dst)
    }
}
