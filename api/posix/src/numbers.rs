//! [`Numbers`]: a set of descriptor numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use towpath_client::descriptors::DESCRIPTORS_MAX;

/// Set of descriptor numbers, with one bit for each number that a descriptor of the stack can have.
#[derive(Debug)]
pub(crate) struct Numbers([AtomicU64; DESCRIPTORS_MAX / 64]);

impl Numbers {
    /// Creates the empty set.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64])
    }

    /// Returns whether the set contains `fd`.
    #[inline]
    pub fn has(&self, fd: i32) -> bool {
        self.place(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// Adds `fd` to the set. Returns false if no descriptor of the stack can have this number.
    pub fn add(&self, fd: i32) -> bool {
        self.place(fd).map(|(word, bit)| word.fetch_or(bit, Relaxed)).is_some()
    }

    /// Removes `fd` from the set.
    pub fn remove(&self, fd: i32) {
        if let Some((word, bit)) = self.place(fd) {
            word.fetch_and(!bit, Relaxed);
        }
    }

    #[inline]
    fn place(&self, fd: i32) -> Option<(&AtomicU64, u64)> {
        // As an unsigned number, a negative `fd` exceeds the size of the set, so `get` returns
        // `None`.
        let fd = fd as usize;
        self.0.get(fd / 64).map(|word| (word, 1 << (fd % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_there_from_when_they_are_added_until_they_are_removed() {
        static NUMBERS: Numbers = Numbers::new();
        let last = DESCRIPTORS_MAX as i32 - 1;
        let all = [0, 63, 64, last];
        assert!(!all.iter().any(|&fd| NUMBERS.has(fd)));
        assert!(all.iter().all(|&fd| NUMBERS.add(fd) && NUMBERS.has(fd)));
        NUMBERS.remove(64);
        assert_eq!(all.map(|fd| NUMBERS.has(fd)), [true, true, false, true]);
        for none in [last + 1, i32::MAX, -1, i32::MIN] {
            NUMBERS.remove(none);
            assert!(!NUMBERS.add(none) && !NUMBERS.has(none), "{none}");
        }
    }
}
