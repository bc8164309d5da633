//! Processing of a segment by its connection: the state machine, and the resulting changes of
//! buffers.

use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_tcp::{Connection, Disposition, FifoChanges, Flags, Instant};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{Host, SocketError, SocketEvent};
use crate::incoming::IncomingSegment;
use crate::received::ReceivedFields;
use crate::socket::SocketRole;
use crate::stack::Stack;
use crate::tcp::path::TcpPath;
use crate::tcp::stream::StreamSocket;

impl<H: Host> Stack<H> {
    /// Processes a segment of a connection, which `tx` visits afterwards. Notifies the owner of
    /// received bytes, but only once until the connection is visited.
    pub(crate) fn on_segment(&mut self, cx: &mut Cx<'_, H>, index: u32, incoming: IncomingSegment) {
        let Some(socket) = self.sockets.get_mut(index) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, cx.pool);
        };
        let SocketRole::Stream(stream) = &mut socket.kind else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, cx.pool);
        };
        if incoming.local.ttl < stream.packet.hops_min {
            return self.drop_local(incoming.local, DropReason::TcpMinTtl, cx.pool);
        }
        if stream.connection.is_none() {
            return self.refuse_segment(cx, incoming, DropReason::TcpNoSocket);
        }
        let received = match stream.on_segment(cx.now, &incoming) {
            Ok(received) => received,
            // The connection has ended in this turn of the event loop, and its socket still has the
            // flow. Answer the segment as one to a closed connection.
            Err(reason @ DropReason::TcpAfterClose) if !stream.is_aborting() => {
                return self.refuse_segment(cx, incoming, reason);
            }
            Err(reason) => {
                if matches!(reason, DropReason::TcpNoMemory) && !socket.orphan {
                    // The connection was aborted, which has no event of its own.
                    cx.host.event(socket.user, SocketEvent::Error(SocketError::Reset));
                }
                self.drop_local(incoming.local, reason, cx.pool);
                return self.mark_dirty(index);
            }
        };
        let fields = ReceivedFields { ttl: incoming.local.ttl, tos: incoming.local.tos };
        cx.host.received_fields(socket.user, fields);
        if incoming.segment.flags.contains(Flags::SYN) {
            let repeated = stream.connection.as_ref().is_some_and(Connection::has_repeated_syn);
            let (flow, mss) = (incoming.flow, incoming.segment.options.mss);
            self.fast_opens.on_syn_ack(cx.now, index, &flow, mss, incoming.header(), repeated);
        }
        if received.released > 0 {
            let path = stream.path.as_ref().filter(|path| self.paths.is_current(path, &self.net));
            if let Some(hop) = path.and_then(TcpPath::hop) {
                self.net.confirm_reachable(cx.now, hop);
            }
        }
        if let Some(reason) = received.payload_dropped {
            // The ACK of the segment was processed, but all or a part of its payload was dropped.
            // The peer will retransmit the payload.
            self.net.count_drop(reason.into());
        }
        if received.commit > 0 {
            self.counters.tcp_bytes_received += u64::from(received.commit);
            // If the stack postponed this connection to the current turn, the bit may still be set
            // for bytes that the owner has read since. The owner may wait again, so notify it in
            // this case as well.
            let is_new = stream.buffer_events.note_readable() || self.events.visits_put_off;
            if is_new && !socket.orphan {
                cx.host.event(socket.user, SocketEvent::Readable);
            }
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# In general, the processing of received segments MUST be implemented to aggregate ACK
        //# segments whenever possible (MUST-58).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# if the TCP endpoint is processing a series of queued segments, it MUST process them all
        //# before sending any ACK segments (MUST-59).
        cx.pool.give(incoming.local.packet);
        self.mark_dirty(index);
    }
}

impl<H: Host> StreamSocket<H> {
    /// Processes a segment of the connection, and changes its buffers accordingly.
    ///
    /// # Errors
    /// Returns the reason if the segment is dropped.
    #[inline]
    fn on_segment(
        &mut self,
        now: Instant,
        incoming: &IncomingSegment,
    ) -> Result<FifoChanges, DropReason> {
        let mut buffers = self.buffers();
        let connection = self.connection.as_mut().ok_or(DropReason::TcpNoSocket)?;
        // Other sockets may have taken the memory of the advertised window meanwhile. The payload
        // then counts as lost, and the peer retransmits it.
        let needed = connection.needed_space(&incoming.segment, buffers.recv_free);
        if needed > 0 && !self.recv.reserve(needed) {
            buffers.recv_free = 0;
        }
        let received = match connection.on_segment(now, &incoming.segment, buffers) {
            Disposition::Accepted(received) => received,
            Disposition::Dropped(reason) => return Err(reason.into()),
        };
        if received.urgent {
            self.mark_urgent(incoming);
        }
        // Release acknowledged bytes first. A connection that is aborted below may still send the
        // remaining bytes of the buffer.
        if received.released > 0 {
            self.send.release(received.released);
            self.buffer_events.add_writable();
        }
        match self.store(incoming, &received) {
            true => Ok(received),
            false => Err(DropReason::TcpNoMemory),
        }
    }

    /// Copies the payload of a segment to the receive buffer. Returns false if the buffer did not
    /// accept it; the connection is then aborted.
    #[inline]
    pub(super) fn store(&mut self, incoming: &IncomingSegment, received: &FifoChanges) -> bool {
        let written = received.write.is_none_or(|write| {
            let bytes = incoming.payload().slice(write.payload_offset, write.len);
            self.recv.write_at(write.fifo_offset, &bytes)
        });
        if !written {
            // The connection would acknowledge bytes that the buffer did not accept, so abort it.
            // The abort does not happen if the `RecvBuffer` accepts as many bytes as its capacity.
            if let Some(connection) = &mut self.connection {
                connection.abort();
            }
            return false;
        }
        if received.commit > 0 {
            self.recv.commit(received.commit);
        }
        true
    }

    /// Marks the position of urgent data in the receive buffer.
    #[cold]
    fn mark_urgent(&mut self, incoming: &IncomingSegment) {
        let mark = self.connection.as_mut().and_then(Connection::take_urgent_mark);
        let Some(mark) = mark else { return };
        let byte = mark.payload_offset.map(|at| {
            let mut byte = [0];
            incoming.payload().copy_to(at, &mut byte);
            byte[0]
        });
        self.recv.mark_urgent(mark.offset, byte);
        self.buffer_events.add_urgent(mark.is_new);
    }
}
