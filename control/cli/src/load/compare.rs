//! `--compare`: two servers in turn, and their differences beside the noise.

use serde::Serialize;
use towpath_load::{Histogram, Report};

use super::figures;
use super::outcome::Labelled;
use super::statistics::{Ratio, SIGNIFICANT, median, rank_sum_p, ratio};

/// Runs of two servers, A B A B..., and what they say.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// A and B.
    pub sides: [Side; 2],
    /// Figures that were compared.
    pub verdicts: Vec<Verdict>,
}

/// Runs of one server.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// The server as it was given.
    pub name: String,
    /// Its runs in order.
    pub runs: Vec<Report>,
}

/// A figure of both.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Kind of the figure.
    pub figure: Compared,
    /// Median over A's runs: per second, bits per second, or seconds.
    pub a: f64,
    /// Median over B's runs.
    pub b: f64,
    /// B's figure in units of A's.
    pub ratio: Option<Ratio>,
    /// Probability that equal servers lie so far apart.
    pub p: f64,
    /// Whether the difference is more than the noise.
    pub differs: bool,
}

/// Kinds of figures that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Compared {
    /// Answers per second.
    Rate,
    /// Bits per second of both directions, of streams.
    Bits,
    /// Median time.
    P50,
    /// Time that 99 % have at most.
    P99,
}

impl Compared {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate | Self::Bits => "throughput",
            Self::P50 => "p50",
            Self::P99 => "p99",
        }
    }

    /// The figure of a run.
    pub fn of(self, report: &Report) -> f64 {
        let times = figures::main_times(report);
        match self {
            Self::Rate => report.rate(),
            Self::Bits => report.bits_sent() + report.bits_received(),
            Self::P50 => times.quantile(0.5).as_secs_f64(),
            Self::P99 => times.quantile(0.99).as_secs_f64(),
        }
    }

    /// The figure with its unit.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Rate => figures::rate(value),
            Self::Bits => figures::bits(value),
            Self::P50 | Self::P99 => {
                figures::time(std::time::Duration::from_secs_f64(value.max(0.)))
            }
        }
    }

    /// Whether more is better.
    pub fn is_more_better(self) -> bool {
        matches!(self, Self::Rate | Self::Bits)
    }
}

impl Comparison {
    /// Compares as many runs as both have.
    pub fn new(names: [String; 2], runs: [Vec<Report>; 2]) -> Self {
        let [a, b] = &runs;
        let is_stream = a.first().is_some_and(|run| run.plan.shape.is_stream());
        let kinds: &[Compared] = if is_stream {
            &[Compared::Bits]
        } else {
            &[Compared::Rate, Compared::P50, Compared::P99]
        };
        let verdicts = kinds.iter().map(|&figure| verdict(figure, a, b)).collect();
        let [first, second] = names;
        let [a, b] = runs;
        let sides = [Side { name: first, runs: a }, Side { name: second, runs: b }];
        Self { sides, verdicts }
    }

    /// All runs in the order in which they happened.
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
    /// The main times of all runs together.
    pub fn times(&self) -> Histogram {
        let mut all = Histogram::new();
        self.runs.iter().for_each(|run| all.merge(figures::main_times(run)));
        all
    }
}

fn verdict(figure: Compared, a: &[Report], b: &[Report]) -> Verdict {
    let values = |runs: &[Report]| runs.iter().map(|run| figure.of(run)).collect::<Vec<_>>();
    let (a, b) = (values(a), values(b));
    let p = rank_sum_p(&a, &b);
    let differs = p <= SIGNIFICANT;
    Verdict { figure, a: median(&a), b: median(&b), ratio: ratio(&a, &b), p, differs }
}

impl Verdict {
    /// The difference as a sentence without its end.
    pub fn words(&self) -> String {
        let p = if self.p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {:.3}", self.p) };
        if !self.differs {
            return format!("no difference beyond the noise ({p})");
        }
        let is_better = self.figure.is_more_better() == (self.b > self.a);
        let word = if is_better { "better" } else { "worse" };
        format!("B is {word}, by more than the noise ({p})")
    }

    /// The change from A to B in percent, with its interval.
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
    fn runs_stand_in_the_order_in_which_they_happened() {
        let mut a = runs([1; 5], [1; 5]);
        let b = a.split_off(3);
        let both = Comparison::new(["a:1".into(), "b:1".into()], [a, b]);
        let order: Vec<_> = both.runs().iter().map(|run| (run.label, run.round)).collect();
        assert_eq!(order, [("A", 1), ("B", 1), ("A", 2), ("B", 2), ("A", 3)]);
    }
}
