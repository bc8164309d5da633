//! Interface between a program and the host on which it runs.

use towpath_direct::{Node, NodeEvent, SocketHandle};
use towpath_qdisc::Dice;
use towpath_tcp::Info;

use crate::histogram::NumberHistogram;
use crate::packet::SimPort;

/// Maximum number of latencies per flow that are kept as points for charts.
const POINTS_MAX: usize = 20_000;

/// Measurements at one endpoint of a flow.
#[derive(Debug, Default)]
pub struct Tally {
    /// Number of payload bytes received.
    pub bytes: u64,
    /// Number of messages sent: requests, datagrams, or echo requests.
    pub sent: u64,
    /// Number of messages received: responses, datagrams, or echo replies.
    pub received: u64,
    /// Time in ns at which the first byte or message was received. `None` if none was.
    pub first_ns: Option<u64>,
    /// Time in ns at which the last byte or message was received.
    pub last_ns: u64,
    /// Histogram of the round-trip times of requests and echoes, or of the one-way delays of
    /// datagrams.
    pub latencies: NumberHistogram,
    /// Latencies as points of a chart: the time of arrival, and the latency, both in ns.
    pub points: Vec<(u64, u64)>,
    /// Time in ns at which all bytes had arrived. `None` if this was not the case yet.
    pub completed_ns: Option<u64>,
    /// Reason why the flow failed. `None` if it did not fail.
    pub failure: Option<String>,
    /// Time in ns at which the flow failed.
    pub failed_ns: Option<u64>,
    /// Time in ns at which the program left the connection early.
    pub left_ns: Option<u64>,
    /// Number of bytes received when the peer's stream ended too early, and the expected number of
    /// bytes.
    pub ended_early: Option<(u64, u64)>,
    /// Description of the first received byte that differs from the byte written by the peer.
    pub wrong_bytes: Option<String>,
    /// Last known TCP state of the connection.
    pub tcp: Option<Info>,
}

impl Tally {
    pub(super) fn arrived(&mut self, now: u64, bytes: u64) {
        self.bytes += bytes;
        self.first_ns.get_or_insert(now);
        self.last_ns = now;
    }

    /// Records the time and the reason of the flow's failure.
    pub(super) fn fail(&mut self, now: u64, reason: String) {
        self.failure = Some(reason);
        self.failed_ns = Some(now);
    }

    /// Returns the memory that the measurements use, in bytes.
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

/// Context that is passed to each call of a program.
pub struct ProgramContext<'a> {
    /// Node of the host on which the program runs.
    pub node: &'a mut Node<SimPort>,
    /// Random generator of this program.
    pub dice: &'a mut Dice,
    /// Current virtual time in ns.
    pub now: u64,
    /// Index of the program that owns each socket, by the index of the socket handle.
    pub(super) owners: &'a mut Vec<u32>,
    /// Index of this program.
    pub(super) own: u32,
}

impl ProgramContext<'_> {
    /// Registers this program as the receiver of the events of a socket.
    pub(super) fn own(&mut self, handle: SocketHandle) {
        let at = handle.index();
        if at >= self.owners.len() {
            self.owners.resize(at + 1, u32::MAX);
        }
        self.owners[at] = self.own;
    }

    /// Returns an exponentially distributed time in ns, which is at most 20 times the mean.
    pub(super) fn exponential(&mut self, mean_ns: u64) -> u64 {
        let unit = 1. - self.dice.unit();
        (-ln(unit) * mean_ns as f64).min(mean_ns as f64 * 20.) as u64
    }
}

/// Program on a simulated host. The host calls it on events and timeouts, and the program calls the
/// node.
pub(super) trait Program {
    /// Handles an event of a socket that the program owns.
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent);
    /// Handles a timeout. Called at the time returned by [`Program::due`].
    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>);
    /// Returns the next time at which the program must be called, or `u64::MAX` for none.
    fn due(&self) -> u64;
    fn tally(&mut self) -> &mut Tally;
    /// Returns the connection whose TCP state is reported. `None` if there is none.
    fn connection(&self) -> Option<SocketHandle> {
        None
    }
}

/// Returns the natural logarithm of a positive number, computed only from additions and
/// multiplications. The last bit of a library function's result may differ between machines, so
/// that their runs would differ.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // ln m = 2 artanh((m - 1) / (m + 1)). Because m is between 1 and 2, 20 terms reach full
    // precision.
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
