//! Memory of datagrams that is used again.

/// Maximum number of kept buffers: the datagrams of one turn.
const KEPT_MAX: usize = 64;
/// Maximum capacity of a kept buffer in bytes, so that at most 256 KiB are kept.
const KEPT_LEN_MAX: usize = 4096;

/// Buffers of datagrams that were handled.
#[derive(Debug, Default)]
pub(crate) struct SpareBytes {
    buffers: Vec<Vec<u8>>,
}

impl SpareBytes {
    /// Returns a buffer of `len` bytes with unspecified content.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    /// Keeps a buffer for a later call of [`Self::take`], or frees it.
    pub fn give(&mut self, bytes: Vec<u8>) {
        if self.buffers.len() < KEPT_MAX && bytes.capacity() <= KEPT_LEN_MAX {
            self.buffers.push(bytes);
        }
    }
}
