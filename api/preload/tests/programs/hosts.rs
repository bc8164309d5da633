//! Datagram sockets with multicast, broadcast, shared ports, and options of both IP versions.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use crate::asleep;
use crate::harness::Case;
use crate::sockets::{errno, get, set};

pub const CASES: &[Case] = &[
    ("shutdown_without_a_peer", shutdown_without_a_peer),
    ("first_sends_find_memory", first_sends_find_memory),
    ("a_large_datagram_into_a_small_buffer", a_large_datagram_into_a_small_buffer),
    ("multicast_interfaces", multicast_interfaces),
    ("broadcasts_come_back", broadcasts_come_back),
    ("the_last_one_bound", the_last_one_bound),
    ("any_v4_on_a_v6_socket", any_v4_on_a_v6_socket),
    ("lengths_of_ip_options", lengths_of_ip_options),
    ("options_of_both_families", options_of_both_families),
    ("echo_control", echo_control),
];

fn socket(family: i32, protocol: i32) -> UdpSocket {
    // SAFETY: integers only.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM, protocol) };
    assert!(fd >= 0, "socket: {}", errno());
    // SAFETY: just opened.
    unsafe { UdpSocket::from_raw_fd(fd) }
}

fn sockaddr(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    // SAFETY: plain numbers.
    let mut addr: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    addr.sin_family = libc::AF_INET as u16;
    addr.sin_port = port.to_be();
    addr.sin_addr.s_addr = u32::from_ne_bytes(ip);
    addr
}

fn bind(fd: RawFd, addr: &libc::sockaddr_in) -> Result<(), i32> {
    // SAFETY: the address and length are those of `addr`.
    match unsafe { libc::bind(fd, std::ptr::from_ref(addr).cast(), size_of_val(addr) as u32) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

fn set_bytes(fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), i32> {
    let len = value.len() as u32;
    // SAFETY: the address and length are those of `value`.
    match unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

/// Returns the bytes that getsockopt(2) writes to a buffer of `room` bytes.
fn get_bytes(fd: RawFd, level: i32, name: i32, room: usize) -> Vec<u8> {
    let (mut value, mut len) = ([0xa5u8; 16], room as u32);
    let at = value.as_mut_ptr().cast();
    // SAFETY: `value` has at least `room` bytes.
    assert_eq!(unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) }, 0);
    value[..len as usize].to_vec()
}

fn shutdown_without_a_peer() {
    let waiting = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = waiting.as_raw_fd();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| waiting.recv(&mut [0; 8]).unwrap());
        asleep::others();
        // SAFETY: integers only.
        let result = unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        assert_eq!((result, errno()), (-1, libc::ENOTCONN));
        assert_eq!(reader.join().unwrap(), 0, "it woke up");
    });
    let events = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, 0) }, 1);
    assert_eq!(entry.revents, events | libc::POLLHUP);
}

fn first_sends_find_memory() {
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = to.local_addr().unwrap();
    for n in 0..500 {
        let fresh = UdpSocket::bind("127.0.0.1:0").unwrap();
        fresh.set_nonblocking(true).unwrap();
        assert_eq!(fresh.send_to(b"x", at).unwrap(), 1, "socket {n}");
        to.recv(&mut [0; 8]).unwrap();
    }
}

fn a_large_datagram_into_a_small_buffer() {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
    let (a, b) = (a.unwrap(), b.unwrap());
    set(b.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
    assert_eq!(get(b.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF), Ok(8192));
    let mut got = vec![0; 65_536];
    for len in [60_000, 100, 8192, 65_507] {
        let sent: Vec<u8> = (0..len).map(|n| n as u8).collect();
        a.send_to(&sent, b.local_addr().unwrap()).unwrap();
        assert_eq!(b.recv(&mut got).unwrap(), len);
        assert_eq!(got[..len], sent);
    }
}

fn multicast_interfaces() {
    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    let fd = udp.as_raw_fd();
    let (group, lo, any, index) = ([239, 1, 2, 3], [127, 0, 0, 1], [0; 4], 1u32.to_ne_bytes());
    let strange = [203, 0, 113, 77];
    let ask = |parts: &[[u8; 4]]| {
        set_bytes(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &parts.concat())?;
        Ok(get_bytes(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, 4))
    };
    assert_eq!(ask(&[lo]), Ok(lo.to_vec()), "in_addr");
    assert_eq!(ask(&[any]), Ok(any.to_vec()));
    assert_eq!(ask(&[group, lo]), Ok(lo.to_vec()), "ip_mreq");
    assert_eq!(ask(&[group, any]), Ok(any.to_vec()));
    assert_eq!(ask(&[group, lo, any]), Ok(lo.to_vec()), "ip_mreqn with an address");
    assert_eq!(ask(&[group, any, index]), Ok(any.to_vec()), "ip_mreqn with an index");
    for parts in [&[strange][..], &[group, strange], &[group, any, 99u32.to_ne_bytes()]] {
        assert_eq!(ask(parts), Err(libc::EADDRNOTAVAIL), "{parts:?}");
    }
    assert_eq!(ask(&[group, any, index]), Ok(any.to_vec()));
    // Datagrams to groups leave by this interface from now on.
    ask(&[group, lo]).unwrap();
    let member = UdpSocket::bind("0.0.0.0:0").unwrap();
    member.join_multicast_v4(&Ipv4Addr::from(group), &Ipv4Addr::LOCALHOST).unwrap();
    let port = member.local_addr().unwrap().port();
    udp.send_to(b"group", (Ipv4Addr::from(group), port)).unwrap();
    let (n, from) = member.recv_from(&mut [0; 16]).unwrap();
    assert_eq!((n, from.ip()), (5, Ipv4Addr::LOCALHOST.into()));
}

fn broadcasts_come_back() {
    let all = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = all.local_addr().unwrap().port();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for to in [[127, 255, 255, 255], [255; 4]] {
        sender.set_broadcast(false).unwrap();
        let to: SocketAddr = (to, port).into();
        assert_eq!(sender.send_to(b"x", to).unwrap_err().raw_os_error(), Some(libc::EACCES));
        sender.set_broadcast(true).unwrap();
        sender.send_to(b"all", to).unwrap();
        let (n, from) = all.recv_from(&mut [0; 8]).unwrap();
        assert_eq!((n, from), (3, sender.local_addr().unwrap()), "{to}");
    }
    // A socket that is bound to the broadcast address receives datagrams to it.
    let named = socket(libc::AF_INET, 0);
    bind(named.as_raw_fd(), &sockaddr([127, 255, 255, 255], 0)).unwrap();
    let at = named.local_addr().unwrap();
    sender.send_to(b"named", at).unwrap();
    assert_eq!(named.recv(&mut [0; 8]).unwrap(), 5);
}

fn the_last_one_bound() {
    let bound = |port: u16, name: i32| {
        let udp = socket(libc::AF_INET, 0);
        set(udp.as_raw_fd(), libc::SOL_SOCKET, name, 1).unwrap();
        bind(udp.as_raw_fd(), &sockaddr([127, 0, 0, 1], port)).unwrap();
        udp
    };
    let first = bound(0, libc::SO_REUSEADDR);
    let at = first.local_addr().unwrap();
    let more: Vec<_> = (0..3).map(|_| bound(at.port(), libc::SO_REUSEADDR)).collect();
    for n in 0..20 {
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(&[n], at).unwrap();
        let mut got = [0; 2];
        assert_eq!((more[2].recv(&mut got).unwrap(), got[0]), (1, n));
    }
    for other in [&first, &more[0], &more[1]] {
        other.set_nonblocking(true).unwrap();
        assert!(other.recv(&mut [0; 2]).is_err());
    }
}

fn any_v4_on_a_v6_socket() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let any = sockaddr([0; 4], server.local_addr().unwrap().port());
    let (at, len) = ((&raw const any).cast(), size_of_val(&any) as u32);
    let client = socket(libc::AF_INET6, 0);
    let fd = client.as_raw_fd();
    // SAFETY: the pointers and lengths are those of a byte and of the address.
    assert_eq!(unsafe { libc::sendto(fd, b"1".as_ptr().cast(), 1, 0, at, len) }, 1);
    assert_eq!(server.recv(&mut [0; 4]).unwrap(), 1);
    let client = socket(libc::AF_INET6, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::connect(client.as_raw_fd(), at, len) }, 0);
    assert_eq!(client.peer_addr().unwrap().ip(), Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    client.send(b"2").unwrap();
    assert_eq!(server.recv(&mut [0; 4]).unwrap(), 1);
}

fn lengths_of_ip_options() {
    const IP: i32 = libc::IPPROTO_IP;
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = udp.as_raw_fd();
    set(fd, IP, libc::IP_TOS, 0x48).unwrap();
    for room in 1..=3 {
        assert_eq!(get_bytes(fd, IP, libc::IP_TOS, room), [0x48], "room for {room}");
    }
    assert_eq!(get_bytes(fd, IP, libc::IP_TOS, 4), 0x48i32.to_ne_bytes());
    assert!(get_bytes(fd, IP, libc::IP_TOS, 0).is_empty());
    assert_eq!(set_bytes(fd, IP, libc::IP_TOS, &[]), Ok(()), "nothing is 0");
    assert_eq!(get(fd, IP, libc::IP_TOS), Ok(0));
    for name in [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVERR, libc::IP_MTU_DISCOVER] {
        set(fd, IP, name, 1).unwrap();
        assert_eq!(set_bytes(fd, IP, name, &[]), Ok(()), "{name}");
        assert_eq!(get(fd, IP, name), Ok(0), "{name}");
    }
    for name in [libc::IP_TTL, libc::IP_MULTICAST_TTL, libc::IP_MULTICAST_LOOP, libc::IP_FREEBIND] {
        assert_eq!(set_bytes(fd, IP, name, &[]), Err(libc::EINVAL), "{name}");
    }
    for name in [libc::IP_TTL, libc::IP_FREEBIND, libc::IP_MULTICAST_ALL, libc::IP_MULTICAST_LOOP] {
        assert_eq!(set_bytes(fd, IP, name, &[1]), Ok(()), "{name}");
        assert_eq!(get(fd, IP, name), Ok(1), "{name}");
    }
}

fn options_of_both_families() {
    const IP: i32 = libc::IPPROTO_IP;
    const V6: i32 = libc::IPPROTO_IPV6;
    /// Not in the libc crate.
    const IPV6_MULTICAST_ALL: i32 = 29;
    let udp = UdpSocket::bind("[::]:0").unwrap();
    let fd = udp.as_raw_fd();
    let pairs = [
        ((IP, libc::IP_TOS), (V6, libc::IPV6_TCLASS), 0x48),
        ((IP, libc::IP_RECVERR), (V6, libc::IPV6_RECVERR), 1),
        ((IP, libc::IP_TTL), (V6, libc::IPV6_UNICAST_HOPS), 9),
        ((IP, libc::IP_MULTICAST_LOOP), (V6, libc::IPV6_MULTICAST_LOOP), 0),
        ((IP, libc::IP_MULTICAST_TTL), (V6, libc::IPV6_MULTICAST_HOPS), 9),
    ];
    for (v4, v6, value) in pairs {
        for (one, other) in [(v4, v6), (v6, v4)] {
            let before = get(fd, other.0, other.1);
            set(fd, one.0, one.1, value).unwrap();
            assert_eq!(get(fd, one.0, one.1), Ok(value));
            if one == v4 {
                assert_eq!(get(fd, other.0, other.1), before, "{one:?} changed {other:?}");
            }
        }
    }
    // Reception of groups that other sockets have joined: the default is on for IPv6, and off for
    // IPv4.
    let alls = [(IP, libc::IP_MULTICAST_ALL), (V6, IPV6_MULTICAST_ALL)];
    assert_eq!(alls.map(|(level, name)| get(fd, level, name)), [Ok(0), Ok(1)]);
    for (level, name) in alls {
        for value in [0, 1] {
            set(fd, level, name, value).unwrap();
            assert_eq!(get(fd, level, name), Ok(value));
        }
    }
    // Datagrams have the class of their IP version, also on the receiving side.
    set(fd, IP, libc::IP_TOS, 0x20).unwrap();
    set(fd, V6, libc::IPV6_TCLASS, 0x40).unwrap();
    for (at, level, name, class) in
        [("127.0.0.1:0", IP, libc::IP_RECVTOS, 0x20), ("[::1]:0", V6, libc::IPV6_RECVTCLASS, 0x40)]
    {
        let there = UdpSocket::bind(at).unwrap();
        set(there.as_raw_fd(), level, name, 1).unwrap();
        let mut to = there.local_addr().unwrap();
        if let SocketAddr::V4(v4) = to {
            to = (v4.ip().to_ipv6_mapped(), v4.port()).into();
        }
        udp.send_to(b"x", to).unwrap();
        assert_eq!(control_byte(there.as_raw_fd()), Some(class), "{at}");
    }
}

/// Returns the first byte of the next datagram's first control message.
fn control_byte(fd: RawFd) -> Option<u8> {
    control(fd).first().copied()
}

/// Returns the data of the next datagram's first control message.
fn control(fd: RawFd) -> Vec<u8> {
    let (mut byte, mut room) = ([0u8; 64], [0u64; 16]);
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // SAFETY: zeroes are a valid msghdr, which consists of integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = room.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&room);
    // SAFETY: the message points to local buffers of the given lengths.
    assert!(unsafe { libc::recvmsg(fd, &raw mut message, 0) } > 0);
    let len = message.msg_controllen.min(size_of_val(&room));
    let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
    bytes.get(size_of::<libc::cmsghdr>()..).unwrap_or_default().to_vec()
}

fn echo_control() {
    const IP: i32 = libc::IPPROTO_IP;
    let to = sockaddr([127, 0, 0, 1], 0);
    let ping = |fd: RawFd| {
        let request = [8u8, 0, 0, 0, 0, 0, 0, 1, 42];
        let (at, len) = ((&raw const to).cast(), size_of_val(&to) as u32);
        // SAFETY: the pointers and lengths are those of `request` and of the address.
        let sent = unsafe { libc::sendto(fd, request.as_ptr().cast(), request.len(), 0, at, len) };
        assert_eq!(sent, request.len() as isize);
    };
    let echo = socket(libc::AF_INET, libc::IPPROTO_ICMP);
    let fd = echo.as_raw_fd();
    assert_eq!(bind(fd, &sockaddr([127, 255, 255, 255], 0)), Err(libc::EADDRNOTAVAIL));
    assert_eq!(bind(fd, &sockaddr([224, 0, 0, 1], 0)), Err(libc::EADDRNOTAVAIL));
    set(fd, IP, libc::IP_TOS, 0x4b).unwrap();
    set(fd, IP, libc::IP_RECVTOS, 1).unwrap();
    ping(fd);
    assert_eq!(control_byte(fd), Some(0x4b), "the congestion mark comes back too");
    let echo = socket(libc::AF_INET, libc::IPPROTO_ICMP);
    set(echo.as_raw_fd(), IP, libc::IP_PKTINFO, 1).unwrap();
    ping(echo.as_raw_fd());
    let info = control(echo.as_raw_fd());
    assert_eq!((&info[4..8], &info[8..12]), (&[0; 4][..], &[127, 0, 0, 1][..]));
}
