//! System calls without libc, in forms that rustix does not offer: with raw descriptors, signal
//! masks, or structures of the caller.

pub use towpath_shm::syscall::{raw, syscall};

/// Numbers of system calls for [`syscall()`], from asm/unistd.h of the target architecture.
pub mod nr {
    #[cfg(target_arch = "x86_64")]
    #[allow(missing_docs)] // The manual's section 2 has a page for each name.
    mod arch {
        pub const READ: usize = 0;
        pub const WRITE: usize = 1;
        pub const CLOSE: usize = 3;
        pub const RT_SIGPROCMASK: usize = 14;
        pub const SENDTO: usize = 44;
        pub const RECVFROM: usize = 45;
        pub const RECVMSG: usize = 47;
        pub const FCNTL: usize = 72;
        pub const FUTEX: usize = 202;
        pub const PPOLL: usize = 271;
        pub const DUP3: usize = 292;
        pub const PRLIMIT64: usize = 302;
    }
    #[cfg(target_arch = "aarch64")]
    #[allow(missing_docs)] // The manual's section 2 has a page for each name.
    mod arch {
        pub const CLOSE: usize = 57;
        pub const READ: usize = 63;
        pub const WRITE: usize = 64;
        pub const RT_SIGPROCMASK: usize = 135;
        pub const SENDTO: usize = 206;
        pub const RECVFROM: usize = 207;
        pub const RECVMSG: usize = 212;
        pub const FCNTL: usize = 25;
        pub const PPOLL: usize = 73;
        pub const FUTEX: usize = 98;
        pub const DUP3: usize = 24;
        pub const PRLIMIT64: usize = 261;
    }
    pub use arch::*;
    /// Number of close_range(2), since Linux 5.9.
    pub const CLOSE_RANGE: usize = 436;
    /// futex_waitv(2), since Linux 5.16; older kernels return ENOSYS. The number is the same on all
    /// architectures, as for every call added since Linux 5.1.
    pub const FUTEX_WAITV: usize = 449;
}

/// Calls close(2), and ignores an error, because the descriptor is closed in any case.
pub fn close(fd: i32) {
    // SAFETY: close(2) takes only an integer. The caller owns the descriptor.
    let _ = unsafe { syscall(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Calls fcntl(2) with an integer argument.
///
/// # Errors
/// The errno of fcntl(2): EBADF if `fd` is not open, EMFILE if no number is free for F_DUPFD.
pub fn fcntl(fd: i32, command: i32, argument: usize) -> Result<usize, i32> {
    // SAFETY: all commands that are used take integers.
    unsafe { syscall(nr::FCNTL, [fd as usize, command as usize, argument, 0, 0, 0]) }
}

/// Calls dup3(2). The caller must own both descriptors, because `new` is closed.
///
/// # Errors
/// The errno of dup3(2): EINVAL if both numbers are equal, EBADF if `old` is not open, EBUSY if
/// another thread is opening `new`.
pub fn dup3(old: i32, new: i32, flags: i32) -> Result<(), i32> {
    // SAFETY: dup3(2) takes only integers.
    unsafe { syscall(nr::DUP3, [old as usize, new as usize, flags as usize, 0, 0, 0]) }.map(drop)
}

/// Guard that blocks all signals on this thread until it is dropped. Used while a thread holds a
/// lock that a signal handler may need.
#[derive(Debug)]
pub struct SignalsBlocked(u64);

/// Mask of the signal that libc uses internally, which is not blocked: SIGSETXID (33) of glibc,
/// SIGSYNCCALL (34) of musl. Signal n has bit n - 1.
const LIBCS: u64 = if cfg!(target_env = "musl") { 1 << 33 } else { 1 << 32 };

impl SignalsBlocked {
    /// Blocks signals until the result is dropped. The drop restores the former mask, so that
    /// pending signals are handled. SIGKILL and SIGSTOP cannot be blocked (sigprocmask(2)).
    ///
    /// libc's internal signal is not blocked, because setuid(3) and similar functions wait until
    /// every thread has handled it.
    pub fn new() -> Self {
        Self(set_mask(!LIBCS))
    }

    /// Returns the address of the former signal mask, for a system call that sleeps with this mask.
    /// The address is valid until `self` is moved.
    pub(crate) fn before(&self) -> usize {
        (&raw const self.0).addr()
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

fn set_mask(mask: u64) -> u64 {
    const SIG_SETMASK: usize = 2;
    let mut old = 0u64;
    let (new, old_at) = (&raw const mask as usize, &raw mut old as usize);
    // SAFETY: both masks have 64 bits, as the length 8 says, and outlive the call.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, [SIG_SETMASK, new, old_at, 8, 0, 0]) };
    old
}
