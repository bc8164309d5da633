//! Exports mlockall(2), which locks memory: see [`towpath_posix::memory_lock`].

use std::ops::Range;

use libc::{Elf64_Ehdr, Elf64_Phdr, PT_LOAD, c_int};
use towpath_posix::memory_lock;

use crate::{POSIX, answer, real};

unsafe extern "C" {
    /// ELF header of this library. The linker defines this symbol.
    static __ehdr_start: Elf64_Ehdr;
}

/// Returns the address range at which this library is loaded, including its static variables.
fn image() -> Range<usize> {
    let header = &raw const __ehdr_start;
    // SAFETY: the loader maps the program headers together with the ELF header.
    unsafe {
        let first = header.byte_add((*header).e_phoff as usize).cast::<Elf64_Phdr>();
        let all = (0..usize::from((*header).e_phnum)).map(|n| first.add(n).read());
        let end = all.filter(|part| part.p_type == PT_LOAD).map(|p| p.p_vaddr + p.p_memsz).max();
        let end = (end.unwrap_or_default() as usize).next_multiple_of(4096);
        header.addr()..header.addr() + end
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if !POSIX.is_active() {
        // SAFETY: the caller upholds the C function's contract.
        return unsafe { real::mlockall(flags) };
    }
    answer::zero(memory_lock::lock_all(&POSIX, flags, &image()))
}
