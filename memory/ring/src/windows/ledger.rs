//! Accounting of a region's memory: pages of each side, within the limit and its reserve.

use std::collections::BTreeMap;

use super::KEPT_MAX;
use crate::area::{CLASSES, PAGE, Side, SizeClass, WINDOW_MAX, Window, class_of};

/// State of the thread that returns pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GiveBackState {
    /// The thread waits to be unparked, or to be started.
    Idle,
    /// The thread runs until no pages have to be returned.
    Busy,
    /// There is no thread; a test returns the pages itself.
    #[cfg(all(test, not(loom)))]
    ByHand,
}

/// Accounting of pages, and extents that cannot be reused yet. Values are in bytes.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) classes: [SizeClass; CLASSES.len()],
    /// Bytes of pages in all extents.
    pub(super) touched: u64,
    /// Bytes of pages in free extents.
    pub(super) kept: u64,
    /// Bytes of pages in the extent that is being returned.
    pub(super) returning: u64,
    pub(super) giver: GiveBackState,
    /// Bytes of pages in the used extents of each side.
    pub(super) used: [u64; 2],
    /// Part of `used` beyond [`Ledger::common`], taken from the reserve of each side. Freed memory
    /// refills the reserves first.
    pub(super) reserved: [u64; 2],
    pub(super) limit: u64,
    pub(super) assigned: u32,
    pub(super) refused: u64,
    pub(super) hostile: Vec<u32>,
    /// Extents of a slot's previous FIFOs that a thread may still use, by slot.
    pub(super) in_use: BTreeMap<u32, Vec<Window>>,
    /// Slots added to `in_use` since the last `Windows::take_awaited`.
    pub(super) awaited: Vec<u32>,
    /// Slots of FIFOs whose packets have returned. `Windows::pop_unpinned` removes them.
    pub(super) unpinned: Vec<u32>,
}

/// Returns the bytes that a FIFO without memory may take from its side's reserve by default.
pub(super) fn first_of(side: Side) -> u64 {
    match side {
        Side::Recv => PAGE,
        Side::Send => 0,
    }
}

impl Ledger {
    /// Returns the bytes that are reserved for FIFOs of this side without memory.
    pub(super) fn reserve(&self, side: Side) -> u64 {
        match side {
            Side::Recv => self.limit / 8,
            Side::Send => self.limit / 16,
        }
    }

    /// Returns the bytes of the limit that belong to neither reserve.
    pub(super) fn common(&self) -> u64 {
        self.limit - self.reserve(Side::Recv) - self.reserve(Side::Send)
    }

    /// Returns the bytes that a side could touch without its reserve, if kept pages are returned.
    pub(super) fn available(&self, side: Side) -> u64 {
        let others = self.limit / 8 + self.reserve(side);
        let share = (self.limit - others).saturating_sub(self.used[side as usize]);
        let all = self.common().saturating_sub(self.touched - self.kept);
        share.min(all) / PAGE * PAGE
    }

    /// Returns the additional bytes that an extent with `touched` bytes could get. If it has none,
    /// up to `first` bytes may come from the reserve.
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

    /// Records that a side now uses `used` bytes.
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

    /// Returns the maximum bytes of pages that free extents may keep. Excess pages are returned
    /// before FIFOs need them, so that fresh pages for the largest extent remain available. In
    /// general an eighth of the limit remains, the part that neither side can take from the other
    /// one.
    pub(super) fn keepable(&self) -> u64 {
        let left = (self.limit / 8).max(u64::from(WINDOW_MAX));
        self.limit.saturating_sub(self.touched - self.kept + left).min(KEPT_MAX)
    }

    /// Picks a free extent of which `touch` bytes may be written at once. Prefers an extent with
    /// pages. Skips extents with more pages than this side may have, and those with too few if
    /// fresh pages are short.
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

    /// Returns the least recently used free extent with pages, from the largest class that has any.
    /// Large extents are fewest and have the most pages.
    pub(super) fn next_to_return(&mut self) -> Option<Window> {
        if self.kept <= self.keepable() {
            return None;
        }
        self.classes.iter_mut().rev().find_map(SizeClass::take_oldest)
    }

    /// Records that the thread goes to sleep.
    pub(super) fn rest(&mut self) {
        if self.giver == GiveBackState::Busy {
            self.giver = GiveBackState::Idle;
        }
    }
}
