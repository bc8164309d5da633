//! Table of path MTUs that routers have reported, if they are below the link's MTU (RFC 1191, RFC
//! 8201).
//!
//! The table is used for datagrams. All shards have the same entries, because each shard sends the
//! reports that it accepts to the other shards. Connections do not use the table, because an
//! attacker can forge a report about a known UDP port. A connection accepts only a report that
//! quotes a segment of its own in flight (RFC 5927 §4), and stores the result itself
//! ([`crate::tcp::path`]).

use core::net::IpAddr;
use core::time::Duration;

use towpath_tcp::Instant;

use crate::net::hash::Keyed;
use crate::net::iface::IfaceId;
use crate::net::limits::{
    PATH_MTU_MIN_V4, PATH_MTU_TIME, PATH_MTUS_MAX, PATH_MTUS_TOLD_PER_SECOND,
};
use crate::net::lru::Lru;

/// Path MTU in bytes, as reported by a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PathMtu(u16);

impl PathMtu {
    /// Path MTU of a path for which no report was received.
    pub(crate) const UNKNOWN: Self = Self(u16::MAX);

    /// Creates the path MTU from an ICMP report of `mtu` bytes. Routers older than RFC 1191 report
    /// 0, which is accepted because [`limit`](Self::limit) raises it to the minimum. Reports below
    /// the minimum of IPv6 were discarded before.
    pub(crate) fn reported(mtu: u32) -> Self {
        Self(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    /// Returns the maximum length of an IP packet in bytes on this path, whose first link has the
    /// MTU `link_mtu`.
    pub(crate) fn limit(self, link_mtu: u32) -> u32 {
        u32::from(self.0).max(PATH_MTU_MIN_V4).min(link_mtu)
    }

    /// Returns whether the path MTU is below the minimum that this host accepts. Packets are then
    /// sent without DF so that routers can fragment them, as on Linux ("locked" path MTU).
    pub(crate) fn needs_fragments(self) -> bool {
        u32::from(self.0) < PATH_MTU_MIN_V4
    }
}

/// Path of a datagram: outgoing interface and destination address.
type PathKey = (IfaceId, IpAddr);

/// A reported path MTU, with the time at which it expires.
#[derive(Debug)]
struct Known {
    mtu: PathMtu,
    until: Instant,
    /// Whether the path MTU was not sent to the other shards yet, because of the rate limit. The
    /// path MTU is sent when a router reports it again.
    untold: bool,
}

/// Path MTUs of datagrams, for each path.
#[derive(Debug)]
pub(in crate::net) struct PathMtus {
    mtus: Lru<PathKey, Known>,
    /// Lower bound of the times at which entries expire. Before this time, no entry expires.
    next: Instant,
    /// Lower bound of the path MTUs in the table. After an eviction, it may be below all of them.
    least: PathMtu,
    /// Number of changes of the table so far.
    generation: u64,
    /// Number of path MTUs that may still be sent to other shards (stacks) in the current second,
    /// and the end of this second.
    tellings: (u32, Instant),
    /// Maximum number of path MTUs sent to other shards per second.
    tellings_max: u32,
}

impl PathMtus {
    /// Creates the table of one of `shards` data parts.
    pub(super) fn new(keys: Keyed, shards: usize) -> Self {
        Self {
            tellings: (0, Instant::ZERO),
            tellings_max: (PATH_MTUS_TOLD_PER_SECOND / shards as u32).max(1),
            mtus: Lru::new(PATH_MTUS_MAX, keys),
            next: Instant::FAR,
            least: PathMtu::UNKNOWN,
            generation: 0,
        }
    }

    /// Returns the path MTU of `path`; `UNKNOWN` if there is no entry, or if it has expired.
    pub(super) fn lookup(&self, now: Instant, path: PathKey) -> PathMtu {
        // Avoid hashing if the table is empty, as on most hosts.
        if self.mtus.len() == 0 {
            return PathMtu::UNKNOWN;
        }
        let known = self.mtus.peek(&path).filter(|known| now < known.until);
        known.map_or(PathMtu::UNKNOWN, |known| known.mtu)
    }

    /// Records a reported path MTU that a socket accepted. Returns whether the path MTU became
    /// lower. A repeated report does not extend the expiry time. The entry then expires, and a
    /// larger MTU is tried in case the path has changed.
    pub(super) fn lower(
        &mut self,
        now: Instant,
        path: PathKey,
        mtu: PathMtu,
        link_mtu: u32,
    ) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc8201#section-4
        //# A node must not increase its estimate of the Path MTU in response to
        //# the contents of a Packet Too Big message.
        if mtu >= self.lookup(now, path) || mtu.limit(link_mtu) == link_mtu {
            return false;
        }
        let until = now + PATH_MTU_TIME;
        self.next = self.next.min(until);
        self.least = self.least.min(mtu);
        self.generation += 1;
        self.mtus.insert(path, Known { mtu, until, untold: false });
        true
    }

    /// Returns whether the rate limit permits sending another path MTU to the other shards. If so,
    /// counts it.
    pub(in crate::net) fn may_tell(&mut self, now: Instant) -> bool {
        let (left, until) = &mut self.tellings;
        if now >= *until {
            (*left, *until) = (self.tellings_max, now + Duration::from_secs(1));
        }
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    }

    /// Records that the path MTU of `path` was not sent to the other shards, because of the rate
    /// limit.
    pub(in crate::net) fn set_untold(&mut self, path: PathKey) {
        if let Some(known) = self.mtus.get_mut(&path) {
            known.untold = true;
        }
    }

    /// Returns the path MTU of `path` in bytes if it was not sent to the other shards yet, and
    /// marks it as sent. Called when a router repeats its report.
    pub(in crate::net) fn take_untold(&mut self, path: PathKey) -> Option<u32> {
        let known = self.mtus.peek(&path).filter(|known| known.untold)?;
        let mtu = u32::from(known.mtu.0);
        self.mtus.get_mut(&path)?.untold = false;
        Some(mtu)
    }

    /// Returns a value that is not above the lowest path MTU in the table.
    pub(super) fn least(&self) -> PathMtu {
        self.least
    }

    /// Returns a number that changes whenever earlier results of [`PathMtus::lookup`] may be
    /// outdated.
    pub(in crate::net) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn next_timeout(&self) -> Instant {
        self.next
    }

    /// Removes expired entries.
    pub(super) fn expire(&mut self, now: Instant) {
        if now < self.next {
            return;
        }
        let old: Vec<_> = self
            .mtus
            .iter()
            .filter(|(_, known)| known.until <= now)
            .map(|(path, _)| *path)
            .collect();
        for path in &old {
            self.mtus.remove(path);
        }
        let left = || self.mtus.iter().map(|(_, known)| known);
        self.next = left().map(|known| known.until).min().unwrap_or(Instant::FAR);
        self.least = left().map(|known| known.mtu).min().unwrap_or(PathMtu::UNKNOWN);
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETH: IfaceId = IfaceId(1);

    fn path_to(dst: &str) -> PathKey {
        (ETH, dst.parse().unwrap())
    }

    fn limit(mtus: &PathMtus, now: Instant, path: PathKey) -> u32 {
        mtus.lookup(now, path).limit(1500)
    }

    fn lower(mtus: &mut PathMtus, now: Instant, path: PathKey, mtu: u32) {
        mtus.lower(now, path, PathMtu::reported(mtu), 1500);
    }

    #[test]
    fn only_lowers_keeps_the_floor_and_expires() {
        let mut mtus = PathMtus::new(Keyed([1, 2]), 1);
        let v4 = path_to("192.0.2.1");
        let now = Instant(0);
        for (reported, believed) in [(1500, 1500), (1400, 1400), (1450, 1400), (70_000, 1400)] {
            lower(&mut mtus, now, v4, reported);
            assert_eq!(limit(&mtus, now, v4), believed);
            assert!(!mtus.lookup(now, v4).needs_fragments());
        }
        for reported in [552, 551, 0] {
            lower(&mut mtus, now, v4, reported);
            assert_eq!(limit(&mtus, now, v4), PATH_MTU_MIN_V4);
            assert_eq!(mtus.lookup(now, v4).needs_fragments(), reported < 552);
        }
        let (before, later) = (mtus.generation(), now + PATH_MTU_TIME);
        assert_eq!((mtus.next_timeout(), mtus.least()), (later, PathMtu(0)));
        assert_eq!(limit(&mtus, later, v4), 1500);
        mtus.expire(later);
        assert!(mtus.generation() > before);
        assert_eq!((mtus.next_timeout(), mtus.least()), (Instant::FAR, PathMtu::UNKNOWN));
    }

    #[test]
    fn so_many_are_told_a_second_and_the_others_when_they_are_reported_again() {
        let mut mtus = PathMtus::new(Keyed([1, 2]), 4);
        let part = PATH_MTUS_TOLD_PER_SECOND / 4;
        for second in 0..2 {
            let now = Instant(1_000_000_000 * second);
            assert_eq!((0..1000).filter(|_| mtus.may_tell(now)).count(), part as usize);
        }
        let mut few = PathMtus::new(Keyed([1, 2]), PATH_MTUS_TOLD_PER_SECOND as usize * 2);
        assert!(few.may_tell(Instant(0)) && !few.may_tell(Instant(0)), "one at least");
        let path = path_to("192.0.2.1");
        lower(&mut mtus, Instant(0), path, 1000);
        assert_eq!(mtus.take_untold(path), None);
        mtus.set_untold(path);
        lower(&mut mtus, Instant(0), path, 900);
        assert_eq!(mtus.take_untold(path), None, "what is lower is news");
        mtus.set_untold(path);
        assert_eq!((mtus.take_untold(path), mtus.take_untold(path)), (Some(900), None));
    }

    #[test]
    fn a_way_over_another_link_is_another_way() {
        let mut mtus = PathMtus::new(Keyed([1, 2]), 1);
        let (now, dst) = (Instant(0), path_to("192.0.2.1").1);
        lower(&mut mtus, now, (ETH, dst), 1000);
        assert_eq!(limit(&mtus, now, (ETH, dst)), 1000);
        assert_eq!(limit(&mtus, now, (IfaceId(2), dst)), 1500);
    }

    #[test]
    fn is_bounded() {
        let mut mtus = PathMtus::new(Keyed([1, 2]), 1);
        for n in 0..PATH_MTUS_MAX as u32 + 10 {
            let dst = IpAddr::V4((0x0a00_0000 + n).into());
            lower(&mut mtus, Instant(0), (ETH, dst), 1000);
        }
        assert_eq!(mtus.mtus.len(), PATH_MTUS_MAX);
        assert_eq!(mtus.lookup(Instant(0), path_to("10.0.0.0")), PathMtu::UNKNOWN);
    }
}
