//! Tables of flows that end by an idle timeout, because no packet (such as a FIN) marks their end.
//!
//! Each flow belongs to a class, and each class to an owner. If an owner has reached its maximum
//! number of flows, a new flow evicts another one of the same owner. As in Linux's connection
//! tracking (early_drop in nf_conntrack_core.c), unanswered flows are evicted before answered ones.
//! Among these, a flow of the client with the most flows is evicted. Thus a flooding client evicts
//! its own flows, and clients with fewer flows keep theirs.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::client::Client;
use crate::slab::{KeyedSlab, SlabKey};

/// Bounded table of flows by key with idle timeouts and eviction.
///
/// Each client has one list per class, ordered from the least to the most recently used flow.
/// Therefore handling a packet only moves its flow within one list, and does not look up the client
/// or the deadlines.
#[derive(Debug)]
pub(crate) struct IdleTable<K, V> {
    index: HashMap<K, SlabKey>,
    entries: KeyedSlab<Entry<K, V>>,
    classes: Vec<Class>,
    /// Number of flows of each class, by the class's index.
    counts: Vec<usize>,
    /// Kinds of flows: the distinct pairs of an owner and a worth in `classes`, sorted.
    kinds: Vec<(u8, u8)>,
    clients: HashMap<Client, SlabKey>,
    groups: KeyedSlab<Group>,
    /// Nonempty lists of flows, sorted by the time at which their oldest flow may expire. If that
    /// flow was used in the meantime, `expire` moves its list to the later deadline.
    deadlines: BTreeSet<IdleDeadline>,
    /// Clients with their numbers of flows of each kind, in ascending order. A kind is an owner and
    /// a worth, see [`Class::kind`].
    ranks: BTreeSet<Rank>,
    /// Number of changes of `ranks`. Used to order clients with the same number of flows by the
    /// time of their last change.
    changes: u64,
}

/// Class of flows: their idle timeout, limit and eviction order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Class {
    /// Idle timeout in nanoseconds.
    pub(crate) idle_ns: u64,
    /// Number of the owner of the class. All classes of one owner share the limit `max`, and evict
    /// each other's flows.
    pub(crate) owner: u8,
    /// Maximum number of flows of the owner, in all its classes together.
    pub(crate) max: usize,
    /// Eviction order among the owner's classes: flows with the lowest value are evicted first.
    pub(crate) worth: u8,
}

/// A flow that was evicted from the table, with its key and class.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Evicted<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) class: usize,
}

/// Entry of the table, linked with its neighbors in a list ordered by last use.
#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    group: SlabKey,
    class: usize,
    used_ns: u64,
    older: Option<SlabKey>,
    newer: Option<SlabKey>,
}

/// Flows of one client, in one list for each class.
#[derive(Debug)]
struct Group {
    client: Client,
    /// The client's lists of flows, one for each class, by the index of the class.
    lists: Vec<IdleList>,
    /// The client's entries in `IdleTable::ranks`, by the index of the kind of flows. `None` if the
    /// client has no flow of that kind.
    ranks: Vec<Option<Rank>>,
}

#[derive(Debug, Default)]
struct IdleList {
    len: usize,
    oldest: Option<SlabKey>,
    newest: Option<SlabKey>,
    /// Time in ns under which this list is sorted into `deadlines`. Unused while the list is empty.
    due_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct IdleDeadline {
    due_ns: u64,
    group: SlabKey,
    class: usize,
}

/// Rank of a client among all clients that have flows of a kind, by its number of these flows.
/// Clients with the same number are ordered by when they reached it, the earliest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    kind: usize,
    flows: usize,
    since: u64,
    group: SlabKey,
}

impl<K: Copy + Eq + Hash, V> IdleTable<K, V> {
    /// Creates a table. `classes` are the classes of flows, to which flows refer by index.
    pub(crate) fn new(classes: &[Class]) -> Self {
        let kinds = classes.iter().map(Class::kind).collect::<BTreeSet<_>>();
        Self {
            index: HashMap::new(),
            entries: KeyedSlab::new(),
            classes: classes.to_vec(),
            counts: vec![0; classes.len()],
            kinds: kinds.into_iter().collect(),
            clients: HashMap::new(),
            groups: KeyedSlab::new(),
            deadlines: BTreeSet::new(),
            ranks: BTreeSet::new(),
            changes: 0,
        }
    }

    pub(crate) fn find(&self, key: &K) -> Option<SlabKey> {
        self.index.get(key).copied()
    }

    pub(crate) fn get(&self, id: SlabKey) -> Option<(&K, &V)> {
        self.entries.get(id).map(|entry| (&entry.key, &entry.value))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|entry| (&entry.key, &entry.value))
    }

    pub(crate) fn get_mut(&mut self, id: SlabKey) -> Option<(&K, &mut V)> {
        self.entries.get_mut(id).map(|entry| (&entry.key, &mut entry.value))
    }

    /// Returns whether the class's owner has reached its limit, so that [`IdleTable::evict`] must
    /// be called before inserting a flow.
    pub(crate) fn is_full(&self, class: usize) -> bool {
        let Class { owner, max, .. } = self.classes[class];
        let all = self.classes.iter().zip(&self.counts);
        all.filter(|(class, _)| class.owner == owner).map(|(_, count)| count).sum::<usize>() >= max
    }

    /// Inserts a flow of `client` and returns its id. The table must not contain the key yet.
    pub(crate) fn insert(
        &mut self,
        now_ns: u64,
        class: usize,
        client: Client,
        key: K,
        value: V,
    ) -> SlabKey {
        let Self { clients, groups, classes, kinds, .. } = self;
        let group = *clients.entry(client).or_insert_with(|| {
            let lists = classes.iter().map(|_| IdleList::default()).collect();
            groups.insert(Group { client, lists, ranks: vec![None; kinds.len()] })
        });
        let entry = Entry { key, value, group, class, used_ns: now_ns, older: None, newer: None };
        let id = self.entries.insert(entry);
        self.index.insert(key, id);
        self.link(id);
        self.rank(group, class);
        id
    }

    /// Marks a flow as used, which restarts its idle timeout.
    pub(crate) fn touch(&mut self, now_ns: u64, id: SlabKey) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.used_ns = now_ns;
        if entry.newer.is_some() {
            self.unlink(id);
            self.link(id);
        }
    }

    /// Marks a flow as used, which restarts its idle timeout, and moves it to `class`.
    pub(crate) fn touch_as(&mut self, now_ns: u64, id: SlabKey, class: usize) {
        let Some(entry) = self.entries.get(id) else { return };
        let (before, group) = (entry.class, entry.group);
        if before == class {
            return self.touch(now_ns, id);
        }
        self.unlink(id);
        if let Some(entry) = self.entries.get_mut(id) {
            (entry.used_ns, entry.class) = (now_ns, class);
        }
        self.link(id);
        self.rank(group, before);
        self.rank(group, class);
    }

    pub(crate) fn remove(&mut self, id: SlabKey) -> Option<(K, V)> {
        self.unlink(id);
        let Entry { key, value, group, class, .. } = self.entries.remove(id)?;
        self.index.remove(&key);
        self.rank(group, class);
        let is_empty = |group: &Group| group.lists.iter().all(|list| list.len == 0);
        if self.groups.get(group).is_some_and(is_empty)
            && let Some(Group { client, .. }) = self.groups.remove(group)
        {
            self.clients.remove(&client);
        }
        Some((key, value))
    }

    /// Removes and returns all flows for whose value `is_meant` returns true.
    pub(crate) fn remove_if(&mut self, is_meant: impl Fn(&V) -> bool) -> Vec<(K, V)> {
        let meant = self.iter().filter(|(_, value)| is_meant(value)).map(|(key, _)| *key);
        let meant: Vec<_> = meant.collect();
        meant.iter().filter_map(|key| self.remove(self.find(key)?)).collect()
    }

    /// Removes and returns one flow whose idle timeout has passed, or `None`.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Option<(K, V)> {
        while let Some(&due) = self.deadlines.first().filter(|due| due.due_ns <= now_ns) {
            let idle_ns = self.classes[due.class].idle_ns;
            let oldest = self.groups.get(due.group)?.lists[due.class].oldest?;
            let due_ns = self.entries.get(oldest)?.used_ns.saturating_add(idle_ns);
            if due_ns <= now_ns {
                return self.remove(oldest);
            }
            self.deadlines.remove(&due);
            self.deadlines.insert(IdleDeadline { due_ns, ..due });
            self.groups.get_mut(due.group)?.lists[due.class].due_ns = due_ns;
        }
        None
    }

    /// Evicts a flow to make room for a new flow of `client` in `class`. The candidates are the
    /// flows with the lowest worth that belong to the class's owner. Evicts the longest idle
    /// candidate of the client that has the most of them, possibly `client` itself.
    pub(crate) fn evict(&mut self, class: usize, client: Client) -> Option<Evicted<K, V>> {
        let owner = self.classes[class].owner;
        let mut kinds = self.kinds.iter().enumerate().filter(|(_, (of, _))| *of == owner);
        let (kind, most) = kinds.find_map(|(kind, _)| Some((kind, self.most(kind)?)))?;
        let has_most = |group: &SlabKey| {
            let rank = self.groups.get(*group).and_then(|group| group.ranks[kind]);
            rank.is_some_and(|rank| rank.flows == most.flows)
        };
        let own = self.clients.get(&client).copied();
        let group = self.groups.get(own.filter(has_most).unwrap_or(most.group))?;
        let lists = group.lists.iter().zip(&self.classes);
        let oldest = lists
            .filter(|(_, class)| class.kind() == self.kinds[kind])
            .filter_map(|(list, _)| list.oldest);
        let id = oldest.min_by_key(|id| self.entries.get(*id).map(|entry| entry.used_ns))?;
        let class = self.entries.get(id)?.class;
        self.remove(id).map(|(key, value)| Evicted { key, value, class })
    }

    /// Returns the rank of the client with the most flows of a kind. If several clients have the
    /// same number, returns the one that reached it first.
    fn most(&self, kind: usize) -> Option<Rank> {
        let from = |kind, flows| Rank { kind, flows, since: 0, group: SlabKey::from_bits(0) };
        let most = self.ranks.range(from(kind, 0)..from(kind + 1, 0)).next_back()?;
        self.ranks.range(from(kind, most.flows)..).next().copied()
    }

    /// Changes the idle timeout of `class`.
    pub(crate) fn set_idle_ns(&mut self, class: usize, idle_ns: u64) {
        self.classes[class].idle_ns = idle_ns;
        let groups: Vec<_> = self.clients.values().copied().collect();
        for group in groups {
            self.clear_deadline(group, class);
            self.set_deadline(group, class);
        }
    }

    /// Returns the ids of all flows.
    pub(crate) fn keys(&self) -> Vec<SlabKey> {
        self.index.values().copied().collect()
    }

    /// Returns the earliest time in ns at which [`IdleTable::expire`] may have a flow to remove.
    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        self.deadlines.first().map(|due| due.due_ns)
    }

    /// Updates the rank of a client after its number of flows in `class` may have changed.
    fn rank(&mut self, group: SlabKey, class: usize) {
        let Self { classes, kinds, groups, ranks, changes, .. } = self;
        let of_class = classes[class].kind();
        let Ok(kind) = kinds.binary_search(&of_class) else { return };
        let Some(entry) = groups.get_mut(group) else { return };
        let lists = entry.lists.iter().zip(&*classes);
        let alike = lists.filter(|(_, class)| class.kind() == of_class);
        let flows = alike.map(|(list, _)| list.len).sum();
        if let Some(before) = entry.ranks[kind].take() {
            ranks.remove(&before);
        }
        if flows > 0 {
            *changes += 1;
            let rank = Rank { kind, flows, since: *changes, group };
            entry.ranks[kind] = Some(rank);
            ranks.insert(rank);
        }
    }

    /// Sets the deadline of a nonempty list to the time at which its oldest flow expires.
    fn set_deadline(&mut self, group: SlabKey, class: usize) {
        let idle_ns = self.classes[class].idle_ns;
        let Some(list) = self.groups.get_mut(group).map(|group| &mut group.lists[class]) else {
            return;
        };
        let Some(oldest) = list.oldest.and_then(|oldest| self.entries.get(oldest)) else { return };
        list.due_ns = oldest.used_ns.saturating_add(idle_ns);
        self.deadlines.insert(IdleDeadline { due_ns: list.due_ns, group, class });
    }

    fn clear_deadline(&mut self, group: SlabKey, class: usize) {
        if let Some(group_of) = self.groups.get(group) {
            let due_ns = group_of.lists[class].due_ns;
            self.deadlines.remove(&IdleDeadline { due_ns, group, class });
        }
    }

    fn link(&mut self, id: SlabKey) {
        let Some(&Entry { group, class, .. }) = self.entries.get(id) else { return };
        let Some(list) = self.groups.get_mut(group).map(|group| &mut group.lists[class]) else {
            return;
        };
        list.len += 1;
        let before = list.newest.replace(id);
        match before.and_then(|before| self.entries.get_mut(before)) {
            Some(before) => before.newer = Some(id),
            None => list.oldest = Some(id),
        }
        if let Some(entry) = self.entries.get_mut(id) {
            (entry.older, entry.newer) = (before, None);
        }
        self.counts[class] += 1;
        if before.is_none() {
            self.set_deadline(group, class);
        }
    }

    fn unlink(&mut self, id: SlabKey) {
        let Some(&Entry { group, class, older, newer, .. }) = self.entries.get(id) else { return };
        let Some(list) = self.groups.get_mut(group).map(|group| &mut group.lists[class]) else {
            return;
        };
        list.len -= 1;
        match older.and_then(|older| self.entries.get_mut(older)) {
            Some(older) => older.newer = newer,
            None => list.oldest = newer,
        }
        match newer.and_then(|newer| self.entries.get_mut(newer)) {
            Some(newer) => newer.older = older,
            None => list.newest = older,
        }
        self.counts[class] -= 1;
        if older.is_none() && newer.is_none() {
            self.clear_deadline(group, class);
        }
    }
}

impl Class {
    /// Returns the owner and worth of the class, which together are the kind of its flows. Clients
    /// are ranked for eviction by their flows of one kind.
    fn kind(&self) -> (u8, u8) {
        (self.owner, self.worth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(idle_ns: u64, owner: u8, max: usize, worth: u8) -> Class {
        Class { idle_ns, owner, max, worth }
    }

    fn client(last: u8) -> Client {
        Client::at([192, 0, 2, last].into())
    }

    /// Evicts a flow, and returns its key.
    fn evicted(table: &mut IdleTable<char, ()>, class: usize, client: Client) -> Option<char> {
        table.evict(class, client).map(|evicted| evicted.key)
    }

    #[test]
    fn flows_end_when_idle_each_class_in_its_time() {
        let mut table = IdleTable::new(&[class(60, 0, 8, 0), class(15, 0, 8, 0)]);
        let a = table.insert(0, 0, client(1), 'a', ());
        table.insert(1, 1, client(1), 'b', ());
        let c = table.insert(2, 1, client(1), 'c', ());
        assert_eq!(table.next_expiry_ns(), Some(16));
        table.touch(10, c);
        assert_eq!(table.expire(15), None);
        assert_eq!(table.expire(16), Some(('b', ())));
        assert_eq!(table.expire(16), None);
        assert_eq!(table.next_expiry_ns(), Some(25));
        assert_eq!(table.find(&'b'), None);
        assert_eq!(table.expire(70), Some(('c', ())));
        assert_eq!(table.expire(70), Some(('a', ())));
        assert_eq!((table.expire(1000), table.get(a)), (None, None));
        assert_eq!(table.next_expiry_ns(), None);
        assert!(table.clients.is_empty() && table.groups.len() == 0 && table.ranks.is_empty());
    }

    #[test]
    fn a_flow_that_is_used_lives_on() {
        let mut table = IdleTable::new(&[class(60, 0, 8, 0)]);
        let [a, b] = ['a', 'b'].map(|name| table.insert(0, 0, client(1), name, ()));
        for now in [50, 100] {
            table.touch(now, a);
            table.touch(now, b);
        }
        assert_eq!(table.expire(159), None);
        assert_eq!(table.next_expiry_ns(), Some(160));
        table.set_idle_ns(0, 20);
        assert_eq!(table.next_expiry_ns(), Some(120));
        assert_eq!(table.expire(120), Some(('a', ())));
    }

    #[test]
    fn the_one_idle_for_longest_makes_room() {
        let mut table = IdleTable::new(&[class(60, 0, 3, 0), class(15, 0, 3, 0)]);
        let a = table.insert(0, 0, client(1), 'a', ());
        table.insert(1, 1, client(1), 'b', ());
        table.insert(2, 0, client(1), 'c', ());
        assert!(table.is_full(0) && table.is_full(1));
        table.touch(3, a);
        assert_eq!(evicted(&mut table, 0, client(1)), Some('b'));
        assert_eq!(evicted(&mut table, 0, client(1)), Some('c'));
        assert_eq!(evicted(&mut table, 0, client(1)), Some('a'));
        assert_eq!(evicted(&mut table, 0, client(1)), None);
    }

    #[test]
    fn whoever_needs_room_has_it_of_his_own() {
        const MINE: usize = 0;
        const NEW: usize = 1;
        const KNOWN: usize = 2;
        let classes = [class(60, 0, 2, 0), class(60, 1, 3, 0), class(60, 1, 3, 1)];
        let mut table = IdleTable::new(&classes);
        let one = client(1);
        table.insert(0, MINE, one, 'm', ());
        let known = table.insert(1, NEW, one, 'k', ());
        table.touch_as(1, known, KNOWN);
        for (n, name) in ['x', 'y'].into_iter().enumerate() {
            table.insert(2 + n as u64, NEW, one, name, ());
        }
        assert!(table.is_full(NEW) && table.is_full(KNOWN) && !table.is_full(MINE));
        let evicted = |table: &mut IdleTable<_, _>, class| {
            table.evict(class, one).map(|evicted| (evicted.key, evicted.class))
        };
        assert_eq!(evicted(&mut table, NEW), Some(('x', NEW)), "the known one is worth more");
        assert_eq!(evicted(&mut table, NEW), Some(('y', NEW)));
        assert_eq!(evicted(&mut table, NEW), Some(('k', KNOWN)));
        assert_eq!(
            (evicted(&mut table, NEW), evicted(&mut table, MINE)),
            (None, Some(('m', MINE)))
        );
    }

    /// Inserts a flow as a gateway does: evicts an existing flow first if the limit is reached.
    fn begin(
        table: &mut IdleTable<u32, ()>,
        client: Client,
        key: u32,
        lost: &mut Vec<u32>,
    ) -> SlabKey {
        if table.is_full(0) {
            lost.extend(table.evict(0, client).map(|evicted| evicted.key));
        }
        table.insert(key.into(), 0, client, key, ())
    }

    #[test]
    fn a_client_that_floods_loses_its_own_flows() {
        const MAX: u32 = 64;
        let classes = [class(1000, 0, MAX as usize, 0), class(1000, 0, MAX as usize, 1)];
        let mut table = IdleTable::new(&classes);
        let mut lost = Vec::new();
        // Half of the flows belong to a client whose peers have answered, and one flow to a client
        // without answers.
        for key in 0..MAX / 2 {
            let id = begin(&mut table, client(1), key, &mut lost);
            table.touch_as(key.into(), id, 1);
        }
        begin(&mut table, client(2), 900, &mut lost);
        for key in 1000..3000 {
            begin(&mut table, client(3), key, &mut lost);
        }
        assert!(lost.iter().all(|key| *key >= 1000), "{lost:?}");
        assert_eq!(lost.len() as u32, 2000 + MAX / 2 + 1 - MAX);
        // The new client's flow is not evicted any more once its peer has answered.
        let new = begin(&mut table, client(4), 901, &mut lost);
        table.touch_as(3000, new, 1);
        for key in 3000..4000 {
            begin(&mut table, client(3), key, &mut lost);
        }
        assert!(lost.iter().all(|key| *key >= 1000));
    }

    #[test]
    fn answered_floods_end_at_an_equal_share() {
        const MAX: u32 = 64;
        let classes = [class(1000, 0, MAX as usize, 0), class(1000, 0, MAX as usize, 1)];
        let mut table = IdleTable::new(&classes);
        let mut lost = Vec::new();
        for (of, keys) in [(1, 0..10), (2, 100..150), (3, 1000..2000)] {
            for key in keys {
                let id = begin(&mut table, client(of), key, &mut lost);
                table.touch_as(key.into(), id, 1);
            }
        }
        let of = |range: std::ops::Range<u32>| {
            (table.iter().filter(|(key, ())| range.contains(key)).count()) as u32
        };
        assert_eq!((of(0..10), of(100..150), of(1000..2000)), (10, 27, 27));
    }

    #[test]
    fn of_clients_with_one_flow_each_the_oldest_makes_room() {
        let mut table = IdleTable::new(&[class(1000, 0, 3, 0)]);
        let mut lost = Vec::new();
        for key in 0..10 {
            begin(&mut table, client(key as u8), key, &mut lost);
        }
        assert_eq!(lost, (0..7).collect::<Vec<_>>());
    }
}
