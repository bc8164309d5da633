//! Exports functions that create processes: fork, exec, posix_spawn and similar ones.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use libc::{c_char, c_int, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use towpath_posix::outside::{self, Executable, Program, SocketsPlace};
use towpath_posix::{environment, exec, fork, limit};

use crate::{POSIX, answer, real};

type Strings = *const *const c_char;

static HANDLERS: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const THERE: u8 = 1;
const NONE: u8 = 2;

/// Registers this library's pthread_atfork handlers, and returns whether libc calls them on fork.
/// The handlers must be registered before all other handlers, even those that an earlier library
/// registers in its constructor.
pub fn has_handlers() -> bool {
    if HANDLERS.load(Relaxed) == UNKNOWN {
        // musl lacks __register_atfork. There, fork is handled without pthread_atfork handlers.
        let done = real::has_register_atfork() && malloc_is_libcs() && {
            let (prepare, parent, child) =
                (Some(prepare as Handler), Some(parent as _), Some(child as _));
            // SAFETY: the functions stay valid because this library is never unloaded.
            0 == unsafe { real::__register_atfork(prepare, parent, child, std::ptr::null_mut()) }
        };
        HANDLERS.store(if done { THERE } else { NONE }, Relaxed);
    }
    HANDLERS.load(Relaxed) == THERE
}

type Handler = unsafe extern "C" fn();

extern "C" fn prepare() {
    fork::prepare(&POSIX);
}

extern "C" fn parent() {
    fork::parent();
}

extern "C" fn child() {
    fork::child(&POSIX);
}

/// Returns whether malloc is libc's. Replacements such as jemalloc and tcmalloc take their locks in
/// atfork handlers, so an allocation in a handler of this library would deadlock. With such a
/// malloc, the handlers' work is done before and after libc's fork. The program's own atfork
/// handlers then cannot use sockets.
fn malloc_is_libcs() -> bool {
    let object = |function: *const c_void| {
        // SAFETY: all fields of Dl_info are nullable pointers, so zeroed memory is valid.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr only looks up the address, and does not read from it.
        let found = unsafe { libc::dladdr(function, &raw mut info) } != 0;
        found.then_some(info.dli_fbase)
    };
    object(libc::malloc as *const c_void) == object(libc::abort as *const c_void)
}

/// Registers fork handlers. The caller is pthread_atfork(3), which is linked statically into each
/// program and library. `object` identifies the program or library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Option<Handler>,
    parent: Option<Handler>,
    child: Option<Handler>,
    object: *mut c_void,
) -> c_int {
    has_handlers();
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::__register_atfork(prepare, parent, child, object) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> pid_t {
    // SAFETY: the caller upholds the C function's contract.
    let real = || unsafe { real::fork() };
    if has_handlers() {
        fork::fork(&POSIX, real)
    } else {
        fork::fork_without_handlers(&POSIX, real)
    }
}

/// vfork(2). Calls fork, which allows the child everything that vfork allows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fork() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: the caller upholds the C function's contract.
    fork::fork_without_handlers(&POSIX, || unsafe { real::_Fork() })
}

/// Replaces glibc's login_tty, because its internal dup2 calls could overwrite sockets of the stack
/// unnoticed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn login_tty(fd: c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !POSIX.is_active() {
            return real::login_tty(fd);
        }
        // Ignore an error of setsid: the process then is a session leader already.
        libc::setsid();
        if libc::ioctl(fd, libc::TIOCSCTTY, 0) == -1 {
            return -1;
        }
        for standard in 0..3 {
            crate::descriptors::dup2(fd, standard);
        }
        if fd > 2 {
            crate::descriptors::close(fd);
        }
        0
    }
}

/// Replaces glibc's forkpty, whose internal calls of fork and dup2 would bypass this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkpty(
    terminal: *mut c_int,
    name: *mut c_char,
    settings: *const libc::termios,
    size: *const libc::winsize,
) -> pid_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !POSIX.is_active() {
            return real::forkpty(terminal, name, settings, size);
        }
        let (mut ours, mut childs) = (-1, -1);
        if real::openpty(&raw mut ours, &raw mut childs, name, settings, size) == -1 {
            return -1;
        }
        let pid = fork();
        match pid {
            0 => {
                crate::descriptors::close(ours);
                if login_tty(childs) == -1 {
                    crate::endings::_exit(1);
                }
                return 0;
            }
            -1 => {
                let errno = *libc::__errno_location();
                crate::descriptors::close(ours);
                answer::set_errno(errno);
            }
            _ => *terminal = ours,
        }
        crate::descriptors::close(childs);
        pid
    }
}

/// Replaces glibc's daemon, whose internal call of fork would bypass this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !POSIX.is_active() {
            return real::daemon(nochdir, noclose);
        }
        match fork() {
            -1 => return -1,
            0 => {}
            _ => crate::endings::_exit(0),
        }
        if libc::setsid() == -1 {
            return -1;
        }
        if nochdir == 0 {
            // Ignore a failure to enter `/`, as glibc does.
            let _ = libc::chdir(c"/".as_ptr());
        }
        if noclose == 0 {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null == -1 {
                return -1;
            }
            for fd in 0..3 {
                crate::descriptors::dup2(null, fd);
            }
            if null > 2 {
                crate::descriptors::close(null);
            }
        }
        0
    }
}

/// Determines whether a program to be executed will use the sockets of the stack or of the kernel.
/// Notifies the engine if they are those of the kernel. Fails if the user has forbidden such
/// programs.
unsafe fn told<'a>(
    name: *const c_char,
    program: impl FnOnce(&'a CStr) -> Program<'a>,
) -> towpath_posix::Result<Executable> {
    if name.is_null() {
        return Ok(Executable::default());
    }
    // SAFETY: `name` is NUL-terminated, by the contract of exec.
    outside::tell(&POSIX, program(unsafe { CStr::from_ptr(name) }))
}

/// Implements exec functions. `real` calls libc's function with the environment for the new
/// program.
unsafe fn exec(
    told: towpath_posix::Result<Executable>,
    envp: Strings,
    real: impl FnOnce(Strings) -> c_int,
) -> c_int {
    match told {
        // SAFETY: `envp` is a valid environment, by the contract of exec.
        Ok(program) => unsafe { exec::exec(&POSIX, &program, envp, real) },
        Err(errno) => answer::zero(Err(errno)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { exec(told(path, Program::Path), envp, |envp| real::execve(path, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { execve(path, argv, environment::current()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { exec(told(file, Program::Name), envp, |envp| real::execvpe(file, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { execvpe(file, argv, environment::current()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    let told = outside::tell(&POSIX, Program::File(fd));
    // SAFETY: the caller upholds the C function's contract.
    unsafe { exec(told, envp, |envp| real::fexecve(fd, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { execveat_by(dir, path, envp, |envp| real::execveat(dir, path, argv, envp, flags)) }
}

/// Implements execveat(2). `real` calls libc's function with the environment for the new program.
pub unsafe fn execveat_by(
    dir: c_int,
    path: *const c_char,
    envp: Strings,
    real: impl FnOnce(Strings) -> c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { exec(told(path, |path| Program::At(dir, path)), envp, real) }
}

/// Implements posix_spawn(3) and its variants. `real` calls libc's function with the environment of
/// the new program. Its second argument is the location for the process ID.
unsafe fn spawn(
    told: towpath_posix::Result<Executable>,
    pid: *mut pid_t,
    envp: Strings,
    real: impl FnOnce(*mut pid_t, Strings) -> c_int,
) -> c_int {
    let program = match told {
        Ok(program) => program,
        Err(errno) => return errno.0,
    };
    let mut own = 0;
    let pid = if pid.is_null() { &raw mut own } else { pid };
    // SAFETY: the caller upholds the C function's contract.
    let failed = unsafe { exec::spawn(&POSIX, &program, envp, |envp| real(pid, envp)) };
    let failed = failed.unwrap_or_else(|errno| errno.0);
    if failed == 0 && program.sockets == SocketsPlace::Kernel {
        // SAFETY: posix_spawn succeeded, so it has written the process ID.
        limit::lower_of(&POSIX, unsafe { *pid });
    }
    failed
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        spawn(told(path, Program::Path), pid, envp, |pid, envp| {
            real::posix_spawn(pid, path, actions, attributes, argv, envp)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        spawn(told(file, Program::Name), pid, envp, |pid, envp| {
            real::posix_spawnp(pid, file, actions, attributes, argv, envp)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    if POSIX.is_active() {
        exec::note_in_actions(&POSIX, fd);
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

/// posix_spawn_file_actions_addclosefrom_np(3). Adds an action that closes all descriptors from
/// `from` on, except the control socket with which the new program attaches to the engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_addclosefrom_np(
    actions: *mut posix_spawn_file_actions_t,
    from: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        exec::close_from(
            &POSIX,
            from,
            |fd| real::posix_spawn_file_actions_addclose(actions, fd),
            |from| real::posix_spawn_file_actions_addclosefrom_np(actions, from),
        )
    }
}

/// Replaces glibc's system(3). Its internal posix_spawn would bypass this library, so that the
/// command would not find its engine (the network stack).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !POSIX.is_active() || command.is_null() {
            return real::system(command);
        }
        let quiet = Quiet::new();
        let mut pid = 0;
        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), command, std::ptr::null()];
        let attributes = quiet.attributes();
        let failed = posix_spawn(
            &raw mut pid,
            c"/bin/sh".as_ptr(),
            std::ptr::null(),
            &raw const attributes,
            argv.as_ptr(),
            environment::current(),
        );
        if failed != 0 {
            answer::set_errno(failed);
            return -1;
        }
        let mut status = -1;
        while libc::waitpid(pid, &raw mut status, 0) == -1 {
            if *libc::__errno_location() != libc::EINTR {
                return -1;
            }
        }
        status
    }
}

/// Signal state of a thread during system(3): SIGINT and SIGQUIT are ignored, and SIGCHLD is
/// blocked. Contains the previous dispositions and signal mask, which are restored on drop.
struct Quiet {
    interrupt: libc::sigaction,
    quit: libc::sigaction,
    mask: libc::sigset_t,
}

impl Quiet {
    unsafe fn new() -> Self {
        // SAFETY: zeroed memory is valid for these C structures, and the pointers are to local
        // variables.
        unsafe {
            let mut quiet: Self = std::mem::zeroed();
            let mut ignore: libc::sigaction = std::mem::zeroed();
            ignore.sa_sigaction = libc::SIG_IGN;
            libc::sigaction(libc::SIGINT, &raw const ignore, &raw mut quiet.interrupt);
            libc::sigaction(libc::SIGQUIT, &raw const ignore, &raw mut quiet.quit);
            let mut child: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut child, libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const child, &raw mut quiet.mask);
            quiet
        }
    }

    /// Returns posix_spawn attributes with which the command of system(3) gets the signal state
    /// that the program had before.
    unsafe fn attributes(&self) -> posix_spawnattr_t {
        // SAFETY: zeroed memory is valid for these C structures, and the pointers are to local
        // variables.
        unsafe {
            let mut attributes: posix_spawnattr_t = std::mem::zeroed();
            let mut default: libc::sigset_t = std::mem::zeroed();
            for (signal, was) in [(libc::SIGINT, &self.interrupt), (libc::SIGQUIT, &self.quit)] {
                if was.sa_sigaction != libc::SIG_IGN {
                    libc::sigaddset(&raw mut default, signal);
                }
            }
            libc::posix_spawnattr_init(&raw mut attributes);
            libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const self.mask);
            libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const default);
            let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
            libc::posix_spawnattr_setflags(&raw mut attributes, flags as libc::c_short);
            attributes
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: `new` has filled in the structures, whose values are restored here.
        unsafe {
            libc::sigaction(libc::SIGINT, &raw const self.interrupt, std::ptr::null_mut());
            libc::sigaction(libc::SIGQUIT, &raw const self.quit, std::ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut());
        }
    }
}
