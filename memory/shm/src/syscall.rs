//! System calls by number, for calls that rustix does not offer, or only for other types of memory.
//! libc is not used, because a library that uses this crate may replace libc's functions.

/// Executes the system call with this number, and returns its result. Unused arguments should be 0.
///
/// # Errors
/// Returns the errno, a positive number below 4096. Does not change libc's `errno`. The caller has
/// to handle EINTR.
///
/// # Safety
/// The requirements of the system call apply: for example, pointers must be valid.
#[inline]
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the arguments are valid for the system call, by the contract of `syscall`.
    let result = unsafe { raw(number, args) };
    // The kernel returns a negative errno, and the errno is below 4096.
    if result > usize::MAX - 4095 { Err(result.wrapping_neg() as i32) } else { Ok(result) }
}

/// Executes a system call like [`syscall`], and returns the kernel's raw result: an error is
/// -errno, from -4095 to -1.
///
/// # Safety
/// The requirements of [`syscall`] apply.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn raw(number: usize, args: [usize; 6]) -> usize {
    let [a, b, c, d, e, f] = args;
    let result;
    // SAFETY: this is the calling convention of x86_64 Linux, which clobbers rcx and r11. The
    // caller guarantees that the arguments are valid.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// Executes a system call like [`syscall`], and returns the kernel's raw result: an error is
/// -errno, from -4095 to -1.
///
/// # Safety
/// The requirements of [`syscall`] apply.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn raw(number: usize, args: [usize; 6]) -> usize {
    let [a, b, c, d, e, f] = args;
    let result;
    // SAFETY: this is the calling convention of aarch64 Linux. The caller guarantees that the
    // arguments are valid.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}
