//! The end of the process: stacks that are still there send their bytes first.
//!
//! The kernel goes on sending for a process that has exited. A stack ends with its process, and
//! with the bytes that it has not sent. A handler of exit(3) therefore shuts the stacks down. The
//! return from `main` and `std::process::exit` call it; _exit(2), abort(3) and signals do not.

use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use crate::engine::EngineThread;
use crate::exiting;
use crate::fork::Origin;
use crate::shared::SharedStack;

/// Stacks of this process that may have handles.
static STACKS: Mutex<Vec<Weak<SharedStack>>> = Mutex::new(Vec::new());

/// Has the end of the process shut the stack down if it has handles then.
pub(crate) fn register(stack: &Arc<SharedStack>) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: a function that takes nothing and does not unwind. Without memory for the handler
        // the process ends as if it had none.
        unsafe { libc::atexit(end_stacks) };
    });
    let mut stacks = STACKS.lock().unwrap_or_else(PoisonError::into_inner);
    stacks.retain(|stack| stack.strong_count() > 0);
    stacks.push(Arc::downgrade(stack));
}

extern "C" fn end_stacks() {
    // A child of fork(2) has copies of stacks that its parent goes on with. The lock may be that of
    // a thread of the parent. An engine's thread exits the process where a hook for panics
    // does: no engine can wait for itself.
    if !Origin::is_in_place() || EngineThread::is_current_thread() {
        return;
    }
    exiting::begin();
    let stacks = std::mem::take(&mut *STACKS.lock().unwrap_or_else(PoisonError::into_inner));
    let stacks: Vec<_> = stacks.iter().filter_map(Weak::upgrade).collect();
    // End all stacks before the first wait, so that they wait for their peers at the same time.
    stacks.iter().for_each(|stack| stack.begin_end());
    for stack in &stacks {
        // The process ends with an error, or without one, that its `main` has decided on.
        let _ = stack.shutdown();
    }
    // Threads may still be in calls of these stacks.
    std::mem::forget(stacks);
}
