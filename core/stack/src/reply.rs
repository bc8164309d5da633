//! Sending of segments that do not belong to a connection, and dropping of received packets.

use towpath_pool::{Packet, Pool, Protocol, Segmentation};
use towpath_tcp::{Instant, Outgoing, reset_for};
use towpath_wire::fast_open::FastOpen;
use towpath_wire::{IpProtocol, addr, tcp};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::Host;
use crate::incoming::IncomingSegment;
use crate::limits::TX_COPY_MAX;
use crate::net::{Fragmenting, IfaceId, Ip, Local, Route};
use crate::settings::{FlowSettings, PacketSettings};
use crate::stack::Stack;
use crate::tables::flow::Flow;

/// A segment to be sent that does not belong to a connection, such as a SYN-ACK, or the ACK of a
/// connection in TIME-WAIT.
#[derive(Debug)]
pub(crate) struct SegmentReply<'a> {
    pub flow: &'a Flow,
    /// Interface by which the segment must be sent; `None` for that of the route.
    pub iface: Option<IfaceId>,
    /// TTL and traffic class of the segment.
    pub packet: FlowSettings,
    pub outgoing: &'a Outgoing,
    pub option: Option<FastOpen>,
}

impl<H: Host> Stack<H> {
    /// Sends a RST to the peer of a segment that was received on the interface `iface`.
    pub(crate) fn send_reset(
        &mut self,
        now: Instant,
        flow: &Flow,
        iface: IfaceId,
        outgoing: &Outgoing,
        pool: &mut Pool,
    ) {
        self.counters.tcp_resets_sent += 1;
        let iface = self.pinned(iface, flow);
        let packet = PacketSettings::default().towards(flow.remote);
        self.reply(now, SegmentReply { flow, iface, packet, outgoing, option: None }, pool);
    }

    /// Sends a segment that does not belong to a connection.
    pub(crate) fn reply(&mut self, now: Instant, reply: SegmentReply<'_>, pool: &mut Pool) {
        let SegmentReply { flow, iface, packet, outgoing, option } = reply;
        let Ok(route) = self.net.route(now, Some(flow.local), flow.remote, iface) else {
            return self.count_drop(DropReason::NoRoute);
        };
        self.counters.tcp_sent += 1;
        let ip = ip_for(&route, outgoing.ecn.with_dscp(packet.class), packet.ttl);
        let packet = segment_packet(flow, outgoing, option, pool);
        self.send_packet(now, &route, flow, ip, packet, pool);
    }

    /// Drops a segment that matches neither a connection nor a listener, and answers with a RST if
    /// appropriate.
    pub(crate) fn refuse_segment(
        &mut self,
        cx: &mut Cx<'_, H>,
        incoming: IncomingSegment,
        reason: DropReason,
    ) {
        if let Some(reset) = reset_for(&incoming.segment) {
            self.send_reset(cx.now, &incoming.flow, incoming.local.iface, &reset, cx.pool);
        }
        self.drop_local(incoming.local, reason, cx.pool);
    }

    /// Returns the interface by which answers must be sent, regardless of routes. Returns an
    /// interface for a link-local peer, and on an interface that accepts packets to any address.
    pub(crate) fn pinned(&self, iface: IfaceId, flow: &Flow) -> Option<IfaceId> {
        let scoped = addr::is_link_local(flow.remote) && !self.net.is_local(flow.remote);
        (scoped || self.net.is_any_address(iface)).then_some(iface)
    }

    /// Drops a received packet.
    pub(crate) fn drop_local(&mut self, local: Local, reason: DropReason, pool: &mut Pool) {
        let iface = if local.looped { IfaceId::LOOPBACK } else { local.iface };
        self.net.drop(iface, local.packet, reason, pool);
    }

    /// Passes a segment to the IP layer.
    #[inline]
    pub(crate) fn send_packet(
        &mut self,
        now: Instant,
        route: &Route,
        flow: &Flow,
        ip: Ip,
        packet: Packet,
        pool: &mut Pool,
    ) {
        self.loopback_due |= route.iface == IfaceId::LOOPBACK;
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# The sender MUST generate it (MUST-2)
        let checksum = Some(tcp::CHECKSUM_OFFSET as u16);
        // Ignore an error, because `Net::send` has counted the dropped packet. TCP retransmits it
        // like any lost packet.
        let _ = self.net.send(now, route, flow.local, flow.remote, ip, packet, checksum, pool);
    }
}

/// Creates a packet with a TCP header. The packet has space for a short payload.
#[inline]
pub(crate) fn segment_packet(
    flow: &Flow,
    outgoing: &Outgoing,
    option: Option<FastOpen>,
    pool: &mut Pool,
) -> Packet {
    let header = tcp::Header {
        src_port: flow.local_port,
        dst_port: flow.remote_port,
        seq: outgoing.seq,
        ack: outgoing.ack,
        flags: outgoing.flags,
        window: outgoing.window,
        checksum: 0,
        urgent: outgoing.urgent,
        header_len: 0,
        options: outgoing.options,
    };
    let header_len = header.emitted_len() + option.as_ref().map_or(0, FastOpen::emitted_len);
    let mut packet = pool.take(header_len + outgoing.len.min(TX_COPY_MAX) as usize);
    let bytes = packet.push_back(header_len).expect("taken with room");
    header.emit(bytes);
    if let Some(option) = option {
        let appended = option.append(bytes);
        debug_assert!(appended, "{option:?} fits behind the options of a SYN");
    }
    if outgoing.len > u32::from(outgoing.segment_size) && outgoing.segment_size > 0 {
        let protocol = if flow.local.is_ipv4() { Protocol::Tcp4 } else { Protocol::Tcp6 };
        let header_len = header_len as u16;
        packet.meta.segmentation =
            Some(Segmentation { protocol, size: outgoing.segment_size, header_len });
    }
    packet
}

/// Returns the IP header fields for a TCP segment.
#[inline]
pub(crate) fn ip_for(route: &Route, tos: u8, ttl: Option<u8>) -> Ip {
    // Set DF for path MTU discovery (RFC 1191). If a router has reported an MTU that is too small
    // for our minimum segment size, routers must fragment.
    let fragmenting = if route.needs_fragments { Fragmenting::Routers } else { Fragmenting::Never };
    Ip { protocol: IpProtocol::TCP.0, ttl, tos, fragmenting, flow_label: 0 }
}
