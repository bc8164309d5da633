//! Sends frames to a ring.

use towpath_pool::Packet;

use crate::device::{BUFFERS_A_FRAME, MemifCounters, RingSpace};
use crate::memory::SharedMemory;
use crate::ring::{BufferExtent, RingEnd, RingFault};

/// The ring with frames to the peer, and what is needed to write them.
pub(crate) struct RingWriter<'a> {
    pub(crate) memory: &'a SharedMemory,
    pub(crate) ring: &'a mut RingEnd,
    pub(crate) extents: &'a mut Vec<BufferExtent>,
}

/// Result of looking for buffers for a frame.
enum FreeBuffers {
    Found,
    /// The ring has too few free buffers now.
    Later,
    /// The buffers of the whole ring do not suffice.
    TooLong,
}

impl RingWriter<'_> {
    /// Sends a frame, or drops and counts it, unless the ring has too few free buffers.
    pub(crate) fn put(
        &mut self,
        packet: &Packet,
        counters: &mut MemifCounters,
    ) -> Result<RingSpace, RingFault> {
        let len = packet.len();
        match self.find(len)? {
            FreeBuffers::Found => {}
            FreeBuffers::Later => {
                counters.tx_blocked += 1;
                return Ok(RingSpace::Full);
            }
            FreeBuffers::TooLong => {
                counters.tx_too_long += 1;
                return Ok(RingSpace::Done);
            }
        }
        self.copy(packet);
        let (count, mut left) = (self.extents.len(), len as u32);
        for (n, extent) in self.extents.iter().enumerate() {
            let used = extent.len.min(left);
            left -= used;
            let has_next = n + 1 < count;
            self.ring.describe(n as u16, BufferExtent { len: used, has_next, ..*extent });
        }
        self.ring.take(count as u16);
        counters.tx_frames += 1;
        counters.tx_bytes += len as u64;
        Ok(RingSpace::Done)
    }

    /// Collects free buffers with room for `len` bytes.
    fn find(&mut self, len: usize) -> Result<FreeBuffers, RingFault> {
        self.extents.clear();
        let mut room = 0;
        while room < len {
            let count = self.extents.len() as u16;
            if count == self.ring.size() || usize::from(count) == BUFFERS_A_FRAME {
                return Ok(FreeBuffers::TooLong);
            }
            if self.ring.available(count + 1)? <= count {
                return Ok(FreeBuffers::Later);
            }
            let extent = self.ring.buffer(self.memory, count)?;
            if extent.len == 0 {
                return Err(RingFault::Descriptor);
            }
            room += extent.len as usize;
            self.extents.push(extent);
        }
        Ok(FreeBuffers::Found)
    }

    /// Copies a frame to the collected buffers.
    fn copy(&self, packet: &Packet) {
        self.write(0, packet.linear().len(), |range, mapping, at| {
            mapping.write(at, &packet.linear()[range]);
        });
        let mut skip = packet.linear().len();
        for part in packet.tail.iter() {
            self.write(skip, part.len() as usize, |range, mapping, at| {
                part.copy_to_mapping(range.start as u32, range.len() as u32, mapping, at);
            });
            skip += part.len() as usize;
        }
    }

    /// Calls `copy` for each contiguous part of `len` bytes from offset `skip` of the buffers on.
    /// The arguments are the range in the `len` bytes, the mapping, and the offset there.
    fn write(
        &self,
        mut skip: usize,
        len: usize,
        mut copy: impl FnMut(std::ops::Range<usize>, &towpath_shm::Mapping, usize),
    ) {
        let mut done = 0;
        for extent in &*self.extents {
            let room = extent.len as usize;
            let from = skip.min(room);
            skip -= from;
            let count = (room - from).min(len - done);
            if count > 0 {
                let found = self.memory.region(extent.region, extent.offset, room);
                copy(done..done + count, found.expect("validated"), extent.offset as usize + from);
                done += count;
            }
        }
        debug_assert_eq!(done, len, "copy beyond the buffers");
    }
}
