//! Forwards packets to other hosts (RFC 1812 section 5.2.1).
//!
//! ```text
//!   verdict: Forward ─► options ─► source check ─► route ─► TTL ─► scope ─► size
//!                          │             │           │       │      │       │
//!                          └─────────────┴───────────┴───────┴──────┴───────┴─► ICMP error? drop()
//!   ─► link header off, TTL - 1 ─► segments, fragments, checksums ─► dispatch
//! ```
//!
//! Errors quote the packet as it was received. Packets passed to `dispatch` already fit the link,
//! because a packet that waits for its neighbour is not fragmented later.
//!
//! Budget: a look-up of the route and one of the next hop by hash; no copy, no allocation.

use core::net::IpAddr;

use towpath_pool::{Batch, Checksum, Packet, Pool, Protocol, Segmentation};
use towpath_tcp::Instant;
use towpath_wire::udp::CHECKSUM_OFFSET as UDP_CHECKSUM_OFFSET;
use towpath_wire::{addr, checksum, icmpv4, icmpv6, ipv4, ipv6, ipv6_ext};

use super::ip_packet::IpPacket;
use super::offload;
use super::offload_check;
use super::report::{Offender, Report, Unreachable};
use super::tables::Data;
use super::{option_stamp, refragment};
use crate::drop::DropReason;
use crate::net::config::SourceCheck;
use crate::net::fib::Choice;
use crate::net::iface::IfaceId;
use crate::net::messages::HopKey;
use crate::net::route::RouteKind;

/// Reason why a packet is not forwarded, and the ICMP error to send, if any.
#[derive(Debug)]
struct TransitRefusal {
    reason: DropReason,
    report: Option<Report>,
}

impl TransitRefusal {
    fn silent(reason: DropReason) -> Self {
        Self { reason, report: None }
    }

    fn unreachable(reason: DropReason, is_v4: bool, why: Unreachable) -> Self {
        Self { reason, report: Some(Report::unreachable(is_v4, why, || 0)) }
    }
}

/// Offset of the TTL in an IPv4 header, and offset of the hop limit in an IPv6 header.
const TTL_AT: usize = 8;
const HOP_LIMIT_AT: usize = 7;

impl Data {
    /// Forwards a packet to another host, or drops it. `problem` is an error that was found in the
    /// packet's options or extension headers.
    #[cold]
    pub(super) fn forward(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &mut IpPacket,
        problem: Option<Report>,
        mut packet: Packet,
        pool: &mut Pool,
    ) {
        packet.truncate(ip.end);
        let way = refuse_options(&packet, ip, problem).and_then(|()| self.way_on(now, iface, ip));
        let sized =
            way.and_then(|(hop, mtu)| fit(&packet, ip, mtu).map(|longest| (hop, longest, mtu)));
        let (hop, longest, mtu) = match sized {
            Ok(sized) => sized,
            Err(refusal) => return self.refuse_transit(now, iface, ip, refusal, packet, pool),
        };
        if !self.hooks.is_idle()
            && let Err(refusal) = self.hooks.on_transit(now, [iface, hop.0], ip, &mut packet)
        {
            return self.refuse_at_hook(now, iface, ip, refusal, packet, pool);
        }
        // If a tracker has rewritten the destination, do not send a redirect. Its receiver does not
        // know the new destination.
        if hop.0 == iface && !ip.is_rewritten {
            self.redirect(now, iface, ip, hop.1, &packet, pool);
        }
        self.counters.forwarded += 1;
        self.counters.forwarded_bytes += (ip.end - ip.ip_offset) as u64;
        if offload_check::leaves_inner_checksum(&packet, ip) {
            complete_checksum(&mut packet, pool);
        }
        strip_link(&mut packet, ip.ip_offset);
        lower_ttl(packet.linear_mut());
        let transport = ip.offset - ip.ip_offset;
        if ip.src.is_ipv4() && transport > ipv4::HEADER_LEN {
            let own = self.own_address_v4(hop);
            option_stamp::stamp(packet.linear_mut(), transport, own, now);
        }
        self.send_on(now, hop, packet, longest, mtu as usize, pool);
    }

    /// Returns the interface and next hop for a packet, and the smaller MTU of link and route.
    fn way_on(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
    ) -> Result<(HopKey, u32), TransitRefusal> {
        let is_v4 = ip.src.is_ipv4();
        if !self.may_come_by(iface, ip.src) {
            return Err(TransitRefusal::silent(DropReason::TransitSource));
        }
        //= https://www.rfc-editor.org/rfc/rfc1812#section-4.3.3.1
        //# If a router
        //# cannot forward a packet because it has no routes at all (including no
        //# default route) to the destination specified in the packet, then the
        //# router MUST generate a Destination Unreachable, Code 0 (Network
        //# Unreachable) ICMP message.
        let Some(choice) = self.looked_up((ip.src, ip.dst)) else {
            let reason = DropReason::TransitNoRoute;
            return Err(TransitRefusal::unreachable(reason, is_v4, Unreachable::Net));
        };
        let (out, router) = (choice.way.iface, choice.way.next_hop);
        match choice.way.kind {
            RouteKind::Unicast => {}
            RouteKind::Blackhole => {
                return Err(TransitRefusal::silent(DropReason::TransitBlackhole));
            }
            // As on Linux, report "no route" for an IPv6 destination, and "host unreachable" for an
            // IPv4 one.
            RouteKind::Unreachable => {
                let why = if is_v4 { Unreachable::Host } else { Unreachable::Net };
                return Err(TransitRefusal::unreachable(
                    DropReason::TransitUnreachable,
                    is_v4,
                    why,
                ));
            }
            RouteKind::Prohibit => {
                let why = Unreachable::AdminProhibited;
                return Err(TransitRefusal::unreachable(DropReason::TransitProhibited, is_v4, why));
            }
        }
        check_ttl(ip)?;
        if out == IfaceId::LOOPBACK {
            return Err(TransitRefusal::silent(DropReason::TransitScope));
        }
        check_scope(ip)?;
        if choice.avoids
            && let Some(asked) = self.snapshot.fib.to_probe(now, ip.dst)
        {
            self.next_hops.on_avoided(now, asked);
        }
        let mtu = choice.way.limit(self.link(out).mtu_for(ip.dst));
        Ok(((out, router.unwrap_or(ip.dst)), mtu))
    }

    /// Returns the best route for a pair of addresses. Uses the result of `plan_transit` if that
    /// function has already looked the route up.
    fn looked_up(&mut self, ends: (IpAddr, IpAddr)) -> Option<Choice> {
        match self.plans.take_route() {
            Some((ahead, choice)) if ahead == ends => choice,
            _ => self.snapshot.fib.best_between(ends.0, ends.1),
        }
    }

    /// Returns whether the reverse-path filter accepts a packet from `src` on `iface`.
    //= https://www.rfc-editor.org/rfc/rfc1812#section-5.3.8
    //# A router SHOULD IMPLEMENT the ability to filter traffic based on a
    //# comparison of the source address of a packet and the forwarding table
    //# for a logical interface on which the packet was received.
    pub(super) fn may_come_by(&self, iface: IfaceId, src: IpAddr) -> bool {
        let check = self.forwarding.map_or(SourceCheck::Off, |settings| settings.source_check);
        if check == SourceCheck::Off {
            return true;
        }
        let by = (check == SourceCheck::Strict).then_some(iface);
        self.snapshot.fib.leads_back(src, by)
    }

    #[cold]
    fn refuse_transit(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        refusal: TransitRefusal,
        packet: Packet,
        pool: &mut Pool,
    ) {
        if let Some(report) = refusal.report {
            let (src, dst, ip_offset, end) = (ip.src, ip.dst, ip.ip_offset, ip.end);
            let about = Offender { iface, src, dst, ip_offset, end, group: false };
            self.send_error(now, &packet, &about, report, pool);
        }
        self.drop(iface, packet, refusal.reason, pool);
    }

    /// Returns the IPv4 address of this router on the link of the next hop. The router writes it
    /// into IPv4 options.
    fn own_address_v4(&self, (iface, next_hop): HopKey) -> Option<core::net::Ipv4Addr> {
        match self.source_for(iface, next_hop, next_hop)? {
            IpAddr::V4(own) => Some(own),
            IpAddr::V6(_) => None,
        }
    }

    /// Sends a packet, which begins with its IP header. The packet is segmented or fragmented so
    /// that the device and the link accept it. `longest` is the length of the longest packet on the
    /// wire, and `mtu` the MTU of link and route; both in bytes.
    fn send_on(
        &mut self,
        now: Instant,
        hop: HopKey,
        mut packet: Packet,
        longest: usize,
        mtu: usize,
        pool: &mut Pool,
    ) {
        let offloads = self.link(hop.0).offloads;
        let fits = longest <= mtu;
        if let Some(how) = packet.meta.segmentation {
            let device = match how.protocol {
                Protocol::Tcp4 | Protocol::Tcp6 => offloads.tcp_segmentation,
                Protocol::Udp => offloads.udp_segmentation,
            };
            if !(fits && device && offloads.checksum && is_partial(&packet)) {
                let partial = fits && offloads.checksum;
                let mut pieces = Batch::new();
                let cut = offload::cut(packet, how, partial, pool, |it, _| pieces.push_back(it));
                if let Err(packet) = cut {
                    return self.drop(hop.0, packet, DropReason::OffloadInvalid, pool);
                }
                self.counters.segmented += 1;
                for piece in pieces {
                    self.send_on_cut(now, hop, piece, mtu, pool);
                }
                return;
            }
        } else if is_partial(&packet) && !(fits && offloads.checksum) {
            complete_checksum(&mut packet, pool);
        }
        self.send_on_cut(now, hop, packet, mtu, pool);
    }

    /// Sends a packet whose headers are complete, and fragments it if needed. Only IPv4 packets can
    /// be too long here, because routers do not fragment IPv6 packets.
    fn send_on_cut(
        &mut self,
        now: Instant,
        hop: HopKey,
        packet: Packet,
        mtu: usize,
        pool: &mut Pool,
    ) {
        if packet.meta.segmentation.is_some() || packet.len() <= mtu {
            return self.dispatch(now, hop, packet, u32::MAX, pool);
        }
        self.counters.fragmented += 1;
        let mut pieces = Batch::new();
        refragment::cut(packet, mtu, pool, |piece, _| pieces.push_back(piece));
        for piece in pieces {
            self.dispatch(now, hop, piece, u32::MAX, pool);
        }
    }

    /// Sends an ICMP error to the sender of a packet whose next hop did not answer. Returns false
    /// if this host is the sender.
    //= https://www.rfc-editor.org/rfc/rfc1812#section-4.3.3.1
    //# If a packet is to be forwarded to a host on a network that is
    //# directly connected to the router (i.e., the router is the last-hop
    //# router) and the router has ascertained that there is no path to the
    //# destination host then the router MUST generate a Destination
    //# Unreachable, Code 1 (Host Unreachable) ICMP message.
    pub(super) fn report_unreached(
        &mut self,
        now: Instant,
        iface: IfaceId,
        packet: &Packet,
        pool: &mut Pool,
    ) -> bool {
        let bytes = packet.linear();
        let (src, dst): (IpAddr, IpAddr) = match ipv6::Header::parse_quoted(bytes) {
            Ok((header, _)) => (header.src.into(), header.dst.into()),
            Err(_) => match ipv4::Header::parse_quoted(bytes) {
                Ok((header, _)) => (header.src.into(), header.dst.into()),
                Err(_) => return false,
            },
        };
        let src = self.hooks.original_source(bytes).unwrap_or(src);
        if src.is_unspecified() || addr::is_link_local(src) || self.is_local(src) {
            return false;
        }
        let about = Offender { iface, src, dst, ip_offset: 0, end: packet.len(), group: false };
        let report = Report::unreachable(src.is_ipv4(), Unreachable::Host, || 0);
        self.send_error(now, packet, &about, report, pool);
        true
    }
}

/// Returns the source and destination address if the bytes look like an IP packet. The packet is
/// not validated, so the result must be used only for lookups.
pub(super) fn ends(bytes: &[u8]) -> Option<(IpAddr, IpAddr)> {
    const SOURCE_AT: [usize; 2] = [12, 8];
    match bytes.first()? >> 4 {
        4 => {
            let (both, _) = bytes.get(SOURCE_AT[0]..)?.as_chunks::<4>();
            both.first_chunk::<2>().map(|[src, dst]| (IpAddr::from(*src), IpAddr::from(*dst)))
        }
        6 => {
            let (both, _) = bytes.get(SOURCE_AT[1]..)?.as_chunks::<16>();
            both.first_chunk::<2>().map(|[src, dst]| (IpAddr::from(*src), IpAddr::from(*dst)))
        }
        _ => None,
    }
}

/// Checks the options that routers process: IPv4 options, and IPv6 hop-by-hop options. Returns the
/// reason if the packet must not be forwarded.
fn refuse_options(
    packet: &Packet,
    ip: &IpPacket,
    problem: Option<Report>,
) -> Result<(), TransitRefusal> {
    let report = match problem {
        Some(Report::V4(_)) => problem,
        Some(_) => hop_by_hop_problem(packet, ip)?,
        None if ip.offset == ip.ip_offset + ipv6::HEADER_LEN && ip.src.is_ipv6() => {
            hop_by_hop_problem(packet, ip)?
        }
        None => None,
    };
    match report {
        None => Ok(()),
        report => Err(TransitRefusal { reason: DropReason::IpMalformed, report }),
    }
}

/// Returns the ICMP error about the hop-by-hop options of a packet; `None` if they are correct.
fn hop_by_hop_problem(packet: &Packet, ip: &IpPacket) -> Result<Option<Report>, TransitRefusal> {
    let malformed = || TransitRefusal::silent(DropReason::IpMalformed);
    let bytes = packet.linear().get(ip.ip_offset..).unwrap_or_default();
    let (header, _) = ipv6::Header::parse_quoted(bytes).map_err(|_| malformed())?;
    match ipv6_ext::walk_hop_by_hop(bytes, &header) {
        Ok(_) => Ok(None),
        Err(ipv6_ext::ChainError::ParamProblem { code, pointer, .. }) => {
            Ok(Some(Report::V6(icmpv6::Message::ParamProblem { code, pointer })))
        }
        Err(_) => Err(malformed()),
    }
}

//= https://www.rfc-editor.org/rfc/rfc1812#section-5.3.1
//# If the TTL is reduced to zero (or less), the packet MUST be
//# discarded, and if the destination is not a multicast address the
//# router MUST send an ICMP Time Exceeded message, Code 0 (TTL Exceeded
//# in Transit) message to the source.
//= https://www.rfc-editor.org/rfc/rfc4443#section-3.3
//# If a router receives a packet with a Hop Limit of zero, or if a
//# router decrements a packet's Hop Limit to zero, it MUST discard the
//# packet and originate an ICMPv6 Time Exceeded message with Code 0 to
//# the source of the packet.
fn check_ttl(ip: &IpPacket) -> Result<(), TransitRefusal> {
    if ip.ttl > 1 {
        return Ok(());
    }
    let report = if ip.src.is_ipv4() {
        Report::V4(icmpv4::Message::TimeExceeded { code: icmpv4::TIME_EXCEEDED_TTL })
    } else {
        Report::V6(icmpv6::Message::TimeExceeded { code: icmpv6::TIME_EXCEEDED_HOP_LIMIT })
    };
    Err(TransitRefusal { reason: DropReason::TransitTtl, report: Some(report) })
}

//= https://www.rfc-editor.org/rfc/rfc3927#section-7
//# A router MUST NOT forward a packet with an IPv4 Link-Local source or
//# destination address, irrespective of the router's default route
//# configuration or routes obtained from dynamic routing protocols.
//= https://www.rfc-editor.org/rfc/rfc4291#section-2.5.6
//# Routers must not forward any packets with Link-Local source or
//# destination addresses to other links.
//= https://www.rfc-editor.org/rfc/rfc4443#section-3.1
//# If the reason for the failure to deliver is that the destination is
//# beyond the scope of the source address, the Code field is set to 2.
fn check_scope(ip: &IpPacket) -> Result<(), TransitRefusal> {
    if !addr::is_link_local(ip.src) && !addr::is_link_local(ip.dst) {
        return Ok(());
    }
    let beyond = ip.src.is_ipv6() && !addr::is_link_local(ip.dst);
    let code = icmpv6::UNREACHABLE_SCOPE;
    let report = beyond.then_some(Report::V6(icmpv6::Message::DestUnreachable { code }));
    Err(TransitRefusal { reason: DropReason::TransitScope, report })
}

/// Returns the length in bytes of the longest packet on the wire after segmentation. Fails if it
/// exceeds `mtu` and a router must not fragment the packet.
fn fit(packet: &Packet, ip: &IpPacket, mtu: u32) -> Result<usize, TransitRefusal> {
    let len = ip.end - ip.ip_offset;
    let longest = match packet.meta.segmentation {
        Some(Segmentation { size, header_len, .. }) => {
            let headers = usize::from(header_len).saturating_sub(ip.ip_offset);
            len.min(headers + usize::from(size))
        }
        None => len,
    };
    if longest <= mtu as usize {
        return Ok(longest);
    }
    let report = if ip.src.is_ipv6() {
        //= https://www.rfc-editor.org/rfc/rfc4443#section-3.2
        //# A Packet Too Big MUST be sent by a router in response to a packet
        //# that it cannot forward because the packet is larger than the MTU of
        //# the outgoing link.
        Report::V6(icmpv6::Message::PacketTooBig { mtu })
    } else if is_dont_fragment(packet, ip) {
        //= https://www.rfc-editor.org/rfc/rfc1191#section-4
        //# When a router is unable to forward a datagram because it exceeds the
        //# MTU of the next-hop network and its Don't Fragment bit is set, the
        //# router is required to return an ICMP Destination Unreachable message
        //# to the source of the datagram, with the Code indicating
        //# "fragmentation needed and DF set".
        let code = icmpv4::UNREACHABLE_FRAG_NEEDED;
        let next_hop_mtu = mtu.min(u32::from(u16::MAX)) as u16;
        Report::V4(icmpv4::Message::DestUnreachable { code, next_hop_mtu })
    } else {
        return Ok(longest);
    };
    Err(TransitRefusal { reason: DropReason::TransitTooBig, report: Some(report) })
}

fn is_dont_fragment(packet: &Packet, ip: &IpPacket) -> bool {
    const DONT_FRAGMENT: u8 = 0x40;
    packet.linear().get(ip.ip_offset + 6).is_some_and(|flags| flags & DONT_FRAGMENT != 0)
}

fn is_partial(packet: &Packet) -> bool {
    matches!(packet.meta.checksum, Checksum::Partial { .. })
}

/// Removes the link header of a received packet, and the metadata that do not apply when the packet
/// is sent.
fn strip_link(packet: &mut Packet, len: usize) {
    packet.pull_front(len).expect("the IP header was read behind the link header");
    if let Checksum::Partial { start, .. } = &mut packet.meta.checksum {
        *start = start.saturating_sub(len as u16);
    }
    if let Some(how) = &mut packet.meta.segmentation {
        how.header_len = how.header_len.saturating_sub(len as u16);
    }
    (packet.meta.vlan, packet.meta.sender) = (None, None);
}

/// Decrements the TTL or hop limit of a packet that starts with its IP header.
//= https://www.rfc-editor.org/rfc/rfc1812#section-5.3.1
//# When a router forwards a packet, it MUST reduce the TTL by at least one.
//= https://www.rfc-editor.org/rfc/rfc1624#section-3
//# HC' = ~(~HC + ~m + m')
fn lower_ttl(header: &mut [u8]) {
    if header[0] >> 4 == 6 {
        header[HOP_LIMIT_AT] -= 1;
        return;
    }
    if let Some(header) = header.first_chunk_mut() {
        lower_ttl_v4(header);
    }
}

/// Decrements the TTL in an IPv4 header, and updates the header checksum.
#[inline]
pub(super) fn lower_ttl_v4(header: &mut [u8; ipv4::HEADER_LEN]) {
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    // The TTL is the upper byte of a 16-bit word of the header, so decrementing it subtracts 0x0100
    // from that word.
    let (sum, old) = (word(10), word(TTL_AT));
    let sum = checksum::update16(sum, old, old - 0x0100);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header[TTL_AT] -= 1;
}

/// Computes the transport checksum that was left to a device. Until then, the checksum field
/// contains the sum of the pseudo-header.
fn complete_checksum(packet: &mut Packet, pool: &mut Pool) {
    let Checksum::Partial { start, offset } = packet.meta.checksum else { return };
    packet.linearize(pool);
    let is_udp = offset == UDP_CHECKSUM_OFFSET as u16;
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    let bytes = packet.linear_mut();
    let Some(covered) = bytes.get(start..).filter(|_| at + 2 <= bytes.len()) else { return };
    let mut sum = checksum::finish(checksum::sum(covered, 0));
    if sum == 0 && is_udp {
        sum = 0xffff;
    }
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    packet.meta.checksum = Checksum::Unknown;
}
