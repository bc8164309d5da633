//! Memory files (memfd_create(2)), which programs read instead of files of the kernel.

use std::ffi::CStr;

use towpath_client::syscall::syscall;

use crate::{Errno, Result};

/// Creates an empty memory file with close-on-exec. `name` appears only in links of /proc/self/fd.
///
/// # Errors
/// Errors of memfd_create(2).
pub(crate) fn create(name: &CStr) -> Result<i32> {
    let args = [name.as_ptr() as usize, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0];
    // SAFETY: `name` is NUL-terminated, and the kernel copies it.
    unsafe { syscall(libc::SYS_memfd_create as usize, args) }.map_err(Errno).map(|fd| fd as i32)
}
