//! Figures of a run: while it goes on, and at its end.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::failure::Failures;
use crate::histogram::Histogram;
use crate::plan::{Plan, as_seconds};

/// Part of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// Users connect; no requests yet.
    Connecting,
    /// Traffic that no figure includes.
    WarmingUp,
    /// The measurement.
    Measuring,
    /// Waiting for outstanding answers; no new requests.
    Draining,
}

/// Figures so far, for a live view. Counts are those of the measurement unless they say otherwise.
#[derive(Clone, Debug)]
pub struct ReportSnapshot {
    /// Part of the run that goes on.
    pub phase: RunPhase,
    /// Time since the run began, connecting included.
    pub since_start: Duration,
    /// Time of the measurement so far; zero before it.
    pub elapsed: Duration,
    /// Users of the plan.
    pub users: usize,
    /// Users with a connection (TCP) or socket (UDP).
    pub connected: usize,
    /// Connects under way.
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
    /// Delay of the oldest request that is due and not sent; zero where none is late.
    pub behind: Duration,
    /// The last period alone; none before the first one of the measurement is over.
    pub period: Option<Period>,
}

/// Figures of one period of the measurement, by when requests were sent and answers read.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Period {
    /// End of the period, from the beginning of the measurement.
    #[serde(rename = "at_s", with = "as_seconds")]
    pub at: Duration,
    /// Length of the period; the last may be shorter.
    #[serde(rename = "length_s", with = "as_seconds")]
    pub length: Duration,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered.
    pub received: u64,
    /// Failures of every kind.
    pub failed: u64,
    /// Payload bytes handed to the kernel.
    pub bytes_sent: u64,
    /// Payload bytes read.
    pub bytes_received: u64,
    /// Users with a connection at its end.
    pub connected: usize,
    /// Median response time in seconds; zero without answers, as the three below.
    #[serde(rename = "p50_s", with = "as_seconds")]
    pub p50: Duration,
    /// 90 % of the response times are at most this.
    #[serde(rename = "p90_s", with = "as_seconds")]
    pub p90: Duration,
    /// 99 % of the response times are at most this.
    #[serde(rename = "p99_s", with = "as_seconds")]
    pub p99: Duration,
    /// Longest response time.
    #[serde(rename = "max_s", with = "as_seconds")]
    pub max: Duration,
}

/// Figures of a run.
///
/// Every request of the measurement is in `sent`. Each is then in `received`, or in `failures`
/// under the kind that says how it was lost. Failures of connects and of the warm-up are in
/// `failures` as well.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Plan of the run.
    pub plan: Plan,
    /// Address that the users connected to.
    pub address: SocketAddr,
    /// Beginning of the run, in seconds since 1970.
    pub started_unix_s: u64,
    /// Reason for which the run ended.
    pub ended: Ended,
    /// Time until every user had a connection or a failure.
    #[serde(rename = "connecting_s", with = "as_seconds")]
    pub connecting: Duration,
    /// Length of the measurement; for streams up, until the server closed or the grace was over.
    #[serde(rename = "duration_s", with = "as_seconds")]
    pub duration: Duration,
    /// Users with a connection at the end of the measurement.
    pub connected: usize,
    /// Requests that the schedule had for the measurement; equal to `sent` in a closed loop.
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
    /// Connections that users made after losing one.
    pub reconnects: u64,
    /// Connections that the server closed while no request was under way: no request was lost.
    pub closed_idle: u64,
    /// Numbered datagrams that came back after their timeout, or twice.
    pub late_answers: u64,
    /// Times from the intended sending to the answer, of the answered requests.
    pub response: Histogram,
    /// Times from the real sending to the answer, of the answered requests.
    pub service: Histogram,
    /// Times from SYN to connection.
    pub connect: Histogram,
    /// Ages of the lost requests when they were given up: lower bounds of their response times.
    pub lost: Histogram,
    /// How well the tester itself kept to the schedule.
    pub generator: Generator,
    /// Mark that the tester was too slow for the plan: its figures are then not the server's alone.
    pub fell_behind: Option<FellBehind>,
    /// Periods of the measurement, in order.
    pub periods: Vec<Period>,
    /// CPU time of this process during the measurement, all threads.
    #[serde(rename = "cpu_s", with = "as_seconds")]
    pub cpu: Duration,
    /// Largest resident memory of this process, in bytes.
    pub memory_bytes_max: u64,
    /// Segments that the kernel of this network namespace retransmitted during the measurement,
    /// for all programs (`/proc/net/snmp`); none where it cannot be read.
    pub retransmits: Option<u64>,
}

impl Report {
    /// Answers per second of the measurement.
    pub fn rate(&self) -> f64 {
        self.per_second(self.received)
    }

    /// Payload bits per second to the server.
    pub fn bits_sent(&self) -> f64 {
        self.per_second(self.bytes_sent) * 8.
    }

    /// Payload bits per second from the server.
    pub fn bits_received(&self) -> f64 {
        self.per_second(self.bytes_received) * 8.
    }

    fn per_second(&self, count: u64) -> f64 {
        match self.duration.as_secs_f64() {
            0. => 0.,
            seconds => count as f64 / seconds,
        }
    }

    /// Adds the counts and histograms of another run: durations and CPU times add up, periods
    /// follow each other, and a mark of either run stays.
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
    /// The plan's duration was over.
    Duration,
    /// The plan's number of requests was answered or lost.
    Requests,
    /// The caller set `stop`; the figures hold for the time until then.
    Stopped,
    /// Not one user had a connection after the first attempt of each: `failures` says why.
    NoConnection,
}

/// How well the tester itself kept to the schedule.
#[derive(Clone, Debug, Serialize)]
pub struct Generator {
    /// Times by which requests were sent late although a user was free: the tester's own delay.
    pub lateness: Histogram,
    /// Requests of an open loop that were due while every user awaited an answer. More users let
    /// these be sent in time; their wait is in the response times.
    pub waited_for_user: u64,
    /// Requests that were due in the measurement and never sent.
    pub unsent: u64,
    /// Share of the measurement in which the busiest thread did not sleep, 0 to 1.
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

/// By how much the tester fell behind the plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FellBehind {
    /// Requests sent more than [`FellBehind::LATE`] after they were due.
    pub late: u64,
    /// Their share of all requests sent, 0 to 1.
    pub late_share: f64,
    /// 99 % of the requests were late by at most this.
    #[serde(rename = "lateness_p99_s", with = "as_seconds")]
    pub lateness_p99: Duration,
    /// Longest lateness.
    #[serde(rename = "lateness_max_s", with = "as_seconds")]
    pub lateness_max: Duration,
    /// Requests that were due and never sent while the tester had no time to sleep.
    pub unsent: u64,
}

impl FellBehind {
    /// Lateness beyond which a request counts as late: well above a wake-up of an idle machine.
    pub const LATE: Duration = Duration::from_millis(1);
    /// Share of late or unsent requests beyond which a run is marked.
    pub const SHARE: f64 = 0.01;
    /// Share of busy time from which unsent requests are the tester's own fault.
    pub const BUSY: f64 = 0.95;

    /// The mark of a run, if it deserves one.
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
