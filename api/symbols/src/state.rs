//! State of the socket calls of this process.

use towpath_posix::Posix;

/// The state of this process. Zero-initialized, so it is valid before any constructor runs: a
/// constructor of another library, or a malloc replacement, may call us before our own constructor.
pub static POSIX: Posix = Posix::new();
