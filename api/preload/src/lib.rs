//! `libtowpath_preload.so`: the library that is preloaded into programs (LD_PRELOAD), so that their
//! sockets use the stack.
//!
//! Exports the functions of [`towpath_symbols`]. The functions only call libc's if TOWPATH_CONTROL
//! is not in the environment, or in a set-user-id program.

#![warn(missing_docs)]

use towpath_posix::attach;

/// Initializes the library. The dynamic loader calls this before the program's own constructors.
extern "C" fn start() {
    towpath_symbols::start(attach::from_environment);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
