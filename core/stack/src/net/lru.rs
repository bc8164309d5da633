//! Map with a maximum number of entries. If it is full, an insertion evicts the least recently used
//! entry.

use core::hash::Hash;

use hashbrown::HashMap;

use super::hash::Keyed;
use crate::tables::slab::{List, Queue};

/// Map that also keeps its entries in a list, from the least to the most recently used one. All
/// methods take constant time, except [`Lru::iter`] and [`Lru::iter_mut`]. Both iterate in a
/// deterministic order.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    index: HashMap<K, u32, Keyed>,
    entries: Queue<(K, V)>,
    by_use: List,
    capacity: usize,
}

impl<K: Copy + Eq + Hash, V> Lru<K, V> {
    pub(crate) fn new(capacity: usize, keys: Keyed) -> Self {
        assert!(capacity > 0, "the newest entry needs room");
        Self {
            index: HashMap::with_hasher(keys),
            entries: Queue::default(),
            by_use: List::default(),
            capacity,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the value of a key, without marking it as used.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        let at = *self.index.get(key)?;
        self.entries.get(at).map(|(_, value)| value)
    }

    /// Returns the value of a key, and marks it as most recently used.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.index.get(key)?;
        if self.by_use.back() != Some(at) {
            self.entries.renew(&mut self.by_use, at);
        }
        self.entries.get_mut(at).map(|(_, value)| value)
    }

    /// Inserts a value as the most recently used one. Returns the entry that was removed. The
    /// removed entry is the earlier one of the same key or, if the map was full, the least recently
    /// used one.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let gone = match self.remove(&key) {
            Some(old) => Some((key, old)),
            None if self.len() >= self.capacity => self.pop_oldest(),
            None => None,
        };
        let at = self.entries.push(&mut self.by_use, (key, value));
        self.index.insert(key, at);
        gone
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.index.remove(key)?;
        self.entries.remove(&mut self.by_use, at).map(|(_, value)| value)
    }

    pub(crate) fn oldest(&self) -> Option<&K> {
        self.entries.get(self.by_use.front()?).map(|(key, _)| key)
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<(K, V)> {
        let key = *self.oldest()?;
        self.remove(&key).map(|value| (key, value))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
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
