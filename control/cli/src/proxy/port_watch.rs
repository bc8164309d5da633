//! Thread of `towpath proxy run` that opens published ports while a program in the namespace
//! listens, and closes them otherwise.
//!
//! Linux does not report new listeners, so the thread polls. The gateway has a separate thread, so
//! that polling does not delay packets.
//!
//! Most of the cost of a poll is the wake-up: 0.15 ms for one port if the processor was idle. The
//! interval therefore grows when no port changes for a while.

use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags};
use towpath_gateway::PolledPorts;

use crate::guardian::SockDiag;
use towpath_model::wait::wait;

/// Polling interval. After the program has begun to listen, clients may be refused for this time.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Polling interval after no port has changed for [`CALM_AFTER`].
const LOOK_EVERY_WHEN_CALM: Duration = Duration::from_millis(100);
/// Time without a changed port after which the polling interval grows. Servers usually listen soon
/// after they are started or restarted.
const CALM_AFTER: Duration = Duration::from_secs(10);

/// Starts the thread, which ends when the descriptor `ended` hangs up. Returns `None` if no port
/// must be polled.
///
/// # Errors
/// Fails if the thread cannot be created.
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
            // Ignore errors: if the kernel has no memory for an answer, all ports keep their state
            // until the next poll.
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
