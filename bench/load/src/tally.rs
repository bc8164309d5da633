//! Times and how many there are.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// How many of all requests were answered in a time or less, for the times that are told as `spread`.
const PARTS: [f64; 19] = [
    0., 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999,
    0.9999, 1.,
];

/// Times of requests, in ns, to three digits.
pub struct Tally(Histogram<u64>);

impl Tally {
    pub fn new() -> Result<Self> {
        // A minute is longer than any client goes on; longer ones count as that.
        Ok(Self(Histogram::new_with_bounds(1, 60_000_000_000, 3)?))
    }

    pub fn add(&mut self, took: Duration) {
        self.0.saturating_record(took.as_nanos() as u64);
    }

    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// What was counted in `time`. Without an answer there are no times, and their fields are null.
    pub fn json(&self, time: Duration) -> Value {
        let micros = |ns: f64| (self.len() > 0).then_some(ns / 1e3);
        let spread = PARTS.map(|part| (part, self.0.value_at_quantile(part) as f64 / 1e3));
        json!({
            "answers": self.len(),
            "rate": self.len() as f64 / time.as_secs_f64(),
            "average": micros(self.0.mean()),
            "p50": micros(self.0.value_at_quantile(0.5) as f64),
            "p99": micros(self.0.value_at_quantile(0.99) as f64),
            "spread": (self.len() > 0).then_some(spread),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_microseconds_and_missing_ones_are_not_zero() {
        let mut tally = Tally::new().unwrap();
        let nothing = tally.json(Duration::from_secs(1));
        assert!(nothing["p50"].is_null() && nothing["spread"].is_null());
        for ms in 1..=100 {
            tally.add(Duration::from_millis(ms));
        }
        let said = tally.json(Duration::from_secs(2));
        assert_eq!(said["rate"], 50.);
        let near = |field: &str, value: f64| {
            let is = said[field].as_f64().unwrap();
            assert!((is / value - 1.).abs() < 0.002, "{field}: {is}");
        };
        near("average", 50_500.);
        near("p50", 50_000.);
        near("p99", 99_000.);
        let spread = said["spread"].as_array().unwrap();
        assert_eq!(spread.len(), PARTS.len());
        assert!(spread.is_sorted_by_key(|it| it[1].as_f64().unwrap() as u64));
        assert!((spread[7][1].as_f64().unwrap() / 50_000. - 1.).abs() < 0.002, "{spread:?}");
    }
}
