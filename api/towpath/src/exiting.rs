//! Blocks other threads while one thread exits the process.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use rustix::thread::gettid;

/// Id of the thread that runs the handlers of exit(3); 0 if no thread has called exit(3).
static EXITING: AtomicI32 = AtomicI32::new(0);

/// Records that the calling thread exits the process.
pub(crate) fn begin() {
    EXITING.store(gettid().as_raw_nonzero().get(), Relaxed);
}

/// Blocks the calling thread forever if another thread is exiting the process. Otherwise socket
/// calls of this thread would fail, because the exiting thread shuts the stacks down. Kernel
/// sockets do not fail at this time either.
#[cold]
pub(crate) fn wait() {
    let exiting = EXITING.load(Relaxed);
    if exiting != 0 && exiting != gettid().as_raw_nonzero().get() {
        loop {
            std::thread::park();
        }
    }
}
