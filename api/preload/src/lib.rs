//! `libtowpath_preload.so`: the library that is loaded into the programs of a run.
//!
//! Its functions are those of [`towpath_symbols`]. Without TOWPATH_CONTROL in the environment, and
//! in set-user-id programs, all goes to libc.

#![warn(missing_docs)]

use towpath_posix::attach;

/// Run by the dynamic loader before the program's own constructors.
extern "C" fn start() {
    towpath_symbols::start(attach::from_environment);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
