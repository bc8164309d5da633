//! How many ICMP errors are sent: in all, and to one host.

use core::hash::BuildHasher;
use core::net::IpAddr;
use core::time::Duration;

use towpath_tcp::Instant;

use crate::net::hash::{Keyed, Random};
use crate::net::limits::{
    ICMP_BURST, ICMP_BURST_JITTER, ICMP_ERRORS_PER_SECOND, ICMP_HOST_BURST,
    ICMP_HOST_ERRORS_PER_SECOND, ICMP_HOSTS,
};

/// Limits how many errors are sent.
#[derive(Debug)]
pub(super) struct ErrorLimit {
    /// What may be sent now, in nanoseconds: each error costs [`ERROR_COST`].
    credit: u64,
    burst: u64,
    last: Instant,
    keys: Keyed,
    /// For each group of hosts, until when errors to it have been paid for.
    hosts: Vec<Instant>,
}

/// Nanoseconds in which one error may be sent.
const ERROR_COST: u64 = 1_000_000_000 / ICMP_ERRORS_PER_SECOND;
/// The same to one host.
const HOST_ERROR_COST: Duration = Duration::from_nanos(1_000_000_000 / ICMP_HOST_ERRORS_PER_SECOND);
/// How far ahead of time errors to one host may be.
const HOST_AHEAD: Duration =
    Duration::from_nanos(1_000_000_000 / ICMP_HOST_ERRORS_PER_SECOND * (ICMP_HOST_BURST - 1));

impl ErrorLimit {
    pub(super) fn new(keys: Keyed, now: Instant) -> Self {
        let burst = ICMP_BURST * ERROR_COST;
        Self { credit: burst, burst, last: now, keys, hosts: vec![Instant::ZERO; ICMP_HOSTS] }
    }

    /// Whether one more error may be sent to `host` now.
    pub(super) fn take_for(&mut self, now: Instant, host: IpAddr) -> bool {
        let link = match host {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            // A host may take any address of its link's prefix, which has 64 bits (RFC 4291 §2.5.1).
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
        };
        let paid = &mut self.hosts[self.keys.hash_one(link) as usize % ICMP_HOSTS];
        if *paid > now + HOST_AHEAD {
            return false;
        }
        *paid = now.max(*paid) + HOST_ERROR_COST;
        true
    }

    /// Whether one more error may be sent now.
    pub(super) fn take(&mut self, now: Instant, random: &mut Random) -> bool {
        let earned = now.0.saturating_sub(self.last.0);
        self.last = self.last.max(now);
        self.credit = self.credit.saturating_add(earned).min(self.burst);
        if self.credit < ERROR_COST {
            return false;
        }
        self.credit -= ERROR_COST;
        // Drawn anew each time: how many errors fit tells nothing about how many went elsewhere.
        self.burst = (ICMP_BURST - random.below(ICMP_BURST_JITTER)) * ERROR_COST;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_a_share_of_the_errors() {
        let mut limit = ErrorLimit::new(Keyed([1, 2]), Instant(0));
        let second = |n: u64| Instant(n * 1_000_000_000);
        let flood = |limit: &mut ErrorLimit, now, host: &str| {
            let host = host.parse().unwrap();
            (0..1000).filter(|_| limit.take_for(now, host)).count() as u64
        };
        assert_eq!(flood(&mut limit, second(9), "192.0.2.1"), ICMP_HOST_BURST);
        assert_eq!(flood(&mut limit, second(9), "192.0.2.2"), ICMP_HOST_BURST);
        assert_eq!(flood(&mut limit, second(9), "192.0.2.1"), 0);
        assert_eq!(flood(&mut limit, second(10), "192.0.2.1"), ICMP_HOST_BURST);
        // A link is one host.
        assert_eq!(flood(&mut limit, second(10), "2001:db8::1"), ICMP_HOST_BURST);
        assert_eq!(flood(&mut limit, second(10), "2001:db8::2"), 0);
        let mut random = Random::new(1);
        assert!(limit.take(second(10), &mut random), "others have theirs");
    }

    #[test]
    fn errors_are_limited_to_a_burst_and_a_rate() {
        let mut random = Random::new(1);
        let mut limit = ErrorLimit::new(Keyed([1, 2]), Instant(0));
        let sent = (0..1000).filter(|_| limit.take(Instant(0), &mut random)).count() as u64;
        assert!((ICMP_BURST - ICMP_BURST_JITTER..=ICMP_BURST).contains(&sent));
        let second = (1..=10_000u64).filter(|n| limit.take(Instant(n * 100_000), &mut random));
        let sent = second.count() as u64;
        assert!((ICMP_ERRORS_PER_SECOND - 1..=ICMP_ERRORS_PER_SECOND + ICMP_BURST).contains(&sent));
    }
}
