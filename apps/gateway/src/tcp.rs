//! TCP flows: a connection of the inner stack and one of the host, spliced.
//!
//! ```text
//!  program ── SYN ──► syn() ─► connect() ──► host
//!          ◄─ SYN-ACK ─ accept_pending ◄── connected
//!          ◄─ RST, ICMP ─ refuse_pending ◄── refused
//!
//!  program ══► receive FIFO ══ sendmsg ══► host socket       a FIN, a reset and a full buffer pass
//!  program ◄══ send FIFO ◄═══ recvmsg ════ host socket       on, each way by itself
//! ```
//!
//! What was sent before a reset arrives before it: bytes of the other side that wait here go first.
//!
//! The program's bytes are acknowledged when they are in the receive FIFO, before the host has them. So
//! that a stream never seems whole which is not, the close of a host socket is a reset (SO_LINGER with
//! zero seconds) until the program's FIN was handed to the host behind all its bytes. That holds however
//! the socket comes to be closed, also by the kernel when this process is killed.
//!
//! This is the table of flows and how they begin and end; `flow` is what goes on in one.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, getsockname, sockopt};
use towpath_stack::{ConnectError, Host, Linger, PendingId, Refusal, SocketEvent, SocketId, Stack};
use towpath_tcp::Instant;
use towpath_wire::tcp::SeqNum;
use towpath_wire::{IpProtocol, ipv4, ipv6};

use crate::config::Way;
use crate::events::{Interest, Readiness, Token};
use crate::flow::{Flow, HostSide, News, Outcome, Phase, ProgramSide, open_towards, reset};
use crate::gateway::{Context, Shared};
use crate::icmp::About;
use crate::limits::{FAILED_WAIT_NS, PLAIN_TTL, TCP_FLOWS_LEFT_TO_PROGRAM};
use crate::notice::Notice;
use crate::slab::{Key, Slab};
use crate::sys::{self, IpOption};

/// The bits of a type of service that name a class; the others are ECN's, and TCP's own on either side.
const CLASS_MASK: u8 = 0xfc;

/// All TCP flows.
#[derive(Debug)]
pub(crate) struct TcpFlows {
    flows: Slab<Flow>,
    /// Flows that clients of published ports began.
    clients: usize,
    /// Flows whose host is connecting, by what the program's SYN is called.
    connecting: HashMap<PendingId, Key>,
    /// Flows with something to do, each once.
    due: VecDeque<Key>,
    syns: VecDeque<Syn>,
    max: usize,
    /// The program has sent packets of some class: later ones are looked at.
    classes: bool,
    /// Open flows whose host failed, by when they have waited for long enough. A flow that is removed is
    /// taken out, so that there are never more than flows.
    failing: BTreeSet<(u64, Key)>,
    /// Published ports of which was said that nobody listens. As many as there are, at most.
    hinted: HashSet<u16>,
}

/// A connection that the program asks for.
#[derive(Debug)]
struct Syn {
    pending: PendingId,
    local: SocketAddr,
}

impl TcpFlows {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            flows: Slab::new(),
            clients: 0,
            connecting: HashMap::new(),
            due: VecDeque::new(),
            syns: VecDeque::new(),
            max,
            classes: false,
            failing: BTreeSet::new(),
            hinted: HashSet::new(),
        }
    }

    /// Lowers the number of flows at once.
    pub(crate) fn limit(&mut self, max: usize) {
        self.max = self.max.min(max);
    }

    /// Flows now.
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Bytes and ends of the program's streams that were acknowledged to it and that the host lacks.
    pub(crate) fn undelivered<H: Host>(&self, now: Instant, stack: &Stack<H>) -> u64 {
        let of_flow = |flow: &Flow| match flow.phase {
            // What the host does not take any more is not on its way.
            Phase::Open(socket)
                if flow.program_side != ProgramSide::Passed && !flow.has_failed() =>
            {
                let unread = stack.info(now, socket).map_or(0, |info| info.recv_queue);
                u64::from(unread) + u64::from(flow.program_side != ProgramSide::Open)
            }
            _ => 0,
        };
        self.flows.iter().map(of_flow).sum()
    }

    fn is_full(&self) -> bool {
        self.flows.len() >= self.max
    }

    /// Whether no flow is left for a client of a published port.
    pub(crate) fn is_full_of_clients(&self) -> bool {
        self.is_full() || self.clients >= self.max - self.max / TCP_FLOWS_LEFT_TO_PROGRAM
    }

    /// Whether [`TcpFlows::serve`] has something to do.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty() || !self.syns.is_empty()
    }

    /// The program asks for a connection to `local`.
    pub(crate) fn on_syn(&mut self, pending: PendingId, local: SocketAddr) {
        self.syns.push_back(Syn { pending, local });
    }

    /// The inner stack gives up a SYN of the program that was not decided about.
    pub(crate) fn on_syn_forgotten(&mut self, shared: &mut Shared, pending: PendingId) {
        shared.counters.tcp_forgotten += 1;
        // One that is not in the table yet is still among `syns`, and finds no SYN when its turn comes.
        if let Some(key) = self.connecting.get(&pending).copied() {
            self.remove(key);
        }
    }

    /// The inner stack says something about a flow's side. A flow that goes closes its socket, and the
    /// inner stack says nothing of a closed socket but [`SocketEvent::Closed`]: so whatever else it says is
    /// about the living.
    pub(crate) fn on_event(&mut self, user: u32, event: SocketEvent) {
        let Some(key) = self.flows.living(user) else { return };
        let Some(flow) = self.flows.get_mut(key) else { return };
        match event {
            SocketEvent::Connected => flow.news = Some(News::Connected),
            SocketEvent::PeerClosed => flow.program_side = ProgramSide::Ended,
            SocketEvent::Writable => flow.progress = true,
            SocketEvent::Error(_) => flow.news = Some(News::Failed),
            // It answers a close, and may be about the socket of an attempt before this one.
            SocketEvent::Closed => return,
            _ => {}
        }
        self.enqueue(key);
    }

    /// The program sent a packet. A segment may be of another class than its flow's were before.
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
        // A connection that its flow left behind has the number of the flow that came after.
        if let Some(flow) = key.and_then(|key| self.flows.get_mut(key))
            && flow.phase.socket() == Some(socket)
        {
            flow.set_class(peer.is_ipv6(), class);
        }
    }

    /// The host says something about its side.
    pub(crate) fn on_ready(&mut self, now_ns: u64, key: Key, ready: Readiness) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let ended = flow.host_side == HostSide::Ended;
        flow.readable |= !ended && (ready.readable || ready.ending || ready.failed);
        flow.writable |= ready.writable || ready.failed;
        flow.ending |= ready.ending || ready.failed;
        if ready.failed {
            flow.on_host_failed();
        }
        note_failure(&mut self.failing, now_ns, key, flow);
        self.enqueue(key);
    }

    /// Does what is due now; what becomes due meanwhile waits.
    pub(crate) fn serve(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.syns.len() {
            let Some(syn) = self.syns.pop_front() else { break };
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

    /// Resets the flows of programs that do not take what came before their host failed.
    pub(crate) fn expire(&mut self, cx: &mut Context<'_>) {
        while let Some(&(_, key)) = self.failing.first().filter(|(due, _)| *due <= cx.shared.now_ns)
        {
            self.failing.pop_first();
            let Some(flow) = self.flows.get_mut(key) else { continue };
            flow.expires_ns = None;
            let Phase::Open(socket) = flow.phase else { continue };
            if std::mem::take(&mut flow.progress) {
                note_failure(&mut self.failing, cx.shared.now_ns, key, flow);
                continue;
            }
            cx.stack.close(cx.now, socket, Linger::Abort);
            cx.shared.counters.tcp_reset += 1;
            self.drop_host(cx, key);
        }
    }

    /// When [`TcpFlows::expire`] may have something to do.
    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        self.failing.first().map(|(due, _)| *due)
    }

    /// A client connected to a forwarded port: connects on to the program.
    pub(crate) fn on_accept(
        &mut self,
        cx: &mut Context<'_>,
        host: OwnedFd,
        ways: [Option<Way>; 2],
    ) {
        let [Some(first), second] = ways else { return reset(&host) };
        // A flow begins with its first connection, whose id is not known before there is a key.
        let to = first.remote;
        let phase = Phase::ProgramConnecting { socket: SocketId(u64::MAX), second, to };
        let key = self.flows.insert(Flow::new(host, phase));
        self.clients += 1;
        if self.watch(cx.shared, key).is_err() {
            self.drop_host(cx, key);
            return;
        }
        self.connect_program(cx, key, first);
    }

    /// Takes a flow out, and all that would find it.
    fn remove(&mut self, key: Key) -> Option<Flow> {
        let flow = self.flows.remove(key)?;
        if let Some(due) = flow.expires_ns {
            self.failing.remove(&(due, key));
        }
        if let Phase::HostConnecting(pending) = flow.phase {
            self.connecting.remove(&pending);
        }
        self.clients -= usize::from(flow.by_client);
        Some(flow)
    }

    fn enqueue(&mut self, key: Key) {
        if let Some(flow) = self.flows.get_mut(key)
            && !flow.queued
        {
            flow.queued = true;
            self.due.push_back(key);
        }
    }

    /// Starts the host's connection that a SYN asks for.
    fn connect_host(&mut self, cx: &mut Context<'_>, syn: &Syn) {
        if cx.stack.pending_headers(syn.pending).is_empty() {
            // It was forgotten before its turn came.
            return;
        }
        let refusal = match cx.shared.host_addr(syn.local) {
            None => Refusal::Reset,
            Some(_) if self.is_full() => {
                cx.shared.counters.tcp_flows_full += 1;
                Refusal::Ignore
            }
            Some(to) => match self.open(cx, syn, to) {
                Ok(()) => return,
                Err(error) => {
                    if matches!(error, Errno::MFILE | Errno::NFILE) {
                        cx.shared.counters.tcp_flows_full += 1;
                    }
                    refusal_for(error)
                }
            },
        };
        refuse(cx, syn.pending, refusal);
    }

    /// A flow whose host connection is being made.
    fn open(&mut self, cx: &mut Context<'_>, syn: &Syn, to: SocketAddr) -> Result<(), Errno> {
        let (ttl, tos) = ttl_and_tos(cx.stack.pending_headers(syn.pending));
        let class = tos & CLASS_MASK;
        let host = open_towards(to, ttl, class)?;
        let traced = ttl != PLAIN_TTL;
        let flow = Flow { class, traced, ..Flow::new(host, Phase::HostConnecting(syn.pending)) };
        let key = self.flows.insert(flow);
        self.connecting.insert(syn.pending, key);
        self.watch(cx.shared, key).inspect_err(|_| {
            self.remove(key);
        })
    }

    fn watch(&self, shared: &Shared, key: Key) -> Result<(), Errno> {
        let Some(flow) = self.flows.get(key) else { return Ok(()) };
        shared.events.watch(&flow.host, Token::Tcp(key), Interest::Both)
    }

    /// One flow's turn.
    fn step(&mut self, cx: &mut Context<'_>, key: Key) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        match flow.phase {
            Phase::HostConnecting(pending) => {
                if flow.writable || flow.readable {
                    self.on_host_connected(cx, key, pending);
                }
            }
            Phase::ProgramConnecting { socket, second, .. } => match flow.news.take() {
                Some(News::Connected) => {
                    flow.phase = Phase::Open(socket);
                    self.splice(cx, key, socket);
                }
                Some(News::Failed) => {
                    cx.stack.close(cx.now, socket, Linger::Abort);
                    self.on_program_refused(cx, key, second);
                }
                None if flow.has_failed() => {
                    cx.stack.close(cx.now, socket, Linger::Abort);
                    self.drop_host(cx, key);
                }
                None => {}
            },
            Phase::Open(socket) => match flow.news.take() {
                None | Some(News::Connected) => self.splice(cx, key, socket),
                // Its socket in FIN-WAIT-2 timed out, or met bytes of the host: the stream is whole.
                Some(News::Failed) if flow.program_side == ProgramSide::Ended => {
                    flow.program_side = ProgramSide::Gone;
                    self.splice(cx, key, socket);
                }
                // The same, and all of it was passed on: the host's kernel delivers the rest of it. A reset would
                // take that away.
                Some(News::Failed) if flow.program_side == ProgramSide::Passed => {
                    cx.stack.close(cx.now, socket, Linger::Abort);
                    cx.touched = true;
                    cx.shared.counters.tcp_finished += 1;
                    self.remove(key);
                }
                Some(News::Failed) => {
                    cx.stack.close(cx.now, socket, Linger::Abort);
                    cx.shared.counters.tcp_reset += 1;
                    self.drop_host(cx, key);
                }
            },
        }
    }

    /// The host's connection is made or failed: answers the program's SYN.
    fn on_host_connected(&mut self, cx: &mut Context<'_>, key: Key, pending: PendingId) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        if let Err(error) = sockopt::socket_error(&flow.host).and_then(|result| result) {
            let told = flow.traced && report_why(cx, &flow.host, pending);
            self.remove(key);
            return refuse(cx, pending, if told { Refusal::Ignore } else { refusal_for(error) });
        }
        // What was reported was not the end of it, and has been taken.
        flow.host_side = HostSide::Open;
        if flow.traced {
            // They would end an established connection, which is to survive them.
            let v6 = sockopt::socket_domain(&flow.host) == Ok(AddressFamily::INET6);
            let _ = sys::set_ip(flow.host.as_fd(), v6, IpOption::ReceiveErrors, 0);
        }
        let (recv, send) = cx.shared.buffers();
        match cx.stack.accept_pending(cx.now, pending, key.short(), recv, send, cx.pool) {
            Some(socket) => {
                flow.phase = Phase::Open(socket);
                self.connecting.remove(&pending);
                cx.shared.counters.tcp_connected += 1;
                self.splice(cx, key, socket);
            }
            // The program gave up meanwhile, or the stack is full.
            None => self.drop_host(cx, key),
        }
    }

    /// The program does not listen where it was tried: perhaps on its other address.
    fn on_program_refused(&mut self, cx: &mut Context<'_>, key: Key, second: Option<Way>) {
        match second {
            Some(way) => self.connect_program(cx, key, way),
            None => {
                cx.shared.counters.tcp_accepted_refused += 1;
                self.hint(cx.shared, key);
                self.drop_host(cx, key);
            }
        }
    }

    /// Says why a client is turned away, once for each published port.
    fn hint(&mut self, shared: &Shared, key: Key) {
        let Some(Flow { host, phase: Phase::ProgramConnecting { to, .. }, .. }) =
            self.flows.get(key)
        else {
            return;
        };
        let published = getsockname(host).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
        if let Some(host) = published
            && self.hinted.insert(host.port())
        {
            (shared.tell)(Notice::NobodyListens { host, program: *to });
        }
    }

    /// Connects a forwarded flow to the program by `way`, and failing that by the second one.
    fn connect_program(&mut self, cx: &mut Context<'_>, key: Key, way: Way) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let Phase::ProgramConnecting { socket, second, to } = &mut flow.phase else { return };
        let (second, to) = (second.take_if(|second| *second != way), *to);
        match connect_from(cx, key, way) {
            Ok(id) => {
                *socket = id;
                flow.phase = Phase::ProgramConnecting { socket: id, second, to };
            }
            Err(_) => self.on_program_refused(cx, key, second),
        }
    }

    /// Moves what can be moved, both ways.
    fn splice(&mut self, cx: &mut Context<'_>, key: Key, socket: SocketId) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let (again, outcome) = flow.splice(cx, socket);
        // An error that a read or a write has met is not reported any more.
        note_failure(&mut self.failing, cx.shared.now_ns, key, flow);
        match outcome {
            Outcome::Goes if again => self.enqueue(key),
            Outcome::Goes => {}
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

    /// Ends the host's side by a reset.
    fn drop_host(&mut self, cx: &mut Context<'_>, key: Key) {
        cx.touched = true;
        if let Some(flow) = self.remove(key) {
            reset(&flow.host);
        }
    }
}

/// From when the host of an open flow failed, the program's time to take what is left runs. In other
/// phases the flow ends at once.
fn note_failure(failing: &mut BTreeSet<(u64, Key)>, now_ns: u64, key: Key, flow: &mut Flow) {
    if flow.has_failed() && flow.expires_ns.is_none() && matches!(flow.phase, Phase::Open(_)) {
        let due = now_ns + FAILED_WAIT_NS;
        flow.expires_ns = Some(due);
        failing.insert((due, key));
    }
}

/// Connects to the program as `way` says; from any port when the client's own is taken.
fn connect_from(cx: &mut Context<'_>, key: Key, way: Way) -> Result<SocketId, ConnectError> {
    cx.touched = true;
    let (recv, send) = cx.shared.buffers();
    match cx.stack.connect_from(cx.now, way.local, way.remote, key.short(), recv, send) {
        Err(ConnectError::AddrInUse | ConnectError::NoPort) if way.local.port() != 0 => {
            let local = SocketAddr::new(way.local.ip(), 0);
            let (recv, send) = cx.shared.buffers();
            cx.stack.connect_from(cx.now, local, way.remote, key.short(), recv, send)
        }
        result => result,
    }
}

/// What the IP header of a packet says; what says nothing when there is none. Looked at for every
/// packet of the program, which is why it is not parsed.
fn ttl_and_tos(packet: &[u8]) -> (u8, u8) {
    match packet {
        [first, tos, _, _, _, _, _, _, ttl, ..] if first >> 4 == 4 => (*ttl, *tos),
        [first, second, _, _, _, _, _, hop_limit, ..] if first >> 4 == 6 => {
            (*hop_limit, first << 4 | second >> 4)
        }
        _ => (PLAIN_TTL, 0),
    }
}

/// Source, destination and sequence number of a segment; None for other packets, and for those with
/// extension headers, which a program's stack does not put before TCP.
fn ends_of_segment(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, SeqNum)> {
    let (src, dst, protocol, at): (IpAddr, IpAddr, _, _) = match packet.first()? >> 4 {
        4 => {
            let (header, at) = ipv4::Header::parse_quoted(packet).ok()?;
            (header.src.into(), header.dst.into(), header.protocol, at)
        }
        _ => {
            let (header, at) = ipv6::Header::parse_quoted(packet).ok()?;
            (header.src.into(), header.dst.into(), header.next_header, at)
        }
    };
    let [a, b, c, d, seq @ ..] = *packet.get(at..)?.first_chunk::<8>()?;
    let src = SocketAddr::new(src, u16::from_be_bytes([a, b]));
    let dst = SocketAddr::new(dst, u16::from_be_bytes([c, d]));
    (protocol == IpProtocol::TCP).then_some((src, dst, SeqNum(u32::from_be_bytes(seq))))
}

fn refuse(cx: &mut Context<'_>, pending: PendingId, refusal: Refusal) {
    cx.touched = true;
    if refusal != Refusal::Ignore {
        cx.shared.counters.tcp_refused += 1;
    }
    cx.stack.refuse_pending(cx.now, pending, refusal, cx.pool);
}

/// Tells the program who reported what about the host's SYN. False: nobody did.
fn report_why(cx: &mut Context<'_>, host: &OwnedFd, pending: PendingId) -> bool {
    let headers = cx.stack.pending_headers(pending);
    let Some((program, peer, seq)) = ends_of_segment(headers) else { return false };
    let Some(ip) = cx.shared.host_addr(peer).map(|to| to.ip()) else { return false };
    let Shared { errors, config, counters, .. } = &mut *cx.shared;
    let before = counters.icmp_errors;
    errors.hear(host.as_fd(), config, counters, |report, _| {
        let about = About::Segment { program, peer, seq };
        report.icmp.is_some().then_some((about, ip))
    });
    counters.tcp_refused += u64::from(counters.icmp_errors > before);
    counters.icmp_errors > before
}

/// What the program is told when the host cannot connect. Silence where the program's own timeout
/// tells the truth: nobody answered, or there was no descriptor and a repeated SYN may fare better.
fn refusal_for(error: Errno) -> Refusal {
    match error {
        // EADDRNOTAVAIL: a route, but no address of its family to come from; or no port, and a program on
        // the kernel hears of that at once too.
        Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => {
            Refusal::NetUnreachable
        }
        Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::INVAL => Refusal::HostUnreachable,
        Errno::ACCESS | Errno::PERM => Refusal::AdminProhibited,
        Errno::TIMEDOUT
        | Errno::MFILE
        | Errno::NFILE
        | Errno::NOBUFS
        | Errno::NOMEM
        | Errno::NOSPC
        | Errno::AGAIN => Refusal::Ignore,
        _ => Refusal::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_cannot_do_is_said_at_once() {
        let refusal = refusal_for(Errno::ADDRNOTAVAIL);
        assert_eq!(refusal, Refusal::NetUnreachable);
        assert_eq!(refusal_for(Errno::CONNREFUSED), Refusal::Reset);
        assert_eq!(refusal_for(Errno::TIMEDOUT), Refusal::Ignore);
    }
}
