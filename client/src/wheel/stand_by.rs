//! The thread that turns an engine while no other does.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::time::Timespec;

use super::{Turned, Wheel, Who};
use crate::syscall::SignalsBlocked;

/// Between two looks whether anybody turns the engine, while it is turned now and then. What a
/// thread has written that goes on without waiting is sent after at most two of these.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

impl Wheel {
    /// What the stand-by thread does, until the engine has ended. It takes the wheel when nobody
    /// else does, leaves it to all who want it, and sleeps while somebody else is at it.
    pub fn stand_by(&self) {
        // The process's handlers run on its other threads.
        let _signals = SignalsBlocked::new();
        self.is_stood_by.store(true, Relaxed);
        // At first there is nobody else, and the process's attachment waits for an answer.
        self.stand_in();
        while !self.has_ended.load(Acquire) {
            let seen = self.turns.load(Relaxed);
            let _ = rustix::thread::nanosleep(&TICK);
            if self.turns.load(Relaxed) == seen {
                self.stand_in();
                self.relay.rest();
            }
        }
    }

    /// Turns the engine until somebody else wants to.
    fn stand_in(&self) {
        let Some(mut helm) = self.take(Who::StandsBy) else { return };
        loop {
            match helm.turn(None, || self.relay.has_followers()) {
                Turned::Done | Turned::Ended => return,
                Turned::Busy => {}
                Turned::Idle if helm.stand_by() && !self.relay.has_followers() => {}
                Turned::Idle => return,
            }
        }
    }
}
