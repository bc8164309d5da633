//! Results of measurements, and their comparison.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Result of one run of a client.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub value: f64,
    /// Number of busy processors, summed over all processes.
    pub cores: f64,
    /// Busy processors by owner, if they were measured.
    pub parts: Option<Parts>,
}

/// Number of busy processors by owner. Excludes the kernel's work for no particular process.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Parts {
    pub client: f64,
    /// The program, including the engine if it is in the program's process.
    pub program: f64,
    /// The engine, if it is a separate process.
    pub engine: f64,
}

/// The median sample, with its busy processors.
pub struct Median(pub Sample);

impl Median {
    pub fn of(samples: &[Sample]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(|a, b| a.value.total_cmp(&b.value));
        Self(sorted[sorted.len() / 2])
    }

    /// Returns the figure without the processors.
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

/// A median, and its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Computes the median, and the interval between two order statistics, which assumes no
    /// distribution. The number of values below the true median is binomial. Fewer than six values
    /// cannot reach 95 %; the interval is then their range.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let outside = ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.).max(0.) as usize;
        let (low, high) = (values[outside], values[n - 1 - outside]);
        Self { median: (values[(n - 1) / 2] + values[n / 2]) / 2., low, high }
    }

    /// Returns the interval of the ratios within rounds.
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

/// Distribution of times: fractions from 0 to 1, each with the time in µs that this fraction did
/// not exceed.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spread(pub Vec<(f64, f64)>);

impl Spread {
    /// Returns the medians at the fractions that all distributions have, in the order of the first.
    /// `None` if there are none.
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

/// Figure displayed with its significant digits.
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
        // A fraction that one distribution lacks is omitted.
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
