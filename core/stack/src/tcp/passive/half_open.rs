//! Handshakes of connections that peers open: the SYN-ACK, the peer's answer, and the timer that
//! retransmits the SYN-ACK.

use towpath_pool::Pool;
use towpath_ring::RecvBuffer;
use towpath_tcp::{Flags, HalfOpenVerdict, Instant, Outgoing};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{Host, SocketError, SocketEvent};
use crate::incoming::IncomingSegment;
use crate::reply::SegmentReply;
use crate::settings::StreamSettings;
use crate::socket::SocketRole;
use crate::stack::{Stack, TimerOwner};
use crate::tables::timer::TimerId;
use crate::tcp::handshake::{HalfOpenFlow, HandshakeParent};

impl<H: Host> Stack<H> {
    /// Handles a segment that belongs to a half-open connection.
    pub(crate) fn on_half_open_segment(
        &mut self,
        cx: &mut Cx<'_, H>,
        at: u32,
        incoming: IncomingSegment,
    ) {
        let Some(entry) = self.handshakes.half_open.get_mut(at) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, cx.pool);
        };
        let parent = entry.parent;
        match entry.half_open.on_segment(cx.now, &incoming.segment) {
            HalfOpenVerdict::Established(handshake) => match parent {
                HandshakeParent::Listener(listener) => {
                    self.accept_child(cx, listener, Some(at), handshake, incoming);
                }
                HandshakeParent::EarlyAccept(index) => {
                    self.finish_early_accept(cx, index, at, handshake, incoming);
                }
            },
            HalfOpenVerdict::Reset => {
                self.fail_half_open(at, SocketEvent::Error(SocketError::Reset));
                cx.pool.give(incoming.local.packet);
            }
            HalfOpenVerdict::SendReset(outgoing) => {
                // The client's ACK may answer a SYN cookie that was sent before this half-open
                // connection was created. The reason may be a round-trip time longer than the
                // client's retransmission timeout.
                if let HandshakeParent::Listener(listener) = parent
                    && let Some(handshake) = self.cookie_handshake(cx, listener, &incoming)
                {
                    return self.accept_child(cx, listener, Some(at), handshake, incoming);
                }
                self.send_for_half_open(cx.now, at, &outgoing, cx.pool);
                self.drop_local(incoming.local, DropReason::TcpUnacceptable, cx.pool);
            }
            HalfOpenVerdict::ChallengeAck(outgoing) => {
                self.send_for_half_open(cx.now, at, &outgoing, cx.pool);
                self.drop_local(incoming.local, DropReason::TcpUnacceptable, cx.pool);
            }
            HalfOpenVerdict::ResendSynAck => {
                self.send_syn_ack(cx, at);
                cx.pool.give(incoming.local.packet);
            }
            HalfOpenVerdict::Drop(reason) => {
                self.drop_local(incoming.local, reason.into(), cx.pool);
            }
        }
    }

    pub(crate) fn on_half_open_timeout(&mut self, cx: &mut Cx<'_, H>, at: u32) {
        let Some(entry) = self.handshakes.half_open.get_mut(at) else { return };
        entry.timer = TimerId::NONE;
        let due = entry.half_open.next_timeout();
        if due <= cx.now && !entry.half_open.on_timeout(cx.now) {
            self.counters.tcp_half_open_timeouts += 1;
            return self.fail_half_open(at, SocketEvent::Error(SocketError::TimedOut));
        }
        let next = entry.half_open.next_timeout();
        self.wheel.set(&mut entry.timer, Some(next), TimerOwner::HalfOpen(at));
        if due <= cx.now {
            self.send_syn_ack(cx, at);
        }
    }

    pub(super) fn send_syn_ack(&mut self, cx: &mut Cx<'_, H>, at: u32) {
        let Some(parent) = self.handshakes.half_open.get(at).map(|entry| entry.parent) else {
            return;
        };
        let (HandshakeParent::Listener(index) | HandshakeParent::EarlyAccept(index)) = parent;
        let window = self.recv_room(cx.host, index);
        let Some(entry) = self.handshakes.half_open.get_mut(at) else { return };
        let outgoing = entry.half_open.syn_ack(cx.now, window);
        self.send_for_half_open(cx.now, at, &outgoing, cx.pool);
    }

    /// Returns the size of the receive buffer in bytes that a half-open connection will have.
    pub(super) fn recv_room(&self, host: &H, index: u32) -> u32 {
        let Some(socket) = self.sockets.get(index) else { return 0 };
        match &socket.kind {
            SocketRole::EarlyAccept(early) => early.recv.free(),
            SocketRole::Listener(listener) => match listener.elsewhere(socket.user) {
                Some(listener) => host.recv_room_for(&listener),
                None => host.recv_room(socket.user),
            },
            _ => host.recv_room(socket.user),
        }
    }

    /// Sends a segment of a handshake, using the settings of the socket to which it belongs.
    pub(super) fn send_for_half_open(
        &mut self,
        now: Instant,
        at: u32,
        outgoing: &Outgoing,
        pool: &mut Pool,
    ) {
        let Some(HalfOpenFlow { flow, iface, parent, gives_cookie, .. }) =
            self.handshakes.half_open.get(at)
        else {
            return;
        };
        let (flow, iface) = (*flow, *iface);
        let settings = self.settings_of(*parent);
        let iface = settings.device.or(self.pinned(iface, &flow));
        // A retransmitted SYN-ACK has no Fast Open option, because the path may have dropped the
        // first one due to the option.
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.2
        //# If the SYN-ACK timer fires, the server SHOULD retransmit a SYN-ACK segment with neither
        //# data nor Fast Open options for compatibility reasons.
        let first = outgoing.flags.contains(Flags::SYN) && !outgoing.retransmit;
        let option =
            (first && *gives_cookie).then(|| self.fast_opens.cookie_option(&settings, &flow));
        let packet = settings.packet.towards(flow.remote);
        self.reply(now, SegmentReply { flow: &flow, iface, packet, outgoing, option }, pool);
    }

    /// Returns the settings of the socket to which a handshake belongs. As on Linux, a SYN-ACK uses
    /// the settings that the listener has when it is sent. The connection uses the settings that
    /// the listener has at the end of the handshake.
    pub(super) fn settings_of(&self, parent: HandshakeParent) -> StreamSettings {
        let HandshakeParent::Listener(index) = parent else {
            return StreamSettings::new(self.config.tcp);
        };
        let listener = self.sockets.listener(index);
        listener.map_or_else(|| StreamSettings::new(self.config.tcp), |it| it.settings)
    }

    /// Ends a handshake that has failed. A listener is not notified. If the owner had accepted the
    /// SYN, the socket of the connection gets an event, and can then be used for another
    /// connection.
    fn fail_half_open(&mut self, at: u32, event: SocketEvent) {
        let parent = self.handshakes.half_open.get(at).map(|entry| entry.parent);
        self.remove_half_open(at);
        let Some(HandshakeParent::EarlyAccept(index)) = parent else { return };
        let settings = StreamSettings::new(self.config.tcp);
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.kind = SocketRole::Fresh(Box::new(settings));
            self.events.push(socket.user, event);
        }
    }
}
