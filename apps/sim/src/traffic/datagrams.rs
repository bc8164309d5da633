//! Programs that send and receive datagrams at a constant rate, and a program that sends echo
//! requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use towpath_direct::{Node, NodeEvent, SocketHandle};

use super::phases::Phases;
use super::program::{Program, ProgramContext, Tally};
use crate::packet::SimPort;
use crate::scenario::{FlowPlan, PhasesPlan};

/// Length in bytes of an ICMP echo header (RFC 792), which echo sockets return with the data.
const ECHO_HEADER_LEN: usize = 8;

/// Parses the send time in a message, in ns. `None` if the message is too short.
fn sent_at(bytes: &[u8]) -> Option<u64> {
    let time = bytes.get(..8)?;
    Some(u64::from_be_bytes(time.try_into().ok()?))
}

/// Program that sends datagrams at a constant rate.
pub(super) struct CbrSource {
    local: Ipv4Addr,
    remote: SocketAddr,
    /// Interval between two datagrams in ns.
    every: u64,
    payload: Vec<u8>,
    phases: Option<Phases>,
    socket: Option<SocketHandle>,
    next: u64,
    stop: u64,
    tally: Tally,
}

impl CbrSource {
    pub fn new(
        flow: &FlowPlan,
        local: Ipv4Addr,
        remote: SocketAddr,
        [rate, size]: [u64; 2],
    ) -> Self {
        Self {
            local,
            remote,
            every: (size * 8 * 1_000_000_000 / rate).max(1),
            payload: vec![0; size as usize],
            phases: None,
            socket: None,
            next: flow.start_ns,
            stop: flow.stop_ns,
            tally: Tally::default(),
        }
    }

    /// Restricts sending to the on phases of `phases`.
    pub fn with_phases(self, phases: PhasesPlan) -> Self {
        Self { phases: Some(Phases::new(phases)), ..self }
    }
}

impl Program for CbrSource {
    fn on_event(&mut self, _: &mut ProgramContext<'_>, _: NodeEvent) {}

    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>) {
        if self.stop <= cx.now {
            self.next = u64::MAX;
            return;
        }
        self.next = cx.now + self.every;
        if let Some(phases) = &mut self.phases {
            phases.advance(cx);
            if !phases.is_on() {
                self.next = phases.until();
                return;
            }
        }
        let socket = match self.socket {
            Some(socket) => socket,
            None => match cx.node.udp((self.local, 0).into()) {
                Ok(socket) => *self.socket.insert(socket),
                Err(error) => {
                    self.tally.failure = Some(error.to_string());
                    self.next = u64::MAX;
                    return;
                }
            },
        };
        self.payload[..8].copy_from_slice(&cx.now.to_be_bytes());
        self.tally.sent += 1;
        // Ignore errors: a full queue drops the datagram, and the sink counts only the received
        // ones.
        let _ = cx.node.send_to(socket, self.remote, &self.payload);
    }

    fn due(&self) -> u64 {
        self.next
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

/// Program that receives datagrams and counts them.
pub(super) struct CbrSink {
    local: SocketAddr,
    start: u64,
    tally: Tally,
}

impl CbrSink {
    pub fn new(local: SocketAddr) -> Self {
        Self { local, start: 0, tally: Tally::default() }
    }
}

impl Program for CbrSink {
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent) {
        let NodeEvent::Readable(socket) = event else { return };
        while let Some(datagram) = cx.node.recv_from(socket) {
            self.tally.arrived(cx.now, datagram.bytes.len() as u64);
            self.tally.received += 1;
            if let Some(sent) = sent_at(&datagram.bytes) {
                self.tally.latency(cx.now, cx.now.saturating_sub(sent));
            }
        }
    }

    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>) {
        self.start = u64::MAX;
        match cx.node.udp(self.local) {
            Ok(socket) => cx.own(socket),
            Err(error) => self.tally.failure = Some(error.to_string()),
        }
    }

    fn due(&self) -> u64 {
        self.start
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

/// Program that sends echo requests, as ping(8) does.
pub(super) struct Pinger {
    local: Ipv4Addr,
    remote: IpAddr,
    every: u64,
    socket: Option<SocketHandle>,
    seq: u16,
    next: u64,
    stop: u64,
    tally: Tally,
}

impl Pinger {
    pub fn new(flow: &FlowPlan, local: Ipv4Addr, remote: IpAddr, every: u64) -> Self {
        Self {
            local,
            remote,
            every,
            socket: None,
            seq: 0,
            next: flow.start_ns,
            stop: flow.stop_ns,
            tally: Tally::default(),
        }
    }
}

impl Program for Pinger {
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent) {
        let NodeEvent::Readable(socket) = event else { return };
        while let Some(reply) = cx.node.recv_from(socket) {
            let data = reply.bytes.get(ECHO_HEADER_LEN..).unwrap_or_default();
            let is_reply = Node::<SimPort>::echo_seq(&reply.bytes).is_some();
            if let Some(sent) = sent_at(data).filter(|_| is_reply) {
                self.tally.arrived(cx.now, data.len() as u64);
                self.tally.received += 1;
                self.tally.latency(cx.now, cx.now.saturating_sub(sent));
            }
        }
    }

    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>) {
        if self.stop <= cx.now {
            self.next = u64::MAX;
            return;
        }
        self.next = cx.now + self.every;
        let socket = match self.socket {
            Some(socket) => socket,
            None => match cx.node.echo((self.local, 0).into()) {
                Ok(socket) => {
                    cx.own(socket);
                    *self.socket.insert(socket)
                }
                Err(error) => {
                    self.tally.failure = Some(error.to_string());
                    self.next = u64::MAX;
                    return;
                }
            },
        };
        // Send 56 bytes of data, as ping(8) does.
        let mut data = [0; 56];
        data[..8].copy_from_slice(&cx.now.to_be_bytes());
        self.seq = self.seq.wrapping_add(1);
        self.tally.sent += 1;
        // Ignore errors: a request that was not sent counts as lost.
        let _ = cx.node.ping(socket, self.remote, self.seq, &data);
    }

    fn due(&self) -> u64 {
        self.next
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}
