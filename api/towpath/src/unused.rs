//! Ends engines after the last handle of their stack was dropped.
//!
//! An engine sends its remaining data before it ends. On a thread of an async runtime, waiting for
//! this would block other tasks, and perhaps the peer that must read the data. Therefore a separate
//! thread waits in this case.

use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use towpath_client::syscall::SignalsBlocked;

use crate::engine::EngineThread;
use crate::fork::Origin;

/// Threads that wait for engines to end, each with the process that has created the engine.
static WAITING: Mutex<Vec<(Origin, JoinHandle<()>)>> = Mutex::new(Vec::new());

/// Waits until `engine` has sent its data and ended, for at most the linger time. Within an async
/// runtime, a new thread waits instead. Ignores errors, because the caller is a destructor.
pub(crate) fn finish(engine: EngineThread, origin: Origin) {
    let engine = if is_in_runtime() { finish_later(engine, origin) } else { Some(engine) };
    if let Some(engine) = engine {
        let _ = engine.finish();
    }
}

/// Waits for the threads that wait for engines to end, so that unsent data is not lost. Called when
/// the process exits.
pub(crate) fn wait() {
    let waiting = std::mem::take(&mut *WAITING.lock().unwrap_or_else(PoisonError::into_inner));
    for (origin, thread) in waiting {
        // Skip threads of the parent: a forked child has copies of the handles, but not the
        // threads.
        if !origin.is_elsewhere() {
            let _ = thread.join();
        }
    }
}

#[cfg(feature = "tokio")]
fn is_in_runtime() -> bool {
    ::tokio::runtime::Handle::try_current().is_ok()
}

#[cfg(not(feature = "tokio"))]
fn is_in_runtime() -> bool {
    false
}

/// Waits for the engine on a new thread. Returns the engine if no thread can be created.
fn finish_later(engine: EngineThread, origin: Origin) -> Option<EngineThread> {
    let (give, given) = std::sync::mpsc::channel::<EngineThread>();
    let work = move || {
        if let Ok(engine) = given.recv() {
            let _ = engine.finish();
        }
    };
    // Block signals, because the program's handlers must run on the program's threads.
    let blocked = SignalsBlocked::new();
    let thread = Builder::new().name("towpath-linger".into()).spawn(work);
    drop(blocked);
    let Ok(thread) = thread else { return Some(engine) };
    let unsent = give.send(engine).err().map(|error| error.0);
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.retain(|(_, thread)| !thread.is_finished());
    waiting.push((origin, thread));
    unsent
}
