//! fork, exec, spawn, SCM_RIGHTS, and the end of the engine.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::asleep;
use crate::harness::{Case, STOP_ENGINE};
use crate::sockets::{errno, pair};

pub const CASES: &[Case] = &[
    ("workers_accept", workers_accept),
    ("fork_keeps_connections", fork_keeps_connections),
    ("a_killed_child_leaves_nothing", a_killed_child_leaves_nothing),
    ("exec_keeps_sockets", exec_keeps_sockets),
    ("close_on_exec", close_on_exec),
    ("a_program_that_is_not_there_changes_nothing", a_program_that_is_not_there_changes_nothing),
    ("commands", commands),
    ("commands_in_pipes", commands_in_pipes),
    ("sent_over_a_unix_socket", sent_over_a_unix_socket),
    ("sent_and_gone", sent_and_gone),
    ("forked_while_another_thread_sends", forked_while_another_thread_sends),
    ("forked_without_us", forked_without_us),
    ("the_engine_dies_in_recv", the_engine_dies_in_recv),
    ("the_engine_dies_in_poll", the_engine_dies_in_poll),
    ("no_io_uring", no_io_uring),
    ("a_limit_of_address_space", a_limit_of_address_space),
];

/// Runs `child` in a forked process, and returns its process ID.
pub fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: this process has one thread; the child exits.
    match unsafe { libc::fork() } {
        0 => {
            child();
            std::process::exit(0);
        }
        pid => {
            assert!(pid > 0);
            pid
        }
    }
}

pub fn wait(pid: i32) -> i32 {
    let mut status = -1;
    // SAFETY: a status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

pub fn keep_on_exec(fd: RawFd) {
    // SAFETY: integers only.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
}

fn workers_accept() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let workers: Vec<i32> = (0..3)
        .map(|_| {
            fork(|| {
                for _ in 0..5 {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.write_all(b"served").unwrap();
                }
            })
        })
        .collect();
    drop(listener);
    for _ in 0..15 {
        let mut text = String::new();
        TcpStream::connect(at).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "served");
    }
    for worker in workers {
        assert_eq!(wait(worker), 0);
    }
    // The engine may notice the end of the last worker only after waitpid(2), and then resets
    // connections made before.
    while TcpStream::connect(at).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn fork_keeps_connections() {
    let (mut server, mut client) = pair();
    let child = fork(|| {
        server.write_all(b"child").unwrap();
        server.read_exact(&mut [0; 6]).unwrap();
    });
    drop(server);
    client.read_exact(&mut [0; 5]).unwrap();
    client.write_all(b"parent").unwrap();
    assert_eq!(wait(child), 0);
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "closed when its last holder went");
}

fn a_killed_child_leaves_nothing() {
    let (server, mut client) = pair();
    let child = fork(|| {
        (&server).write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    });
    drop(server);
    client.read_exact(&mut [0]).unwrap();
    // SAFETY: our child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait(child);
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
}

fn exec_keeps_sockets() {
    let (server, mut client) = pair();
    let fd = server.as_raw_fd();
    keep_on_exec(fd);
    let script = format!("read line <&{fd}; echo \"$line, heard\" >&{fd}");
    // std starts the shell by posix_spawn, or fork and exec. `exec` in the shell then executes
    // another image.
    let mut child =
        Command::new("sh").arg("-c").arg(format!("exec sh -c '{script}'")).spawn().unwrap();
    drop(server);
    client.write_all(b"a line\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "a line, heard\n");
    assert!(child.wait().unwrap().success());
}

fn close_on_exec() {
    let (server, mut client) = pair();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "the other image does not hold it");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// If exec fails, the channel created for the program ends, and releases its sockets.
fn a_program_that_is_not_there_changes_nothing() {
    const NOWHERE: &std::ffi::CStr = c"/nowhere/at/all";
    let argv = [NOWHERE.as_ptr(), std::ptr::null()];
    let (mut server, mut client) = pair();
    keep_on_exec(server.as_raw_fd());
    for _ in 0..3 {
        // SAFETY: the path is NUL-terminated, and the array ends with null.
        let failed = unsafe { libc::execv(NOWHERE.as_ptr(), argv.as_ptr()) };
        assert_eq!((failed, errno()), (-1, libc::ENOENT));
        assert!(Command::new("/nowhere/at/all").spawn().is_err());
    }
    server.write_all(b"as before").unwrap();
    let mut got = [0; 9];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"as before");
    drop(server);
    assert_eq!(client.read(&mut got).unwrap(), 0);
}

fn commands() {
    // SAFETY: strings.
    unsafe {
        assert_eq!(libc::system(c"exit 3".as_ptr()), 3 << 8);
        let stream = libc::popen(c"echo out".as_ptr(), c"r".as_ptr());
        let mut line = [0; 16];
        assert!(!libc::fgets(line.as_mut_ptr(), 16, stream).is_null());
        assert_eq!(std::ffi::CStr::from_ptr(line.as_ptr()), c"out\n");
        assert_eq!(libc::pclose(stream), 0);
        let child = fork(|| {
            libc::execl(
                c"/bin/sh".as_ptr(),
                c"sh".as_ptr(),
                c"-c".as_ptr(),
                c"exit $#".as_ptr(),
                c"0".as_ptr(),
                c"1".as_ptr(),
                c"2".as_ptr(),
                c"3".as_ptr(),
                c"4".as_ptr(),
                std::ptr::null::<libc::c_char>(),
            );
        });
        assert_eq!(wait(child), 4 << 8);
    }
}

unsafe extern "C" {
    static mut environ: *mut *mut libc::c_char;
}

/// popen(3) leaves the program's environment unchanged, which other threads read and write.
fn commands_in_pipes() {
    // SAFETY: strings are NUL-terminated, and only this function changes the variable.
    unsafe {
        libc::setenv(c"GIVEN".as_ptr(), c"7".as_ptr(), 1);
        let before = (&raw const environ).read_volatile() as usize;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut looks = 0;
                while !over.load(Ordering::Relaxed) {
                    assert_eq!((&raw const environ).read_volatile() as usize, before);
                    looks += 1;
                }
                looks
            });
            for _ in 0..20 {
                let stream = libc::popen(c"exit $GIVEN".as_ptr(), c"re".as_ptr());
                assert_eq!(libc::pclose(stream), 7 << 8);
            }
            over.store(true, Ordering::Relaxed);
            assert!(watcher.join().unwrap() > 0);
        });
        // The command receives the written bytes and uses its engine, and fclose(3) waits for its
        // end.
        let (server, mut client) = pair();
        let command = format!("cat >&{}\0", server.as_raw_fd());
        keep_on_exec(server.as_raw_fd());
        let stream = libc::popen(command.as_ptr().cast(), c"w".as_ptr());
        drop(server);
        // A later command must not inherit this pipe; otherwise the first command would never read
        // its end.
        let other = libc::popen(c"cat >/dev/null".as_ptr(), c"w".as_ptr());
        assert!(libc::fputs(c"written".as_ptr(), stream) >= 0);
        assert_eq!(libc::fclose(stream), 0);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "written");
        assert!(libc::popen(c"true".as_ptr(), c"rw".as_ptr()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(libc::pclose(other), 0);
    }
}

fn sent_over_a_unix_socket() {
    let (left, right) = UnixStream::pair().unwrap();
    let (server, mut client) = pair();
    let child = fork(|| {
        // SAFETY: the descriptor was just received, and has no other owner.
        let mut stream = unsafe { TcpStream::from_raw_fd(receive(&right)) };
        stream.write_all(b"by another hand").unwrap();
    });
    // The child was forked before this connection existed, so it knows the socket only from the
    // message.
    let (second, mut other) = pair();
    drop((server, &mut client));
    send(&left, second.as_raw_fd());
    drop(second);
    let mut text = String::new();
    other.read_to_string(&mut text).unwrap();
    assert_eq!(text, "by another hand");
    assert_eq!(wait(child), 0);
}

fn sent_and_gone() {
    let (left, right) = UnixStream::pair().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let sender = fork(move || {
        let mut client = TcpStream::connect(at).unwrap();
        client.write_all(b"my will: ").unwrap();
        send(&left, client.as_raw_fd());
    });
    assert_eq!(wait(sender), 0);
    let (mut server, _) = listener.accept().unwrap();
    // Let the engine notice the sender's end. If the time is too short, the case covers less, but
    // does not fail.
    std::thread::sleep(Duration::from_millis(100));
    // SAFETY: the descriptor was just received, and has no other owner.
    let mut client = unsafe { TcpStream::from_raw_fd(receive(&right)) };
    client.write_all(b"read on").unwrap();
    drop(client);
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    assert_eq!(text, "my will: read on");
    // A message that could not be sent holds no socket, so the peer sees the close at once.
    drop(right);
    let (closed, _) = UnixStream::pair().unwrap();
    closed.shutdown(std::net::Shutdown::Both).unwrap();
    let (server, mut client) = pair();
    assert_eq!(try_send(&closed, server.as_raw_fd()), -1);
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

pub fn send(over: &UnixStream, fd: RawFd) {
    assert_eq!(try_send(over, fd), 1);
}

fn try_send(over: &UnixStream, fd: RawFd) -> isize {
    let mut result = 0;
    with_message(|message, control| {
        // SAFETY: the control buffer has room for one descriptor.
        unsafe {
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(fd);
            result = libc::sendmsg(over.as_raw_fd(), message, libc::MSG_NOSIGNAL);
        }
    });
    result
}

pub fn receive(over: &UnixStream) -> RawFd {
    let mut fd = -1;
    with_message(|message, control| {
        // SAFETY: as above.
        unsafe {
            assert_eq!(libc::recvmsg(over.as_raw_fd(), message, 0), 1);
            fd = libc::CMSG_DATA(control).cast::<RawFd>().read_unaligned();
        }
    });
    fd
}

pub fn with_message(act: impl FnOnce(*mut libc::msghdr, *mut libc::cmsghdr)) {
    let mut byte = [b'x'];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0u64; 3];
    // SAFETY: zeroes are a valid msghdr. Its pointers are set to local variables.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        act(&raw mut message, control.as_mut_ptr().cast());
    }
}

/// A fork takes every lock, in the same order as other threads; otherwise they would deadlock.
fn forked_while_another_thread_sends() {
    const UDP_SEGMENT: i32 = 103;
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    from.connect(to.local_addr().unwrap()).unwrap();
    let (fd, size) = (from.as_raw_fd(), 1000i32);
    // SAFETY: the pointer and size are those of a local integer.
    let set = unsafe {
        let size = (&raw const size).cast();
        libc::setsockopt(fd, libc::IPPROTO_UDP, UDP_SEGMENT, size, 4)
    };
    assert_eq!(set, 0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for flags in [libc::MSG_MORE, 0] {
                    // SAFETY: a byte.
                    unsafe { libc::send(fd, b"x".as_ptr().cast(), 1, flags) };
                }
            }
        });
        for _ in 0..500 {
            // SAFETY: the child only exits.
            match unsafe { libc::fork() } {
                // SAFETY: as above.
                0 => unsafe { libc::_exit(0) },
                pid => assert_eq!(wait(pid), 0),
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A child created by a raw clone(2) must not use its parent's rings.
fn forked_without_us() {
    let (server, client) = pair();
    // SAFETY: as with fork, the child has a copy of this stack, and exits.
    unsafe {
        let args = [libc::SIGCHLD as usize, 0, 0, 0, 0, 0];
        let number = libc::SYS_clone as usize;
        let pid = towpath_client::syscall::syscall(number, args).unwrap() as i32;
        if pid == 0 {
            let failed = libc::write(server.as_raw_fd(), b"x".as_ptr().cast(), 1) == -1
                && errno() == libc::ENETDOWN;
            let none_new = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) == -1
                && errno() == libc::ENETDOWN;
            libc::_exit(i32::from(!failed || !none_new));
        }
        assert_eq!(wait(pid), 0);
    }
    (&server).write_all(b"x").unwrap();
    (&client).read_exact(&mut [0]).unwrap();
}

/// Stops the engine as soon as all other threads wait.
fn stop_engine_soon() {
    std::thread::spawn(|| {
        asleep::others();
        println!("{STOP_ENGINE}");
    });
}

fn the_engine_dies_in_recv() {
    let (mut server, mut client) = pair();
    stop_engine_soon();
    assert_eq!(server.read(&mut [0]).unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
    assert_eq!(client.write(b"x").unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
    assert_eq!(TcpListener::bind("127.0.0.1:0").unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
}

fn the_engine_dies_in_poll() {
    let (server, client) = pair();
    // SAFETY: an integer.
    let epoll = unsafe { libc::epoll_create1(0) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
    // SAFETY: an event.
    let added =
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, server.as_raw_fd(), &raw mut event) };
    assert_eq!(added, 0);
    let other = std::thread::spawn(move || {
        let mut entry = libc::pollfd { fd: client.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        let count = unsafe { libc::poll(&raw mut entry, 1, -1) };
        (count, entry.revents & libc::POLLERR != 0, client)
    });
    stop_engine_soon();
    // SAFETY: room for one.
    assert_eq!(unsafe { libc::epoll_wait(epoll, &raw mut event, 1, -1) }, 1);
    assert_ne!({ event.events } & libc::EPOLLERR as u32, 0);
    let (count, error, _) = other.join().unwrap();
    assert!(count == 1 && error);
}

fn no_io_uring() {
    // SAFETY: the call fails before it accesses memory.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, 0) };
    assert_eq!((result, errno()), (-1, libc::ENOSYS));
    // SAFETY: getpid has no arguments; lseek fails for the invalid descriptor.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_getpid), i64::from(libc::getpid()));
        assert_eq!((libc::syscall(libc::SYS_lseek, -1, 0, 0), errno()), (-1, libc::EBADF));
    }
}

/// RLIMIT_AS, as `ulimit -v` sets it, limits the program's own mappings, here and in executed
/// programs.
fn a_limit_of_address_space() {
    const GIB: u64 = 1 << 30;
    let get = || {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is writable.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) }, 0);
        (limit.rlim_cur, limit.rlim_max)
    };
    assert_eq!(get(), (libc::RLIM_INFINITY, libc::RLIM_INFINITY));
    let limit = libc::rlimit { rlim_cur: 4 * GIB, rlim_max: 8 * GIB };
    // SAFETY: a structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    assert_eq!(get(), (4 * GIB, 8 * GIB));
    let map = |len: u64| {
        let (prot, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the mapping is new, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, prot, flags, -1, 0) };
        at != libc::MAP_FAILED
    };
    assert!(map(GIB) && !map(4 * GIB));
    let line = "ulimit -v; exec python3 -c \"import socket; socket.socket(); print('made')\"";
    let shell = Command::new("bash").args(["-c", line]).output().unwrap();
    assert_eq!(String::from_utf8(shell.stdout).unwrap(), format!("{}\nmade\n", 4 << 20));
    let status = Command::new("bash").args(["-c", "ulimit -v 1000000; bash -c :"]).status();
    assert!(status.unwrap().success());
}
