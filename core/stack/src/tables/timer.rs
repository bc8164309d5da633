//! A hierarchical timer wheel: the cost of arming, cancelling and firing does not depend on the
//! number of timers.
//!
//! ```text
//!   level 0: 64 slots of 2¹⁶ ns (66 µs)      level 1: 64 slots of 4.2 ms      level 2: of 268 ms …
//! ```
//! A timer is in the lowest level in which the slot of its deadline differs from that of the
//! current time. As its deadline approaches, it moves to lower levels, at most five times. Timers
//! never fire early, and at most one slot of level 0 too late. Timers with a deadline beyond the
//! current block of 2⁵² ns are in one of two lists until the next block begins.
//!
//! Timers are moved one by one, up to a limit set by the caller. Even a million timers with the
//! same deadline do not make a turn of the event loop longer than other turns.

use towpath_tcp::Instant;

use crate::tables::slab::{List, NONE, Queue};

/// Identifies an armed timer. When the timer has fired, its owner sets the identifier to
/// [`TimerId::NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerId(u32);

impl TimerId {
    /// Identifier of a timer that is not armed.
    pub const NONE: Self = Self(NONE);

    /// Returns whether the timer is armed.
    pub fn is_armed(self) -> bool {
        self.0 != NONE
    }
}

/// A timer wheel. A value of type `O` identifies the owner of each timer.
#[derive(Debug)]
pub struct TimerWheel<O> {
    /// Current time in ticks of 2¹⁶ ns. All timers of earlier ticks have fired.
    elapsed: u64,
    lists: Lists,
    /// Number of the list whose timers are being moved to other lists, because its time has come.
    moving: Option<u16>,
    timers: Queue<WheelTimer<O>>,
    /// Number of list operations so far, as a measure of the work.
    pub operations: u64,
}

#[derive(Debug)]
struct WheelTimer<O> {
    deadline: Instant,
    /// Number of the list that contains the timer: `level * SLOTS + slot`, or [`LATER`] or
    /// [`LATER`] + 1 for later blocks of time, or [`DUE`].
    list: u16,
    owner: O,
}

/// All lists of timers: one for each slot of each level, lists for later timers, and a list of
/// timers that are due.
#[derive(Debug)]
struct Lists {
    levels: [Level; LEVELS],
    /// Timers whose deadline is beyond the current block of 2⁵² ns. The first list is for the next
    /// even block, and the second for the next odd block.
    later: [WheelSlot; 2],
    due: WheelSlot,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    /// Bit set of the slots that contain at least one timer.
    occupied: u64,
    slots: [WheelSlot; SLOTS],
}

#[derive(Debug, Clone, Copy)]
struct WheelSlot {
    list: List,
    /// Lower bound of the deadlines in this slot. The bound is lower than all of them if the
    /// earliest timer was cancelled.
    earliest: Instant,
}

impl WheelSlot {
    const EMPTY: WheelSlot = WheelSlot { list: List::EMPTY, earliest: Instant::FAR };

    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Binary logarithm of the length of a tick in nanoseconds. With longer ticks, timers fire later;
/// with shorter ticks, the six levels cover less time.
const TICK_SHIFT: u32 = 16;
/// Binary logarithm of the number of slots per level. The bit set of a level's slots fits in one
/// word.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Number of levels. Six levels cover a block of 2⁵² ns, which are 52 days.
const LEVELS: usize = 6;
const BLOCK_BITS: u32 = SLOT_BITS * LEVELS as u32;
/// Number of the first of the two lists for later blocks, see [`Lists::later`].
const LATER: u16 = (LEVELS * SLOTS) as u16;
const DUE: u16 = u16::MAX;

impl<O: Copy> TimerWheel<O> {
    /// Creates a timer wheel without timers.
    pub fn new(now: Instant) -> Self {
        Self {
            elapsed: now.0 >> TICK_SHIFT,
            lists: Lists {
                levels: [Level { occupied: 0, slots: [WheelSlot::EMPTY; SLOTS] }; LEVELS],
                later: [WheelSlot::EMPTY; 2],
                due: WheelSlot::EMPTY,
            },
            moving: None,
            timers: Queue::default(),
            operations: 0,
        }
    }

    /// Returns the number of armed timers.
    pub fn len(&self) -> usize {
        self.timers.len()
    }

    /// Returns whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Arms the timer `id` for `deadline`, or cancels it if that is `None`. A timer that is already
    /// armed for an earlier time is not changed. The timer then fires too early, and its owner arms
    /// it again for the later time. An acknowledgment that postpones a retransmission therefore
    /// needs no list operation.
    pub fn set(&mut self, id: &mut TimerId, deadline: Option<Instant>, owner: O) {
        let Some(deadline) = deadline else { return self.cancel(id) };
        match self.timers.get_mut(id.0) {
            Some(timer) if timer.deadline <= deadline => {}
            Some(timer) => {
                timer.deadline = deadline;
                self.shift(id.0);
            }
            None => {
                let list = self.list_for(deadline);
                self.operations += 1;
                let timer = WheelTimer { deadline, list, owner };
                *id = TimerId(self.timers.push(&mut self.lists.slot_mut(list).list, timer));
                self.lists.on_joined(list, deadline);
            }
        }
    }

    /// Cancels the timer `id`, if it is armed.
    pub fn cancel(&mut self, id: &mut TimerId) {
        if id.is_armed() {
            self.take(id.0);
            *id = TimerId::NONE;
        }
    }

    /// Removes a timer that is due, and returns its owner, whose [`TimerId`] is then invalid.
    /// `moves` is the maximum number of timers that may be moved to other lists, and is decremented
    /// for each. If it reaches 0, further timers may be due in the next turn of the event loop.
    pub fn pop(&mut self, now: Instant, moves: &mut usize) -> Option<O> {
        if self.lists.due.is_empty() {
            self.advance(now.0 >> TICK_SHIFT, moves);
        }
        let index = self.lists.due.list.front()?;
        self.take(index)
    }

    /// Returns the time up to which the wheel has advanced. Timers that are armed for an earlier
    /// time are due.
    pub fn passed(&self) -> Instant {
        Instant(self.elapsed << TICK_SHIFT)
    }

    /// Returns the time at which [`TimerWheel::pop`] may return a timer. The time is only too early
    /// if a timer was cancelled.
    pub fn next_timeout(&self) -> Option<Instant> {
        let Lists { levels, later, due } = &self.lists;
        if !due.is_empty() {
            return Some(due.earliest);
        }
        if self.moving.is_some() {
            return Some(Instant(self.elapsed << TICK_SHIFT));
        }
        let slot = match self.lists.first_slot() {
            Some((level, slot)) => &levels[level].slots[slot],
            // The two lists are for the next block of 2⁵² ns and the one after it. The second list
            // remains empty until the next block begins.
            None => later.iter().find(|slot| !slot.is_empty())?,
        };
        Some(Instant(tick_of(slot.earliest) << TICK_SHIFT))
    }

    /// Advances the wheel to `tick`. Moves the timers of all slots that begin until then to lower
    /// levels, or to the list of due timers.
    fn advance(&mut self, tick: u64, moves: &mut usize) {
        loop {
            if let Some(list) = self.moving
                && !self.move_some(list, moves)
            {
                return;
            }
            self.moving = self.begin_next(tick);
            if self.moving.is_none() {
                break;
            }
        }
        self.elapsed = self.elapsed.max(tick);
    }

    /// Moves the timers of a list to the lists in which they belong now. Returns false if `moves`
    /// is exhausted. No timer is moved back to this list, because no timers are added to a slot or
    /// block that has begun.
    fn move_some(&mut self, list: u16, moves: &mut usize) -> bool {
        while let Some(index) = self.lists.slot_mut(list).list.front() {
            if *moves == 0 {
                return false;
            }
            *moves -= 1;
            self.shift(index);
        }
        true
    }

    /// Returns the next list whose time begins at `tick` or earlier, and advances the wheel to this
    /// time.
    fn begin_next(&mut self, tick: u64) -> Option<u16> {
        let block = self.elapsed >> BLOCK_BITS;
        if let Some((level, slot)) = self.lists.first_slot() {
            let shift = SLOT_BITS * level as u32;
            let before = self.elapsed >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
            let start = before | (slot as u64) << shift;
            self.elapsed = self.elapsed.max(start.min(tick));
            return (start <= tick).then_some((level * SLOTS + slot) as u16);
        }
        if block >= tick >> BLOCK_BITS || self.lists.later.iter().all(WheelSlot::is_empty) {
            return None;
        }
        self.elapsed = (block + 1) << BLOCK_BITS;
        Some(later_list(block + 1))
    }

    fn list_for(&self, deadline: Instant) -> u16 {
        let tick = tick_of(deadline);
        if tick <= self.elapsed {
            return DUE;
        }
        let block = self.elapsed >> BLOCK_BITS;
        if tick >> BLOCK_BITS != block {
            return later_list(block + 1);
        }
        let differing = tick ^ self.elapsed;
        let level = (differing.ilog2() / SLOT_BITS) as usize;
        let slot = (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        (level * SLOTS + slot) as u16
    }

    /// Moves a timer to the list in which its deadline belongs now.
    fn shift(&mut self, index: u32) {
        let Some(&WheelTimer { deadline, list: from, .. }) = self.timers.get(index) else { return };
        let to = self.list_for(deadline);
        self.operations += 2;
        self.timers.unlink(&mut self.lists.slot_mut(from).list, index);
        self.lists.on_left(from);
        self.timers.link(&mut self.lists.slot_mut(to).list, index);
        self.lists.on_joined(to, deadline);
        if let Some(timer) = self.timers.get_mut(index) {
            timer.list = to;
        }
    }

    /// Removes a timer from the wheel, and returns its owner.
    fn take(&mut self, index: u32) -> Option<O> {
        let list = self.timers.get(index)?.list;
        self.operations += 1;
        let timer = self.timers.remove(&mut self.lists.slot_mut(list).list, index);
        self.lists.on_left(list);
        timer.map(|timer| timer.owner)
    }
}

impl Lists {
    /// Returns the level and number of the earliest slot with timers. All slots of a level are
    /// earlier than those of higher levels.
    fn first_slot(&self) -> Option<(usize, usize)> {
        let level = self.levels.iter().position(|level| level.occupied != 0)?;
        Some((level, self.levels[level].occupied.trailing_zeros() as usize))
    }

    fn slot_mut(&mut self, list: u16) -> &mut WheelSlot {
        match list {
            DUE => &mut self.due,
            LATER.. => &mut self.later[usize::from(list - LATER)],
            list => &mut self.levels[list as usize / SLOTS].slots[list as usize % SLOTS],
        }
    }

    /// Updates the state of a list after a timer with the deadline `deadline` was added to it.
    fn on_joined(&mut self, list: u16, deadline: Instant) {
        let slot = self.slot_mut(list);
        slot.earliest = slot.earliest.min(deadline);
        if list < LATER {
            self.levels[list as usize / SLOTS].occupied |= 1 << (list as usize % SLOTS);
        }
    }

    /// Updates the state of a list after a timer was removed from it.
    fn on_left(&mut self, list: u16) {
        let slot = self.slot_mut(list);
        if !slot.is_empty() {
            return;
        }
        *slot = WheelSlot::EMPTY;
        if list < LATER {
            self.levels[list as usize / SLOTS].occupied &= !(1 << (list as usize % SLOTS));
        }
    }
}

/// Returns the number of the list for timers of a later block of time (2⁵² ns), until that block
/// begins. Then the list is used for the block after the next one.
fn later_list(block: u64) -> u16 {
    LATER + (block & 1) as u16
}

/// Returns the first tick at which the time `deadline` has passed.
fn tick_of(deadline: Instant) -> u64 {
    deadline.0.div_ceil(1 << TICK_SHIFT)
}

#[cfg(test)]
mod tests {
    use towpath_dice::Dice;

    use super::*;

    const MS: u64 = 1_000_000;
    const BLOCK: u64 = 1 << (BLOCK_BITS + TICK_SHIFT);

    fn pop<O: Copy>(wheel: &mut TimerWheel<O>, now: Instant) -> Option<O> {
        let mut moves = usize::MAX;
        wheel.pop(now, &mut moves)
    }

    #[test]
    fn fires_in_time_never_early() {
        let mut wheel = TimerWheel::new(Instant(12_345 * MS));
        let mut dice = Dice::new(1, 0);
        let mut deadlines = Vec::new();
        for owner in 0..5000u32 {
            let spread = [1, 100, 10_000, 5_000_000][owner as usize % 4];
            let deadline = Instant(12_345 * MS + dice.below(spread * MS));
            wheel.set(&mut { TimerId::NONE }, Some(deadline), owner);
            deadlines.push(deadline);
        }
        let mut fired = 0;
        while let Some(now) = wheel.next_timeout() {
            while let Some(owner) = pop(&mut wheel, now) {
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
        let mut wheel = TimerWheel::new(Instant(0));
        let mut a = TimerId::NONE;
        let mut b = TimerId::NONE;
        wheel.set(&mut a, Some(Instant(5 * MS)), 'a');
        wheel.set(&mut b, Some(Instant(7 * MS)), 'b');
        wheel.cancel(&mut a);
        assert!(!a.is_armed());
        let before = wheel.operations;
        wheel.set(&mut b, Some(Instant(9 * MS)), 'b');
        assert_eq!(wheel.operations, before);
        assert_eq!(pop(&mut wheel, Instant(6 * MS)), None);
        assert_eq!(pop(&mut wheel, Instant(9 * MS)), Some('b'));
        assert_eq!(wheel.next_timeout(), None);
    }

    #[test]
    fn an_earlier_deadline_moves_it_forward() {
        let mut wheel = TimerWheel::new(Instant(0));
        let mut id = TimerId::NONE;
        wheel.set(&mut id, Some(Instant(60_000 * MS)), ());
        wheel.set(&mut id, Some(Instant(2 * MS)), ());
        let next = wheel.next_timeout().expect("armed");
        assert!(next.0 >= 2 * MS && next.0 <= 3 * MS);
        assert_eq!(pop(&mut wheel, next), Some(()));
    }

    #[test]
    fn the_far_future_is_kept() {
        let mut wheel = TimerWheel::new(Instant(0));
        let year = 365 * 86_400_000 * MS;
        wheel.set(&mut { TimerId::NONE }, Some(Instant(year)), ());
        let mut wakes = 0;
        while let Some(now) = wheel.next_timeout() {
            wakes += 1;
            assert!(wakes < 100, "stuck");
            if pop(&mut wheel, now).is_some() {
                assert!(now.0 >= year);
                return;
            }
        }
        panic!("lost");
    }

    /// No timer fires early when a block of 52 days ends and the next one begins.
    #[test]
    fn none_fires_early_when_a_block_begins() {
        let start = 3 * BLOCK - 5000 * MS;
        let mut wheel = TimerWheel::new(Instant(start));
        let mut dice = Dice::new(7, 0);
        let mut deadlines = Vec::new();
        for owner in 0..1000u32 {
            let spread = [1000, 10_000, 100_000, 12_000_000_000][owner as usize % 4];
            let deadline = Instant(start + dice.below(spread * MS));
            wheel.set(&mut { TimerId::NONE }, Some(deadline), owner);
            deadlines.push(deadline);
        }
        let beyond = deadlines.iter().filter(|deadline| deadline.0 > 3 * BLOCK).count();
        assert!((300..700).contains(&beyond), "{beyond}");
        let (mut fired, mut wakes) = (0, 0);
        while let Some(now) = wheel.next_timeout() {
            wakes += 1;
            while let Some(owner) = pop(&mut wheel, now) {
                let deadline = deadlines[owner as usize];
                assert!(deadline <= now, "{} ms early", (deadline.0 - now.0) / MS);
                assert!(now.0 - deadline.0 <= 1 << TICK_SHIFT, "{} ns late", now.0 - deadline.0);
                fired += 1;
            }
        }
        assert_eq!((fired, wheel.len()), (1000, 0));
        assert!(wakes <= 6000, "{wakes} wakes");
    }

    /// Tests deadlines just before and just after the end of a level or block. Timers are armed on
    /// both sides of the end, and the clock also stops at the last tick.
    #[test]
    fn the_last_tick_of_a_level_and_of_a_block_is_like_any_other() {
        for bits in (SLOT_BITS..=BLOCK_BITS).step_by(SLOT_BITS as usize) {
            let (round, border) = (1 << bits, 3 << bits);
            let ticks = [border - 2, border - 1, border, border + 1];
            let ticks = [&ticks[..], &ticks.map(|tick| tick + round)].concat();
            for begin in [border - round, border - 3, border - 1] {
                let mut wheel = TimerWheel::new(Instant(begin << TICK_SHIFT));
                let mut pending: Vec<Instant> = Vec::new();
                let stops = ticks.iter().filter(|tick| **tick >= begin);
                let stops =
                    stops.flat_map(|tick| [tick << TICK_SHIFT, ((tick + 1) << TICK_SHIFT) - 1]);
                for now in stops.map(Instant) {
                    let mut fired = Vec::new();
                    while let Some(deadline) = pop(&mut wheel, now) {
                        fired.push(deadline);
                    }
                    fired.sort_unstable();
                    let mut due: Vec<_> =
                        pending.extract_if(.., |deadline| *deadline <= now).collect();
                    due.sort_unstable();
                    assert_eq!(fired, due, "{bits} bits, begun at {begin}, now {}", now.0);
                    let tick = now.0 >> TICK_SHIFT;
                    for later in ticks.iter().filter(|later| **later > tick) {
                        let deadline = Instant(later << TICK_SHIFT);
                        wheel.set(&mut { TimerId::NONE }, Some(deadline), deadline);
                        pending.push(deadline);
                    }
                    let first = pending.iter().min();
                    assert!(wheel.next_timeout() <= first.copied() || first.is_none());
                    assert!(wheel.next_timeout().is_some() || first.is_none());
                }
                assert!(pending.is_empty() && wheel.is_empty());
            }
        }
    }

    #[test]
    fn a_full_slot_moves_a_little_at_a_time() {
        let mut wheel = TimerWheel::new(Instant(0));
        for owner in 0..100_000u32 {
            let deadline = Instant(60_000 * MS + u64::from(owner) * 1000);
            wheel.set(&mut { TimerId::NONE }, Some(deadline), owner);
        }
        let mut cancelled = TimerId::NONE;
        wheel.set(&mut cancelled, Some(Instant(60_000 * MS + 70)), 100_000);
        let (mut fired, mut turns) = (0, 0);
        while let Some(now) = wheel.next_timeout() {
            let before = wheel.operations;
            let mut moves = 1000;
            for _ in 0..1000 {
                if wheel.pop(now.max(Instant(60_000 * MS)), &mut moves).is_none() {
                    break;
                }
                fired += 1;
            }
            let work = wheel.operations - before;
            assert!(work <= 2 * 1000 + 1000, "{work} in one turn");
            turns += 1;
            if turns == 3 {
                wheel.cancel(&mut cancelled);
            }
        }
        assert_eq!((fired, wheel.len()), (100_000, 0));
    }

    #[test]
    fn work_does_not_grow_with_the_number_of_timers() {
        let cost = |count: u32| {
            let mut wheel = TimerWheel::new(Instant(0));
            let mut dice = Dice::new(7, 0);
            for owner in 0..count {
                wheel.set(&mut { TimerId::NONE }, Some(Instant(dice.below(120_000 * MS))), owner);
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
