//! Threads and phases of a run.

use std::sync::atomic::AtomicBool;

use crate::error::Error;
use crate::plan::Plan;
use crate::report::{Report, Snapshot};

/// Does what `plan` says, in threads of its own, and returns the figures.
///
/// `watch` is called on the calling thread once per [`Plan::period`], which no sender shares.
/// Setting `stop` ends the run within some 20 ms, with the figures until then.
///
/// # Errors
/// What keeps a run from beginning, see [`Error`]. Failures of connections are in the report.
pub fn run(
    plan: &Plan,
    _stop: &AtomicBool,
    _watch: &mut dyn FnMut(&Snapshot),
) -> Result<Report, Error> {
    plan.check()?;
    Err(Error::system("run: the engine is not part of this commit")(
        std::io::ErrorKind::Unsupported.into(),
    ))
}
