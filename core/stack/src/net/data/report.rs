//! ICMP and ICMPv6 errors that this host sends about packets of other hosts. The module
//! `error_limit` limits their rate.

use core::net::IpAddr;

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::{IpProtocol, addr, icmpv4, icmpv6, ipv4, ipv6, ipv6_ext, ndp};

use super::ip_packet::IpPacket;
use super::tables::Data;
use crate::net::iface::IfaceId;
use crate::net::ip::{AddressPair, Fragmenting, Ip};
use crate::net::received::Local;

/// Reason for which an ICMP error "destination unreachable" is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unreachable {
    /// There is no route to the destination.
    Net,
    /// The destination does not answer ARP requests or neighbour solicitations.
    Host,
    /// The destination does not support the transport protocol.
    Protocol,
    /// No socket uses the destination port.
    Port,
    /// A packet filter prohibits the communication.
    AdminProhibited,
}

/// A received packet about which an ICMP error is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offender {
    pub iface: IfaceId,
    pub src: IpAddr,
    pub dst: IpAddr,
    /// Offset of the packet's IP header.
    pub ip_offset: usize,
    /// Offset of the end of the IP packet.
    pub end: usize,
    /// Whether the packet was sent to a multicast or broadcast address of IP or of the link layer.
    pub group: bool,
}

impl Offender {
    /// Describes the packet with the headers `ip`, which was received on the interface `iface`.
    /// `group` states whether it was sent to a multicast or broadcast address.
    pub(super) fn of_packet(iface: IfaceId, ip: &IpPacket, group: bool) -> Self {
        let &IpPacket { src, dst, ip_offset, end, .. } = ip;
        Self { iface, src, dst, ip_offset, end, group }
    }

    fn of(local: &Local) -> Self {
        Self {
            iface: local.iface,
            src: local.src,
            dst: local.dst,
            ip_offset: local.ip_offset,
            end: local.offset + local.len,
            group: local.broadcast_or_multicast,
        }
    }
}

/// An ICMP or ICMPv6 error to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report {
    V4(icmpv4::Message),
    V6(icmpv6::Message),
    /// An ICMPv6 error that is sent even about a multicast packet (RFC 4443 §2.4 e.3).
    V6EvenGroup(icmpv6::Message),
}

impl Report {
    /// Returns the ICMP error for the reason `why`. `named_at` is the offset of the field that
    /// contains the transport protocol.
    pub(super) fn unreachable(
        is_v4: bool,
        why: Unreachable,
        named_at: impl FnOnce() -> usize,
    ) -> Self {
        if is_v4 {
            let code = match why {
                Unreachable::Net => icmpv4::UNREACHABLE_NET,
                Unreachable::Host => icmpv4::UNREACHABLE_HOST,
                Unreachable::Protocol => icmpv4::UNREACHABLE_PROTOCOL,
                Unreachable::Port => icmpv4::UNREACHABLE_PORT,
                Unreachable::AdminProhibited => icmpv4::UNREACHABLE_PROHIBITED,
            };
            return Self::V4(icmpv4::Message::DestUnreachable { code, next_hop_mtu: 0 });
        }
        Self::V6(match why {
            Unreachable::Net => unreachable_v6(icmpv6::UNREACHABLE_NO_ROUTE),
            Unreachable::Host => unreachable_v6(icmpv6::UNREACHABLE_ADDRESS),
            Unreachable::Port => unreachable_v6(icmpv6::UNREACHABLE_PORT),
            Unreachable::AdminProhibited => unreachable_v6(icmpv6::UNREACHABLE_PROHIBITED),
            Unreachable::Protocol => icmpv6::Message::ParamProblem {
                code: icmpv6::PARAM_UNKNOWN_NEXT_HEADER,
                pointer: named_at() as u32,
            },
        })
    }
}

/// Returns whether the ICMP error is "fragmentation needed" or "packet too big".
fn is_too_big(report: Report) -> bool {
    match report {
        Report::V4(icmpv4::Message::DestUnreachable { code, .. }) => {
            code == icmpv4::UNREACHABLE_FRAG_NEEDED
        }
        Report::V6(message) | Report::V6EvenGroup(message) => {
            matches!(message, icmpv6::Message::PacketTooBig { .. })
        }
        Report::V4(_) => false,
    }
}

impl Data {
    /// Sends an ICMP error to the sender of `to`, a packet that could not be delivered. No error is
    /// sent if the RFCs forbid it for such a packet.
    pub(in crate::net) fn unreachable(
        &mut self,
        now: Instant,
        to: &Local,
        why: Unreachable,
        pool: &mut Pool,
    ) {
        let report = Report::unreachable(to.src.is_ipv4(), why, || next_header_at(to));
        self.send_error(now, &to.packet, &Offender::of(to), report, pool);
    }

    /// Sends an ICMP error about a packet, unless the RFCs forbid errors about such packets.
    /// Returns whether an error was sent.
    pub(super) fn send_error(
        &mut self,
        now: Instant,
        packet: &Packet,
        about: &Offender,
        report: Report,
        pool: &mut Pool,
    ) -> bool {
        if !self.may_report(packet, about, report) {
            return false;
        }
        let scope = addr::is_link_local(about.src).then_some(about.iface);
        let from_dst = self.is_local(about.dst) || self.is_any_address(about.iface) && !about.group;
        let src = from_dst.then_some(about.dst);
        let Ok(route) = self.route(now, src, about.src, scope) else { return false };
        if !self.may_send_error(now, about, report) {
            return false;
        }
        self.counters.icmp_errors_sent += 1;
        let error = compose(packet, about, report, pool);
        let protocol = if about.src.is_ipv4() { IpProtocol::ICMP } else { IpProtocol::ICMPV6 };
        let ip = Ip {
            protocol: protocol.0,
            ttl: None,
            tos: self.tos_of_error(packet, about),
            fragmenting: Fragmenting::Anywhere,
            flow_label: 0,
        };
        let ends = AddressPair { src: route.src, dst: about.src };
        // Ignore an error. `send` has already counted the dropped packet, and the caller does not
        // need the result.
        let _ = self.send(now, &route, ends, ip, error, Some(icmpv4::CHECKSUM_OFFSET as u16), pool);
        true
    }

    /// Returns the TOS of an error about an IPv4 packet with `tos`; 0 on a host that is no router.
    //= https://www.rfc-editor.org/rfc/rfc1812#section-4.3.2.5
    //# ICMP error messages SHOULD have their TOS bits set to the same value
    //# as the TOS bits in the packet which provoked the sending of the ICMP
    //# error message, unless setting them to that value would cause the ICMP
    //# error message to be immediately discarded because it could not be
    //# routed to its destination.
    //= https://www.rfc-editor.org/rfc/rfc1812#section-4.3.2.5
    //# All other ICMP error messages (Destination Unreachable,
    //# Redirect, Time Exceeded, and Parameter Problem) SHOULD have their
    //# precedence value set to 6 (INTERNETWORK CONTROL) or 7 (NETWORK
    //# CONTROL).
    fn tos_of_error(&self, packet: &Packet, about: &Offender) -> u8 {
        const INTERNETWORK_CONTROL: u8 = 6 << 5;
        const TOS_BITS: u8 = 0x1e;
        if self.forwarding.is_none() || about.src.is_ipv6() {
            return 0;
        }
        let tos = packet.linear().get(about.ip_offset + 1).copied().unwrap_or(0);
        INTERNETWORK_CONTROL | tos & TOS_BITS
    }

    /// Returns whether the rate limits allow another ICMP error.
    ///
    /// The limit per destination host is checked first, so that errors beyond it do not use up the
    /// common limit. An interface that accepts packets to any address has no limit per host. The
    /// single host behind it may need an error for each of its connects. Path MTU reports have
    /// their own limit, because connections stall without them.
    fn may_send_error(&mut self, now: Instant, about: &Offender, report: Report) -> bool {
        if about.iface == IfaceId::LOOPBACK {
            return true;
        }
        if is_too_big(report) {
            let allowed = self.error_limit.take_too_big(now);
            self.counters.icmp_too_big_limited += u64::from(!allowed);
            return allowed;
        }
        let has_share = self.is_any_address(about.iface);
        if !has_share && !self.error_limit.take_for(now, about.src) {
            self.counters.icmp_errors_limited_host += 1;
            return false;
        }
        let allowed = self.error_limit.take(now, &mut self.random);
        self.counters.icmp_errors_limited += u64::from(!allowed);
        allowed
    }

    //= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.2
    //# An ICMP error message MUST NOT be sent as the result of
    //# receiving:
    //# *    an ICMP error message, or
    //# *    a datagram destined to an IP broadcast or IP multicast
    //# address, or
    //# *    a datagram sent as a link-layer broadcast, or
    //# *    a non-initial fragment, or
    //# *    a datagram whose source address does not define a single
    //# host -- e.g., a zero address, a loopback address, a
    //# broadcast address, a multicast address, or a Class E
    //# address.
    pub(super) fn may_report(&self, packet: &Packet, about: &Offender, report: Report) -> bool {
        if about.group && !matches!(report, Report::V6EvenGroup(_)) {
            return false;
        }
        let one_host = addr::is_unicast(about.src)
            && (about.iface == IfaceId::LOOPBACK || !about.src.is_loopback())
            && !self.here().locals.on(about.iface, about.src).broadcast;
        let bytes = packet.linear().get(about.ip_offset..).unwrap_or_default();
        one_host && !is_error_or_later_fragment(bytes)
    }
}

/// Creates the ICMP error, with as much of the packet as its maximum length allows. The checksum
/// field is 0.
fn compose(packet: &Packet, about: &Offender, report: Report, pool: &mut Pool) -> Packet {
    let room = match report {
        Report::V4(_) => icmpv4::ERROR_PACKET_LEN_MAX - ipv4::HEADER_LEN - icmpv4::HEADER_LEN,
        //= https://www.rfc-editor.org/rfc/rfc4443#section-2.4
        //# (c) Every ICMPv6 error message (type < 128) MUST include as much of
        //# the IPv6 offending (invoking) packet (the packet that caused the
        //# error) as possible without making the error message packet exceed
        //# the minimum IPv6 MTU
        Report::V6(_) | Report::V6EvenGroup(_) => {
            icmpv6::ERROR_PACKET_LEN_MAX - ipv6::HEADER_LEN - icmpv6::HEADER_LEN
        }
    };
    let quote_len = about.end.min(packet.len()).saturating_sub(about.ip_offset).min(room);
    let mut error = pool.take(icmpv4::HEADER_LEN + quote_len);
    let bytes = error.push_back(icmpv4::HEADER_LEN + quote_len).expect("taken with room");
    match report {
        Report::V4(message) => message.emit(bytes),
        Report::V6(message) | Report::V6EvenGroup(message) => message.emit(bytes),
    };
    packet.copy_to(about.ip_offset, &mut bytes[icmpv4::HEADER_LEN..]);
    error
}

/// Returns whether an IP packet is an ICMP error or redirect, or a fragment other than the first.
fn is_error_or_later_fragment(bytes: &[u8]) -> bool {
    if let Ok((header, at)) = ipv4::Header::parse_quoted(bytes) {
        let message = || icmpv4::Message::parse(bytes.get(at..).unwrap_or_default());
        return header.fragment_offset != 0
            || header.protocol == IpProtocol::ICMP
                && message().map_or(true, |(m, _)| m.is_error());
    }
    let Ok((header, _)) = ipv6::Header::parse_quoted(bytes) else { return true };
    match ipv6_ext::walk(bytes, &header) {
        Ok(chain) => {
            let later = chain.fragment.is_some_and(|fragment| fragment.offset != 0);
            let kind = bytes.get(chain.upper_at).copied();
            let error = kind.is_none_or(|kind| kind < 128 || kind == ndp::REDIRECT);
            later || chain.upper == IpProtocol::ICMPV6 && error
        }
        //= https://www.rfc-editor.org/rfc/rfc4443#section-2.4
        //# (e.1) An ICMPv6 error message.
        // The parser rejects a packet with extension headers before the ICMP message. Skip these
        // headers to find the message.
        Err(_) => ipv6_ext::upper_by_lengths(bytes, &header).is_some_and(|upper| {
            let kind = bytes.get(upper.at).copied();
            let is_error = || kind.is_none_or(|kind| kind < 128 || kind == ndp::REDIRECT);
            upper.fragment_offset > 0 || upper.protocol == IpProtocol::ICMPV6 && is_error()
        }),
    }
}

fn unreachable_v6(code: u8) -> icmpv6::Message {
    icmpv6::Message::DestUnreachable { code }
}

/// Returns the offset of the next-header field that contains the transport protocol, counted from
/// the start of the IPv6 header.
fn next_header_at(local: &Local) -> usize {
    let bytes = local.packet.linear().get(local.ip_offset..).unwrap_or_default();
    let header = ipv6::Header::parse_quoted(bytes);
    let chain = header.ok().and_then(|(header, _)| ipv6_ext::walk(bytes, &header).ok());
    chain.map_or(6, |chain| chain.upper_named_at)
}
