//! The thread stack on which an engine of this process runs.
//!
//! Threads of the program run the engine, and their stacks may be as small as PTHREAD_STACK_MIN, 16
//! KiB. Therefore the engine has a separate stack. A single stack is enough, because only one
//! thread at a time runs the engine.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Length in bytes of the mapping of the engine's call stack, including its guard. Pages that are
/// never used take no memory.
const LEN: usize = 256 << 10;
/// Length in bytes of the inaccessible guard below the call stack. A stack overflow there ends the
/// process, instead of overwriting other memory. The length is the largest page size of the
/// supported CPUs.
const GUARD: usize = 64 << 10;

/// Memory mapping for a call stack, with an inaccessible guard at its lower end.
#[derive(Debug)]
pub(super) struct ThreadStack(NonNull<u8>);

// SAFETY: the mapping belongs to this value alone, and any thread may use it.
unsafe impl Send for ThreadStack {}

/// A function to be called on the separate stack, and its result or panic.
struct StackCall<F, T> {
    work: Option<F>,
    done: Option<Result<T, Box<dyn Any + Send>>>,
}

impl ThreadStack {
    /// Maps memory for a stack.
    ///
    /// # Errors
    /// ENOMEM if the process has too little address space (RLIMIT_AS).
    pub fn new() -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        // SAFETY: the kernel chooses the address of the new mapping, which is not used yet.
        unsafe {
            let base = mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, flags)?;
            let stack = Self(NonNull::new(base.cast()).ok_or(Errno::NOMEM)?);
            mprotect(base, GUARD, MprotectFlags::empty())?;
            Ok(stack)
        }
    }

    /// Returns the number of bytes of the call stack that were ever used, and its size in bytes.
    /// The used part begins at the lowest word that is not zero.
    pub fn used(&self) -> (usize, usize) {
        let words = (LEN - GUARD) / size_of::<u64>();
        let lowest = self.0.as_ptr().wrapping_add(GUARD).cast::<u64>();
        // SAFETY: `words` words follow the guard, aligned as a page, and the stack is not in use.
        let is_used = |n: &usize| unsafe { lowest.wrapping_add(*n).read() } != 0;
        let unused = (0..words).find(is_used).unwrap_or(words);
        ((words - unused) * size_of::<u64>(), words * size_of::<u64>())
    }

    /// Calls `work` on this call stack, and returns its result on the caller's stack. The caller
    /// must have blocked signals, because a handler that calls siglongjmp would abandon the call.
    pub fn call<F: FnOnce() -> T, T>(&mut self, work: F) -> T {
        let mut call = StackCall { work: Some(work), done: None };
        let top = self.0.as_ptr().wrapping_add(LEN);
        // SAFETY: the memory below `top` is an unused stack, because `self` is borrowed
        // exclusively, and `top` is aligned as a page. `run` gets a `StackCall` of matching types,
        // and does not unwind.
        unsafe { switch(top, run::<F, T>, (&raw mut call).cast()) };
        match call.done {
            Some(Ok(value)) => value,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("it was called"),
        }
    }
}

impl Drop for ThreadStack {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and is no longer in use.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), LEN) };
    }
}

/// Runs the function in `call` on the separate call stack. Catches panics, because unwinding must
/// not continue on the caller's stack.
///
/// # Safety
/// `call` must point to a [`StackCall`] of these types.
unsafe extern "C" fn run<F: FnOnce() -> T, T>(call: *mut ()) {
    // SAFETY: `call` points to a `StackCall` of these types, by the contract of this function.
    let call = unsafe { &mut *call.cast::<StackCall<F, T>>() };
    call.done = call.work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
}

/// Calls `run(call)` with the stack pointer at `top`, and restores the stack pointer.
///
/// # Safety
/// Below `top`, which is a multiple of 16, there must be an unused stack; `run` must not unwind.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn switch(top: *mut u8, run: unsafe extern "C" fn(*mut ()), call: *mut ()) {
    // Save the frame pointer, which `run` preserves. The stack pointer is restored from it, and
    // debuggers use it to find the caller.
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// Calls `run(call)` with the stack pointer at `top`, and restores the stack pointer.
///
/// # Safety
/// Below `top`, which is a multiple of 16, there must be an unused stack; `run` must not unwind.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn switch(top: *mut u8, run: unsafe extern "C" fn(*mut ()), call: *mut ()) {
    // Save the frame pointer, which `run` preserves. The stack pointer is restored from it, and
    // debuggers use it to find the caller.
    std::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset w29, -16",
        ".cfi_offset w30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register w29",
        "mov sp, x0",
        "mov x0, x2",
        "blr x1",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa sp, 0",
        ".cfi_restore w29",
        ".cfi_restore w30",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> usize {
        let local = 0u8;
        std::hint::black_box(&raw const local).addr()
    }

    #[test]
    fn what_is_called_runs_there_and_gives_back_what_it_does() {
        let mut stack = ThreadStack::new().expect("memory");
        let range = stack.0.as_ptr().addr() + GUARD..stack.0.as_ptr().addr() + LEN;
        let text = String::from("text");
        for n in 0..3 {
            let (at, text) = stack.call(|| (here(), format!("{text} {n}")));
            assert!(range.contains(&at) && !range.contains(&here()));
            assert_eq!(text, format!("text {n}"));
        }
    }

    #[test]
    fn a_panic_goes_on_where_it_was_called() {
        let mut stack = ThreadStack::new().expect("memory");
        let caught = catch_unwind(AssertUnwindSafe(|| stack.call(|| panic!("there"))));
        let panic = caught.expect_err("it panicked");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"there"));
        assert_eq!(stack.call(|| 5), 5);
    }

    /// The called function uses more memory than the stack of the calling thread has.
    #[test]
    fn it_has_room_whatever_the_thread_has() {
        const ROOM: usize = LEN - GUARD - (16 << 10);
        let mut stack = ThreadStack::new().expect("memory");
        let thread = std::thread::Builder::new().stack_size(16 << 10);
        let thread = thread.spawn(move || {
            stack.call(|| {
                let room = std::hint::black_box([7u8; ROOM]);
                room.iter().map(|byte| usize::from(*byte)).sum::<usize>()
            })
        });
        assert_eq!(thread.expect("a thread").join().expect("it does not panic"), 7 * ROOM);
    }

    #[test]
    fn it_knows_how_much_of_it_was_used() {
        let mut stack = ThreadStack::new().expect("memory");
        let all = LEN - GUARD;
        assert_eq!(stack.used(), (0, all));
        stack.call(|| std::hint::black_box([7u8; 50_000])[0]);
        let (used, of) = stack.used();
        assert!((50_000..60_000).contains(&used) && of == all, "{used}");
    }
}
