//! Netlink sockets that show the stack.

use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("netlink_shows_the_stack", shows_the_stack),
    ("netlink_is_a_socket_like_others", is_a_socket_like_others),
    ("netlink_changes_nothing", changes_nothing),
    ("netlink_of_another_namespace_is_the_kernels", of_another_namespace),
];

const HEADER: usize = size_of::<libc::nlmsghdr>();

fn open() -> OwnedFd {
    // SAFETY: a fresh descriptor, or -1, which is none.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let fd = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

fn kernel() -> libc::sockaddr_nl {
    // SAFETY: plain integers.
    let mut addr: libc::sockaddr_nl = unsafe { zeroed() };
    addr.nl_family = libc::AF_NETLINK as u16;
    addr
}

fn request(kind: u16, flags: i32, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags as u16 | libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend(5u32.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

fn send(fd: &OwnedFd, bytes: &[u8]) {
    let addr = kernel();
    // SAFETY: the bytes and the address outlive the call.
    let sent = unsafe {
        let len = size_of_val(&addr) as u32;
        let to = (&raw const addr).cast();
        libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0, to, len)
    };
    assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
}

/// One datagram; its sender must be the kernel.
fn recv(fd: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    // SAFETY: plain integers and pointers; what they point to outlives the call.
    unsafe {
        let (mut name, mut message): (libc::sockaddr_nl, libc::msghdr) = (zeroed(), zeroed());
        name.nl_pid = 99;
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = size_of_val(&name) as u32;
        (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
        let n = libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0);
        assert!(n > 0, "{}", std::io::Error::last_os_error());
        assert_eq!((name.nl_pid, message.msg_namelen), (0, size_of_val(&name) as u32));
        bytes.truncate(n as usize);
    }
    bytes
}

/// Types and bodies of the messages in a datagram.
fn messages(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    while bytes.len() >= HEADER {
        let len = u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize;
        let kind = u16::from_ne_bytes(bytes[4..6].try_into().unwrap());
        all.push((kind, bytes[HEADER..len].to_vec()));
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
    }
    all
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

/// The engine of these cases has a loopback and nothing else, unlike the kernel.
fn shows_the_stack() {
    let fd = open();
    send(&fd, &request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 4]));
    let mut links = messages(&recv(&fd));
    links.extend(messages(&recv(&fd)));
    let kinds: Vec<_> = links.iter().map(|message| i32::from(message.0)).collect();
    assert_eq!(kinds, [i32::from(libc::RTM_NEWLINK), libc::NLMSG_DONE]);
    assert!(contains(&links[0].1, b"lo\0"));
    send(&fd, &request(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[libc::AF_INET as u8, 0, 0, 0]));
    let mut addresses = messages(&recv(&fd));
    addresses.extend(messages(&recv(&fd)));
    assert_eq!(addresses.len(), 2);
    assert!(contains(&addresses[0].1, &[127, 0, 0, 1]));
    let mut way = vec![libc::AF_INET as u8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    way.extend(8u16.to_ne_bytes());
    way.extend(libc::RTA_DST.to_ne_bytes());
    way.extend([192, 0, 2, 1]);
    send(&fd, &request(libc::RTM_GETROUTE, 0, &way));
    let [(kind, body)] = &messages(&recv(&fd))[..] else { panic!("one answer") };
    assert_eq!(i32::from(*kind), libc::NLMSG_ERROR);
    assert_eq!(body[..4], (-libc::ENETUNREACH).to_ne_bytes());
}

fn readable(fd: &OwnedFd) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}

fn option(fd: &OwnedFd, name: i32) -> i32 {
    let (mut value, mut len) = (-1, size_of::<i32>() as u32);
    // SAFETY: an int and its length, which outlive the call.
    unsafe {
        let at = (&raw mut value).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, at, &raw mut len);
    }
    value
}

fn is_a_socket_like_others() {
    let fd = open();
    assert_eq!(option(&fd, libc::SO_DOMAIN), libc::AF_NETLINK);
    assert_eq!(option(&fd, libc::SO_PROTOCOL), libc::NETLINK_ROUTE);
    let mut addr = kernel();
    addr.nl_groups = libc::RTMGRP_LINK as u32;
    addr.nl_pid = std::process::id();
    let mut len = size_of_val(&addr) as u32;
    // SAFETY: the address and its length outlive the calls.
    unsafe {
        assert_eq!(libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len), 0);
        addr.nl_pid = 1;
        assert_eq!(libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len), -1);
        addr.nl_pid = 0;
        assert_eq!(libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len), 0);
        assert_eq!(libc::getsockname(fd.as_raw_fd(), (&raw mut addr).cast(), &raw mut len), 0);
        assert_eq!(addr.nl_pid, std::process::id());
        let group = 1i32;
        let at = (&raw const group).cast();
        assert_eq!(libc::setsockopt(fd.as_raw_fd(), 270, libc::NETLINK_ADD_MEMBERSHIP, at, 4), 0);
    }
    assert!(!readable(&fd));
    let question = request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 16]);
    for _ in 0..3 {
        send(&fd, &question);
    }
    assert!(readable(&fd));
    // An answer and its end for each question, and each says whose it is.
    for _ in 0..6 {
        let answer = recv(&fd);
        assert_eq!(answer[12..16], std::process::id().to_ne_bytes());
    }
    assert!(!readable(&fd));
    // Two at a time, and a number that becomes a file.
    let other = open();
    send(&other, &question);
    assert_eq!([recv(&other), recv(&other)].map(|part| messages(&part).len()), [1, 1]);
    let number = other.as_raw_fd();
    drop(other);
    let (read, write) = std::io::pipe().unwrap();
    assert!([read.as_raw_fd(), write.as_raw_fd()].contains(&number));
    use std::io::{Read, Write};
    (&write).write_all(b"file").unwrap();
    (&read).read_exact(&mut [0; 4]).unwrap();
    // In a child of fork.
    // SAFETY: the child uses what is its own, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            send(&fd, &question);
            libc::_exit(i32::from(messages(&recv(&fd)).len() != 1));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
}

fn changes_nothing() {
    let fd = open();
    for (kind, errno) in [(libc::RTM_NEWADDR, libc::EPERM), (libc::RTM_GETQDISC, libc::EOPNOTSUPP)]
    {
        send(&fd, &request(kind, libc::NLM_F_ACK, &[0; 16]));
        let [(answer, body)] = &messages(&recv(&fd))[..] else { panic!("one answer") };
        assert_eq!(i32::from(*answer), libc::NLMSG_ERROR);
        assert_eq!(body[..4], (-errno).to_ne_bytes());
    }
}

/// Who has a namespace of its own sets it up: `ip link set lo up`, as bubblewrap does it.
fn of_another_namespace() {
    // SAFETY: takes a number.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } != 0 {
        println!("not permitted here: {}", std::io::Error::last_os_error());
        return;
    }
    let fd = open();
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    let index = 1u32.to_ne_bytes();
    let body = [&[0; 4], &index, &up, &up].map(|part: &[u8; 4]| &part[..]).concat();
    send(&fd, &request(libc::RTM_NEWLINK, libc::NLM_F_ACK, &body));
    let [(answer, body)] = &messages(&recv(&fd))[..] else { panic!("one answer") };
    assert_eq!((i32::from(*answer), &body[..4]), (libc::NLMSG_ERROR, &[0; 4][..]));
}
