//! The device's side of a split virtqueue (virtio 1.2 §2.7).
//!
//! ```text
//!   descriptors  [address, length, flags, next] × size     written by the driver
//!   available    flags, index, [head] × size, used_event   written by the driver
//!   used         flags, index, [head, length] × size, avail_event   written by the device
//! ```
//!
//! The driver may write all parts at any time. Therefore indices are read once and limited. Words
//! are in little-endian order, which is the native order of the supported hosts.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::memory::{GuestMemory, GuestPlace};

/// Maximum number of descriptors in a virtqueue that QEMU supports (VIRTQUEUE_MAX_SIZE).
pub(crate) const SIZE_MAX: u16 = 1024;
/// Length of a descriptor in bytes.
pub(crate) const DESCRIPTOR_LEN: usize = 16;
/// Length of an entry of the used ring in bytes, and offsets of the index and the first entry.
const USED_LEN: usize = 8;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
/// Flags of the available and of the used ring: no notification is wanted.
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// Addresses of the parts of a virtqueue in the front end's address space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the used ring.
    pub used: u64,
    /// Address of the available ring.
    pub available: u64,
}

/// Parameters with which a virtqueue starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingSetup {
    /// Number of descriptors, a power of two.
    pub size: u16,
    /// Index of the next entry of the available ring.
    pub base: u16,
    /// Addresses of the parts.
    pub addresses: RingAddresses,
    /// Whether both sides suppress notifications by indices (VIRTIO_F_EVENT_IDX).
    pub has_event_index: bool,
}

/// Reason why a virtqueue cannot start or continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The number of descriptors is invalid.
    #[error("{0} descriptors: expected a power of two, at most {SIZE_MAX}")]
    Size(u16),
    /// A part is not inside of one memory region, or is not aligned.
    #[error("a part of the virtqueue is outside of the guest's memory, or not aligned")]
    Place,
    /// The driver has written an invalid index.
    #[error("the driver has written an invalid index")]
    Index,
    /// The driver has written an invalid chain of descriptors.
    #[error("the driver has written an invalid chain of descriptors")]
    Chain,
}

/// A running virtqueue.
#[derive(Debug)]
pub(crate) struct SplitRing {
    setup: RingSetup,
    parts: RingParts,
    /// Index of the next entry to take from the available ring.
    next_available: u16,
    /// Index of the driver in the available ring, as last read.
    seen: u16,
    /// Index of the next entry to add to the used ring.
    next_used: u16,
    /// Index of the used ring that the driver sees.
    published: u16,
    /// Value of `seen` from which on the driver was asked to notify the device of further entries;
    /// `None` while the device polls.
    awaited: Option<u16>,
}

#[derive(Debug)]
struct RingParts {
    descriptors: GuestPlace,
    available: GuestPlace,
    used: GuestPlace,
}

impl RingParts {
    fn new(setup: &RingSetup, memory: &GuestMemory) -> Result<Self, RingError> {
        let (size, RingAddresses { descriptors, used, available }) =
            (usize::from(setup.size), setup.addresses);
        // The lengths include the event index behind the entries.
        let place = |address, len, alignment| {
            memory.of_front_end(address, len, alignment).ok_or(RingError::Place)
        };
        Ok(Self {
            descriptors: place(descriptors, size * DESCRIPTOR_LEN, DESCRIPTOR_LEN)?,
            available: place(available, ENTRIES + size * 2 + 2, 2)?,
            used: place(used, ENTRIES + size * USED_LEN + 2, 4)?,
        })
    }
}

impl SplitRing {
    pub(crate) fn start(setup: RingSetup, memory: &GuestMemory) -> Result<Self, RingError> {
        if !setup.size.is_power_of_two() || setup.size > SIZE_MAX {
            return Err(RingError::Size(setup.size));
        }
        let parts = RingParts::new(&setup, memory)?;
        // Continue after the entries of an earlier back end.
        let published = parts.used.mapping.u16(parts.used.at + INDEX).load(Acquire);
        let mut ring = Self {
            setup,
            parts,
            next_available: setup.base,
            seen: setup.base,
            next_used: published,
            published,
            awaited: Some(setup.base),
        };
        ring.ignore_notifications();
        Ok(ring)
    }

    /// Finds the parts again after the memory regions have changed.
    pub(crate) fn move_to(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        self.parts = RingParts::new(&self.setup, memory)?;
        Ok(())
    }

    /// Returns the number of descriptors.
    pub(crate) fn size(&self) -> u16 {
        self.setup.size
    }

    /// Returns the place of the descriptor table.
    pub(crate) fn descriptors(&self) -> &GuestPlace {
        &self.parts.descriptors
    }

    /// Returns the index of the next available entry, from which a later back end continues.
    pub(crate) fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Returns whether the driver will notify the device of further available entries.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.awaited == Some(self.seen)
    }

    /// Returns the number of available entries. Reads the driver's index only if fewer than
    /// `wanted` are known.
    pub(crate) fn available(&mut self, wanted: u16) -> Result<u16, RingError> {
        let known = self.seen.wrapping_sub(self.next_available);
        if known >= wanted {
            return Ok(known);
        }
        let GuestPlace { mapping, at } = &self.parts.available;
        let index = mapping.u16(at + INDEX).load(Acquire);
        let count = index.wrapping_sub(self.next_available);
        if count > self.size() || count < known {
            return Err(RingError::Index);
        }
        self.seen = index;
        Ok(count)
    }

    /// Returns the first descriptor of the chain that is `n` entries after the next one.
    pub(crate) fn head(&self, n: u16) -> Result<u16, RingError> {
        let GuestPlace { mapping, at } = &self.parts.available;
        let slot = usize::from(self.next_available.wrapping_add(n) & (self.size() - 1));
        let head = mapping.u16(at + ENTRIES + slot * 2).load(Relaxed);
        if head < self.size() { Ok(head) } else { Err(RingError::Index) }
    }

    /// Takes `count` available entries.
    pub(crate) fn take(&mut self, count: u16) {
        self.next_available = self.next_available.wrapping_add(count);
        self.ignore_notifications();
    }

    /// Returns a chain to the driver, after `len` bytes were written to it. The driver sees it
    /// after [`Self::publish`].
    pub(crate) fn push_used(&mut self, head: u16, len: u32) {
        let GuestPlace { mapping, at } = &self.parts.used;
        let slot = usize::from(self.next_used & (self.size() - 1));
        let at = at + ENTRIES + slot * USED_LEN;
        mapping.u32(at).store(head.into(), Relaxed);
        mapping.u32(at + 4).store(len, Relaxed);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Makes the returned chains visible to the driver. Returns whether the driver wants to be
    /// notified.
    pub(crate) fn publish(&mut self) -> bool {
        if self.next_used == self.published {
            return false;
        }
        let GuestPlace { mapping, at } = &self.parts.used;
        mapping.u16(at + INDEX).store(self.next_used, Release);
        let old = std::mem::replace(&mut self.published, self.next_used);
        // Order the store before the load below. Otherwise both sides could miss that the driver
        // begins to wait at this moment.
        fence(SeqCst);
        let GuestPlace { mapping, at } = &self.parts.available;
        if !self.setup.has_event_index {
            return mapping.u16(*at).load(Relaxed) & NO_INTERRUPT == 0;
        }
        let event_at = at + ENTRIES + usize::from(self.size()) * 2;
        let event = mapping.u16(event_at).load(Relaxed);
        self.published.wrapping_sub(event).wrapping_sub(1) < self.published.wrapping_sub(old)
    }

    /// Asks the driver for a notification when it adds further entries. Returns whether it has
    /// added some in the meantime, of which it does not notify.
    pub(crate) fn await_entries(&mut self) -> Result<bool, RingError> {
        let known = self.seen.wrapping_sub(self.next_available);
        if self.awaited.replace(self.seen) != Some(self.seen) {
            let GuestPlace { mapping, at } = &self.parts.used;
            if self.setup.has_event_index {
                let event_at = at + ENTRIES + usize::from(self.size()) * USED_LEN;
                mapping.u16(event_at).store(self.seen, Relaxed);
            } else {
                mapping.u16(*at).store(0, Relaxed);
            }
            fence(SeqCst);
        }
        Ok(self.available(known.saturating_add(1))? > known)
    }

    /// Tells the driver that the device polls, so that it sends no notification.
    fn ignore_notifications(&mut self) {
        if self.awaited.take().is_some() && !self.setup.has_event_index {
            let GuestPlace { mapping, at } = &self.parts.used;
            mapping.u16(*at).store(NO_NOTIFY, Relaxed);
        }
    }
}
