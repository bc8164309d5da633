//! A map with a capacity: when it is full, the least recently used entry makes room.

use core::hash::Hash;

use hashbrown::HashMap;

use super::hash::Keyed;

/// Entries in a slab, linked from the most to the least recently used. Everything is O(1) but
/// [`Lru::iter_mut`], which goes over the slab in order, the same on every run.
#[derive(Debug)]
pub(super) struct Lru<K, V> {
    index: HashMap<K, u32, Keyed>,
    slots: Vec<Slot<K, V>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    capacity: usize,
}

#[derive(Debug)]
struct Slot<K, V> {
    entry: Option<(K, V)>,
    newer: u32,
    older: u32,
}

const NONE: u32 = u32::MAX;

impl<K: Copy + Eq + Hash, V> Lru<K, V> {
    pub(super) fn new(capacity: usize, keys: Keyed) -> Self {
        assert!(capacity > 0 && capacity < NONE as usize);
        Self {
            index: HashMap::with_hasher(keys),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            capacity,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Looks without counting as use.
    pub(super) fn peek(&self, key: &K) -> Option<&V> {
        let at = *self.index.get(key)?;
        self.slots[at as usize].entry.as_ref().map(|(_, value)| value)
    }

    /// The value of `key`, which becomes the most recently used.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.index.get(key)?;
        if at != self.newest {
            self.unlink(at);
            self.link_newest(at);
        }
        self.slots[at as usize].entry.as_mut().map(|(_, value)| value)
    }

    /// Puts a value in as the most recently used; returns what had to go: the old value of the
    /// same key, or the least recently used entry.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let gone = match self.remove(&key) {
            Some(old) => Some((key, old)),
            None if self.len() >= self.capacity => self.pop_oldest(),
            None => None,
        };
        let slot = Slot { entry: Some((key, value)), newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.index.insert(key, at);
        self.link_newest(at);
        gone
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.index.remove(key)?;
        self.unlink(at);
        self.free.push(at);
        self.slots[at as usize].entry.take().map(|(_, value)| value)
    }

    pub(super) fn oldest(&self) -> Option<&K> {
        self.slots.get(self.oldest as usize)?.entry.as_ref().map(|(key, _)| key)
    }

    pub(super) fn pop_oldest(&mut self) -> Option<(K, V)> {
        let key = *self.oldest()?;
        self.remove(&key).map(|value| (key, value))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref().map(|(k, v)| (k, v)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut().map(|(k, v)| (&*k, v)))
    }

    fn unlink(&mut self, at: u32) {
        let Slot { newer, older, .. } = self.slots[at as usize];
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let before = self.newest;
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older) = (NONE, before);
        match self.slots.get_mut(before as usize) {
            Some(slot) => slot.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut lru = Lru::new(3, Keyed([1, 2]));
        for n in 0..3 {
            assert_eq!(lru.insert(n, n * 10), None);
        }
        assert_eq!(lru.get_mut(&0), Some(&mut 0));
        assert_eq!(lru.insert(3, 30), Some((1, 10)));
        assert_eq!(lru.insert(0, 1), Some((0, 0)));
        assert_eq!(lru.remove(&2), Some(20));
        assert_eq!(lru.insert(4, 40), None);
        assert_eq!(lru.pop_oldest(), Some((3, 30)));
        assert_eq!(lru.len(), 2);
        assert_eq!(lru.peek(&0), Some(&1));
        assert_eq!(lru.peek(&3), None);
    }
}
