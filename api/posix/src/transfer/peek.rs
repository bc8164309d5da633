//! SO_PEEK_OFF: each read with MSG_PEEK begins at the end of the previous one.

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

/// Moves the offset as sk_peek_offset_fwd and sk_peek_offset_bwd do: forward after a read with
/// MSG_PEEK (`keep`), back after other reads.
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
    // A concurrent call may have disabled the offset.
    let _ = slot.peek_off.fetch_update(Relaxed, Relaxed, |word| {
        (1..=1 << 31).contains(&word).then(|| moved(word - 1) + 1)
    });
}
