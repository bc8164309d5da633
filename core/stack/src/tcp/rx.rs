//! Receive path of TCP segments: validates and parses them, and passes them to the connection or
//! listener of their flow.

use towpath_tcp::{Ecn, Instant, Segment};
use towpath_wire::{addr, tcp};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{Host, SocketId};
use crate::incoming::{IncomingSegment, arrival, is_opening, segments_in};
use crate::net::{self, Local};
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};

impl<H: Host> Stack<H> {
    pub(crate) fn receive_tcp(&mut self, cx: &mut Cx<'_, H>, local: Local, hash: Option<u64>) {
        self.counters.tcp_received += 1;
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# the receiver MUST check it (MUST-3).
        if !net::verify_transport(&local) {
            return self.drop_local(local, DropReason::TransportChecksum, cx.pool);
        }
        let Some(incoming) = self.parse_tcp(cx, local, hash) else { return };
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.3
        //# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to a
        //# broadcast or multicast address (MUST-57).
        if incoming.local.broadcast_or_multicast || !addr::is_unicast(incoming.flow.remote) {
            return self.drop_local(incoming.local, DropReason::TcpNotUnicast, cx.pool);
        }
        match self.find_flow(incoming.hash, &incoming.flow) {
            Some(FlowRef::Socket(index)) => self.on_segment(cx, index, incoming),
            Some(FlowRef::HalfOpen(index)) => self.on_half_open_segment(cx, index, incoming),
            Some(FlowRef::TimeWait(index)) => self.on_time_wait_segment(cx, index, incoming),
            Some(FlowRef::Pending(index)) => self.on_pending_segment(cx, index, incoming),
            None if is_opening(&incoming.segment) => self.on_syn(cx, incoming),
            None => self.on_stray_segment(cx, incoming),
        }
    }

    fn parse_tcp(
        &mut self,
        cx: &mut Cx<'_, H>,
        local: Local,
        hash: Option<u64>,
    ) -> Option<IncomingSegment> {
        let header = local.packet.linear().get(local.offset..).map(tcp::Header::parse);
        let Some(Ok(header)) = header else {
            self.drop_local(local, DropReason::TransportMalformed, cx.pool);
            return None;
        };
        let header_len = usize::from(header.header_len);
        let Some(payload_len) = local.len.checked_sub(header_len) else {
            self.drop_local(local, DropReason::TransportMalformed, cx.pool);
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
            arrival: arrival(cx.now, &local),
            ecn: Ecn::from_tos(local.tos),
            segments: segments_in(&local, payload_len),
        };
        let hash = hash.unwrap_or_else(|| self.keys.table.ends(&flow));
        debug_assert_eq!(hash, self.keys.table.ends(&flow), "{flow:?}");
        Some(IncomingSegment { hash, local, flow, segment, header_len })
    }

    /// Records that the program has read from a connection's receive buffer. The owner must call
    /// this. Otherwise a peer with a closed window learns of free space only by its own, infrequent
    /// probes (RFC 9293 §3.8.6.1).
    pub fn recv_taken(&mut self, now: Instant, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        let Some(stream) = self.sockets.stream_mut(index) else {
            return;
        };
        let buffers = stream.buffers();
        if let Some(connection) = &mut stream.connection {
            connection.on_recv_consumed(now, buffers);
            self.mark_dirty(index);
        }
    }
}
