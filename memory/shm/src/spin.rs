//! Limits of polling before a sleep, in one table. A sleep and its wake-up cost 10 to 50 µs. Each
//! limit covers the usual time after which the awaited event occurs. A longer limit would only use
//! processor time.

use core::time::Duration;

/// Number of attempts to take the lock of a slot or process before the first sleep. An owner that
/// is running holds it for less than a microsecond. With loom it is 0, because loom explores every
/// interleaving anyway.
pub const LOCK_ATTEMPTS: u32 = if cfg!(loom) { 0 } else { 64 };

/// Number of times that a program's thread reads a word that the engine changes, before it sleeps
/// or yields. All reads together take about 10 µs.
pub const LOOKS: u32 = 200;

/// Number of times that a program's thread checks for the reply to a request before it sleeps. The
/// checks take about 20 µs, and an engine that is awake replies in less time.
pub const LOOKS_FOR_ANSWER: u32 = 400;

/// Time for which an engine thread polls for work before it sleeps.
pub const BUSY_POLL: Duration = Duration::from_micros(50);
