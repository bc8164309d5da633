//! Programs started by measurements.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A program that is stopped on drop.
pub struct Running(pub Child);

impl Running {
    /// Sends SIGTERM, and kills the program after five seconds.
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
