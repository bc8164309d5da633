//! Sample reports for the tests of this crate.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{
    Ended, Failure, Failures, Generator, Histogram, Period, Plan, Report, ReportSnapshot, RunPhase,
    Target,
};

/// Returns the address of the server in the sample reports.
pub fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7))
}

/// Returns `count` times between 0.1 ms and 1 ms. Every hundredth time is 2 ms.
pub fn times(count: u64) -> Histogram {
    let mut times = Histogram::new();
    for n in 0..count {
        let us = if n % 100 == 99 { 2000 } else { 100 + n % 100 * 9 };
        times.record(Duration::from_micros(us));
    }
    times
}

/// Returns the report of a closed loop that took 3 s and had three failures.
pub fn report() -> Report {
    let mut plan = Plan::new(Target::from(address()));
    plan.users = 10;
    plan.duration = Duration::from_secs(3);
    let mut failures = Failures::default();
    failures.add(Failure::Reset, 3, || "127.0.0.1:7: reset <by> peer".to_owned());
    let mut lateness = Histogram::new();
    lateness.record(Duration::from_micros(30));
    let period = |second: u64| Period {
        at: Duration::from_secs(second),
        length: Duration::from_secs(1),
        sent: 1001,
        received: 1000,
        failed: 1,
        bytes_sent: 6006,
        bytes_received: 6000,
        connected: 10,
        p50: Duration::from_micros(500 + second),
        p90: Duration::from_micros(900),
        p99: Duration::from_micros(1990),
        max: Duration::from_millis(2),
    };
    Report {
        plan,
        address: address(),
        started_unix_s: 1_700_000_000,
        ended: Ended::Duration,
        connecting: Duration::from_millis(12),
        duration: Duration::from_secs(3),
        connected: 10,
        scheduled: 3003,
        sent: 3003,
        received: 3000,
        bytes_sent: 18_018,
        bytes_received: 18_000,
        failures,
        reconnects: 3,
        closed_idle: 0,
        late_answers: 0,
        response: times(3000),
        service: times(3000),
        connect: times(13),
        lost: Histogram::new(),
        generator: Generator { lateness, waited_for_user: 0, unsent: 0, busy: 0.25 },
        fell_behind: None,
        periods: (1..=3).map(period).collect(),
        cpu: Duration::from_millis(300),
        memory_bytes_max: 20 << 20,
        retransmits: Some(0),
    }
}

/// Returns a snapshot of the sample run at its middle.
pub fn snapshot() -> ReportSnapshot {
    let report = report();
    ReportSnapshot {
        phase: RunPhase::Measuring,
        since_start: Duration::from_millis(2012),
        elapsed: Duration::from_secs(2),
        users: 10,
        connected: 9,
        connecting: 1,
        sent: 2002,
        received: 2000,
        bytes_sent: 12_012,
        bytes_received: 12_000,
        failures: report.failures,
        response: times(2000),
        service: times(2000),
        behind: Duration::ZERO,
        period: report.periods.get(1).cloned(),
    }
}
