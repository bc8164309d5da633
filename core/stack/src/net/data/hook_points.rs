//! Calls of the packet filter's hooks: for received packets before and after the routing decision,
//! and for packets that this host sends.

use towpath_filter::{Fields, Hook};
use towpath_pool::Packet;
use towpath_tcp::Instant;

use super::fields::{is_discovery, visible_upper};
use super::hook_packet::HookPacket;
use super::ip_packet::IpPacket;
use super::refusal::RuleRefusal;
use super::tables::Data;
use super::verdict::RoutingVerdict;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::ip::AddressPair;
use crate::net::route::Route;

impl Data {
    /// Runs the prerouting hook, the routing decision and the input hook for a packet that was
    /// received on the interface `iface`.
    #[cold]
    pub(super) fn verdict_at_hooks(
        &mut self,
        now: Instant,
        iface: IfaceId,
        link_group: bool,
        ip: &mut IpPacket,
        packet: &mut Packet,
    ) -> Result<RoutingVerdict, RuleRefusal> {
        let upper = visible_upper(packet, ip)?;
        let ttl = ip.ttl;
        let mut packet = HookPacket::received(packet, ip, Some(upper), iface);
        let is_judged = !is_discovery(packet.fields(), ttl);
        if is_judged && let Err(refusal) = self.hooks.at(now, Hook::Prerouting, &mut packet) {
            let &Fields { src, dst, .. } = packet.fields();
            let is_unicast = || self.verdict(iface, src, dst, link_group).is_unicast();
            return Err(refusal.answered_if(is_unicast));
        }
        let &Fields { src, dst, .. } = packet.fields();
        let verdict = self.verdict(iface, src, dst, link_group);
        if is_judged
            && matches!(verdict, RoutingVerdict::Local { .. })
            && let Err(refusal) = self.hooks.at(now, Hook::Input, &mut packet)
        {
            return Err(refusal.answered_if(|| verdict.is_unicast()));
        }
        Ok(verdict)
    }

    /// Runs the hooks output and postrouting for a packet that this host sends by `route`. The
    /// packet begins with its transport header. Returns another route if the tracker (such as NAT)
    /// changed the destination.
    #[cold]
    pub(super) fn send_at_hooks(
        &mut self,
        now: Instant,
        route: &Route,
        ends: &mut AddressPair,
        protocol: u8,
        packet: &mut Packet,
    ) -> Result<Option<Route>, DropReason> {
        let refused = |_| DropReason::FilterOutput;
        let mut packet = HookPacket::to_send(packet, *ends, protocol, route.iface);
        self.hooks.at(now, Hook::Output, &mut packet).map_err(refused)?;
        let &Fields { src, dst, .. } = packet.fields();
        let mut rerouted = None;
        if dst != ends.dst {
            let route = self.route(now, Some(src), dst, None).map_err(|_| DropReason::NoRoute)?;
            packet.fields.iface_out = Some(route.iface.0);
            rerouted = Some(route);
        }
        self.hooks.at(now, Hook::Postrouting, &mut packet).map_err(refused)?;
        let &Fields { src, dst, .. } = packet.fields();
        *ends = AddressPair { src, dst };
        Ok(rerouted)
    }
}
