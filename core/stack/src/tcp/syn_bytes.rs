//! Connections that are made of a SYN with bytes (`fast_open`), and connects that send one.
//!
//! A SYN with a valid cookie makes a connection at once, which takes a place in the accept queue.
//! None is needed in the SYN cache, so that a flood of SYNs does not concern it.
//!
//! A cookie can be stolen, or replayed from its client's address. A listener therefore has a limit
//! of such connections whose handshake is under way (RFC 7413 §5.1).

use towpath_ring::RecvBuffer;
use towpath_tcp::{Buffers, Connection, Instant, SeqNum};
use towpath_wire::fast_open::FastOpen;

use crate::cx::Cx;
use crate::host::{Host, SocketId};
use crate::incoming::IncomingSegment;
use crate::limits;
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};
use crate::tcp::fast_open::{HandshakeEnd, Opening};
use crate::tcp::listener::ListeningSocket;
use crate::tcp::passive::NewChild;
use crate::tcp::stream::StreamSocket;

impl<H: Host> Stack<H> {
    /// The handshake of a socket has ended. True for a listener's child, which its owner takes for
    /// connected already.
    pub(crate) fn end_fast_open(&mut self, now: Instant, index: u32, end: HandshakeEnd) -> bool {
        if self.fast_opens.opening.is_empty() {
            return false;
        }
        match self.fast_opens.opening.remove(&index) {
            None => false,
            Some(Opening::Client(_)) => {
                let socket = self.sockets.get(index).map(|socket| &socket.kind);
                if let (HandshakeEnd::NoAnswer, Some(SocketRole::Stream(stream))) = (end, socket) {
                    self.fast_opens.on_no_answer(now, &stream.flow);
                }
                false
            }
            Some(Opening::Server(listener)) => {
                // RFC 7413 §5.1: an attacker may have opened in the name of a client that resets.
                // The place stays taken for a while, as on Linux.
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
        let socket = index.and_then(|index| self.sockets.get_mut(index));
        if let Some(SocketRole::Listener(state)) = socket.map(|socket| &mut socket.kind) {
            state.fast_opening = state.fast_opening.saturating_sub(1);
        }
    }

    /// The option of a SYN, if its listener takes it.
    pub(crate) fn fast_open_offer(
        &self,
        listener: &ListeningSocket,
        incoming: &IncomingSegment,
    ) -> Option<FastOpen> {
        if listener.settings.fast_open_queue == 0 {
            return None;
        }
        FastOpen::find(incoming.header())
    }

    /// Whether a SYN has the cookie that its sender's address gets here.
    pub(crate) fn has_valid_cookie(
        &self,
        listener: &ListeningSocket,
        incoming: &IncomingSegment,
    ) -> bool {
        match self.fast_open_offer(listener, incoming) {
            Some(FastOpen::Cookie(cookie)) => cookie == self.fast_opens.cookie_for(&incoming.flow),
            _ => false,
        }
    }

    /// The option of a SYN-ACK: the cookie for its receiver.
    pub(crate) fn given_cookie(&self, flow: &Flow) -> FastOpen {
        FastOpen::Cookie(self.fast_opens.cookie_for(flow))
    }

    /// Makes a connection of a SYN with a valid cookie. False: the listener has no room for it now,
    /// and the SYN begins a handshake as any other.
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
        let Some(SocketRole::Listener(listener)) =
            self.sockets.get(index).map(|socket| &socket.kind)
        else {
            return false;
        };
        if listener.fast_opening >= listener.settings.fast_open_queue {
            self.counters.tcp_fast_open_overflows += 1;
            return false;
        }
        let listener = SocketId(self.sockets.id(index));
        let Ok(child) = self.new_child(cx.host, index, false, incoming) else { return false };
        let saves_syn = child.settings.save_syn;
        let connected = self.connect_child(cx.now, child, incoming, iss_min);
        if saves_syn {
            self.handshakes.saved_syns.insert(connected, incoming.headers());
        }
        self.fast_opens.opening.insert(connected, Opening::Server(listener));
        if let Some(SocketRole::Listener(state)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        {
            state.fast_opening += 1;
        }
        self.counters.tcp_accepts += 1;
        self.counters.tcp_fast_opens += 1;
        true
    }

    /// The socket of a child in SYN-RECEIVED, with the bytes of its SYN.
    fn connect_child(
        &mut self,
        now: Instant,
        child: NewChild<H>,
        incoming: &IncomingSegment,
        iss_min: Option<SeqNum>,
    ) -> u32 {
        let NewChild { user, family, recv, send, offer, settings, sharing } = child;
        let IncomingSegment { flow, hash, ref segment, ref local, .. } = *incoming;
        let iss = self.initial_sequence(now, &flow, iss_min);
        let buffers = Buffers {
            recv_free: recv.free(),
            recv_capacity: recv.capacity(),
            ..Buffers::default()
        };
        let iface = settings.device.or(self.pinned(local.iface, &flow));
        let config = settings.for_flow(now, &flow, iface, &self.net);
        let offset = self.timestamp_offset(&flow);
        let (connection, received) =
            Connection::accept_with_data(config, segment, iss, offset, now, buffers);
        let mut stream: StreamSocket<H> =
            StreamSocket::new(now, flow, connection, &settings, iface, recv, send);
        if stream.store(incoming, &received) {
            self.counters.tcp_bytes_received += u64::from(received.commit);
        }
        let stream = StreamSocket { uses_port: sharing, ..stream };
        let at = self.sockets.insert(StackSocket::new(
            user,
            family,
            SocketRole::Stream(Box::new(stream)),
        ));
        self.flows.insert(hash, FlowRef::Socket(at));
        self.offer_child(now, at, offer);
        self.mark_dirty(at);
        at
    }

    /// Takes a SYN with a valid cookie for which its listener has room. Any other one comes back.
    pub(crate) fn take_fast_syn(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: u32,
        incoming: IncomingSegment,
        iss_min: Option<SeqNum>,
    ) -> Option<IncomingSegment> {
        let Some(SocketRole::Listener(listener)) =
            self.sockets.get(index).map(|socket| &socket.kind)
        else {
            return Some(incoming);
        };
        if !self.has_valid_cookie(listener, &incoming)
            || !self.accept_fast(cx, index, &incoming, iss_min)
        {
            return Some(incoming);
        }
        cx.pool.give(incoming.local.packet);
        None
    }
}
