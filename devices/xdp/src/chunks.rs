//! Chunks of the frame memory (UMEM), and their current owner.

/// Chunk size in bytes: a page, the kernel's maximum for aligned chunks.
pub const CHUNK: usize = 4096;

/// Error: the descriptor names no chunk owned by the kernel, or exceeds its chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadDescriptor;

/// Chunks for receiving, followed by chunks for sending.
///
/// Descriptors from the kernel are validated: they must name a chunk that was given to the kernel
/// and not returned yet.
#[derive(Debug)]
pub struct Chunks {
    receive: Part,
    send: Part,
}

/// Consecutive chunks of one direction.
#[derive(Debug)]
struct Part {
    first: usize,
    /// Length of the frame in each chunk that the kernel owns; 0 for receive chunks.
    away: Vec<Option<u32>>,
    /// Indices of chunks that the kernel does not own.
    idle: Vec<usize>,
    /// Number of chunks returned so far.
    taken_back: u64,
}

impl Chunks {
    /// Creates chunks for the given numbers of frames.
    pub fn new(receive: usize, send: usize) -> Self {
        Self { receive: Part::new(0, receive), send: Part::new(receive, send) }
    }

    /// Returns the total size of the chunks in bytes.
    pub fn len(receive: usize, send: usize) -> usize {
        (receive + send) * CHUNK
    }

    /// Gives a receive chunk to the kernel and returns its address.
    pub fn fill(&mut self) -> Option<u64> {
        self.receive.hand_out(0)
    }

    /// Takes back the chunk of a received frame. Returns the offset of its bytes, which remain
    /// valid until the chunk is given to the kernel again.
    ///
    /// # Errors
    /// Returns an error if the descriptor is invalid.
    pub fn received(&mut self, address: u64, len: u32) -> Result<usize, BadDescriptor> {
        let within = address % CHUNK as u64 + u64::from(len);
        if within > CHUNK as u64 {
            return Err(BadDescriptor);
        }
        self.receive.take_back(address)?;
        Ok(address as usize)
    }

    /// Gives a chunk with `len` bytes to send to the kernel and returns its address.
    pub fn take(&mut self, len: u32) -> Option<u64> {
        self.send.hand_out(len)
    }

    /// Takes back the chunk of a sent frame and returns its length, which byte queue limits
    /// (`towpath_qdisc::QueueLimits`) need.
    ///
    /// # Errors
    /// Returns an error if the address is invalid.
    pub fn sent(&mut self, address: u64) -> Result<u32, BadDescriptor> {
        self.send.take_back(address)
    }

    /// Returns the number of chunks owned by the kernel.
    pub fn away(&self) -> usize {
        [&self.receive, &self.send].map(|part| part.away.len() - part.idle.len()).iter().sum()
    }

    /// Returns the number of chunks that the kernel has returned so far.
    pub fn taken_back(&self) -> u64 {
        self.receive.taken_back + self.send.taken_back
    }

    /// Returns the number of free send chunks.
    pub fn free(&self) -> usize {
        self.send.idle.len()
    }
}

impl Part {
    fn new(first: usize, count: usize) -> Self {
        Self { first, away: vec![None; count], idle: (0..count).rev().collect(), taken_back: 0 }
    }

    fn hand_out(&mut self, len: u32) -> Option<u64> {
        let n = self.idle.pop()?;
        self.away[n] = Some(len);
        Some(((self.first + n) * CHUNK) as u64)
    }

    fn take_back(&mut self, address: u64) -> Result<u32, BadDescriptor> {
        let chunk = usize::try_from(address / CHUNK as u64).map_err(|_| BadDescriptor)?;
        let n = chunk.checked_sub(self.first).ok_or(BadDescriptor)?;
        let away = self.away.get_mut(n).ok_or(BadDescriptor)?;
        let len = away.take().ok_or(BadDescriptor)?;
        self.idle.push(n);
        self.taken_back += 1;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_names_a_chunk_that_the_kernel_has() {
        let mut chunks = Chunks::new(2, 1);
        let page = CHUNK as u64;
        assert_eq!(chunks.received(0, 60), Err(BadDescriptor));
        assert_eq!((chunks.fill(), chunks.fill(), chunks.fill()), (Some(0), Some(page), None));
        for (address, len) in [(2 * page, 60), (page + 1, 4096), (256, 3841), (u64::MAX, 1)] {
            assert_eq!(chunks.received(address, len), Err(BadDescriptor), "{address} {len}");
        }
        assert_eq!(chunks.received(page + 256, 3840), Ok(CHUNK + 256));
        assert_eq!(chunks.received(page + 256, 60), Err(BadDescriptor));
        assert_eq!(chunks.fill(), Some(page));
    }

    #[test]
    fn chunks_of_each_way_are_apart() {
        let mut chunks = Chunks::new(1, 1);
        let page = CHUNK as u64;
        assert_eq!((chunks.take(60), chunks.take(60)), (Some(page), None));
        assert_eq!(
            (chunks.sent(0), chunks.received(page, 1)),
            (Err(BadDescriptor), Err(BadDescriptor))
        );
        assert_eq!((chunks.sent(page), chunks.sent(page)), (Ok(60), Err(BadDescriptor)));
        assert_eq!(chunks.free(), 1);
    }
}
