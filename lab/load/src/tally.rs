//! Times of a report as the fields that `cargo lab bench` reads.

use std::time::Duration;

use serde_json::{Value, json};
use towpath_load::Histogram;

/// Fractions of the requests for which `spread` contains the maximum time.
const PARTS: [f64; 19] = [
    0., 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999,
    0.9999, 1.,
];

/// Returns the figures of a measurement that took `time`. Times are null if there were no answers.
pub fn json(times: &Histogram, time: Duration) -> Value {
    let micros = |time: Duration| (!times.is_empty()).then_some(time.as_nanos() as f64 / 1e3);
    let spread = PARTS.map(|part| (part, micros(times.quantile(part))));
    json!({
        "answers": times.count(),
        "rate": times.count() as f64 / time.as_secs_f64(),
        "average": micros(times.mean()),
        "p50": micros(times.quantile(0.5)),
        "p99": micros(times.quantile(0.99)),
        "spread": (!times.is_empty()).then_some(spread),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_microseconds_and_missing_ones_are_not_zero() {
        let mut tally = Histogram::new();
        let nothing = json(&tally, Duration::from_secs(1));
        assert!(nothing["p50"].is_null() && nothing["spread"].is_null());
        for ms in 1..=100 {
            tally.record(Duration::from_millis(ms));
        }
        let said = json(&tally, Duration::from_secs(2));
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
