//! Exports popen(3) and pclose(3). libc's popen would pass this program's environment to the
//! command, but the command needs other variables to find the engine. The environment of a program
//! with several threads cannot be changed.

use libc::{FILE, c_char, c_int};
use towpath_posix::exec::{self, Pipe};
use towpath_posix::{Errno, Result, environment};

use crate::{POSIX, answer, processes, real};

/// Parsed `mode` argument of popen(3).
struct StreamMode {
    reads: bool,
    cloexec: bool,
}

impl StreamMode {
    /// Parses a mode of popen(3): `r` or `w`, optionally with `e` (close-on-exec).
    unsafe fn parse(mode: *const c_char) -> Result<Self> {
        // SAFETY: `mode` is NUL-terminated, by the contract of popen.
        let mode = unsafe { std::ffi::CStr::from_ptr(mode) }.to_bytes();
        let has = |letter| mode.contains(&letter);
        if has(b'r') == has(b'w') || mode.iter().any(|letter| !b"rwe".contains(letter)) {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Self { reads: has(b'r'), cloexec: has(b'e') })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !POSIX.is_active() {
            return real::popen(command, mode);
        }
        StreamMode::parse(mode).and_then(|mode| open(command, &mode)).unwrap_or_else(|errno| {
            answer::set_errno(errno.0);
            std::ptr::null_mut()
        })
    }
}

unsafe fn open(command: *const c_char, mode: &StreamMode) -> Result<*mut FILE> {
    let mut ends = [-1; 2];
    // SAFETY: `ends` has space for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(last());
    }
    let [reader, writer] = ends;
    let (ours, its) = if mode.reads { (reader, writer) } else { (writer, reader) };
    // SAFETY: this function owns both descriptors of the pipe.
    unsafe {
        let pid = spawn(command, its, c_int::from(mode.reads));
        real::close(its);
        let stream = pid.and_then(|pid| {
            let name = if mode.reads { c"r" } else { c"w" };
            let stream = real::fdopen(ours, name.as_ptr());
            if stream.is_null() { Err(last()) } else { Ok((pid, stream)) }
        });
        let Ok((command, stream)) = stream else {
            real::close(ours);
            return stream.map(|(_, stream)| stream);
        };
        exec::note_pipe(&POSIX, Pipe { stream: stream as usize, fd: ours, command });
        if !mode.cloexec {
            libc::fcntl(ours, libc::F_SETFD, 0);
        }
        Ok(stream)
    }
}

/// Spawns a shell that runs the command. `end` is an end of the pipe, and becomes the shell's
/// descriptor `at` (standard input or output). Returns the process ID.
unsafe fn spawn(command: *const c_char, end: c_int, at: c_int) -> Result<c_int> {
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), command, std::ptr::null()];
    // SAFETY: zeroed memory is valid for these C structures, which outlive the calls.
    unsafe {
        let mut actions = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        for fd in exec::pipe_descriptors(&POSIX) {
            real::posix_spawn_file_actions_addclose(&raw mut actions, fd);
        }
        // `end` and `at` may be equal if the program has closed its standard input or output. The
        // kernel's dup2 then only clears close-on-exec.
        real::posix_spawn_file_actions_adddup2(&raw mut actions, end, at);
        let (mut pid, none) = (0, std::ptr::null());
        let shell = c"/bin/sh".as_ptr();
        let environment = environment::current();
        let failed = processes::posix_spawn(
            &raw mut pid,
            shell,
            &raw const actions,
            none,
            argv.as_ptr(),
            environment,
        );
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        if failed == 0 { Ok(pid) } else { Err(Errno(failed)) }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        match exec::take_pipe(&POSIX, stream as usize) {
            Some(command) => {
                libc::fclose(stream);
                wait(command)
            }
            None => real::pclose(stream),
        }
    }
}

/// Waits for the command of a popen(3) stream, and returns its status in the format of waitpid(2).
pub fn wait(command: c_int) -> c_int {
    let mut status = 0;
    // SAFETY: `status` is writable.
    while unsafe { libc::waitpid(command, &raw mut status, 0) } == -1 {
        if last() != Errno(libc::EINTR) {
            return -1;
        }
    }
    status
}

fn last() -> Errno {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
    Errno(unsafe { *libc::__errno_location() })
}
