//! A ring between two threads of one process that moves items, not bytes. The taker may give each
//! place back with another item in it.
//!
//! So threads that hand packets to each other need no second ring for their buffers. The taker
//! leaves an empty buffer in the packet's place, and the giver finds it when it comes to that place
//! again. Each has as many as before.
//!
//! The algorithm is that of the other rings (`protocol.rs`), a batch at a time. Items show when
//! they are [published](Giver::publish), and places are free when they are [given
//! back](Taker::give_back). Between these calls no word is shared.

use towpath_shm::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::Arc};
#[cfg(not(loom))]
use std::{cell::UnsafeCell, sync::Arc};

/// Makes a ring with `places` places, a power of two, and its two ends.
///
/// ```
/// let (mut giver, mut taker) = towpath_ring::exchange(2);
/// assert_eq!(giver.give("a packet"), Ok(None));
/// assert!(taker.take(|item| (item, None)).is_none(), "nothing was published");
/// assert!(giver.publish());
/// assert_eq!(taker.take(|item| (item, Some("an empty one"))), Some("a packet"));
/// taker.give_back();
///
/// // The second time round.
/// assert_eq!(giver.give("b"), Ok(None));
/// assert_eq!(giver.give("c"), Ok(Some("an empty one")));
/// assert_eq!(giver.give("d"), Err("d"), "the ring is full");
/// ```
///
/// # Panics
/// When `places` is no power of two.
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

/// Both positions only grow, modulo 2^32; they are never further apart than there are places.
#[derive(Debug)]
struct Ring<T> {
    /// Up to here places are the taker's; the giver writes it.
    given: Line<AtomicU32>,
    /// Up to here they are the giver's again; the taker writes it.
    taken: Line<AtomicU32>,
    places: Box<[UnsafeCell<Option<T>>]>,
}

/// On cache lines of its own, the one that processors fetch along with it among them.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: at each time one end alone reaches a place: the taker those from `taken` to `given`, the
// giver all others. An end learns by an acquiring load that it may reach a place, from the
// releasing store after the other end left it. Each end is one thread's at a time, because its
// methods take it by `&mut`. So an item is sent from thread to thread, and not shared.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: what it owns is its items.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// Exchanges the content of the place of position `at` for `item`.
    ///
    /// # Safety
    /// The place is the caller's, by what [`Ring`]'s positions say.
    unsafe fn replace(&self, at: u32, item: Option<T>) -> Option<T> {
        let place = &self.places[at as usize & (self.places.len() - 1)];
        #[cfg(loom)]
        // SAFETY: the caller's duty; loom checks it.
        return place.with_mut(|place| unsafe { place.replace(item) });
        #[cfg(not(loom))]
        // SAFETY: the caller's duty.
        unsafe {
            place.get().replace(item)
        }
    }
}

/// The end that gives. See [`exchange`].
#[derive(Debug)]
pub struct Giver<T> {
    ring: Arc<Ring<T>>,
    /// The next place.
    at: u32,
    /// Position up to which the taker sees items.
    published: u32,
    /// Up to here places are known to be ours.
    free_until: u32,
}

impl<T> Giver<T> {
    /// Puts an item into the ring, and returns what the taker left in its place. The taker sees it
    /// after
    /// [`Giver::publish`].
    ///
    /// # Errors
    /// The item, when the ring is full.
    pub fn give(&mut self, item: T) -> Result<Option<T>, T> {
        if self.at == self.free_until {
            // Acquire: the taker is done with the places that it gave back.
            let taken = self.ring.taken.0.load(Ordering::Acquire);
            self.free_until = taken.wrapping_add(self.ring.places.len() as u32);
            if self.at == self.free_until {
                return Err(item);
            }
        }
        // SAFETY: `at` is before `free_until`, so the taker has given the place back, or never had
        // it. The taker sees no place from `published` on.
        let left = unsafe { self.ring.replace(self.at, Some(item)) };
        self.at = self.at.wrapping_add(1);
        Ok(left)
    }

    /// Shows the taker what was given. True when that is anything: if the taker sleeps it has to be
    /// woken.
    pub fn publish(&mut self) -> bool {
        if self.at == self.published {
            return false;
        }
        self.published = self.at;
        self.ring.given.0.store(self.at, Ordering::Release);
        true
    }
}

/// The end that takes. See [`exchange`].
#[derive(Debug)]
pub struct Taker<T> {
    ring: Arc<Ring<T>>,
    /// The next place.
    at: u32,
    /// Position up to which the giver sees free places.
    given_back: u32,
    /// Up to here items are known to have been given.
    given_until: u32,
}

impl<T> Taker<T> {
    /// Takes the next item, if there is one, and leaves in its place what `then` makes besides of
    /// it.
    pub fn take<R>(&mut self, then: impl FnOnce(T) -> (R, Option<T>)) -> Option<R> {
        if self.at == self.given_until {
            // Acquire: what the giver put into the places shows.
            self.given_until = self.ring.given.0.load(Ordering::Acquire);
            if self.at == self.given_until {
                return None;
            }
        }
        // SAFETY: `at` is before `given_until`, so that the giver has published the place, and it
        // has it again only from `give_back` on.
        let item = unsafe { self.ring.replace(self.at, None) };
        let taken = item.map(|item| {
            let (taken, left) = then(item);
            // SAFETY: as above.
            unsafe { self.ring.replace(self.at, left) };
            taken
        });
        debug_assert!(taken.is_some(), "what is published has an item");
        self.at = self.at.wrapping_add(1);
        taken
    }

    /// Whether there is anything to take.
    pub fn is_empty(&self) -> bool {
        self.at == self.ring.given.0.load(Ordering::Acquire)
    }

    /// Lets the giver have the places of what was taken.
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

    /// Sends items through two places, each exchanged for one that names the item that it was
    /// exchanged for.
    fn keeps_order_and_returns_what_is_left(items: i32) {
        loom::model(move || {
            let (mut giver, mut taker) = exchange(2);
            let gives = thread::spawn(move || {
                let mut left = Vec::new();
                for item in 0..items {
                    while giver.give(Box::new(item)).map(|it| left.extend(it)).is_err() {
                        thread::yield_now();
                    }
                    // The first two are one batch.
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

    /// Twenty seconds of interleavings.
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
