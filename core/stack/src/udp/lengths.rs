//! Length limits of datagrams, and permission to fragment longer ones.

use std::net::IpAddr;

use crate::net::limits::{LOOPBACK_MTU, LOOPBACK_MTU_TOLD};
use crate::net::{Fragmenting, IfaceId, Route};

/// Treatment of datagrams that are longer than their path takes: IP_MTU_DISCOVER and
/// IPV6_MTU_DISCOVER. Names are those of Linux's `IP_PMTUDISC_` constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MtuDiscovery {
    /// Long datagrams are fragmented, and routers may fragment all.
    Dont,
    /// Long datagrams are fragmented; routers may not fragment, so that the path MTU shows.
    #[default]
    Want,
    /// Long datagrams are refused.
    Do,
    /// Datagrams that the link takes are sent: the program looks for the path MTU itself.
    Probe,
    /// As `Probe`, but routers may fragment. No report of a path MTU is believed.
    Interface,
    /// As `Interface`, but datagrams longer than the link's MTU are fragmented.
    Omit,
}

impl MtuDiscovery {
    /// Length limit of a datagram that takes `route`, and permission to fragment.
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

    /// Whether a report that quotes a datagram of the socket is believed. DNS servers set modes
    /// that do not: an attacker's report could make them send fragments, which can be forged (RFC
    /// 9715).
    pub(crate) fn believes_reports(self) -> bool {
        !matches!(self, Self::Interface | Self::Omit)
    }

    /// Whether the program is told of a report about a datagram to `dst`. The families differ on
    /// Linux.
    pub(crate) fn tells_reports(self, dst: IpAddr) -> bool {
        self != Self::Dont && (dst.is_ipv4() || self.believes_reports())
    }
}

/// Treatment of long datagrams in each family.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DatagramLengths {
    /// IP_MTU_DISCOVER.
    pub v4: MtuDiscovery,
    /// IPV6_MTU_DISCOVER.
    pub v6: MtuDiscovery,
    /// IPV6_MTU: the longest packet over IPv6 in bytes; `None`: as long as the path takes.
    pub v6_fragment: Option<u32>,
}

impl DatagramLengths {
    pub fn discovery(&self, remote: IpAddr) -> MtuDiscovery {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// Length limit of a packet to `remote` that takes `route`, and permission to fragment a longer
    /// one.
    pub fn limit(&self, remote: IpAddr, route: &Route) -> (u32, Fragmenting) {
        let (mtu, fragmenting) = self.discovery(remote).limit(route);
        let most = self.v6_fragment.filter(|_| remote.is_ipv6()).unwrap_or(mtu);
        (mtu.min(most), fragmenting)
    }

    /// The MTU that programs see of a route that [`Self::limit`] has shortened. Linux's loopback
    /// has a byte more than IP can state, but not for an IPv4 path (IP_MAX_MTU).
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
