//! SYN cookies of listeners: sending SYN-ACKs without storing a half-open connection, and checking
//! the ACKs that follow.

use towpath_tcp::{COOKIE_LIFETIME, CookieClaims, HalfOpen, Handshake, SynCookies};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::Host;
use crate::incoming::IncomingSegment;
use crate::reply::SegmentReply;
use crate::stack::Stack;
use crate::tcp::handshake::HandshakeParent;

impl<H: Host> Stack<H> {
    /// Answers a SYN to a listener by a SYN-ACK with a SYN cookie.
    pub(super) fn send_cookie(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: u32,
        incoming: IncomingSegment,
    ) {
        let IncomingSegment { flow, ref segment, ref local, .. } = incoming;
        let settings = self.settings_of(HandshakeParent::Listener(index));
        let iface = settings.device.or(self.pinned(local.iface, &flow));
        let config = settings.for_flow(cx.now, &flow, iface, &self.net, &self.config.tcp);
        let (offset, room) = (self.timestamp_offset(&flow), self.recv_room(cx.host, index));
        let mac = |claims: CookieClaims| self.keys.syn_cookie(&flow, claims);
        let syn_ack = HalfOpen::cookie_syn_ack(&config, segment, offset, cx.now, room, mac);
        self.counters.tcp_syn_cookies_sent += 1;
        if let Some(listener) = self.sockets.listener_mut(index) {
            listener.lenient_until = cx.now + COOKIE_LIFETIME;
        }
        let packet = settings.packet.towards(flow.remote);
        let reply = SegmentReply { flow: &flow, iface, packet, outgoing: &syn_ack, option: None };
        self.reply(cx.now, reply, cx.pool);
        cx.pool.give(incoming.local.packet);
    }

    /// Handles a segment that belongs to no flow, and may be the answer to a SYN cookie of a
    /// listener.
    pub(super) fn on_cookie_ack(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: u32,
        incoming: IncomingSegment,
    ) {
        match self.cookie_handshake(cx, index, &incoming) {
            Some(handshake) => self.accept_child(cx, index, None, handshake, incoming),
            None => self.drop_local(incoming.local, DropReason::HalfOpenDisplaced, cx.pool),
        }
    }

    /// Returns the handshake that a segment completes, if it acknowledges a valid SYN cookie.
    pub(super) fn cookie_handshake(
        &mut self,
        cx: &Cx<'_, H>,
        index: u32,
        incoming: &IncomingSegment,
    ) -> Option<Handshake> {
        let listener = self.sockets.listener(index)?;
        let hops_min = listener.settings.packet.hops_min.from(incoming.flow.remote);
        // Accept SYN cookies only while the listener sends them. Otherwise an attacker could try to
        // guess a cookie at any time.
        if self.config.tcp.syn_cookies == SynCookies::Off
            || cx.now >= listener.lenient_until
            || incoming.local.ttl < hops_min
        {
            return None;
        }
        let (flow, room) = (incoming.flow, self.recv_room(cx.host, index));
        let mac = |claims: CookieClaims| self.keys.syn_cookie(&flow, claims);
        let (host, offset) = (&self.config.tcp, self.timestamp_offset(&flow));
        let handshake = HalfOpen::from_cookie(host, &incoming.segment, offset, cx.now, room, mac);
        match handshake {
            Some(_) => self.counters.tcp_syn_cookies_valid += 1,
            None => self.counters.tcp_syn_cookies_invalid += 1,
        }
        handshake
    }
}
