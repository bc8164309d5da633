//! Handles interrupts of a chore, so that it can remove its namespaces and folders before it ends.
//!
//! SIGINT, SIGTERM and SIGHUP set a flag, which the chore checks from time to time. Started
//! processes end by the same signal of the terminal, or when the chore drops them because of the
//! flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static IS_INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes these signals set a flag instead of ending this process. Started processes still end by
/// them.
pub fn hold() -> Result<()> {
    let flag = IS_INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("sigaction")?;
    }
    Ok(())
}

/// Returns an error if the chore was interrupted.
pub fn check() -> Result<()> {
    let is = IS_INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed));
    ensure!(!is, "interrupted");
    Ok(())
}

/// Sleeps for `time`. Returns an error if the chore is interrupted.
pub fn sleep(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}
