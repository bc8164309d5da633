//! Length limits of datagrams, and the permission to fragment longer ones.

use std::net::IpAddr;

use crate::net::limits::{LOOPBACK_MTU, LOOPBACK_MTU_TOLD};
use crate::net::{Fragmenting, IfaceId, Route};

/// Handling of datagrams that exceed the path MTU: IP_MTU_DISCOVER and IPV6_MTU_DISCOVER. The names
/// are those of Linux's constants `IP_PMTUDISC_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MtuDiscovery {
    /// The stack fragments datagrams that exceed the path MTU, and routers may fragment all
    /// datagrams.
    Dont,
    /// The stack fragments datagrams that exceed the path MTU. Routers must not fragment, so that
    /// the path MTU is discovered.
    #[default]
    Want,
    /// Datagrams longer than the path MTU are rejected.
    Do,
    /// Datagrams that do not exceed the MTU of the link are sent, and must not be fragmented. The
    /// program discovers the path MTU itself.
    Probe,
    /// Like `Probe`, but routers may fragment. ICMP reports of a path MTU are ignored.
    Interface,
    /// Like `Interface`, but this host fragments datagrams that exceed the MTU of the link.
    Omit,
}

impl MtuDiscovery {
    /// Returns the maximum length in bytes of a datagram's packet on `route`, and which nodes may
    /// fragment the packet.
    pub(crate) fn limit(self, route: &Route) -> (u32, Fragmenting) {
        match self {
            Self::Dont => (route.mtu, Fragmenting::Anywhere),
            Self::Want if route.needs_fragments => (route.mtu, Fragmenting::Anywhere),
            Self::Want => (route.mtu, Fragmenting::Here),
            Self::Do => (route.mtu, Fragmenting::Never),
            Self::Probe => (route.link_mtu, Fragmenting::Never),
            Self::Interface => (route.link_mtu, Fragmenting::Routers),
            Self::Omit => (route.link_mtu, Fragmenting::Anywhere),
        }
    }

    /// Returns whether path MTU reports that quote a datagram of the socket are accepted. Some
    /// modes ignore these reports. DNS servers use such a mode, because an attacker could forge a
    /// report to cause fragmentation, and then forge fragments (RFC 9715).
    pub(crate) fn believes_reports(self) -> bool {
        !matches!(self, Self::Interface | Self::Omit)
    }

    /// Returns whether the program is notified of a path MTU report about a datagram to `dst`. As
    /// on Linux, this is different for IPv4 and IPv6.
    pub(crate) fn tells_reports(self, dst: IpAddr) -> bool {
        self != Self::Dont && (dst.is_ipv4() || self.believes_reports())
    }
}

/// Settings for datagrams that exceed the path MTU, for each IP version.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DatagramLengths {
    /// IP_MTU_DISCOVER: path MTU discovery for IPv4 datagrams.
    pub v4: MtuDiscovery,
    /// IPV6_MTU_DISCOVER: path MTU discovery for IPv6 datagrams.
    pub v6: MtuDiscovery,
    /// IPV6_MTU: maximum length of IPv6 packets in bytes; `None` if only the path limits the
    /// length.
    pub v6_fragment: Option<u32>,
}

impl DatagramLengths {
    pub fn discovery(&self, remote: IpAddr) -> MtuDiscovery {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// Returns the maximum length in bytes of a packet to `remote` on `route`, and who may fragment
    /// longer packets.
    pub fn limit(&self, remote: IpAddr, route: &Route) -> (u32, Fragmenting) {
        let (mtu, fragmenting) = self.discovery(remote).limit(route);
        let most = self.v6_fragment.filter(|_| remote.is_ipv6()).unwrap_or(mtu);
        (mtu.min(most), fragmenting)
    }

    /// Returns the MTU that programs see for a route, after [`Self::limit`] was applied to the
    /// route. As on Linux, the loopback interface has an MTU of one byte more than the maximum
    /// length of an IP packet. For an IPv4 path, the maximum length of an IP packet is returned
    /// instead (IP_MAX_MTU).
    pub fn told(&self, remote: IpAddr, route: &Route) -> u32 {
        let Route { iface, mtu, .. } = *route;
        let of_link = match self.discovery(remote) {
            MtuDiscovery::Dont | MtuDiscovery::Want | MtuDiscovery::Do => remote.is_ipv6(),
            MtuDiscovery::Probe | MtuDiscovery::Interface | MtuDiscovery::Omit => true,
        };
        let is_whole = iface == IfaceId::LOOPBACK && mtu == LOOPBACK_MTU;
        if is_whole && of_link { LOOPBACK_MTU_TOLD } else { mtu }
    }
}
