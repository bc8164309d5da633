//! System calls by number, for those that rustix does not offer, or not with the memory that is to
//! be used. libc is not used: a library that is built on this crate may have put functions of its
//! own in its place.

/// Makes the system call with this number; arguments that it does not take are 0. Gives what it
/// returns.
///
/// # Errors
/// The errno, a positive number below 4096. libc's `errno` stays as it is, and EINTR is the
/// caller's to deal with.
///
/// # Safety
/// As for the system call: pointers must be what it expects.
#[inline]
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the caller's promise.
    let result = unsafe { raw(number, args) };
    // The kernel returns -errno, and errno is below 4096.
    if result > usize::MAX - 4095 { Err(result.wrapping_neg() as i32) } else { Ok(result) }
}

/// As [`syscall`], with the kernel's own return value: an error is minus its errno, from -4095 to
/// -1.
///
/// # Safety
/// As for [`syscall`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn raw(number: usize, args: [usize; 6]) -> usize {
    let [a, b, c, d, e, f] = args;
    let result;
    // SAFETY: the x86_64 Linux convention: rcx and r11 are clobbered; the rest is the caller's.
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

/// As [`syscall`], with the kernel's own return value: an error is minus its errno, from -4095 to
/// -1.
///
/// # Safety
/// As for [`syscall`].
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn raw(number: usize, args: [usize; 6]) -> usize {
    let [a, b, c, d, e, f] = args;
    let result;
    // SAFETY: the aarch64 Linux convention; the rest is the caller's.
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
