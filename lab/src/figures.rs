//! Results of measurements, and their comparison.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Result of one run of a client.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub value: f64,
    /// Processors that were busy, all processes together.
    pub cores: f64,
    /// Owners of the busy processors, where that was measured.
    pub parts: Option<Parts>,
}

/// Processors that were busy for these, in cores. Processor time that the kernel spent for no
/// process in particular is in none of them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Parts {
    pub client: f64,
    /// With the engine, where that is in the program's process.
    pub program: f64,
    /// A process of its own.
    pub engine: f64,
}

/// The sample in the middle, with its cores.
pub struct Median(pub Sample);

impl Median {
    pub fn of(samples: &[Sample]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(|a, b| a.value.total_cmp(&b.value));
        Self(sorted[sorted.len() / 2])
    }

    /// Without the cores.
    pub fn figure(&self) -> Figure {
        Figure(self.0.value)
    }

    pub fn json(&self) -> Value {
        json!({ "value": self.0.value, "cores": self.0.cores })
    }
}

impl fmt::Display for Median {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.2})", self.figure(), self.0.cores)
    }
}

/// A median, and the interval in which the true one lies with a probability of 95 %.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// The interval is that of order statistics, which assumes nothing about how figures spread. As
    /// many of `n` are below their true median as heads come up in `n` throws. Fewer than six never
    /// make 95 %; then it is the least and the largest.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let outside = ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.).max(0.) as usize;
        let (low, high) = (values[outside], values[n - 1 - outside]);
        Self { median: (values[(n - 1) / 2] + values[n / 2]) / 2., low, high }
    }

    /// Interval of the ratios within rounds.
    pub fn of_ratios(ours: &[Sample], theirs: &[Sample]) -> Self {
        Self::of(ours.iter().zip(theirs).map(|(a, b)| a.value / b.value))
    }

    pub fn json(&self) -> Value {
        json!({ "median": self.median, "low": self.low, "high": self.high })
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.low, self.high)
    }
}

/// How times spread: parts of all, from 0 to 1, and the time in µs that so many took at most.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spread(pub Vec<(f64, f64)>);

impl Spread {
    /// The medians of several: for each part that all of them have, in the order of the first.
    /// None: there are none.
    pub fn of(spreads: &[Self]) -> Option<Self> {
        let of = |spread: &Self, part: f64| spread.0.iter().find(|it| it.0 == part).map(|it| it.1);
        let median = |part: f64| -> Option<(f64, f64)> {
            let times: Option<Vec<f64>> = spreads.iter().map(|it| of(it, part)).collect();
            Some((part, Interval::of(times?).median))
        };
        let points: Vec<_> = spreads.first()?.0.iter().filter_map(|it| median(it.0)).collect();
        (!points.is_empty()).then_some(Self(points))
    }
}

/// A figure with as many digits as mean something.
pub struct Figure(pub f64);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000. { write!(f, "{:.1}", self.0) } else { write!(f, "{:.0}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = f64>) -> Vec<Sample> {
        values.into_iter().map(|value| Sample { value, cores: 1., parts: None }).collect()
    }

    #[test]
    fn a_spread_is_the_median_of_those_of_all_rounds() {
        let spread = |half: f64, all: f64| Spread(vec![(0.5, half), (1., all)]);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(
            Spread::of(&[spread(1., 9.), spread(2., 3.), spread(3., 4.)]),
            Some(spread(2., 4.))
        );
        // A point that one of them lacks is not made up.
        let short = Spread(vec![(0.5, 1.)]);
        assert_eq!(Spread::of(&[spread(3., 4.), short]), Some(Spread(vec![(0.5, 2.)])));
    }

    #[test]
    fn a_ratio_is_that_of_rounds_and_its_interval_narrows_with_them() {
        let theirs = samples([1., 2., 4.]);
        let ratio = Interval::of_ratios(&samples([2., 2., 12.]), &theirs);
        assert_eq!(ratio, Interval { median: 2., low: 1., high: 3. });
        let many = |n: i32| samples((1..=n).map(f64::from));
        let ratio = Interval::of_ratios(&many(15), &samples([1.; 15]));
        assert_eq!(ratio, Interval { median: 8., low: 4., high: 12. });
        assert_eq!(Median::of(&many(15)).figure().to_string(), "8.0");
    }
}
