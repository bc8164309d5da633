//! Tables of flows that end by being idle, because nothing else says that they ended.
//!
//! When an owner has as many flows as it may, a new one displaces one of its own; a class says who
//! the owner is.

use std::collections::HashMap;
use std::hash::Hash;

use crate::slab::{Key, Slab};

/// Flows by key, ended when idle, and a bounded number of them: one that is idle makes room.
///
/// Each class has its own idle time and its own list, from the least to the most recently used. So
/// the entry that expires next is always at the front of one.
#[derive(Debug)]
pub(crate) struct IdleTable<K, V> {
    index: HashMap<K, Key>,
    entries: Slab<Entry<K, V>>,
    lists: Vec<List>,
}

/// Properties of flows of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Class {
    /// A flow ends after this time without use.
    pub(crate) idle_ns: u64,
    /// Owner of the flows: classes of one owner share its `max`, and room is made among them.
    pub(crate) owner: u8,
    /// Flows of the owner at once, in all its classes.
    pub(crate) max: usize,
    /// Worth of the class among its owner's: flows of the lowest worth make room first.
    pub(crate) worth: u8,
}

/// An entry and its place in its list.
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
    class: Class,
    len: usize,
    oldest: Option<Key>,
    newest: Option<Key>,
}

impl<K: Copy + Eq + Hash, V> IdleTable<K, V> {
    /// Flows name their class by its place in `classes`.
    pub(crate) fn new(classes: &[Class]) -> Self {
        let list = |class: &Class| List { class: *class, len: 0, oldest: None, newest: None };
        let lists = classes.iter().map(list).collect();
        Self { index: HashMap::new(), entries: Slab::new(), lists }
    }

    pub(crate) fn find(&self, key: &K) -> Option<Key> {
        self.index.get(key).copied()
    }

    pub(crate) fn get(&self, id: Key) -> Option<(&K, &V)> {
        self.entries.get(id).map(|entry| (&entry.key, &entry.value))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|entry| (&entry.key, &entry.value))
    }

    pub(crate) fn get_mut(&mut self, id: Key) -> Option<(&K, &mut V)> {
        self.entries.get_mut(id).map(|entry| (&entry.key, &mut entry.value))
    }

    /// Whether the next [`IdleTable::insert`] of this class needs [`IdleTable::evict`] first.
    pub(crate) fn is_full(&self, class: usize) -> bool {
        let Class { owner, max, .. } = self.lists[class].class;
        self.of_owner(owner).map(|list| list.len).sum::<usize>() >= max
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
        if let Some(class) = self.entries.get(id).map(|entry| entry.class) {
            self.touch_as(now_ns, id, class);
        }
    }

    /// The flow was used, in a way that makes it one of `class`.
    pub(crate) fn touch_as(&mut self, now_ns: u64, id: Key, class: usize) {
        if self.entries.get(id).is_none() {
            return;
        }
        self.unlink(id);
        if let Some(entry) = self.entries.get_mut(id) {
            (entry.used_ns, entry.class) = (now_ns, class);
        }
        self.link(id);
    }

    pub(crate) fn remove(&mut self, id: Key) -> Option<(K, V)> {
        self.unlink(id);
        let entry = self.entries.remove(id)?;
        self.index.remove(&entry.key);
        Some((entry.key, entry.value))
    }

    /// Takes out the flows that `is_meant` says.
    pub(crate) fn remove_if(&mut self, is_meant: impl Fn(&V) -> bool) -> Vec<(K, V)> {
        let meant = self.iter().filter(|(_, value)| is_meant(value)).map(|(key, _)| *key);
        let meant: Vec<_> = meant.collect();
        meant.iter().filter_map(|key| self.remove(self.find(key)?)).collect()
    }

    /// Takes out a flow that has been idle for too long.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Option<(K, V)> {
        let due = self.lists.iter().find_map(|list| {
            let id = list.oldest?;
            let used_ns = self.entries.get(id)?.used_ns;
            (used_ns.saturating_add(list.class.idle_ns) <= now_ns).then_some(id)
        });
        self.remove(due?)
    }

    /// Takes out a flow of the owner of `class`: of those worth least the one idle for longest.
    pub(crate) fn evict(&mut self, class: usize) -> Option<(K, V)> {
        let lists = self.of_owner(self.lists[class].class.owner);
        let oldest = lists.filter_map(|list| Some((list.class.worth, list.oldest?)));
        let rank =
            |&(worth, id): &(u8, Key)| (worth, self.entries.get(id).map(|entry| entry.used_ns));
        let (_, id) = oldest.min_by_key(rank)?;
        self.remove(id)
    }

    /// Flows of `class` end after another idle time from now on.
    pub(crate) fn set_idle_ns(&mut self, class: usize, idle_ns: u64) {
        self.lists[class].class.idle_ns = idle_ns;
    }

    /// All flows.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.index.values().copied().collect()
    }

    /// When [`IdleTable::expire`] has something to do.
    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        let due = |list: &List| {
            let entry = self.entries.get(list.oldest?)?;
            Some(entry.used_ns.saturating_add(list.class.idle_ns))
        };
        self.lists.iter().filter_map(due).min()
    }

    fn of_owner(&self, owner: u8) -> impl Iterator<Item = &List> {
        self.lists.iter().filter(move |list| list.class.owner == owner)
    }

    fn link(&mut self, id: Key) {
        let Some(class) = self.entries.get(id).map(|entry| entry.class) else { return };
        self.lists[class].len += 1;
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
        self.lists[class].len -= 1;
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

    fn class(idle_ns: u64, owner: u8, max: usize, worth: u8) -> Class {
        Class { idle_ns, owner, max, worth }
    }

    #[test]
    fn flows_end_when_idle_each_class_in_its_time() {
        let mut table = IdleTable::new(&[class(60, 0, 8, 0), class(15, 0, 8, 0)]);
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
        let mut table = IdleTable::new(&[class(60, 0, 3, 0), class(15, 0, 3, 0)]);
        let a = table.insert(0, 0, 'a', ());
        table.insert(1, 1, 'b', ());
        table.insert(2, 0, 'c', ());
        assert!(table.is_full(0) && table.is_full(1));
        table.touch(3, a);
        assert_eq!(table.evict(0), Some(('b', ())));
        assert_eq!(table.evict(0), Some(('c', ())));
        assert_eq!(table.evict(0), Some(('a', ())));
        assert_eq!(table.evict(0), None);
    }

    #[test]
    fn whoever_needs_room_has_it_of_his_own() {
        const MINE: usize = 0;
        const NEW: usize = 1;
        const KNOWN: usize = 2;
        let classes = [class(60, 0, 2, 0), class(60, 1, 3, 0), class(60, 1, 3, 1)];
        let mut table = IdleTable::new(&classes);
        table.insert(0, MINE, 'm', ());
        let known = table.insert(1, NEW, 'k', ());
        table.touch_as(1, known, KNOWN);
        for (n, name) in ['x', 'y'].into_iter().enumerate() {
            table.insert(2 + n as u64, NEW, name, ());
        }
        assert!(table.is_full(NEW) && table.is_full(KNOWN) && !table.is_full(MINE));
        assert_eq!(table.evict(NEW), Some(('x', ())), "the known one is older, and worth more");
        assert_eq!(table.evict(NEW), Some(('y', ())));
        assert_eq!(table.evict(NEW), Some(('k', ())));
        assert_eq!((table.evict(NEW), table.evict(MINE)), (None, Some(('m', ()))));
    }
}
