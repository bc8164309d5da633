//! The send path: dirty connections are visited in turn. `outcome` has the effects of a visit.
//!
//! ```text
//!  dirty list ─► visit: tell the owner ─► plan ─► emit ─► frame ─► net ─► output of an interface
//!                  ▲                       │ up to 4 packets, then the next connection
//!                  │                       ▼ nothing more to send
//!          segment, send_ready,     end of life? timer
//!          recv_taken, timeout
//! ```
//! A connection that finds the queue of its device busy, or has its share of it, waits:
//!
//! ```text
//!  visit ─► held by others ─► line of the device ─► serve_lines, when the queue is low ─► visit
//!       └─► held by its share ─► the device takes half of it ─► dirty list
//! ```
//! A frame has its headers in a pool packet; payload longer than 256 bytes stays in the send buffer
//! and is pointed to. A packet carries up to 64 KB and the size to cut it to.

use std::collections::VecDeque;

use towpath_pool::{Packet, Pool, Protocol, Segmentation};
use towpath_ring::SendBuffer;
use towpath_tcp::{Connection, Flags, Instant, Outgoing, Plan, Transmit, TransmitKind};
use towpath_wire::fast_open::FastOpen;
use towpath_wire::{IpProtocol, tcp};

use crate::drop::DropReason;
use crate::host::{Budget, Host, SocketEvent, SocketId};
use crate::limits::{
    TX_BYTES_A_PACKET, TX_COPY_MAX, TX_OUTPUT_BYTES, TX_OUTPUT_LOW, TX_OUTPUT_PACKETS,
    TX_PACKETS_A_VISIT, TX_SHARE_BYTES, TX_SHARE_BYTES_MAX, TX_SHARE_TIME,
};
use crate::net::{Fragmenting, IfaceId, Ip, Route, connection, datagrams, place};
use crate::socket::{FlowSettings, Kind, PacketSettings, Stream, Waits};
use crate::stack::Stack;
use crate::tables::flow::Flow;
use crate::tcp::outcome::{tell_news, tune};

/// How a visit ended.
enum Visited {
    /// Nothing more may go now.
    Idle,
    /// There is more: the connection goes to the back of the line.
    More,
}

/// How a visit stands to the connections that wait for the same device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Sends unless others wait for the device.
    Behind,
    /// Its turn has come.
    Called,
    /// Sends before those that wait.
    Ahead,
}

/// Why a connection may not put more into the queue of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// The device does not keep up, or others were there before.
    ByOthers(IfaceId),
    /// Its share of the queue is used up.
    ByShare,
}

impl<H: Host> Stack<H> {
    /// Visits dirty connections while the budget lasts, each once at most before all others.
    /// Connections that waited for a device come first.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        host: &mut H,
        pool: &mut Pool,
        budget: &mut usize,
    ) {
        self.serve_lines(now, host, pool, budget);
        for _ in 0..self.dirty.len() {
            if *budget == 0 {
                return;
            }
            let Some(id) = self.dirty.pop_front() else { return };
            let Some(index) = self.index(id) else { continue };
            if let Some(socket) = self.sockets.get_mut(index) {
                socket.dirty = false;
            }
            let visited = self.visit(now, host, index, pool, budget, Place::Behind);
            if let Visited::More = visited {
                self.mark_dirty(index);
            }
        }
    }

    /// Lets a connection send at once, before all others and however full the device is. Its owner
    /// has reset it and is about to reuse its ports. Packets beyond all room in the device's queue
    /// are lost.
    pub fn send_now(&mut self, now: Instant, host: &mut H, id: SocketId, pool: &mut Pool) {
        let mut budget = Budget::default().tx_packets;
        for _ in 0..budget / TX_PACKETS_A_VISIT {
            let Some(index) = self.index(id) else { return };
            let visited = self.visit(now, host, index, pool, &mut budget, Place::Ahead);
            if let Visited::Idle = visited {
                return;
            }
        }
        self.send_ready(id);
    }

    /// Lets connections that wait for a device go on when its queue has run low. Each gets one
    /// visit at a time, in their order, until the queue is full again.
    fn serve_lines(&mut self, now: Instant, host: &mut H, pool: &mut Pool, budget: &mut usize) {
        for iface in (0..self.output_lines.len()).map(|iface| IfaceId(iface as u16)) {
            if !self.is_low(iface) {
                continue;
            }
            while *budget > 0 && !self.is_busy(iface) {
                let Some(id) = self.output_lines[iface.index()].pop_front() else { break };
                let Some(index) = self.index(id) else { continue };
                if let Some(socket) = self.sockets.get_mut(index) {
                    socket.waits = Waits::ForNothing;
                }
                let visited = self.visit(now, host, index, pool, budget, Place::Called);
                if let Visited::More = visited {
                    self.stand_in_line(iface, index);
                }
            }
        }
    }

    /// Whether the device does not keep up with the connections' packets in its queue. More of them
    /// would be late, or lost and taken for congestion of the path. Other senders' packets are
    /// counted apart, because those senders never wait and could fill the queue.
    fn is_busy(&self, iface: IfaceId) -> bool {
        let load = self.net.output_connections(iface);
        load.bytes >= TX_OUTPUT_BYTES || load.packets >= TX_OUTPUT_PACKETS
    }

    /// Whether the device has taken so much that waiting connections go on.
    fn is_low(&self, iface: IfaceId) -> bool {
        let load = self.net.output_connections(iface);
        load.bytes <= TX_OUTPUT_BYTES / TX_OUTPUT_LOW
            && load.packets <= TX_OUTPUT_PACKETS / TX_OUTPUT_LOW
    }

    /// Whether connections that wait for a device can go on.
    pub(crate) fn is_line_due(&self) -> bool {
        let mut lines = self.output_lines.iter().zip(0..);
        lines.any(|(line, iface)| !line.is_empty() && self.is_low(IfaceId(iface)))
    }

    /// Why a connection may not send bytes now.
    fn held(&self, index: u32, place: Place) -> Option<Held> {
        if place == Place::Ahead {
            return None;
        }
        let Kind::Stream(stream) = &self.sockets.get(index)?.kind else { return None };
        // A connection that ends with a reset may not last as long as the device is slow.
        if stream.connection.as_ref().is_some_and(Connection::is_aborting) {
            return None;
        }
        let iface = stream.path.filter(|path| self.paths.is_current(path, &self.net))?.iface;
        let line = self.output_lines.get(iface.index());
        let others = line.is_some_and(|line| !line.is_empty());
        if self.is_busy(iface) || place == Place::Behind && others {
            return Some(Held::ByOthers(iface));
        }
        // A queue that has less than the least share has no more than that of anybody.
        if self.net.output_load(iface).bytes < TX_SHARE_BYTES as usize {
            return None;
        }
        let share = self.net.output_share(iface, connection(index)?);
        (share >= TX_SHARE_BYTES && share >= share_max(stream)).then_some(Held::ByShare)
    }

    /// The connection has something to send, and is visited for that when its device has taken
    /// some. Its timers, received segments and calls of its program lead to visits as ever.
    fn wait(&mut self, held: Held, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        match held {
            Held::ByOthers(iface) => {
                self.counters.tcp_waits_for_output += u64::from(socket.waits != Waits::InLine);
                self.stand_in_line(iface, index);
            }
            Held::ByShare if socket.waits == Waits::ForNothing => {
                socket.waits = Waits::ForShare;
                self.counters.tcp_waits_for_share += 1;
            }
            Held::ByShare => {}
        }
    }

    /// Puts a connection at the end of the line for a device, once.
    fn stand_in_line(&mut self, iface: IfaceId, index: u32) {
        let id = SocketId(self.sockets.id(index));
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if std::mem::replace(&mut socket.waits, Waits::InLine) == Waits::InLine {
            return;
        }
        let lines = &mut self.output_lines;
        if lines.len() <= iface.index() {
            lines.resize_with(iface.index() + 1, VecDeque::new);
        }
        let line = &mut lines[iface.index()];
        // Connections that end leave their ids behind. While the device takes nothing these may not
        // pile up.
        if line.len() > 2 * self.sockets.len() {
            line.retain(|id| self.sockets.find(id.0).is_some());
        }
        line.push_back(id);
    }

    /// Whether a datagram socket has its share in the queue of a device. More datagrams would be
    /// late, and finally lost. Its owner keeps them meanwhile, as Linux does where the device's
    /// backlog fills SO_SNDBUF. [`SocketEvent::Writable`] follows when half of the share has left.
    /// Counter `udp_waits_for_share`.
    pub fn datagram_waits(&mut self, id: SocketId) -> bool {
        let Some(index) = self.index(id) else { return false };
        if !datagrams(index).is_some_and(|sender| self.net.has_share(sender, TX_SHARE_BYTES)) {
            return false;
        }
        let Some(socket) = self.sockets.get_mut(index) else { return false };
        let before = std::mem::replace(&mut socket.waits, Waits::ForShare);
        self.counters.udp_waits_for_share += u64::from(before == Waits::ForNothing);
        true
    }

    /// Ends a connection's wait for a device, or for its share of one; the next visit may begin
    /// another. Its place in a line may stay, and costs a superfluous visit. The owner of a
    /// datagram socket gets an event.
    pub(crate) fn end_wait(&mut self, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if std::mem::replace(&mut socket.waits, Waits::ForNothing) == Waits::ForNothing {
            return;
        }
        match socket.kind {
            Kind::Datagram(_) => self.events.push_back((socket.user, SocketEvent::Writable)),
            _ => self.mark_dirty(index),
        }
    }

    /// The devices took as much as they could. Connections whose share is mostly drained go on.
    /// When routes have changed all waiting ones do, because they may no longer use the device that
    /// they wait for.
    pub(crate) fn end_waits(&mut self) {
        while let Some(sender) = self.net.pop_drained() {
            let index = place(sender);
            if self.sockets.get(index).is_some_and(|socket| socket.waits == Waits::ForShare) {
                self.end_wait(index);
            }
        }
        let generation = self.net.route_generation();
        if std::mem::replace(&mut self.output_generation, generation) == generation {
            return;
        }
        for sender in self.net.senders() {
            self.end_wait(place(sender));
        }
        for iface in 0..self.output_lines.len() {
            while let Some(id) = self.output_lines[iface].pop_front() {
                let Some(index) = self.index(id) else { continue };
                if let Some(socket) = self.sockets.get_mut(index) {
                    socket.waits = Waits::ForNothing;
                }
                self.mark_dirty(index);
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
        place: Place,
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
        for _ in 0..TX_PACKETS_A_VISIT {
            let held = self.held(index, place);
            let Some(Kind::Stream(stream)) =
                self.sockets.get_mut(index).map(|socket| &mut socket.kind)
            else {
                return Visited::Idle;
            };
            let buffers = stream.buffers();
            let Some(connection) = &mut stream.connection else { return Visited::Idle };
            let idle = match (connection.plan(now, buffers, TX_BYTES_A_PACKET), held) {
                (Plan::Send(transmit), Some(held)) if waits(&transmit) => {
                    // The peer may wait for an acknowledgement before it sends the bytes that our
                    // program waits for.
                    if let Some(ack) = connection.plan_ack() {
                        let outgoing = connection.emit(now, ack, buffers);
                        self.send_segment(now, index, &outgoing, pool);
                    }
                    self.wait(held, index);
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
        self.paths.follow(&mut self.net);
        if stream.path.is_some_and(|path| self.paths.is_current(&path, &self.net)) {
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# TCP implementations MUST use the same local address that was used in those previous
        //# segments (MUST-45).
        let old = stream.path;
        let (local, remote) = (stream.flow.local, stream.flow.remote);
        let route = self.net.route_to_keep(now, Some(local), remote, stream.iface);
        stream.path = route.ok().map(|route| self.paths.shrink(&route, &self.net));
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
        let Some(Kind::Stream(stream)) = self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return;
        };
        self.counters.tcp_sent += 1;
        self.counters.tcp_bytes_sent += u64::from(outgoing.len);
        self.counters.tcp_retransmits += u64::from(outgoing.retransmit);
        self.counters.tcp_resets_sent += u64::from(outgoing.flags.contains(Flags::RST));
        // Without a route the segment is dropped. The retransmission timer sends it again, and then
        // there may be one.
        let flow = stream.flow;
        let route = stream.path.and_then(|path| self.paths.route(&path, &flow, &self.net));
        let Some(route) = route else { return self.count_drop(DropReason::NoRoute) };
        // A SYN that is sent again has no option: the path may have dropped the first for it.
        let option = match outgoing.flags.contains(Flags::SYN) && !outgoing.retransmit {
            true => self.fast_opens.option_of_syn(index),
            false => None,
        };
        let mut packet = segment_packet(&flow, outgoing, option, pool);
        if !put_payload(&mut packet, &mut stream.send, outgoing) {
            // Neither other bytes in their place nor fewer than the sequence numbers say may go
            // out. To the connection the segment is lost; its timers try again, and give up in the
            // end.
            debug_assert!(false, "{outgoing:?}: {} bytes are there", stream.send.len());
            pool.give(packet);
            return self.count_drop(DropReason::TcpPayloadMissing);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# TCP implementations SHOULD pass the current Differentiated Services field value without
        //# change to the IP layer, when it sends segments on the connection (SHLD-22).
        let (class, ttl) = (stream.packet.class, stream.packet.ttl);
        let ip = ip_for(&route, class, ttl);
        // Packets without payload need no share: they never wait for one.
        packet.meta.sender = connection(index).filter(|_| outgoing.len > 0);
        self.send_packet(now, &route, &flow, ip, packet, pool);
    }

    /// Sends a segment that belongs to no socket, as a RST, to the peer of one that came in by
    /// `iface`.
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
            None,
            pool,
        );
    }

    /// Sends a segment that belongs to no connection, as a SYN-ACK or the ACK of a TIME-WAIT. TTL,
    /// class and device are those of a socket with these settings.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn reply_as(
        &mut self,
        now: Instant,
        flow: &Flow,
        iface: Option<IfaceId>,
        packet: FlowSettings,
        outgoing: &Outgoing,
        option: Option<FastOpen>,
        pool: &mut Pool,
    ) {
        let Ok(route) = self.net.route(now, Some(flow.local), flow.remote, iface) else {
            return self.count_drop(DropReason::NoRoute);
        };
        self.counters.tcp_sent += 1;
        let ip = ip_for(&route, packet.class, packet.ttl);
        let packet = segment_packet(flow, outgoing, option, pool);
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
        // `Net::send` has counted a packet that it cannot send. TCP sends it again as if it were
        // lost on the way.
        let _ = self.net.send(now, route, flow.local, flow.remote, ip, packet, checksum, pool);
    }
}

/// Whether a segment has to wait for its device. Segments without payload keep the peer going. A
/// reset ends a connection that may be gone before a slow device has room.
fn waits(transmit: &Transmit) -> bool {
    !matches!(
        transmit.kind(),
        TransmitKind::Ack
            | TransmitKind::WindowProbe
            | TransmitKind::KeepAlive
            | TransmitKind::Reset
    )
}

/// Bytes on the wire that a connection may have in the queue of its device. The ratio to its
/// congestion window is that of [`TX_SHARE_TIME`] to the round trip.
fn share_max<H: Host>(stream: &Stream<H>) -> u32 {
    let Some(connection) = &stream.connection else { return TX_SHARE_BYTES };
    let rtt = connection.srtt().map_or(0, |rtt| rtt.as_nanos() as u64);
    let bytes = u64::from(connection.cwnd()) * TX_SHARE_TIME.as_nanos() as u64;
    match bytes.checked_div(rtt) {
        Some(bytes) => bytes.clamp(TX_SHARE_BYTES.into(), TX_SHARE_BYTES_MAX.into()) as u32,
        None => TX_SHARE_BYTES,
    }
}

/// Puts the payload of a segment into its packet. A short one is copied behind the header; a long
/// one stays in the send buffer and is pointed to. False when bytes are missing.
fn put_payload(packet: &mut Packet, send: &mut impl SendBuffer, outgoing: &Outgoing) -> bool {
    if outgoing.len == 0 {
        return true;
    }
    if outgoing.len > TX_COPY_MAX {
        packet.tail = send.peek(outgoing.send_offset, outgoing.len);
        return packet.tail.len() == outgoing.len;
    }
    let to = packet.push_back(outgoing.len as usize).expect("taken with room");
    send.read(outgoing.send_offset, to)
}

/// A packet of the TCP header, with room for a short payload.
fn segment_packet(
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

fn ip_for(route: &Route, tos: u8, ttl: Option<u8>) -> Ip {
    // Path MTU discovery (RFC 1191) sets DF. Where a router reported an MTU below the least that
    // segments are cut to, it has to fragment them.
    let fragmenting = if route.needs_fragments { Fragmenting::Routers } else { Fragmenting::Never };
    Ip { protocol: IpProtocol::TCP.0, ttl, tos, fragmenting, flow_label: 0 }
}
