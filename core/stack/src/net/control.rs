//! What this host is, interfaces, addresses and routes, and which way a packet goes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix, addr};

use super::iface::{Address, AddressState, IfaceId, Interface, InterfaceConfig, Origin};
use super::layer::Net;
use super::limits::PATH_MTU_MIN_V6;
use super::mtu::PathMtu;
use super::neighbor::Neighbor;
use super::route::{Choice, Route, RouteEntry, RouteError, source_rank};

/// The loopback interface takes packets of any length that IP can state.
const LOOPBACK_MTU: u32 = 65535;

impl Net {
    pub(super) fn add_loopback(&mut self, now: Instant) {
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
        };
        self.add_interface(now, config);
    }

    /// Adds an interface with its addresses and the routes to their links.
    ///
    /// IPv6 addresses may be used at once, while duplicate address detection runs (RFC 4429). An
    /// Ethernet interface with `slaac` or an IPv6 address gets a link-local address too. Interfaces stay: the
    /// 65 537th panics.
    pub fn add_interface(&mut self, now: Instant, config: InterfaceConfig) -> IfaceId {
        let id = IfaceId(u16::try_from(self.ifaces.len()).expect("65536 interfaces are absurd"));
        self.ifaces.push(Interface::new(id, &config));
        for prefix in &config.addresses {
            self.add_address(now, id, *prefix);
        }
        self.start_discovery(now, id);
        id
    }

    /// All interfaces; an [`IfaceId`] is an index.
    pub fn interfaces(&self) -> &[Interface] {
        &self.ifaces
    }

    /// Says what a device does by itself, when that was not known in time. Panics when there is no such interface.
    pub fn set_offloads(&mut self, iface: IfaceId, offloads: Offloads) {
        self.ifaces[iface.index()].offloads = offloads;
    }

    /// Gives an interface an address and the route to its link. False when it has it already. Panics when there is no
    /// such interface.
    pub fn add_address(&mut self, now: Instant, iface: IfaceId, prefix: Prefix) -> bool {
        let interface = &self.ifaces[iface.index()];
        if interface.address(prefix.addr()).is_some() {
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
        if !prefix.is_host() {
            self.routes.add(RouteEntry {
                prefix,
                next_hop: None,
                iface,
                metric: 0,
                origin: Origin::Link,
            });
        }
        true
    }

    /// Takes an address and the route to its link away. False when there is no such address.
    pub fn remove_address(&mut self, now: Instant, iface: IfaceId, addr: IpAddr) -> bool {
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

    /// Adds a route; the same one again replaces its metric. False when there is no such interface, or
    /// when the router is of the other family.
    pub fn add_route(
        &mut self,
        prefix: Prefix,
        next_hop: Option<IpAddr>,
        iface: IfaceId,
        metric: u32,
    ) -> bool {
        let other_family = next_hop.is_some_and(|hop| hop.is_ipv4() != prefix.addr().is_ipv4());
        if other_family || iface.index() >= self.ifaces.len() {
            return false;
        }
        self.routes.add(RouteEntry { prefix, next_hop, iface, metric, origin: Origin::Static });
        true
    }

    /// Removes an operator's routes to `prefix`, all or those through `next_hop`; returns how many.
    pub fn remove_route(&mut self, prefix: Prefix, next_hop: Option<IpAddr>) -> usize {
        self.routes.remove(prefix, |route| {
            route.origin == Origin::Static && (next_hop.is_none() || route.next_hop == next_hop)
        })
    }

    /// All routes, in order of adding.
    pub fn routes(&self) -> impl Iterator<Item = &RouteEntry> {
        self.routes.iter()
    }

    /// All neighbours known, in no particular order.
    pub fn neighbors(&self) -> impl Iterator<Item = Neighbor> {
        self.neighbors.iter()
    }

    /// Whether packets to `ip` are for this host: its addresses, 127/8 and `::1`.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.locals.contains_anywhere(ip, self.ifaces.len() as u16)
    }

    /// The interface that a packet to `local` came in on, as sockets see it. What this host sends to an address of
    /// its own comes in on loopback, and counts as come in on the interface that has the address, as on Linux
    /// (`rt_iif`, `inet6_iif`).
    pub fn link_of(&self, iface: IfaceId, local: IpAddr) -> IfaceId {
        if iface != IfaceId::LOOPBACK || local.is_loopback() {
            return iface;
        }
        self.locals.interface_of(local, self.ifaces.len() as u16).unwrap_or(iface)
    }

    /// Whether every unicast destination is local on `iface`.
    pub fn is_any_address(&self, iface: IfaceId) -> bool {
        self.ifaces.get(iface.index()).is_some_and(|iface| iface.any_address)
    }

    /// Changes whenever a [`Route`] found earlier may be outdated, its path MTU excepted.
    pub fn route_generation(&self) -> u64 {
        self.routes.generation()
    }

    /// Changes whenever the path MTU of a [`Route`] found earlier may be outdated.
    pub fn path_mtu_generation(&self) -> u64 {
        self.mtus.generation()
    }

    /// The way to `dst`, through `iface` if one is given and from `src` if one is given. A given `src` is
    /// not checked to be ours: a gateway answers from any address.
    pub fn route(
        &self,
        now: Instant,
        src: Option<IpAddr>,
        dst: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<Route, RouteError> {
        let src = src.filter(|src| !src.is_unspecified());
        if src.is_some_and(|src| src.is_ipv4() != dst.is_ipv4()) {
            return Err(RouteError::NoSource);
        }
        if iface.is_some_and(|iface| iface.index() >= self.ifaces.len()) {
            return Err(RouteError::NoInterface);
        }
        if self.is_local(dst) {
            return Ok(self.route_to_self(src, dst));
        }
        if addr::is_martian_destination(dst) {
            return Err(RouteError::BadDestination);
        }
        let iface = iface.or_else(|| self.interface_of_source(src?, dst));
        let FirstHop { iface: out, next_hop, avoids } = self.first_hop(dst, iface)?;
        let interface = &self.ifaces[out.index()];
        //= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.1.3
        //# Internal host loopback address.  Addresses of this form
        //# MUST NOT appear outside a host.
        if matches!(src, Some(IpAddr::V4(v4)) if v4.is_loopback()) && !interface.is_loopback() {
            return Err(RouteError::LoopbackSource);
        }
        let src = match src {
            Some(src) => src,
            None => self.source_for(interface, next_hop, dst).ok_or(RouteError::NoSource)?,
        };
        let link_mtu = interface.mtu_for(dst);
        let known = self.mtus.lookup(now, (out, dst));
        let broadcast = match dst {
            IpAddr::V4(v4) => v4.is_broadcast() || interface.is_broadcast(dst),
            IpAddr::V6(_) => false,
        };
        let generation = self.routes.generation();
        Ok(Route {
            iface: out,
            next_hop,
            src,
            mtu: known.limit(link_mtu),
            link_mtu,
            needs_fragments: known.needs_fragments(),
            generation,
            broadcast,
            avoids,
            hop: None,
        })
    }

    fn route_to_self(&self, src: Option<IpAddr>, dst: IpAddr) -> Route {
        let is_loopback = matches!(dst, IpAddr::V4(v4) if v4.is_loopback());
        Route {
            iface: IfaceId::LOOPBACK,
            next_hop: dst,
            // As Linux does: a host talks to itself from the address that it talks to, but from
            // 127.0.0.1 to all of 127.0.0.0/8.
            src: src.unwrap_or(if is_loopback { Ipv4Addr::LOCALHOST.into() } else { dst }),
            mtu: LOOPBACK_MTU,
            link_mtu: LOOPBACK_MTU,
            needs_fragments: false,
            generation: self.routes.generation(),
            broadcast: is_loopback && self.ifaces[0].is_broadcast(dst),
            avoids: false,
            hop: None,
        }
    }

    /// As on Linux, the source of a datagram to an IPv4 group or to 255.255.255.255 says where it goes, which
    /// the destination does not: from 127.0.0.1 it stays on the host.
    fn interface_of_source(&self, src: IpAddr, dst: IpAddr) -> Option<IfaceId> {
        let anywhere = dst.is_ipv4() && dst.is_multicast() || is_limited_broadcast(dst);
        let of_source = |iface: &&Interface| {
            iface.address(src).is_some() || iface.is_loopback() && src.is_loopback()
        };
        self.ifaces.iter().find(of_source).filter(|_| anywhere).map(|iface| iface.id)
    }

    /// Whether `dst` is a broadcast address of some link of this host.
    pub(crate) fn is_broadcast(&self, dst: IpAddr) -> bool {
        is_limited_broadcast(dst) || self.ifaces.iter().any(|iface| iface.is_broadcast(dst))
    }

    /// Out of which interface, and to which neighbour.
    fn first_hop(&self, dst: IpAddr, iface: Option<IfaceId>) -> Result<FirstHop, RouteError> {
        let on_link = dst.is_multicast() || addr::is_link_local(dst) || is_limited_broadcast(dst);
        let direct = |iface| FirstHop { iface, next_hop: dst, avoids: false };
        if let Some(iface) = iface.filter(|_| on_link) {
            return Ok(direct(iface));
        }
        if let Some(Choice { entry, avoids }) = self.routes.lookup(dst, iface) {
            return Ok(match entry.next_hop {
                Some(next_hop) if !on_link => FirstHop { iface: entry.iface, next_hop, avoids },
                // A group is reached on the link, whatever router the route names.
                _ => direct(entry.iface),
            });
        }
        // Without a route, what cannot leave the link goes out of the first real interface.
        let first = self.ifaces.get(1).filter(|_| on_link && iface.is_none());
        first.map(|iface| direct(iface.id)).ok_or(RouteError::NoRoute)
    }

    /// The address to send from to `dst`: for IPv6 as RFC 6724 ranks them, for IPv4 as Linux does it, which
    /// takes an address of the subnet that the next hop is in. Another subnet's might be filtered out by the
    /// router, which expects it elsewhere.
    pub(super) fn source_for(
        &self,
        interface: &Interface,
        next_hop: IpAddr,
        dst: IpAddr,
    ) -> Option<IpAddr> {
        let own = interface.addresses.iter().map(|a| (a, false));
        let others = self.ifaces[1..].iter().filter(|other| other.id != interface.id);
        let foreign = others.flat_map(|other| &other.addresses).map(|a| (a, true));
        own.chain(foreign)
            .filter(|(a, _)| a.is_usable() && a.addr().is_ipv4() == dst.is_ipv4())
            // Another link's link-local address means nothing here.
            .filter(|(a, foreign)| !foreign || !addr::is_link_local(a.addr()))
            .map(|(a, foreign)| {
                let deprecated = a.state == AddressState::Deprecated;
                let near = a.prefix.contains(next_hop);
                (source_rank(a.addr(), dst, deprecated, foreign, near), a.addr())
            })
            // The first of equals, in the order of the operator.
            .reduce(|best, next| if next.0 > best.0 { next } else { best })
            .map(|(_, addr)| addr)
    }

    /// Longest IP packet in bytes that gets to `dst`, as far as datagrams know.
    pub fn path_mtu(&self, now: Instant, dst: IpAddr) -> u32 {
        self.route(now, None, dst, None).map_or(PATH_MTU_MIN_V6, |route| route.mtu)
    }

    /// Longest IP packet in bytes that no path is known to be too narrow for, this host's own excepted.
    pub fn path_mtu_least(&self) -> u32 {
        let links = self.ifaces.iter().skip(1).map(|iface| iface.mtu.min(iface.mtu_v6));
        links.min().map_or(LOOPBACK_MTU, |link_mtu| self.mtus.least().limit(link_mtu))
    }

    /// Believes a report that datagrams to `dst`, sent through `iface` if one is given, get through with
    /// `mtu` bytes only. For transports that checked that the report quotes a packet of theirs.
    pub fn set_path_mtu(&mut self, now: Instant, dst: IpAddr, iface: Option<IfaceId>, mtu: u32) {
        let Ok(FirstHop { iface: out, .. }) = self.first_hop(dst, iface) else { return };
        let link_mtu = self.ifaces[out.index()].mtu_for(dst);
        self.mtus.lower(now, (out, dst), PathMtu::reported(mtu), link_mtu);
    }
}

/// Out of which interface a packet goes, to which neighbour, and whether a better one does not answer.
struct FirstHop {
    iface: IfaceId,
    next_hop: IpAddr,
    avoids: bool,
}

fn is_limited_broadcast(dst: IpAddr) -> bool {
    dst == IpAddr::V4(Ipv4Addr::BROADCAST)
}
