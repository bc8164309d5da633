//! Distributions of times as a small number of bins, for bar charts.

use std::time::Duration;

use crate::Histogram;

/// Bin of a distribution, with the times from `from` to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bin {
    /// Minimum of the times in the bin.
    pub from: Duration,
    /// Maximum of the times in the bin.
    pub to: Duration,
    /// Number of times in the bin.
    pub count: u64,
}

/// Fraction of the times at either end that a plot does not show. The first and the last bin also
/// count the times outside of the plot.
const CUT: f64 = 0.001;

/// Counts times in bins. The bins have equal widths on a logarithmic scale, which covers the
/// recorded times.
pub fn bins(times: &Histogram, number: usize) -> Vec<Bin> {
    if times.is_empty() || number == 0 {
        return Vec::new();
    }
    let log = |time: Duration| (time.as_nanos().max(1) as f64).ln();
    let low = log(times.quantile(CUT));
    // Use a limit slightly above the longest time, so that the longest time is in the last bin.
    let high = log(times.quantile(1. - CUT)).max(low + 1e-3) + 1e-6;
    let width = (high - low) / number as f64;
    let edge = |n: usize| Duration::from_nanos((low + width * n as f64).exp().round() as u64);
    let bin = |n: usize| Bin { from: edge(n), to: edge(n + 1), count: 0 };
    let mut bins: Vec<Bin> = (0..number).map(bin).collect();
    for it in times.buckets() {
        // Use the middle of the bucket. The middle is precise enough, because a bucket is narrower
        // than a bin, unless all times are nearly equal.
        let middle = (it.from + it.to) / 2;
        let at = ((log(middle) - low) / width).max(0.) as usize;
        bins[at.min(number - 1)].count += it.count;
    }
    if let Some(last) = bins.last_mut() {
        last.to = times.max();
    }
    bins[0].from = times.min();
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_all_times_and_touch_each_other() {
        let mut times = Histogram::new();
        (1..=1000).for_each(|n| times.record(Duration::from_micros(n)));
        times.record(Duration::from_secs(5));
        for number in [1, 3, 40] {
            let bins = bins(&times, number);
            assert_eq!(bins.len(), number);
            assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), 1001);
            assert!(bins.windows(2).all(|pair| pair[0].to == pair[1].from), "{bins:?}");
            assert_eq!(bins.last().map(|bin| bin.to), Some(times.max()));
        }
    }

    #[test]
    fn equal_times_and_no_times_have_bins_as_well() {
        let mut times = Histogram::new();
        assert_eq!(bins(&times, 5), []);
        (0..7).for_each(|_| times.record(Duration::from_millis(3)));
        assert_eq!(bins(&times, 5).iter().map(|bin| bin.count).sum::<u64>(), 7);
    }
}
