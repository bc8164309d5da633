//! Bytes for the standard streams.

use std::os::fd::BorrowedFd;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Writes all of `text` to standard output. A pipe that its reader has closed (`| head`) is not an
/// error.
pub fn write(text: &[u8]) -> Result<()> {
    match write_all(rustix::stdio::stdout(), text) {
        Err(Errno::PIPE) => Ok(()),
        other => other.context("standard output"),
    }
}

/// Writes all of `text`, and waits where the stream takes no more, also if O_NONBLOCK is set. The
/// flag belongs to the open file: PROGRAM and towpath's caller have it, too, and may set it. (std's
/// `write_all` returns EAGAIN then, and the rest is lost.)
pub fn write_all(to: BorrowedFd<'_>, mut text: &[u8]) -> Result<(), Errno> {
    while !text.is_empty() {
        match rustix::io::write(to, text) {
            Ok(written) => text = &text[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Its result does not matter: the next write gets the error, if there is one.
                let _ = poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
