//! Socket calls by their system call numbers (syscall(2)).

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use libc::{c_long, syscall};

use crate::descriptors::raw;
use crate::harness::Case;
use crate::processes::wait;
use crate::sockets::{errno, pair};

pub const CASES: &[Case] = &[
    ("many_datagrams_by_number", many_datagrams_by_number),
    ("a_connection_by_number", a_connection_by_number),
    ("descriptors_by_number", descriptors_by_number),
    ("polling_by_number", polling_by_number),
    ("what_sockets_cannot_by_number", what_sockets_cannot_by_number),
    ("forks_by_number", forks_by_number),
];

const ANY: libc::sockaddr_in = libc::sockaddr_in {
    sin_family: libc::AF_INET as u16,
    sin_port: 0,
    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets()) },
    sin_zero: [0; 8],
};
const LEN: u32 = size_of::<libc::sockaddr_in>() as u32;

/// Sends and receives batches of datagrams by number, as libuv does.
fn many_datagrams_by_number() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let mut bytes = [*b"one", *b"two"];
    let mut parts =
        bytes.each_mut().map(|text| libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: 3 });
    let mut messages = parts.each_mut().map(|part| {
        // SAFETY: zeroes are a valid mmsghdr; the pointer to its one buffer is set below.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
        message
    });
    let at = messages.as_mut_ptr();
    // SAFETY: `at` points to two messages with one buffer each.
    unsafe {
        assert_eq!(syscall(libc::SYS_sendmmsg, sender.as_raw_fd(), at, 2, 0), 2, "{}", errno());
        (*(*at).msg_hdr.msg_iov).iov_base.cast::<[u8; 3]>().write([0; 3]);
        let nowhere = std::ptr::null::<libc::timespec>();
        assert_eq!(syscall(libc::SYS_recvmmsg, receiver.as_raw_fd(), at, 2, 0, nowhere), 2);
    }
    assert_eq!(messages.map(|message| message.msg_len), [3, 3]);
    assert_eq!(bytes, [*b"one", *b"two"]);
}

fn call(result: c_long) -> i32 {
    assert_ne!(result, -1, "errno {}", errno());
    result as i32
}

fn a_connection_by_number() {
    let null = std::ptr::null::<u8>();
    // SAFETY: the addresses, lengths and buffers are those of local variables.
    unsafe {
        let socket = || call(syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0));
        let (listener, client) = (socket(), socket());
        assert_eq!(
            raw(libc::SYS_read, client, &mut []),
            (-1, libc::EBADF),
            "it is none of the kernel's"
        );
        let one = 1i32;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        call(syscall(libc::SYS_setsockopt, listener, level, name, &raw const one, 4));
        let any = ANY;
        call(syscall(libc::SYS_bind, listener, &raw const any, LEN));
        call(syscall(libc::SYS_listen, listener, 5));
        let (mut at, mut len) = (ANY, LEN);
        call(syscall(libc::SYS_getsockname, listener, &raw mut at, &raw mut len));
        assert_ne!(at.sin_port, 0);
        call(syscall(libc::SYS_connect, client, &raw const at, LEN));
        let server = call(syscall(libc::SYS_accept4, listener, null, null, libc::SOCK_NONBLOCK));
        let mut peer = ANY;
        call(syscall(libc::SYS_getpeername, client, &raw mut peer, &raw mut len));
        assert_eq!(peer.sin_port, at.sin_port);
        assert_eq!(syscall(libc::SYS_write, server, b"abc".as_ptr(), 3), 3);
        let mut got = [0u8; 8];
        assert_eq!(syscall(libc::SYS_read, client, got.as_mut_ptr(), 1), 1);
        let flags = libc::MSG_WAITALL;
        assert_eq!(syscall(libc::SYS_recvfrom, client, got.as_mut_ptr(), 2, flags, null, null), 2);
        assert_eq!(&got[..2], b"bc");
        assert_eq!(syscall(libc::SYS_sendto, client, b"de".as_ptr(), 2, 0, null, 0), 2);
        let mut entry = libc::pollfd { fd: server, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&raw mut entry, 1, -1), 1);
        let part = libc::iovec { iov_base: got.as_mut_ptr().cast(), iov_len: 8 };
        assert_eq!(syscall(libc::SYS_preadv2, server, &raw const part, 1, -1i64, 0, 0), 2);
        call(syscall(libc::SYS_shutdown, client, libc::SHUT_WR));
        assert_eq!(libc::poll(&raw mut entry, 1, -1), 1);
        assert_eq!(syscall(libc::SYS_readv, server, &raw const part, 1), 0);
        for fd in [listener, client, server] {
            call(syscall(libc::SYS_close, fd));
        }
    }
}

fn descriptors_by_number() {
    let (server, client) = pair();
    let fd = server.as_raw_fd();
    // SAFETY: the calls take integers, and pointers to local structures.
    unsafe {
        let copy = call(syscall(libc::SYS_dup, fd));
        let third = call(syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 100));
        assert!(third >= 100);
        call(syscall(libc::SYS_dup3, copy, third, 0));
        let pair_is_open = |fd: RawFd| libc::fcntl(fd, libc::F_GETFL) & libc::O_RDWR != 0;
        assert!(pair_is_open(copy) && pair_is_open(third));
        let mut stat: libc::stat = std::mem::zeroed();
        let mut again: libc::stat = std::mem::zeroed();
        call(syscall(libc::SYS_fstat, fd, &raw mut stat));
        assert_eq!(libc::fstat(third, &raw mut again), 0);
        assert_eq!((stat.st_mode, stat.st_ino), (again.st_mode, again.st_ino));
        assert_eq!(libc::write(client.as_raw_fd(), b"12".as_ptr().cast(), 2), 2);
        let mut entry = libc::pollfd { fd: third, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&raw mut entry, 1, -1), 1);
        let mut unread = 0;
        call(syscall(libc::SYS_ioctl, third, libc::FIONREAD, &raw mut unread));
        assert_eq!(unread, 2);
        call(syscall(libc::SYS_close_range, third, third, 0));
        assert_eq!((libc::fcntl(third, libc::F_GETFD), errno()), (-1, libc::EBADF));
        // A number that now names a kernel file is read by the kernel.
        let (reader, _writer) = std::io::pipe().unwrap();
        call(syscall(libc::SYS_dup3, reader.as_raw_fd(), copy, 0));
        let left = syscall(libc::SYS_read, copy, [0u8].as_mut_ptr(), 0);
        assert_eq!(left, 0);
        call(syscall(libc::SYS_close, copy));
    }
}

fn polling_by_number() {
    let (server, client) = pair();
    let fd = server.as_raw_fd();
    assert_eq!(std::io::Write::write(&mut &client, b"x").unwrap(), 1);
    let limit = libc::timespec { tv_sec: 3600, tv_nsec: 0 };
    let nowhere = std::ptr::null::<u8>();
    // SAFETY: the calls take pointers to local structures.
    unsafe {
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(syscall(libc::SYS_ppoll, &raw mut entry, 1, &raw const limit, nowhere, 8), 1);
        assert_eq!(entry.revents, libc::POLLIN);
        let mut set: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &raw mut set);
        let (set_at, limit_at) = (&raw mut set, &raw const limit);
        let mask = [0usize, 8];
        let mask = mask.as_ptr();
        let count = syscall(libc::SYS_pselect6, fd + 1, set_at, nowhere, nowhere, limit_at, mask);
        assert!(count == 1 && libc::FD_ISSET(fd, &raw const set));
        let epoll = call(syscall(libc::SYS_epoll_create1, 0));
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 9 };
        let event_at = &raw mut event;
        call(syscall(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, fd, event_at));
        let mut found = libc::epoll_event { events: 0, u64: 0 };
        let found_at = &raw mut found;
        assert_eq!(syscall(libc::SYS_epoll_pwait, epoll, found_at, 1, -1, nowhere, 8), 1);
        assert_eq!({ found.u64 }, 9);
    }
}

fn what_sockets_cannot_by_number() {
    let (server, _client) = pair();
    let fd = server.as_raw_fd();
    // SAFETY: the calls fail before they access memory, or access one local byte.
    unsafe {
        let refused = |result: c_long| (result, errno());
        assert_eq!(refused(syscall(libc::SYS_lseek, fd, 0, 0)), (-1, libc::ESPIPE));
        assert_eq!(refused(syscall(libc::SYS_fsync, fd)), (-1, libc::EINVAL));
        assert_eq!(syscall(libc::SYS_fadvise64, fd, 0, 0, 0), 0, "advice is taken");
        let mut byte = [0u8];
        let at = byte.as_mut_ptr();
        assert_eq!(refused(syscall(libc::SYS_pread64, fd, at, 1, 0)), (-1, libc::ESPIPE));
    }
}

fn forks_by_number() {
    let (server, client) = pair();
    // SAFETY: the children exit at once.
    unsafe {
        for number in [0, 1] {
            let pid = match number {
                0 => syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0),
                _ => libc::c_long::from(libc::fork()),
            };
            if pid == 0 {
                let done = libc::write(server.as_raw_fd(), b"x".as_ptr().cast(), 1);
                libc::_exit(i32::from(done != 1));
            }
            assert_eq!(wait(pid as i32), 0);
        }
    }
    let mut got = [0; 2];
    std::io::Read::read_exact(&mut &client, &mut got).unwrap();
    assert_eq!(&got, b"xx");
}
