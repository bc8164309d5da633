//! The names that PROGRAM finds in namespaces of its own: that of the machine, and /etc/hosts.

use std::fs;

use anyhow::{Context, Result};

use super::resolv_conf;

const PATH: &str = "/etc/hosts";
const FILE_OF_NAME: &str = "/etc/hostname";

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

/// Names the machine, for all processes of these namespaces. /etc/hostname says the name where
/// there is such a file.
///
/// # Errors
/// The kernel refuses the name, or to mount.
pub fn name(hostname: &str) -> Result<()> {
    rustix::system::sethostname(hostname.as_bytes()).context("sethostname")?;
    resolv_conf::bind(FILE_OF_NAME, format!("{hostname}\n").as_bytes())?;
    Ok(())
}
