//! System calls by number, for those that rustix does not offer, or not with the required memory.
//! libc is not used, because a library built on this crate may interpose its functions.

/// Executes the system call with this number, and returns its result. Unused arguments should be 0.
///
/// # Errors
/// Returns errno, a positive number below 4096. Does not change libc's `errno`; the caller has to
/// handle EINTR.
///
/// # Safety
/// As for the system call: pointers must be valid for it.
#[inline]
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the arguments are valid for the system call, by the contract of `syscall`.
    let result = unsafe { raw(number, args) };
    // The kernel returns -errno, and errno is below 4096.
    if result > usize::MAX - 4095 { Err(result.wrapping_neg() as i32) } else { Ok(result) }
}

/// Executes a system call like [`syscall`], and returns the kernel's raw result: an error is
/// -errno, from -4095 to -1.
///
/// # Safety
/// As for [`syscall`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn raw(number: usize, args: [usize; 6]) -> usize {
    let [a, b, c, d, e, f] = args;
    let result;
    // SAFETY: the x86_64 Linux convention: rcx and r11 are clobbered; the caller guarantees the
    // validity of the arguments.
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
/// As for [`syscall`].
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn raw(number: usize, args: [usize; 6]) -> usize {
    let [a, b, c, d, e, f] = args;
    let result;
    // SAFETY: the aarch64 Linux convention; the caller guarantees the validity of the arguments.
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
