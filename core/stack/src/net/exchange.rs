//! What those that send to next hops and those that know neighbours tell each other: [`Notice`] one way, [`News`] the
//! other. Nothing else passes between `next_hop` and `neighbor`.

use core::net::IpAddr;

use towpath_pool::{LinkType, Pool};
use towpath_tcp::Instant;

use super::iface::IfaceId;
use super::layer::Net;
use super::limits::ERRORS_MAX;
use super::neighbor::{Solicit, reachable_time};
use super::next_hop::{Epoch, HopId, HopKey, LinkHeader, News, Notice, Waiting, group_mac};
use super::route::{Route, RouteError};
use crate::drop::DropReason;

impl Net {
    /// The same as [`route`](Self::route), for who keeps it: with the place of its next hop.
    pub fn route_to_keep(
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

    /// The address of a next hop; `None` when its place was given to another one.
    #[inline]
    pub(crate) fn next_hop(&self, hop: HopId) -> Option<IpAddr> {
        self.next_hops.key(hop).map(|(_, addr)| addr)
    }

    /// When it is, for who keeps routes.
    pub(crate) fn epoch(&self) -> Epoch {
        self.next_hops.epoch()
    }

    /// Routes that were found earlier may be wrong.
    pub(crate) fn begin_epoch(&mut self) -> Epoch {
        self.next_hops.begin_epoch()
    }

    /// Whether `epoch` is not before `since`.
    #[inline]
    pub(crate) fn is_since(&self, epoch: Epoch, since: Epoch) -> bool {
        self.next_hops.is_since(epoch, since)
    }

    /// The transport heard from beyond a next hop: it need not be probed (RFC 4861 §7.3.1).
    #[inline]
    pub(crate) fn confirm_reachable(&mut self, now: Instant, hop: HopId) {
        self.next_hops.confirm(now, hop);
    }

    /// Until when a neighbour confirmed now counts as reachable.
    pub(super) fn reachable_until(&mut self, now: Instant, iface: IfaceId) -> Instant {
        let base = self.ifaces[iface.index()].discovery.reachable;
        now + reachable_time(base, self.random.below(1024))
    }

    /// Passes on what the two sides have to tell each other. Each thing told takes one look-up, and there are no more
    /// of them than of packets before.
    pub(super) fn exchange(&mut self, now: Instant, pool: &mut Pool) {
        self.publish();
        loop {
            while let Some(notice) = self.next_hops.take_notice() {
                self.on_notice(now, notice, pool);
            }
            let Some(news) = self.neighbors.take_news() else { break };
            self.on_news(news, pool);
        }
        self.publish();
        while let Some((iface, packet, reason)) = self.next_hops.take_gone() {
            self.drop(iface, packet, reason, pool);
        }
        self.counters.neighbors_displaced += self.neighbors.take_displaced();
        self.counters.next_hops_displaced += self.next_hops.take_displaced();
    }

    fn on_notice(&mut self, now: Instant, notice: Notice, pool: &mut Pool) {
        match notice {
            Notice::Used(key) => {
                if self.neighbors.on_used(now, key) {
                    self.solicit(now, Solicit { key, to: None }, pool);
                }
            }
            Notice::Confirmed(key) => {
                let until = self.reachable_until(now, key.0);
                self.neighbors.confirm(now, key, until);
            }
            Notice::Avoided(key) => {
                if self.routes.take_probe(now, &key) {
                    self.probe_router(now, key, pool);
                }
            }
        }
    }

    fn on_news(&mut self, news: News, pool: &mut Pool) {
        match news {
            News::Known { key, mac, tell_at } => {
                let (iface, addr) = key;
                let link = LinkHeader::ethernet(self.link(iface).mac, mac, addr);
                for Waiting { packet, mtu } in self.next_hops.on_known(key, link, tell_at) {
                    self.transmit(iface, link, packet, mtu, pool);
                }
            }
            News::Failed(key) => self.on_next_hop_failed(key, pool),
            News::Forgotten(key) => {
                for Waiting { packet, .. } in self.next_hops.on_lost(key) {
                    self.drop(key.0, packet, DropReason::NeighborQueueFull, pool);
                }
            }
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc1122#section-2.3.2.1
    //# If the address resolution fails, it SHOULD be reported
    fn on_next_hop_failed(&mut self, key: HopKey, pool: &mut Pool) {
        let iface = key.0;
        for Waiting { packet, .. } in self.next_hops.on_lost(key) {
            let error = self.error_about_own(iface, &packet);
            self.errors.extend(error.filter(|_| self.errors.len() < ERRORS_MAX));
            self.drop(iface, packet, DropReason::NeighborUnreachable, pool);
        }
    }

    /// Whether `iface` has a link with neighbours to discover.
    pub(super) fn has_neighbors(&self, iface: IfaceId) -> bool {
        self.link(iface).kind == LinkType::Ethernet
    }
}
