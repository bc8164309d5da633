//! Locks among the runs of a network namespace.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

/// Longest time for which a run may hold the lock, as while it opens a device.
const PATIENCE: Duration = Duration::from_secs(2);

/// A lock: an abstract name of a Unix socket, which one socket of a network namespace can have. The
/// kernel releases the lock when the process ends.
#[derive(Debug)]
pub(crate) struct Turn {
    _lock: Option<UnixListener>,
}

impl Turn {
    /// Waits for the lock of this name. Returns without the lock after [`PATIENCE`], since a
    /// stopped process must not block later runs for ever.
    ///
    /// # Errors
    /// The name is too long.
    pub fn wait(name: &str) -> io::Result<Self> {
        let name = SocketAddr::from_abstract_name(name)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match UnixListener::bind_addr(&name) {
                Ok(lock) => return Ok(Self { _lock: Some(lock) }),
                Err(_) if Instant::now() > end => return Ok(Self { _lock: None }),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}
