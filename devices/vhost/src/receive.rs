//! Receives frames of the guest.

use towpath_pool::{Batch, Meta, Packet, Pool, Protocol};
use towpath_virtio::HEADER_LEN;

use crate::chain::{ChainAccess, ChainBuffer};
use crate::device::VhostCounters;
use crate::features::NetFeatures;
use crate::memory::GuestMemory;
use crate::ring::{RingError, SplitRing};

/// Maximum number of segments of a frame, which restricts the work that one frame can cause. Linux
/// sends segments of at least 36 bytes (TCP_MIN_SND_MSS without timestamps), which are 1820 in 64
/// KiB.
const SEGMENTS_MAX: usize = 2048;

/// The virtqueue with frames of the guest, and what is needed to read them.
pub(crate) struct FrameSource<'a> {
    pub(crate) features: NetFeatures,
    pub(crate) memory: &'a GuestMemory,
    pub(crate) ring: &'a mut SplitRing,
    pub(crate) chains: &'a mut ChainBuffer,
}

impl FrameSource<'_> {
    /// Receives up to `max` frames. Returns their number, and whether the virtqueue is valid.
    pub(crate) fn receive(
        mut self,
        counters: &mut VhostCounters,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> (usize, Result<(), RingError>) {
        let before = out.len();
        let mut result = Ok(());
        // Count dropped frames as well, so that a guest with invalid frames cannot hold the caller.
        for _ in 0..max {
            match self.next(pool) {
                Ok(Some(Some(packet))) => {
                    counters.rx_frames += 1;
                    counters.rx_bytes += packet.len() as u64;
                    out.push_back(packet);
                }
                Ok(Some(None)) => counters.rx_malformed += 1,
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        (out.len() - before, result)
    }

    /// Takes the next chain and returns its frame, or an inner `None` if the frame is invalid.
    /// Returns an outer `None` if there is no chain, after which the driver notifies of the next.
    fn next(&mut self, pool: &mut Pool) -> Result<Option<Option<Packet>>, RingError> {
        if self.ring.available(1)? == 0 && !self.ring.await_entries()? {
            return Ok(None);
        }
        let head = self.ring.head(0)?;
        self.chains.clear();
        self.chains.append(self.memory, self.ring, head, ChainAccess::Read)?;
        let packet = self.copy(pool);
        self.ring.take(1);
        self.ring.push_used(head, 0);
        Ok(Some(packet))
    }

    /// Copies the frame of the current chain, and validates its header.
    fn copy(&self, pool: &mut Pool) -> Option<Packet> {
        let header_len = self.features.header_len();
        let len = self.chains.len().checked_sub(header_len)?;
        if len == 0 || len > Pool::LARGE {
            return None;
        }
        let mut header = [0; HEADER_LEN];
        self.chains.read(self.memory, 0, &mut header[..header_len]);
        let mut packet = pool.take(len);
        self.chains.read(self.memory, header_len, packet.push_back(len).expect("taken with room"));
        match towpath_virtio::parse(&header, packet.linear()) {
            Ok(meta) if is_offered(&meta, len) => {
                packet.meta = meta;
                Some(packet)
            }
            Ok(_) | Err(_) => {
                pool.give(packet);
                None
            }
        }
    }
}

/// Returns whether a frame of `len` bytes is to be segmented in a way that the device offers: TCP,
/// into a limited number of segments.
fn is_offered(meta: &Meta, len: usize) -> bool {
    meta.segmentation
        .is_none_or(|how| how.protocol != Protocol::Udp && how.pieces(len) <= SEGMENTS_MAX)
}
