//! Tables of flows that end by being idle, because nothing else says that they ended.

use std::collections::HashMap;
use std::hash::Hash;

use crate::slab::{Key, Slab};

/// Flows by key, ended when idle, and a bounded number of them: the one idle for longest makes room.
///
/// Each class has its own idle time and its own list, from the least to the most recently used, so
/// that what expires next is always at the front of one.
#[derive(Debug)]
pub(crate) struct IdleTable<K, V> {
    index: HashMap<K, Key>,
    entries: Slab<Entry<K, V>>,
    lists: Vec<List>,
    max: usize,
}

/// One entry and its place in its list.
#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    class: usize,
    used_ns: u64,
    older: Option<Key>,
    newer: Option<Key>,
}

#[derive(Debug)]
struct List {
    idle_ns: u64,
    oldest: Option<Key>,
    newest: Option<Key>,
}

impl<K: Copy + Eq + Hash, V> IdleTable<K, V> {
    /// For `max` flows, with an idle time for each class.
    pub(crate) fn new(max: usize, idle_ns: &[u64]) -> Self {
        let list = |idle_ns: &u64| List { idle_ns: *idle_ns, oldest: None, newest: None };
        let lists = idle_ns.iter().map(list).collect();
        Self { index: HashMap::new(), entries: Slab::new(), lists, max }
    }

    pub(crate) fn find(&self, key: &K) -> Option<Key> {
        self.index.get(key).copied()
    }

    pub(crate) fn get(&self, id: Key) -> Option<(&K, &V)> {
        self.entries.get(id).map(|entry| (&entry.key, &entry.value))
    }

    pub(crate) fn get_mut(&mut self, id: Key) -> Option<(&K, &mut V)> {
        self.entries.get_mut(id).map(|entry| (&entry.key, &mut entry.value))
    }

    /// Whether the next [`IdleTable::insert`] needs [`IdleTable::evict`] first.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.max
    }

    /// Puts a flow in; the key must be new. The value may want to know its id.
    pub(crate) fn insert(&mut self, now_ns: u64, class: usize, key: K, value: V) -> Key {
        let entry = Entry { key, value, class, used_ns: now_ns, older: None, newer: None };
        let id = self.entries.insert(entry);
        self.index.insert(key, id);
        self.link(id);
        id
    }

    /// The flow was used.
    pub(crate) fn touch(&mut self, now_ns: u64, id: Key) {
        if self.entries.get(id).is_none() {
            return;
        }
        self.unlink(id);
        if let Some(entry) = self.entries.get_mut(id) {
            entry.used_ns = now_ns;
        }
        self.link(id);
    }

    pub(crate) fn remove(&mut self, id: Key) -> Option<(K, V)> {
        self.unlink(id);
        let entry = self.entries.remove(id)?;
        self.index.remove(&entry.key);
        Some((entry.key, entry.value))
    }

    /// Takes out a flow that has been idle for too long.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Option<(K, V)> {
        let due = self.lists.iter().find_map(|list| {
            let id = list.oldest?;
            let used_ns = self.entries.get(id)?.used_ns;
            (used_ns.saturating_add(list.idle_ns) <= now_ns).then_some(id)
        });
        self.remove(due?)
    }

    /// Takes out the flow that has been idle for longest.
    pub(crate) fn evict(&mut self) -> Option<(K, V)> {
        let oldest = self.lists.iter().filter_map(|list| list.oldest);
        let used = |id: &Key| self.entries.get(*id).map(|entry| entry.used_ns);
        let id = oldest.min_by_key(used)?;
        self.remove(id)
    }

    /// When [`IdleTable::expire`] has something to do.
    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        let due = |list: &List| {
            let entry = self.entries.get(list.oldest?)?;
            Some(entry.used_ns.saturating_add(list.idle_ns))
        };
        self.lists.iter().filter_map(due).min()
    }

    fn link(&mut self, id: Key) {
        let Some(class) = self.entries.get(id).map(|entry| entry.class) else { return };
        let before = self.lists[class].newest.replace(id);
        match before.and_then(|before| self.entries.get_mut(before)) {
            Some(before) => before.newer = Some(id),
            None => self.lists[class].oldest = Some(id),
        }
        if let Some(entry) = self.entries.get_mut(id) {
            (entry.older, entry.newer) = (before, None);
        }
    }

    fn unlink(&mut self, id: Key) {
        let Some(entry) = self.entries.get(id) else { return };
        let (class, older, newer) = (entry.class, entry.older, entry.newer);
        match older.and_then(|older| self.entries.get_mut(older)) {
            Some(older) => older.newer = newer,
            None => self.lists[class].oldest = newer,
        }
        match newer.and_then(|newer| self.entries.get_mut(newer)) {
            Some(newer) => newer.older = older,
            None => self.lists[class].newest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_end_when_idle_each_class_in_its_time() {
        let mut table = IdleTable::new(8, &[60, 15]);
        let a = table.insert(0, 0, 'a', ());
        table.insert(1, 1, 'b', ());
        let c = table.insert(2, 1, 'c', ());
        assert_eq!(table.next_expiry_ns(), Some(16));
        table.touch(10, c);
        assert_eq!(table.expire(15), None);
        assert_eq!(table.expire(16), Some(('b', ())));
        assert_eq!(table.next_expiry_ns(), Some(25));
        assert_eq!(table.find(&'b'), None);
        assert_eq!(table.expire(70), Some(('a', ())));
        assert_eq!(table.expire(70), Some(('c', ())));
        assert_eq!((table.expire(1000), table.get(a)), (None, None));
        assert_eq!(table.next_expiry_ns(), None);
    }

    #[test]
    fn the_one_idle_for_longest_makes_room() {
        let mut table = IdleTable::new(3, &[60, 15]);
        let a = table.insert(0, 0, 'a', ());
        table.insert(1, 1, 'b', ());
        table.insert(2, 0, 'c', ());
        assert!(table.is_full());
        table.touch(3, a);
        assert_eq!(table.evict(), Some(('b', ())));
        assert_eq!(table.evict(), Some(('c', ())));
        assert_eq!(table.evict(), Some(('a', ())));
        assert_eq!(table.evict(), None);
    }
}
