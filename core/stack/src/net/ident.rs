//! IP identifications.

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher13;

/// Counters that pick the identification of packets which may be fragmented.
///
/// A counter for each destination alone would tell strangers how much we send to others, and one
/// counter for all would let them count; random numbers repeat too soon. So destinations share
/// counters by a secret hash, and each has an offset of its own (RFC 7739 §5.3).
#[derive(Debug)]
pub(super) struct Idents {
    keys: [u64; 2],
    counters: Vec<u32>,
}

/// Enough that two busy destinations seldom share one: 8 KiB.
const COUNTERS: usize = 2048;

impl Idents {
    pub(super) fn new(keys: [u64; 2]) -> Self {
        Self { keys, counters: vec![0; COUNTERS] }
    }

    /// `count` identifications for packets from `src` to `dst`, the first one returned. IPv4 uses the
    /// lower 16 bits.
    pub(super) fn take(&mut self, src: IpAddr, dst: IpAddr, count: u32) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.keys[0], self.keys[1]);
        for addr in [src, dst] {
            match addr {
                IpAddr::V4(v4) => hasher.write_u32(v4.to_bits()),
                IpAddr::V6(v6) => hasher.write_u128(v6.to_bits()),
            }
        }
        let hash = hasher.finish();
        let counter = &mut self.counters[hash as usize % COUNTERS];
        let ident = counter.wrapping_add((hash >> 32) as u32);
        *counter = counter.wrapping_add(count);
        ident
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_up_for_one_destination_and_starts_apart_for_another() {
        let mut idents = Idents::new([7, 9]);
        let src: IpAddr = "10.0.0.1".parse().unwrap();
        let (a, b): (IpAddr, IpAddr) = ("10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap());
        let first = idents.take(src, a, 1);
        assert_eq!(idents.take(src, a, 5), first.wrapping_add(1));
        assert_eq!(idents.take(src, a, 1), first.wrapping_add(6));
        let other = idents.take(src, b, 1);
        assert!(other.abs_diff(first) > 1000);
    }
}
