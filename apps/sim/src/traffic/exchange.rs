//! Programs at both endpoints of a connection that transfers data in both directions at the same
//! time. The programs may stall, read slowly, or leave early.

use std::net::SocketAddr;

use towpath_direct::{NodeEvent, SocketHandle};
use towpath_tcp::CongestionKind;

use super::connection::PATTERN;
use super::program::{Program, ProgramContext, Tally};
use crate::scenario::{FlowEnd, FlowPlan, Leave, LeaveKind, Stall, StallKind, Traffic};

/// Interval between two reads of a slow reader, in ns.
const READ_EVERY_NS: u64 = 10_000_000;

/// Offset in [`PATTERN`] at which the backward direction starts, so that the two directions have
/// different bytes.
const BACK_OFFSET: usize = 7_919;

/// Simulated program at one end of a TCP connection: sends its bytes, and checks those of its peer.
pub(super) struct Exchange {
    end: FlowEnd,
    /// Local address of the listener. At the endpoint that connects: the remote address.
    address: SocketAddr,
    congestion: CongestionKind,
    listener: Option<SocketHandle>,
    connection: Option<SocketHandle>,
    is_connected: bool,
    /// Time at which the program starts, or `u64::MAX` once it has started.
    start: u64,
    stop: u64,
    stalls: Vec<Stall>,
    leave: Option<Leave>,
    /// Total number of bytes that this program writes. The next field counts the bytes written so
    /// far.
    to_write: u64,
    written: u64,
    /// Total number of bytes that the peer writes.
    to_read: u64,
    /// Maximum number of bytes per read of a slow reader.
    read_max: Option<usize>,
    /// Time at which a slow reader reads next, or `u64::MAX` if there is no data.
    next_read: u64,
    /// Whether this program has read the end of the peer's stream.
    has_all: bool,
    is_over: bool,
    buffer: Vec<u8>,
    tally: Tally,
}

impl Exchange {
    pub fn new(flow: &FlowPlan, end: FlowEnd, address: SocketAddr) -> Self {
        let Traffic::Exchange { bytes, back, read_rate } = flow.traffic else {
            unreachable!("the caller matched the kind")
        };
        let (to_write, to_read) = if end == FlowEnd::From { (bytes, back) } else { (back, bytes) };
        let per_read = |rate: u64| (rate / 8 / (1_000_000_000 / READ_EVERY_NS)).max(1) as usize;
        Self {
            end,
            address,
            congestion: flow.congestion,
            listener: None,
            connection: None,
            is_connected: false,
            // Start the listener at once, because it must exist before the first SYN arrives.
            start: if end == FlowEnd::From { flow.start_ns } else { 0 },
            stop: flow.stop_ns,
            stalls: flow.stalls.iter().copied().filter(|stall| stall.end == end).collect(),
            leave: flow.leaves.iter().copied().filter(|leave| leave.end == end).min_by_key(at),
            to_write,
            written: 0,
            to_read,
            read_max: read_rate.map(per_read),
            next_read: u64::MAX,
            has_all: false,
            is_over: false,
            buffer: vec![0; PATTERN.len()],
            tally: Tally::default(),
        }
    }

    /// Returns the bytes of the stream that endpoint `writer` writes, from stream offset `at` on.
    fn bytes(writer: FlowEnd, at: u64) -> &'static [u8] {
        let offset = if writer == FlowEnd::From { 0 } else { BACK_OFFSET };
        &PATTERN[(at as usize + offset) % PATTERN.len()..]
    }

    fn other(&self) -> FlowEnd {
        if self.end == FlowEnd::From { FlowEnd::To } else { FlowEnd::From }
    }

    fn is_stalled(&self, what: StallKind, now: u64) -> bool {
        let holds =
            |stall: &Stall| stall.what == what && (stall.from_ns..stall.until_ns).contains(&now);
        self.stalls.iter().any(holds)
    }

    fn write(&mut self, cx: &mut ProgramContext<'_>) {
        let Some(connection) = self.connection.filter(|_| self.is_connected) else { return };
        if self.is_stalled(StallKind::Write, cx.now) {
            return;
        }
        while self.written < self.to_write {
            let bytes = Self::bytes(self.end, self.written);
            let n = (self.to_write - self.written).min(bytes.len() as u64) as usize;
            let Ok(n) = cx.node.send(connection, &bytes[..n]) else { return };
            self.written += n as u64;
        }
        cx.node.shutdown(connection);
    }

    fn read(&mut self, cx: &mut ProgramContext<'_>) {
        let Some(connection) = self.connection.filter(|_| self.is_connected) else { return };
        if self.is_stalled(StallKind::Read, cx.now) {
            // Schedule no read, because the end of the stall schedules the next one.
            self.next_read = u64::MAX;
            return;
        }
        if self.read_max.is_some() && self.next_read != u64::MAX && self.next_read > cx.now {
            return;
        }
        self.next_read = u64::MAX;
        loop {
            let wanted = Self::bytes(self.other(), self.tally.bytes);
            let max = self.read_max.unwrap_or(usize::MAX).min(wanted.len());
            match cx.node.recv(connection, &mut self.buffer[..max]) {
                Ok(0) => {
                    self.has_all = true;
                    if self.tally.bytes == self.to_read {
                        self.tally.completed_ns.get_or_insert(cx.now);
                    } else {
                        let (got, all) = (self.tally.bytes, self.to_read);
                        self.tally.ended_early = Some((got, all));
                    }
                    break;
                }
                Ok(n) => {
                    if self.buffer[..n] != wanted[..n] {
                        let at = self.tally.bytes;
                        self.tally.wrong_bytes =
                            Some(format!("other bytes than were sent, from {at} on"));
                    }
                    self.tally.arrived(cx.now, n as u64);
                    if self.read_max.is_some() {
                        self.next_read = cx.now + READ_EVERY_NS;
                        break;
                    }
                }
                Err(_) => break,
            }
        }
    }

    /// Closes the connection if the transfers in both directions are complete.
    fn end_if_done(&mut self, cx: &mut ProgramContext<'_>) {
        if self.has_all && self.written == self.to_write && self.is_connected {
            self.end(cx, LeaveKind::Close);
        }
    }

    fn end(&mut self, cx: &mut ProgramContext<'_>, how: LeaveKind) {
        self.is_over = true;
        if let Some(listener) = self.listener.take() {
            cx.node.close(listener);
        }
        if let Some(connection) = self.connection.take() {
            cx.leave(&mut self.tally, connection, how);
        }
    }

    fn start(&mut self, cx: &mut ProgramContext<'_>) {
        self.start = u64::MAX;
        if self.end == FlowEnd::To {
            match cx.listen(self.address, self.congestion) {
                Ok(listener) => self.listener = Some(listener),
                Err(error) => self.tally.failure = Some(error),
            }
            return;
        }
        match cx.connect(self.address, self.congestion) {
            Ok(connection) => self.connection = Some(connection),
            Err(error) => {
                self.tally.fail(cx.now, error);
                self.end(cx, LeaveKind::Reset);
            }
        }
    }
}

fn at(leave: &Leave) -> u64 {
    leave.at_ns
}

impl Program for Exchange {
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent) {
        match event {
            NodeEvent::Connected(_) => self.is_connected = true,
            NodeEvent::Incoming(listener) => {
                // Close the listener, because a flow connects only once.
                if let Some(child) = cx.accept(listener) {
                    (self.connection, self.is_connected) = (Some(child), true);
                    self.listener = None;
                    cx.node.close(listener);
                }
            }
            NodeEvent::Failed(handle, error) if self.connection == Some(handle) => {
                self.read(cx);
                self.tally.fail(cx.now, format!("{error:?}"));
                return self.end(cx, LeaveKind::Reset);
            }
            _ => {}
        }
        self.write(cx);
        self.read(cx);
        self.end_if_done(cx);
    }

    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>) {
        if self.is_over {
            return;
        }
        if self.stop <= cx.now {
            return self.end(cx, LeaveKind::Reset);
        }
        if let Some(leave) = self.leave.filter(|leave| leave.at_ns <= cx.now) {
            self.tally.left_ns = Some(cx.now);
            return self.end(cx, leave.how);
        }
        if self.start <= cx.now {
            self.start(cx);
        }
        self.stalls.retain(|stall| stall.until_ns > cx.now);
        self.write(cx);
        self.read(cx);
        self.end_if_done(cx);
    }

    fn due(&self) -> u64 {
        if self.is_over {
            return u64::MAX;
        }
        let leave = self.leave.map_or(u64::MAX, |leave| leave.at_ns);
        let stalls = self.stalls.iter().map(|stall| stall.until_ns).min().unwrap_or(u64::MAX);
        self.start.min(self.stop).min(leave).min(stalls).min(self.next_read)
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn connection(&self) -> Option<SocketHandle> {
        self.connection
    }
}
