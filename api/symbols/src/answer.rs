//! Converts results to return values of C functions.

use libc::{c_int, ssize_t};
use towpath_posix::{Errno, Result};

use crate::POSIX;

pub fn set_errno(errno: i32) {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

fn minus_one<T: From<i8>>(Errno(errno): Errno) -> T {
    fail(errno);
    T::from(-1)
}

fn fail(errno: c_int) {
    if errno == libc::ENETDOWN {
        POSIX.rest_when_engine_is_gone();
    }
    set_errno(errno);
}

pub fn int(result: Result<c_int>) -> c_int {
    POSIX.wait_while_it_ends();
    result.unwrap_or_else(minus_one)
}

pub fn zero(result: Result<()>) -> c_int {
    POSIX.wait_while_it_ends();
    result.map_or_else(minus_one, |()| 0)
}

pub fn size(result: Result<usize>) -> ssize_t {
    POSIX.wait_while_it_ends();
    // Linux transfers at most MAX_RW_COUNT (about 2 GiB) per call, so the cast is lossless.
    result.map_or_else(minus_one_size, |n| n as ssize_t)
}

fn minus_one_size(Errno(errno): Errno) -> ssize_t {
    fail(errno);
    -1
}
