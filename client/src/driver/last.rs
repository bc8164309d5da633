//! The thread that ends the process of an engine.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use rustix::time::Timespec;

use super::driver_lock::place;
use super::{Driver, Turned, Who};
use crate::Deadline;

/// How often it looks whether it is to go on.
const LOOK: Duration = Duration::from_millis(20);
/// Another thread is the driver: how often it is tried again.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

impl Driver {
    /// Turns the engine until it has ended, or as long as `go_on` says so, which is asked every 20
    /// ms at least.
    pub fn drive_to_end(&self, mut go_on: impl FnMut() -> bool) {
        while !self.has_ended.load(Acquire) && go_on() {
            let Some(mut driver_lock) = self.take(Who::Waits) else {
                // Another thread turns the engine meanwhile.
                let _ = rustix::thread::nanosleep(&AGAIN);
                continue;
            };
            match driver_lock.turn(None, || false) {
                Turned::Ended => return,
                Turned::Busy | Turned::Done => {}
                Turned::Idle => {
                    let until = driver_lock.until(Some(Deadline::after(LOOK)));
                    let limit = until.map(Deadline::timespec);
                    // However the sleep ends, the next turn looks.
                    let _ = driver_lock.sleep(place(limit.as_ref()), None);
                }
            }
        }
    }
}
