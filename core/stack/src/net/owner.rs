//! Calls of the host's owner: configuration and questions. If there are several shards, only the
//! first one is configured. The others follow at their next turn, or when a program binds, connects
//! or sends there. Each shard answers questions.

use core::net::IpAddr;
use std::sync::Arc;

use towpath_filter::Rules;
use towpath_pool::Offloads;
use towpath_tcp::Instant;
use towpath_wire::Prefix;

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
    /// Adds an interface with its addresses and the routes to their links.
    ///
    /// IPv6 addresses may be used at once, while duplicate address detection runs (RFC 4429). An
    /// Ethernet interface with `slaac` or an IPv6 address gets a link-local address too. Interfaces
    /// stay: the 65 537th panics.
    ///
    /// # Panics
    /// On a shard other than the first, as everything here does that changes the host: it would be
    /// done twice.
    pub fn add_interface(&mut self, now: Instant, config: InterfaceConfig) -> IfaceId {
        self.decide(|control| control.add_interface(now, config))
    }

    /// All interfaces; an [`IfaceId`] is an index.
    pub fn interfaces(&self) -> &[Link] {
        &self.data.here().links
    }

    /// Sets a device's offloads, where they were not known in time. Panics when there is no such
    /// interface.
    pub fn set_offloads(&mut self, iface: IfaceId, offloads: Offloads) {
        self.decide(|control| control.set_offloads(iface, offloads));
    }

    /// Says whether the device of an interface has a link. Without one its neighbours are unknown,
    /// and routers behind it are avoided where a route has others. Panics when there is no such
    /// interface.
    pub fn set_carrier(&mut self, now: Instant, iface: IfaceId, carrier: bool) {
        self.decide(|control| control.set_carrier(now, iface, carrier));
    }

    /// Gives an interface an address and the route to its link. False when it has it already.
    /// Panics when there is no such interface.
    pub fn add_address(&mut self, now: Instant, iface: IfaceId, prefix: Prefix) -> bool {
        self.decide(|control| control.add_address(now, iface, prefix))
    }

    /// Takes an address and the route to its link away. False when there is no such address.
    pub fn remove_address(&mut self, now: Instant, iface: IfaceId, addr: IpAddr) -> bool {
        self.decide(|control| control.remove_address(now, iface, addr))
    }

    /// Adds a route; the same one again replaces its metric. False when there is no such interface,
    /// when the router is of the other family, or when there are as many routers as may be.
    pub fn add_route(
        &mut self,
        prefix: Prefix,
        next_hop: Option<IpAddr>,
        iface: IfaceId,
        metric: u32,
    ) -> bool {
        self.decide(|control| control.add_route(prefix, next_hop, iface, metric))
    }

    /// Removes an operator's routes to `prefix`, all or those through `next_hop`; returns how many.
    pub fn remove_route(&mut self, prefix: Prefix, next_hop: Option<IpAddr>) -> usize {
        self.decide(|control| control.remove_route(prefix, next_hop))
    }

    /// Judges packets by other rules from now on, or by none. Each packet is judged by one set.
    pub fn set_rules(&mut self, rules: Option<Rules>) {
        let shards = self.data.shards;
        let rules = rules.map(|rules| Arc::new(RuleSet::new(rules, shards)));
        self.decide(|control| control.set_rules(rules));
    }

    /// The rules in force.
    pub fn rules(&self) -> Option<&Arc<RuleSet>> {
        self.data.snapshot.rules.as_ref()
    }

    /// Shows the packets of this shard to another tracker from now on, or to none.
    pub fn set_tracker(&mut self, tracker: Option<Box<dyn Tracker>>) {
        self.data.set_tracker(tracker);
    }

    /// Whether a tracker may rewrite packets of this shard.
    #[inline]
    pub(crate) fn has_tracker(&self) -> bool {
        self.data.hooks.has_tracker()
    }

    /// Takes the oldest packet that a rule wants logged.
    pub fn take_logged(&mut self) -> Option<Logged> {
        self.data.hooks.take_logged()
    }

    /// The addresses of an interface as they are now, with the lifetimes that routers gave them
    /// last.
    pub fn addresses(&self, iface: IfaceId) -> Vec<Address> {
        self.seat.ask(|control| control.addresses_of(iface))
    }

    /// All routes, in order of adding.
    pub fn routes(&self) -> impl Iterator<Item = RouteEntry> {
        let (list, mut next) = (self.seat.ask(|control| control.routes()), 0);
        core::iter::from_fn(move || {
            let (nth, route) = list.range(next..).next()?;
            next = nth + 1;
            Some(*route)
        })
    }

    /// Takes the oldest conflict of an address that was not taken before. `None` on shards other
    /// than the first.
    pub fn take_conflict(&mut self) -> Option<Conflict> {
        match &mut self.seat {
            ControlAccess::Alone(control) => control.take_conflict(),
            ControlAccess::First(shared) => shared.with(Control::take_conflict),
            ControlAccess::Other(_) => None,
        }
    }

    /// All neighbours known, in no particular order. Where there are several shards, they are
    /// copied first.
    pub fn neighbors(&self) -> impl Iterator<Item = NeighborInfo> {
        let (own, copied) = match &self.seat {
            ControlAccess::Alone(control) => (Some(control.neighbors()), None),
            seat => (None, Some(seat.ask(|control| control.neighbors().collect::<Vec<_>>()))),
        };
        own.into_iter().flatten().chain(copied.into_iter().flatten())
    }

    /// Takes packets to `group` from `iface`. With `source`, the routers of the link are asked for
    /// packets from there only; each member filters for itself. Joins count. False when it is no
    /// group or there is no room for another. Any shard may call this; all shards take packets to
    /// the group from their next batch on.
    pub fn join_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> bool {
        self.change(|control| control.join_group(now, iface, group, source))
    }

    /// Undoes one join. False when there was none.
    pub fn leave_group(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> bool {
        self.change(|control| control.leave_group(now, iface, group, source))
    }

    /// Changes the host, in its first shard.
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
                // The shard that sends reports may sleep until a later deadline.
                self.hurries_first |= sooner;
                result
            }
        };
        self.data.follow(&self.seat.snapshot());
        result
    }

    /// Whether packets to `ip` are for this host: its addresses, 127/8 and `::1`.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.data.is_local(ip)
    }

    /// Whether packets to other hosts are sent on.
    pub(crate) fn is_router(&self) -> bool {
        self.data.is_router()
    }

    /// Whether packets to `dst` that come in by `iface` are for another host.
    pub(crate) fn is_beyond(&self, iface: IfaceId, dst: IpAddr) -> bool {
        self.data.is_beyond(iface, dst)
    }

    /// The interface that a packet to `local` came in on, as sockets see it. As on Linux (`rt_iif`,
    /// `inet6_iif`), a looped packet counts for the interface that has its destination address, not
    /// for loopback.
    pub fn link_of(&self, iface: IfaceId, local: IpAddr) -> IfaceId {
        self.data.link_of(iface, local)
    }

    /// Whether the other end of `iface` is in this process.
    pub fn is_in_process(&self, iface: IfaceId) -> bool {
        self.data.is_in_process(iface)
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
