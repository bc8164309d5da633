//! Names of system calls.

/// Numbers of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl of Linux). Calls that are missing here
/// are shown by their number.
const NAMES: &[(i64, &str)] = &[
    (0, "read"),
    (1, "write"),
    (3, "close"),
    (7, "poll"),
    (9, "mmap"),
    (10, "mprotect"),
    (11, "munmap"),
    (13, "rt_sigaction"),
    (14, "rt_sigprocmask"),
    (16, "ioctl"),
    (19, "readv"),
    (20, "writev"),
    (24, "sched_yield"),
    (28, "madvise"),
    (33, "dup2"),
    (35, "nanosleep"),
    (39, "getpid"),
    (41, "socket"),
    (42, "connect"),
    (44, "sendto"),
    (45, "recvfrom"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (48, "shutdown"),
    (51, "getsockname"),
    (52, "getpeername"),
    (54, "setsockopt"),
    (55, "getsockopt"),
    (72, "fcntl"),
    (202, "futex"),
    (228, "clock_gettime"),
    (230, "clock_nanosleep"),
    (232, "epoll_wait"),
    (233, "epoll_ctl"),
    (257, "openat"),
    (262, "newfstatat"),
    (270, "pselect6"),
    (271, "ppoll"),
    (281, "epoll_pwait"),
    (288, "accept4"),
    (290, "eventfd2"),
    (292, "dup3"),
    (299, "recvmmsg"),
    (302, "prlimit64"),
    (307, "sendmmsg"),
    (426, "io_uring_enter"),
    (441, "epoll_pwait2"),
    (449, "futex_waitv"),
    (454, "futex_wake"),
];

/// Returns the name of a system call.
pub fn name(number: i64) -> String {
    let known = NAMES.iter().find(|(it, _)| cfg!(target_arch = "x86_64") && *it == number);
    known.map_or_else(|| format!("call {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_name_has_its_number() {
        assert_eq!(name(9999), "call 9999");
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0), "each number once");
    }
}
