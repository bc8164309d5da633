//! IP identifications.

use core::hash::{BuildHasher, Hasher};
use core::net::IpAddr;

use towpath_tcp::Instant;

use crate::net::hash::Keyed;

/// Source of IP identifications, which tell the fragments of one packet from those of another.
///
/// A receiver must not infer from its packets' identifications how many packets other hosts get.
/// Idle scans and forged fragments rest on such knowledge (RFC 7739 §3).
#[derive(Debug)]
pub(super) struct Idents {
    keys: Keyed,
    /// First identification of this data part, and their number. The range is contiguous, because a
    /// device that cuts a packet counts on from the first piece.
    range: (u16, u32),
    counters: Vec<Counter>,
    /// Identifications given to IPv6 packets.
    v6_given: u64,
}

/// The last identification, counted from the first of the range, and when it was given.
#[derive(Debug, Clone, Copy)]
struct Counter {
    last: u16,
    at_ms: u32,
}

/// Enough that two busy destinations seldom share one: 16 KiB.
const COUNTERS: usize = 2048;

impl Idents {
    /// Identifications for the data part of shard `n` of `count`, a power of two. Ranges of shards
    /// are disjoint: otherwise fragments from two shards to one host could be mistaken for one
    /// packet (RFC 6864 §4).
    pub(super) fn new(keys: Keyed, n: usize, count: usize) -> Self {
        let share = (1 << u16::BITS) / count as u32;
        let range = ((n as u32 * share) as u16, share);
        // Hashed first values do not reveal when this host started.
        let [first, second] = keys.0;
        let begin = |n: usize| {
            let mut hasher = Keyed([second, first]).build_hasher();
            hasher.write_usize(n);
            Counter { last: hasher.finish() as u16, at_ms: 0 }
        };
        Self { keys, range, counters: (0..COUNTERS).map(begin).collect(), v6_given: 0 }
    }

    /// `count` identifications for packets from `src` to `dst`, the first one returned.
    ///
    /// Identifications count up, because 16 random bits would repeat too soon (RFC 6864 §4.3). As
    /// in Linux, destinations share counters by a secret hash. A counter jumps by a random part of
    /// the milliseconds since its last use, which hides the use by other destinations.
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
        // Within a millisecond there is nothing to draw.
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
        // A power of two: no division a packet.
        let mut first = (next & u64::from(share - 1)) as u32;
        // The pieces of one packet do not reach beyond the range.
        if first + more >= share {
            first = if share == 1 << u16::BITS { first } else { 0 };
        }
        let last = first.wrapping_add(more) as u16;
        *counter = Counter { last, at_ms: now.millis() };
        begin.wrapping_add(first as u16)
    }

    /// An identification for an IPv6 packet: 32 bits are enough to be drawn at random (RFC 7739
    /// §5.1).
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

    /// Two destinations that share a counter: an observer of the identifications of one every 100
    /// ms learns nothing of a packet to the other.
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
        // Steps of 3 and 7 if the counter counted.
        let spread = |steps: &[u16]| {
            let (least, most) = (steps.iter().min(), steps.iter().max());
            (*least.unwrap(), *most.unwrap())
        };
        for steps in [&few, &more] {
            let (least, most) = spread(steps);
            assert!((2..30).contains(&least) && (71..115).contains(&most), "{least} to {most}");
        }
    }

    /// However many each of them sends to one host, and however its packets are cut.
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
