//! The C functions that the preloaded library (`api/preload`) exports instead of libc's.
//!
//! Every function has the name and the contract of a libc function. For sockets of the stack it
//! calls [`towpath_posix`], otherwise libc's function. A shared library that depends on this crate
//! exports all functions, and calls [`start`] when it is loaded.
//!
//! - `state`: state of these functions in the process; `real`: libc's functions, resolved once;
//! - `cancel`: cancellation points; `complaint`: messages of the library itself;
//! - `sockets`, `transfer`, `positional`, `descriptors`, `polling`, `interfaces`, `limits`,
//!   `locking`, `opening`, `files`, `folders`, `processes`, `pipes`, `stdio`, `streams`,
//!   `refusals`, `sandbox`, `signals`: the functions, by kind;
//! - `names`, `ordering`, `nss`, `res`, `res_state`: name resolution;
//! - `variadic`: functions with variable arguments; `syscall`: calls by system call number.

#![warn(missing_docs)]
#![allow(clippy::missing_safety_doc)] // Each has its libc function's contract.

mod answer;
mod cancel;
pub mod complaint;
mod descriptors;
mod endings;
mod files;
mod folders;
mod interfaces;
mod limits;
mod locking;
mod names;
mod nss;
mod opening;
mod ordering;
mod pipes;
mod polling;
mod positional;
mod processes;
mod real;
mod refusals;
mod res;
mod res_state;
mod sandbox;
mod signals;
mod sockets;
mod state;
mod stdio;
mod streams;
mod syscall;
mod transfer;
mod variadic;

use towpath_posix::{Errno, Posix};

use state::POSIX;

pub use endings::{before_it_ends, hear_wishes_to_end};
pub use signals::on_end_request;
pub use stdio::write_out_streams;

/// Initializes the library. Called by the dynamic loader before the program's own constructors.
/// `attach` connects to the engine, if the process has one.
pub fn start(attach: impl FnOnce(&'static Posix) -> towpath_posix::Result<()>) {
    real::resolve_all();
    res::resolve_all();
    std::panic::set_hook(Box::new(report_panic));
    processes::has_handlers();
    cancel::prepare();
    if let Err(Errno(libc::ENOMEM)) = attach(&POSIX) {
        let text = b"towpath: the limit of address space (ulimit -v) leaves no room \
            for the stack's shared memory: this program's sockets fail\n";
        complaint::write(text);
    }
    if POSIX.is_active() && !streams::take_part() {
        stdio::wrap_standard_streams();
    }
}

/// Prints a panic of this library. Replaces std's default hook, which calls libc functions that
/// this library replaces, and may take a lock that the panicking call holds.
fn report_panic(panic: &std::panic::PanicHookInfo<'_>) {
    use std::io::Write;
    let mut text = [0; 512];
    let mut rest = &mut text[..];
    // Ignore the result: a message that does not fit is truncated.
    let _ = writeln!(rest, "towpath: {panic}");
    let len = 512 - rest.len();
    complaint::write(&text[..len]);
}
