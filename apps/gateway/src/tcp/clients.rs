//! Clients of published ports, whose connections are made to the program ([`lines`](crate::lines)
//! is where they wait).

use std::net::SocketAddr;

use rustix::net::getsockname;
use towpath_stack::{ConnectError, Linger, SocketId};

use super::TcpFlows;
use crate::config::{ForwardProtocol, Presented};
use crate::context::{Context, FifoHost, Shared};
use crate::dialer::reset;
use crate::flow::{Connecting, Flow, FlowPhase};
use crate::limits::{PORTS_TRIED_MAX, SYN_WAIT_NS};
use crate::notice::Notice;
use crate::siblings::{Accepted, Topic};
use crate::slab::SlabKey;

/// Clients that are called for each one that gets in: more than one, because all may have a place.
const CALLED: usize = 2;

impl TcpFlows {
    /// A client connected to a forwarded port: connects on to the program.
    pub(crate) fn on_accept(&mut self, cx: &mut Context<'_, impl FifoHost>, accepted: Accepted) {
        let Accepted { host, presented, share, flight, .. } = accepted;
        let [Some(shown), second] = presented else { return reset(&host) };
        let arrival = self.lines.arrival();
        let to = shown.program;
        let phase =
            FlowPhase::ProgramConnecting(Connecting { socket: None, shown, second, to, arrival });
        // The inner stack's connection carries the flow's key, so that the flow exists before it.
        let key = self.flows.insert(Flow { flight, ..Flow::new(host, share, phase) });
        if self.watch(cx.shared, key).is_err() {
            self.drop_host(cx, key);
            return;
        }
        self.approach(cx, key);
    }

    /// Connects to the program, behind the clients that wait for it.
    fn approach(&mut self, cx: &mut Context<'_, impl FifoHost>, key: SlabKey) {
        let Some(Connecting { shown, arrival, .. }) = self.connecting_to_program(key) else {
            return;
        };
        match self.lines.is_empty(shown.program) {
            true => self.send_syn(cx, key, SYN_WAIT_NS),
            false => self.lines.enter(shown.program, arrival, key),
        }
    }

    /// Sends a client's SYN, for the first time or again, and gives the program's stack time for an
    /// answer.
    fn send_syn(&mut self, cx: &mut Context<'_, impl FifoHost>, key: SlabKey, wait_ns: u64) {
        let Some(connecting) = self.connecting_to_program(key) else { return };
        let made = match connecting.socket {
            Some(socket) => {
                cx.stack.repeat_syn(socket);
                cx.touched = true;
                Ok(socket)
            }
            None => connect_from(cx, key, connecting.shown),
        };
        let Some(flow) = self.flows.get_mut(key) else { return };
        match made {
            Ok(socket) => {
                flow.phase =
                    FlowPhase::ProgramConnecting(Connecting { socket: Some(socket), ..connecting });
                let due = cx.shared.now_ns + wait_ns;
                self.deadlines.set(key, flow, Some(due));
            }
            // Not at once: the clients that are called for it may fail as well, and so on through
            // the whole line.
            Err(_) => self.on_not_connected(key),
        }
    }

    /// The program's stack has not answered a client's SYN, which it therefore has dropped: the
    /// link loses nothing.
    pub(super) fn on_unanswered(&mut self, key: SlabKey, connecting: &Connecting) -> SocketAddr {
        let program = connecting.shown.program;
        self.lines.enter(program, connecting.arrival, key);
        program
    }

    /// The first client in line repeats its SYN, unless it waits for an answer to one.
    pub(super) fn repeat_first(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        program: SocketAddr,
    ) {
        if let Some(first) = self.lines.first(program)
            && self.flows.get(first).is_some_and(|flow| flow.expires_ns.is_none())
        {
            let wait_ns = self.lines.wait_ns(program);
            self.send_syn(cx, first, wait_ns);
        }
    }

    /// The program's stack has answered a client's SYN: others may get an answer, too.
    pub(super) fn on_answered(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        connecting: &Connecting,
    ) {
        let program = connecting.shown.program;
        self.lines.on_place(program);
        self.lines.leave(program, connecting.arrival);
        for _ in 0..CALLED {
            let Some(next) = self.lines.call(program) else { break };
            self.send_syn(cx, next, SYN_WAIT_NS);
        }
        self.attend_first(cx.shared, program);
    }

    /// A client whose SYN was not answered for so long that the inner stack gave its connection up.
    /// The client waits on, as in an accept queue of the kernel.
    pub(super) fn on_given_up(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        key: SlabKey,
        connecting: Connecting,
    ) {
        if let Some(flow) = self.flows.get_mut(key) {
            flow.phase = FlowPhase::ProgramConnecting(Connecting { socket: None, ..connecting });
            self.deadlines.set(key, flow, None);
        }
        if let Some(socket) = connecting.socket {
            cx.stack.close(cx.now, socket, Linger::Abort);
        }
        let program = connecting.shown.program;
        self.lines.enter(program, connecting.arrival, key);
        self.attend_first(cx.shared, program);
    }

    /// The client has gone, or goes another way.
    pub(super) fn on_gone(&mut self, shared: &Shared, connecting: &Connecting) {
        let program = connecting.shown.program;
        self.lines.leave(program, connecting.arrival);
        self.attend_first(shared, program);
    }

    /// Gives the first client in line a time at which it sends its SYN. Called clients come before
    /// it, so the time is later than the news that they found no place.
    fn attend_first(&mut self, shared: &Shared, program: SocketAddr) {
        if let Some(first) = self.lines.first(program)
            && let Some(flow) = self.flows.get_mut(first)
            && flow.expires_ns.is_none()
        {
            self.deadlines.set(first, flow, Some(shared.now_ns + 2 * SYN_WAIT_NS));
        }
    }

    fn connecting_to_program(&self, key: SlabKey) -> Option<Connecting> {
        match self.flows.get(key)?.phase {
            FlowPhase::ProgramConnecting(connecting) => Some(connecting),
            _ => None,
        }
    }

    /// The program does not listen where it was tried: perhaps on its other address.
    pub(super) fn on_program_refused(
        &mut self,
        cx: &mut Context<'_, impl FifoHost>,
        key: SlabKey,
        connecting: Connecting,
    ) {
        let Connecting { socket, shown, second, .. } = connecting;
        if let Some(socket) = socket {
            cx.stack.close(cx.now, socket, Linger::Abort);
        }
        self.on_answered(cx, &connecting);
        let Some(other) = second.filter(|second| *second != shown) else {
            cx.shared.counters.tcp_accepted_refused += 1;
            self.hint(cx.shared, key, connecting.to);
            return self.drop_host(cx, key);
        };
        if let Some(flow) = self.flows.get_mut(key) {
            let connecting = Connecting { socket: None, shown: other, second: None, ..connecting };
            flow.phase = FlowPhase::ProgramConnecting(connecting);
            self.deadlines.set(key, flow, None);
        }
        self.approach(cx, key);
    }

    /// Says why a client is turned away, once for each published port.
    fn hint(&mut self, shared: &Shared, key: SlabKey, program: SocketAddr) {
        let Some(Flow { host, .. }) = self.flows.get(key) else { return };
        let published = getsockname(host).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
        if let Some(host) = published
            && self.hinted.insert(host.port())
        {
            let protocol = ForwardProtocol::Tcp;
            let notice = Notice::NobodyListens { protocol, host, program };
            shared.tell_once(Topic::Tcp(host.port()), notice);
        }
    }
}

/// Connects to the program as the client that it is shown; from any port when the client's own is
/// taken.
fn connect_from(
    cx: &mut Context<'_, impl FifoHost>,
    key: SlabKey,
    shown: Presented,
) -> Result<SocketId, ConnectError> {
    if shown.client.port() == 0 {
        return connect_from_any(cx, key, shown);
    }
    match try_connect(cx, key, shown.client, shown.program) {
        Err(ConnectError::AddrInUse | ConnectError::NoPort) => connect_from_any(cx, key, shown),
        result => result,
    }
}

/// The same from any port that makes the flow this gateway's.
fn connect_from_any(
    cx: &mut Context<'_, impl FifoHost>,
    key: SlabKey,
    shown: Presented,
) -> Result<SocketId, ConnectError> {
    let ip = shown.client.ip();
    if cx.shared.place.is_alone() {
        return try_connect(cx, key, SocketAddr::new(ip, 0), shown.program);
    }
    let (range, mut tries) = (cx.stack.config().ephemeral.clone(), PORTS_TRIED_MAX);
    while let Some(client) = cx.shared.place.next_port(ip, shown.program, &range, &mut tries) {
        match try_connect(cx, key, client, shown.program) {
            Err(ConnectError::AddrInUse | ConnectError::NoPort) => {}
            result => return result,
        }
    }
    Err(ConnectError::NoPort)
}

fn try_connect(
    cx: &mut Context<'_, impl FifoHost>,
    key: SlabKey,
    client: SocketAddr,
    program: SocketAddr,
) -> Result<SocketId, ConnectError> {
    cx.touched = true;
    let (recv, send) = cx.shared.buffers();
    cx.stack.connect_from(cx.now, client, program, key.short(), recv, send)
}
