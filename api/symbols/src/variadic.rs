//! Exports variadic functions: execl and its variants, and dprintf. Assembly code reads their
//! arguments from registers and the stack.

use libc::{c_char, c_int};
use towpath_posix::Errno;

use crate::answer;

/// Maximum number of arguments of execl and its variants. Longer lists fail with E2BIG.
const ARGUMENTS_MAX: usize = 65536;

/// Locations of the variable arguments of a C function: first in registers, then on the stack.
#[derive(Clone, Copy)]
struct VariadicArguments {
    registers: *const usize,
    in_registers: usize,
    stack: *const usize,
}

#[cfg(target_arch = "x86_64")]
const IN_REGISTERS: usize = 5;
#[cfg(target_arch = "aarch64")]
const IN_REGISTERS: usize = 7;

impl VariadicArguments {
    unsafe fn get(&self, n: usize) -> usize {
        // SAFETY: `n` is at most the index of the terminator, which the C caller must pass.
        unsafe {
            match n.checked_sub(self.in_registers) {
                None => *self.registers.add(n),
                Some(n) => *self.stack.add(n),
            }
        }
    }

    /// Returns the arguments up to and including the terminating null pointer. Returns `None` if
    /// there are more than `ARGUMENTS_MAX`.
    unsafe fn strings(&self) -> Option<Vec<*const c_char>> {
        let mut argv = Vec::new();
        while argv.len() < ARGUMENTS_MAX {
            // SAFETY: no null has been read yet, so another argument follows.
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
enum VariadicForm {
    Path,
    Search,
    Environment,
}

unsafe fn exec_list(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
    form: VariadicForm,
) -> c_int {
    let arguments = VariadicArguments { registers, in_registers: IN_REGISTERS, stack };
    // SAFETY: the program upholds the contract of execl.
    unsafe {
        let Some(argv) = arguments.strings() else {
            return answer::int(Err(Errno(libc::E2BIG)));
        };
        match form {
            VariadicForm::Path => crate::processes::execv(path, argv.as_ptr()),
            VariadicForm::Search => crate::processes::execvp(path, argv.as_ptr()),
            VariadicForm::Environment => {
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
    // SAFETY: called by `execl` with its arguments.
    unsafe { exec_list(path, registers, stack, VariadicForm::Path) }
}

unsafe extern "C" fn execlp_list(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
) -> c_int {
    // SAFETY: called by `execlp` with its arguments.
    unsafe { exec_list(path, registers, stack, VariadicForm::Search) }
}

unsafe extern "C" fn execle_list(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
) -> c_int {
    // SAFETY: called by `execle` with its arguments.
    unsafe { exec_list(path, registers, stack, VariadicForm::Environment) }
}

/// Defines a variadic function, which saves the argument registers after the first on the stack.
/// Then it calls `$to` with the first argument, the address of the saved registers, and the address
/// of the stack arguments.
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

/// Assembly that saves the argument registers and builds a va_list at the stack pointer. Only the
/// offset into the general registers must be set afterwards. On x86_64 the va_list has 24 bytes,
/// followed by the save area (System V ABI, 3.5.7). On aarch64 it has 32 bytes (AAPCS64, appendix
/// B).
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

/// dprintf(3). Builds a va_list of the arguments after the first two, and calls vdprintf.
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

/// Entry point of dprintf for programs built with _FORTIFY_SOURCE. Has an additional argument, a
/// flag, before the format.
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
