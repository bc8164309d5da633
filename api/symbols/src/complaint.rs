//! Messages of the library itself, on the program's stderr.

/// Writes to the kernel's descriptor 2, regardless of redirections by the program, using a direct
/// system call.
pub fn write(text: &[u8]) {
    let args = [2, text.as_ptr() as usize, text.len(), 0, 0, 0];
    // SAFETY: the pointer and length are those of `text`. A failed write loses the message.
    let _ = unsafe { towpath_client::syscall::syscall(libc::SYS_write as usize, args) };
}
