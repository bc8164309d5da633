//! Bytes for the standard streams.

use std::fmt::Write as _;
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

/// Writes a text with names of other processes, users or peers. Control characters but line breaks
/// and tabs become U+FFFD: a terminal would obey them.
pub fn write_text(text: &str) -> Result<()> {
    let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
    write(text.replace(|c| !is_plain(c), "\u{fffd}").as_bytes())
}

/// Writes JSON with such names. Its strings may have control characters beyond ASCII, which become
/// escapes that mean the same.
pub fn write_json(json: &str) -> Result<()> {
    write(escaped(json).as_bytes())
}

fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() && c != '\n' {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_mean_the_same() {
        let name = "a\u{1b}[2J\u{9b}2J\u{7f}";
        let json = escaped(&(serde_json::to_string(name).unwrap() + "\n"));
        assert!(!json.chars().any(|c| c.is_control() && c != '\n'), "{json:?}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }
}
