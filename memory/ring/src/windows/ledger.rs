//! Accounting of the pages of each direction, within the limit and the reserves.

use std::collections::BTreeMap;

use super::KEPT_MAX;
use crate::area::{CLASSES, PAGE, Side, SizeClass, WINDOW_MAX, Window, class_of};

/// State of the thread that returns pages to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GiveBackState {
    /// The thread waits to be unparked, or has not been started.
    Idle,
    /// The thread that returns pages to the kernel is running, until no pages are left.
    Busy,
    /// There is no thread that returns pages; tests return them directly.
    #[cfg(all(test, not(loom)))]
    ByHand,
}

/// Accounting of pages, and the extents that cannot be reused yet. Amounts are in bytes.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) classes: [SizeClass; CLASSES.len()],
    /// Bytes of pages in used and free extents (memory ranges for FIFOs).
    pub(super) touched: u64,
    /// Bytes of pages in free extents (memory ranges for FIFOs).
    pub(super) kept: u64,
    /// Bytes of pages in the extent whose pages are being returned to the kernel.
    pub(super) returning: u64,
    pub(super) giver: GiveBackState,
    /// Bytes of pages in used extents (memory ranges for FIFOs), for receiving and for sending.
    pub(super) used: [u64; 2],
    /// Part of `used` that was taken from each direction's reserve, because [`Ledger::common`] was
    /// used up. Freed memory refills the reserves first.
    pub(super) reserved: [u64; 2],
    pub(super) limit: u64,
    pub(super) assigned: u32,
    pub(super) refused: u64,
    pub(super) hostile: Vec<u32>,
    /// Extents of ended FIFOs that a thread of a program may still use, by slot.
    pub(super) in_use: BTreeMap<u32, Vec<Window>>,
    /// Slots added to `in_use` since `Windows::take_awaited` was last called.
    pub(super) awaited: Vec<u32>,
    /// Slots whose transmit FIFO has more free bytes because packets were dropped.
    /// `Windows::pop_unpinned` removes them.
    pub(super) unpinned: Vec<u32>,
}

/// Returns how many bytes a FIFO without memory may take from the reserve of its direction.
pub(super) fn first_of(side: Side) -> u64 {
    match side {
        Side::Recv => PAGE,
        Side::Send => 0,
    }
}

impl Ledger {
    /// Returns the number of bytes reserved for FIFOs of this direction that have no memory yet.
    pub(super) fn reserve(&self, side: Side) -> u64 {
        match side {
            Side::Recv => self.limit / 8,
            Side::Send => self.limit / 16,
        }
    }

    /// Returns the number of bytes within the limit that belong to neither reserve.
    pub(super) fn common(&self) -> u64 {
        self.limit - self.reserve(Side::Recv) - self.reserve(Side::Send)
    }

    /// Returns the number of bytes that this direction can still get without its reserve, if free
    /// extents return their pages to the kernel.
    pub(super) fn available(&self, side: Side) -> u64 {
        let others = self.limit / 8 + self.reserve(side);
        let share = (self.limit - others).saturating_sub(self.used[side as usize]);
        let all = self.common().saturating_sub(self.touched - self.kept);
        share.min(all) / PAGE * PAGE
    }

    /// Returns the number of bytes by which the used pages of an extent, now `touched` bytes, may
    /// grow. If the extent has none, up to `first` bytes may come from the reserve.
    pub(super) fn allowed(&self, side: Side, touched: u64, first: u64) -> u64 {
        let available = self.available(side);
        if touched > 0 {
            return available;
        }
        let share = (self.limit - self.limit / 8).saturating_sub(self.used[side as usize]);
        let all = self.limit.saturating_sub(self.touched - self.kept);
        let reserve = self.reserve(side).saturating_sub(self.reserved[side as usize]);
        available.max(share.min(all).min(reserve).min(first) / PAGE * PAGE)
    }

    /// Records that a direction now uses `used` bytes.
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

    pub(super) fn take(
        &mut self,
        side: Side,
        bytes: u32,
        touch: u32,
        first: u64,
    ) -> Option<Window> {
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

    /// Returns the maximum number of bytes of pages that free extents (memory ranges for FIFOs) may
    /// keep. Further pages are returned to the kernel before FIFOs need them, so that the largest
    /// extent always fits below the limit. Usually an eighth of the limit stays free.
    pub(super) fn keepable(&self) -> u64 {
        let left = (self.limit / 8).max(u64::from(WINDOW_MAX));
        self.limit.saturating_sub(self.touched - self.kept + left).min(KEPT_MAX)
    }

    /// Chooses a free extent (memory range of a FIFO) of which `touch` bytes may be written at
    /// once. Prefers an extent with pages. Skips extents with more pages than this direction may
    /// use. If no new pages are allowed, also skips those with too few.
    fn pick(&mut self, class: usize, side: Side, touch: u32, first: u64) -> Option<Window> {
        let (allowed, fresh) = (self.allowed(side, 0, first), self.limit - self.touched);
        let touch = u64::from(touch.min(CLASSES[class].0));
        let will_do = |pages| pages <= allowed && touch <= pages + fresh;
        let warm = self.classes[class].take_warm(side, will_do);
        warm.or_else(|| self.classes[class].take_cold(class as u8, side))
    }

    pub(super) fn touch(&mut self, window: &mut Window, end: u32, first: u64) -> bool {
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

    pub(super) fn free(&mut self, window: Window) {
        self.assigned -= 1;
        self.account(window.side, self.used[window.side as usize] - window.touched());
        self.kept += window.touched();
        self.classes[usize::from(window.class)].give(window);
    }

    /// Returns a free extent (memory range of a FIFO) whose pages should be returned to the kernel.
    /// Chooses the least recently used extent of the largest size class, because large extents are
    /// few and have the most pages.
    pub(super) fn next_to_return(&mut self) -> Option<Window> {
        if self.kept <= self.keepable() {
            return None;
        }
        self.classes.iter_mut().rev().find_map(SizeClass::take_oldest)
    }

    /// Records that the thread that returns pages to the kernel goes to sleep.
    pub(super) fn rest(&mut self) {
        if self.giver == GiveBackState::Busy {
            self.giver = GiveBackState::Idle;
        }
    }
}
