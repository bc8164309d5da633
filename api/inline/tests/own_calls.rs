//! Calls of the library, found in its machine code.

#[path = "../../preload/tests/calls/mod.rs"]
#[expect(dead_code, reason = "for the tests of the other library")]
mod calls;

use calls::{Allowed, Library, does_not_call_itself};

/// As for the other library, with exceptions for threads and for work before the program begins.
const ALLOWED: [Allowed; 8] = [
    // futex(2), which our syscall(2) hands to the kernel without a look, and gettid(2), which it
    // does not answer either.
    ("3std", &["syscall"]),
    // getrandom(2), likewise. The other symbols are for kernels without it (before Linux 3.17):
    // they open /dev/urandom, a path at which our open does not look.
    ("6random5linux9getrandom", &["open64", "close", "poll", "read"]),
    // Descriptors of a message that were not taken: all are taken.
    ("Ancillary", &["close", "fcntl"]),
    // Results whose descriptor was taken have nothing left to drop.
    ("Result$LT$std..os..fd..owned..OwnedFd", &["close", "fcntl"]),
    // Where a panic unwinds while one of two descriptors is moved: this library aborts.
    ("12notification4pair", &["close", "fcntl"]),
    ("registry..Registry$GT$4open", &["close", "fcntl"]),
    ("listeners..ForwardedListener$GT$13accept_socket", &["close", "fcntl"]),
    // Asks how signals are handled, before the library has begun.
    ("14towpath_engine6caller4note", &["sigaction"]),
];

#[test]
fn the_library_does_not_call_itself() {
    does_not_call_itself(&Library::of("towpath-inline"), &ALLOWED);
}
