//! Logarithmic histogram for a wide range of values. Its relative error is three percent.

/// Base-2 logarithm of the number of buckets per power of two. With 32 buckets, the width of a
/// bucket is 1/32 of its value.
const BITS: u32 = 5;

/// Histogram of integers, for example of times in ns.
#[derive(Debug, Clone, Default)]
pub struct NumberHistogram {
    /// Number of values that are 0, which is the most frequent waiting time in queues. Bucket 0 is
    /// unused.
    zeros: u64,
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

impl NumberHistogram {
    /// Adds a value to the histogram.
    pub fn record(&mut self, value: u64) {
        self.count += 1;
        if value == 0 {
            self.zeros += 1;
            return;
        }
        let at = bucket(value);
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, 0);
        }
        self.buckets[at] += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Returns a copy of the histogram that contains additional values of 0, so that it has `count`
    /// values.
    #[must_use]
    pub fn with_zeros(&self, count: u64) -> Self {
        let more = count.saturating_sub(self.count);
        Self { zeros: self.zeros + more, count: self.count + more, ..self.clone() }
    }

    /// Returns the memory that the buckets use, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.buckets.capacity() * size_of::<u64>()) as u64
    }

    /// Returns the number of recorded values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the maximum of the recorded values.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean of the recorded values, or 0 if there are none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0. } else { self.sum as f64 / self.count as f64 }
    }

    /// Returns a quantile: a fraction `share` of the values is less than or equal to it. Returns 0
    /// if there are no values.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil().max(1.) as u64;
        let mut below = 0;
        for (at, count) in self.counts() {
            below += count;
            if below >= wanted {
                return top(at).min(self.max);
            }
        }
        self.max
    }

    /// Returns the number of values up to `value`, with the precision of the histogram.
    pub fn count_to(&self, value: u64) -> u64 {
        self.counts().take_while(|(at, _)| top(*at) <= value).map(|(_, count)| count).sum()
    }

    /// Returns points of the distribution function. Each point consists of a value, and the
    /// fraction of values up to it.
    pub fn distribution(&self) -> Vec<(u64, f64)> {
        let mut below = 0;
        let mut points = Vec::new();
        for (at, count) in self.counts().filter(|(_, count)| *count > 0) {
            below += count;
            points.push((top(at).min(self.max), below as f64 / self.count as f64));
        }
        points
    }
}

impl NumberHistogram {
    /// Iterates over all buckets and the number of values in each.
    fn counts(&self) -> impl Iterator<Item = (usize, u64)> {
        let others = self.buckets.iter().copied().enumerate().skip(1);
        std::iter::once((0, self.zeros)).chain(others)
    }
}

fn bucket(value: u64) -> usize {
    let power = 64 - value.leading_zeros();
    let shift = power.saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (value >> shift)) as usize
}

/// Returns the largest value that belongs to a bucket.
fn top(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> BITS).saturating_sub(1);
    let base = bucket - (shift << BITS);
    ((u128::from(base) + 1) << shift).saturating_sub(1).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_a_bucket_of_its_size() {
        let mut last = 0;
        for value in (0..2_000).chain((11..63).map(|bit| (1 << bit) + 12_345 % (1 << bit))) {
            let at = bucket(value);
            assert!(at >= last && value <= top(at), "{value}: {at}");
            assert!(top(at) - value <= value / 32, "{value}: up to {}", top(at));
            assert!(at == 0 || top(at - 1) < value, "{value}: {at}");
            last = at;
        }
        assert_eq!(top(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn quantiles_are_near_those_of_the_values() {
        let mut histogram = NumberHistogram::default();
        (1..=10_000).for_each(|value| histogram.record(value * 1000));
        for share in [0.01, 0.5, 0.99, 1.] {
            let exact = share * 10_000_000.;
            let found = histogram.quantile(share) as f64;
            assert!((exact..=exact * 1.04).contains(&found), "{share}: {found}");
        }
        assert_eq!((histogram.mean(), histogram.max()), (5_000_500., 10_000_000));
        assert_eq!(NumberHistogram::default().quantile(0.5), 0);
        assert_eq!(histogram.distribution().last(), Some(&(10_000_000, 1.)));
        (0..30_000).for_each(|_| histogram.record(0));
        assert_eq!((histogram.count(), histogram.mean()), (40_000, 1_250_125.));
        assert_eq!(histogram.distribution()[0], (0, 0.75));
        assert_eq!((histogram.quantile(0.75), histogram.quantile(0.750_01)), (0, 1_007));
    }
}
