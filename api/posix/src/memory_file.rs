//! Files in memory, which programs read in the place of the kernel's.

use std::ffi::CStr;

use towpath_client::syscall::syscall;

use crate::{Errno, Result};

/// An empty file, which is closed by exec(2). Its `name` shows in /proc/self/fd alone.
///
/// # Errors
/// See memfd_create(2).
pub(crate) fn create(name: &CStr) -> Result<i32> {
    let args = [name.as_ptr() as usize, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0];
    // SAFETY: a name, which the kernel copies, and flags.
    unsafe { syscall(libc::SYS_memfd_create as usize, args) }.map_err(Errno).map(|fd| fd as i32)
}
