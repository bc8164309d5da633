//! Receives frames from a ring.

use towpath_pool::{Batch, Packet, Pool};

use crate::device::{BUFFERS_A_FRAME, MemifCounters};
use crate::memory::SharedMemory;
use crate::ring::{BufferExtent, RingEnd, RingFault};

/// The ring with frames of the peer, and what is needed to read them.
pub(crate) struct RingReader<'a> {
    pub(crate) memory: &'a SharedMemory,
    pub(crate) ring: &'a mut RingEnd,
    pub(crate) extents: &'a mut Vec<BufferExtent>,
}

impl RingReader<'_> {
    /// Receives up to `max` frames. Returns their number.
    pub(crate) fn receive(
        &mut self,
        counters: &mut MemifCounters,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> Result<usize, RingFault> {
        let before = out.len();
        // Count dropped frames as well, so that a peer with invalid frames cannot hold the caller.
        for _ in 0..max {
            if self.ring.available(1)? == 0 && !self.ring.await_frames()? {
                break;
            }
            self.collect()?;
            match self.copy(pool) {
                Some(packet) => {
                    counters.rx_frames += 1;
                    counters.rx_bytes += packet.len() as u64;
                    out.push_back(packet);
                }
                None => counters.rx_malformed += 1,
            }
            for (n, extent) in self.extents.iter().enumerate() {
                self.ring.clear_next(n as u16, *extent);
            }
            self.ring.take(self.extents.len() as u16);
        }
        Ok(out.len() - before)
    }

    /// Collects the buffers of the next frame. Senders publish whole frames, so that a frame whose
    /// last buffer is missing is invalid.
    fn collect(&mut self) -> Result<(), RingFault> {
        self.extents.clear();
        loop {
            let count = self.extents.len();
            if count >= BUFFERS_A_FRAME || usize::from(self.ring.available(1)?) <= count {
                return Err(RingFault::Descriptor);
            }
            let extent = self.ring.buffer(self.memory, count as u16)?;
            self.extents.push(extent);
            if !extent.has_next {
                return Ok(());
            }
        }
    }

    /// Copies the collected buffers to a packet. Returns `None` if the length is invalid.
    fn copy(&self, pool: &mut Pool) -> Option<Packet> {
        let len = self.extents.iter().map(|extent| extent.len as usize).sum();
        if len == 0 || len > Pool::LARGE {
            return None;
        }
        let mut packet = pool.take(len);
        let mut to = packet.push_back(len).expect("taken with room");
        for BufferExtent { region, offset, len, .. } in &*self.extents {
            let (part, rest) = to.split_at_mut(*len as usize);
            let mapping = self.memory.region(*region, *offset, part.len()).expect("validated");
            mapping.read(*offset as usize, part);
            to = rest;
        }
        Some(packet)
    }
}
