//! A packet at a hook, and the changes that a tracker may make to it.
//!
//! ```text
//!  received  │ link │ IP header │ extensions │ transport header │ payload
//!                   ▲ ip.ip_offset           ▲ transport
//!  to send                                   │ transport header │ payload     `send` adds the rest
//! ```
//!
//! Each change updates the checksums above it by the difference (RFC 1624), so that a damaged
//! packet stays damaged. A checksum that is left to a device stays incomplete: its field has only
//! the sum of the pseudo-header, which changes with the addresses. Segmentation needs no change,
//! because segments copy the headers.

use core::net::IpAddr;

use towpath_filter::{Fields, FlowState};
use towpath_pool::{Checksum, Packet};
use towpath_wire::ipv6_ext::UpperLayer;
use towpath_wire::{IpProtocol, checksum, icmpv4, tcp, udp};

use super::fields::{self, DCCP, UDP_LITE};
use super::ip_packet::{FragmentPiece, IpPacket, Tracked};
use crate::net::iface::IfaceId;
use crate::net::ip::AddressPair;

/// Offset of the checksum field in an IPv4 header.
const IPV4_CHECKSUM_AT: usize = 10;

/// A packet at a [`Hook`](towpath_filter::Hook), which a [`Tracker`](super::Tracker) may rewrite.
#[derive(Debug)]
pub struct HookPacket<'a> {
    packet: &'a mut Packet,
    /// IP headers of a received packet. `None` for a packet that this host sends, because its IP
    /// header is added later.
    ip: Option<&'a mut IpPacket>,
    /// Offset of the transport header in the packet; `None` for a fragment other than the first.
    transport: Option<usize>,
    token: u64,
    pub(super) fields: Fields,
}

/// Returns the offset of the checksum field in a transport header; `None` for an unsupported
/// protocol.
fn checksum_offset(protocol: IpProtocol) -> Option<usize> {
    match protocol {
        IpProtocol::TCP => Some(tcp::CHECKSUM_OFFSET),
        IpProtocol::UDP | UDP_LITE | DCCP => Some(udp::CHECKSUM_OFFSET),
        IpProtocol::ICMP | IpProtocol::ICMPV6 => Some(icmpv4::CHECKSUM_OFFSET),
        _ => None,
    }
}

impl<'a> HookPacket<'a> {
    /// Creates the view of a packet received on the interface `iface`. `upper` is its transport
    /// header; `None` for a fragment other than the first.
    pub(super) fn received(
        packet: &'a mut Packet,
        ip: &'a mut IpPacket,
        upper: Option<UpperLayer>,
        iface: IfaceId,
    ) -> Self {
        let protocol = upper.map_or(ip.protocol, |upper| upper.protocol);
        let mut fields = fields::of_ends(ip.src, ip.dst, protocol);
        fields.iface_in = Some(iface.0);
        let Tracked { token, state, mark } = ip.tracked;
        let token = u64::from_ne_bytes(token);
        (fields.state, fields.mark) = (state, u32::from_ne_bytes(mark));
        let transport = upper.filter(|upper| upper.fragment_offset == 0).map(|upper| upper.at);
        let mut hooked = Self { packet, ip: Some(ip), transport, token, fields };
        hooked.read_transport();
        hooked
    }

    /// Creates the view of a packet that this host sends on the interface `out`. The packet begins
    /// with its transport header, because the IP header is added later.
    pub(super) fn to_send(
        packet: &'a mut Packet,
        ends: AddressPair,
        protocol: u8,
        out: IfaceId,
    ) -> Self {
        let mut fields = fields::of_ends(ends.src, ends.dst, IpProtocol(protocol));
        fields.iface_out = Some(out.0);
        let mut hooked = Self { packet, ip: None, transport: Some(0), token: 0, fields };
        hooked.read_transport();
        hooked
    }

    fn read_transport(&mut self) {
        let mut fields = self.fields;
        fields::read_transport(&mut fields, self.transport());
        self.fields = fields;
    }

    /// Returns the header fields of the packet, including changes by the tracker. The fields also
    /// contain the hook and the interfaces.
    #[inline]
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Returns the packet's length in bytes, from the IP header on, or from the transport header if
    /// the IP header is not added yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.ip.as_ref().map_or(self.packet.len(), |ip| ip.end - ip.ip_offset)
    }

    /// Returns the length of the transport header and the payload in bytes; 0 for a fragment other
    /// than the first.
    #[inline]
    pub fn transport_len(&self) -> usize {
        let end = self.ip.as_ref().map_or(self.packet.len(), |ip| ip.end);
        self.transport.map_or(0, |at| end.saturating_sub(at))
    }

    /// Returns the identification of a fragment, and its offset in bytes; `None` if the packet is
    /// not fragmented.
    #[inline]
    pub fn fragment(&self) -> Option<(u32, usize)> {
        let piece = self.ip.as_ref()?.fragment;
        piece.map(|FragmentPiece { ident, offset, .. }| (ident, offset))
    }

    /// Returns the number (token) that the tracker, such as NAT, attached to the packet at an
    /// earlier hook; 0 if it attached none.
    #[inline]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Attaches a number (token) to the packet, which the tracker, such as NAT, can read at later
    /// hooks. Also sets the connection state that rules match.
    #[inline]
    pub fn set_tracked(&mut self, token: u64, state: FlowState) {
        (self.token, self.fields.state) = (token, state);
        if let Some(ip) = &mut self.ip {
            (ip.tracked.token, ip.tracked.state) = (token.to_ne_bytes(), state);
        }
    }

    /// Stores the mark that rules have set, so that rules at later hooks can match it.
    pub(super) fn keep_mark(&mut self) {
        if let Some(ip) = &mut self.ip {
            ip.tracked.mark = self.fields.mark.to_ne_bytes();
        }
    }

    /// Returns whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the transport header, and the part of the payload that is in the same memory. Empty
    /// for a fragment other than the first, which has no transport header.
    pub fn transport(&self) -> &[u8] {
        let linear = self.packet.linear();
        // Exclude padding of the link layer after the end of the IP packet.
        let end = self.ip.as_ref().map_or(linear.len(), |ip| ip.end.min(linear.len()));
        self.transport.and_then(|at| linear.get(at..end)).unwrap_or_default()
    }

    /// Replaces the source address of the packet by `src`, which must be of the same IP version.
    pub fn set_src(&mut self, src: IpAddr) {
        const AT: [usize; 2] = [12, 8];
        let old = core::mem::replace(&mut self.fields.src, src);
        self.set_address(AT, old, src, |ip| ip.src = src);
    }

    /// Replaces the destination address of the packet by `dst`, which must be of the same IP
    /// version. At the hooks prerouting and output, the route is looked up after the change. At
    /// later hooks the packet keeps its route.
    pub fn set_dst(&mut self, dst: IpAddr) {
        const AT: [usize; 2] = [16, 24];
        let old = core::mem::replace(&mut self.fields.dst, dst);
        self.set_address(AT, old, dst, |ip| ip.dst = dst);
    }

    /// Replaces the source and destination port. Changes nothing and returns false if the packet
    /// has no ports, or if its checksum cannot be updated incrementally (SCTP).
    pub fn set_ports(&mut self, src: u16, dst: u16) -> bool {
        let ([a, b], [c, d]) = (src.to_be_bytes(), dst.to_be_bytes());
        self.fields.ports.is_some() && self.rewrite(0, &[a, b, c, d])
    }

    /// Replaces bytes at offset `at` of [`transport`](Self::transport): an ICMP identifier, or the
    /// packet that an ICMP error quotes. Offset and length must be even. Changes nothing and
    /// returns false if the range is out of bounds, or if the location of the protocol's checksum
    /// is not known.
    pub fn rewrite(&mut self, at: usize, bytes: &[u8]) -> bool {
        debug_assert!(at.is_multiple_of(2) && bytes.len().is_multiple_of(2));
        let is_known = checksum_offset(IpProtocol(self.fields.protocol)).is_some();
        let Some(old) = self.transport().get(at..at + bytes.len()).filter(|_| is_known) else {
            return false;
        };
        let (old, new) = (checksum::sum(old, 0), checksum::sum(bytes, 0));
        let start = self.transport.unwrap_or_default() + at;
        self.packet.linear_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        self.update_checksum(false, |sum| {
            checksum::finish(u64::from(!sum) + u64::from(!checksum::fold(old)) + new)
        });
        self.read_transport();
        true
    }

    /// Writes an address into the IP header, at the first offset for IPv4 or at the second for
    /// IPv6.
    fn set_address(
        &mut self,
        at: [usize; 2],
        old: IpAddr,
        new: IpAddr,
        note: impl FnOnce(&mut IpPacket),
    ) {
        debug_assert_eq!(old.is_ipv4(), new.is_ipv4(), "translation between families");
        let Some(ip) = &mut self.ip else { return };
        note(ip);
        ip.is_rewritten = true;
        let header = &mut self.packet.linear_mut()[ip.ip_offset..];
        match new {
            IpAddr::V4(new) => {
                header[at[0]..][..4].copy_from_slice(&new.octets());
                update_field(header, IPV4_CHECKSUM_AT, |sum| update(sum, old, new.into()));
            }
            IpAddr::V6(new) => header[at[1]..][..16].copy_from_slice(&new.octets()),
        }
        if self.fields.protocol != IpProtocol::ICMP.0 {
            self.update_checksum(true, |sum| update(sum, old, new));
        }
    }

    /// Updates the transport checksum of the packet by calling `change`, after bytes that the
    /// checksum covers have changed.
    fn update_checksum(&mut self, is_pseudo: bool, change: impl FnOnce(u16) -> u16) {
        let protocol = IpProtocol(self.fields.protocol);
        let (Some(start), Some(offset), Some(ip)) =
            (self.transport, checksum_offset(protocol), &self.ip)
        else {
            // The packet is sent by this host, so `send` computes its checksum later. No update is
            // needed.
            return;
        };
        let left_out = Checksum::Partial { start: start as u16, offset: offset as u16 };
        let is_left_out = self.packet.meta.checksum == left_out;
        let at = start + offset;
        let is_there = at + 2 <= ip.end.min(self.packet.linear().len());
        if !is_there || is_left_out && !is_pseudo {
            return;
        }
        let is_udp = protocol == IpProtocol::UDP;
        update_field(self.packet.linear_mut(), at, |sum| match sum {
            _ if is_left_out => !change(!sum),
            // The UDP datagram has no checksum, so leave the field 0.
            0 if is_udp => 0,
            _ => match change(sum) {
                0 if is_udp => 0xffff,
                sum => sum,
            },
        });
    }
}

fn update_field(bytes: &mut [u8], at: usize, change: impl FnOnce(u16) -> u16) {
    let sum = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    bytes[at..at + 2].copy_from_slice(&change(sum).to_be_bytes());
}

/// Returns the updated checksum `sum`, after an address that it covers changed from `old` to `new`.
fn update(sum: u16, old: IpAddr, new: IpAddr) -> u16 {
    match (old, new) {
        (IpAddr::V4(old), IpAddr::V4(new)) => checksum::update32(sum, old.to_bits(), new.to_bits()),
        (IpAddr::V6(old), IpAddr::V6(new)) => checksum::update_v6(sum, old, new),
        _ => sum,
    }
}
