//! Checks whether tests can create TAP devices.

#![allow(clippy::print_stderr)] // The gate collects the reasons of what was skipped.

use std::process::Command;

/// Returns whether a network namespace with a TAP device can be created. Otherwise prints the
/// reason to skip a test.
pub fn is_possible() -> bool {
    // Create an interface, because /dev/net/tun may exist although creating one is refused.
    let script = "exec ip tuntap add dev tpmay mode tap";
    let why = match Command::new("unshare").args(["-n", "sh", "-c", script]).output() {
        Ok(made) if made.status.success() => return true,
        Ok(made) => String::from_utf8_lossy(&made.stderr).into_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    eprintln!("left out: no TAP device in a network namespace of its own: {}", why.trim_end());
    false
}
