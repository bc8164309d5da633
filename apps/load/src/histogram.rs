//! Histograms of times with three significant digits.

use std::time::Duration;

use serde::de::Error as _;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum time that is recorded exactly, in ns. No useful timeout is longer.
const LONGEST_NS: u64 = 3600 * 1_000_000_000;
/// Number of significant decimal digits. Three digits need 250 KiB of memory, and each additional
/// digit needs ten times as much.
const DIGITS: u8 = 3;
/// Names of the fields for quantiles in the serialized form, and these quantiles.
const QUANTILES: [(&str, f64); 8] = [
    ("p50_us", 0.5),
    ("p75_us", 0.75),
    ("p90_us", 0.9),
    ("p95_us", 0.95),
    ("p99_us", 0.99),
    ("p99_9_us", 0.999),
    ("p99_99_us", 0.9999),
    ("max_us", 1.),
];

/// Distribution of times: an HDR histogram from 1 ns to one hour, with three significant digits.
///
/// Serialized as `count`, `min_us`, `mean_us`, `stdev_us`, percentiles in µs, and `buckets`, pairs
/// of a time in ns and a count. Fields of an empty histogram are null. The buckets are lossless, so
/// that stored runs can be merged.
#[derive(Clone, PartialEq, Debug)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

/// Bucket of a [`Histogram`], with the number of times in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Minimum time that belongs to the bucket.
    pub from: Duration,
    /// Maximum time that belongs to the bucket.
    pub to: Duration,
    /// Number of times that were recorded in the bucket. At least one.
    pub count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Creates a histogram without any times.
    pub fn new() -> Self {
        let histogram = hdrhistogram::Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
        Self(histogram.expect("the bounds are constants that hdrhistogram accepts"))
    }

    /// Records a time. A time of more than one hour is recorded as one hour.
    pub fn record(&mut self, time: Duration) {
        self.record_ns(u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS));
    }

    pub(crate) fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds all times of another histogram. Their precision is preserved.
    pub fn merge(&mut self, other: &Self) {
        // Skip empty histograms, for example of an idle thread, because adding one visits every
        // bucket.
        if !other.is_empty() {
            self.0.add(&other.0).expect("both have the same bounds");
        }
    }

    /// Returns the number of recorded times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns whether no time was recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the minimum of the recorded times, or zero if there are none.
    pub fn min(&self) -> Duration {
        Duration::from_nanos(if self.is_empty() { 0 } else { self.0.min() })
    }

    /// Returns the maximum of the recorded times, or zero if there are none.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// Returns the arithmetic mean of the recorded times, or zero if there are none.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// Returns the standard deviation of the recorded times, or zero if there are none.
    pub fn stdev(&self) -> Duration {
        Duration::from_nanos(self.0.stdev() as u64)
    }

    /// Returns a quantile of the recorded times, or zero if there are none. For example,
    /// `quantile(0.99)` is p99.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }

    /// Returns the fraction of the recorded times that are less than or equal to `time`. Returns 1
    /// if there are none.
    pub fn share_below(&self, time: Duration) -> f64 {
        self.0.quantile_below(u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS))
    }

    /// Returns the number of recorded times that are longer than `time`.
    pub fn count_above(&self, time: Duration) -> u64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS).min(LONGEST_NS);
        self.0.len() - self.0.count_between(0, ns)
    }

    /// Iterates over all buckets that are not empty, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> {
        self.0.iter_recorded().map(|it| {
            let value = it.value_iterated_to();
            Bucket {
                from: Duration::from_nanos(self.0.lowest_equivalent(value)),
                to: Duration::from_nanos(self.0.highest_equivalent(value)),
                count: it.count_at_value(),
            }
        })
    }

    pub(crate) fn clear(&mut self) {
        self.0.reset();
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let micros = |time: Duration| (!self.is_empty()).then_some(time.as_nanos() as f64 / 1e3);
        let mut fields = serializer.serialize_struct("Histogram", 5 + QUANTILES.len())?;
        fields.serialize_field("count", &self.count())?;
        fields.serialize_field("min_us", &micros(self.min()))?;
        fields.serialize_field("mean_us", &micros(self.mean()))?;
        fields.serialize_field("stdev_us", &micros(self.stdev()))?;
        for (name, share) in QUANTILES {
            fields.serialize_field(name, &micros(self.quantile(share)))?;
        }
        let buckets: Vec<(u64, u64)> =
            self.buckets().map(|it| (it.from.as_nanos() as u64, it.count)).collect();
        fields.serialize_field("buckets", &buckets)?;
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct StoredBuckets {
            buckets: Vec<(u64, u64)>,
        }
        let mut histogram = Self::new();
        for (ns, count) in StoredBuckets::deserialize(deserializer)?.buckets {
            let added = histogram.0.record_n(ns, count);
            added.map_err(|_| D::Error::custom(format_args!("{ns} ns is longer than an hour")))?;
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_100_ms() -> Histogram {
        let mut histogram = Histogram::new();
        (1..=100).for_each(|ms| histogram.record(Duration::from_millis(ms)));
        histogram
    }

    #[track_caller]
    fn is_near(time: Duration, ms: f64) {
        let is = time.as_secs_f64() * 1e3;
        assert!((is / ms - 1.).abs() < 0.002, "{is} ms, not {ms} ms");
    }

    #[test]
    fn quantiles_hold_to_three_digits() {
        let histogram = to_100_ms();
        is_near(histogram.mean(), 50.5);
        is_near(histogram.quantile(0.5), 50.);
        is_near(histogram.quantile(0.99), 99.);
        is_near(histogram.max(), 100.);
        is_near(histogram.min(), 1.);
        assert_eq!(histogram.count_above(Duration::from_millis(90)), 10);
        assert_eq!(histogram.count_above(Duration::MAX), 0);
    }

    #[test]
    fn buckets_hold_every_time_once() {
        let histogram = to_100_ms();
        assert_eq!(histogram.buckets().map(|it| it.count).sum::<u64>(), 100);
        for (bucket, ms) in histogram.buckets().zip(1..) {
            let time = Duration::from_millis(ms);
            assert!(bucket.from <= time && time <= bucket.to, "{bucket:?} holds {time:?}");
        }
    }

    #[test]
    fn a_stored_histogram_is_the_same_and_merges_without_loss() {
        let histogram = to_100_ms();
        let text = serde_json::to_string(&histogram).unwrap();
        let stored: Histogram = serde_json::from_str(&text).unwrap();
        assert!(stored.buckets().eq(histogram.buckets()));
        let mut both = to_100_ms();
        both.merge(&stored);
        assert_eq!(both.count(), 200);
        is_near(both.quantile(0.5), 50.);
    }

    #[test]
    fn an_empty_histogram_has_null_fields_instead_of_zeros() {
        let value = serde_json::to_value(Histogram::new()).unwrap();
        assert_eq!(value["count"], 0);
        for (name, _) in QUANTILES {
            assert!(value[name].is_null(), "{name}");
        }
        assert_eq!(Histogram::new().quantile(0.99), Duration::ZERO);
    }

    #[test]
    fn a_time_beyond_an_hour_counts_as_an_hour() {
        let mut histogram = Histogram::new();
        histogram.record(Duration::MAX);
        is_near(histogram.max(), 3_600_000.);
    }
}
