//! Sets of ports that one thread writes and other threads read.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of ports, which takes 8 KiB. Changes are made under a lock. A read without the lock may
/// return an outdated result; a reader that relies on the result repeats the read under the lock.
#[derive(Debug)]
pub(crate) struct PortSet(Box<[AtomicU64; WORDS]>);

const WORDS: usize = 1 << 10;

impl Default for PortSet {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(0) }; WORDS]))
    }
}

impl PortSet {
    /// Adds `port` to the set, or removes it.
    pub fn set(&self, port: u16, is_in: bool) {
        let (word, bit) = (&self.0[usize::from(port) / 64], 1 << (port % 64));
        // No atomic read-modify-write is needed, because only one thread at a time changes the set.
        let before = word.load(Ordering::Relaxed);
        word.store(if is_in { before | bit } else { before & !bit }, Ordering::Relaxed);
    }

    /// Returns whether `port` is in the set.
    pub fn contains(&self, port: u16) -> bool {
        self.0[usize::from(port) / 64].load(Ordering::Relaxed) & 1 << (port % 64) != 0
    }
}

/// Union of several sets of ports. The search for the first missing port examines 64 ports at a
/// time.
#[derive(Debug)]
pub(crate) struct PortSets<'a>(pub &'a [&'a PortSet]);

impl PortSets<'_> {
    /// Returns the first port in `range` that is in none of the sets.
    pub fn first_missing(&self, range: Range<u32>) -> Option<u32> {
        let mut at = range.start;
        while at < range.end {
            let words = self.0.iter().map(|set| set.0[at as usize / 64].load(Ordering::Relaxed));
            let missing = !words.fold(0, |all, word| all | word) >> (at % 64);
            if missing != 0 {
                let found = at + missing.trailing_zeros();
                return (found < range.end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_any_set_is_not_missing() {
        let (odd, even) = (PortSet::default(), PortSet::default());
        for port in 100..=300 {
            if port % 2 == 0 { &even } else { &odd }.set(port, true);
        }
        let both = PortSets(&[&odd, &even]);
        assert_eq!(both.first_missing(100..400), Some(301));
        assert_eq!(both.first_missing(100..301), None);
        odd.set(201, false);
        assert_eq!(both.first_missing(100..400), Some(201));
        assert!(!odd.contains(201) && odd.contains(203) && !even.contains(203));
        assert_eq!(PortSets(&[]).first_missing(7..8), Some(7));
    }
}
