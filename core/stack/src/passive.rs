//! Opens from the other side: listeners, half-open connections, and SYNs that wait for a decision.

use towpath_pool::Pool;
use towpath_ring::RecvBuffer;
use towpath_tcp::{
    Connection, Flags, HalfOpen, HalfOpenVerdict, Handshake, Instant, Outgoing, Segment, SeqNum,
    isn, reset_for,
};
use towpath_wire::addr;
use towpath_wire::fast_open::FastOpen;

use crate::active::with_scope;
use crate::bind_addr::Sharing;
use crate::drop::DropReason;
use crate::flow::{Flow, FlowRef};
use crate::handshake::{HalfOpenFlow, Parent, PendingSyn, Quote};
use crate::host::{
    Family, Host, ListenerName, PendingId, Refusal, SocketError, SocketEvent, SocketId,
};
use crate::incoming::{Incoming, is_opening};
use crate::limits;
use crate::net::{IfaceId, Unreachable};
use crate::slab::NONE;
use crate::socket::{EarlyAccept, Kind, Listener, News, Settings, Socket, Stream};
use crate::stack::{Stack, TimerOwner};
use crate::timer::TimerId;
use crate::tuning::{PERIOD_DEFAULT, RecvTuning};

/// Who takes a SYN that belongs to no flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taker {
    /// A listener, by the index of its socket.
    Listener(u32),
    /// The owner, who decides what becomes of it: it came on an any-address interface.
    Owner,
}

/// Parts of a listener's child.
pub(crate) struct NewChild<H: Host> {
    pub user: u32,
    pub family: Family,
    pub recv: H::Recv,
    pub send: H::Send,
    /// Name of a listener of another shard, the child's tag there, and whether it waits for bytes.
    pub offer: Option<(ListenerName, u32, bool)>,
    pub settings: Settings,
    pub sharing: Option<Sharing>,
}

impl<H: Host> Stack<H> {
    /// A SYN that belongs to no flow.
    pub(crate) fn on_syn(
        &mut self,
        now: Instant,
        host: &mut H,
        incoming: Incoming,
        pool: &mut Pool,
    ) {
        match self.taker(now, &incoming) {
            Ok(taker) => self.take_syn(now, host, taker, incoming, None, pool),
            Err(DropReason::TcpNoSocket) => {
                self.refuse_segment(now, incoming, DropReason::TcpNoSocket, pool);
            }
            Err(reason) => self.drop_local(incoming.local, reason, pool),
        }
    }

    /// The listener that a segment without a flow is for.
    fn listener_of(&self, incoming: &Incoming) -> Option<(u32, &Listener)> {
        let Incoming { flow, local, hash, .. } = incoming;
        // SO_REUSEPORT: the 4-tuple decides, so that a repeated SYN meets the same listener.
        let pick = (hash >> 32) as u32;
        let iface = self.net.link_of(local.iface, flow.local);
        let index = self.tcp_binds.receivers.find(flow.local, flow.local_port, iface, pick)?;
        match self.sockets.get(index).map(|socket| &socket.kind) {
            Some(Kind::Listener(listener)) => Some((index, listener)),
            _ => None,
        }
    }

    /// Who takes a SYN that belongs to no flow, and has a place for it.
    pub(crate) fn taker(&self, now: Instant, incoming: &Incoming) -> Result<Taker, DropReason> {
        let taker = match self.listener_of(incoming) {
            None if !self.net.is_any_address(incoming.local.iface) => {
                return Err(DropReason::TcpNoSocket);
            }
            None => Taker::Owner,
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
                if !self.has_place(now, listener) && !self.has_valid_cookie(listener, incoming) =>
            {
                return Err(DropReason::SynCacheFull);
            }
            Some((index, _)) => Taker::Listener(index),
        };
        // As Linux: nobody means to open and to end at once, and what follows has no meaning.
        match incoming.segment.flags.contains(Flags::FIN) {
            true => Err(DropReason::TcpBadFlags),
            false => Ok(taker),
        }
    }

    /// Whether the accept queue has a place for a connection that is opened on `iface` now.
    fn may_come(&self, listener: &Listener, iface: IfaceId) -> bool {
        match self.net.is_in_process(iface) {
            true => listener.may_promise(),
            false => !listener.is_full(),
        }
    }

    /// Gives a SYN to whom [`Stack::taker`] found for it. `iss_min`: an old connection between the same
    /// ports used numbers up to there.
    pub(crate) fn take_syn(
        &mut self,
        now: Instant,
        host: &mut H,
        taker: Taker,
        incoming: Incoming,
        iss_min: Option<SeqNum>,
        pool: &mut Pool,
    ) {
        let index = match taker {
            Taker::Listener(index) => index,
            Taker::Owner => return self.on_stray_syn(now, host, incoming, iss_min, pool),
        };
        let taken = self.take_fast_syn(now, host, index, incoming, iss_min, pool);
        let Some(incoming) = taken else { return };
        // `taker` let the SYN in for its cookie alone.
        if !self.has_place_at(now, index) {
            return self.drop_local(incoming.local, DropReason::SynCacheFull, pool);
        }
        self.make_place(now, index);
        self.counters.tcp_syns += 1;
        let Incoming { flow, hash, ref segment, ref local, .. } = incoming;
        let parent = Parent::Listener(index);
        let settings = self.settings_of(parent);
        let gives_cookie =
            settings.fast_open_queue > 0 && FastOpen::find(incoming.header()).is_some();
        let iss = isn::initial_sequence(self.keys.isn.flow(&flow), now);
        let iss = iss_min.map_or(iss, |min| isn::not_before(min, iss));
        let iface = settings.device.or(self.pinned(local.iface, &flow));
        let config = self.tcp_config(now, &settings, &flow, iface);
        let half_open = HalfOpen::new(&config, segment, iss, self.timestamp_offset(&flow), now);
        let entry = HalfOpenFlow {
            flow,
            half_open,
            iface: local.iface,
            has_place: self.net.is_in_process(local.iface),
            gives_cookie,
            saved_syn: settings.save_syn.then(|| incoming.headers()),
            since: now,
            timer: TimerId::NONE,
            parent,
        };
        let at = self.store_half_open(entry, hash);
        self.send_syn_ack(now, host, at, pool);
        pool.give(incoming.local.packet);
    }

    /// Whether one more half-open connection of the listener has a place, or may have another's.
    fn has_place(&self, now: Instant, listener: &Listener) -> bool {
        self.has_share(listener) || self.displaceable(now, listener).is_some()
    }

    fn has_place_at(&self, now: Instant, index: u32) -> bool {
        match self.sockets.get(index).map(|socket| &socket.kind) {
            Some(Kind::Listener(listener)) => self.has_place(now, listener),
            _ => false,
        }
    }

    /// A listener may have as many half-open connections as there are places left for all listeners. So
    /// much of the cache is free at any time: half with one listener that is flooded, a third with two.
    /// (Choudhury and Hahne, "Dynamic queue length thresholds", 1998.)
    fn has_share(&self, listener: &Listener) -> bool {
        let free = self.config.syn_cache_max.saturating_sub(self.handshakes.half_open.len());
        listener.half_open.len() < free
    }

    /// The listener's oldest half-open connection, if its peer has had time for an answer. A younger one is
    /// as likely a client's with a long round trip as part of a flood, and the client's answer would find no
    /// connection: then the new SYN is dropped instead, and its sender repeats it.
    fn displaceable(&self, now: Instant, listener: &Listener) -> Option<u32> {
        let oldest = listener.half_open.front()?;
        let entry = self.handshakes.half_open.get(oldest)?;
        (entry.since + limits::HALF_OPEN_PATIENCE <= now).then_some(oldest)
    }

    /// Displaces a half-open connection of the listener if there is no other place for a new one.
    fn make_place(&mut self, now: Instant, index: u32) {
        let Some(Kind::Listener(listener)) = self.sockets.get(index).map(|socket| &socket.kind)
        else {
            return;
        };
        if self.has_share(listener) {
            return;
        }
        let Some(at) = self.displaceable(now, listener) else { return };
        self.counters.tcp_half_open_displaced += 1;
        self.remove_half_open(at);
        if let Some(Kind::Listener(listener)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        {
            listener.lenient_until = now + limits::DISPLACED_TIME;
        }
    }

    /// A segment that belongs to no flow and opens none.
    pub(crate) fn on_stray_segment(&mut self, now: Instant, incoming: Incoming, pool: &mut Pool) {
        let flags = incoming.segment.flags;
        let lenient = self.listener_of(&incoming).map(|(_, listener)| listener.lenient_until);
        let reason = match lenient {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.2
            //# This should not be reached.  Drop the segment and return.
            Some(_) if !flags.intersects(Flags::ACK | Flags::RST) => DropReason::TcpBadFlags,
            // It may be of a client whose half-open connection was displaced. That client has done nothing
            // wrong: its program may not see a reset.
            Some(until) if now < until && !flags.intersects(Flags::SYN | Flags::RST) => {
                DropReason::HalfOpenDisplaced
            }
            _ => return self.refuse_segment(now, incoming, DropReason::TcpNoSocket, pool),
        };
        self.drop_local(incoming.local, reason, pool);
    }

    /// Puts a half-open connection into the cache, under the hash of its flow.
    fn store_half_open(&mut self, entry: HalfOpenFlow, hash: u64) -> u32 {
        let deadline = entry.half_open.next_timeout();
        let line = match entry.parent {
            Parent::Listener(index) => {
                match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
                    Some(Kind::Listener(listener)) => {
                        if entry.has_place {
                            listener.promised += 1;
                            listener.publish();
                        }
                        &mut listener.half_open
                    }
                    _ => unreachable!("the caller found the listener"),
                }
            }
            Parent::EarlyAccept(_) => &mut self.handshakes.early,
        };
        let at = self.handshakes.half_open.push(line, entry);
        self.flows.insert(hash, FlowRef::HalfOpen(at));
        if let Some(entry) = self.handshakes.half_open.get_mut(at) {
            self.wheel.set(&mut entry.timer, Some(deadline), TimerOwner::HalfOpen(at));
        }
        at
    }

    /// What was set on the socket that the handshake is for. As on Linux a listener's settings count at the time
    /// when they are used: a SYN-ACK has those of when it is sent, the connection those at the handshake's end.
    fn settings_of(&self, parent: Parent) -> Settings {
        let Parent::Listener(index) = parent else { return self.default_settings() };
        match self.sockets.get(index).map(|socket| &socket.kind) {
            Some(Kind::Listener(listener)) => listener.settings,
            _ => self.default_settings(),
        }
    }

    fn send_syn_ack(&mut self, now: Instant, host: &H, at: u32, pool: &mut Pool) {
        let Some(parent) = self.handshakes.half_open.get(at).map(|entry| entry.parent) else {
            return;
        };
        let (Parent::Listener(index) | Parent::EarlyAccept(index)) = parent;
        let Some(socket) = self.sockets.get(index) else { return };
        let window = match &socket.kind {
            Kind::EarlyAccept(early) => early.recv.free(),
            Kind::Listener(listener) => match listener.elsewhere(socket.user) {
                Some(listener) => host.recv_room_for(&listener),
                None => host.recv_room(socket.user),
            },
            _ => host.recv_room(socket.user),
        };
        let Some(entry) = self.handshakes.half_open.get_mut(at) else { return };
        let outgoing = entry.half_open.syn_ack(now, window);
        self.send_for_half_open(now, at, &outgoing, pool);
    }

    /// A segment of a handshake, which leaves as its parent's segments do.
    fn send_for_half_open(&mut self, now: Instant, at: u32, outgoing: &Outgoing, pool: &mut Pool) {
        let Some(HalfOpenFlow { flow, iface, parent, gives_cookie, .. }) =
            self.handshakes.half_open.get(at)
        else {
            return;
        };
        let (flow, iface) = (*flow, *iface);
        let settings = self.settings_of(*parent);
        let iface = settings.device.or(self.pinned(iface, &flow));
        // A SYN-ACK that is sent again has no option: the path may have dropped the first for it.
        let first = outgoing.flags.contains(Flags::SYN) && !outgoing.retransmit;
        let cookie = (first && *gives_cookie).then(|| self.given_cookie(&flow));
        let packet = settings.packet.towards(flow.remote);
        self.reply_as(now, &flow, iface, packet, outgoing, cookie, pool);
    }

    /// A segment of a handshake under way.
    pub(crate) fn on_half_open_segment(
        &mut self,
        now: Instant,
        host: &mut H,
        at: u32,
        incoming: Incoming,
        pool: &mut Pool,
    ) {
        let Some(entry) = self.handshakes.half_open.get_mut(at) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, pool);
        };
        let parent = entry.parent;
        match entry.half_open.on_segment(now, &incoming.segment) {
            HalfOpenVerdict::Established(handshake) => match parent {
                Parent::Listener(listener) => {
                    self.accept_child(now, host, listener, at, handshake, incoming, pool);
                }
                Parent::EarlyAccept(index) => {
                    self.finish_early_accept(now, host, index, at, handshake, incoming, pool);
                }
            },
            HalfOpenVerdict::Reset => {
                self.fail_half_open(at, SocketEvent::Error(SocketError::Reset));
                pool.give(incoming.local.packet);
            }
            HalfOpenVerdict::ChallengeAck(outgoing) | HalfOpenVerdict::SendReset(outgoing) => {
                self.send_for_half_open(now, at, &outgoing, pool);
                self.drop_local(incoming.local, DropReason::TcpUnacceptable, pool);
            }
            HalfOpenVerdict::ResendSynAck => {
                self.send_syn_ack(now, host, at, pool);
                pool.give(incoming.local.packet);
            }
            HalfOpenVerdict::Drop(reason) => {
                self.drop_local(incoming.local, reason.into(), pool);
            }
        }
    }

    /// The handshake of a listener's child is over: a place in the accept queue, buffers from the owner,
    /// then the segment that finished it.
    #[allow(clippy::too_many_arguments)]
    fn accept_child(
        &mut self,
        now: Instant,
        host: &mut H,
        listener: u32,
        at: u32,
        handshake: Handshake,
        incoming: Incoming,
        pool: &mut Pool,
    ) {
        let has_place = self.handshakes.half_open.get(at).is_some_and(|entry| entry.has_place);
        let child = match self.new_child(host, listener, has_place, &incoming) {
            Ok(child) => child,
            Err(reason) => return self.drop_local(incoming.local, reason, pool),
        };
        let NewChild { user, family, recv, send, offer, settings, sharing } = child;
        let flow = incoming.flow;
        let stream =
            self.stream_of(now, flow, handshake, settings, incoming.local.iface, recv, send);
        let stream = Box::new(Stream { uses_port: sharing, ..stream });
        let kind = Kind::Stream(stream);
        let index = self.sockets.insert(Socket::new(user, family, kind));
        let entry = self.take_over_flow(at, incoming.hash, index);
        if let Some(syn) = entry.and_then(|entry| entry.saved_syn) {
            self.saved_syns.insert(index, syn);
        }
        self.counters.tcp_accepts += 1;
        self.offer_child(now, index, offer);
        self.on_segment(now, index, incoming, pool);
    }

    /// Parts of the next socket as a child of this listener, and a place in the accept queue.
    pub(crate) fn new_child(
        &mut self,
        host: &mut H,
        listener: u32,
        has_place: bool,
        incoming: &Incoming,
    ) -> Result<NewChild<H>, DropReason> {
        if self.sockets.len() >= self.config.sockets_max {
            return Err(DropReason::SocketTableFull);
        }
        let child = SocketId(self.sockets.next_id());
        let parent = self.sockets.get_mut(listener).ok_or(DropReason::TcpNoSocket)?;
        let (family, bound, user) = (parent.family, parent.bound.as_deref().copied(), parent.user);
        let Kind::Listener(state) = &mut parent.kind else { return Err(DropReason::TcpNoSocket) };
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
            self.tcp_binds.use_port(flow.local_port, flow.local, sharing);
        }
        Ok(NewChild { user, family, recv, send, offer, settings, sharing })
    }

    /// Offers a child to its listener if that is another shard's, and if it does not wait for bytes.
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

    /// The handshake of an accepted pending SYN is over: its socket becomes the connection.
    #[allow(clippy::too_many_arguments)]
    fn finish_early_accept(
        &mut self,
        now: Instant,
        host: &mut H,
        index: u32,
        at: u32,
        handshake: Handshake,
        incoming: Incoming,
        pool: &mut Pool,
    ) {
        let settings = self.default_settings();
        let fresh = Kind::Fresh(Box::new(settings));
        let Some(socket) = self.sockets.get_mut(index) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, pool);
        };
        let user = socket.user;
        let Kind::EarlyAccept(early) = std::mem::replace(&mut socket.kind, fresh) else {
            unreachable!("a socket that was accepted early is one until its handshake ends");
        };
        let EarlyAccept { flow, recv, send, shut, half_open: _ } = *early;
        let mut stream =
            self.stream_of(now, flow, handshake, settings, incoming.local.iface, recv, send);
        if let (true, Some(connection)) = (shut, &mut stream.connection) {
            connection.shutdown_send();
        }
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.kind = Kind::Stream(Box::new(stream));
        }
        self.take_over_flow(at, incoming.hash, index);
        self.counters.tcp_accepts += 1;
        host.event(user, SocketEvent::Connected);
        self.on_segment(now, index, incoming, pool);
    }

    #[allow(clippy::too_many_arguments)]
    fn stream_of(
        &self,
        now: Instant,
        flow: Flow,
        handshake: Handshake,
        settings: Settings,
        iface: IfaceId,
        recv: H::Recv,
        send: H::Send,
    ) -> Stream<H> {
        let iface = settings.device.or(self.pinned(iface, &flow));
        let config = self.tcp_config(now, &settings, &flow, iface);
        let connection = Connection::accept(config, handshake, now);
        self.stream_with(now, flow, connection, settings, iface, recv, send)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn stream_with(
        &self,
        now: Instant,
        flow: Flow,
        connection: Connection,
        settings: Settings,
        iface: Option<IfaceId>,
        recv: H::Recv,
        send: H::Send,
    ) -> Stream<H> {
        Stream {
            flow,
            connection: Some(connection),
            recv,
            send,
            packet: settings.packet.towards(flow.remote),
            iface,
            path: None,
            timer: TimerId::NONE,
            uses_port: None,
            unreachable: None,
            news: News::default(),
            tuning: RecvTuning::default(),
            tune_at: now + PERIOD_DEFAULT,
        }
    }

    /// The interface that answers have to leave by, when routes cannot know it.
    pub(crate) fn pinned(&self, iface: IfaceId, flow: &Flow) -> Option<IfaceId> {
        let scoped = addr::is_link_local(flow.remote) && !self.net.is_local(flow.remote);
        (scoped || self.net.is_any_address(iface)).then_some(iface)
    }

    /// The flow of a half-open connection now belongs to a socket.
    fn take_over_flow(&mut self, at: u32, hash: u64, index: u32) -> Option<HalfOpenFlow> {
        let entry = self.forget_half_open(at);
        let replaced = self.flows.replace(hash, FlowRef::HalfOpen(at), FlowRef::Socket(index));
        debug_assert!(replaced, "the flow of a half-open connection is in the table");
        entry
    }

    /// Takes an entry out of the SYN cache; its flow is the caller's.
    fn forget_half_open(&mut self, at: u32) -> Option<HalfOpenFlow> {
        let HalfOpenFlow { parent, has_place, .. } = *self.handshakes.half_open.get(at)?;
        let line = match parent {
            Parent::Listener(index) => {
                match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
                    Some(Kind::Listener(listener)) => {
                        if has_place {
                            listener.promised -= 1;
                            listener.publish();
                        }
                        &mut listener.half_open
                    }
                    _ => unreachable!("a listener takes its half-open connections with it"),
                }
            }
            Parent::EarlyAccept(_) => &mut self.handshakes.early,
        };
        let mut entry = self.handshakes.half_open.remove(line, at)?;
        self.wheel.cancel(&mut entry.timer);
        Some(entry)
    }

    /// Removes a half-open connection with its flow. The peer is told nothing.
    pub(crate) fn remove_half_open(&mut self, at: u32) {
        if let Some(entry) = self.forget_half_open(at) {
            self.flows.remove(self.keys.table.ends(&entry.flow), FlowRef::HalfOpen(at));
            if let (Parent::Listener(index), true) = (entry.parent, entry.has_place) {
                self.tell_of_room(index);
            }
        }
    }

    /// A handshake failed. A listener never hears of it; a socket that was accepted early does, and is over.
    fn fail_half_open(&mut self, at: u32, event: SocketEvent) {
        let parent = self.handshakes.half_open.get(at).map(|entry| entry.parent);
        self.remove_half_open(at);
        let Some(Parent::EarlyAccept(index)) = parent else { return };
        let settings = self.default_settings();
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.kind = Kind::Fresh(Box::new(settings));
            self.events.push_back((socket.user, event));
        }
    }

    pub(crate) fn on_half_open_timeout(
        &mut self,
        now: Instant,
        host: &H,
        at: u32,
        pool: &mut Pool,
    ) {
        let Some(entry) = self.handshakes.half_open.get_mut(at) else { return };
        entry.timer = TimerId::NONE;
        let due = entry.half_open.next_timeout();
        if due <= now && !entry.half_open.on_timeout(now) {
            self.counters.tcp_half_open_timeouts += 1;
            return self.fail_half_open(at, SocketEvent::Error(SocketError::TimedOut));
        }
        let next = entry.half_open.next_timeout();
        self.wheel.set(&mut entry.timer, Some(next), TimerOwner::HalfOpen(at));
        if due <= now {
            self.send_syn_ack(now, host, at, pool);
        }
    }

    /// A SYN on an any-address interface that no listener takes: the owner decides.
    fn on_stray_syn(
        &mut self,
        now: Instant,
        host: &mut H,
        incoming: Incoming,
        iss_min: Option<SeqNum>,
        pool: &mut Pool,
    ) {
        // A connect that was given up sends nothing, and one that goes on repeats its SYN: the pending SYN that was
        // last repeated longest ago makes room.
        if self.handshakes.pending.len() >= self.config.pending_max
            && let Some(oldest) = self.handshakes.pending_line.front()
        {
            self.count_drop(DropReason::PendingFull);
            self.forget_pending(host, oldest);
        }
        let Incoming { flow, hash, segment, .. } = incoming;
        let pending = PendingSyn {
            flow,
            syn: segment,
            iface: incoming.local.iface,
            expires: now + limits::PENDING_TIMEOUT,
            iss_min,
            quote: Quote::new(&incoming.local, incoming.header_len),
        };
        let at = self.handshakes.pending.push(&mut self.handshakes.pending_line, pending);
        self.flows.insert(hash, FlowRef::Pending(at));
        pool.give(incoming.local.packet);
        host.syn(PendingId(self.handshakes.pending.id(at)), flow.local(), flow.remote());
    }

    /// The peer repeats itself, or gives up, before the owner has decided.
    pub(crate) fn on_pending_segment(
        &mut self,
        now: Instant,
        host: &mut H,
        at: u32,
        incoming: Incoming,
        pool: &mut Pool,
    ) {
        if is_opening(&incoming.segment) {
            let Some(pending) = self.handshakes.pending.get_mut(at) else { return };
            // A new SYN from the same port stands for a new attempt.
            pending.syn = incoming.segment;
            pending.expires = now + limits::PENDING_TIMEOUT;
            self.handshakes.pending.renew(&mut self.handshakes.pending_line, at);
            return self.drop_local(incoming.local, DropReason::PendingDuplicate, pool);
        }
        let Some(pending) = self.handshakes.pending.get(at) else { return };
        let Segment { flags, seq, .. } = incoming.segment;
        // The peer gave up: nobody needs to decide any more. Only this number follows its SYN.
        if flags.contains(Flags::RST) && seq == pending.syn.seq + 1 {
            self.forget_pending(host, at);
            return pool.give(incoming.local.packet);
        }
        self.drop_local(incoming.local, DropReason::TcpUnacceptable, pool);
    }

    /// The headers of a pending SYN, from its IP header on; nothing when it has been forgotten.
    pub fn pending_headers(&self, pending: PendingId) -> &[u8] {
        let at = self.handshakes.pending.find(pending.0);
        let entry = at.and_then(|at| self.handshakes.pending.get(at));
        entry.map_or(&[], |entry| entry.quote.bytes())
    }

    fn take_pending(&mut self, at: u32) -> Option<PendingSyn> {
        let pending = self.handshakes.pending.remove(&mut self.handshakes.pending_line, at)?;
        self.flows.remove(self.keys.table.ends(&pending.flow), FlowRef::Pending(at));
        Some(pending)
    }

    /// Takes the connection that a pending SYN asks for: the SYN-ACK goes out now, the socket is
    /// connected ([`SocketEvent::Connected`]) when the peer has answered. `None` when the SYN has been
    /// forgotten meanwhile, or when there are too many sockets.
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
        let PendingSyn { flow, syn, iface, iss_min, .. } = self.take_pending(at)?;
        self.counters.tcp_syns += 1;
        let iss = isn::initial_sequence(self.keys.isn.flow(&flow), now);
        let iss = iss_min.map_or(iss, |min| isn::not_before(min, iss));
        let config = self.tcp_config(now, &self.default_settings(), &flow, Some(iface));
        let mut half_open = HalfOpen::new(&config, &syn, iss, self.timestamp_offset(&flow), now);
        let syn_ack = half_open.syn_ack(now, recv.free());
        let family = if flow.local.is_ipv4() { Family::V4 } else { Family::V6 };
        let early = EarlyAccept { flow, half_open: NONE, recv, send, shut: false };
        let kind = Kind::EarlyAccept(Box::new(early));
        let index = self.sockets.insert(Socket::new(user, family, kind));
        let entry = HalfOpenFlow {
            flow,
            half_open,
            iface,
            has_place: false,
            gives_cookie: false,
            saved_syn: None,
            since: now,
            timer: TimerId::NONE,
            parent: Parent::EarlyAccept(index),
        };
        let at = self.store_half_open(entry, self.keys.table.ends(&flow));
        if let Some(Kind::EarlyAccept(early)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        {
            early.half_open = at;
        }
        self.send_for_half_open(now, at, &syn_ack, pool);
        Some(SocketId(self.sockets.id(index)))
    }

    /// Refuses the connection that a pending SYN asks for; nothing happens when it has been forgotten. Of ICMP errors
    /// at most [`ICMP_ERRORS_PER_SECOND`](crate::net::limits::ICMP_ERRORS_PER_SECOND) leave: beyond, the peer hears
    /// nothing, and its repeated SYN asks again.
    pub fn refuse_pending(
        &mut self,
        now: Instant,
        pending: PendingId,
        refusal: Refusal,
        pool: &mut Pool,
    ) {
        let Some(at) = self.handshakes.pending.find(pending.0) else { return };
        let Some(PendingSyn { flow, syn, iface, quote, .. }) = self.take_pending(at) else {
            return;
        };
        let why = match refusal {
            Refusal::Ignore => return,
            Refusal::Reset => {
                if let Some(reset) = reset_for(&syn) {
                    self.counters.tcp_resets_sent += 1;
                    self.reply(now, &flow, iface, &reset, pool);
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

    fn forget_pending(&mut self, host: &mut H, at: u32) {
        let pending = PendingId(self.handshakes.pending.id(at));
        if self.take_pending(at).is_some() {
            host.syn_forgotten(pending);
        }
    }

    pub(crate) fn expire_pending(&mut self, now: Instant, host: &mut H) {
        while let Some(at) = self.handshakes.pending_line.front() {
            if self.handshakes.pending.get(at).is_none_or(|pending| pending.expires > now) {
                break;
            }
            self.forget_pending(host, at);
        }
    }
}

impl Listener {
    /// A listener without connections.
    pub(crate) fn new(settings: Settings, backlog: u32) -> Self {
        let lenient_until = Instant::ZERO;
        Self {
            settings,
            backlog,
            waiting: 0,
            promised: 0,
            fast_opening: 0,
            half_open: Default::default(),
            lenient_until,
            among: None,
        }
    }
}
