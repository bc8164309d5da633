//! IPv6 autoconfiguration: link-local addresses, addresses and routes from router advertisements
//! (RFC 4862), interface identifiers (RFC 7217), and duplicate address detection.

use core::hash::{BuildHasher, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use towpath_pool::{LinkType, Pool};
use towpath_tcp::Instant;
use towpath_wire::ndp::{self, Message, NdpOption, Preference, PrefixInfo, RouterAdvert};
use towpath_wire::{MacAddr, Prefix, addr, ipv6};

use super::learnt::{Destination, Learning, lifetime_end};
use super::schedule::Task;
use super::tables::Control;
use crate::net::iface::{Address, AddressState, IfaceId, Origin};
use crate::net::limits::{
    ADDRESSES_MAX, DAD_RETRIES_MAX, DAD_TRANSMITS, RETRANS_TIME_MAX, RETRANS_TIME_MIN,
    ROUTER_SOLICIT_DELAY, ROUTER_SOLICIT_INTERVAL, ROUTER_SOLICITS_MAX,
};
use crate::net::received::Conflict;
use crate::net::route::{RouteEntry, RouteKind};

/// Minimum to which a router advertisement can shorten the remaining valid lifetime of an address
/// (RFC 4862 §5.5.3 e).
const VALID_MIN: Duration = Duration::from_secs(2 * 60 * 60);
/// Maximum reachable time that a router may advertise, in milliseconds: one hour (RFC 4861 §6.2.1).
const REACHABLE_MS_MAX: u32 = 3_600_000;

/// Times at which the lifetimes of an address end; `None` if they never end.
#[derive(Debug, Clone, Copy, Default)]
struct Lifetimes {
    preferred: Option<Instant>,
    valid: Option<Instant>,
}

/// A route that a router has advertised. Its destination is reached through this router, or is on
/// the link itself.
#[derive(Debug, Clone, Copy)]
struct AdvertisedRoute {
    prefix: Prefix,
    router: Option<Ipv6Addr>,
    /// Lifetime of the route in seconds; 0 removes the route.
    lifetime_s: u32,
    metric: u32,
}

impl Control {
    /// Generates the link-local address of an interface if it needs one, and starts to solicit
    /// routers.
    pub(super) fn start_discovery(&mut self, now: Instant, iface: IfaceId) {
        let interface = &self.ifaces[iface.index()];
        let has_v6 = interface.addresses.iter().any(|a| a.addr().is_ipv6());
        let slaac = interface.discovery.slaac;
        if interface.link != LinkType::Ethernet || !(slaac || has_v6) {
            return;
        }
        let has_link_local = interface.addresses.iter().any(|a| addr::is_link_local(a.addr()));
        if !has_link_local {
            self.make_address(now, iface, link_local_prefix(), Lifetimes::default(), 0);
        }
        if slaac {
            let at = now + self.random.time_below(ROUTER_SOLICIT_DELAY);
            self.schedule.add(at, iface, Task::SolicitRouters { left: ROUTER_SOLICITS_MAX });
        }
    }

    /// Adds an address to an interface, joins its solicited-node group, and schedules duplicate
    /// address detection and announcements.
    pub(super) fn insert_address(&mut self, now: Instant, iface: IfaceId, address: Address) {
        let addr = address.addr();
        self.ifaces[iface.index()].addresses.push(address);
        self.on_addresses_changed();
        let interface = &self.ifaces[iface.index()];
        if interface.link != LinkType::Ethernet {
            return;
        }
        match addr {
            IpAddr::V4(v4) => self.schedule.add(now, iface, Task::Announce(v4)),
            IpAddr::V6(v6) => {
                // Receive packets to the address and group at once. Delay only the first messages:
                // the group report and the solicitation.
                //= https://www.rfc-editor.org/rfc/rfc4862#section-5.4.2
                //# If the Neighbor Solicitation is going to be the first message sent
                //# from an interface after interface (re)initialization, the node SHOULD
                //# delay joining the solicited-node multicast address by a random delay
                //# between 0 and MAX_RTR_SOLICITATION_DELAY
                //= https://www.rfc-editor.org/rfc/rfc4862#section-5.1
                //# A value of zero indicates that Duplicate Address Detection is not
                //# performed on tentative addresses.
                // Skip detection with `any_address`, because such an interface accepts every
                // address. Then it can send neighbour solicitations at once.
                let (at, left) = match interface.any_address {
                    true => (now, 0),
                    false => (now + self.random.time_below(ROUTER_SOLICIT_DELAY), DAD_TRANSMITS),
                };
                self.join_own_group(at, iface, addr::solicited_node(v6).into());
                self.schedule.add(at, iface, Task::Detect { addr: v6, left });
            }
        }
    }

    /// Requests a new snapshot, and invalidates cached routes, because they may depend on
    /// addresses.
    fn on_addresses_changed(&mut self) {
        self.changed.addresses = true;
        self.routes.touch();
    }

    /// Removes an address from an interface, with its multicast group and tasks.
    pub(super) fn forget_address(&mut self, now: Instant, iface: IfaceId, addr: IpAddr) {
        if self.ifaces[iface.index()].addresses.remove(addr) {
            self.conflicts_told.remove(&(iface, addr));
            self.stop_using(now, iface, addr);
        }
    }

    /// Leaves the solicited-node multicast group of an address that was removed or is a duplicate,
    /// and cancels its tasks.
    fn stop_using(&mut self, now: Instant, iface: IfaceId, addr: IpAddr) {
        self.on_addresses_changed();
        match addr {
            IpAddr::V4(v4) => self.schedule.cancel(iface, |task| *task == Task::Announce(v4)),
            IpAddr::V6(v6) => {
                self.leave_group(now, iface, addr::solicited_node(v6).into(), None);
                let ours = |task: &Task| matches!(task, Task::Detect { addr, .. } if *addr == v6);
                self.schedule.cancel(iface, ours);
            }
        }
    }

    pub(super) fn announce(&mut self, iface: IfaceId, addr: Ipv4Addr, pool: &mut Pool) {
        if self.ifaces[iface.index()].address(addr.into()).is_some() {
            //= https://www.rfc-editor.org/rfc/rfc5227#section-2.1
            //= type=exception
            //= reason=A run would start seconds late; the address is used at once, and a conflict told
            //# Before beginning to use an IPv4 address (whether received from manual
            //# configuration, DHCP, or some other means), a host implementing this
            //# specification MUST test to see if the address is already in use, by
            //# broadcasting ARP Probe packets.
            let interface = &self.ifaces[iface.index()];
            self.orders.push_back(interface.arp_probe(addr, pool));
            self.orders.push_back(interface.arp_announcement(addr, pool));
        }
    }

    /// Continues duplicate address detection: sends another solicitation, or ends the detection and
    /// assigns the address.
    pub(super) fn detect(
        &mut self,
        now: Instant,
        iface: IfaceId,
        addr: Ipv6Addr,
        left: u8,
        pool: &mut Pool,
    ) {
        if left > 0 {
            let solicit = Message::NeighborSolicit { target: addr, source_ll: None };
            let (src, dst) = (Ipv6Addr::UNSPECIFIED, addr::solicited_node(addr));
            let interface = &self.ifaces[iface.index()];
            self.orders.push_back(interface.ndp(src, dst, &solicit, None, pool));
            //= https://www.rfc-editor.org/rfc/rfc4862#section-5.1
            //# For autoconfiguration purposes, RetransTimer
            //# specifies the delay between consecutive Neighbor Solicitation
            //# transmissions performed during Duplicate Address Detection (if
            //# DupAddrDetectTransmits is greater than 1), as well as the time a
            //# node waits after sending the last Neighbor Solicitation before
            //# ending the Duplicate Address Detection process.
            let at = now + self.neighbors.retrans_time(&(iface, addr.into()));
            self.schedule.add(at, iface, Task::Detect { addr, left: left - 1 });
            return;
        }
        let Some(address) = self.ifaces[iface.index()].address_mut(addr.into()) else { return };
        address.state = AddressState::Preferred;
        self.on_addresses_changed();
        if addr.is_unicast_link_local() {
            // Report the multicast groups again, because routers ignore reports from the address
            // `::` (RFC 3590 §4).
            self.schedule.add(now, iface, Task::AnswerAll { ipv6: true });
        }
        for solicit in self.neighbors.ask_again(now, iface) {
            self.solicit(solicit, pool);
        }
    }

    /// Stops using an address, because duplicate address detection found that another host uses the
    /// address. A static address stays in the list, but is not used. `mac` is the MAC address of
    /// the host with the same address, if known.
    pub(super) fn on_duplicate(
        &mut self,
        now: Instant,
        iface: IfaceId,
        addr: Ipv6Addr,
        mac: Option<MacAddr>,
    ) {
        let Some(address) = self.ifaces[iface.index()].address_mut(addr.into()) else { return };
        let address = match address.origin {
            Origin::Static => {
                address.state = AddressState::DadFailed;
                let address = *address;
                self.stop_using(now, iface, addr.into());
                self.note_conflict(Conflict { iface, addr: addr.into(), mac, is_given_up: true });
                address
            }
            _ => {
                let address = *address;
                self.forget_address(now, iface, addr.into());
                address
            }
        };
        self.counters.duplicate_addresses += 1;
        //= https://www.rfc-editor.org/rfc/rfc7217#section-6
        //# Hosts SHOULD introduce a random delay between 0 and IDGEN_DELAY
        //# seconds (see Section 7) before trying a new tentative address
        let generated = address.origin != Origin::Static;
        if generated && address.dad_count < DAD_RETRIES_MAX {
            let until =
                Lifetimes { preferred: address.preferred_until, valid: address.valid_until };
            self.make_address(now, iface, address.prefix.trunc(), until, address.dad_count + 1);
        }
    }

    /// Generates an address in a /64 prefix, and adds it as tentative.
    fn make_address(
        &mut self,
        now: Instant,
        iface: IfaceId,
        prefix: Prefix,
        until: Lifetimes,
        dad_count: u8,
    ) {
        let iid = self.interface_id(iface, prefix, dad_count);
        let Some(made) = addr::autoconfigured(&prefix, iid) else { return };
        let Some(prefix) = Prefix::new(made.into(), prefix.len()) else { return };
        let link_local = made.is_unicast_link_local();
        let address = Address {
            prefix,
            state: AddressState::Tentative,
            origin: if link_local { Origin::Link } else { Origin::Router },
            preferred_until: until.preferred,
            valid_until: until.valid,
            dad_count,
        };
        if self.ifaces[iface.index()].address(made.into()).is_none() {
            self.insert_address(now, iface, address);
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7217#section-5
    //# RID = F(Prefix, Net_Iface, Network_ID, DAD_Counter, secret_key)
    fn interface_id(&self, iface: IfaceId, prefix: Prefix, dad_count: u8) -> u64 {
        let mac = self.ifaces[iface.index()].mac;
        let network = match prefix.network() {
            IpAddr::V6(v6) => v6.to_bits(),
            IpAddr::V4(_) => 0,
        };
        // If the hash is a reserved interface identifier (RFC 5453), which is rare, try the next
        // one.
        (0u8..=255)
            .find_map(|attempt| {
                let mut hasher = self.interface_ids.build_hasher();
                hasher.write_u128(network);
                hasher.write(&mac.0);
                hasher.write(&[dad_count, attempt]);
                addr::stable_iid(hasher.finish())
            })
            .unwrap_or_else(|| mac.eui64())
    }

    pub(super) fn solicit_routers(
        &mut self,
        now: Instant,
        iface: IfaceId,
        left: u8,
        pool: &mut Pool,
    ) {
        let interface = &self.ifaces[iface.index()];
        let link_local = interface.addresses.iter().find_map(|a| match a.addr() {
            // Skip addresses in state optimistic: a router solicitation from one must not carry the
            // Source Link-Layer Address option (RFC 4429 section 3.2).
            IpAddr::V6(v6) if v6.is_unicast_link_local() && a.is_assigned() => Some(v6),
            _ => None,
        });
        let source_ll = link_local.map(|_| interface.mac);
        let src = link_local.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let message = Message::RouterSolicit { source_ll };
        self.orders.push_back(interface.ndp(src, addr::ALL_ROUTERS, &message, None, pool));
        if left > 1 && !self.ifaces[iface.index()].discovery.found_router {
            let at = now + ROUTER_SOLICIT_INTERVAL;
            self.schedule.add(at, iface, Task::SolicitRouters { left: left - 1 });
        }
    }

    /// Handles a router advertisement; `bytes` is the whole ICMPv6 message.
    pub(super) fn on_router_advert(
        &mut self,
        now: Instant,
        iface: IfaceId,
        router: Ipv6Addr,
        advert: &RouterAdvert,
        bytes: &[u8],
        pool: &mut Pool,
    ) {
        if advert.lifetime_s > 0 {
            self.end_solicitation(iface);
        }
        self.take_link_parameters(iface, advert);
        let key = (iface, IpAddr::V6(router));
        if let Some(mac) = advert.source_ll {
            self.neighbors.on_question(now, key, mac, true);
        }
        //= https://www.rfc-editor.org/rfc/rfc4861#section-6.3.4
        //# If no Source Link-Layer Address is included, but a corresponding Neighbor
        //# Cache entry exists, its IsRouter flag MUST be set to TRUE.
        self.neighbors.set_router(&key, true);
        self.heard_from(now, key, pool);
        let lifetime = u32::from(advert.lifetime_s);
        let metric = metric_of(advert.preference);
        let default = AdvertisedRoute {
            prefix: Prefix::ALL_V6,
            router: Some(router),
            lifetime_s: lifetime,
            metric,
        };
        self.router_route(now, iface, default);
        for option in ndp::options(bytes).flatten() {
            match option {
                NdpOption::PrefixInfo(info) => self.on_prefix(now, iface, &info),
                NdpOption::RouteInfo(info) => {
                    if let Some(prefix) = Prefix::new(info.prefix.into(), info.len) {
                        let route = AdvertisedRoute {
                            prefix,
                            router: Some(router),
                            lifetime_s: info.lifetime_s,
                            metric: metric_of(info.preference),
                        };
                        self.router_route(now, iface, route);
                    }
                }
                _ => {}
            }
        }
        self.watch_lifetimes(iface);
    }

    /// Ends router solicitation after a default router was found. Routers with lifetime 0 do not
    /// end it, because they are not default routers and may answer first.
    //= https://www.rfc-editor.org/rfc/rfc4861#section-6.3.7
    //# Once the host sends a Router Solicitation, and receives a valid
    //# Router Advertisement with a non-zero Router Lifetime, the host MUST
    //# desist from sending additional solicitations on that interface
    //= https://www.rfc-editor.org/rfc/rfc4861#section-6.3.7
    //# Moreover, a host SHOULD send at least one solicitation
    //# in the case where an advertisement is received prior to having sent a
    //# solicitation.
    fn end_solicitation(&mut self, iface: IfaceId) {
        self.ifaces[iface.index()].discovery.found_router = true;
        let is_repeated = |left: u8| left < ROUTER_SOLICITS_MAX;
        self.schedule.cancel(
            iface,
            |task| matches!(task, Task::SolicitRouters { left } if is_repeated(*left)),
        );
    }

    fn take_link_parameters(&mut self, iface: IfaceId, advert: &RouterAdvert) {
        let interface = &mut self.ifaces[iface.index()];
        if advert.hop_limit != 0 {
            self.changed.links |= interface.discovery.hop_limit != advert.hop_limit;
            interface.discovery.hop_limit = advert.hop_limit;
        }
        if (1..=REACHABLE_MS_MAX).contains(&advert.reachable_ms) {
            interface.discovery.reachable = Duration::from_millis(advert.reachable_ms.into());
        }
        //= https://www.rfc-editor.org/rfc/rfc4861#section-6.3.4
        //# The RetransTimer variable SHOULD be copied from the Retrans Timer
        //# field, if the received value is non-zero.
        if advert.retrans_ms != 0 {
            let time = Duration::from_millis(advert.retrans_ms.into());
            self.neighbors.set_retrans_time(iface, time.clamp(RETRANS_TIME_MIN, RETRANS_TIME_MAX));
        }
        let possible = ipv6::MTU_MIN as u32..=interface.mtu;
        if let Some(mtu) = advert.mtu.filter(|mtu| possible.contains(mtu))
            && mtu != interface.mtu_v6
        {
            interface.mtu_v6 = mtu;
            self.changed.links = true;
            self.routes.touch();
        }
    }

    /// Adds or renews a route that a router advertised. Removes the route if its advertised
    /// lifetime is 0.
    fn router_route(&mut self, now: Instant, iface: IfaceId, route: AdvertisedRoute) {
        let AdvertisedRoute { prefix, router, lifetime_s, metric } = route;
        let prefix = prefix.trunc();
        let learnt = &mut self.ifaces[iface.index()].discovery.learnt;
        if lifetime_s == 0 {
            learnt.forget((prefix, router));
            return self.end_routes(iface, vec![(prefix, router)]);
        }
        let expires = lifetime_end(now, lifetime_s);
        let failed = |router: Ipv6Addr| self.routes.has_failed(&(iface, router.into()));
        match learnt.learn(now, (prefix, router), expires, failed) {
            Learning::Known => {}
            Learning::Displaced(gone) => {
                let displaced = match router {
                    Some(_) => &mut self.counters.routers_displaced,
                    None => &mut self.counters.prefixes_displaced,
                };
                *displaced += 1;
                self.end_routes(iface, gone);
            }
            Learning::Refused => {
                self.counters.router_routes_refused += 1;
                return;
            }
        }
        let (next_hop, origin) = (router.map(IpAddr::V6), Origin::Router);
        if !self.routes.add(RouteEntry {
            prefix,
            next_hop,
            iface,
            metric,
            origin,
            kind: RouteKind::Unicast,
            mtu: None,
            weight: 1,
        }) {
            self.ifaces[iface.index()].discovery.learnt.forget((prefix, router));
            self.counters.router_routes_refused += 1;
        }
    }

    /// Removes all routes that a router has advertised, because the host has stopped being a
    /// router.
    pub(super) fn forget_router(&mut self, iface: IfaceId, router: Ipv6Addr) {
        let gone = self.ifaces[iface.index()].discovery.learnt.forget_router(router);
        self.end_routes(iface, gone);
    }

    /// Removes the given advertised routes from the routing table.
    fn end_routes(&mut self, iface: IfaceId, gone: Vec<Destination>) {
        for (prefix, router) in gone {
            let next_hop = router.map(IpAddr::V6);
            self.routes.remove(prefix, |route| {
                route.iface == iface && route.origin == Origin::Router && route.next_hop == next_hop
            });
        }
    }

    fn on_prefix(&mut self, now: Instant, iface: IfaceId, info: &PrefixInfo) {
        let Some(prefix) = Prefix::new(info.prefix.into(), info.len) else { return };
        let prefix = prefix.trunc();
        //= https://www.rfc-editor.org/rfc/rfc4862#section-5.5.3
        //# b)  If the prefix is the link-local prefix, silently ignore the Prefix
        //# Information option.
        if addr::is_link_local(prefix.addr()) || info.prefix.is_multicast() {
            return;
        }
        if info.on_link {
            let route =
                AdvertisedRoute { prefix, router: None, lifetime_s: info.valid_s, metric: 0 };
            self.router_route(now, iface, route);
        }
        if !info.autonomous || info.preferred_s > info.valid_s {
            return;
        }
        let interface = &mut self.ifaces[iface.index()];
        let made = |a: &&Address| a.origin == Origin::Router && a.prefix.trunc() == prefix;
        if let Some(known) = interface.addresses.iter().find(made).map(Address::addr) {
            let address = interface.address_mut(known);
            // A new lifetime alone needs no new snapshot, because snapshots do not contain
            // lifetimes.
            if address.is_some_and(|address| renew(address, now, info)) {
                self.on_addresses_changed();
            }
            return;
        }
        if info.valid_s == 0 || prefix.len() != 64 {
            return;
        }
        if interface.addresses.len() >= ADDRESSES_MAX {
            self.counters.addresses_refused += 1;
        } else {
            let until = Lifetimes {
                preferred: lifetime_end(now, info.preferred_s),
                valid: lifetime_end(now, info.valid_s),
            };
            self.make_address(now, iface, prefix, until, 0);
        }
    }

    /// Sets the preferred and the valid lifetime of an address.
    pub(super) fn set_lifetime(
        &mut self,
        now: Instant,
        iface: IfaceId,
        addr: IpAddr,
        lifetime: Option<Duration>,
    ) {
        let addresses = &mut self.ifaces[iface.index()].addresses;
        let Some(address) = addresses.find_mut(addr) else { return };
        let until = lifetime.map(|lifetime| now + lifetime);
        (address.preferred_until, address.valid_until) = (until, until);
        if address.state == AddressState::Deprecated {
            address.state = AddressState::Preferred;
        }
        self.on_addresses_changed();
        self.watch_lifetimes(iface);
    }

    /// Schedules [`end_lifetimes`](Self::end_lifetimes) for the next time at which a lifetime ends.
    fn watch_lifetimes(&mut self, iface: IfaceId) {
        self.schedule.cancel(iface, |task| *task == Task::Lifetimes);
        let addresses = self.ifaces[iface.index()].addresses.iter().flat_map(|a| {
            let preferred = a.preferred_until.filter(|_| a.state != AddressState::Deprecated);
            [preferred, a.valid_until]
        });
        let learnt = self.ifaces[iface.index()].discovery.learnt.next_end();
        if let Some(next) = addresses.flatten().chain(learnt).min() {
            self.schedule.add(next, iface, Task::Lifetimes);
        }
    }

    /// Deprecates addresses whose preferred lifetime has ended. Removes addresses, routes and
    /// prefixes whose valid lifetime has ended.
    pub(super) fn end_lifetimes(&mut self, now: Instant, iface: IfaceId) {
        let over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let gone = self.ifaces[iface.index()].discovery.learnt.expire(now);
        self.end_routes(iface, gone);
        let addresses = &mut self.ifaces[iface.index()].addresses;
        let mut deprecated = false;
        let ended: Vec<_> = addresses.iter().filter(|a| over(a.valid_until)).copied().collect();
        for address in addresses.iter_mut() {
            if !over(address.preferred_until) {
                continue;
            }
            match address.state {
                AddressState::Preferred => {
                    address.state = AddressState::Deprecated;
                    deprecated = true;
                }
                AddressState::Deprecated | AddressState::DadFailed => {}
                // Duplicate address detection of the address is still running, so check the
                // preferred lifetime again later.
                AddressState::Tentative | AddressState::Optimistic => {
                    let key = (iface, address.addr());
                    address.preferred_until = Some(now + self.neighbors.retrans_time(&key));
                }
            }
        }
        if deprecated {
            self.on_addresses_changed();
        }
        for address in ended {
            match address.origin {
                // Remove the address together with the route to its network.
                Origin::Static => {
                    self.take_address(now, iface, address.addr());
                }
                Origin::Link | Origin::Router | Origin::Kernel(_) => {
                    self.forget_address(now, iface, address.addr());
                }
            }
        }
        self.watch_lifetimes(iface);
    }
}

/// Applies the lifetimes of a new advertisement. Returns true if the address becomes preferred
/// again.
//= https://www.rfc-editor.org/rfc/rfc4862#section-5.5.3
//# 1.  If the received Valid Lifetime is greater than 2 hours or
//# greater than RemainingLifetime, set the valid lifetime of the
//# corresponding address to the advertised Valid Lifetime.
//# 2.  If RemainingLifetime is less than or equal to 2 hours, ignore
//# the Prefix Information option with regards to the valid
//# lifetime
//# 3.  Otherwise, reset the valid lifetime of the corresponding
//# address to 2 hours.
fn renew(address: &mut Address, now: Instant, info: &PrefixInfo) -> bool {
    let offered = lifetime_end(now, info.valid_s);
    let least = now + VALID_MIN;
    let later = |a: Option<Instant>, b: Instant| a.is_none_or(|a| a > b);
    let extends = match address.valid_until {
        Some(current) => later(offered, current),
        None => offered.is_none(),
    };
    if later(offered, least) || extends {
        address.valid_until = offered;
    } else if later(address.valid_until, least) {
        address.valid_until = Some(least);
    }
    address.preferred_until = lifetime_end(now, info.preferred_s);
    let revived = address.state == AddressState::Deprecated && info.preferred_s > 0;
    if revived {
        address.state = AddressState::Preferred;
    }
    revived
}

/// Returns the metric of a route for a router preference (RFC 4191 §2.1). Routes of the operator
/// have smaller metrics, so they take precedence.
fn metric_of(preference: Preference) -> u32 {
    match preference {
        Preference::High => 512,
        Preference::Medium => 1024,
        Preference::Low => 2048,
    }
}

fn link_local_prefix() -> Prefix {
    Prefix::new(addr::link_local(0).into(), 64).expect("64 is at most 128")
}
