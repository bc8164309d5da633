//! Sends frames to the guest.

use towpath_pool::{Batch, Packet, Pool};
use towpath_virtio::HEADER_LEN;

use crate::chain::{ChainAccess, ChainBuffer};
use crate::device::VhostCounters;
use crate::features::NetFeatures;
use crate::memory::GuestMemory;
use crate::ring::{RingError, SplitRing};

/// Offset in the virtio header of the number of chains of a frame.
const NUM_BUFFERS: usize = 10;

/// The virtqueue with buffers for frames to the guest, and what is needed to write them.
pub(crate) struct FrameSink<'a> {
    pub(crate) features: NetFeatures,
    pub(crate) memory: &'a GuestMemory,
    pub(crate) ring: &'a mut SplitRing,
    pub(crate) chains: &'a mut ChainBuffer,
    pub(crate) heads: &'a mut Vec<(u16, usize)>,
}

/// Reason why no more frames were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendEnd {
    /// All frames were taken.
    Done,
    /// The guest has too few buffers for the next frame. The driver notifies the device of others.
    Full,
    /// The guest does not support the work that is left to the receiver of the next frame.
    Unsupported,
}

/// Result of looking for buffers for a frame.
enum FrameBuffers {
    Found,
    /// The guest has too few buffers now.
    Later,
    /// The buffers of the guest never suffice.
    TooLong,
}

impl FrameSink<'_> {
    /// Sends frames from the front of `batch`. Returns the number of frames taken, and why there
    /// are not more.
    pub(crate) fn send(
        &mut self,
        counters: &mut VhostCounters,
        pool: &mut Pool,
        batch: &mut Batch,
    ) -> (usize, Result<SendEnd, RingError>) {
        let mut taken = 0;
        while let Some(packet) = batch.pop_front() {
            let sent = match self.features.accepts(&packet.meta) {
                true => self.put(&packet, counters),
                false => Ok(SendEnd::Unsupported),
            };
            if sent != Ok(SendEnd::Done) {
                batch.push_front(packet);
                return (taken, sent);
            }
            taken += 1;
            pool.give(packet);
        }
        (taken, Ok(SendEnd::Done))
    }

    /// Sends a frame, or drops and counts it, unless the guest has too few buffers.
    fn put(&mut self, packet: &Packet, counters: &mut VhostCounters) -> Result<SendEnd, RingError> {
        let Ok(mut header) = towpath_virtio::emit(&packet.meta, packet.linear()) else {
            counters.tx_malformed += 1;
            return Ok(SendEnd::Done);
        };
        let len = self.features.header_len() + packet.len();
        loop {
            match self.find(len)? {
                FrameBuffers::Found => break,
                FrameBuffers::TooLong => {
                    counters.tx_too_long += 1;
                    return Ok(SendEnd::Done);
                }
                FrameBuffers::Later if self.ring.await_entries()? => {}
                FrameBuffers::Later => {
                    counters.tx_blocked += 1;
                    return Ok(SendEnd::Full);
                }
            }
        }
        self.features.adapt(&mut header);
        let count = self.heads.len() as u16;
        header[NUM_BUFFERS..].copy_from_slice(&count.to_le_bytes());
        self.copy(&header, packet);
        self.ring.take(count);
        let mut left = len;
        for &(head, capacity) in &*self.heads {
            let used = capacity.min(left);
            left -= used;
            self.ring.push_used(head, used as u32);
        }
        counters.tx_frames += 1;
        counters.tx_bytes += packet.len() as u64;
        Ok(SendEnd::Done)
    }

    /// Collects chains with room for `len` bytes: one, or several if the guest merges them.
    fn find(&mut self, len: usize) -> Result<FrameBuffers, RingError> {
        self.chains.clear();
        self.heads.clear();
        while self.chains.len() < len {
            let count = self.heads.len() as u16;
            if count > 0 && !self.features.is_mergeable() {
                return Ok(FrameBuffers::TooLong);
            }
            if self.ring.available(count + 1)? == count {
                // If the driver has added all its buffers, no others will follow.
                let is_all = count == self.ring.size();
                return Ok(if is_all { FrameBuffers::TooLong } else { FrameBuffers::Later });
            }
            let head = self.ring.head(count)?;
            let room = self.chains.append(self.memory, self.ring, head, ChainAccess::Write)?;
            if count == 0 && room < HEADER_LEN {
                return Err(RingError::Chain);
            }
            self.heads.push((head, room));
        }
        Ok(FrameBuffers::Found)
    }

    /// Copies the header and the frame to the collected chains.
    fn copy(&self, header: &[u8; HEADER_LEN], packet: &Packet) {
        let (chains, memory) = (&*self.chains, self.memory);
        let header_len = self.features.header_len();
        chains.write(memory, 0, &header[..header_len]);
        chains.write(memory, header_len, packet.linear());
        let mut skip = header_len + packet.linear().len();
        for part in packet.tail.iter() {
            let len = part.len() as usize;
            chains.each(memory, skip, len, |mapping, at, range| {
                part.copy_to_mapping(range.start as u32, range.len() as u32, mapping, at);
            });
            skip += len;
        }
    }
}
