//! Events of handlers allocate no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use towpath::handler::{Conn, ConnAction, Handler};

use crate::{Hosts, read};

/// Counts the allocations of threads that run a handler of this test.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    // On a thread that ends, the variable may be gone.
    if IS_COUNTED.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: all calls are passed to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's duties are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, len) }
    }
}

/// Answers lines in upper case, and sets a timer for each.
struct Upper;

impl Handler for Upper {
    type State = u64;

    fn readable(&mut self, conn: &mut Conn<'_>, lines: &mut u64) -> ConnAction {
        IS_COUNTED.set(true);
        conn.set_timer(Duration::from_secs(10) + Duration::from_millis(*lines));
        let (mut reader, mut writer) = conn.split();
        while let Some(line) = reader.until(b'\n') {
            *lines += 1;
            let Some(mut space) = writer.reserve(line.len()) else { return ConnAction::Reset };
            space.bytes().copy_from_slice(line);
            space.bytes().make_ascii_uppercase();
            space.commit(line.len());
        }
        ConnAction::Continue
    }
}

#[test]
fn no_event_allocates_after_warm_up() {
    let hosts = Hosts::new(|_| Upper);
    let mut streams: Vec<_> = (0..20).map(|_| hosts.connect()).collect();
    let mut round = || {
        for stream in &mut streams {
            stream.write_all(b"down the towpath\nand back\n").unwrap();
            assert_eq!(read(stream, 26), b"DOWN THE TOWPATH\nAND BACK\n");
        }
    };
    (0..200).for_each(|_| round());
    assert!(ALLOCATIONS.load(Relaxed) > 0, "the allocator counts the first bytes of a connection");
    // A loaded machine delays packets, and the stack allocates memory for retransmissions. Events
    // that allocate would do so in each batch.
    let mut is_free = |_| {
        let before = ALLOCATIONS.load(Relaxed);
        (0..20).for_each(|_| round());
        ALLOCATIONS.load(Relaxed) == before
    };
    assert!((0..100).any(&mut is_free), "{ALLOCATIONS:?} allocations");
}
