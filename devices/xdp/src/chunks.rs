//! Chunks of the UMEM, the memory that an XDP socket shares with the kernel. Records which chunks
//! the kernel owns.

/// Size of a chunk in bytes: a page, the kernel's maximum for aligned chunks.
pub const CHUNK: usize = 4096;

/// Error: the kernel's descriptor does not refer to a chunk that the kernel owns, or exceeds the
/// chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadDescriptor;

/// All chunks of an XDP socket: those for receiving, followed by those for sending.
///
/// Descriptors from the kernel are validated. Each must refer to a chunk that the kernel owns.
#[derive(Debug)]
pub struct Chunks {
    receive: Part,
    send: Part,
}

/// Adjacent chunks for one direction.
#[derive(Debug)]
struct Part {
    first: usize,
    /// For each chunk that the kernel owns, the length in bytes of the frame to send, or 0 for
    /// receiving. `None` for other chunks.
    away: Vec<Option<u32>>,
    /// Indices of chunks that this process owns.
    idle: Vec<usize>,
    /// Number of times that the kernel has returned a chunk.
    taken_back: u64,
}

impl Chunks {
    /// Creates the given numbers of chunks for receiving and for sending.
    pub fn new(receive: usize, send: usize) -> Self {
        Self { receive: Part::new(0, receive), send: Part::new(receive, send) }
    }

    /// Returns the total size in bytes of these numbers of chunks.
    pub fn len(receive: usize, send: usize) -> usize {
        (receive + send) * CHUNK
    }

    /// Gives a chunk to the kernel for receiving, and returns its address within the UMEM.
    pub fn fill(&mut self) -> Option<u64> {
        self.receive.hand_out(0)
    }

    /// Takes over the chunk of a received frame from the kernel. Returns the offset of the frame,
    /// which is valid until the chunk is given to the kernel again.
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

    /// Gives a chunk with a frame of `len` bytes to be sent to the kernel, and returns its address
    /// within the UMEM.
    pub fn take(&mut self, len: u32) -> Option<u64> {
        self.send.hand_out(len)
    }

    /// Takes back the chunk of a sent frame from the kernel. Returns the length of the frame, which
    /// byte queue limits (`towpath_qdisc::QueueLimits`) need.
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

    /// Returns the number of times that the kernel has returned a chunk.
    pub fn taken_back(&self) -> u64 {
        self.receive.taken_back + self.send.taken_back
    }

    /// Returns the number of free chunks for sending.
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
