//! The receive path: from a frame of a device to a packet or message for this host.

use core::net::IpAddr;

use towpath_pool::{Checksum, LinkType, Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::ipv6_ext::{self, ChainError, UpperLayer};
use towpath_wire::{IpProtocol, addr, icmpv4, icmpv6, ipv4, ipv6, ndp};

use super::offload_check;
use super::reassembly::{Added, Fragment, GivenUp, Key};
use super::report::{Offender, Report};
use super::tables::Data;
use super::verdict::Verdict;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::messages::ControlPacket;
use crate::net::received::{Local, Looped, Received};

/// Fields of the link header.
#[derive(Debug, Clone, Copy)]
struct FrameHeader {
    ethertype: EtherType,
    /// Where the payload starts.
    at: usize,
    /// To a group of stations.
    group: bool,
}

/// Fields of the IP headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct IpPacket {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: IpProtocol,
    pub ttl: u8,
    tos: u8,
    /// Place of the IP header.
    pub ip_offset: usize,
    /// End of the IP headers, as far as they were read.
    pub offset: usize,
    /// End of the IP packet.
    pub end: usize,
    pub fragment: Option<Piece>,
}

/// Fields of a fragment's headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub offset: usize,
    pub more: bool,
    ident: u32,
    next_header: Option<(usize, u8)>,
}

/// Reason why IP headers are refused, and the error for the sender.
#[derive(Debug)]
enum Refused {
    Silently(DropReason),
    Problem {
        report: Report,
        ip: IpPacket,
    },
    /// Extension headers that only their receiver has to understand: a router sends them on.
    Unread {
        reason: DropReason,
        ip: IpPacket,
    },
}

/// A fault of a packet whose addresses are valid. The verdict decides what it means.
enum HeaderFault {
    /// Its receiver reports it.
    Report(Report),
    /// Extension headers that this host cannot read. The packet is dropped, unless it is for
    /// another host, which may be able to read them.
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

impl From<DropReason> for Refused {
    fn from(reason: DropReason) -> Self {
        Self::Silently(reason)
    }
}

impl IpPacket {
    /// The headers of a packet whose IPv4 header at `at` is valid, has no options and is of no
    /// fragment.
    #[inline]
    pub(super) fn of_plain_v4(packet: &Packet, at: usize) -> Option<Self> {
        let (header, len) = ipv4::Header::parse_quoted(packet.linear().get(at..)?).ok()?;
        Some(Self::of_v4(&header, at, len, None))
    }

    /// Transport header, or the piece of it in a fragment, with its place in `packet`. `None` if
    /// extension headers end beyond the packet, or it is a fragment of a fragment.
    #[inline]
    pub(super) fn upper(&self, packet: &Packet) -> Option<UpperLayer> {
        let (protocol, at) = (self.protocol, self.offset);
        if self.src.is_ipv6() && protocol.is_ipv6_extension() {
            return self.upper_by_lengths(packet);
        }
        let piece = self.fragment;
        let fragment_offset = piece.map_or(0, |piece| piece.offset);
        let more_fragments = piece.is_some_and(|piece| piece.more);
        Some(UpperLayer { protocol, at, fragment_offset, more_fragments })
    }

    #[cold]
    fn upper_by_lengths(&self, packet: &Packet) -> Option<UpperLayer> {
        let linear = packet.linear();
        let bytes = linear.get(self.ip_offset..self.end.min(linear.len()))?;
        let (header, _) = ipv6::Header::parse_quoted(bytes).ok()?;
        let upper = ipv6_ext::upper_by_lengths(bytes, &header)?;
        Some(UpperLayer { at: self.ip_offset + upper.at, ..upper })
    }

    #[inline]
    fn of_v4(header: &ipv4::Header, at: usize, header_len: usize, fragment: Option<Piece>) -> Self {
        Self {
            src: header.src.into(),
            dst: header.dst.into(),
            protocol: header.protocol,
            ttl: header.ttl,
            tos: header.tos,
            ip_offset: at,
            offset: at + header_len,
            end: at + usize::from(header.total_len),
            fragment,
        }
    }
}

impl Data {
    /// Receives one packet of the device of `iface`. `None`: it is for control, was consumed here
    /// (an answered ping, a fragment), or was dropped and counted.
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
            // The bytes may lie in memory that its writer can change after they were summed: they
            // are copied before.
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
            && let Ok(ip) | Err(Refused::Problem { ip, .. } | Refused::Unread { ip, .. }) = &ip
            && !offload_check::is_consistent(&packet, ip)
        {
            return self.refuse(iface, packet, DropReason::OffloadInvalid, pool);
        }
        let (ip, fault) = match ip {
            Ok(ip) => (ip, None),
            Err(Refused::Silently(reason)) => return self.refuse(iface, packet, reason, pool),
            Err(Refused::Problem { report, ip }) => (ip, Some(HeaderFault::Report(report))),
            Err(Refused::Unread { reason, ip }) => (ip, Some(HeaderFault::Unread(reason))),
        };
        if self.snapshot.rules.is_some()
            && let Err(refused) = self.judge_received(now, iface, &ip, link.group, &packet)
        {
            self.refuse_by_rule(now, iface, &ip, refused, packet, pool);
            return None;
        }
        let group = match (self.verdict(iface, ip.src, ip.dst, link.group), fault) {
            (Verdict::Local { group }, None) => group,
            (Verdict::Forward, fault) => {
                self.forward(now, iface, &ip, fault.and_then(HeaderFault::report), packet, pool);
                return None;
            }
            (_, Some(HeaderFault::Unread(reason))) => {
                return self.refuse(iface, packet, reason, pool);
            }
            (Verdict::Local { group }, Some(HeaderFault::Report(report))) => {
                let about = Offender::of_packet(iface, &ip, group);
                return self.refuse_for(now, &about, packet, report, pool);
            }
            // A packet for another host gets no ICMP error about its header.
            (Verdict::Drop(_), Some(HeaderFault::Report(_))) => {
                return self.refuse(iface, packet, DropReason::IpMalformed, pool);
            }
            (Verdict::Drop(DropReason::Martian), None) if is_claim(&packet, &ip) => true,
            (Verdict::Drop(reason), None) => return self.refuse(iface, packet, reason, pool),
        };
        match ip.fragment {
            None => self.deliver(now, iface, &ip, group, packet, pool),
            Some(_) => self.receive_fragment(now, iface, &ip, group, packet, pool),
        }
    }

    /// Receives one packet of this host to itself. `None` as with [`receive`](Self::receive).
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
        // `send` alone writes to this queue, and only whole and valid packets: anything else would
        // be a defect of ours.
        let Ok(ip @ IpPacket { fragment: None, .. }) = ip else {
            return self.refuse(IfaceId::LOOPBACK, packet, DropReason::IpMalformed, pool);
        };
        match self.verdict_of_looped(iface, ip.dst) {
            Verdict::Local { group } => {
                let local = local_of(iface, &ip, group, packet, true);
                self.hand_over(now, local, pool)
            }
            Verdict::Drop(reason) => self.refuse(IfaceId::LOOPBACK, packet, reason, pool),
            // `verdict_of_looped` never says so.
            Verdict::Forward => self.refuse(IfaceId::LOOPBACK, packet, DropReason::NotLocal, pool),
        }
    }

    /// Delivers a whole packet for this host: to control, or to the transport.
    fn deliver(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        group: bool,
        packet: Packet,
        pool: &mut Pool,
    ) -> Option<Received> {
        self.hand_over(now, local_of(iface, ip, group, packet, false), pool)
    }

    fn hand_over(&mut self, now: Instant, local: Local, pool: &mut Pool) -> Option<Received> {
        match IpProtocol(local.protocol) {
            IpProtocol::ICMP if local.src.is_ipv4() => self.receive_icmp(now, local, pool),
            IpProtocol::ICMPV6 if local.src.is_ipv6() => self.receive_icmp(now, local, pool),
            IpProtocol::IGMP if local.src.is_ipv4() => {
                self.punts.push_back(ControlPacket::Igmp(local));
                None
            }
            IpProtocol::NO_NEXT_HEADER if local.src.is_ipv6() => give(local.packet, pool),
            _ => {
                self.counters.delivered += 1;
                Some(Received::Local(local))
            }
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
        // A tag with identifier 0 is a priority only.
        let vlan = header.vlan.map_or(0, |tag| tag.id) | packet.meta.vlan.unwrap_or(0) & 0x0fff;
        if vlan != 0 {
            return Err(DropReason::FrameUnknown);
        }
        // Some links return our own frames; an own solicitation must not look like a duplicate
        // address.
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
            next_header: piece.next_header,
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

    /// A packet put together from fragments starts with its IP header; its addresses were checked.
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
            Err(Refused::Silently(reason) | Refused::Unread { reason, .. }) => {
                self.refuse(iface, packet, reason, pool)
            }
            Err(Refused::Problem { report, ip }) => {
                self.refuse_for(now, &Offender::of_packet(iface, &ip, group), packet, report, pool)
            }
        }
    }

    /// Drops a packet for this host, and reports the error in its options or extension headers.
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

/// Whether this is neighbour discovery, which fragments hide from the guards of a link.
//= https://www.rfc-editor.org/rfc/rfc6980#section-5
//# Nodes MUST silently ignore the following Neighbor Discovery and SEcure
//# Neighbor Discovery messages if the packets carrying them include an IPv6
//# Fragmentation Header
fn is_discovery(packet: &Packet, ip: &IpPacket) -> bool {
    ip.protocol == IpProtocol::ICMPV6
        && packet
            .linear()
            .get(ip.offset)
            .is_some_and(|kind| (ndp::ROUTER_SOLICIT..=ndp::REDIRECT).contains(kind))
}

/// Whether this is a neighbour advertisement, whose source may be an own address. RFC 4861 section
/// 7.2.4 lets a host that defends its address send from that address, as Linux does.
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

/// Whether an IP packet without link header is one of version 4.
fn is_ipv4(packet: &Packet) -> bool {
    packet.linear().first().is_some_and(|first| first >> 4 == 4)
}

/// The packet as sockets get it, without the padding of a short frame.
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

/// Reads and validates an IPv4 header at `at`; a looped one has no checksum, as no link could break
/// it.
fn read_ipv4(packet: &Packet, at: usize, looped: bool) -> Result<IpPacket, Refused> {
    let bytes = packet.linear().get(at..).unwrap_or_default();
    let (header, header_len) =
        ipv4::Header::parse_quoted(bytes).map_err(|_| DropReason::IpMalformed)?;
    let total_len = usize::from(header.total_len);
    if total_len < header_len || at + total_len > packet.len() {
        return Err(DropReason::IpMalformed.into());
    }
    if !looped && !ipv4::checksum_ok(&bytes[..header_len]) {
        return Err(DropReason::IpChecksum.into());
    }
    let fragment = header.is_fragment().then(|| Piece {
        offset: usize::from(header.fragment_offset),
        more: header.more_fragments,
        ident: u32::from(header.ident),
        next_header: None,
    });
    let ip = IpPacket::of_v4(&header, at, header_len, fragment);
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2
    //# a TCP implementation MUST ignore options that it does not understand (MUST-50).
    if header.options.is_empty() {
        return Ok(ip);
    }
    if header.options.has_source_route() {
        return Err(DropReason::IpSourceRoute.into());
    }
    //= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.2.5
    //# A host SHOULD generate Parameter Problem messages.
    match header.options.malformed_at() {
        None => Ok(ip),
        Some(bad) => {
            let pointer = (ipv4::HEADER_LEN + bad) as u8;
            let report = Report::V4(icmpv4::Message::ParamProblem { code: 0, pointer });
            Err(Refused::Problem { report, ip })
        }
    }
}

/// Reads and validates an IPv6 header at `at`, and its extension headers.
fn read_ipv6(packet: &Packet, at: usize) -> Result<IpPacket, Refused> {
    let bytes = packet.linear().get(at..).unwrap_or_default();
    let (header, header_len) =
        ipv6::Header::parse_quoted(bytes).map_err(|_| DropReason::IpMalformed)?;
    let len = header_len + usize::from(header.payload_len);
    let extended = header.next_header.is_ipv6_extension();
    // Only packets of a stack like this one have a tail, and those have no extension headers.
    if at + len > packet.len() || extended && len > bytes.len() {
        return Err(DropReason::IpMalformed.into());
    }
    let mut ip = IpPacket {
        src: header.src.into(),
        dst: header.dst.into(),
        protocol: header.next_header,
        ttl: header.hop_limit,
        tos: header.traffic_class,
        ip_offset: at,
        offset: at + header_len,
        end: at + len,
        fragment: None,
    };
    if !extended {
        return Ok(ip);
    }
    let chain = match ipv6_ext::walk(&bytes[..len], &header) {
        Ok(chain) => chain,
        Err(ChainError::ParamProblem { code, pointer, even_if_multicast }) => {
            let message = icmpv6::Message::ParamProblem { code, pointer };
            let report = match even_if_multicast {
                true => Report::V6EvenGroup(message),
                false => Report::V6(message),
            };
            return Err(Refused::Problem { report, ip });
        }
        Err(_) => return Err(Refused::Unread { reason: DropReason::IpMalformed, ip }),
    };
    ip.protocol = chain.upper;
    ip.offset = at + chain.upper_at;
    if chain.fragment.is_some_and(|fragment| fragment.is_atomic()) && is_discovery(packet, &ip) {
        return Err(Refused::Unread { reason: DropReason::NeighborMalformed, ip });
    }
    ip.fragment = chain.fragment.filter(|fragment| !fragment.is_atomic()).map(|fragment| Piece {
        offset: usize::from(fragment.offset),
        more: fragment.more,
        ident: fragment.ident,
        next_header: Some((fragment.named_at, fragment.next_header.0)),
    });
    Ok(ip)
}
