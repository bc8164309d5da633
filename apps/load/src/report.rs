//! Figures of a run: snapshots during the run, and the report at its end.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::failure::Failures;
use crate::histogram::Histogram;
use crate::plan::{Plan, as_seconds};

/// Phase of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// The users connect. No requests are sent yet.
    Connecting,
    /// Traffic is sent that no figures include.
    WarmingUp,
    /// The figures are measured.
    Measuring,
    /// The run waits for outstanding answers. No new requests are sent.
    Draining,
}

/// Current figures of a run, for a live view. Numbers refer to the measurement, unless stated
/// otherwise.
#[derive(Clone, Debug)]
pub struct ReportSnapshot {
    /// Current phase of the run.
    pub phase: RunPhase,
    /// Time since the start of the run, including the phase in which users connect.
    pub since_start: Duration,
    /// Time since the start of the measurement, or zero before it.
    pub elapsed: Duration,
    /// Number of users in the plan.
    pub users: usize,
    /// Number of users with a connection (TCP) or a socket (UDP).
    pub connected: usize,
    /// Number of connects in progress.
    pub connecting: usize,
    /// Number of requests sent.
    pub sent: u64,
    /// Number of requests answered.
    pub received: u64,
    /// Number of payload bytes that the kernel accepted.
    pub bytes_sent: u64,
    /// Number of payload bytes read.
    pub bytes_received: u64,
    /// Failures since the start of the run.
    pub failures: Failures,
    /// Response times of the answers so far.
    pub response: Histogram,
    /// Service times of the answers so far.
    pub service: Histogram,
    /// Delay of the oldest request that is due and not sent yet, or zero if no request is late.
    pub behind: Duration,
    /// Figures of the last complete period. `None` before the end of the measurement's first
    /// period.
    pub period: Option<Period>,
}

/// Figures of one period of the measurement. Requests are counted when they are sent, and answers
/// when they are read.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Period {
    /// End of the period, relative to the start of the measurement.
    #[serde(rename = "at_s", with = "as_seconds")]
    pub at: Duration,
    /// Length of the period. The last period may be shorter.
    #[serde(rename = "length_s", with = "as_seconds")]
    pub length: Duration,
    /// Number of requests sent.
    pub sent: u64,
    /// Number of requests answered.
    pub received: u64,
    /// Number of failures of all kinds.
    pub failed: u64,
    /// Number of payload bytes that the kernel accepted.
    pub bytes_sent: u64,
    /// Number of payload bytes read.
    pub bytes_received: u64,
    /// Number of users with a connection at the end of the period.
    pub connected: usize,
    /// Median of the response times in seconds. If there were no answers, this field and the next
    /// three are zero.
    #[serde(rename = "p50_s", with = "as_seconds")]
    pub p50: Duration,
    /// 90th percentile of the response times.
    #[serde(rename = "p90_s", with = "as_seconds")]
    pub p90: Duration,
    /// 99th percentile of the response times.
    #[serde(rename = "p99_s", with = "as_seconds")]
    pub p99: Duration,
    /// Maximum of the response times.
    #[serde(rename = "max_s", with = "as_seconds")]
    pub max: Duration,
}

/// Figures of a run at its end.
///
/// Every request of the measurement is counted in `sent`, and then either in `received`, or in
/// `failures` under the kind of its failure. `failures` also contains failed connects and failures
/// of the warm-up.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Plan that the run executed.
    pub plan: Plan,
    /// Address to which the users connected.
    pub address: SocketAddr,
    /// Start of the run as a Unix time in seconds.
    pub started_unix_s: u64,
    /// Reason why the run ended.
    pub ended: Ended,
    /// Time after which every user had a connection or a failure.
    #[serde(rename = "connecting_s", with = "as_seconds")]
    pub connecting: Duration,
    /// Duration of the measurement. For upload streams, the measurement lasts until the server has
    /// closed the connections, or the grace period is over.
    #[serde(rename = "duration_s", with = "as_seconds")]
    pub duration: Duration,
    /// Number of users with a connection at the end of the measurement.
    pub connected: usize,
    /// Number of requests scheduled for the measurement. In a closed loop, it equals `sent`.
    pub scheduled: u64,
    /// Number of requests sent.
    pub sent: u64,
    /// Number of requests answered.
    pub received: u64,
    /// Number of payload bytes that the kernel accepted.
    pub bytes_sent: u64,
    /// Number of payload bytes read.
    pub bytes_received: u64,
    /// Numbers of failures by their kind.
    pub failures: Failures,
    /// Number of connections that users opened after they had lost one.
    pub reconnects: u64,
    /// Number of connections that the server closed while no request was in flight. No request was
    /// lost.
    pub closed_idle: u64,
    /// Number of numbered datagrams that arrived after their timeout, or twice.
    pub late_answers: u64,
    /// Times from the intended sending of each answered request to its answer.
    pub response: Histogram,
    /// Times from the actual sending of each answered request to its answer.
    pub service: Histogram,
    /// Times from the SYN to the establishment of the connection.
    pub connect: Histogram,
    /// Ages of lost requests when they were given up. Their response times would have been longer.
    pub lost: Histogram,
    /// Figures that show how well the tester itself kept to the schedule.
    pub generator: Generator,
    /// Figures about a tester that was too slow for the plan. `None` if it was fast enough.
    /// Otherwise the figures of the report do not describe the server alone.
    pub fell_behind: Option<FellBehind>,
    /// Figures of the measurement's periods, in order of time.
    pub periods: Vec<Period>,
    /// CPU time that all threads of this process used during the measurement.
    #[serde(rename = "cpu_s", with = "as_seconds")]
    pub cpu: Duration,
    /// Maximum resident memory of this process in bytes.
    pub memory_bytes_max: u64,
    /// Number of segments that all programs retransmitted in this network namespace during the
    /// measurement (`/proc/net/snmp`). `None` if the file cannot be read.
    pub retransmits: Option<u64>,
}

impl Report {
    /// Returns the number of answers per second during the measurement.
    pub fn rate(&self) -> f64 {
        self.per_second(self.received)
    }

    /// Returns the number of payload bits per second that were sent to the server.
    pub fn bits_sent(&self) -> f64 {
        self.per_second(self.bytes_sent) * 8.
    }

    /// Returns the number of payload bits per second that were received from the server.
    pub fn bits_received(&self) -> f64 {
        self.per_second(self.bytes_received) * 8.
    }

    fn per_second(&self, count: u64) -> f64 {
        match self.duration.as_secs_f64() {
            0. => 0.,
            seconds => count as f64 / seconds,
        }
    }

    /// Merges the report of another run into this one. Durations and CPU times are added, and the
    /// periods are appended. `fell_behind` is kept if either report has it.
    pub fn merge(&mut self, other: &Self) {
        let offset = self.duration;
        self.connecting += other.connecting;
        self.duration += other.duration;
        self.connected = other.connected;
        self.scheduled += other.scheduled;
        self.sent += other.sent;
        self.received += other.received;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.failures.merge(&other.failures);
        self.reconnects += other.reconnects;
        self.closed_idle += other.closed_idle;
        self.late_answers += other.late_answers;
        self.response.merge(&other.response);
        self.service.merge(&other.service);
        self.connect.merge(&other.connect);
        self.lost.merge(&other.lost);
        self.generator.merge(&other.generator);
        self.fell_behind = self.fell_behind.take().or_else(|| other.fell_behind.clone());
        let moved = |it: &Period| Period { at: it.at + offset, ..it.clone() };
        self.periods.extend(other.periods.iter().map(moved));
        self.cpu += other.cpu;
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
        self.retransmits = self.retransmits.zip(other.retransmits).map(|(a, b)| a + b);
    }
}

/// Reason why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ended {
    /// The duration of the plan elapsed.
    Duration,
    /// As many requests as the plan requires were answered or lost.
    Requests,
    /// The caller set `stop`. The figures cover the time until then.
    Stopped,
    /// No user had a connection after its first attempt. `failures` contains the reasons.
    NoConnection,
}

/// Figures that show how well the tester itself kept to the schedule.
#[derive(Clone, Debug, Serialize)]
pub struct Generator {
    /// Delays of requests that were sent late although a user was free. The tester itself caused
    /// them.
    pub lateness: Histogram,
    /// Number of open-loop requests that were due while every user awaited an answer. With more
    /// users, they would be sent in time. The response times include the time that they waited.
    pub waited_for_user: u64,
    /// Number of requests that were due in the measurement, but never sent.
    pub unsent: u64,
    /// Fraction of the measurement in which the busiest thread did not sleep, between 0 and 1.
    pub busy: f64,
}

impl Generator {
    fn merge(&mut self, other: &Self) {
        self.lateness.merge(&other.lateness);
        self.waited_for_user += other.waited_for_user;
        self.unsent += other.unsent;
        self.busy = self.busy.max(other.busy);
    }
}

/// Figures that show how far the tester fell behind the plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FellBehind {
    /// Number of requests that were sent more than [`FellBehind::LATE`] after they were due.
    pub late: u64,
    /// Fraction of the sent requests that were late, between 0 and 1.
    pub late_share: f64,
    /// 99th percentile of the delays.
    #[serde(rename = "lateness_p99_s", with = "as_seconds")]
    pub lateness_p99: Duration,
    /// Maximum of the delays.
    #[serde(rename = "lateness_max_s", with = "as_seconds")]
    pub lateness_max: Duration,
    /// Number of requests that were due, but never sent because the tester was busy.
    pub unsent: u64,
}

impl FellBehind {
    /// Minimum delay of a request that counts as late, well above the delay of a wake-up on an idle
    /// machine.
    pub const LATE: Duration = Duration::from_millis(1);
    /// Maximum fraction of late or unsent requests. If it is exceeded, the report contains this
    /// mark.
    pub const SHARE: f64 = 0.01;
    /// Minimum fraction of time in which a thread is busy for unsent requests to be attributed to
    /// the tester.
    pub const BUSY: f64 = 0.95;

    /// Returns the mark if the run exceeded a limit. `None` if it did not.
    pub(crate) fn of(generator: &Generator, scheduled: u64) -> Option<Self> {
        let late = generator.lateness.count_above(Self::LATE);
        let late_share = late as f64 / generator.lateness.count().max(1) as f64;
        let unsent = if generator.busy >= Self::BUSY { generator.unsent } else { 0 };
        let unsent_share = unsent as f64 / scheduled.max(1) as f64;
        (late_share > Self::SHARE || unsent_share > Self::SHARE).then(|| Self {
            late,
            late_share,
            lateness_p99: generator.lateness.quantile(0.99),
            lateness_max: generator.lateness.max(),
            unsent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(late: u64, of: u64, unsent: u64, busy: f64) -> Generator {
        let mut lateness = Histogram::new();
        (0..of).for_each(|n| {
            lateness.record(Duration::from_micros(if n < late { 3000 } else { 20 }));
        });
        Generator { lateness, waited_for_user: 0, unsent, busy }
    }

    #[test]
    fn a_run_is_marked_when_more_than_a_hundredth_was_late() {
        assert_eq!(FellBehind::of(&generator(10, 1000, 0, 0.5), 1000), None);
        let mark = FellBehind::of(&generator(20, 1000, 0, 0.5), 1000).expect("2 % were late");
        assert_eq!((mark.late, mark.late_share, mark.unsent), (20, 0.02, 0));
        assert!(mark.lateness_max >= Duration::from_millis(3));
    }

    #[test]
    fn unsent_requests_mark_a_run_only_if_the_tester_had_no_time_left() {
        assert_eq!(FellBehind::of(&generator(0, 500, 500, 0.4), 1000), None);
        let mark = FellBehind::of(&generator(0, 500, 500, 0.99), 1000).expect("half is unsent");
        assert_eq!(mark.unsent, 500);
        assert_eq!(FellBehind::of(&generator(0, 0, 0, 1.), 0), None);
    }
}
