//! The functions of libc that this library replaces.
//!
//! The constructor of this library looks up all of them. A later lookup in a forked child could
//! deadlock if another thread held the loader's lock during the fork. A function called before the
//! constructor is looked up on demand. For example, a malloc replacement may read files in its own
//! constructor.

#![allow(clippy::too_many_arguments, non_snake_case)] // Signatures as in libc.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::*;

struct Symbol {
    at: AtomicUsize,
    name: &'static CStr,
}

impl Symbol {
    const fn new(name: &'static CStr) -> Self {
        Self { at: AtomicUsize::new(0), name }
    }

    #[inline]
    fn get(&self) -> usize {
        match self.at.load(Ordering::Relaxed) {
            0 => self.resolve(),
            at => at,
        }
    }

    #[cold]
    fn resolve(&self) -> usize {
        // SAFETY: `name` is NUL-terminated. RTLD_NEXT searches the libraries loaded after this one.
        let at = unsafe { dlsym(RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.at.store(at, Ordering::Relaxed);
        at
    }

    /// Aborts the program, because libc lacks the function. The program was linked with a newer
    /// libc.
    #[cold]
    fn missing(&self) -> ! {
        let text = b"towpath: this libc lacks a function that the program calls\n";
        crate::complaint::write(text);
        std::process::abort()
    }
}

macro_rules! reals {
    ($($name:ident($($arg:ident: $kind:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        mod symbols {
            #![allow(non_upper_case_globals)]
            $(pub(super) static $name: super::Symbol = super::Symbol::new(
                match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!(),
                },
            );)*
        }

        $(
            #[inline]
            pub unsafe fn $name($($arg: $kind),*) $(-> $ret)? {
                let at = symbols::$name.get();
                if at == 0 {
                    symbols::$name.missing();
                }
                // SAFETY: `at` is the address of libc's function, which has this type. The caller
                // upholds the function's contract.
                unsafe {
                    let function: unsafe extern "C" fn($($kind),*) $(-> $ret)? =
                        std::mem::transmute(at);
                    function($($arg),*)
                }
            }
        )*

        /// Returns whether libc has `__register_atfork`. glibc has the function, musl lacks it.
        pub fn has_register_atfork() -> bool {
            symbols::__register_atfork.get() != 0
        }

        pub fn resolve_all() {
            $(symbols::$name.resolve();)*
        }
    };
}

reals! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t,
    ) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(
        fd: c_int, to: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t;
    sendto(
        fd: c_int, from: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr,
        addr_len: socklen_t,
    ) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec,
    ) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(
        from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, len: size_t,
        flags: c_uint,
    ) -> ssize_t;
    __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    __recv_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    __recvfrom_chk(
        fd: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int);
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, arg: usize) -> c_int;
    ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int;
    isatty(fd: c_int) -> c_int;
    tcgetattr(fd: c_int, to: *mut termios) -> c_int;
    fsync(fd: c_int) -> c_int;
    fdatasync(fd: c_int) -> c_int;
    ftruncate(fd: c_int, len: off_t) -> c_int;
    ftruncate64(fd: c_int, len: off_t) -> c_int;
    fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int;
    fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int;
    sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int;
    posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int;
    posix_fadvise(fd: c_int, from: off_t, len: off_t, advice: c_int) -> c_int;
    tee(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t;
    copy_file_range(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint,
    ) -> ssize_t;
    fstat(fd: c_int, to: *mut libc::stat) -> c_int;
    __fxstat(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int;
    stat(path: *const c_char, to: *mut libc::stat) -> c_int;
    __xstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int;
    fstatat(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int;
    __fxstatat(
        version: c_int, dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int,
    ) -> c_int;
    statx(
        dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx,
    ) -> c_int;
    readlink(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t;
    readlinkat(dir: c_int, path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t;
    __readlink_chk(path: *const c_char, to: *mut c_char, len: size_t, room: size_t) -> ssize_t;
    __readlinkat_chk(
        dir: c_int, path: *const c_char, to: *mut c_char, len: size_t, room: size_t,
    ) -> ssize_t;
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int;
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        room: size_t,
    ) -> c_int;
    select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int;
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait(
        epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t,
    ) -> c_int;
    epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    pthread_cancel(thread: pthread_t) -> c_int;
    prctl(
        option: c_int, a: libc::c_ulong, b: libc::c_ulong, c: libc::c_ulong, d: libc::c_ulong,
    ) -> c_int;
    getrlimit(resource: __rlimit_resource_t, limit: *mut rlimit) -> c_int;
    setrlimit(resource: __rlimit_resource_t, limit: *const rlimit) -> c_int;
    prlimit(
        pid: pid_t, resource: __rlimit_resource_t, new: *const rlimit, old: *mut rlimit,
    ) -> c_int;
    mlockall(flags: c_int) -> c_int;
    getifaddrs(to: *mut *mut ifaddrs) -> c_int;
    getaddrinfo(
        node: *const c_char, service: *const c_char, hints: *const addrinfo,
        to: *mut *mut addrinfo,
    ) -> c_int;
    getaddrinfo_a(
        mode: c_int, list: *mut *mut c_void, count: c_int, event: *mut libc::sigevent,
    ) -> c_int;
    gethostbyname(name: *const c_char) -> *mut hostent;
    gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent;
    gethostbyname_r(
        name: *const c_char, to: *mut hostent, buffer: *mut c_char, len: usize,
        result: *mut *mut hostent, error: *mut c_int,
    ) -> c_int;
    gethostbyname2_r(
        name: *const c_char, family: c_int, to: *mut hostent, buffer: *mut c_char, len: usize,
        result: *mut *mut hostent, error: *mut c_int,
    ) -> c_int;
    gethostbyaddr(addr: *const c_void, len: socklen_t, family: c_int) -> *mut hostent;
    gethostbyaddr_r(
        addr: *const c_void, len: socklen_t, family: c_int, to: *mut hostent, buffer: *mut c_char,
        room: size_t, result: *mut *mut hostent, error: *mut c_int,
    ) -> c_int;
    gethostname(name: *mut c_char, len: size_t) -> c_int;
    __gethostname_chk(name: *mut c_char, len: size_t, room: size_t) -> c_int;
    uname(to: *mut utsname) -> c_int;
    getnameinfo(
        addr: *const sockaddr, len: socklen_t, host: *mut c_char, host_len: socklen_t,
        service: *mut c_char, service_len: socklen_t, flags: c_int,
    ) -> c_int;
    __res_init() -> c_int;
    __res_ninit(state: *mut c_void) -> c_int;
    __res_state() -> *mut c_void;
    __h_errno_location() -> *mut c_int;
    if_nameindex() -> *mut libc::if_nameindex;
    if_nametoindex(name: *const c_char) -> c_uint;
    if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char;
    __register_atfork(
        prepare: Option<unsafe extern "C" fn()>, parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>, object: *mut c_void,
    ) -> c_int;
    openpty(
        terminal: *mut c_int, side: *mut c_int, name: *mut c_char, settings: *const termios,
        size: *const winsize,
    ) -> c_int;
    login_tty(fd: c_int) -> c_int;
    forkpty(
        terminal: *mut c_int, name: *mut c_char, settings: *const termios, size: *const winsize,
    ) -> pid_t;
    fork() -> pid_t;
    _Fork() -> pid_t;
    daemon(nochdir: c_int, noclose: c_int) -> c_int;
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    execveat(
        dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char,
        flags: c_int,
    ) -> c_int;
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *const c_char,
        envp: *const *const c_char,
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *const c_char,
        envp: *const *const c_char,
    ) -> c_int;
    posix_spawn_file_actions_adddup2(
        actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int,
    ) -> c_int;
    posix_spawn_file_actions_addclose(actions: *mut posix_spawn_file_actions_t, fd: c_int) -> c_int;
    posix_spawn_file_actions_addclosefrom_np(
        actions: *mut posix_spawn_file_actions_t, from: c_int,
    ) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    pclose(stream: *mut FILE) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    readdir(folder: *mut DIR) -> *mut dirent;
    readdir64(folder: *mut DIR) -> *mut dirent64;
    readdir_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int;
    readdir64_r(folder: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int;
    getdents64(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    pread(fd: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    preadv(fd: c_int, to: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev(fd: c_int, from: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    preadv2(fd: c_int, to: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, from: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    __pread_chk(fd: c_int, to: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t;
}
