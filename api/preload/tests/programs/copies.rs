//! MSG_ZEROCOPY and its completion reports. Each case also runs on the kernel, which copies over
//! loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use crate::harness::Case;
use crate::sockets::{errno, get, pair, set};
use crate::values::receive;

pub const CASES: &[Case] = &[
    ("sends_without_a_copy_are_reported", sends_without_a_copy_are_reported),
    ("datagrams_without_a_copy_are_reported", datagrams_without_a_copy_are_reported),
    ("who_may_ask_for_no_copy", who_may_ask_for_no_copy),
];

const SOCKET: i32 = libc::SOL_SOCKET;
const ORIGIN_ZERO_COPY: u8 = 5;
const CODE_COPIED: u8 = 1;

fn send(fd: RawFd, bytes: &[u8], flags: i32) -> isize {
    // SAFETY: bytes with their number.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) }
}

/// Returns whether poll(2) reports an entry of the error queue within `ms` milliseconds.
fn is_told(fd: RawFd, ms: i32) -> bool {
    let mut entry = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, ms) == 1 && entry.revents & libc::POLLERR != 0 }
}

fn queue_is_empty(fd: RawFd) -> bool {
    // SAFETY: room for nothing.
    let len = unsafe { libc::recv(fd, std::ptr::null_mut(), 0, libc::MSG_ERRQUEUE) };
    len < 0 && errno() == libc::EAGAIN
}

/// Reads completion reports until the send number `last` is included. The reports must cover all
/// numbers from `first` on without gaps.
fn reported(fd: RawFd, first: u32, last: u32, (level, kind, name): (i32, i32, usize)) {
    let mut next = first;
    while next <= last {
        assert!(is_told(fd, 10_000), "waits for {next} of {first} to {last}");
        let (len, found) = receive(fd, libc::MSG_ERRQUEUE);
        let [(its_level, its_kind, data)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((len, *its_level, *its_kind, data.len()), (0, level, kind, 16 + name));
        let word = |at: usize| u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), &data[4..8]), (0, &[ORIGIN_ZERO_COPY, 0, CODE_COPIED, 0][..]));
        assert!(word(8) == next && word(12) >= next && word(12) <= last, "{data:?}");
        assert!(data[16..].iter().all(|&byte| byte == 0));
        next = word(12) + 1;
    }
    assert!(queue_is_empty(fd));
    assert!(!is_told(fd, 0));
}

const V4: (i32, i32, usize) = (libc::IPPROTO_IP, libc::IP_RECVERR, 16);
const V6: (i32, i32, usize) = (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 28);

fn sends_without_a_copy_are_reported() {
    for (host, about) in [("127.0.0.1", V4), ("::1", V6)] {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let fd = client.as_raw_fd();
        let mut take = |len: usize| peer.read_exact(&mut vec![0; len]).unwrap();
        // MSG_ZEROCOPY has no effect unless SO_ZEROCOPY is set.
        assert_eq!(send(fd, b"copied", libc::MSG_ZEROCOPY), 6);
        take(6);
        assert!(queue_is_empty(fd) && !is_told(fd, 20));
        assert_eq!(set(fd, SOCKET, libc::SO_ZEROCOPY, 1), Ok(()));
        for bytes in [&b"a"[..], b"bc", b"def"] {
            assert_eq!(send(fd, bytes, libc::MSG_ZEROCOPY), bytes.len() as isize);
        }
        take(6);
        reported(fd, 0, 2, about);
        assert_eq!(get(fd, SOCKET, libc::SO_ERROR), Ok(0));
        // Sends without bytes, or without the flag, are not counted.
        assert_eq!(send(fd, b"", libc::MSG_ZEROCOPY), 0);
        (&client).write_all(b"x").unwrap();
        take(1);
        assert!(queue_is_empty(fd) && !is_told(fd, 20));
        let sent = send(fd, &[7; 50_000], libc::MSG_ZEROCOPY);
        take(usize::try_from(sent).unwrap());
        reported(fd, 3, 3, about);
        assert_eq!(set(fd, SOCKET, libc::SO_ZEROCOPY, 0), Ok(()));
        assert_eq!(send(fd, b"x", libc::MSG_ZEROCOPY), 1);
        take(1);
        assert!(queue_is_empty(fd) && !is_told(fd, 20));
    }
}

fn datagrams_without_a_copy_are_reported() {
    for (host, about) in [("127.0.0.1", V4), ("::1", V6)] {
        let (to, from) = (UdpSocket::bind((host, 0)).unwrap(), UdpSocket::bind((host, 0)).unwrap());
        from.connect(to.local_addr().unwrap()).unwrap();
        let fd = from.as_raw_fd();
        assert_eq!(set(fd, SOCKET, libc::SO_ZEROCOPY, 1), Ok(()));
        // An empty datagram is counted, too, but a failed send is not.
        for bytes in [&b"one"[..], b"", &[7; 30_000]] {
            assert_eq!(send(fd, bytes, libc::MSG_ZEROCOPY), bytes.len() as isize);
            assert_eq!(to.recv(&mut [0; 40_000]).unwrap(), bytes.len());
        }
        assert_eq!(send(fd, &[7; 70_000], libc::MSG_ZEROCOPY), -1);
        reported(fd, 0, 2, about);
        assert_eq!(send(fd, b"next", libc::MSG_ZEROCOPY), 4);
        assert_eq!(to.recv(&mut [0; 10]).unwrap(), 4);
        reported(fd, 3, 3, about);
    }
}

fn who_may_ask_for_no_copy() {
    let (a, _b) = pair();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    for fd in [a.as_raw_fd(), udp.as_raw_fd()] {
        assert_eq!(get(fd, SOCKET, libc::SO_ZEROCOPY), Ok(0));
        for wrong in [-1, 2] {
            assert_eq!(set(fd, SOCKET, libc::SO_ZEROCOPY, wrong), Err(libc::EINVAL));
        }
        assert_eq!(set(fd, SOCKET, libc::SO_ZEROCOPY, 1), Ok(()));
        assert_eq!(get(fd, SOCKET, libc::SO_ZEROCOPY), Ok(1));
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(set(listener.as_raw_fd(), SOCKET, libc::SO_ZEROCOPY, 1), Ok(()));
    assert!(queue_is_empty(listener.as_raw_fd()));
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (child, _) = listener.accept().unwrap();
    assert_eq!(get(child.as_raw_fd(), SOCKET, libc::SO_ZEROCOPY), Ok(1));
}
