//! Timers: a hierarchical wheel, where arming, cancelling and firing cost the same however many run.
//!
//! ```text
//!   level 0: 64 slots of 2¹⁶ ns (66 µs)      level 1: 64 slots of 4.2 ms      level 2: of 268 ms …
//! ```
//! A timer lies in the lowest level that can tell its slot from the present one, and moves down as
//! its time comes nearer (at most five times). It fires never early and at most one slot of level 0 late.

use towpath_tcp::Instant;

use crate::slab::{NONE, Slab};

/// Names an armed timer; becomes [`TimerId::NONE`] in the hands of its owner once it fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimerId(u32);

impl TimerId {
    /// No timer.
    pub const NONE: Self = Self(NONE);

    /// Whether it names a timer.
    pub fn is_armed(self) -> bool {
        self.0 != NONE
    }
}

/// The wheel. `O` says whose timer it is.
#[derive(Debug)]
pub(crate) struct Wheel<O> {
    /// Everything before this tick has been fired.
    elapsed: u64,
    levels: [Level; LEVELS],
    due: List,
    timers: Slab<Timer<O>>,
    /// Timers moved between lists so far: the work done.
    pub operations: u64,
}

#[derive(Debug)]
struct Timer<O> {
    deadline: Instant,
    before: u32,
    behind: u32,
    /// `level * SLOTS + slot`, or `DUE`.
    list: u16,
    owner: O,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    occupied: u64,
    slots: [List; SLOTS],
}

#[derive(Debug, Clone, Copy)]
struct List {
    front: u32,
    back: u32,
    /// No timer in it is earlier; one that was cancelled may have been.
    earliest: Instant,
}

const LIST_EMPTY: List = List { front: NONE, back: NONE, earliest: Instant(u64::MAX) };

/// log₂ of a tick in ns. A coarser one fires later, a finer one reaches less far with six levels.
const TICK_SHIFT: u32 = 16;
/// log₂ of the slots a level: a level's occupancy fits one word.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Six levels reach 2⁵² ns = 52 days; what is further away is looked at again then.
const LEVELS: usize = 6;
const TICKS_MAX: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;
const DUE: u16 = u16::MAX;

impl<O: Copy> Wheel<O> {
    /// An empty wheel.
    pub fn new(now: Instant) -> Self {
        Self {
            elapsed: now.0 >> TICK_SHIFT,
            levels: [Level { occupied: 0, slots: [LIST_EMPTY; SLOTS] }; LEVELS],
            due: LIST_EMPTY,
            timers: Slab::default(),
            operations: 0,
        }
    }

    /// Timers armed.
    pub fn len(&self) -> usize {
        self.timers.len()
    }

    /// Makes `id` fire at `deadline`, or never. One that is armed for an earlier time stays: it fires
    /// early, its owner finds nothing due and arms it anew. So an acknowledgment that puts off a
    /// retransmission touches no list.
    pub fn set(&mut self, id: &mut TimerId, deadline: Option<Instant>, owner: O) {
        let Some(deadline) = deadline else { return self.cancel(id) };
        if let Some(timer) = self.timers.get(id.0) {
            if timer.deadline <= deadline {
                return;
            }
            self.unlink(id.0);
        } else {
            *id = TimerId(self.timers.insert(Timer {
                deadline,
                before: NONE,
                behind: NONE,
                list: DUE,
                owner,
            }));
        }
        if let Some(timer) = self.timers.get_mut(id.0) {
            timer.deadline = deadline;
        }
        self.link(id.0, deadline);
    }

    /// Disarms it.
    pub fn cancel(&mut self, id: &mut TimerId) {
        if id.is_armed() {
            self.unlink(id.0);
            self.timers.remove(id.0);
            *id = TimerId::NONE;
        }
    }

    /// Takes out one timer whose time has come. The owner's [`TimerId`] is dead then.
    pub fn pop(&mut self, now: Instant) -> Option<O> {
        if self.due.front == NONE {
            self.advance(now.0 >> TICK_SHIFT);
        }
        let index = self.due.front;
        if index == NONE {
            return None;
        }
        self.unlink(index);
        self.timers.remove(index).map(|timer| timer.owner)
    }

    /// When [`Wheel::pop`] may have something: never later than that, earlier only after a cancel.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.due.front != NONE {
            return Some(self.due.earliest);
        }
        let level = self.levels.iter().find(|level| level.occupied != 0)?;
        let slot = level.occupied.trailing_zeros() as usize;
        Some(Instant(tick_of(level.slots[slot].earliest) << TICK_SHIFT))
    }

    /// Moves the timers of all slots that begin until `tick` down a level or into the due list.
    fn advance(&mut self, tick: u64) {
        while let Some((level, slot)) = self.first_slot() {
            let shift = SLOT_BITS * level as u32;
            let block = self.elapsed >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
            let start = block | (slot as u64) << shift;
            if start > tick {
                break;
            }
            let list = std::mem::replace(&mut self.levels[level].slots[slot], LIST_EMPTY);
            self.levels[level].occupied &= !(1 << slot);
            self.elapsed = self.elapsed.max(start);
            let mut index = list.front;
            while let Some(timer) = self.timers.get(index) {
                let (behind, deadline) = (timer.behind, timer.deadline);
                self.link(index, deadline);
                index = behind;
            }
        }
        self.elapsed = self.elapsed.max(tick);
    }

    /// The occupied slot that comes first: a lower level lies wholly before the next slot of a higher one.
    fn first_slot(&self) -> Option<(usize, usize)> {
        let level = self.levels.iter().position(|level| level.occupied != 0)?;
        Some((level, self.levels[level].occupied.trailing_zeros() as usize))
    }

    fn list_for(&self, deadline: Instant) -> u16 {
        let tick = tick_of(deadline);
        if tick <= self.elapsed {
            return DUE;
        }
        let tick = tick.min(self.elapsed | TICKS_MAX);
        let differing = tick ^ self.elapsed;
        if differing == 0 {
            // `elapsed` stands on the last tick that six levels reach from here.
            return DUE;
        }
        let level = (differing.ilog2() / SLOT_BITS) as usize;
        let slot = (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        (level * SLOTS + slot) as u16
    }

    fn list_mut(&mut self, list: u16) -> &mut List {
        match list {
            DUE => &mut self.due,
            list => &mut self.levels[list as usize / SLOTS].slots[list as usize % SLOTS],
        }
    }

    fn link(&mut self, index: u32, deadline: Instant) {
        self.operations += 1;
        let at = self.list_for(deadline);
        if at != DUE {
            self.levels[at as usize / SLOTS].occupied |= 1 << (at as usize % SLOTS);
        }
        let list = self.list_mut(at);
        list.earliest = list.earliest.min(deadline);
        let back = std::mem::replace(&mut list.back, index);
        match self.timers.get_mut(back) {
            Some(timer) => timer.behind = index,
            None => self.list_mut(at).front = index,
        }
        if let Some(timer) = self.timers.get_mut(index) {
            (timer.before, timer.behind, timer.list) = (back, NONE, at);
        }
    }

    fn unlink(&mut self, index: u32) {
        self.operations += 1;
        let Some(timer) = self.timers.get(index) else { return };
        let (before, behind, at) = (timer.before, timer.behind, timer.list);
        match self.timers.get_mut(before) {
            Some(timer) => timer.behind = behind,
            None => self.list_mut(at).front = behind,
        }
        match self.timers.get_mut(behind) {
            Some(timer) => timer.before = before,
            None => self.list_mut(at).back = before,
        }
        let list = self.list_mut(at);
        if list.front == NONE {
            *list = LIST_EMPTY;
            if at != DUE {
                self.levels[at as usize / SLOTS].occupied &= !(1 << (at as usize % SLOTS));
            }
        }
    }
}

/// The first tick at which `deadline` has passed.
fn tick_of(deadline: Instant) -> u64 {
    deadline.0.div_ceil(1 << TICK_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A small generator, so that the test is the same each time.
    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn fires_in_time_never_early() {
        let mut wheel = Wheel::new(Instant(12_345 * MS));
        let mut state = 88172645463325252;
        let mut deadlines = Vec::new();
        for owner in 0..5000u32 {
            let spread = [1, 100, 10_000, 5_000_000][owner as usize % 4];
            let deadline = Instant(12_345 * MS + next(&mut state) % (spread * MS));
            wheel.set(&mut { TimerId::NONE }, Some(deadline), owner);
            deadlines.push(deadline);
        }
        let mut fired = 0;
        while let Some(now) = wheel.next_timeout() {
            while let Some(owner) = wheel.pop(now) {
                let deadline = deadlines[owner as usize];
                assert!(deadline <= now, "early");
                assert!(now.0 - deadline.0 <= 1 << TICK_SHIFT, "{} ns late", now.0 - deadline.0);
                fired += 1;
            }
        }
        assert_eq!((fired, wheel.len()), (5000, 0));
    }

    #[test]
    fn cancelled_ones_stay_silent_and_put_off_ones_cost_nothing() {
        let mut wheel = Wheel::new(Instant(0));
        let mut a = TimerId::NONE;
        let mut b = TimerId::NONE;
        wheel.set(&mut a, Some(Instant(5 * MS)), 'a');
        wheel.set(&mut b, Some(Instant(7 * MS)), 'b');
        wheel.cancel(&mut a);
        assert!(!a.is_armed());
        let before = wheel.operations;
        wheel.set(&mut b, Some(Instant(9 * MS)), 'b');
        assert_eq!(wheel.operations, before);
        assert_eq!(wheel.pop(Instant(6 * MS)), None);
        assert_eq!(wheel.pop(Instant(9 * MS)), Some('b'));
        assert_eq!(wheel.next_timeout(), None);
    }

    #[test]
    fn an_earlier_deadline_moves_it_forward() {
        let mut wheel = Wheel::new(Instant(0));
        let mut id = TimerId::NONE;
        wheel.set(&mut id, Some(Instant(60_000 * MS)), ());
        wheel.set(&mut id, Some(Instant(2 * MS)), ());
        let next = wheel.next_timeout().expect("armed");
        assert!(next.0 >= 2 * MS && next.0 <= 3 * MS);
        assert_eq!(wheel.pop(next), Some(()));
    }

    #[test]
    fn the_far_future_is_kept() {
        let mut wheel = Wheel::new(Instant(0));
        let year = 365 * 86_400_000 * MS;
        wheel.set(&mut { TimerId::NONE }, Some(Instant(year)), ());
        let mut wakes = 0;
        while let Some(now) = wheel.next_timeout() {
            wakes += 1;
            assert!(wakes < 100, "stuck");
            if wheel.pop(now).is_some() {
                assert!(now.0 >= year);
                return;
            }
        }
        panic!("lost");
    }

    #[test]
    fn work_does_not_grow_with_the_number_of_timers() {
        let cost = |count: u32| {
            let mut wheel = Wheel::new(Instant(0));
            let mut state = 7;
            for owner in 0..count {
                wheel.set(
                    &mut { TimerId::NONE },
                    Some(Instant(next(&mut state) % (120_000 * MS))),
                    owner,
                );
            }
            let before = wheel.operations;
            let mut id = TimerId::NONE;
            for n in 0..1000 {
                wheel.set(&mut id, Some(Instant(200_000 * MS + n)), 0);
                wheel.cancel(&mut id);
            }
            wheel.operations - before
        };
        assert_eq!(cost(10), cost(100_000));
    }
}
