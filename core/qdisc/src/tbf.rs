//! Token bucket filter (tbf): a rate limit that permits bursts, with an optional peak rate.

use crate::{Counter, DropCause, Dropped, Fifo, Qdisc, Queueable, Stats};

/// Parameters of tbf, named as in tc-tbf(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TbfParams {
    /// Rate in bits per second.
    pub rate: u64,
    /// Size of the token bucket in bytes. The size is both the maximum burst and the maximum packet
    /// length.
    pub burst: u64,
    /// Maximum rate in bits per second during bursts; `None` if it is unlimited.
    pub peakrate: Option<u64>,
    /// Size in bytes of the token bucket for the peak rate.
    pub mtu: u64,
    /// Maximum number of bytes that wait in the queue for tokens.
    pub limit: usize,
}

/// A token bucket filter, which limits the rate at which a queue sends.
///
/// A number of tokens is stored as the time in which they accumulate, as in Linux's sch_tbf.c.
/// Therefore rates need not be rounded.
pub struct Tbf<T> {
    params: TbfParams,
    inner: Box<dyn Qdisc<T>>,
    /// The next item to send. The item was dequeued from `inner` before the bucket had enough
    /// tokens for it.
    head: Option<T>,
    tokens_ns: i128,
    peak_tokens_ns: i128,
    /// Time in nanoseconds at which the token buckets were last updated.
    counted_ns: u64,
    /// Time in nanoseconds at which there are enough tokens for the item in `head`.
    ready_ns: Option<u64>,
    stats: Stats,
}

impl<T: Queueable + 'static> Tbf<T> {
    /// Creates a token bucket filter with full buckets, and a bfifo queue of [`TbfParams::limit`]
    /// bytes.
    pub fn new(params: TbfParams) -> Self {
        Self::with_queue(params, Box::new(Fifo::bytes(params.limit)))
    }

    /// Creates a token bucket filter with the queueing discipline `inner`, which must be empty.
    /// [`TbfParams::limit`] is ignored.
    pub fn with_queue(params: TbfParams, inner: Box<dyn Qdisc<T>>) -> Self {
        let mut tbf = Self {
            params,
            inner,
            head: None,
            tokens_ns: 0,
            peak_tokens_ns: 0,
            counted_ns: 0,
            ready_ns: None,
            stats: Stats::default(),
        };
        (tbf.tokens_ns, tbf.peak_tokens_ns) = tbf.buckets_ns();
        tbf
    }
}

impl<T: Queueable> Tbf<T> {
    /// Returns the sizes of the token bucket and of the peak rate's bucket, as times in
    /// nanoseconds.
    fn buckets_ns(&self) -> (i128, i128) {
        let TbfParams { rate, burst, peakrate, mtu, .. } = self.params;
        (time_ns(burst, rate), peakrate.map_or(0, |peak| time_ns(mtu, peak)))
    }

    /// Returns the maximum length in bytes of an item that can ever get enough tokens.
    fn longest(&self) -> u64 {
        let TbfParams { burst, peakrate, mtu, .. } = self.params;
        peakrate.map_or(burst, |_| burst.min(mtu))
    }

    /// Returns the tokens that both buckets would have left, as times in nanoseconds, if `bytes`
    /// were sent at `now_ns`.
    fn left_ns(&self, now_ns: u64, bytes: u64) -> (i128, i128) {
        let (bucket, peak_bucket) = self.buckets_ns();
        let passed = i128::from(now_ns.saturating_sub(self.counted_ns));
        let tokens = (self.tokens_ns + passed).min(bucket) - time_ns(bytes, self.params.rate);
        let peak = self.params.peakrate.map_or(0, |rate| {
            (self.peak_tokens_ns + passed).min(peak_bucket) - time_ns(bytes, rate)
        });
        (tokens, peak)
    }
}

impl<T: Queueable> Qdisc<T> for Tbf<T> {
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        let bytes = item.bytes();
        self.stats.offer(bytes);
        if bytes as u64 > self.longest() {
            self.stats.drop(bytes);
            return drops.push(Dropped { item, cause: DropCause::TooLong });
        }
        let before = drops.len();
        self.inner.enqueue(now_ns, item, drops);
        self.stats.drop_all(&drops[before..]);
    }

    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        self.ready_ns = None;
        if self.head.is_none() {
            let before = drops.len();
            self.head = self.inner.dequeue(now_ns, drops);
            self.stats.drop_all(&drops[before..]);
        }
        let bytes = self.head.as_ref()?.bytes();
        let (tokens, peak) = self.left_ns(now_ns, bytes as u64);
        if tokens < 0 || peak < 0 {
            let wait_ns = u64::try_from((-tokens).max(-peak)).unwrap_or(u64::MAX);
            self.ready_ns = Some(now_ns.saturating_add(wait_ns));
            self.stats.overlimits += 1;
            return None;
        }
        (self.tokens_ns, self.peak_tokens_ns, self.counted_ns) = (tokens, peak, now_ns);
        self.stats.send(bytes);
        self.head.take()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.ready_ns.or_else(|| self.inner.next_timeout_ns())
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn counters(&self) -> Vec<Counter> {
        vec![("tokens_ns", u64::try_from(self.tokens_ns).unwrap_or(0))]
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn kind(&self) -> &'static str {
        "tbf"
    }
}

/// Returns the time in nanoseconds to send `bytes` at `rate` bits per second. The time is rounded
/// up, so that the rate is never exceeded.
fn time_ns(bytes: u64, rate: u64) -> i128 {
    (i128::from(bytes) * 8_000_000_000 + i128::from(rate) - 1) / i128::from(rate.max(1))
}
