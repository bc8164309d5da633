//! Maps positions in a FIFO to offsets in memory.

use towpath_shm::layout::{FIFO_LEN, FIFO_OFFSET};

/// A part of the shared memory used as a ring of bytes:
/// `offset = base + ((position + shift) & (cap - 1))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Geometry {
    /// Offset of the ring's first byte in the shared memory.
    pub base: u64,
    /// Size of the buffer in bytes, a power of two; 0 if the FIFO has no buffer.
    pub cap: u32,
    /// Number added to positions before they are mapped to the buffer. Positions therefore continue
    /// when the FIFO moves to another buffer.
    pub shift: u32,
}

impl Geometry {
    /// Validates values from memory that a program can write. Returns `None` if the ring is not
    /// within the memory for FIFOs.
    pub fn checked(base: u64, cap: u32, shift: u32) -> Option<Self> {
        let start = usize::try_from(base).ok()?;
        let end = start.checked_add(cap as usize)?;
        let inside = start >= FIFO_OFFSET && end <= FIFO_OFFSET + FIFO_LEN;
        (cap.is_power_of_two() && inside).then_some(Self { base, cap, shift })
    }

    /// Returns offset and length of the one or two ranges that contain `len` bytes at `position`.
    /// The ranges have at most `cap` bytes in total, because the memory behind the buffer belongs
    /// to another socket.
    pub fn stretches(&self, position: u32, len: u32) -> [(usize, u32); 2] {
        debug_assert!(len <= self.cap, "{len} bytes of a window of {}", self.cap);
        if self.cap == 0 {
            return [(0, 0); 2];
        }
        let len = len.min(self.cap);
        let start = position.wrapping_add(self.shift) & (self.cap - 1);
        let first = len.min(self.cap - start);
        [(self.base as usize + start as usize, first), (self.base as usize, len - first)]
    }
}

/// Returns how many of the `n` bytes at `offset` exist in a FIFO that contains `len` bytes.
pub(crate) fn there(offset: u32, n: u32, len: u32) -> u32 {
    n.min(len.saturating_sub(offset))
}
