//! Formats figures for people.

use std::time::Duration;

use crate::{Arrivals, Failure, FellBehind, Histogram, Plan, Protocol, Report, Shape, Spacing};

/// Names and fractions of the percentiles in tables and plots.
pub const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.)];

/// Returns the times that a report shows first.
///
/// For an open loop, these are the response times, because they include stalls of the server. For a
/// closed loop, these are the service times.
pub fn main_times(report: &Report) -> &Histogram {
    if is_open(&report.plan) { &report.response } else { &report.service }
}

/// Returns whether the plan is an open loop, in which requests are due by a schedule.
pub fn is_open(plan: &Plan) -> bool {
    matches!(plan.arrivals, Arrivals::Open { .. })
}

/// Formats a time with three digits and its unit, in the syntax of options, for example `1.07ms`.
pub fn time(time: Duration) -> String {
    let ns = time.as_nanos() as f64;
    let (value, unit) = match ns {
        _ if ns < 999.5 => return format!("{ns:.0}ns"),
        _ if ns < 999.5e3 => (ns / 1e3, "µs"),
        _ if ns < 999.5e6 => (ns / 1e6, "ms"),
        _ if ns < 99.95e9 => (ns / 1e9, "s"),
        _ => return whole_seconds(time),
    };
    format!("{}{unit}", digits(value))
}

/// Formats a time rounded to seconds, for example `1m30s`.
pub fn whole_seconds(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_millis() >= 500);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, 0) => format!("{minutes}m"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, 0, 0) => format!("{hours}h"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Formats a number between 1 and 1000 with three significant digits. Omits trailing zeros.
fn digits(value: f64) -> String {
    let text = match value {
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 99.95 => format!("{value:.1}"),
        _ => return format!("{value:.0}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a rate per second, for example `9873/s`.
pub fn rate(per_second: f64) -> String {
    if per_second < 100. && per_second > 0. {
        format!("{}/s", digits(per_second))
    } else {
        format!("{per_second:.0}/s")
    }
}

/// Formats a number of bits per second with a decimal unit.
pub fn bits(per_second: f64) -> String {
    let (value, unit) = match per_second {
        bits if bits < 999.5 => return format!("{bits:.0} bit/s"),
        bits if bits < 999.5e3 => (bits / 1e3, "kbit/s"),
        bits if bits < 999.5e6 => (bits / 1e6, "Mbit/s"),
        bits => (bits / 1e9, "Gbit/s"),
    };
    format!("{} {unit}", digits(value))
}

/// Formats a number of bytes with a binary unit.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < units.len() {
        value /= 1024.;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{} {}", digits(value), units[unit]) }
}

/// Formats a fraction as a percentage, but never rounds to 0 % or 100 %.
pub fn percent(share: f64) -> String {
    match share * 100. {
        percent if percent > 0. && percent < 0.05 => "less than 0.1 %".to_owned(),
        percent if percent < 9.95 => format!("{percent:.1} %"),
        percent if percent > 99. && percent < 100. => format!("{percent:.2} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// Formats a count, followed by the singular or the plural of its noun.
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Describes the protocol of a plan.
pub fn protocol(plan: &Plan) -> String {
    match &plan.protocol {
        Protocol::Tcp => "TCP".to_owned(),
        Protocol::Udp => "UDP".to_owned(),
        Protocol::Http1(request) => format!("HTTP/1.1 {} {}", request.method, request.path),
        Protocol::Redis { words } => format!("redis {}", words.join(" ")),
    }
}

/// Describes the traffic pattern of a plan.
pub fn pattern(plan: &Plan) -> String {
    match plan.shape {
        Shape::Request => "requests on open connections".to_owned(),
        Shape::ConnectEach => "a connection for each request".to_owned(),
        Shape::StreamUp => "streams to the server".to_owned(),
        Shape::StreamDown => "streams from the server".to_owned(),
        Shape::StreamBoth => "streams each way".to_owned(),
        Shape::Idle { heartbeat } => {
            format!("idle connections with a request each {}", time(heartbeat))
        }
        Shape::Burst { every } => format!("a burst of all users each {}", time(every)),
    }
}

/// Describes the planned length of a measurement, which is a time or a number of requests.
pub fn planned(plan: &Plan) -> String {
    match plan.requests {
        Some(count) => counted(count, "request", "requests"),
        None => time(plan.duration),
    }
}

/// Describes the rule that determines when requests are due.
pub fn arrivals(plan: &Plan) -> String {
    let users = counted(plan.users as u64, "user", "users");
    match plan.arrivals {
        Arrivals::Open { per_second, spacing } => {
            let spacing = match spacing {
                Spacing::Uniform => "equal gaps",
                Spacing::Poisson => "Poisson arrivals",
            };
            format!("open loop of {} with {spacing}, {users}", rate(per_second))
        }
        Arrivals::Closed if !matches!(plan.shape, Shape::Request | Shape::ConnectEach) => users,
        Arrivals::Closed if plan.interval.is_zero() => format!("closed loop of {users}"),
        Arrivals::Closed => {
            format!("closed loop of {users} with pauses of {}", time(plan.interval))
        }
    }
}

/// Fraction of unsent requests above which they are reported. At the end of a run, one or two
/// requests are usually unsent.
pub const UNSENT_NOTED: f64 = 0.001;

/// Returns the fraction of due requests that were never sent, between 0 and 1.
pub fn unsent_share(report: &Report) -> f64 {
    report.generator.unsent as f64 / report.scheduled.max(1) as f64
}

/// Describes the requests that were never sent. The text says whether the server or the tester was
/// too slow.
pub fn unsent(report: &Report) -> String {
    // At the end of a run, a few requests are unsent even if neither side was too slow.
    let why = if unsent_share(report) <= UNSENT_NOTED {
        "their users still waited when the run ended"
    } else if report.generator.busy >= FellBehind::BUSY {
        "the tester did not hold the rate"
    } else {
        "the server did not hold the rate"
    };
    format!(
        "{} of {} due requests never left: {why}. They are in no time below, and each counts as \
         too late in --assert and --search",
        report.generator.unsent, report.scheduled
    )
}

/// Returns whether the busiest thread had no idle time, although no request of a schedule was late.
pub fn is_tester_limit(report: &Report) -> bool {
    report.generator.busy >= FellBehind::BUSY && report.fell_behind.is_none()
}

/// Returns the warning that the tester itself had no idle time. In a closed loop, requests have no
/// schedule, so no delayed request shows this.
pub fn tester_limit(report: &Report) -> String {
    format!(
        "WAS THE LIMIT: its busiest thread was busy {}. The server may do more, and the times are \
         partly the tester's own: give it more --threads, or a machine of its own",
        percent(report.generator.busy)
    )
}

/// Fraction of answers that are followed by a reconnect. From this fraction on, the report says
/// that the server closes connections.
const CLOSES_SHARE: f64 = 0.1;

/// Hint for a server that closes its connections after answers.
pub const CLOSES: &str = "The server closes connections after its answers. The connects are in no \
                          time of a request: --shape connect counts them";

/// Returns whether the server closed its connections after answers.
pub fn closes_after_answers(report: &Report) -> bool {
    let is_http = matches!(report.plan.protocol, Protocol::Http1(_));
    // Subtract the failures, because users also reconnect after a failed request.
    let closed = report.reconnects.saturating_sub(report.failures.total());
    let share = closed as f64 / report.received.max(1) as f64;
    is_http && report.plan.shape == Shape::Request && share > CLOSES_SHARE
}

/// Returns an explanation of the cause of a failure, with a remedy.
pub fn explanation(kind: Failure) -> &'static str {
    match kind {
        Failure::Refused => "no program listens at this address and port: start the server there",
        Failure::Unreachable => "this machine has no route to the host, or a firewall refuses it",
        Failure::ConnectTimeout => {
            "no answer to the SYN within --connect-timeout: a firewall that drops it, \
             or a listener whose accept queue is full"
        }
        Failure::NoLocalPorts => {
            "all ephemeral ports of the local addresses are used: \
             give more of them with --local-address, or keep connections open"
        }
        Failure::NoDescriptors => {
            "the limit on file descriptors is reached: ulimit -n shows and raises it"
        }
        Failure::Reset => "the server, or a machine between, aborted an open connection (RST)",
        Failure::Closed => {
            "the server closed a connection that owed an answer: \
             for servers that close after each answer, use --shape connect"
        }
        Failure::NoAnswer => {
            "not a byte of the answer within --timeout: a lost datagram, or a stall"
        }
        Failure::ShortAnswer => {
            "a part of the answer only within --timeout: \
             --answer says how long answers are"
        }
        Failure::LongAnswer => {
            "more bytes than an answer has: the server answers more than asked; \
             --answer says how long answers are"
        }
        Failure::WrongAnswer => {
            "the answer is not the message: the server does not echo; \
             for other servers, use --answer any"
        }
        Failure::Status => "the server answered that it failed (HTTP status, redis error)",
        Failure::Unanswered => "the run ended before the answer came",
        _ => "an error of the kernel, which the example names",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let cases = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1µs"),
            (1_074_000, "1.07ms"),
            (20_400_000, "20.4ms"),
            (999_400, "999µs"),
            (999_600, "1ms"),
            (10_000_000_000, "10s"),
            (90_000_000_000, "90s"),
            (100_000_000_000, "1m40s"),
            (3_600_000_000_000, "1h"),
        ];
        for (ns, text) in cases {
            assert_eq!(time(Duration::from_nanos(ns)), text);
        }
        assert_eq!(whole_seconds(Duration::from_millis(1499)), "1s");
        assert_eq!(whole_seconds(Duration::from_millis(59_500)), "1m");
    }

    #[test]
    fn rates_and_sizes_have_units() {
        let rates = [(0., "0/s"), (0.5, "0.5/s"), (12.34, "12.3/s"), (9873.4, "9873/s")];
        for (value, text) in rates {
            assert_eq!(rate(value), text);
        }
        assert_eq!((bits(0.), bits(1.2e9)), ("0 bit/s".into(), "1.2 Gbit/s".into()));
        assert_eq!((bytes(6), bytes(1 << 20)), ("6 bytes".into(), "1 MiB".into()));
        assert_eq!(bytes(1_047_000), "1022 KiB");
    }

    #[test]
    fn shares_are_not_rounded_away() {
        let cases = [
            (0., "0.0 %"),
            (0.0001, "less than 0.1 %"),
            (0.023, "2.3 %"),
            (0.5, "50 %"),
            (0.9999, "99.99 %"),
            (1., "100 %"),
        ];
        for (share, text) in cases {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn connects_after_failures_are_no_closes() {
        let mut report = crate::results::samples::report();
        report.plan.protocol = Protocol::Http1(crate::HttpRequest::get("/"));
        report.reconnects = report.received;
        assert!(closes_after_answers(&report));
        (report.received, report.reconnects) = (0, report.failures.total());
        assert!(!closes_after_answers(&report));
    }

    #[test]
    fn explanations_exist_for_every_kind() {
        let all: std::collections::BTreeSet<_> = Failure::ALL.map(explanation).into();
        assert_eq!(all.len(), Failure::ALL.len());
    }
}
