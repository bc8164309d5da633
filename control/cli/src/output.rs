//! Bytes for the standard streams.

use std::os::fd::BorrowedFd;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Writes all of it to standard output. A reader that closed the pipe has seen enough.
pub fn write(text: &[u8]) -> Result<()> {
    match write_all(rustix::stdio::stdout(), text) {
        Err(Errno::PIPE) => Ok(()),
        other => other.context("standard output"),
    }
}

/// Writes all of it, and waits where that takes time, even if the stream says that it does not wait:
/// O_NONBLOCK is the open file's, which PROGRAM and whoever started towpath have too. (std's `write_all`
/// gives up there, and what is left is lost.)
pub fn write_all(to: BorrowedFd<'_>, mut text: &[u8]) -> Result<(), Errno> {
    while !text.is_empty() {
        match rustix::io::write(to, text) {
            Ok(written) => text = &text[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Whatever it says, the next write finds out.
                let _ = poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
