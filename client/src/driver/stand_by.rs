//! The stand-by thread, which runs the engine (network stack) in this process while no other thread
//! does.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::time::Timespec;

use super::{Driver, Turned, Who};
use crate::syscall::SignalsBlocked;

/// Interval at which the stand-by thread checks whether another thread runs the engine. Without
/// such a thread, queued bytes are sent after at most two intervals.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

impl Driver {
    /// Runs the stand-by thread until the engine has ended. The thread takes the driver lock (the
    /// right to run the engine) when the lock is free, and releases it when a thread wants it.
    /// While another thread holds the lock, the stand-by thread sleeps.
    pub fn stand_by(&self) {
        // Block signals on this thread, because the program's handlers must run on the program's
        // threads.
        let _signals = SignalsBlocked::new();
        self.is_stood_by.store(true, Relaxed);
        // Run the engine at once, because the process waits for the engine's answer to attach.
        self.stand_in();
        while !self.has_ended.load(Acquire) {
            let seen = self.turns.load(Relaxed);
            // The sleep is not interrupted, because signals are blocked.
            let _ = rustix::thread::nanosleep(&TICK);
            if self.turns.load(Relaxed) == seen {
                self.stand_in();
                self.relay.rest();
            }
        }
    }

    /// Runs the engine until another thread takes or wants the driver lock (the right to run the
    /// engine).
    fn stand_in(&self) {
        let Some(mut driver_lock) = self.take(Who::StandsBy) else { return };
        loop {
            match driver_lock.turn(None, || self.relay.has_followers()) {
                Turned::Done | Turned::Ended => return,
                Turned::Busy => {}
                Turned::Idle if driver_lock.stand_by() && !self.relay.has_followers() => {}
                Turned::Idle => return,
            }
        }
    }
}
