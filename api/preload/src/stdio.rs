//! FILE streams on sockets of ours: glibc's own use calls inside libc that nobody can interpose.

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use towpath_posix::descriptor;

use crate::{answer, real};

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

unsafe extern "C" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the cookie is the descriptor; the buffer is stdio's.
    unsafe { crate::transfer::read(cookie as c_int, to.cast(), len) }
}

unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: as above. A cookie function reports failure as 0.
    unsafe { crate::transfer::write(cookie as c_int, from.cast(), len).max(0) }
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { crate::descriptors::close(cookie as c_int) }
}

unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read, write, seek: None, close };
    // SAFETY: the functions have the types that glibc wants; the mode is the caller's.
    unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: as called.
    unsafe {
        if !descriptor::is_socket(fd) {
            return real::fdopen(fd, mode);
        }
        if mode.is_null() || !matches!(*mode as u8, b'r' | b'w' | b'a') {
            answer::set_errno(libc::EINVAL);
            return std::ptr::null_mut();
        }
        open(fd, mode)
    }
}

/// A program that was started with a socket as standard input or output (as inetd does) gets streams
/// that work on it.
pub fn wrap_standard_streams() {
    // SAFETY: in the constructor nobody else uses them yet; programs read these variables when they
    // use a stream.
    unsafe {
        if descriptor::is_socket(0) {
            stdin = open(0, c"r".as_ptr());
        }
        if descriptor::is_socket(1) {
            stdout = open(1, c"w".as_ptr());
        }
        if descriptor::is_socket(2) {
            stderr = open(2, c"w".as_ptr());
            libc::setvbuf(stderr, std::ptr::null_mut(), libc::_IONBF, 0);
        }
    }
}
