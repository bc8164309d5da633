//! Whether a test can have TAP devices.

#![allow(clippy::print_stderr)] // For readers of why a test is left out.

use std::process::Command;

/// Whether a network namespace with a TAP device can be made; says why a test is left out otherwise.
pub fn is_possible() -> bool {
    // An interface is asked for, since the file may be there and refuse that.
    let script = "exec ip tuntap add dev tpmay mode tap";
    let why = match Command::new("unshare").args(["-n", "sh", "-c", script]).output() {
        Ok(made) if made.status.success() => return true,
        Ok(made) => String::from_utf8_lossy(&made.stderr).into_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    eprintln!("left out: no TAP device in a network namespace of its own: {}", why.trim_end());
    false
}
