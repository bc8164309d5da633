//! The first write on a fresh socket, which waits for the engine to provide memory.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use towpath_client::interrupt::Handled;
use towpath_client::{Deadline, Error, stream};
use towpath_shm::layout::flags;

use crate::errno::fail;
use crate::handle::{CallPatience, Handle};
use crate::{Errno, Result};

/// How long a first write on a fresh connection waits for memory to write into, even with
/// O_NONBLOCK: the engine provides it within a turn. Longer means that memory is short everywhere.
const MEMORY_PATIENCE: Duration = Duration::from_millis(100);
/// A patience that is at its end before the engine has had its turn.
const BRIEF: Duration = Duration::from_millis(1);

/// Whether a write may not wait for the engine's turn. A first one does so for memory all the same,
/// which is no room in the sense of SO_SNDTIMEO.
pub(super) fn is_brief(patience: CallPatience) -> bool {
    patience.nonblocking || patience.deadline.is_some_and(|deadline| deadline.left() < BRIEF)
}

pub(super) fn wait_for_memory<T>(
    handle: &Handle,
    mut attempt: impl FnMut() -> std::result::Result<T, Error>,
) -> Result<T> {
    let connecting = handle.slot.flags.load(Acquire);
    if connecting & flags::CONNECTING != 0 {
        return fail(libc::EAGAIN);
    }
    let deadline = Some(Deadline::after(MEMORY_PATIENCE));
    let patience = CallPatience { nonblocking: false, deadline, since: Handled::so_far() };
    // The engine answers with memory, or says that there is none: then the socket lacks none, and
    // the attempt was the last. Memory that comes after an attempt that lacked it is for the next
    // attempt.
    let mut once = || {
        let lacked = stream::lacks_memory(handle.client, handle.socket);
        match attempt() {
            Err(Error::WouldBlock) if !lacked => Err(Error::Refused(libc::EAGAIN)),
            result => result,
        }
    };
    match handle.blocking(patience, &mut once) {
        Err(Errno(libc::EINTR)) => Ok(once()?),
        result => result,
    }
}
