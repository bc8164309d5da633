//! Layout of a ring in shared memory, which both processes know (DPDK's net_memif guide, "Shared
//! memory").
//!
//! ```text
//!   0    cookie u32, flags u16, head u16
//!   64   tail u16
//!   128  descriptors: flags u16, region u16, length u32, offset u32, metadata u32
//! ```
//!
//! The client owns the head, and the server owns the tail. Both indices only grow, modulo 2^16.
//! Words are in native byte order.

use towpath_shm::Mapping;

/// First word of a ring (MEMIF_COOKIE).
pub(crate) const COOKIE: u32 = 0x3e3_1f20;
/// Offsets in a ring.
pub(crate) const FLAGS: usize = 4;
pub(crate) const HEAD: usize = 6;
pub(crate) const TAIL: usize = 64;
const DESCRIPTORS: usize = 128;
/// Length of a descriptor in bytes.
const DESCRIPTOR_LEN: usize = 16;
/// Alignment of a ring: that of its cookie.
pub(crate) const RING_ALIGNMENT: usize = 4;

/// Flag of a ring: the receiver of its frames wants no notifications (MEMIF_RING_FLAG_MASK_INT).
pub(crate) const MASK_INTERRUPT: u16 = 1;
/// Flag of a descriptor: the frame continues in the next one (MEMIF_DESC_FLAG_NEXT).
pub(crate) const NEXT: u16 = 1;

/// Minimum and maximum size of a ring as a power of two, the same as in DPDK.
pub(crate) const LOG2_SIZE_MIN: u8 = 1;
pub(crate) const LOG2_SIZE_MAX: u8 = 14;

/// Returns the length in bytes of a ring with `1 << log2_size` descriptors.
pub(crate) const fn ring_len(log2_size: u8) -> usize {
    DESCRIPTORS + (DESCRIPTOR_LEN << log2_size)
}

/// Descriptor of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferDescriptor {
    pub(crate) flags: u16,
    pub(crate) region: u16,
    /// Length of the frame's part in the buffer, or of a free buffer.
    pub(crate) len: u32,
    /// Offset of the buffer in its region.
    pub(crate) offset: u32,
}

impl BufferDescriptor {
    /// Copies descriptor `slot` of the ring at `ring`. A descriptor is read once, because the peer
    /// may change it at any time.
    pub(crate) fn read(mapping: &Mapping, ring: usize, slot: u16) -> Self {
        let mut bytes = [0; DESCRIPTOR_LEN];
        mapping.read(place(ring, slot), &mut bytes);
        let [f0, f1, r0, r1, l0, l1, l2, l3, o0, o1, o2, o3, ..] = bytes;
        Self {
            flags: u16::from_ne_bytes([f0, f1]),
            region: u16::from_ne_bytes([r0, r1]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            offset: u32::from_ne_bytes([o0, o1, o2, o3]),
        }
    }

    /// Writes descriptor `slot` of the ring at `ring`, without metadata.
    pub(crate) fn write(&self, mapping: &Mapping, ring: usize, slot: u16) {
        let mut bytes = [0; DESCRIPTOR_LEN];
        bytes[0..2].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.region.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.offset.to_ne_bytes());
        mapping.write(place(ring, slot), &bytes);
    }
}

fn place(ring: usize, slot: u16) -> usize {
    ring + DESCRIPTORS + usize::from(slot) * DESCRIPTOR_LEN
}
