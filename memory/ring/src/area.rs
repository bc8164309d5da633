//! The FIFO area: divided into extents ([`Window`]) of a few sizes, with lists of the free ones.

use std::collections::VecDeque;

use towpath_shm::layout::{FIFO_LEN, FIFO_OFFSET, SHARDS_MAX};

/// Size of the largest extent in bytes, and thus the maximum size of a FIFO, regardless of
/// SO_RCVBUF and SO_SNDBUF.
pub const WINDOW_MAX: u32 = 16 << 20;
/// Size of the smallest extent in bytes. Smaller FIFOs use it too, because address space is
/// plentiful and untouched pages cost nothing.
pub const WINDOW_MIN: u32 = 64 << 10;

/// Extent size of each class, and total size of the class in bytes. Half of the area is for the
/// smallest class, because most FIFOs need no more.
pub(crate) const CLASSES: [(u32, usize); 5] = [
    (WINDOW_MIN, FIFO_LEN / 2),
    (256 << 10, FIFO_LEN / 8),
    (1 << 20, FIFO_LEN / 8),
    (4 << 20, FIFO_LEN / 8),
    (WINDOW_MAX, FIFO_LEN / 8),
];
pub(crate) const PAGE: u64 = 4096;
/// Maximum free extents searched for one that has pages already, when memory is short. Extents of a
/// class are used alike, so if the most recent ones have no pages, older ones rarely do.
const LOOKS_MAX: usize = 16;

/// An extent of the FIFO area that belongs to one FIFO. Each connection has two, and free lists
/// hold one per idle extent, so it is packed into eight bytes: offsets are in pages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// First page, as an offset in the region.
    page: u32,
    /// Number of pages from the start that may exist, and are counted as memory in use.
    pub touched_pages: u16,
    pub class: u8,
    pub side: Side,
}

const _: () = assert!(size_of::<Window>() == 8 && size_of::<Option<Window>>() == 8);

/// Returns the index of the smallest class whose extents hold this many bytes, or of the largest
/// class.
pub(crate) fn class_of(bytes: u32) -> usize {
    CLASSES.iter().position(|(size, _)| *size >= bytes).unwrap_or(CLASSES.len() - 1)
}

impl Window {
    /// Returns the offset of the extent in the region, in bytes.
    #[inline]
    pub fn base(&self) -> u64 {
        u64::from(self.page) * PAGE
    }

    /// Returns the size of the extent in bytes, a power of two.
    #[inline]
    pub fn cap(&self) -> u32 {
        cap_of(self.class)
    }

    /// Returns the number of bytes at the start of the extent whose pages may exist.
    #[inline]
    pub fn touched(&self) -> u64 {
        u64::from(self.touched_pages) * PAGE
    }
}

/// Computes the size of a class. Each class is four times the previous one, so that the data path
/// needs no table.
#[inline]
const fn cap_of(class: u8) -> u32 {
    WINDOW_MIN << (2 * class)
}

/// The direction for which an extent is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// A receive FIFO.
    Recv = 0,
    /// A transmit FIFO.
    Send = 1,
}

/// The extents of one size.
#[derive(Debug)]
pub(crate) struct SizeClass {
    /// Offset of the first extent.
    start: u64,
    /// Bump pointer: extents at or after this offset were never used.
    next: u64,
    end: u64,
    /// Free extents with pages; the most recently used is last.
    pub warm: VecDeque<Window>,
    /// Free extents without pages.
    cold: Cold,
}

/// Free extents without pages, as a bitmap.
#[derive(Debug, Default)]
struct Cold {
    words: Vec<u64>,
    /// Index of the first word of the bitmap that may be nonzero.
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
    /// Creates a class for the bytes `start..end` of the area. All its extents are unused.
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, next: start, end, warm: VecDeque::new(), cold: Cold::default() }
    }

    /// Takes the most recently used free extent whose page count satisfies `will_do`.
    pub fn take_warm(&mut self, side: Side, will_do: impl Fn(u64) -> bool) -> Option<Window> {
        let mut last = self.warm.iter().enumerate().rev().take(LOOKS_MAX);
        let (at, _) = last.find(|(_, window)| will_do(window.touched()))?;
        self.warm.remove(at).map(|window| Window { side, ..window })
    }

    /// Takes the least recently used free extent with pages.
    pub fn take_oldest(&mut self) -> Option<Window> {
        let window = self.warm.pop_front()?;
        // Shrink the list, because thousands of sockets may have become idle at once.
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
            // Ensure that each shard gets whole extents.
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
