//! Path MTUs smaller than the link's, as routers reported them (RFC 1191, RFC 8201).

use core::net::IpAddr;

use towpath_tcp::Instant;

use super::hash::Keyed;
use super::limits::{PATH_MTU_MIN_V4, PATH_MTU_MIN_V6, PATH_MTU_TIME, PATH_MTUS_MAX};
use super::lru::Lru;

/// Path MTUs by destination.
#[derive(Debug)]
pub(super) struct PathMtus {
    mtus: Lru<IpAddr, (u32, Instant)>,
    /// Not later than the first expiry.
    next: Instant,
}

impl PathMtus {
    pub(super) fn new(keys: Keyed) -> Self {
        Self { mtus: Lru::new(PATH_MTUS_MAX, keys), next: Instant::FAR }
    }

    /// What is known about `dst`, if anything still is.
    pub(super) fn lookup(&self, now: Instant, dst: IpAddr) -> Option<u32> {
        // Most hosts never learn one: then this costs nothing on the way of every lookup.
        if self.mtus.len() == 0 {
            return None;
        }
        self.mtus.peek(&dst).filter(|(_, until)| now < *until).map(|(mtu, _)| *mtu)
    }

    /// Notes a report that the transport believed; true when it changed anything.
    pub(super) fn lower(&mut self, now: Instant, dst: IpAddr, mtu: u32, link_mtu: u32) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc8201#section-4
        //# A node MUST NOT reduce its estimate of the Path MTU below the IPv6 minimum link MTU
        let floor = if dst.is_ipv4() { PATH_MTU_MIN_V4 } else { PATH_MTU_MIN_V6 };
        let mtu = mtu.max(floor);
        //= https://www.rfc-editor.org/rfc/rfc8201#section-4
        //# A node MUST NOT increase its estimate of the Path MTU in response to
        //# the contents of a Packet Too Big message.
        if mtu >= self.lookup(now, dst).unwrap_or(link_mtu) {
            return false;
        }
        let until = now + PATH_MTU_TIME;
        self.next = self.next.min(until);
        self.mtus.insert(dst, (mtu, until));
        true
    }

    pub(super) fn next_timeout(&self) -> Instant {
        self.next
    }

    /// Forgets what is too old; true when that was anything.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let old: Vec<_> =
            self.mtus.iter().filter(|(_, (_, until))| *until <= now).map(|(dst, _)| *dst).collect();
        for dst in &old {
            self.mtus.remove(dst);
        }
        let left = self.mtus.iter().map(|(_, (_, until))| *until);
        self.next = left.min().unwrap_or(Instant::FAR);
        !old.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lowers_keeps_the_floor_and_expires() {
        let mut mtus = PathMtus::new(Keyed([1, 2]));
        let dst: IpAddr = "192.0.2.1".parse().unwrap();
        let dst6: IpAddr = "2001:db8::1".parse().unwrap();
        let now = Instant(0);
        assert!(!mtus.lower(now, dst, 1500, 1500));
        assert!(mtus.lower(now, dst, 1400, 1500));
        assert!(!mtus.lower(now, dst, 1450, 1500));
        assert!(mtus.lower(now, dst, 68, 1500));
        assert_eq!(mtus.lookup(now, dst), Some(PATH_MTU_MIN_V4));
        assert!(mtus.lower(now, dst6, 600, 1500));
        assert_eq!(mtus.lookup(now, dst6), Some(PATH_MTU_MIN_V6));
        let later = now + PATH_MTU_TIME;
        assert_eq!(mtus.next_timeout(), later);
        assert_eq!(mtus.lookup(later, dst), None);
        assert!(mtus.expire(later));
        assert!(!mtus.expire(later));
        assert_eq!(mtus.next_timeout(), Instant::FAR);
    }

    #[test]
    fn is_bounded() {
        let mut mtus = PathMtus::new(Keyed([1, 2]));
        for n in 0..PATH_MTUS_MAX as u32 + 10 {
            let dst = IpAddr::V4((0x0a00_0000 + n).into());
            assert!(mtus.lower(Instant(0), dst, 1000, 1500));
        }
        assert_eq!(mtus.mtus.len(), PATH_MTUS_MAX);
        assert_eq!(mtus.lookup(Instant(0), "10.0.0.0".parse().unwrap()), None);
    }
}
