//! The kernel descriptor behind a socket's number is never readable, and never belongs to another
//! file.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::asleep;
use crate::harness::Case;
use crate::polling::fill;
use crate::processes::{fork, keep_on_exec, send, wait, with_message};
use crate::sockets::{errno, pair};

pub const CASES: &[Case] = &[
    ("forked_while_others_open_and_close", forked_while_others_open_and_close),
    ("the_kernel_has_nothing_to_read", the_kernel_has_nothing_to_read),
    ("a_raw_read_does_not_change_who_it_is", a_raw_read_does_not_change_who_it_is),
    ("closed_while_it_lingers", closed_while_it_lingers),
    ("replaced_without_a_gap", replaced_without_a_gap),
    ("file_actions", file_actions),
    ("file_actions_before_the_socket", file_actions_before_the_socket),
    ("file_actions_that_close_the_rest", file_actions_that_close_the_rest),
    ("spawned_while_others_open_and_close", spawned_while_others_open_and_close),
    ("sent_to_somebody_outside", sent_to_somebody_outside),
    ("exec_with_no_descriptor_left", exec_with_no_descriptor_left),
    ("exec_with_many_sockets", exec_with_many_sockets),
    ("exec_without_proc", exec_without_proc),
    ("exec_after_login_tty", exec_after_login_tty),
    ("no_high_number_left", no_high_number_left),
    ("kernel_calls_on_sockets", kernel_calls_on_sockets),
];

/// Makes a system call that the library does not intercept. Returns the result and 0, or -1 and the
/// errno.
pub fn raw(number: libc::c_long, fd: RawFd, buffer: &mut [u8]) -> (isize, i32) {
    let args = [fd as usize, buffer.as_mut_ptr().addr(), buffer.len(), 0, 0, 0];
    // SAFETY: the address and length are those of `buffer`; the calls read or write it.
    match unsafe { towpath_client::syscall::syscall(number as usize, args) } {
        Ok(result) => (result as isize, 0),
        Err(errno) => (-1, errno),
    }
}

/// Starts a thread that opens and closes sockets until `over` is set.
fn churn<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    over: &'scope AtomicBool,
) -> std::thread::ScopedJoinHandle<'scope, ()> {
    scope.spawn(|| {
        while !over.load(Ordering::Relaxed) {
            drop((
                UdpSocket::bind("127.0.0.1:0").unwrap(),
                UdpSocket::bind("127.0.0.1:0").unwrap(),
            ));
        }
    })
}

fn forked_while_others_open_and_close() {
    let (server, mut client) = pair();
    let fd = server.as_raw_fd();
    // From the first fstat on, the library itself handles readlink of /proc/self/fd.
    // SAFETY: zeroes are a valid struct stat.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(fd, &raw mut stat), 0);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        churn(scope, &over);
        for _ in 0..200 {
            // SAFETY: the child only writes and exits.
            match unsafe { libc::fork() } {
                // SAFETY: a byte.
                0 => unsafe {
                    let sent = libc::write(fd, b"x".as_ptr().cast(), 1);
                    libc::_exit(if sent == 1 { 0 } else { errno() });
                },
                pid => {
                    let status = wait(pid);
                    if status != 0 {
                        over.store(true, Ordering::Relaxed);
                    }
                    assert_eq!(status, 0, "the child has its socket");
                    client.read_exact(&mut [0]).unwrap();
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

fn the_kernel_has_nothing_to_read() {
    let (server, _client) = pair();
    let fd = server.as_raw_fd();
    let mut eight = 1u64.to_ne_bytes();
    assert_eq!(raw(libc::SYS_read, fd, &mut eight), (-1, libc::EBADF));
    assert_eq!(raw(libc::SYS_write, fd, &mut eight), (-1, libc::EBADF));
    // SAFETY: the calls take integers and a `stat`, for which zeroes are valid.
    unsafe {
        assert_eq!((libc::syscall(libc::SYS_fchdir, fd), errno()), (-1, libc::ENOTDIR));
        let mut stat: libc::stat = std::mem::zeroed();
        let empty = c"".as_ptr();
        let flags = libc::AT_EMPTY_PATH;
        let args = [fd as usize, empty.addr(), (&raw mut stat).addr(), flags as usize, 0, 0];
        let number = libc::SYS_newfstatat as usize;
        assert_eq!(towpath_client::syscall::syscall(number, args), Ok(0));
        assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFSOCK);
    }
}

fn a_raw_read_does_not_change_who_it_is() {
    let (server, mut client) = pair();
    let (_other_server, mut other_client) = pair();
    let fd = server.as_raw_fd();
    keep_on_exec(fd);
    let write = format!("echo one >&{fd}");
    for round in 0..2 {
        let mut eight = [0; 8];
        raw(libc::SYS_read, fd, &mut eight);
        assert!(Command::new("sh").args(["-c", &write]).status().unwrap().success(), "{round}");
        let mut got = [0; 4];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"one\n");
    }
    other_client.set_nonblocking(true).unwrap();
    assert!(other_client.read(&mut [0]).is_err(), "nothing went to the other one");
}

/// As on Linux, the number is free as soon as close begins, and names no file of the kernel.
fn closed_while_it_lingers() {
    let (server, mut client) = pair();
    let fd = server.as_raw_fd();
    let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
    // SAFETY: a struct and its size.
    unsafe {
        let at = (&raw const linger).cast();
        assert_eq!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, at, 8), 0);
    }
    // Queue more than the receiver takes, so that close waits until the bytes are read.
    let sent = fill(&server);
    server.set_nonblocking(false).unwrap();
    let closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(server);
            closed.store(true, Ordering::Relaxed);
        });
        // SAFETY: eight bytes.
        let write =
            |number: RawFd| unsafe { libc::write(number, 1u64.to_ne_bytes().as_ptr().cast(), 8) };
        // Wait until close has begun, before other threads use the descriptor. In the kernel, the
        // last call that ends would close the socket and linger.
        asleep::others();
        let mut eight = [0u8; 8];
        for _ in 0..1000 {
            // SAFETY: room for eight bytes.
            let read = unsafe { libc::read(fd, eight.as_mut_ptr().cast(), 8) };
            assert_eq!((read, errno()), (-1, libc::EBADF));
            assert_eq!((write(fd), errno()), (-1, libc::EBADF));
        }
        let file = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        // SAFETY: integers only.
        let null = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, fd) };
        assert_eq!(null, fd, "the number is free");
        assert!(!closed.load(Ordering::Relaxed), "it lingers");
        assert_eq!(write(null), 8);
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), sent);
        while !closed.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        assert_eq!(write(null), 8, "what is the kernel's now was not closed");
    });
}

/// A number that dup2 moves between two sockets always names a socket. Between a socket and a file,
/// a concurrent call may find it closed. No other file is ever written to.
fn replaced_without_a_gap() {
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let [one, two] = [(); 2].map(|()| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(to.local_addr().unwrap()).unwrap();
        socket
    });
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    replace_in_turn(one.as_raw_fd(), two.as_raw_fd(), |result| result == (8, 0));
    replace_in_turn(one.as_raw_fd(), null.as_raw_fd(), |result| {
        matches!(result, (8, 0) | (-1, libc::EBADF))
    });
}

fn replace_in_turn(one: RawFd, two: RawFd, allowed: fn((isize, i32)) -> bool) {
    // SAFETY: integers only.
    let number = unsafe { libc::dup(one) };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // SAFETY: the pointer and length are those of eight bytes.
                let n = unsafe { libc::write(number, 1u64.to_ne_bytes().as_ptr().cast(), 8) };
                let result = (n, if n < 0 { errno() } else { 0 });
                assert!(allowed(result), "{result:?}");
            }
        });
        let unseen = scope.spawn(|| {
            let mut byte = [0];
            while !over.load(Ordering::Relaxed) {
                let (n, why) = raw(libc::SYS_write, number, &mut byte);
                // Only /dev/null accepts the byte.
                assert!(n == 1 || why == libc::EBADF, "{n}, {why}");
            }
        });
        for _ in 0..20_000 {
            // SAFETY: integers only.
            unsafe {
                assert_eq!(libc::dup2(two, number), number);
                assert_eq!(libc::dup2(one, number), number);
            }
            if seen.is_finished() || unseen.is_finished() {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    // SAFETY: ours.
    unsafe { libc::close(number) };
}

/// As language runtimes do, the child gets a socket as standard input that is close-on-exec here.
fn file_actions() {
    let (server, mut client) = pair();
    let mut child = Command::new("sh")
        .args(["-c", "read line; echo \"$line, heard\" >&0"])
        .stdin(Stdio::from(OwnedFd::from(server)))
        .spawn()
        .unwrap();
    client.write_all(b"a line\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "a line, heard\n");
    assert!(child.wait().unwrap().success());
}

/// File actions contain numbers. Each number refers to the descriptor at the time of the spawn.
fn file_actions_before_the_socket() {
    const NUMBER: RawFd = 77;
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), c"echo heard >&5".as_ptr(), std::ptr::null()];
    // SAFETY: libc initializes the structures, strings are NUL-terminated, and arrays end with
    // null.
    unsafe {
        let mut actions = std::mem::zeroed();
        assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
        assert_eq!(libc::posix_spawn_file_actions_adddup2(&raw mut actions, NUMBER, 5), 0);
        let (server, mut client) = pair();
        assert_eq!(libc::dup3(server.as_raw_fd(), NUMBER, libc::O_CLOEXEC), NUMBER);
        drop(server);
        let mut pid = 0;
        let sh = c"/bin/sh".as_ptr();
        let (actions_at, none) = (&raw const actions, std::ptr::null());
        let argv = argv.as_ptr().cast();
        let failed = libc::posix_spawn(
            &raw mut pid,
            sh,
            actions_at,
            none,
            argv,
            [std::ptr::null_mut()].as_ptr(),
        );
        assert_eq!(failed, 0);
        assert_eq!(wait(pid), 0);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        let mut got = [0; 6];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"heard\n");
        libc::close(NUMBER);
        assert_eq!(client.read(&mut got).unwrap(), 0);
    }
}

/// Since 3.13, Python's subprocess closes all other descriptors of the child, including the
/// library's.
fn file_actions_that_close_the_rest() {
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), c"echo heard >&0".as_ptr(), std::ptr::null()];
    let (server, mut client) = pair();
    let (kept, _other) = pair();
    keep_on_exec(kept.as_raw_fd());
    for _ in 0..3 {
        // SAFETY: libc initializes the structures, strings are NUL-terminated, and arrays end with
        // null.
        unsafe {
            let mut actions = std::mem::zeroed();
            assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
            assert_eq!(
                libc::posix_spawn_file_actions_adddup2(&raw mut actions, server.as_raw_fd(), 0),
                0
            );
            assert_eq!(libc::posix_spawn_file_actions_addclosefrom_np(&raw mut actions, 3), 0);
            let mut pid = 0;
            let failed = libc::posix_spawn(
                &raw mut pid,
                c"/bin/sh".as_ptr(),
                &raw const actions,
                std::ptr::null(),
                argv.as_ptr().cast(),
                [std::ptr::null_mut()].as_ptr(),
            );
            assert_eq!(failed, 0);
            assert_eq!(wait(pid), 0);
            libc::posix_spawn_file_actions_destroy(&raw mut actions);
        }
        let mut got = [0; 6];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"heard\n");
    }
    let output = Command::new("sh").args(["-c", "exec ls /proc/self/fd"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line == kept.as_raw_fd().to_string()), "others keep theirs");
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

/// A child never inherits close-on-exec descriptors, even if other threads open sockets meanwhile.
fn spawned_while_others_open_and_close() {
    let (server, mut client) = pair();
    keep_on_exec(server.as_raw_fd());
    let script = format!("echo x >&{}; exec ls /proc/self/fd", server.as_raw_fd());
    // Ignore descriptors that this program has inherited.
    // SAFETY: fcntl takes integers only.
    let inherited = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == 0;
    let before: Vec<RawFd> = (3..900).filter(|&fd| inherited(fd)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        churn(scope, &over);
        churn(scope, &over);
        for _ in 0..20 {
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            let mut got = [0; 2];
            let heard = client.read_exact(&mut got);
            let text = String::from_utf8(output.stdout).unwrap();
            // The library's descriptors have numbers from 900 on; `ls` itself has the folder open.
            let extra: Vec<RawFd> = text
                .lines()
                .filter_map(|line| line.parse().ok())
                .filter(|number| (3..900).contains(number) && !before.contains(number))
                .collect();
            if heard.is_err() || extra.len() > 1 {
                over.store(true, Ordering::Relaxed);
            }
            heard.unwrap();
            assert!(extra.len() <= 1, "leaked: {extra:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A program outside of the run receives a descriptor on which all calls fail.
fn sent_to_somebody_outside() {
    let (left, right) = UnixStream::pair().unwrap();
    let (server, mut client) = pair();
    send(&left, server.as_raw_fd());
    let mut outside = -1;
    with_message(|message, control| {
        // SAFETY: the message has room for one descriptor. The library does not intercept this
        // call.
        unsafe {
            let args = [right.as_raw_fd() as usize, message.addr(), 0, 0, 0, 0];
            let number = libc::SYS_recvmsg as usize;
            assert_eq!(towpath_client::syscall::syscall(number, args), Ok(1));
            outside = libc::CMSG_DATA(control).cast::<RawFd>().read_unaligned();
        }
    });
    let mut eight = 1u64.to_ne_bytes();
    assert_eq!(raw(libc::SYS_read, outside, &mut eight), (-1, libc::EBADF));
    assert_eq!(raw(libc::SYS_write, outside, &mut eight), (-1, libc::EBADF));
    // SAFETY: received just now.
    drop(unsafe { OwnedFd::from_raw_fd(outside) });
    // The sender's descriptor is unchanged.
    (&server).write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

fn exec_with_no_descriptor_left() {
    let (server, mut client) = pair();
    let fd = server.as_raw_fd();
    keep_on_exec(fd);
    let child = fork(|| {
        // SAFETY: strings are NUL-terminated. The opened files stay open until exec.
        unsafe {
            while libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) != -1 {}
            assert_eq!(errno(), libc::EMFILE);
            let script = std::ffi::CString::new(format!("echo heard >&{fd}")).unwrap();
            let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
            libc::execv(c"/bin/sh".as_ptr(), argv.as_ptr());
        }
    });
    assert_eq!(wait(child), 0);
    drop(server);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "heard\n");
}

/// The library requests tokens for many sockets at once, and gets as many as it has free numbers.
fn exec_with_many_sockets() {
    for left in [None, Some(3), Some(0)] {
        let pairs: Vec<_> = (0..50).map(|_| pair()).collect();
        let fds = pairs.iter().map(|(server, _)| server.as_raw_fd());
        fds.clone().for_each(keep_on_exec);
        let lines: Vec<String> = fds.map(|fd| format!("echo heard >&{fd}")).collect();
        let script = std::ffi::CString::new(lines.join(" && ")).unwrap();
        let child = fork(|| {
            // SAFETY: strings are NUL-terminated. The opened files stay open until exec.
            unsafe {
                if let Some(left) = left {
                    let open =
                        || libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                    let opened: Vec<i32> =
                        std::iter::repeat_with(open).take_while(|fd| *fd != -1).collect();
                    opened.iter().take(left).for_each(|fd| assert_eq!(libc::close(*fd), 0));
                }
                // Use bash, because dash supports only one-digit descriptor numbers in
                // redirections.
                let argv = [c"bash".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
                libc::execv(c"/bin/bash".as_ptr(), argv.as_ptr());
            }
        });
        assert_eq!(wait(child), 0);
        for (server, mut client) in pairs {
            drop(server);
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            assert_eq!(text, "heard\n");
        }
    }
}

/// Mounts an empty file system over /proc, which is usually missing in a chroot. Needs a mount
/// namespace.
fn exec_without_proc() {
    const NOT_PERMITTED: i32 = 77;
    let (server, mut client) = pair();
    let fd = server.as_raw_fd();
    keep_on_exec(fd);
    let child = fork(|| {
        // SAFETY: strings and integers.
        unsafe {
            let (user, mount) = (libc::CLONE_NEWUSER, libc::CLONE_NEWNS);
            if libc::unshare(mount) != 0 && libc::unshare(user | mount) != 0 {
                println!("left out: no mount namespace can be made here: errno {}", errno());
                std::process::exit(NOT_PERMITTED);
            }
            let (none, root) = (c"none".as_ptr(), c"/".as_ptr());
            let private = libc::MS_REC | libc::MS_PRIVATE;
            assert_eq!(libc::mount(none, root, none, private, std::ptr::null()), 0);
            let (proc, tmpfs) = (c"/proc".as_ptr(), c"tmpfs".as_ptr());
            assert_eq!(libc::mount(none, proc, tmpfs, 0, std::ptr::null()), 0);
            let script =
                std::ffi::CString::new(format!("test ! -e /proc/self && echo heard >&{fd}"));
            let script = script.unwrap();
            let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
            libc::execv(c"/bin/sh".as_ptr(), argv.as_ptr());
        }
    });
    drop(server);
    let status = wait(child);
    if status == NOT_PERMITTED << 8 {
        return;
    }
    assert_eq!(status, 0);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "heard\n");
}

/// As telnetd under inetd: login_tty(3) replaces the socket by a terminal inside libc.
fn exec_after_login_tty() {
    let (server, _client) = pair();
    let (mut terminal, mut programs) = (-1, -1);
    // SAFETY: both numbers are writable, and null is allowed for the other arguments.
    let failed = unsafe {
        let (none, modes, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        libc::openpty(&raw mut terminal, &raw mut programs, none, modes, size)
    };
    assert_eq!(failed, 0);
    let child = fork(|| {
        let script = c"test -t 0 && echo a terminal";
        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
        // SAFETY: integers and strings.
        unsafe {
            assert_eq!(libc::dup2(server.as_raw_fd(), 0), 0);
            assert_eq!(libc::login_tty(programs), 0);
            libc::execv(c"/bin/sh".as_ptr(), argv.as_ptr());
        }
    });
    assert_eq!(wait(child), 0);
    let mut got = [0; 12];
    // SAFETY: openpty made it.
    let mut terminal = unsafe { std::fs::File::from_raw_fd(terminal) };
    terminal.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"a terminal\r\n");
    // SAFETY: as above.
    drop(unsafe { OwnedFd::from_raw_fd(programs) });
}

/// The library uses high numbers for its descriptors, and other numbers if none of these is free.
fn no_high_number_left() {
    const LIMIT: u64 = 1024;
    let (server, mut client) = pair();
    let fd = server.as_raw_fd();
    keep_on_exec(fd);
    let null = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: `limit` is a valid rlimit; fcntl takes integers only.
    unsafe {
        let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        while libc::fcntl(null.as_raw_fd(), libc::F_DUPFD, 900) != -1 {}
        assert_eq!(errno(), libc::EMFILE);
    }
    let child = fork(|| {
        (&server).write_all(b"forked\n").unwrap();
        let script = std::ffi::CString::new(format!("echo executed >&{fd}")).unwrap();
        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
        // SAFETY: a path and strings.
        unsafe { libc::execv(c"/bin/sh".as_ptr(), argv.as_ptr()) };
    });
    assert_eq!(wait(child), 0);
    drop(server);
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "forked\nexecuted\n");
}

/// Calls on descriptors for which the kernel has only a token, and no socket.
fn kernel_calls_on_sockets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let fd = client.as_raw_fd();
    // SAFETY: the calls take integers, or structures that live in this function.
    unsafe {
        assert_eq!((libc::isatty(fd), errno()), (0, libc::ENOTTY));
        let mut terminal: libc::termios = std::mem::zeroed();
        assert_eq!((libc::tcgetattr(fd, &raw mut terminal), errno()), (-1, libc::ENOTTY));
        assert_eq!((libc::fsync(fd), errno()), (-1, libc::EINVAL));
        assert_eq!((libc::fdatasync(fd), errno()), (-1, libc::EINVAL));
        assert_eq!((libc::ftruncate(fd, 0), errno()), (-1, libc::EINVAL));
        assert_eq!(libc::fcntl(fd, libc::F_GETOWN), 0);
        assert_eq!(libc::fcntl(fd, libc::F_SETOWN, libc::getpid()), 0);
        let again = libc::dup(fd);
        assert_eq!(libc::fcntl(again, libc::F_GETOWN), libc::getpid(), "it is the open file's");
        assert_eq!(libc::ioctl(fd, libc::FIOCLEX), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD), libc::FD_CLOEXEC);
        assert_eq!(libc::fcntl(again, libc::F_GETFD), 0);
        let mut set: libc::pollfd = std::mem::zeroed();
        (set.fd, set.events) = (again, libc::POLLOUT);
        assert_eq!((libc::poll(&raw mut set, 1, 0), set.revents), (1, libc::POLLOUT));
        libc::close(again);
    }
    assert_eq!(client.into_raw_fd(), fd);
}
