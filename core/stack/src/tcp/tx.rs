//! The send path: dirty connections are visited in turn. `outcome` handles the results of a visit.
//!
//! ```text
//!  dirty list ─► visit: notify owner ───► plan ─► emit ─► frame ─► net ─► output of an interface
//!                  ▲                       │ up to 4 packets, then the next connection
//!                  │                       ▼ nothing more to send
//!          segment, send_ready,     events, timer, end of connection
//!          recv_taken, timeout
//! ```
//! A connection waits if the queue of its device is busy, or its share of the queue is used up:
//!
//! ```text
//!  visit ─► device busy ───► queue of connections ─► serve_lines, when the device drained ─► visit
//!       └─► share used up ─► half of the share drained ─► dirty list
//! ```
//! Headers of a frame are in a pool packet; payload longer than 256 bytes stays in the send buffer
//! and is referenced. A packet carries up to 64 KB, and the size of the segments into which it is
//! to be divided.

use towpath_pool::{Packet, Pool};
use towpath_ring::SendBuffer;
use towpath_tcp::{Flags, Instant, Outgoing, Plan, Transmit, TransmitKind};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{Budget, Host, SocketId};
use crate::limits::{
    TX_BYTES_A_PACKET, TX_COPY_MAX, TX_PACKETS_A_VISIT, TX_SHARE_BYTES, TX_SHARE_BYTES_MAX,
    TX_SHARE_TIME,
};
use crate::net::{IfaceId, connection, datagrams};
use crate::reply::{ip_for, segment_packet};
use crate::socket::{SocketRole, Waits};
use crate::stack::Stack;
use crate::tcp::outcome::{notify_owner, tune};
use crate::tcp::output_lines::{is_busy, is_low};
use crate::tcp::stream::StreamSocket;

/// Result of a visit of a connection.
enum Visited {
    /// The connection can send nothing more now.
    Idle,
    /// There is more to send: the connection moves to the back of the dirty list.
    More,
}

/// Precedence of a visit relative to connections that wait for the same device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VisitTurn {
    /// Sends unless connections wait for the device.
    Behind,
    /// The connection was at the front of the device's queue.
    Called,
    /// Sends before connections that wait.
    Ahead,
}

/// Reason why a connection may not add to the queue of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldBack {
    /// The device is busy, or other connections wait for it.
    ByOthers(IfaceId),
    /// The connection's share of the queue is used up.
    ByShare,
}

impl<H: Host> Stack<H> {
    /// Visits dirty connections within the budget, each at most once before all others. Connections
    /// that waited for a device come first.
    pub(crate) fn transmit(&mut self, cx: &mut Cx<'_, H>, budget: &mut usize) {
        self.serve_lines(cx, budget);
        for _ in 0..self.dirty.len() {
            if *budget == 0 {
                return;
            }
            let Some(id) = self.dirty.pop_front() else { return };
            let Some(index) = self.index(id) else { continue };
            if let Some(socket) = self.sockets.get_mut(index) {
                socket.dirty = false;
            }
            let visited = self.visit(cx, index, budget, VisitTurn::Behind);
            if let Visited::More = visited {
                self.mark_dirty(index);
            }
        }
    }

    /// Tells the stack that bytes were added to the send buffer. The next turn sends as many as the
    /// windows allow. Does nothing for sockets that no longer exist.
    pub fn send_ready(&mut self, id: SocketId) {
        if let Some(index) = self.index(id) {
            self.mark_dirty(index);
        }
    }

    /// Lets a connection send immediately, before all others and even if the device is busy. Used
    /// for a connection that its owner has reset in order to reuse its ports. Packets that do not
    /// fit in the device's queue are lost.
    pub fn send_now(&mut self, now: Instant, host: &mut H, id: SocketId, pool: &mut Pool) {
        let cx = &mut Cx { now, host, pool };
        let mut budget = Budget::default().tx_packets;
        for _ in 0..budget / TX_PACKETS_A_VISIT {
            let Some(index) = self.index(id) else { return };
            let visited = self.visit(cx, index, &mut budget, VisitTurn::Ahead);
            if let Visited::Idle = visited {
                return;
            }
        }
        self.send_ready(id);
    }

    /// Lets connections that wait for a device continue when its queue has drained. Each gets one
    /// visit at a time, in order, until the queue is full again.
    fn serve_lines(&mut self, cx: &mut Cx<'_, H>, budget: &mut usize) {
        for iface in self.output_lines.ifaces() {
            if !is_low(&self.net, iface) {
                continue;
            }
            while *budget > 0 && !is_busy(&self.net, iface) {
                let Some(id) = self.output_lines.pop(iface) else { break };
                let Some(index) = self.index(id) else { continue };
                if let Some(socket) = self.sockets.get_mut(index) {
                    socket.waits = Waits::ForNothing;
                }
                let visited = self.visit(cx, index, budget, VisitTurn::Called);
                if let Visited::More = visited {
                    self.stand_in_line(iface, index);
                }
            }
        }
    }

    /// Returns why a connection may not send bytes now.
    fn held(&self, index: u32, turn: VisitTurn) -> Option<HeldBack> {
        if turn == VisitTurn::Ahead {
            return None;
        }
        let SocketRole::Stream(stream) = &self.sockets.get(index)?.kind else { return None };
        // Never hold back a connection that still has its RST to send; otherwise it would exist
        // until the device's queue drains.
        if stream.is_aborting() {
            return None;
        }
        let iface = stream.path.filter(|path| self.paths.is_current(path, &self.net))?.iface;
        let others = self.output_lines.has_waiting(iface);
        if is_busy(&self.net, iface) || turn == VisitTurn::Behind && others {
            return Some(HeldBack::ByOthers(iface));
        }
        // If the queue contains less than the minimum share, no sender can exceed it.
        if self.net.output_load(iface).bytes < TX_SHARE_BYTES as usize {
            return None;
        }
        let share = self.net.output_share(iface, connection(index)?);
        (share >= TX_SHARE_BYTES && share >= share_max(stream)).then_some(HeldBack::ByShare)
    }

    /// Makes a connection with something to send wait until its device has taken packets.
    /// Meanwhile timers, received segments and calls of the program are still handled.
    fn wait(&mut self, held: HeldBack, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        match held {
            HeldBack::ByOthers(iface) => {
                self.counters.tcp_waits_for_output += u64::from(socket.waits != Waits::InLine);
                self.stand_in_line(iface, index);
            }
            HeldBack::ByShare if socket.waits == Waits::ForNothing => {
                socket.waits = Waits::ForShare;
                self.counters.tcp_waits_for_share += 1;
            }
            HeldBack::ByShare => {}
        }
    }

    /// Returns whether a datagram socket has used up its share of a device's queue. Further
    /// datagrams would be late, and finally lost. The owner keeps them meanwhile, as Linux does
    /// when the device's backlog fills SO_SNDBUF. [`crate::SocketEvent::Writable`] follows when
    /// half of the share has drained. Counter `udp_waits_for_share`.
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

    fn visit(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: u32,
        budget: &mut usize,
        turn: VisitTurn,
    ) -> Visited {
        if self.shards.is_claiming(index) {
            return Visited::Idle;
        }
        self.refresh_route(cx.now, index);
        let Some(socket) = self.sockets.get_mut(index) else { return Visited::Idle };
        let (user, orphan) = (socket.user, socket.orphan);
        let SocketRole::Stream(stream) = &mut socket.kind else { return Visited::Idle };
        notify_owner(cx.host, user, orphan, stream);
        tune(cx.now, stream);
        if let (Some(prober), Some(path)) = (&mut stream.connection, &stream.path)
            && prober.is_probe_due()
            && connection(index).is_some_and(|it| self.net.output_share(path.iface, it) > 0)
        {
            prober.postpone_probe(cx.now);
        }
        for _ in 0..TX_PACKETS_A_VISIT {
            let held = self.held(index, turn);
            let Some(stream) = self.sockets.stream_mut(index) else {
                return Visited::Idle;
            };
            let buffers = stream.buffers();
            let Some(connection) = &mut stream.connection else { return Visited::Idle };
            let idle = match (connection.plan(cx.now, buffers, TX_BYTES_A_PACKET), held) {
                (Plan::Send(transmit), Some(held)) if waits(&transmit) => {
                    // The peer may wait for an acknowledgement before it sends bytes for which our
                    // program waits.
                    if let Some(ack) = connection.plan_ack() {
                        let outgoing = connection.emit(cx.now, ack, buffers);
                        self.send_segment(cx, index, &outgoing);
                    }
                    self.wait(held, index);
                    self.after_visit(cx, index);
                    return Visited::Idle;
                }
                (Plan::Send(transmit), _) => {
                    let outgoing = connection.emit(cx.now, transmit, buffers);
                    self.send_segment(cx, index, &outgoing);
                    *budget = budget.saturating_sub(1);
                    continue;
                }
                (Plan::Nothing(idle), _) => idle,
            };
            connection.on_idle(cx.now, idle, buffers);
            if stream.watch_reads(cx.now) {
                continue;
            }
            self.after_visit(cx, index);
            return Visited::Idle;
        }
        Visited::More
    }

    /// Looks up the route of a connection again if the routes changed since it was cached.
    fn refresh_route(&mut self, now: Instant, index: u32) {
        let Some(stream) = self.sockets.stream_mut(index) else {
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

    /// Creates the packet of a segment, and sends it.
    fn send_segment(&mut self, cx: &mut Cx<'_, H>, index: u32, outgoing: &Outgoing) {
        let Some(stream) = self.sockets.stream_mut(index) else {
            return;
        };
        self.counters.tcp_sent += 1;
        self.counters.tcp_bytes_sent += u64::from(outgoing.len);
        self.counters.tcp_retransmits += u64::from(outgoing.retransmit);
        self.counters.tcp_resets_sent += u64::from(outgoing.flags.contains(Flags::RST));
        // Without a route the segment is dropped. The retransmission timer sends it again; a route
        // may exist by then.
        let flow = stream.flow;
        let route = stream.path.and_then(|path| self.paths.route(&path, &flow, &self.net));
        let Some(route) = route else { return self.count_drop(DropReason::NoRoute) };
        // A retransmitted SYN has no option, because the path may have dropped the first one due to
        // the option.
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.1
        //# We RECOMMEND both the client and the server to retransmit SYN and SYN-ACK packets
        //# without the cookie options on timeouts.
        let option = match outgoing.flags.contains(Flags::SYN) && !outgoing.retransmit {
            true => self.fast_opens.option_of_syn(index),
            false => None,
        };
        let mut packet = segment_packet(&flow, outgoing, option, cx.pool);
        if !put_payload(&mut packet, &mut stream.send, outgoing) {
            // Never send a segment whose payload is wrong or too short for its sequence numbers.
            // The connection regards the segment as lost: its timers retransmit, and finally give
            // up.
            debug_assert!(false, "{outgoing:?}: {} bytes are there", stream.send.len());
            cx.pool.give(packet);
            return self.count_drop(DropReason::TcpPayloadMissing);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# TCP implementations SHOULD pass the current Differentiated Services field value without
        //# change to the IP layer, when it sends segments on the connection (SHLD-22).
        let (class, ttl) = (stream.packet.class, stream.packet.ttl);
        let ip = ip_for(&route, outgoing.ecn.with_dscp(class), ttl);
        // Packets without payload are not limited, so they do not count in the share.
        packet.meta.sender = connection(index).filter(|_| outgoing.len > 0);
        self.send_packet(cx.now, &route, &flow, ip, packet, cx.pool);
    }
}

/// Returns whether a segment must wait while its device is busy. Acknowledgements and probes are
/// sent at once, because the peer may wait for them. A reset is sent at once, because its
/// connection may be gone before the device has room.
fn waits(transmit: &Transmit) -> bool {
    !matches!(
        transmit.kind(),
        TransmitKind::Ack
            | TransmitKind::WindowProbe
            | TransmitKind::KeepAlive
            | TransmitKind::Reset
    )
}

/// Returns the number of bytes on the wire that a connection may have in the queue of its device.
/// Its ratio to the congestion window equals [`TX_SHARE_TIME`] divided by the round-trip time.
fn share_max<H: Host>(stream: &StreamSocket<H>) -> u32 {
    let Some(connection) = &stream.connection else { return TX_SHARE_BYTES };
    let rtt = connection.srtt().map_or(0, |rtt| rtt.as_nanos() as u64);
    let bytes = u64::from(connection.cwnd()) * TX_SHARE_TIME.as_nanos() as u64;
    match bytes.checked_div(rtt) {
        Some(bytes) => bytes.clamp(TX_SHARE_BYTES.into(), TX_SHARE_BYTES_MAX.into()) as u32,
        None => TX_SHARE_BYTES,
    }
}

/// Adds the payload of a segment to its packet. Short payload is copied behind the header; long
/// payload stays in the send buffer and is referenced. Returns false if bytes are missing.
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
