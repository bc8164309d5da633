//! Socket options whose values programs store in their sockets' slots in shared memory.

use std::sync::atomic::Ordering::Relaxed;

use towpath_shm::layout::{Slot, option_bit};

use crate::shard::sockets::slots::Rare;

/// Returns whether a bit of [`option_bit`] is set in a slot.
pub(crate) fn has_bit(slot: &Slot, bit: u32) -> bool {
    slot.option_bits.load(Relaxed) & bit != 0
}

/// Returns the options of a socket that affect bind(2).
pub(crate) fn bind_options(slot: &Slot, rare: &Rare) -> towpath_stack::BindOptions {
    towpath_stack::BindOptions {
        reuse_addr: has_bit(slot, option_bit::REUSEADDR),
        reuse_port: has_bit(slot, option_bit::REUSEPORT),
        v6_only: has_bit(slot, option_bit::V6ONLY),
        free_bind: rare.free_bind,
        ports: rare.local_ports,
        // A negative number selects no processor.
        processor: rare.processor.and_then(|(value, _)| u32::try_from(value).ok()),
    }
}
