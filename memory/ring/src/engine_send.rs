//! The engine's side of a transmit FIFO in shared memory.

use std::cell::Cell;

use towpath_shm::atomic::{Ordering, fence};
use towpath_shm::layout::Slot;
use towpath_shm::{Fragments, Stretch};

use crate::area::{Side, WINDOW_MAX, WINDOW_MIN, Window};
use crate::buffer::SendBuffer;
use crate::fifo::{Geometry, there};
use crate::lock::{try_lock_engine, unlock_engine};
use crate::pins::Memory;
use crate::program_fifo::{is_below_lowat, space};
use crate::windows::Windows;

/// The engine's side of a transmit FIFO: bytes in shared memory that a program writes and the
/// engine sends.
///
/// The state is in private memory. The engine reads only one word from the program: `tx_tail`, the
/// position up to which the program has written. If it is invalid ([`EngineSend::pull`]), nothing
/// more is sent for the program, and the slot is reported to [`Windows::take_hostile`].
///
/// The buffer is attached, moved and freed only under the slot's `tx_lock`, which the engine tries
/// to take but never waits for. If a thread of the program holds the lock when the FIFO ends,
/// [`Windows`] keeps the buffer until the lock is released. Until then, the thread may advance
/// `tx_tail` for the ended FIFO. Therefore a new FIFO reads its start position under the lock, when
/// its buffer is attached.
///
/// [`SendBuffer::peek`] returns references to bytes. While its result exists, the program cannot
/// overwrite these bytes, and the memory is not reused. If the last reference is dropped after the
/// bytes were released, [`Windows::pop_unpinned`] returns the slot. The caller must then call
/// [`EngineSend::unpin`].
#[derive(Debug)]
pub struct EngineSend {
    memory: Memory,
    slot: u32,
    head: u32,
    /// Value of the program's `tx_tail` (end of the written bytes) at the last call of `pull`.
    tail: u32,
    /// Number of bytes after `head` that [`SendBuffer::peek`] has returned, and that therefore
    /// count as sent.
    sent: Cell<u32>,
    shift: u32,
    /// Maximum number of bytes that the program should keep in the FIFO.
    limit: u32,
    /// Maximum number of bytes that were queued since autotuning last changed the limit.
    peak: u32,
    /// Initial value of `limit` for autotuning; equals `limit` if autotuning is off.
    limit_min: u32,
    /// Maximum value of `limit` for autotuning; equals `limit` if autotuning is off.
    limit_max: u32,
    /// Whether the program is told `limit_max` in `tx_goal`. A program may then request a higher
    /// limit than autotuning has set.
    generous: bool,
    hostile: bool,
    /// Whether this FIFO has ended, so that a new FIFO may use the slot.
    retired: bool,
    content: SendContent,
}

/// Limit the size: each idle connection has an `EngineSend`. `core/stack/src/socket.rs` has a table
/// of sizes.
const _: () = assert!(size_of::<EngineSend>() <= 56);

/// Factor by which [`EngineSend::enlarge`] raises the limit. The factor is large, because the
/// queued bytes are copied each time.
const ENLARGE_BY: u32 = 4;

/// Size in bytes of a stream's transmit FIFO when memory is short: one page, as Linux's
/// `tcp_wmem[0]`.
const LEAST: u32 = 4096;

/// Returns whether the FIFO has only one page (`LEAST`), because memory was short when its buffer
/// was attached. For any other FIFO, at least `WINDOW_MIN` (64 KiB) count as memory in use.
fn has_least(window: &Window) -> bool {
    window.touched() < u64::from(WINDOW_MIN)
}

/// Returns the number of bytes of the buffer that count as memory in use for this limit. Positions
/// wrap at a power of two, so every byte below that power is eventually written.
fn touched_by(limit: u32) -> u32 {
    limit.max(WINDOW_MIN).next_power_of_two()
}

/// Kind of data in a transmit FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendContent {
    /// Bytes of a stream socket, without a limit on unsent bytes.
    Stream,
    /// Bytes of a stream socket with a limit on unsent bytes (TCP_NOTSENT_LOWAT), so that sending
    /// makes space.
    ScarceStream,
    /// Records (datagrams), each of which is sent completely or not at all.
    Records,
}

/// Result of attaching memory to a FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// The FIFO has a buffer.
    Done,
    /// A thread of the program holds the FIFO's lock. Try again later.
    Busy,
    /// The memory limit is reached. Try again when memory has been released.
    NoMemory,
}

impl EngineSend {
    /// Creates an empty FIFO in slot `slot`, without a buffer. The FIFO holds up to `limit` bytes,
    /// and autotuning can raise the limit to `limit_max`. A previous FIFO of the slot must have
    /// been dropped or retired.
    ///
    /// # Panics
    /// Panics if the slot does not exist.
    pub fn new(windows: &Windows, slot: u32, limit: u32, limit_max: u32) -> Self {
        let limit_max = limit_max.min(WINDOW_MAX);
        let send = Self {
            memory: Memory::None(windows.clone()),
            slot,
            head: 0,
            tail: 0,
            sent: Cell::new(0),
            shift: 0,
            limit: limit.min(limit_max),
            peak: 0,
            limit_min: limit.min(limit_max),
            limit_max,
            generous: false,
            hostile: false,
            retired: false,
            content: SendContent::Stream,
        };
        let shared = send.shared();
        shared.tx_goal.store(0, Ordering::Relaxed);
        shared.tx_cap.store(0, Ordering::Release);
        shared.tx_dirty.store(0, Ordering::Relaxed);
        shared.tx_wanted.store(0, Ordering::Relaxed);
        shared.tx_unacked.store(0, Ordering::Relaxed);
        shared.tx_limit.store(send.limit, Ordering::Release);
        send
    }

    /// Configures the FIFO for datagrams: it gets memory for `limit` bytes or none. In contrast, a
    /// stream starts with one page if memory is short.
    #[must_use]
    pub fn for_records(mut self) -> Self {
        self.content = SendContent::Records;
        self
    }

    /// Sets whether the program is notified when bytes are sent
    /// ([`SendBuffer::is_room_made_by_sending`]). TCP_NOTSENT_LOWAT needs this because sending
    /// makes space; SO_TIMESTAMPING needs it as well.
    pub fn set_scarce(&mut self, scarce: bool) {
        if self.content != SendContent::Records {
            self.content = if scarce { SendContent::ScarceStream } else { SendContent::Stream };
        }
    }

    /// Reads `tx_tail`, the position up to which the program has written. Returns false if it is
    /// invalid.
    pub fn pull(&mut self) -> bool {
        let shared = self.shared();
        // Clear the flag before reading the position. If the program publishes more bytes later, it
        // sets the flag again and notifies the engine.
        shared.tx_dirty.swap(0, Ordering::AcqRel);
        // Without memory, the program has not written. The position may belong to a previous FIFO.
        if !self.is_attached() {
            return true;
        }
        let tail = shared.tx_tail.load(Ordering::Acquire);
        let queued = tail.wrapping_sub(self.head);
        let cap = self.geometry().cap;
        // Bytes to which packets refer are not free, even if they are acknowledged.
        let kept = tail.wrapping_sub(self.memory.free(self.head));
        if queued < self.len() || queued > cap || kept > cap {
            if !std::mem::replace(&mut self.hostile, true) {
                self.windows().report_hostile(self.slot);
            }
            return false;
        }
        self.tail = tail;
        self.peak = self.peak.max(queued);
        true
    }

    /// Sets the number of bytes that the program should queue (SO_SNDBUF), at most [`WINDOW_MAX`],
    /// and disables autotuning.
    pub fn set_capacity(&mut self, bytes: u32) {
        self.limit_max = bytes.min(WINDOW_MAX);
        self.limit_min = self.limit_max;
        self.set_generous(false);
        self.set_limit(self.limit_max);
    }

    /// Sets whether a program that has filled its FIFO may request a higher limit by
    /// [`Self::enlarge`]. The maximum is that of autotuning.
    pub fn set_generous(&mut self, generous: bool) {
        self.generous = generous;
        let goal = if generous { self.limit_max } else { 0 };
        self.shared().tx_goal.store(goal, Ordering::Release);
    }

    /// Raises the limit fourfold at the request of a program, which [`Self::set_generous`] allows.
    /// If there is no memory, further requests are no longer allowed.
    pub fn enlarge(&mut self) -> Attach {
        let before = self.limit;
        if !self.generous || before >= self.limit_max {
            return Attach::Done;
        }
        let mut answer = Attach::NoMemory;
        if self.windows().may_grow() {
            self.limit = before.saturating_mul(ENLARGE_BY).min(self.limit_max);
            let fits = self.geometry().cap >= self.limit;
            answer = if fits { Attach::Done } else { self.grow() };
        }
        match answer {
            Attach::Done => self.shared().tx_limit.store(self.limit, Ordering::Release),
            Attach::Busy => self.limit = before,
            Attach::NoMemory => {
                self.limit = before;
                self.set_generous(false);
            }
        }
        answer
    }

    /// Attaches memory to which the program can write, unless the FIFO already has memory.
    pub fn attach(&mut self) -> Attach {
        if self.is_attached() || self.retired {
            return Attach::Done;
        }
        let touch = touched_by(self.limit);
        let least = if self.content == SendContent::Records { touch } else { LEAST };
        let Some(window) = self.windows().take_first(self.limit, touch, least) else {
            return Attach::NoMemory;
        };
        if !try_lock_engine(&self.shared().tx_lock) {
            self.windows().give(window);
            return Attach::Busy;
        }
        // Without a buffer the program cannot have written, so this FIFO begins at the current
        // `tx_tail`.
        let shared = self.shared();
        let begin = shared.tx_tail.load(Ordering::Acquire);
        shared.tx_head.store(begin, Ordering::Release);
        (self.head, self.tail) = (begin, begin);
        self.shift = 0u32.wrapping_sub(begin);
        self.memory.attach(window);
        self.publish_geometry();
        self.unlock();
        self.windows().collect_before_more(self.slot);
        Attach::Done
    }

    /// Releases the memory of the FIFO, and leaves the slot to a new FIFO.
    pub fn retire(&mut self) {
        self.give_back();
        self.head = self.tail;
        self.sent.set(0);
        (self.limit, self.limit_min, self.limit_max) = (0, 0, 0);
        self.retired = true;
    }

    fn give_back(&mut self) {
        if self.is_attached() {
            self.shared().tx_cap.store(0, Ordering::Release);
            self.memory.detach(self.slot, false);
        }
    }

    /// Returns the position of the first byte in the FIFO: the number of bytes released so far,
    /// wrapping.
    pub fn position(&self) -> u32 {
        self.head
    }

    /// Returns the number of bytes at the front of the FIFO that were sent at least once.
    pub fn sent(&self) -> u32 {
        self.sent.get()
    }

    /// Returns whether the FIFO has memory.
    pub fn is_attached(&self) -> bool {
        self.memory.window().is_some()
    }

    /// Frees acknowledged bytes to which no packets refer any more, so that the program may
    /// overwrite them.
    pub fn unpin(&mut self) {
        if self.is_attached() {
            self.memory.settle();
            self.publish_free();
        }
    }

    /// Releases the memory if the FIFO is empty and no thread of the program is writing. Returns
    /// true if the FIFO has no memory any more.
    pub fn release_if_empty(&mut self) -> bool {
        if !self.is_attached() {
            return true;
        }
        self.memory.settle();
        // Keep the memory if packets refer to released bytes, because the program may be waiting
        // for this space.
        let is_pinned = self.memory.free(self.head) != self.head;
        if self.len() != 0 || is_pinned || !try_lock_engine(&self.shared().tx_lock) {
            return false;
        }
        let empty = self.shared().tx_tail.load(Ordering::Acquire) == self.tail;
        if empty {
            self.shared().tx_cap.store(0, Ordering::Release);
            self.memory.detach(self.slot, true);
            self.publish_free();
            self.limit = self.limit_min;
            self.shared().tx_limit.store(self.limit, Ordering::Release);
        }
        self.unlock();
        empty
    }

    fn shared(&self) -> &Slot {
        self.windows().region().slot(self.slot).expect("slots of the engine exist")
    }

    fn geometry(&self) -> Geometry {
        match self.memory.window() {
            Some(window) => {
                // Tell the program to use only pages that are counted as memory in use.
                let cap = window.touched().checked_ilog2().map_or(0, |bits| 1 << bits);
                Geometry { base: window.base(), cap, shift: self.shift }
            }
            None => Geometry::default(),
        }
    }

    fn windows(&self) -> &Windows {
        self.memory.windows()
    }

    /// Returns the ranges of the shared memory for `n` bytes at `offset`, and counts them as sent.
    fn stretches(&self, offset: u32, n: u32) -> [(usize, u32); 2] {
        if offset + n > self.sent.get() {
            self.note_sent(offset + n);
        }
        self.geometry().stretches(self.head.wrapping_add(offset), n)
    }

    fn note_sent(&self, sent: u32) {
        self.sent.set(sent);
        if self.retired {
            return;
        }
        // The program computes its free space from this number. Include acknowledged bytes to which
        // packets still refer, because they occupy space.
        let free = self.memory.free(self.head);
        let pinned = self.head.wrapping_sub(free);
        self.shared().tx_unacked.store(sent + pinned, Ordering::Relaxed);
    }

    /// Publishes the position up to which the program may write. If packets may have been returned,
    /// `Memory::settle` must be called first.
    fn publish_free(&self) {
        self.shared().tx_head.store(self.memory.free(self.head), Ordering::Release);
        self.note_sent(self.sent.get());
    }

    /// Publishes location and size of the FIFO's memory to the program. `tx_lock` must be held.
    fn publish_geometry(&self) {
        let Geometry { base, cap, shift } = self.geometry();
        let shared = self.shared();
        shared.tx_base.store(base, Ordering::Relaxed);
        shared.tx_shift.store(shift, Ordering::Relaxed);
        shared.tx_cap.store(cap, Ordering::Release);
    }

    /// Releases the engine's lock. If a thread of the program has taken it in the meantime, the
    /// thread may have written while its bytes were moved. The program is then reported as hostile.
    fn unlock(&mut self) {
        if !unlock_engine(&self.shared().tx_lock) && !std::mem::replace(&mut self.hostile, true) {
            self.windows().report_hostile(self.slot);
        }
    }

    fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        let cap = self.geometry().cap;
        if cap != 0 && cap < limit && self.grow() != Attach::Done {
            // The next call of `want_capacity` tries again. If the FIFO has only one page because
            // memory was short, keep the limit. `want_capacity` then enlarges the FIFO when there
            // is memory, even without autotuning.
            let has_least = self.memory.window().is_some_and(has_least);
            self.limit = if has_least { limit } else { cap };
        }
        self.shared().tx_limit.store(self.limit, Ordering::Release);
    }

    /// Moves the FIFO to an extent of `limit` bytes, and copies the queued bytes.
    fn grow(&mut self) -> Attach {
        let touch = touched_by(self.limit);
        let Some(new) = self.windows().take(Side::Send, self.limit, touch) else {
            return Attach::NoMemory;
        };
        let old = self.geometry();
        if new.cap() <= old.cap {
            self.windows().give(new);
            return Attach::NoMemory;
        }
        if !try_lock_engine(&self.shared().tx_lock) {
            self.windows().give(new);
            return Attach::Busy;
        }
        // Under the lock, the program's position does not change. Bytes that the program has
        // written but not published are ignored.
        let queued = self.shared().tx_tail.load(Ordering::Acquire).wrapping_sub(self.head);
        let (mut to, queued) = (new.base() as usize, queued.min(old.cap));
        let mapping = self.windows().region().mapping();
        for (from, len) in old.stretches(self.head, queued) {
            if len > 0 {
                mapping.copy_from(to, mapping, from, len as usize);
                to += len as usize;
            }
        }
        self.shift = 0u32.wrapping_sub(self.head);
        // Packets that refer to the old buffer keep it. No packet refers to the new buffer, so the
        // space of all acknowledged bytes is free there.
        self.memory.detach(self.slot, true);
        self.memory.attach(new);
        self.publish_free();
        self.publish_geometry();
        self.unlock();
        Attach::Done
    }
}

impl SendBuffer for EngineSend {
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    fn capacity(&self) -> u32 {
        let has_least = self.memory.window().is_some_and(has_least);
        if has_least { self.limit.min(self.geometry().cap) } else { self.limit }
    }

    fn peek(&mut self, offset: u32, n: u32) -> Fragments {
        let n = there(offset, n, self.len());
        if n == 0 {
            return Fragments::empty();
        }
        let [(a, a_len), (b, b_len)] = self.stretches(offset, n);
        let Some(pin) = self.memory.pin(self.slot, self.head) else { return Fragments::empty() };
        let second = (b_len > 0).then(|| Stretch::new(pin, b, b_len));
        Fragments::new(Stretch::new(pin, a, a_len), second)
    }

    fn read(&self, offset: u32, to: &mut [u8]) -> bool {
        let n = to.len() as u32;
        if n == 0 || there(offset, n, self.len()) < n {
            return n == 0;
        }
        let [(a, a_len), (b, _)] = self.stretches(offset, n);
        let mapping = self.windows().region().mapping();
        let (first, second) = to.split_at_mut(a_len as usize);
        mapping.read(a, first);
        mapping.read(b, second);
        true
    }

    fn release(&mut self, n: u32) {
        debug_assert!(n <= self.len());
        if self.retired {
            return;
        }
        let n = n.min(self.len());
        self.head = self.head.wrapping_add(n);
        self.sent.set(self.sent.get().saturating_sub(n));
        self.memory.release(self.head);
        self.publish_free();
    }

    fn is_room_made_by_sending(&self) -> bool {
        self.content == SendContent::ScarceStream
    }

    fn want_capacity(&mut self, bytes: u32) {
        // The FIFO has only one page, because memory was short when it started. Enlarge it to the
        // usual size now that there is memory.
        if self.memory.window().is_some_and(has_least)
            && self.windows().sendable() >= u64::from(touched_by(self.limit))
        {
            // Ignore a failure, because the next call of `want_capacity` tries again.
            let _ = self.grow();
        }
        let limit = bytes.min(self.limit_max);
        // Do not enlarge the FIFO if the program has not filled it, even if the congestion window
        // is larger.
        if !self.retired
            && limit > self.limit
            && self.peak > self.limit / 2
            && self.windows().may_grow()
        {
            self.set_limit(limit);
        }
        self.peak = self.len();
    }
}

impl Drop for EngineSend {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Returns whether to notify the program of free space, after [`SendBuffer::release`]. As in
/// Linux's `sk_stream_is_writeable`, a third of the limit must be free, and few bytes unsent. If
/// true, the program's request for a notification is cleared. The caller must report
/// [`towpath_shm::layout::event::TX`].
pub fn take_tx_wanted(slot: &Slot) -> bool {
    // Pairs with the fence in `program_fifo::want_room`. Either the program sees the free space, or
    // the engine sees the program's request for a notification.
    fence(Ordering::SeqCst);
    if slot.tx_wanted.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // The program can change these words at any time. An outdated value is acceptable, because the
    // result is only a hint.
    let most = slot.tx_limit.load(Ordering::Relaxed).min(slot.tx_cap.load(Ordering::Relaxed));
    let enough = most != 0 && space(slot) >= most / 3 && is_below_lowat(slot);
    enough && slot.tx_wanted.swap(0, Ordering::AcqRel) != 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lock::lock_tx;
    use crate::program_fifo as program;
    use crate::region::Region;

    fn bytes(fragments: &Fragments) -> Vec<u8> {
        let mut out = vec![0; fragments.len() as usize];
        fragments.copy_to(0, &mut out);
        out
    }

    fn send_all(region: &Region, slot: &Slot, data: &[u8]) -> bool {
        let _guard = lock_tx(slot, 0, || true);
        assert_eq!(program::write(region, slot, 0, data), data.len());
        program::publish(slot, data.len() as u32)
    }

    #[test]
    fn bytes_cross_and_the_first_tells() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(1).unwrap();
        let mut send = EngineSend::new(&windows, 1, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(program::room(slot), 0);
        assert_eq!(send.attach(), Attach::Done);
        assert_eq!(program::room(slot), WINDOW_MIN);
        for round in 0..50u8 {
            let data: Vec<u8> = (0..30_000u32).map(|i| i as u8 ^ round).collect();
            assert!(send_all(&region, slot, &data));
            assert!(!send_all(&region, slot, &data));
            assert!(send.pull());
            assert_eq!(send.len(), 60_000);
            assert_eq!(bytes(&send.peek(30_000, 30_000)), data);
            assert_eq!(slot.tx_unacked.load(Ordering::Relaxed), 60_000);
            send.release(20_000);
            assert_eq!(bytes(&send.peek(0, 10_000)), data[20_000..]);
            send.release(40_000);
        }
        assert!(send.release_if_empty());
        assert_eq!(program::room(slot), 0);
        assert_eq!(windows.usage().assigned, 0);
    }

    #[test]
    fn growing_moves_what_is_queued() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(1).unwrap();
        let mut send = EngineSend::new(&windows, 1, WINDOW_MIN, 4 << 20);
        send.attach();
        send_all(&region, slot, &[1; 60_000]);
        send.pull();
        send.release(59_999);
        // A hint of 0 changes no limit, but resets the peak to the number of queued bytes.
        send.want_capacity(0);
        let data: Vec<u8> = (0..60_000u32).map(|i| (i * 3) as u8).collect();
        send_all(&region, slot, &data);
        send.want_capacity(200_000);
        assert_eq!(send.capacity(), WINDOW_MIN, "what was pulled does not fill half of it");
        send.pull();
        {
            let _guard = lock_tx(slot, 0, || true);
            send.want_capacity(200_000);
            assert_eq!(send.capacity(), WINDOW_MIN);
        }
        send.want_capacity(200_000);
        assert_eq!(send.capacity(), 200_000);
        assert_eq!(program::room(slot), 200_000 - 60_001);
        send_all(&region, slot, &data);
        assert!(send.pull());
        assert_eq!(bytes(&send.peek(1, 60_000)), data);
        assert_eq!(bytes(&send.peek(60_001, 60_000)), data);
    }

    #[test]
    fn a_held_lock_is_respected() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut send = EngineSend::new(&windows, 1, WINDOW_MIN, WINDOW_MIN);
        let slot = region.slot(1).unwrap();
        let guard = lock_tx(slot, 0, || true);
        assert_eq!(send.attach(), Attach::Busy);
        drop(guard);
        assert_eq!(send.attach(), Attach::Done);
        let guard = lock_tx(slot, 0, || true);
        assert!(!send.release_if_empty());
        drop(guard);
        let no_memory = Windows::new(&region, 4096);
        let mut starved = EngineSend::new(&no_memory, 2, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(starved.attach(), Attach::NoMemory);
    }

    #[test]
    fn impossible_positions_are_reported_and_not_believed() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(9).unwrap();
        let mut send = EngineSend::new(&windows, 9, WINDOW_MIN, WINDOW_MIN);
        send.attach();
        send_all(&region, slot, &[0; 100]);
        assert!(send.pull());
        for bad in [99, WINDOW_MIN + 1, u32::MAX] {
            slot.tx_tail.store(bad, Ordering::Relaxed);
            assert!(!send.pull());
            assert_eq!(send.len(), 100);
        }
        assert_eq!(windows.take_hostile(), [9]);
    }

    #[test]
    fn nothing_is_seen_beyond_what_was_written() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let (before, slot) = (region.slot(1).unwrap(), region.slot(2).unwrap());
        // Fill a buffer with bytes of another socket. The next FIFO reuses this buffer and its
        // pages.
        let mut other = EngineSend::new(&windows, 1, WINDOW_MIN, WINDOW_MIN);
        other.attach();
        send_all(&region, before, &[0x55; WINDOW_MIN as usize]);
        drop(other);
        let mut send = EngineSend::new(&windows, 2, WINDOW_MIN, WINDOW_MIN);
        send.attach();
        send_all(&region, slot, b"ours");
        assert!(send.peek(0, 4).is_empty(), "written, but not pulled");
        send.pull();
        let far = [0, 1, 4, 5, WINDOW_MIN - 1, WINDOW_MIN, WINDOW_MIN + 1, 1 << 31, u32::MAX];
        for offset in far {
            for n in far {
                let there = &b"ours"[(offset as usize).min(4)..];
                let there = &there[..there.len().min(n as usize)];
                assert_eq!(bytes(&send.peek(offset, n)), there, "{n} bytes from {offset} on");
            }
        }
        assert_eq!(slot.tx_unacked.load(Ordering::Relaxed), 4);
        send.release(4);
        assert!(send.release_if_empty());
        assert!(send.peek(0, 1).is_empty() && send.peek(0, 1 << 31).is_empty());
    }

    /// Tests that the memory count includes all pages that are written. Positions wrap, so all
    /// pages within the capacity are eventually written.
    #[test]
    fn no_more_pages_are_written_to_than_are_counted() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(1).unwrap();
        for limit in [1, 20_000, WINDOW_MIN, WINDOW_MIN + 1, 200_000, 425_984, 1 << 20] {
            let mut send = EngineSend::new(&windows, 1, limit, WINDOW_MAX);
            assert_eq!(send.attach(), Attach::Done);
            for limit in [limit, limit + 100_000] {
                send.set_capacity(limit);
                let written = slot.tx_cap.load(Ordering::Relaxed);
                assert!(
                    limit <= written
                        && u64::from(written) <= send.memory.window().unwrap().touched()
                );
            }
        }
    }

    #[test]
    fn room_is_told_when_it_is_worth_it() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(1).unwrap();
        let mut send = EngineSend::new(&windows, 1, 9000, 9000);
        send.attach();
        send_all(&region, slot, &[0; 9000]);
        assert_eq!(program::room(slot), 0);
        program::want_room(slot);
        assert!(!take_tx_wanted(slot));
        send.pull();
        send.release(2999);
        assert!(!take_tx_wanted(slot));
        send.release(1);
        assert!(take_tx_wanted(slot));
        assert!(!take_tx_wanted(slot));
    }

    /// Tests that new connections get memory although the transmit FIFOs of other connections are
    /// full because their peers do not read.
    #[test]
    fn fresh_fifos_have_room_when_others_have_taken_all() {
        let region = Region::create().unwrap();
        let windows = Windows::by_hand(&region, 1 << 20);
        let attached = |number: u32| {
            let mut send = EngineSend::new(&windows, number, WINDOW_MIN, WINDOW_MIN);
            let slot = region.slot(number).unwrap();
            (send.attach() == Attach::Done).then(|| {
                send_all(&region, slot, &vec![1; program::room(slot) as usize]);
                assert!(send.pull());
                send
            })
        };
        // Thirteen sixteenths of the memory are for any FIFO, and one sixteenth for the first page
        // of new ones.
        let mut full: Vec<_> = (0..13).map(|number| attached(number).unwrap()).collect();
        assert!(full.iter().all(|send| send.capacity() == WINDOW_MIN && send.len() == WINDOW_MIN));
        let mut fresh: Vec<_> = (13..29).map(|number| attached(number).unwrap()).collect();
        assert!(fresh.iter().all(|send| send.capacity() == 4096 && send.len() == 4096));
        assert!(attached(29).is_none());
        // For datagrams, memory is attached completely or not at all.
        drop(fresh.split_off(8));
        let mut records = EngineSend::new(&windows, 30, WINDOW_MIN, WINDOW_MIN).for_records();
        assert_eq!(records.attach(), Attach::NoMemory);
        // Many small writes use only the FIFO's single page.
        let (send, slot) = (&mut fresh[0], region.slot(13).unwrap());
        let data: Vec<u8> = (0..3000u32).map(|i| (i * 7) as u8).collect();
        for _ in 0..10 {
            send.release(send.len());
            send_all(&region, slot, &data);
            assert!(send.pull());
            assert_eq!(bytes(&send.peek(0, 3000)), data);
            send.want_capacity(WINDOW_MIN);
            assert_eq!((send.capacity(), program::room(slot)), (4096, 1096));
        }
        // When there is memory, the FIFO grows to the usual size and keeps its content.
        full.truncate(11);
        send.want_capacity(WINDOW_MIN);
        assert_eq!((send.capacity(), program::room(slot)), (WINDOW_MIN, WINDOW_MIN - 3000));
        assert_eq!(bytes(&send.peek(0, 3000)), data);
        drop((full, fresh));
        assert_eq!(records.attach(), Attach::Done);
        drop(records);
        assert_eq!(windows.usage().assigned, 0);
    }

    /// Tests that SO_SNDBUF takes effect later if memory is short when it is set.
    #[test]
    fn a_fifo_with_a_page_gets_what_was_asked_for_when_there_is_so_much() {
        let region = Region::create().unwrap();
        let windows = Windows::by_hand(&region, 1 << 20);
        let attached = |number: u32| {
            let mut send = EngineSend::new(&windows, number, WINDOW_MIN, WINDOW_MAX);
            assert_eq!(send.attach(), Attach::Done);
            send
        };
        let mut full: Vec<_> = (0..13).map(attached).collect();
        let mut send = attached(13);
        send.set_capacity(WINDOW_MIN);
        assert_eq!((send.capacity(), program::room(region.slot(13).unwrap())), (4096, 4096));
        // More than half of the memory is in use, so autotuning is suspended. The FIFO grows
        // nevertheless.
        full.truncate(11);
        send.want_capacity(WINDOW_MIN);
        assert_eq!(send.capacity(), WINDOW_MIN);
        assert_eq!(program::room(region.slot(13).unwrap()), WINDOW_MIN);
    }
}
