//! Programs for bulk and on-off traffic: a connection transfers bytes in one direction.

use std::net::SocketAddr;

use towpath_direct::{NodeEvent, SocketHandle};
use towpath_tcp::CongestionKind;

use super::connection::{FarEnd, PATTERN};
use super::phases::Phases;
use super::program::{Program, ProgramContext, Tally};
use crate::scenario::{FlowPlan, LeaveKind, Traffic};

/// Number of bytes per write of an on-off flow with a rate: the payload of one Ethernet segment.
const WRITE: u64 = 1448;

/// Number of bytes per read of a sink: three segments, which fit into the L1 cache.
const READ: usize = 4_344;

/// Program that sends a stream of bytes.
pub(super) struct StreamSender {
    remote: SocketAddr,
    congestion: CongestionKind,
    connection: Option<SocketHandle>,
    is_connected: bool,
    start: u64,
    stop: u64,
    /// Number of bytes that are left to write. The next field counts the bytes written so far.
    left: u64,
    written: usize,
    pattern: SendPattern,
    tally: Tally,
    is_over: bool,
}

enum SendPattern {
    Bulk,
    OnOff {
        phases: Phases,
        /// Interval between two writes in ns. 0 if the flow writes as fast as the connection
        /// accepts data.
        every: u64,
        next_write: u64,
    },
}

impl StreamSender {
    pub fn new(flow: &FlowPlan, remote: SocketAddr) -> Self {
        let (left, pattern) = match flow.traffic {
            Traffic::OnOff { phases, rate, .. } => {
                let every = rate.map_or(0, |rate| (WRITE * 8 * 1_000_000_000 / rate).max(1));
                let phases = Phases::new(phases);
                (u64::MAX, SendPattern::OnOff { phases, every, next_write: u64::MAX })
            }
            Traffic::Bulk { bytes } => (bytes.unwrap_or(u64::MAX), SendPattern::Bulk),
            _ => (0, SendPattern::Bulk),
        };
        Self {
            remote,
            congestion: flow.congestion,
            connection: None,
            is_connected: false,
            start: flow.start_ns,
            stop: flow.stop_ns,
            left,
            written: 0,
            pattern,
            tally: Tally::default(),
            is_over: false,
        }
    }

    /// Writes as many bytes as the pattern allows and the connection accepts.
    fn write(&mut self, cx: &mut ProgramContext<'_>) {
        let Some(connection) = self.connection.filter(|_| self.is_connected) else { return };
        let mut allowed = match &mut self.pattern {
            SendPattern::Bulk => u64::MAX,
            SendPattern::OnOff { phases, .. } if !phases.is_on() => 0,
            SendPattern::OnOff { every: 0, .. } => u64::MAX,
            SendPattern::OnOff { every, next_write, .. } if *next_write <= cx.now => {
                *next_write = cx.now + *every;
                WRITE
            }
            SendPattern::OnOff { .. } => 0,
        };
        while self.left > 0 && allowed > 0 {
            let bytes = &PATTERN[self.written % PATTERN.len()..];
            let n = self.left.min(allowed).min(bytes.len() as u64) as usize;
            let Ok(written) = cx.node.send(connection, &bytes[..n]) else { break };
            self.written += written;
            self.left -= written as u64;
            allowed -= written as u64;
        }
        if self.left == 0 {
            cx.node.shutdown(connection);
        }
    }

    fn end(&mut self, cx: &mut ProgramContext<'_>, how: LeaveKind) {
        self.is_over = true;
        if let Some(connection) = self.connection.take() {
            cx.leave(&mut self.tally, connection, how);
        }
    }
}

impl Program for StreamSender {
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent) {
        match event {
            NodeEvent::Connected(_) => {
                self.is_connected = true;
                self.write(cx);
            }
            NodeEvent::Writable(_) => self.write(cx),
            // Close the connection, because the sink closes its end after it has received all
            // bytes.
            NodeEvent::PeerClosed(_) => self.end(cx, LeaveKind::Close),
            NodeEvent::Failed(_, error) => {
                self.tally.failure = Some(format!("{error:?}"));
                self.end(cx, LeaveKind::Reset);
            }
            _ => {}
        }
    }

    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>) {
        if self.is_over {
            return;
        }
        if self.stop <= cx.now {
            return self.end(cx, LeaveKind::Reset);
        }
        if self.start <= cx.now {
            self.start = u64::MAX;
            match cx.connect(self.remote, self.congestion) {
                Ok(handle) => self.connection = Some(handle),
                Err(error) => {
                    self.tally.failure = Some(error);
                    return self.end(cx, LeaveKind::Reset);
                }
            }
        }
        if let SendPattern::OnOff { phases, every, next_write } = &mut self.pattern
            && phases.advance(cx)
        {
            *next_write = if phases.is_on() && *every > 0 { cx.now } else { u64::MAX };
        }
        self.write(cx);
    }

    fn due(&self) -> u64 {
        if self.is_over {
            return u64::MAX;
        }
        match &self.pattern {
            _ if self.start != u64::MAX => self.start,
            SendPattern::Bulk => self.stop,
            SendPattern::OnOff { phases, next_write, .. } => {
                // Ignore the time of the next write until the program is connected, because it
                // cannot write before.
                let next = if self.is_connected { *next_write } else { u64::MAX };
                self.stop.min(phases.until()).min(next)
            }
        }
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn connection(&self) -> Option<SocketHandle> {
        self.connection
    }
}

/// Program that receives a stream of bytes.
pub(super) struct StreamSink {
    far_end: FarEnd,
    /// Total number of bytes of the flow. `None` if the flow ends at its stop time.
    bytes: Option<u64>,
    connection: Option<SocketHandle>,
    tally: Tally,
}

impl StreamSink {
    pub fn new(flow: &FlowPlan, local: SocketAddr, bytes: Option<u64>) -> Self {
        let far_end = FarEnd::new(flow, local);
        Self { far_end, bytes, connection: None, tally: Tally::default() }
    }

    fn read(&mut self, cx: &mut ProgramContext<'_>, connection: SocketHandle) {
        let mut buffer = [0; READ];
        loop {
            let wanted = &PATTERN[self.tally.bytes as usize % PATTERN.len()..];
            let room = &mut buffer[..wanted.len().min(READ)];
            let Ok(n @ 1..) = cx.node.recv(connection, room) else { break };
            if buffer[..n] != wanted[..n] {
                let at = self.tally.bytes;
                self.tally.failure = Some(format!("other bytes than were sent, from {at} on"));
            }
            self.tally.arrived(cx.now, n as u64);
        }
        if self.bytes.is_some_and(|bytes| self.tally.bytes >= bytes) {
            self.tally.completed_ns.get_or_insert(cx.now);
        }
    }
}

impl Program for StreamSink {
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent) {
        match event {
            NodeEvent::Incoming(listener) => {
                while let Some(child) = cx.accept(listener) {
                    self.connection = Some(child);
                    self.read(cx, child);
                }
            }
            NodeEvent::Readable(handle) => self.read(cx, handle),
            NodeEvent::PeerClosed(handle) | NodeEvent::Failed(handle, _) => {
                self.read(cx, handle);
                self.connection = None;
                cx.node.close(handle);
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
}
