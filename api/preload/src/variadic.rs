//! execl and its kin, dprintf, and syscall: functions whose arguments are a matter of registers and stack.

use libc::{c_char, c_int, c_long, ssize_t};
use towpath_posix::{Errno, descriptor, process};

use crate::answer;

/// What execve gets at most here; longer lists are E2BIG.
const ARGUMENTS_MAX: usize = 65536;

/// Where the variable arguments lie: those that came in registers, then those on the stack.
#[derive(Clone, Copy)]
struct Arguments {
    registers: *const usize,
    in_registers: usize,
    stack: *const usize,
}

#[cfg(target_arch = "x86_64")]
const IN_REGISTERS: usize = 5;
#[cfg(target_arch = "aarch64")]
const IN_REGISTERS: usize = 7;

impl Arguments {
    unsafe fn get(&self, n: usize) -> usize {
        // SAFETY: the caller stops at the terminator, which the C caller has put there.
        unsafe {
            match n.checked_sub(self.in_registers) {
                None => *self.registers.add(n),
                Some(n) => *self.stack.add(n),
            }
        }
    }

    /// The strings up to and with the null.
    unsafe fn strings(&self) -> Option<Vec<*const c_char>> {
        let mut argv = Vec::new();
        while argv.len() < ARGUMENTS_MAX {
            // SAFETY: no null yet, so there is another one.
            let word = unsafe { self.get(argv.len()) };
            argv.push(word as *const c_char);
            if word == 0 {
                return Some(argv);
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Path,
    Search,
    Environment,
}

unsafe fn exec_list(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
    form: Form,
) -> c_int {
    let arguments = Arguments { registers, in_registers: IN_REGISTERS, stack };
    // SAFETY: as the program called execl.
    unsafe {
        let Some(argv) = arguments.strings() else {
            return answer::int(Err(Errno(libc::E2BIG)));
        };
        match form {
            Form::Path => crate::processes::execv(path, argv.as_ptr()),
            Form::Search => crate::processes::execvp(path, argv.as_ptr()),
            Form::Environment => {
                let envp = arguments.get(argv.len()) as *const *const c_char;
                crate::processes::execve(path, argv.as_ptr(), envp)
            }
        }
    }
}

unsafe extern "C" fn execl_list(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
) -> c_int {
    // SAFETY: from `execl`.
    unsafe { exec_list(path, registers, stack, Form::Path) }
}

unsafe extern "C" fn execlp_list(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
) -> c_int {
    // SAFETY: from `execlp`.
    unsafe { exec_list(path, registers, stack, Form::Search) }
}

unsafe extern "C" fn execle_list(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
) -> c_int {
    // SAFETY: from `execle`.
    unsafe { exec_list(path, registers, stack, Form::Environment) }
}

/// Puts the register arguments behind the first on the stack, and calls `$to` with the first one,
/// where those lie, and where the rest lies.
macro_rules! take_apart {
    ($name:ident, $to:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {to}",
                "add rsp, 40",
                "ret",
                to = sym $to,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "sub sp, sp, #80",
                "stp x1, x2, [sp]",
                "stp x3, x4, [sp, #16]",
                "stp x5, x6, [sp, #32]",
                "str x7, [sp, #48]",
                "stp x29, x30, [sp, #64]",
                "mov x1, sp",
                "add x2, sp, #80",
                "bl {to}",
                "ldp x29, x30, [sp, #64]",
                "add sp, sp, #80",
                "ret",
                to = sym $to,
            );
        }
    };
}

/// Saves the argument registers and builds a va_list at the stack pointer that needs only its offset
/// into the general registers: 24 bytes and the save area behind them on x86_64 (System V ABI, 3.5.7),
/// 32 bytes on aarch64 (AAPCS64, appendix B).
#[cfg(target_arch = "x86_64")]
macro_rules! save_registers {
    () => {
        concat!(
            "sub rsp, 216\n",
            "mov [rsp + 32], rdi\n",
            "mov [rsp + 40], rsi\n",
            "mov [rsp + 48], rdx\n",
            "mov [rsp + 56], rcx\n",
            "mov [rsp + 64], r8\n",
            "mov [rsp + 72], r9\n",
            "test al, al\n",
            "je 2f\n",
            "movaps [rsp + 80], xmm0\n",
            "movaps [rsp + 96], xmm1\n",
            "movaps [rsp + 112], xmm2\n",
            "movaps [rsp + 128], xmm3\n",
            "movaps [rsp + 144], xmm4\n",
            "movaps [rsp + 160], xmm5\n",
            "movaps [rsp + 176], xmm6\n",
            "movaps [rsp + 192], xmm7\n",
            "2:\n",
            "mov dword ptr [rsp + 4], 48\n",
            "lea rax, [rsp + 224]\n",
            "mov [rsp + 8], rax\n",
            "lea rax, [rsp + 32]\n",
            "mov [rsp + 16], rax\n",
        )
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! save_registers {
    () => {
        concat!(
            "sub sp, sp, #240\n",
            "stp x29, x30, [sp, #224]\n",
            "stp x0, x1, [sp, #32]\n",
            "stp x2, x3, [sp, #48]\n",
            "stp x4, x5, [sp, #64]\n",
            "stp x6, x7, [sp, #80]\n",
            "stp q0, q1, [sp, #96]\n",
            "stp q2, q3, [sp, #128]\n",
            "stp q4, q5, [sp, #160]\n",
            "stp q6, q7, [sp, #192]\n",
            "add x9, sp, #240\n",
            "str x9, [sp]\n",
            "add x9, sp, #96\n",
            "str x9, [sp, #8]\n",
            "add x9, sp, #224\n",
            "str x9, [sp, #16]\n",
            "mov w9, #-128\n",
            "str w9, [sp, #28]\n",
        )
    };
}

take_apart!(execl, execl_list);
take_apart!(execlp, execlp_list);
take_apart!(execle, execle_list);

/// dprintf(3): makes a va_list of the arguments behind the first two, and goes on in vdprintf.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dprintf() -> c_int {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        save_registers!(),
        "mov dword ptr [rsp], 16",
        "mov rdx, rsp",
        "call {to}",
        "add rsp, 216",
        "ret",
        to = sym crate::stdio::vdprintf,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        save_registers!(),
        "mov w9, #-48",
        "str w9, [sp, #24]",
        "mov x2, sp",
        "bl {to}",
        "ldp x29, x30, [sp, #224]",
        "add sp, sp, #240",
        "ret",
        to = sym crate::stdio::vdprintf,
    );
}

/// What _FORTIFY_SOURCE makes of it, with a flag before the format.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __dprintf_chk() -> c_int {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        save_registers!(),
        "mov dword ptr [rsp], 24",
        "mov rcx, rsp",
        "call {to}",
        "add rsp, 216",
        "ret",
        to = sym crate::stdio::__vdprintf_chk,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        save_registers!(),
        "mov w9, #-40",
        "str w9, [sp, #24]",
        "mov x3, sp",
        "bl {to}",
        "ldp x29, x30, [sp, #224]",
        "add sp, sp, #240",
        "ret",
        to = sym crate::stdio::__vdprintf_chk,
    );
}

/// syscall(2). No stack is used on the way to the kernel: some calls come back on another one.
/// Looked at are only io_uring_setup (see [`refuse_io_uring`]), close and close_range.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall(_number: c_long) -> c_long {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "cmp rdi, {setup}",
        "je 3f",
        "cmp rdi, {close}",
        "je 3f",
        "cmp rdi, {close_range}",
        "je 3f",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2: mov rdi, rax",
        "jmp {fail}",
        "3: jmp {special}",
        setup = const libc::SYS_io_uring_setup,
        close = const libc::SYS_close,
        close_range = const libc::SYS_close_range,
        fail = sym fail,
        special = sym special,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "cmp x0, #{setup}",
        "b.eq 3f",
        "cmp x0, #{close}",
        "b.eq 3f",
        "cmp x0, #{close_range}",
        "b.eq 3f",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc 0",
        "cmn x0, #4095",
        "b.cs 2f",
        "ret",
        "2: b {fail}",
        "3: b {special}",
        setup = const libc::SYS_io_uring_setup,
        close = const libc::SYS_close,
        close_range = const libc::SYS_close_range,
        fail = sym fail,
        special = sym special,
    );
}

/// From the kernel's -errno.
extern "C" fn fail(result: c_long) -> c_long {
    answer::set_errno(-result as i32);
    -1
}

unsafe extern "C" fn special(number: c_long, a: usize, b: usize, c: usize) -> c_long {
    match number {
        libc::SYS_io_uring_setup if process::is_active() => refuse_io_uring(),
        libc::SYS_close if descriptor::is_ours(a as c_int) => {
            c_long::from(answer::zero(descriptor::close(a as c_int)))
        }
        libc::SYS_close_range if process::is_active() => {
            c_long::from(answer::zero(descriptor::close_range(a as u32, b as u32, c as u32)))
        }
        // SAFETY: as the program called; these three take no more than three arguments.
        _ => match unsafe { towpath_client::syscall::syscall(number as usize, [a, b, c, 0, 0, 0]) }
        {
            Ok(value) => value as c_long,
            Err(errno) => fail(-c_long::from(errno)),
        },
    }
}

/// io_uring would act on the kernel's side of our descriptors. Event loops fall back to epoll when
/// the kernel has none.
fn refuse_io_uring() -> c_long {
    fail(-c_long::from(libc::ENOSYS))
}

/// write(2) without anything in between.
pub unsafe fn raw_write(fd: c_int, text: &[u8]) -> ssize_t {
    let args = [fd as usize, text.as_ptr() as usize, text.len(), 0, 0, 0];
    // SAFETY: the bytes are there.
    unsafe { towpath_client::syscall::syscall(libc::SYS_write as usize, args) }
        .map_or(-1, |n| n as ssize_t)
}
