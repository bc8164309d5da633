//! Selects the route of a packet: interface, next hop and source address.

use core::net::{IpAddr, Ipv4Addr};

use towpath_pool::LinkType;
use towpath_tcp::Instant;
use towpath_wire::addr;

use super::mtu::PathMtu;
use super::next_hop::group_mac;
use super::tables::Data;
use crate::net::fib::Choice;
use crate::net::iface::IfaceId;
use crate::net::limits::{LOOPBACK_MTU, PATH_MTU_MIN_V6};
use crate::net::locals::is_of_all_hosts;
use crate::net::messages::HopKey;
use crate::net::route::{Route, RouteError, RouteKind};
use crate::net::source;

impl Data {
    /// Returns whether `ip` is an address of this host, including 127.0.0.0/8 and `::1`.
    pub(in crate::net) fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.here().locals.anywhere(ip).owner.is_some()
    }

    /// Returns whether this host forwards packets to other hosts.
    pub(in crate::net) fn is_router(&self) -> bool {
        self.forwarding.is_some()
    }

    /// Returns whether packets to `dst` that arrive on the interface `iface` are for another host.
    /// If so, `dst` is not an address of this host, a multicast group or a broadcast address.
    pub(in crate::net) fn is_beyond(&self, iface: IfaceId, dst: IpAddr) -> bool {
        let here = self.here();
        let role = here.locals.on(iface, dst);
        let is_here = role.owner.is_some() || role.broadcast || dst.is_multicast();
        !is_here && !self.is_any_address(iface)
    }

    /// Returns the interface that sockets see for a packet to `local` that was received on `iface`.
    /// As on Linux (`rt_iif`, `inet6_iif`), a packet from this host to itself does not count as
    /// received on loopback. The packet counts as received on the interface with its destination
    /// address.
    pub(in crate::net) fn link_of(&self, iface: IfaceId, local: IpAddr) -> IfaceId {
        if iface != IfaceId::LOOPBACK || local.is_loopback() {
            return iface;
        }
        self.here().locals.anywhere(local).owner.unwrap_or(iface)
    }

    /// Returns whether this host receives packets to the multicast group `group` on the interface
    /// `iface`.
    pub(in crate::net) fn is_member(&self, iface: IfaceId, group: IpAddr) -> bool {
        self.here().link(iface).is_some()
            && (is_of_all_hosts(group) || self.here().locals.on(iface, group).joined)
    }

    /// Returns whether the host on the other side of the link of `iface` is a stack in the same
    /// process.
    pub(in crate::net) fn is_in_process(&self, iface: IfaceId) -> bool {
        self.here().links.get(iface.index()).is_some_and(|link| link.in_process)
    }

    /// Returns whether the interface `iface` accepts packets to every unicast address as if it were
    /// an address of the interface.
    pub(in crate::net) fn is_any_address(&self, iface: IfaceId) -> bool {
        self.here().links.get(iface.index()).is_some_and(|link| link.any_address)
    }

    /// Returns the route to `dst`. If given, the route uses the interface `iface` and the source
    /// address `src`. `src` need not be an address of this host, because a gateway answers from any
    /// address.
    pub(in crate::net) fn route(
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
        if iface.is_some_and(|iface| self.here().link(iface).is_none()) {
            return Err(RouteError::NoInterface);
        }
        if self.is_local(dst) {
            return Ok(self.route_to_self(src, dst));
        }
        if addr::is_martian_destination(dst) {
            return Err(RouteError::BadDestination);
        }
        let iface = iface.or_else(|| self.interface_of_source(src?, dst));
        let FirstHop { iface: out, next_hop, avoids, mtu } = self.first_hop(src, dst, iface)?;
        let link = self.link(out);
        // An interface that is down has no routes. Check this here, because packets to a multicast
        // group need no route.
        if link.down {
            return Err(RouteError::NoRoute);
        }
        //= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.1.3
        //# Internal host loopback address.  Addresses of this form
        //# MUST NOT appear outside a host.
        if matches!(src, Some(IpAddr::V4(v4)) if v4.is_loopback()) && out != IfaceId::LOOPBACK {
            return Err(RouteError::LoopbackSource);
        }
        let src = match src {
            Some(src) => src,
            None => self.source_for(out, next_hop, dst).ok_or(RouteError::NoSource)?,
        };
        let link_mtu = mtu.unwrap_or(u32::MAX).min(link.mtu_for(dst));
        let known = self.mtus.lookup(now, (out, dst));
        let broadcast = match dst {
            IpAddr::V4(v4) => v4.is_broadcast() || self.here().locals.on(out, dst).broadcast,
            IpAddr::V6(_) => false,
        };
        Ok(Route {
            iface: out,
            next_hop,
            src,
            mtu: known.limit(link_mtu),
            link_mtu,
            needs_fragments: known.needs_fragments(),
            generation: self.snapshot.generation,
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
            // As on Linux, the source address of packets to this host itself is their destination
            // address, or 127.0.0.1 for a destination in 127.0.0.0/8.
            src: src.unwrap_or(if is_loopback { Ipv4Addr::LOCALHOST.into() } else { dst }),
            mtu: LOOPBACK_MTU,
            link_mtu: LOOPBACK_MTU,
            needs_fragments: false,
            generation: self.snapshot.generation,
            broadcast: is_loopback && self.here().locals.on(IfaceId::LOOPBACK, dst).broadcast,
            avoids: false,
            hop: None,
        }
    }

    /// Returns the interface with the address `src`, for a datagram to an IPv4 multicast group or
    /// to 255.255.255.255. As on Linux, a datagram from 127.0.0.1 stays on the host.
    fn interface_of_source(&self, src: IpAddr, dst: IpAddr) -> Option<IfaceId> {
        let anywhere = dst.is_ipv4() && dst.is_multicast() || is_limited_broadcast(dst);
        match anywhere {
            true if src.is_loopback() => Some(IfaceId::LOOPBACK),
            true => self.here().locals.anywhere(src).owner,
            false => None,
        }
    }

    /// Returns whether `dst` is a broadcast address of one of this host's links.
    pub(in crate::net) fn is_broadcast(&self, dst: IpAddr) -> bool {
        is_limited_broadcast(dst) || self.here().locals.anywhere(dst).broadcast
    }

    /// Returns the outgoing interface and the next hop for a destination.
    fn first_hop(
        &self,
        src: Option<IpAddr>,
        dst: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<FirstHop, RouteError> {
        let on_link = dst.is_multicast() || addr::is_link_local(dst) || is_limited_broadcast(dst);
        let direct = |iface| FirstHop { iface, next_hop: dst, avoids: false, mtu: None };
        if let Some(iface) = iface.filter(|_| on_link) {
            return Ok(direct(iface));
        }
        let near = || self.here().locals.anywhere(src?).owner;
        if let Some(Choice { way, avoids }) = self.snapshot.fib.lookup(dst, iface, near) {
            refuse_by_kind(way.kind)?;
            let mtu = way.mtu.map(u32::from);
            return Ok(match way.next_hop {
                Some(next_hop) if !on_link => FirstHop { iface: way.iface, next_hop, avoids, mtu },
                // Members of a multicast group are on the link, so ignore the router of the route.
                _ => FirstHop { mtu, ..direct(way.iface) },
            });
        }
        // If there is no route, a packet that cannot leave the link is sent by the first interface
        // other than loopback.
        let first = self.here().links().nth(1).filter(|_| on_link && iface.is_none());
        first.map(|link| direct(link.id)).ok_or(RouteError::NoRoute)
    }

    /// Returns the source address for packets to `dst` through `next_hop` on interface `out`.
    pub(super) fn source_for(&self, out: IfaceId, next_hop: IpAddr, dst: IpAddr) -> Option<IpAddr> {
        let links = self.here().links.iter().zip(0..).skip(1);
        let others = links.filter(|(_, other)| IfaceId(*other) != out);
        let others = others.map(|(link, _)| &link.addresses[..]);
        source::choose(&self.link(out).addresses, others, next_hop, dst)
    }

    /// Like [`route`](Self::route), for a caller that caches the route. Also sets [`Route::hop`],
    /// which identifies the next hop.
    pub(in crate::net) fn route_to_keep(
        &mut self,
        now: Instant,
        src: Option<IpAddr>,
        dst: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<Route, RouteError> {
        let route = self.route(now, src, dst, iface)?;
        let asked_for =
            self.has_neighbors(route.iface) && group_mac(route.next_hop, route.broadcast).is_none();
        let hop = asked_for.then(|| self.next_hops.at((route.iface, route.next_hop)));
        Ok(Route { hop, ..route })
    }

    /// Returns whether the MAC addresses of neighbours on the link of `iface` must be resolved.
    pub(super) fn has_neighbors(&self, iface: IfaceId) -> bool {
        self.link(iface).kind == LinkType::Ethernet
    }

    /// Returns the path MTU in bytes to `dst` for datagrams.
    pub(in crate::net) fn path_mtu(&self, now: Instant, dst: IpAddr) -> u32 {
        self.route(now, None, dst, None).map_or(PATH_MTU_MIN_V6, |route| route.mtu)
    }

    /// Returns a lower bound in bytes of all path MTUs of this host. Paths within this host are
    /// ignored.
    pub(in crate::net) fn path_mtu_least(&self) -> u32 {
        let of_routes = u32::from(self.snapshot.fib.mtu_least);
        self.mtus.least().limit(self.here().mtu_min.min(of_routes))
    }

    /// Sets the path MTU of datagrams from `src` to `dst` to `mtu` bytes, if it is lower than
    /// before. If given, `iface` is the outgoing interface. The caller must have checked that the
    /// ICMP report quotes one of its packets.
    ///
    /// Returns the path and its MTU if other shards (stacks of this host) must be notified.
    pub(in crate::net) fn set_path_mtu(
        &mut self,
        now: Instant,
        src: IpAddr,
        dst: IpAddr,
        iface: Option<IfaceId>,
        mtu: u32,
    ) -> Option<(HopKey, u32)> {
        let FirstHop { iface: out, .. } = self.first_hop(Some(src), dst, iface).ok()?;
        let way = (out, dst);
        self.hear_path_mtu(now, way, mtu).map(|mtu| (way, mtu))
    }

    /// Handles an ICMP report of a path MTU. Returns the path and its MTU if other shards (stacks
    /// of this host) must be notified.
    pub(in crate::net) fn hear_path_mtu(
        &mut self,
        now: Instant,
        way: HopKey,
        mtu: u32,
    ) -> Option<u32> {
        match self.lower_path_mtu(now, way, mtu) {
            true => Some(mtu),
            false => self.mtus.take_untold(way),
        }
    }

    /// Records a path MTU that was reported by ICMP. Returns whether the path MTU became lower.
    pub(in crate::net) fn lower_path_mtu(&mut self, now: Instant, way: HopKey, mtu: u32) -> bool {
        let (iface, dst) = way;
        let Some(link) = self.here().links.get(iface.index()) else { return false };
        let link_mtu = link.mtu_for(dst);
        self.mtus.lower(now, way, PathMtu::reported(mtu), link_mtu)
    }
}

/// Outgoing interface and next hop of a packet, and the MTU of the route if it has one. `avoids`
/// states whether a better route was not used, because its router does not answer.
struct FirstHop {
    iface: IfaceId,
    next_hop: IpAddr,
    avoids: bool,
    mtu: Option<u32>,
}

/// Returns the error for sending by a route of a type other than unicast. As on Linux, programs get
/// EINVAL, EHOSTUNREACH or EACCES.
fn refuse_by_kind(kind: RouteKind) -> Result<(), RouteError> {
    match kind {
        RouteKind::Unicast => Ok(()),
        RouteKind::Blackhole => Err(RouteError::Blackhole),
        RouteKind::Unreachable => Err(RouteError::Unreachable),
        RouteKind::Prohibit => Err(RouteError::Prohibited),
    }
}

fn is_limited_broadcast(dst: IpAddr) -> bool {
    dst == IpAddr::V4(Ipv4Addr::BROADCAST)
}
