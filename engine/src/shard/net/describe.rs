//! Converts interfaces, routes and neighbors to the structures that programs read.

use std::net::SocketAddr;

use towpath_shm::control::{
    ControlReply, DATA_MAX, Interface, NeighborRecord, Route, route_origin,
};
use towpath_shm::layout::{Plain, RawAddr};
use towpath_stack::net::{NeighborState, Origin};

use crate::report::EngineCounters;
use crate::shard::net::Net;

fn describe(iface: &towpath_stack::net::Interface) -> Interface {
    // Flags of an interface: IFF_UP | IFF_RUNNING, and further flags by link type. Loopback has
    // IFF_LOOPBACK, and Ethernet has IFF_BROADCAST | IFF_MULTICAST. Links for IP packets have
    // IFF_POINTOPOINT | IFF_NOARP | IFF_MULTICAST, as a TUN device on Linux (tun_net_init in
    // drivers/net/tun.c).
    const UP: u32 = 0x41;
    let is_loopback = iface.id() == towpath_stack::IfaceId::LOOPBACK;
    let kind = match iface.link() {
        _ if is_loopback => 0x8,
        towpath_pool::LinkType::Ethernet => 0x1002,
        towpath_pool::LinkType::Ip => 0x1090,
    };
    let mut name = [0; 16];
    let n = iface.name().len().min(15);
    name[..n].copy_from_slice(&iface.name().as_bytes()[..n]);
    Interface {
        name,
        index: u32::from(iface.id().0) + 1,
        mtu: iface.mtu(),
        flags: if iface.is_down() { kind } else { UP | kind },
        mac: iface.mac().0,
        ..Interface::default()
    }
}

/// States of neighbors in linux/neighbour.h: NUD_INCOMPLETE, _REACHABLE, _STALE, _DELAY, _PROBE and
/// _PERMANENT.
const NUD: [u32; 6] = [0x01, 0x02, 0x04, 0x08, 0x10, 0x80];

const NTF_ROUTER: u32 = 0x80;

impl Net {
    /// Returns as many interfaces and addresses as fit one reply. The first addresses of all
    /// interfaces come before all second addresses.
    pub(crate) fn interfaces(&self) -> ControlReply {
        const MAX: usize = DATA_MAX / size_of::<Interface>();
        let mut reply = ControlReply::default();
        let mut list: Vec<(usize, Interface)> = Vec::new();
        for iface in self.stack.net.interfaces() {
            let base = describe(iface);
            let usable = iface.addresses().iter().filter(|address| address.is_usable());
            let before = list.len();
            for (rank, address) in usable.enumerate() {
                let prefix = address.prefix;
                let addr = RawAddr::new(SocketAddr::new(prefix.addr(), 0));
                list.push((rank, Interface { addr, prefix_len: u32::from(prefix.len()), ..base }));
            }
            if list.len() == before {
                list.push((0, base));
            }
        }
        list.sort_by_key(|(rank, _)| *rank);
        list.truncate(MAX);
        list.sort_by_key(|(_, interface)| interface.index);
        for (to, (_, interface)) in reply.data.chunks_exact_mut(size_of::<Interface>()).zip(&list) {
            to.copy_from_slice(interface.as_bytes());
        }
        reply.a = list.len() as u32;
        reply.len = (list.len() * size_of::<Interface>()) as u32;
        reply
    }

    /// Returns as many routes as fit one reply, from index `first` on.
    pub(crate) fn routes(&self, first: u32) -> ControlReply {
        const MAX: usize = DATA_MAX / size_of::<Route>();
        let mut reply = ControlReply::default();
        let mut rest = self.stack.net.routes().skip(first as usize);
        let mut count = 0;
        for (to, entry) in
            reply.data.chunks_exact_mut(size_of::<Route>()).zip(rest.by_ref().take(MAX))
        {
            let addr = |ip| RawAddr::new(SocketAddr::new(ip, 0));
            let route = Route {
                dst: addr(entry.prefix.network()),
                gateway: entry.next_hop.map_or_else(RawAddr::default, addr),
                prefix_len: entry.prefix.len().into(),
                index: u32::from(entry.iface.0) + 1,
                metric: entry.metric,
                origin: match entry.origin {
                    Origin::Static | Origin::Kernel(_) => route_origin::STATIC,
                    Origin::Link => route_origin::LINK,
                    Origin::Router => route_origin::ROUTER,
                },
                mtu: entry.mtu.map_or(0, u32::from),
                weight: entry.weight.into(),
            };
            to.copy_from_slice(route.as_bytes());
            count += 1;
        }
        reply.len = count * size_of::<Route>() as u32;
        reply.a = if rest.next().is_some() { first + count } else { 0 };
        reply
    }

    /// Returns as many neighbors as fit one reply, from index `first` on.
    pub(crate) fn neighbors(&self, counters: &mut EngineCounters, first: u32) -> ControlReply {
        const MAX: usize = DATA_MAX / size_of::<NeighborRecord>();
        let mut all: Vec<_> = self.stack.net.neighbors().collect();
        counters.work(all.len());
        all.sort_by_key(|known| (known.iface, known.addr));
        let mut reply = ControlReply::default();
        for known in all.iter().skip(first as usize).take(MAX) {
            let state = match known.state {
                NeighborState::Incomplete => NUD[0],
                NeighborState::Reachable => NUD[1],
                NeighborState::Stale => NUD[2],
                NeighborState::Delay => NUD[3],
                NeighborState::Probe => NUD[4],
                NeighborState::Permanent => NUD[5],
            };
            let row = NeighborRecord {
                addr: RawAddr::new(SocketAddr::new(known.addr, 0)),
                index: u32::from(known.iface.0) + 1,
                state,
                flags: if known.router { NTF_ROUTER } else { 0 },
                known: known.mac.is_some().into(),
                mac: known.mac.map_or([0; 6], |mac| mac.0),
                reserved: 0,
            };
            append(&mut reply, &row);
        }
        let next = first as usize + reply.len as usize / size_of::<NeighborRecord>();
        reply.a = if next < all.len() { next as u32 } else { 0 };
        reply
    }
}

/// Appends a structure to the data of a reply. The reply must have space for it.
pub(crate) fn append<T: Plain>(reply: &mut ControlReply, row: &T) {
    let bytes = row.as_bytes();
    reply.data[reply.len as usize..][..bytes.len()].copy_from_slice(bytes);
    reply.len += bytes.len() as u32;
}
