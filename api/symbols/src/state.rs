//! State of this process's socket calls.

use towpath_posix::Posix;

/// State of this process's socket calls. The initial state consists of zeros, so it is valid before
/// any constructor runs. A constructor of another library, or a malloc replacement, may call these
/// functions before our own constructor.
pub static POSIX: Posix = Posix::new();
