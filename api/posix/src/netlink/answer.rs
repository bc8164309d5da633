//! Answers requests of NETLINK_ROUTE (rtnetlink(7)).
//!
//! Programs can read the stack's configuration, but not change it: RTM_NEW, RTM_DEL and RTM_SET
//! fail with EPERM, as for a user without privileges. Interfaces, addresses, routes, neighbours and
//! rules can be read. Other requests fail with EOPNOTSUPP, for example those about queueing
//! disciplines.

use std::net::IpAddr;

use towpath_shm::control::{Interface, NeighborRecord, Route, Traffic, route_origin};
use towpath_shm::layout::RawAddr;

use super::codec::{NetlinkMessages, attribute, requests, u32_at};
use super::out::{AnswerBuffer, Outcome};
use super::rules;
use crate::Result;
use crate::interface::{broadcast_address, by_family, hardware_address, hardware_type, name};
use crate::listing::ListedCounters;

/// Tables of the stack from which rtnetlink(7) requests are answered.
#[derive(Clone, Copy)]
pub(super) struct StackTables<'a> {
    /// Interfaces. An interface with several addresses has one entry for each address.
    pub(super) interfaces: &'a [Interface],
    pub(super) routes: &'a [Route],
    pub(super) neighbors: &'a [NeighborRecord],
    /// Traffic counters of the interfaces.
    pub(super) counted: &'a ListedCounters,
}

/// Answers all rtnetlink(7) requests in `bytes`. `port` is the port ID of the socket that sent
/// them. `is_strict` is true if NETLINK_GET_STRICT_CHK is set on this socket.
pub(super) fn answer(
    bytes: &[u8],
    port: u32,
    is_strict: bool,
    stack: StackTables<'_>,
    send: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for request in requests(bytes) {
        let mut out = AnswerBuffer::new(send, request, port);
        let kind = i32::from(request.kind);
        if kind < NLMSG_MIN_TYPE {
            // Netlink control messages (type below NLMSG_MIN_TYPE) are not requests, but are
            // acknowledged if that is requested.
            out.end(Ok(()))?;
            continue;
        }
        let outcome = match request.kind {
            libc::RTM_GETLINK => links(&mut out, stack)?,
            libc::RTM_GETADDR => addresses(&mut out, stack, is_strict)?,
            libc::RTM_GETROUTE if out.is_dump() => routes(&mut out, stack)?,
            libc::RTM_GETROUTE => route_to(&mut out, stack)?,
            libc::RTM_GETNEIGH if out.is_dump() => neighbors(&mut out, stack)?,
            libc::RTM_GETNEIGH => one_neighbor(&mut out, stack)?,
            libc::RTM_GETRULE if out.is_dump() => rules::all(&mut out)?,
            // The two lowest bits of a message type are the operation; 2 means GET.
            kind if kind & 3 == 2 => Err(libc::EOPNOTSUPP),
            _ => Err(libc::EPERM),
        };
        out.end(outcome)?;
    }
    Ok(())
}

/// Answers RTM_GETLINK with all interfaces, or with the one of the requested index or name.
fn links(out: &mut AnswerBuffer<'_>, stack: StackTables<'_>) -> Result<Outcome> {
    let wanted = out.number(4);
    let named = [libc::IFLA_IFNAME, IFLA_ALT_IFNAME]
        .iter()
        .find_map(|kind| out.attribute(IFINFO_LEN, *kind))
        .map(|text| text.split(|byte| *byte == 0).next().unwrap_or_default().to_owned_name());
    let dump = out.is_dump();
    let mut found = dump;
    let mut last = 0;
    for interface in stack.interfaces {
        let fits = (wanted == 0 || interface.index == wanted)
            && named.is_none_or(|named| interface.name == named)
            && (dump || wanted != 0 || named.is_some());
        // The list has an entry for each address, and those of an interface are adjacent. Skip all
        // but the first.
        if !fits || interface.index == last {
            continue;
        }
        (last, found) = (interface.index, true);
        out.begin(libc::RTM_NEWLINK)?;
        put_link(&mut out.datagram, interface, &stack.counted.of(interface.index));
    }
    Ok(if found { Ok(()) } else { Err(libc::ENODEV) })
}

fn put_link(to: &mut NetlinkMessages, interface: &Interface, traffic: &Traffic) {
    let loopback = is_loopback(interface);
    let kind = hardware_type(interface);
    let operstate = if loopback { IF_OPER_UNKNOWN } else { IF_OPER_UP };
    // Write struct ifinfomsg: family and padding, type, index, flags, change mask.
    to.put(&[libc::AF_UNSPEC as u8, 0]);
    to.put(&kind.to_ne_bytes());
    to.put(&interface.index.to_ne_bytes());
    to.put(&(interface.flags | IFF_LOWER_UP).to_ne_bytes());
    to.put(&[0; 4]);
    to.text(libc::IFLA_IFNAME, name(interface));
    to.number(libc::IFLA_TXQLEN, 1000);
    to.attribute(libc::IFLA_OPERSTATE, &[operstate]);
    to.attribute(libc::IFLA_LINKMODE, &[0]);
    to.number(libc::IFLA_MTU, interface.mtu);
    to.number(libc::IFLA_GROUP, 0);
    to.text(libc::IFLA_QDISC, b"noqueue");
    let address = hardware_address(interface);
    if !address.is_empty() {
        to.attribute(libc::IFLA_ADDRESS, address);
    }
    if interface.flags & libc::IFF_BROADCAST as u32 != 0 {
        to.attribute(libc::IFLA_BROADCAST, &[0xff; 6]);
    }
    put_traffic(to, traffic);
    to.end();
}

/// Writes the attributes IFLA_STATS64 and IFLA_STATS. Both contain the same counters: the first in
/// 64 bits, the second modulo 2³².
fn put_traffic(to: &mut NetlinkMessages, traffic: &Traffic) {
    let Traffic { rx_packets, rx_bytes, rx_dropped, tx_packets, tx_bytes, tx_dropped } = *traffic;
    // struct rtnl_link_stats64: packets, bytes, errors and drops, each received and transmitted,
    // then 16 more counters.
    let mut all = [0; LINK_STATS];
    all[..8].copy_from_slice(&[
        rx_packets, tx_packets, rx_bytes, tx_bytes, 0, 0, rx_dropped, tx_dropped,
    ]);
    let mut wide = [0; LINK_STATS * 8];
    let mut narrow = [0; LINK_STATS * 4];
    for (n, value) in all.iter().enumerate() {
        wide[8 * n..][..8].copy_from_slice(&value.to_ne_bytes());
        narrow[4 * n..][..4].copy_from_slice(&(*value as u32).to_ne_bytes());
    }
    to.attribute(libc::IFLA_STATS64, &wide);
    to.attribute(libc::IFLA_STATS, &narrow);
}

/// Answers a dump request of RTM_GETNEIGH with all neighbours, or with those of the requested
/// family or interface.
fn neighbors(out: &mut AnswerBuffer<'_>, stack: StackTables<'_>) -> Result<Outcome> {
    let family = out.family();
    let wanted = out.attribute(NDMSG_LEN, NDA_IFINDEX).and_then(|value| u32_at(value, 0));
    for neighbor in stack.neighbors {
        let fits = family.is_none_or(|family| family == i32::from(neighbor.addr.family))
            && wanted.is_none_or(|index| index == neighbor.index);
        if fits {
            out.begin(libc::RTM_NEWNEIGH)?;
            put_neighbor(&mut out.datagram, neighbor);
        }
    }
    Ok(Ok(()))
}

/// Answers RTM_GETNEIGH for one address on an interface. Makes the checks of Linux's
/// `neigh_valid_get_req` in the same order.
fn one_neighbor(out: &mut AnswerBuffer<'_>, stack: StackTables<'_>) -> Result<Outcome> {
    let body = out.request.body;
    let Some((header, attributes)) = body.split_at_checked(NDMSG_LEN) else {
        return Ok(Err(libc::EINVAL));
    };
    let &[family, pad, more_pad, last_pad, .., low, high, flags, kind] = header else {
        return Ok(Err(libc::EINVAL));
    };
    let is_plain = [pad, more_pad, last_pad, low, high, kind].iter().all(|byte| *byte == 0);
    if !is_plain || flags & !NTF_PROXY != 0 {
        return Ok(Err(libc::EINVAL));
    }
    let len = match i32::from(family) {
        libc::AF_INET => 4,
        libc::AF_INET6 => 16,
        _ => return Ok(Err(libc::EAFNOSUPPORT)),
    };
    let dst = match (attribute(attributes, libc::NDA_DST), attributes.len()) {
        (Some(dst), all) if dst.len() == len && all == 4 + len => dst,
        _ => return Ok(Err(libc::EINVAL)),
    };
    let index = out.number(4);
    let known = stack.interfaces.iter().any(|interface| interface.index == index);
    if !known {
        return Ok(Err(if index == 0 { libc::EINVAL } else { libc::ENODEV }));
    }
    let is_it = |neighbor: &&NeighborRecord| {
        neighbor.index == index
            && neighbor.addr.family == u16::from(family)
            && octets(&neighbor.addr) == dst
    };
    // Fail with ENOENT if NTF_PROXY is set, because the stack has no ARP or NDP proxy entries.
    match stack.neighbors.iter().find(is_it).filter(|_| flags == 0) {
        None => Ok(Err(libc::ENOENT)),
        Some(neighbor) => {
            out.begin(libc::RTM_NEWNEIGH)?;
            put_neighbor(&mut out.datagram, neighbor);
            Ok(Ok(()))
        }
    }
}

fn put_neighbor(to: &mut NetlinkMessages, neighbor: &NeighborRecord) {
    // Write struct ndmsg: family, padding, index, state, flags, type.
    to.put(&[neighbor.addr.family as u8, 0, 0, 0]);
    to.put(&neighbor.index.to_ne_bytes());
    to.put(&(neighbor.state as u16).to_ne_bytes());
    to.put(&[neighbor.flags as u8, libc::RTN_UNICAST]);
    to.attribute(libc::NDA_DST, octets(&neighbor.addr));
    if neighbor.known != 0 {
        to.attribute(libc::NDA_LLADDR, &neighbor.mac);
    }
    to.end();
}

/// Answers RTM_GETADDR with all addresses, or with those of the requested family. As on Linux, the
/// interface in the request is used only with NETLINK_GET_STRICT_CHK. With that option, unknown
/// fields are rejected (`inet_valid_dump_ifaddr_req`).
fn addresses(
    out: &mut AnswerBuffer<'_>,
    stack: StackTables<'_>,
    is_strict: bool,
) -> Result<Outcome> {
    if !out.is_dump() {
        return Ok(Err(libc::EOPNOTSUPP));
    }
    let (family, asked) = (out.family(), out.number(4));
    let index = if is_strict { asked } else { 0 };
    out.begin_dump();
    if is_strict {
        let is_plain =
            out.request.body.len() == IFADDR_LEN && [1, 2, 3].iter().all(|at| out.byte(*at) == 0);
        if !is_plain {
            return Ok(Err(libc::EINVAL));
        }
        if index != 0 {
            out.filtered();
            if !stack.interfaces.iter().any(|interface| interface.index == index) {
                return Ok(Err(libc::ENODEV));
            }
        }
    }
    // List one address family after the other, as Linux does (`rtnl_dump_all`).
    for interface in by_family(stack.interfaces) {
        let fits = family.is_none_or(|family| family == i32::from(interface.addr.family))
            && (index == 0 || index == interface.index);
        if fits {
            out.begin(libc::RTM_NEWADDR)?;
            put_address(&mut out.datagram, interface);
        }
    }
    Ok(Ok(()))
}

fn put_address(to: &mut NetlinkMessages, interface: &Interface) {
    let addr = &interface.addr;
    let v4 = i32::from(addr.family) == libc::AF_INET;
    // Write struct ifaddrmsg: family, prefix length, flags, scope, index.
    to.put(&[addr.family as u8, interface.prefix_len as u8, IFA_F_PERMANENT, scope(addr)]);
    to.put(&interface.index.to_ne_bytes());
    to.attribute(libc::IFA_ADDRESS, octets(addr));
    if v4 {
        to.attribute(libc::IFA_LOCAL, octets(addr));
        if let Some(broadcast) = broadcast_address(interface) {
            to.attribute(libc::IFA_BROADCAST, octets(&broadcast));
        }
        to.text(libc::IFA_LABEL, name(interface));
    }
    // Write struct ifa_cacheinfo: infinite preferred and valid lifetimes, created and changed at
    // time 0.
    let mut lifetimes = [0; 16];
    lifetimes[..8].fill(0xff);
    to.attribute(libc::IFA_CACHEINFO, &lifetimes);
    to.number(IFA_FLAGS, IFA_F_PERMANENT.into());
    to.end();
}

/// Answers a dump request of RTM_GETROUTE with all routes, or with those of the requested family,
/// table or interface.
fn routes(out: &mut AnswerBuffer<'_>, stack: StackTables<'_>) -> Result<Outcome> {
    let family = out.family();
    let table = out.attribute(RTMSG_LEN, libc::RTA_TABLE).and_then(|value| u32_at(value, 0));
    let table = table.unwrap_or(out.byte(4).into());
    let index = out.attribute(RTMSG_LEN, libc::RTA_OIF).and_then(|value| u32_at(value, 0));
    let fits = |way: &RouteRow| {
        family.is_none_or(|family| family == i32::from(way.dst.family))
            && (table == 0 || table == way.table())
            && index.is_none_or(|index| index == way.index)
    };
    for (nth, way) in ways(stack).enumerate().filter(|(_, way)| fits(way)) {
        // Equal-cost routes to one network are reported as one route with several next hops.
        let sharing = || ways(stack).filter(|other| fits(other) && way.shares_with(other));
        let before = ways(stack).take(nth).filter(|other| fits(other) && way.shares_with(other));
        let place = before.count();
        if place % NEXT_HOPS_MAX > 0 {
            continue;
        }
        out.begin(libc::RTM_NEWROUTE)?;
        match sharing().count() - place {
            0 | 1 => put_route(&mut out.datagram, stack, &way),
            _ => put_multipath(&mut out.datagram, &way, sharing().skip(place)),
        }
    }
    Ok(Ok(()))
}

/// Maximum number of next hops in one message, whose length is bounded. Further next hops are sent
/// in a second message.
const NEXT_HOPS_MAX: usize = 16;

/// Writes a message about a route with several next hops (RTA_MULTIPATH).
fn put_multipath(to: &mut NetlinkMessages, way: &RouteRow, hops: impl Iterator<Item = RouteRow>) {
    begin_way(to, way, false);
    to.nested(libc::RTA_MULTIPATH, |to| {
        for hop in hops.take(NEXT_HOPS_MAX) {
            let gateway = octets(&hop.gateway);
            // Write struct rtnexthop: length, flags, weight minus one, index of the interface.
            let len = 8 + 4 + gateway.len() as u16;
            to.put(&len.to_ne_bytes());
            to.put(&[0, hop.weight.saturating_sub(1).min(255) as u8]);
            to.put(&hop.index.to_ne_bytes());
            to.attribute(libc::RTA_GATEWAY, gateway);
        }
    });
    end_way(to, way);
}

/// Answers RTM_GETROUTE for one address with the route to that address.
fn route_to(out: &mut AnswerBuffer<'_>, stack: StackTables<'_>) -> Result<Outcome> {
    let Some(family) = out.family() else { return Ok(Err(libc::EAFNOSUPPORT)) };
    let mut dst = RawAddr { family: family as u16, ..RawAddr::default() };
    let len = octets(&dst).len();
    match out.attribute(RTMSG_LEN, libc::RTA_DST) {
        Some(value) if value.len() == len => dst.ip[..len].copy_from_slice(value),
        _ => return Ok(Err(libc::EINVAL)),
    }
    let index = out.attribute(RTMSG_LEN, libc::RTA_OIF).and_then(|value| u32_at(value, 0));
    let leads = |way: &RouteRow| {
        let fits = index.is_none_or(|index| index == way.index) || way.local;
        fits && way.dst.family == dst.family && covers(&way.dst, way.prefix_len, &dst)
    };
    // Select the longest prefix. Among equal prefixes select the first, because the stack lists
    // routes in order of preference.
    let best = |best: Option<RouteRow>, way: RouteRow| match best {
        Some(best) if (best.local, best.prefix_len) >= (way.local, way.prefix_len) => Some(best),
        _ => Some(way),
    };
    let Some(way) = ways(stack).filter(leads).fold(None, best) else {
        return Ok(Err(libc::ENETUNREACH));
    };
    let bits = len as u32 * 8;
    let source = if way.local { Some(dst) } else { source(stack, &way) };
    // Report metric 0 for IPv4, because Linux's answer about a single IPv4 address contains no
    // metric.
    let metric = if family == libc::AF_INET { 0 } else { way.metric };
    out.begin(libc::RTM_NEWROUTE)?;
    let way = RouteRow { dst, prefix_len: bits, metric, ..way };
    put_way(&mut out.datagram, &way, source.as_ref(), true);
    Ok(Ok(()))
}

/// A route of the stack, or one of its own addresses as an entry of the local table.
#[derive(Debug, Clone, Copy)]
struct RouteRow {
    dst: RawAddr,
    prefix_len: u32,
    gateway: RawAddr,
    index: u32,
    metric: u32,
    origin: u32,
    mtu: u32,
    weight: u32,
    local: bool,
}

impl RouteRow {
    /// Returns whether both routes are next hops of one multipath route.
    fn shares_with(&self, other: &Self) -> bool {
        let key = |way: &Self| (way.dst, way.prefix_len, way.metric, way.origin, way.local);
        let is_routed = |way: &Self| way.gateway.family != 0;
        key(self) == key(other) && is_routed(self) && is_routed(other)
    }

    fn table(&self) -> u32 {
        u32::from(if self.local { libc::RT_TABLE_LOCAL } else { libc::RT_TABLE_MAIN })
    }
}

fn ways(stack: StackTables<'_>) -> impl Iterator<Item = RouteRow> {
    let (v4, v6) = (libc::AF_INET as u16, libc::AF_INET6 as u16);
    // Leave out routes of the loopback interface, which are reported in the local table, as by the
    // kernel.
    let routed = stack.routes.iter().filter(move |route| {
        let loopback =
            |interface: &&Interface| interface.index == route.index && is_loopback(interface);
        !stack.interfaces.iter().any(|interface| loopback(&interface))
    });
    let routed = routed.map(|route| {
        let Route { dst, prefix_len, gateway, index, metric, origin, mtu, weight } = *route;
        RouteRow { dst, prefix_len, gateway, index, metric, origin, mtu, weight, local: false }
    });
    let has_address = move |interface: &&Interface| [v4, v6].contains(&interface.addr.family);
    let local = stack.interfaces.iter().filter(has_address).map(move |interface| {
        let bits = if interface.addr.family == v4 { 32 } else { 128 };
        // For the loopback interface, use the whole prefix: all addresses of 127.0.0.0/8 belong to
        // this host.
        let whole = is_loopback(interface) && interface.addr.family == v4;
        let prefix_len = if whole { interface.prefix_len } else { bits };
        let mut dst = interface.addr;
        (dst.port, dst.scope) = (0, 0);
        if whole {
            dst.ip[1..].fill(0);
        }
        let gateway = RawAddr::default();
        let (index, origin) = (interface.index, route_origin::LINK);
        let (metric, mtu, weight) = (0, 0, 1);
        RouteRow { dst, prefix_len, gateway, index, metric, origin, mtu, weight, local: true }
    });
    routed.chain(local)
}

fn put_route(to: &mut NetlinkMessages, stack: StackTables<'_>, way: &RouteRow) {
    // Determine the preferred source address. As in the kernel, a route created together with an
    // address has this address as its source.
    let source = match (way.local, way.origin, i32::from(way.dst.family)) {
        (true, _, libc::AF_INET) => source(stack, way),
        (false, route_origin::LINK, libc::AF_INET) => source(stack, way),
        _ => None,
    };
    put_way(to, way, source.as_ref(), false);
}

/// Writes a message about a route with at most one next hop. `looked_up`: the message answers a
/// request about one address, for which the kernel reports scope 0.
fn put_way(to: &mut NetlinkMessages, way: &RouteRow, source: Option<&RawAddr>, looked_up: bool) {
    begin_way(to, way, looked_up);
    if way.gateway.family != 0 {
        to.attribute(libc::RTA_GATEWAY, octets(&way.gateway));
    }
    if let Some(source) = source {
        to.attribute(libc::RTA_PREFSRC, octets(source));
    }
    to.number(libc::RTA_OIF, way.index);
    end_way(to, way);
}

/// Writes the part of a route message before the next hops.
fn begin_way(to: &mut NetlinkMessages, way: &RouteRow, looked_up: bool) {
    let linked = way.gateway.family == 0;
    let v4 = i32::from(way.dst.family) == libc::AF_INET;
    let scope = match (way.local, linked && v4) {
        _ if looked_up => libc::RT_SCOPE_UNIVERSE,
        (true, _) if v4 => libc::RT_SCOPE_HOST,
        (false, true) => libc::RT_SCOPE_LINK,
        _ => libc::RT_SCOPE_UNIVERSE,
    };
    let protocol = match way.origin {
        route_origin::LINK => libc::RTPROT_KERNEL,
        route_origin::ROUTER => RTPROT_RA,
        _ => libc::RTPROT_BOOT,
    };
    let kind = if way.local { libc::RTN_LOCAL } else { libc::RTN_UNICAST };
    // The answer about a single IPv4 address is not an entry of a routing table, so it has
    // different flags (`rt_fill_info` of Linux).
    let (table, protocol, flags) = match (looked_up && v4, way.local) {
        (false, _) => (way.table(), protocol, 0),
        (true, local) => {
            let of_local = if local { RTCF_LOCAL } else { 0 };
            (libc::RT_TABLE_MAIN.into(), libc::RTPROT_UNSPEC, RTM_F_CLONED | of_local)
        }
    };
    // Write struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope,
    // type, flags.
    let (family, bits) = (way.dst.family as u8, way.prefix_len as u8);
    to.put(&[family, bits, 0, 0, table as u8, protocol, scope, kind]);
    to.put(&flags.to_ne_bytes());
    to.number(libc::RTA_TABLE, table);
    if way.prefix_len > 0 {
        to.attribute(libc::RTA_DST, octets(&way.dst));
    }
}

/// Writes the part of a route message that follows the next hops.
fn end_way(to: &mut NetlinkMessages, way: &RouteRow) {
    /// Type of the route metric for the MTU (RTAX_MTU of rtnetlink.h).
    const MTU: u16 = 2;
    if way.metric > 0 {
        to.number(libc::RTA_PRIORITY, way.metric);
    }
    if way.mtu > 0 {
        to.nested(libc::RTA_METRICS, |to| to.number(MTU, way.mtu));
    }
    to.end();
}

/// Returns the source address of packets sent over a route. Prefers an interface address in the
/// same network as the next hop to the interface's first address.
fn source(stack: StackTables<'_>, way: &RouteRow) -> Option<RawAddr> {
    let near = if way.gateway.family == 0 { way.dst } else { way.gateway };
    let of_way = |interface: &&Interface| {
        interface.index == way.index && interface.addr.family == way.dst.family
    };
    let all = || stack.interfaces.iter().filter(of_way);
    let in_network = |interface: &&Interface| covers(&interface.addr, interface.prefix_len, &near);
    all().find(in_network).or_else(|| all().next()).map(|interface| interface.addr)
}

/// Returns whether `ip` is in the network of `prefix`, which has a length of `len` bits.
fn covers(prefix: &RawAddr, len: u32, ip: &RawAddr) -> bool {
    let whole = len as usize / 8;
    let rest = (!(0xffu16 >> (len % 8)) & 0xff) as u8;
    let (a, b) = (&prefix.ip, &ip.ip);
    a.get(..whole) == b.get(..whole)
        && (rest == 0
            || a.get(whole).map(|byte| byte & rest) == b.get(whole).map(|byte| byte & rest))
}

fn octets(addr: &RawAddr) -> &[u8] {
    if i32::from(addr.family) == libc::AF_INET { &addr.ip[..4] } else { &addr.ip }
}

fn scope(addr: &RawAddr) -> u8 {
    let ip: IpAddr = match octets(addr).first_chunk::<4>() {
        Some(v4) if i32::from(addr.family) == libc::AF_INET => (*v4).into(),
        _ => addr.ip.into(),
    };
    match ip {
        _ if ip.is_loopback() => libc::RT_SCOPE_HOST,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => libc::RT_SCOPE_LINK,
        _ => libc::RT_SCOPE_UNIVERSE,
    }
}

fn is_loopback(interface: &Interface) -> bool {
    interface.flags & libc::IFF_LOOPBACK as u32 != 0
}

/// Conversion of an interface name to the padded form of [`Interface::name`].
trait ToName {
    fn to_owned_name(&self) -> [u8; 16];
}

impl ToName for [u8] {
    fn to_owned_name(&self) -> [u8; 16] {
        let mut name = [0; 16];
        // Truncate longer names. The result then has 16 bytes without a NUL, and equals no
        // interface's name.
        let len = self.len().min(name.len());
        name[..len].copy_from_slice(&self[..len]);
        name
    }
}

// Constants missing from the libc crate, from linux/netlink.h, rtnetlink.h, if_link.h, if_addr.h
// and if.h.
const NLMSG_MIN_TYPE: i32 = 0x10;
const IFLA_ALT_IFNAME: u16 = 53;
const IFF_LOWER_UP: u32 = 1 << 16;
const IF_OPER_UNKNOWN: u8 = 0;
const IF_OPER_UP: u8 = 6;
const IFA_FLAGS: u16 = 8;
const IFA_F_PERMANENT: u8 = 0x80;
const RTPROT_RA: u8 = 9;
const RTM_F_CLONED: u32 = 0x200;
const RTCF_LOCAL: u32 = 0x8000_0000;
const NTF_PROXY: u8 = 8;
/// Length in bytes of `struct ifinfomsg`. [`RTMSG_LEN`] is that of `struct rtmsg`.
const IFINFO_LEN: usize = 16;
const RTMSG_LEN: usize = 12;
/// Length in bytes of `struct ndmsg`.
const NDMSG_LEN: usize = 12;
const NDA_IFINDEX: u16 = 8;
/// Length in bytes of `struct ifaddrmsg`.
const IFADDR_LEN: usize = 8;
/// Number of counters in `struct rtnl_link_stats64` before Linux 6.0, which added one counter.
const LINK_STATS: usize = 24;

#[cfg(test)]
mod tests;
