//! The part of the shared memory for FIFOs. The memory is divided into extents ([`Window`]) of a
//! few sizes, with lists of the free ones.

use std::collections::VecDeque;

use towpath_shm::layout::{FIFO_LEN, FIFO_OFFSET, SHARDS_MAX};

/// Maximum size of a FIFO in bytes, whatever SO_RCVBUF and SO_SNDBUF request. The largest extent
/// (memory range for a FIFO) has this size.
pub const WINDOW_MAX: u32 = 16 << 20;
/// Size in bytes of the smallest extent (memory range for a FIFO). Smaller FIFOs use one as well,
/// because address space is plentiful and untouched pages cost nothing.
pub const WINDOW_MIN: u32 = 64 << 10;

/// For each size class, the size of its extents and the total size of the class in bytes. Half of
/// the memory is for the smallest class, because most FIFOs need no more.
pub(crate) const CLASSES: [(u32, usize); 5] = [
    (WINDOW_MIN, FIFO_LEN / 2),
    (256 << 10, FIFO_LEN / 8),
    (1 << 20, FIFO_LEN / 8),
    (4 << 20, FIFO_LEN / 8),
    (WINDOW_MAX, FIFO_LEN / 8),
];
pub(crate) const PAGE: u64 = 4096;
/// Maximum number of free extents (memory ranges for FIFOs) that are searched for one with
/// allocated pages when memory is short. Extents are searched from the most recently used; if these
/// have no pages, older ones rarely do.
const LOOKS_MAX: usize = 16;

/// A range of the shared memory that is the buffer of one FIFO. The struct is stored for every
/// connection and free range, so it takes only eight bytes. Therefore it counts pages, not bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Number of the first page, counted from the start of the shared memory.
    page: u32,
    /// Number of pages from the start of the extent that may exist. The pages count as memory in
    /// use.
    pub touched_pages: u16,
    pub class: u8,
    pub side: Side,
}

const _: () = assert!(size_of::<Window>() == 8 && size_of::<Option<Window>>() == 8);

/// Returns the index of the smallest size class with room for this number of bytes. If no class is
/// large enough, returns the largest.
pub(crate) fn class_of(bytes: u32) -> usize {
    CLASSES.iter().position(|(size, _)| *size >= bytes).unwrap_or(CLASSES.len() - 1)
}

impl Window {
    /// Returns the offset of the extent in the shared memory, in bytes.
    #[inline]
    pub fn base(&self) -> u64 {
        u64::from(self.page) * PAGE
    }

    /// Returns the size of the extent in bytes, a power of two.
    #[inline]
    pub fn cap(&self) -> u32 {
        cap_of(self.class)
    }

    /// Returns the number of bytes from the start of the extent whose pages may exist.
    #[inline]
    pub fn touched(&self) -> u64 {
        u64::from(self.touched_pages) * PAGE
    }
}

/// Returns the size in bytes of the extents of a class. The size is four times that of the previous
/// class, so no table is needed.
#[inline]
const fn cap_of(class: u8) -> u32 {
    WINDOW_MIN << (2 * class)
}

/// The direction of the FIFO for which an extent is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// For a receive FIFO.
    Recv = 0,
    /// For a transmit FIFO.
    Send = 1,
}

/// The extents of one size class.
#[derive(Debug)]
pub(crate) struct SizeClass {
    /// Offset of the first extent in the shared memory, in bytes.
    start: u64,
    /// Extents from this offset on have never been used.
    next: u64,
    end: u64,
    /// Free extents that have pages; the most recently used is last.
    pub warm: VecDeque<Window>,
    /// Free extents without pages.
    cold: Cold,
}

/// Set of free extents without pages, as a bitmap.
#[derive(Debug, Default)]
struct Cold {
    words: Vec<u64>,
    /// Index of the first word of the bitmap that may be nonzero; no earlier word has a bit set.
    first: usize,
}

impl Cold {
    fn insert(&mut self, number: usize) {
        let word = number / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (number % 64);
        self.first = self.first.min(word);
    }

    fn pop(&mut self) -> Option<usize> {
        let found = self.words.get(self.first..)?.iter().position(|word| *word != 0);
        self.first = found.map_or(self.words.len(), |skip| self.first + skip);
        let word = self.words.get_mut(self.first)?;
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some(self.first * 64 + bit)
    }
}

impl SizeClass {
    /// Creates a size class with unused extents at offsets `start..end` of the shared memory.
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, next: start, end, warm: VecDeque::new(), cold: Cold::default() }
    }

    /// Takes a free extent with pages, the most recently used one for which `will_do` accepts the
    /// number of pages.
    pub fn take_warm(&mut self, side: Side, will_do: impl Fn(u64) -> bool) -> Option<Window> {
        let mut last = self.warm.iter().enumerate().rev().take(LOOKS_MAX);
        let (at, _) = last.find(|(_, window)| will_do(window.touched()))?;
        self.warm.remove(at).map(|window| Window { side, ..window })
    }

    /// Takes the free extent with pages that was least recently used.
    pub fn take_oldest(&mut self) -> Option<Window> {
        let window = self.warm.pop_front()?;
        // Shrink the list, which may have been long because thousands of sockets became idle at
        // once.
        if self.warm.len() < self.warm.capacity() / 4 {
            self.warm.shrink_to(2 * self.warm.len());
        }
        Some(window)
    }

    /// Takes a free extent without pages.
    pub fn take_cold(&mut self, class: u8, side: Side) -> Option<Window> {
        let window =
            |base: u64| Window { page: (base / PAGE) as u32, touched_pages: 0, class, side };
        let cap = u64::from(cap_of(class));
        if let Some(number) = self.cold.pop() {
            return Some(window(self.start + number as u64 * cap));
        }
        let base = self.next;
        (base < self.end).then(|| {
            self.next += cap;
            window(base)
        })
    }

    pub fn give(&mut self, window: Window) {
        if window.touched_pages > 0 {
            self.warm.push_back(window);
        } else {
            let number = (window.base() - self.start) / u64::from(window.cap());
            self.cold.insert(number as usize);
        }
    }
}

const _: () = {
    let mut sum = 0;
    let mut i = 0;
    while i < CLASSES.len() {
        assert!(
            // Ensure that the memory of each class can be divided among the shards in whole
            // extents.
            CLASSES[i].0 == cap_of(i as u8)
                && CLASSES[i].1.is_multiple_of(CLASSES[i].0 as usize * SHARDS_MAX as usize)
        );
        sum += CLASSES[i].1;
        i += 1;
    }
    assert!(sum == FIFO_LEN);
    assert!(WINDOW_MIN.is_power_of_two() && (FIFO_OFFSET as u64).is_multiple_of(PAGE));
    assert!((FIFO_OFFSET + FIFO_LEN) as u64 / PAGE <= u32::MAX as u64);
    assert!(WINDOW_MAX as u64 / PAGE <= u16::MAX as u64);
};
