//! Rate limits of ICMP errors: of all errors, and of those to each host.

use core::hash::BuildHasher;
use core::net::IpAddr;
use core::time::Duration;

use towpath_tcp::Instant;

use crate::net::hash::{Keyed, Random};
use crate::net::limits::{
    ICMP_BURST, ICMP_BURST_JITTER, ICMP_ERRORS_PER_SECOND, ICMP_HOST_BURST,
    ICMP_HOST_ERRORS_PER_SECOND, ICMP_HOSTS, ICMP_TOO_BIG_BURST, ICMP_TOO_BIG_PER_SECOND,
};

/// Rate limits of the ICMP errors that a data part sends.
#[derive(Debug)]
pub(super) struct ErrorLimit {
    /// Rate limit of all ICMP errors except path MTU reports.
    errors: Allowance,
    /// Rate limit of ICMP errors that report a path MTU.
    too_big: Allowance,
    keys: Keyed,
    /// For each hash of a host's address, the time before which no further error may be sent to
    /// this host.
    hosts: Vec<Instant>,
    /// Number of shards (stacks) of this host. Each shard may use an equal part of the rate limit.
    shards: u64,
}

/// A token bucket. Its tokens are called credit, and are counted in nanoseconds.
#[derive(Debug)]
struct Allowance {
    /// Credit in nanoseconds that one error uses.
    cost: u64,
    /// Available credit in nanoseconds.
    credit: u64,
    burst: u64,
    last: Instant,
}

/// Time in nanoseconds between two ICMP errors at the maximum rate.
const ERROR_COST: u64 = 1_000_000_000 / ICMP_ERRORS_PER_SECOND;
/// Time in nanoseconds between two path MTU reports at the maximum rate.
const TOO_BIG_COST: u64 = 1_000_000_000 / ICMP_TOO_BIG_PER_SECOND;
/// Time between two ICMP errors to one host at the maximum rate.
const HOST_ERROR_COST: Duration = Duration::from_nanos(1_000_000_000 / ICMP_HOST_ERRORS_PER_SECOND);

impl Allowance {
    fn new(now: Instant, cost: u64, burst: u64) -> Self {
        Self { cost, credit: burst * cost, burst: burst * cost, last: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let earned = now.0.saturating_sub(self.last.0);
        self.last = self.last.max(now);
        self.credit = self.credit.saturating_add(earned).min(self.burst);
        let left = self.credit.checked_sub(self.cost);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }
}

impl ErrorLimit {
    /// Creates the rate limits of one of `shards` shards. Each shard may use an equal part of the
    /// rate.
    pub(super) fn new(keys: Keyed, now: Instant, shards: u64) -> Self {
        let part_of = |burst: u64| (burst / shards).max(1);
        Self {
            errors: Allowance::new(now, ERROR_COST * shards, part_of(ICMP_BURST)),
            too_big: Allowance::new(now, TOO_BIG_COST * shards, part_of(ICMP_TOO_BIG_BURST)),
            keys,
            hosts: vec![Instant::ZERO; ICMP_HOSTS],
            shards,
        }
    }

    /// Returns whether an ICMP error may be sent to `host` now. If so, counts it against the rate
    /// limit.
    pub(super) fn take_for(&mut self, now: Instant, host: IpAddr) -> bool {
        let link = match host {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            // Use the prefix of 64 bits (RFC 4291 §2.5.1), because a host can use any address of
            // it.
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
        };
        let paid = &mut self.hosts[self.keys.hash_one(link) as usize % ICMP_HOSTS];
        let cost = HOST_ERROR_COST * self.shards as u32;
        // Maximum time by which `paid` may be in the future. The maximum permits a burst of errors.
        let ahead = cost * ((ICMP_HOST_BURST / self.shards).max(1) - 1) as u32;
        if *paid > now + ahead {
            return false;
        }
        *paid = now.max(*paid) + cost;
        true
    }

    /// Returns whether an ICMP error may be sent now. If so, counts it against the rate limit.
    pub(super) fn take(&mut self, now: Instant, random: &mut Random) -> bool {
        let is_allowed = self.errors.take(now);
        if is_allowed {
            // Choose a new random burst size each time. Otherwise a host could infer from the
            // number of errors how many were sent to other hosts.
            let burst = (ICMP_BURST - random.below(ICMP_BURST_JITTER)) / self.shards;
            self.errors.burst = burst.max(1) * self.errors.cost;
        }
        is_allowed
    }

    /// Returns whether a path MTU report may be sent now. If so, counts it against the rate limit.
    pub(super) fn take_too_big(&mut self, now: Instant) -> bool {
        self.too_big.take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_a_share_of_the_errors() {
        let mut limit = ErrorLimit::new(Keyed([1, 2]), Instant(0), 1);
        let second = |n: u64| Instant(n * 1_000_000_000);
        let flood = |limit: &mut ErrorLimit, now, host: &str| {
            let host = host.parse().unwrap();
            (0..1000).filter(|_| limit.take_for(now, host)).count() as u64
        };
        assert_eq!(flood(&mut limit, second(9), "192.0.2.1"), ICMP_HOST_BURST);
        assert_eq!(flood(&mut limit, second(9), "192.0.2.2"), ICMP_HOST_BURST);
        assert_eq!(flood(&mut limit, second(9), "192.0.2.1"), 0);
        assert_eq!(flood(&mut limit, second(10), "192.0.2.1"), ICMP_HOST_BURST);
        // All addresses of an IPv6 prefix of 64 bits share the limit of one host.
        assert_eq!(flood(&mut limit, second(10), "2001:db8::1"), ICMP_HOST_BURST);
        assert_eq!(flood(&mut limit, second(10), "2001:db8::2"), 0);
        let mut random = Random::new(1);
        assert!(limit.take(second(10), &mut random), "others have theirs");
    }

    #[test]
    fn errors_are_limited_to_a_burst_and_a_rate() {
        let mut random = Random::new(1);
        let mut limit = ErrorLimit::new(Keyed([1, 2]), Instant(0), 1);
        let sent = (0..1000).filter(|_| limit.take(Instant(0), &mut random)).count() as u64;
        assert!((ICMP_BURST - ICMP_BURST_JITTER..=ICMP_BURST).contains(&sent));
        let second = (1..=10_000u64).filter(|n| limit.take(Instant(n * 100_000), &mut random));
        let sent = second.count() as u64;
        assert!((ICMP_ERRORS_PER_SECOND - 1..=ICMP_ERRORS_PER_SECOND + ICMP_BURST).contains(&sent));
    }

    /// Several shards together send as many errors as a host with a single stack.
    #[test]
    fn shards_have_a_part_of_the_errors_each() {
        let host = "192.0.2.1".parse().unwrap();
        for shards in [2, 4, 8, 16] {
            let mut random = Random::new(1);
            let limit = || ErrorLimit::new(Keyed([1, 2]), Instant(0), shards);
            let (mut all, mut to_host) = (0, 0);
            for mut limit in (0..shards).map(|_| limit()) {
                for n in 1..=10_000u64 {
                    let now = Instant(n * 100_000);
                    all += u64::from(limit.take(now, &mut random));
                    to_host += u64::from(limit.take_for(now, host));
                }
            }
            let rounded = shards;
            let least = ICMP_ERRORS_PER_SECOND - rounded;
            assert!((least..=ICMP_ERRORS_PER_SECOND + ICMP_BURST).contains(&all), "{all}");
            let least = ICMP_HOST_ERRORS_PER_SECOND - rounded;
            let most = ICMP_HOST_ERRORS_PER_SECOND + ICMP_HOST_BURST.max(rounded);
            assert!((least..=most).contains(&to_host), "{to_host} of {shards}");
        }
    }
}
