//! SYNs to addresses that are not the host's own. The SYNs wait until the owner of the stack
//! accepts or refuses them.

use towpath_pool::Pool;
use towpath_ring::RecvBuffer;
use towpath_tcp::{Flags, HalfOpen, Instant, Segment, SeqNum, reset_for};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{Family, Host, PendingId, Refusal, SocketId};
use crate::incoming::{IncomingSegment, is_opening};
use crate::limits;
use crate::net::Unreachable;
use crate::received::ReceivedFields;
use crate::settings::StreamSettings;
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::FlowRef;
use crate::tables::slab::NONE;
use crate::tables::timer::TimerId;
use crate::tcp::handshake::{HalfOpenFlow, HandshakeParent, Quote, UndecidedSyn};
use crate::tcp::stream::EarlyAccept;

impl<H: Host> Stack<H> {
    /// Stores a SYN that matches no listener, on an interface that accepts packets to any address.
    /// The SYN waits until the owner of the stack accepts or refuses it.
    pub(super) fn on_stray_syn(
        &mut self,
        cx: &mut Cx<'_, H>,
        incoming: IncomingSegment,
        iss_min: Option<SeqNum>,
    ) {
        if self.handshakes.pending.len() >= self.config.pending_max {
            self.displace_pending(cx.host, &incoming);
        }
        let IncomingSegment { flow, hash, segment, .. } = incoming;
        let pending = UndecidedSyn {
            flow,
            syn: segment,
            iface: incoming.local.iface,
            expires: cx.now + limits::PENDING_TIMEOUT,
            iss_min,
            quote: Quote::new(&incoming.local, incoming.header_len),
        };
        let at = self.handshakes.pending.push(&mut self.handshakes.pending_line, pending);
        self.flows.insert(hash, FlowRef::Pending(at));
        cx.pool.give(incoming.local.packet);
        cx.host.syn(PendingId(self.handshakes.pending.id(at)), flow.local(), flow.remote());
    }

    /// Handles a segment of a peer whose SYN the owner has neither accepted nor refused: a
    /// retransmitted SYN, or a reset.
    pub(crate) fn on_pending_segment(
        &mut self,
        cx: &mut Cx<'_, H>,
        at: u32,
        incoming: IncomingSegment,
    ) {
        if is_opening(&incoming.segment) {
            let Some(pending) = self.handshakes.pending.get_mut(at) else { return };
            // Replace the stored SYN, because the new one may belong to a new connection attempt
            // from the same port.
            pending.syn = incoming.segment;
            pending.expires = cx.now + limits::PENDING_TIMEOUT;
            self.handshakes.pending.renew(&mut self.handshakes.pending_line, at);
            cx.host.syn_repeated(PendingId(self.handshakes.pending.id(at)));
            return self.drop_local(incoming.local, DropReason::PendingDuplicate, cx.pool);
        }
        let Some(pending) = self.handshakes.pending.get(at) else { return };
        let Segment { flags, seq, .. } = incoming.segment;
        // The peer has given up, so discard its SYN. A reset is valid only if its sequence number
        // follows that of the SYN.
        if flags.contains(Flags::RST) && seq == pending.syn.seq + 1 {
            self.forget_pending(cx.host, at);
            return cx.pool.give(incoming.local.packet);
        }
        self.drop_local(incoming.local, DropReason::TcpUnacceptable, cx.pool);
    }

    /// Returns the headers of a SYN that the owner has neither accepted nor refused, beginning with
    /// the IP header. Empty if the SYN was discarded.
    pub fn pending_headers(&self, pending: PendingId) -> &[u8] {
        let at = self.handshakes.pending.find(pending.0);
        let entry = at.and_then(|at| self.handshakes.pending.get(at));
        entry.map_or(&[], |entry| entry.quote.bytes())
    }

    /// Returns the IP header fields of a SYN that the owner has neither accepted nor refused;
    /// `None` if the SYN was discarded.
    pub fn pending_fields(&self, pending: PendingId) -> Option<ReceivedFields> {
        let at = self.handshakes.pending.find(pending.0)?;
        self.handshakes.pending.get(at).map(|entry| entry.quote.fields())
    }

    /// Accepts the connection of a SYN that was reported to the owner, and sends the SYN-ACK. The
    /// event [`SocketEvent::Connected`](crate::SocketEvent::Connected) follows when the peer has
    /// answered. Returns `None` if the SYN was discarded, or if there are too many sockets.
    pub fn accept_pending(
        &mut self,
        now: Instant,
        pending: PendingId,
        user: u32,
        recv: H::Recv,
        send: H::Send,
        pool: &mut Pool,
    ) -> Option<SocketId> {
        let at = self.handshakes.pending.find(pending.0)?;
        if self.sockets.len() >= self.config.sockets_max {
            return None;
        }
        let UndecidedSyn { flow, syn, iface, iss_min, .. } = self.take_pending(at)?;
        self.counters.tcp_syns += 1;
        let iss = self.initial_sequence(now, &flow, iss_min);
        let settings = StreamSettings::new(self.config.tcp);
        let host = &self.config.tcp;
        let config = settings.for_flow(now, &flow, Some(iface), &self.net, host);
        let mut half_open = HalfOpen::new(&config, &syn, iss, self.timestamp_offset(&flow), now);
        let syn_ack = half_open.syn_ack(now, recv.free());
        let family = if flow.local.is_ipv4() { Family::V4 } else { Family::V6 };
        let early = EarlyAccept { flow, half_open: NONE, recv, send, shut: false };
        let kind = SocketRole::EarlyAccept(Box::new(early));
        let index = self.sockets.insert(StackSocket::new(user, family, kind));
        let entry = HalfOpenFlow {
            flow,
            half_open,
            iface,
            has_place: false,
            gives_cookie: false,
            saved_syn: None,
            since: now,
            timer: TimerId::NONE,
            parent: HandshakeParent::EarlyAccept(index),
        };
        let at = self.store_half_open(entry, self.keys.table.ends(&flow));
        if let Some(SocketRole::EarlyAccept(early)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        {
            early.half_open = at;
        }
        self.send_for_half_open(now, at, &syn_ack, pool);
        Some(SocketId(self.sockets.id(index)))
    }

    /// Refuses the connection of a SYN that was reported to the owner. Has no effect if the SYN was
    /// discarded. Per second, at most
    /// [`ICMP_ERRORS_PER_SECOND`](crate::net::limits::ICMP_ERRORS_PER_SECOND) ICMP errors are sent.
    /// Beyond this limit the peer gets no answer, and its retransmitted SYN is reported again.
    pub fn refuse_pending(
        &mut self,
        now: Instant,
        pending: PendingId,
        refusal: Refusal,
        pool: &mut Pool,
    ) {
        let Some(at) = self.handshakes.pending.find(pending.0) else { return };
        let Some(UndecidedSyn { flow, syn, iface, quote, .. }) = self.take_pending(at) else {
            return;
        };
        let why = match refusal {
            Refusal::Ignore => return,
            Refusal::Reset => {
                if let Some(reset) = reset_for(&syn) {
                    self.send_reset(now, &flow, iface, &reset, pool);
                }
                return;
            }
            Refusal::HostUnreachable => Unreachable::Host,
            Refusal::NetUnreachable => Unreachable::Net,
            Refusal::AdminProhibited => Unreachable::AdminProhibited,
        };
        let quoted = quote.restore(pool.take(0));
        self.net.unreachable(now, &quoted, why, pool);
        pool.give(quoted.packet);
    }

    pub(crate) fn expire_pending(&mut self, cx: &mut Cx<'_, H>) {
        while let Some(at) = self.handshakes.pending_line.front() {
            if self.handshakes.pending.get(at).is_none_or(|pending| pending.expires > cx.now) {
                break;
            }
            self.forget_pending(cx.host, at);
        }
    }

    /// Discards a SYN that the owner has neither accepted nor refused, to make room for another
    /// SYN. The owner may choose the SYN. Otherwise the one whose last copy arrived first is
    /// discarded, because clients that still wait retransmit their SYN.
    fn displace_pending(&mut self, host: &mut H, incoming: &IncomingSegment) {
        let chosen = host.displace_syn(incoming.flow.remote());
        let chosen = chosen.and_then(|pending| self.handshakes.pending.find(pending.0));
        if let Some(at) = chosen.or_else(|| self.handshakes.pending_line.front()) {
            self.count_drop(DropReason::PendingFull);
            self.forget_pending(host, at);
        }
    }

    fn forget_pending(&mut self, host: &mut H, at: u32) {
        let pending = PendingId(self.handshakes.pending.id(at));
        if self.take_pending(at).is_some() {
            host.syn_forgotten(pending);
        }
    }

    fn take_pending(&mut self, at: u32) -> Option<UndecidedSyn> {
        let pending = self.handshakes.pending.remove(&mut self.handshakes.pending_line, at)?;
        self.flows.remove(self.keys.table.ends(&pending.flow), FlowRef::Pending(at));
        Some(pending)
    }
}
