//! Run-length compressed tables. Neighbouring slots of a routing table often have equal values.

/// A table of slots with run-length compression, because neighbouring slots often have equal
/// values. Each of the `WORDS` words is the index of 64 slots.
#[derive(Debug, Clone)]
pub(crate) struct SlotRuns<const WORDS: usize, T> {
    words: [Word; WORDS],
    /// Values of the runs of equal slots, in the order of the slots. Empty if no slot has a value.
    values: Vec<Option<T>>,
}

/// Bitmap and counter by which the value of each of 64 slots is found. A lookup reads only this
/// word and the value.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    /// Bitmap with a bit for each slot that starts a run of equal values.
    starts: u64,
    /// Number of runs of equal slots that start before the first slot of this word.
    before: u32,
    /// Whether at least one of the 64 slots is marked.
    marked: bool,
}

const _: () = assert!(size_of::<Word>() == 16);

impl<const WORDS: usize, T> Default for SlotRuns<WORDS, T> {
    fn default() -> Self {
        Self { words: [Word::default(); WORDS], values: Vec::new() }
    }
}

impl<const WORDS: usize, T> SlotRuns<WORDS, T> {
    /// Returns the value of a slot.
    pub(crate) fn find(&self, slot: usize) -> Option<&T> {
        self.value(self.place(slot))
    }

    /// Returns the index in `values` of a slot's value.
    #[inline]
    pub(crate) fn place(&self, slot: usize) -> usize {
        let word = self.words[slot / 64 % WORDS];
        let until = word.starts & (u64::MAX >> (63 - slot % 64));
        // If no slot has a value, there are no runs, and the subtraction wraps to `usize::MAX`. No
        // value has this index, so the caller finds none.
        (word.before as usize + until.count_ones() as usize).wrapping_sub(1)
    }

    /// Returns the value at an index of `values`.
    #[inline]
    pub(crate) fn value(&self, place: usize) -> Option<&T> {
        self.values.get(place)?.as_ref()
    }

    /// Returns whether a slot may be marked as having a table for longer prefixes. Each mark covers
    /// 64 slots, so the result may be true for an unmarked neighbour.
    #[inline]
    pub(crate) fn is_marked(&self, slot: usize) -> bool {
        self.words[slot / 64 % WORDS].marked
    }

    /// Marks the given slots as having a table for longer prefixes, and clears all other marks.
    pub(crate) fn mark(&mut self, slots: impl Iterator<Item = usize>) {
        self.words.iter_mut().for_each(|word| word.marked = false);
        slots.for_each(|slot| self.words[slot / 64 % WORDS].marked = true);
    }

    /// Returns whether no slot has a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the memory that the values use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<Option<T>>()
    }
}

impl<const WORDS: usize, T: Clone + PartialEq> SlotRuns<WORDS, T> {
    /// Replaces the values of all slots. The marks remain unchanged.
    pub(crate) fn replace(&mut self, slots: &[Option<T>]) {
        debug_assert_eq!(slots.len(), 64 * WORDS);
        self.values.clear();
        let mut last = None;
        for (word, slots) in self.words.iter_mut().zip(slots.chunks(64)) {
            (word.starts, word.before) = (0, self.values.len() as u32);
            for (n, value) in slots.iter().enumerate() {
                if last != Some(value) {
                    word.starts |= 1 << n;
                    self.values.push(value.clone());
                    last = Some(value);
                }
            }
        }
        if self.values.iter().all(Option::is_none) {
            (self.values, self.words) = (Vec::new(), self.words.map(Word::without_runs));
        }
        self.values.shrink_to_fit();
    }
}

impl Word {
    fn without_runs(self) -> Self {
        Self { starts: 0, before: 0, marked: self.marked }
    }
}
