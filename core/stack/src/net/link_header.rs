//! Complete link headers that are prepended to packets.

use core::net::IpAddr;

use towpath_wire::MacAddr;
use towpath_wire::ethernet::{self, EtherType};

/// Link header of all packets to one neighbour or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkHeader {
    bytes: [u8; ethernet::HEADER_LEN],
    len: u8,
}

impl LinkHeader {
    /// Empty header of a link without link headers.
    pub(super) const NONE: Self = Self { bytes: [0; ethernet::HEADER_LEN], len: 0 };

    /// Creates an Ethernet header from `src` to `dst`; the family of `to` determines the EtherType.
    pub(super) fn ethernet(src: MacAddr, dst: MacAddr, to: IpAddr) -> Self {
        let ethertype = if to.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let mut bytes = [0; ethernet::HEADER_LEN];
        let len = ethernet::Header { dst, src, vlan: None, ethertype }.emit(&mut bytes);
        Self { bytes, len: len as u8 }
    }

    /// Returns the destination MAC address.
    pub(super) fn dst(&self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = self.bytes;
        MacAddr([a, b, c, d, e, f])
    }

    /// Returns the bytes of an Ethernet header; `None` for an empty header.
    #[inline]
    pub(super) fn whole(&self) -> Option<&[u8; ethernet::HEADER_LEN]> {
        (self.len > 0).then_some(&self.bytes)
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
