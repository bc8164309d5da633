//! Programs that leave the stack: noticed before they are executed, because this library is not in
//! them.
//!
//! The engine is told; it warns the user, or forbids the program. Files that cannot be examined
//! (executable but not readable, or moved meanwhile) are executed without a check.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use towpath_client::{Client, Error};
use towpath_shm::Fd;
use towpath_shm::control::{DATA_MAX, Request, call};
use towpath_shm::image::{self, Content, Outside};

use crate::errno::fail;
use crate::{Posix, Result, environment};

/// A program that is about to be executed.
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

/// A program that may be executed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Executable {
    /// Owner of the program's sockets: the stack or the kernel.
    pub sockets: SocketsPlace,
    /// Runtime of AddressSanitizer that it is linked with, which has to be loaded before this
    /// library.
    pub sanitizer: Option<Vec<u8>>,
}

/// Where the sockets of a program will be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SocketsPlace {
    /// On the stack, as far as can be seen.
    #[default]
    Stack,
    /// The kernel's.
    Kernel,
}

/// Looks where the program's sockets will be, and tells the engine if they will be the kernel's.
///
/// # Errors
/// EACCES when the user does not allow such programs.
pub fn tell(posix: &'static Posix, program: Program<'_>) -> Result<Executable> {
    let Ok(client) = posix.client() else { return Ok(Executable::default()) };
    let Some((path, file)) = find(program) else { return Ok(Executable::default()) };
    let sockets = match reason(posix, &*file, SCRIPT_DEPTH_MAX) {
        Some(why) => tell_engine(client, &path, why).map(|()| SocketsPlace::Kernel)?,
        None => SocketsPlace::Stack,
    };
    Ok(Executable { sockets, sanitizer: image::sanitizer(&*file) })
}

fn tell_engine(client: &Client, path: &Path, why: Outside) -> Result<()> {
    let path = path.as_os_str().as_bytes();
    let len = path.len().min(DATA_MAX);
    let mut request =
        Request { call: call::OUTSIDE, a: why.number(), len: len as u32, ..Request::default() };
    // The end of a long path says more than its beginning.
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
    let folders = environment::search_path().map_or(PATH_DEFAULT, CStr::to_bytes);
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

fn reason(posix: &'static Posix, file: &impl AsFd, depth: u32) -> Option<Outside> {
    match image::content(file) {
        Content::Program(elf) => {
            // Programs of this process's own kind can preload the library, too.
            let outside = elf.outside(image::own().as_ref()).or_else(|| image::raises(file));
            outside.or_else(|| where_it_runs(posix))
        }
        Content::Script(line) if depth > 0 => {
            let interpreter = image::interpreter(&line)?;
            let interpreter = image::open(Path::new(OsStr::from_bytes(interpreter))).ok()?;
            reason(posix, &*interpreter, depth - 1)
        }
        Content::Script(_) | Content::Other => None,
    }
}

/// Why the loader of another program cannot load the library where this process would execute it.
fn where_it_runs(posix: &'static Posix) -> Option<Outside> {
    match (posix.library.is_there(), posix.library.unwinder_is_there()) {
        (false, _) => Some(Outside::NoLibrary),
        (true, false) => Some(Outside::NoUnwinder),
        (true, true) => None,
    }
}
