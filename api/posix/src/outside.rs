//! Programs that leave the stack: noticed before they are executed, because afterwards nobody is there to.
//!
//! The engine is told, which tells the user, and may not allow it. What cannot be looked at (a file that may be
//! executed and not read, a path that changes meanwhile) is executed as ever.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use towpath_client::{Client, Error};
use towpath_shm::Fd;
use towpath_shm::control::{DATA_MAX, Request, call};
use towpath_shm::image::{self, Content, Outside};

use crate::errno::fail;
use crate::{Result, exec, process};

/// What is about to be executed.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// A path.
    Path(&'a CStr),
    /// A name, for which execvp(3) looks into the folders of PATH unless it has a slash.
    Name(&'a CStr),
    /// An open file.
    File(i32),
    /// A path from a folder on, or with AT_EMPTY_PATH the descriptor itself.
    At(i32, &'a CStr),
}

/// Scripts whose interpreter is a script: Linux follows four (BINPRM limit in fs/exec.c).
const SCRIPT_DEPTH_MAX: u32 = 4;
/// PATH of programs that have none, as glibc has it (confstr(3), _CS_PATH).
const PATH_DEFAULT: &[u8] = b"/bin:/usr/bin";

/// The library that unwinds stacks, on which Rust's libraries depend.
const UNWINDER: &str = "libgcc_s.so.1";
/// Folders where the dynamic loader looks for libraries, whatever its configuration says; Debian's have one for each
/// processor type in them.
const LIBRARY_FOLDERS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

// Its path, as the loader found it for this image; null when it is not a file of its own.
static OUR_UNWINDER: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

unsafe extern "C" {
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// Finds out where the unwinder came from. Called from the constructor.
pub(crate) fn remember_unwinder() {
    let at = _Unwind_GetIP as unsafe extern "C" fn(_) -> _ as *const c_void;
    // SAFETY: zeros are a valid value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address, and room for the answer.
    if unsafe { libc::dladdr(at, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return;
    }
    // SAFETY: the loader's string, which stays as long as the library, and so as long as ours.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    if path.ends_with(UNWINDER.as_bytes()) {
        OUR_UNWINDER.store(info.dli_fname.cast_mut(), Ordering::Relaxed);
    }
}

/// Whether the loader of another program finds the library that ours needs. It may be elsewhere there than it is
/// here: where the loader's configuration (ld.so.conf(5)) names it, or in a usual folder.
fn unwinder_is_there() -> bool {
    let ours = OUR_UNWINDER.load(Ordering::Relaxed);
    if ours.is_null() {
        return true;
    }
    // SAFETY: see `remember_unwinder`.
    let ours = unsafe { CStr::from_ptr(ours) };
    let exists = |path: &Path| rustix::fs::access(path, Access::READ_OK).is_ok();
    exists(Path::new(OsStr::from_bytes(ours.to_bytes())))
        || LIBRARY_FOLDERS.iter().any(|folder| {
            let of_processor = format!("{folder}/{}-linux-gnu/{UNWINDER}", std::env::consts::ARCH);
            exists(&Path::new(folder).join(UNWINDER)) || exists(Path::new(&of_processor))
        })
        || is_in_cache()
}

/// Whether the loader's cache has the unwinder.
fn is_in_cache() -> bool {
    let Ok(file) = image::open(Path::new("/etc/ld.so.cache")) else { return false };
    let mut cache = Vec::new();
    let mut part = [0; 4096];
    while let Ok(n @ 1..) = rustix::io::read(&*file, &mut part) {
        cache.extend_from_slice(&part[..n]);
    }
    cache.windows(UNWINDER.len()).any(|name| name == UNWINDER.as_bytes())
}

/// Tells the engine if the program's sockets will be the kernel's.
///
/// # Errors
/// EACCES when the user does not allow such programs.
pub fn tell(program: Program<'_>) -> Result<()> {
    let Ok(client) = process::client() else { return Ok(()) };
    let Some((path, file)) = find(program) else { return Ok(()) };
    match reason(&*file, SCRIPT_DEPTH_MAX) {
        Some(why) => tell_engine(client, &path, why),
        None => Ok(()),
    }
}

fn tell_engine(client: &Client, path: &Path, why: Outside) -> Result<()> {
    let path = path.as_os_str().as_bytes();
    let len = path.len().min(DATA_MAX);
    let mut request =
        Request { call: call::OUTSIDE, a: why.number(), len: len as u32, ..Request::default() };
    // Of a long path the end says more.
    request.data[..len].copy_from_slice(&path[path.len() - len..]);
    match client.call(&request) {
        Err(Error::Refused(libc::EACCES)) => fail(libc::EACCES),
        // An engine that has gone has nothing to say about it.
        _ => Ok(()),
    }
}

/// The file, opened to look at, and its path.
fn find(program: Program<'_>) -> Option<(PathBuf, Fd)> {
    let path = |name: &CStr| PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    match program {
        Program::Name(name) if !name.to_bytes().contains(&b'/') => {
            let path = in_search_path(name)?;
            let file = image::open(&path).ok()?;
            Some((path, file))
        }
        Program::Path(name) | Program::Name(name) => {
            let path = path(name);
            let file = image::open(&path).ok()?;
            Some((path, file))
        }
        Program::At(fd, path) if path.is_empty() => find(Program::File(fd)),
        Program::File(fd) => {
            // By its link: the descriptor itself may be one that cannot be read (O_PATH).
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let link = format!("/proc/self/fd/{fd}");
            // Without /proc, as in a chroot, it is looked at as it is.
            let as_it_is = |_| {
                // SAFETY: the program names it; if it is not open the call says so.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                rustix::io::fcntl_dupfd_cloexec(fd, 0)
            };
            let file = rustix::fs::open(&*link, flags, Mode::empty()).or_else(as_it_is);
            Some((link.into(), file.map(Fd::from).ok()?))
        }
        Program::At(folder, name) => {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = if folder == libc::AT_FDCWD {
                rustix::fs::openat(CWD, name, flags, Mode::empty()).map(Fd::from)
            } else {
                // SAFETY: the program names it; if it is not open the call says so.
                let folder = unsafe { BorrowedFd::borrow_raw(folder) };
                rustix::fs::openat(folder, name, flags, Mode::empty()).map(Fd::from)
            };
            Some((path(name), file.ok()?))
        }
    }
}

/// The first file of that name in PATH that may be executed.
fn in_search_path(name: &CStr) -> Option<PathBuf> {
    let folders = exec::search_path().map_or(PATH_DEFAULT, CStr::to_bytes);
    let mut paths = folders.split(|byte| *byte == b':').map(|folder| {
        // An empty entry is the current folder.
        let folder = if folder.is_empty() { b"." } else { folder };
        Path::new(OsStr::from_bytes(folder)).join(OsStr::from_bytes(name.to_bytes()))
    });
    paths.find(|path| {
        let is_file = rustix::fs::stat(path.as_path()).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
        });
        is_file
            && rustix::fs::accessat(CWD, path.as_path(), Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    })
}

fn reason(file: &impl AsFd, depth: u32) -> Option<Outside> {
    match image::content(file) {
        Content::Program(elf) => {
            // This process has the library: what can be preloaded is like it.
            let outside = elf.outside(image::own().as_ref()).or_else(|| image::raises(file));
            outside.or_else(where_it_runs)
        }
        Content::Script(line) if depth > 0 => {
            let interpreter = image::interpreter(&line)?;
            let interpreter = image::open(Path::new(OsStr::from_bytes(interpreter))).ok()?;
            reason(&*interpreter, depth - 1)
        }
        Content::Script(_) | Content::Other => None,
    }
}

/// Why the loader of another program cannot load the library where this process would execute it.
fn where_it_runs() -> Option<Outside> {
    match (exec::library_is_there(), unwinder_is_there()) {
        (false, _) => Some(Outside::NoLibrary),
        (true, false) => Some(Outside::NoUnwinder),
        (true, true) => None,
    }
}
