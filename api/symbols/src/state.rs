//! State of the socket calls of this process.

use towpath_posix::Posix;

/// The state, one in a process as is this library. Zeroed memory, ready before any constructor
/// runs: those of other libraries, and a malloc that is not libc's, may call before our own runs.
pub static POSIX: Posix = Posix::new();
