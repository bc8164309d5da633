//! Creates load for tests that must not depend on it: a busy loop on each processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Threads that compute until the value is dropped.
pub struct Busy {
    go_on: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Starts a thread for each processor.
    pub fn start() -> Self {
        let go_on = Arc::new(AtomicBool::new(true));
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let spin = |go_on: &Arc<AtomicBool>| {
            let go_on = Arc::clone(go_on);
            std::thread::spawn(move || {
                while go_on.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..processors).map(|_| spin(&go_on)).collect();
        Self { go_on, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.go_on.store(false, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A busy loop cannot panic, so ignore the result.
            let _ = thread.join();
        }
    }
}
