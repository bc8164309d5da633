//! Connections that listeners accept: their creation at the end of the handshake, and their place
//! in the accept queue.

use towpath_tcp::{Connection, Handshake, Instant};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{Family, Host, ListenerName, SocketEvent, SocketId};
use crate::incoming::IncomingSegment;
use crate::net::IfaceId;
use crate::ports::bind_addr::Sharing;
use crate::settings::StreamSettings;
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};
use crate::tcp::active::with_scope;
use crate::tcp::stream::{EarlyAccept, StreamSocket};

/// User number, settings and other properties of a connection that a listener accepts.
pub(crate) struct NewChild<H: Host> {
    pub user: u32,
    pub family: Family,
    pub recv: H::Recv,
    pub send: H::Send,
    /// For a listener of another shard: its identifier, the tag of the connection, and whether the
    /// connection is offered only after it has received bytes.
    pub offer: Option<(ListenerName, u32, bool)>,
    pub settings: StreamSettings,
    pub sharing: Option<Sharing>,
}

impl<H: Host> Stack<H> {
    /// Creates the connection of a listener at the end of its handshake. The connection gets a
    /// place in the accept queue, and buffers from the owner. The connection then processes the
    /// segment that completed the handshake. `at` is the connection's entry in the SYN cache;
    /// `None` if a SYN cookie was used.
    pub(super) fn accept_child(
        &mut self,
        cx: &mut Cx<'_, H>,
        listener: u32,
        at: Option<u32>,
        handshake: Handshake,
        incoming: IncomingSegment,
    ) {
        let entry = at.and_then(|at| self.handshakes.half_open.get(at));
        let has_place = entry.is_some_and(|entry| entry.has_place);
        let child = match self.new_child(cx.host, listener, has_place, &incoming) {
            Ok(child) => child,
            Err(reason) => return self.drop_local(incoming.local, reason, cx.pool),
        };
        let NewChild { user, family, recv, send, offer, settings, sharing } = child;
        let flow = incoming.flow;
        let iface = settings.device.or(self.pinned(incoming.local.iface, &flow));
        let connection = self.established(cx.now, &flow, handshake, &settings, iface);
        let stream = StreamSocket::new(cx.now, flow, connection, &settings, iface, recv, send);
        let kind = SocketRole::Stream(Box::new(StreamSocket { uses_port: sharing, ..stream }));
        let index = self.sockets.insert(StackSocket::new(user, family, kind));
        match at.map(|at| self.take_over_flow(at, incoming.hash, index)) {
            None => self.flows.insert(incoming.hash, FlowRef::Socket(index)),
            Some(entry) => {
                if let Some(syn) = entry.and_then(|entry| entry.saved_syn) {
                    self.handshakes.saved_syns.insert(index, syn);
                }
            }
        }
        self.counters.tcp_accepts += 1;
        self.offer_child(cx.now, index, offer);
        self.on_segment(cx, index, incoming);
    }

    /// Creates the connection at the end of a handshake, for a socket whose SYN the owner had
    /// accepted before the handshake.
    pub(super) fn finish_early_accept(
        &mut self,
        cx: &mut Cx<'_, H>,
        index: u32,
        at: u32,
        handshake: Handshake,
        incoming: IncomingSegment,
    ) {
        let settings = StreamSettings::new(self.config.tcp);
        let fresh = SocketRole::Fresh(Box::new(settings));
        let Some(socket) = self.sockets.get_mut(index) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, cx.pool);
        };
        let user = socket.user;
        let SocketRole::EarlyAccept(early) = std::mem::replace(&mut socket.kind, fresh) else {
            unreachable!("a socket that was accepted early is one until its handshake ends");
        };
        let EarlyAccept { flow, recv, send, shut, half_open: _ } = *early;
        let iface = settings.device.or(self.pinned(incoming.local.iface, &flow));
        let mut connection = self.established(cx.now, &flow, handshake, &settings, iface);
        if shut {
            connection.shutdown_send();
        }
        let stream = StreamSocket::new(cx.now, flow, connection, &settings, iface, recv, send);
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.kind = SocketRole::Stream(Box::new(stream));
        }
        self.take_over_flow(at, incoming.hash, index);
        self.counters.tcp_accepts += 1;
        cx.host.event(user, SocketEvent::Connected);
        self.on_segment(cx, index, incoming);
    }

    /// Creates the socket of a new connection that a listener has received. The host of the stack
    /// provides its FIFOs, and a place in the listener's accept queue.
    pub(crate) fn new_child(
        &mut self,
        host: &mut H,
        listener: u32,
        has_place: bool,
        incoming: &IncomingSegment,
    ) -> Result<NewChild<H>, DropReason> {
        if self.sockets.len() >= self.config.sockets_max {
            return Err(DropReason::SocketTableFull);
        }
        let child = SocketId(self.sockets.next_id());
        let parent = self.sockets.get_mut(listener).ok_or(DropReason::TcpNoSocket)?;
        let (family, bound, user) = (parent.family, parent.bound.as_deref().copied(), parent.user);
        let SocketRole::Listener(state) = &mut parent.kind else {
            return Err(DropReason::TcpNoSocket);
        };
        let flow = incoming.flow;
        let given = match state.turns_away(has_place) {
            true => None,
            false => {
                let iface = self.net.link_of(incoming.local.iface, flow.local);
                let (local, remote) = (flow.local(), flow.remote());
                let (local, remote) = (with_scope(local, iface), with_scope(remote, iface));
                match state.elsewhere(user) {
                    None => host
                        .accept(user, child, local, remote)
                        .map(|(user, recv, send)| (user, recv, send, None)),
                    Some(listener) => host.accept_for(&listener, child, local, remote).map(|it| {
                        let offer = (listener.name, it.tag, it.waits);
                        (it.user, it.recv, it.send, Some(offer))
                    }),
                }
            }
        };
        let (user, recv, send, offer) = given.ok_or(DropReason::AcceptOverflow)?;
        let settings = state.settings;
        if offer.is_none() {
            state.waiting += 1;
            state.publish();
        }
        let sharing = bound.map(|bound| bound.options.sharing());
        if let Some(sharing) = sharing {
            self.ports.tcp.use_port(flow.local_port, flow.local, sharing);
        }
        Ok(NewChild { user, family, recv, send, offer, settings, sharing })
    }

    /// Offers a connection to its listener, if the listener is in another shard. A connection that
    /// must first receive bytes is not offered yet.
    pub(crate) fn offer_child(
        &mut self,
        now: Instant,
        index: u32,
        offer: Option<(ListenerName, u32, bool)>,
    ) {
        if let Some((listener, tag, false)) = offer {
            let child = SocketId(self.sockets.id(index));
            self.offer_to(now, listener, child, tag);
        }
    }

    /// Creates the connection that a peer has opened, at the end of its handshake.
    fn established(
        &self,
        now: Instant,
        flow: &Flow,
        handshake: Handshake,
        settings: &StreamSettings,
        iface: Option<IfaceId>,
    ) -> Connection {
        let config = settings.for_flow(now, flow, iface, &self.net, &self.config.tcp);
        Connection::accept(config, handshake, now)
    }
}
