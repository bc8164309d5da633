//! An end of a ring of descriptors.
//!
//! The client supplies buffers, and the server uses them, in both directions:
//!
//! ```text
//!   to the server   head: frames of the client          tail: frames that the server has copied
//!   to the client   head: free buffers of the client    tail: frames of the server
//! ```
//!
//! The peer may write all parts at any time. Therefore its index is read once and limited, and each
//! descriptor is copied once and then validated.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use towpath_shm::Mapping;

use crate::layout::{
    BufferDescriptor, COOKIE, FLAGS, HEAD, LOG2_SIZE_MAX, LOG2_SIZE_MIN, MASK_INTERRUPT, NEXT,
    RING_ALIGNMENT, TAIL, ring_len,
};
use crate::memory::SharedMemory;

/// Reason why a ring cannot start or continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingFault {
    /// The size of the ring is invalid.
    #[error("2^{0} descriptors in a ring: expected 2^{LOG2_SIZE_MIN} to 2^{LOG2_SIZE_MAX}")]
    Size(u8),
    /// The ring is outside of its region, or not aligned.
    #[error("a ring is outside of its region, or not aligned")]
    Place,
    /// The first word of the ring has another value.
    #[error("the cookie of a ring is wrong")]
    Cookie,
    /// The peer has written an invalid index.
    #[error("the peer has written an invalid index")]
    Index,
    /// The peer has written an invalid descriptor, or a frame whose last descriptor is missing.
    #[error("the peer has written an invalid descriptor")]
    Descriptor,
}

/// Role of a process on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemifRole {
    /// The process that listens, formerly the master.
    Server,
    /// The process that connects and supplies the memory, formerly the slave.
    Client,
}

/// Use of a ring by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingUse {
    Receive,
    Send,
}

/// Position of a ring in a region.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingSpec {
    /// Index of the region.
    pub region: u16,
    /// Offset of the ring in the region, in bytes.
    pub offset: u32,
    /// Number of descriptors as a power of two.
    pub log2_size: u8,
}

/// Buffers of a client, one for each descriptor of a ring, in its only region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnBuffers {
    /// Offset of the first buffer in the region.
    pub(crate) offset: u32,
    /// Length of a buffer in bytes.
    pub(crate) len: u32,
}

/// A part of a frame, or a free buffer. The range is inside of the region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BufferExtent {
    pub(crate) region: u16,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// Whether the frame continues in the next buffer.
    pub(crate) has_next: bool,
}

/// An end of a ring, with the position of this process.
#[derive(Debug)]
pub(crate) struct RingEnd {
    mapping: Arc<Mapping>,
    at: usize,
    size: u16,
    usage: RingUse,
    role: MemifRole,
    /// Buffers of this process; `None` on the server, which uses those of its peer.
    buffers: Option<OwnBuffers>,
    /// Number of slots that were processed.
    next: u16,
    /// Value of `next` that the peer sees.
    published: u16,
    /// Number of slots that can be processed, as last read.
    known: u16,
    /// Whether the peer was asked to notify this process of further frames.
    is_awaiting: bool,
}

impl RingEnd {
    /// Begins to use a ring. The client has written its cookie and its descriptors before.
    pub(crate) fn start(
        memory: &SharedMemory,
        spec: RingSpec,
        usage: RingUse,
        buffers: Option<OwnBuffers>,
    ) -> Result<Self, RingFault> {
        let RingSpec { region, offset, log2_size } = spec;
        if !(LOG2_SIZE_MIN..=LOG2_SIZE_MAX).contains(&log2_size) {
            return Err(RingFault::Size(log2_size));
        }
        let mapping = memory.region(region, offset, ring_len(log2_size)).ok_or(RingFault::Place)?;
        let at = offset as usize;
        if !at.is_multiple_of(RING_ALIGNMENT) {
            return Err(RingFault::Place);
        }
        if mapping.u32(at).load(Acquire) != COOKIE {
            return Err(RingFault::Cookie);
        }
        let role = if buffers.is_some() { MemifRole::Client } else { MemifRole::Server };
        let (mapping, size) = (Arc::clone(mapping), 1 << log2_size);
        let (next, published, known, is_awaiting) = (0, 0, 0, true);
        let mut end =
            Self { mapping, at, size, usage, role, buffers, next, published, known, is_awaiting };
        end.supply(end.size);
        if usage == RingUse::Receive {
            end.is_awaiting = false;
            end.unmask();
        }
        // A client that receives offers its buffers now. The other indices stay 0.
        end.store();
        Ok(end)
    }

    /// Returns the number of descriptors.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// Returns whether the peer will notify this process of further frames.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.is_awaiting
    }

    /// Returns the number of slots with frames to receive, or with free buffers to send. Reads the
    /// index of the peer only if fewer than `wanted` slots are known.
    pub(crate) fn available(&mut self, wanted: u16) -> Result<u16, RingFault> {
        let known = self.known.wrapping_sub(self.next);
        if known >= wanted {
            return Ok(known);
        }
        let index = match self.role {
            MemifRole::Server => HEAD,
            MemifRole::Client => TAIL,
        };
        let index = self.mapping.u16(self.at + index).load(Acquire);
        // The tail of a ring to the server is the number of buffers that it has returned.
        let is_tail_of_sent = self.role == MemifRole::Client && self.usage == RingUse::Send;
        let limit = index.wrapping_add(if is_tail_of_sent { self.size } else { 0 });
        let count = limit.wrapping_sub(self.next);
        if count > self.size || count < known {
            return Err(RingFault::Index);
        }
        self.known = limit;
        Ok(count)
    }

    /// Returns the buffer that is `n` slots after the next one.
    pub(crate) fn buffer(&self, memory: &SharedMemory, n: u16) -> Result<BufferExtent, RingFault> {
        let slot = self.slot(n);
        let Some(own) = self.buffers else {
            let found = BufferDescriptor::read(&self.mapping, self.at, slot);
            let BufferDescriptor { region, offset, len, flags } = found;
            memory.region(region, offset, len as usize).ok_or(RingFault::Descriptor)?;
            return Ok(BufferExtent { region, offset, len, has_next: flags & NEXT != 0 });
        };
        let mut extent = own_extent(own, slot);
        if self.usage == RingUse::Receive {
            // The position of the buffer is known, so that the one of the descriptor is ignored.
            let found = BufferDescriptor::read(&self.mapping, self.at, slot);
            if found.len > extent.len {
                return Err(RingFault::Descriptor);
            }
            (extent.len, extent.has_next) = (found.len, found.flags & NEXT != 0);
        }
        Ok(extent)
    }

    /// Describes the buffer that is `n` slots after the next one, whose content was written.
    pub(crate) fn describe(&self, n: u16, extent: BufferExtent) {
        let BufferExtent { region, offset, len, has_next } = extent;
        let flags = if has_next { NEXT } else { 0 };
        let descriptor = BufferDescriptor { flags, region, len, offset };
        descriptor.write(&self.mapping, self.at, self.slot(n));
    }

    /// Takes `count` slots, whose frames were sent, or received and copied. The peer sees this
    /// after [`Self::publish`].
    pub(crate) fn take(&mut self, count: u16) {
        if self.usage == RingUse::Receive {
            self.mask();
            self.supply(count);
        }
        self.next = self.next.wrapping_add(count);
    }

    /// Clears NEXT in the descriptor that is `n` slots after the next one. DPDK's client sets NEXT
    /// in frames of several buffers, and does not clear it when it uses the buffer again.
    pub(crate) fn clear_next(&self, n: u16, extent: BufferExtent) {
        if extent.has_next && self.role == MemifRole::Server {
            self.describe(n, BufferExtent { has_next: false, ..extent });
        }
    }

    /// Makes the taken slots visible to the peer. Returns whether the peer wants to be notified of
    /// sent frames.
    pub(crate) fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.store();
        if self.usage == RingUse::Receive {
            return false;
        }
        // Order the store before the load below. Otherwise both sides could miss that the peer
        // begins to wait at this moment.
        fence(SeqCst);
        self.mapping.u16(self.at + FLAGS).load(Relaxed) & MASK_INTERRUPT == 0
    }

    /// Asks the peer for a notification of further frames. Returns whether it has sent some in the
    /// meantime, of which it does not notify.
    pub(crate) fn await_frames(&mut self) -> Result<bool, RingFault> {
        self.unmask();
        Ok(self.available(1)? > 0)
    }

    /// Tells the peer that this process polls, so that the peer sends no notification.
    fn mask(&mut self) {
        if std::mem::take(&mut self.is_awaiting) {
            self.mapping.u16(self.at + FLAGS).store(MASK_INTERRUPT, Relaxed);
        }
    }

    fn unmask(&mut self) {
        if !std::mem::replace(&mut self.is_awaiting, true) {
            self.mapping.u16(self.at + FLAGS).store(0, Relaxed);
            fence(SeqCst);
        }
    }

    fn store(&mut self) {
        self.published = self.next;
        let (index, value) = match (self.role, self.usage) {
            (MemifRole::Server, _) => (TAIL, self.next),
            (MemifRole::Client, RingUse::Send) => (HEAD, self.next),
            // Received buffers are free again, behind those that the peer has not used yet.
            (MemifRole::Client, RingUse::Receive) => (HEAD, self.next.wrapping_add(self.size)),
        };
        self.mapping.u16(self.at + index).store(value, Release);
    }

    /// Describes the next `count` buffers as free, if they are those of this process.
    fn supply(&self, count: u16) {
        let Some(own) = self.buffers else { return };
        for n in 0..count {
            self.describe(n, own_extent(own, self.slot(n)));
        }
    }

    fn slot(&self, n: u16) -> u16 {
        self.next.wrapping_add(n) & (self.size - 1)
    }
}

fn own_extent(own: OwnBuffers, slot: u16) -> BufferExtent {
    let offset = own.offset + u32::from(slot) * own.len;
    BufferExtent { region: 0, offset, len: own.len, has_next: false }
}
