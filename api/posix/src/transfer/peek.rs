//! SO_PEEK_OFF: a read with MSG_PEEK begins where the previous one ended.

use std::sync::atomic::Ordering::Relaxed;

use towpath_shm::layout::option_bit;

use crate::handle::OpenSocket;

/// Returns the offset in bytes at which a read with MSG_PEEK begins (SO_PEEK_OFF), or 0 without the
/// option.
pub(super) fn peek_offset(handle: &OpenSocket) -> u32 {
    match handle.slot.option_bits.load(Relaxed) & option_bit::PEEK_OFF {
        0 => 0,
        _ => handle.slot.peek_off.load(Relaxed).saturating_sub(1),
    }
}

/// Moves the offset of SO_PEEK_OFF: forward after a read with MSG_PEEK (`keep`), back after a read
/// that consumes `len` bytes. As Linux's `sk_peek_offset_fwd` and `sk_peek_offset_bwd`.
pub(super) fn move_peek_offset(handle: &OpenSocket, keep: bool, len: usize) {
    let slot = handle.slot;
    if slot.option_bits.load(Relaxed) & option_bit::PEEK_OFF == 0 {
        return;
    }
    let by = u32::try_from(len).unwrap_or(u32::MAX);
    let moved = |offset: u32| match keep {
        true => offset.saturating_add(by).min(i32::MAX as u32),
        false => offset.saturating_sub(by),
    };
    // The word contains the offset plus one. If a concurrent call has disabled SO_PEEK_OFF, the
    // word is 0 and stays so.
    let _ = slot.peek_off.fetch_update(Relaxed, Relaxed, |word| {
        (1..=1 << 31).contains(&word).then(|| moved(word - 1) + 1)
    });
}
