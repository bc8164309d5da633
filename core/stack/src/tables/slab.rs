//! Slab: a table with stable indices, and with identifiers that contain a generation. Growing does
//! not move the entries. Also linked lists of entries.

/// A growing table that reuses the indices of removed entries.
///
/// Entries are stored in chunks, so that growing does not copy them. Adding the millionth entry
/// takes as long as adding the first one.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<SlabPlace<T>>>,
    free: u32,
    len: u32,
}

#[derive(Debug)]
struct SlabPlace<T> {
    generation: u32,
    content: SlabContent<T>,
}

#[derive(Debug)]
enum SlabContent<T> {
    Taken(T),
    Free { next: u32 },
}

/// Index that stands for no entry, for example at the end of a linked list.
pub(crate) const NONE: u32 = u32::MAX;

const CHUNK: usize = 256;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: NONE, len: 0 }
    }
}

impl<T> Slab<T> {
    /// Size of a table entry in bytes.
    pub const ENTRY_BYTES: usize = size_of::<SlabPlace<T>>();

    /// Returns the number of entries in the table.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Adds an entry to the table, and returns its index.
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if self.free != NONE {
            let index = self.free;
            let place = self.place_mut(index).expect("the free list holds places of the slab");
            let SlabContent::Free { next } = place.content else {
                unreachable!("a free place is taken")
            };
            place.content = SlabContent::Taken(value);
            self.free = next;
            return index;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("one was just made");
        chunk.push(SlabPlace { generation: 0, content: SlabContent::Taken(value) });
        (before + chunk.len() - 1) as u32
    }

    /// Returns the identifier that the next inserted entry will have.
    pub fn next_id(&self) -> u64 {
        match self.free {
            // All chunks except the last one are full.
            NONE => self
                .chunks
                .last()
                .map_or(0, |chunk| ((self.chunks.len() - 1) * CHUNK + chunk.len()) as u64),
            index => self.id(index),
        }
    }

    /// Removes an entry. Its identifier becomes valid again only after its index was reused 2³²
    /// times.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let free = self.free;
        let place = self.place_mut(index)?;
        if matches!(place.content, SlabContent::Free { .. }) {
            return None;
        }
        place.generation = place.generation.wrapping_add(1);
        let content = std::mem::replace(&mut place.content, SlabContent::Free { next: free });
        self.free = index;
        self.len -= 1;
        match content {
            SlabContent::Taken(value) => Some(value),
            SlabContent::Free { .. } => None,
        }
    }

    /// Returns the entry at `index`; `None` if there is none.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        match &self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)?.content {
            SlabContent::Taken(value) => Some(value),
            SlabContent::Free { .. } => None,
        }
    }

    /// Returns the entry at `index` for changes; `None` if there is none.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.place_mut(index)?.content {
            SlabContent::Taken(value) => Some(value),
            SlabContent::Free { .. } => None,
        }
    }

    /// Returns the identifier of the entry at `index`, which combines the index and a generation.
    pub fn id(&self, index: u32) -> u64 {
        let generation = self
            .chunks
            .get(index as usize / CHUNK)
            .and_then(|chunk| chunk.get(index as usize % CHUNK))
            .map_or(0, |place| place.generation);
        u64::from(generation) << 32 | u64::from(index)
    }

    /// Returns the index in the identifier `id`, if the entry that the identifier refers to still
    /// exists.
    #[inline]
    pub fn find(&self, id: u64) -> Option<u32> {
        let index = id as u32;
        let place = self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)?;
        let lives =
            matches!(place.content, SlabContent::Taken(_)) && place.generation == (id >> 32) as u32;
        lives.then_some(index)
    }

    /// Iterates over all entries of the table, by index.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().flatten().zip(0..).filter_map(|(place, index)| match &place.content {
            SlabContent::Taken(value) => Some((index, value)),
            SlabContent::Free { .. } => None,
        })
    }

    /// Iterates over all entries of the table for changes, by index.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let places = self.chunks.iter_mut().flatten().zip(0..);
        places.filter_map(|(place, index)| match &mut place.content {
            SlabContent::Taken(value) => Some((index, value)),
            SlabContent::Free { .. } => None,
        })
    }

    #[inline]
    fn place_mut(&mut self, index: u32) -> Option<&mut SlabPlace<T>> {
        self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)
    }
}

/// First and last entry of a linked list in a [`Queue`]; the oldest entry is first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    front: u32,
    back: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl List {
    /// A linked list without entries.
    pub const EMPTY: Self = Self { front: NONE, back: NONE, len: 0 };

    /// Returns the number of entries in the list.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the list has no entries.
    pub fn is_empty(&self) -> bool {
        self.front == NONE
    }

    /// Returns the index of the oldest entry in the list.
    pub fn front(&self) -> Option<u32> {
        (self.front != NONE).then_some(self.front)
    }

    /// Returns the index of the newest entry in the list.
    pub fn back(&self) -> Option<u32> {
        (self.back != NONE).then_some(self.back)
    }
}

/// A slab whose entries are in doubly linked lists; each entry is in at most one list. Finding the
/// oldest entry of a list, and moving or removing any entry, takes constant time. The links are
/// stored in the entries, so that lists need no allocations.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    slab: Slab<Linked<T>>,
}

#[derive(Debug)]
struct Linked<T> {
    before: u32,
    behind: u32,
    value: T,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { slab: Slab::default() }
    }
}

impl<T> Queue<T> {
    /// Returns the number of entries in all lists.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Appends `value` as the newest entry of `list`, and returns its index.
    pub fn push(&mut self, list: &mut List, value: T) -> u32 {
        let index = self.slab.insert(Linked { before: NONE, behind: NONE, value });
        self.link(list, index);
        index
    }

    /// Removes the entry at `index`. `list` must be the list that contains it.
    pub fn remove(&mut self, list: &mut List, index: u32) -> Option<T> {
        self.unlink(list, index)?;
        self.slab.remove(index).map(|linked| linked.value)
    }

    /// Moves the entry at `index` to the end of `list`, which must contain it.
    pub fn renew(&mut self, list: &mut List, index: u32) {
        if self.unlink(list, index).is_some() {
            self.link(list, index);
        }
    }

    /// Moves the entry at `index` from the list `from`, which must contain it, to the end of the
    /// list `to`.
    pub fn shift(&mut self, from: &mut List, to: &mut List, index: u32) {
        if self.unlink(from, index).is_some() {
            self.link(to, index);
        }
    }

    /// Returns the entry at `index`; `None` if there is none.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slab.get(index).map(|linked| &linked.value)
    }

    /// Returns the entry at `index` for changes; `None` if there is none.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slab.get_mut(index).map(|linked| &mut linked.value)
    }

    /// Iterates over all entries of all lists, by index.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slab.iter().map(|(_, linked)| &linked.value)
    }

    /// Iterates over all entries of all lists for changes, by index.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slab.iter_mut().map(|(_, linked)| &mut linked.value)
    }

    /// Returns the identifier of the entry at `index`, which combines the index and a generation.
    pub fn id(&self, index: u32) -> u64 {
        self.slab.id(index)
    }

    /// Returns the index in the identifier `id`, if the entry that the identifier refers to still
    /// exists.
    pub fn find(&self, id: u64) -> Option<u32> {
        self.slab.find(id)
    }

    /// Appends an entry to `list`. The entry must not be in a list, because
    /// [`unlink`](Self::unlink) removed it.
    pub fn link(&mut self, list: &mut List, index: u32) {
        let back = list.back;
        if let Some(linked) = self.slab.get_mut(index) {
            (linked.before, linked.behind) = (back, NONE);
        }
        match self.slab.get_mut(back) {
            Some(linked) => linked.behind = index,
            None => list.front = index,
        }
        list.back = index;
        list.len += 1;
    }

    /// Removes an entry from `list`, which must contain it. The entry remains in the slab, so that
    /// it can be added to a list again.
    pub fn unlink(&mut self, list: &mut List, index: u32) -> Option<()> {
        let linked = self.slab.get(index)?;
        let (before, behind) = (linked.before, linked.behind);
        match self.slab.get_mut(before) {
            Some(linked) => linked.behind = behind,
            None => list.front = behind,
        }
        match self.slab.get_mut(behind) {
            Some(linked) => linked.before = before,
            None => list.back = before,
        }
        list.len -= 1;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_die_with_their_entry() {
        let mut slab = Slab::default();
        let a = slab.insert('a');
        let id = slab.id(a);
        assert_eq!(slab.find(id), Some(a));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let promised = slab.next_id();
        assert_eq!(slab.insert('b'), a, "the place is used again");
        assert_eq!(slab.id(a), promised);
        assert_eq!(slab.find(id), None, "under another id");
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn grows_past_a_chunk() {
        let mut slab = Slab::default();
        let mut insert = |n| {
            let promised = slab.next_id();
            let index = slab.insert(n);
            assert_eq!(slab.id(index), promised);
            index
        };
        let indices: Vec<u32> = (0..1000).map(&mut insert).collect();
        assert!(indices.iter().enumerate().all(|(n, &index)| slab.get(index) == Some(&n)));
        assert_eq!(slab.iter().count(), 1000);
    }

    #[test]
    fn lists_keep_their_order_whatever_is_removed() {
        let mut queue = Queue::default();
        let mut list = List::default();
        let at: Vec<u32> = (0..5).map(|n| queue.push(&mut list, n)).collect();
        assert_eq!(queue.remove(&mut list, at[2]), Some(2));
        queue.renew(&mut list, at[0]);
        queue.remove(&mut list, at[4]);
        let mut other = List::default();
        queue.push(&mut other, 9);
        queue.shift(&mut list, &mut other, at[3]);
        assert_eq!(
            (list.len(), other.len(), other.front().and_then(|n| queue.get(n))),
            (2, 2, Some(&9))
        );
        queue.shift(&mut other, &mut list, at[3]);
        queue.renew(&mut list, at[0]);
        let nine = other.front().unwrap();
        queue.remove(&mut other, nine);
        let mut seen = Vec::new();
        while let Some(front) = list.front() {
            seen.extend(queue.remove(&mut list, front));
        }
        assert_eq!(seen, [1, 3, 0]);
        assert_eq!((list.len(), queue.len()), (0, 0));
    }
}
