//! Slots of which neighbours often have equal values, stored once for each run of them.

/// Values of 64 slots for each of `WORDS`.
#[derive(Debug, Clone)]
pub(crate) struct SlotRuns<const WORDS: usize, T> {
    words: [Word; WORDS],
    /// Values of the runs, in their order; empty when no slot has one.
    values: Vec<Option<T>>,
}

/// Index of 64 slots, all that a look-up reads beside the value.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    /// Bits of the slots at which another value begins.
    starts: u64,
    /// Runs that begin before these slots.
    before: u32,
    /// Some slot is marked.
    marked: bool,
}

const _: () = assert!(size_of::<Word>() == 16);

impl<const WORDS: usize, T> Default for SlotRuns<WORDS, T> {
    fn default() -> Self {
        Self { words: [Word::default(); WORDS], values: Vec::new() }
    }
}

impl<const WORDS: usize, T> SlotRuns<WORDS, T> {
    /// The value of a slot.
    pub(crate) fn find(&self, slot: usize) -> Option<&T> {
        self.value(self.place(slot))
    }

    /// Where the value of a slot is.
    #[inline]
    pub(crate) fn place(&self, slot: usize) -> usize {
        let word = self.words[slot / 64 % WORDS];
        let until = word.starts & (u64::MAX >> (63 - slot % 64));
        // No run begins where no slot has a value: the place before the first has none either.
        (word.before as usize + until.count_ones() as usize).wrapping_sub(1)
    }

    /// The value at a place.
    #[inline]
    pub(crate) fn value(&self, place: usize) -> Option<&T> {
        self.values.get(place)?.as_ref()
    }

    /// Whether a slot is marked, or may be.
    #[inline]
    pub(crate) fn is_marked(&self, slot: usize) -> bool {
        self.words[slot / 64 % WORDS].marked
    }

    /// Marks these slots, and no others.
    pub(crate) fn mark(&mut self, slots: impl Iterator<Item = usize>) {
        self.words.iter_mut().for_each(|word| word.marked = false);
        slots.for_each(|slot| self.words[slot / 64 % WORDS].marked = true);
    }

    /// Whether no slot has a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Bytes of memory that the values take.
    pub(crate) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<Option<T>>()
    }
}

impl<const WORDS: usize, T: Clone + PartialEq> SlotRuns<WORDS, T> {
    /// Gives all slots other values. Marks stay.
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
