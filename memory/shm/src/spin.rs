//! Limits of busy waiting, in one table. Each covers the usual duration of what is awaited, because
//! a sleep and its wake-up cost 10 to 50 µs. A longer limit would only use a processor.

use core::time::Duration;

/// Number of attempts to take the lock of a slot or process before the first sleep. An uncontended
/// owner needs less than a microsecond. Loom explores every interleaving anyway.
pub const LOCK_ATTEMPTS: u32 = if cfg!(loom) { 0 } else { 64 };

/// Number of times that a program's thread reads a word of the engine before it sleeps or yields:
/// about 10 µs.
pub const LOOKS: u32 = 200;

/// Number of times that a program's thread looks for the reply to a request, about 20 µs. An awake
/// engine replies in less time.
pub const LOOKS_FOR_ANSWER: u32 = 400;

/// Time for which an engine thread looks for work before it sleeps.
pub const BUSY_POLL: Duration = Duration::from_micros(50);
