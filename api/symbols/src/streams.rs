//! libc's own streams, on descriptors that are or become sockets of ours.
//!
//! A FILE reads and writes by functions inside libc that cannot be replaced by name. `dup2` may put
//! a socket under any FILE at any time, as a shell's redirection does with standard output. glibc
//! calls the last step of a stream through a table of functions. In the tables of its files, read,
//! write, seek and close are ours, and go on to glibc's own unless the number is a socket.
//!
//! The tables are read-only, and glibc checks that a stream points to one of them, so the
//! constructor changes them in place. Their layout is the same since glibc 2.1 ([`Jumps`]). A table
//! stays unchanged unless each of the four functions is found where it is expected.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::{FILE, c_int, c_void, off64_t, size_t, ssize_t};
use towpath_client::syscall::syscall;
use towpath_posix::{descriptor, exec};

use crate::{POSIX, answer, descriptors, transfer};

type Read = unsafe extern "C" fn(*mut FILE, *mut c_void, ssize_t) -> ssize_t;
type Write = unsafe extern "C" fn(*mut FILE, *const c_void, ssize_t) -> ssize_t;
type Seek = unsafe extern "C" fn(*mut FILE, off64_t, c_int) -> off64_t;
type Close = unsafe extern "C" fn(*mut FILE) -> c_int;

/// `struct _IO_jump_t` of glibc's libio.
#[repr(C)]
struct Jumps {
    // dummy, dummy2, finish, overflow, underflow, uflow, pbackfail, xsputn, xsgetn, seekoff,
    // seekpos, setbuf, sync, doallocate.
    before: [usize; 14],
    own: [usize; 4],
}

/// `struct _IO_FILE_plus`: a FILE, which has had 216 bytes on 64-bit machines since glibc 2.1, and
/// its table.
#[repr(C)]
struct Plus {
    flags: c_int,
    file: [u32; 53],
    jumps: *mut Jumps,
}
/// `_IO_ERR_SEEN` in the flags, for ferror(3).
const ERROR_SEEN: c_int = 0x20;

// glibc's functions, in the order of the table.
static GLIBC: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
const NAMES: [&std::ffi::CStr; 4] =
    [c"_IO_file_read", c"_IO_file_write", c"_IO_file_seek", c"_IO_file_close"];

unsafe extern "C" {
    static mut stdin: *mut FILE;
}

/// In the constructor. False: this is another libc, or a glibc that has changed.
pub fn take_part() -> bool {
    for (name, at) in NAMES.iter().zip(&GLIBC) {
        // SAFETY: a name.
        at.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize, Relaxed);
    }
    // SAFETY: a stream of libc's, not in use yet.
    let narrow = unsafe { (*stdin.cast::<Plus>()).jumps };
    // Table of streams in wide characters (fwide(3)).
    // SAFETY: a name.
    let wide = unsafe { libc::dlsym(libc::RTLD_NEXT, c"_IO_wfile_jumps".as_ptr()) };
    // SAFETY: the table is checked before it is changed.
    unsafe {
        let done = change(narrow);
        if done && !wide.is_null() {
            change(wide.cast());
        }
        done
    }
}

/// # Safety
/// `jumps` must be an address.
unsafe fn change(jumps: *mut Jumps) -> bool {
    let known = GLIBC.each_ref().map(|at| at.load(Relaxed));
    let Some(pages) = Pages::around(jumps.addr()) else {
        return false;
    };
    // SAFETY: inside a segment of a loaded object.
    if known.contains(&0) || unsafe { (*jumps).own } != known || !pages.protect(PROT_WRITE) {
        return false;
    }
    let ours = [
        read as Read as usize,
        write as Write as usize,
        seek as Seek as usize,
        close as Close as usize,
    ];
    // SAFETY: writable now, and no other thread runs yet.
    unsafe { (*jumps).own = ours };
    pages.protect(0);
    true
}

/// Pages of a segment that the loader has made read-only (PT_GNU_RELRO).
struct Pages {
    start: usize,
    len: usize,
}

const PAGE: usize = 4096;
const PROT_WRITE: usize = libc::PROT_WRITE as usize;

impl Pages {
    /// Pages of a table.
    fn around(at: usize) -> Option<Self> {
        let mut found = (at, 0);
        // SAFETY: the function looks at its arguments, and writes to `found`, which lives until it
        // is over.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
        let (_, page) = found;
        let start = at / page.max(1) * page;
        let end = (at + size_of::<Jumps>()).next_multiple_of(page.max(1));
        (page != 0).then(|| Self { start, len: end - start })
    }

    fn protect(&self, more: usize) -> bool {
        let args = [self.start, self.len, libc::PROT_READ as usize | more, 0, 0, 0];
        // SAFETY: pages of libc's data: it has them for reading, and `more` is taken back.
        unsafe { syscall(libc::SYS_mprotect as usize, args) }.is_ok()
    }
}

/// Puts the size of a page into the second number if the first is an address in such a segment.
unsafe extern "C" fn look(
    object: *mut libc::dl_phdr_info,
    _len: size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: as dl_iterate_phdr(3) calls, with the argument from `around`.
    let (object, found) = unsafe { (&*object, &mut *found.cast::<(usize, usize)>()) };
    // SAFETY: as above.
    let segments =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let is_in = |segment: &&libc::Elf64_Phdr| {
        let start = object.dlpi_addr + segment.p_vaddr;
        segment.p_type == libc::PT_GNU_RELRO
            && (start..start + segment.p_memsz).contains(&(found.0 as u64))
    };
    if segments.iter().any(|segment| is_in(&segment)) {
        // SAFETY: only asks.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        found.1 = usize::try_from(page).unwrap_or(PAGE);
        return 1;
    }
    0
}

unsafe fn number(file: *mut FILE) -> c_int {
    // SAFETY: a stream of libc's, whose lock the caller has. (fileno takes none.)
    unsafe { libc::fileno(file) }
}

unsafe extern "C" fn read(file: *mut FILE, to: *mut c_void, len: ssize_t) -> ssize_t {
    // SAFETY: as glibc calls it, here and in the functions below; the function is of this type.
    unsafe {
        let fd = number(file);
        if descriptor::is_socket(&POSIX, fd) {
            return transfer::read(fd, to, len as size_t);
        }
        std::mem::transmute::<usize, Read>(GLIBC[0].load(Relaxed))(file, to, len)
    }
}

/// Writes all, or as much as can be.
unsafe extern "C" fn write(file: *mut FILE, from: *const c_void, len: ssize_t) -> ssize_t {
    // SAFETY: see `read`.
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
    // SAFETY: see `read`.
    unsafe {
        if descriptor::is_socket(&POSIX, number(file)) {
            answer::set_errno(libc::ESPIPE);
            return -1;
        }
        std::mem::transmute::<usize, Seek>(GLIBC[2].load(Relaxed))(file, offset, whence)
    }
}

unsafe extern "C" fn close(file: *mut FILE) -> c_int {
    // SAFETY: see `read`.
    unsafe {
        let fd = number(file);
        if descriptor::is_socket(&POSIX, fd) {
            return descriptors::close(fd);
        }
        // As glibc has it, fclose(3) of a stream of popen(3) is pclose(3).
        let command = exec::take_pipe(&POSIX, file as usize);
        let closed = std::mem::transmute::<usize, Close>(GLIBC[3].load(Relaxed))(file);
        command.map_or(closed, crate::pipes::wait)
    }
}

const _: () = assert!(size_of::<Plus>() == 216 + 8);
