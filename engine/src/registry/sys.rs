//! Socket options and requests that rustix does not have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// asm-generic/socket.h of Linux 6.16. Architectures that number socket options otherwise are not supported.
const SO_PASSRIGHTS: libc::c_int = 83;

/// From now on nobody can send descriptors to this Unix socket.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.16.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    let no: libc::c_int = 0;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let at = (&raw const no).cast();
    // SAFETY: an open descriptor, and an int that outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, at, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the other end of a Unix socket has not received all that was sent (SIOCOUTQ).
pub(crate) fn has_unreceived(socket: BorrowedFd<'_>) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: an open descriptor, and an int to write to.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    result == 0 && bytes > 0
}
