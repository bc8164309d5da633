//! Netlink sockets that show the stack.

use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("netlink_shows_the_stack", shows_the_stack),
    ("netlink_is_a_socket_like_others", is_a_socket_like_others),
    ("netlink_changes_nothing", changes_nothing),
    ("netlink_of_another_namespace_is_the_kernels", of_another_namespace),
    ("netlink_lists_memberships", lists_memberships),
    ("netlink_checks_strictly_if_asked", checks_strictly),
    ("netlink_tells_one_route_as_a_clone", one_route),
    ("netlink_tells_one_neighbour", one_neighbour),
    ("netlink_is_no_process", is_no_process),
    ("netlink_sockets_stay_in_their_namespace", sockets_stay_in_their_namespace),
    ("netlink_has_the_process_id", has_the_process_id),
    ("netlink_groups_are_for_the_privileged", groups_are_for_the_privileged),
    ("netlink_is_asked_by_splice_and_sendfile", is_asked_by_splice_and_sendfile),
];

const HEADER: usize = size_of::<libc::nlmsghdr>();

fn open() -> OwnedFd {
    // SAFETY: the descriptor is new, and the assertion excludes -1.
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

/// Receives a datagram; its sender must be the kernel.
fn recv(fd: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    // SAFETY: the structures consist of integers and pointers, whose targets outlive the call.
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

/// Returns types and bodies of the messages in a datagram.
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

/// Unlike the kernel, the engine of these cases has only a loopback interface.
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
    // SAFETY: the list has one entry, which outlives the call.
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
    // Each request gets an answer and its end, both with the port ID of this socket.
    for _ in 0..6 {
        let answer = recv(&fd);
        assert_eq!(answer[12..16], std::process::id().to_ne_bytes());
    }
    assert!(!readable(&fd));
    // Two sockets at a time; then a file gets the number of a closed one.
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
    // A child of fork can use the socket.
    // SAFETY: the child uses its own descriptors, and exits.
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

/// A program configures its own network namespace: `ip link set lo up`, as bubblewrap does.
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

/// A socket created before the process left the run's namespace continues to show the stack.
fn sockets_stay_in_their_namespace() {
    let (unused, used) = (open(), open());
    let question = request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 4]);
    let links = |fd: &OwnedFd| {
        send(fd, &question);
        let mut links = messages(&recv(fd));
        while links.last().is_some_and(|(kind, _)| i32::from(*kind) != libc::NLMSG_DONE) {
            links.extend(messages(&recv(fd)));
        }
        links.iter().filter(|(kind, _)| *kind == libc::RTM_NEWLINK).count()
    };
    let before = links(&used);
    // SAFETY: takes a number.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } != 0 {
        println!("not permitted here: {}", std::io::Error::last_os_error());
        return;
    }
    assert_eq!((links(&used), links(&unused)), (before, before));
}

fn has_the_process_id() {
    let fd = open();
    assert_eq!(own_groups(&fd), (0, 0));
    let addr = kernel();
    let len = size_of_val(&addr) as u32;
    // SAFETY: the address and length are those of `addr`.
    let connected = unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) };
    assert_eq!((connected, own_groups(&fd)), (0, (std::process::id(), 0)));
    drop(fd);
    let fd = open();
    send(&fd, &request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 4]));
    assert_eq!(own_groups(&fd), (std::process::id(), 0));
    let (_, second) = (recv(&fd), open());
    send(&second, &request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 4]));
    assert!(![0, std::process::id()].contains(&own_groups(&second).0));
}

fn groups_are_for_the_privileged() {
    let fd = open();
    // SAFETY: takes numbers.
    if unsafe { libc::setresuid(65_534, 65_534, 65_534) } != 0 {
        println!("has no privileges already");
    }
    let question = request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 4]);
    for (groups, port) in [(1, 0), (0, 77)] {
        let mut addr = kernel();
        (addr.nl_groups, addr.nl_pid) = (groups, port);
        let (to, len) = ((&raw const addr).cast(), size_of_val(&addr) as u32);
        // SAFETY: the bytes and the address outlive the calls.
        let results = unsafe {
            let at = question.as_ptr().cast();
            let sent = libc::sendto(fd.as_raw_fd(), at, question.len(), 0, to, len);
            let errno = std::io::Error::last_os_error().raw_os_error();
            (sent, errno, libc::connect(fd.as_raw_fd(), to, len))
        };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((results, errno), ((-1, Some(libc::EPERM), -1), Some(libc::EPERM)));
    }
    assert!(!readable(&fd));
}

fn is_asked_by_splice_and_sendfile() {
    use std::io::{Seek, Write};
    let fd = open();
    let question = request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 4]);
    let (inlet, mut outlet) = std::io::pipe().unwrap();
    outlet.write_all(&question).unwrap();
    let null = std::ptr::null_mut();
    // SAFETY: no positions.
    let moved =
        unsafe { libc::splice(inlet.as_raw_fd(), null, fd.as_raw_fd(), null, question.len(), 0) };
    assert_eq!(moved, question.len() as isize, "{}", std::io::Error::last_os_error());
    assert_eq!(messages(&recv(&fd))[0].0, libc::RTM_NEWLINK);
    let mut rest = vec![0; 8192];
    // SAFETY: `rest` has room for the bytes.
    while unsafe {
        libc::recv(fd.as_raw_fd(), rest.as_mut_ptr().cast(), 8192, libc::MSG_DONTWAIT) > 0
    } {}
    // SAFETY: a name.
    let mut file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"q".as_ptr(), 0)) };
    file.write_all(&question).unwrap();
    file.rewind().unwrap();
    // SAFETY: without an offset.
    let moved = unsafe {
        libc::sendfile(fd.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut(), question.len())
    };
    assert_eq!(moved, question.len() as isize, "{}", std::io::Error::last_os_error());
    assert_eq!(file.stream_position().unwrap(), question.len() as u64);
    assert_eq!(messages(&recv(&fd))[0].0, libc::RTM_NEWLINK);
}

/// Reads the joined groups into `room` bytes. Returns the length that getsockopt(2) sets, and the
/// bytes.
fn memberships(fd: &OwnedFd, room: usize) -> (u32, [u8; 16]) {
    let (mut list, mut len) = ([0; 16], room as u32);
    let at = list.as_mut_ptr().cast();
    // SAFETY: `list` has room for at least `room` bytes.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), 270, libc::NETLINK_LIST_MEMBERSHIPS, at, &raw mut len)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    (len, list)
}

fn change(fd: &OwnedFd, name: i32, value: i32) -> Option<i32> {
    let at = (&raw const value).cast();
    // SAFETY: an int, which outlives the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), 270, name, at, 4) };
    (result != 0).then(|| std::io::Error::last_os_error().raw_os_error().unwrap())
}

fn own_groups(fd: &OwnedFd) -> (u32, u32) {
    let mut addr = kernel();
    let mut len = size_of_val(&addr) as u32;
    // SAFETY: the address and its length outlive the call.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut addr).cast(), &raw mut len) };
    assert_eq!(result, 0);
    (addr.nl_pid, addr.nl_groups)
}

fn lists_memberships() {
    let (join, leave) = (libc::NETLINK_ADD_MEMBERSHIP, libc::NETLINK_DROP_MEMBERSHIP);
    let fd = open();
    assert_eq!(memberships(&fd, 16), (0, [0; 16]));
    for (group, errno) in [(0, libc::EINVAL), (-1, libc::EINVAL), (1000, libc::EINVAL)] {
        assert_eq!([change(&fd, join, group), change(&fd, leave, group)], [Some(errno); 2]);
    }
    let list = |first: u8, fifth: u8| {
        let mut list = [0; 16];
        (list[0], list[4]) = (first, fifth);
        list
    };
    assert_eq!(change(&fd, join, 5), None);
    assert_eq!(memberships(&fd, 16), (8, list(0x10, 0)));
    assert_eq!(memberships(&fd, 3), (8, [0; 16]), "whole words");
    assert_eq!(change(&fd, join, 33), None);
    assert_eq!(memberships(&fd, 16), (8, list(0x10, 1)));
    assert_eq!(memberships(&fd, 4), (8, list(0x10, 0)));
    assert_eq!(change(&fd, leave, 5), None);
    assert_eq!(memberships(&fd, 16), (8, list(0, 1)));
    let bound = open();
    let mut addr = kernel();
    addr.nl_groups = 0x11;
    // SAFETY: the address outlives the call.
    unsafe {
        let len = size_of_val(&addr) as u32;
        assert_eq!(libc::bind(bound.as_raw_fd(), (&raw const addr).cast(), len), 0);
    }
    assert_eq!(memberships(&bound, 16), (8, list(0x11, 0)));
    assert_eq!(change(&bound, join, 2), None);
    let (port, groups) = own_groups(&bound);
    assert!(port != 0);
    assert_eq!(groups, 0x13);
    // A new socket with the number of a closed one has joined no groups.
    let number = bound.as_raw_fd();
    drop(bound);
    let next = open();
    assert_eq!((next.as_raw_fd(), memberships(&next, 16).0), (number, 0));
}

/// Returns all messages of a dump, including the end, each with its flags.
fn dump(fd: &OwnedFd, question: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
    send(fd, question);
    let mut all = Vec::new();
    loop {
        let datagram = recv(fd);
        let mut rest = &datagram[..];
        while rest.len() >= HEADER {
            let len = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            let flags = u16::from_ne_bytes(rest[6..8].try_into().unwrap());
            let (kind, body) = messages(&rest[..len]).remove(0);
            all.push((kind, flags, body));
            rest = &rest[len.next_multiple_of(4).min(rest.len())..];
        }
        if all.last().is_some_and(|(kind, ..)| i32::from(*kind) <= libc::NLMSG_DONE) {
            return all;
        }
    }
}

/// As on Linux, the interface in RTM_GETADDR has an effect only with NETLINK_GET_STRICT_CHK.
fn checks_strictly() {
    const STRICT: i32 = 12;
    const FILTERED: u16 = 0x20;
    let multi = libc::NLM_F_MULTI as u16;
    let fd = open();
    let ask = |index: u32, len: u8| {
        let mut body = vec![libc::AF_INET as u8, len, 0, 0];
        body.extend(index.to_ne_bytes());
        dump(&fd, &request(libc::RTM_GETADDR, libc::NLM_F_DUMP, &body))
    };
    let on_loopback = |body: &[u8]| u32::from_ne_bytes(body[4..8].try_into().unwrap()) == 1;
    let all = ask(9999, 0);
    assert!(all.iter().any(|(kind, _, body)| *kind == libc::RTM_NEWADDR && on_loopback(body)));
    assert!(all.iter().all(|(_, flags, _)| *flags == multi), "{all:?}");
    assert_eq!(change(&fd, STRICT, 1), None);
    let all = ask(1, 0);
    let (end, addresses) = all.split_last().unwrap();
    assert!(!addresses.is_empty());
    assert!(addresses.iter().all(|(_, _, body)| on_loopback(body)), "{all:?}");
    assert!(all.iter().all(|(_, flags, _)| *flags == multi | FILTERED), "{all:?}");
    assert_eq!((i32::from(end.0), &end.2[..4]), (libc::NLMSG_DONE, &[0; 4][..]));
    for (index, len, errno, filtered) in
        [(9999, 0, libc::ENODEV, FILTERED), (0, 8, libc::EINVAL, 0), (1, 8, libc::EINVAL, 0)]
    {
        let all = ask(index, len);
        let [(kind, flags, body)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((i32::from(*kind), *flags), (libc::NLMSG_DONE, multi | filtered), "{index}");
        assert_eq!(body[..4], (-errno).to_ne_bytes(), "{index} {len}");
    }
    assert_eq!(change(&fd, STRICT, 0), None);
    assert!(ask(9999, 0).len() > 1);
}

/// Checks the `struct rtmsg` in the answer about one address of this host.
fn one_route() {
    const CLONED_AND_LOCAL: u32 = 0x8000_0200;
    let fd = open();
    let mut way = vec![libc::AF_INET as u8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    way.extend(8u16.to_ne_bytes());
    way.extend(libc::RTA_DST.to_ne_bytes());
    way.extend([127, 0, 0, 1]);
    send(&fd, &request(libc::RTM_GETROUTE, 0, &way));
    let [(kind, body)] = &messages(&recv(&fd))[..] else { panic!("one answer") };
    assert_eq!(*kind, libc::RTM_NEWROUTE);
    let (main, local) = (libc::RT_TABLE_MAIN, libc::RTN_LOCAL);
    assert_eq!(body[..8], [libc::AF_INET as u8, 32, 0, 0, main, 0, 0, local]);
    assert_eq!(body[8..12], CLONED_AND_LOCAL.to_ne_bytes());
}

/// The loopback interface has no neighbours, and invalid requests fail as on Linux.
fn one_neighbour() {
    let fd = open();
    let ask = |family: i32, index: u32, (state, flags): (u16, u8), dst: &[u8]| {
        let mut body = vec![family as u8, 0, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([flags, 0]);
        if !dst.is_empty() {
            body.extend((4 + dst.len() as u16).to_ne_bytes());
            body.extend(libc::NDA_DST.to_ne_bytes());
            body.extend(dst);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        send(&fd, &request(libc::RTM_GETNEIGH, 0, &body));
        let all = messages(&recv(&fd));
        let [(kind, body)] = &all[..] else { panic!("{all:?}") };
        assert_eq!(i32::from(*kind), libc::NLMSG_ERROR);
        -i32::from_ne_bytes(body[..4].try_into().unwrap())
    };
    let (v4, v6) = (libc::AF_INET, libc::AF_INET6);
    let host = [127, 0, 0, 1];
    assert_eq!(ask(v4, 1, (0, 0), &host), libc::ENOENT);
    assert_eq!(ask(v4, 1, (0, 8), &host), libc::ENOENT, "no proxy");
    assert_eq!(ask(v6, 1, (0, 0), &[0; 16]), libc::ENOENT);
    assert_eq!(ask(v4, 9999, (0, 0), &host), libc::ENODEV);
    assert_eq!(ask(v4, 0, (0, 0), &host), libc::EINVAL);
    assert_eq!(ask(v4, 1, (0, 0), &[]), libc::EINVAL);
    assert_eq!(ask(v4, 1, (2, 0), &host), libc::EINVAL);
    assert_eq!(ask(v4, 1, (0, 2), &host), libc::EINVAL);
    assert_eq!(ask(v4, 1, (0, 0), &host[..3]), libc::EINVAL);
    assert_eq!(ask(v6, 1, (0, 0), &host), libc::EINVAL);
    for family in [libc::AF_UNSPEC, libc::AF_PACKET] {
        assert_eq!(ask(family, 1, (0, 0), &host), libc::EAFNOSUPPORT, "{family}");
    }
}

/// With SO_PASSCRED, the kernel's messages have process ID 0 and user root.
fn is_no_process() {
    let fd = open();
    let one = 1i32;
    // SAFETY: an int, which outlives the call.
    let result = unsafe {
        let at = (&raw const one).cast();
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, at, 4)
    };
    assert_eq!(result, 0);
    send(&fd, &request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 16]));
    let (mut bytes, mut control) = ([0u8; 8192], [0u64; 16]);
    // SAFETY: the structures consist of integers and pointers, whose targets outlive the calls.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        assert!(libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) > 0);
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        assert!(!first.is_null());
        assert_eq!((*first).cmsg_type, libc::SCM_CREDENTIALS);
        let sender = libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned();
        assert_eq!((sender.pid, sender.uid, sender.gid), (0, 0, 0));
    }
}
