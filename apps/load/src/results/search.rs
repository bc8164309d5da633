//! `--search`: finds the highest rate at which a quantile of the response times does not exceed a
//! bound.

use std::time::Duration;

use crate::{Ended, Report};
use serde::Serialize;

use super::figures;
use super::values::Limit;

/// Rate per second of the first step, unless `--rate` is given.
pub const START: f64 = 1000.;
/// Ratio of the lowest failed rate to the highest passed rate. The search ends if the ratio is at
/// most this value.
const CLOSE: f64 = 1.05;
/// Minimum rate per second of a search. At lower rates, a step has too few requests for a verdict.
const LEAST: f64 = 1.;
/// Maximum rate per second of a search, which is also the maximum of the tester.
const MOST: f64 = 1e8;

/// Steps of a search, and the rate that it found.
#[derive(Debug, Clone, Serialize)]
pub struct Search {
    /// Name of the quantile that is bounded, for example `p99`.
    pub quantile: String,
    /// Bound on the quantile in seconds.
    pub bound_s: f64,
    /// Steps of the search in the order of execution.
    pub steps: Vec<Step>,
    /// Highest rate per second that met the bound. `None` if no rate met it.
    pub rate: Option<f64>,
    /// Lowest rate above `rate` that missed the bound. `None` if the search ended before one missed
    /// it.
    pub missed: Option<f64>,
}

/// Step of a search: a run at one rate.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Rate per second that was requested.
    pub rate: f64,
    /// Quantile of the response times in seconds. `None` if there were no answers.
    pub quantile_s: Option<f64>,
    /// Reason why the bound is missed. `None` if it is met.
    pub missed: Option<Missed>,
    /// Figures of the run.
    pub report: Report,
}

/// Reason why a rate misses the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Too many requests were answered too late, or never.
    TooLate,
    /// The tester itself was behind the schedule.
    TesterBehind,
    /// The run was stopped early.
    Stopped,
}

impl Missed {
    /// Returns a description of the reason for a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::TooLate => "too late",
            Self::TesterBehind => "the tester fell behind",
            Self::Stopped => "stopped",
        }
    }
}

impl Step {
    /// Evaluates a run. The run meets the bound if the required fraction of all due requests was
    /// answered in time.
    pub fn new(rate: f64, limit: &Limit, report: Report) -> Self {
        let due = report.scheduled.max(report.sent).max(1) as f64;
        let in_time = if report.response.is_empty() {
            0.
        } else {
            report.response.share_below(limit.bound) * report.response.count() as f64
        };
        // Do not check the lateness of the tester if enough answers are in time. Response times
        // include this lateness, so the bound is met nevertheless.
        let missed = if report.ended == Ended::Stopped {
            Some(Missed::Stopped)
        } else if in_time / due >= limit.share {
            None
        } else if report.fell_behind.is_some() {
            Some(Missed::TesterBehind)
        } else {
            Some(Missed::TooLate)
        };
        let quantile = report.response.quantile(limit.share).as_secs_f64();
        let quantile_s = (!report.response.is_empty()).then_some(quantile);
        Self { rate, quantile_s, missed, report }
    }

    /// Returns whether the step meets the bound.
    pub fn holds(&self) -> bool {
        self.missed.is_none()
    }

    /// Formats the step as a line of text.
    pub fn line(&self) -> String {
        let quantile = self.quantile_s.map(|it| figures::time(Duration::from_secs_f64(it)));
        format!(
            "{:>10} asked  {:>10} answered  {:>8}  {}",
            figures::rate(self.rate),
            figures::rate(self.report.rate()),
            quantile.unwrap_or_else(|| "-".to_owned()),
            self.missed.map_or("kept", Missed::words),
        )
    }
}

impl Search {
    /// Creates a search that has no steps yet.
    pub fn new(limit: &Limit) -> Self {
        Self {
            quantile: limit.name.clone(),
            bound_s: limit.bound.as_secs_f64(),
            steps: Vec::new(),
            rate: None,
            missed: None,
        }
    }

    /// Returns the rate of the next step. `None` if the lowest failed and the highest passed rate
    /// are close enough.
    ///
    /// Doubles the rate until a rate misses the bound, and halves it until a rate meets the bound.
    /// Then continues with the geometric mean of both.
    pub fn next(&self, start: f64) -> Option<f64> {
        match (self.rate, self.missed) {
            (None, None) => Some(start),
            (Some(kept), None) => Some(kept * 2.).filter(|&rate| rate <= MOST),
            (None, Some(missed)) => Some(missed / 2.).filter(|&rate| rate >= LEAST),
            (Some(kept), Some(missed)) => {
                (missed / kept > CLOSE).then(|| (kept * missed).sqrt().round()).filter(|&rate| {
                    // Stop if there is no rate between the two, because rates below 20 per second
                    // are rounded to integers.
                    rate > kept && rate < missed
                })
            }
        }
    }

    /// Adds a completed step to the search.
    pub fn push(&mut self, step: Step) {
        if step.holds() {
            self.rate = Some(self.rate.map_or(step.rate, |rate| rate.max(step.rate)));
        } else if step.missed != Some(Missed::Stopped) {
            self.missed = Some(self.missed.map_or(step.rate, |rate| rate.min(step.rate)));
        }
        self.steps.push(step);
    }

    /// Returns the step of the highest rate that met the bound. `None` if no rate met it.
    pub fn best(&self) -> Option<&Step> {
        let rate = self.rate?;
        self.steps.iter().find(|step| step.holds() && step.rate == rate)
    }

    /// Returns whether the tester was the limit rather than the server. In this case, the server
    /// may support a higher rate.
    pub fn is_tester_limit(&self) -> bool {
        let next = self.missed_step();
        next.is_some_and(|step| step.missed == Some(Missed::TesterBehind))
    }

    /// Returns the step of the lowest rate that missed the bound. `None` if there is none.
    fn missed_step(&self) -> Option<&Step> {
        self.steps.iter().find(|step| !step.holds() && Some(step.rate) == self.missed)
    }

    /// Formats the rate that the search found.
    pub fn title(&self) -> String {
        match (self.rate, self.is_tester_limit()) {
            (Some(rate), true) => {
                format!("{} or more: the tester fell behind", figures::rate(rate))
            }
            (Some(rate), false) => figures::rate(rate),
            (None, true) => "no rate: the tester fell behind".to_owned(),
            (None, false) => "no rate".to_owned(),
        }
    }

    /// Describes the result of the search in a sentence.
    pub fn words(&self) -> String {
        let bound = figures::time(Duration::from_secs_f64(self.bound_s));
        let name = &self.quantile;
        let Some(rate) = self.rate else {
            return match self.missed {
                Some(rate) if self.is_tester_limit() => format!(
                    "No rate keeps {name} at {bound}: the tester itself fell behind at {}. More \
                     --threads or another machine may find one.",
                    figures::rate(rate)
                ),
                Some(rate) => {
                    let rate = figures::rate(rate);
                    format!("No rate keeps {name} at {bound}: {rate} does not either.")
                }
                None => format!("No step was finished: nothing is known about {name}."),
            };
        };
        let rate = figures::rate(rate);
        if self.is_tester_limit() {
            let above = self.missed.map(figures::rate).unwrap_or_default();
            return format!(
                "{rate} keeps {name} at {bound}, and a higher rate may: at {above} the tester \
                 itself fell behind. More --threads or another machine may find it."
            );
        }
        let found = format!("Highest rate that keeps {name} at {bound}: {rate}");
        let next = self.missed_step();
        match next.map(|step| (figures::rate(step.rate), step.missed)) {
            Some((above, _)) => format!("{found}. At {above} it is missed."),
            None => format!("{found}. No higher rate was tried."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{report, times};
    use super::*;

    fn limit() -> Limit {
        "p99=1ms".parse().expect("a limit")
    }

    fn mark() -> crate::FellBehind {
        crate::FellBehind {
            late: 20,
            late_share: 0.02,
            lateness_p99: Duration::from_millis(2),
            lateness_max: Duration::from_millis(3),
            unsent: 0,
        }
    }

    /// Returns a run in which `late` of 1000 requests took 5 ms.
    fn run(late: u64) -> Report {
        let mut response = crate::Histogram::new();
        (0..1000).for_each(|n| {
            response.record(Duration::from_micros(if n < late { 5000 } else { 100 }));
        });
        Report { response, scheduled: 1000, sent: 1000, received: 1000, ..report() }
    }

    #[test]
    fn lost_and_unsent_requests_miss_the_bound() {
        let judge = |report| Step::new(1000., &limit(), report).missed;
        assert_eq!(judge(run(10)), None);
        assert_eq!(judge(run(11)), Some(Missed::TooLate));
        let unsent = Report { scheduled: 1011, ..run(0) };
        assert_eq!(judge(unsent), Some(Missed::TooLate));
        let none = Report { response: times(0), received: 0, ..run(0) };
        assert_eq!(judge(none), Some(Missed::TooLate));
        let behind = |late| Report { fell_behind: Some(mark()), ..run(late) };
        assert_eq!(judge(behind(0)), None);
        assert_eq!(judge(behind(11)), Some(Missed::TesterBehind));
        let stopped = Report { ended: Ended::Stopped, ..run(0) };
        assert_eq!(judge(stopped), Some(Missed::Stopped));
    }

    /// Returns the rates of all steps with a server that meets the bound up to the rate `capacity`.
    fn rates(capacity: f64) -> (Vec<f64>, Search) {
        let mut search = Search::new(&limit());
        while let Some(rate) = search.next(START) {
            let late = if rate <= capacity { 0 } else { 500 };
            search.push(Step::new(rate, &limit(), run(late)));
            assert!(search.steps.len() < 50, "the search does not end");
        }
        (search.steps.iter().map(|step| step.rate).collect(), search)
    }

    #[test]
    fn rates_double_and_then_close_in() {
        let (rates, search) = rates(5000.);
        assert_eq!(rates[..4], [1000., 2000., 4000., 8000.]);
        let (kept, missed) = (search.rate.expect("one is kept"), search.missed.expect("one"));
        assert!(kept <= 5000. && missed > 5000. && missed / kept <= CLOSE, "{kept} {missed}");
        assert_eq!(search.best().map(|step| step.rate), Some(kept));
        assert!(search.words().starts_with("Highest rate that keeps p99 at 1ms: "));
    }

    #[test]
    fn rates_halve_where_the_first_one_misses() {
        let (rates, search) = rates(300.);
        assert_eq!(rates[..3], [1000., 500., 250.]);
        assert!(search.rate.is_some_and(|rate| rate > 280. && rate <= 300.), "{search:?}");
    }

    #[test]
    fn a_search_that_the_tester_ended_says_so_first() {
        let mut search = Search::new(&limit());
        search.push(Step::new(1000., &limit(), run(0)));
        assert!(!search.is_tester_limit());
        let behind = Report { fell_behind: Some(mark()), ..run(500) };
        search.push(Step::new(1040., &limit(), behind));
        assert!(search.is_tester_limit());
        assert_eq!(search.title(), "1000/s or more: the tester fell behind");
        assert!(search.words().starts_with("1000/s keeps p99 at 1ms, and a higher rate may:"));
        // A lower rate fails because the server itself is too slow.
        search.push(Step::new(1020., &limit(), run(500)));
        assert!(!search.is_tester_limit());
        assert_eq!(search.title(), "1000/s");
    }

    #[test]
    fn a_server_that_keeps_no_rate_ends_the_search() {
        let (_, search) = rates(0.);
        assert_eq!((search.rate, search.next(START)), (None, None));
        assert!(search.words().starts_with("No rate keeps p99"), "{}", search.words());
        assert!(search.best().is_none());
    }

    #[test]
    fn slow_servers_are_searched_to_whole_rates() {
        let (_, search) = rates(3.);
        assert!(search.rate.is_some_and(|rate| (2. ..=3.).contains(&rate)), "{search:?}");
    }
}
