//! RLIMIT_AS and RLIMIT_NOFILE, as the program sees them. The kernel's RLIMIT_AS covers all
//! mappings of a process, including those of this library.
//!
//! The shared memory with the engine (the network stack) takes 65 GiB of address space, most of
//! which is never touched. With a lower RLIMIT_AS, a program could not map another page, and
//! programs that it executes could not map the shared memory. Therefore the kernel's limit is set
//! 65 GiB higher than the limit that the program sets and sees. An engine in this process maps the
//! shared memory a second time. A program executed by such a process has no engine, so it lowers
//! the kernel's limit when it starts.
//!
//! RLIMIT_NOFILE is translated only if the engine is in this process. The engine uses the highest
//! descriptor numbers, and the program must stay below them. Therefore the kernel's hard limit is
//! not changed, and the program sees a lower one. For the program's children, the kernel's limit is
//! lowered. A forked child lowers its limit at once (`settle`). A spawned program lowers it when it
//! starts; its environment contains the limit. For a program without this library, its parent
//! lowers the limit ([`lower_of`]).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath_shm::layout::{CHANNEL_LEN, REGION_LEN, STATUS_LEN};

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errno::fail;
use crate::privilege::{CAP_SYS_RESOURCE, may};
use crate::{Posix, Result};

/// Bytes of address space that the library's shared memory takes in every program.
const OURS: u64 = (REGION_LEN + CHANNEL_LEN + STATUS_LEN) as u64;
/// Bytes of address space that an engine (network stack) in this process takes: its mapping of the
/// shared memory, and 512 MiB for private memory. libc reserves 64 MiB of these for each thread.
const ENGINES: u64 = (REGION_LEN + CHANNEL_LEN) as u64 + (512 << 20);

/// Hard limit of descriptors (RLIMIT_NOFILE) that the program has set in a process that contains
/// the engine. The kernel's limit stays higher, for the engine's descriptors.
#[derive(Debug)]
pub(crate) struct Lowered(
    /// The hard limit plus one. 0: the program has set no limit.
    AtomicU64,
);

impl Lowered {
    /// Creates the state in which the program has set no limit.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// Returns the hard limit of descriptors that the program has set, if the kernel's limit is still
/// higher.
pub(crate) fn lowered(posix: &'static Posix) -> Option<u64> {
    posix.lowered.0.load(Relaxed).checked_sub(1)
}

/// Returns the number of bytes of address space that an engine (network stack) in this process
/// takes. A forked child still has the mappings of its parent's engine, so they count as well.
fn engines(posix: &'static Posix) -> u64 {
    if posix.engine_memory.is_any() { ENGINES } else { 0 }
}

/// Returns by how many bytes a program executed by this process must lower its address space limit,
/// because it contains no engine. `None` means that the limit stays.
pub(crate) fn surplus(posix: &'static Posix) -> Option<u64> {
    Some(engines(posix)).filter(|surplus| *surplus != 0)
}

/// Lowers the address space limit of this process by `surplus` bytes, which the previous program
/// needed for its engine before exec.
pub(crate) fn take_surplus(surplus: u64) {
    let limit = getrlimit(Resource::As);
    let less = |limit: Option<u64>| limit.map(|limit| limit.saturating_sub(surplus));
    let less = Rlimit { current: less(limit.current), maximum: less(limit.maximum) };
    if less != limit {
        // The call does not fail, because a process may lower its limits without privileges.
        let _ = setrlimit(Resource::As, less);
    }
}

/// Sets the hard limit of descriptors that the program sees. The limit in the kernel is not
/// changed.
pub fn set_lowered(posix: &'static Posix, max: u64) {
    posix.lowered.0.store(max.saturating_add(1), Relaxed);
}

/// Sets the kernel's hard limit of descriptors to the limit that the program sees. Called in a
/// forked child, which has no engine that needs a higher limit.
pub(crate) fn settle(posix: &'static Posix) {
    if let Some(max) = posix.lowered.0.swap(0, Relaxed).checked_sub(1) {
        lower(max);
    }
}

/// Lowers the kernel's descriptor limits of this process to `max`, which needs no privilege.
pub(crate) fn lower(max: u64) {
    lower_by_kernel(0, max);
}

/// Lowers the descriptor limits of the spawned process `pid` to the limit that this program has
/// set.
pub fn lower_of(posix: &'static Posix, pid: libc::pid_t) {
    if let Some(max) = lowered(posix).filter(|_| pid > 0) {
        lower_by_kernel(pid, max);
    }
}

fn lower_by_kernel(pid: libc::pid_t, max: u64) {
    let mut limit = [0u64; 2];
    let ask = |new: usize, old: usize| {
        let args = [pid as usize, libc::RLIMIT_NOFILE as usize, new, old, 0, 0];
        // SAFETY: struct rlimit64 is two 64-bit words, as `limit` is. With a null pointer the
        // kernel reads or writes nothing.
        unsafe { towpath_client::syscall::syscall(libc::SYS_prlimit64 as usize, args) }.is_ok()
    };
    if ask(0, limit.as_mut_ptr().expose_provenance()) {
        limit = limit.map(|limit| limit.min(max));
        ask(limit.as_ptr().expose_provenance(), 0);
    }
}

/// Returns whether a limit differs between program and kernel. The address space limits of other
/// processes are not translated, because their mappings are unknown.
pub fn is_translated(posix: &'static Posix, pid: libc::pid_t, resource: u32) -> bool {
    let own = std::process::id().cast_signed();
    let has_ours = match resource {
        libc::RLIMIT_AS => posix.is_active(),
        libc::RLIMIT_NOFILE => posix.process.descriptors.engines_from() != 0,
        _ => false,
    };
    has_ours && (pid == 0 || pid == own)
}

/// Translates a limit set by the program to the limit for the kernel. `before` is the kernel's
/// current limit.
///
/// # Errors
/// EPERM if the limit of descriptors is above the hard limit that the program sees. A privileged
/// program may raise the limit up to the lowest descriptor of the engine.
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
        // Keep the kernel's hard limit, because the engine's descriptors have the numbers below it.
        return Ok(libc::rlimit { rlim_max: before.rlim_max, ..limit });
    }
    // RLIM_INFINITY is the largest number, so the saturating addition leaves it unchanged.
    let more = |limit: u64| limit.saturating_add(OURS + engines(posix));
    Ok(libc::rlimit { rlim_cur: more(limit.rlim_cur), rlim_max: more(limit.rlim_max) })
}

/// Translates a limit of the kernel to the limit that the program sees.
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
