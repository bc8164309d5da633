//! Receive path: from a frame that a device received to a packet for the control part or for the
//! sockets.

use core::net::IpAddr;

use towpath_pool::{Checksum, LinkType, Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::{IpProtocol, addr, ndp};

use super::headers::{HeaderRefusal, is_discovery, read_ipv4, read_ipv6};
use super::ip_packet::IpPacket;
use super::offload_check;
use super::reassembly::{Added, Fragment, GivenUp, Key};
use super::report::{Offender, Report};
use super::tables::Data;
use super::verdict::RoutingVerdict;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::messages::ControlPacket;
use crate::net::received::{Local, Looped, Received};

/// Fields of the link header of a received frame.
#[derive(Debug, Clone, Copy)]
struct FrameHeader {
    ethertype: EtherType,
    /// Offset of the link header's payload in the frame.
    at: usize,
    /// Whether the destination MAC address is multicast or broadcast.
    group: bool,
}

/// An error in the IP headers of a packet with valid addresses. The routing decision about the
/// packet determines how the error is handled.
enum HeaderFault {
    /// An error in the header, which the destination host reports to the sender by ICMP.
    Report(Report),
    /// Extension headers that this host cannot parse. The packet is dropped, unless it is for
    /// another host, which may support them.
    //= https://www.rfc-editor.org/rfc/rfc7045#section-2.1
    //# Any forwarding node along an IPv6 packet's path, which forwards the
    //# packet for any reason, SHOULD do so regardless of any extension
    //# headers that are present
    Unread(DropReason),
}

impl HeaderFault {
    fn report(self) -> Option<Report> {
        match self {
            Self::Report(report) => Some(report),
            Self::Unread(_) => None,
        }
    }
}

/// Parsed IP headers of a received frame.
struct ReadFrame {
    ip: IpPacket,
    /// An error in the headers. The routing decision determines whether it is reported by ICMP,
    /// ignored, or leads to a drop.
    fault: Option<HeaderFault>,
    /// Whether the destination MAC address was multicast or broadcast.
    link_group: bool,
}

impl Data {
    /// Receives one packet from the device of the interface `iface`. Returns `None` if the packet
    /// is not for the sockets. The packet is then for the control part, was consumed (an echo
    /// request, a fragment), or was dropped and counted.
    pub(in crate::net) fn receive(
        &mut self,
        now: Instant,
        iface: IfaceId,
        mut packet: Packet,
        pool: &mut Pool,
    ) -> Option<Received> {
        self.counters.received += 1;
        self.counters.received_bytes += packet.len() as u64;
        if packet.meta.checksum == Checksum::Unknown {
            // Copy bytes that are in memory shared with another process, because the process could
            // change them after the checksum was verified.
            packet.linearize(pool);
        }
        let link = match self.read_link(iface, &packet) {
            Ok(link) => link,
            Err(reason) => return self.refuse(iface, packet, reason, pool),
        };
        let ip = match link.ethertype {
            EtherType::IPV4 => read_ipv4(&packet, link.at, false),
            EtherType::IPV6 => read_ipv6(&packet, link.at),
            EtherType::ARP => {
                self.punts.push_back(ControlPacket::Arp { iface, packet, at: link.at });
                return None;
            }
            _ => Err(DropReason::FrameUnknown.into()),
        };
        if packet.meta.has_offloads()
            && let Ok(ip)
            | Err(HeaderRefusal::Problem { ip, .. } | HeaderRefusal::Unread { ip, .. }) = &ip
            && !offload_check::is_consistent(&packet, ip)
        {
            return self.refuse(iface, packet, DropReason::OffloadInvalid, pool);
        }
        let (ip, fault) = match ip {
            Ok(ip) => (ip, None),
            Err(HeaderRefusal::Silently(reason)) => {
                return self.refuse(iface, packet, reason, pool);
            }
            Err(HeaderRefusal::Problem { report, ip }) => (ip, Some(HeaderFault::Report(report))),
            Err(HeaderRefusal::Unread { reason, ip }) => (ip, Some(HeaderFault::Unread(reason))),
        };
        let frame = ReadFrame { ip, fault, link_group: link.group };
        self.receive_ip(now, iface, frame, packet, pool)
    }

    /// Handles an IP packet whose headers were parsed: makes the routing decision, and delivers,
    /// forwards or drops the packet.
    fn receive_ip(
        &mut self,
        now: Instant,
        iface: IfaceId,
        frame: ReadFrame,
        mut packet: Packet,
        pool: &mut Pool,
    ) -> Option<Received> {
        let ReadFrame { mut ip, fault, link_group } = frame;
        let verdict = match self.hooks.is_idle() {
            true => Ok(self.verdict(iface, ip.src, ip.dst, link_group)),
            false => self.verdict_at_hooks(now, iface, link_group, &mut ip, &mut packet),
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(refusal) => {
                self.refuse_at_hook(now, iface, &ip, refusal, packet, pool);
                return None;
            }
        };
        let group = match (verdict, fault) {
            (RoutingVerdict::Local { group }, None) => group,
            (RoutingVerdict::Forward, fault) => {
                let report = fault.and_then(HeaderFault::report);
                self.forward(now, iface, &mut ip, report, packet, pool);
                return None;
            }
            (_, Some(HeaderFault::Unread(reason))) => {
                return self.refuse(iface, packet, reason, pool);
            }
            (RoutingVerdict::Local { group }, Some(HeaderFault::Report(report))) => {
                let about = Offender::of_packet(iface, &ip, group);
                return self.refuse_for(now, &about, packet, report, pool);
            }
            // The packet is for another host, so drop it. No ICMP error is sent about its headers.
            (RoutingVerdict::Drop(_), Some(HeaderFault::Report(_))) => {
                return self.refuse(iface, packet, DropReason::IpMalformed, pool);
            }
            (RoutingVerdict::Drop(DropReason::Martian), None) if is_claim(&packet, &ip) => true,
            (RoutingVerdict::Drop(reason), None) => {
                return self.refuse(iface, packet, reason, pool);
            }
        };
        match ip.fragment {
            None => self.deliver(now, iface, &ip, group, packet, pool),
            Some(_) => self.receive_fragment(now, iface, &ip, group, packet, pool),
        }
    }

    /// Receives one packet of the loopback queue. Returns `None` in the same cases as
    /// [`receive`](Self::receive).
    pub(in crate::net) fn receive_looped(
        &mut self,
        now: Instant,
        looped: Looped,
        pool: &mut Pool,
    ) -> Option<Received> {
        let Looped { iface, packet } = looped;
        self.counters.received += 1;
        self.counters.received_bytes += packet.len() as u64;
        let ip = match is_ipv4(&packet) {
            true => read_ipv4(&packet, 0, true),
            false => read_ipv6(&packet, 0),
        };
        // Only `send` adds packets to the loopback queue, and its packets are complete and valid.
        // Another packet would be a bug, so drop it.
        let Ok(ip @ IpPacket { fragment: None, .. }) = ip else {
            return self.refuse(IfaceId::LOOPBACK, packet, DropReason::IpMalformed, pool);
        };
        match self.verdict_of_looped(iface, ip.dst) {
            RoutingVerdict::Local { group } => {
                if is_for_sockets(&ip) {
                    return self.hand_over(iface, &ip, group, packet, true);
                }
                self.receive_own(now, local_of(iface, &ip, group, packet, true), pool)
            }
            RoutingVerdict::Drop(reason) => self.refuse(IfaceId::LOOPBACK, packet, reason, pool),
            // Unreachable, because `verdict_of_looped` never returns `Forward`.
            RoutingVerdict::Forward => {
                self.refuse(IfaceId::LOOPBACK, packet, DropReason::NotLocal, pool)
            }
        }
    }

    /// Delivers a packet for this host to the control part or to the sockets. The packet is not a
    /// fragment, or was reassembled.
    fn deliver(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        group: bool,
        packet: Packet,
        pool: &mut Pool,
    ) -> Option<Received> {
        match is_for_sockets(ip) {
            true => self.hand_over(iface, ip, group, packet, false),
            false => self.receive_own(now, local_of(iface, ip, group, packet, false), pool),
        }
    }

    /// Passes a packet to the sockets. Creates the result in place, which saves a copy per packet.
    #[inline]
    fn hand_over(
        &mut self,
        iface: IfaceId,
        ip: &IpPacket,
        group: bool,
        packet: Packet,
        looped: bool,
    ) -> Option<Received> {
        self.counters.delivered += 1;
        Some(Received::Local(local_of(iface, ip, group, packet, looped)))
    }

    /// Receives a packet with a protocol of the IP layer, for which [`is_for_sockets`] is false.
    fn receive_own(&mut self, now: Instant, local: Local, pool: &mut Pool) -> Option<Received> {
        match IpProtocol(local.protocol) {
            IpProtocol::IGMP => {
                self.punts.push_back(ControlPacket::Igmp(local));
                None
            }
            IpProtocol::NO_NEXT_HEADER => give(local.packet, pool),
            _ => self.receive_icmp(now, local, pool),
        }
    }

    fn refuse(
        &mut self,
        iface: IfaceId,
        packet: Packet,
        reason: DropReason,
        pool: &mut Pool,
    ) -> Option<Received> {
        self.drop(iface, packet, reason, pool);
        None
    }

    fn read_link(&self, iface: IfaceId, packet: &Packet) -> Result<FrameHeader, DropReason> {
        let interface = self.link(iface);
        let bytes = packet.linear();
        if interface.kind == LinkType::Ip {
            let ethertype = match bytes.first().map(|first| first >> 4) {
                Some(4) => EtherType::IPV4,
                Some(6) => EtherType::IPV6,
                _ => return Err(DropReason::IpMalformed),
            };
            return Ok(FrameHeader { ethertype, at: 0, group: false });
        }
        let (header, at) =
            ethernet::Header::parse(bytes).map_err(|_| DropReason::FrameMalformed)?;
        // Accept VLAN identifier 0, because such a tag contains only a priority.
        let vlan = header.vlan.map_or(0, |tag| tag.id) | packet.meta.vlan.unwrap_or(0) & 0x0fff;
        if vlan != 0 {
            return Err(DropReason::FrameUnknown);
        }
        // Drop frames that this interface sent and that the link returned. Otherwise our own
        // neighbour solicitation would look like that of a host with a duplicate address.
        let ours = header.dst == interface.mac || header.dst.is_multicast();
        if !ours || header.src == interface.mac {
            return Err(DropReason::FrameNotOurs);
        }
        if header.ethertype.is_length() {
            return Err(DropReason::FrameMalformed);
        }
        Ok(FrameHeader { ethertype: header.ethertype, at, group: header.dst.is_multicast() })
    }

    fn receive_fragment(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        group: bool,
        mut packet: Packet,
        pool: &mut Pool,
    ) -> Option<Received> {
        let Some(piece) = ip.fragment else {
            return self.deliver(now, iface, ip, group, packet, pool);
        };
        self.counters.fragments_received += 1;
        let protocol = if ip.src.is_ipv4() { ip.protocol.0 } else { 0 };
        let fragment = Fragment {
            key: Key { iface, src: ip.src, dst: ip.dst, protocol, ident: piece.ident },
            offset: piece.offset,
            more: piece.more,
            header: (ip.ip_offset, ip.offset),
            end: ip.end,
            tos: ip.tos,
            next_header: piece.next_header.map(|(at, header)| (at as usize, header)),
            group,
        };
        packet.linearize(pool);
        let added = self.reassembly.add(now, &fragment, &packet, pool);
        self.count_given_up();
        match added {
            Added::Kept | Added::Duplicate => give(packet, pool),
            Added::Lost(DropReason::FragmentLimit) => {
                self.counters.fragments_too_many += 1;
                self.refuse(iface, packet, DropReason::FragmentLimit, pool)
            }
            Added::Lost(reason) => self.refuse(iface, packet, reason, pool),
            Added::Complete(whole) => {
                pool.give(packet);
                self.counters.reassembled += 1;
                self.receive_whole(now, iface, group, whole, pool)
            }
        }
    }

    fn count_given_up(&mut self) {
        let GivenUp { source, all } = self.reassembly.take_given_up();
        self.counters.reassembly_source_full += source;
        self.counters.reassembly_full += all;
        for _ in 0..source + all {
            self.counters.drops.count(DropReason::FragmentLimit);
        }
    }

    /// Receives a reassembled packet, which begins with its IP header. The addresses were already
    /// checked for each of its fragments.
    fn receive_whole(
        &mut self,
        now: Instant,
        iface: IfaceId,
        group: bool,
        packet: Packet,
        pool: &mut Pool,
    ) -> Option<Received> {
        let ip = match is_ipv4(&packet) {
            true => read_ipv4(&packet, 0, false),
            false => read_ipv6(&packet, 0),
        };
        match ip {
            Ok(ip) if is_discovery(&packet, &ip) => {
                self.refuse(iface, packet, DropReason::NeighborMalformed, pool)
            }
            Ok(ip) if ip.fragment.is_none() => self.deliver(now, iface, &ip, group, packet, pool),
            Ok(_) => self.refuse(iface, packet, DropReason::FragmentInvalid, pool),
            Err(HeaderRefusal::Silently(reason) | HeaderRefusal::Unread { reason, .. }) => {
                self.refuse(iface, packet, reason, pool)
            }
            Err(HeaderRefusal::Problem { report, ip }) => {
                self.refuse_for(now, &Offender::of_packet(iface, &ip, group), packet, report, pool)
            }
        }
    }

    /// Drops a packet for this host, because of an error in its options or extension headers, and
    /// reports the error by ICMP.
    fn refuse_for(
        &mut self,
        now: Instant,
        about: &Offender,
        packet: Packet,
        report: Report,
        pool: &mut Pool,
    ) -> Option<Received> {
        self.send_error(now, &packet, about, report, pool);
        self.refuse(about.iface, packet, DropReason::IpMalformed, pool)
    }
}

/// Returns whether the packet is a neighbour advertisement that another host may send from an
/// address of this host. Linux sends one when it defends its address (RFC 4861 section 7.2.4).
#[cold]
fn is_claim(packet: &Packet, ip: &IpPacket) -> bool {
    let own = |src| matches!(src, IpAddr::V6(v6) if addr::is_valid_source_v6(v6));
    ip.fragment.is_none()
        && ip.protocol == IpProtocol::ICMPV6
        && own(ip.src)
        && ip.dst == IpAddr::V6(addr::ALL_NODES)
        && packet.linear().get(ip.offset) == Some(&ndp::NEIGHBOR_ADVERT)
}

fn give(packet: Packet, pool: &mut Pool) -> Option<Received> {
    pool.give(packet);
    None
}

/// Returns whether a packet, which starts with its IP header, is IPv4.
fn is_ipv4(packet: &Packet) -> bool {
    packet.linear().first().is_some_and(|first| first >> 4 == 4)
}

/// Returns whether the packet's protocol is one of sockets, or unknown. Otherwise the IP layer
/// itself receives the packet.
#[inline]
fn is_for_sockets(ip: &IpPacket) -> bool {
    match ip.protocol {
        IpProtocol::ICMP | IpProtocol::IGMP => ip.src.is_ipv6(),
        IpProtocol::ICMPV6 | IpProtocol::NO_NEXT_HEADER => ip.src.is_ipv4(),
        _ => true,
    }
}

/// Creates the packet that is passed to the sockets. The padding of a short frame is removed.
#[inline]
fn local_of(iface: IfaceId, ip: &IpPacket, group: bool, mut packet: Packet, looped: bool) -> Local {
    packet.truncate(ip.end);
    Local {
        packet,
        iface,
        src: ip.src,
        dst: ip.dst,
        protocol: ip.protocol.0,
        ttl: ip.ttl,
        tos: ip.tos,
        ip_offset: ip.ip_offset,
        offset: ip.offset,
        len: ip.end - ip.offset,
        broadcast_or_multicast: group,
        looped,
    }
}
