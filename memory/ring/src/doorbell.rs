//! An eventfd on which one side sleeps. It stays rung until the sleeper clears it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A doorbell that nobody rang.
pub fn create() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Rings. A failure can only be EAGAIN: then it has been rung 2^64 times and is readable anyway.
pub fn ring(doorbell: BorrowedFd<'_>) {
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

/// Clears it; returns whether it had been rung.
pub fn clear(doorbell: BorrowedFd<'_>) -> bool {
    rustix::io::read(doorbell, &mut [0u8; 8]).is_ok()
}
