//! The cached way to a connection's peer, in twelve bytes.
//!
//! A [`Route`] takes 56, most of which a connection knows (its two addresses) or shares with all others
//! (the router): next hops that are not the peer itself are in one list, and paths point into it.

use std::net::IpAddr;
use std::num::NonZeroU16;

use towpath_tcp::Instant;

use crate::flow::Flow;
use crate::host::SocketId;
use crate::limits::NEXT_HOPS_MAX;
use crate::net::mtu::PathMtu;
use crate::net::{IfaceId, Route};

/// The way of one connection, good while [`Paths::is_current`] says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    epoch: u32,
    /// MTU of the link in bytes; no IP packet is longer than 16 bits can state.
    link_mtu: u16,
    /// What routers said about segments of this connection. It alone believes it: of other connections, even
    /// to the same host, a report shows nothing (RFC 5927 §7.2).
    known: PathMtu,
    pub iface: IfaceId,
    hop: NonZeroU16,
}

impl Path {
    /// Longest IP packet in bytes that gets through, as far as the connection knows.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.known.limit(self.link_mtu.into())
    }

    /// Heeds a report about a segment in flight; whether it says anything new.
    pub fn lower(&mut self, mtu: PathMtu) -> bool {
        let new = mtu < self.known && mtu.limit(self.link_mtu.into()) < self.link_mtu.into();
        if new {
            self.known = mtu;
        }
        new
    }

    /// The time of the report `mtu` is over; whether it was the last one.
    pub fn forget(&mut self, mtu: PathMtu) -> bool {
        let last = self.known == mtu;
        if last {
            self.known = PathMtu::UNKNOWN;
        }
        last
    }

    /// The same way was looked up again: what was said about it holds.
    pub fn inherit(&mut self, old: &Path) {
        if self.iface == old.iface {
            self.known = old.known;
        }
    }
}

const _: () = assert!(size_of::<Option<Path>>() == 12);

/// A path MTU that a connection learnt, until it tries again what its link takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LearntMtu {
    pub id: SocketId,
    pub mtu: PathMtu,
    pub until: Instant,
}

/// The peer itself is the next hop.
const DIRECT: NonZeroU16 = NonZeroU16::MIN;
/// The peer itself, which is a broadcast address of the link.
const BROADCAST: NonZeroU16 = NonZeroU16::MIN.saturating_add(1);
/// The first in the list.
const LISTED: usize = 3;

/// What all paths share.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Of the route tables, when the list began.
    generation: u64,
    /// Counts the lists: a path of an earlier one is void. A connection would have to sleep through 2³²
    /// changes of the routes to be deceived.
    epoch: u32,
    /// Neighbours, each with what [`Route::avoids`] says.
    next_hops: Vec<(IpAddr, bool)>,
}

impl Paths {
    /// Voids all paths when the tables changed.
    #[inline]
    pub fn follow(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.begin();
        }
    }

    /// Whether the path was found in the tables as they are.
    #[inline]
    pub fn is_current(&self, path: &Path) -> bool {
        path.epoch == self.epoch
    }

    /// Makes the route of a connection small. `full` counts the lists that had no room.
    pub fn shrink(&mut self, route: &Route, flow: &Flow, full: &mut u64) -> Path {
        let hop = match route {
            Route { broadcast: true, .. } => BROADCAST,
            Route { next_hop, avoids: false, .. } if *next_hop == flow.remote => DIRECT,
            Route { next_hop, avoids, .. } => self.listed((*next_hop, *avoids), full),
        };
        let link_mtu = u16::try_from(route.link_mtu).unwrap_or(u16::MAX);
        Path { epoch: self.epoch, link_mtu, known: PathMtu::UNKNOWN, iface: route.iface, hop }
    }

    /// The route that a current path was made of.
    #[inline]
    pub fn route(&self, path: &Path, flow: &Flow) -> Route {
        let listed = usize::from(path.hop.get()).checked_sub(LISTED);
        let listed = listed.and_then(|at| self.next_hops.get(at).copied());
        let (next_hop, avoids) = listed.unwrap_or((flow.remote, false));
        Route {
            iface: path.iface,
            next_hop,
            src: flow.local,
            mtu: path.mtu(),
            link_mtu: path.link_mtu.into(),
            needs_fragments: path.known.needs_fragments(),
            generation: self.generation,
            broadcast: path.hop == BROADCAST,
            avoids,
        }
    }

    fn listed(&mut self, next_hop: (IpAddr, bool), full: &mut u64) -> NonZeroU16 {
        let at = self.next_hops.iter().position(|known| *known == next_hop).unwrap_or_else(|| {
            if self.next_hops.len() >= NEXT_HOPS_MAX {
                *full += 1;
                self.begin();
            }
            self.next_hops.push(next_hop);
            self.next_hops.len() - 1
        });
        NonZeroU16::new((LISTED + at) as u16).expect("the list is short")
    }

    fn begin(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.next_hops.clear();
    }
}

const _: () = assert!(LISTED + NEXT_HOPS_MAX <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        Flow {
            local: IpAddr::from([10, 0, 0, 1]),
            remote: IpAddr::from([10, 9, 0, 2]),
            local_port: 1,
            remote_port: 2,
        }
    }

    fn route(next_hop: IpAddr, broadcast: bool) -> Route {
        let src = flow().local;
        Route {
            iface: IfaceId(3),
            next_hop,
            src,
            mtu: 1400,
            link_mtu: 1400,
            needs_fragments: false,
            generation: 7,
            broadcast,
            avoids: false,
        }
    }

    #[test]
    fn comes_back_as_it_was() {
        let mut paths = Paths::default();
        paths.follow(7);
        let routers = (0..3).map(|n| route(IpAddr::from([10, 0, 0, n]), false));
        let avoids = [flow().remote, IpAddr::from([10, 0, 0, 1])]
            .map(|hop| Route { avoids: true, ..route(hop, false) });
        let direct = [route(flow().remote, false), route(flow().remote, true)];
        for route in routers.chain(direct).chain(avoids) {
            let path = paths.shrink(&route, &flow(), &mut 0);
            assert!(paths.is_current(&path));
            assert_eq!(paths.route(&path, &flow()), route);
        }
        assert_eq!(paths.next_hops.len(), 5);
    }

    #[test]
    fn what_routers_say_lowers_until_it_is_forgotten() {
        let mut paths = Paths::default();
        let mut path = paths.shrink(&route(flow().remote, false), &flow(), &mut 0);
        let said = PathMtu::reported;
        assert!(!path.lower(said(1400)) && path.lower(said(1300)) && !path.lower(said(1350)));
        assert!(path.lower(said(1200)));
        assert!(!path.forget(said(1300)));
        assert_eq!(path.mtu(), 1200);
        let mut again = paths.shrink(&route(flow().remote, false), &flow(), &mut 0);
        again.inherit(&path);
        assert_eq!(again.mtu(), 1200);
        assert!(path.lower(said(0)));
        let route = paths.route(&path, &flow());
        assert_eq!((route.mtu, route.link_mtu, route.needs_fragments), (552, 1400, true));
        assert!(path.forget(said(0)));
        assert_eq!(path.mtu(), 1400);
        again.inherit(&Path { iface: IfaceId(4), ..path });
        assert_eq!(again.mtu(), 1200, "another link's is nothing to this one");
    }

    #[test]
    fn a_change_of_the_tables_voids_it() {
        let mut paths = Paths::default();
        paths.follow(7);
        let path = paths.shrink(&route(IpAddr::from([10, 0, 0, 9]), false), &flow(), &mut 0);
        paths.follow(7);
        assert!(paths.is_current(&path));
        paths.follow(8);
        assert!(!paths.is_current(&path) && paths.next_hops.is_empty());
    }

    #[test]
    fn a_full_list_begins_anew() {
        let mut paths = Paths::default();
        let hop = |n: usize| route(IpAddr::from((n as u32 + 1).to_be_bytes()), false);
        let mut full = 0;
        let first = paths.shrink(&hop(0), &flow(), &mut full);
        for n in 1..NEXT_HOPS_MAX {
            let path = paths.shrink(&hop(n), &flow(), &mut full);
            assert!(paths.is_current(&path));
        }
        assert!(paths.is_current(&first));
        let last = paths.shrink(&hop(NEXT_HOPS_MAX), &flow(), &mut full);
        assert!(!paths.is_current(&first) && paths.is_current(&last));
        assert_eq!((full, paths.next_hops.len()), (1, 1));
        assert_eq!(paths.route(&last, &flow()).next_hop, hop(NEXT_HOPS_MAX).next_hop);
    }
}
