//! The way out: dirty connections are visited in turn. This page is the map; what a visit leaves behind
//! is in `outcome`.
//!
//! ```text
//!  dirty list ─► visit: tell the owner ─► plan ─► emit ─► frame ─► net ─► output of an interface
//!                  ▲                       │ up to 4 packets, then the next connection
//!                  │                       ▼ nothing more to send
//!          segment, send_ready,     end of life? timer
//!          recv_taken, timeout
//! ```
//! A frame has its headers in a pool packet; payload longer than 256 bytes stays in the send buffer and
//! is pointed to. One packet carries up to 64 KB and the size to cut it to.

use std::collections::VecDeque;

use towpath_pool::{Fragments, Packet, Pool, Protocol, Segmentation};
use towpath_ring::SendBuffer;
use towpath_tcp::{Flags, Instant, Outgoing, Plan, TransmitKind};
use towpath_wire::{IpProtocol, tcp};

use crate::drop::DropReason;
use crate::flow::Flow;
use crate::host::{Budget, Host, SocketId};
use crate::limits::{TX_BYTES_A_PACKET, TX_COPY_MAX, TX_OUTPUT_MAX, TX_PACKETS_A_VISIT};
use crate::net::{Fragmenting, IfaceId, Ip, Route};
use crate::outcome::{tell_news, tune};
use crate::socket::{FlowSettings, Kind, PacketSettings};
use crate::stack::Stack;

/// How a visit ended.
enum Visited {
    /// Nothing more may go now.
    Idle,
    /// There is more: the connection goes to the back of the line.
    More,
}

impl<H: Host> Stack<H> {
    /// Visits dirty connections while the budget lasts, each once at most before all others.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        host: &mut H,
        pool: &mut Pool,
        budget: &mut usize,
    ) {
        for _ in 0..self.dirty.len() {
            if *budget == 0 {
                return;
            }
            let Some(id) = self.dirty.pop_front() else { return };
            let Some(index) = self.index(id) else { continue };
            if let Some(socket) = self.sockets.get_mut(index) {
                socket.dirty = false;
            }
            if let Visited::More = self.visit(now, host, index, pool, budget) {
                self.mark_dirty(index);
            }
        }
    }

    /// Lets a connection send at once, before all others and however full the device is, because its owner is
    /// about to take the rest from it. What it sends points into its send buffer: the buffer has to stay until
    /// the next turn, which leaves no such packet behind.
    pub fn send_now(&mut self, now: Instant, host: &mut H, id: SocketId, pool: &mut Pool) {
        let mut budget = Budget::default().tx_packets;
        for _ in 0..budget / TX_PACKETS_A_VISIT {
            let Some(index) = self.index(id) else { return };
            if let Visited::Idle = self.visit(now, host, index, pool, &mut budget) {
                return;
            }
        }
        self.send_ready(id);
    }

    /// The interface of a connection, when its device does not keep up: what the connection sent now would be
    /// lost, and taken for congestion of the path.
    fn full_output(&self, index: u32) -> Option<IfaceId> {
        let Kind::Stream(stream) = &self.sockets.get(index)?.kind else { return None };
        let path = stream.path.filter(|path| self.paths.is_current(path))?;
        (self.net.output_len(path.iface) >= TX_OUTPUT_MAX).then_some(path.iface)
    }

    /// The connection has something to send, for which it is visited when the device has taken something. For
    /// everything else, its timers, what it receives and what its program does, it is visited as ever.
    fn wait_for_output(&mut self, iface: IfaceId, index: u32) {
        let id = SocketId(self.sockets.id(index));
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if std::mem::replace(&mut socket.waits_for_output, true) {
            return;
        }
        self.counters.tcp_waits_for_output += 1;
        let lines = &mut self.output_lines;
        if lines.len() <= iface.index() {
            lines.resize_with(iface.index() + 1, VecDeque::new);
        }
        let line = &mut lines[iface.index()];
        // Connections that end leave their ids behind. While the device takes nothing these may not pile up.
        if line.len() > 2 * self.sockets.len() {
            line.retain(|id| self.sockets.find(id.0).is_some());
        }
        line.push_back(id);
    }

    /// The devices took what they could: as many connections as there is room for have their turn. When routes
    /// have changed, all: they may no longer go by the device that they wait for.
    pub(crate) fn end_waits_for_output(&mut self) {
        let generation = self.net.route_generation();
        let moved = std::mem::replace(&mut self.output_generation, generation) != generation;
        for iface in 0..self.output_lines.len() {
            let room = TX_OUTPUT_MAX.saturating_sub(self.net.output_len(IfaceId(iface as u16)));
            let room = if moved { usize::MAX } else { room };
            let len = self.output_lines[iface].len();
            for _ in 0..room.min(len) {
                let Some(id) = self.output_lines[iface].pop_front() else { break };
                let Some(index) = self.index(id) else { continue };
                if let Some(socket) = self.sockets.get_mut(index) {
                    socket.waits_for_output = false;
                    self.mark_dirty(index);
                }
            }
        }
    }

    fn visit(
        &mut self,
        now: Instant,
        host: &mut H,
        index: u32,
        pool: &mut Pool,
        budget: &mut usize,
    ) -> Visited {
        if self.is_claiming(index) {
            return Visited::Idle;
        }
        self.refresh_route(now, index);
        let Some(socket) = self.sockets.get_mut(index) else { return Visited::Idle };
        let (user, orphan) = (socket.user, socket.orphan);
        let Kind::Stream(stream) = &mut socket.kind else { return Visited::Idle };
        tell_news(host, user, orphan, stream);
        tune(now, stream);
        let full = self.full_output(index);
        for _ in 0..TX_PACKETS_A_VISIT {
            let Some(Kind::Stream(stream)) =
                self.sockets.get_mut(index).map(|socket| &mut socket.kind)
            else {
                return Visited::Idle;
            };
            let buffers = stream.buffers();
            let Some(connection) = &mut stream.connection else { return Visited::Idle };
            let idle = match (connection.plan(now, buffers, TX_BYTES_A_PACKET), full) {
                // A reset is the last word of a connection that is over: it may not last as long as the device
                // is slow, and the other half of the queue is for such.
                (Plan::Send(transmit), Some(iface)) if transmit.kind() != TransmitKind::Reset => {
                    self.wait_for_output(iface, index);
                    self.after_visit(now, host, index);
                    return Visited::Idle;
                }
                (Plan::Send(transmit), _) => {
                    let outgoing = connection.emit(now, transmit, buffers);
                    self.send_segment(now, index, &outgoing, pool);
                    *budget = budget.saturating_sub(1);
                    continue;
                }
                (Plan::Nothing(idle), _) => idle,
            };
            connection.on_idle(now, idle, buffers);
            if stream.watch_reads(now) {
                continue;
            }
            self.after_visit(now, host, index);
            return Visited::Idle;
        }
        Visited::More
    }

    /// Looks up the route of a connection again if the tables have changed since it was cached.
    fn refresh_route(&mut self, now: Instant, index: u32) {
        let Some(Kind::Stream(stream)) = self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return;
        };
        self.paths.follow(self.net.route_generation());
        if stream.path.is_some_and(|path| self.paths.is_current(&path)) {
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# TCP implementations MUST use the same local address that was used in those previous
        //# segments (MUST-45).
        let old = stream.path;
        let route = self.net.route(now, Some(stream.flow.local), stream.flow.remote, stream.iface);
        let full = &mut self.counters.next_hops_full;
        stream.path = route.ok().map(|route| self.paths.shrink(&route, &stream.flow, full));
        let Some(path) = &mut stream.path else { return };
        if let Some(old) = &old {
            path.inherit(old);
        }
        if old.is_none_or(|old| old.mtu() != path.mtu()) {
            stream.on_path_mtu();
        }
    }

    /// Makes a packet of a segment of a connection, and sends it.
    fn send_segment(&mut self, now: Instant, index: u32, outgoing: &Outgoing, pool: &mut Pool) {
        let Some(Kind::Stream(stream)) = self.sockets.get(index).map(|socket| &socket.kind) else {
            return;
        };
        self.counters.tcp_sent += 1;
        self.counters.tcp_bytes_sent += u64::from(outgoing.len);
        self.counters.tcp_retransmits += u64::from(outgoing.retransmit);
        self.counters.tcp_resets_sent += u64::from(outgoing.flags.contains(Flags::RST));
        // Without a route the segment is dropped. The retransmission timer sends it again, and then there may
        // be one.
        let Some(path) = stream.path else { return self.count_drop(DropReason::NoRoute) };
        let payload = match outgoing.len {
            0 => Fragments::empty(),
            len => stream.send.peek(outgoing.send_offset, len),
        };
        if payload.len() != outgoing.len {
            // Neither other bytes in their place nor fewer than the sequence numbers say may go out. To the
            // connection the segment is lost; its timers try again, and give up in the end.
            debug_assert!(false, "{outgoing:?}: {} bytes are there", payload.len());
            return self.count_drop(DropReason::TcpPayloadMissing);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# TCP implementations SHOULD pass the current Differentiated Services field value without
        //# change to the IP layer, when it sends segments on the connection (SHLD-22).
        let flow = stream.flow;
        let route = self.paths.route(&path, &flow);
        let ip = ip_for(&route, stream.packet.class, stream.packet.ttl);
        let packet = segment_packet(&flow, outgoing, payload, pool);
        self.send_packet(now, &route, &flow, ip, packet, pool);
    }

    /// Sends a segment that belongs to no socket, as a RST, to the peer of one that came in by `iface`.
    pub(crate) fn reply(
        &mut self,
        now: Instant,
        flow: &Flow,
        iface: IfaceId,
        outgoing: &Outgoing,
        pool: &mut Pool,
    ) {
        let iface = self.pinned(iface, flow);
        self.reply_as(
            now,
            flow,
            iface,
            PacketSettings::default().towards(flow.remote),
            outgoing,
            pool,
        );
    }

    /// Sends a segment that belongs to no connection, as a SYN-ACK or the ACK of a TIME-WAIT, with the TTL, class
    /// and device of a socket with these settings.
    pub(crate) fn reply_as(
        &mut self,
        now: Instant,
        flow: &Flow,
        iface: Option<IfaceId>,
        packet: FlowSettings,
        outgoing: &Outgoing,
        pool: &mut Pool,
    ) {
        let Ok(route) = self.net.route(now, Some(flow.local), flow.remote, iface) else {
            return self.count_drop(DropReason::NoRoute);
        };
        self.counters.tcp_sent += 1;
        let ip = ip_for(&route, packet.class, packet.ttl);
        let packet = segment_packet(flow, outgoing, Fragments::empty(), pool);
        self.send_packet(now, &route, flow, ip, packet, pool);
    }

    fn send_packet(
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
        // `Net::send` has counted a packet that it cannot send. TCP sends it again as if it were lost on the way.
        let _ = self.net.send(now, route, flow.local, flow.remote, ip, packet, checksum, pool);
    }
}

/// A packet of the TCP header and the payload: a short one is copied behind the header, a long one stays in the
/// send buffer and is pointed to.
fn segment_packet(flow: &Flow, outgoing: &Outgoing, payload: Fragments, pool: &mut Pool) -> Packet {
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
    let header_len = header.emitted_len();
    let copied = if payload.len() <= TX_COPY_MAX { payload.len() as usize } else { 0 };
    let mut packet = pool.take(header_len + copied);
    let linear = packet.push_back(header_len + copied).expect("taken with room");
    header.emit(linear);
    if copied > 0 {
        payload.copy_to(0, &mut linear[header_len..]);
    } else {
        packet.tail = payload;
    }
    if outgoing.len > u32::from(outgoing.segment_size) && outgoing.segment_size > 0 {
        let protocol = if flow.local.is_ipv4() { Protocol::Tcp4 } else { Protocol::Tcp6 };
        let header_len = header_len as u16;
        packet.meta.segmentation =
            Some(Segmentation { protocol, size: outgoing.segment_size, header_len });
    }
    packet
}

fn ip_for(route: &Route, tos: u8, ttl: Option<u8>) -> Ip {
    // Path MTU discovery (RFC 1191) sets DF. Where a router reported an MTU below the least that segments are cut
    // to, it has to fragment them.
    let fragmenting = if route.needs_fragments { Fragmenting::Routers } else { Fragmenting::Never };
    Ip { protocol: IpProtocol::TCP.0, ttl, tos, fragmenting, flow_label: 0 }
}
