//! Identification fields of IP packets, by which receivers reassemble fragments.

use core::hash::{BuildHasher, Hasher};
use core::net::IpAddr;

use towpath_tcp::Instant;

use crate::net::hash::Keyed;

/// Generator of the identification fields in IP headers, by which a receiver associates the
/// fragments of a packet.
///
/// A receiver must not be able to infer from identifications how many packets other hosts receive.
/// Otherwise idle scans and forged fragments would be possible (RFC 7739 §3).
#[derive(Debug)]
pub(super) struct Idents {
    keys: Keyed,
    /// First IP identification of this shard's range, and the size of the range. The range is
    /// contiguous, because a device that segments a packet increments the identification for each
    /// segment.
    range: (u16, u32),
    counters: Vec<Counter>,
    /// Number of identifications that were generated for IPv6 packets.
    v6_given: u64,
}

/// A counter of identifications: the last one used, relative to the start of the range, and the
/// time at which it was used.
#[derive(Debug, Clone, Copy)]
struct Counter {
    last: u16,
    at_ms: u32,
}

/// Number of counters of IP identifications. With this number, two busy destinations rarely share a
/// counter. The counters take 16 KiB.
const COUNTERS: usize = 2048;

impl Idents {
    /// Creates the generator for shard `n` of `count` shards; `count` is a power of two. Each shard
    /// has its own range of identifications. Otherwise a host could reassemble fragments from two
    /// shards as one packet (RFC 6864 §4).
    pub(super) fn new(keys: Keyed, n: usize, count: usize) -> Self {
        let share = (1 << u16::BITS) / count as u32;
        let range = ((n as u32 * share) as u16, share);
        // Hash the initial values of the counters, so that they do not reveal when this host
        // started.
        let [first, second] = keys.0;
        let begin = |n: usize| {
            let mut hasher = Keyed([second, first]).build_hasher();
            hasher.write_usize(n);
            Counter { last: hasher.finish() as u16, at_ms: 0 }
        };
        Self { keys, range, counters: (0..COUNTERS).map(begin).collect(), v6_given: 0 }
    }

    /// Returns the first of `count` consecutive identifications for packets from `src` to `dst`.
    ///
    /// Identifications are counters, because random 16-bit numbers would repeat too soon (RFC 6864
    /// §4.3). As on Linux, a secret hash chooses a counter for each destination. A counter also
    /// advances by a random part of the milliseconds since its last use, which hides its use by
    /// other destinations.
    pub(super) fn take_v4(&mut self, now: Instant, src: IpAddr, dst: IpAddr, count: u32) -> u16 {
        let mut hasher = self.keys.build_hasher();
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                hasher.write_u64(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                hasher.write_u128(src.to_bits());
                hasher.write_u128(dst.to_bits());
            }
            _ => debug_assert!(false, "a packet has addresses of one family"),
        }
        let which = hasher.finish();
        let counter = &mut self.counters[which as usize % COUNTERS];
        let elapsed = now.millis().wrapping_sub(counter.at_ms);
        // Less than a millisecond has passed, so do not add a random number.
        let jump = match elapsed {
            0 => 0,
            _ => {
                hasher.write_u64(u64::from(counter.last));
                hasher.write_u64(now.0);
                (u128::from(hasher.finish()) * (u128::from(elapsed) + 1)) >> 64
            }
        };
        let (begin, share) = self.range;
        let more = count.saturating_sub(1);
        let next = u64::from(counter.last) + 1 + jump as u64;
        // Use a mask instead of a division, because `share` is a power of two.
        let mut first = (next & u64::from(share - 1)) as u32;
        // Start again if the identifications of all segments of the packet would exceed the range.
        if first + more >= share {
            first = if share == 1 << u16::BITS { first } else { 0 };
        }
        let last = first.wrapping_add(more) as u16;
        *counter = Counter { last, at_ms: now.millis() };
        begin.wrapping_add(first as u16)
    }

    /// Returns a random identification for an IPv6 packet. Its 32 bits are long enough that random
    /// numbers rarely repeat (RFC 7739 §5.1).
    pub(super) fn take_v6(&mut self) -> u32 {
        self.v6_given += 1;
        let mut hasher = self.keys.build_hasher();
        hasher.write_u64(self.v6_given);
        hasher.finish() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn addr(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    #[test]
    fn within_a_millisecond_none_comes_twice() {
        let mut idents = Idents::new(Keyed([7, 9]), 0, 1);
        let (src, dst) = (addr("10.0.0.1"), addr("10.0.0.2"));
        let first = idents.take_v4(Instant(5), src, dst, 1);
        assert_eq!(idents.take_v4(Instant(5), src, dst, 5), first.wrapping_add(1));
        assert_eq!(idents.take_v4(Instant(5), src, dst, 1), first.wrapping_add(6));
    }

    /// Tests two destinations that share a counter. An observer sees the identifications of packets
    /// to one of them, sent every 100 ms. The identifications must not reveal the packets to the
    /// other destination.
    #[test]
    fn what_is_sent_to_others_does_not_show() {
        let mut idents = Idents::new(Keyed([7, 9]), 0, 1);
        let src = addr("10.0.0.1");
        let seen = |idents: &mut Idents, others: u32| -> Vec<u16> {
            let mut last = 0;
            let mut steps = Vec::new();
            for n in 0..200u64 {
                let now = Instant((1000 + 100 * n) * MS);
                let ident = idents.take_v4(now, src, src, 1);
                steps.push(ident.wrapping_sub(last));
                last = ident;
                idents.take_v4(Instant(now.0 + 50 * MS), src, src, others);
            }
            steps.split_off(1)
        };
        let (few, more) = (seen(&mut idents, 1), seen(&mut idents, 5));
        // If the counter counted only packets, the steps would be exactly 3 and 7.
        let spread = |steps: &[u16]| {
            let (least, most) = (steps.iter().min(), steps.iter().max());
            (*least.unwrap(), *most.unwrap())
        };
        for steps in [&few, &more] {
            let (least, most) = spread(steps);
            assert!((2..30).contains(&least) && (71..115).contains(&most), "{least} to {most}");
        }
    }

    /// The shards' ranges remain disjoint, for any number of packets to one host and any number of
    /// segments.
    #[test]
    fn shards_do_not_cross() {
        let (src, dst) = (addr("10.0.0.1"), addr("10.0.0.2"));
        for count in [2, 16] {
            for n in 0..count {
                let mut idents = Idents::new(Keyed([7, 9 + n as u64]), n, count);
                let share = 65_536 / count;
                let mine = n * share..(n + 1) * share;
                let mut given = vec![false; 65_536];
                for step in 0..3000 {
                    let pieces = [1, 44, 7][step % 3];
                    let first = idents.take_v4(Instant(step as u64 * MS), src, dst, pieces);
                    let all = usize::from(first)..usize::from(first) + pieces as usize;
                    assert!(mine.start <= all.start && all.end <= mine.end, "{all:?} of {mine:?}");
                    given[all].fill(true);
                }
                assert!(given.iter().filter(|given| **given).count() > share * 9 / 10);
            }
        }
    }

    #[test]
    fn ipv6_ones_are_random() {
        let mut idents = Idents::new(Keyed([7, 9]), 0, 1);
        let mut drawn: Vec<u32> = (0..1000).map(|_| idents.take_v6()).collect();
        assert!(drawn.windows(2).all(|two| two[1].wrapping_sub(two[0]) > 1));
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 1000);
        assert!(drawn[100] > u32::MAX / 20 && drawn[900] < u32::MAX / 20 * 19);
    }
}
