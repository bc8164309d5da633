//! Connections that are created by a SYN with data (TCP Fast Open, module `fast_open`), and
//! connects that send such a SYN.
//!
//! A SYN with a valid cookie creates a connection immediately, which takes a place in the accept
//! queue. No place in the SYN cache is needed, so a flood of SYNs has no effect on such
//! connections.
//!
//! A Fast Open cookie can be stolen, or replayed from its client's address. A listener therefore
//! limits the number of such connections whose handshake is in progress (RFC 7413 §5.1).

use towpath_ring::RecvBuffer;
use towpath_tcp::{Connection, FifoLevels, Instant, SeqNum};

use crate::cx::Cx;
use crate::host::{Host, SocketEvent, SocketId};
use crate::incoming::IncomingSegment;
use crate::limits;
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::FlowRef;
use crate::tcp::fast_open::{HandshakeEnd, Opening};
use crate::tcp::passive::NewChild;
use crate::tcp::stream::StreamSocket;

impl<H: Host> Stack<H> {
    /// Handles the end of a socket's Fast Open handshake. Returns true if a listener accepted the
    /// connection. The owner already treats such a connection as connected.
    pub(crate) fn end_fast_open(&mut self, now: Instant, index: u32, end: HandshakeEnd) -> bool {
        if self.fast_opens.opening.is_empty() {
            return false;
        }
        match self.fast_opens.opening.remove(&index) {
            None => false,
            Some(Opening::Client(_)) => {
                let stream = self.sockets.stream(index);
                if let (HandshakeEnd::NoAnswer, Some(stream)) = (end, stream) {
                    self.fast_opens.on_no_answer(now, &stream.flow);
                }
                false
            }
            Some(Opening::Server(listener, _)) => {
                // RFC 7413 §5.1: an attacker may have opened the connection with the address of a
                // client, which then resets it. As on Linux, the connection counts toward the
                // listener's limit for some time.
                match end {
                    HandshakeEnd::Reset => {
                        let until = now + limits::FAST_OPEN_RESET_TIME;
                        self.fast_opens.resets.push_back((until, listener));
                    }
                    _ => self.free_fast_open(listener),
                }
                true
            }
        }
    }

    fn free_fast_open(&mut self, listener: SocketId) {
        let index = self.index(listener);
        if let Some(state) = index.and_then(|index| self.sockets.listener_mut(index)) {
            state.fast_opening = state.fast_opening.saturating_sub(1);
        }
    }

    /// Creates a connection from a SYN with a valid Fast Open cookie. Returns false if the listener
    /// has no space at present. The SYN then begins a normal handshake.
    pub(crate) fn accept_fast(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: u32,
        incoming: &IncomingSegment,
        iss_min: Option<SeqNum>,
    ) -> bool {
        while let Some(listener) = self.fast_opens.pop_reset(cx.now) {
            self.free_fast_open(listener);
        }
        let Some(listener) = self.sockets.listener(index) else {
            return false;
        };
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2
        //# the server MUST disable TFO for all new connection requests until
        //# PendingFastOpenRequests drops below the system limit.
        if listener.fast_opening >= listener.settings.fast_open_queue {
            self.counters.tcp_fast_open_overflows += 1;
            return false;
        }
        let option = self.fast_opens.renewal(&listener.settings, incoming);
        let listener = SocketId(self.sockets.id(index));
        let Ok(child) = self.new_child(cx.host, index, false, incoming) else { return false };
        let saves_syn = child.settings.save_syn;
        let connected = self.connect_child(cx, child, incoming, iss_min);
        if saves_syn {
            self.handshakes.saved_syns.insert(connected, incoming.headers());
        }
        self.fast_opens.opening.insert(connected, Opening::Server(listener, option));
        if let Some(state) = self.sockets.listener_mut(index) {
            state.fast_opening += 1;
        }
        self.counters.tcp_accepts += 1;
        self.counters.tcp_fast_opens += 1;
        true
    }

    /// Creates the socket of an accepted connection in state SYN-RECEIVED, with the data of its
    /// SYN.
    fn connect_child(
        &mut self,
        cx: &mut Cx<'_, H>,
        child: NewChild<H>,
        incoming: &IncomingSegment,
        iss_min: Option<SeqNum>,
    ) -> u32 {
        let now = cx.now;
        let NewChild { user, family, mut recv, send, offer, settings, sharing } = child;
        let IncomingSegment { flow, hash, ref segment, ref local, .. } = *incoming;
        let iss = self.initial_sequence(now, &flow, iss_min);
        let free = recv.free();
        let has_memory = recv.reserve(segment.payload_len.min(free));
        let buffers = FifoLevels {
            recv_free: if has_memory { free } else { 0 },
            recv_capacity: recv.capacity(),
            ..FifoLevels::default()
        };
        let iface = settings.device.or(self.pinned(local.iface, &flow));
        let config = settings.for_flow(now, &flow, iface, &self.net, &self.config.tcp);
        let offset = self.timestamp_offset(&flow);
        let (connection, received) =
            Connection::accept_with_data(config, segment, iss, offset, now, buffers);
        let mut stream: StreamSocket<H> =
            StreamSocket::new(now, flow, connection, &settings, iface, recv, send);
        let has_bytes = stream.store(incoming, &received) && received.commit > 0;
        if has_bytes {
            self.counters.tcp_bytes_received += u64::from(received.commit);
            stream.buffer_events.note_readable();
        }
        let stream = StreamSocket { uses_port: sharing, ..stream };
        let at = self.sockets.insert(StackSocket::new(
            user,
            family,
            SocketRole::Stream(Box::new(stream)),
        ));
        self.flows.insert(hash, FlowRef::Socket(at));
        self.offer_child(now, at, offer);
        if has_bytes {
            cx.host.event(user, SocketEvent::Readable);
        }
        self.mark_dirty(at);
        at
    }

    /// Handles a SYN with a valid Fast Open cookie for which its listener has space. Returns any
    /// other SYN to the caller.
    pub(crate) fn take_fast_syn(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: u32,
        incoming: IncomingSegment,
        iss_min: Option<SeqNum>,
    ) -> Option<IncomingSegment> {
        let Some(listener) = self.sockets.listener(index) else {
            return Some(incoming);
        };
        if !self.fast_opens.may_open(self.config.tcp.fast_open, listener, &incoming)
            || !self.accept_fast(cx, index, &incoming, iss_min)
        {
            return Some(incoming);
        }
        cx.pool.give(incoming.local.packet);
        None
    }
}
