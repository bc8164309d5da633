//! RLIMIT_AS, which the kernel holds against all mappings of a process, those of this library too.
//!
//! The shared memory of a run takes 65 GiB of address space, most of which is never touched. A
//! program with a lower limit could not map another page, and programs that it executes could not
//! attach. So the kernel is given a limit that is higher by that much, and the program sees the
//! limit that it set. An engine in this process maps the memory once more. Programs that
//! are executed from there have no engine, and lower their limit as they begin.
//!
//! RLIMIT_NOFILE is treated here too, where an engine is in this process: the highest numbers are
//! the engine's, and the program's end below them. So the kernel's hard limit stays, and the
//! program is told a lower one. The children of the program get the lower one in the kernel, too. A
//! forked child lowers its limit at once (`settle`); a program that libc spawns does so as it
//! begins, told by its environment. A program without this library has it lowered by its parent
//! ([`lower_of`]).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath_shm::layout::{CHANNEL_LEN, REGION_LEN, STATUS_LEN};

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errno::fail;
use crate::privilege::{CAP_SYS_RESOURCE, may};
use crate::{Posix, Result};

/// Address space of this library's that is no program's.
const OURS: u64 = (REGION_LEN + CHANNEL_LEN + STATUS_LEN) as u64;
/// Address space of an engine in this process: its mapping of the shared memory, and 512 MiB more.
/// libc reserves 64 MiB for each thread, and the engine has memory of its own.
const ENGINES: u64 = (REGION_LEN + CHANNEL_LEN) as u64 + (512 << 20);

/// The hard limit of descriptors that a program has set which has an engine in its process.
#[derive(Debug)]
pub(crate) struct Lowered(
    /// The limit plus one; 0: none was set.
    AtomicU64,
);

impl Lowered {
    /// No limit was set.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// The hard limit of descriptors that the program has set and the kernel does not know.
pub(crate) fn lowered(posix: &'static Posix) -> Option<u64> {
    posix.lowered.0.load(Relaxed).checked_sub(1)
}

/// Address space of the engine in this process, which a forked child keeps.
fn engines(posix: &'static Posix) -> u64 {
    if posix.engine_memory.is_any() { ENGINES } else { 0 }
}

/// The part of this process's limit of address space that a program without an engine does not
/// need. `None` without such a part.
pub(crate) fn surplus(posix: &'static Posix) -> Option<u64> {
    Some(engines(posix)).filter(|surplus| *surplus != 0)
}

/// Takes the surplus of the process that has executed this program from its limit.
pub(crate) fn take_surplus(surplus: u64) {
    let limit = getrlimit(Resource::As);
    let less = |limit: Option<u64>| limit.map(|limit| limit.saturating_sub(surplus));
    let less = Rlimit { current: less(limit.current), maximum: less(limit.maximum) };
    if less != limit {
        // To lower it needs no privilege.
        let _ = setrlimit(Resource::As, less);
    }
}

/// From now on this is the program's hard limit of descriptors. The kernel's stays as it is.
pub fn set_lowered(posix: &'static Posix, max: u64) {
    posix.lowered.0.store(max.saturating_add(1), Relaxed);
}

/// In a child after fork, which has no engine: the kernel is told.
pub(crate) fn settle(posix: &'static Posix) {
    if let Some(max) = posix.lowered.0.swap(0, Relaxed).checked_sub(1) {
        lower(max);
    }
}

/// Lowers this process's limits of descriptors in the kernel, which needs no privilege.
pub(crate) fn lower(max: u64) {
    lower_by_kernel(0, max);
}

/// The same for a program that this one has spawned.
pub fn lower_of(posix: &'static Posix, pid: libc::pid_t) {
    if let Some(max) = lowered(posix).filter(|_| pid > 0) {
        lower_by_kernel(pid, max);
    }
}

fn lower_by_kernel(pid: libc::pid_t, max: u64) {
    let mut limit = [0u64; 2];
    let ask = |new: usize, old: usize| {
        let args = [pid as usize, libc::RLIMIT_NOFILE as usize, new, old, 0, 0];
        // SAFETY: struct rlimit64 is two 64-bit words; null asks, or sets, nothing.
        unsafe { towpath_client::syscall::syscall(libc::SYS_prlimit64 as usize, args) }.is_ok()
    };
    if ask(0, limit.as_mut_ptr().expose_provenance()) {
        limit = limit.map(|limit| limit.min(max));
        ask(limit.as_ptr().expose_provenance(), 0);
    }
}

/// Whether what is said of a resource is to be translated: of another process we do not know what
/// it has.
pub fn is_translated(posix: &'static Posix, pid: libc::pid_t, resource: u32) -> bool {
    let own = std::process::id().cast_signed();
    let has_ours = match resource {
        libc::RLIMIT_AS => posix.is_active(),
        libc::RLIMIT_NOFILE => posix.process.descriptors.engines_from() != 0,
        _ => false,
    };
    has_ours && (pid == 0 || pid == own)
}

/// The limit that the kernel is given; `before` is its present one.
///
/// # Errors
/// EPERM for more descriptors than the program was told that it may have; a privileged one may have
/// what is below the engine's.
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
        let is_engines = limit.rlim_max > u64::from(posix.process.descriptors.engines_from());
        if is_engines || limit.rlim_max > most && !may(CAP_SYS_RESOURCE) {
            return fail(libc::EPERM);
        }
        // The engine's are up to the hard limit, which stays.
        return Ok(libc::rlimit { rlim_max: before.rlim_max, ..limit });
    }
    // RLIM_INFINITY is the largest number.
    let more = |limit: u64| limit.saturating_add(OURS + engines(posix));
    Ok(libc::rlimit { rlim_cur: more(limit.rlim_cur), rlim_max: more(limit.rlim_max) })
}

/// The limit that the program sees.
pub fn to_program(posix: &'static Posix, resource: u32, limit: libc::rlimit) -> libc::rlimit {
    if resource == libc::RLIMIT_NOFILE {
        let most = u64::from(posix.process.descriptors.engines_from());
        let most = lowered(posix).map_or(most, |lowered| lowered.min(most));
        let least = |limit: u64| limit.min(most);
        return libc::rlimit { rlim_cur: least(limit.rlim_cur), rlim_max: least(limit.rlim_max) };
    }
    let less = |limit: u64| match limit {
        libc::RLIM_INFINITY => limit,
        limit => limit.saturating_sub(OURS + engines(posix)),
    };
    libc::rlimit { rlim_cur: less(limit.rlim_cur), rlim_max: less(limit.rlim_max) }
}
