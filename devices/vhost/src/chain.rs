//! Chains of descriptors: the memory of one frame in a virtqueue (virtio 1.2 §2.7.5).

use std::ops::Range;

use towpath_shm::Mapping;

use crate::memory::{GuestExtent, GuestMemory};
use crate::ring::{DESCRIPTOR_LEN, RingError, SplitRing};

/// Maximum number of extents of a frame, and of descriptors in an indirect table.
const EXTENTS_MAX: usize = 1024;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Direction of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainAccess {
    /// The device reads the bytes.
    Read,
    /// The device writes the bytes.
    Write,
}

/// Memory of one or several chains, in order. All extents are inside of the guest's memory.
#[derive(Debug)]
pub(crate) struct ChainBuffer {
    extents: Vec<GuestExtent>,
    len: usize,
}

struct ChainDescriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl ChainDescriptor {
    /// Copies a descriptor once, because the driver may change it at any time.
    fn read(mapping: &Mapping, table: usize, index: u16) -> Self {
        let mut bytes = [0; DESCRIPTOR_LEN];
        mapping.read(table + usize::from(index) * DESCRIPTOR_LEN, &mut bytes);
        let [a @ .., l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Self {
            address: u64::from_le_bytes(a),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }
}

impl ChainBuffer {
    pub(crate) fn new() -> Self {
        Self { extents: Vec::with_capacity(EXTENTS_MAX), len: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.extents.clear();
        self.len = 0;
    }

    /// Returns the total length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends the memory of the chain that begins at descriptor `head`, and returns its length.
    ///
    /// The number of steps is limited to that of the descriptors, because a chain may be a loop.
    pub(crate) fn append(
        &mut self,
        memory: &GuestMemory,
        ring: &SplitRing,
        head: u16,
        access: ChainAccess,
    ) -> Result<usize, RingError> {
        let (before, place) = (self.len, ring.descriptors());
        let (mut mapping, mut table, mut count) = (&*place.mapping, place.at, ring.size());
        let (mut index, mut left, mut is_indirect) = (head, count, false);
        loop {
            left = left.checked_sub(1).ok_or(RingError::Chain)?;
            let descriptor = ChainDescriptor::read(mapping, table, index);
            let flags = descriptor.flags;
            if flags & INDIRECT != 0 {
                if is_indirect || flags & NEXT != 0 {
                    return Err(RingError::Chain);
                }
                let extent = indirect_table(memory, &descriptor)?;
                (mapping, table) = memory.place(&extent);
                count = (extent.len / DESCRIPTOR_LEN) as u16;
                (index, left, is_indirect) = (0, count, true);
                continue;
            }
            if (flags & WRITE != 0) != (access == ChainAccess::Write) {
                return Err(RingError::Chain);
            }
            self.push(memory, descriptor.address, descriptor.len)?;
            if flags & NEXT == 0 {
                return Ok(self.len - before);
            }
            index = descriptor.next;
            if index >= count {
                return Err(RingError::Chain);
            }
        }
    }

    /// Appends a range of guest-physical addresses, which may extend over several regions.
    ///
    /// Refuses empty ranges, as QEMU does. Otherwise a frame could need a million descriptors: as
    /// many full tables as the virtqueue has entries.
    fn push(&mut self, memory: &GuestMemory, mut address: u64, len: u32) -> Result<(), RingError> {
        if len == 0 {
            return Err(RingError::Chain);
        }
        let mut left = len;
        while left > 0 {
            let extent = memory.extent(address, left).ok_or(RingError::Chain)?;
            if self.extents.len() >= EXTENTS_MAX {
                return Err(RingError::Chain);
            }
            self.extents.push(extent);
            self.len += extent.len;
            left -= extent.len as u32;
            address = address.checked_add(extent.len as u64).ok_or(RingError::Chain)?;
        }
        Ok(())
    }

    /// Copies `to.len()` bytes from offset `skip` on.
    pub(crate) fn read(&self, memory: &GuestMemory, skip: usize, to: &mut [u8]) {
        self.each(memory, skip, to.len(), |mapping, at, range| mapping.read(at, &mut to[range]));
    }

    /// Copies bytes to offset `skip`.
    pub(crate) fn write(&self, memory: &GuestMemory, skip: usize, from: &[u8]) {
        self.each(memory, skip, from.len(), |mapping, at, range| mapping.write(at, &from[range]));
    }

    /// Calls `copy` for each contiguous part of `len` bytes from offset `skip` on. The arguments
    /// are the mapping, the offset there, and the range in the `len` bytes.
    pub(crate) fn each(
        &self,
        memory: &GuestMemory,
        skip: usize,
        len: usize,
        mut copy: impl FnMut(&Mapping, usize, Range<usize>),
    ) {
        let (mut skip, mut done) = (skip, 0);
        for extent in &self.extents {
            let from = skip.min(extent.len);
            skip -= from;
            let count = (extent.len - from).min(len - done);
            if count > 0 {
                let (mapping, at) = memory.place(extent);
                copy(mapping, at + from, done..done + count);
                done += count;
            }
        }
        debug_assert_eq!(done, len, "copy beyond the chain");
    }
}

/// Returns the extent of the table to which an indirect descriptor refers.
fn indirect_table(
    memory: &GuestMemory,
    descriptor: &ChainDescriptor,
) -> Result<GuestExtent, RingError> {
    let len = descriptor.len as usize;
    let is_valid =
        len.is_multiple_of(DESCRIPTOR_LEN) && (1..=EXTENTS_MAX).contains(&(len / DESCRIPTOR_LEN));
    let extent = memory.extent(descriptor.address, descriptor.len);
    extent.filter(|extent| is_valid && extent.len == len).ok_or(RingError::Chain)
}
