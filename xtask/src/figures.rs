//! What measurements gave, and how it compares.

use std::fmt;

use serde_json::{Value, json};

/// What one run of a client gave.
#[derive(Clone, Copy)]
pub struct Sample {
    pub value: f64,
    /// Processors that were busy, all processes together.
    pub cores: f64,
}

/// The sample in the middle, with its cores.
pub struct Median(Sample);

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

/// The median of the ratios within rounds, and the interval in which the true one lies with a probability of 95 %.
#[derive(Debug, PartialEq)]
pub struct Ratio {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Ratio {
    /// The interval is that of order statistics, which assumes nothing about how figures spread: so many ratios of
    /// `n` are below their true median as heads come up in `n` throws. Fewer than six never make 95 %; then it is
    /// the least and the largest.
    pub fn of(ours: &[Sample], theirs: &[Sample]) -> Self {
        let mut ratios: Vec<f64> =
            ours.iter().zip(theirs).map(|(a, b)| a.value / b.value).collect();
        ratios.sort_by(f64::total_cmp);
        let n = ratios.len();
        let outside = ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.).max(0.) as usize;
        let (low, high) = (ratios[outside], ratios[n - 1 - outside]);
        Self { median: (ratios[(n - 1) / 2] + ratios[n / 2]) / 2., low, high }
    }

    pub fn json(&self) -> Value {
        json!({ "median": self.median, "low": self.low, "high": self.high })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.low, self.high)
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
        values.into_iter().map(|value| Sample { value, cores: 1. }).collect()
    }

    #[test]
    fn a_ratio_is_that_of_rounds_and_its_interval_narrows_with_them() {
        let theirs = samples([1., 2., 4.]);
        let ratio = Ratio::of(&samples([2., 2., 12.]), &theirs);
        assert_eq!(ratio, Ratio { median: 2., low: 1., high: 3. });
        let many = |n: i32| samples((1..=n).map(f64::from));
        let ratio = Ratio::of(&many(15), &samples([1.; 15]));
        assert_eq!(ratio, Ratio { median: 8., low: 4., high: 12. });
        assert_eq!(Median::of(&many(15)).figure().to_string(), "8.0");
    }
}
