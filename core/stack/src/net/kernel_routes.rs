//! Routes that the owner of the stack copies from the kernel of the host.
//!
//! The kernel has validated them, so each network is replaced as a whole, and a route that cannot
//! be used is left out. Routes of the operator, of addresses and of router advertisements stay.

use core::net::IpAddr;

use towpath_wire::Prefix;

use super::iface::IfaceId;
use super::layer::Net;
use super::route::RouteKind;

/// All routes of the kernel to one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRoutes {
    /// Network of the destinations.
    pub prefix: Prefix,
    /// Routes to the network; empty if the kernel has none any more. Routes with the same metric
    /// and protocol through routers share flows.
    pub routes: Vec<KernelRoute>,
}

/// Route of the kernel, or one next hop of a multipath route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRoute {
    /// Router; `None` if the destinations are on the link. Ignored unless the kind is unicast.
    pub next_hop: Option<IpAddr>,
    /// Outgoing interface. Ignored unless the kind is unicast.
    pub iface: IfaceId,
    /// Metric of the route.
    pub metric: u32,
    /// Number of the routing protocol (`rtm_protocol` of rtnetlink(7)).
    pub protocol: u8,
    /// Type of the route.
    pub kind: RouteKind,
    /// MTU of the route in bytes; `None`: the MTU of the link. Ignored below 68 for IPv4, and below
    /// 1280 for IPv6.
    pub mtu: Option<u16>,
    /// Weight among the next hops of a multipath route, 1 to 256.
    pub weight: u16,
}

impl Net {
    /// Replaces the routes that were copied from the kernel, for each of the given networks.
    /// Packets see all changes at once.
    ///
    /// Returns the number of refused routes. A route is refused for one of these reasons:
    ///
    /// - the interface does not exist, or is down;
    /// - the router has another address family, or the limit on routers is reached;
    /// - the weight is invalid.
    ///
    /// # Panics
    ///
    /// On a shard other than the first.
    pub fn set_kernel_routes(&mut self, updates: &[KernelRoutes]) -> usize {
        self.decide(|control| control.set_kernel_routes(updates))
    }
}
