//! The FIFO area, divided into windows of a few sizes, and which of them are free.

use std::collections::VecDeque;

use towpath_shm::layout::{FIFO_LEN, FIFO_OFFSET, SHARDS_MAX};

/// Bytes of the largest window, and so the most that a FIFO in the region holds, whatever SO_RCVBUF
/// or SO_SNDBUF asks for.
pub const WINDOW_MAX: u32 = 16 << 20;
/// Bytes of the smallest window. A FIFO that is to hold less has one all the same: address space is
/// plenty, and pages that are not touched cost nothing.
pub const WINDOW_MIN: u32 = 64 << 10;

/// Bytes of a window of each class, and bytes of the area that the class has. Half is for the
/// smallest, since most FIFOs need no more.
pub(crate) const CLASSES: [(u32, usize); 5] = [
    (WINDOW_MIN, 32 << 30),
    (256 << 10, 8 << 30),
    (1 << 20, 8 << 30),
    (4 << 20, 8 << 30),
    (WINDOW_MAX, 8 << 30),
];
pub(crate) const PAGE: u64 = 4096;
/// How many free windows are searched for one that has its pages already, when memory is short.
/// Windows of a class are used alike, so if none of the last ones has them, hardly another does.
const LOOKS_MAX: usize = 16;

/// A stretch of the FIFO area that belongs to one FIFO. Each connection has two and the free lists
/// hold one for each idle stretch, so it is kept to eight bytes: offsets are in pages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Where it starts in the region.
    page: u32,
    /// Pages from its start on that may exist; these are counted.
    pub touched_pages: u16,
    pub class: u8,
    pub side: Side,
}

const _: () = assert!(size_of::<Window>() == 8 && size_of::<Option<Window>>() == 8);

/// The smallest class that holds so many bytes, or the largest.
pub(crate) fn class_of(bytes: u32) -> usize {
    CLASSES.iter().position(|(size, _)| *size >= bytes).unwrap_or(CLASSES.len() - 1)
}

impl Window {
    /// Offset in the region.
    #[inline]
    pub fn base(&self) -> u64 {
        u64::from(self.page) * PAGE
    }

    /// Bytes, a power of two.
    #[inline]
    pub fn cap(&self) -> u32 {
        cap_of(self.class)
    }

    /// Bytes from `base` on whose pages may exist.
    #[inline]
    pub fn touched(&self) -> u64 {
        u64::from(self.touched_pages) * PAGE
    }
}

/// Each class is four times the one before, so that the path of a byte needs no table.
#[inline]
const fn cap_of(class: u8) -> u32 {
    WINDOW_MIN << (2 * class)
}

/// The end of a socket that a window serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// A receive FIFO.
    Recv = 0,
    /// A transmit FIFO.
    Send = 1,
}

/// The windows of one size.
#[derive(Debug)]
pub(crate) struct SizeClass {
    /// Where the first window starts.
    start: u64,
    /// Bump pointer: windows beyond were never used.
    next: u64,
    end: u64,
    /// Free windows with pages; the last one was used last.
    pub warm: VecDeque<Window>,
    /// Free windows without.
    cold: Cold,
}

/// Free windows that cost nothing but the note that they are free: a bit each, by their number.
#[derive(Debug, Default)]
struct Cold {
    words: Vec<u64>,
    /// All words before this one are zero.
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
    /// A class for a part of the area, none of which is in use.
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, next: start, end, warm: VecDeque::new(), cold: Cold::default() }
    }

    /// The last free window whose pages will do.
    pub fn take_warm(&mut self, side: Side, will_do: impl Fn(u64) -> bool) -> Option<Window> {
        let mut last = self.warm.iter().enumerate().rev().take(LOOKS_MAX);
        let (at, _) = last.find(|(_, window)| will_do(window.touched()))?;
        self.warm.remove(at).map(|window| Window { side, ..window })
    }

    /// The least recently used one with pages.
    pub fn take_oldest(&mut self) -> Option<Window> {
        let window = self.warm.pop_front()?;
        // Thousands of sockets may have become idle at once; their places are memory, too.
        if self.warm.len() < self.warm.capacity() / 4 {
            self.warm.shrink_to(2 * self.warm.len());
        }
        Some(window)
    }

    /// A free window without pages.
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
            // Each shard has whole windows.
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
