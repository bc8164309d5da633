//! Event queue of a simulation, which determines which actor is called next, and at which time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Scheduled time of each actor. Events are ordered by time, and then by the number of the actor.
///
/// If an actor postpones its time, as a host does whenever it restarts a timer, its heap entry is
/// kept. When that entry expires, it is moved to the later time. Actors scheduled for the current
/// time bypass the heap.
pub struct Schedule {
    /// Scheduled time of each actor, or `u64::MAX` if none is scheduled. Heap entries with another
    /// time are stale.
    wanted: Vec<u64>,
    /// Time of the earliest entry of each actor in the heap.
    entered: Vec<u64>,
    heap: BinaryHeap<Reverse<Key>>,
    /// Numbers of the actors scheduled for the current time.
    present: BinaryHeap<Reverse<u32>>,
    /// Current time, which is the time of the last event.
    now: u64,
}

/// Heap key with the time in the upper bits and the actor's number in the lower bits, so that the
/// heap compares keys without branches.
type Key = u128;

fn key(at: u64, actor: u32) -> Key {
    u128::from(at) << 32 | u128::from(actor)
}

fn parts(key: Key) -> (u64, u32) {
    ((key >> 32) as u64, key as u32)
}

impl Schedule {
    /// Creates a schedule for `actors` actors, none of which is scheduled.
    pub fn new(actors: usize) -> Self {
        Self {
            wanted: vec![u64::MAX; actors],
            entered: vec![u64::MAX; actors],
            heap: BinaryHeap::with_capacity(actors),
            present: BinaryHeap::new(),
            now: 0,
        }
    }

    /// Schedules an actor at the time `at`, unless an earlier time is scheduled. `at` must not be
    /// in the past.
    pub fn arm(&mut self, actor: usize, at: u64) {
        if at >= self.wanted[actor] {
            return;
        }
        self.wanted[actor] = at;
        if at == self.now {
            self.present.push(Reverse(actor as u32));
        } else if at < self.entered[actor] {
            self.entered[actor] = at;
            self.heap.push(Reverse(key(at, actor as u32)));
        }
    }

    /// Returns the scheduled time of an actor, or `u64::MAX` if none is scheduled.
    pub fn at(&self, actor: usize) -> u64 {
        self.wanted[actor]
    }

    /// Returns the time of the next event. `None` if no actor is scheduled.
    pub fn next(&mut self) -> Option<u64> {
        self.first().map(|(key, _)| parts(key).0)
    }

    /// Removes the next event, and returns its time and its actor. `None` if there is no event up
    /// to the time `end`.
    pub fn pop(&mut self, end: u64) -> Option<(u64, usize)> {
        let (first, is_present) = self.first()?;
        let (at, actor) = parts(first);
        if at > end {
            return None;
        }
        if is_present {
            self.present.pop();
        } else {
            self.heap.pop();
            self.entered[actor as usize] = u64::MAX;
        }
        self.wanted[actor as usize] = u64::MAX;
        self.now = at;
        Some((at, actor as usize))
    }

    /// Returns the key of the first event, and whether the event is from `present`.
    fn first(&mut self) -> Option<(Key, bool)> {
        let entry = self.first_entry().unwrap_or(Key::MAX);
        while let Some(&Reverse(actor)) = self.present.peek() {
            if self.wanted[actor as usize] == self.now {
                let present = key(self.now, actor);
                return Some((present.min(entry), present <= entry));
            }
            self.present.pop();
        }
        (entry != Key::MAX).then_some((entry, false))
    }

    /// Returns the first valid entry of the heap. Removes stale entries, and moves postponed ones.
    fn first_entry(&mut self) -> Option<Key> {
        loop {
            let &Reverse(first) = self.heap.peek()?;
            let (at, actor) = parts(first);
            let wanted = self.wanted[actor as usize];
            if wanted == at {
                return Some(first);
            }
            self.heap.pop();
            if self.entered[actor as usize] == at {
                self.entered[actor as usize] = u64::MAX;
                if wanted != u64::MAX && wanted > at {
                    self.entered[actor as usize] = wanted;
                    self.heap.push(Reverse(key(wanted, actor)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_qdisc::Dice;

    use super::*;

    #[test]
    fn actors_of_one_time_come_in_the_order_of_their_numbers() {
        let mut schedule = Schedule::new(4);
        for (actor, at) in [(3, 5), (1, 5), (2, 4), (0, 9)] {
            schedule.arm(actor, at);
        }
        assert_eq!((schedule.next(), schedule.pop(3)), (Some(4), None));
        assert_eq!([4, 5].map(|end| schedule.pop(end)), [Some((4, 2)), Some((5, 1))]);
        // The actor that was just called, and one with a smaller number, are scheduled again for
        // the same time.
        schedule.arm(1, 5);
        schedule.arm(0, 5);
        assert_eq!([0, 1, 3].map(|_| schedule.pop(9)), [0, 1, 3].map(|actor| Some((5, actor))));
        assert_eq!(schedule.pop(9), None);
    }

    #[test]
    fn the_order_is_that_of_a_list_that_is_searched_each_time() {
        for seed in 0..200 {
            let mut dice = Dice::new(seed, 0);
            let actors = 1 + dice.below(6) as usize;
            let (mut schedule, mut list) = (Schedule::new(actors), vec![u64::MAX; actors]);
            let mut now = 0;
            for _ in 0..400 {
                for _ in 0..dice.below(4) {
                    let actor = dice.below(actors as u64) as usize;
                    // Most times are near, some are the current time, and some are far, and
                    // postponed later.
                    let at = now + [0, dice.below(3), dice.below(50)][dice.below(3) as usize];
                    schedule.arm(actor, at);
                    list[actor] = list[actor].min(at);
                }
                let first = (0..actors).map(|actor| (list[actor], actor)).min();
                let first = first.filter(|(at, _)| *at != u64::MAX);
                assert_eq!(schedule.next(), first.map(|(at, _)| at), "seed {seed}");
                assert_eq!(schedule.pop(u64::MAX - 1), first, "seed {seed}");
                if let Some((at, actor)) = first {
                    (now, list[actor]) = (at, u64::MAX);
                }
            }
        }
    }
}
