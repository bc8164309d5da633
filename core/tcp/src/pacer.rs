//! Rate limiter of a connection: computes when the next bytes may be sent. Used by module `pacing`.

use crate::time::Instant;
use core::num::NonZeroU64;

/// Base-2 logarithm of the number of bursts per second. The resulting 1024 bursts are about one per
/// millisecond: Linux's `sk_pacing_shift`.
const BURST_SHIFT: u32 = 10;
/// Minimum number of segments per burst: Linux's `tcp_min_tso_segs`. A peer that acknowledges every
/// second segment does not delay its ACK of a burst of two.
const BURST_SEGMENTS_MIN: u32 = 2;
/// Maximum delay in nanoseconds for which a late sender may compensate, because timers and
/// scheduling are late. If half of a burst's duration is longer, it is the maximum, as in Linux's
/// `tcp_update_skb_after_send`.
const CREDIT_NS: u64 = 1_000_000;
const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Pacing state of a connection: its rate, and the time at which the next bytes may be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pacer {
    /// Current pacing rate in payload bytes per second.
    pub(crate) rate: NonZeroU64,
    /// Maximum rate set by the program in payload bytes per second; `None` means unlimited.
    pub(crate) limit: Option<NonZeroU64>,
    pub(crate) next: Instant,
    /// Deadline of the pacing timer: `next` while bytes are waiting to be sent, otherwise
    /// [`Instant::FAR`].
    pub(crate) wake: Instant,
    /// Size in bytes of the last burst, from which `next` was computed.
    last: u32,
}

impl Pacer {
    pub(crate) fn new(rate: NonZeroU64, limit: Option<NonZeroU64>) -> Pacer {
        Pacer { rate, limit, next: Instant::ZERO, wake: Instant::FAR, last: 0 }
    }

    fn time_of(&self, bytes: u32) -> u64 {
        u64::from(bytes) * NANOS_PER_SEC / self.rate
    }

    /// Returns the maximum number of bytes in a burst, as in Linux's `tcp_tso_autosize`.
    pub(crate) fn burst(&self, mss: u32) -> u32 {
        let bytes = u32::try_from(self.rate.get() >> BURST_SHIFT).unwrap_or(u32::MAX);
        bytes.max(BURST_SEGMENTS_MIN * mss)
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u32) {
        let took = self.time_of(bytes);
        let earliest = Instant(now.0.saturating_sub(CREDIT_NS.max(took / 2)));
        self.next = Instant(self.next.max(earliest).0.saturating_add(took));
        self.last = bytes;
        self.wake = Instant::FAR;
    }

    /// Changes the pacing rate. A higher rate shortens the current wait, but a lower rate does not
    /// extend it.
    pub(crate) fn set_rate(&mut self, rate: NonZeroU64) {
        if self.rate == rate {
            return;
        }
        let before = self.time_of(self.last);
        self.rate = rate;
        let less = before.saturating_sub(self.time_of(self.last));
        self.next = Instant(self.next.0.saturating_sub(less));
        self.last = if less > 0 { self.last } else { 0 };
        self.wake = Instant::FAR;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(rate: u64) -> Pacer {
        Pacer::new(NonZeroU64::new(rate).expect("not zero"), None)
    }

    #[test]
    fn a_burst_is_a_millisecond_and_two_segments_at_least() {
        for (rate, burst) in [(1, 2896), (1 << 20, 2896), (1 << 24, 1 << 14), (u64::MAX, u32::MAX)]
        {
            assert_eq!(pacer(rate).burst(1448), burst, "{rate} bytes a second");
        }
    }

    #[test]
    fn a_late_sender_catches_up_by_half_a_burst() {
        let mut pacer = pacer(1_000_000);
        let start = Instant(NANOS_PER_SEC);
        pacer.on_sent(start, 3000);
        // The sender was idle, so it may send earlier by half of the burst's duration.
        assert_eq!(pacer.next, Instant(start.0 + 1_500_000));
        // The sender is one millisecond late, so the next burst may follow one millisecond earlier
        // than usual.
        pacer.on_sent(Instant(start.0 + 2_500_000), 3000);
        assert_eq!(pacer.next, Instant(start.0 + 4_500_000));
        pacer.on_sent(start.after_millis(100), 3000);
        assert_eq!(pacer.next, Instant(start.0 + 101_500_000));
    }

    #[test]
    fn a_higher_rate_shortens_the_wait() {
        let mut pacer = pacer(1000);
        let start = Instant(10 * NANOS_PER_SEC);
        pacer.on_sent(start, 3000);
        assert_eq!(pacer.next, start.after_millis(1500));
        pacer.set_rate(NonZeroU64::new(1_000_000).expect("not zero"));
        let next = pacer.next;
        assert!(next < start, "{next:?}");
        // A lower rate does not lengthen the wait, and a later increase does not shorten it twice.
        pacer.set_rate(NonZeroU64::new(10).expect("not zero"));
        pacer.set_rate(NonZeroU64::new(1_000_000).expect("not zero"));
        assert_eq!(pacer.next, next);
    }
}
