//! System calls that rustix does not offer in the form we need (raw descriptors, signal masks,
//! caller-owned structures), made without libc.

pub use towpath_shm::syscall::{raw, syscall};

/// Numbers of system calls that are made here with [`syscall`] (asm/unistd.h). Each constant is the
/// `__NR_` of its name for the architecture of the build.
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
    #[allow(missing_docs)] // As above.
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
    /// close_range(2), since Linux 5.9.
    pub const CLOSE_RANGE: usize = 436;
    /// futex_waitv(2), since Linux 5.16: ENOSYS before. As all that came after 5.1 it has one
    /// number everywhere.
    pub const FUTEX_WAITV: usize = 449;
}

/// close(2); the result does not matter for descriptors of ours.
pub fn close(fd: i32) {
    // SAFETY: takes integers only. The caller owns the number.
    let _ = unsafe { syscall(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// fcntl(2) with an integer argument.
///
/// # Errors
/// The errno of fcntl(2): EBADF for a number that is not open, EMFILE of F_DUPFD when there is none
/// left.
pub fn fcntl(fd: i32, command: i32, argument: usize) -> Result<usize, i32> {
    // SAFETY: the commands used here take integers.
    unsafe { syscall(nr::FCNTL, [fd as usize, command as usize, argument, 0, 0, 0]) }
}

/// dup3(2). The caller must own both numbers: a descriptor at `new` is closed silently.
///
/// # Errors
/// The errno of dup3(2): EINVAL where both are one number, EBADF where `old` is not open, EBUSY
/// when another thread is just opening `new`.
pub fn dup3(old: i32, new: i32, flags: i32) -> Result<(), i32> {
    // SAFETY: integers only.
    unsafe { syscall(nr::DUP3, [old as usize, new as usize, flags as usize, 0, 0, 0]) }.map(drop)
}

/// Blocks all signals of this thread until dropped, for the time of a call that holds a lock which
/// a signal handler might want too.
#[derive(Debug)]
pub struct SignalsBlocked(u64);

/// SIGSETXID of glibc is 33, SIGSYNCCALL of musl 34; bit n - 1 stands for signal n.
const LIBCS: u64 = if cfg!(target_env = "musl") { 1 << 33 } else { 1 << 32 };

impl SignalsBlocked {
    /// Blocks signals until the result is dropped; then the mask is the former one, and signals
    /// that came meanwhile are handled. SIGKILL and SIGSTOP cannot be blocked (sigprocmask(2)).
    ///
    /// A signal that libc keeps for itself goes through: by it setuid(3) and its kin reach all
    /// threads, and wait for each.
    pub fn new() -> Self {
        Self(set_mask(!LIBCS))
    }

    /// Where the mask is that was there before, for a system call that sleeps with it. The result
    /// is no longer that place when this is moved.
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
    // SAFETY: both masks are 64 bits, as the size says; nothing can fail with valid pointers.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, [SIG_SETMASK, new, old_at, 8, 0, 0]) };
    old
}
