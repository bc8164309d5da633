//! Messages of the library itself, on the program's stderr.

/// Writes to the kernel's descriptor 2, wherever the program has redirected it, by a direct system
/// call.
pub fn write(text: &[u8]) {
    let args = [2, text.as_ptr() as usize, text.len(), 0, 0, 0];
    // SAFETY: valid bytes. Where they cannot be written the message is lost.
    let _ = unsafe { towpath_client::syscall::syscall(libc::SYS_write as usize, args) };
}
