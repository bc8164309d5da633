//! Runs the engine on the thread that is ending the process, until the engine has ended as well.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use rustix::time::Timespec;

use super::driver_lock::place;
use super::{Driver, Turned, Who};
use crate::Deadline;

/// Maximum time between two calls of `go_on`, which returns whether to continue.
const LOOK: Duration = Duration::from_millis(20);
/// Interval at which a thread tries to take the driver lock (the right to run the engine) while
/// another thread holds it.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

impl Driver {
    /// Runs the engine until it has ended, or until `go_on` returns false. `go_on` is called at
    /// least every 20 ms.
    pub fn drive_to_end(&self, mut go_on: impl FnMut() -> bool) {
        while !self.has_ended.load(Acquire) && go_on() {
            let Some(mut driver_lock) = self.take(Who::Waits) else {
                // Another thread holds the driver lock (the right to run the engine) and runs the
                // engine. Wait, and try again.
                let _ = rustix::thread::nanosleep(&AGAIN);
                continue;
            };
            match driver_lock.turn(None, || false) {
                Turned::Ended => return,
                Turned::Busy | Turned::Done => {}
                Turned::Idle => {
                    let until = driver_lock.until(Some(Deadline::after(LOOK)));
                    let limit = until.map(Deadline::timespec);
                    // Ignore the result, because the loop checks all conditions again.
                    let _ = driver_lock.sleep(place(limit.as_ref()), None);
                }
            }
        }
    }
}
