//! Exports functions for FILE streams on sockets of the stack, and for printing to a descriptor.
//!
//! libc's functions reject these sockets, because they first examine the kernel descriptor by
//! internal calls that this library cannot replace.

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use towpath_posix::descriptor;

use crate::{POSIX, answer, real};

/// `cookie_io_functions_t` of fopencookie(3): the functions that a stream calls.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn vasprintf(to: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vasprintf_chk(
        to: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn __fpending(stream: *mut FILE) -> size_t;
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

unsafe extern "C" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: stdio passes a buffer of `len` bytes. The cookie is the descriptor.
    unsafe { crate::transfer::read(cookie as c_int, to.cast(), len) }
}

unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: stdio passes a buffer of `len` bytes. The cookie is the descriptor; the function
    // returns 0 on failure.
    unsafe { crate::transfer::write(cookie as c_int, from.cast(), len).max(0) }
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the cookie is the descriptor, which the stream owns.
    unsafe { crate::descriptors::close(cookie as c_int) }
}

unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read, write, seek: None, close };
    // SAFETY: the functions have the types that fopencookie requires. `mode` is NUL-terminated, by
    // the contract of fdopen.
    unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !descriptor::is_socket(&POSIX, fd) {
            return real::fdopen(fd, mode);
        }
        if mode.is_null() || !matches!(*mode as u8, b'r' | b'w' | b'a') {
            answer::set_errno(libc::EINVAL);
            return std::ptr::null_mut();
        }
        open(fd, mode)
    }
}

/// Replaces libc's freopen, because its internal dup2 would overwrite a socket of the stack
/// unnoticed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        give_up_socket(stream);
        real::freopen(path, mode, stream)
    }
}

/// freopen64, implemented as [`freopen`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        give_up_socket(stream);
        real::freopen64(path, mode, stream)
    }
}

/// Closes the stream's descriptor if it is a socket of the stack. freopen(3) closes the descriptor
/// even if it fails.
unsafe fn give_up_socket(stream: *mut FILE) {
    // SAFETY: `stream` is valid, by the contract of freopen.
    unsafe {
        let fd = libc::fileno(stream);
        if descriptor::is_socket(&POSIX, fd) {
            // Send buffered bytes first, and ignore an error, as freopen does.
            libc::fflush(stream);
            let _ = descriptor::give_up(&POSIX, fd);
        }
    }
}

/// Replaces standard streams that are sockets, as in a program started by inetd. Needed only if
/// [`crate::streams`] cannot patch libc's streams.
pub fn wrap_standard_streams() {
    // SAFETY: called in the constructor, when the streams are not in use yet; programs read these
    // variables on each use.
    unsafe {
        if descriptor::is_socket(&POSIX, 0) {
            stdin = open(0, c"r".as_ptr());
        }
        if descriptor::is_socket(&POSIX, 1) {
            stdout = open(1, c"w".as_ptr());
        }
        if descriptor::is_socket(&POSIX, 2) {
            stderr = open(2, c"w".as_ptr());
            libc::setvbuf(stderr, std::ptr::null_mut(), libc::_IONBF, 0);
        }
    }
}

type Do = unsafe extern "C" fn();
type Next = unsafe extern "C" fn(*mut FILE) -> *mut FILE;

/// Flushes the buffers of all streams, like exit(3), except streams that another thread has locked.
/// fflush(3) would wait for such a stream, possibly until input arrives at a terminal.
pub fn write_out_streams() {
    let names = [c"_IO_list_lock", c"_IO_list_unlock", c"_IO_iter_begin", c"_IO_iter_next"];
    // SAFETY: each name is NUL-terminated.
    let [lock, unlock, begin, next] =
        names.map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    if [lock, unlock, begin, next].contains(&std::ptr::null_mut()) {
        // Without these functions, libc is not glibc. SAFETY: a null pointer makes fflush flush all
        // streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        return;
    }
    // SAFETY: glibc's functions for iterating over all streams have had these types since 2.2. A
    // stream stays valid while the list is locked.
    unsafe {
        let lock: Do = std::mem::transmute(lock);
        let unlock: Do = std::mem::transmute(unlock);
        let begin: unsafe extern "C" fn() -> *mut FILE = std::mem::transmute(begin);
        let next: Next = std::mem::transmute(next);
        lock();
        let mut stream = begin();
        while !stream.is_null() {
            if ftrylockfile(stream) == 0 {
                if __fpending(stream) > 0 {
                    fflush_unlocked(stream);
                }
                funlockfile(stream);
            }
            stream = next(stream);
        }
        unlock();
    }
}

/// Sends formatted text to a socket. `print` allocates memory for the text, which this function
/// frees. Returns the number of bytes, or -1.
unsafe fn send_printed(fd: c_int, print: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text: *mut c_char = std::ptr::null_mut();
    let len = print(&raw mut text);
    if len < 0 {
        return len;
    }
    let mut done = 0;
    while done < len as usize {
        // SAFETY: `print` has allocated `len` bytes.
        let n = unsafe { crate::transfer::write(fd, text.add(done).cast(), len as usize - done) };
        if n <= 0 {
            break;
        }
        done += n as usize;
    }
    // SAFETY: vasprintf has allocated `text` by malloc. (free preserves errno.)
    unsafe { libc::free(text.cast()) };
    if done == len as usize { len } else { -1 }
}

/// vdprintf(3). `arguments` is a va_list, which is passed as a pointer on both x86_64 and aarch64.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            return send_printed(fd, |text| vasprintf(text, format, arguments));
        }
        real::vdprintf(fd, format, arguments)
    }
}

/// Entry point of vdprintf for programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            return send_printed(fd, |text| __vasprintf_chk(text, flag, format, arguments));
        }
        real::__vdprintf_chk(fd, flag, format, arguments)
    }
}
