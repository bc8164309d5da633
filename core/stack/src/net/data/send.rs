//! Send path: from a packet with a transport header to the device, or back to this host.
//!
//! ```text
//!   send ─► checksum, IP header ─► send_to_self ─► loopback queue
//!                              └─► dispatch: neighbour ─► transmit: segments, fragments ─► output
//! ```

use std::num::NonZeroU32;

use core::net::IpAddr;

use towpath_pool::{Batch, Checksum, Packet, Pool, Protocol, Segmentation};
use towpath_ring::Payload;
use towpath_tcp::Instant;
use towpath_wire::{IpProtocol, addr, checksum, icmpv4, icmpv6, ipv4, ipv6};

use super::fragment;
use super::next_hop::{Waiting, group_mac};
use super::offload;
use super::output::{QueueFull, is_control, is_control_message};
use super::tables::Data;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::ip::{AddressPair, DEFAULT_TTL, Fragmenting, Ip};
use crate::net::limits::LOOPBACK_LEN_MAX;
use crate::net::link_header::LinkHeader;
use crate::net::messages::HopKey;
use crate::net::received::Looped;
use crate::net::route::{HopId, Route};

/// Maximum length in bytes of an IPv4 packet, and of an IPv6 payload.
const IP_LEN_MAX: usize = 65535;

/// Reason why a packet was not sent. The packet has been counted as dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The packet is longer than `mtu` and must not be fragmented, or it is longer than an IP
    /// length field can state.
    TooBig {
        /// MTU of the route in bytes, including the IP header. Also given if the IP length field is
        /// the limit.
        mtu: u32,
    },
    /// The output queue of the interface is full, because the device is slow.
    QueueFull,
}

/// An ICMP echo message to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoOut {
    /// Source address of the message.
    pub src: IpAddr,
    /// Destination address of the message.
    pub dst: IpAddr,
    /// `true` for an echo reply, `false` for a request.
    pub reply: bool,
    /// Echo identifier of the message (RFC 792, RFC 4443 §4).
    pub ident: u16,
    /// Sequence number of the message (RFC 792, RFC 4443 §4).
    pub seq: u16,
    /// TTL or hop limit of the message; `None` for the default of the interface.
    pub ttl: Option<u8>,
    /// Type of service (IPv4) or traffic class (IPv6) of the message.
    pub tos: u8,
    /// Whether this host or routers may fragment the packet.
    pub fragmenting: Fragmenting,
}

/// Data for computing a transport checksum: the offset of its field, the sum of the pseudo-header,
/// and the protocol.
struct TransportSum {
    at: u16,
    /// Unfolded sum of the pseudo-header.
    pseudo: u64,
    protocol: u8,
}

impl Data {
    /// Sends a packet that begins with its transport header.
    ///
    /// `checksum_offset` is the offset of the checksum field in the transport header; the field
    /// must be 0. With `packet.meta.segmentation`, whose `header_len` counts from the transport
    /// header, the packet is segmented by the device or in software. `route` is the result of
    /// [`route`](Self::route) for `src` and `dst`. Panics if `src` and `dst` are of different IP
    /// versions.
    ///
    /// # Errors
    ///
    /// Returns an error if the packet was dropped and counted. `Ok` does not guarantee that the
    /// packet is sent, because the next hop may not answer.
    #[allow(clippy::too_many_arguments)] // A struct for one call would only rename arguments.
    pub(in crate::net) fn send(
        &mut self,
        now: Instant,
        route: &Route,
        mut ends: AddressPair,
        ip: Ip,
        mut packet: Packet,
        checksum_offset: Option<u16>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        if is_too_big(&packet, ip, ends.dst, route.mtu) {
            self.drop(route.iface, packet, DropReason::TooBig, pool);
            return Err(SendError::TooBig { mtu: route.mtu });
        }
        if route.iface == IfaceId::LOOPBACK {
            self.push_ip(now, route.iface, ends, ip, &mut packet);
            return self.send_to_self(route.iface, packet, pool);
        }
        if !may_leave(ends.dst, ip.ttl) {
            self.drop(route.iface, packet, DropReason::HostScope, pool);
            return Ok(());
        }
        let rerouted;
        let route = match self.hooks.is_idle() {
            true => route,
            false => match self.send_at_hooks(now, route, &mut ends, ip.protocol, &mut packet) {
                Ok(None) => route,
                Ok(Some(other)) if other.iface == IfaceId::LOOPBACK => {
                    self.push_ip(now, other.iface, ends, ip, &mut packet);
                    return self.send_to_self(other.iface, packet, pool);
                }
                Ok(Some(other)) if is_too_big(&packet, ip, ends.dst, other.mtu) => {
                    self.drop(other.iface, packet, DropReason::TooBig, pool);
                    return Err(SendError::TooBig { mtu: other.mtu });
                }
                Ok(Some(other)) => {
                    rerouted = other;
                    &rerouted
                }
                Err(reason) => {
                    self.drop(route.iface, packet, reason, pool);
                    return Ok(());
                }
            },
        };
        if route.avoids
            && let Some(router) = self.snapshot.fib.to_probe(now, ends.dst)
        {
            self.next_hops.on_avoided(now, router);
        }
        let is_control = || is_control_message(IpProtocol(ip.protocol), &packet, 0);
        if let Some(full) = self.output_full(route.iface, packet.meta.sender, is_control) {
            self.drop_at_output(route.iface, packet, full, pool);
            return Err(SendError::QueueFull);
        }
        let (ip_len, mtu) = (ip_header_len(ends.dst), route.mtu as usize);
        fit_segments(&mut packet, mtu.saturating_sub(ip_len));
        let whole = packet.meta.segmentation.is_some() || ip_len + packet.len() <= mtu;
        if let Some(at) = checksum_offset {
            let pseudo = offload::pseudo_sum(ends.src, ends.dst, ip.protocol, packet.len());
            let sum = TransportSum { at, pseudo, protocol: ip.protocol };
            self.prepare_checksum(route.iface, &mut packet, sum, whole, pool);
        }
        let ip = self.with_fragmenting(route.iface, ip, whole);
        self.push_ip(now, route.iface, ends, ip, &mut packet);
        let to = (route.iface, route.next_hop);
        let to = self.link_to(now, to, route.hop, route.broadcast);
        self.transmit_to(to, route.iface, packet, route.mtu, pool);
        Ok(())
    }

    /// Permits routers to fragment a packet (clears DF) if this host fragments it anyway, in the
    /// stack or in the kernel.
    fn with_fragmenting(&self, iface: IfaceId, ip: Ip, whole: bool) -> Ip {
        let is_cut = !whole || self.link(iface).kernel_cuts;
        match ip.fragmenting {
            Fragmenting::Here if is_cut => Ip { fragmenting: Fragmenting::Anywhere, ..ip },
            _ => ip,
        }
    }

    /// Queues a copy of a datagram that [`send`](Self::send) sent to a multicast or broadcast
    /// address, for this host itself. The copy counts as received on the interface by which the
    /// datagram was sent, so that only members on this interface receive it. `packet` is the same
    /// as for `send`.
    pub(in crate::net) fn send_copy(
        &mut self,
        now: Instant,
        route: &Route,
        ends: AddressPair,
        ip: Ip,
        mut packet: Packet,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        self.push_ip(now, route.iface, ends, ip, &mut packet);
        self.send_to_self(route.iface, packet, pool)
    }

    /// Leaves the transport checksum to the device, or computes it. If the packet is to be
    /// segmented, the checksums of the segments are computed later.
    fn prepare_checksum(
        &self,
        iface: IfaceId,
        packet: &mut Packet,
        sum: TransportSum,
        whole: bool,
        pool: &mut Pool,
    ) {
        let TransportSum { at, pseudo, protocol } = sum;
        let place = usize::from(at);
        if whole && self.link(iface).offloads.checksum {
            let field = checksum::fold(pseudo).to_be_bytes();
            packet.linear_mut()[place..place + 2].copy_from_slice(&field);
            packet.meta.checksum = Checksum::Partial { start: 0, offset: at };
            return;
        }
        packet.meta.checksum = Checksum::Unknown;
        if packet.meta.segmentation.is_none() {
            // The payload is in shared memory, which the program can change at any time. Copy it
            // before the checksum is computed, because otherwise the two may not match.
            packet.linearize(pool);
            offload::fill_checksum(packet.linear_mut(), place, pseudo, protocol);
        }
    }

    /// Prepends the IP header to a packet.
    #[inline]
    fn push_ip(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ends: AddressPair,
        ip: Ip,
        packet: &mut Packet,
    ) {
        let len = packet.len();
        match (ends.src, ends.dst) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = ipv4::Header {
                    tos: ip.tos,
                    total_len: (ipv4::HEADER_LEN + len) as u16,
                    ident: self.ident_v4(now, ends, ip, packet),
                    dont_fragment: ip.fragmenting.sets_df(),
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: ip.ttl.unwrap_or(DEFAULT_TTL),
                    protocol: IpProtocol(ip.protocol),
                    src: from,
                    dst: to,
                    options: ipv4::Options::EMPTY,
                };
                header.emit(packet.push_front(ipv4::HEADER_LEN));
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let header = ipv6::Header {
                    traffic_class: ip.tos,
                    flow_label: ip.flow_label,
                    payload_len: len as u16,
                    next_header: IpProtocol(ip.protocol),
                    hop_limit: ip.ttl.unwrap_or(self.link(iface).hop_limit),
                    src: from,
                    dst: to,
                };
                header.emit(packet.push_front(ipv6::HEADER_LEN));
            }
            _ => unreachable!("a route has addresses of one family"),
        }
        shift_offsets(packet, if ends.src.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN });
    }

    //= https://www.rfc-editor.org/rfc/rfc6864#section-4.1
    //# Originating sources MAY set the IPv4 ID field of atomic datagrams to any value.
    fn ident_v4(&mut self, now: Instant, ends: AddressPair, ip: Ip, packet: &Packet) -> u16 {
        let count = match packet.meta.segmentation {
            Some(how) => how.pieces(packet.len()),
            None if ip.fragmenting.sets_df() => return 0,
            None => 1,
        };
        self.idents.take_v4(now, ends.src, ends.dst, count as u32)
    }

    /// Queues a packet from this host to itself. The packet is not segmented, and its checksum is
    /// not computed. A packet with several datagrams is divided on delivery (`Stack::give`).
    fn send_to_self(
        &mut self,
        iface: IfaceId,
        mut packet: Packet,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        if self.loopback.len() >= LOOPBACK_LEN_MAX {
            self.drop(IfaceId::LOOPBACK, packet, DropReason::LoopbackFull, pool);
            return Err(SendError::QueueFull);
        }
        packet.meta.checksum = Checksum::Verified;
        self.count_sent(&packet);
        self.loopback.push_back(Looped { iface, packet });
        Ok(())
    }

    /// Sends an IP packet to a multicast group or to a next hop. If the MAC address of the next hop
    /// is not known, the packet is queued.
    pub(super) fn dispatch(
        &mut self,
        now: Instant,
        (iface, next_hop): HopKey,
        packet: Packet,
        mtu: u32,
        pool: &mut Pool,
    ) {
        let to = self.link_to(now, (iface, next_hop), None, false);
        self.transmit_to(to, iface, packet, mtu, pool);
    }

    /// Returns the link header for a packet to a next hop. As long as the identifier `id` is valid,
    /// no hash is computed.
    #[inline]
    fn link_to(
        &mut self,
        now: Instant,
        (iface, next_hop): HopKey,
        id: Option<HopId>,
        broadcast: bool,
    ) -> Result<LinkHeader, HopId> {
        if !self.has_neighbors(iface) {
            return Ok(LinkHeader::NONE);
        }
        if let Some(id) = id.filter(|id| self.next_hops.key(*id).is_some()) {
            return self.next_hops.link(now, id).ok_or(id);
        }
        if let Some(mac) = group_mac(next_hop, broadcast) {
            return Ok(LinkHeader::ethernet(self.link(iface).mac, mac, next_hop));
        }
        let id = self.next_hops.at((iface, next_hop));
        self.next_hops.link(now, id).ok_or(id)
    }

    /// Sends an IP packet, or queues it until the MAC address of its next hop is known.
    #[inline]
    fn transmit_to(
        &mut self,
        to: Result<LinkHeader, HopId>,
        iface: IfaceId,
        mut packet: Packet,
        mtu: u32,
        pool: &mut Pool,
    ) {
        match to {
            Ok(link) => self.transmit(iface, link, packet, mtu, pool),
            Err(id) => {
                // Copy the payload. The packet may wait for seconds, and would otherwise keep the
                // memory of its send buffer, even after the socket was closed.
                packet.linearize(pool);
                self.next_hops.enqueue(id, Waiting { packet, mtu });
            }
        }
    }

    /// Returns the limit of the output queue that another packet would exceed, if any. The limit is
    /// checked before a packet of this host is created, so that answers to a flood of requests are
    /// limited, too.
    #[inline]
    pub(super) fn output_full(
        &self,
        iface: IfaceId,
        sender: Option<NonZeroU32>,
        is_control: impl FnOnce() -> bool,
    ) -> Option<QueueFull> {
        let output = &self.outputs[iface.index()];
        let full = output.full(sender)?;
        if !is_control() {
            return Some(full);
        }
        (!output.has_reserve()).then_some(QueueFull::Reserve)
    }

    /// Checks the limits of the output queue for a packet that the caller will queue next. Counts
    /// the packet if it needs the reserve for control packets.
    pub(super) fn admit(
        &mut self,
        iface: IfaceId,
        sender: Option<NonZeroU32>,
        is_control: impl FnOnce() -> bool,
    ) -> Result<(), QueueFull> {
        if self.outputs[iface.index()].full(sender).is_none() {
            return Ok(());
        }
        match self.output_full(iface, sender, is_control) {
            Some(full) => Err(full),
            None => {
                self.counters.output_reserve_used += 1;
                Ok(())
            }
        }
    }

    /// Drops a packet that would exceed a limit of the output queue.
    pub(super) fn drop_at_output(
        &mut self,
        iface: IfaceId,
        packet: Packet,
        full: QueueFull,
        pool: &mut Pool,
    ) {
        match full {
            QueueFull::Bytes => self.counters.output_bytes_full += 1,
            QueueFull::Packets => self.counters.output_packets_full += 1,
            QueueFull::Reserve => self.counters.output_reserve_full += 1,
        }
        self.drop(iface, packet, DropReason::OutputFull, pool);
    }

    /// Sends an IP packet whose link header is known. The packet is segmented or fragmented if
    /// necessary.
    pub(super) fn transmit(
        &mut self,
        iface: IfaceId,
        link: LinkHeader,
        packet: Packet,
        mtu: u32,
        pool: &mut Pool,
    ) {
        if let Err(full) = self.admit(iface, packet.meta.sender, || is_control(&packet)) {
            return self.drop_at_output(iface, packet, full, pool);
        }
        let offloads = self.link(iface).offloads;
        if let Some(how) = packet.meta.segmentation {
            let device = offloads.checksum
                && match how.protocol {
                    Protocol::Tcp4 | Protocol::Tcp6 => offloads.tcp_segmentation,
                    Protocol::Udp => offloads.udp_segmentation,
                };
            if !device {
                let (partial, mut pieces) = (offloads.checksum, Batch::new());
                let cut = offload::cut(packet, how, partial, pool, |it, _| pieces.push_back(it));
                return match cut {
                    Ok(()) => {
                        self.counters.segmented += 1;
                        self.transmit_all(iface, &link, pieces);
                    }
                    Err(packet) => self.drop(iface, packet, DropReason::OffloadInvalid, pool),
                };
            }
        } else if packet.len() > mtu as usize {
            self.counters.fragmented += 1;
            let ident = self.fragment_ident(&packet);
            let mut pieces = Batch::new();
            fragment::cut(packet, mtu as usize, ident, pool, |piece, _| pieces.push_back(piece));
            return self.transmit_all(iface, &link, pieces);
        }
        self.push_frame(iface, &link, packet);
    }

    fn transmit_all(&mut self, iface: IfaceId, link: &LinkHeader, pieces: Batch) {
        for piece in pieces {
            self.push_frame(iface, link, piece);
        }
    }

    /// Returns the identification for the fragments of a packet: that of the IPv4 header, or a new
    /// one for IPv6.
    fn fragment_ident(&mut self, packet: &Packet) -> u32 {
        let bytes = packet.linear();
        if ipv6::Header::parse_quoted(bytes).is_ok() {
            return self.idents.take_v6();
        }
        bytes.get(4..6).map_or(0, |ident| u32::from(u16::from_be_bytes([ident[0], ident[1]])))
    }

    /// Prepends the link header and queues the frame for the device.
    #[inline]
    fn push_frame(&mut self, iface: IfaceId, link: &LinkHeader, mut packet: Packet) {
        let header = link.bytes();
        if !header.is_empty() {
            packet.push_front(header.len()).copy_from_slice(header);
            shift_offsets(&mut packet, header.len());
        }
        self.push_output(iface, packet);
    }

    /// Queues a frame for the device. The caller has checked the limits of the queue using `admit`.
    #[inline]
    pub(super) fn push_output(&mut self, iface: IfaceId, packet: Packet) {
        self.count_sent(&packet);
        self.outputs[iface.index()].enqueue(packet);
    }

    fn count_sent(&mut self, packet: &Packet) {
        self.counters.sent += 1;
        self.counters.sent_bytes += packet.len() as u64;
    }

    /// Sends an ICMP echo message with the payload `data`.
    pub(in crate::net) fn send_echo(
        &mut self,
        now: Instant,
        route: &Route,
        echo: &EchoOut,
        data: &Payload<'_>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let EchoOut { src, dst, reply, ident, seq, ttl, tos, fragmenting } = *echo;
        let mut packet = pool.take(icmpv4::HEADER_LEN + data.len() as usize);
        let bytes =
            packet.push_back(icmpv4::HEADER_LEN + data.len() as usize).expect("taken with room");
        let (header, body) = bytes.split_at_mut(icmpv4::HEADER_LEN);
        data.copy_to(0, body);
        let protocol = match (dst.is_ipv4(), reply) {
            (true, false) => {
                icmpv4::Message::EchoRequest { ident, seq }.emit(header);
                IpProtocol::ICMP
            }
            (true, true) => {
                icmpv4::Message::EchoReply { ident, seq }.emit(header);
                IpProtocol::ICMP
            }
            (false, false) => {
                icmpv6::Message::EchoRequest { ident, seq }.emit(header);
                IpProtocol::ICMPV6
            }
            (false, true) => {
                icmpv6::Message::EchoReply { ident, seq }.emit(header);
                IpProtocol::ICMPV6
            }
        };
        let ip = Ip { protocol: protocol.0, ttl, tos, fragmenting, flow_label: 0 };
        let checksum = Some(icmpv4::CHECKSUM_OFFSET as u16);
        self.send(now, route, AddressPair { src, dst }, ip, packet, checksum, pool)
    }
}

fn ip_header_len(dst: IpAddr) -> usize {
    if dst.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

/// Returns whether a packet is too long for the IP length field, or exceeds `mtu` although it must
/// not be fragmented.
// Called for each packet; the compiler does not inline a function with two callers by itself.
#[inline(always)]
fn is_too_big(packet: &Packet, ip: Ip, dst: IpAddr, mtu: u32) -> bool {
    let (ip_len, mtu) = (ip_header_len(dst), mtu as usize);
    let stated = packet.len() + if dst.is_ipv4() { ip_len } else { 0 };
    let len = ip_len + packet.len();
    let is_longer = match packet.meta.segmentation {
        // UDP_SEGMENT sets the length of the datagrams, which must fit. The length of TCP segments
        // can still be reduced later.
        Some(how) if how.protocol == Protocol::Udp => {
            len.min(ip_len + usize::from(how.header_len) + usize::from(how.size)) > mtu
        }
        Some(_) => false,
        None => !ip.fragmenting.is_allowed_here() && len > mtu,
    };
    stated > IP_LEN_MAX || is_longer
}

/// Returns whether a packet to `dst` may be sent on a link. With IP_MULTICAST_TTL or
/// IPV6_MULTICAST_HOPS 0, only group members on this host receive the packet ([`Data::send_copy`]).
//= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.1.7
//# A host MUST NOT send a datagram with a Time-to-Live (TTL)
//# value of zero.
fn may_leave(dst: IpAddr, ttl: Option<u8>) -> bool {
    match dst {
        IpAddr::V4(_) => ttl != Some(0),
        IpAddr::V6(v6) if v6.is_multicast() => ttl != Some(0) && addr::may_be_on_link(v6),
        // As on Linux, a packet is sent even if IPV6_UNICAST_HOPS is 0. Only routers check the hop
        // limit, and the destination accepts any value (RFC 8200 §3).
        IpAddr::V6(_) => true,
    }
}

/// Reduces the segment size to at most `max` bytes of transport header and payload. The path MTU
/// may have become lower after the segment size was chosen. If a single segment remains, the packet
/// is no longer segmented.
fn fit_segments(packet: &mut Packet, max: usize) {
    let Some(how) = &mut packet.meta.segmentation else { return };
    let room = max.saturating_sub(usize::from(how.header_len)).max(1);
    how.size = how.size.min(room.min(usize::from(u16::MAX)) as u16);
    let Segmentation { size, header_len, .. } = *how;
    if packet.len() <= usize::from(header_len) + usize::from(size) {
        packet.meta.segmentation = None;
    }
}

/// Adds `n` to the offsets in the packet's metadata, because `n` bytes were prepended.
pub(super) fn shift_offsets(packet: &mut Packet, n: usize) {
    if let Checksum::Partial { start, .. } = &mut packet.meta.checksum {
        *start += n as u16;
    }
    if let Some(how) = &mut packet.meta.segmentation {
        how.header_len += n as u16;
    }
}
