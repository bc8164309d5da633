//! Where a byte of a FIFO lies.

use towpath_shm::layout::{FIFO_LEN, FIFO_OFFSET};

/// A window of the region used as a ring of bytes: `offset = base + ((position + shift) & (cap - 1))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Geometry {
    /// Offset in the region.
    pub base: u64,
    /// Bytes, a power of two; 0: no memory.
    pub cap: u32,
    /// So that a FIFO can move and grow while its positions run on.
    pub shift: u32,
}

impl Geometry {
    /// As read from memory that others write to: None when it leaves the FIFO area.
    pub fn checked(base: u64, cap: u32, shift: u32) -> Option<Self> {
        let start = usize::try_from(base).ok()?;
        let end = start.checked_add(cap as usize)?;
        let inside = start >= FIFO_OFFSET && end <= FIFO_OFFSET + FIFO_LEN;
        (cap.is_power_of_two() && inside).then_some(Self { base, cap, shift })
    }

    /// Offset and length of the one or two stretches that `len` bytes at `position` lie in;
    /// `len` is at most `cap`.
    pub fn stretches(&self, position: u32, len: u32) -> [(usize, u32); 2] {
        debug_assert!(len <= self.cap);
        if self.cap == 0 {
            return [(0, 0); 2];
        }
        let start = position.wrapping_add(self.shift) & (self.cap - 1);
        let first = len.min(self.cap - start);
        [(self.base as usize + start as usize, first), (self.base as usize, len - first)]
    }
}
