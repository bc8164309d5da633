//! Socket options and ioctls that rustix does not support.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use towpath_shm::syscall::syscall;

/// Number of the socket option SO_PASSRIGHTS in asm-generic/socket.h of Linux 6.16. Architectures
/// with a different number are not supported.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Makes the kernel reject descriptors (SCM_RIGHTS) sent to this Unix socket.
///
/// # Errors
/// Returns ENOPROTOOPT before Linux 6.16.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    let no: libc::c_int = 0;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let at = (&raw const no).expose_provenance();
    let (fd, level, option) = (socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS);
    let args = [fd as usize, level as usize, option as usize, at, len as usize, 0];
    // SAFETY: the descriptor is open, and SO_PASSRIGHTS reads an int that outlives the call.
    let set = unsafe { syscall(libc::SYS_setsockopt as usize, args) };
    set.map(drop).map_err(io::Error::from_raw_os_error)
}

/// Returns whether the peer of a Unix socket has not yet received all messages (SIOCOUTQ).
pub(crate) fn has_unreceived(socket: BorrowedFd<'_>) -> bool {
    let mut bytes: libc::c_int = 0;
    let at = (&raw mut bytes).expose_provenance();
    let args = [socket.as_raw_fd() as usize, libc::TIOCOUTQ as usize, at, 0, 0, 0];
    // SAFETY: the descriptor is open, and SIOCOUTQ writes an int that outlives the call.
    let told = unsafe { syscall(libc::SYS_ioctl as usize, args) };
    told.is_ok() && bytes > 0
}
