//! What the socket calls of this process keep.

use towpath_posix::Posix;

/// There is one in a process, as there is one of this library. It is zeroed memory, and ready
/// before any constructor has run: those of other libraries, and a malloc that is not libc's, may
/// make calls before this library's own runs.
pub static POSIX: Posix = Posix::new();
