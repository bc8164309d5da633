//! What the library calls, found in its machine code.

#[path = "../../preload/tests/calls/mod.rs"]
mod calls;

use calls::{Allowed, Library, does_not_call_itself};

const ALLOWED: [Allowed; 1] = [
    // futex(2), which our syscall(2) hands to the kernel without a look.
    ("3std3sys4sync", &["syscall"]),
];

#[test]
fn the_library_does_not_call_itself() {
    does_not_call_itself(&Library::of("towpath-inline"), &ALLOWED);
}
