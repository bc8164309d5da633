//! The link between the inner stack and the stacks whose flows it takes.

use std::net::IpAddr;

use towpath_pool::{LinkType, Offloads, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_wire::{MacAddr, Prefix};

use crate::config::GatewayConfig;
use crate::link::OFFLOADS;

/// Kind of link on which a [`Gateway`](crate::Gateway) is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outer {
    /// First bytes of its packets.
    pub link: LinkType,
    /// Ethernet address of the gateway; without meaning on an IP link.
    pub mac: MacAddr,
    /// Work that the other end does for packets of the gateway.
    pub offloads: Offloads,
    /// Whether the other end is a stack of this process. Otherwise packets can be forged or lost,
    /// and the gateway's own connections can come back to it.
    pub in_process: bool,
}

/// Length of the networks in which the gateway's addresses are on an Ethernet.
const NETWORK_LEN_V4: u8 = 24;
const NETWORK_LEN_V6: u8 = 64;
/// Bytes of an Ethernet header (IEEE 802.3).
const ETHERNET_HEADER_LEN: usize = 14;

impl Outer {
    /// A stack of this process, which takes packets from memory as they are.
    pub const IN_MEMORY: Self =
        Self { link: LinkType::Ip, mac: MacAddr([0; 6]), offloads: OFFLOADS, in_process: true };

    /// A device with others behind it. On an Ethernet the gateway has the address `mac`.
    pub fn device(port: &(impl Port + ?Sized), mac: MacAddr) -> Self {
        Self { link: port.link_type(), mac, offloads: port.offloads(), in_process: false }
    }

    /// Offset of the IP header in a packet.
    pub(crate) fn ip_offset(&self) -> usize {
        match self.link {
            LinkType::Ip => 0,
            LinkType::Ethernet => ETHERNET_HEADER_LEN,
        }
    }

    /// The inner stack's interface on the link. On an Ethernet, its own addresses answer ARP and
    /// NDP.
    pub(crate) fn interface(&self, config: &GatewayConfig) -> InterfaceConfig {
        let mut own = vec![config.gateway_v4.map(IpAddr::V4), config.gateway_v6.map(IpAddr::V6)];
        let on_ethernet = self.link == LinkType::Ethernet;
        if on_ethernet {
            own.extend([config.dns_v4.map(IpAddr::V4), config.dns_v6.map(IpAddr::V6)]);
        }
        let prefix = |ip: IpAddr| {
            let len = if ip.is_ipv4() { NETWORK_LEN_V4 } else { NETWORK_LEN_V6 };
            let network = Prefix::new(ip, len).filter(|_| on_ethernet);
            network.unwrap_or(Prefix::host(ip))
        };
        InterfaceConfig {
            name: "program".into(),
            link: self.link,
            mac: self.mac,
            mtu: config.mtu,
            offloads: self.offloads,
            addresses: own.into_iter().flatten().map(prefix).collect(),
            slaac: false,
            any_address: true,
            kernel_cuts: false,
            in_process: self.in_process,
        }
    }
}
