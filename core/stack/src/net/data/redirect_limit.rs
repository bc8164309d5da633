//! Rate limit of ICMP redirects.

use core::hash::BuildHasher;
use core::net::IpAddr;
use core::time::Duration;

use towpath_tcp::Instant;

use crate::net::hash::Keyed;
use crate::net::limits::{REDIRECT_HOSTS, REDIRECT_LOAD, REDIRECT_SILENCE, REDIRECTS_IGNORED};

/// Limits the rate of ICMP redirects to each host, as on Linux. The time between two redirects
/// doubles with each redirect. A host that ignores redirects gets no more until it has not needed
/// one for [`REDIRECT_SILENCE`].
#[derive(Debug)]
pub(super) struct RedirectLimit {
    keys: Keyed,
    /// State of the rate limit for each hash of a host's address. Empty before the first redirect,
    /// because most stacks do not forward packets.
    hosts: Vec<RedirectedHost>,
}

/// State of the rate limit for all hosts with the same hash.
#[derive(Debug, Clone, Copy, Default)]
struct RedirectedHost {
    /// Time at which a packet last needed a redirect; `None` before the first.
    seen: Option<Instant>,
    sent_at: Instant,
    count: u8,
}

impl RedirectLimit {
    pub(super) fn new(keys: Keyed) -> Self {
        Self { keys, hosts: Vec::new() }
    }

    /// Returns whether an ICMP redirect may be sent to `host` now. If so, counts it against the
    /// rate limit.
    pub(super) fn take(&mut self, now: Instant, host: IpAddr) -> bool {
        self.hosts.resize(REDIRECT_HOSTS, RedirectedHost::default());
        let told = &mut self.hosts[self.keys.hash_one(host) as usize % REDIRECT_HOSTS];
        if told.seen.replace(now).is_none_or(|seen| now > seen + REDIRECT_SILENCE) {
            told.count = 0;
        }
        let wait: Duration = REDIRECT_LOAD * (1 << told.count);
        if told.count >= REDIRECTS_IGNORED || told.count > 0 && now < told.sent_at + wait {
            return false;
        }
        told.count += 1;
        told.sent_at = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_told_less_and_less_often() {
        let mut limit = RedirectLimit::new(Keyed([1, 2]));
        let (host, other) = ("10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap());
        let mut now = Instant(1_000_000_000);
        let mut sent = Vec::new();
        // The host sends one packet per millisecond for fifteen seconds, and each needs a redirect.
        for ms in 0..15_000u64 {
            if limit.take(now, host) {
                sent.push(ms);
            }
            now += Duration::from_millis(1);
        }
        assert_eq!(sent, [0, 40, 120, 280, 600, 1240, 2520, 5080, 10_200]);
        assert!(limit.take(now, other));
        let millisecond = Duration::from_millis(1);
        let early = now + (REDIRECT_SILENCE - millisecond);
        assert!(!limit.take(early, host), "no pause yet");
        assert!(limit.take(early + REDIRECT_SILENCE + millisecond, host));
    }
}
