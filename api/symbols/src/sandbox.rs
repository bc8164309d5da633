//! Exports prctl(2), with which programs install seccomp filters on themselves: see
//! [`towpath_client::Process::calls_are_filtered`].

use libc::{c_int, c_ulong};

use crate::{POSIX, real};

/// prctl(2), declared with five fixed arguments. C's prctl is variadic, but all arguments are
/// passed in registers, so passing all five is harmless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        POSIX.process.calls_are_filtered();
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::prctl(option, a, b, c, d) }
}
