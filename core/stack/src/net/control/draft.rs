//! Validation of a list of configuration changes. A draft contains the entries that the changes
//! modify, on top of the current configuration. The configuration itself is not modified until the
//! whole list is valid.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use towpath_pool::LinkType;
use towpath_wire::{MacAddr, Prefix, addr, ipv6};

use super::apply::Step;
use super::interface::Interface;
use super::tables::Control;
use crate::net::changes::{Change, Fault, How, RouteSpec};
use crate::net::iface::{IfaceId, Origin};
use crate::net::limits::{ADDRESSES_OWN_MAX, NEIGHBORS_PERMANENT_MAX, WEIGHT_MAX};
use crate::net::messages::HopKey;
use crate::net::route::{RouteEntry, RouteKind, metric_unless_given};

/// The host's configuration as it would be after the changes validated so far.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    control: &'a Control,
    steps: Vec<Step>,
    /// Addresses that the list of changes adds (`Some`) or removes (`None`), by interface.
    addresses: BTreeMap<(IfaceId, IpAddr), Option<Prefix>>,
    /// For each network whose routes the list of changes modifies, all its routes after the
    /// changes; the best one first.
    routes: BTreeMap<Prefix, Vec<RouteEntry>>,
    /// Neighbours that the list of changes adds as permanent (true) or removes (false).
    neighbors: BTreeMap<HopKey, bool>,
    /// Interfaces that the list of changes sets up (true) or down (false).
    up: BTreeMap<IfaceId, bool>,
    /// Interfaces that the list of changes removes.
    removed: BTreeSet<IfaceId>,
    /// Next-hop routers of the added routes that no route used before.
    routers: BTreeSet<HopKey>,
}

impl<'a> Draft<'a> {
    pub(super) fn of(control: &'a Control) -> Self {
        Self {
            control,
            steps: Vec::new(),
            addresses: BTreeMap::new(),
            routes: BTreeMap::new(),
            neighbors: BTreeMap::new(),
            up: BTreeMap::new(),
            removed: BTreeSet::new(),
            routers: BTreeSet::new(),
        }
    }

    /// Returns the steps that apply the validated changes.
    pub(super) fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    /// Validates one change, and records the steps to apply it. Fails if the change is invalid,
    /// given the changes that were recorded before.
    pub(super) fn take(&mut self, change: &Change) -> Result<(), Fault> {
        match *change {
            Change::AddAddress { iface, prefix } => self.add_address(iface, prefix),
            Change::RemoveAddress { iface, addr, len } => self.remove_address(iface, addr, len),
            Change::SetLifetime { iface, addr, lifetime } => {
                let interface = self.interface(iface)?;
                self.address(interface, addr).ok_or(Fault::NoAddress)?;
                self.steps.push(Step::SetLifetime(iface, addr, lifetime));
                Ok(())
            }
            Change::SetRoute(route, how) => self.set_route(route, how),
            Change::RemoveRoute(route) => self.remove_route(route),
            Change::SetNeighbor { iface, addr, mac, how } => {
                self.set_neighbor((iface, addr), mac, how)
            }
            Change::RemoveNeighbor { iface, addr } => self.remove_neighbor((iface, addr)),
            Change::SetUp { iface, up } => self.set_up(iface, up),
            Change::RemoveInterface { iface } => self.remove_interface(iface),
            Change::SetMtu { iface, mtu } => self.set_mtu(iface, mtu),
            Change::SetMtuMost { iface, mtu } => self.set_mtu_most(iface, mtu),
        }
    }

    fn interface(&self, iface: IfaceId) -> Result<&'a Interface, Fault> {
        let is_there = |_: &&Interface| !self.removed.contains(&iface);
        self.control.interface(iface).filter(is_there).ok_or(Fault::NoInterface)
    }

    fn is_down(&self, interface: &Interface) -> bool {
        !self.up.get(&interface.id).copied().unwrap_or(!interface.down)
    }

    /// Returns an address of the interface as it would be after the list of changes; `None` if the
    /// interface would not have the address.
    fn address(&self, interface: &Interface, addr: IpAddr) -> Option<Prefix> {
        match self.addresses.get(&(interface.id, addr)) {
            Some(changed) => *changed,
            None => interface.address(addr).map(|known| known.prefix),
        }
    }

    /// Returns all addresses that the interface would have after the changes.
    fn addresses(&self, interface: &'a Interface) -> Vec<Prefix> {
        let of = |addr| (interface.id, addr);
        let known = interface.addresses.iter().map(|known| known.prefix);
        let kept = known.filter(|known| !self.addresses.contains_key(&of(known.addr())));
        let changed = self.addresses.iter().filter(|((iface, _), _)| *iface == interface.id);
        kept.chain(changed.filter_map(|(_, prefix)| *prefix)).collect()
    }

    fn add_address(&mut self, iface: IfaceId, prefix: Prefix) -> Result<(), Fault> {
        let interface = self.interface(iface)?;
        let addr = prefix.addr();
        let is_misplaced = addr.is_loopback() && iface != IfaceId::LOOPBACK;
        if !addr::is_unicast(addr) || prefix.len() == 0 || is_misplaced {
            return Err(Fault::Invalid);
        }
        if self.address(interface, addr).is_some() {
            return Err(Fault::Exists);
        }
        if self.addresses(interface).len() >= ADDRESSES_OWN_MAX {
            return Err(Fault::Full);
        }
        self.addresses.insert((iface, addr), Some(prefix));
        self.steps.push(Step::PutAddress(iface, prefix));
        if !prefix.is_host() && !self.is_down(interface) {
            self.link_route(iface, prefix);
        }
        Ok(())
    }

    /// Adds the on-link route to the network of an address, unless this route exists.
    fn link_route(&mut self, iface: IfaceId, prefix: Prefix) -> RouteEntry {
        let entry = link_route(iface, prefix);
        let routes = self.to(entry.prefix);
        if !routes.contains(&entry) {
            insert(routes, entry);
        }
        entry
    }

    fn remove_address(
        &mut self,
        iface: IfaceId,
        addr: IpAddr,
        len: Option<u8>,
    ) -> Result<(), Fault> {
        let interface = self.interface(iface)?;
        let prefix = self.address(interface, addr).ok_or(Fault::NoAddress)?;
        if len.is_some_and(|len| len != prefix.len()) {
            return Err(Fault::NoAddress);
        }
        if iface == IfaceId::LOOPBACK && addr.is_loopback() {
            return Err(Fault::Loopback);
        }
        self.addresses.insert((iface, addr), None);
        self.steps.push(Step::TakeAddress(iface, addr));
        let network = prefix.trunc();
        if !self.addresses(interface).iter().any(|other| other.trunc() == network) {
            self.to(network).retain(|route| route.iface != iface || route.origin != Origin::Link);
        }
        Ok(())
    }

    /// Returns the routes to a network as they would be after the changes.
    fn to(&mut self, network: Prefix) -> &mut Vec<RouteEntry> {
        let control = self.control;
        self.routes.entry(network).or_insert_with(|| control.routes.to_network(network))
    }

    /// Returns the interface through which a router would be directly reachable after the changes.
    fn link_of(&mut self, hop: IpAddr, iface: Option<IfaceId>) -> Option<IfaceId> {
        if addr::is_link_local(hop) {
            return iface;
        }
        let bits = Prefix::host(hop).len();
        (0..=bits).rev().find_map(|len| {
            let network = Prefix::new(hop, len)?.trunc();
            let is_on = |route: &&RouteEntry| {
                route.next_hop.is_none()
                    && route.kind == RouteKind::Unicast
                    && iface.is_none_or(|iface| iface == route.iface)
            };
            let found = match self.routes.get(&network) {
                Some(routes) => routes.iter().find(is_on).copied(),
                None => self.control.routes.to_network(network).iter().find(is_on).copied(),
            };
            found.map(|route| route.iface)
        })
    }

    fn set_route(&mut self, spec: RouteSpec, how: How) -> Result<(), Fault> {
        let entry = self.route(spec)?;
        let routes = self.to(entry.prefix);
        let same = routes.iter().find(|route| route.is_same(&entry)).copied();
        let rivals = rivals(routes, entry.metric);
        let gone = match how {
            How::Add if !rivals.is_empty() => return Err(Fault::Exists),
            How::Add | How::Append if same.is_some() => return Err(Fault::Exists),
            How::Change if rivals.is_empty() => return Err(Fault::NotThere),
            How::Add | How::Append => Vec::new(),
            How::Replace | How::Change => {
                let other = same.filter(|same| !rivals.contains(same));
                rivals.into_iter().chain(other).collect()
            }
        };
        let hop = entry.next_hop.map(|hop| (entry.iface, hop));
        if let Some(hop) = hop.filter(|hop| !self.control.routes.leads_through(hop)) {
            self.routers.insert(hop);
            if self.routers.len() > self.control.routes.room_for_routers() {
                return Err(Fault::Full);
            }
        }
        let routes = self.to(entry.prefix);
        routes.retain(|route| !gone.contains(route));
        insert(routes, entry);
        self.steps.extend(gone.into_iter().map(Step::RemoveRoute));
        self.steps.push(Step::AddRoute(entry));
        Ok(())
    }

    /// Returns whether the next hop cannot be a router: it is a broadcast address of a local
    /// network, or one of our own IPv6 addresses. As on Linux, an IPv4 route may use one of our own
    /// addresses as next hop.
    fn is_no_router(&self, hop: IpAddr) -> bool {
        let is_it = |own: &Prefix| match hop {
            IpAddr::V4(hop) => own.is_broadcast(hop),
            IpAddr::V6(_) => own.addr() == hop,
        };
        let known = self.control.ifaces.iter().flat_map(|interface| {
            interface.addresses.iter().map(|known| (interface.id, known.prefix))
        });
        known
            .filter(|(_, own)| is_it(own))
            .any(|(iface, own)| !self.addresses.contains_key(&(iface, own.addr())))
            || self.addresses.values().flatten().any(is_it)
    }

    /// Validates a route that the operator specifies, and fills in the fields that were not
    /// specified.
    fn route(&mut self, spec: RouteSpec) -> Result<RouteEntry, Fault> {
        let RouteSpec { prefix, next_hop, iface, metric, kind, on_link, mtu, weight } = spec;
        let kind = kind.unwrap_or_default();
        if next_hop.is_some_and(|hop| hop.is_ipv4() != prefix.addr().is_ipv4()) {
            return Err(Fault::Invalid);
        }
        if prefix.trunc() != prefix {
            return Err(Fault::HostBits);
        }
        if let Some(interface) = iface.map(|iface| self.interface(iface)).transpose()?
            && self.is_down(interface)
        {
            return Err(Fault::Down);
        }
        let iface = match next_hop {
            hop if kind != RouteKind::Unicast => {
                match hop.is_some() || iface.is_some() || mtu.is_some() {
                    true => return Err(Fault::Invalid),
                    false => IfaceId::LOOPBACK,
                }
            }
            Some(hop) if !addr::is_unicast(hop) || self.is_no_router(hop) => {
                return Err(Fault::GatewayUnreachable);
            }
            Some(_) if on_link => iface.ok_or(Fault::NoInterface)?,
            Some(hop) => self.link_of(hop, iface).ok_or(Fault::GatewayUnreachable)?,
            None => iface.ok_or(Fault::NoInterface)?,
        };
        let metric = metric.unwrap_or(metric_unless_given(prefix));
        let mtu = mtu.map(|mtu| route_mtu(prefix, mtu)).transpose()?;
        let weight = weight.unwrap_or(1);
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return Err(Fault::Weight);
        }
        let origin = Origin::Static;
        Ok(RouteEntry { prefix, next_hop, iface, metric, origin, kind, mtu, weight })
    }

    fn remove_route(&mut self, spec: RouteSpec) -> Result<(), Fault> {
        if spec.prefix.trunc() != spec.prefix {
            return Err(Fault::HostBits);
        }
        spec.iface.map(|iface| self.interface(iface)).transpose()?;
        let routes = self.to(spec.prefix);
        let is_it = |route: &RouteEntry| {
            spec.next_hop.is_none_or(|hop| route.next_hop == Some(hop))
                && spec.iface.is_none_or(|iface| route.iface == iface)
                && spec.metric.is_none_or(|metric| route.metric == metric)
                && spec.kind.is_none_or(|kind| route.kind == kind)
                && spec.mtu.is_none_or(|mtu| route.mtu.map(u32::from) == Some(mtu))
        };
        let best = routes.iter().find(|route| is_it(route)).copied().ok_or(Fault::NoRoute)?;
        let goes = |route: &RouteEntry| match spec.next_hop {
            None => *route == best || is_it(route) && route.shares_with(&best),
            Some(_) => *route == best,
        };
        let gone: Vec<_> = routes.extract_if(.., |route| goes(route)).collect();
        self.steps.extend(gone.into_iter().map(Step::RemoveRoute));
        Ok(())
    }

    fn set_neighbor(&mut self, key: HopKey, mac: MacAddr, how: How) -> Result<(), Fault> {
        let interface = self.interface(key.0)?;
        if interface.link != LinkType::Ethernet {
            return Err(Fault::NoNeighbors);
        }
        if self.is_down(interface) {
            return Err(Fault::Down);
        }
        if !addr::is_unicast(key.1) || !mac.is_unicast() {
            return Err(Fault::Invalid);
        }
        match (how, self.knows(&key)) {
            (How::Add, true) => return Err(Fault::Exists),
            (How::Change, false) => return Err(Fault::NoNeighbor),
            // A neighbour has only one MAC address, so appending an entry is invalid.
            (How::Append, _) => return Err(Fault::Invalid),
            _ => {}
        }
        let known = &self.control.neighbors;
        let new = self.neighbors.iter().filter(|(key, set)| **set && !known.is_permanent(key));
        if !known.is_permanent(&key)
            && known.permanent_len() + new.count() >= NEIGHBORS_PERMANENT_MAX
        {
            return Err(Fault::Full);
        }
        self.neighbors.insert(key, true);
        self.steps.push(Step::SetNeighbor(key, mac));
        Ok(())
    }

    fn knows(&self, key: &HopKey) -> bool {
        let known = || self.control.neighbors.is_known(key);
        self.neighbors.get(key).copied().unwrap_or_else(known)
    }

    fn remove_neighbor(&mut self, key: HopKey) -> Result<(), Fault> {
        self.interface(key.0)?;
        if !self.knows(&key) {
            return Err(Fault::NoNeighbor);
        }
        self.neighbors.insert(key, false);
        self.steps.push(Step::RemoveNeighbor(key));
        Ok(())
    }

    fn set_up(&mut self, iface: IfaceId, up: bool) -> Result<(), Fault> {
        let interface = self.interface(iface)?;
        if iface == IfaceId::LOOPBACK {
            return Err(Fault::Loopback);
        }
        if self.is_down(interface) != up {
            return Ok(());
        }
        self.up.insert(iface, up);
        if up {
            self.steps.push(Step::SetUp(iface, true));
            for prefix in self.addresses(interface).into_iter().filter(|known| !known.is_host()) {
                let entry = self.link_route(iface, prefix);
                self.steps.push(Step::AddRoute(entry));
            }
            return Ok(());
        }
        self.remove_routes_of(iface);
        self.remove_neighbors_of(iface);
        self.steps.push(Step::SetUp(iface, false));
        Ok(())
    }

    fn remove_interface(&mut self, iface: IfaceId) -> Result<(), Fault> {
        let interface = self.interface(iface)?;
        if iface == IfaceId::LOOPBACK {
            return Err(Fault::Loopback);
        }
        for prefix in self.addresses(interface) {
            self.addresses.insert((iface, prefix.addr()), None);
        }
        self.remove_routes_of(iface);
        self.remove_neighbors_of(iface);
        self.removed.insert(iface);
        self.steps.push(Step::RemoveInterface(iface));
        Ok(())
    }

    fn remove_neighbors_of(&mut self, iface: IfaceId) {
        let known = self.control.neighbors.iter().map(|known| (known.iface, known.addr));
        let touched = self.neighbors.keys().copied();
        let gone: Vec<_> = known.chain(touched).filter(|key| key.0 == iface).collect();
        self.neighbors.extend(gone.into_iter().map(|key| (key, false)));
    }

    /// Removes all routes of an interface that is set down. As on Linux, no route uses such an
    /// interface.
    fn remove_routes_of(&mut self, iface: IfaceId) {
        let list = self.control.routes.list();
        let networks = list.values().filter(|route| route.iface == iface).map(|known| known.prefix);
        let networks: BTreeSet<Prefix> = networks.chain(self.routes.keys().copied()).collect();
        for network in networks {
            let routes = self.to(network);
            let gone: Vec<_> = routes.extract_if(.., |route| route.iface == iface).collect();
            self.steps.extend(gone.into_iter().map(Step::RemoveRoute));
        }
    }

    fn set_mtu(&mut self, iface: IfaceId, mtu: u32) -> Result<(), Fault> {
        let interface = self.interface(iface)?;
        if iface == IfaceId::LOOPBACK {
            return Err(Fault::Loopback);
        }
        // Reject an MTU below the minimum of IPv6, because every interface may have IPv6 addresses.
        if !(ipv6::MTU_MIN as u32..=interface.mtu_most).contains(&mtu) {
            return Err(Fault::Mtu);
        }
        self.steps.push(Step::SetMtu(iface, mtu));
        Ok(())
    }

    fn set_mtu_most(&mut self, iface: IfaceId, mtu: u32) -> Result<(), Fault> {
        self.interface(iface)?;
        if iface == IfaceId::LOOPBACK {
            return Err(Fault::Loopback);
        }
        if mtu < ipv6::MTU_MIN as u32 {
            return Err(Fault::Mtu);
        }
        self.steps.push(Step::SetMtuMost(iface, mtu));
        Ok(())
    }
}

fn link_route(iface: IfaceId, prefix: Prefix) -> RouteEntry {
    let prefix = prefix.trunc();
    let (origin, kind) = (Origin::Link, RouteKind::Unicast);
    RouteEntry { prefix, next_hop: None, iface, metric: 0, origin, kind, mtu: None, weight: 1 }
}

/// Returns the first route with this metric, together with the other routes of the same multipath
/// route.
fn rivals(routes: &[RouteEntry], metric: u32) -> Vec<RouteEntry> {
    let Some(first) = routes.iter().find(|route| route.metric == metric) else { return Vec::new() };
    let is_rival = |route: &&RouteEntry| *route == first || route.shares_with(first);
    routes.iter().filter(is_rival).copied().collect()
}

/// Inserts a route after the routes with the same metric, like [`super::routes::RouteTable::add`].
fn insert(routes: &mut Vec<RouteEntry>, entry: RouteEntry) {
    let place = routes.partition_point(|route| route.metric <= entry.metric);
    routes.insert(place, entry);
}

/// Validates the MTU of a route, given in bytes.
pub(super) fn route_mtu(prefix: Prefix, mtu: u32) -> Result<u16, Fault> {
    //= https://www.rfc-editor.org/rfc/rfc791#section-3.2
    //# Every internet module must be able to forward a datagram of 68
    //# octets without further fragmentation.
    const LEAST_V4: u16 = 68;
    let least = if prefix.addr().is_ipv4() { LEAST_V4 } else { ipv6::MTU_MIN as u16 };
    u16::try_from(mtu).ok().filter(|mtu| *mtu >= least).ok_or(Fault::RouteMtu)
}
