//! `libtowpath_preload.so`: the library that is loaded into the programs of a run.
//!
//! Exports the functions of [`towpath_symbols`]. The functions call libc's own if TOWPATH_CONTROL
//! is not in the environment, and in set-user-id programs.

#![warn(missing_docs)]

use towpath_posix::attach;

/// Initializes the library. The dynamic loader calls it before the program's own constructors.
extern "C" fn start() {
    towpath_symbols::start(attach::from_environment);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
