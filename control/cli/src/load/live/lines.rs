//! Shows progress as lines, for files, pipes and terminals that do not support a view.

use std::time::Duration;

use towpath_load::results::figures;
use towpath_load::{Plan, ReportSnapshot, RunPhase};

use super::{Heading, RunEnd};
use crate::messages::Messages;

/// Minimum time between two progress lines.
const EVERY: Duration = Duration::from_secs(1);

/// Progress display by lines. The message thread writes them, so that a slow reader does not delay
/// the load test.
pub struct Lines {
    messages: Messages,
    /// Time since the start of the run at which the last line was written.
    last: Duration,
    end: RunEnd,
}

impl Lines {
    /// Creates a display whose lines are written by `messages`.
    pub fn new(messages: Messages) -> Self {
        Self { messages, last: Duration::ZERO, end: RunEnd::default() }
    }

    /// Prints the heading of a load test run.
    pub fn begin(&mut self, heading: &Heading, plan: &Plan) {
        self.last = Duration::ZERO;
        self.end = RunEnd::of(plan);
        let step = if heading.step.is_empty() { "" } else { ": " };
        self.messages.post(&format!("{}{step}{}, {}", heading.step, heading.server, heading.load));
    }

    /// Prints a progress line if a second has passed since the last one.
    pub fn show(&mut self, now: &ReportSnapshot) {
        if now.since_start >= self.last + EVERY {
            self.last = now.since_start;
            self.messages.post(&line(now, self.end));
        }
    }

    /// Prints the result of one of several runs.
    pub fn tell(&self, line: &str) {
        self.messages.post(line);
    }
}

/// Formats the current results as a progress line.
fn line(now: &ReportSnapshot, end: RunEnd) -> String {
    let users = format!("{} of {} connected", now.connected, now.users);
    let failed = match now.failures.total() {
        0 => String::new(),
        count => format!(", {count} failed"),
    };
    let begin = match now.phase {
        RunPhase::Connecting => return format!("connecting: {users}{failed}"),
        RunPhase::WarmingUp => return format!("warming up: {users}{failed}"),
        RunPhase::Draining => return format!("waiting for answers: {users}{failed}"),
        RunPhase::Measuring => {
            let tenths = now.elapsed.as_secs_f64() * 10.;
            let elapsed = figures::time(Duration::from_secs_f64(tenths.round() / 10.));
            match end.requests {
                Some(all) => format!("{elapsed}, {} of {all} requests", now.sent),
                None => format!("{elapsed} of {}", figures::time(end.duration)),
            }
        }
    };
    let Some(period) = &now.period else { return format!("{begin}: {users}{failed}") };
    let seconds = period.length.as_secs_f64().max(1e-9);
    let out = figures::bits(period.bytes_sent as f64 * 8. / seconds);
    let back = figures::bits(period.bytes_received as f64 * 8. / seconds);
    let (rate, times) = if period.received > 0 {
        let times = [("p50", period.p50), ("p99", period.p99), ("max", period.max)];
        let times = times.map(|(name, time)| format!(", {name} {}", figures::time(time)));
        (figures::rate(period.received as f64 / seconds), times.concat())
    } else {
        ("no answers".to_owned(), String::new())
    };
    format!("{begin}: {rate}{times}, {out} sent, {back} received, {users}{failed}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_load::results::samples;

    fn end(seconds: u64) -> RunEnd {
        RunEnd { duration: Duration::from_secs(seconds), requests: None }
    }

    #[test]
    fn a_run_that_ends_after_requests_counts_them() {
        let end = RunEnd { requests: Some(4004), ..end(1 << 20) };
        let text = line(&samples::snapshot(), end);
        assert!(text.starts_with("2s, 2002 of 4004 requests: "), "{text}");
        assert_eq!(end.share(&samples::snapshot()), 0.5);
    }

    #[test]
    fn lines_tell_the_last_period() {
        let now = samples::snapshot();
        let text = line(&now, end(3));
        let wanted = "2s of 3s: 1000/s, p50 502µs, p99 1.99ms, max 2ms, 48 kbit/s sent, \
                      48 kbit/s received, 9 of 10 connected, 3 failed";
        assert_eq!(text, wanted);
    }

    #[test]
    fn phases_without_figures_say_how_many_are_connected() {
        let mut now = samples::snapshot();
        for (phase, word) in [
            (RunPhase::Connecting, "connecting: 9 of 10"),
            (RunPhase::WarmingUp, "warming up: 9 of 10"),
            (RunPhase::Draining, "waiting for answers: 9 of 10"),
        ] {
            now.phase = phase;
            assert!(line(&now, end(0)).starts_with(word));
        }
        now.phase = RunPhase::Measuring;
        now.period = None;
        assert_eq!(line(&now, end(3)), "2s of 3s: 9 of 10 connected, 3 failed");
    }
}
