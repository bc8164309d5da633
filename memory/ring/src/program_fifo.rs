//! A program's ends of a socket's two FIFOs.
//!
//! A reader (peek, consume) must hold [`crate::lock_rx`], a writer (room, write, publish) the lock
//! of [`crate::lock_tx`]: positions and geometry are consistent under the lock only. The engine is
//! trusted here, but another process of the same run may have scribbled. Geometry that does not fit
//! the region counts as no bytes and no room, and never faults.

use towpath_shm::atomic::{Ordering, fence};
use towpath_shm::layout::{Slot, option_bit};

use crate::fifo::Geometry;
use crate::region::Region;

/// The longest segment that Linux makes (GSO_LEGACY_MAX_SIZE). Below TCP_NOTSENT_LOWAT a send
/// begins one, and fills it however few bytes the mark allows.
const SEGMENT_MAX: u32 = 65_536;

/// Bytes to be read. Without the lock: a snapshot.
pub fn unread(slot: &Slot) -> u32 {
    // The start before the end: the other way round, a concurrent reader makes it negative.
    let head = slot.rx_head.load(Ordering::Acquire);
    let used = slot.rx_tail.load(Ordering::Acquire).wrapping_sub(head);
    used.min(slot.rx_cap.load(Ordering::Acquire))
}

/// Copies unread bytes from `skip` on; returns how many there were to copy.
pub fn peek(region: &Region, slot: &Slot, skip: u32, to: &mut [u8]) -> usize {
    // The geometry stands still while bytes are unread, so it is read after the count.
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

/// Takes `n` bytes off the front. True: the engine wants to know; send
/// [`towpath_shm::layout::op::RX_SPACE`].
#[must_use]
pub fn consume(slot: &Slot, n: u32) -> bool {
    let head = start(slot);
    slot.rx_head.store(head.wrapping_add(n), Ordering::Release);
    is_wanted(slot)
}

/// Where the unread bytes start.
pub fn start(slot: &Slot) -> u32 {
    slot.rx_head.load(Ordering::Relaxed)
}

/// As [`consume`], if they still start where they did. None: a signal handler has interrupted this
/// call and taken some; what was peeked is not what is next.
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

/// Ends a read that consumes nothing (MSG_PEEK): Some(false) if no signal handler consumed any of
/// it meanwhile, None if it has to be read again. The engine need never be told.
#[must_use]
pub fn peeked_from(slot: &Slot, head: u32) -> Option<bool> {
    (start(slot) == head).then_some(false)
}

fn is_wanted(slot: &Slot) -> bool {
    // Either the engine, which sets the flag and then looks at rx_head, sees the room, or we see
    // the flag.
    fence(Ordering::SeqCst);
    slot.rx_wanted.load(Ordering::Relaxed) != 0 && slot.rx_wanted.swap(0, Ordering::AcqRel) != 0
}

/// Bytes that may be written; 0 also when there is no memory (`tx_cap` 0: send
/// [`towpath_shm::layout::op::TX_WINDOW`] and wait).
pub fn room(slot: &Slot) -> u32 {
    room_at(slot, slot.tx_tail.load(Ordering::Acquire))
}

/// The same behind bytes that end at `position`, of which the last are not published yet.
pub(crate) fn room_at(slot: &Slot, position: u32) -> u32 {
    let queued = queued_at(slot, position);
    let space = most(slot).saturating_sub(queued);
    match notsent_lowat(slot) {
        None => space,
        Some(lowat) => match lowat.checked_sub(unsent_of(slot, queued)) {
            None | Some(0) => 0,
            Some(left) => space.min(left.max(SEGMENT_MAX)),
        },
    }
}

/// Bytes for which there is memory, whatever TCP_NOTSENT_LOWAT says.
pub fn space(slot: &Slot) -> u32 {
    most(slot).saturating_sub(queued(slot))
}

fn most(slot: &Slot) -> u32 {
    slot.tx_cap.load(Ordering::Acquire).min(slot.tx_limit.load(Ordering::Relaxed))
}

/// Whether those who wait for room have it by TCP_NOTSENT_LOWAT: less than half of that is unsent,
/// as in Linux's `tcp_stream_memory_free` for who sleeps.
pub fn is_below_lowat(slot: &Slot) -> bool {
    notsent_lowat(slot).is_none_or(|lowat| unsent_of(slot, queued(slot)) < lowat.div_ceil(2))
}

fn notsent_lowat(slot: &Slot) -> Option<u32> {
    // The bits are in the line that every send writes to.
    let is_set = slot.option_bits.load(Ordering::Relaxed) & option_bit::NOTSENT_LOWAT != 0;
    // Switched off meanwhile: none.
    is_set.then(|| slot.notsent_lowat.load(Ordering::Relaxed)).filter(|lowat| *lowat != 0)
}

/// The number of `queued` bytes that were not sent yet (SIOCOUTQNSD).
pub fn unsent_of(slot: &Slot, queued: u32) -> u32 {
    queued.saturating_sub(slot.tx_unacked.load(Ordering::Relaxed))
}

/// Bytes written and not yet acknowledged (stream) or taken (datagrams), or to which packets still
/// point.
pub fn queued(slot: &Slot) -> u32 {
    let head = slot.tx_head.load(Ordering::Acquire);
    slot.tx_tail.load(Ordering::Acquire).wrapping_sub(head)
}

/// Bytes queued when they end at `position`.
pub(crate) fn queued_at(slot: &Slot, position: u32) -> u32 {
    position.wrapping_sub(slot.tx_head.load(Ordering::Acquire))
}

/// Copies bytes in, `skip` beyond those published. Returns how many the memory had place for: it
/// can be larger than `tx_limit`, by which [`room`] tells how many to write.
pub fn write(region: &Region, slot: &Slot, skip: u32, from: &[u8]) -> usize {
    let position = slot.tx_tail.load(Ordering::Relaxed).wrapping_add(skip);
    write_at(region, slot, position, from)
}

/// The same at a position, for [`crate::append`].
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

/// Hands the first `n` written bytes to the engine. True: it does not know yet; send
/// [`towpath_shm::layout::op::TX`].
#[must_use]
pub fn publish(slot: &Slot, n: u32) -> bool {
    let tail = slot.tx_tail.load(Ordering::Relaxed);
    slot.tx_tail.store(tail.wrapping_add(n), Ordering::Release);
    take_dirty(slot)
}

/// After new bytes were published. True: the engine does not know yet.
pub(crate) fn take_dirty(slot: &Slot) -> bool {
    // The engine swaps to 0 before it reads tx_tail, so of two swaps in a row the later one carries
    // the earlier one's bytes.
    slot.tx_dirty.swap(1, Ordering::AcqRel) == 0
}

/// Before giving up for lack of room: asks for an event. Look at [`room`] once more afterwards.
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
