//! Complete link headers, which are prepended to packets.

use core::net::IpAddr;

use towpath_wire::MacAddr;
use towpath_wire::ethernet::{self, EtherType};

/// Link header of all packets to one neighbour or multicast group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkHeader {
    bytes: [u8; ethernet::HEADER_LEN],
    len: u8,
}

impl LinkHeader {
    /// Empty header, for a link whose packets have no link header.
    pub(super) const NONE: Self = Self { bytes: [0; ethernet::HEADER_LEN], len: 0 };

    /// Creates an Ethernet header from `src` to `dst`. The IP version of `to` determines the
    /// Ethernet type.
    pub(super) fn ethernet(src: MacAddr, dst: MacAddr, to: IpAddr) -> Self {
        let ethertype = if to.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let mut bytes = [0; ethernet::HEADER_LEN];
        let len = ethernet::Header { dst, src, vlan: None, ethertype }.emit(&mut bytes);
        Self { bytes, len: len as u8 }
    }

    /// Returns the destination MAC address of the link header.
    pub(super) fn dst(&self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = self.bytes;
        MacAddr([a, b, c, d, e, f])
    }

    /// Returns the bytes of an Ethernet header; `None` if the link header is empty.
    #[inline]
    pub(super) fn whole(&self) -> Option<&[u8; ethernet::HEADER_LEN]> {
        (self.len > 0).then_some(&self.bytes)
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
