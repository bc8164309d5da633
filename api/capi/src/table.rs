//! Table of the numbers by which a program names stacks, sockets and epoll sets.
//!
//! A number is 2^30, plus the generation of its entry, plus the index of the entry:
//!
//! ```text
//!   bit 31 30 29        20 19                    0
//!        0  1  generation   index of the entry
//! ```
//!
//! The kernel never assigns a descriptor of 2^30 or above, so a system call with a number of this
//! table fails with EBADF. A lookup is one atomic operation, without a lock. The entry counts the
//! calls that use it. If the program closes the number during calls, the last of these calls drops
//! the object.

use std::collections::VecDeque;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lowest number that the table assigns to an object.
pub const FIRST: i32 = 1 << 30;
/// Number of low bits that contain the index of the entry.
const INDEX_BITS: u32 = 20;
/// Number of generations of an entry. After as many reuses, a number of the entry repeats.
const GENERATIONS: u64 = 1 << (30 - INDEX_BITS);
/// Minimum number of free entries before one is reused. A closed number therefore stays invalid
/// while at least `GENERATIONS * WAITING_MIN` further objects are opened.
const WAITING_MIN: usize = 1024;

/// Bit of [`NumberEntry::word`] that is set while the number is open.
const OPEN: u64 = 1 << 63;
const GENERATION_SHIFT: u32 = 32;
const USERS: u64 = (1 << GENERATION_SHIFT) - 1;

/// A table of at most `N` objects, each named by a number.
pub struct NumberTable<T, const N: usize> {
    entries: [NumberEntry<T>; N],
    /// Indexes of entries that were used before and are free now, in the order in which they are
    /// reused.
    free: Mutex<VecDeque<u32>>,
    /// Number of entries that were ever used. Readable without the lock, which may stay locked
    /// forever in a forked child.
    used: AtomicU32,
}

struct NumberEntry<T> {
    /// Three parts: bit [`OPEN`], the generation, and the number of calls that use the object
    /// ([`USERS`]).
    word: AtomicU64,
    /// Pointer to the boxed object, valid from opening the number until its last user has left.
    object: AtomicPtr<T>,
}

/// Reference to an object of the table. The object stays alive until the reference is dropped, even
/// if the program closes the number.
pub struct InUse<'a, T: Send + Sync, const N: usize> {
    table: &'a NumberTable<T, N>,
    index: u32,
}

impl<T: Send + Sync, const N: usize> NumberTable<T, N> {
    pub const fn new() -> Self {
        const { assert!(N <= 1 << INDEX_BITS) };
        Self {
            entries: [const { NumberEntry::empty() }; N],
            free: Mutex::new(VecDeque::new()),
            used: AtomicU32::new(0),
        }
    }

    /// Adds an object, and returns its number. Returns `None` if the table is full.
    pub fn open(&self, object: T) -> Option<i32> {
        let index = self.take_free()?;
        let entry = &self.entries[index as usize];
        entry.object.store(Box::into_raw(Box::new(object)), Ordering::Relaxed);
        // A relaxed load is sufficient: this thread has removed the entry from the free list, so no
        // other thread changes the word.
        let generation = entry.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        entry.word.store(OPEN | generation << GENERATION_SHIFT, Ordering::Release);
        Some(FIRST | (generation as i32) << INDEX_BITS | index as i32)
    }

    /// Returns the object of a number, or `None` if the number is not open.
    #[inline]
    pub fn get(&self, number: i32) -> Option<InUse<'_, T, N>> {
        self.enter(number, OPEN)
    }

    /// Closes a number, which is invalid from now on, and returns its object. If several threads
    /// close the number, one gets the object.
    pub fn close(&self, number: i32) -> Option<InUse<'_, T, N>> {
        self.enter(number, 0)
    }

    fn enter(&self, number: i32, stays_open: u64) -> Option<InUse<'_, T, N>> {
        if number < FIRST {
            return None;
        }
        let payload = number.cast_unsigned() & (FIRST.cast_unsigned() - 1);
        let (index, generation) = (payload & ((1 << INDEX_BITS) - 1), payload >> INDEX_BITS);
        let entry = self.entries.get(index as usize)?;
        let open = OPEN | u64::from(generation) << GENERATION_SHIFT;
        let next = |word| (word & !USERS == open).then_some((word & !OPEN | stays_open) + 1);
        entry.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        Some(InUse { table: self, index })
    }

    /// Returns all open numbers. Takes no lock, so it also works in a forked child.
    pub fn numbers(&self) -> Vec<i32> {
        let used = self.used.load(Ordering::Acquire);
        let number = |index: u32| {
            let word = self.entries[index as usize].word.load(Ordering::Relaxed);
            let generation = (word & !OPEN) >> GENERATION_SHIFT;
            (word & OPEN != 0).then_some(FIRST | (generation as i32) << INDEX_BITS | index as i32)
        };
        (0..used).filter_map(number).collect()
    }

    /// Drops the object of a closed entry without users, and frees the entry.
    #[cold]
    fn free(&self, index: u32) {
        let entry = &self.entries[index as usize];
        let object = entry.object.swap(null_mut(), Ordering::Acquire);
        // SAFETY: `open` has stored the pointer of a box. The entry is closed, so no further user
        // enters, and this thread was the last one.
        drop(unsafe { Box::from_raw(object) });
        let generation = (entry.word.load(Ordering::Relaxed) >> GENERATION_SHIFT) + 1;
        entry.word.store((generation % GENERATIONS) << GENERATION_SHIFT, Ordering::Relaxed);
        self.free_entries().push_back(index);
    }

    fn take_free(&self) -> Option<u32> {
        let mut free = self.free_entries();
        let used = self.used.load(Ordering::Relaxed);
        if free.len() >= WAITING_MIN.min(N / 2) || used as usize == N {
            return free.pop_front();
        }
        self.used.store(used + 1, Ordering::Release);
        Some(used)
    }

    fn free_entries(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> NumberEntry<T> {
    const fn empty() -> Self {
        Self { word: AtomicU64::new(0), object: AtomicPtr::new(null_mut()) }
    }
}

impl<T: Send + Sync, const N: usize> Deref for InUse<'_, T, N> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `object` points to a box, which lives until the last user has left, and `self` is
        // a user.
        unsafe { &*self.table.entries[self.index as usize].object.load(Ordering::Relaxed) }
    }
}

impl<T: Send + Sync, const N: usize> Drop for InUse<'_, T, N> {
    #[inline]
    fn drop(&mut self) {
        let word = &self.table.entries[self.index as usize].word;
        let before = word.fetch_sub(1, Ordering::AcqRel);
        if before & OPEN == 0 && before & USERS == 1 {
            self.table.free(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    struct Counted(Arc<AtomicU32>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn numbers_of_the_kernel_and_closed_numbers_are_refused() {
        let table: NumberTable<u32, 8> = NumberTable::new();
        let number = table.open(7).expect("room");
        assert!(number >= FIRST);
        assert_eq!(table.get(number).map(|object| *object), Some(7));
        for wrong in [-1, i32::MIN, 0, 3, FIRST - 1, number + 1, number + (1 << 20), i32::MAX] {
            assert!(table.get(wrong).is_none(), "{wrong}");
        }
        assert!(table.close(number).is_some());
        assert!(table.get(number).is_none() && table.close(number).is_none());
    }

    #[test]
    fn a_closed_number_stays_invalid_while_its_entry_is_reused() {
        let table: NumberTable<u32, 8> = NumberTable::new();
        let first = table.open(0).expect("room");
        drop(table.close(first));
        // At least four entries stay free, so an entry is reused after at most eight objects.
        for n in 1..GENERATIONS as u32 {
            let number = table.open(n).expect("room");
            assert!(number != first && table.get(first).is_none());
            drop(table.close(number));
        }
    }

    #[test]
    fn a_full_table_refuses_objects_until_one_is_closed() {
        let table: NumberTable<u32, 4> = NumberTable::new();
        let numbers: Vec<i32> = (0..4).map(|n| table.open(n).expect("room")).collect();
        assert_eq!((table.open(4), table.numbers()), (None, numbers.clone()));
        drop(table.close(numbers[2]));
        assert_eq!(table.numbers().len(), 3);
        assert!(table.open(4).is_some());
    }

    #[test]
    fn open_numbers_are_listed_while_the_table_is_locked() {
        let table: NumberTable<u32, 4> = NumberTable::new();
        let number = table.open(0).expect("room");
        let _locked = table.free.lock();
        assert_eq!(table.numbers(), [number]);
    }

    #[test]
    fn the_last_user_drops_a_closed_object() {
        let (drops, table) = (Arc::new(AtomicU32::new(0)), NumberTable::<Counted, 4>::new());
        let number = table.open(Counted(Arc::clone(&drops))).expect("room");
        let user = table.get(number).expect("open");
        drop(table.close(number));
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        drop(user);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn threads_that_close_and_use_a_number_drop_its_object_once() {
        let (drops, table) = (Arc::new(AtomicU32::new(0)), NumberTable::<Counted, 4>::new());
        for round in 1..=500 {
            let number = table.open(Counted(Arc::clone(&drops))).expect("room");
            std::thread::scope(|scope| {
                let closers = [0, 1].map(|_| scope.spawn(|| table.close(number).is_some()));
                scope.spawn(|| table.get(number).map(|object| Arc::strong_count(&object.0)));
                let closed = closers.map(|closer| closer.join().expect("no panic"));
                assert!(closed[0] != closed[1]);
            });
            assert_eq!(drops.load(Ordering::Relaxed), round);
        }
    }
}
