//! `--compare`: runs two servers alternately, and compares their differences with the noise.

use crate::{Failures, Histogram, Report};
use serde::Serialize;

use super::figures;
use super::outcome::{Labelled, has_answers};
use super::statistics::{Ratio, SIGNIFICANT, median, rank_sum_p, ratio};

/// Runs of two servers in the order A B A B..., and the comparison of their figures.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The two servers A and B with their runs.
    pub sides: [Side; 2],
    /// Comparison of each figure.
    pub verdicts: Vec<Verdict>,
}

/// Server in a comparison of two, with its runs.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Name of the server as given on the command line.
    pub name: String,
    /// Runs of the server in the order of execution.
    pub runs: Vec<Report>,
}

/// Comparison of one figure of the two servers.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Kind of the compared figure.
    pub figure: ComparedFigure,
    /// Median of the figure over A's runs. Its unit is per second, bits per second, or seconds.
    pub a: f64,
    /// Median of the figure over B's runs, in the same unit.
    pub b: f64,
    /// Ratio of B's figure to A's figure. `None` if it is undefined.
    pub ratio: Option<Ratio>,
    /// Probability that the figures of two equal servers differ at least this much. `None` if the
    /// verdict is withheld.
    pub p: Option<f64>,
    /// Whether the difference between the servers exceeds the noise.
    pub differs: bool,
    /// Reason why the times are not compared. `None` if they are.
    pub withheld: Option<Withheld>,
}

/// Reason why the times of two servers cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Withheld {
    /// In a round of this server, no requests were answered.
    NoAnswers(Name),
    /// In a round of this server, more than 1 % of the requests were not answered.
    ManyLost(Name),
}

/// Name that identifies one of the two servers in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Name {
    /// Server that is given first.
    A,
    /// Server that is given second.
    B,
}

/// Maximum fraction of unanswered requests in a round whose times are compared. With a larger
/// fraction, the 99th percentile of all requests is unknown.
const LOST_MAX: f64 = 0.01;

/// Figure by which two servers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedFigure {
    /// Number of answers per second.
    Rate,
    /// Number of bits per second in both directions together, for streams.
    Bits,
    /// Median of the times.
    P50,
    /// 99th percentile of the times.
    P99,
}

impl ComparedFigure {
    /// Returns the name of the figure in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate | Self::Bits => "throughput",
            Self::P50 => "p50",
            Self::P99 => "p99",
        }
    }

    /// Returns the value of the figure in a run.
    pub fn of(self, report: &Report) -> f64 {
        let times = figures::main_times(report);
        match self {
            Self::Rate => report.rate(),
            Self::Bits => report.bits_sent() + report.bits_received(),
            Self::P50 => times.quantile(0.5).as_secs_f64(),
            Self::P99 => times.quantile(0.99).as_secs_f64(),
        }
    }

    /// Formats a value of this figure with its unit.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Rate => figures::rate(value),
            Self::Bits => figures::bits(value),
            // The median of rounds without an answer is unknown.
            Self::P50 | Self::P99 if value <= 0. => "-".to_owned(),
            Self::P50 | Self::P99 => figures::time(std::time::Duration::from_secs_f64(value)),
        }
    }

    /// Returns whether a larger value of this figure is better.
    pub fn is_more_better(self) -> bool {
        matches!(self, Self::Rate | Self::Bits)
    }
}

impl Comparison {
    /// Compares the rounds that were completed by both servers.
    pub fn new(names: [String; 2], runs: [Vec<Report>; 2]) -> Self {
        let [a, b] = &runs;
        let is_stream = a.first().is_some_and(|run| run.plan.shape.is_stream());
        let kinds: &[ComparedFigure] = if is_stream {
            &[ComparedFigure::Bits]
        } else {
            &[ComparedFigure::Rate, ComparedFigure::P50, ComparedFigure::P99]
        };
        let verdicts = kinds.iter().map(|&figure| verdict(figure, a, b)).collect();
        let [first, second] = names;
        let [a, b] = runs;
        let sides = [Side { name: first, runs: a }, Side { name: second, runs: b }];
        Self { sides, verdicts }
    }

    /// Returns the names and the numbers of unanswered requests of A and B in all rounds. Failed
    /// requests are always included.
    pub fn losses(&self) -> Vec<(&'static str, [u64; 2])> {
        let sum = |count: fn(&Report) -> u64| {
            self.sides.each_ref().map(|side| side.runs.iter().map(count).sum::<u64>())
        };
        let mut losses = vec![("failures", sum(|run| run.failures.total()))];
        let unsent = sum(|run| run.generator.unsent);
        if unsent != [0; 2] {
            losses.push(("never sent", unsent));
        }
        losses
    }

    /// Returns the first completed round that had no answers. `None` if all rounds had answers.
    pub fn dead_round(&self) -> Option<Labelled<'_>> {
        self.runs().into_iter().find(|run| !has_answers(run.report))
    }

    /// Returns all runs in the order in which they were executed.
    pub fn runs(&self) -> Vec<Labelled<'_>> {
        let rounds = self.sides.iter().map(|side| side.runs.len()).max().unwrap_or(0);
        let both = (0..rounds).flat_map(|n| [(0, "A", n), (1, "B", n)]);
        let there = both.filter_map(|(side, label, n)| {
            let report = self.sides[side].runs.get(n)?;
            Some(Labelled { label, round: n + 1, report })
        });
        there.collect()
    }
}

impl Side {
    /// Returns the merged failures of all rounds.
    pub fn failures(&self) -> Failures {
        let mut all = Failures::default();
        self.runs.iter().for_each(|run| all.merge(&run.failures));
        all
    }

    /// Returns the merged main times of all runs.
    pub fn times(&self) -> Histogram {
        let mut all = Histogram::new();
        self.runs.iter().for_each(|run| all.merge(figures::main_times(run)));
        all
    }
}

fn verdict(figure: ComparedFigure, a: &[Report], b: &[Report]) -> Verdict {
    let withheld = if figure.is_more_better() { None } else { withheld(a, b) };
    let values = |runs: &[Report]| runs.iter().map(|run| figure.of(run)).collect::<Vec<_>>();
    let (a, b) = (values(a), values(b));
    let (of_a, of_b) = (median(&a), median(&b));
    if withheld.is_some() {
        return Verdict {
            figure,
            a: of_a,
            b: of_b,
            ratio: None,
            p: None,
            differs: false,
            withheld,
        };
    }
    let p = rank_sum_p(&a, &b);
    let differs = p <= SIGNIFICANT;
    Verdict { figure, a: of_a, b: of_b, ratio: ratio(&a, &b), p: Some(p), differs, withheld }
}

/// Returns the reason to withhold a verdict on times. Unanswered requests have no time, so they
/// would distort the comparison.
fn withheld(a: &[Report], b: &[Report]) -> Option<Withheld> {
    let sides = [(Name::A, a), (Name::B, b)];
    let dead = sides.iter().find(|(_, runs)| runs.iter().any(|run| !has_answers(run)));
    if let Some(&(name, _)) = dead {
        return Some(Withheld::NoAnswers(name));
    }
    let lost = |run: &Report| {
        let lost = run.failures.total() + run.generator.unsent;
        lost as f64 > LOST_MAX * (lost + run.received) as f64
    };
    let bad = sides.iter().find(|(_, runs)| runs.iter().any(lost));
    bad.map(|&(name, _)| Withheld::ManyLost(name))
}

impl Withheld {
    fn words(self) -> String {
        match self {
            Self::NoAnswers(name) => {
                format!("no verdict on times: {name:?} had a round without an answer")
            }
            Self::ManyLost(name) => format!(
                "no verdict on times: {name:?} left more than {} of a round's requests unanswered",
                figures::percent(LOST_MAX)
            ),
        }
    }
}

impl Verdict {
    /// Describes the difference between the servers as a sentence without its period.
    pub fn words(&self) -> String {
        let p = match (self.withheld, self.p) {
            (Some(withheld), _) => return withheld.words(),
            (None, Some(p)) if p >= 0.001 => format!("p = {p:.3}"),
            _ => "p < 0.001".to_owned(),
        };
        if !self.differs {
            return format!("no difference beyond the noise ({p})");
        }
        let is_better = self.figure.is_more_better() == (self.b > self.a);
        let word = if is_better { "better" } else { "worse" };
        format!("B is {word}, by more than the noise ({p})")
    }

    /// Formats the change from A to B in percent, together with its confidence interval.
    pub fn change(&self) -> String {
        let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.) * 100.);
        match self.ratio {
            Some(Ratio { low, middle, high }) => {
                format!("{} ({} to {})", percent(middle), percent(low), percent(high))
            }
            None => "not known".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::samples::report;
    use super::*;

    fn runs(rates: [u64; 5], times_us: [u64; 5]) -> Vec<Report> {
        let run = |(received, us)| {
            let mut times = Histogram::new();
            (0..100).for_each(|_| times.record(Duration::from_micros(us)));
            Report { received, service: times, ..report() }
        };
        rates.into_iter().zip(times_us).map(run).collect()
    }

    #[test]
    fn a_difference_beyond_the_noise_is_told_from_noise() {
        let a = runs([3000, 3010, 3020, 3030, 3040], [100, 101, 102, 103, 104]);
        let b = runs([4000, 4010, 4020, 4030, 4040], [99, 105, 102, 100, 103]);
        let both = Comparison::new(["a:1".into(), "b:1".into()], [a, b]);
        let [rate, p50, p99] = &both.verdicts[..] else { panic!("{:?}", both.verdicts) };
        assert!(rate.differs && !p50.differs && !p99.differs, "{:?}", both.verdicts);
        assert!(rate.words().starts_with("B is better, by more"), "{}", rate.words());
        assert!(rate.change().starts_with("+33."), "{}", rate.change());
        assert!(p50.words().starts_with("no difference"), "{}", p50.words());
        assert_eq!(rate.figure.text(rate.a), "1007/s");
    }

    #[test]
    fn longer_times_are_worse() {
        let rates = [3000; 5];
        let a = runs(rates, [100, 101, 102, 103, 104]);
        let b = runs(rates, [200, 201, 202, 203, 204]);
        let both = Comparison::new(["a:1".into(), "b:1".into()], [a, b]);
        assert!(both.verdicts[2].words().starts_with("B is worse"), "{:?}", both.verdicts);
        assert_eq!(both.sides[1].times().count(), 500);
    }

    #[test]
    fn times_of_rounds_without_answers_or_with_many_failures_have_no_verdict() {
        let a = || runs([3000, 3010, 3020, 3030, 3040], [100, 101, 102, 103, 104]);
        let b = || runs([3000, 3010, 3020, 3030, 3040], [10, 11, 12, 13, 14]);
        let compare = |b| Comparison::new(["a:1".into(), "b:1".into()], [a(), b]);
        let dead = |run| Report { received: 0, sent: 25, service: Histogram::new(), ..run };
        let lossy = |mut run: Report| {
            run.failures.add(crate::Failure::Reset, 40, || "reset".into());
            run
        };
        let unsent = |mut run: Report| {
            run.generator.unsent = 40;
            run
        };
        let of_b = [
            (b().into_iter().map(dead).collect(), Withheld::NoAnswers(Name::B)),
            (
                b().into_iter()
                    .enumerate()
                    .map(|(n, run)| if n == 4 { dead(run) } else { run })
                    .collect(),
                Withheld::NoAnswers(Name::B),
            ),
            (b().into_iter().map(lossy).collect(), Withheld::ManyLost(Name::B)),
            (b().into_iter().map(unsent).collect(), Withheld::ManyLost(Name::B)),
        ];
        for (b, reason) in of_b {
            let both = compare(b);
            let [rate, p50, p99] = &both.verdicts[..] else { panic!("{:?}", both.verdicts) };
            assert_eq!(rate.withheld, None);
            for it in [p50, p99] {
                assert_eq!((it.withheld, it.differs, it.p), (Some(reason), false, None));
                assert!(it.words().starts_with("no verdict on times: B "), "{}", it.words());
            }
        }
        // The unchanged sample report has so few failures that its times are compared.
        assert!(compare(b()).verdicts[1].differs);
        let both = compare(b().into_iter().map(dead).collect());
        assert_eq!(both.dead_round().map(|run| (run.label, run.round)), Some(("B", 1)));
    }

    #[test]
    fn runs_stand_in_the_order_in_which_they_happened() {
        let mut a = runs([1; 5], [1; 5]);
        let b = a.split_off(3);
        let both = Comparison::new(["a:1".into(), "b:1".into()], [a, b]);
        let order: Vec<_> = both.runs().iter().map(|run| (run.label, run.round)).collect();
        assert_eq!(order, [("A", 1), ("B", 1), ("A", 2), ("B", 2), ("A", 3)]);
    }
}
