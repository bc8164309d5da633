//! Passive opens of TCP connections: SYNs that belong to no flow, and the listener or owner that
//! handles them.
//!
//! ```text
//!  SYN ─► taker ─┬─ listener ─┬─► half_open, in the syn_cache ─┬─► child, in the accept queue
//!                │            └─► cookie, if the cache is full ┘
//!                └─ owner ────► pending ─► accepted early or refused
//! ```

mod child;
mod cookie;
mod half_open;
mod pending;
mod syn_cache;

use towpath_tcp::{Flags, HalfOpen, Instant, SeqNum, SynCookies};
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

/// A listener's answer to a SYN that has no valid Fast Open cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SynAnswer {
    /// Create a half-open connection, and send a SYN-ACK.
    HalfOpen,
    /// Send a SYN-ACK with a SYN cookie, and store nothing.
    Cookie,
}

/// Handler of a SYN that belongs to no flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SynTaker {
    /// A listener, by the index of its socket.
    Listener(u32),
    /// The owner of the stack, which accepts or refuses SYNs to addresses that are not the host's
    /// own.
    Owner,
}

impl<H: Host> Stack<H> {
    /// Handles a SYN that belongs to no flow.
    pub(crate) fn on_syn(&mut self, cx: &mut Cx<'_, H>, incoming: IncomingSegment) {
        match self.taker(cx.now, &incoming, None) {
            Ok(taker) => self.take_syn(cx, taker, incoming, None),
            Err(DropReason::TcpNoSocket) => {
                self.refuse_segment(cx, incoming, DropReason::TcpNoSocket);
            }
            Err(reason) => self.drop_local(incoming.local, reason, cx.pool),
        }
    }

    /// Passes a SYN to the listener or owner that [`Stack::taker`] has returned. If an earlier
    /// connection had the same addresses and ports, `iss_min` is the highest sequence number that
    /// it used.
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
        let listener = self.sockets.listener(index);
        match listener.and_then(|it| self.syn_answer(cx.now, it, incoming.local.iface, iss_min)) {
            Some(SynAnswer::HalfOpen) => self.half_open(cx, index, incoming, iss_min),
            Some(SynAnswer::Cookie) => self.send_cookie(cx, index, incoming),
            // The SYN cache is full, and `taker` has accepted the SYN only because of its Fast Open
            // cookie, so drop the SYN.
            None => self.drop_local(incoming.local, DropReason::SynCacheFull, cx.pool),
        }
    }

    /// Creates a half-open connection from a SYN to a listener, and sends the SYN-ACK.
    fn half_open(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: u32,
        incoming: IncomingSegment,
        iss_min: Option<SeqNum>,
    ) {
        self.make_place(cx.now, index);
        self.counters.tcp_syns += 1;
        let IncomingSegment { flow, hash, ref segment, ref local, .. } = incoming;
        let parent = HandshakeParent::Listener(index);
        let settings = self.settings_of(parent);
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.2
        //# The packet MAY include a Fast Open option.
        let gives_cookie = settings.fast_open_queue > 0
            && self.config.tcp.fast_open.server()
            && FastOpen::find(incoming.header()).is_some();
        let iss = self.initial_sequence(cx.now, &flow, iss_min);
        let iface = settings.device.or(self.pinned(local.iface, &flow));
        let config = settings.for_flow(cx.now, &flow, iface, &self.net, &self.config.tcp);
        //= https://www.rfc-editor.org/rfc/rfc4987#section-3.5
        //# The full state allocation is delayed until the connection has been fully established.
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

    /// Returns the listener or owner that handles a SYN that belongs to no flow. Fails if there is
    /// none, or if it has no space. `iss_min` is the same as for [`Stack::take_syn`].
    pub(crate) fn taker(
        &self,
        now: Instant,
        incoming: &IncomingSegment,
        iss_min: Option<SeqNum>,
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
                if self.syn_answer(now, listener, incoming.local.iface, iss_min).is_none()
                    && !self.fast_opens.may_open(self.config.tcp.fast_open, listener, incoming) =>
            {
                return Err(DropReason::SynCacheFull);
            }
            Some((index, _)) => SynTaker::Listener(index),
        };
        // As on Linux, drop a SYN that has the flag FIN, because no client opens and closes a
        // connection in one segment.
        match incoming.segment.flags.contains(Flags::FIN) {
            true => Err(DropReason::TcpBadFlags),
            false => Ok(taker),
        }
    }

    /// Returns how a listener answers a SYN; `None` if it has no place for a half-open connection.
    /// A cookie is no answer to a SYN with an `iss_min`, because it does not let us choose the
    /// sequence number.
    //= https://www.rfc-editor.org/rfc/rfc4987#section-4
    //# TCP implementers should provide some means of defense to SYN flooding attacks in end-host
    //# implementations.
    fn syn_answer(
        &self,
        now: Instant,
        listener: &ListeningSocket,
        iface: IfaceId,
        iss_min: Option<SeqNum>,
    ) -> Option<SynAnswer> {
        let max = self.config.syn_cache_max;
        let sends_cookie = match self.config.tcp.syn_cookies {
            SynCookies::Off => false,
            //= https://www.rfc-editor.org/rfc/rfc4987#section-3.7
            //# in the event that the cache becomes full, then SYN cookies can be sent instead of
            //# purging cache entries upon the arrival of new SYNs.
            SynCookies::UnderPressure => !self.handshakes.has_share(listener, max),
            SynCookies::Always => true,
        };
        if sends_cookie && iss_min.is_none() && !self.net.is_in_process(iface) {
            return Some(SynAnswer::Cookie);
        }
        self.handshakes.has_place(now, listener, max).then_some(SynAnswer::HalfOpen)
    }

    /// Returns the listener for a segment that belongs to no flow.
    fn listener_of(&self, incoming: &IncomingSegment) -> Option<(u32, &ListeningSocket)> {
        let IncomingSegment { flow, local, hash, .. } = incoming;
        // If several listeners share the port (SO_REUSEPORT), the hash of the 4-tuple selects one
        // of them. A retransmitted SYN therefore reaches the same listener.
        let pick = (hash >> 32) as u32;
        let iface = self.net.link_of(local.iface, flow.local);
        let index = self.ports.tcp.receivers.find(flow.local, flow.local_port, iface, pick)?;
        Some((index, self.sockets.listener(index)?))
    }

    /// Returns whether the accept queue has a place for a connection whose SYN arrived on the
    /// interface `iface`.
    fn may_come(&self, listener: &ListeningSocket, iface: IfaceId) -> bool {
        match self.net.is_in_process(iface) {
            true => listener.may_promise(),
            false => !listener.is_full(),
        }
    }

    /// Handles a segment that belongs to no flow, and that does not open a connection.
    pub(crate) fn on_stray_segment(&mut self, cx: &mut Cx<'_, H>, incoming: IncomingSegment) {
        let flags = incoming.segment.flags;
        let listener = self.listener_of(&incoming);
        let lenient = listener.map(|(index, listener)| (index, listener.lenient_until));
        let reason = match lenient {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.2
            //# This should not be reached.  Drop the segment and return.
            Some(_) if !flags.intersects(Flags::ACK | Flags::RST) => DropReason::TcpBadFlags,
            Some((index, until))
                if cx.now < until && !flags.intersects(Flags::SYN | Flags::RST) =>
            {
                return self.on_cookie_ack(cx, index, incoming);
            }
            _ => return self.refuse_segment(cx, incoming, DropReason::TcpNoSocket),
        };
        self.drop_local(incoming.local, reason, cx.pool);
    }
}
