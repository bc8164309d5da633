//! The allocator of the shared memory for FIFOs.
//!
//! An extent ([`Window`]) has a power of two bytes. The memory is divided statically among size
//! classes, so there is no fragmentation. Address space is plentiful, and only pages that were
//! written (touched) cost memory. Touched pages of used and free extents are counted, up to a
//! limit. At the limit no FIFO gets more memory, and connections wait. An eighth of the limit is
//! not available to receive FIFOs, and an eighth is not available to transmit FIFOs. Otherwise each
//! direction could wait for the other for ever.
//!
//! Each direction also has a reserve, from which a FIFO without memory gets its first page if there
//! is no other memory. Otherwise connections whose programs or peers do not read could fill the
//! memory, and block new connections for as long as they exist. Linux has `tcp_rmem[0]` and
//! `tcp_wmem[0]` for this purpose, a page per socket. The reserve of receive FIFOs is another
//! eighth: with 1 GiB, the first pages of 32,768 FIFOs. The reserve of transmit FIFOs is half of
//! the eighth that receive FIFOs cannot use: the first pages of 16,384 FIFOs. Datagrams are sent
//! completely or not at all, so datagram sockets get whole extents from the reserve. Their extents
//! become empty as soon as the datagrams are sent.
//!
//! Freed extents are reused last in, first out, because recently used pages are likely to be in the
//! CPU cache. Free extents keep at most [`KEPT_MAX`] bytes of pages, and fewer if memory is short.
//! A separate thread returns further pages to the kernel, one extent after the other
//! (`give_back.rs` explains why). If a FIFO needs new pages before this thread has finished, it
//! gets no memory, and tries again. The extent whose pages are being returned counts until they are
//! gone, and cannot be reused until then.
//!
//! A free extent without pages is represented by one bit.
//!
//! A freed extent cannot be reused while a thread of a program may still be copying to or from it.
//! The extent becomes free when the thread has released the lock of that end of its socket
//! ([`Windows::give_when_out`]).

mod ledger;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use towpath_shm::layout::FIFO_OFFSET;

use self::ledger::{GiveBackState, Ledger, first_of};
use crate::area::{CLASSES, PAGE, Side, SizeClass, Window};
use crate::give_back;
use crate::lock::is_out;
use crate::region::Region;

/// Maximum number of bytes of pages that free extents (memory ranges for FIFOs) keep. A free extent
/// with pages can be reused without page faults, but its pages are not available to other
/// processes.
pub const KEPT_MAX: u64 = 64 << 20;

/// Usage of the memory for FIFOs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowsUse {
    /// Bytes of pages in used and free extents (memory ranges for FIFOs).
    pub touched: u64,
    /// Bytes of pages in free extents (memory ranges for FIFOs).
    pub kept: u64,
    /// Bytes of pages that are being returned to the kernel.
    pub returning: u64,
    /// Maximum of `touched` in bytes.
    pub limit: u64,
    /// Number of extents (memory ranges for FIFOs) in use.
    pub assigned: u32,
    /// Number of requests for memory that were refused because of the limit.
    pub refused: u64,
}

/// The allocator of the memory for FIFOs, with a list of sockets whose programs violated the
/// protocol. Clones share the state.
///
/// ```
/// use towpath_ring::{EngineRecv, Payload, RecvBuffer, Region, Windows};
/// use towpath_shm::Fragments;
///
/// let region = Region::create()?;
/// let windows = Windows::new(&region, 64 << 20);
/// let mut fifo = EngineRecv::new(&windows, 5, 64 << 10, 64 << 10);
/// assert_eq!(windows.usage().assigned, 0, "an empty FIFO has no memory");
/// assert!(fifo.write_at(0, &Payload::new(b"first", Fragments::empty())));
/// assert_eq!(windows.usage().assigned, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Windows(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    region: Region,
    /// Number of bytes that receive FIFOs can still get. A copy of the ledger's value, so that it
    /// can be read without the mutex.
    receivable: AtomicU64,
    /// Number of bytes that a receive FIFO without memory can get now, including the reserve for
    /// first pages.
    receivable_first: AtomicU64,
    /// Number of bytes that transmit FIFOs can still get, without the reserve for first pages.
    sendable: AtomicU64,
    /// Whether [`Ledger::unpinned`] has entries, so that it can be checked without the mutex.
    unpinned: AtomicBool,
    /// Number of bytes in extents of ended FIFOs that packets keep. Above the limit, these packets
    /// should be copied.
    forsaken: AtomicU64,
    forsaken_max: u64,
    /// Whether `forsaken` has exceeded its limit since the last call of [`Windows::take_forsaken`].
    forsaken_news: AtomicBool,
    /// Arrival time of the bytes that the engine processes now, as Unix time in nanoseconds. The
    /// engine sets it before it processes packets.
    unix_ns: AtomicU64,
    ledger: Mutex<Ledger>,
    /// The thread that returns pages to the kernel. The thread is started when it is first needed.
    giver: OnceLock<Thread>,
}

impl Drop for Shared {
    /// Wakes the thread that returns memory pages to the kernel, so that it ends. Does not wait for
    /// its end.
    fn drop(&mut self) {
        if let Some(giver) = self.giver.get() {
            giver.unpark();
        }
    }
}

/// Divisor of the memory limit: packets may keep 1/16 of it in buffers of ended FIFOs. With this
/// limit FIFOs in use still have enough memory. If devices keep up, the limit is rarely reached.
const FORSAKEN_PART: u64 = 16;

impl Windows {
    /// Creates the allocator for all FIFO memory of `region`, with at most `limit` bytes in use
    /// (rounded down to pages). A region must have only one allocator, because two would allocate
    /// the same memory.
    pub fn new(region: &Region, limit: u64) -> Self {
        Self::of_shard(region, 0, 1, limit)
    }

    /// Creates the allocator for the part of the FIFO memory that belongs to one shard (event
    /// loop). The memory is divided into `shards` equal parts (a power of two, at most
    /// [`SHARDS_MAX`](towpath_shm::layout::SHARDS_MAX)). Each part must have only one allocator.
    pub fn of_shard(region: &Region, shard: u32, shards: u32, limit: u64) -> Self {
        let mut start = FIFO_OFFSET as u64;
        let classes = CLASSES.map(|(_, share)| {
            let part = share as u64 / u64::from(shards);
            let first = start + part * u64::from(shard);
            start += share as u64;
            SizeClass::new(first, first + part)
        });
        let ledger = Ledger {
            classes,
            touched: 0,
            kept: 0,
            returning: 0,
            giver: GiveBackState::Idle,
            used: [0; 2],
            reserved: [0; 2],
            limit: limit / PAGE * PAGE,
            assigned: 0,
            refused: 0,
            hostile: Vec::new(),
            in_use: BTreeMap::new(),
            awaited: Vec::new(),
            unpinned: Vec::new(),
        };
        let receivable = AtomicU64::new(ledger.available(Side::Recv));
        let sendable = AtomicU64::new(ledger.available(Side::Send));
        let receivable_first = AtomicU64::new(ledger.allowed(Side::Recv, 0, PAGE));
        Self(Arc::new(Shared {
            region: region.clone(),
            receivable,
            receivable_first,
            sendable,
            unpinned: AtomicBool::new(false),
            forsaken: AtomicU64::new(0),
            forsaken_max: limit / FORSAKEN_PART,
            forsaken_news: AtomicBool::new(false),
            unix_ns: AtomicU64::new(0),
            ledger: Mutex::new(ledger),
            giver: OnceLock::new(),
        }))
    }

    /// Sets the arrival time, as Unix time in nanoseconds, of the bytes received from now on.
    pub fn set_time(&self, unix_ns: u64) {
        self.0.unix_ns.store(unix_ns, Ordering::Relaxed);
    }

    /// Returns the arrival time set by [`Self::set_time`].
    #[inline]
    pub(crate) fn time(&self) -> u64 {
        self.0.unix_ns.load(Ordering::Relaxed)
    }

    /// Creates an allocator like [`Self::new`], but without the thread that returns pages, which a
    /// test does itself.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn by_hand(region: &Region, limit: u64) -> Self {
        let windows = Self::new(region, limit);
        windows.lock().giver = GiveBackState::ByHand;
        windows
    }

    /// Returns the shared memory from which this allocates.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// Returns a consistent snapshot of the usage. Takes the mutex of the allocator.
    pub fn usage(&self) -> WindowsUse {
        let ledger = self.lock();
        let Ledger { touched, kept, returning, limit, assigned, refused, .. } = *ledger;
        WindowsUse { touched, kept, returning, limit, assigned, refused }
    }

    /// Returns whether receive or transmit FIFOs use more than two thirds of their maximum, so that
    /// the memory of idle connections should be released.
    pub fn is_tight(&self) -> bool {
        let ledger = self.lock();
        ledger.used.iter().any(|used| *used > ledger.limit / 12 * 7)
    }

    /// Returns whether less than a quarter of the memory is in use, so that a socket may get a
    /// buffer before it needs one.
    pub fn is_ample(&self) -> bool {
        let ledger = self.lock();
        ledger.touched - ledger.kept < ledger.limit / 4
    }

    /// Returns whether autotuning may enlarge buffers. The second half of the memory is reserved
    /// for connections with small buffers. Otherwise a few peers that do not read could use all
    /// memory.
    pub(crate) fn may_grow(&self) -> bool {
        let ledger = self.lock();
        ledger.touched - ledger.kept < ledger.limit / 2
    }

    /// Removes and returns the slots (numbers of sockets) whose programs have written an invalid
    /// position.
    pub fn take_hostile(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().hostile)
    }

    pub(crate) fn report_hostile(&self, slot: u32) {
        self.lock().hostile.push(slot);
    }

    /// Returns the next slot whose transmit FIFO has more free bytes, because packets were dropped.
    /// The engine must call [`unpin`](crate::EngineSend::unpin) for its FIFO. The call is harmless
    /// if the slot has a new FIFO now.
    pub fn pop_unpinned(&self) -> Option<u32> {
        if !self.0.unpinned.load(Ordering::Relaxed) {
            return None;
        }
        let mut ledger = self.lock();
        let slot = ledger.unpinned.pop();
        self.0.unpinned.store(!ledger.unpinned.is_empty(), Ordering::Relaxed);
        slot
    }

    pub(crate) fn note_unpinned(&self, slot: u32) {
        let mut ledger = self.lock();
        ledger.unpinned.push(slot);
        self.0.unpinned.store(true, Ordering::Relaxed);
    }

    /// Returns whether packets keep more memory of ended FIFOs than the limit. The result is true
    /// once after each FIFO that exceeded the limit. The caller should copy the packets for which
    /// [`Fragments::is_forsaken`](towpath_shm::Fragments::is_forsaken) is true.
    pub fn take_forsaken(&self) -> bool {
        let news = &self.0.forsaken_news;
        news.load(Ordering::Relaxed) && news.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn add_forsaken(&self, bytes: u64) {
        let before = self.0.forsaken.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.0.forsaken_max {
            self.0.forsaken_news.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn end_forsaken(&self, bytes: u64) {
        self.0.forsaken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the number of bytes that a receive FIFO could get now.
    #[inline]
    pub(crate) fn receivable(&self) -> u64 {
        self.0.receivable.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that a receive FIFO without memory can get now, including the
    /// reserve for first pages.
    #[inline]
    pub fn receivable_first(&self) -> u64 {
        self.0.receivable_first.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that a transmit FIFO can get now, without the reserve for first
    /// pages.
    #[inline]
    pub(crate) fn sendable(&self) -> u64 {
        self.0.sendable.load(Ordering::Relaxed)
    }

    /// Counts a request as refused that the caller omitted, because [`Self::receivable`] was too
    /// small.
    pub(crate) fn note_refused(&self) {
        self.lock().refused += 1;
    }

    /// Allocates an extent of at least `bytes` bytes, or of the maximum size if `bytes` exceeds it.
    /// The first `touch` bytes are counted as used at once.
    pub(crate) fn take(&self, side: Side, bytes: u32, touch: u32) -> Option<Window> {
        let mut ledger = self.lock();
        let window = ledger.take(side, bytes, touch, first_of(side));
        ledger.refused += u64::from(window.is_none());
        self.settle(ledger);
        window
    }

    /// Allocates an extent like [`Self::take`], for a transmit FIFO without memory. If memory is
    /// short, it has only `least` writable bytes, from the reserve.
    pub(crate) fn take_first(&self, bytes: u32, touch: u32, least: u32) -> Option<Window> {
        let mut ledger = self.lock();
        let window = ledger.take(Side::Send, bytes, touch, 0);
        let window =
            window.or_else(|| ledger.take(Side::Send, bytes.min(least), least, least.into()));
        ledger.refused += u64::from(window.is_none());
        self.settle(ledger);
        window
    }

    /// Counts the pages of the extent up to byte `end` as used. Returns false if the limit is
    /// reached.
    #[inline]
    pub(crate) fn touch(&self, window: &mut Window, end: u32) -> bool {
        u64::from(end) <= window.touched() || self.touch_more(window, end)
    }

    fn touch_more(&self, window: &mut Window, end: u32) -> bool {
        let mut ledger = self.lock();
        let touched = ledger.touch(window, end, first_of(window.side));
        ledger.refused += u64::from(!touched);
        self.settle(ledger);
        touched
    }

    pub(crate) fn give(&self, window: Window) {
        let mut ledger = self.lock();
        ledger.free(window);
        self.settle(ledger);
    }

    /// Removes and returns the next extent (memory range of a FIFO) whose pages should be returned
    /// to the kernel. After that, call [`Windows::end_return`]. If there is none, the thread must
    /// sleep; it is unparked when there is more work.
    pub(crate) fn begin_return(&self) -> Option<Window> {
        let mut ledger = self.lock();
        let window = ledger.next_to_return();
        match &window {
            Some(window) => {
                ledger.kept -= window.touched();
                ledger.returning += window.touched();
            }
            None => ledger.rest(),
        }
        self.note(&ledger);
        window
    }

    /// Ends the return of memory pages that [`Windows::begin_return`] began. `gone` is true if the
    /// kernel has taken the pages. Otherwise the extent (memory range of a FIFO) keeps them, and
    /// the returning thread waits until it is woken.
    pub(crate) fn end_return(&self, mut window: Window, gone: bool) {
        let mut ledger = self.lock();
        ledger.returning -= window.touched();
        if gone {
            ledger.touched -= window.touched();
            window.touched_pages = 0;
        } else {
            ledger.kept += window.touched();
            ledger.rest();
        }
        ledger.classes[usize::from(window.class)].give(window);
        self.note(&ledger);
    }

    /// Frees the buffer of a slot's FIFO. Its capacity in the slot must already be 0. If a thread
    /// of the program holds the lock, [`Windows::collect`] frees the buffer after the lock is
    /// released.
    pub(crate) fn give_when_out(&self, slot: u32, window: Window) {
        if self.is_out(slot, window.side).is_ok() {
            return self.give(window);
        }
        let mut ledger = self.lock();
        ledger.in_use.entry(slot).or_default().push(window);
        ledger.awaited.push(slot);
    }

    /// Removes and returns the slots whose buffers could not be freed since the last call, because
    /// a thread of a program held the lock. The engine must call [`collect`](Self::collect) for
    /// each.
    pub fn take_awaited(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().awaited)
    }

    /// Frees the buffers of a slot that could not be freed before because a thread held the lock.
    /// Does nothing if the thread still holds it.
    ///
    /// # Errors
    /// Returns the channel number of the process whose thread still holds the lock. The thread will
    /// notify the engine when it releases the lock; see [`crate::are_out`].
    pub fn collect(&self, slot: u32) -> Result<(), u32> {
        let Some(windows) = self.lock().in_use.remove(&slot) else { return Ok(()) };
        let mut result = Ok(());
        for window in windows {
            match self.is_out(slot, window.side) {
                Ok(()) => self.give(window),
                Err(channel) => {
                    result = Err(channel);
                    self.lock().in_use.entry(slot).or_default().push(window);
                }
            }
        }
        result
    }

    /// Frees buffers of a slot's previous FIFOs before a new FIFO gets one. Thus a slot has at most
    /// one such buffer per direction, even if a program does not send the notification of its
    /// unlock.
    pub(crate) fn collect_before_more(&self, slot: u32) {
        // Ignore the result: `collect` has marked the lock, so a thread that holds it notifies the
        // engine when it releases the lock.
        let _ = self.collect(slot);
    }

    /// Frees extents without checking for threads. The models must reject this wrong variant.
    #[cfg(all(test, loom))]
    pub(crate) fn collect_blindly(&self, slot: u32) {
        let windows = self.lock().in_use.remove(&slot);
        windows.into_iter().flatten().for_each(|window| self.give(window));
    }

    fn is_out(&self, slot: u32, side: Side) -> Result<(), u32> {
        let shared = self.region().slot(slot).expect("slots of the engine exist");
        is_out(match side {
            Side::Recv => &shared.rx_lock,
            Side::Send => &shared.tx_lock,
        })
    }

    /// Completes a change of the accounting. Publishes the values that are read without the mutex,
    /// and wakes the thread that returns pages if there are pages to return.
    fn settle(&self, mut ledger: MutexGuard<'_, Ledger>) {
        self.note(&ledger);
        if ledger.giver == GiveBackState::Idle && ledger.kept > ledger.keepable() {
            ledger.giver = GiveBackState::Busy;
            drop(ledger);
            self.wake_giver();
        }
    }

    #[cold]
    fn wake_giver(&self) {
        if let Some(giver) = self.0.giver.get() {
            return giver.unpark();
        }
        match give_back::start(Arc::downgrade(&self.0)) {
            Ok(giver) => drop(self.0.giver.set(giver)),
            // The thread could not be started. The pages are kept, and the next change tries again.
            Err(_) => self.lock().rest(),
        }
    }

    fn note(&self, ledger: &Ledger) {
        self.0.receivable.store(ledger.available(Side::Recv), Ordering::Relaxed);
        self.0.receivable_first.store(ledger.allowed(Side::Recv, 0, PAGE), Ordering::Relaxed);
        self.0.sendable.store(ledger.available(Side::Send), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
