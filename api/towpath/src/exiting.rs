//! The thread that ends the process, and the other threads meanwhile.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use rustix::thread::gettid;

/// Thread that runs the handlers of exit(3); 0 before.
static EXITING: AtomicI32 = AtomicI32::new(0);

/// Notes that the calling thread ends the process.
pub(crate) fn begin() {
    EXITING.store(gettid().as_raw_nonzero().get(), Relaxed);
}

/// Blocks a thread while another one ends the process. Otherwise the end of its stack would wake
/// the thread with an error. A thread that waits for a socket of the kernel sees no end either.
#[cold]
pub(crate) fn wait() {
    let exiting = EXITING.load(Relaxed);
    if exiting != 0 && exiting != gettid().as_raw_nonzero().get() {
        loop {
            std::thread::park();
        }
    }
}
