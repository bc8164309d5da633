//! The stand-by thread, which turns an engine while no other thread does.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::time::Timespec;

use super::{Driver, Turned, Who};
use crate::syscall::SignalsBlocked;

/// Interval of checks whether another thread turns the engine. If no thread waits, queued bytes are
/// sent after at most two ticks.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

impl Driver {
    /// Runs the stand-by thread until the engine has ended. The thread takes the driver
    /// lock when no other thread does, and releases it to any thread that wants it. While another
    /// thread holds the lock, the stand-by thread sleeps.
    pub fn stand_by(&self) {
        // Block signals, because the program's handlers must run on the program's threads.
        let _signals = SignalsBlocked::new();
        self.is_stood_by.store(true, Relaxed);
        // Turn the engine at once, because the process waits for the answer to its attachment.
        self.stand_in();
        while !self.has_ended.load(Acquire) {
            let seen = self.turns.load(Relaxed);
            // Signals are blocked, so that a handler does not interrupt the tick.
            let _ = rustix::thread::nanosleep(&TICK);
            if self.turns.load(Relaxed) == seen {
                self.stand_in();
                self.relay.rest();
            }
        }
    }

    /// Turns the engine until another thread takes the driver lock or waits for it.
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
