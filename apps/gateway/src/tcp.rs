//! TCP flows: joins a connection of the inner stack (the gateway's own, towards the program) with a
//! connection of a host socket.
//!
//! ```text
//!  program ── SYN ──► syn() ─► dial() ──► host, or a server that connects to it (`negotiating`)
//!          ◄─ SYN-ACK ─ accept_pending ◄── connected
//!          ◄─ RST, ICMP ─ refuse_pending ◄── refused
//!
//!  program ══► receive FIFO ══ sendmsg ══► host socket       each direction forwards a FIN, a
//!  program ◄══ send FIFO ◄═══ recvmsg ════ host socket       reset and backpressure by itself
//! ```
//!
//! Bytes sent before a reset are delivered before it. After a reset by the host's peer, the program
//! has limited time to read the bytes that are queued in the gateway. After a reset by the program,
//! we send as many of its bytes as the host socket has room for.
//!
//! The program's bytes are acknowledged once they are in the receive FIFO, before the host has
//! them. A truncated stream must not look complete to the host. Therefore SO_LINGER with zero
//! seconds makes each close a reset until the host has all bytes and the FIN. The same applies if
//! the kernel closes the socket because this process was killed.
//!
//! The module itself owns the flow table, and creates and removes flows. `clients` creates flows
//! for clients of published ports, and `flow` moves the bytes of one flow.

mod clients;
mod deadlines;
mod syns;

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use towpath_stack::{Host, Linger, PendingId, Refusal, SocketError, SocketEvent, SocketId, Stack};
use towpath_tcp::Instant;

use crate::budget::Whose;
use crate::context::{Context, FifoHost, Shared};
use crate::dialer::{Dialed, SynMarks, reset};
use crate::events::{Interest, Readiness, Token};
use crate::flow::{Flow, FlowPhase, FlowUpdate, HostSide, Outcome, ProgramSide, dial_next};
use crate::limits::{NEGOTIATION_NS, PLAIN_TTL, SOURCE_LOOK_NS};
use crate::lines::ClientLines;
use crate::nameservers::ServerRotation;
use crate::negotiating::NegotiationFailure;
use crate::notice::Notice;
use crate::order::Landings;
use crate::segment::{ends_of_segment, refusal_for, refuse, report_why, ttl_and_tos};
use crate::siblings::Topic;
use crate::slab::{KeyedSlab, SlabKey};
use crate::source::source_of;
use crate::sys::{self, IpOption};
use crate::urgent::UrgentReads;

use deadlines::FlowDeadlines;
use syns::{PendingSyns, Syn};

/// Bits of the type of service that are the DSCP (RFC 2474). The two ECN bits (RFC 3168) are
/// excluded, because TCP negotiates ECN separately for each of the two connections.
const CLASS_MASK: u8 = 0xfc;

/// Table of all TCP flows.
#[derive(Debug)]
pub(crate) struct TcpFlows {
    flows: KeyedSlab<Flow>,
    /// Flows of clients of published ports whose connection to the program was just established.
    pub(crate) landings: Landings,
    pending: PendingSyns,
    /// Flows with pending work; each is queued at most once.
    due: VecDeque<SlabKey>,
    /// Whether any packet of the program had a nonzero traffic class. From then on, the class of
    /// each packet is checked.
    classes: bool,
    deadlines: FlowDeadlines,
    lines: ClientLines,
    /// Published ports for which a missing listener was reported to the user.
    hinted: HashSet<u16>,
}

/// Destination to which the host socket connects for a SYN.
enum Target {
    Host(SocketAddr),
    /// The program connects to the DNS forwarder: connect to the first nameserver that accepts.
    Nameservers(ServerRotation),
}

impl TcpFlows {
    /// Creates a table with at most `connecting_max` SYNs that are not answered yet, the limit of
    /// the inner stack.
    pub(crate) fn new(connecting_max: usize) -> Self {
        Self {
            flows: KeyedSlab::new(),
            landings: Landings::default(),
            pending: PendingSyns::new(connecting_max),
            due: VecDeque::new(),
            classes: false,
            deadlines: FlowDeadlines::default(),
            lines: ClientLines::default(),
            hinted: HashSet::new(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter()
    }

    /// Returns the number of flows.
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns the number of bytes and FINs that were acknowledged to the program, but not yet sent
    /// to the host. If `ended` is true, counts only flows in which the program has sent its FIN.
    pub(crate) fn undelivered<H: Host>(&self, now: Instant, stack: &Stack<H>, ended: bool) -> u64 {
        let counts = |flow: &&Flow| !ended || flow.program_side != ProgramSide::Open;
        let of_flow = |flow: &Flow| match flow.phase {
            // Exclude bytes for a failed host connection, because they will never be delivered.
            FlowPhase::Open(socket)
                if flow.program_side != ProgramSide::Passed && !flow.has_failed() =>
            {
                let unread = stack.info(now, socket).map_or(0, |info| info.recv_queue);
                u64::from(unread) + u64::from(flow.program_side != ProgramSide::Open)
            }
            _ => 0,
        };
        self.flows.iter().filter(counts).map(of_flow).sum()
    }

    /// Returns whether [`TcpFlows::serve`] has pending work.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty() || self.pending.waiting() > 0
    }

    /// Queues a SYN that the program at `remote` has sent to `local`.
    pub(crate) fn on_syn(
        &mut self,
        shared: &Shared,
        pending: PendingId,
        local: SocketAddr,
        remote: SocketAddr,
    ) {
        let client = shared.config.client(remote.ip());
        self.pending.enqueue(shared.now_ns, client, Syn { pending, local, remote });
    }

    /// Drops the flow of a SYN that the inner stack has dropped before the SYN was answered.
    pub(crate) fn on_syn_forgotten(&mut self, shared: &mut Shared, pending: PendingId) {
        if let Some(connecting) = self.pending.remove(pending) {
            shared.counters.tcp_forgotten += 1;
            self.abandon(connecting);
        }
    }

    /// Records that the program has retransmitted a SYN that is not answered yet.
    pub(crate) fn on_syn_repeated(&mut self, now_ns: u64, pending: PendingId) {
        self.pending.touch(now_ns, pending);
    }

    /// Evicts an unanswered SYN to make room for a SYN of the program at `remote`.
    pub(crate) fn displace_syn(
        &mut self,
        shared: &mut Shared,
        remote: SocketAddr,
    ) -> Option<PendingId> {
        let client = shared.config.client(remote.ip());
        let (pending, connecting) = self.pending.evict(client)?;
        shared.counters.tcp_connecting_evicted += 1;
        self.abandon(connecting);
        Some(pending)
    }

    /// Removes the flow of a SYN that was dropped. If the SYN has no flow yet, it is still queued.
    /// The queue skips the SYN later, because the inner stack no longer has it.
    fn abandon(&mut self, connecting: Option<SlabKey>) {
        if let Some(key) = connecting {
            self.remove(key);
        }
    }

    /// Handles an event of a flow's socket in the inner stack. Removing a flow closes its socket,
    /// and the inner stack reports only [`SocketEvent::Closed`] for closed sockets. Therefore any
    /// other event belongs to an existing flow.
    pub(crate) fn on_event(&mut self, user: u32, event: SocketEvent) {
        let Some(key) = self.flows.living(user) else { return };
        let Some(flow) = self.flows.get_mut(key) else { return };
        match event {
            SocketEvent::Connected => flow.news = Some(FlowUpdate::Connected),
            SocketEvent::PeerClosed => flow.program_side = ProgramSide::Ended,
            SocketEvent::Writable => flow.progress = true,
            SocketEvent::Error(SocketError::TimedOut) => flow.news = Some(FlowUpdate::TimedOut),
            SocketEvent::Error(_) => flow.news = Some(FlowUpdate::Failed),
            // `Closed` only confirms that we have closed a socket, possibly that of an earlier
            // attempt to connect.
            SocketEvent::Closed => return,
            _ => {}
        }
        self.enqueue(key);
    }

    /// Sets the DSCP of a segment of the program on the flow's host socket if it has changed.
    pub(crate) fn on_packet<H: Host>(&mut self, stack: &Stack<H>, packet: &[u8]) {
        let (_, tos) = ttl_and_tos(packet);
        let class = tos & CLASS_MASK;
        if class == 0 && !self.classes {
            return;
        }
        let Some((program, peer, _)) = ends_of_segment(packet) else { return };
        self.classes = true;
        let Some((socket, user)) = stack.connection(peer, program) else { return };
        let key = self.flows.living(user);
        // Compare the sockets: an old connection may still have the short key of a removed flow,
        // which may now match another flow.
        if let Some(flow) = key.and_then(|key| self.flows.get_mut(key))
            && flow.phase.socket() == Some(socket)
        {
            flow.set_class(class);
        }
    }

    /// Records that epoll has reported a flow's host socket as ready, and queues the flow.
    pub(crate) fn on_ready(&mut self, now_ns: u64, key: SlabKey, ready: Readiness) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let ended = flow.host_side == HostSide::Ended;
        flow.readable |= !ended && (ready.readable || ready.drain || ready.failed);
        flow.writable |= ready.writable || ready.failed;
        flow.urgent_reads.on_ready(&ready);
        flow.drain |= ready.drain || ready.failed;
        if ready.failed {
            flow.on_host_failed();
        }
        self.deadlines.note_failure(now_ns, key, flow);
        self.enqueue(key);
    }

    /// Serves the queued SYNs and flows. Flows that are queued during this call are served by the
    /// next call.
    pub(crate) fn serve(&mut self, cx: &mut Context<'_, impl FifoHost>) {
        for _ in 0..self.pending.waiting() {
            let Some(syn) = self.pending.pop() else { break };
            self.connect_host(cx, &syn);
        }
        for _ in 0..self.due.len() {
            let Some(key) = self.due.pop_front() else { break };
            if let Some(flow) = self.flows.get_mut(key) {
                flow.queued = false;
                self.step(cx, key);
            }
        }
    }

    /// Handles the flows whose deadline has passed.
    pub(crate) fn expire(&mut self, cx: &mut Context<'_, impl FifoHost>) {
        let now_ns = cx.shared.now_ns;
        // An empty vector allocates no memory. The vector is used only if clients wait for a
        // listener.
        let mut unanswered = Vec::new();
        while let Some(key) = self.deadlines.pop_due(now_ns) {
            let Some(flow) = self.flows.get_mut(key) else { continue };
            flow.expires_ns = None;
            match flow.phase {
                FlowPhase::Negotiating(pending) => {
                    self.remove(key);
                    refuse(cx, pending, refusal_for(Errno::TIMEDOUT));
                }
                FlowPhase::HostConnecting(pending) if flow.nameservers.is_none() => {
                    self.leave_source(cx, key, pending);
                }
                FlowPhase::HostConnecting(pending) => {
                    if let Some(silent) = flow.nameserver() {
                        cx.shared.nameservers.on_silence(now_ns, silent);
                    }
                    // Ignore the result: if there is no further nameserver, the current one may
                    // still answer.
                    self.try_next_nameserver(cx, key, pending);
                }
                // The program has read bytes since the deadline was set, so extend the deadline.
                FlowPhase::Open(_) if std::mem::take(&mut flow.progress) => {
                    self.deadlines.note_failure(now_ns, key, flow);
                }
                // The program does not read the bytes that were received before the host connection
                // failed, so discard them.
                FlowPhase::Open(socket) => {
                    cx.stack.close(cx.now, socket, Linger::Abort);
                    cx.shared.counters.tcp_reset += 1;
                    self.drop_host(cx, key);
                }
                FlowPhase::ProgramConnecting(connecting) => {
                    let program = self.on_unanswered(key, &connecting);
                    if !unanswered.contains(&program) {
                        unanswered.push(program);
                    }
                }
            }
        }
        // Retransmit SYNs only after all unanswered clients are back in their queues.
        for program in unanswered {
            self.repeat_first(cx, program);
        }
    }

    /// Returns the earliest time in ns at which [`TcpFlows::expire`] has work.
    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        self.deadlines.next_ns()
    }

    /// Resets up to `max` flows towards the program and the host. Returns their number.
    pub(crate) fn reset_clients(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        max: usize,
    ) -> usize {
        let open: Vec<_> = self.flows.keys().take(max).collect();
        for key in &open {
            let socket = self.flows.get(*key).and_then(|flow| flow.phase.socket());
            if let Some(socket) = socket {
                cx.stack.close(cx.now, socket, Linger::Abort);
            }
            self.drop_host(cx, *key);
        }
        open.len()
    }

    /// Removes a flow and its deadline. Also removes the program's SYN if it is not answered yet.
    fn remove(&mut self, key: SlabKey) -> Option<Flow> {
        let flow = self.flows.remove(key)?;
        self.deadlines.remove(key, &flow);
        if let Some(pending) = flow.pending() {
            self.pending.remove(pending);
        }
        Some(flow)
    }

    /// Marks a flow as failed, because its connection to the program could not be started.
    fn on_not_connected(&mut self, key: SlabKey) {
        if let Some(flow) = self.flows.get_mut(key) {
            flow.news = Some(FlowUpdate::Failed);
            self.enqueue(key);
        }
    }

    fn enqueue(&mut self, key: SlabKey) {
        if let Some(flow) = self.flows.get_mut(key)
            && !flow.queued
        {
            flow.queued = true;
            self.due.push_back(key);
        }
    }

    /// Starts to connect a host socket for a SYN of the program.
    fn connect_host(&mut self, cx: &mut Context<'_, impl FifoHost>, syn: &Syn) {
        if cx.stack.pending_headers(syn.pending).is_empty() {
            // The inner stack has dropped the SYN while it was queued here.
            return;
        }
        if cx.shared.is_loop(syn.remote, syn.local) {
            self.pending.remove(syn.pending);
            return refuse(cx, syn.pending, Refusal::Reset);
        }
        let now_ns = cx.shared.now_ns;
        let target = match cx.shared.config.is_forwarder(syn.local) {
            true => Some(Target::Nameservers(cx.shared.nameservers.rotation(now_ns).once())),
            false => cx.shared.host_addr(syn.local).map(Target::Host),
        };
        let refusal = match target.map(|target| self.open(cx, syn, target)) {
            None => Refusal::Reset,
            Some(Ok(())) => return,
            Some(Err(error)) => {
                if matches!(error, Errno::MFILE | Errno::NFILE) {
                    self.on_full(cx.shared);
                }
                refusal_for(error)
            }
        };
        self.pending.remove(syn.pending);
        refuse(cx, syn.pending, refusal);
    }

    /// Counts that the flow limit was reached, and reports it to the user.
    fn on_full(&self, shared: &mut Shared) {
        shared.counters.tcp_flows_full += 1;
        let budget = &shared.place.siblings.budget;
        let (open, descriptors) = (budget.len(Whose::Program), budget.descriptors());
        let notice = Notice::ConnectionsWait { open, descriptors };
        shared.tell_once(Topic::ConnectionsWait, notice);
    }

    /// Creates a flow for a SYN, and starts to connect its host socket.
    fn open(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        syn: &Syn,
        target: Target,
    ) -> Result<(), Errno> {
        let (ttl, tos) = ttl_and_tos(cx.stack.pending_headers(syn.pending));
        let class = tos & CLASS_MASK;
        let share = cx.shared.place.siblings.budget.take(Whose::Program).ok_or(Errno::MFILE)?;
        let Some(share) = share.of(cx.shared.config.client(syn.remote.ip())) else {
            cx.shared.on_client_full(syn.remote.ip());
            return Err(Errno::AGAIN);
        };
        let marks = SynMarks { ttl, class };
        let (host, negotiating, nameservers) = match target {
            Target::Host(to) => {
                let Dialed { host, negotiating, .. } = cx.shared.dial(to, marks)?;
                (host, negotiating, None)
            }
            Target::Nameservers(mut tour) => {
                (dial_next(cx.shared, &mut tour, marks)?, None, Some(Box::new(tour)))
            }
        };
        let traced = ttl != PLAIN_TTL && negotiating.is_none();
        let phase = FlowPhase::HostConnecting(syn.pending);
        let flow =
            Flow { class, traced, nameservers, negotiating, ..Flow::new(host, share, phase) };
        let key = self.flows.insert(flow);
        self.pending.attach(syn.pending, key);
        self.watch(cx.shared, key).inspect_err(|_| {
            self.remove(key);
        })?;
        self.await_nameserver(cx.shared, key);
        self.doubt_source(cx.shared, key);
        Ok(())
    }

    /// Schedules a check of the source address for all connecting flows, because host addresses
    /// were added or removed.
    pub(crate) fn on_addresses_changed(&mut self, shared: &Shared) {
        for key in self.pending.flows() {
            self.doubt_source(shared, key);
        }
    }

    /// Schedules a check of the source address for a connecting flow if host addresses have changed
    /// recently.
    fn doubt_source(&mut self, shared: &Shared, key: SlabKey) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let now_ns = shared.now_ns;
        let is_free = flow.nameservers.is_none() && flow.expires_ns.is_none();
        if is_free && shared.changes.are_recent(now_ns) {
            self.deadlines.set(key, flow, Some(now_ns + SOURCE_LOOK_NS));
        }
    }

    /// Connects a flow without answers again if a new host socket would have another source
    /// address.
    fn leave_source(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        key: SlabKey,
        pending: PendingId,
    ) {
        // Skip flows that are queued to be served: an answer may have arrived, which is handled
        // then.
        let Some(flow) = self.flows.get_mut(key).filter(|flow| !flow.queued) else { return };
        let headers = cx.stack.pending_headers(pending);
        let (ttl, _) = ttl_and_tos(headers);
        let peer = ends_of_segment(headers).map(|(_, peer, _)| peer);
        let Some(to) = peer.and_then(|peer| cx.shared.host_addr(peer)) else { return };
        if cx.shared.leaves_elsewhere(&flow.host, to)
            && let Ok(dialed) = cx.shared.dial(to, SynMarks { ttl, class: flow.class })
        {
            let host = dialed.host;
            // A new socket would have the same source address, so connecting again would not help.
            if source_of(&host) == source_of(&flow.host)
                || cx.shared.events.watch(&host, Token::Tcp(key), Interest::Both).is_err()
            {
                return;
            }
            flow.replace_host(host);
            flow.negotiating = dialed.negotiating;
            cx.shared.counters.source_moved += 1;
        }
        self.doubt_source(cx.shared, key);
    }

    /// Connects a DNS flow to its next nameserver. Returns false if there is none.
    fn try_next_nameserver(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        key: SlabKey,
        pending: PendingId,
    ) -> bool {
        let Some(flow) = self.flows.get_mut(key) else { return false };
        let Some(tour) = &mut flow.nameservers else { return false };
        let (ttl, _) = ttl_and_tos(cx.stack.pending_headers(pending));
        let marks = SynMarks { ttl, class: flow.class };
        let Ok(host) = dial_next(cx.shared, tour, marks) else { return false };
        if cx.shared.events.watch(&host, Token::Tcp(key), Interest::Both).is_err() {
            return false;
        }
        flow.replace_host(host);
        cx.shared.counters.dns_next += 1;
        self.await_nameserver(cx.shared, key);
        true
    }

    /// Sets a deadline for the current nameserver if another one can be tried. The last nameserver
    /// has only the connect timeout of the host's kernel.
    fn await_nameserver(&mut self, shared: &Shared, key: SlabKey) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let goes_on = flow.nameservers.as_ref().is_some_and(|tour| tour.goes_on());
        let due = goes_on.then(|| shared.now_ns + shared.nameservers.timeout_ns());
        self.deadlines.set(key, flow, due);
    }

    fn watch(&self, shared: &Shared, key: SlabKey) -> Result<(), Errno> {
        let Some(flow) = self.flows.get(key) else { return Ok(()) };
        shared.events.watch(&flow.host, Token::Tcp(key), Interest::Both)
    }

    /// Handles the pending work of a flow, depending on its phase.
    fn step(&mut self, cx: &mut Context<'_, impl FifoHost>, key: SlabKey) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        match flow.phase {
            FlowPhase::HostConnecting(pending) => {
                if flow.writable || flow.readable {
                    self.on_host_connected(cx, key, pending);
                }
            }
            FlowPhase::Negotiating(pending) => self.negotiate(cx, key, pending),
            FlowPhase::ProgramConnecting(connecting) => match flow.news.take() {
                Some(FlowUpdate::Connected) => {
                    let Some(socket) = connecting.socket else { return };
                    flow.phase = FlowPhase::Open(socket);
                    self.deadlines.set(key, flow, None);
                    if let Some(flight) = flow.flight.take() {
                        self.landings.push(flight);
                    }
                    self.on_answered(cx, &connecting);
                    self.splice(cx, key, socket);
                }
                _ if flow.has_failed() => self.drop_host(cx, key),
                Some(FlowUpdate::TimedOut) => self.on_given_up(cx, key, connecting),
                Some(FlowUpdate::Failed) => self.on_program_refused(cx, key, connecting),
                None => {}
            },
            FlowPhase::Open(socket) => match flow.news.take() {
                None | Some(FlowUpdate::Connected) => self.splice(cx, key, socket),
                // The program's FIN has arrived before, so its stream is complete and must still be
                // sent to the host. Its socket then timed out in FIN-WAIT-2, or has reset the
                // connection because of bytes from the host.
                Some(FlowUpdate::Failed | FlowUpdate::TimedOut)
                    if flow.program_side == ProgramSide::Ended =>
                {
                    flow.program_side = ProgramSide::Gone;
                    self.splice(cx, key, socket);
                }
                // All of the program's bytes and its FIN were passed to the host socket. Close the
                // socket without a reset, which would discard bytes that the kernel has not sent
                // yet.
                Some(FlowUpdate::Failed | FlowUpdate::TimedOut)
                    if flow.program_side == ProgramSide::Passed =>
                {
                    cx.stack.close(cx.now, socket, Linger::Abort);
                    cx.touched = true;
                    cx.shared.counters.tcp_finished += 1;
                    self.remove(key);
                }
                Some(FlowUpdate::Failed | FlowUpdate::TimedOut) => {
                    flow.move_last_out(cx, socket);
                    cx.stack.close(cx.now, socket, Linger::Abort);
                    cx.shared.counters.tcp_reset += 1;
                    self.drop_host(cx, key);
                }
            },
        }
    }

    /// Answers the program's SYN after connecting the host socket has succeeded or failed.
    fn on_host_connected(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        key: SlabKey,
        pending: PendingId,
    ) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        if let Err(error) = sockopt::socket_error(&flow.host).and_then(|result| result) {
            if self.try_next_nameserver(cx, key, pending) {
                return;
            }
            let Some(flow) = self.remove(key) else { return };
            let told = flow.traced && report_why(cx, &flow.host, pending, flow.nameserver());
            return refuse(cx, pending, if told { Refusal::Ignore } else { refusal_for(error) });
        }
        // Ignore a pending ICMP error: the handshake has succeeded, and SO_ERROR was checked above.
        flow.host_side = HostSide::Open;
        self.deadlines.set(key, flow, None);
        if flow.traced {
            // Disable IP_RECVERR: it makes the kernel fail established connections on ICMP errors
            // that RFC 1122 §4.2.3.9 requires them to survive.
            let v6 = sockopt::socket_domain(&flow.host) == Ok(AddressFamily::INET6);
            // Ignore errors: the connection would only end earlier than necessary.
            let _ = sys::set_ip(flow.host.as_fd(), v6, IpOption::ReceiveErrors, 0);
        }
        if flow.negotiating.is_some() {
            flow.phase = FlowPhase::Negotiating(pending);
            self.deadlines.set(key, flow, Some(cx.shared.now_ns + NEGOTIATION_NS));
            return self.negotiate(cx, key, pending);
        }
        self.answer_syn(cx, key, pending);
    }

    /// Continues the negotiation with the upstream server for a SYN. Answers the SYN when the
    /// negotiation has ended.
    fn negotiate(&mut self, cx: &mut Context<'_, impl FifoHost>, key: SlabKey, pending: PendingId) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let Some(negotiating) = &mut flow.negotiating else { return };
        let refusal = match negotiating.advance(&flow.host) {
            Ok(false) => return,
            Ok(true) => {
                flow.negotiating = None;
                // Read from the socket even without an epoll event: bytes of the destination may
                // already be in it, for which no further event is reported.
                (flow.readable, flow.drain) = (true, true);
                flow.urgent_reads = UrgentReads::default();
                self.deadlines.set(key, flow, None);
                return self.answer_syn(cx, key, pending);
            }
            Err(NegotiationFailure::Refused(refusal)) => refusal,
            Err(NegotiationFailure::Host(error)) => refusal_for(error),
        };
        self.remove(key);
        refuse(cx, pending, refusal);
    }

    /// Answers a SYN with a SYN-ACK, because the host connection is established.
    fn answer_syn(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        key: SlabKey,
        pending: PendingId,
    ) {
        let (recv, send) = cx.shared.buffers();
        match cx.stack.accept_pending(cx.now, pending, key.short(), recv, send, cx.pool) {
            Some(socket) => {
                if let Some(flow) = self.flows.get_mut(key) {
                    flow.phase = FlowPhase::Open(socket);
                }
                self.pending.remove(pending);
                cx.shared.counters.tcp_connected += 1;
                self.splice(cx, key, socket);
            }
            // The inner stack has dropped the SYN meanwhile, or its connection table is full.
            None => self.drop_host(cx, key),
        }
    }

    /// Moves bytes of a flow in both directions, and closes the flow if it has finished.
    fn splice(&mut self, cx: &mut Context<'_, impl FifoHost>, key: SlabKey, socket: SocketId) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let outcome = flow.splice(cx, socket);
        // Check for a failure now. The read or write above may have returned and cleared the
        // socket's error, so epoll does not report it again.
        self.deadlines.note_failure(cx.shared.now_ns, key, flow);
        match outcome {
            Outcome::Goes => {}
            Outcome::Again => self.enqueue(key),
            Outcome::Finished => {
                cx.stack.close(cx.now, socket, Linger::Default);
                cx.touched = true;
                cx.shared.counters.tcp_finished += 1;
                self.remove(key);
            }
            Outcome::HostFailed => {
                cx.stack.close(cx.now, socket, Linger::Abort);
                cx.touched = true;
                cx.shared.counters.tcp_reset += 1;
                self.remove(key);
            }
        }
    }

    /// Removes a flow, and resets its host connection. Also resets a connection to the program that
    /// is not established yet.
    fn drop_host(&mut self, cx: &mut Context<'_, impl FifoHost>, key: SlabKey) {
        cx.touched = true;
        let Some(flow) = self.remove(key) else { return };
        reset(&flow.host);
        if let FlowPhase::ProgramConnecting(connecting) = flow.phase {
            if let Some(socket) = connecting.socket {
                cx.stack.close(cx.now, socket, Linger::Abort);
            }
            self.on_gone(cx.shared, &connecting);
        }
    }
}
