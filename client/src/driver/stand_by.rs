//! The thread that turns an engine while no other does.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::time::Timespec;

use super::{Driver, Turned, Who};
use crate::syscall::SignalsBlocked;

/// Time between two looks whether another thread turns the engine. Bytes of a thread that goes on
/// without a wait leave after at most two ticks.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

impl Driver {
    /// Runs the stand-by thread until the engine has ended. The thread takes the driver
    /// lock when no other thread does, and releases it to any thread that wants it. While another
    /// thread holds the lock, the stand-by thread sleeps.
    pub fn stand_by(&self) {
        // The process's handlers run on its other threads.
        let _signals = SignalsBlocked::new();
        self.is_stood_by.store(true, Relaxed);
        // At first no other thread exists, and the process's attachment waits for an answer.
        self.stand_in();
        while !self.has_ended.load(Acquire) {
            let seen = self.turns.load(Relaxed);
            // Handlers do not run on this thread, so that the tick is not cut short.
            let _ = rustix::thread::nanosleep(&TICK);
            if self.turns.load(Relaxed) == seen {
                self.stand_in();
                self.relay.rest();
            }
        }
    }

    /// Turns the engine until another thread wants to.
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
