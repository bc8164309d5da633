//! Checksums of transport headers whose pseudo-header changes its IP version.

use core::net::{Ipv4Addr, Ipv6Addr};

use towpath_wire::{IpProtocol, checksum, tcp, udp};

use crate::error::Untranslatable;

const DCCP: IpProtocol = IpProtocol(33);
const UDP_LITE: IpProtocol = IpProtocol(136);

/// Addresses of a packet in both versions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BothEnds {
    pub(crate) v4: (Ipv4Addr, Ipv4Addr),
    pub(crate) v6: (Ipv6Addr, Ipv6Addr),
}

impl BothEnds {
    /// Returns the sums of both pseudo-headers. Their lengths are left out, because they are equal.
    fn sums(&self, protocol: IpProtocol) -> [u64; 2] {
        let (v4, v6) = (self.v4, self.v6);
        [checksum::pseudo_v4(v4.0, v4.1, protocol, 0), checksum::pseudo_v6(v6.0, v6.1, protocol, 0)]
    }
}

/// Direction of a translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TranslatedTo {
    V4,
    V6,
}

/// Replaces a sum that is part of a checksum by another one, by the difference (RFC 1624).
pub(crate) fn replaced(sum: u16, old: u64, new: u64) -> u16 {
    checksum::finish(
        u64::from(!sum) + u64::from(!checksum::fold(old)) + u64::from(checksum::fold(new)),
    )
}

/// Updates the checksum in the transport header at the start of `transport`. A header that is cut
/// off in front of its checksum stays as it is.
///
/// A damaged packet stays damaged, because the checksum changes by the difference only.
pub(crate) fn update_transport(
    transport: &mut [u8],
    protocol: IpProtocol,
    ends: &BothEnds,
    towards: TranslatedTo,
) {
    let at = match protocol {
        IpProtocol::TCP => tcp::CHECKSUM_OFFSET,
        IpProtocol::UDP | UDP_LITE | DCCP => udp::CHECKSUM_OFFSET,
        _ => return,
    };
    let Some([hi, lo]) = transport.get_mut(at..at + 2) else { return };
    let sum = u16::from_be_bytes([*hi, *lo]);
    if sum == 0 && protocol == IpProtocol::UDP {
        return;
    }
    let [v4, v6] = ends.sums(protocol);
    let (old, new) = if towards == TranslatedTo::V4 { (v6, v4) } else { (v4, v6) };
    let mut sum = replaced(sum, old, new);
    if sum == 0 && protocol == IpProtocol::UDP {
        sum = 0xffff;
    }
    [*hi, *lo] = sum.to_be_bytes();
}

/// Computes the checksum of a whole UDP datagram that has none, because IPv6 requires one.
pub(crate) fn fill_udp(
    datagram: &mut [u8],
    v6: (Ipv6Addr, Ipv6Addr),
) -> Result<(), Untranslatable> {
    let at = udp::CHECKSUM_OFFSET;
    if datagram.len() < 8 {
        return Err(Untranslatable::Malformed);
    }
    let pseudo = checksum::pseudo_v6(v6.0, v6.1, IpProtocol::UDP, datagram.len() as u32);
    let sum = match checksum::finish(checksum::sum(datagram, pseudo)) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}
