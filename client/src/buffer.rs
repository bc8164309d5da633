//! The program's memory, as read(2), writev(2) and the like are given it.

use towpath_ring::program_fifo;
use towpath_shm::layout::Slot;

use crate::Client;

/// Memory of the program, laid out as `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Buffer {
    /// Address of the first byte.
    pub at: *mut u8,
    /// Number of bytes.
    pub len: usize,
}

impl Buffer {
    /// Returns the total number of bytes of several buffers.
    pub fn total(buffers: &[Self]) -> usize {
        buffers.iter().fold(0, |sum, buffer| sum.saturating_add(buffer.len))
    }

    /// Returns the bytes, to be filled.
    ///
    /// # Safety
    /// The memory must be valid for writes, and not be used otherwise while the result lives, as
    /// that of a call of read(2).
    #[inline]
    unsafe fn room<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Returns the bytes after the first `skip`, to be read.
    ///
    /// # Safety
    /// The memory must be valid for reads, and not be written to while the result lives, as that of
    /// a call of write(2).
    #[inline]
    pub unsafe fn bytes<'a>(self, skip: usize) -> &'a [u8] {
        if self.len <= skip {
            return &[];
        }
        // SAFETY: the caller's promise; skip is below len.
        unsafe { std::slice::from_raw_parts(self.at.add(skip), self.len - skip) }
    }
}

/// Copies unread bytes from the `skip`th on into `buffers`, at most `most` of them. Returns their
/// number: fewer when there are no more, or the buffers are full. The bytes stay unread.
///
/// # Safety
/// The buffers must be valid for writes.
pub(crate) unsafe fn peek(
    client: &Client,
    slot: &Slot,
    skip: u32,
    most: usize,
    buffers: &[Buffer],
) -> usize {
    let mut done = 0;
    for buffer in buffers {
        // SAFETY: the caller's promise.
        let to = unsafe { buffer.room() };
        let wanted = to.len().min(most - done);
        let to = &mut to[..wanted];
        let n = program_fifo::peek(client.region(), slot, skip.wrapping_add(done as u32), to);
        done += n;
        if n < wanted || done == most {
            break;
        }
    }
    done
}

/// Copies bytes of `buffers` without the first `skip`, at most `most`, to a position of the FIFO.
///
/// # Safety
/// The buffers must be valid for reads.
pub(crate) unsafe fn fill(
    client: &Client,
    slot: &Slot,
    mut at: u32,
    buffers: &[Buffer],
    mut skip: usize,
    most: u32,
) {
    let mut left = most as usize;
    for buffer in buffers {
        if skip >= buffer.len {
            skip -= buffer.len;
            continue;
        }
        // SAFETY: the caller's promise.
        let from = unsafe { buffer.bytes(skip) };
        skip = 0;
        let from = &from[..from.len().min(left)];
        program_fifo::write_at(client.region(), slot, at, from);
        at = at.wrapping_add(from.len() as u32);
        left -= from.len();
        if left == 0 {
            break;
        }
    }
}
