//! Supports sockets of the stack in libc's own FILE streams.
//!
//! A FILE reads and writes by internal functions of libc, which this library cannot replace by
//! name. A program may replace the descriptor of any FILE by a socket (dup2), as a shell's
//! redirection does. glibc calls the lowest layer of a stream through a table of functions.
//! Therefore this module replaces read, write, seek and close in the tables of files. The
//! replacements call glibc's own functions unless the descriptor is a socket of the stack.
//!
//! glibc checks that a stream points to one of its read-only tables, so this library's constructor
//! patches the tables in place. Their layout has been the same since glibc 2.1 ([`Jumps`]). A table
//! is patched only if all four functions are at their expected places.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::{FILE, c_int, c_void, off64_t, size_t, ssize_t};
use towpath_client::syscall::syscall;
use towpath_posix::{descriptor, exec};

use crate::{POSIX, answer, descriptors, transfer};

type Read = unsafe extern "C" fn(*mut FILE, *mut c_void, ssize_t) -> ssize_t;
type Write = unsafe extern "C" fn(*mut FILE, *const c_void, ssize_t) -> ssize_t;
type Seek = unsafe extern "C" fn(*mut FILE, off64_t, c_int) -> off64_t;
type Close = unsafe extern "C" fn(*mut FILE) -> c_int;

/// Table of a stream's functions: `struct _IO_jump_t` of glibc's libio.
#[repr(C)]
struct Jumps {
    // Entries of the table that are not replaced: dummy, dummy2, finish, overflow, underflow,
    // uflow, pbackfail, xsputn, xsgetn, seekoff, seekpos, setbuf, sync, doallocate.
    before: [usize; 14],
    own: [usize; 4],
}

/// A FILE with the pointer to its table of functions: `struct _IO_FILE_plus` of glibc. The FILE has
/// had 216 bytes on 64-bit machines since glibc 2.1.
#[repr(C)]
struct Plus {
    flags: c_int,
    file: [u32; 53],
    jumps: *mut Jumps,
}
/// Flag of a FILE that ferror(3) returns (`_IO_ERR_SEEN` of glibc).
const ERROR_SEEN: c_int = 0x20;

// Addresses of glibc's original functions, in the order of the table.
static GLIBC: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
const NAMES: [&std::ffi::CStr; 4] =
    [c"_IO_file_read", c"_IO_file_write", c"_IO_file_seek", c"_IO_file_close"];

unsafe extern "C" {
    static mut stdin: *mut FILE;
}

/// Patches glibc's tables of stream functions, so that streams support sockets of the stack. Called
/// by the constructor. Returns false if libc is not glibc, or if its tables have a different
/// layout.
pub fn take_part() -> bool {
    for (name, at) in NAMES.iter().zip(&GLIBC) {
        // SAFETY: `name` is NUL-terminated.
        at.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize, Relaxed);
    }
    // SAFETY: `stdin` is a valid stream of libc, which no thread uses yet.
    let narrow = unsafe { (*stdin.cast::<Plus>()).jumps };
    // SAFETY: the name, of the table of wide-character streams (fwide(3)), is NUL-terminated.
    let wide = unsafe { libc::dlsym(libc::RTLD_NEXT, c"_IO_wfile_jumps".as_ptr()) };
    // SAFETY: `change` verifies each table before it writes.
    unsafe {
        let done = change(narrow);
        if done && !wide.is_null() {
            change(wide.cast());
        }
        done
    }
}

/// Replaces the four functions in a stream's table by those of this library. If the table does not
/// contain glibc's functions at the expected places, leaves it unchanged and returns false.
///
/// # Safety
/// `jumps` must be the address of a table of glibc.
unsafe fn change(jumps: *mut Jumps) -> bool {
    let known = GLIBC.each_ref().map(|at| at.load(Relaxed));
    let Some(pages) = Pages::around(jumps.addr()) else {
        return false;
    };
    // SAFETY: `Pages::around` has found the address in a loaded segment, so it is readable.
    if known.contains(&0) || unsafe { (*jumps).own } != known || !pages.protect(PROT_WRITE) {
        return false;
    }
    let ours = [
        read as Read as usize,
        write as Write as usize,
        seek as Seek as usize,
        close as Close as usize,
    ];
    // SAFETY: `protect` has made the pages writable, and no other thread runs yet.
    unsafe { (*jumps).own = ours };
    pages.protect(0);
    true
}

/// Memory pages in a segment that the loader has made read-only (PT_GNU_RELRO).
struct Pages {
    start: usize,
    len: usize,
}

const PAGE: usize = 4096;
const PROT_WRITE: usize = libc::PROT_WRITE as usize;

impl Pages {
    /// Returns the pages that contain a table of stream functions at address `at`. Returns `None`
    /// if the table is in no PT_GNU_RELRO segment.
    fn around(at: usize) -> Option<Self> {
        let mut found = (at, 0);
        // SAFETY: `look` only reads its arguments and writes to `found`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
        let (_, page) = found;
        let start = at / page.max(1) * page;
        let end = (at + size_of::<Jumps>()).next_multiple_of(page.max(1));
        (page != 0).then(|| Self { start, len: end - start })
    }

    fn protect(&self, more: usize) -> bool {
        let args = [self.start, self.len, libc::PROT_READ as usize | more, 0, 0, 0];
        // SAFETY: the pages are libc's data and stay readable. The caller removes the additional
        // protection `more` again.
        unsafe { syscall(libc::SYS_mprotect as usize, args) }.is_ok()
    }
}

/// Callback of dl_iterate_phdr(3). `found` points to an address and a page size. Sets the page size
/// if the address is in a PT_GNU_RELRO segment of `object`.
unsafe extern "C" fn look(
    object: *mut libc::dl_phdr_info,
    _len: size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr(3) passes a valid object, and the pointer from `around`.
    let (object, found) = unsafe { (&*object, &mut *found.cast::<(usize, usize)>()) };
    // SAFETY: a valid object has `dlpi_phnum` program headers at `dlpi_phdr`.
    let segments =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let is_in = |segment: &&libc::Elf64_Phdr| {
        let start = object.dlpi_addr + segment.p_vaddr;
        segment.p_type == libc::PT_GNU_RELRO
            && (start..start + segment.p_memsz).contains(&(found.0 as u64))
    };
    if segments.iter().any(|segment| is_in(&segment)) {
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        found.1 = usize::try_from(page).unwrap_or(PAGE);
        return 1;
    }
    0
}

unsafe fn number(file: *mut FILE) -> c_int {
    // SAFETY: `file` is a valid stream, and the caller holds its lock. (fileno takes no lock.)
    unsafe { libc::fileno(file) }
}

unsafe extern "C" fn read(file: *mut FILE, to: *mut c_void, len: ssize_t) -> ssize_t {
    // SAFETY: glibc passes valid arguments. `GLIBC[0]` is the address of a function of this type.
    unsafe {
        let fd = number(file);
        if descriptor::is_socket(&POSIX, fd) {
            return transfer::read(fd, to, len as size_t);
        }
        std::mem::transmute::<usize, Read>(GLIBC[0].load(Relaxed))(file, to, len)
    }
}

/// Writes a stream's buffer to its descriptor. On an error, sets the stream's error flag, and
/// returns the number of bytes written before.
unsafe extern "C" fn write(file: *mut FILE, from: *const c_void, len: ssize_t) -> ssize_t {
    // SAFETY: glibc passes valid arguments. `GLIBC` has the address of a function of this type.
    unsafe {
        let fd = number(file);
        if !descriptor::is_socket(&POSIX, fd) {
            let glibc = std::mem::transmute::<usize, Write>(GLIBC[1].load(Relaxed));
            return glibc(file, from, len);
        }
        let mut done = 0;
        while done < len {
            let n = transfer::write(fd, from.byte_offset(done), (len - done) as size_t);
            if n < 0 {
                (*file.cast::<Plus>()).flags |= ERROR_SEEN;
                break;
            }
            done += n;
        }
        done
    }
}

unsafe extern "C" fn seek(file: *mut FILE, offset: off64_t, whence: c_int) -> off64_t {
    // SAFETY: glibc passes valid arguments. `GLIBC` has the address of a function of this type.
    unsafe {
        if descriptor::is_socket(&POSIX, number(file)) {
            answer::set_errno(libc::ESPIPE);
            return -1;
        }
        std::mem::transmute::<usize, Seek>(GLIBC[2].load(Relaxed))(file, offset, whence)
    }
}

unsafe extern "C" fn close(file: *mut FILE) -> c_int {
    // SAFETY: glibc passes valid arguments. `GLIBC` has the address of a function of this type.
    unsafe {
        let fd = number(file);
        if descriptor::is_socket(&POSIX, fd) {
            return descriptors::close(fd);
        }
        // As in glibc, fclose(3) of a popen(3) stream acts as pclose(3).
        let command = exec::take_pipe(&POSIX, file as usize);
        let closed = std::mem::transmute::<usize, Close>(GLIBC[3].load(Relaxed))(file);
        command.map_or(closed, crate::pipes::wait)
    }
}

const _: () = assert!(size_of::<Plus>() == 216 + 8);
