//! Routing decision about a received packet with valid headers.
//!
//! If this host does not forward packets, a packet to another host is dropped as
//! [`NotLocal`](DropReason::NotLocal). A router forwards it ([`RoutingVerdict::Forward`]), and
//! `forward` looks up its route.

use core::net::IpAddr;

use towpath_wire::addr;

use super::tables::Data;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::locals::{Role, is_of_all_hosts};

/// Routing decision about a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoutingVerdict {
    /// The packet is for this host.
    Local {
        /// The destination is a multicast or broadcast address, either of IP or of the link layer.
        group: bool,
    },
    /// The packet is for another host, and this host is a router, which forwards it.
    Forward,
    /// The packet is dropped. Either it is for another host and this host is not a router, or one
    /// of its addresses is invalid.
    Drop(DropReason),
}

impl RoutingVerdict {
    /// Returns whether the destination is a single host, so that ICMP errors may be sent.
    pub(super) fn is_unicast(self) -> bool {
        matches!(self, Self::Local { group: false } | Self::Forward)
    }
}

impl Data {
    /// Makes the routing decision about a packet from `src` to `dst` that was received on the
    /// interface `iface`. `link_group` states whether the packet's destination MAC address was
    /// multicast or broadcast.
    pub(super) fn verdict(
        &self,
        iface: IfaceId,
        src: IpAddr,
        dst: IpAddr,
        link_group: bool,
    ) -> RoutingVerdict {
        let martian = RoutingVerdict::Drop(DropReason::Martian);
        if !self.may_come_from(iface, src, dst) {
            return martian;
        }
        let on_host = matches!(dst, IpAddr::V6(v6) if !addr::may_be_on_link(v6));
        if addr::is_martian_destination(dst) || on_host {
            return martian;
        }
        let role = self.here().locals.on(iface, dst);
        if is_group(dst, role) {
            return verdict_of_group(dst, role);
        }
        //= https://www.rfc-editor.org/rfc/rfc1122#section-3.3.6
        //# A host SHOULD silently discard a datagram that is received
        //# via a link-layer broadcast (see Section 2.4) but does not
        //# specify an IP multicast or broadcast destination address.
        if link_group && dst.is_ipv4() {
            return martian;
        }
        if self.link(iface).any_address || role.owner.is_some() {
            return RoutingVerdict::Local { group: link_group };
        }
        self.verdict_of_transit(src, dst, link_group)
    }

    /// Makes the routing decision about a packet to a unicast address of another host.
    #[cold]
    fn verdict_of_transit(&self, src: IpAddr, dst: IpAddr, link_group: bool) -> RoutingVerdict {
        if self.forwarding.is_none() {
            return RoutingVerdict::Drop(DropReason::NotLocal);
        }
        //= https://www.rfc-editor.org/rfc/rfc1812#section-5.3.4
        //# A router MUST NOT forward any packet that the router received as a
        //# Link Layer broadcast
        if link_group || src.is_unspecified() {
            return RoutingVerdict::Drop(DropReason::Martian);
        }
        // Drop broadcasts to another link of this router (RFC 2644).
        if self.here().locals.anywhere(dst).broadcast {
            return RoutingVerdict::Drop(DropReason::TransitScope);
        }
        RoutingVerdict::Forward
    }

    /// Makes the routing decision about a packet from this host to itself. The source is an address
    /// of this host, and so is a unicast destination.
    pub(super) fn verdict_of_looped(&self, iface: IfaceId, dst: IpAddr) -> RoutingVerdict {
        let role = self.here().locals.on(iface, dst);
        match is_group(dst, role) {
            true => verdict_of_group(dst, role),
            false => RoutingVerdict::Local { group: false },
        }
    }

    /// Returns whether another host may send packets with the source `src` to `dst`.
    fn may_come_from(&self, iface: IfaceId, src: IpAddr, dst: IpAddr) -> bool {
        let is_valid = match src {
            IpAddr::V4(v4) => {
                addr::is_valid_source_v4(v4) && (!v4.is_unspecified() || may_have_no_source(dst))
            }
            IpAddr::V6(v6) => addr::is_valid_source_v6(v6),
        };
        let role = self.here().locals.on(iface, src);
        // A packet from another host must not have an address of this host as source. A source like
        // that is a sign of a loop or a LAND attack.
        is_valid && !role.broadcast && role.owner.is_none()
    }
}

/// Makes the routing decision about a packet to a multicast or broadcast address.
fn verdict_of_group(dst: IpAddr, role: Role) -> RoutingVerdict {
    //= https://www.rfc-editor.org/rfc/rfc4291#section-2.7
    //# Nodes must not originate a packet to a multicast address whose scop
    //# field contains the reserved value 0; if such a packet is received, it
    //# must be silently dropped.
    if matches!(dst, IpAddr::V6(v6) if addr::multicast_scope(v6) == Some(0)) {
        return RoutingVerdict::Drop(DropReason::Martian);
    }
    match !dst.is_multicast() || role.joined || is_of_all_hosts(dst) {
        true => RoutingVerdict::Local { group: true },
        false => RoutingVerdict::Drop(DropReason::NotJoined),
    }
}

fn is_group(dst: IpAddr, role: Role) -> bool {
    let is_limited_broadcast = matches!(dst, IpAddr::V4(v4) if v4.is_broadcast());
    dst.is_multicast() || is_limited_broadcast || role.broadcast
}

/// Returns whether a host without an address may send to `dst`, to find a DHCP server or to report
/// a group.
//= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.1.3
//# { 0, 0 } This host on this network. MUST NOT be sent, except as
//# a source address as part of an initialization procedure
fn may_have_no_source(dst: IpAddr) -> bool {
    matches!(dst, IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[..3] == [224, 0, 0])
}
