//! Functions by which the owner of a stack configures interfaces, addresses and routes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;
use std::sync::Arc;

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

use super::interface::Interface;
use super::neighbor::NeighborInfo;
use super::tables::{Changed, Control};
use crate::net::changes::Fault;
use crate::net::iface::{Address, AddressState, IfaceId, InterfaceConfig, Origin};
use crate::net::limits::{INTERFACE_REUSE_TIME, INTERFACES_MAX, LOOPBACK_MTU};
use crate::net::route::{RouteEntry, RouteKind};
use crate::net::rule_set::RuleSet;

impl Control {
    /// Adds the loopback interface as the first interface.
    pub(in crate::net) fn add_loopback(&mut self, now: Instant) {
        let offloads = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };
        let config = InterfaceConfig {
            name: "lo".to_string(),
            link: LinkType::Ip,
            mac: MacAddr::UNSPECIFIED,
            mtu: LOOPBACK_MTU,
            offloads,
            addresses: vec![
                Prefix::new(Ipv4Addr::LOCALHOST.into(), 8).expect("8 is at most 32"),
                Prefix::host(Ipv6Addr::LOCALHOST.into()),
            ],
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: true,
        };
        self.add_interface(now, &config).expect("the first interface");
    }

    /// Adds an interface with its addresses and their on-link routes.
    ///
    /// IPv6 addresses can be used at once, even during duplicate address detection (RFC 4429). An
    /// Ethernet interface with `slaac` or an IPv6 address also gets a link-local address. Fails if
    /// another interface has the same name, or if there are too many interfaces.
    pub(in crate::net) fn add_interface(
        &mut self,
        now: Instant,
        config: &InterfaceConfig,
    ) -> Result<IfaceId, Fault> {
        let mut others = self.ifaces.iter().filter(|known| known.removed_at.is_none());
        if others.any(|known| *known.name == *config.name) {
            return Err(Fault::Exists);
        }
        let id = self.free_index(now).ok_or(Fault::Full)?;
        let interface = Interface::new(now, id, config, self.addresses_hash);
        match self.ifaces.get_mut(id.index()) {
            Some(place) => *place = interface,
            None => self.ifaces.push(interface),
        }
        self.changed.links = true;
        for prefix in &config.addresses {
            self.put_address(now, id, *prefix);
        }
        self.start_discovery(now, id);
        self.publish();
        Ok(id)
    }

    /// Returns an index for a new interface. An index is reused only long after its interface was
    /// removed, because packets in flight and sockets may still refer to the removed interface.
    fn free_index(&self, now: Instant) -> Option<IfaceId> {
        let removed = self.ifaces.iter().filter_map(|known| Some((known.removed_at?, known.id)));
        let oldest = removed.min();
        if let Some((_, id)) = oldest.filter(|(at, _)| *at + INTERFACE_REUSE_TIME <= now) {
            return Some(id);
        }
        let next = self.ifaces.len();
        (next < INTERFACES_MAX).then_some(IfaceId(next as u16))
    }

    /// Removes an interface with its addresses, neighbours, multicast groups and scheduled tasks.
    /// Its routes were already removed, when the change was validated.
    pub(super) fn remove_interface(&mut self, now: Instant, iface: IfaceId) {
        let addresses = &self.ifaces[iface.index()].addresses;
        let addresses: Vec<_> = addresses.iter().map(Address::addr).collect();
        for addr in addresses {
            self.forget_address(now, iface, addr);
        }
        self.schedule.cancel(iface, |_| true);
        self.neighbors.on_interface_removed(iface);
        // Reset the carrier state, because a new interface may reuse this index.
        self.routes.set_carrier(now, iface, true);
        self.conflicts_told.retain(|(known, _)| *known != iface);
        self.conflicts.retain(|known| known.iface != iface);
        let removed = self.ifaces[iface.index()].removed(now, self.addresses_hash);
        self.ifaces[iface.index()] = removed;
        self.changed = Changed { links: true, addresses: true, groups: true, ..self.changed };
        self.routes.touch();
    }

    /// Sets the offloads of an interface's device, if they become known after the interface was
    /// added. Has no effect if the interface was removed.
    ///
    /// # Panics
    /// Panics if the interface never existed.
    pub(in crate::net) fn set_offloads(&mut self, iface: IfaceId, offloads: Offloads) {
        self.ifaces[iface.index()].offloads = offloads;
        self.changed.links = true;
        self.publish();
    }

    /// Records that the device of an interface has lost or regained its carrier. Has no effect if
    /// the interface was removed.
    pub(in crate::net) fn set_carrier(&mut self, now: Instant, iface: IfaceId, carrier: bool) {
        if self.interface(iface).is_none() {
            return;
        }
        if !carrier {
            self.neighbors.forget_all_of(iface);
        }
        self.routes.set_carrier(now, iface, carrier);
        self.publish();
    }

    /// Adds an address and its on-link route to an interface. Returns false if the interface
    /// already has the address.
    ///
    /// # Panics
    /// Panics if the interface does not exist.
    pub(in crate::net) fn add_address(
        &mut self,
        now: Instant,
        iface: IfaceId,
        prefix: Prefix,
    ) -> bool {
        let added = self.put_address(now, iface, prefix);
        self.publish();
        added
    }

    pub(super) fn put_address(&mut self, now: Instant, iface: IfaceId, prefix: Prefix) -> bool {
        let interface = &self.ifaces[iface.index()];
        if interface.removed_at.is_some() || interface.address(prefix.addr()).is_some() {
            return false;
        }
        let probed = prefix.addr().is_ipv6() && interface.link == LinkType::Ethernet;
        let state = if probed { AddressState::Optimistic } else { AddressState::Preferred };
        self.insert_address(
            now,
            iface,
            Address {
                prefix,
                state,
                origin: Origin::Static,
                preferred_until: None,
                valid_until: None,
                dad_count: 0,
            },
        );
        self.add_link_route(iface, prefix);
        true
    }

    /// Adds the on-link route to the network of an address. No route is added if the prefix is a
    /// single host (/32 or /128), or if the interface is down.
    pub(super) fn add_link_route(&mut self, iface: IfaceId, prefix: Prefix) {
        if !prefix.is_host() && !self.ifaces[iface.index()].down {
            self.routes.add(RouteEntry {
                prefix,
                next_hop: None,
                iface,
                metric: 0,
                origin: Origin::Link,
                kind: RouteKind::Unicast,
                mtu: None,
                weight: 1,
            });
        }
    }

    /// Removes an address and its on-link route. Returns false if the interface does not have the
    /// address.
    pub(in crate::net) fn remove_address(
        &mut self,
        now: Instant,
        iface: IfaceId,
        addr: IpAddr,
    ) -> bool {
        let removed = self.take_address(now, iface, addr);
        self.publish();
        removed
    }

    pub(super) fn take_address(&mut self, now: Instant, iface: IfaceId, addr: IpAddr) -> bool {
        let Some(interface) = self.ifaces.get(iface.index()) else { return false };
        let Some(prefix) = interface.address(addr).map(|a| a.prefix) else { return false };
        self.forget_address(now, iface, addr);
        let shared = |a: &Address| a.prefix.trunc() == prefix.trunc();
        if !self.ifaces[iface.index()].addresses.iter().any(shared) {
            self.routes
                .remove(prefix, |route| route.iface == iface && route.origin == Origin::Link);
        }
        true
    }

    /// Adds a route, or changes the metric of an existing route to the same network and router.
    /// Returns false if the interface does not exist, the router is of another address family, or
    /// the table of routers is full.
    pub(in crate::net) fn add_route(
        &mut self,
        prefix: Prefix,
        next_hop: Option<IpAddr>,
        iface: IfaceId,
        metric: u32,
    ) -> bool {
        let is_of_family = |hop: IpAddr| hop.is_ipv4() == prefix.addr().is_ipv4();
        if !next_hop.is_none_or(is_of_family) || self.interface(iface).is_none() {
            return false;
        }
        let (origin, kind) = (Origin::Static, RouteKind::Unicast);
        let added = self.routes.add(RouteEntry {
            prefix,
            next_hop,
            iface,
            metric,
            origin,
            kind,
            mtu: None,
            weight: 1,
        });
        self.publish();
        added
    }

    /// Removes the static routes to `prefix`; if `next_hop` is given, only those through this
    /// router. Returns the number of removed routes.
    pub(in crate::net) fn remove_route(
        &mut self,
        prefix: Prefix,
        next_hop: Option<IpAddr>,
    ) -> usize {
        let count = self.remove_static(prefix, next_hop);
        self.publish();
        count
    }

    /// Returns the addresses of an interface; none if the interface does not exist.
    pub(in crate::net) fn addresses_of(&self, iface: IfaceId) -> Vec<Address> {
        self.ifaces.get(iface.index()).map(|known| known.addresses.to_vec()).unwrap_or_default()
    }

    fn remove_static(&mut self, prefix: Prefix, next_hop: Option<IpAddr>) -> usize {
        self.routes.remove(prefix, |route| {
            route.origin == Origin::Static && (next_hop.is_none() || route.next_hop == next_hop)
        })
    }

    /// Sets or removes the packet filter rules.
    pub(in crate::net) fn set_rules(&mut self, rules: Option<Arc<RuleSet>>) {
        self.rules = rules;
        self.changed.rules = true;
        self.publish();
    }

    /// Returns all routes, in the order of insertion.
    pub(in crate::net) fn routes(&self) -> Arc<BTreeMap<u64, RouteEntry>> {
        self.routes.list()
    }

    /// Iterates over all known neighbours, in no particular order.
    pub(in crate::net) fn neighbors(&self) -> impl Iterator<Item = NeighborInfo> {
        self.neighbors.iter()
    }
}
