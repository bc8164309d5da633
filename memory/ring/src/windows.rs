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

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use towpath_shm::layout::FIFO_OFFSET;

use crate::area::{CLASSES, Class, PAGE, Side, WINDOW_MAX, Window, class_of};
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
    /// Whether [`Inner::unpinned`] names a slot; for looks without the lock, one each turn.
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
    inner: Mutex<Inner>,
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

/// State of the thread that gives pages back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Giver {
    /// The thread waits to be unparked, or to be started.
    Idle,
    /// The thread goes on until nothing is left to be given back.
    Busy,
    /// There is none: a test does what it would do.
    #[cfg(all(test, not(loom)))]
    ByHand,
}

#[derive(Debug)]
struct Inner {
    classes: [Class; CLASSES.len()],
    /// Pages in all windows.
    touched: u64,
    /// In free ones.
    kept: u64,
    /// In the one that is being given back.
    returning: u64,
    giver: Giver,
    /// In the handed out ones of each side.
    used: [u64; 2],
    /// The part of `used` beyond [`Inner::common`], which is taken from the side's reserve.
    /// Returned memory goes to the reserves first.
    reserved: [u64; 2],
    limit: u64,
    assigned: u32,
    refused: u64,
    hostile: Vec<u32>,
    /// Windows of former FIFOs of a slot, by the slot, that a thread may still use.
    in_use: BTreeMap<u32, Vec<Window>>,
    /// Slots that came into `in_use` since [`Windows::take_awaited`].
    awaited: Vec<u32>,
    /// Slots whose packets came back and which [`Windows::pop_unpinned`] has not named.
    unpinned: Vec<u32>,
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
            Class::new(first, first + part)
        });
        let inner = Inner {
            classes,
            touched: 0,
            kept: 0,
            returning: 0,
            giver: Giver::Idle,
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
        let receivable = AtomicU64::new(inner.available(Side::Recv));
        let sendable = AtomicU64::new(inner.available(Side::Send));
        let receivable_first = AtomicU64::new(inner.allowed(Side::Recv, 0, PAGE));
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
            inner: Mutex::new(inner),
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
        windows.lock().giver = Giver::ByHand;
        windows
    }

    /// The region they lie in.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// The counts, as of one moment: it takes the allocator's mutex.
    pub fn usage(&self) -> WindowsUse {
        let inner = self.lock();
        let Inner { touched, kept, returning, limit, assigned, refused, .. } = *inner;
        WindowsUse { touched, kept, returning, limit, assigned, refused }
    }

    /// Whether either side has more than two thirds of what it may have: time to collect idle
    /// windows.
    pub fn is_tight(&self) -> bool {
        let inner = self.lock();
        inner.used.iter().any(|used| *used > inner.limit / 12 * 7)
    }

    /// Whether less than a quarter of the memory is in use: then a socket gets a window in advance,
    /// which it may never use.
    pub fn is_ample(&self) -> bool {
        let inner = self.lock();
        inner.touched - inner.kept < inner.limit / 4
    }

    /// Whether autotuning may make buffers larger. The second half of the memory is for connections
    /// that have little. Otherwise a few peers that do not read could take all of it, and new
    /// connections would get none.
    pub(crate) fn may_grow(&self) -> bool {
        let inner = self.lock();
        inner.touched - inner.kept < inner.limit / 2
    }

    /// Slots whose program wrote a position that cannot be, since the last call.
    pub fn take_hostile(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().hostile)
    }

    pub(crate) fn report_hostile(&self, slot: u32) {
        self.lock().hostile.push(slot);
    }

    /// The next slot whose transmit FIFO may let its program write again to what packets pointed
    /// to. To be
    /// [told so](crate::EngineSend::unpin); another FIFO may have the slot, which hears it in vain.
    pub fn pop_unpinned(&self) -> Option<u32> {
        if !self.0.unpinned.load(Ordering::Relaxed) {
            return None;
        }
        let mut inner = self.lock();
        let slot = inner.unpinned.pop();
        self.0.unpinned.store(!inner.unpinned.is_empty(), Ordering::Relaxed);
        slot
    }

    pub(crate) fn note_unpinned(&self, slot: u32) {
        let mut inner = self.lock();
        inner.unpinned.push(slot);
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
        let mut inner = self.lock();
        let window = inner.take(side, bytes, touch, first_of(side));
        inner.refused += u64::from(window.is_none());
        self.settle(inner);
        window
    }

    /// As [`Self::take`] for a transmit FIFO that has nothing. When there is not so much, one of
    /// which `least` bytes may be written, from the reserve.
    pub(crate) fn take_first(&self, bytes: u32, touch: u32, least: u32) -> Option<Window> {
        let mut inner = self.lock();
        let window = inner.take(Side::Send, bytes, touch, 0);
        let window =
            window.or_else(|| inner.take(Side::Send, bytes.min(least), least, least.into()));
        inner.refused += u64::from(window.is_none());
        self.settle(inner);
        window
    }

    /// Bytes up to `end` of the window are about to be written. False: the limit is reached.
    #[inline]
    pub(crate) fn touch(&self, window: &mut Window, end: u32) -> bool {
        u64::from(end) <= window.touched() || self.touch_more(window, end)
    }

    fn touch_more(&self, window: &mut Window, end: u32) -> bool {
        let mut inner = self.lock();
        let touched = inner.touch(window, end, first_of(window.side));
        inner.refused += u64::from(!touched);
        self.settle(inner);
        touched
    }

    pub(crate) fn give(&self, window: Window) {
        let mut inner = self.lock();
        inner.free(window);
        self.settle(inner);
    }

    /// The window whose pages are to be given back next. The window is out of all lists until
    /// [`Windows::end_return`]. None: nothing is to be given back; the thread is unparked when that
    /// changes.
    pub(crate) fn begin_return(&self) -> Option<Window> {
        let mut inner = self.lock();
        let window = inner.next_to_return();
        match &window {
            Some(window) => {
                inner.kept -= window.touched();
                inner.returning += window.touched();
            }
            None => inner.rest(),
        }
        self.note(&inner);
        window
    }

    /// Whether the pages of the window are gone. If not they are kept, and the thread waits to be
    /// woken.
    pub(crate) fn end_return(&self, mut window: Window, gone: bool) {
        let mut inner = self.lock();
        inner.returning -= window.touched();
        if gone {
            inner.touched -= window.touched();
            window.touched_pages = 0;
        } else {
            inner.kept += window.touched();
            inner.rest();
        }
        inner.classes[usize::from(window.class)].give(window);
        self.note(&inner);
    }

    /// Takes a window back that a slot's FIFO had, after its capacity in the slot was set to 0. If
    /// a thread is inside, [`Windows::collect`] takes it once the thread is out.
    pub(crate) fn give_when_out(&self, slot: u32, window: Window) {
        if self.is_out(slot, window.side).is_ok() {
            return self.give(window);
        }
        let mut inner = self.lock();
        inner.in_use.entry(slot).or_default().push(window);
        inner.awaited.push(slot);
    }

    /// Slots whose threads keep windows back, since the last call. To be
    /// [collected](Self::collect).
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
    fn settle(&self, mut inner: MutexGuard<'_, Inner>) {
        self.note(&inner);
        if inner.giver == Giver::Idle && inner.kept > inner.keepable() {
            inner.giver = Giver::Busy;
            drop(inner);
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

    fn note(&self, inner: &Inner) {
        self.0.receivable.store(inner.available(Side::Recv), Ordering::Relaxed);
        self.0.receivable_first.store(inner.allowed(Side::Recv, 0, PAGE), Ordering::Relaxed);
        self.0.sendable.store(inner.available(Side::Send), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of the reserve that a FIFO of a side may take without asking for them.
fn first_of(side: Side) -> u64 {
    match side {
        Side::Recv => PAGE,
        Side::Send => 0,
    }
}

impl Inner {
    /// Bytes set aside for those FIFOs of a side that have no memory yet.
    fn reserve(&self, side: Side) -> u64 {
        match side {
            Side::Recv => self.limit / 8,
            Side::Send => self.limit / 16,
        }
    }

    /// Bytes outside both reserves.
    fn common(&self) -> u64 {
        self.limit - self.reserve(Side::Recv) - self.reserve(Side::Send)
    }

    /// Bytes that a side could touch, at the cost of pages that are kept, without its reserve.
    fn available(&self, side: Side) -> u64 {
        let others = self.limit / 8 + self.reserve(side);
        let share = (self.limit - others).saturating_sub(self.used[side as usize]);
        let all = self.common().saturating_sub(self.touched - self.kept);
        share.min(all) / PAGE * PAGE
    }

    /// Bytes more that a window could have of which `touched` bytes are there; `first` of them, if
    /// there are none, may be from the reserve.
    fn allowed(&self, side: Side, touched: u64, first: u64) -> u64 {
        let available = self.available(side);
        if touched > 0 {
            return available;
        }
        let share = (self.limit - self.limit / 8).saturating_sub(self.used[side as usize]);
        let all = self.limit.saturating_sub(self.touched - self.kept);
        let reserve = self.reserve(side).saturating_sub(self.reserved[side as usize]);
        available.max(share.min(all).min(reserve).min(first) / PAGE * PAGE)
    }

    /// Notes that a side has more, or less, than before.
    fn account(&mut self, side: Side, used: u64) {
        let (own, other) = (side as usize, 1 - side as usize);
        self.used[own] = used;
        let beyond = self.used.iter().sum::<u64>().saturating_sub(self.common());
        let before = self.reserved.iter().sum::<u64>();
        if beyond >= before {
            self.reserved[own] += beyond - before;
        } else {
            let back = (before - beyond).min(self.reserved[own]);
            self.reserved[own] -= back;
            self.reserved[other] -= before - beyond - back;
        }
    }

    fn take(&mut self, side: Side, bytes: u32, touch: u32, first: u64) -> Option<Window> {
        let mut window = self.pick(class_of(bytes), side, touch, first)?;
        self.kept -= window.touched();
        self.assigned += 1;
        self.account(side, self.used[side as usize] + window.touched());
        if self.touch(&mut window, touch, first) {
            return Some(window);
        }
        self.free(window);
        None
    }

    /// Bytes of pages that free windows may keep. The pages are given back before others need them:
    /// enough fresh ones are left for the largest window. As a rule an eighth of the limit is left,
    /// the part that neither side can take from the other.
    fn keepable(&self) -> u64 {
        let left = (self.limit / 8).max(u64::from(WINDOW_MAX));
        self.limit.saturating_sub(self.touched - self.kept + left).min(KEPT_MAX)
    }

    /// A free window of which `touch` bytes may be written at once. A window with pages is
    /// preferred. Windows with more than this side may have are passed over, and so are those with
    /// too few where fresh pages are short.
    fn pick(&mut self, class: usize, side: Side, touch: u32, first: u64) -> Option<Window> {
        let (allowed, fresh) = (self.allowed(side, 0, first), self.limit - self.touched);
        let touch = u64::from(touch.min(CLASSES[class].0));
        let will_do = |pages| pages <= allowed && touch <= pages + fresh;
        let warm = self.classes[class].take_warm(side, will_do);
        warm.or_else(|| self.classes[class].take_cold(class as u8, side))
    }

    fn touch(&mut self, window: &mut Window, end: u32, first: u64) -> bool {
        let end = u64::from(end.min(window.cap())).next_multiple_of(PAGE);
        let more = end.saturating_sub(window.touched());
        let allowed = self.allowed(window.side, window.touched(), first);
        if more > allowed.min(self.limit - self.touched) {
            return false;
        }
        self.touched += more;
        self.account(window.side, self.used[window.side as usize] + more);
        window.touched_pages += (more / PAGE) as u16;
        true
    }

    fn free(&mut self, window: Window) {
        self.assigned -= 1;
        self.account(window.side, self.used[window.side as usize] - window.touched());
        self.kept += window.touched();
        self.classes[usize::from(window.class)].give(window);
    }

    /// The least recently used one of the largest class that has any: these are fewest and have
    /// most pages.
    fn next_to_return(&mut self) -> Option<Window> {
        if self.kept <= self.keepable() {
            return None;
        }
        self.classes.iter_mut().rev().find_map(Class::take_oldest)
    }

    /// The thread goes to sleep.
    fn rest(&mut self) {
        if self.giver == Giver::Busy {
            self.giver = Giver::Idle;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use towpath_qdisc::Dice;

    use super::*;
    use crate::area::WINDOW_MIN;

    fn windows(limit: u64) -> Windows {
        Windows::new(&Region::create().unwrap(), limit)
    }

    #[test]
    fn hot_windows_come_back_first() {
        let windows = windows(1 << 30);
        let a = windows.take(Side::Recv, 1, 1).unwrap();
        let b = windows.take(Side::Recv, WINDOW_MIN, 1).unwrap();
        let base = b.base();
        assert_ne!(a.base(), base);
        windows.give(a);
        windows.give(b);
        assert_eq!(windows.take(Side::Recv, 100, 0).unwrap().base(), base);
    }

    /// Does the work of the thread at once.
    fn return_all(windows: &Windows) {
        while let Some(window) = windows.begin_return() {
            windows.end_return(window, true);
        }
    }

    #[test]
    fn the_limit_is_of_touched_pages() {
        let windows = Windows::by_hand(&Region::create().unwrap(), 128 << 10);
        assert_eq!(windows.receivable(), 96 << 10);
        let mut a = windows.take(Side::Recv, 1 << 20, 0).unwrap();
        let mut b = windows.take(Side::Recv, 1 << 20, 0).unwrap();
        assert!(windows.touch(&mut a, 84 << 10));
        assert!(!windows.touch(&mut b, 100 << 10));
        assert!(windows.touch(&mut b, 12 << 10));
        assert_eq!(windows.usage().touched, 96 << 10);
        assert_eq!((windows.usage().refused, windows.receivable()), (1, 0));
        // An eighth is the other side's, half of which is for first pages, of which each FIFO gets
        // one.
        let c = windows.take(Side::Send, 1, 8 << 10).unwrap();
        assert_eq!(windows.usage().touched, 104 << 10);
        assert!(windows.take(Side::Send, 1, 1).is_none());
        let first = || windows.take_first(WINDOW_MIN, WINDOW_MIN, 4096);
        let mut firsts = vec![first().unwrap(), first().unwrap()];
        assert!(first().is_none());
        // And one is for first pages of receive FIFOs.
        assert!(!windows.touch(&mut b, 13 << 10));
        firsts.extend((0..4).map(|_| windows.take(Side::Recv, 1, 4096).unwrap()));
        assert_eq!((windows.usage().touched, windows.receivable_first()), (128 << 10, 0));
        assert!(windows.take(Side::Recv, 1, 1).is_none() && first().is_none());
        // Returned memory belongs to the reserve of its side.
        windows.give(firsts.pop().unwrap());
        assert!(first().is_none());
        firsts.push(windows.take(Side::Recv, 1, 4096).unwrap());
        firsts.into_iter().for_each(|window| windows.give(window));
        windows.give(c);
        windows.give(a);
        // The free one's pages count until they are gone.
        assert!(!windows.touch(&mut b, 96 << 10));
        return_all(&windows);
        assert!(windows.touch(&mut b, 96 << 10));
        assert_eq!(windows.usage().kept, 0);
        windows.give(b);
        assert_eq!(windows.usage().assigned, 0);
    }

    #[test]
    fn idle_windows_keep_a_bounded_amount() {
        let windows = Windows::by_hand(&Region::create().unwrap(), 1 << 30);
        let taken: Vec<_> =
            (0..8).map(|_| windows.take(Side::Recv, WINDOW_MAX, WINDOW_MAX).unwrap()).collect();
        assert_eq!(windows.usage().touched, 8 * u64::from(WINDOW_MAX));
        taken.into_iter().for_each(|window| windows.give(window));
        return_all(&windows);
        assert_eq!(windows.usage().kept, KEPT_MAX);
        assert_eq!(windows.usage().touched, KEPT_MAX);
    }

    #[test]
    fn the_list_of_windows_with_pages_is_small_again_when_they_are_gone() {
        let windows = Windows::by_hand(&Region::create().unwrap(), 1 << 30);
        let taken: Vec<_> =
            (0..8000).map(|_| windows.take(Side::Send, 1, WINDOW_MIN).unwrap()).collect();
        taken.into_iter().for_each(|window| windows.give(window));
        return_all(&windows);
        let most = 4 * KEPT_MAX as usize / WINDOW_MIN as usize;
        assert!(windows.lock().classes[0].warm.capacity() <= most);
    }

    #[test]
    fn a_window_is_nobodys_while_its_pages_are_given_back() {
        let windows = Windows::by_hand(&Region::create().unwrap(), 128 << 10);
        let [a, b] = [0; 2].map(|_| windows.take(Side::Send, WINDOW_MIN, 32 << 10).unwrap());
        let free = [a.base(), b.base()];
        windows.give(a);
        windows.give(b);
        let returning = windows.begin_return().unwrap();
        let usage = windows.usage();
        assert_eq!((usage.touched, usage.kept, usage.returning), (64 << 10, 32 << 10, 32 << 10));
        let taken = [0; 2].map(|_| windows.take(Side::Send, WINDOW_MIN, 1).unwrap());
        assert!(free.contains(&taken[0].base()) && taken[0].base() != returning.base());
        assert!(!free.contains(&taken[1].base()));
        // The kernel refuses, which it should not: nothing is lost, and nothing said to be gone.
        let base = returning.base();
        windows.end_return(returning, false);
        assert_eq!(windows.usage().kept, 32 << 10);
        assert_eq!(windows.begin_return().unwrap().base(), base);
    }

    #[test]
    fn when_memory_is_short_windows_with_enough_pages_go_first() {
        let windows = Windows::by_hand(&Region::create().unwrap(), 128 << 10);
        let full = windows.take(Side::Send, WINDOW_MIN, WINDOW_MIN).unwrap();
        let less = windows.take(Side::Recv, WINDOW_MIN, 32 << 10).unwrap();
        let _rest = windows.take(Side::Recv, WINDOW_MIN, 8 << 10).unwrap();
        let base = full.base();
        windows.give(full);
        windows.give(less);
        // The thread has not begun, or cannot.
        assert_eq!(windows.take(Side::Send, WINDOW_MIN, WINDOW_MIN).unwrap().base(), base);
    }

    #[test]
    fn the_thread_gives_pages_back_and_keeps_nothing_alive() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, u64::from(WINDOW_MAX));
        let mapping = Arc::downgrade(region.mapping());
        let blocks = || {
            let mapping = mapping.upgrade().unwrap();
            rustix::fs::fstat(mapping.file().unwrap()).unwrap().st_blocks
        };
        for _ in 0..3 {
            let taken = [0; 4].map(|_| windows.take(Side::Recv, 1 << 20, 1 << 20).unwrap());
            for window in taken {
                region.mapping().write(window.base() as usize, &[1; 1 << 20]);
                windows.give(window);
            }
            eventually(|| windows.usage().touched == 0 && blocks() == 0);
        }
        drop((region, windows));
        eventually(|| mapping.strong_count() == 0);
    }

    fn eventually(is_so: impl Fn() -> bool) {
        let start = std::time::Instant::now();
        while !is_so() {
            assert!(start.elapsed().as_secs() < 50, "the thread does not give back");
            std::thread::yield_now();
        }
    }

    /// Every page is in one place, and in no more places than there is memory for.
    fn check(windows: &Windows, held: &[Window], returning: Option<&Window>) {
        let usage = windows.usage();
        let of = |side| held.iter().filter(|w| w.side == side).map(Window::touched).sum::<u64>();
        assert_eq!(windows.lock().used, [of(Side::Recv), of(Side::Send)]);
        assert_eq!(usage.returning, returning.map_or(0, Window::touched));
        let in_use = of(Side::Recv) + of(Side::Send) + usage.returning;
        assert_eq!(usage.touched, in_use + usage.kept);
        assert!(usage.touched <= usage.limit);
        let share = usage.limit - usage.limit / 8;
        assert!(of(Side::Recv) <= share && of(Side::Send) <= share);
        let inner = windows.lock();
        let beyond = (of(Side::Recv) + of(Side::Send)).saturating_sub(inner.common());
        assert_eq!(inner.reserved.iter().sum::<u64>(), beyond);
        assert!(
            [Side::Recv, Side::Send].map(|s| inner.reserved[s as usize] <= inner.reserve(s))
                == [true; 2]
        );
        drop(inner);
        assert_eq!(usage.assigned as usize, held.len());
        let mut bases: Vec<_> = held.iter().chain(returning).map(Window::base).collect();
        bases.sort_unstable();
        assert!(bases.windows(2).all(|two| two[0] != two[1]), "a window is in two places");
    }

    /// A FIFO within its limit gets memory once the thread has done its work, however slow it is.
    #[test]
    fn pages_are_where_they_are_said_to_be_while_the_thread_is_slow() {
        for seed in 1..=60 {
            let mut dice = Dice::new(seed, 0);
            let limit = [256 << 10, 3 << 20, 20 << 20, 200 << 20][seed as usize % 4];
            let windows = Windows::by_hand(&Region::create().unwrap(), limit);
            let (mut held, mut returning) = (Vec::<Window>::new(), None);
            for _ in 0..3000 {
                let side = [Side::Recv, Side::Send][dice.index(2)];
                let bytes = CLASSES[dice.index(CLASSES.len())].0;
                let touch = dice.index(bytes as usize + 1) as u32;
                match dice.index(8) {
                    0 | 1 => held.extend(windows.take(side, bytes, touch)),
                    2 => held.extend(windows.take_first(bytes, touch, PAGE as u32)),
                    3 if !held.is_empty() => {
                        let at = dice.index(held.len());
                        windows.touch(&mut held[at], touch);
                    }
                    4 | 5 if !held.is_empty() => {
                        windows.give(held.swap_remove(dice.index(held.len())));
                    }
                    6 if returning.is_none() => returning = windows.begin_return(),
                    7 => {
                        let gone = dice.index(8) > 0;
                        returning.take().into_iter().for_each(|w| windows.end_return(w, gone));
                    }
                    _ => {}
                }
                check(&windows, &held, returning.as_ref());
            }
            returning.into_iter().for_each(|window| windows.end_return(window, true));
            for side in [Side::Recv, Side::Send] {
                return_all(&windows);
                let most = windows.lock().available(side).min(u64::from(WINDOW_MAX)) as u32;
                held.extend([windows.take(side, WINDOW_MAX, most).expect("there is memory")]);
                check(&windows, &held, None);
            }
            held.into_iter().for_each(|window| windows.give(window));
            return_all(&windows);
            let usage = windows.usage();
            assert_eq!((usage.touched, usage.assigned), (usage.kept, 0));
            assert!(usage.kept <= limit.saturating_sub(u64::from(WINDOW_MAX)).min(KEPT_MAX));
        }
    }

    #[test]
    fn windows_without_pages_come_back_lowest_first() {
        let windows = windows(1 << 30);
        let mut taken: Vec<_> = (0..200).map(|_| windows.take(Side::Send, 1, 0).unwrap()).collect();
        let bases: Vec<u64> = taken.iter().map(Window::base).collect();
        for at in [150, 70, 71] {
            windows.give(taken.remove(at));
        }
        // Counted before the ones in front of it were removed.
        let mut back = [150, 70, 72].map(|at| bases[at]);
        back.sort_unstable();
        let again: Vec<_> = (0..4).map(|_| windows.take(Side::Recv, 1, 0).unwrap()).collect();
        assert_eq!(again.iter().take(3).map(Window::base).collect::<Vec<_>>(), back);
        assert_eq!(again[3].base(), bases[199] + u64::from(WINDOW_MIN));
        assert_eq!(windows.usage().assigned, 201);
    }

    #[test]
    fn beyond_the_largest_is_the_largest() {
        let windows = windows(1 << 30);
        assert_eq!(windows.take(Side::Recv, u32::MAX, 0).unwrap().cap(), WINDOW_MAX);
    }
}
