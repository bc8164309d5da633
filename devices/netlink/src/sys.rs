//! The socket option that rustix does not offer, which needs `unsafe`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Makes the kernel check requests for dumps strictly, and apply their filters (Linux 4.20).
pub(crate) fn set_strict(socket: BorrowedFd<'_>) -> io::Result<()> {
    // From linux/netlink.h.
    const NETLINK_GET_STRICT_CHK: libc::c_int = 12;
    let on: libc::c_int = 1;
    let value: *const libc::c_void = std::ptr::from_ref(&on).cast();
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_NETLINK);
    // SAFETY: setsockopt(2) reads `len` bytes of `on`, which is a local.
    let status = unsafe { libc::setsockopt(fd, level, NETLINK_GET_STRICT_CHK, value, len) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
