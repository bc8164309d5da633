//! A program of a host, and its surroundings.

use towpath_direct::{Node, NodeEvent, SocketHandle};
use towpath_qdisc::Dice;
use towpath_tcp::Info;

use crate::histogram::NumberHistogram;
use crate::packet::SimPort;

/// Points of a flow's latencies that are kept for the charts.
const POINTS_MAX: usize = 20_000;

/// Counts and times of one end of a flow.
#[derive(Debug, Default)]
pub struct Tally {
    /// Bytes of payload that arrived.
    pub bytes: u64,
    /// Messages that were sent: requests, datagrams, echo requests.
    pub sent: u64,
    /// Messages that arrived: responses, datagrams, echo replies.
    pub received: u64,
    /// Time of the first byte or message that arrived.
    pub first_ns: Option<u64>,
    /// Time of the last one.
    pub last_ns: u64,
    /// Round trips of requests and echoes, one-way delays of datagrams.
    pub latencies: NumberHistogram,
    /// The same as points: when, and how long.
    pub points: Vec<(u64, u64)>,
    /// Time at which the last byte of all arrived.
    pub completed_ns: Option<u64>,
    /// Reason for which the flow ended.
    pub failure: Option<String>,
    /// Time at which it ended for that.
    pub failed_ns: Option<u64>,
    /// Time at which the program left early.
    pub left_ns: Option<u64>,
    /// Bytes at which the peer's stream ended, and those that it should have had.
    pub ended_early: Option<(u64, u64)>,
    /// Place of the first byte that is not what the peer wrote.
    pub wrong_bytes: Option<String>,
    /// TCP's figures, as they were last seen.
    pub tcp: Option<Info>,
}

impl Tally {
    pub(super) fn arrived(&mut self, now: u64, bytes: u64) {
        self.bytes += bytes;
        self.first_ns.get_or_insert(now);
        self.last_ns = now;
    }

    /// The flow has failed.
    pub(super) fn fail(&mut self, now: u64, reason: String) {
        self.failure = Some(reason);
        self.failed_ns = Some(now);
    }

    /// Bytes of the measured times.
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

/// Surroundings of a program when it is called.
pub struct ProgramContext<'a> {
    /// The host.
    pub node: &'a mut Node<SimPort>,
    /// Numbers of this program alone.
    pub dice: &'a mut Dice,
    /// Time.
    pub now: u64,
    /// Programs by the index of their sockets' handles.
    pub(super) owners: &'a mut Vec<u32>,
    /// Number of this program.
    pub(super) own: u32,
}

impl ProgramContext<'_> {
    /// Events of the socket come to this program.
    pub(super) fn own(&mut self, handle: SocketHandle) {
        let at = handle.index();
        if at >= self.owners.len() {
            self.owners.resize(at + 1, u32::MAX);
        }
        self.owners[at] = self.own;
    }

    /// A time of exponential length around a mean, at most 20 times as long.
    pub(super) fn exponential(&mut self, mean_ns: u64) -> u64 {
        let unit = 1. - self.dice.unit();
        (-ln(unit) * mean_ns as f64).min(mean_ns as f64 * 20.) as u64
    }
}

/// A program: events and times in, calls on the node out.
pub(super) trait Program {
    /// An event of a socket of the program.
    fn on_event(&mut self, cx: &mut ProgramContext<'_>, event: NodeEvent);
    /// The time of [`Program::due`] has come.
    fn on_timeout(&mut self, cx: &mut ProgramContext<'_>);
    /// Next time at which the program wants to be called; `u64::MAX` for none.
    fn due(&self) -> u64;
    fn tally(&mut self) -> &mut Tally;
    /// The connection whose figures are shown.
    fn connection(&self) -> Option<SocketHandle> {
        None
    }
}

/// The natural logarithm of a number above 0, by additions and multiplications alone. A library's
/// may differ in its last bit from machine to machine, and the run with it.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // ln m = 2 artanh((m - 1) / (m + 1)), with m from 1 to 2: 20 terms leave nothing.
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
