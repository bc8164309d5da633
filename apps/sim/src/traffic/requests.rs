//! Requests and responses on one connection.

use std::net::SocketAddr;

use towpath_direct::{NodeEvent, SocketHandle, StreamOptions};
use towpath_tcp::CongestionKind;

use super::program::{Context, Program, Tally};
use super::streams::{listen, write};
use crate::scenario::FlowPlan;

/// The end that asks.
pub(super) struct Requester {
    remote: SocketAddr,
    congestion: CongestionKind,
    request: u64,
    response: u64,
    think: u64,
    /// Time of the connect, then that of the next request.
    next: u64,
    stop: u64,
    connection: Option<SocketHandle>,
    is_connected: bool,
    /// Bytes of the request that are not written yet.
    unsent: u64,
    /// Bytes of the response that have not come yet.
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

    fn ask(&mut self, cx: &mut Context<'_>) {
        self.next = u64::MAX;
        (self.unsent, self.missing, self.asked_at) = (self.request, self.response, cx.now);
        self.tally.sent += 1;
        self.write(cx);
    }

    fn write(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = self.connection.filter(|_| self.unsent > 0) {
            self.unsent -= write(cx, connection, self.unsent);
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, connection: SocketHandle) {
        while let Ok(n @ 1..) = cx.node.discard(connection, usize::MAX) {
            self.tally.arrived(cx.now, n as u64);
            self.missing = self.missing.saturating_sub(n as u64);
            if self.missing == 0 && self.next == u64::MAX {
                self.tally.received += 1;
                self.tally.latency(cx.now, cx.now - self.asked_at);
                // A response without a pause after it is followed by the next request at once.
                self.next = cx.now + if self.think > 0 { cx.exponential(self.think) } else { 0 };
            }
        }
    }

    fn end(&mut self, cx: &mut Context<'_>) {
        self.is_over = true;
        let Some(connection) = self.connection.take() else { return };
        self.tally.tcp = cx.node.info(connection).and_then(|info| info.tcp).or(self.tally.tcp);
        cx.node.abort(connection);
    }
}

impl Program for Requester {
    fn on_event(&mut self, cx: &mut Context<'_>, event: NodeEvent) {
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

    fn on_timeout(&mut self, cx: &mut Context<'_>) {
        if self.stop <= cx.now {
            return self.end(cx);
        }
        if self.is_connected {
            return self.ask(cx);
        }
        self.next = u64::MAX;
        let options =
            StreamOptions { congestion: Some(self.congestion), ..StreamOptions::default() };
        match cx.node.connect_with(self.remote, &options) {
            Ok(handle) => {
                self.connection = Some(handle);
                cx.own(handle);
            }
            Err(error) => {
                self.tally.failure = Some(error.to_string());
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

/// The end that answers.
pub(super) struct Responder {
    local: SocketAddr,
    congestion: CongestionKind,
    request: u64,
    response: u64,
    start: u64,
    /// Bytes of the next request that have come.
    got: u64,
    unsent: u64,
    connection: Option<SocketHandle>,
    tally: Tally,
}

impl Responder {
    pub fn new(flow: &FlowPlan, local: SocketAddr, request: u64, response: u64) -> Self {
        Self {
            local,
            congestion: flow.congestion,
            request,
            response,
            start: 0,
            got: 0,
            unsent: 0,
            connection: None,
            tally: Tally::default(),
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, connection: SocketHandle) {
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

    fn write(&mut self, cx: &mut Context<'_>, connection: SocketHandle) {
        self.unsent -= write(cx, connection, self.unsent);
    }
}

impl Program for Responder {
    fn on_event(&mut self, cx: &mut Context<'_>, event: NodeEvent) {
        match event {
            NodeEvent::Incoming(listener) => {
                while let Some(child) = cx.node.accept(listener) {
                    cx.own(child);
                    self.connection = Some(child);
                    self.read(cx, child);
                }
            }
            NodeEvent::Readable(handle) => self.read(cx, handle),
            NodeEvent::Writable(handle) => self.write(cx, handle),
            NodeEvent::PeerClosed(handle) | NodeEvent::Failed(handle, _) => {
                self.tally.tcp = cx.node.info(handle).and_then(|info| info.tcp).or(self.tally.tcp);
                self.connection = None;
                cx.node.close(handle);
            }
            _ => {}
        }
    }

    fn on_timeout(&mut self, cx: &mut Context<'_>) {
        self.start = u64::MAX;
        match listen(cx, self.local, self.congestion) {
            Ok(listener) => cx.own(listener),
            Err(error) => self.tally.failure = Some(error),
        }
    }

    fn due(&self) -> u64 {
        self.start
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn connection(&self) -> Option<SocketHandle> {
        self.connection
    }
}
