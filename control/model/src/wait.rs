//! Waiting for descriptors: poll(2) with a `Duration`.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// Waits until one of `fds` is ready or the time `left` has passed; `None` means no limit. A signal
/// handler also ends the wait; then none of `fds` is ready.
///
/// # Errors
/// Returns errors of poll(2) except EINTR.
pub fn wait(fds: &mut [PollFd<'_>], left: Option<Duration>) -> Result<(), Errno> {
    let timespec = |left: Duration| Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    match poll(fds, left.map(timespec).as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
