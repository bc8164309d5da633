//! The engine's side of a receive FIFO in shared memory.

use std::cell::Cell;

use towpath_shm::atomic::{Ordering, fence};
use towpath_shm::layout::{Slot, flags};

use crate::area::{Side, WINDOW_MAX, Window};
use crate::buffer::{Payload, RecvBuffer};
use crate::fifo::Geometry;
use crate::lock::{is_out, try_lock_engine, unlock_engine};
use crate::urgent;
use crate::windows::Windows;

/// The engine's side of a receive FIFO: bytes in shared memory that the engine writes and a program
/// reads.
///
/// The state is in private memory. The engine reads only one word from the program: `rx_head`, the
/// position up to which the program has read. If it is invalid, the program receives nothing more,
/// and the slot is reported to [`Windows::take_hostile`].
///
/// The buffer is allocated when the first byte arrives.
///
/// A thread of the program that holds `rx_lock` may be copying bytes. Therefore the engine frees
/// the buffer only under this lock, which it tries to take but never waits for. If a thread holds
/// the lock when the FIFO ends, [`Windows`] keeps the buffer until the lock is released. A new FIFO
/// in the slot begins only then, because the thread may still use positions of the previous one.
#[derive(Debug)]
pub struct EngineRecv {
    windows: Windows,
    slot: u32,
    /// Last valid value of the program's `rx_head`.
    head: Cell<u32>,
    tail: u32,
    /// Number of bytes after `tail` that contain out-of-order data or gaps.
    ahead: u32,
    shift: u32,
    window: Option<Window>,
    /// Maximum number of bytes in the FIFO, set by SO_RCVBUF and raised by autotuning.
    nominal: u32,
    /// Upper limit of `nominal` for autotuning; equals `nominal` if autotuning is off.
    nominal_max: u32,
    hostile: Cell<bool>,
    /// Whether the positions in the slot belong to this FIFO. False while a thread may still use
    /// positions of the slot's previous FIFO.
    begun: bool,
    /// Whether this FIFO has ended, so that a new FIFO may use the slot.
    retired: bool,
}

/// Limit the size: each idle connection has an `EngineRecv`. `core/stack/src/socket.rs` has a table
/// of sizes.
const _: () = assert!(size_of::<EngineRecv>() <= 48);

impl EngineRecv {
    /// Creates an empty FIFO in slot `slot`, at position 0 and without a buffer. Its capacity is
    /// `nominal` bytes, and can grow to `nominal_max` (at most [`WINDOW_MAX`]). A previous FIFO of
    /// the slot must have been dropped or retired.
    ///
    /// # Panics
    /// Panics if the slot does not exist.
    pub fn new(windows: &Windows, slot: u32, nominal: u32, nominal_max: u32) -> Self {
        let nominal_max = nominal_max.min(WINDOW_MAX);
        let mut recv = Self {
            windows: windows.clone(),
            slot,
            head: Cell::new(0),
            tail: 0,
            ahead: 0,
            shift: 0,
            window: None,
            nominal: nominal.min(nominal_max),
            nominal_max,
            hostile: Cell::new(false),
            begun: false,
            retired: false,
        };
        recv.begin();
        recv
    }

    /// Initializes the slot's words for this FIFO. Returns false while a thread of the program
    /// still accesses the slot's previous FIFO.
    fn begin(&mut self) -> bool {
        if self.begun {
            return true;
        }
        let shared = self.shared();
        shared.rx_cap.store(0, Ordering::Release);
        // While the generation is even, the slot has no socket. A thread that takes the lock now
        // sees this and releases the lock at once.
        let is_fresh = shared.generation.load(Ordering::Relaxed).is_multiple_of(2);
        if !is_fresh {
            if is_out(&shared.rx_lock).is_err() {
                return false;
            }
            self.windows.collect_before_more(self.slot);
        }
        // A thread that takes the lock from now on finds no buffer, and does not change the
        // positions.
        shared.rx_head.store(0, Ordering::Relaxed);
        shared.rx_wanted.store(0, Ordering::Relaxed);
        // Clear the urgent mark, which is a position, too.
        shared.urgent.store(0, Ordering::Relaxed);
        shared.rx_tail.store(0, Ordering::Release);
        self.begun = true;
        true
    }

    /// Releases the memory of the FIFO, and leaves the slot to a new FIFO.
    pub fn retire(&mut self) {
        self.give_back();
        (self.nominal, self.nominal_max, self.ahead) = (0, 0, 0);
        self.retired = true;
    }

    fn give_back(&mut self) {
        if let Some(window) = self.window.take() {
            self.shared().rx_cap.store(0, Ordering::Release);
            self.windows.give_when_out(self.slot, window);
        }
    }

    /// Sets the capacity in bytes (SO_RCVBUF), at most [`WINDOW_MAX`], and disables autotuning.
    pub fn set_capacity(&mut self, bytes: u32) {
        self.nominal = bytes.min(WINDOW_MAX);
        self.nominal_max = self.nominal;
        self.grow(0);
    }

    /// Returns the position at which the next in-order byte is stored.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the position up to which the program has read.
    pub fn head(&self) -> u32 {
        // Without memory there are no unread bytes, and the program's `rx_head` may belong to a
        // previous FIFO.
        if self.window.is_none() {
            return self.tail;
        }
        let head = self.shared().rx_head.load(Ordering::Acquire);
        if self.tail.wrapping_sub(head) <= self.tail.wrapping_sub(self.head.get()) {
            self.head.set(head);
        } else if !self.hostile.replace(true) {
            self.windows.report_hostile(self.slot);
        }
        self.head.get()
    }

    /// Returns whether the FIFO has memory.
    pub fn is_attached(&self) -> bool {
        self.window.is_some()
    }

    /// Releases the memory if the FIFO is empty. Returns true if the FIFO has no memory any more.
    pub fn release_if_empty(&mut self) -> bool {
        if self.window.is_some() && self.ahead == 0 && self.unread() == 0 {
            self.detach();
        }
        self.window.is_none()
    }

    /// Stores `header`, `payload` and padding to a multiple of 8 bytes. Returns false, and stores
    /// nothing, if there is no space. An empty FIFO accepts a record of any length, as on Linux.
    /// Otherwise a datagram longer than SO_RCVBUF could never be received.
    pub fn push_record(&mut self, header: &[u8], payload: &Payload<'_>) -> bool {
        let padded = (header.len() as u32 + payload.len()).next_multiple_of(8);
        if padded <= self.nominal || self.unread() != 0 {
            return self.store_record(header, payload, padded);
        }
        // Enlarge the buffer for this record. The buffer stays large, but later records only use
        // `nominal` bytes of it.
        let nominal = core::mem::replace(&mut self.nominal, padded.min(WINDOW_MAX));
        self.grow(padded);
        let stored = self.store_record(header, payload, padded);
        self.nominal = nominal;
        stored
    }

    fn store_record(&mut self, header: &[u8], payload: &Payload<'_>, padded: u32) -> bool {
        if padded > self.free() {
            if padded <= self.capacity().saturating_sub(self.unread()) {
                self.windows.note_refused();
            }
            return false;
        }
        let header_len = header.len() as u32;
        let header = Payload::new(header, towpath_shm::Fragments::empty());
        if !self.write_at(0, &header) || !self.write_at(header_len, payload) {
            return false;
        }
        // Count the padding as stored bytes. The padding never extends into another page.
        self.ahead = self.ahead.max(padded);
        self.commit(padded);
        true
    }

    fn shared(&self) -> &Slot {
        self.windows.region().slot(self.slot).expect("slots of the engine exist")
    }

    fn geometry(&self) -> Geometry {
        match &self.window {
            Some(window) => Geometry { base: window.base(), cap: window.cap(), shift: self.shift },
            None => Geometry::default(),
        }
    }

    /// Frees the buffer, unless a thread of the program holds the lock. The thread may be about to
    /// copy bytes even if the FIFO is empty: a signal handler may have interrupted it and read
    /// them.
    fn detach(&mut self) {
        if !try_lock_engine(&self.shared().rx_lock) {
            return;
        }
        self.shared().rx_cap.store(0, Ordering::Release);
        if let Some(window) = self.window.take() {
            self.head.set(self.tail);
            self.windows.give(window);
        }
        self.unlock();
    }

    /// Releases the engine's lock. If a thread of the program has taken it in the meantime, the
    /// thread may have read memory that was being freed. The program is then reported as hostile.
    fn unlock(&self) {
        if !unlock_engine(&self.shared().rx_lock) && !self.hostile.replace(true) {
            self.windows.report_hostile(self.slot);
        }
    }

    /// Moves the FIFO to a buffer of `nominal` bytes, if there is one with memory for `end` bytes
    /// after the in-order bytes. All bytes must have been read, because a program re-reads the
    /// buffer's location only if there are bytes to read.
    fn grow(&mut self, end: u32) {
        let Some(old) = &self.window else {
            return;
        };
        if old.cap() >= self.nominal || self.unread() != 0 {
            return;
        }
        let Some(new) = self.windows.take(Side::Recv, self.nominal, end.max(self.ahead)) else {
            return;
        };
        // A thread that holds the lock may be about to copy bytes; see `detach`. The next arriving
        // bytes try to grow the buffer again.
        if new.cap() <= old.cap() || !try_lock_engine(&self.shared().rx_lock) {
            self.windows.give(new);
            return;
        }
        let mut to = new.base() as usize;
        let mapping = self.windows.region().mapping();
        for (from, len) in self.geometry().stretches(self.tail, self.ahead) {
            if len > 0 {
                mapping.copy_from(to, mapping, from, len as usize);
                to += len as usize;
            }
        }
        if let Some(old) = self.window.replace(new) {
            self.windows.give(old);
        }
        self.rebase();
        self.unlock();
    }

    /// Maps the position of the next byte to the start of the extent, and publishes the new mapping
    /// to the program. No byte may be unread.
    fn rebase(&mut self) {
        self.shift = 0u32.wrapping_sub(self.tail);
        let Geometry { base, cap, shift } = self.geometry();
        let shared = self.shared();
        shared.rx_base.store(base, Ordering::Relaxed);
        shared.rx_shift.store(shift, Ordering::Relaxed);
        shared.rx_cap.store(cap, Ordering::Release);
    }

    /// Returns the position in the extent at which the next in-order byte is stored. An empty FIFO
    /// restarts at the beginning.
    fn next_byte(&self, window: &Window) -> u32 {
        let is_empty = self.ahead == 0 && self.unread() == 0;
        if is_empty { 0 } else { self.tail.wrapping_add(self.shift) & (window.cap() - 1) }
    }

    /// Allocates memory for `end` bytes after the in-order bytes, and counts it as used. Returns
    /// false if the memory limit is reached.
    fn prepare(&mut self, end: u32) -> bool {
        match &self.window {
            None => {
                if self.retired || !self.begin() {
                    return false;
                }
                let Some(window) = self.windows.take(Side::Recv, self.nominal, end) else {
                    return false;
                };
                self.window = Some(window);
                self.rebase();
                return true;
            }
            Some(window) if self.ahead == 0 && self.unread() == 0 => {
                if window.cap() < self.nominal {
                    self.grow(end);
                }
                // The FIFO is empty. Continue at the start of the extent, whose pages exist and are
                // in the processor's cache.
                self.rebase();
            }
            Some(_) => {}
        }
        let Some(window) = &mut self.window else {
            return false;
        };
        let start = self.tail.wrapping_add(self.shift) & (window.cap() - 1);
        let last = start.saturating_add(end).min(window.cap());
        self.windows.touch(window, last)
    }
}

impl RecvBuffer for EngineRecv {
    fn capacity(&self) -> u32 {
        match &self.window {
            Some(window) => window.cap().min(self.nominal),
            None => self.nominal,
        }
    }

    fn unread(&self) -> u32 {
        self.tail.wrapping_sub(self.head())
    }

    /// Returns the free space, limited to the memory that is available now, because the advertised
    /// receive window must be backed by memory.
    fn free(&self) -> u32 {
        let unread = self.unread();
        let free = self.capacity().saturating_sub(unread);
        let more = self.windows.receivable();
        if more >= u64::from(free) {
            return free;
        }
        let reach = match &self.window {
            None => self.windows.receivable_first(),
            Some(window) => {
                let start = self.next_byte(window);
                let reach = window.touched().saturating_sub(u64::from(start)) + more;
                // The bytes wrap to the start of the buffer, whose pages are already allocated.
                if u64::from(start) + reach >= u64::from(window.cap()) {
                    u64::from(free)
                } else {
                    reach
                }
            }
        };
        u32::try_from(reach).unwrap_or(u32::MAX).min(free)
    }

    #[inline]
    fn reserve(&mut self, n: u32) -> bool {
        if let Some(window) = &self.window
            && window.cap() >= self.nominal
        {
            let end = u64::from(self.next_byte(window)) + u64::from(n);
            if end.min(window.cap().into()) <= window.touched() {
                return true;
            }
        }
        self.prepare(n)
    }

    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool {
        let Some(end) = offset.checked_add(data.len()) else {
            return false;
        };
        if data.is_empty() {
            return true;
        }
        if !self.prepare(end) || end > self.geometry().cap.saturating_sub(self.unread()) {
            return false;
        }
        let stretches = self.geometry().stretches(self.tail.wrapping_add(offset), data.len());
        data.write_to_stretches(self.windows.region().mapping(), stretches);
        self.ahead = self.ahead.max(end);
        true
    }

    fn commit(&mut self, n: u32) {
        debug_assert!(n <= self.ahead, "{n} bytes, of which {} were stored", self.ahead);
        let n = n.min(self.ahead);
        self.tail = self.tail.wrapping_add(n);
        self.ahead -= n;
        self.shared().rx_time_ns.store(self.windows.time(), Ordering::Relaxed);
        self.shared().rx_tail.store(self.tail, Ordering::Release);
    }

    fn mark_urgent(&mut self, offset: u32, byte: Option<u8>) {
        if self.retired || !self.begin() {
            return;
        }
        let (head, position) = (self.head(), self.tail.wrapping_add(offset));
        let shared = self.shared();
        let old = shared.urgent.load(Ordering::Relaxed);
        let new = urgent::renewed(shared, old, (position, byte), head, self.tail);
        shared.urgent.store(new, Ordering::Release);
        shared.flags.fetch_or(flags::URGENT, Ordering::Release);
    }

    fn await_read(&mut self) {
        if !self.retired {
            self.shared().rx_wanted.store(1, Ordering::Relaxed);
            // A thread that reads after this fence sees `rx_wanted`, and notifies the engine. The
            // effect of earlier reads is already visible in `unread`.
            fence(Ordering::SeqCst);
        }
    }

    fn want_capacity(&mut self, bytes: u32) {
        let nominal = bytes.min(self.nominal_max);
        if nominal > self.nominal && self.windows.may_grow() {
            self.nominal = nominal;
            self.grow(0);
        }
    }
}

impl Drop for EngineRecv {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::area::WINDOW_MIN;
    use crate::lock::lock_rx;
    use crate::program_fifo as program;
    use crate::region::Region;
    use crate::{Attach, EngineSend};
    use towpath_shm::Fragments;

    fn payload(bytes: &[u8]) -> Payload<'_> {
        Payload::new(bytes, Fragments::empty())
    }

    fn pattern(seed: u32, len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(31) ^ seed) as u8).collect()
    }

    fn read(region: &Region, slot: &Slot, n: usize) -> Vec<u8> {
        let _guard = lock_rx(slot, 0, || true);
        let mut out = vec![0; n];
        assert_eq!(program::peek(region, slot, 0, &mut out), n);
        let _ = program::consume(slot, n as u32);
        out
    }

    #[test]
    fn a_record_of_any_size_finds_room_where_nothing_is_unread() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut recv = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        let slot = region.slot(0).unwrap();
        let large = pattern(1, 3 * WINDOW_MIN as usize);
        for attached in [false, true] {
            assert_eq!(recv.is_attached(), attached);
            assert!(recv.push_record(&[7; 8], &payload(&large)));
            // A second record does not fit while the large one is stored.
            assert!(!recv.push_record(&[8; 8], &payload(&pattern(2, 64))));
            assert_eq!(recv.capacity(), WINDOW_MIN);
            assert_eq!(read(&region, slot, 8 + large.len())[8..], large);
            let small = pattern(3, WINDOW_MIN as usize - 64);
            assert!(recv.push_record(&[9; 8], &payload(&small)));
            assert!(!recv.push_record(&[8; 8], &payload(&small)));
            assert_eq!(read(&region, slot, 8 + small.len())[8..], small);
        }
    }

    #[test]
    fn bytes_cross_in_any_order_and_memory_is_given_back() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut recv = EngineRecv::new(&windows, 3, WINDOW_MIN, WINDOW_MIN);
        let slot = region.slot(3).unwrap();
        for seed in 0..40 {
            let data = pattern(seed, 40_000);
            assert!(recv.write_at(25_000, &payload(&data[25_000..])));
            assert!(recv.write_at(0, &payload(&data[..25_000])));
            recv.commit(40_000);
            assert_eq!(program::unread(slot), 40_000);
            assert_eq!(read(&region, slot, 30_000), data[..30_000]);
            assert!(!recv.release_if_empty());
            // The free space wraps around the end of the extent.
            assert!(recv.write_at(0, &payload(&data[..50_000.min(data.len())])));
            recv.commit(40_000);
            assert!(!recv.write_at(0, &payload(&[0; 20_000])));
            assert_eq!(read(&region, slot, 10_000), data[30_000..]);
            assert_eq!(read(&region, slot, 40_000), data);
        }
        assert!(recv.release_if_empty());
        assert_eq!(slot.rx_cap.load(Ordering::Relaxed), 0);
        assert_eq!(windows.usage().assigned, 0);
        assert!(recv.write_at(0, &payload(b"again")));
        recv.commit(5);
        assert_eq!(read(&region, slot, 5), b"again");
    }

    #[test]
    fn growing_takes_bytes_ahead_along() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut recv = EngineRecv::new(&windows, 0, WINDOW_MIN, 1 << 20);
        let slot = region.slot(0).unwrap();
        assert!(recv.write_at(0, &payload(&[9; 50_000])));
        recv.commit(50_000);
        read(&region, slot, 50_000);
        let data = pattern(1, 60_000);
        assert!(recv.write_at(10, &payload(&data[10..])));
        recv.want_capacity(300_000);
        assert_eq!(recv.capacity(), 300_000);
        assert!(recv.write_at(0, &payload(&data[..10])));
        recv.commit(60_000);
        assert_eq!(read(&region, slot, 60_000), data);
        recv.set_capacity(1000);
        recv.want_capacity(1 << 20);
        assert_eq!(recv.capacity(), 1000);
    }

    #[test]
    fn an_impossible_position_is_reported_and_not_believed() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut recv = EngineRecv::new(&windows, 7, WINDOW_MIN, WINDOW_MIN);
        assert!(recv.write_at(0, &payload(&[1; 100])));
        recv.commit(100);
        for bad in [101, u32::MAX, 1 << 31] {
            region.slot(7).unwrap().rx_head.store(bad, Ordering::Relaxed);
            assert_eq!(recv.unread(), 100);
        }
        assert_eq!(windows.take_hostile(), [7]);
        assert!(windows.take_hostile().is_empty());
    }

    #[test]
    fn the_program_tells_of_the_read_that_is_awaited() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut recv = EngineRecv::new(&windows, 0, 1000, 1000);
        let slot = region.slot(0).unwrap();
        assert!(recv.write_at(0, &payload(&[1; 800])));
        recv.commit(800);
        assert!(!program::consume(slot, 100));
        recv.await_read();
        assert!(program::consume(slot, 100));
        assert!(!program::consume(slot, 100));
        recv.retire();
        recv.await_read();
        assert_eq!(slot.rx_wanted.load(Ordering::Relaxed), 0, "the slot is another FIFO's");
    }

    /// Tests that memory is not freed while a thread is about to copy bytes, although a signal
    /// handler has emptied the FIFO.
    #[test]
    fn memory_is_not_taken_from_under_a_reader() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(0).unwrap();
        let mut recv = EngineRecv::new(&windows, 0, WINDOW_MIN, 4 * WINDOW_MIN);
        assert!(recv.write_at(0, &payload(&[1; 100])));
        recv.commit(100);
        let base = slot.rx_base.load(Ordering::Relaxed);
        let reader = lock_rx(slot, 0, || true);
        assert!(!program::consume(slot, 100));
        assert!(!recv.release_if_empty());
        recv.want_capacity(4 * WINDOW_MIN);
        assert_eq!(slot.rx_base.load(Ordering::Relaxed), base);
        drop(reader);
        assert!(recv.write_at(0, &payload(&[1; 100])));
        assert_ne!(slot.rx_base.load(Ordering::Relaxed), base, "it grows when it can");
        recv.commit(100);
        read(&region, slot, 100);
        assert!(recv.release_if_empty());
        assert_eq!(windows.usage().assigned, 0);
    }

    /// Tests a program that takes a FIFO's lock and never releases it.
    #[test]
    fn former_memory_of_a_slot_comes_back_with_the_next() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(0).unwrap();
        slot.generation.store(1, Ordering::Relaxed);
        for _ in 0..10 {
            let mut recv = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
            let mut send = EngineSend::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
            assert!(recv.write_at(0, &payload(&[1; 100])));
            assert_eq!(send.attach(), Attach::Done);
            assert_eq!(windows.usage().assigned, 2);
            slot.rx_lock.store(7, Ordering::Relaxed);
            slot.tx_lock.store(7, Ordering::Relaxed);
            drop((recv, send));
            assert_eq!(windows.usage().assigned, 2);
            slot.rx_lock.store(0, Ordering::Relaxed);
            slot.tx_lock.store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn records_are_whole_or_not_there() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut recv = EngineRecv::new(&windows, 0, 200, 200);
        assert!(recv.push_record(&[1; 72], &payload(&[2; 3])));
        assert_eq!(recv.unread(), 80);
        assert!(!recv.push_record(&[1; 72], &payload(&[2; 49])));
        assert!(recv.push_record(&[1; 72], &payload(&[2; 48])));
        assert_eq!(recv.unread(), 200);
    }

    #[test]
    fn nothing_is_stored_beyond_the_window() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut recv = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        assert!(recv.write_at(0, &payload(&[1; 100])));
        recv.commit(100);
        for offset in [WINDOW_MIN - 100, WINDOW_MIN, WINDOW_MIN + 1, 1 << 31, u32::MAX] {
            assert!(!recv.write_at(offset, &payload(b"x")), "{offset}");
        }
        assert!(recv.write_at(WINDOW_MIN - 101, &payload(b"x")));
        assert!(!recv.write_at(WINDOW_MIN - 101, &payload(b"xy")));
        assert_eq!(read(&region, region.slot(0).unwrap(), 100), [1; 100]);
    }

    /// Tests that new connections get memory although the FIFOs of other connections are full
    /// because their programs do not read.
    #[test]
    fn fresh_fifos_have_room_when_others_have_taken_all() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 20);
        let unread = |slot| {
            let mut recv = EngineRecv::new(&windows, slot, WINDOW_MIN, WINDOW_MIN);
            let len = recv.free().min(60_000) as usize;
            assert!(recv.write_at(0, &payload(&vec![1; len])));
            recv.commit(len as u32);
            (recv, len)
        };
        let mut full: Vec<_> = (0..12).map(unread).collect();
        assert!(full.iter().all(|(_, len)| *len == 60_000));
        full.extend((12..20).map(unread));
        let free: Vec<_> = full.iter().map(|(recv, _)| recv.free()).collect();
        assert!(free.iter().all(|free| *free < 8192), "{free:?}: hardly more for them");
        assert_eq!(full.last().map(|(_, len)| *len), Some(4096));
        // A new connection. Its FIFO, and the entry in its listener's accept queue, get memory.
        let mut fresh = EngineRecv::new(&windows, 100, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(fresh.free(), 4096);
        assert!(fresh.write_at(0, &payload(&[1; 4096])));
        fresh.commit(4096);
        assert_eq!((fresh.free(), windows.usage().refused), (0, 0));
        let mut queue = EngineRecv::new(&windows, 101, 100_000, 100_000);
        assert!(queue.push_record(&[1; 72], &payload(&[])));
        assert!(!queue.push_record(&[1; 72], &payload(&[2; 5000])));
        assert_eq!(windows.usage().refused, 1, "what is refused is counted");
    }

    #[test]
    fn no_memory_is_a_lost_segment() {
        let region = Region::create().unwrap();
        // Receive FIFOs may use seven eighths of the memory, in whole pages.
        let windows = Windows::new(&region, 12 << 10);
        let mut recv = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        assert!(recv.write_at(0, &payload(&[1; 8000])));
        recv.commit(8000);
        assert!(!recv.write_at(0, &payload(&[1; 8000])));
        assert_eq!(windows.usage().refused, 1);
        assert_eq!(recv.free(), 192);
        read(&region, region.slot(0).unwrap(), 8000);
        assert!(recv.write_at(0, &payload(&[1; 8000])));
    }

    #[test]
    fn keeps_its_memory_if_there_is_none_for_a_larger_fifo() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 12 << 10);
        let mut recv = EngineRecv::new(&windows, 0, WINDOW_MIN, WINDOW_MIN);
        assert!(recv.write_at(0, &payload(&[1; 100])));
        recv.commit(100);
        recv.set_capacity(2 * WINDOW_MIN);
        assert!(recv.reserve(8000), "after the unread bytes");
        // The FIFO could move to a larger extent now, for which there is no second page.
        read(&region, region.slot(0).unwrap(), 100);
        assert!(recv.write_at(0, &payload(&[2; 8000])));
    }
}
