//! The names that PROGRAM finds in namespaces of its own: that of the machine, and /etc/hosts.

use std::fs;

use anyhow::{Context, Result};

use super::resolv_conf;

const PATH: &str = "/etc/hosts";

/// Puts lines of hosts(5) in front of those that are there, for all processes of this mount
/// namespace. Gives a remark for the user where there is no such file.
///
/// # Errors
/// The kernel refuses to mount.
pub fn add(lines: &str) -> Result<Option<String>> {
    let before = fs::read(PATH).unwrap_or_default();
    let missing = || format!("{PATH} is missing: programs do not know the names of --add-host");
    let is_there = resolv_conf::bind(PATH, &[lines.as_bytes(), &before].concat())?;
    Ok((!is_there).then(missing))
}

/// Names the machine, for all processes of this UTS namespace.
///
/// # Errors
/// The kernel refuses the name.
pub fn name(hostname: &str) -> Result<()> {
    rustix::system::sethostname(hostname.as_bytes()).context("sethostname")
}
