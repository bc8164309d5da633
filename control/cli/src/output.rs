//! Writes to the standard streams.

use std::fmt::Write as _;
use std::os::fd::BorrowedFd;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Writes `text` to standard output. Succeeds if the reader has closed the pipe, as `head` does.
pub fn write(text: &[u8]) -> Result<()> {
    match write_all(rustix::stdio::stdout(), text) {
        Err(Errno::PIPE) => Ok(()),
        other => other.context("standard output"),
    }
}

/// Writes text that may contain names of other processes, users or peers to standard output.
/// Replaces control characters by U+FFFD, except line breaks and tabs, because a terminal would
/// interpret them.
pub fn write_text(text: &str) -> Result<()> {
    write(plain(text).as_bytes())
}

fn plain(text: &str) -> String {
    let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.replace(|c| !is_plain(c), "\u{fffd}")
}

/// Writes JSON that may contain names of other processes, users or peers to standard output.
/// Replaces control characters beyond ASCII in strings by equivalent escapes.
pub fn write_json(json: &str) -> Result<()> {
    write(escaped(json).as_bytes())
}

/// Writes text as [`write_text`] does. Returns false if the reader has closed the pipe, so that a
/// command without an end stops.
pub fn stream_text(text: &str) -> Result<bool> {
    stream(plain(text).as_bytes())
}

/// Writes JSON as [`write_json`] does. Returns false if the reader has closed the pipe.
pub fn stream_json(json: &str) -> Result<bool> {
    stream(escaped(json).as_bytes())
}

fn stream(text: &[u8]) -> Result<bool> {
    match write_all(rustix::stdio::stdout(), text) {
        Err(Errno::PIPE) => Ok(false),
        other => other.map(|()| true).context("standard output"),
    }
}

fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() && c != '\n' {
            // Ignore errors: writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Writes `text` completely. Waits while the stream is full, even if O_NONBLOCK is set. PROGRAM or
/// towpath's caller may have set it, because they share the open file description. std's
/// `write_all` would fail with EAGAIN and lose the remaining text.
pub fn write_all(to: BorrowedFd<'_>, mut text: &[u8]) -> Result<(), Errno> {
    while !text.is_empty() {
        match rustix::io::write(to, text) {
            Ok(written) => text = &text[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Ignore errors of poll, because the next write then fails with the same error.
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
