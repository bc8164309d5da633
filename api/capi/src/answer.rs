//! Converts results of calls to C conventions: a value, or -1 with errno and an error message.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use libc::ssize_t;
use towpath_posix::{Errno, Posix, Result};

use crate::stack::{OwnedDescriptor, find};

thread_local! {
    /// Message of the last error when this thread opened or closed a stack.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Calls `work` with the socket or epoll set `number`, and keeps this object open during the call.
pub fn with<T>(number: c_int, work: impl FnOnce(&OwnedDescriptor) -> Result<T>) -> Result<T> {
    ended_by_exit(find(number)?.descriptor()?, work)
}

/// Calls `work`. Does not return if the call fails because the process is exiting, so that the
/// program does not see the error.
pub fn ended_by_exit<T>(
    descriptor: &OwnedDescriptor,
    work: impl FnOnce(&OwnedDescriptor) -> Result<T>,
) -> Result<T> {
    match work(descriptor) {
        Err(Errno(libc::ENETDOWN)) => {
            // Wait only in the process that opened the stack. In a child forked during the call, no
            // thread ends the stack, so the wait would be endless.
            if descriptor.stack.check_process().is_ok() {
                descriptor.stack.posix().wait_while_it_ends();
            }
            Err(Errno(libc::ENETDOWN))
        }
        // ERESTART: a signal handler called fork(2) during the call, and this process is the child.
        // The stack belongs to the parent.
        Err(Errno(libc::ERESTART)) => Err(Errno(libc::ENETDOWN)),
        result => result,
    }
}

/// Calls a function of [`towpath_posix`] for the socket or epoll set `number`. `call` gets the
/// kernel descriptor that represents the object in `towpath_posix`.
pub fn on<T>(number: c_int, call: impl FnOnce(&'static Posix, i32) -> Result<T>) -> Result<T> {
    with(number, |descriptor| call(descriptor.stack.posix(), descriptor.inner))
}

/// Returns a non-negative number, or -1 with errno.
pub fn int(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|errno| fail(errno) as c_int)
}

/// Returns 0, or -1 with errno.
pub fn zero(result: Result<()>) -> c_int {
    int(result.map(|()| 0))
}

/// Returns a number of bytes, or -1 with errno.
pub fn size(result: Result<usize>) -> ssize_t {
    // A call transfers at most MAX_RW_COUNT bytes, so the cast is lossless.
    result.map_or_else(fail, |bytes| bytes as ssize_t)
}

fn fail(Errno(errno): Errno) -> ssize_t {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Sets the message that [`towpath_error`] returns.
pub fn set_message(text: &str) {
    // Replace NUL bytes, because they would end the C string. The message may quote a value from
    // the program that contains them.
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    MESSAGE.with_borrow_mut(|message| *message = text);
}

#[unsafe(no_mangle)]
pub extern "C" fn towpath_error() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}
