//! A program's sides of a socket's two FIFOs.
//!
//! A reader (peek, consume) must hold [`crate::lock_rx`], and a writer (room, write, publish) must
//! hold [`crate::lock_tx`]. Positions and location of a FIFO are consistent only under its lock.
//! The engine is trusted, but another program may have overwritten the words. If a location is
//! outside of the shared memory, the functions report neither bytes nor space, so that no access
//! faults.

use towpath_shm::atomic::{Ordering, fence};
use towpath_shm::layout::{Slot, option_bit};

use crate::fifo::Geometry;
use crate::region::Region;

/// Minimum and maximum number of bytes that one send may write beyond TCP_NOTSENT_LOWAT. Linux also
/// exceeds the option, because it completes a segment of up to 64 KiB. The minimum avoids tiny
/// sends by programs that set the option to 1.
const BEYOND_LOWAT_MIN: u32 = 16 << 10;
const BEYOND_LOWAT_MAX: u32 = 64 << 10;

/// Returns the number of unread bytes. Without the lock, the number may change at any time.
pub fn unread(slot: &Slot) -> u32 {
    // Load the start position before the end position. Otherwise a concurrent reader could make the
    // difference negative.
    let head = slot.rx_head.load(Ordering::Acquire);
    let used = slot.rx_tail.load(Ordering::Acquire).wrapping_sub(head);
    used.min(slot.rx_cap.load(Ordering::Acquire))
}

/// Copies unread bytes from offset `skip` on to `to`, and returns the number of bytes copied.
pub fn peek(region: &Region, slot: &Slot, skip: u32, to: &mut [u8]) -> usize {
    // Load the number of unread bytes first: while there are any, the engine does not change the
    // location of the FIFO.
    let len = unread(slot);
    let Some(geometry) = rx_geometry(slot) else {
        return 0;
    };
    let n = len.min(geometry.cap).saturating_sub(skip).min(clamp(to.len()));
    let position = slot.rx_head.load(Ordering::Relaxed).wrapping_add(skip);
    let mut to = &mut to[..n as usize];
    for (offset, part) in geometry.stretches(position, n) {
        let (now, rest) = to.split_at_mut(part as usize);
        if !now.is_empty() {
            region.mapping().read(offset, now);
        }
        to = rest;
    }
    n as usize
}

/// Removes `n` unread bytes. Returns true if the engine wants a notification; the caller must then
/// send the command [`towpath_shm::layout::op::RX_SPACE`].
#[must_use]
pub fn consume(slot: &Slot, n: u32) -> bool {
    let head = start(slot);
    slot.rx_head.store(head.wrapping_add(n), Ordering::Release);
    is_wanted(slot)
}

/// Returns the position of the first unread byte.
pub fn start(slot: &Slot) -> u32 {
    slot.rx_head.load(Ordering::Relaxed)
}

/// Removes `n` bytes, if the first unread byte is still at `head`. Otherwise returns `None`: a
/// signal handler that interrupted this call has read bytes, so the caller's copy is outdated.
#[must_use]
pub fn consume_from(slot: &Slot, head: u32, n: u32) -> Option<bool> {
    let taken = slot.rx_head.compare_exchange(
        head,
        head.wrapping_add(n),
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    taken.is_ok().then(|| is_wanted(slot))
}

/// Completes a read that removes nothing (MSG_PEEK). Returns `None` if a signal handler has removed
/// bytes, so that the caller must read again. Otherwise returns `Some(false)`: the engine need not
/// be notified.
#[must_use]
pub fn peeked_from(slot: &Slot, head: u32) -> Option<bool> {
    (start(slot) == head).then_some(false)
}

fn is_wanted(slot: &Slot) -> bool {
    // The engine sets `rx_wanted` and then reads `rx_head`. Therefore either the engine sees the
    // new `rx_head`, or this thread sees `rx_wanted`.
    fence(Ordering::SeqCst);
    slot.rx_wanted.load(Ordering::Relaxed) != 0 && slot.rx_wanted.swap(0, Ordering::AcqRel) != 0
}

/// Returns the number of bytes that may be written. If it is 0 because the FIFO has no buffer
/// (`tx_cap` is 0), the caller must send the command [`towpath_shm::layout::op::TX_WINDOW`] and
/// wait.
pub fn room(slot: &Slot) -> u32 {
    room_at(slot, slot.tx_tail.load(Ordering::Acquire))
}

/// Returns the number of bytes that may be written after `position`, the end of the bytes written
/// so far. Some bytes may not be published yet.
pub(crate) fn room_at(slot: &Slot, position: u32) -> u32 {
    let queued = queued_at(slot, position);
    let space = most(slot).saturating_sub(queued);
    match notsent_lowat(slot) {
        None => space,
        Some(lowat) => match lowat.checked_sub(unsent_of(slot, queued)) {
            None | Some(0) => 0,
            Some(left) => space.min(left.max(lowat.clamp(BEYOND_LOWAT_MIN, BEYOND_LOWAT_MAX))),
        },
    }
}

/// Returns the number of bytes for which the FIFO has memory, regardless of TCP_NOTSENT_LOWAT.
pub fn space(slot: &Slot) -> u32 {
    most(slot).saturating_sub(queued(slot))
}

fn most(slot: &Slot) -> u32 {
    slot.tx_cap.load(Ordering::Acquire).min(slot.tx_limit.load(Ordering::Relaxed))
}

/// Returns whether TCP_NOTSENT_LOWAT allows a waiting writer to continue: less than half of the
/// option's value is unsent, as in Linux's `tcp_stream_memory_free`.
pub fn is_below_lowat(slot: &Slot) -> bool {
    notsent_lowat(slot).is_none_or(|lowat| unsent_of(slot, queued(slot)) < lowat.div_ceil(2))
}

fn notsent_lowat(slot: &Slot) -> Option<u32> {
    // Check the option bits first: every send uses their cache line anyway, but not that of the
    // value.
    let is_set = slot.option_bits.load(Ordering::Relaxed) & option_bit::NOTSENT_LOWAT != 0;
    // A value of 0 means that the option was disabled after the bit was loaded.
    is_set.then(|| slot.notsent_lowat.load(Ordering::Relaxed)).filter(|lowat| *lowat != 0)
}

/// Returns how many of the `queued` bytes in the FIFO are unsent (SIOCOUTQNSD).
pub fn unsent_of(slot: &Slot, queued: u32) -> u32 {
    queued.saturating_sub(slot.tx_unacked.load(Ordering::Relaxed))
}

/// Returns the number of bytes in the FIFO. The bytes are not yet acknowledged (streams) or not yet
/// sent (datagrams), or packets still refer to them.
pub fn queued(slot: &Slot) -> u32 {
    let head = slot.tx_head.load(Ordering::Acquire);
    slot.tx_tail.load(Ordering::Acquire).wrapping_sub(head)
}

/// Returns the number of bytes from `tx_head` to `position`, the end of the bytes written so far.
/// Some bytes may not be published yet.
pub(crate) fn queued_at(slot: &Slot, position: u32) -> u32 {
    position.wrapping_sub(slot.tx_head.load(Ordering::Acquire))
}

/// Copies bytes to the FIFO, `skip` bytes after the published ones. Returns how many fit into the
/// buffer. The result may exceed the FIFO's limit; [`room`] returns how many bytes should be
/// written.
pub fn write(region: &Region, slot: &Slot, skip: u32, from: &[u8]) -> usize {
    let position = slot.tx_tail.load(Ordering::Relaxed).wrapping_add(skip);
    write_at(region, slot, position, from)
}

/// Copies bytes to a position in the FIFO, for [`crate::append`].
pub fn write_at(region: &Region, slot: &Slot, position: u32, from: &[u8]) -> usize {
    let Some(geometry) = tx_geometry(slot) else {
        return 0;
    };
    let n = geometry.cap.saturating_sub(queued_at(slot, position)).min(clamp(from.len()));
    let mut from = &from[..n as usize];
    for (offset, part) in geometry.stretches(position, n) {
        let (now, rest) = from.split_at(part as usize);
        if !now.is_empty() {
            region.mapping().write(offset, now);
        }
        from = rest;
    }
    n as usize
}

/// Publishes the next `n` written bytes to the engine. Returns true if the engine must be notified;
/// the caller must then send the command [`towpath_shm::layout::op::TX`].
#[must_use]
pub fn publish(slot: &Slot, n: u32) -> bool {
    let tail = slot.tx_tail.load(Ordering::Relaxed);
    slot.tx_tail.store(tail.wrapping_add(n), Ordering::Release);
    take_dirty(slot)
}

/// Sets the flag that bytes were published. Returns whether the caller must notify the engine,
/// because the flag was not set before.
pub(crate) fn take_dirty(slot: &Slot) -> bool {
    // The engine clears the flag before it reads `tx_tail`. If the flag is still set, the
    // notification already sent covers these bytes as well.
    slot.tx_dirty.swap(1, Ordering::AcqRel) == 0
}

/// Requests an event when space becomes free. The caller must check [`room`] again afterwards,
/// because space may have become free before the request.
pub fn want_room(slot: &Slot) {
    slot.tx_wanted.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

fn rx_geometry(slot: &Slot) -> Option<Geometry> {
    let cap = slot.rx_cap.load(Ordering::Acquire);
    Geometry::checked(
        slot.rx_base.load(Ordering::Relaxed),
        cap,
        slot.rx_shift.load(Ordering::Relaxed),
    )
}

fn tx_geometry(slot: &Slot) -> Option<Geometry> {
    let cap = slot.tx_cap.load(Ordering::Acquire);
    Geometry::checked(
        slot.tx_base.load(Ordering::Relaxed),
        cap,
        slot.tx_shift.load(Ordering::Relaxed),
    )
}

fn clamp(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_can_be_written_beyond_the_mark_of_unsent_bytes() {
        let region = Region::create().unwrap();
        let slot = region.slot(1).unwrap();
        slot.tx_cap.store(1 << 20, Ordering::Relaxed);
        slot.tx_limit.store(1 << 20, Ordering::Relaxed);
        assert_eq!(room(slot), 1 << 20);
        slot.option_bits.store(option_bit::NOTSENT_LOWAT, Ordering::Relaxed);
        for (lowat, unsent, allowed) in [
            (1, 0, 16 << 10),
            (4000, 3999, 16 << 10),
            (4000, 4000, 0),
            (40_000, 39_999, 40_000),
            (1 << 19, 0, 1 << 19),
            (1 << 19, (1 << 19) - 1, 64 << 10),
        ] {
            slot.notsent_lowat.store(lowat, Ordering::Relaxed);
            slot.tx_tail.store(unsent, Ordering::Relaxed);
            assert_eq!(room(slot), allowed, "{lowat} {unsent}");
        }
    }
}
