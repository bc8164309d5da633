//! Distribution of the region's FIFO area.
//!
//! A window is a power of two of bytes. The area is divided once and for all between the size
//! classes, so that nothing ever fragments. Address space is plenty, and only touched pages cost
//! anything. Touched pages are counted, in windows handed out and in free ones alike, up to a
//! limit. At the limit no FIFO gets more, and connections wait. An eighth of the limit is out of
//! reach for receive FIFOs and another for transmit FIFOs. Otherwise each side could wait for the
//! other for ever.
//!
//! Each side has a reserve besides, from which a FIFO that has nothing gets its first page when
//! there is nothing else. Otherwise connections whose programs or peers do not read would fill the
//! memory, and new ones would get none as long as these live. Linux has `tcp_rmem[0]` and
//! `tcp_wmem[0]` for that, a page for each socket. The reserve of receive FIFOs is another eighth:
//! of 1 GiB the first pages of 32,768. The reserve of transmit FIFOs is half of the eighth that
//! receive FIFOs cannot have: the first pages of 16,384. A datagram is sent whole or not at all, so
//! sockets for datagrams get whole windows of the reserve. Their windows are empty again once they
//! are sent.
//!
//! Freed windows are handed out again last in, first out, because their pages are in the cache.
//! Idle windows keep at most [`KEPT_MAX`] bytes of pages, and fewer when memory is short. The rest
//! is given back to the kernel by a thread, one window after the other (`give_back.rs` says why not
//! by the engine's). A FIFO that needs fresh pages before the thread is done is refused, as if
//! there were none, and tries again. The window that the thread works on cannot be handed out, and
//! counts until its pages are gone; all others can.
//!
//! A free window without pages costs one bit.
//!
//! A freed window that a thread of a program may still be copying to or from cannot be handed out.
//! The window waits until the thread has unlocked that end of its socket
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

/// Bytes of pages that free windows may keep. A window that has its pages is handed out without
/// page faults; in return the machine has so much less memory for others.
pub const KEPT_MAX: u64 = 64 << 20;

/// How much FIFO memory there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowsUse {
    /// Bytes of pages in use or kept.
    pub touched: u64,
    /// Touched bytes in free windows.
    pub kept: u64,
    /// Touched bytes that are being given back to the kernel.
    pub returning: u64,
    /// The limit of `touched`.
    pub limit: u64,
    /// Windows handed out.
    pub assigned: u32,
    /// Requests refused because of the limit.
    pub refused: u64,
}

/// The allocator, and the list of sockets whose program broke the rules. Clones are the same one.
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
    /// Bytes that receive FIFOs could touch now; a copy, for looks without the lock.
    receivable: AtomicU64,
    /// The same for a receive FIFO that has no memory yet.
    receivable_first: AtomicU64,
    /// Bytes that transmit FIFOs could touch now, without the reserve.
    sendable: AtomicU64,
    /// Whether [`Ledger::unpinned`] names a slot; for looks without the lock, one each turn.
    unpinned: AtomicBool,
    /// Bytes of windows that nobody but packets has a use for, and beyond how many they are to be
    /// copied.
    forsaken: AtomicU64,
    forsaken_max: u64,
    /// There are more, and that was not told yet.
    forsaken_news: AtomicBool,
    /// Unix time in ns of the engine's turn: the time of arrival of bytes that receive FIFOs get in
    /// it.
    unix_ns: AtomicU64,
    ledger: Mutex<Ledger>,
    /// The thread that gives pages back, once there was something to do for it.
    giver: OnceLock<Thread>,
}

impl Drop for Shared {
    /// The thread ends. Lets the thread end, and does not wait for it.
    fn drop(&mut self) {
        if let Some(giver) = self.giver.get() {
            giver.unpark();
        }
    }
}

/// Part of the limit that packets may keep of FIFOs that are gone. A sixteenth is no burden on
/// others, and packets need not be copied where devices keep up.
const FORSAKEN_PART: u64 = 16;

impl Windows {
    /// All of `region`'s FIFO area, of which at most `limit` bytes, rounded down to pages, are
    /// backed by memory. A region must have only one: two would hand out the same memory.
    pub fn new(region: &Region, limit: u64) -> Self {
        Self::of_shard(region, 0, 1, limit)
    }

    /// A shard's part of the area, of `shards` parts alike (a power of two, at most
    /// [`SHARDS_MAX`](towpath_shm::layout::SHARDS_MAX)). Each must have only one.
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

    /// Sets the time of arrival (Unix time in ns) of the bytes that are received from now on.
    pub fn set_time(&self, unix_ns: u64) {
        self.0.unix_ns.store(unix_ns, Ordering::Relaxed);
    }

    /// See [`Self::set_time`].
    #[inline]
    pub(crate) fn time(&self) -> u64 {
        self.0.unix_ns.load(Ordering::Relaxed)
    }

    /// As [`Self::new`]; its pages are given back by the test.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn by_hand(region: &Region, limit: u64) -> Self {
        let windows = Self::new(region, limit);
        windows.lock().giver = GiveBackState::ByHand;
        windows
    }

    /// The region they lie in.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// The counts, as of one moment: it takes the allocator's mutex.
    pub fn usage(&self) -> WindowsUse {
        let ledger = self.lock();
        let Ledger { touched, kept, returning, limit, assigned, refused, .. } = *ledger;
        WindowsUse { touched, kept, returning, limit, assigned, refused }
    }

    /// Whether either side has more than two thirds of what it may have: time to collect idle
    /// windows.
    pub fn is_tight(&self) -> bool {
        let ledger = self.lock();
        ledger.used.iter().any(|used| *used > ledger.limit / 12 * 7)
    }

    /// Whether less than a quarter of the memory is in use: then a socket gets a window in advance,
    /// which it may never use.
    pub fn is_ample(&self) -> bool {
        let ledger = self.lock();
        ledger.touched - ledger.kept < ledger.limit / 4
    }

    /// Whether autotuning may make buffers larger. The second half of the memory is for connections
    /// that have little. Otherwise a few peers that do not read could take all of it, and new
    /// connections would get none.
    pub(crate) fn may_grow(&self) -> bool {
        let ledger = self.lock();
        ledger.touched - ledger.kept < ledger.limit / 2
    }

    /// Slots whose program wrote a position that cannot be, since the last call.
    pub fn take_hostile(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().hostile)
    }

    pub(crate) fn report_hostile(&self, slot: u32) {
        self.lock().hostile.push(slot);
    }

    /// The next slot whose transmit FIFO may let its program write again to what packets pointed
    /// to. The engine [tells that FIFO](crate::EngineSend::unpin); another FIFO may have the slot,
    /// which hears it in vain.
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

    /// Whether packets keep more memory of FIFOs that are gone than a sixteenth of the limit, once
    /// after each FIFO that made it so. The owner of the packets copies those that
    /// [`Fragments::is_forsaken`](towpath_shm::Fragments::is_forsaken) names.
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

    /// Bytes that a receive FIFO could touch now.
    #[inline]
    pub(crate) fn receivable(&self) -> u64 {
        self.0.receivable.load(Ordering::Relaxed)
    }

    /// Bytes that a receive FIFO without memory could touch now.
    #[inline]
    pub fn receivable_first(&self) -> u64 {
        self.0.receivable_first.load(Ordering::Relaxed)
    }

    /// Bytes that a transmit FIFO could touch now, without the reserve.
    #[inline]
    pub(crate) fn sendable(&self) -> u64 {
        self.0.sendable.load(Ordering::Relaxed)
    }

    /// Counts a request that was not made, because [`Self::receivable`] said that it would be
    /// refused.
    pub(crate) fn note_refused(&self) {
        self.lock().refused += 1;
    }

    /// A window of at least `bytes` (or the largest), of which `touch` bytes may be written at
    /// once.
    pub(crate) fn take(&self, side: Side, bytes: u32, touch: u32) -> Option<Window> {
        let mut ledger = self.lock();
        let window = ledger.take(side, bytes, touch, first_of(side));
        ledger.refused += u64::from(window.is_none());
        self.settle(ledger);
        window
    }

    /// As [`Self::take`] for a transmit FIFO that has nothing. When there is not so much, one of
    /// which `least` bytes may be written, from the reserve.
    pub(crate) fn take_first(&self, bytes: u32, touch: u32, least: u32) -> Option<Window> {
        let mut ledger = self.lock();
        let window = ledger.take(Side::Send, bytes, touch, 0);
        let window =
            window.or_else(|| ledger.take(Side::Send, bytes.min(least), least, least.into()));
        ledger.refused += u64::from(window.is_none());
        self.settle(ledger);
        window
    }

    /// Bytes up to `end` of the window are about to be written. False: the limit is reached.
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

    /// The window whose pages are to be given back next. The window is out of all lists until
    /// [`Windows::end_return`]. None: nothing is to be given back; the thread is unparked when that
    /// changes.
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

    /// Whether the pages of the window are gone. If not they are kept, and the thread waits to be
    /// woken.
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

    /// Takes a window back that a slot's FIFO had, after its capacity in the slot was set to 0. If
    /// a thread is inside, [`Windows::collect`] takes it once the thread is out.
    pub(crate) fn give_when_out(&self, slot: u32, window: Window) {
        if self.is_out(slot, window.side).is_ok() {
            return self.give(window);
        }
        let mut ledger = self.lock();
        ledger.in_use.entry(slot).or_default().push(window);
        ledger.awaited.push(slot);
    }

    /// Slots whose threads keep windows back, since the last call. The engine
    /// [collects](Self::collect) them.
    pub fn take_awaited(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().awaited)
    }

    /// Takes back what the threads at a slot do not use any more.
    ///
    /// # Errors
    /// The channel's number of one that is inside still, and will tell: as [`crate::are_out`].
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

    /// Takes back the windows that former FIFOs of a slot kept, for a new FIFO whose lock is free.
    /// No thread needs to have said that it is out: `collect` looks at the locks. So a slot keeps
    /// at most one window a side, and to look at them is cheap.
    pub(crate) fn collect_before_more(&self, slot: u32) {
        // A thread inside at the other side says when it is out: the look has marked its lock.
        let _ = self.collect(slot);
    }

    /// Takes them back without looking for threads: the mistake that the models show to be one.
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

    /// Ends a change. Publishes the figures that are read without the mutex, and wakes the thread
    /// that gives pages back if it has work.
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
            // The pages are kept until the next change, which tries it again.
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
