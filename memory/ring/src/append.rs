//! Appends bytes to a socket's transmit FIFO. An append is safe even in a signal handler that
//! interrupts an append to the same FIFO.
//!
//! The handler cannot wait for the lock that the interrupted call holds, because that call resumes
//! only after the handler returns. However, the interrupted call has recorded the number of bytes
//! that it is about to write. The handler writes its bytes after these, and the interrupted call
//! publishes both:
//!
//! ```text
//!                  base          base + planned    base + planned + extra
//!   ===== published |--- interrupted call ---|--- handler's bytes ---|
//! ```
//!
//! Both calls run on one thread. The atomic operations prevent compiler reordering, and keep the
//! state consistent whenever a signal arrives.

use std::cell::Cell;
use std::ptr;

use towpath_shm::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};
use towpath_shm::layout::Slot;

use crate::lock::{Door, is_still, lock_tx};
use crate::program_fifo::{room, room_at, take_dirty, want_room};

/// Result of an attempt to append bytes to a transmit FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Bytes were written to the FIFO.
    Bytes {
        /// Number of bytes written, at least 1.
        n: u32,
        /// Whether the engine (the process with the network stack) must be notified by the
        /// operation [`towpath_shm::layout::op::TX`].
        tell: bool,
    },
    /// The transmit FIFO is full, so nothing was appended.
    NoRoom,
    /// The FIFO is full. The FIFO can only drain after this signal handler returns to the append
    /// that it interrupted.
    Interrupting,
    /// The engine (the process with the network stack) has exited, or another thread has closed the
    /// socket.
    Dead,
}

/// Number of bytes that an append in progress is about to write. Stored in the stack frame of the
/// appending call, and read by signal handlers that interrupt it.
struct Plan {
    lock: *const AtomicU32,
    base: AtomicU32,
    // 0: no append in progress. TENTATIVE: an append is being planned; a signal handler that
    // appends now cancels the plan. Otherwise: planned bytes << 32 | bytes appended by signal
    // handlers since.
    state: AtomicU64,
    outer: *const Plan,
}

const TENTATIVE: u64 = u64::MAX;

// Plan of the innermost append of this thread; null if no append is in progress.
thread_local_value! { PLANS: Cell<*const Plan> = Cell::new(ptr::null()) }

/// Number of bytes to append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// As many bytes as fit, at most this number.
    UpTo(u32),
    /// Exactly this number of bytes, or none if the FIFO has less space.
    All(u32),
}

impl Wanted {
    fn given(self, room: u32) -> u32 {
        match self {
            Self::UpTo(n) => n.min(room),
            Self::All(n) if n <= room => n,
            Self::All(_) => 0,
        }
    }

    fn is_met(self, room: u32) -> bool {
        let (Self::UpTo(n) | Self::All(n)) = self;
        n <= room
    }
}

/// Appends bytes to the transmit FIFO of the socket in `slot`. Does nothing if the slot has a
/// different generation, because it belongs to another socket then. `write` must copy the given
/// number of bytes to the given position. If space is insufficient, requests a notification of free
/// space.
pub fn append(
    slot: &Slot,
    generation: u32,
    door: impl Door,
    wanted: Wanted,
    write: impl Fn(u32, u32),
) -> Appended {
    let Some(guard) = lock_tx(slot, generation, door) else {
        return Appended::Dead;
    };
    if guard.is_nested()
        && let Some(done) = append_behind(slot, wanted, &write)
    {
        return done;
    }
    let plan = Plan {
        lock: &raw const slot.tx_lock,
        base: AtomicU32::new(0),
        state: AtomicU64::new(0),
        outer: PLANS.with(Cell::get),
    };
    // Set the plan before publishing the pointer to it, so that a signal handler never sees an
    // incomplete plan.
    compiler_fence(Ordering::SeqCst);
    PLANS.with(|plans| plans.set(&raw const plan));
    let appended = append_planned(slot, generation, &plan, wanted, &write);
    PLANS.with(|plans| plans.set(plan.outer));
    // The engine attaches memory to the socket only under the lock, which the interrupted call
    // holds. Waiting for memory in this signal handler would deadlock.
    if appended == Appended::NoRoom && guard.is_nested() && slot.tx_cap.load(Ordering::Acquire) == 0
    {
        return Appended::Interrupting;
    }
    drop(guard);
    appended
}

fn append_planned(
    slot: &Slot,
    generation: u32,
    plan: &Plan,
    wanted: Wanted,
    write: &impl Fn(u32, u32),
) -> Appended {
    let (base, n) = loop {
        // Relaxed ordering suffices, because signal handlers run on this thread. The compiler fence
        // orders the stores.
        plan.state.store(TENTATIVE, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let base = slot.tx_tail.load(Ordering::Relaxed);
        let mut free = room(slot);
        if !wanted.is_met(free) && slot.tx_cap.load(Ordering::Acquire) != 0 {
            want_room(slot);
            free = room(slot);
        }
        let n = wanted.given(free);
        if n == 0 {
            return Appended::NoRoom;
        }
        plan.base.store(base, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // The exchange fails if a signal handler has appended in the meantime and cancelled the
        // plan.
        let planned = u64::from(n) << 32;
        if plan
            .state
            .compare_exchange(TENTATIVE, planned, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            break (base, n);
        }
    };
    write(base, n);
    // Another thread has closed the socket. Discard the bytes.
    if !is_still(slot, generation) {
        return Appended::Dead;
    }
    loop {
        let state = plan.state.load(Ordering::SeqCst);
        slot.tx_tail.store(base.wrapping_add(n).wrapping_add(state as u32), Ordering::Release);
        if plan.state.compare_exchange(state, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            break;
        }
    }
    Appended::Bytes { n, tell: take_dirty(slot) }
}

/// Appends in a signal handler that interrupts an append to the same FIFO. Returns `None` if the
/// interrupted append has not begun to write, or has finished.
fn append_behind(slot: &Slot, wanted: Wanted, write: &impl Fn(u32, u32)) -> Option<Appended> {
    let mut at = PLANS.with(Cell::get);
    let plan = loop {
        // SAFETY: plans are on stack frames of calls that this signal handler interrupted, which
        // cannot return before the handler does.
        let plan = unsafe { at.as_ref() }?;
        if ptr::eq(plan.lock, &raw const slot.tx_lock) {
            break plan;
        }
        at = plan.outer;
    };
    loop {
        let state = plan.state.load(Ordering::SeqCst);
        if state == TENTATIVE {
            plan.state.store(0, Ordering::SeqCst);
        }
        if state == 0 || state == TENTATIVE {
            return None;
        }
        let end = plan.base.load(Ordering::SeqCst).wrapping_add((state >> 32) as u32);
        let position = end.wrapping_add(state as u32);
        let n = wanted.given(room_at(slot, position));
        if n == 0 {
            return Some(Appended::Interrupting);
        }
        let taken = state + u64::from(n);
        // The exchange fails if a nested signal handler has changed the state. Then try again.
        if plan.state.compare_exchange(state, taken, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            write(position, n);
            return Some(Appended::Bytes { n, tell: false });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::program_fifo::write_at;
    use crate::{Attach, EngineSend, Region, SendBuffer, WINDOW_MIN, Windows};

    /// Models a signal handler that interrupts an append by calling `append` within `write`.
    #[test]
    fn what_interrupts_goes_behind_and_is_published_with_it() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(1).unwrap();
        let mut send = EngineSend::new(&windows, 1, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(send.attach(), Attach::Done);
        let memory = &region;
        let put = |bytes: &'static [u8]| {
            let write = move |at, n: u32| {
                write_at(memory, slot, at, &bytes[..n as usize]);
            };
            (Wanted::All(bytes.len() as u32), write)
        };
        let (one, write_one) = put(b"one ");
        let (two, write_two) = put(b"two ");
        let (three, write_three) = put(b"three");
        let alive = || true;
        let done = append(slot, 0, alive, one, |at, n| {
            let inner = append(slot, 0, alive, two, |at, n| {
                let innermost = append(slot, 0, alive, three, write_three);
                assert_eq!(innermost, Appended::Bytes { n: 5, tell: false });
                write_two(at, n);
            });
            assert_eq!(inner, Appended::Bytes { n: 4, tell: false });
            // Waiting would deadlock, because only the interrupted call can free space.
            let too_much = append(slot, 0, alive, Wanted::All(WINDOW_MIN), write_three);
            assert_eq!(too_much, Appended::Interrupting);
            assert_eq!(slot.tx_tail.load(Ordering::Relaxed), 0);
            write_one(at, n);
        });
        assert_eq!(done, Appended::Bytes { n: 4, tell: true });
        assert!(send.pull());
        let mut all = vec![0; 13];
        send.peek(0, 13).copy_to(0, &mut all);
        assert_eq!(all, b"one two three");
        assert_eq!(slot.tx_lock.load(Ordering::Relaxed), 0);
    }

    /// Tests that a signal handler does not wait for memory. The engine attaches memory only under
    /// the lock, which the handler's own thread holds.
    #[test]
    fn what_interrupts_does_not_wait_for_memory() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(1).unwrap();
        let mut send = EngineSend::new(&windows, 1, WINDOW_MIN, WINDOW_MIN);
        let byte = || append(slot, 0, || true, Wanted::UpTo(1), |_, _| {});
        assert_eq!(byte(), Appended::NoRoom);
        let interrupted = lock_tx(slot, 0, || true);
        assert_eq!(byte(), Appended::Interrupting);
        assert_eq!(send.attach(), Attach::Busy);
        drop(interrupted);
        assert_eq!(send.attach(), Attach::Done);
        assert_eq!(byte(), Appended::Bytes { n: 1, tell: true });
    }

    /// Tests that a thread writes nothing if another thread has closed the socket and a new socket
    /// uses the slot.
    #[test]
    fn a_late_thread_writes_nothing_into_the_next_socket() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(1).unwrap();
        let mut send = EngineSend::new(&windows, 1, WINDOW_MIN, WINDOW_MIN);
        assert_eq!(send.attach(), Attach::Done);
        slot.generation.store(3, Ordering::Relaxed);
        let late = |write: &dyn Fn()| append(slot, 1, || true, Wanted::All(5), |_, _| write());
        // The socket is closed before the lock is taken, or during the copy of the bytes.
        assert_eq!(late(&|| unreachable!()), Appended::Dead);
        slot.generation.store(1, Ordering::Relaxed);
        assert_eq!(late(&|| slot.generation.store(3, Ordering::Relaxed)), Appended::Dead);
        assert!(send.pull() && send.len() == 0);
        assert_eq!(slot.tx_lock.load(Ordering::Relaxed), 0);
        let next = append(slot, 3, || true, Wanted::All(5), |_, _| {});
        assert_eq!(next, Appended::Bytes { n: 5, tell: true });
    }
}
