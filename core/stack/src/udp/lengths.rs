//! Length limits of datagrams, and the permission to fragment longer ones.

use std::net::IpAddr;

use crate::net::limits::{LOOPBACK_MTU, LOOPBACK_MTU_TOLD};
use crate::net::{Fragmenting, IfaceId, Route};

/// Handling of datagrams that exceed the path MTU: IP_MTU_DISCOVER and IPV6_MTU_DISCOVER. The names
/// are those of Linux's `IP_PMTUDISC_` constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MtuDiscovery {
    /// Long datagrams are fragmented here, and routers may fragment all datagrams.
    Dont,
    /// Long datagrams are fragmented here; routers may not fragment, so that the path MTU is
    /// discovered.
    #[default]
    Want,
    /// Datagrams longer than the path MTU are rejected.
    Do,
    /// Datagrams up to the link's MTU are sent without fragmentation: the program discovers the
    /// path MTU itself.
    Probe,
    /// Like `Probe`, but routers may fragment. Reports of the path MTU are ignored.
    Interface,
    /// Like `Interface`, but datagrams that exceed the link's MTU are fragmented.
    Omit,
}

impl MtuDiscovery {
    /// Returns the length limit of a datagram on `route`, and the permission to fragment.
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

    /// Returns whether reports that quote a datagram of the socket are accepted. DNS servers use
    /// modes that ignore reports. Otherwise an attacker's report could cause fragmentation, and
    /// fragments can be forged (RFC 9715).
    pub(crate) fn believes_reports(self) -> bool {
        !matches!(self, Self::Interface | Self::Omit)
    }

    /// Returns whether the program is notified of a report about a datagram to `dst`. As on Linux,
    /// the families differ.
    pub(crate) fn tells_reports(self, dst: IpAddr) -> bool {
        self != Self::Dont && (dst.is_ipv4() || self.believes_reports())
    }
}

/// Handling of long datagrams, by family.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DatagramLengths {
    /// IP_MTU_DISCOVER of the socket, for IPv4 datagrams.
    pub v4: MtuDiscovery,
    /// IPV6_MTU_DISCOVER of the socket, for IPv6 datagrams.
    pub v6: MtuDiscovery,
    /// IPV6_MTU: maximum length of an IPv6 packet in bytes; `None`: limited by the path only.
    pub v6_fragment: Option<u32>,
}

impl DatagramLengths {
    pub fn discovery(&self, remote: IpAddr) -> MtuDiscovery {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// Returns the length limit of a packet to `remote` on `route`, and the permission to fragment
    /// longer packets.
    pub fn limit(&self, remote: IpAddr, route: &Route) -> (u32, Fragmenting) {
        let (mtu, fragmenting) = self.discovery(remote).limit(route);
        let most = self.v6_fragment.filter(|_| remote.is_ipv6()).unwrap_or(mtu);
        (mtu.min(most), fragmenting)
    }

    /// Returns the MTU reported to programs for a route shortened by [`Self::limit`]. The MTU of
    /// Linux's loopback is one byte more than the maximum length of an IP packet. For an IPv4 path
    /// Linux reports that maximum instead (IP_MAX_MTU).
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
