//! Passive opens: SYNs that belong to no flow, and the listener or owner that handles them.
//!
//! ```text
//!  SYN ─► taker ─┬─ listener ─► half_open, in the syn_cache ─► child, in the accept queue
//!                └─ owner ────► pending ─► accepted early or refused
//! ```

mod child;
mod half_open;
mod pending;
mod syn_cache;

use towpath_tcp::{Flags, HalfOpen, Instant, SeqNum};
use towpath_wire::fast_open::FastOpen;

pub(crate) use self::child::NewChild;
use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::Host;
use crate::incoming::IncomingSegment;
use crate::net::IfaceId;
use crate::stack::Stack;
use crate::tables::timer::TimerId;
use crate::tcp::handshake::{HalfOpenFlow, HandshakeParent};
use crate::tcp::listener::ListeningSocket;

/// Receiver of a SYN that belongs to no flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SynTaker {
    /// A listener, by the index of its socket.
    Listener(u32),
    /// The owner, which accepts or refuses SYNs on an any-address interface.
    Owner,
}

impl<H: Host> Stack<H> {
    /// Handles a SYN that belongs to no flow.
    pub(crate) fn on_syn(&mut self, cx: &mut Cx<'_, H>, incoming: IncomingSegment) {
        match self.taker(cx.now, &incoming) {
            Ok(taker) => self.take_syn(cx, taker, incoming, None),
            Err(DropReason::TcpNoSocket) => {
                self.refuse_segment(cx, incoming, DropReason::TcpNoSocket);
            }
            Err(reason) => self.drop_local(incoming.local, reason, cx.pool),
        }
    }

    /// Passes a SYN to the receiver that [`Stack::taker`] returned. `iss_min` is the highest
    /// sequence number used by an old connection between the same ports.
    pub(crate) fn take_syn(
        &mut self,
        cx: &mut Cx<'_, H>,
        taker: SynTaker,
        incoming: IncomingSegment,
        iss_min: Option<SeqNum>,
    ) {
        let index = match taker {
            SynTaker::Listener(index) => index,
            SynTaker::Owner => return self.on_stray_syn(cx, incoming, iss_min),
        };
        let taken = self.take_fast_syn(cx, index, incoming, iss_min);
        let Some(incoming) = taken else { return };
        // `taker` may have accepted the SYN only because of its cookie.
        let max = self.config.syn_cache_max;
        let has_place = self
            .sockets
            .listener(index)
            .is_some_and(|listener| self.handshakes.has_place(cx.now, listener, max));
        if !has_place {
            return self.drop_local(incoming.local, DropReason::SynCacheFull, cx.pool);
        }
        self.make_place(cx.now, index);
        self.counters.tcp_syns += 1;
        let IncomingSegment { flow, hash, ref segment, ref local, .. } = incoming;
        let parent = HandshakeParent::Listener(index);
        let settings = self.settings_of(parent);
        let gives_cookie =
            settings.fast_open_queue > 0 && FastOpen::find(incoming.header()).is_some();
        let iss = self.initial_sequence(cx.now, &flow, iss_min);
        let iface = settings.device.or(self.pinned(local.iface, &flow));
        let config = settings.for_flow(cx.now, &flow, iface, &self.net);
        let half_open = HalfOpen::new(&config, segment, iss, self.timestamp_offset(&flow), cx.now);
        let entry = HalfOpenFlow {
            flow,
            half_open,
            iface: local.iface,
            has_place: self.net.is_in_process(local.iface),
            gives_cookie,
            saved_syn: settings.save_syn.then(|| incoming.headers()),
            since: cx.now,
            timer: TimerId::NONE,
            parent,
        };
        let at = self.store_half_open(entry, hash);
        self.send_syn_ack(cx, at);
        cx.pool.give(incoming.local.packet);
    }

    /// Returns the receiver of a SYN that belongs to no flow, if there is one with room.
    pub(crate) fn taker(
        &self,
        now: Instant,
        incoming: &IncomingSegment,
    ) -> Result<SynTaker, DropReason> {
        let taker = match self.listener_of(incoming) {
            None if !self.net.is_any_address(incoming.local.iface) => {
                return Err(DropReason::TcpNoSocket);
            }
            None => SynTaker::Owner,
            Some((_, listener))
                if incoming.local.ttl
                    < listener.settings.packet.hops_min.from(incoming.flow.remote) =>
            {
                return Err(DropReason::TcpMinTtl);
            }
            Some((_, listener)) if !self.may_come(listener, incoming.local.iface) => {
                return Err(DropReason::ListenOverflow);
            }
            Some((_, listener))
                if !self.handshakes.has_place(now, listener, self.config.syn_cache_max)
                    && !self.fast_opens.has_valid_cookie(listener, incoming) =>
            {
                return Err(DropReason::SynCacheFull);
            }
            Some((index, _)) => SynTaker::Listener(index),
        };
        // As on Linux, a SYN with FIN is dropped: no client opens and closes a connection with one
        // segment.
        match incoming.segment.flags.contains(Flags::FIN) {
            true => Err(DropReason::TcpBadFlags),
            false => Ok(taker),
        }
    }

    /// Returns the listener for a segment without a flow.
    fn listener_of(&self, incoming: &IncomingSegment) -> Option<(u32, &ListeningSocket)> {
        let IncomingSegment { flow, local, hash, .. } = incoming;
        // SO_REUSEPORT: the hash of the 4-tuple selects the listener, so a retransmitted SYN
        // reaches the same one.
        let pick = (hash >> 32) as u32;
        let iface = self.net.link_of(local.iface, flow.local);
        let index = self.ports.tcp.receivers.find(flow.local, flow.local_port, iface, pick)?;
        Some((index, self.sockets.listener(index)?))
    }

    /// Whether the accept queue has a place for a connection that is opened on `iface` now.
    fn may_come(&self, listener: &ListeningSocket, iface: IfaceId) -> bool {
        match self.net.is_in_process(iface) {
            true => listener.may_promise(),
            false => !listener.is_full(),
        }
    }

    /// Handles a segment that belongs to no flow and does not open one.
    pub(crate) fn on_stray_segment(&mut self, cx: &mut Cx<'_, H>, incoming: IncomingSegment) {
        let flags = incoming.segment.flags;
        let lenient = self.listener_of(&incoming).map(|(_, listener)| listener.lenient_until);
        let reason = match lenient {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.2
            //# This should not be reached.  Drop the segment and return.
            Some(_) if !flags.intersects(Flags::ACK | Flags::RST) => DropReason::TcpBadFlags,
            // The segment may come from a client whose half-open connection was replaced. A correct
            // client must not receive a reset.
            Some(until) if cx.now < until && !flags.intersects(Flags::SYN | Flags::RST) => {
                DropReason::HalfOpenDisplaced
            }
            _ => return self.refuse_segment(cx, incoming, DropReason::TcpNoSocket),
        };
        self.drop_local(incoming.local, reason, cx.pool);
    }
}
