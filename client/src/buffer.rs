//! Buffers of the program, as passed to read(2), writev(2) and similar calls.

use towpath_ring::program_fifo;
use towpath_shm::layout::Slot;

use crate::Client;

/// A buffer of the program, with the layout of `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Buffer {
    /// Address of the buffer's first byte.
    pub at: *mut u8,
    /// Length of the buffer in bytes.
    pub len: usize,
}

impl Buffer {
    /// Returns the total number of bytes of several buffers.
    pub fn total(buffers: &[Self]) -> usize {
        buffers.iter().fold(0, |sum, buffer| sum.saturating_add(buffer.len))
    }

    /// Returns the buffer as a slice that can be written.
    ///
    /// # Safety
    /// The memory must be valid for writes, and must not be accessed otherwise while the result
    /// lives.
    #[inline]
    unsafe fn room<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: `len` bytes at `at` are valid for writes, by the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Returns the bytes of the buffer without the first `skip`.
    ///
    /// # Safety
    /// The memory must be valid for reads, and must not be written to while the result lives.
    #[inline]
    pub unsafe fn bytes<'a>(self, skip: usize) -> &'a [u8] {
        if self.len <= skip {
            return &[];
        }
        // SAFETY: `len` bytes at `at` are valid for reads, by the contract of this function. `skip`
        // is less than `len`.
        unsafe { std::slice::from_raw_parts(self.at.add(skip), self.len - skip) }
    }
}

/// Copies up to `most` unread bytes of a socket, after the first `skip`, into `buffers`. Returns
/// the number of bytes copied, which is lower if fewer are unread or the buffers are full. The
/// bytes stay unread.
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
        // SAFETY: the buffers are valid for writes, by the contract of this function.
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

/// Copies up to `most` bytes of `buffers`, after the first `skip`, to a position in a socket's send
/// FIFO.
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
        // SAFETY: the buffers are valid for reads, by the contract of this function.
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
