//! Figures of a run: snapshots while it runs, and the final report.

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
    /// Users connect; no requests yet.
    Connecting,
    /// Traffic excluded from all figures.
    WarmingUp,
    /// The measurement.
    Measuring,
    /// Waiting for outstanding answers; no new requests are sent.
    Draining,
}

/// Current figures, for a live view. Counts cover the measurement unless stated otherwise.
#[derive(Clone, Debug)]
pub struct ReportSnapshot {
    /// Current phase.
    pub phase: RunPhase,
    /// Time since the run began, including the connect phase.
    pub since_start: Duration,
    /// Elapsed time of the measurement; zero before it.
    pub elapsed: Duration,
    /// Users of the plan.
    pub users: usize,
    /// Users with a connection (TCP) or socket (UDP).
    pub connected: usize,
    /// Connects in progress.
    pub connecting: usize,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered.
    pub received: u64,
    /// Payload bytes handed to the kernel.
    pub bytes_sent: u64,
    /// Payload bytes read.
    pub bytes_received: u64,
    /// Failures since the run began.
    pub failures: Failures,
    /// Response times so far.
    pub response: Histogram,
    /// Service times so far.
    pub service: Histogram,
    /// Delay of the oldest request that is due and not sent; zero if none is late.
    pub behind: Duration,
    /// Figures of the last complete period; None before the end of the measurement's first period.
    pub period: Option<Period>,
}

/// Figures of one period of the measurement. Requests and answers count when they are sent and
/// read.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Period {
    /// End of the period, relative to the beginning of the measurement.
    #[serde(rename = "at_s", with = "as_seconds")]
    pub at: Duration,
    /// Length of the period. The last period may be shorter.
    #[serde(rename = "length_s", with = "as_seconds")]
    pub length: Duration,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered.
    pub received: u64,
    /// Failures of all kinds.
    pub failed: u64,
    /// Payload bytes handed to the kernel.
    pub bytes_sent: u64,
    /// Payload bytes read.
    pub bytes_received: u64,
    /// Users with a connection at the end of the period.
    pub connected: usize,
    /// Median response time in seconds; zero without answers, as for the three fields below.
    #[serde(rename = "p50_s", with = "as_seconds")]
    pub p50: Duration,
    /// 90th percentile of the response times.
    #[serde(rename = "p90_s", with = "as_seconds")]
    pub p90: Duration,
    /// 99th percentile of the response times.
    #[serde(rename = "p99_s", with = "as_seconds")]
    pub p99: Duration,
    /// Maximum response time.
    #[serde(rename = "max_s", with = "as_seconds")]
    pub max: Duration,
}

/// Final figures of a run.
///
/// Every request of the measurement is counted in `sent`, and then either in `received`, or in
/// `failures` under the kind of its failure. `failures` also contains failed connects and failures
/// of the warm-up.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Plan of the run.
    pub plan: Plan,
    /// Address that the users connected to.
    pub address: SocketAddr,
    /// Beginning of the run as a Unix time in seconds.
    pub started_unix_s: u64,
    /// Reason for which the run ended.
    pub ended: Ended,
    /// Time until every user had a connection or a failure.
    #[serde(rename = "connecting_s", with = "as_seconds")]
    pub connecting: Duration,
    /// Duration of the measurement. For upload streams, it lasts until the server has closed or the
    /// grace period is over.
    #[serde(rename = "duration_s", with = "as_seconds")]
    pub duration: Duration,
    /// Users with a connection at the end of the measurement.
    pub connected: usize,
    /// Requests scheduled for the measurement; equal to `sent` in a closed loop.
    pub scheduled: u64,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered.
    pub received: u64,
    /// Payload bytes handed to the kernel.
    pub bytes_sent: u64,
    /// Payload bytes read.
    pub bytes_received: u64,
    /// Failures by kind.
    pub failures: Failures,
    /// Connections that users opened after losing one.
    pub reconnects: u64,
    /// Connections that the server closed while no request was in flight, so that no request was
    /// lost.
    pub closed_idle: u64,
    /// Numbered datagrams that arrived after their timeout, or twice.
    pub late_answers: u64,
    /// Times from the intended send time to the answer, of the answered requests.
    pub response: Histogram,
    /// Times from the actual send time to the answer, of the answered requests.
    pub service: Histogram,
    /// Times from the SYN to the established connection.
    pub connect: Histogram,
    /// Ages of the lost requests when they were given up, hence lower bounds of their response
    /// times.
    pub lost: Histogram,
    /// Figures on how well the tester itself kept to the schedule.
    pub generator: Generator,
    /// Present if the tester was too slow for the plan, so that the figures do not describe the
    /// server alone.
    pub fell_behind: Option<FellBehind>,
    /// Periods of the measurement, in order of time.
    pub periods: Vec<Period>,
    /// CPU time of all threads of this process during the measurement.
    #[serde(rename = "cpu_s", with = "as_seconds")]
    pub cpu: Duration,
    /// Peak resident memory of this process, in bytes.
    pub memory_bytes_max: u64,
    /// Segments retransmitted in this network namespace during the measurement, of all programs
    /// (`/proc/net/snmp`). None if the file cannot be read.
    pub retransmits: Option<u64>,
}

impl Report {
    /// Returns answers per second of the measurement.
    pub fn rate(&self) -> f64 {
        self.per_second(self.received)
    }

    /// Returns payload bits per second sent to the server.
    pub fn bits_sent(&self) -> f64 {
        self.per_second(self.bytes_sent) * 8.
    }

    /// Returns payload bits per second received from the server.
    pub fn bits_received(&self) -> f64 {
        self.per_second(self.bytes_received) * 8.
    }

    fn per_second(&self, count: u64) -> f64 {
        match self.duration.as_secs_f64() {
            0. => 0.,
            seconds => count as f64 / seconds,
        }
    }

    /// Merges the report of another run. Durations and CPU times are added, periods appended, and
    /// `fell_behind` is kept if either report has it.
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

/// Reason for which a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ended {
    /// The plan's duration elapsed.
    Duration,
    /// The plan's number of requests was answered or lost.
    Requests,
    /// The caller set `stop`; the figures cover the time until then.
    Stopped,
    /// No user had a connection after its first attempt; see `failures` for the reasons.
    NoConnection,
}

/// Figures on how well the tester itself kept to the schedule.
#[derive(Clone, Debug, Serialize)]
pub struct Generator {
    /// Delays with which requests were sent although a user was free, caused by the tester itself.
    pub lateness: Histogram,
    /// Open-loop requests that were due while every user awaited an answer. With more users these
    /// would be sent in time; their wait is included in the response times.
    pub waited_for_user: u64,
    /// Requests that were due in the measurement and never sent.
    pub unsent: u64,
    /// Fraction of the measurement in which the busiest thread did not sleep, 0 to 1.
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

/// Figures on how far the tester fell behind the plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FellBehind {
    /// Requests sent more than [`FellBehind::LATE`] after they were due.
    pub late: u64,
    /// Fraction of the sent requests that were late, 0 to 1.
    pub late_share: f64,
    /// 99th percentile of the lateness.
    #[serde(rename = "lateness_p99_s", with = "as_seconds")]
    pub lateness_p99: Duration,
    /// Maximum lateness.
    #[serde(rename = "lateness_max_s", with = "as_seconds")]
    pub lateness_max: Duration,
    /// Requests that were due and never sent because the tester was busy.
    pub unsent: u64,
}

impl FellBehind {
    /// Lateness from which a request counts as late, well above the wake-up delay of an idle
    /// machine.
    pub const LATE: Duration = Duration::from_millis(1);
    /// Maximum fraction of late or unsent requests in a report without this mark.
    pub const SHARE: f64 = 0.01;
    /// Busy fraction from which unsent requests are attributed to the tester.
    pub const BUSY: f64 = 0.95;

    /// Returns the mark if the run exceeded a limit.
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
