//! Detects, before execve(2), programs that cannot load this library and would therefore use the
//! kernel's sockets.
//!
//! The engine (the network stack) is notified, and warns the user or forbids the execution. Files
//! that cannot be examined, because they are not readable or were moved, are executed without a
//! check.

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

/// Names the file of a program that is about to be executed.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// The path of the program's file.
    Path(&'a CStr),
    /// A name, which execvp(3) looks up in the directories of PATH unless it contains a slash.
    Name(&'a CStr),
    /// The descriptor of the program's open file.
    File(i32),
    /// A path relative to the directory of a descriptor. If the path is empty, the descriptor is
    /// that of the program's file (AT_EMPTY_PATH).
    At(i32, &'a CStr),
}

/// Maximum depth of scripts whose interpreters are scripts themselves, as in Linux (fs/exec.c).
const SCRIPT_DEPTH_MAX: u32 = 4;
/// Directories in which programs are looked up if PATH is not set, as in glibc (confstr(3),
/// _CS_PATH).
const PATH_DEFAULT: &[u8] = b"/bin:/usr/bin";

/// Result of examining a program that is about to be executed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Executable {
    /// Whether the program will use sockets of the stack or of the kernel.
    pub sockets: SocketsPlace,
    /// Path of the AddressSanitizer runtime with which the program is linked. The dynamic loader
    /// must load the runtime before this library.
    pub sanitizer: Option<Vec<u8>>,
}

/// Whether a program uses the sockets of the stack or of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SocketsPlace {
    /// The program will use the stack's sockets. Also assumed if its file could not be examined.
    #[default]
    Stack,
    /// The program will use the kernel's sockets, because it cannot load this library.
    Kernel,
}

/// Determines whether an executed program will use the sockets of the stack or of the kernel.
/// Notifies the engine (the network stack) if they are those of the kernel.
///
/// # Errors
/// EACCES if the user has forbidden programs that use the kernel's sockets.
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
    // If the path is too long, send only its end, which contains the program's name.
    request.data[..len].copy_from_slice(&path[path.len() - len..]);
    match client.call(&request) {
        Err(Error::Refused(libc::EACCES)) => fail(libc::EACCES),
        // If the engine has ended, the program is executed.
        _ => Ok(()),
    }
}

/// Opens the file of a program, so that it can be examined. Returns its path and the open file.
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
            // Open the file by its link in /proc, because the program's descriptor may not be
            // readable (O_PATH).
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let link = format!("/proc/self/fd/{fd}");
            // Without /proc, as in some chroots, duplicate the program's descriptor instead.
            let as_it_is = |_| {
                // SAFETY: the program passed this number for the duration of the call. If it is not
                // open, the system call fails.
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
                // SAFETY: the program passed this number for the duration of the call. If it is not
                // open, the system call fails.
                let folder = unsafe { BorrowedFd::borrow_raw(folder) };
                rustix::fs::openat(folder, name, flags, Mode::empty()).map(Fd::from)
            };
            Some((path(name), file.ok()?))
        }
    }
}

/// Returns the path of the first executable file of that name in the directories of PATH.
fn in_search_path(name: &CStr) -> Option<PathBuf> {
    let folders = environment::search_path().map_or(PATH_DEFAULT, CStr::to_bytes);
    let mut paths = folders.split(|byte| *byte == b':').map(|folder| {
        // An empty entry of PATH stands for the current directory.
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
            // A program can load this library if it has the same architecture and dynamic loader as
            // this process, and gains no privileges at exec.
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

/// Checks whether the dynamic loader of the program will find this library and the unwinding
/// library (libgcc_s). Returns the reason if it will not.
fn where_it_runs(posix: &'static Posix) -> Option<Outside> {
    match (posix.library.is_there(), posix.library.unwinder_is_there()) {
        (false, _) => Some(Outside::NoLibrary),
        (true, false) => Some(Outside::NoUnwinder),
        (true, true) => None,
    }
}
