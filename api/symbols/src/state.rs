//! State of the socket calls in this process.

use towpath_posix::Posix;

/// State of the socket calls in this process. The initial state consists of zeros, so it is valid
/// before any constructor runs. Constructors of other libraries may call these functions before
/// this library's constructor.
pub static POSIX: Posix = Posix::new();
