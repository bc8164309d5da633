//! The order of events: each actor is called at the time that it asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Times at which actors want to be called: the earliest first, and those of one time in the order
/// of their numbers.
///
/// An actor that puts its time off keeps its entry in the heap: a host does so with each segment
/// that starts a timer anew. The entry moves to the later time when its own has come. An actor of
/// the present moment does not go through the heap.
pub struct Schedule {
    /// Time that each actor wants; `u64::MAX` for none. Entries that say another one are void.
    wanted: Vec<u64>,
    /// Time of the earliest entry of each actor in the heap.
    entered: Vec<u64>,
    heap: BinaryHeap<Reverse<Key>>,
    /// Actors of the moment `now`.
    present: BinaryHeap<Reverse<u32>>,
    /// Time of the last event.
    now: u64,
}

/// A time above the number of an actor, as one number: the heap compares it without a branch.
type Key = u128;

fn key(at: u64, actor: u32) -> Key {
    u128::from(at) << 32 | u128::from(actor)
}

fn parts(key: Key) -> (u64, u32) {
    ((key >> 32) as u64, key as u32)
}

impl Schedule {
    /// A schedule of so many actors, which want nothing yet.
    pub fn new(actors: usize) -> Self {
        Self {
            wanted: vec![u64::MAX; actors],
            entered: vec![u64::MAX; actors],
            heap: BinaryHeap::with_capacity(actors),
            present: BinaryHeap::new(),
            now: 0,
        }
    }

    /// Calls an actor at a time that has not passed, unless it wants an earlier one.
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

    /// Time at which an actor is called; `u64::MAX` for none.
    pub fn at(&self, actor: usize) -> u64 {
        self.wanted[actor]
    }

    /// Time of the next event.
    pub fn next(&mut self) -> Option<u64> {
        self.first().map(|(key, _)| parts(key).0)
    }

    /// The next event up to a time: when, and whose. Its actor wants nothing any more.
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

    /// The first event, and whether it is one of the present.
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

    /// The first entry of the heap, after those that are void or too early.
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
        // An actor that is called, and one before it, ask for the same moment once more.
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
                    // Most times are near, some are now, and some are far and put off again.
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
