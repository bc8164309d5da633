//! Memory of received datagrams that is reused.

/// Maximum number of buffers that are kept for reuse. A call of the stack fills at most this many
/// buffers with datagrams.
const KEPT_MAX: usize = 64;
/// Maximum capacity in bytes of a buffer that is kept for reuse. With at most 64 buffers, this
/// limits the kept memory to 256 KiB.
const KEPT_LEN_MAX: usize = 4096;

/// Buffers of datagrams that the program has handled, for reuse by later datagrams.
#[derive(Debug, Default)]
pub(crate) struct SpareBytes {
    buffers: Vec<Vec<u8>>,
}

impl SpareBytes {
    /// Returns a buffer of `len` bytes. Its content is unspecified, because the buffer may be
    /// reused.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    /// Keeps a buffer for reuse by [`Self::take`], or frees it if there are too many buffers or it
    /// is too large.
    pub fn give(&mut self, bytes: Vec<u8>) {
        if self.buffers.len() < KEPT_MAX && bytes.capacity() <= KEPT_LEN_MAX {
            self.buffers.push(bytes);
        }
    }
}
