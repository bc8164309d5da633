//! Blocks other threads while one thread exits the process.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use rustix::thread::gettid;

/// Thread id of the thread that runs exit(3) handlers; 0 before.
static EXITING: AtomicI32 = AtomicI32::new(0);

/// Notes that the calling thread exits the process.
pub(crate) fn begin() {
    EXITING.store(gettid().as_raw_nonzero().get(), Relaxed);
}

/// Blocks the calling thread if another thread exits the process. Otherwise the end of its stack
/// would wake it with an error, which does not happen with kernel sockets.
#[cold]
pub(crate) fn wait() {
    let exiting = EXITING.load(Relaxed);
    if exiting != 0 && exiting != gettid().as_raw_nonzero().get() {
        loop {
            std::thread::park();
        }
    }
}
