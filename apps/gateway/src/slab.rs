//! Things with small numbers that go stale when the thing goes.

/// A slab whose keys carry a generation, so that a key kept after its entry went (a late event of a
/// socket) finds nothing rather than another entry.
///
/// ```text
///   31        20 19              0
///  | generation |      index      |
/// ```
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts one in; callers bound `len` far below the million that keys can number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            assert!(self.slots.len() < INDEX_MASK as usize, "flows are bounded");
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(value);
        slot.0 << INDEX_BITS | index
    }

    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        let slot = self.slots.get((key & INDEX_MASK) as usize)?;
        slot.1.as_ref().filter(|_| slot.0 == key >> INDEX_BITS)
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((key & INDEX_MASK) as usize)?;
        slot.1.as_mut().filter(|_| slot.0 == key >> INDEX_BITS)
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, entry)| entry.as_ref())
    }

    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        self.get(key)?;
        let slot = &mut self.slots[(key & INDEX_MASK) as usize];
        slot.0 = (slot.0 + 1) & (u32::MAX >> INDEX_BITS);
        self.free.push(key & INDEX_MASK);
        slot.1.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_dies_with_its_entry() {
        let mut slab = Slab::new();
        let a = slab.insert("a");
        assert_eq!(slab.remove(a), Some("a"));
        let b = slab.insert("b");
        assert_ne!(a, b);
        assert_eq!((slab.get(a), slab.get(b)), (None, Some(&"b")));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.len(), 1);
    }
}
