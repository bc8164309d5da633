//! Kinds of links between the inner stack (the gateway's own) and the stacks whose flows it
//! accepts.

use std::net::IpAddr;

use towpath_pool::{LinkType, Offloads, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_wire::{MacAddr, Prefix};

use crate::config::GatewayConfig;
use crate::link::OFFLOADS;

/// Properties of the link to which a [`Gateway`](crate::Gateway) is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outer {
    /// Whether packets on the link have an Ethernet header.
    pub link: LinkType,
    /// Ethernet address of the gateway; ignored on IP links.
    pub mac: MacAddr,
    /// Offloads (such as checksums) that the peer on the link performs for packets of the gateway.
    pub offloads: Offloads,
    /// Whether the peer on the link is a stack in this process. Otherwise packets may be forged or
    /// lost, and the host may route the gateway's own connections back to it.
    pub in_process: bool,
}

/// Prefix lengths of the gateway's own networks, used if the link is Ethernet.
const NETWORK_LEN_V4: u8 = 24;
const NETWORK_LEN_V6: u8 = 64;
/// Length of an Ethernet header in bytes (IEEE 802.3).
const ETHERNET_HEADER_LEN: usize = 14;

impl Outer {
    /// In-memory link to a stack in this process.
    pub const IN_MEMORY: Self =
        Self { link: LinkType::Ip, mac: MacAddr([0; 6]), offloads: OFFLOADS, in_process: true };

    /// Creates the description of a link through a device. On Ethernet, the gateway has the MAC
    /// address `mac`.
    pub fn device(port: &(impl Port + ?Sized), mac: MacAddr) -> Self {
        Self { link: port.link_type(), mac, offloads: port.offloads(), in_process: false }
    }

    /// Returns the offset of the IP header in a packet, in bytes.
    pub(crate) fn ip_offset(&self) -> usize {
        match self.link {
            LinkType::Ip => 0,
            LinkType::Ethernet => ETHERNET_HEADER_LEN,
        }
    }

    /// Returns the configuration of the inner stack's interface. On Ethernet, its addresses answer
    /// ARP and NDP.
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
