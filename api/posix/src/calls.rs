//! Table of the C functions that deal with sockets, and their support: the source of
//! `docs/posix.md`.
//!
//! A test compares this list and the option table with the functions of `api/symbols` and with the
//! document. `TOWPATH_BLESS=1 cargo test -p towpath-posix` writes the document.

use std::fmt::Write;

use crate::option::{Effect, OPTIONS};

/// Whether a C function works on a socket of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallSupport {
    /// Works as on Linux, apart from what [`CallRow::note`] says.
    Works,
    /// Passed to the kernel: the call acts on the kernel descriptor that stands for a socket, or on
    /// descriptors not of the stack.
    Kernel,
    /// Fails, or does not recognize sockets of the stack. [`CallRow::note`] says which.
    Missing,
}

/// Row of the table of supported functions: C functions with the same degree of support.
#[derive(Debug, Clone, Copy)]
pub struct CallRow {
    /// Names of the functions, separated by blanks.
    pub names: &'static str,
    /// Whether the functions work on sockets of the stack.
    pub state: CallSupport,
    /// How the functions differ from Linux, or how they are implemented, in Markdown.
    pub note: &'static str,
}

const fn works(names: &'static str, note: &'static str) -> CallRow {
    CallRow { names, state: CallSupport::Works, note }
}
const fn kernel(names: &'static str, note: &'static str) -> CallRow {
    CallRow { names, state: CallSupport::Kernel, note }
}
const fn missing(names: &'static str, note: &'static str) -> CallRow {
    CallRow { names, state: CallSupport::Missing, note }
}

/// C functions that deal with sockets, each with its degree of support.
pub const CALLS: &[CallRow] = &[
    works(
        "socket",
        "AF_INET and AF_INET6 with SOCK_STREAM (TCP), SOCK_DGRAM (UDP, and ICMP echo as \"ping\" \
         sockets). SOCK_RAW: not there yet: EPERM, as for a user without privileges, also as \
         root; other protocols (SCTP, UDP-Lite, ...): EPROTONOSUPPORT. Other families are the \
         kernel's",
    ),
    kernel("socketpair pipe pipe2 eventfd timerfd_create signalfd inotify_init", ""),
    works(
        "bind listen",
        "rootless, the host's port of `-p` opens with `listen` (TCP) or `bind` (UDP)",
    ),
    works("getsockname getpeername shutdown", ""),
    works("accept accept4", "by any process that holds the listener"),
    works(
        "connect",
        "EINPROGRESS, EALREADY, EISCONN and SO_ERROR as on Linux; AF_UNSPEC dissolves a UDP \
         association, and makes a TCP socket unconnected (with a reset) or a listener listen no \
         more",
    ),
    works("read write readv writev", ""),
    works(
        "recv recvfrom recvmsg recvmmsg",
        "MSG_PEEK, MSG_DONTWAIT, MSG_WAITALL, MSG_TRUNC, MSG_CTRUNC, MSG_WAITFORONE, \
         MSG_ERRQUEUE. MSG_OOB on TCP, with the mark at which reads stop; EOPNOTSUPP on ping \
         sockets, ignored with UDP. Control messages: IP_PKTINFO, IPV6_PKTINFO, IP_TTL, \
         IPV6_HOPLIMIT, IP_TOS, IPV6_TCLASS, SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, \
         SO_RXQ_OVFL, IP_ORIGDSTADDR, IPV6_ORIGDSTADDR, IP_RECVERR, IPV6_RECVERR, TCP_INQ",
    ),
    works(
        "send sendto sendmsg sendmmsg",
        "MSG_DONTWAIT, MSG_MORE (TCP, UDP), MSG_FASTOPEN (TCP), MSG_NOSIGNAL; otherwise SIGPIPE as \
         on Linux. MSG_ZEROCOPY (TCP, UDP) copies all the same. \
         MSG_EOR ends a segment (TCP). \
         MSG_OOB (TCP; ignored with UDP over IPv6, otherwise EOPNOTSUPP). Control \
         messages: IP_PKTINFO, IPV6_PKTINFO, IP_TTL, IPV6_HOPLIMIT, IP_TOS, IPV6_TCLASS, \
         UDP_SEGMENT; other ones of these levels and SOL_SOCKET: EINVAL",
    ),
    works(
        "__read_chk __recv_chk __recvfrom_chk __poll_chk __ppoll_chk",
        "what _FORTIFY_SOURCE makes of the others",
    ),
    works(
        "preadv2 pwritev2 preadv64v2 pwritev64v2",
        "at position -1, the only one that sockets have; RWF_NOWAIT is MSG_DONTWAIT",
    ),
    works(
        "lseek lseek64 pread pread64 pwrite pwrite64 preadv preadv64 pwritev pwritev64 \
         __pread_chk __pread64_chk",
        "ESPIPE",
    ),
    kernel("__fdelt_chk", ""),
    works("sendfile sendfile64", "file to socket, through a buffer of 64 KiB"),
    works("splice", "between a pipe and TCP or UDP, through a buffer of 64 KiB"),
    works("tee copy_file_range", "EINVAL, as for the kernel's sockets"),
    kernel("vmsplice", "EBADF, as for the kernel's sockets"),
    works("getsockopt setsockopt", "see the options below; others ENOPROTOOPT"),
    works(
        "fcntl fcntl64",
        "F_GETFL and F_SETFL (O_NONBLOCK is the open file's, so shared by dup and fork), F_DUPFD, \
         F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETOWN, F_SETOWN, F_GETOWN_EX, F_SETOWN_EX (not of \
         a thread): whom SIGURG goes to: a process of the run, or those of the run in a group. It \
         goes to descendants of the engine's process alone, as /proc shows them, and not to those \
         that became another user's by sudo. O_ASYNC, and any signal with F_SETSIG: EINVAL, there \
         is no SIGIO",
    ),
    works(
        "ioctl",
        "FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK, \
         FIOGETOWN, FIOSETOWN, SIOCGPGRP, SIOCSPGRP, SIOCGIFCONF, SIOCGIFNAME, SIOCGIFINDEX, \
         SIOCGIFFLAGS, SIOCGIFMTU, SIOCGIFHWADDR, SIOCGIFADDR, SIOCGIFNETMASK, SIOCGIFDSTADDR, \
         SIOCGIFBRDADDR, SIOCGIFTXQLEN (1000), SIOCGIFMETRIC and SIOCGIFMAP (0). SIOCETHTOOL: \
         EOPNOTSUPP. What would change an interface: EPERM. Others: ENOTTY, also SIOCGSTAMP, for \
         good: SO_TIMESTAMP tells the time of each datagram with the datagram",
    ),
    works(
        "close dup dup2 dup3 close_range closefrom",
        "close waits for SO_LINGER, with O_NONBLOCK too; the number is free by then. Descriptors \
         of this library stay open",
    ),
    works(
        "fstat fstat64 __fxstat __fxstat64 stat stat64 __xstat __xstat64 fstatat fstatat64 \
         __fxstatat __fxstatat64 statx",
        "say that it is a socket, also of /proc/self/fd and /dev/fd; each has an inode number of \
         its own",
    ),
    works(
        "readlink readlinkat __readlink_chk __readlinkat_chk",
        "of /proc/PID/fd, within the run: socket:[inode]. Others see one socket, which is not open",
    ),
    works(
        "isatty tcgetattr fsync fdatasync ftruncate ftruncate64 fallocate fallocate64 \
         posix_fallocate posix_fallocate64 posix_fadvise posix_fadvise64 sync_file_range",
        "what the kernel says of its sockets: ENOTTY, EINVAL, ENODEV, ESPIPE; advice is taken",
    ),
    kernel("fstatfs", "as of a socket"),
    kernel("flock fchmod fchown mmap tcsetattr", "EBADF"),
    works("poll ppoll select pselect", "our and the kernel's descriptors together"),
    works(
        "epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2",
        "level- and edge-triggered, EPOLLONESHOT, EPOLLEXCLUSIVE, nested, several threads, our \
         and the kernel's descriptors together. While our sockets keep a thread busy, kernel \
         descriptors that were not ready in its last 16 calls are looked at in every eighth. A \
         forked child has its own copy of the part about our sockets; over exec that part is lost",
    ),
    works(
        "fork vfork _Fork __register_atfork forkpty login_tty",
        "vfork is fork. Handlers of pthread_atfork may use sockets, unless the program brings a \
         malloc of its own (jemalloc, tcmalloc). A run has 4095 processes at most, a child of its \
         first process with all that descend from it half of them, and a process 512 children \
         that have not begun to run: EAGAIN, here and from posix_spawn and its kin",
    ),
    works(
        "execve execv execvp execvpe execl execlp execle fexecve execveat",
        "the new image keeps sockets that are not close-on-exec, also where there is no /proc",
    ),
    works(
        "posix_spawn posix_spawnp posix_spawn_file_actions_adddup2 \
         posix_spawn_file_actions_addclosefrom_np system popen pclose daemon",
        "what a static program does not inherit it keeps open for up to 5 s",
    ),
    missing(
        "clone clone3 wordexp",
        "the child of a process that is made without fork finds its engine gone: ENETDOWN",
    ),
    works(
        "sigaction __sigaction signal bsd_signal ssignal sysv_signal __sysv_signal sigset \
         siginterrupt",
        "handlers that are set so interrupt calls that wait whenever they come; one that is set \
         by a system call without libc does while the thread sleeps",
    ),
    works(
        "pthread_cancel",
        "ends calls that wait and are cancellation points; close lingers on. A thread with \
         PTHREAD_CANCEL_ASYNCHRONOUS is not ended within these; it must not call others, as POSIX \
         says",
    ),
    works(
        "_exit _Exit",
        "with `--inline` they return no sooner than exit(3): when peers have what was unsent",
    ),
    works(
        "prctl",
        "as the kernel has it; once a program filters its system calls (PR_SET_SECCOMP, seccomp), \
         waiting makes none that are not on every list",
    ),
    works(
        "getrlimit getrlimit64 setrlimit setrlimit64 prlimit prlimit64",
        "of RLIMIT_AS, the process's own: the address space of the library's shared memory (65 \
         GiB) does not count. All else is the kernel's",
    ),
    works(
        "mlockall",
        "locks the program's memory, and not the library's, which does not count against \
         RLIMIT_MEMLOCK either. Where /proc is not mounted, memory is locked when it is touched, \
         and a limit is ENOMEM",
    ),
    works(
        "getifaddrs freeifaddrs if_nametoindex if_indextoname if_nameindex",
        "the stack's interfaces, as AF_NETLINK sockets show them",
    ),
    works(
        "getaddrinfo gethostbyname gethostbyname2 gethostbyname_r gethostbyname2_r gethostbyaddr \
         gethostbyaddr_r getnameinfo",
        "the machine's own name (gethostname) leads to the stack's addresses, and hosts of \
         `towpath run --add-host` to theirs, and back. glibc does all else, with the stack's \
         resolver in the place of `dns` and `resolve` of nsswitch.conf: the run's nameserver is \
         asked over the stack. Without one (`--dns none`, `--tap` without `--dns`) libc asks over \
         the kernel's network. AI_ADDRCONFIG looks at the stack's addresses. getaddrinfo's \
         order is RFC 6724's by the stack's addresses and routes (gai.conf(5)); behind the gateway \
         by the kernel's, since sockets of the host reach the destinations",
    ),
    works(
        "getaddrinfo_a",
        "glibc's threads ask the run's nameserver over the stack. The machine's own name and \
         AI_ADDRCONFIG are those of the host, and hosts of `--add-host` are not known to them",
    ),
    works(
        "res_query __res_query res_search __res_search res_querydomain __res_querydomain res_send \
         __res_send res_nquery __res_nquery res_nsearch __res_nsearch res_nquerydomain \
         __res_nquerydomain res_nsend __res_nsend",
        "the run's nameserver is asked over the stack, in the place of the same ones as in \
         /etc/resolv.conf; nameservers that the program has put into `_res` or its own state are \
         asked over the stack, too. Answers, lengths, h_errno and errno are those of glibc. TCP \
         waits no longer than UDP for an answer. Of `search` six domains count. Without a \
         nameserver of the run, as above",
    ),
    works(
        "__res_init __res_ninit",
        "`res_init` and `res_ninit`: the state has the run's nameserver",
    ),
    works(
        "_nss_towpath_gethostbyname4_r _nss_towpath_gethostbyname3_r \
         _nss_towpath_gethostbyname2_r _nss_towpath_gethostbyname_r \
         _nss_towpath_gethostbyaddr2_r _nss_towpath_gethostbyaddr_r",
        "the service `towpath` of glibc's name service switch, as above",
    ),
    works(
        "gethostname __gethostname_chk uname",
        "the kernel's, or the name of `towpath run --hostname`; sethostname changes the kernel's",
    ),
    works(
        "fopen fopen64 open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2",
        "the kernel's; in /etc/resolv.conf nameservers on the host's loopback are read as that of \
         the run (`towpath run --dns`), /etc/hosts begins with the hosts of `--add-host`, and \
         files of /proc/net show the stack, as above",
    ),
    works(
        "readdir readdir64 readdir_r readdir64_r getdents64",
        "/proc/self/fd and fdinfo without the descriptors of this library, of which close, fcntl, \
         fstat, stat and readlink say that they are not open. scandir lists them, other processes \
         see them (lsof), and they count against RLIMIT_NOFILE",
    ),
    works(
        "fdopen freopen freopen64",
        "a stream over our calls; fileno of it is EBADF. Streams that were there before work on \
         what dup2 puts under them",
    ),
    works("dprintf vdprintf __dprintf_chk __vdprintf_chk", "printed into memory, then sent"),
    works(
        "syscall",
        "by the numbers of the functions of this list, and clone without CLONE_VM and a stack; \
         io_uring_setup is ENOSYS, so that programs use epoll. Everything else goes to the kernel \
         unseen",
    ),
    missing(
        "res_query res_search res_send res_nquery res_nsearch res_nsend",
        "libc asks over the kernel's network",
    ),
    missing("io_uring_setup aio_read aio_write", "do not see our sockets"),
];

const HEAD: &str = "\
# The POSIX socket API on Towpath

<!-- Generated from api/posix/src/calls.rs and option/table.rs: \
TOWPATH_BLESS=1 cargo test -p towpath-posix -->

State of each call and option for programs that run on Towpath. No call succeeds without effect: a
missing one fails with the errno that Linux gives if a feature is missing or a privilege is
needed.

- **works**: as on Linux, with the differences in the note.
- **kernel**: goes to the kernel. On a socket of Towpath the call acts on the O_PATH descriptor
  behind the number, so calls that need an open file fail with EBADF.
- **missing**: fails, or does not see sockets of Towpath.

Sockets of other families (AF_UNIX, AF_PACKET, ...) belong to the kernel. On AF_UNIX sockets,
SCM_RIGHTS passes sockets to other programs of the same run. A program outside of the run receives
a socket that is not open (EBADF). A socket that is in a message and in no program is kept for 30
seconds.

## Netlink

AF_NETLINK sockets of NETLINK_ROUTE show the stack:

- RTM_GETLINK (with IFLA_STATS64), RTM_GETADDR, RTM_GETROUTE, RTM_GETNEIGH and RTM_GETRULE list
  all entries. Links, routes and neighbours can be asked one by one as well. Lists have at most 64
  routes or 256 neighbours.
- The rules are those of a kernel without additional rules.
- Changes fail with EPERM, as for a user without privileges, because the operator decides about
  the stack. Other questions (queueing disciplines, ...) fail with EOPNOTSUPP. RTM_GETADDR honours
  NETLINK_GET_STRICT_CHK.
- At most 64 sockets of a process can join groups (ENOMEM), and no events are sent to them.
- A duplicate of the descriptor can be read, but not asked (ECONNREFUSED). The same applies to a
  descriptor that another program gets by exec or SCM_RIGHTS.
- The answers are there when the call returns. ENOBUFS means that too many answers were not read.
- A process may enter a network namespace itself (`unshare -n`, bubblewrap). These sockets are
  then the kernel's, so that the process can set it up. Before Linux 5.14 they show the stack
  there, too.

AF_NETLINK sockets of NETLINK_SOCK_DIAG (`ss`) show the stack's TCP and UDP sockets:

- Dumps by state, port and bytecode, and single sockets, with INET_DIAG_MEMINFO, INFO, CONG,
  SKMEMINFO and SKV6ONLY. The user in the answer is the asking one.
- Other families fail with ENOENT, and `ss` then reads /proc/net. SOCK_DESTROY fails with EPERM.
- For each shard, at most 4096 connections without a program (TIME-WAIT) are listed.
- A dump that is longer than the socket's receive buffer fails with ENOBUFS, and `ss` then reads
  /proc/net.

The other netlink protocols are the kernel's: uevents, netfilter, generic netlink.

## /proc/net

The following files of /proc/net show the stack in Linux's formats. The same applies to net in
/proc/self, /proc/thread-self and /proc/PID of the process itself. The other files are the
kernel's.

- tcp, tcp6, udp, udp6, icmp, icmp6, raw, raw6 (empty)
- dev, route, ipv6_route, if_inet6, arp
- snmp, netstat, sockstat, sockstat6

Details:

- A file has the content of the time when it was opened. lseek, pread or preadv to its beginning
  renew it. A stream's rewind and the use of a duplicate of the descriptor do not.
- snmp counts both families of IP together, and missing counters are 0. netstat has only
  SyncookiesSent, SyncookiesRecv, SyncookiesFailed, TWRecycled, InOctets and OutOctets.
- readlink and fstat return the inode of a socket in its process. In another process of the run,
  readlink and stat of /proc/PID/fd return it. `ss -p`, `netstat -p`, `lsof -i` and psutil
  therefore name the processes.
- For that, the memory of the other process is read (/proc/PID/mem), as a user who may trace it.
  If kernel.yama.ptrace_scope forbids it, no process is named (`towpath ss -p` names them).
- In another network namespace the files are the kernel's.

## Limitations

- Programs that make system calls without libc (static binaries, Go) are not seen. Sockets that
  they inherit stay open until they end, as on Linux, but they cannot use them. Set-user-id
  programs do not load the library.
- An invalid pointer is a fault in the program instead of EFAULT, because checking it would cost a
  system call per call. Exceptions are null pointers, pointers into the first page, and paths that
  the kernel reads first (all except those of exec).
- A process that is stopped during a call can delay other processes at the same end of the same
  socket.
- SO_RCVTIMEO and SO_SNDTIMEO beyond 71 minutes mean no limit.
- Automatic ports are those of the host's net.ipv4.ip_local_port_range at the start of the run.
  The Rust library uses those from 32768 to 60999.

## Signal handlers

Signal handlers may call the socket functions of signal-safety(7), whatever they interrupt.

- If the interrupted call sends on the same socket, bytes of the handler leave when that call
  continues. A handler that waits for the answer waits in vain. Without room for the bytes the
  handler gets EAGAIN.
- On top of a call that uses the same part, epoll's functions fail with EDEADLK and fork with
  EAGAIN.
- A handler must not leave a socket call by siglongjmp.
- poll and select allocate memory for lists of more than 64 descriptors.

## Loopback

Bytes over loopback, and the end of a stream, are there when the sending call has returned, as on
Linux. Within the run, this applies to TCP and UDP, to loopback and to the stack's own addresses.
Own copies of datagrams to groups and broadcast addresses are included. A call that does not wait
(recv(2), poll(2), select(2), epoll_wait(2), FIONREAD) reports that nothing is there only after a
turn of the engine. If sent bytes are missing, it waits some microseconds for this turn.

A call may still be too early in these cases:

- sockets in an epoll set of more than 32
- datagrams that sendto(2) sends to an own address other than loopback, from an unbound socket
- the room that a peer has made by reading, and ICMP errors

## Calls

| call | state | note |
|---|---|---|
";

const OPTIONS_HEAD: &str = "
## Options

- **works**: reading also returns the value that was set.
- **only**: one value can be set, because it describes the normal behaviour. Other values fail with
  the errno in the table.
- **engine**: the engine answers.
- **refused**: setting fails with the errno in the table.

| option | state | note |
|---|---|---|
";

/// Returns the text of `docs/posix.md`.
pub fn document() -> String {
    let mut out = String::from(HEAD);
    for call in CALLS {
        let names: Vec<String> = call.names.split(' ').map(|name| format!("`{name}`")).collect();
        let state = match call.state {
            CallSupport::Works => "works",
            CallSupport::Kernel => "kernel",
            CallSupport::Missing => "missing",
        };
        // `writeln!` to a string cannot fail, so its result is ignored.
        let _ = writeln!(out, "| {} | {state} | {} |", names.join(" "), call.note);
    }
    out.push_str(OPTIONS_HEAD);
    for option in OPTIONS {
        let state = match option.effect {
            Effect::Only { value, otherwise } => {
                format!("only {value}, else {}", errno_name(otherwise))
            }
            Effect::Refused { errno } => format!("refused: {}", errno_name(errno)),
            Effect::Engine | Effect::EngineSet | Effect::Asked { .. } => "engine".into(),
            Effect::Bit { .. } | Effect::Told { .. } | Effect::Kept { .. } | Effect::Special => {
                "works".into()
            }
        };
        let _ = writeln!(out, "| `{}` | {state} | {} |", option.text, option.note);
    }
    out
}

fn errno_name(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EACCES => "EACCES",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        _ => "ENOPROTOOPT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    #[test]
    fn the_document_is_current() {
        let path = root().join("docs/posix.md");
        if std::env::var_os("TOWPATH_BLESS").is_some() {
            std::fs::write(&path, document()).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == document(),
            "docs/posix.md is out of date"
        );
    }

    #[test]
    fn the_list_is_what_is_interposed() {
        let mut exported = BTreeSet::new();
        for file in std::fs::read_dir(root().join("api/symbols/src")).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            for part in text.split("#[unsafe(no_mangle)]").skip(1) {
                let (_, rest) = part.split_once(" fn ").unwrap();
                exported.insert(rest.split('(').next().unwrap().to_owned());
            }
            for part in text.split("take_apart!(").skip(1) {
                exported.insert(part.split(',').next().unwrap().to_owned());
            }
            for part in text.split("\nfunctions! {\n").skip(1) {
                // Each of these lines defines a `res_…` function under two names.
                let (functions, _) = part.split_once("\n}").unwrap();
                let starts = functions.lines().filter(|line| line.starts_with("    res_"));
                for line in starts {
                    let names = line.trim().split('(').next().unwrap();
                    exported.extend(names.split(' ').map(str::to_owned));
                }
            }
            for part in text.split("\nrefused! {\n").skip(1) {
                let (functions, _) = part.split_once("\n}").unwrap();
                let names = functions.lines().map(|line| line.trim().split('(').next().unwrap());
                exported.extend(names.map(str::to_owned));
            }
        }
        // Remove the macro variables `$name` and `$other`, which stand for function names.
        exported.remove("$name");
        exported.remove("$other");
        let listed: BTreeSet<String> = CALLS
            .iter()
            .filter(|call| call.state == CallSupport::Works)
            .flat_map(|call| call.names.split(' ').map(str::to_owned))
            .collect();
        assert_eq!(exported, listed);
    }

    #[test]
    fn every_refusal_has_its_name() {
        for option in OPTIONS {
            if let Effect::Only { otherwise: errno, .. } | Effect::Refused { errno } = option.effect
            {
                let known =
                    [libc::EPERM, libc::ENOENT, libc::EACCES, libc::EOPNOTSUPP, libc::ENOPROTOOPT];
                assert!(known.contains(&errno), "{}", option.text);
            }
        }
    }
}
