//! Exports syscall(2), by which programs make system calls without libc's functions.
//!
//! Calls on the stack's descriptors are passed to the functions of this crate, all other calls to
//! the kernel. For example, libuv sends and receives batches of datagrams in this way.

use libc::{
    c_int, c_long, c_uint, c_void, iovec, mmsghdr, msghdr, pollfd, size_t, sockaddr, ssize_t,
};
use towpath_posix::fork::fork_without_handlers;
use towpath_posix::{descriptor, netlink, proc_net, socket as posix};

use crate::{
    POSIX, answer, descriptors, endings, files, folders, opening, polling, positional, processes,
    refusals, sockets, transfer,
};

/// Number of bits in [`LOOKED_AT`]. System calls with higher numbers go to the kernel.
const NUMBERS: usize = 512;

/// Bit mask of the system calls in `CALLS`, which may concern descriptors of the stack.
static LOOKED_AT: [u64; NUMBERS / 64] = {
    let mut bits = [0; NUMBERS / 64];
    let mut n = 0;
    while n < CALLS.len() {
        bits[CALLS[n] as usize / 64] |= 1 << (CALLS[n] % 64);
        n += 1;
    }
    #[cfg(target_arch = "x86_64")]
    {
        let mut n = 0;
        while n < OLD_CALLS.len() {
            bits[OLD_CALLS[n] as usize / 64] |= 1 << (OLD_CALLS[n] % 64);
            n += 1;
        }
    }
    bits
};

const CALLS: [c_long; 65] = [
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_clone,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_connect,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit_group,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_io_uring_setup,
    libc::SYS_ioctl,
    libc::SYS_listen,
    libc::SYS_lseek,
    libc::SYS_mlockall,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pselect6,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_seccomp,
    libc::SYS_sendfile,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socket,
    libc::SYS_splice,
    libc::SYS_statx,
    libc::SYS_tee,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
];

/// System calls in `LOOKED_AT` that exist only on older architectures, not on aarch64.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: [c_long; 11] = [
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_fork,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_vfork,
    libc::SYS_sync_file_range,
];

/// syscall(2). If the call is in `LOOKED_AT`, jumps to `special`. Passes all other calls to the
/// kernel, without using the thread's stack memory.
///
/// The stack memory must not be used, because clone(2) may return on another stack, or in two
/// processes that share one (CLONE_VM). `special` receives the arguments in the same registers, so
/// the kernel's sixth argument is its seventh.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall(_number: c_long) -> c_long {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "cmp rdi, {numbers}",
        "jae 4f",
        "lea rax, [rip + {looked_at}]",
        "bt qword ptr [rax], rdi",
        "jnc 4f",
        "cmp rdi, {clone}",
        "jne 3f",
        "test rdx, rdx",
        "jnz 4f",
        "test esi, {clone_vm}",
        "jnz 4f",
        "3: jmp {special}",
        "4: mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2: mov rdi, rax",
        "jmp {fail}",
        numbers = const NUMBERS,
        looked_at = sym LOOKED_AT,
        clone = const libc::SYS_clone,
        clone_vm = const libc::CLONE_VM,
        fail = sym fail,
        special = sym special,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "cmp x0, #{numbers}",
        "b.hs 4f",
        "adrp x9, {looked_at}",
        "add x9, x9, :lo12:{looked_at}",
        "lsr x10, x0, #6",
        "ldr x9, [x9, x10, lsl #3]",
        "lsr x9, x9, x0",
        "tbz x9, #0, 4f",
        "cmp x0, #{clone}",
        "b.ne 3f",
        "cbnz x2, 4f",
        "tbnz x1, #8, 4f",
        "3: b {special}",
        "4: mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc 0",
        "cmn x0, #4095",
        "b.cs 2f",
        "ret",
        "2: b {fail}",
        numbers = const NUMBERS,
        looked_at = sym LOOKED_AT,
        clone = const libc::SYS_clone,
        fail = sym fail,
        special = sym special,
    );
}

/// Converts a negative errno, which the kernel returned, to the result of a C function: -1 and
/// errno.
extern "C" fn fail(result: c_long) -> c_long {
    answer::set_errno(-result as i32);
    -1
}

unsafe fn kernel(number: c_long, args: [usize; 6]) -> c_long {
    // SAFETY: the program upholds the C function's contract.
    match unsafe { towpath_client::syscall::syscall(number as usize, args) } {
        Ok(value) => value as c_long,
        Err(errno) => fail(-c_long::from(errno)),
    }
}

#[allow(clippy::too_many_arguments)] // Signature of syscall(2).
unsafe extern "C" fn special(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let args = [a, b, c, d, e, f];
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        let ours = if POSIX.is_active() {
            of_processes(number, args)
                .or_else(|| of_messages(number, args))
                .or_else(|| of_polling(number, args))
                .or_else(|| of_descriptors(number, args))
                .or_else(|| of_paths(number, args))
                .or_else(|| of_sockets(number, args))
        } else {
            None
        };
        ours.unwrap_or_else(|| kernel(number, args))
    }
}

unsafe fn of_processes(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, _] = args;
    // SAFETY: the program upholds the contract of the system call.
    let fork = || fork_without_handlers(&POSIX, || unsafe { kernel(number, args) } as c_int);
    let filters = number == libc::SYS_prctl && a as c_int == libc::PR_SET_SECCOMP;
    if filters || number == libc::SYS_seccomp {
        POSIX.process.calls_are_filtered();
    }
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        Some(match number {
            // Report io_uring as not supported, because it would use the sockets' kernel
            // descriptors, which have no function. Event loops then use epoll.
            libc::SYS_io_uring_setup => fail(-c_long::from(libc::ENOSYS)),
            // With CLONE_FILES the child shares the parent's descriptors, so it is not a new
            // process for this library.
            libc::SYS_clone if a & libc::CLONE_FILES as usize == 0 => c_long::from(fork()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => c_long::from(fork()),
            // vfork is implemented as fork, so the parent does not wait for the child's exec or
            // exit.
            #[cfg(target_arch = "x86_64")]
            libc::SYS_vfork => c_long::from(processes::vfork()),
            libc::SYS_exit_group => {
                endings::come();
                return None;
            }
            libc::SYS_mlockall => crate::locking::mlockall(a as c_int).into(),
            libc::SYS_execve => processes::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => {
                let execveat = |envp| kernel(number, [a, b, c, envp as usize, e, 0]) as c_int;
                processes::execveat_by(a as c_int, b as _, d as _, execveat).into()
            }
            _ => return None,
        })
    }
}

/// Handles system calls that send or receive messages. AF_UNIX sockets are included, because their
/// messages may contain descriptors of the stack's sockets (SCM_RIGHTS).
unsafe fn of_messages(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<c_long> {
    let (fd, messages) = (a as c_int, b as *mut mmsghdr);
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        Some(match number {
            libc::SYS_sendmsg => transfer::sendmsg(fd, b as *const msghdr, c as c_int) as c_long,
            libc::SYS_recvmsg => transfer::recvmsg(fd, b as *mut msghdr, c as c_int) as c_long,
            libc::SYS_sendmmsg => transfer::sendmmsg(fd, messages, c as c_uint, d as c_int).into(),
            libc::SYS_recvmmsg => {
                transfer::recvmmsg(fd, messages, c as c_uint, d as c_int, e as _).into()
            }
            _ => return None,
        })
    }
}

unsafe fn of_polling(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let is_ours = || descriptor::is_ours(&POSIX, a as c_int);
    // SAFETY: the program upholds the contract of the system call.
    let polled = || unsafe { polling::any_ours(a as *mut pollfd, b as u64) };
    // SAFETY: the program upholds the contract of the system call.
    let selected = || unsafe { polling::sets(a as c_int, b as _, c as _, d as _).any_ours(&POSIX) };
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        Some(c_long::from(match number {
            libc::SYS_ppoll if polled() => polling::ppoll(a as _, b as _, c as _, d as _),
            libc::SYS_pselect6 if selected() => {
                // The sixth argument of pselect6 points to a pair: address and length of the signal
                // mask.
                let mask = (f as *const usize).as_ref().map_or(0, |mask| *mask);
                polling::pselect(a as c_int, b as _, c as _, d as _, e as _, mask as _)
            }
            libc::SYS_epoll_create1 => polling::epoll_create1(a as c_int),
            libc::SYS_epoll_ctl if is_ours() => {
                polling::epoll_ctl(a as c_int, b as c_int, c as c_int, d as _)
            }
            libc::SYS_epoll_pwait if is_ours() => {
                polling::epoll_pwait(a as c_int, b as _, c as c_int, d as c_int, e as _)
            }
            libc::SYS_epoll_pwait2 if is_ours() => {
                polling::epoll_pwait2(a as c_int, b as _, c as c_int, d as _, e as _)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll if polled() => polling::poll(a as _, b as _, c as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select if selected() => {
                polling::select(a as c_int, b as _, c as _, d as _, e as _)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create if a as c_int > 0 => polling::epoll_create1(0),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait if is_ours() => {
                polling::epoll_wait(a as c_int, b as _, c as c_int, d as c_int)
            }
            _ => return None,
        }))
    }
}

unsafe fn of_descriptors(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, ..] = args;
    let fd = a as c_int;
    let is_ours = || descriptor::is_ours(&POSIX, fd);
    let either = || is_ours() || descriptor::is_ours(&POSIX, b as c_int);
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        Some(c_long::from(match number {
            libc::SYS_socket
                if posix::is_ours(&POSIX, fd) || netlink::is_wanted(&POSIX, fd, c as c_int) =>
            {
                sockets::socket(fd, b as c_int, c as c_int)
            }
            libc::SYS_close if is_ours() => descriptors::close(fd),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int),
            libc::SYS_dup if is_ours() => descriptors::dup(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 if either() => descriptors::dup2(fd, b as c_int),
            libc::SYS_dup3 if either() => descriptors::dup3(fd, b as c_int, c as c_int),
            libc::SYS_fcntl if is_ours() => descriptors::fcntl(fd, b as c_int, c),
            libc::SYS_ioctl if is_ours() => descriptors::ioctl(fd, b as _, c),
            libc::SYS_fstat if is_ours() => {
                files::fstat_by(fd, b as _, || kernel(number, args) as c_int)
            }
            _ => return None,
        }))
    }
}

/// Handles system calls whose path may be that of a socket in /proc, or of a file that this library
/// replaces. The kernel executes the call first. libc's functions are not used, because they may be
/// missing: glibc before 2.33 has no fstatat.
unsafe fn of_paths(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, _] = args;
    let fd = a as c_int;
    // SAFETY: the program upholds the contract of the system call.
    let done = || unsafe { kernel(number, args) };
    let status = || done() as c_int;
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        Some(match number {
            libc::SYS_newfstatat => {
                files::fstatat_by(fd, b as _, c as _, d as c_int, status).into()
            }
            libc::SYS_uname => crate::names::named(status(), a as _).into(),
            libc::SYS_statx => files::statx_by(fd, b as _, c as c_int, e as _, status).into(),
            libc::SYS_readlinkat => {
                files::readlink_by(b as _, c as _, d, || done() as ssize_t) as c_long
            }
            libc::SYS_getdents64 => {
                folders::getdents64_by(fd, b as _, || done() as ssize_t) as c_long
            }
            libc::SYS_openat => opening::opened(status(), fd, b as _, c as c_int).into(),
            libc::SYS_openat2 => {
                let result = status();
                // The call has succeeded, so the kernel has read the struct open_how, whose first
                // field contains the flags.
                let flags = if result < 0 { 0 } else { (c as *const u64).read_unaligned() };
                opening::opened(result, fd, b as _, flags as c_int).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => opening::opened(status(), libc::AT_FDCWD, a as _, b as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => files::stat_by(a as _, b as _, status).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => {
                files::readlink_by(a as _, b as _, c, || done() as ssize_t) as c_long
            }
            _ => return None,
        })
    }
}

/// Handles the remaining system calls that take one or two descriptors.
unsafe fn of_sockets(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, _, c, ..] = args;
    let second = match number {
        libc::SYS_sendfile | libc::SYS_tee => args[1],
        libc::SYS_splice | libc::SYS_copy_file_range => c,
        _ => a,
    };
    let ours = [a, second].iter().any(|fd| descriptor::is_ours(&POSIX, *fd as c_int));
    let shows = |fd: c_int| netlink::is_ours(&POSIX, fd) || proc_net::is_shown(&POSIX, fd);
    let takes_requests = second != a && netlink::is_ours(&POSIX, second as c_int);
    if !ours && !takes_requests && !shows(a as c_int) {
        return None;
    }
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        of_names(number, args).or_else(|| of_bytes(number, args)).or_else(|| of_files(number, args))
    }
}

unsafe fn of_names(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        Some(c_long::from(match number {
            libc::SYS_accept => sockets::accept(fd, b as _, c as _),
            libc::SYS_accept4 => sockets::accept4(fd, b as _, c as _, d as c_int),
            libc::SYS_bind => sockets::bind(fd, b as *const sockaddr, c as _),
            libc::SYS_connect => sockets::connect(fd, b as *const sockaddr, c as _),
            libc::SYS_listen => sockets::listen(fd, b as c_int),
            libc::SYS_shutdown => sockets::shutdown(fd, b as c_int),
            libc::SYS_getsockname => sockets::getsockname(fd, b as _, c as _),
            libc::SYS_getpeername => sockets::getpeername(fd, b as _, c as _),
            libc::SYS_getsockopt => sockets::getsockopt(fd, b as c_int, c as c_int, d as _, e as _),
            libc::SYS_setsockopt => sockets::setsockopt(fd, b as c_int, c as c_int, d as _, e as _),
            _ => return None,
        }))
    }
}

unsafe fn of_bytes(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let (fd, bytes, vector) = (a as c_int, b as *mut c_void, b as *const iovec);
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        Some(match number {
            libc::SYS_read => transfer::read(fd, bytes, c),
            libc::SYS_write => transfer::write(fd, bytes, c),
            libc::SYS_readv => transfer::readv(fd, vector, c as c_int),
            libc::SYS_writev => transfer::writev(fd, vector, c as c_int),
            libc::SYS_recvfrom => transfer::recvfrom(fd, bytes, c, d as c_int, e as _, f as _),
            libc::SYS_sendto => transfer::sendto(fd, bytes, c, d as c_int, e as _, f as _),
            libc::SYS_sendfile => transfer::sendfile(fd, b as c_int, c as _, d),
            libc::SYS_splice => transfer::splice(fd, b as _, c as c_int, d as _, e, f as c_uint),
            // On 64-bit machines, one register contains the whole offset, and the next register is
            // ignored.
            libc::SYS_preadv2 => positional::preadv2(fd, vector, c as c_int, d as _, f as c_int),
            libc::SYS_pwritev2 => positional::pwritev2(fd, vector, c as c_int, d as _, f as c_int),
            libc::SYS_preadv => positional::preadv(fd, vector, c as c_int, d as _),
            libc::SYS_pwritev => positional::pwritev(fd, vector, c as c_int, d as _),
            libc::SYS_pread64 => positional::pread(fd, bytes, c as size_t, d as _),
            libc::SYS_pwrite64 => positional::pwrite(fd, bytes, c as size_t, d as _),
            libc::SYS_tee => refusals::tee(fd, b as c_int, c, d as c_uint),
            libc::SYS_copy_file_range => {
                refusals::copy_file_range(fd, b as _, c as c_int, d as _, e, f as c_uint)
            }
            _ => return None,
        } as c_long)
    }
}

unsafe fn of_files(number: c_long, [a, b, c, d, ..]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: the program upholds the contract of the system call.
    unsafe {
        Some(match number {
            libc::SYS_lseek => positional::lseek(fd, b as _, c as c_int),
            libc::SYS_fsync => refusals::fsync(fd).into(),
            libc::SYS_fdatasync => refusals::fdatasync(fd).into(),
            libc::SYS_ftruncate => refusals::ftruncate(fd, b as _).into(),
            libc::SYS_fallocate => refusals::fallocate(fd, b as c_int, c as _, d as _).into(),
            // posix_fadvise(3) returns an errno directly, instead of -1 and errno.
            libc::SYS_fadvise64 => match refusals::posix_fadvise(fd, b as _, c as _, d as c_int) {
                0 => 0,
                errno => fail(-c_long::from(errno)),
            },
            #[cfg(target_arch = "x86_64")]
            libc::SYS_sync_file_range => {
                refusals::sync_file_range(fd, b as _, c as _, d as c_uint).into()
            }
            _ => return None,
        })
    }
}
