//! Interface between a program and its host.

use towpath_direct::{Node, NodeEvent, SocketHandle};
use towpath_qdisc::Dice;
use towpath_tcp::Info;

use crate::histogram::NumberHistogram;
use crate::packet::SimPort;

/// Maximum number of a flow's latencies that are kept for charts.
const POINTS_MAX: usize = 20_000;

/// Measurements of one endpoint of a flow.
#[derive(Debug, Default)]
pub struct Tally {
    /// Payload bytes received.
    pub bytes: u64,
    /// Messages sent: requests, datagrams, or echo requests.
    pub sent: u64,
    /// Messages received: responses, datagrams, or echo replies.
    pub received: u64,
    /// Time of the first byte or message received.
    pub first_ns: Option<u64>,
    /// Time of the last byte or message received.
    pub last_ns: u64,
    /// Round-trip times of requests and echoes, or one-way delays of datagrams.
    pub latencies: NumberHistogram,
    /// Latencies as points: time of arrival, and latency.
    pub points: Vec<(u64, u64)>,
    /// Time at which all bytes had arrived.
    pub completed_ns: Option<u64>,
    /// Reason for which the flow ended.
    pub failure: Option<String>,
    /// Time of the failure.
    pub failed_ns: Option<u64>,
    /// Time at which the program left early.
    pub left_ns: Option<u64>,
    /// Number of bytes at which the peer's stream ended early, and the expected number.
    pub ended_early: Option<(u64, u64)>,
    /// Description of the first byte that differs from what the peer wrote.
    pub wrong_bytes: Option<String>,
    /// Last known TCP state.
    pub tcp: Option<Info>,
}

impl Tally {
    pub(super) fn arrived(&mut self, now: u64, bytes: u64) {
        self.bytes += bytes;
        self.first_ns.get_or_insert(now);
        self.last_ns = now;
    }

    /// Records a failure of the flow.
    pub(super) fn fail(&mut self, now: u64, reason: String) {
        self.failure = Some(reason);
        self.failed_ns = Some(now);
    }

    /// Returns the memory of the measurements in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.latencies.memory_bytes() + (self.points.capacity() * size_of::<(u64, u64)>()) as u64
    }

    pub(super) fn latency(&mut self, now: u64, ns: u64) {
        self.latencies.record(ns);
        if self.points.len() < POINTS_MAX {
            self.points.push((now, ns));
        }
    }
}

/// Context passed to a program's calls.
pub struct ProgramContext<'a> {
    /// Node of the host.
    pub node: &'a mut Node<SimPort>,
    /// Random generator of this program.
    pub dice: &'a mut Dice,
    /// Current virtual time in ns.
    pub now: u64,
    /// Index of the owning program, by index of the socket handle.
    pub(super) owners: &'a mut Vec<u32>,
    /// Index of this program.
    pub(super) own: u32,
}

impl ProgramContext<'_> {
    /// Makes this program the receiver of the socket's events.
    pub(super) fn own(&mut self, handle: SocketHandle) {
        let at = handle.index();
        if at >= self.owners.len() {
            self.owners.resize(at + 1, u32::MAX);
        }
        self.owners[at] = self.own;
    }

    /// Returns an exponentially distributed time, at most 20 times the mean.
    pub(super) fn exponential(&mut self, mean_ns: u64) -> u64 {
        let unit = 1. - self.dice.unit();
        (-ln(unit) * mean_ns as f64).min(mean_ns as f64 * 20.) as u64
    }
}

/// A program is called on events and timeouts, and calls the node.
pub(super) trait Program {
    /// Handles an event of one of the program's sockets.
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent);
    /// Called at the time returned by [`Program::due`].
    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>);
    /// Returns the next time at which the program must be called; `u64::MAX` for none.
    fn due(&self) -> u64;
    fn tally(&mut self) -> &mut Tally;
    /// Returns the connection whose TCP state is reported.
    fn connection(&self) -> Option<SocketHandle> {
        None
    }
}

/// Returns the natural logarithm of a positive number using only additions and multiplications. A
/// library function may differ between machines in its last bit, so that runs would differ.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // ln m = 2 artanh((m - 1) / (m + 1)), with m from 1 to 2: 20 terms reach full precision.
    let s = (mantissa - 1.) / (mantissa + 1.);
    let (mut power, mut sum) = (s, 0.);
    for n in 0..20 {
        sum += power / f64::from(2 * n + 1);
        power *= s * s;
    }
    2. * sum + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_those_of_the_library() {
        for x in [1e-16, 0.001, 0.3, 0.5, 0.999, 1., 1.7, 42.] {
            assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.), "{x}");
        }
    }
}
