//! A ring of descriptors shared with the kernel (Documentation/networking/af_xdp.rst).
//!
//! The other side may write any value at any time. Therefore indices are read once and limited, and
//! [`crate::Chunks`] validates the entries.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use towpath_shm::Mapping;

/// Offsets in the memory of a ring in bytes (`struct xdp_ring_offset`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RingLayout {
    /// Offset of the producer's index, which counts entries modulo 2^32.
    pub producer: u64,
    /// Offset of the consumer's index, which counts entries modulo 2^32.
    pub consumer: u64,
    /// Offset of the first entry.
    pub entries: u64,
    /// Offset of the flags that the kernel sets.
    pub flags: u64,
}

/// XDP_RING_NEED_WAKEUP: the kernel waits for a system call before it continues.
const NEED_WAKEUP: u32 = 1;

/// Entry of the receive and transmit rings (`struct xdp_desc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub address: u64,
    pub len: u32,
    /// Whether the frame continues in the next entry (XDP_PKT_CONTD).
    pub goes_on: bool,
}

const DESCRIPTOR_LEN: usize = 16;
const ADDRESS_LEN: usize = 8;
const CONTINUED: u32 = 1;

/// A side of a ring, either the producer or the consumer.
#[derive(Debug)]
pub struct Ring {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
    flags: usize,
    /// Number of entries of the ring, a power of two.
    size: u32,
    /// Index of this side's next entry. The entry becomes visible to the kernel by
    /// [`Ring::publish`] or [`Ring::release`].
    next: u32,
}

impl Ring {
    /// Returns the size in bytes of the memory of a ring. Its `size` entries are [`Descriptor`]s
    /// or, if `has_descriptors` is false, addresses.
    pub(crate) fn bytes(layout: &RingLayout, size: u32, has_descriptors: bool) -> usize {
        let entry = if has_descriptors { DESCRIPTOR_LEN } else { ADDRESS_LEN };
        layout.entries as usize + size as usize * entry
    }

    /// Creates the producer's or consumer's side of an empty ring with `size` entries, a power of
    /// two.
    pub fn new(memory: Mapping, layout: &RingLayout, size: u32) -> Self {
        let place = |offset: u64| offset as usize;
        Self {
            memory,
            producer: place(layout.producer),
            consumer: place(layout.consumer),
            entries: place(layout.entries),
            flags: place(layout.flags),
            size,
            next: 0,
        }
    }

    /// Returns whether the kernel waits for a system call before it continues.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.memory.u32(self.flags).load(Acquire) & NEED_WAKEUP != 0
    }

    /// Returns the number of entries that the consumer can take, at most [`Self::size`].
    pub(crate) fn available(&self) -> u32 {
        let produced = self.memory.u32(self.producer).load(Acquire);
        produced.wrapping_sub(self.next).min(self.size)
    }

    /// Returns the number of entries that the producer can add; 0 if the consumer's index is
    /// invalid.
    pub(crate) fn room(&self) -> u32 {
        let consumed = self.memory.u32(self.consumer).load(Acquire);
        self.size.saturating_sub(self.next.wrapping_sub(consumed))
    }

    /// Returns the number of entries that the producer has added and the consumer has not taken
    /// yet.
    pub(crate) fn waiting(&self) -> u32 {
        self.size - self.room()
    }

    fn entry(&self, len: usize) -> usize {
        self.entries + (self.next & (self.size - 1)) as usize * len
    }

    /// Takes the next descriptor as the consumer. [`Self::available`] must not be 0.
    pub(crate) fn take_descriptor(&mut self) -> Descriptor {
        let at = self.entry(DESCRIPTOR_LEN);
        self.next = self.next.wrapping_add(1);
        let address = self.memory.u64(at).load(Relaxed);
        let len = self.memory.u32(at + 8).load(Relaxed);
        let options = self.memory.u32(at + 12).load(Relaxed);
        Descriptor { address, len, goes_on: options & CONTINUED != 0 }
    }

    /// Takes the next address as the consumer. [`Self::available`] must not be 0.
    pub(crate) fn take_address(&mut self) -> u64 {
        let at = self.entry(ADDRESS_LEN);
        self.next = self.next.wrapping_add(1);
        self.memory.u64(at).load(Relaxed)
    }

    /// Adds a descriptor as the producer. [`Self::room`] must not be 0.
    pub(crate) fn put_descriptor(&mut self, descriptor: Descriptor) {
        let at = self.entry(DESCRIPTOR_LEN);
        self.next = self.next.wrapping_add(1);
        self.memory.u64(at).store(descriptor.address, Relaxed);
        self.memory.u32(at + 8).store(descriptor.len, Relaxed);
        let options = if descriptor.goes_on { CONTINUED } else { 0 };
        self.memory.u32(at + 12).store(options, Relaxed);
    }

    /// Adds an address as the producer. [`Self::room`] must not be 0.
    pub(crate) fn put_address(&mut self, address: u64) {
        let at = self.entry(ADDRESS_LEN);
        self.next = self.next.wrapping_add(1);
        self.memory.u64(at).store(address, Relaxed);
    }

    /// Makes the added entries visible to the consumer.
    pub(crate) fn publish(&self) {
        self.memory.u32(self.producer).store(self.next, Release);
    }

    /// Makes the space of the taken entries available to the producer.
    pub(crate) fn release(&self) {
        self.memory.u32(self.consumer).store(self.next, Release);
    }
}
