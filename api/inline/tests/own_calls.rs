//! Checks of the library's machine code: which libc functions it calls.

#[path = "../../preload/tests/calls/mod.rs"]
#[expect(dead_code, reason = "for the tests of the other library")]
mod calls;

use calls::{Allowed, Library, does_not_call_itself};

/// Allowed calls, as in the test of `api/preload`, and further ones for threads and for start-up.
const ALLOWED: [Allowed; 9] = [
    // futex(2) and gettid(2): our syscall(2) passes both to the kernel unchanged.
    ("3std", &["syscall"]),
    // getrandom(2): likewise. The other symbols serve kernels without it (before Linux 3.17). Their
    // code opens /dev/urandom, a path that our open does not replace.
    ("6random5linux9getrandom", &["open64", "close", "poll", "read"]),
    // Drops the descriptors of a message that were not taken; `recv_reply` takes all of them.
    ("Ancillary", &["close", "fcntl"]),
    // Drops a result whose descriptor has been taken already, so nothing is closed.
    ("Result$LT$std..os..fd..owned..OwnedFd", &["close", "fcntl"]),
    // Closes descriptors while a panic unwinds. Not reached, because this library aborts on a
    // panic.
    ("12notification4pair", &["close", "fcntl"]),
    ("registry..Registry$GT$4open", &["close", "fcntl"]),
    ("listeners..ForwardedListener$GT$13accept_socket", &["close", "fcntl"]),
    ("udp9fragments4open", &["close", "fcntl"]),
    // Reads the signal dispositions before the library is initialized.
    ("14towpath_engine6caller4note", &["sigaction"]),
];

#[test]
fn the_library_does_not_call_itself() {
    does_not_call_itself(&Library::of("towpath-inline"), &ALLOWED);
}
