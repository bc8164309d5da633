//! A ring through which a thread passes items to another thread of the process. The receiver may
//! leave another item in the place of each item that it takes.
//!
//! Therefore packets need no second ring for returning their buffers. The receiver leaves an empty
//! buffer in the packet's place, and the sender gets it when it uses that place again. The number
//! of buffers per thread stays constant.
//!
//! The algorithm is that of `protocol.rs`, but for batches. Items become visible to the receiver by
//! [`Giver::publish`], and places become free for the sender by [`Taker::give_back`]. Only these
//! two calls write to shared words.

use towpath_shm::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::Arc};
#[cfg(not(loom))]
use std::{cell::UnsafeCell, sync::Arc};

/// Creates a ring for up to `places` items, and returns its sending and receiving end.
///
/// ```
/// let (mut giver, mut taker) = towpath_ring::exchange(2);
/// assert_eq!(giver.give("a packet"), Ok(None));
/// assert!(taker.take(|item| (item, None)).is_none(), "nothing was published");
/// assert!(giver.publish());
/// assert_eq!(taker.take(|item| (item, Some("an empty one"))), Some("a packet"));
/// taker.give_back();
///
/// // Second pass over the ring.
/// assert_eq!(giver.give("b"), Ok(None));
/// assert_eq!(giver.give("c"), Ok(Some("an empty one")));
/// assert_eq!(giver.give("d"), Err("d"), "the ring is full");
/// ```
///
/// # Panics
/// Panics if `places` is not a power of two, or exceeds 2^16.
pub fn exchange<T>(places: u32) -> (Giver<T>, Taker<T>) {
    assert!(places.is_power_of_two() && places <= 1 << 16, "{places} places");
    let ring = Arc::new(Ring {
        given: Line(AtomicU32::new(0)),
        taken: Line(AtomicU32::new(0)),
        places: (0..places).map(|_| UnsafeCell::new(None)).collect(),
    });
    let giver = Giver { ring: Arc::clone(&ring), at: 0, published: 0, free_until: places };
    (giver, Taker { ring, at: 0, given_back: 0, given_until: 0 })
}

/// The memory shared by sender and receiver. Its two positions only grow, modulo 2^32, and differ
/// by at most the number of places.
#[derive(Debug)]
struct Ring<T> {
    /// End of the places that the receiver (taker) may access. Written by the sender (giver).
    given: Line<AtomicU32>,
    /// Places before this position may be accessed by the giver (sender) again. Written by the
    /// taker (receiver).
    taken: Line<AtomicU32>,
    places: Box<[UnsafeCell<Option<T>>]>,
}

/// Value aligned to 128 bytes to avoid false sharing, because processors prefetch pairs of cache
/// lines.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: only one end accesses a place at any time: the taker those from `taken` to `given`, the
// giver all others. An end gains access by an acquire load of the position that the other end
// stored with release ordering after its last access. Each end belongs to one thread at a time,
// because its methods take `&mut self`. Items are therefore sent between threads, not shared.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the ring contains nothing but its items, which are `Send`.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// Replaces the content of the place at position `at` with `item`, and returns the old content.
    ///
    /// # Safety
    /// According to the positions of [`Ring`], the place must belong to the caller.
    unsafe fn replace(&self, at: u32, item: Option<T>) -> Option<T> {
        let place = &self.places[at as usize & (self.places.len() - 1)];
        #[cfg(loom)]
        // SAFETY: the place belongs to the caller, by the contract of `replace`; loom checks it.
        return place.with_mut(|place| unsafe { place.replace(item) });
        #[cfg(not(loom))]
        // SAFETY: the place belongs to the caller, by the contract of `replace`.
        unsafe {
            place.get().replace(item)
        }
    }
}

/// The sending end of an [`exchange`] ring.
#[derive(Debug)]
pub struct Giver<T> {
    ring: Arc<Ring<T>>,
    /// Position of the next item to be sent.
    at: u32,
    /// Position up to which items are visible to the receiving end.
    published: u32,
    /// Position up to which places are known to be free.
    free_until: u32,
}

impl<T> Giver<T> {
    /// Adds an item to the ring, and returns the item that the receiver has left in the same place,
    /// if any. The receiver sees the new item after [`Giver::publish`].
    ///
    /// # Errors
    /// Returns `item` if the ring is full.
    pub fn give(&mut self, item: T) -> Result<Option<T>, T> {
        if self.at == self.free_until {
            // Acquire: the receiver's accesses to the places that it gave back happen before this
            // load.
            let taken = self.ring.taken.0.load(Ordering::Acquire);
            self.free_until = taken.wrapping_add(self.ring.places.len() as u32);
            if self.at == self.free_until {
                return Err(item);
            }
        }
        // SAFETY: `at` is before `free_until`, so the receiver has given the place back or never
        // had it. The receiver does not access places from `published` on.
        let left = unsafe { self.ring.replace(self.at, Some(item)) };
        self.at = self.at.wrapping_add(1);
        Ok(left)
    }

    /// Makes the added items visible to the receiver. Returns false if there are none; otherwise
    /// the caller must wake the receiver if it sleeps.
    pub fn publish(&mut self) -> bool {
        if self.at == self.published {
            return false;
        }
        self.published = self.at;
        self.ring.given.0.store(self.at, Ordering::Release);
        true
    }
}

/// The receiving end of an [`exchange`] ring.
#[derive(Debug)]
pub struct Taker<T> {
    ring: Arc<Ring<T>>,
    /// Position of the next item to be received.
    at: u32,
    /// Position up to which the receiver has given places back to the sender.
    given_back: u32,
    /// Position up to which items are known to be visible.
    given_until: u32,
}

impl<T> Taker<T> {
    /// Takes the next item, if there is one. `then` returns the result and an optional item to
    /// leave in its place for the sender.
    pub fn take<R>(&mut self, then: impl FnOnce(T) -> (R, Option<T>)) -> Option<R> {
        if self.at == self.given_until {
            // Acquire: the items that the sender wrote are visible.
            self.given_until = self.ring.given.0.load(Ordering::Acquire);
            if self.at == self.given_until {
                return None;
            }
        }
        // SAFETY: `at` is before `given_until`, so the sender has published the place. The sender
        // will not access the place before `give_back`.
        let item = unsafe { self.ring.replace(self.at, None) };
        let taken = item.map(|item| {
            let (taken, left) = then(item);
            // SAFETY: the place belongs to the receiver until `give_back`.
            unsafe { self.ring.replace(self.at, left) };
            taken
        });
        debug_assert!(taken.is_some(), "what is published has an item");
        self.at = self.at.wrapping_add(1);
        taken
    }

    /// Returns whether the ring has no item to take.
    pub fn is_empty(&self) -> bool {
        self.at == self.ring.given.0.load(Ordering::Acquire)
    }

    /// Gives the places of the taken items back to the sender.
    pub fn give_back(&mut self) {
        if self.at != self.given_back {
            self.given_back = self.at;
            self.ring.taken.0.store(self.at, Ordering::Release);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::exchange;
    use loom::thread;

    /// Sends items through a ring with two places. Each is replaced by one with its number plus
    /// 100.
    fn keeps_order_and_returns_what_is_left(items: i32) {
        loom::model(move || {
            let (mut giver, mut taker) = exchange(2);
            let gives = thread::spawn(move || {
                let mut left = Vec::new();
                for item in 0..items {
                    while giver.give(Box::new(item)).map(|it| left.extend(it)).is_err() {
                        thread::yield_now();
                    }
                    // Publish the first two items together.
                    if item != 0 {
                        assert!(giver.publish());
                    }
                }
                left
            });
            let mut seen = 0;
            while seen < items {
                match taker.take(|item| (*item, Some(Box::new(*item + 100)))) {
                    Some(item) => {
                        assert_eq!(item, seen);
                        seen += 1;
                        taker.give_back();
                    }
                    None => thread::yield_now(),
                }
            }
            let left: Vec<i32> = gives.join().unwrap().into_iter().map(|item| *item).collect();
            let all: Vec<i32> = (100..98 + items).collect();
            assert_eq!(left, all);
        });
    }

    #[test]
    fn loom_an_exchange_keeps_order_and_returns_what_is_left() {
        keeps_order_and_returns_what_is_left(3);
    }

    /// Models that take twenty seconds, so they run only at night.
    mod nightly {
        #[test]
        fn loom_an_exchange_of_four_keeps_order_and_returns_what_is_left() {
            super::keeps_order_and_returns_what_is_left(4);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_full_ring_returns_the_item_and_positions_wrap() {
        let (mut giver, mut taker) = exchange(4);
        for ring in [&giver.ring.given, &giver.ring.taken] {
            ring.0.store(u32::MAX - 1, Ordering::Relaxed);
        }
        (giver.at, giver.published, giver.free_until) = (u32::MAX - 1, u32::MAX - 1, 2);
        (taker.at, taker.given_back, taker.given_until) =
            (u32::MAX - 1, u32::MAX - 1, u32::MAX - 1);
        for round in 0..10 {
            for n in 0..4 {
                assert_eq!(giver.give(10 * round + n), Ok(None));
            }
            assert_eq!(giver.give(99), Err(99));
            assert!(taker.is_empty() && giver.publish() && !giver.publish());
            for n in 0..4 {
                assert_eq!(taker.take(|item| (item, None)), Some(10 * round + n));
                assert_eq!(giver.give(99), Err(99), "it was not given back");
            }
            assert!(taker.is_empty());
            taker.give_back();
        }
    }

    #[test]
    fn what_is_in_the_ring_is_dropped_with_it() {
        let item = Arc::new(());
        let (mut giver, taker) = exchange(4);
        for _ in 0..3 {
            giver.give(Arc::clone(&item)).unwrap();
        }
        giver.publish();
        drop(giver);
        assert_eq!(Arc::strong_count(&item), 4);
        drop(taker);
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn two_threads_hand_boxes_to_and_fro() {
        const COUNT: u64 = 20_000;
        let start = std::time::Instant::now();
        let goes_on = move || assert!(start.elapsed().as_secs() < 50, "nothing comes any more");
        let (mut giver, mut taker) = exchange(64);
        let takes = thread::spawn(move || {
            let mut sum = 0;
            let mut seen = 0;
            while seen < COUNT {
                while let Some(item) = taker.take(|item: Box<u64>| (*item, Some(item))) {
                    assert_eq!(item, seen, "in order");
                    (sum, seen) = (sum + item, seen + 1);
                }
                taker.give_back();
                goes_on();
                thread::yield_now();
            }
            sum
        });
        let (mut spare, mut made) = (Vec::new(), 0);
        for n in 0..COUNT {
            let mut item = spare.pop().unwrap_or_else(|| {
                made += 1;
                Box::new(0)
            });
            *item = n;
            loop {
                match giver.give(item) {
                    Ok(left) => break spare.extend(left),
                    Err(back) => {
                        item = back;
                        giver.publish();
                        goes_on();
                        thread::yield_now();
                    }
                }
            }
        }
        giver.publish();
        assert_eq!(takes.join().unwrap(), COUNT * (COUNT - 1) / 2);
        assert!(made <= 65, "{made} boxes for 64 places");
    }
}
