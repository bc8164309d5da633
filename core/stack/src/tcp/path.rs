//! The cached route to the peer of a connection, stored in twelve bytes.
//!
//! A [`Route`] takes 80 bytes. The connection stores the two addresses elsewhere, and next hops are
//! in a table that all connections share. A path contains only the index of the next hop.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use towpath_tcp::Instant;

use crate::host::SocketId;
use crate::net::limits::PATH_MTUS_MAX;
use crate::net::mtu::PathMtu;
use crate::net::route::Epoch;
use crate::net::{HopId, IfaceId, Net, Route, limits};
use crate::tables::flow::Flow;

/// Cached route of a connection. The route is valid as long as [`Paths::is_current`] returns true.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcpPath {
    /// Epoch of the next-hop table in which the route was looked up.
    epoch: Epoch,
    /// MTU of the link in bytes. 16 bits are enough for any IP packet.
    link_mtu: u16,
    /// Path MTU that ICMP errors about segments of this connection have reported. Other connections
    /// do not use it, even to the same host, because such a report proves nothing about their
    /// segments (RFC 5927 §7.2).
    known: PathMtu,
    pub iface: IfaceId,
    hop: PackedHop,
}

/// Index of the next hop, or [`PackedHop::DIRECT`], together with two flags of the route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedHop(NonZeroU16);

impl PackedHop {
    /// Value for a next hop that is the peer itself, on a link whose neighbours need not be
    /// resolved.
    const DIRECT: NonZeroU16 = NonZeroU16::new(Self::PLACE).expect("it is not 0");
    /// Mask of the bits that contain the index of the next hop.
    const PLACE: u16 = (1 << 14) - 1;
    /// Bit that contains [`Route::broadcast`].
    const BROADCAST: u16 = 1 << 14;
    /// Bit that contains [`Route::avoids`].
    const AVOIDS: u16 = 1 << 15;

    fn of(route: &Route) -> Self {
        let place = route.hop.map_or(Self::DIRECT, |hop| hop.place);
        let broadcast = if route.broadcast { Self::BROADCAST } else { 0 };
        let avoids = if route.avoids { Self::AVOIDS } else { 0 };
        Self(place | broadcast | avoids)
    }

    fn place(self) -> Option<NonZeroU16> {
        NonZeroU16::new(self.0.get() & Self::PLACE).filter(|place| *place != Self::DIRECT)
    }

    fn has(self, bit: u16) -> bool {
        self.0.get() & bit != 0
    }
}

const _: () = assert!(limits::NEIGHBORS_MOST < PackedHop::PLACE as usize);

impl TcpPath {
    /// Returns the known path MTU: the length in bytes of the longest IP packet that can be sent to
    /// the peer without fragmentation.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.known.limit(self.link_mtu.into())
    }

    /// Applies an ICMP report of a path MTU about a segment in flight. Returns whether the path MTU
    /// changed.
    pub fn lower(&mut self, mtu: PathMtu) -> bool {
        let new = mtu < self.known && mtu.limit(self.link_mtu.into()) < self.link_mtu.into();
        if new {
            self.known = mtu;
        }
        new
    }

    /// Removes the reported path MTU `mtu`, because it has expired. Returns whether the path MTU
    /// changed.
    pub fn forget(&mut self, mtu: PathMtu) -> bool {
        let last = self.known == mtu;
        if last {
            self.known = PathMtu::UNKNOWN;
        }
        last
    }

    /// Returns the next hop; `None` on a link whose neighbours need not be resolved.
    #[inline]
    pub fn hop(&self) -> Option<HopId> {
        self.hop.place().map(|place| HopId { place, epoch: self.epoch })
    }

    /// Copies the reported path MTU from `old`, the previous path, if both use the same interface.
    pub fn inherit(&mut self, old: &TcpPath) {
        if self.iface == old.iface {
            self.known = old.known;
        }
    }
}

const _: () = assert!(size_of::<Option<TcpPath>>() == 12);

/// A path MTU that an ICMP error reported to a connection. When the entry expires, the connection
/// uses the MTU of the link again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LearntMtu {
    pub id: SocketId,
    pub mtu: PathMtu,
    pub until: Instant,
}

/// State that determines which cached paths are valid.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Generation number of the routes when the paths were last invalidated.
    generation: u64,
    since: Epoch,
    /// Path MTUs that were reported to connections, oldest first.
    learnt: VecDeque<LearntMtu>,
}

impl Paths {
    /// Stores a reported path MTU. If too many are stored, removes and returns the oldest one.
    pub fn learn(&mut self, learnt: LearntMtu) -> Option<LearntMtu> {
        let is_full = self.learnt.len() >= PATH_MTUS_MAX;
        let oldest = if is_full { self.learnt.pop_front() } else { None };
        self.learnt.push_back(learnt);
        oldest
    }

    /// Removes and returns the oldest path MTU, if it has expired.
    pub fn pop_old(&mut self, now: Instant) -> Option<LearntMtu> {
        self.learnt.pop_front_if(|learnt| learnt.until <= now)
    }

    /// Invalidates all cached paths if the routes have changed.
    #[inline]
    pub fn follow(&mut self, net: &mut Net) {
        if self.generation != net.route_generation() {
            self.generation = net.route_generation();
            self.since = net.begin_epoch();
        }
    }

    /// Returns whether a path was looked up in the current routes, and its next hop is still in the
    /// next-hop table.
    #[inline]
    pub fn is_current(&self, path: &TcpPath, net: &Net) -> bool {
        let new = net.is_since(path.epoch, self.since);
        new && path.hop().is_none_or(|hop| net.next_hop(hop).is_some())
    }

    /// Converts a route to a path, the form in which connections cache it.
    pub fn shrink(&self, route: &Route, net: &Net) -> TcpPath {
        let link_mtu = u16::try_from(route.link_mtu).unwrap_or(u16::MAX);
        let epoch = route.hop.map_or(net.epoch(), |hop| hop.epoch);
        let (known, iface) = (PathMtu::UNKNOWN, route.iface);
        TcpPath { epoch, link_mtu, known, iface, hop: PackedHop::of(route) }
    }

    /// Converts a valid path back to a route.
    #[inline]
    pub fn route(&self, path: &TcpPath, flow: &Flow, net: &Net) -> Option<Route> {
        let hop = path.hop();
        let next_hop = match hop {
            Some(hop) => net.next_hop(hop)?,
            None => flow.remote,
        };
        Some(Route {
            iface: path.iface,
            next_hop,
            src: flow.local,
            mtu: path.mtu(),
            link_mtu: path.link_mtu.into(),
            needs_fragments: path.known.needs_fragments(),
            generation: self.generation,
            broadcast: path.hop.has(PackedHop::BROADCAST),
            avoids: path.hop.has(PackedHop::AVOIDS),
            hop,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use towpath_pool::{LinkType, Offloads, Pool};
    use towpath_wire::{MacAddr, Prefix};

    use super::*;
    use crate::net::{InterfaceConfig, Keys, NetConfig};

    fn flow() -> Flow {
        Flow {
            local: IpAddr::from([10, 0, 0, 1]),
            remote: IpAddr::from([10, 9, 0, 2]),
            local_port: 1,
            remote_port: 2,
        }
    }

    const NOW: Instant = Instant(1);

    /// Creates a host with two interfaces: one with a router, and a point-to-point link.
    fn host() -> Net {
        let mut net = Net::new(NetConfig::default(), Keys::derive(&[1; 32]), NOW);
        for (name, link) in [("eth0", LinkType::Ethernet), ("tun0", LinkType::Ip)] {
            let offloads =
                Offloads { checksum: false, tcp_segmentation: false, udp_segmentation: false };
            let config = InterfaceConfig {
                name: name.to_string(),
                link,
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
                mtu: 1400,
                offloads,
                addresses: Vec::new(),
                slaac: false,
                any_address: false,
                kernel_cuts: false,
                in_process: false,
            };
            net.add_interface(NOW, config);
        }
        net.add_address(NOW, IfaceId(1), "10.0.0.1/24".parse().unwrap());
        net.add_route(Prefix::ALL_V4, Some(router(0)), IfaceId(1), 1);
        net.add_route(Prefix::ALL_V4, None, IfaceId(2), 2);
        net
    }

    fn router(n: u8) -> IpAddr {
        [10, 0, 0, 100 + n].into()
    }

    fn look_up(net: &mut Net, iface: u16) -> Route {
        let Flow { local, remote, .. } = flow();
        net.route_to_keep(NOW, Some(local), remote, Some(IfaceId(iface))).unwrap()
    }

    #[test]
    fn comes_back_as_it_was() {
        let (mut net, mut paths) = (host(), Paths::default());
        paths.follow(&mut net);
        let routed = look_up(&mut net, 1);
        assert_eq!(routed.next_hop, router(0));
        let direct = look_up(&mut net, 2);
        assert_eq!((direct.next_hop, direct.hop), (flow().remote, None));
        for route in [routed, direct] {
            for (broadcast, avoids) in [(false, false), (true, false), (false, true)] {
                let generation = net.route_generation();
                let route = Route { broadcast, avoids, generation, ..route };
                let path = paths.shrink(&route, &net);
                assert!(paths.is_current(&path, &net));
                assert_eq!(paths.route(&path, &flow(), &net), Some(route));
            }
        }
    }

    #[test]
    fn what_routers_say_lowers_until_it_is_forgotten() {
        let (mut net, paths) = (host(), Paths::default());
        let route = look_up(&mut net, 1);
        let mut path = paths.shrink(&route, &net);
        let said = PathMtu::reported;
        assert!(!path.lower(said(1400)) && path.lower(said(1300)) && !path.lower(said(1350)));
        assert!(path.lower(said(1200)));
        assert!(!path.forget(said(1300)));
        assert_eq!(path.mtu(), 1200);
        let mut again = paths.shrink(&route, &net);
        again.inherit(&path);
        assert_eq!(again.mtu(), 1200);
        assert!(path.lower(said(0)));
        let route = paths.route(&path, &flow(), &net).unwrap();
        assert_eq!((route.mtu, route.link_mtu, route.needs_fragments), (552, 1400, true));
        assert!(path.forget(said(0)));
        assert_eq!(path.mtu(), 1400);
        again.inherit(&TcpPath { iface: IfaceId(4), ..path });
        assert_eq!(again.mtu(), 1200, "another link's is nothing to this one");
    }

    #[test]
    fn a_change_of_the_routes_voids_it() {
        let (mut net, mut paths) = (host(), Paths::default());
        paths.follow(&mut net);
        for iface in [1, 2] {
            let route = look_up(&mut net, iface);
            let path = paths.shrink(&route, &net);
            paths.follow(&mut net);
            assert!(paths.is_current(&path, &net));
            net.add_route(Prefix::ALL_V4, Some(router(1)), IfaceId(1), u32::from(iface) + 9);
            paths.follow(&mut net);
            assert!(!paths.is_current(&path, &net));
        }
    }

    #[test]
    fn a_next_hop_that_loses_its_place_voids_its_paths_alone() {
        let (mut net, mut paths) = (host(), Paths::default());
        paths.follow(&mut net);
        let path = |net: &mut Net, paths: &Paths, iface| {
            let route = look_up(net, iface);
            paths.shrink(&route, net)
        };
        let (routed, direct) = (path(&mut net, &paths, 1), path(&mut net, &paths, 2));
        let neighbor = |n: u32| IpAddr::from((0xe000_0000 - 1 - n).to_be_bytes());
        for n in 0..2 * limits::NEXT_HOPS_MAX as u32 {
            let to = neighbor(n);
            net.add_route(Prefix::host(to), None, IfaceId(1), 1);
        }
        paths.follow(&mut net);
        let (routed_now, direct_now) = (path(&mut net, &paths, 1), path(&mut net, &paths, 2));
        assert!(!paths.is_current(&routed, &net) && !paths.is_current(&direct, &net));
        for n in 0..2 * limits::NEXT_HOPS_MAX as u32 {
            assert!(n > 900 || paths.is_current(&routed_now, &net), "after {n}");
            net.route_to_keep(NOW, None, neighbor(n), None).unwrap();
        }
        assert!(!paths.is_current(&routed_now, &net), "nothing was sent to the router meanwhile");
        assert_eq!(paths.route(&routed_now, &flow(), &net), None);
        assert!(paths.is_current(&direct_now, &net));
        net.on_timeout(NOW, &mut Pool::default());
        assert!(net.counters().data.next_hops_displaced > 0);
        let again = path(&mut net, &paths, 1);
        assert!(paths.is_current(&again, &net) && !paths.is_current(&routed_now, &net));
    }
}
