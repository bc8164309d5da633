//! The receive path: from a packet to its socket. `passive` processes handshakes, `delivery`
//! chooses sockets for datagrams, `errors` finds the socket of an ICMP error. In the same turn `tx`
//! visits every connection that got a segment.
//!
//! ```text
//!  packet ─► net ─┬─► tcp ─┬─► connection ─► buffers, events      ┐ one probe of the
//!                 │        ├─► half-open ─► child of its listener  │ flow table says
//!                 │        ├─► TIME-WAIT                           │ which
//!                 │        ├─► pending (any-address)               ┘
//!                 │        └─► no flow: listener, any-address SYN, or RST
//!                 ├─► udp ──► connected socket, else bound ones, else port unreachable
//!                 ├─► icmp error ─► connection (RFC 5927) or connected datagram socket
//!                 └─► echo reply ─► echo socket
//! ```

use std::net::SocketAddr;

use towpath_pool::Pool;
use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_tcp::{Connection, Disposition, FifoChanges, Flags, Instant, Segment, reset_for};
use towpath_wire::{IpProtocol, addr, tcp, udp};

use crate::drop::DropReason;
use crate::host::{DatagramMeta, Host};
use crate::incoming::{Incoming, arrival, dont_fragment, is_opening, segments_in};
use crate::net::{self, IfaceId, Local, Net, Received, Unreachable};
use crate::socket::{Kind, Stream};
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};
use crate::tcp::path::Path;
use crate::udp::deliveries::{Arrived, Delivery, Undelivered};
use crate::udp::delivery::{each_datagram, stray_echo};

impl<H: Host> Stack<H> {
    /// Delivers a packet or report of the IP layer. `hash` is that of the flow in the table, if it
    /// is a segment and the hash is known.
    pub(crate) fn on_received(
        &mut self,
        now: Instant,
        host: &mut H,
        received: Received,
        hash: Option<u64>,
        pool: &mut Pool,
    ) {
        match received {
            Received::Local(local) => match IpProtocol(local.protocol) {
                IpProtocol::TCP => self.receive_tcp(now, host, local, hash, pool),
                IpProtocol::UDP => self.receive_udp(now, host, local, pool),
                _ => {
                    self.net.unreachable(now, &local, Unreachable::Protocol, pool);
                    self.drop_local(local, DropReason::UnknownProtocol, pool);
                }
            },
            Received::IcmpError(error) => self.receive_error(now, host, &error),
            Received::EchoReply(echo) => self.receive_echo_reply(now, host, echo, pool),
            Received::EchoRequest(echo) => stray_echo(host, echo, pool),
        }
    }

    fn receive_tcp(
        &mut self,
        now: Instant,
        host: &mut H,
        local: Local,
        hash: Option<u64>,
        pool: &mut Pool,
    ) {
        self.counters.tcp_received += 1;
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# the receiver MUST check it (MUST-3).
        if !net::verify_transport(&local) {
            return self.drop_local(local, DropReason::TransportChecksum, pool);
        }
        let Some(incoming) = self.parse_tcp(now, local, hash, pool) else { return };
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.3
        //# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to a
        //# broadcast or multicast address (MUST-57).
        if incoming.local.broadcast_or_multicast || !addr::is_unicast(incoming.flow.remote) {
            return self.drop_local(incoming.local, DropReason::TcpNotUnicast, pool);
        }
        match self.find_flow(incoming.hash, &incoming.flow) {
            Some(FlowRef::Socket(index)) => self.on_segment(now, index, incoming, pool),
            Some(FlowRef::HalfOpen(index)) => {
                self.on_half_open_segment(now, host, index, incoming, pool)
            }
            Some(FlowRef::TimeWait(index)) => {
                self.on_time_wait_segment(now, host, index, incoming, pool)
            }
            Some(FlowRef::Pending(index)) => {
                self.on_pending_segment(now, host, index, incoming, pool)
            }
            None if is_opening(&incoming.segment) => self.on_syn(now, host, incoming, pool),
            None => self.on_stray_segment(now, incoming, pool),
        }
    }

    fn parse_tcp(
        &mut self,
        now: Instant,
        local: Local,
        hash: Option<u64>,
        pool: &mut Pool,
    ) -> Option<Incoming> {
        let header = local.packet.linear().get(local.offset..).map(tcp::Header::parse);
        let Some(Ok(header)) = header else {
            self.drop_local(local, DropReason::TransportMalformed, pool);
            return None;
        };
        let header_len = usize::from(header.header_len);
        let Some(payload_len) = local.len.checked_sub(header_len) else {
            self.drop_local(local, DropReason::TransportMalformed, pool);
            return None;
        };
        let flow = Flow {
            local: local.dst,
            remote: local.src,
            local_port: header.dst_port,
            remote_port: header.src_port,
        };
        let segment = Segment {
            seq: header.seq,
            ack: header.ack,
            flags: header.flags,
            window: header.window,
            urgent: header.urgent,
            options: header.options,
            payload_len: payload_len as u32,
            arrival: arrival(now, &local),
            ce: local.tos & 3 == 3,
            segments: segments_in(&local, payload_len),
        };
        let hash = hash.unwrap_or_else(|| self.keys.table.ends(&flow));
        debug_assert_eq!(hash, self.keys.table.ends(&flow), "{flow:?}");
        Some(Incoming { hash, local, flow, segment, header_len })
    }

    /// A segment of a connection: the state machine processes it, the buffers follow, and the
    /// connection will be visited.
    pub(crate) fn on_segment(
        &mut self,
        now: Instant,
        index: u32,
        incoming: Incoming,
        pool: &mut Pool,
    ) {
        let Some(Kind::Stream(stream)) = self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, pool);
        };
        if incoming.local.ttl < stream.packet.hops_min {
            return self.drop_local(incoming.local, DropReason::TcpMinTtl, pool);
        }
        let buffers = stream.buffers();
        let Some(connection) = &mut stream.connection else {
            return self.refuse_segment(now, incoming, DropReason::TcpNoSocket, pool);
        };
        let received = match connection.on_segment(now, &incoming.segment, buffers) {
            Disposition::Accepted(received) => received,
            Disposition::Dropped(reason) => {
                self.drop_local(incoming.local, reason.into(), pool);
                return self.mark_dirty(index);
            }
        };
        if incoming.segment.flags.contains(Flags::SYN) {
            let repeated = connection.has_repeated_syn();
            let (flow, mss) = (incoming.flow, incoming.segment.options.mss);
            self.fast_opens.on_syn_ack(now, index, &flow, mss, incoming.header(), repeated);
        }
        if received.urgent || received.payload_dropped.is_some() {
            note_rare(stream, &incoming, &received, &mut self.net);
        }
        // Release first: a connection that is aborted below may still send the bytes behind these.
        if received.released > 0 {
            stream.send.release(received.released);
            stream.news.add_writable();
            let path = stream.path.as_ref().filter(|path| self.paths.is_current(path, &self.net));
            if let Some(hop) = path.and_then(Path::hop) {
                self.net.confirm_reachable(now, hop);
            }
        }
        if !store(stream, &incoming, &received) {
            self.drop_local(incoming.local, DropReason::TcpNoMemory, pool);
            return self.mark_dirty(index);
        }
        self.counters.tcp_bytes_received += u64::from(received.commit);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# In general, the processing of received segments MUST be implemented to aggregate ACK
        //# segments whenever possible (MUST-58).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# if the TCP endpoint is processing a series of queued segments, it MUST process them all
        //# before sending any ACK segments (MUST-59).
        pool.give(incoming.local.packet);
        self.mark_dirty(index);
    }

    /// Answers a segment that no connection and no listener takes with a RST, if it may be
    /// answered, and drops it.
    pub(crate) fn refuse_segment(
        &mut self,
        now: Instant,
        incoming: Incoming,
        reason: DropReason,
        pool: &mut Pool,
    ) {
        if let Some(reset) = reset_for(&incoming.segment) {
            self.counters.tcp_resets_sent += 1;
            self.reply(now, &incoming.flow, incoming.local.iface, &reset, pool);
        }
        self.drop_local(incoming.local, reason, pool);
    }

    fn receive_udp(&mut self, now: Instant, host: &mut H, mut local: Local, pool: &mut Pool) {
        if !net::verify_transport(&local) {
            return self.drop_local(local, DropReason::TransportChecksum, pool);
        }
        let header = local.packet.linear().get(local.offset..).map(udp::Header::parse_quoted);
        let Some(Ok((header, header_len))) = header else {
            return self.drop_local(local, DropReason::TransportMalformed, pool);
        };
        // A packet may hold several datagrams: the device merged them, or UDP_SEGMENT over loopback
        // did not cut them. Then the one header states the length of all.
        let length = usize::from(header.length);
        if length < header_len || length > local.len {
            return self.drop_local(local, DropReason::TransportMalformed, pool);
        }
        self.counters.udp_received += 1;
        let meta = DatagramMeta {
            local: SocketAddr::new(local.dst, header.dst_port),
            remote: SocketAddr::new(local.src, header.src_port),
            iface: self.net.link_of(local.iface, local.dst),
            ttl: local.ttl,
            tos: local.tos,
            dont_fragment: dont_fragment(&local),
            arrival: arrival(now, &local),
            segment_size: 0,
        };
        local.len = length;
        let arrived = Arrived::new(&local, meta, header_len);
        let delivered = if local.broadcast_or_multicast {
            self.deliver_to_all(host, &arrived)
        } else {
            self.deliver_to_one(host, &arrived)
        };
        match delivered {
            Ok(()) => pool.give(local.packet),
            // Looped copies of this host's own datagrams are not for other hosts.
            Err(Undelivered::Lost(DropReason::UdpNoSocket))
                if self.net.is_any_address(local.iface) && !local.looped =>
            {
                each_datagram(&arrived.payload, arrived.size, |datagram| {
                    host.stray_datagram(&meta, &datagram);
                });
                pool.give(local.packet);
            }
            Err(Undelivered::Later(receivers)) => {
                let delivery = Delivery::new(local, meta, header_len, receivers);
                self.deliver_later(host, delivery, pool);
            }
            Err(Undelivered::Lost(reason)) => {
                //= https://www.rfc-editor.org/rfc/rfc1122#section-4.1.3.1
                //# If a datagram arrives addressed to a UDP port for which
                //# there is no pending LISTEN call, UDP SHOULD send an ICMP
                //# Port Unreachable message.
                if reason == DropReason::UdpNoSocket && !local.broadcast_or_multicast {
                    self.net.unreachable(now, &local, Unreachable::Port, pool);
                }
                self.drop_local(local, reason, pool);
            }
        }
    }

    pub(crate) fn drop_local(&mut self, local: Local, reason: DropReason, pool: &mut Pool) {
        let iface = if local.looped { IfaceId::LOOPBACK } else { local.iface };
        self.net.drop(iface, local.packet, reason, pool);
    }
}

/// Copies payload into the receive buffer. False: the buffer did not take it, and the connection is
/// aborted.
#[inline]
fn store<H: Host>(stream: &mut Stream<H>, incoming: &Incoming, received: &FifoChanges) -> bool {
    let written = received.write.is_none_or(|write| {
        let bytes = incoming.payload().slice(write.payload_offset, write.len);
        stream.recv.write_at(write.fifo_offset, &bytes)
    });
    if !written {
        // The connection will acknowledge bytes that the buffer did not take, so it cannot go
        // on. A `RecvBuffer` that takes as much as its capacity says never gets here.
        if let Some(connection) = &mut stream.connection {
            connection.abort();
        }
        return false;
    }
    if received.commit > 0 {
        stream.recv.commit(received.commit);
        stream.news.add_readable();
    }
    true
}

/// Handles rare results of a segment: bytes that were not taken, and urgent data.
#[cold]
fn note_rare<H: Host>(
    stream: &mut Stream<H>,
    incoming: &Incoming,
    received: &FifoChanges,
    net: &mut Net,
) {
    if let Some(reason) = received.payload_dropped {
        // The ACK of the segment was processed. Some or all of its payload was not taken, and the
        // peer sends it again.
        net.count_drop(reason.into());
    }
    if let Some(mark) = stream.connection.as_mut().and_then(Connection::take_urgent_mark) {
        let byte = mark.payload_offset.map(|at| {
            let mut byte = [0];
            incoming.payload().copy_to(at, &mut byte);
            byte[0]
        });
        stream.recv.mark_urgent(mark.offset, byte);
        stream.news.add_urgent(mark.is_new);
    }
}
