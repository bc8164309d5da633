//! Standard output.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes all of it. A reader that closed the pipe has seen enough.
pub fn write(text: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}
