//! `libtowpath_preload.so`: the library that is loaded into the programs of a run.
//!
//! Exports the functions of [`towpath_symbols`]. If TOWPATH_CONTROL is not in the environment, or
//! in a set-user-id program, they only call libc's functions of the same names.

#![warn(missing_docs)]

use towpath_posix::attach;

/// Initializes the library. The dynamic loader calls this before the program's own constructors.
extern "C" fn start() {
    towpath_symbols::start(attach::from_environment);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
