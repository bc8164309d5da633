//! Connects clients of published ports to the program. Clients whose SYN the program's stack does
//! not answer wait in a queue ([`lines`](crate::lines)).

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

/// Number of waiting clients that leave the queue and send their SYNs when a client was connected.
/// Two, because the accept queue may have room for several.
const CALLED: usize = 2;

impl TcpFlows {
    /// Creates a flow for an accepted client, and starts to connect to the program.
    pub(crate) fn on_accept(&mut self, cx: &mut Context<'_, impl FifoHost>, accepted: Accepted) {
        let Accepted { host, presented, share, flight, .. } = accepted;
        let [Some(shown), second] = presented else { return reset(&host) };
        let arrival = self.lines.arrival();
        let to = shown.program;
        let phase =
            FlowPhase::ProgramConnecting(Connecting { socket: None, shown, second, to, arrival });
        // Insert the flow first, because the inner stack's connection refers to its key.
        let key = self.flows.insert(Flow { flight, ..Flow::new(host, share, phase) });
        if self.watch(cx.shared, key).is_err() {
            self.drop_host(cx, key);
            return;
        }
        self.approach(cx, key);
    }

    /// Connects a client to the program. If other clients already wait, adds the client to their
    /// queue.
    fn approach(&mut self, cx: &mut Context<'_, impl FifoHost>, key: SlabKey) {
        let Some(Connecting { shown, arrival, .. }) = self.connecting_to_program(key) else {
            return;
        };
        match self.lines.is_empty(shown.program) {
            true => self.send_syn(cx, key, SYN_WAIT_NS),
            false => self.lines.enter(shown.program, arrival, key),
        }
    }

    /// Sends or retransmits the SYN for a client, and sets the deadline for the program's answer.
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
            // Handle the failure later. The next clients that leave the queue may fail as well, so
            // handling it here would recurse through the whole queue.
            Err(_) => self.on_not_connected(key),
        }
    }

    /// Queues a client whose SYN was not answered. The link loses no packets, so the program's
    /// stack must have dropped the SYN.
    pub(super) fn on_unanswered(&mut self, key: SlabKey, connecting: &Connecting) -> SocketAddr {
        let program = connecting.shown.program;
        self.lines.enter(program, connecting.arrival, key);
        program
    }

    /// Retransmits the SYN of the first client in the queue, unless its previous SYN may still be
    /// answered.
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

    /// Lets further clients leave the queue and send their SYNs, because the program's stack has
    /// answered a SYN.
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

    /// Queues a client again whose connection in the inner stack has timed out. The client
    /// continues to wait, as in an accept queue of the kernel.
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

    /// Removes a client from the queue, because it has disconnected or is connected.
    pub(super) fn on_gone(&mut self, shared: &Shared, connecting: &Connecting) {
        let program = connecting.shown.program;
        self.lines.leave(program, connecting.arrival);
        self.attend_first(shared, program);
    }

    /// Sets the time at which the first client in the queue sends its SYN. Clients that have just
    /// left the queue have earlier deadlines.
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

    /// Called when the program has refused the connection. Tries the other address of the program,
    /// or refuses the client if there is none.
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

    /// Reports to the user, once per published port, why clients of the port are refused.
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

/// Connects to the program from the address that represents the client. If the client's port is in
/// use, connects from another port of this address.
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

/// Connects to the program from any source port for which this gateway's shard owns the flow.
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
