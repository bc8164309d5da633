//! Slab (vector with reused slots) whose keys contain a generation.

/// Slab whose keys are never reused. A lookup by an outdated key, such as that of a delayed socket
/// event, returns `None` instead of a newer entry.
#[derive(Debug)]
pub(crate) struct KeyedSlab<T> {
    slots: Vec<(u64, Option<T>)>,
    free: Vec<u32>,
}

/// Key of an entry; never reused.
///
/// ```text
///   63  60 59                20 19              0
///  |  0   |     generation     |      index      |
/// ```
///
/// With a million insertions per second, a slot runs out of generations after twelve days. The
/// upper four bits identify the slab, see [`crate::events::Token`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlabKey(u64);

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

impl SlabKey {
    pub(crate) const BITS: u32 = 60;

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// Returns the lower 32 bits of the key, which identify an entry while it exists: see
    /// [`KeyedSlab::living`].
    pub(crate) fn short(self) -> u32 {
        self.0 as u32
    }

    fn new(generation: u64, index: u32) -> Self {
        Self::from_bits(generation << INDEX_BITS | u64::from(index))
    }

    fn index(self) -> usize {
        (self.short() & INDEX_MASK) as usize
    }
}

impl<T> KeyedSlab<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Inserts an entry. Callers must bound `len` far below the million possible indices.
    pub(crate) fn insert(&mut self, value: T) -> SlabKey {
        let index = self.free.pop().unwrap_or_else(|| {
            assert!(self.slots.len() < INDEX_MASK as usize, "flows are bounded");
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(value);
        SlabKey::new(slot.0, index)
    }

    pub(crate) fn get(&self, key: SlabKey) -> Option<&T> {
        let slot = self.slots.get(key.index())?;
        slot.1.as_ref().filter(|_| SlabKey::new(slot.0, key.index() as u32) == key)
    }

    pub(crate) fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index())?;
        slot.1.as_mut().filter(|_| SlabKey::new(slot.0, key.index() as u32) == key)
    }

    /// Returns the full key of the current entry for a [`SlabKey::short`]. The short key of a
    /// removed entry may match a newer entry, because it has only twelve bits of the generation.
    pub(crate) fn living(&self, short: u32) -> Option<SlabKey> {
        let index = short & INDEX_MASK;
        let (generation, entry) = self.slots.get(index as usize)?;
        let key = SlabKey::new(*generation, index);
        (entry.is_some() && key.short() == short).then_some(key)
    }

    /// Iterates over all entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, entry)| entry.as_ref())
    }

    /// Iterates over the keys of all entries.
    pub(crate) fn keys(&self) -> impl Iterator<Item = SlabKey> {
        let slots = self.slots.iter().zip(0..);
        let key = |(&(generation, ref entry), index): (&(u64, Option<T>), u32)| {
            entry.is_some().then(|| SlabKey::new(generation, index))
        };
        slots.filter_map(key)
    }

    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<T> {
        self.get(key)?;
        let slot = &mut self.slots[key.index()];
        slot.0 += 1;
        self.free.push(key.index() as u32);
        slot.1.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_dies_with_its_entry() {
        let mut slab = KeyedSlab::new();
        let a = slab.insert("a");
        assert_eq!(slab.living(a.short()), Some(a));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!(slab.living(a.short()), None);
        let b = slab.insert("b");
        assert_ne!(a, b);
        assert_eq!((slab.get(a), slab.get(b)), (None, Some(&"b")));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_key_does_not_come_again() {
        let mut slab = KeyedSlab::new();
        let first = slab.insert(0);
        slab.remove(first);
        for n in 1..10_000 {
            let key = slab.insert(n);
            assert_eq!((slab.get(first), slab.get(key)), (None, Some(&n)));
            assert_eq!(SlabKey::from_bits(key.to_bits()), key);
            slab.remove(key);
        }
    }
}
