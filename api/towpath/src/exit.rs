//! Shuts remaining stacks down when the process exits, so that their data is sent.
//!
//! The kernel continues to send for a process that has exited, but a stack ends with its process,
//! and unsent data would be lost. Therefore an exit(3) handler shuts the stacks down. A return from
//! `main` and `std::process::exit` run it; _exit(2), abort(3) and signals do not.

use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use crate::engine::EngineThread;
use crate::exiting;
use crate::fork::Origin;
use crate::shared::SharedStack;
use crate::unused;

/// Stacks of this process. An entry is outdated if all handles of the stack were dropped.
static STACKS: Mutex<Vec<Weak<SharedStack>>> = Mutex::new(Vec::new());

/// Registers a stack to be shut down when the process exits.
pub(crate) fn register(stack: &Arc<SharedStack>) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the function has no arguments and does not unwind. If there is no memory to
        // register it, the stacks are not shut down.
        unsafe { libc::atexit(end_stacks) };
    });
    let mut stacks = STACKS.lock().unwrap_or_else(PoisonError::into_inner);
    stacks.retain(|stack| stack.strong_count() > 0);
    stacks.push(Arc::downgrade(stack));
}

extern "C" fn end_stacks() {
    // Skip the stacks in a child of fork(2), because its parent still uses them and may hold the
    // lock. Skip them on an engine's thread (a panic hook may call exit there), because an engine
    // cannot wait for itself.
    if !Origin::is_in_place() || EngineThread::is_current_thread() {
        return;
    }
    exiting::begin();
    let stacks = std::mem::take(&mut *STACKS.lock().unwrap_or_else(PoisonError::into_inner));
    let stacks: Vec<_> = stacks.iter().filter_map(Weak::upgrade).collect();
    // Begin to end all stacks before waiting for the first one, so that the waiting times overlap.
    stacks.iter().for_each(|stack| stack.begin_end());
    for stack in &stacks {
        // Ignore errors, because the exit status of the process is already set.
        let _ = stack.shutdown();
    }
    unused::wait();
    // Leak the handles: dropping them could free a stack while other threads are in calls of it.
    std::mem::forget(stacks);
}
