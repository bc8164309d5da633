//! Hash index of a fixed size that maps hashes to entry numbers of a slab.

/// Open addressing with linear probing (Knuth, volume 3, section 6.4). A removal moves later
/// entries forward (algorithm R there), so that the index needs no rehash and never allocates.
#[derive(Debug)]
pub(crate) struct Index {
    slots: Box<[IndexSlot]>,
    mask: u32,
}

#[derive(Debug, Clone, Copy)]
struct IndexSlot {
    hash: u32,
    /// Number of the slab entry plus one; 0 if the slot is empty. A zeroed allocation is therefore
    /// an empty index.
    value: u32,
}

impl Index {
    /// Creates an index for at most `entries` entries, with at least twice as many slots.
    pub(crate) fn new(entries: usize) -> Self {
        let len = (2 * entries).next_power_of_two().max(2);
        // Allocate zeroed memory without writing to it, so that the kernel commits its pages only
        // when they are used.
        let slots = vec![IndexSlot { hash: 0, value: 0 }; len].into_boxed_slice();
        Self { slots, mask: len as u32 - 1 }
    }

    /// Returns the first entry with this hash for which `is_it` returns true. Entries with the same
    /// hash may belong to different keys.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash & self.mask;
        loop {
            let slot = self.slots[at as usize];
            let value = slot.value.checked_sub(1)?;
            if slot.hash == hash && is_it(value) {
                return Some(value);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Adds an entry. The caller must not exceed the number of entries given to [`new`](Self::new).
    pub(crate) fn insert(&mut self, hash: u32, value: u32) {
        let mut at = hash & self.mask;
        while self.slots[at as usize].value != 0 {
            at = (at + 1) & self.mask;
        }
        self.slots[at as usize] = IndexSlot { hash, value: value + 1 };
    }

    /// Removes an entry from the index. The hash must be the one with which it was added.
    pub(crate) fn remove(&mut self, hash: u32, value: u32) {
        let mut at = hash & self.mask;
        loop {
            let slot = self.slots[at as usize];
            if slot.value == 0 {
                debug_assert!(false, "entry {value} is not in the index");
                return;
            }
            if slot.value == value + 1 && slot.hash == hash {
                break;
            }
            at = (at + 1) & self.mask;
        }
        let mut hole = at;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at as usize];
            if slot.value == 0 {
                break;
            }
            // Move the entry into the hole, unless its hash selects a slot after the hole. A lookup
            // starts at the slot that the hash selects, and would miss an entry before it.
            let distance = at.wrapping_sub(slot.hash) & self.mask;
            if distance >= at.wrapping_sub(hole) & self.mask {
                self.slots[hole as usize] = slot;
                hole = at;
            }
        }
        self.slots[hole as usize].value = 0;
    }

    /// Returns the size of the index in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that entries with colliding hashes, or stored past the end of the array, are found
    /// after removals in any order.
    #[test]
    fn finds_entries_after_removals() {
        let mut seed = 1_u32;
        for _ in 0..200 {
            let mut index = Index::new(32);
            let mut known = Vec::new();
            for step in 0..400 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if known.len() < 32 && seed >> 31 == 0 {
                    let entry = ((seed >> 8) & 0x3f, step);
                    index.insert(entry.0, entry.1);
                    known.push(entry);
                } else if !known.is_empty() {
                    let (hash, value) = known.swap_remove((seed >> 8) as usize % known.len());
                    index.remove(hash, value);
                    assert_eq!(index.find(hash, |it| it == value), None);
                }
                for (hash, value) in &known {
                    assert_eq!(index.find(*hash, |it| it == *value), Some(*value));
                }
            }
        }
    }
}
