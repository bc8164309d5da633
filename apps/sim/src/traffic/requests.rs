//! Programs that exchange requests and responses on one connection.

use std::net::SocketAddr;

use towpath_direct::{NodeEvent, SocketHandle};
use towpath_tcp::CongestionKind;

use super::connection::FarEnd;
use super::program::{Program, ProgramContext, Tally};
use crate::scenario::{FlowPlan, LeaveKind};

/// Client that sends requests, one after the other.
pub(super) struct Requester {
    remote: SocketAddr,
    congestion: CongestionKind,
    request: u64,
    response: u64,
    think: u64,
    /// Time at which the client connects, and later the time of the next request, in ns.
    next: u64,
    stop: u64,
    connection: Option<SocketHandle>,
    is_connected: bool,
    /// Number of bytes of the current request that are not written yet.
    unsent: u64,
    /// Number of bytes of the current response that are not received yet.
    missing: u64,
    asked_at: u64,
    tally: Tally,
    is_over: bool,
}

impl Requester {
    pub fn new(flow: &FlowPlan, remote: SocketAddr, [request, response, think]: [u64; 3]) -> Self {
        Self {
            remote,
            congestion: flow.congestion,
            request,
            response,
            think,
            next: flow.start_ns,
            stop: flow.stop_ns,
            connection: None,
            is_connected: false,
            unsent: 0,
            missing: 0,
            asked_at: 0,
            tally: Tally::default(),
            is_over: false,
        }
    }

    fn ask(&mut self, cx: &mut ProgramContext<'_>) {
        self.next = u64::MAX;
        (self.unsent, self.missing, self.asked_at) = (self.request, self.response, cx.now);
        self.tally.sent += 1;
        self.write(cx);
    }

    fn write(&mut self, cx: &mut ProgramContext<'_>) {
        if let Some(connection) = self.connection.filter(|_| self.unsent > 0) {
            self.unsent -= cx.write(connection, self.unsent);
        }
    }

    fn read(&mut self, cx: &mut ProgramContext<'_>, connection: SocketHandle) {
        while let Ok(n @ 1..) = cx.node.discard(connection, usize::MAX) {
            self.tally.arrived(cx.now, n as u64);
            self.missing = self.missing.saturating_sub(n as u64);
            if self.missing == 0 && self.next == u64::MAX {
                self.tally.received += 1;
                self.tally.latency(cx.now, cx.now - self.asked_at);
                // Send the next request immediately if there is no think time.
                self.next = cx.now + if self.think > 0 { cx.exponential(self.think) } else { 0 };
            }
        }
    }

    fn end(&mut self, cx: &mut ProgramContext<'_>) {
        self.is_over = true;
        if let Some(connection) = self.connection.take() {
            cx.leave(&mut self.tally, connection, LeaveKind::Reset);
        }
    }
}

impl Program for Requester {
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent) {
        match event {
            NodeEvent::Connected(_) => {
                self.is_connected = true;
                self.ask(cx);
            }
            NodeEvent::Writable(_) => self.write(cx),
            NodeEvent::Readable(handle) => self.read(cx, handle),
            NodeEvent::PeerClosed(_) => self.end(cx),
            NodeEvent::Failed(_, error) => {
                self.tally.failure = Some(format!("{error:?}"));
                self.end(cx);
            }
            _ => {}
        }
    }

    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>) {
        if self.stop <= cx.now {
            return self.end(cx);
        }
        if self.is_connected {
            return self.ask(cx);
        }
        self.next = u64::MAX;
        match cx.connect(self.remote, self.congestion) {
            Ok(handle) => self.connection = Some(handle),
            Err(error) => {
                self.tally.failure = Some(error);
                self.end(cx);
            }
        }
    }

    fn due(&self) -> u64 {
        if self.is_over { u64::MAX } else { self.next.min(self.stop) }
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn connection(&self) -> Option<SocketHandle> {
        self.connection
    }
}

/// Server that sends a response to each request.
pub(super) struct Responder {
    far_end: FarEnd,
    request: u64,
    response: u64,
    /// Number of bytes of the next request that were received so far.
    got: u64,
    unsent: u64,
    connection: Option<SocketHandle>,
    tally: Tally,
}

impl Responder {
    pub fn new(flow: &FlowPlan, local: SocketAddr, request: u64, response: u64) -> Self {
        Self {
            far_end: FarEnd::new(flow, local),
            request,
            response,
            got: 0,
            unsent: 0,
            connection: None,
            tally: Tally::default(),
        }
    }

    fn read(&mut self, cx: &mut ProgramContext<'_>, connection: SocketHandle) {
        while let Ok(n @ 1..) = cx.node.discard(connection, usize::MAX) {
            self.tally.arrived(cx.now, n as u64);
            self.got += n as u64;
        }
        let whole = self.got / self.request;
        self.got %= self.request;
        self.tally.received += whole;
        self.unsent += whole * self.response;
        self.write(cx, connection);
    }

    fn write(&mut self, cx: &mut ProgramContext<'_>, connection: SocketHandle) {
        self.unsent -= cx.write(connection, self.unsent);
    }
}

impl Program for Responder {
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent) {
        match event {
            NodeEvent::Incoming(listener) => {
                while let Some(child) = cx.accept(listener) {
                    self.connection = Some(child);
                    self.read(cx, child);
                }
            }
            NodeEvent::Readable(handle) => self.read(cx, handle),
            NodeEvent::Writable(handle) => self.write(cx, handle),
            NodeEvent::PeerClosed(handle) | NodeEvent::Failed(handle, _) => {
                self.connection = None;
                cx.leave(&mut self.tally, handle, LeaveKind::Close);
            }
            _ => {}
        }
    }

    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>) {
        self.far_end.on_timeout(cx, &mut self.tally);
    }

    fn due(&self) -> u64 {
        self.far_end.due()
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn connection(&self) -> Option<SocketHandle> {
        self.connection
    }
}
