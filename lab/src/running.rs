//! Programs that measurements start, and the network that these are in.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// A network namespace with loopback, deleted on drop.
pub struct Namespace(String);

impl Namespace {
    /// The host of this name in a measurement.
    pub fn new(host: &str) -> Result<Self> {
        let name = format!("tpd-{}-{host}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Self(name);
        ip(&["-n", namespace.name(), "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// A program of this host, without standard input.
    pub fn command(&self, line: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(line).stdin(Stdio::null());
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.0]) {
            eprintln!("{error}");
        }
    }
}

/// A program that is stopped on drop.
pub struct Running(pub Child);

impl Running {
    /// Asks it to end, and kills it after five seconds.
    pub fn stop(&mut self) {
        let pid = self.0.id().to_string();
        let told = Command::new("kill").arg(&pid).process_group(0).status();
        let end = Instant::now() + Duration::from_secs(5);
        while told.is_ok() && Instant::now() < end {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("process {pid}: {error}");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

/// Runs ip(8), which the terminal's interrupt does not reach: what was made has to be removed.
pub fn ip(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    let status = command.args(arguments).process_group(0).status().context("ip")?;
    ensure!(status.success(), "ip {} failed (root is needed)", arguments.join(" "));
    Ok(())
}
