//! A ring of descriptors between this process and the kernel
//! (Documentation/networking/af_xdp.rst).
//!
//! The other side can write anything into it at any time: numbers are read once and clamped, and
//! entries are checked by [`crate::Chunks`].

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use towpath_shm::Mapping;

/// Places in the memory of a ring, in bytes (`struct xdp_ring_offset`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RingLayout {
    /// Entries that were put in so far, modulo 2^32.
    pub producer: u64,
    /// Entries that were taken out so far, modulo 2^32.
    pub consumer: u64,
    /// The first entry.
    pub entries: u64,
    /// Flags of the kernel.
    pub flags: u64,
}

/// XDP_RING_NEED_WAKEUP: the kernel sleeps until a system call wakes it up.
const NEED_WAKEUP: u32 = 1;

/// An entry of the rings of received frames and of frames to be sent (`struct xdp_desc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub address: u64,
    pub len: u32,
    /// The frame continues in the next entry (XDP_PKT_CONTD).
    pub goes_on: bool,
}

const DESCRIPTOR_LEN: usize = 16;
const ADDRESS_LEN: usize = 8;
const CONTINUED: u32 = 1;

/// A side of a ring.
#[derive(Debug)]
pub struct Ring {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
    flags: usize,
    /// Number of entries, a power of two.
    size: u32,
    /// Number of the next entry of this side, of which the other side learns by
    /// [`Ring::publish`].
    next: u32,
}

impl Ring {
    /// Bytes of memory of a ring with `size` entries of [`Descriptor`]s, or of addresses.
    pub(crate) fn bytes(layout: &RingLayout, size: u32, has_descriptors: bool) -> usize {
        let entry = if has_descriptors { DESCRIPTOR_LEN } else { ADDRESS_LEN };
        layout.entries as usize + size as usize * entry
    }

    /// A side of a ring of `size` entries, a power of two, that nobody has used.
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

    /// Whether the kernel waits for a system call.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.memory.u32(self.flags).load(Acquire) & NEED_WAKEUP != 0
    }

    /// As the consumer: entries that can be taken, at most [`Self::size`].
    pub(crate) fn available(&self) -> u32 {
        let produced = self.memory.u32(self.producer).load(Acquire);
        produced.wrapping_sub(self.next).min(self.size)
    }

    /// As the producer: entries that can be put in. A consumer that claims to be ahead has no
    /// room.
    pub(crate) fn room(&self) -> u32 {
        let consumed = self.memory.u32(self.consumer).load(Acquire);
        self.size.saturating_sub(self.next.wrapping_sub(consumed))
    }

    /// As the producer: entries that the other side has not taken.
    pub(crate) fn waiting(&self) -> u32 {
        self.size - self.room()
    }

    fn entry(&self, len: usize) -> usize {
        self.entries + (self.next & (self.size - 1)) as usize * len
    }

    /// Takes an entry of [`Self::available`].
    pub(crate) fn take_descriptor(&mut self) -> Descriptor {
        let at = self.entry(DESCRIPTOR_LEN);
        self.next = self.next.wrapping_add(1);
        let address = self.memory.u64(at).load(Relaxed);
        let len = self.memory.u32(at + 8).load(Relaxed);
        let options = self.memory.u32(at + 12).load(Relaxed);
        Descriptor { address, len, goes_on: options & CONTINUED != 0 }
    }

    /// Takes an address of [`Self::available`].
    pub(crate) fn take_address(&mut self) -> u64 {
        let at = self.entry(ADDRESS_LEN);
        self.next = self.next.wrapping_add(1);
        self.memory.u64(at).load(Relaxed)
    }

    /// Puts an entry where there is [`Self::room`].
    pub(crate) fn put_descriptor(&mut self, descriptor: Descriptor) {
        let at = self.entry(DESCRIPTOR_LEN);
        self.next = self.next.wrapping_add(1);
        self.memory.u64(at).store(descriptor.address, Relaxed);
        self.memory.u32(at + 8).store(descriptor.len, Relaxed);
        let options = if descriptor.goes_on { CONTINUED } else { 0 };
        self.memory.u32(at + 12).store(options, Relaxed);
    }

    /// Puts an address where there is [`Self::room`].
    pub(crate) fn put_address(&mut self, address: u64) {
        let at = self.entry(ADDRESS_LEN);
        self.next = self.next.wrapping_add(1);
        self.memory.u64(at).store(address, Relaxed);
    }

    /// Tells the other side of entries that were put in.
    pub(crate) fn publish(&self) {
        self.memory.u32(self.producer).store(self.next, Release);
    }

    /// Tells the other side of entries that were taken out.
    pub(crate) fn release(&self) {
        self.memory.u32(self.consumer).store(self.next, Release);
    }
}
