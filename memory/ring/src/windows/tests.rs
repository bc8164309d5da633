//! Tests of extents that are allocated, freed, and returned to the kernel.

use towpath_dice::Dice;

use super::*;
use crate::area::{WINDOW_MAX, WINDOW_MIN};

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

/// Returns all excess pages at once, in place of the thread.
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
    // An eighth of the memory belongs to the transmit side. Half of that eighth is reserved for
    // first pages, one per FIFO.
    let c = windows.take(Side::Send, 1, 8 << 10).unwrap();
    assert_eq!(windows.usage().touched, 104 << 10);
    assert!(windows.take(Side::Send, 1, 1).is_none());
    let first = || windows.take_first(WINDOW_MIN, WINDOW_MIN, 4096);
    let mut firsts = vec![first().unwrap(), first().unwrap()];
    assert!(first().is_none());
    // An eighth is reserved for first pages of receive FIFOs.
    assert!(!windows.touch(&mut b, 13 << 10));
    firsts.extend((0..4).map(|_| windows.take(Side::Recv, 1, 4096).unwrap()));
    assert_eq!((windows.usage().touched, windows.receivable_first()), (128 << 10, 0));
    assert!(windows.take(Side::Recv, 1, 1).is_none() && first().is_none());
    // Freed memory refills the reserve of its side.
    windows.give(firsts.pop().unwrap());
    assert!(first().is_none());
    firsts.push(windows.take(Side::Recv, 1, 4096).unwrap());
    firsts.into_iter().for_each(|window| windows.give(window));
    windows.give(c);
    windows.give(a);
    // Pages of a free extent count until they are gone.
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
    // If the kernel refuses to free the pages, the extent is kept, and its pages remain counted.
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
    // The thread has not started yet, or could not be started.
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

/// Checks that every page is counted once, and the limits hold.
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
    let ledger = windows.lock();
    let beyond = (of(Side::Recv) + of(Side::Send)).saturating_sub(ledger.common());
    assert_eq!(ledger.reserved.iter().sum::<u64>(), beyond);
    assert!(
        [Side::Recv, Side::Send].map(|s| ledger.reserved[s as usize] <= ledger.reserve(s))
            == [true; 2]
    );
    drop(ledger);
    assert_eq!(usage.assigned as usize, held.len());
    let mut bases: Vec<_> = held.iter().chain(returning).map(Window::base).collect();
    bases.sort_unstable();
    assert!(bases.windows(2).all(|two| two[0] != two[1]), "a window is in two places");
}

/// A FIFO within its limit gets memory after the thread has done its work, however slow it is.
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
    // Indices in `bases`. An earlier `remove` of a smaller index has shifted the last one by one.
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
