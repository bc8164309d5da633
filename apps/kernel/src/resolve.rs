//! Translates routes of the kernel to routes of the engine.

use std::collections::BTreeMap;

use towpath_netlink::{HopMessage, NextHopMessage, RouteMessage};
use towpath_stack::IfaceId;
use towpath_stack::net::limits::WEIGHT_MAX;
use towpath_stack::net::{KernelRoute, RouteKind};

// Types of routes, and a protocol, from linux/rtnetlink.h.
const RTN_UNICAST: u8 = 1;
const RTN_BLACKHOLE: u8 = 6;
const RTN_UNREACHABLE: u8 = 7;
const RTN_PROHIBIT: u8 = 8;
/// Routes to the networks of addresses, which the engine has for its own addresses.
const RTPROT_KERNEL: u8 = 2;

/// Next hops by which routes are resolved.
#[derive(Debug, Default)]
pub(crate) struct KernelHops {
    /// Interfaces of the engine by the kernel's interface index.
    pub interfaces: BTreeMap<u32, IfaceId>,
    /// Next-hop objects by identifier.
    pub objects: BTreeMap<u32, NextHopMessage>,
}

/// Returns the type of a route; `None` if the engine has none for it.
pub(crate) fn kind(route: &RouteMessage) -> Option<RouteKind> {
    match route.kind {
        _ if route.is_partial || route.protocol == RTPROT_KERNEL => None,
        RTN_UNICAST => Some(RouteKind::Unicast),
        RTN_BLACKHOLE => Some(RouteKind::Blackhole),
        RTN_UNREACHABLE => Some(RouteKind::Unreachable),
        RTN_PROHIBIT => Some(RouteKind::Prohibit),
        _ => None,
    }
}

impl KernelHops {
    /// Returns the routes of the engine for a route of the kernel, one for each usable next hop.
    pub(crate) fn resolve(&self, route: &RouteMessage) -> Vec<KernelRoute> {
        let Some(kind) = kind(route) else { return Vec::new() };
        let of_object = route.next_hop_id.filter(|_| route.hops.is_empty());
        let is_blackhole = of_object.is_some_and(|id| self.is_blackhole(id));
        let hops = of_object.map_or_else(|| route.hops.clone(), |id| self.hops_of(id));
        let to = |next_hop, iface, weight| KernelRoute {
            next_hop,
            iface,
            metric: route.metric,
            protocol: route.protocol,
            kind: if is_blackhole { RouteKind::Blackhole } else { kind },
            mtu: route.mtu.and_then(|mtu| u16::try_from(mtu).ok()),
            weight,
        };
        if is_blackhole || kind != RouteKind::Unicast {
            return vec![to(None, IfaceId::LOOPBACK, 1)];
        }
        let usable = hops.iter().filter(|hop| !hop.is_dead && !hop.is_special);
        let resolved = usable.filter_map(|hop| {
            let iface = *self.interfaces.get(&hop.link)?;
            // The loopback interface leads to no other host.
            (iface != IfaceId::LOOPBACK)
                .then(|| to(hop.gateway, iface, hop.weight.clamp(1, WEIGHT_MAX)))
        });
        resolved.collect()
    }

    fn is_blackhole(&self, id: u32) -> bool {
        self.objects.get(&id).is_some_and(|object| object.is_blackhole)
    }

    /// Returns the next hops of an object, or of the members of a group.
    fn hops_of(&self, id: u32) -> Vec<HopMessage> {
        let Some(object) = self.objects.get(&id) else { return Vec::new() };
        // The kernel allows no groups in groups.
        let members = object.group.iter().filter_map(|(id, weight)| {
            self.objects.get(id).and_then(|member| hop(member, *weight))
        });
        hop(object, 1).into_iter().chain(members).collect()
    }
}

/// Returns the next hop of an object; `None` for a group or a blackhole.
fn hop(object: &NextHopMessage, weight: u16) -> Option<HopMessage> {
    let (gateway, is_special) = (object.gateway, object.is_encapsulated);
    Some(HopMessage { link: object.link?, gateway, weight, is_dead: false, is_special })
}
