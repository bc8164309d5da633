//! Blocks other threads while one thread exits the process.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use rustix::thread::gettid;

/// Id of the thread that runs exit(3) handlers, or 0 before exit(3).
static EXITING: AtomicI32 = AtomicI32::new(0);

/// Notes that the calling thread exits the process.
pub(crate) fn begin() {
    EXITING.store(gettid().as_raw_nonzero().get(), Relaxed);
}

/// Blocks the calling thread forever if another thread exits the process. Otherwise calls would
/// fail because the stack ends, which does not happen with kernel sockets.
#[cold]
pub(crate) fn wait() {
    let exiting = EXITING.load(Relaxed);
    if exiting != 0 && exiting != gettid().as_raw_nonzero().get() {
        loop {
            std::thread::park();
        }
    }
}
