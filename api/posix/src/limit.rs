//! RLIMIT_AS, which the kernel holds against all mappings of a process, those of this library too.
//!
//! The shared memory of a run takes 65 GiB of address space, most of which is never touched: a program that limits
//! itself to less than that could not map another page, and a program that it executes could not attach. So the
//! kernel is told as much more, and the program what it has said.
//!
//! And RLIMIT_NOFILE, where an engine is in this process: the highest numbers are its own, and what the program may have
//! ends below them.

use towpath_shm::layout::{CHANNEL_LEN, REGION_LEN, STATUS_LEN};

use crate::errno::fail;
use crate::{Posix, Result};

/// Address space of this library's that is no program's.
const OURS: u64 = (REGION_LEN + CHANNEL_LEN + STATUS_LEN) as u64;

/// Whether what is said of a resource is to be translated: of another process we do not know what it has.
pub fn is_translated(posix: &'static Posix, pid: libc::pid_t, resource: u32) -> bool {
    let own = std::process::id().cast_signed();
    let has_ours = match resource {
        libc::RLIMIT_AS => posix.is_active(),
        libc::RLIMIT_NOFILE => posix.process.descriptors.engines_from() != 0,
        _ => false,
    };
    has_ours && (pid == 0 || pid == own)
}

/// What the kernel is told; `before` is what it says now.
///
/// # Errors
/// EPERM for more descriptors than the program was told that it may have.
pub fn to_kernel(
    posix: &'static Posix,
    resource: u32,
    limit: libc::rlimit,
    before: libc::rlimit,
) -> Result<libc::rlimit> {
    if resource == libc::RLIMIT_NOFILE {
        let most = to_program(posix, resource, before).rlim_max;
        if limit.rlim_cur > limit.rlim_max {
            return fail(libc::EINVAL);
        }
        if limit.rlim_max > most {
            return fail(libc::EPERM);
        }
        // The engine's are up to the hard limit, which stays.
        return Ok(libc::rlimit { rlim_max: before.rlim_max, ..limit });
    }
    // RLIM_INFINITY is the largest number.
    let more = |limit: u64| limit.saturating_add(OURS);
    Ok(libc::rlimit { rlim_cur: more(limit.rlim_cur), rlim_max: more(limit.rlim_max) })
}

/// What the program is told.
pub fn to_program(posix: &'static Posix, resource: u32, limit: libc::rlimit) -> libc::rlimit {
    if resource == libc::RLIMIT_NOFILE {
        let most = u64::from(posix.process.descriptors.engines_from());
        let least = |limit: u64| limit.min(most);
        return libc::rlimit { rlim_cur: least(limit.rlim_cur), rlim_max: least(limit.rlim_max) };
    }
    let less = |limit: u64| match limit {
        libc::RLIM_INFINITY => limit,
        limit => limit.saturating_sub(OURS),
    };
    libc::rlimit { rlim_cur: less(limit.rlim_cur), rlim_max: less(limit.rlim_max) }
}
