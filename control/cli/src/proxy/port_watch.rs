//! The thread of `towpath proxy run` that opens and shuts published ports, as sockets in the
//! namespace come and go.
//!
//! Linux tells nobody of a new listener, so the thread asks again and again. A thread of its own is
//! neither held up by the gateway's traffic, nor holds that up.
//!
//! Most of a look's cost is the wake-up: 0.15 ms for one port where the processor was idle. So the
//! looks become rare when nothing changes for a while.

use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags};
use towpath_gateway::PolledPorts;

use crate::guardian::SockDiag;
use towpath_model::wait::wait;

/// Between two looks at the sockets of the namespace. A client that comes within this time after
/// the program began to listen is refused.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The same when no port was opened or shut for [`CALM_AFTER`].
const LOOK_EVERY_WHEN_CALM: Duration = Duration::from_millis(100);
/// A server listens soon after its start, and listens again soon after a restart.
const CALM_AFTER: Duration = Duration::from_secs(10);

/// Starts the thread, which ends when `ended` hangs up. None: no port needs it.
///
/// # Errors
/// The system gives no thread.
pub fn start(
    mut ports: PolledPorts,
    mut kernel: SockDiag,
    ended: OwnedFd,
) -> Result<Option<JoinHandle<()>>> {
    if ports.is_empty() {
        return Ok(None);
    }
    let thread = std::thread::Builder::new().name("towpath-ports".into()).spawn(move || {
        let mut changed_at = Instant::now();
        loop {
            // Where the kernel has no memory for an answer, ports stay as they are until the next.
            if ports.look(&mut kernel).unwrap_or(true) {
                changed_at = Instant::now();
            }
            let is_calm = changed_at.elapsed() > CALM_AFTER;
            let every = if is_calm { LOOK_EVERY_WHEN_CALM } else { LOOK_EVERY };
            let mut waits = [PollFd::new(&ended, PollFlags::IN)];
            let waited = wait(&mut waits, Some(every));
            if waited.is_err() || !waits[0].revents().is_empty() {
                return;
            }
        }
    })?;
    Ok(Some(thread))
}
