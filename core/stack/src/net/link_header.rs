//! Link headers, ready to be put in front of packets.

use core::net::IpAddr;

use towpath_wire::MacAddr;
use towpath_wire::ethernet::{self, EtherType};

/// The bytes in front of each packet to one neighbour, group or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkHeader {
    bytes: [u8; ethernet::HEADER_LEN],
    len: u8,
}

impl LinkHeader {
    /// A link that knows no neighbours.
    pub(super) const NONE: Self = Self { bytes: [0; ethernet::HEADER_LEN], len: 0 };

    /// The header of IP packets from `src` to `dst` on an Ethernet; `to` gives the IP version.
    pub(super) fn ethernet(src: MacAddr, dst: MacAddr, to: IpAddr) -> Self {
        let ethertype = if to.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let mut bytes = [0; ethernet::HEADER_LEN];
        let len = ethernet::Header { dst, src, vlan: None, ethertype }.emit(&mut bytes);
        Self { bytes, len: len as u8 }
    }

    /// The station that packets go to.
    pub(super) fn dst(&self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = self.bytes;
        MacAddr([a, b, c, d, e, f])
    }

    /// The bytes of a header of an Ethernet; `None` on a link without headers.
    #[inline]
    pub(super) fn whole(&self) -> Option<&[u8; ethernet::HEADER_LEN]> {
        (self.len > 0).then_some(&self.bytes)
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
