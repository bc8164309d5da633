//! Send path of TCP: connections that may have something to send (in the list `dirty`) are visited
//! in order. During a visit, the connection sends its packets. The module `outcome` handles the
//! results.
//!
//! ```text
//!  dirty list ─► visit: notify owner ───► plan ─► emit ─► frame ─► net ─► output of an interface
//!                  ▲                       │ up to 4 packets, then the next connection
//!                  │                       ▼ nothing more to send
//!          segment, send_ready,     events, timer, end of connection
//!          recv_taken, timeout
//! ```
//! A connection waits if the queue of its device is full, or if the connection has reached its own
//! limit (share) in the queue:
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

/// Result of visiting a connection in the send path.
enum Visited {
    /// The connection has no more to send at present.
    Idle,
    /// The connection has more to send, so it is appended to the list of connections to be visited.
    More,
}

/// Precedence of the connection that wants to send over connections that wait for the same device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VisitTurn {
    /// The connection may send only if no other connection waits for the device.
    Behind,
    /// The connection was the first in the list of connections that wait for the device, so it may
    /// send.
    Called,
    /// The connection sends before all connections that wait.
    Ahead,
}

/// Reason why a connection must not add packets to the queue of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldBack {
    /// The queue of the device is full, or connections that came earlier wait for the device.
    ByOthers(IfaceId),
    /// The connection has reached its own limit of bytes in the device queue.
    ByShare,
}

impl<H: Host> Stack<H> {
    /// Lets the connections in the list `dirty` send, within the budget of packets. Each connection
    /// has one turn before any of them has a second one. Connections that waited for a device come
    /// first.
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

    /// Notifies the stack that the owner has added bytes to a connection's send buffer. The next
    /// turn of the event loop sends as many as the windows permit. Has no effect if the socket was
    /// removed.
    pub fn send_ready(&mut self, id: SocketId) {
        if let Some(index) = self.index(id) {
            self.mark_dirty(index);
        }
    }

    /// Lets a connection send immediately, before all other connections and even if its device
    /// queue is full. Used for a connection that its owner has reset in order to reuse its ports.
    /// Packets that do not fit in the device queue are lost.
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

    /// Lets connections continue that wait for a device, if its queue has space. The connections
    /// send in order, each once at a time, until the queue is full again.
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

    /// Returns the reason why a connection must not send bytes at present; `None` if it may.
    fn held(&self, index: u32, turn: VisitTurn) -> Option<HeldBack> {
        if turn == VisitTurn::Ahead {
            return None;
        }
        let SocketRole::Stream(stream) = &self.sockets.get(index)?.kind else { return None };
        // A connection that has to send its RST never waits. Otherwise the connection would exist
        // until the device queue has space.
        if stream.is_aborting() {
            return None;
        }
        let iface = stream.path.filter(|path| self.paths.is_current(path, &self.net))?.iface;
        let others = self.output_lines.has_waiting(iface);
        if is_busy(&self.net, iface) || turn == VisitTurn::Behind && others {
            return Some(HeldBack::ByOthers(iface));
        }
        // If the queue has fewer bytes than the minimum limit of a connection, none can have
        // reached its limit.
        if self.net.output_load(iface).bytes < TX_SHARE_BYTES as usize {
            return None;
        }
        let share = self.net.output_share(iface, connection(index)?);
        (share >= TX_SHARE_BYTES && share >= share_max(stream)).then_some(HeldBack::ByShare)
    }

    /// Lets a connection with bytes to send wait until its device has accepted packets. While it
    /// waits, its timers, received segments and calls of the program are still handled.
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

    /// Returns whether a datagram socket has reached its own limit of bytes in a device queue
    /// (counter `udp_waits_for_share`). Further datagrams would be late or lost. The owner should
    /// keep further datagrams, as Linux does when packets in a device queue fill SO_SNDBUF.
    ///
    /// [`crate::SocketEvent::Writable`] follows when half of the bytes were sent.
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
                    // Send an acknowledgment although the connection must wait. The peer may need
                    // it before it sends bytes that our program waits for.
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

    /// Looks up the route of a connection again, if routes have changed since the route was cached.
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

    /// Creates the packet for a segment of a connection, and sends it.
    fn send_segment(&mut self, cx: &mut Cx<'_, H>, index: u32, outgoing: &Outgoing) {
        let Some(stream) = self.sockets.stream_mut(index) else {
            return;
        };
        self.counters.tcp_sent += 1;
        self.counters.tcp_bytes_sent += u64::from(outgoing.len);
        self.counters.tcp_retransmits += u64::from(outgoing.retransmit);
        self.counters.tcp_resets_sent += u64::from(outgoing.flags.contains(Flags::RST));
        // If there is no route, drop the segment. The segment is sent again when the retransmission
        // timer expires, and there may be a route by then.
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
            // Do not send a segment whose payload is incomplete. The connection treats the
            // segment as lost, retransmits it, and finally fails.
            debug_assert!(false, "{outgoing:?}: {} bytes are there", stream.send.len());
            cx.pool.give(packet);
            return self.count_drop(DropReason::TcpPayloadMissing);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# TCP implementations SHOULD pass the current Differentiated Services field value without
        //# change to the IP layer, when it sends segments on the connection (SHLD-22).
        let (class, ttl) = (stream.packet.class, stream.packet.ttl);
        let ip = ip_for(&route, outgoing.ecn.with_dscp(class), ttl);
        // Packets without payload never wait, so they do not count toward the connection's limit.
        packet.meta.sender = connection(index).filter(|_| outgoing.len > 0);
        self.send_packet(cx.now, &route, &flow, ip, packet, cx.pool);
    }
}

/// Returns whether a segment must wait while the device queue is full. Acknowledgments and probes
/// are sent at once, because the peer may wait for them. A reset is sent at once, because the
/// connection may be removed before the queue has space.
fn waits(transmit: &Transmit) -> bool {
    !matches!(
        transmit.kind(),
        TransmitKind::Ack
            | TransmitKind::WindowProbe
            | TransmitKind::KeepAlive
            | TransmitKind::Reset
    )
}

/// Returns the number of bytes on the wire that a connection may have in its device queue. The
/// limit is the number that the connection sends in [`TX_SHARE_TIME`], at a rate of one congestion
/// window per round-trip time.
fn share_max<H: Host>(stream: &StreamSocket<H>) -> u32 {
    let Some(connection) = &stream.connection else { return TX_SHARE_BYTES };
    let rtt = connection.srtt().map_or(0, |rtt| rtt.as_nanos() as u64);
    let bytes = u64::from(connection.cwnd()) * TX_SHARE_TIME.as_nanos() as u64;
    match bytes.checked_div(rtt) {
        Some(bytes) => bytes.clamp(TX_SHARE_BYTES.into(), TX_SHARE_BYTES_MAX.into()) as u32,
        None => TX_SHARE_BYTES,
    }
}

/// Adds the payload of a segment to its packet. A short payload is copied after the header. A long
/// payload remains in the send buffer, and is referenced. Returns false if bytes are missing in the
/// buffer.
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
