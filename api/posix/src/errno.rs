//! Error numbers (errno) of the C functions.

use towpath_client::Error;

/// An error number of errno(3), positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Result of every call in this crate. For `Err`, the C function returns -1 and sets `errno`.
pub type Result<T> = std::result::Result<T, Errno>;

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(match error {
            Error::WouldBlock | Error::Interrupting | Error::TimedOut => libc::EAGAIN,
            Error::Interrupted => libc::EINTR,
            Error::Forked => libc::ERESTART,
            Error::NotConnected => libc::ENOTCONN,
            Error::NotListening => libc::EINVAL,
            Error::Closed => libc::EPIPE,
            Error::TooLong => libc::EMSGSIZE,
            Error::Refused(errno) => errno,
            // Map `Error::Dead` (the engine has ended), and variants that a later version may add,
            // to ENETDOWN.
            _ => libc::ENETDOWN,
        })
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// Returns `errno` as an error.
pub(crate) fn fail<T>(errno: i32) -> Result<T> {
    Err(Errno(errno))
}
