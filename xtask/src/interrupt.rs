//! Interrupting a chore that has made namespaces and folders: they are removed before it ends.
//!
//! SIGINT, SIGTERM and SIGHUP are noted. Processes that the chore has started end by the same
//! signal of the terminal, or when the chore, which looks now and then, drops them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static IS_INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on these signals end nothing by themselves. Started processes get the signals as ever.
pub fn hold() -> Result<()> {
    let flag = IS_INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("sigaction")?;
    }
    Ok(())
}

/// An error once the chore has been interrupted.
pub fn check() -> Result<()> {
    let is = IS_INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed));
    ensure!(!is, "interrupted");
    Ok(())
}

/// Sleeps, unless the chore is interrupted.
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
