//! RLIMIT_AS, which the kernel holds against all mappings of a process, those of this library too.
//!
//! The shared memory of a run takes 65 GiB of address space, most of which is never touched: a program that limits
//! itself to less than that could not map another page, and a program that it executes could not attach. So the
//! kernel is told as much more, and the program what it has said.

use towpath_shm::layout::{CHANNEL_LEN, REGION_LEN, STATUS_LEN};

use crate::Posix;

/// Address space of this library's that is no program's.
const OURS: u64 = (REGION_LEN + CHANNEL_LEN + STATUS_LEN) as u64;

/// Whether what is said of a resource is to be translated: of another process we do not know what it has.
pub fn is_translated(posix: &'static Posix, pid: libc::pid_t, resource: u32) -> bool {
    let own = std::process::id().cast_signed();
    resource == libc::RLIMIT_AS && (pid == 0 || pid == own) && posix.is_active()
}

/// What the kernel is told.
pub fn to_kernel(limit: libc::rlimit) -> libc::rlimit {
    // RLIM_INFINITY is the largest number.
    let more = |limit: u64| limit.saturating_add(OURS);
    libc::rlimit { rlim_cur: more(limit.rlim_cur), rlim_max: more(limit.rlim_max) }
}

/// What the program is told.
pub fn to_program(limit: libc::rlimit) -> libc::rlimit {
    let less = |limit: u64| match limit {
        libc::RLIM_INFINITY => limit,
        limit => limit.saturating_sub(OURS),
    };
    libc::rlimit { rlim_cur: less(limit.rlim_cur), rlim_max: less(limit.rlim_max) }
}
