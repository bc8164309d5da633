//! Opens from the other side: listeners, half-open connections, SYNs that wait for a decision, and
//! what TIME-WAIT answers.

use towpath_pool::Pool;
use towpath_ring::RecvBuffer;
use towpath_tcp::{
    Connection, HalfOpen, HalfOpenVerdict, Handshake, Instant, SeqNum, TimeWaitVerdict, isn,
    reset_for,
};
use towpath_wire::addr;

use crate::drop::DropReason;
use crate::flow::{Flow, FlowRef};
use crate::handshake::{HalfOpenFlow, Parent, PendingSyn, Quote};
use crate::host::{Family, Host, PendingId, Refusal, SocketError, SocketEvent, SocketId};
use crate::limits;
use crate::net::{IfaceId, Unreachable};
use crate::rx::{Incoming, is_opening};
use crate::slab::NONE;
use crate::socket::{
    HopLimits, Kind, Listener, News, PacketSettings, Promised, Settings, Socket, Stream,
};
use crate::stack::{Stack, TimerOwner};
use crate::timer::TimerId;
use crate::tuning::{PERIOD_DEFAULT, RecvTuning};

/// What a SYN-ACK offers: no buffer exists yet, and every fresh one has at least so much.
const SYN_ACK_WINDOW: u32 = 65535;

impl<H: Host> Stack<H> {
    /// A SYN that belongs to no flow. `iss_min`: an old connection between the same ports used numbers up
    /// to there.
    pub(crate) fn on_syn(
        &mut self,
        now: Instant,
        host: &mut H,
        incoming: Incoming,
        iss_min: Option<SeqNum>,
        pool: &mut Pool,
    ) {
        let flow = incoming.flow;
        let iface = incoming.local.iface;
        // SO_REUSEPORT: the 4-tuple decides, so that a repeated SYN meets the same listener.
        let pick = (incoming.hash >> 32) as usize;
        let index = match self.tcp_binds.receiver(flow.local, flow.local_port, iface, pick) {
            Some(index) => index,
            None if self.net.is_any_address(iface) => {
                return self.on_stray_syn(now, host, incoming, pool);
            }
            None => return self.refuse_segment(now, incoming, DropReason::TcpNoSocket, pool),
        };
        let Some(Kind::Listener(listener)) = self.sockets.get(index).map(|socket| &socket.kind)
        else {
            return self.refuse_segment(now, incoming, DropReason::TcpNoSocket, pool);
        };
        if listener.is_full() {
            return self.drop_local(incoming.local, DropReason::ListenOverflow, pool);
        }
        let settings = listener.settings;
        if !self.make_room_half_open(index) {
            return self.drop_local(incoming.local, DropReason::SynCacheFull, pool);
        }
        self.counters.tcp_syns += 1;
        let half_open = self.new_half_open(now, &incoming, settings, iss_min);
        self.insert_half_open(now, half_open, Parent::Listener(index), &incoming, pool);
        pool.give(incoming.local.packet);
    }

    /// Displaces the listener's oldest half-open connection when it has too many, or when all listeners
    /// together have. False when there is nothing of its own to displace.
    fn make_room_half_open(&mut self, listener: u32) -> bool {
        let Some(Kind::Listener(state)) = self.sockets.get(listener).map(|socket| &socket.kind)
        else {
            return false;
        };
        let own_max = (state.backlog as usize)
            .max(limits::SYN_CACHE_LISTENER_MIN)
            .min(self.config.syn_cache_listener_max);
        let full = self.handshakes.half_open.len() >= self.config.syn_cache_max;
        if state.half_open.len() < own_max && !full {
            return true;
        }
        let Some(oldest) = state.half_open.front() else { return false };
        self.count_drop(DropReason::SynCacheFull);
        self.remove_half_open(oldest);
        true
    }

    fn new_half_open(
        &self,
        now: Instant,
        incoming: &Incoming,
        settings: Settings,
        iss_min: Option<SeqNum>,
    ) -> HalfOpen {
        let Incoming { flow, segment, local, .. } = incoming;
        let iss = isn::initial_sequence(self.keys.isn.flow(flow), now);
        let iss = iss_min.map_or(iss, |min| isn::not_before(min, iss));
        let config = self.tcp_config(now, &settings, flow, Some(local.iface));
        HalfOpen::new(&config, segment, iss, self.timestamp_offset(flow), now)
    }

    fn insert_half_open(
        &mut self,
        now: Instant,
        half_open: HalfOpen,
        parent: Parent,
        incoming: &Incoming,
        pool: &mut Pool,
    ) -> u32 {
        let iface = incoming.local.iface;
        self.store_half_open(now, half_open, parent, incoming.flow, incoming.hash, iface, pool)
    }

    #[allow(clippy::too_many_arguments)]
    fn store_half_open(
        &mut self,
        now: Instant,
        half_open: HalfOpen,
        parent: Parent,
        flow: Flow,
        hash: u64,
        iface: IfaceId,
        pool: &mut Pool,
    ) -> u32 {
        let deadline = half_open.next_timeout();
        let entry = HalfOpenFlow { flow, half_open, iface, timer: TimerId::NONE, parent };
        let line = match parent {
            Parent::Listener(index) => {
                match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
                    Some(Kind::Listener(listener)) => &mut listener.half_open,
                    _ => unreachable!("the caller found the listener"),
                }
            }
            Parent::Promised(_) => &mut self.handshakes.promised,
        };
        let at = self.handshakes.half_open.push(line, entry);
        self.flows.insert(hash, FlowRef::HalfOpen(at));
        if let Some(entry) = self.handshakes.half_open.get_mut(at) {
            self.wheel.set(&mut entry.timer, Some(deadline), TimerOwner::HalfOpen(at));
        }
        self.send_syn_ack(now, at, pool);
        at
    }

    fn send_syn_ack(&mut self, now: Instant, at: u32, pool: &mut Pool) {
        let Some(entry) = self.handshakes.half_open.get_mut(at) else { return };
        let window = match entry.parent {
            Parent::Listener(_) => SYN_ACK_WINDOW,
            Parent::Promised(index) => match self.sockets.get(index).map(|socket| &socket.kind) {
                Some(Kind::Promised(promised)) => promised.recv.free(),
                _ => SYN_ACK_WINDOW,
            },
        };
        let outgoing = entry.half_open.syn_ack(now, window);
        let (flow, iface) = (entry.flow, entry.iface);
        self.reply(now, &flow, iface, &outgoing, pool);
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
                Parent::Promised(index) => {
                    self.keep_promise(now, host, index, at, handshake, incoming, pool);
                }
            },
            HalfOpenVerdict::Reset => {
                self.fail_half_open(at, SocketEvent::Error(SocketError::Reset));
                pool.give(incoming.local.packet);
            }
            HalfOpenVerdict::ChallengeAck(outgoing) | HalfOpenVerdict::SendReset(outgoing) => {
                self.reply(now, &incoming.flow, incoming.local.iface, &outgoing, pool);
                self.drop_local(incoming.local, DropReason::TcpUnacceptable, pool);
            }
            HalfOpenVerdict::ResendSynAck => {
                self.send_syn_ack(now, at, pool);
                pool.give(incoming.local.packet);
            }
            HalfOpenVerdict::Drop(_) => {
                self.drop_local(incoming.local, DropReason::TcpUnacceptable, pool);
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
        if self.sockets.len() >= self.config.sockets_max {
            return self.drop_local(incoming.local, DropReason::SocketTableFull, pool);
        }
        let child = SocketId(self.sockets.next_id());
        let Some(parent) = self.sockets.get_mut(listener) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, pool);
        };
        let (family, bound, user) = (parent.family, parent.bound.as_deref().copied(), parent.user);
        let Kind::Listener(state) = &mut parent.kind else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, pool);
        };
        let flow = incoming.flow;
        let given = match state.is_full() {
            true => None,
            false => host.accept(user, child, flow.local(), flow.remote()),
        };
        let Some((user, recv, send)) = given else {
            return self.drop_local(incoming.local, DropReason::AcceptOverflow, pool);
        };
        state.waiting += 1;
        let settings = state.settings;
        let sharing = bound.map(|bound| bound.options.sharing());
        if let Some(sharing) = sharing {
            self.tcp_binds.use_port(flow.local_port, flow.local, sharing);
        }
        let stream =
            self.stream_of(now, flow, handshake, settings, incoming.local.iface, recv, send);
        let stream = Box::new(Stream { uses_port: sharing, ..stream });
        let kind = Kind::Stream(stream);
        let socket = Socket { user, family, bound: None, dirty: false, orphan: false, kind };
        let index = self.sockets.insert(socket);
        self.take_over_flow(at, incoming.hash, index);
        self.counters.tcp_accepts += 1;
        self.on_segment(now, index, incoming, pool);
    }

    /// The handshake of an accepted pending SYN is over: its socket becomes the connection.
    #[allow(clippy::too_many_arguments)]
    fn keep_promise(
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
        let Kind::Promised(promised) = std::mem::replace(&mut socket.kind, fresh) else {
            unreachable!(
                "a half-open connection's promised socket is one until its handshake ends"
            );
        };
        let Promised { flow, recv, send, shut, half_open: _ } = *promised;
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
        Stream {
            flow,
            connection: Some(Connection::accept(config, handshake, now)),
            recv,
            send,
            packet: settings.packet,
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
    fn take_over_flow(&mut self, at: u32, hash: u64, index: u32) {
        self.forget_half_open(at);
        let replaced = self.flows.replace(hash, FlowRef::HalfOpen(at), FlowRef::Socket(index));
        debug_assert!(replaced, "the flow of a half-open connection is in the table");
    }

    /// Takes an entry out of the SYN cache; its flow is the caller's.
    fn forget_half_open(&mut self, at: u32) -> Option<HalfOpenFlow> {
        let parent = self.handshakes.half_open.get(at)?.parent;
        let line = match parent {
            Parent::Listener(index) => {
                match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
                    Some(Kind::Listener(listener)) => &mut listener.half_open,
                    _ => unreachable!("a listener takes its half-open connections with it"),
                }
            }
            Parent::Promised(_) => &mut self.handshakes.promised,
        };
        let mut entry = self.handshakes.half_open.remove(line, at)?;
        self.wheel.cancel(&mut entry.timer);
        Some(entry)
    }

    /// Removes a half-open connection with its flow, without a word.
    pub(crate) fn remove_half_open(&mut self, at: u32) {
        if let Some(entry) = self.forget_half_open(at) {
            self.flows.remove(self.keys.table.flow(&entry.flow), FlowRef::HalfOpen(at));
        }
    }

    /// A handshake failed. A listener never hears of it; a promised socket does, and is over.
    fn fail_half_open(&mut self, at: u32, event: SocketEvent) {
        let parent = self.handshakes.half_open.get(at).map(|entry| entry.parent);
        self.remove_half_open(at);
        let Some(Parent::Promised(index)) = parent else { return };
        let settings = self.default_settings();
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.kind = Kind::Fresh(Box::new(settings));
            self.untold.push_back((socket.user, event));
        }
    }

    pub(crate) fn on_half_open_timeout(&mut self, now: Instant, at: u32, pool: &mut Pool) {
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
            self.send_syn_ack(now, at, pool);
        }
    }

    /// A segment of a connection in TIME-WAIT.
    pub(crate) fn on_time_wait_segment(
        &mut self,
        now: Instant,
        host: &mut H,
        at: u32,
        incoming: Incoming,
        pool: &mut Pool,
    ) {
        let Some(entry) = self.time_waits.get_mut(at) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, pool);
        };
        let before = entry.state.expires();
        let verdict = entry.state.on_segment(now, &incoming.segment);
        let (after, iss_min) = (entry.state.expires(), entry.state.iss_min());
        if after != before {
            self.time_waits.renew(at);
        }
        match verdict {
            TimeWaitVerdict::Ack(outgoing) => {
                self.reply(now, &incoming.flow, incoming.local.iface, &outgoing, pool);
                pool.give(incoming.local.packet);
            }
            TimeWaitVerdict::Reopen => {
                self.counters.tcp_time_wait_reused += 1;
                self.remove_time_wait(at);
                self.on_syn(now, host, incoming, Some(iss_min), pool);
            }
            TimeWaitVerdict::Drop(_) => {
                self.drop_local(incoming.local, DropReason::TcpUnacceptable, pool)
            }
        }
    }

    /// A SYN on an any-address interface that no listener takes: the owner decides.
    fn on_stray_syn(&mut self, now: Instant, host: &mut H, incoming: Incoming, pool: &mut Pool) {
        // A connect that was given up says nothing, and one that goes on repeats its SYN: who has been silent
        // for longest makes room.
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
        self.flows.remove(self.keys.table.flow(&pending.flow), FlowRef::Pending(at));
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
        let PendingSyn { flow, syn, iface, .. } = self.take_pending(at)?;
        self.counters.tcp_syns += 1;
        let iss = isn::initial_sequence(self.keys.isn.flow(&flow), now);
        let config = self.tcp_config(now, &self.default_settings(), &flow, Some(iface));
        let half_open = HalfOpen::new(&config, &syn, iss, self.timestamp_offset(&flow), now);
        let family = if flow.local.is_ipv4() { Family::V4 } else { Family::V6 };
        let promised = Promised { flow, half_open: NONE, recv, send, shut: false };
        let kind = Kind::Promised(Box::new(promised));
        let index = self.sockets.insert(Socket {
            user,
            family,
            bound: None,
            dirty: false,
            orphan: false,
            kind,
        });
        let hash = self.keys.table.flow(&flow);
        let at =
            self.store_half_open(now, half_open, Parent::Promised(index), flow, hash, iface, pool);
        if let Some(Kind::Promised(promised)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        {
            promised.half_open = at;
        }
        Some(SocketId(self.sockets.id(index)))
    }

    /// Refuses the connection that a pending SYN asks for.
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

    pub(crate) fn remove_time_wait(&mut self, at: u32) {
        let Some(entry) = self.time_waits.remove(at) else { return };
        self.flows.remove(self.keys.table.flow(&entry.flow), FlowRef::TimeWait(at));
        if let Some(sharing) = entry.uses_port {
            self.tcp_binds.unuse_port(entry.flow.local_port, entry.flow.local, sharing);
        }
    }

    pub(crate) fn expire_time_waits(&mut self, now: Instant) {
        for _ in 0..limits::TIMERS_A_TURN {
            match (self.time_waits.next_timeout(), self.time_waits.oldest()) {
                (Some(expires), Some(at)) if expires <= now => self.remove_time_wait(at),
                _ => break,
            }
        }
    }

    /// A segment that nothing here waits for.
    pub(crate) fn refuse_segment(
        &mut self,
        now: Instant,
        incoming: Incoming,
        reason: DropReason,
        pool: &mut Pool,
    ) {
        if let Some(reset) = reset_for(&incoming.segment) {
            self.counters.tcp_resets_sent += 1;
            self.reply(now, &incoming.flow, incoming.local.iface, &reset, pool);
        }
        self.drop_local(incoming.local, reason, pool);
    }

    /// The settings of sockets on which nothing was set.
    pub(crate) fn default_settings(&self) -> Settings {
        Settings {
            tcp: self.config.tcp,
            packet: PacketSettings { hops: HopLimits::default(), tos: 0, mss_max: 0 },
            device: None,
        }
    }

    pub(crate) fn timestamp_offset(&self, flow: &Flow) -> u32 {
        self.keys.timestamps.flow(flow) as u32
    }
}

impl Listener {
    /// A listener without connections.
    pub(crate) fn new(settings: Settings, backlog: u32) -> Self {
        Self { settings, backlog, waiting: 0, half_open: Default::default() }
    }
}
