//! Limits of polling before a sleep, in one table. A sleep and its wake-up cost 10 to 50 µs. Each
//! limit covers the usual time after which the awaited event occurs. A longer limit would only use
//! processor time.

use core::time::Duration;

/// Number of attempts to take a lock before the first sleep. A running owner holds a lock in shared
/// memory or of a process for less than a microsecond. 0 with loom, which explores every
/// interleaving.
pub const LOCK_ATTEMPTS: u32 = if cfg!(loom) { 0 } else { 64 };

/// Number of times that a program's thread polls a word written by the engine, before it sleeps or
/// yields. The polls together take about 10 µs.
pub const LOOKS: u32 = 200;

/// Number of times that a program's thread polls for the reply to a request, before it sleeps. The
/// polls take about 20 µs, in which an engine that is awake replies.
pub const LOOKS_FOR_ANSWER: u32 = 400;

/// Time for which an engine thread polls for work before it sleeps.
pub const BUSY_POLL: Duration = Duration::from_micros(50);
