//! Set of socket slots, such as those that a process has open.

/// A bit set of slot numbers. Slots are numbered without gaps, and a process may have one socket or
/// a hundred thousand. Pages of bits are allocated only where a bit is set.
#[derive(Debug, Default)]
pub(crate) struct SlotSet {
    pages: Vec<Option<Box<Page>>>,
}

#[derive(Debug)]
struct Page {
    words: [u64; WORDS],
    count: u32,
}

const WORDS: usize = 64;
/// Number of slots in a page of bits.
const PAGE: usize = WORDS * 64;

impl SlotSet {
    /// Adds a slot to the set. Returns false if the set already contains it.
    pub fn insert(&mut self, slot: u32) -> bool {
        let (page, word, bit) = place(slot);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page =
            self.pages[page].get_or_insert_with(|| Box::new(Page { words: [0; WORDS], count: 0 }));
        let is_new = page.words[word] & bit == 0;
        page.words[word] |= bit;
        page.count += u32::from(is_new);
        is_new
    }

    /// Removes a slot from the set. Returns false if the set does not contain it.
    pub fn remove(&mut self, slot: u32) -> bool {
        let (page, word, bit) = place(slot);
        let Some(at) = self.pages.get_mut(page) else { return false };
        let Some(page) = at.as_deref_mut().filter(|page| page.words[word] & bit != 0) else {
            return false;
        };
        page.words[word] &= !bit;
        page.count -= 1;
        if page.count == 0 {
            *at = None;
        }
        true
    }

    pub fn contains(&self, slot: u32) -> bool {
        let (page, word, bit) = place(slot);
        let page = self.pages.get(page).and_then(Option::as_deref);
        page.is_some_and(|page| page.words[word] & bit != 0)
    }

    /// Returns the lowest slot in the set.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// Returns the lowest slot in the set that is at least `from`.
    pub fn first_from(&self, from: u32) -> Option<u32> {
        let (first, word, bit) = place(from);
        let in_page = |at: usize, word: usize, mask: u64| {
            let words = &self.pages.get(at)?.as_deref()?.words;
            let rest = words.iter().enumerate().skip(word + 1);
            let masked =
                std::iter::once((word, words[word] & mask)).chain(rest.map(|(n, it)| (n, *it)));
            let (n, bits) = masked.into_iter().find(|(_, bits)| *bits != 0)?;
            Some((at * PAGE + n * 64) as u32 + bits.trailing_zeros())
        };
        // Ignore the bits below `from` in the first word.
        let found = in_page(first, word, !(bit - 1));
        found.or_else(|| (first + 1..self.pages.len()).find_map(|at| in_page(at, 0, u64::MAX)))
    }

    /// Moves the slots that are not in `kept` from this set to the set `to`.
    pub fn move_others(&mut self, kept: &Self, to: &mut Self) {
        to.pages.resize_with(to.pages.len().max(self.pages.len()), || None);
        for (at, (page, to)) in self.pages.iter_mut().zip(&mut to.pages).enumerate() {
            let Some(own) = page.as_deref_mut() else { continue };
            let kept = kept.pages.get(at).and_then(Option::as_deref);
            let to = to.get_or_insert_with(|| Box::new(Page { words: [0; WORDS], count: 0 }));
            for (word, (own, to)) in own.words.iter_mut().zip(&mut to.words).enumerate() {
                let stay = *own & kept.map_or(0, |page| page.words[word]);
                *to |= *own & !stay;
                *own = stay;
            }
            to.recount();
            own.recount();
            if own.count == 0 {
                *page = None;
            }
        }
    }

    /// Iterates over the slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let pages = self.pages.iter().zip(0u32..);
        pages.filter_map(|(page, at)| Some((page.as_deref()?, at))).flat_map(|(page, at)| {
            page.words.iter().zip(0u32..).flat_map(move |(word, nth)| {
                let first = at * PAGE as u32 + nth * 64;
                Bits(*word).map(move |bit| first + bit)
            })
        })
    }
}

impl Page {
    fn recount(&mut self) {
        self.count = self.words.iter().map(|word| word.count_ones()).sum();
    }
}

fn place(slot: u32) -> (usize, usize, u64) {
    let slot = slot as usize;
    (slot / PAGE, slot % PAGE / 64, 1 << (slot % 64))
}

/// Iterates over the numbers of the bits that are set in a word.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = (self.0 != 0).then(|| self.0.trailing_zeros())?;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_set_in_order_that_owns_nothing_when_empty() {
        let mut holds = SlotSet::default();
        let slots = [0, 1, 63, 64, 4095, 4096, 70_000, 1_048_575];
        for slot in slots.iter().rev() {
            assert!(holds.insert(*slot) && !holds.insert(*slot));
        }
        assert!(holds.contains(4095) && !holds.contains(2) && !holds.contains(9000));
        assert!(!holds.remove(2) && !holds.remove(9000) && !holds.remove(u32::MAX));
        assert_eq!(holds.iter().collect::<Vec<_>>(), slots);
        for from in (0..4200).chain([69_999, 70_000, 70_001, 1_048_575, 1_048_576, u32::MAX]) {
            let next = slots.iter().copied().find(|slot| *slot >= from);
            assert_eq!(holds.first_from(from), next, "from {from}");
        }
        for slot in slots {
            assert!(holds.remove(slot) && !holds.remove(slot));
        }
        assert_eq!((holds.iter().count(), holds.first()), (0, None));
        assert!(holds.pages.iter().all(Option::is_none));
    }

    #[test]
    fn others_move() {
        let set = |slots: &[u32]| {
            let mut holds = SlotSet::default();
            slots.iter().for_each(|slot| assert!(holds.insert(*slot)));
            holds
        };
        let (mut holds, mut moved) = (set(&[1, 2, 64, 5000, 70_000]), set(&[3]));
        holds.move_others(&set(&[2, 4, 70_000]), &mut moved);
        assert_eq!(holds.iter().collect::<Vec<_>>(), [2, 70_000]);
        assert_eq!(moved.iter().collect::<Vec<_>>(), [1, 3, 64, 5000]);
        assert!(holds.remove(2) && holds.pages[0].is_none());
        assert!(holds.remove(70_000) && moved.remove(5000));
        assert!(holds.pages.iter().all(Option::is_none));
    }
}
