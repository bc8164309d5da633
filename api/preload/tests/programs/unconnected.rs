//! Sockets without a peer: options and shutdowns that persist after a connect, and maximum datagram
//! lengths. Each case also runs on the kernel.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::harness::Case;
use crate::sockets::errno;

pub const CASES: &[Case] = &[
    ("a_send_that_fails_binds", a_send_that_fails_binds),
    ("shut_and_then_connected", shut_and_then_connected),
    ("shut_and_then_refused", shut_and_then_refused),
    ("shut_and_then_listening", shut_and_then_listening),
    ("refused_and_then_unconnected", refused_and_then_unconnected),
    ("the_longest_datagram", the_longest_datagram),
    ("urgent_datagrams", urgent_datagrams),
    ("a_first_datagram_has_room", a_first_datagram_has_room),
    ("how_long_datagrams_on_loopback_may_be", how_long_datagrams_on_loopback_may_be),
    ("credentials_are_not_asked_for", credentials_are_not_asked_for),
];

fn socket(family: i32, kind: i32) -> OwnedFd {
    // SAFETY: integers only.
    let fd = unsafe { libc::socket(family, kind, 0) };
    assert!(fd >= 0, "{}", errno());
    // SAFETY: fresh.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn is_bound(fd: RawFd) -> bool {
    // In both address families, the port follows the family.
    let mut bytes = [0u8; 128];
    let mut len = 128;
    // SAFETY: that much room.
    assert_eq!(unsafe { libc::getsockname(fd, bytes.as_mut_ptr().cast(), &raw mut len) }, 0);
    bytes[2..4] != [0, 0]
}

/// Returns the address 127.0.0.1 or ::1 with a port as bytes, and its length.
fn host(family: i32, port: u8) -> ([u8; 200], u32) {
    let mut bytes = [0; 200];
    bytes[0] = family as u8;
    bytes[3] = port;
    if family == libc::AF_INET {
        bytes[4..8].copy_from_slice(&[127, 0, 0, 1]);
        (bytes, 16)
    } else {
        bytes[23] = 1;
        (bytes, 28)
    }
}

fn send_to(fd: RawFd, data: &[u8], addr: &[u8; 200], len: u32) -> i32 {
    // SAFETY: the pointers and lengths are those of `data` and `addr`.
    let sent =
        unsafe { libc::sendto(fd, data.as_ptr().cast(), data.len(), 0, addr.as_ptr().cast(), len) };
    if sent < 0 { errno() } else { 0 }
}

/// As on Linux, a datagram socket is bound before a send validates data and address.
fn a_send_that_fails_binds() {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let (addr, len) = host(family, 9);
        let (no_port, _) = host(family, 0);
        let mut foreign = addr;
        foreign[0] = libc::AF_APPLETALK as u8;
        let no_family = if family == libc::AF_INET { libc::EAFNOSUPPORT } else { libc::EINVAL };
        for (what, data, addr, len, error, binds) in [
            ("no port", 1, &no_port, len, libc::EINVAL, true),
            ("too short an address", 1, &addr, 4, libc::EINVAL, true),
            ("too long an address", 1, &addr, 200, libc::EINVAL, false),
            ("too long a datagram", 70_000, &addr, len, libc::EMSGSIZE, true),
            ("another family", 1, &foreign, len, no_family, true),
        ] {
            let fd = socket(family, libc::SOCK_DGRAM);
            assert_eq!(send_to(fd.as_raw_fd(), &vec![7; data], addr, len), error, "{what}");
            assert_eq!(is_bound(fd.as_raw_fd()), binds, "{what}");
        }
        let fd = socket(family, libc::SOCK_DGRAM);
        // SAFETY: a byte.
        let sent = unsafe { libc::send(fd.as_raw_fd(), b"x".as_ptr().cast(), 1, 0) };
        assert_eq!((sent, errno()), (-1, libc::EDESTADDRREQ));
        assert!(is_bound(fd.as_raw_fd()));
        // connect(2) also binds first, and only checks that the address contains a family.
        for (addr, len, error, binds) in [
            (&foreign, len, libc::EAFNOSUPPORT, true),
            (&addr, 8, libc::EINVAL, true),
            (&addr, 1, libc::EINVAL, false),
        ] {
            let fd = socket(family, libc::SOCK_DGRAM);
            // SAFETY: `addr` has at least `len` bytes.
            let done = unsafe { libc::connect(fd.as_raw_fd(), addr.as_ptr().cast(), len) };
            assert_eq!((done, errno()), (-1, error));
            assert_eq!(is_bound(fd.as_raw_fd()), binds, "{len}");
        }
    }
    control_messages_that_are_wrong();
    // A stream is not bound before it connects.
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM);
    let (addr, len) = host(libc::AF_INET, 9);
    // SAFETY: SIG_IGN is no function, and the case needs no SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    assert_eq!(send_to(fd.as_raw_fd(), b"x", &addr, len), libc::EPIPE);
    assert!(!is_bound(fd.as_raw_fd()));
}

fn control_messages_that_are_wrong() {
    let (mut addr, len) = host(libc::AF_INET, 9);
    let mut control = [0u64; 3];
    // SAFETY: zeroes are a valid msghdr. Its pointers are set to local variables.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = addr.as_mut_ptr().cast();
        message.msg_namelen = len;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 24;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_len = 20;
        (*header).cmsg_level = libc::IPPROTO_IP;
        (*header).cmsg_type = 99;
        let fd = socket(libc::AF_INET, libc::SOCK_DGRAM);
        let sent = libc::sendmsg(fd.as_raw_fd(), &raw const message, 0);
        assert_eq!((sent, errno()), (-1, libc::EINVAL));
        assert!(is_bound(fd.as_raw_fd()));
    }
}

fn events(fd: RawFd) -> i16 {
    let wanted = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    let mut entry = libc::pollfd { fd, events: wanted, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, 0) };
    entry.revents
}

/// Reads once without waiting. Returns the number of bytes, or the errno.
fn read(mut from: &TcpStream) -> Result<usize, i32> {
    from.set_nonblocking(true).unwrap();
    from.read(&mut [0; 16]).map_err(|error| error.raw_os_error().unwrap())
}

fn write(mut to: &TcpStream) -> Result<usize, i32> {
    to.write(b"x").map_err(|error| error.raw_os_error().unwrap())
}

/// Returns a stream that was shut down by `how`. shutdown(2) fails without a peer, but has its
/// effect.
fn shut(how: i32) -> TcpStream {
    let stream = TcpStream::from(socket(libc::AF_INET, libc::SOCK_STREAM));
    for _ in 0..2 {
        // SAFETY: integers only.
        let done = unsafe { libc::shutdown(stream.as_raw_fd(), how) };
        assert_eq!((done, errno()), (-1, libc::ENOTCONN));
    }
    stream
}

fn connect(stream: &TcpStream, to: &TcpListener) -> i32 {
    let (mut addr, len) = host(libc::AF_INET, 0);
    let port = to.local_addr().unwrap().port();
    addr[2..4].copy_from_slice(&port.to_be_bytes());
    stream.set_nonblocking(false).unwrap();
    // SAFETY: `addr` has `len` bytes.
    let done = unsafe { libc::connect(stream.as_raw_fd(), addr.as_ptr().cast(), len) };
    if done < 0 { errno() } else { 0 }
}

const FRESH: i16 = libc::POLLOUT | libc::POLLHUP;
const ENDED: i16 = libc::POLLIN | libc::POLLRDHUP;
const HOW: [i32; 3] = [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR];

fn shut_and_then_connected() {
    // SAFETY: integers only.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for how in HOW {
        let (no_reads, no_writes) = (how != libc::SHUT_WR, how != libc::SHUT_RD);
        let stream = shut(how);
        let fd = stream.as_raw_fd();
        assert_eq!(events(fd), if no_reads { FRESH | ENDED } else { FRESH }, "{how}");
        assert_eq!(read(&stream), if no_reads { Ok(0) } else { Err(libc::ENOTCONN) }, "{how}");
        assert_eq!(write(&stream), Err(libc::EPIPE), "{how}");
        assert_eq!(connect(&stream, &listener), 0);
        let (mut peer, _) = listener.accept().unwrap();
        let mut expected = if no_reads { ENDED | libc::POLLOUT } else { libc::POLLOUT };
        if no_reads && no_writes {
            expected |= libc::POLLHUP;
        }
        assert_eq!(events(fd), expected, "{how}");
        assert_eq!(read(&stream), if no_reads { Ok(0) } else { Err(libc::EAGAIN) }, "{how}");
        assert_eq!(write(&stream), if no_writes { Err(libc::EPIPE) } else { Ok(1) }, "{how}");
        // Bytes that arrive can still be read, and the peer sees no end of the stream.
        peer.write_all(b"hello").unwrap();
        stream.set_nonblocking(false).unwrap();
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut got = 0;
        while got == 0 {
            // SAFETY: one entry.
            unsafe { libc::poll(&raw mut entry, 1, -1) };
            got = read(&stream).unwrap();
        }
        assert_eq!(got, 5);
        match how {
            libc::SHUT_RD => assert_eq!(peer.read(&mut [0; 16]).unwrap(), 1),
            // The bytes were acknowledged. A FIN sent before them would have arrived by now.
            _ => assert_eq!(self::read(&peer), Err(libc::EAGAIN)),
        }
        // After the connect, shutdown(2) sends a FIN to the peer.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        peer.set_nonblocking(false).unwrap();
        assert_eq!(peer.read(&mut [0; 16]).unwrap(), 0);
    }
    // AF_UNSPEC opens everything again.
    let stream = shut(libc::SHUT_RDWR);
    let nobody = [0u8; 16];
    // SAFETY: `nobody` has 16 bytes.
    let done = unsafe { libc::connect(stream.as_raw_fd(), nobody.as_ptr().cast(), 16) };
    assert_eq!((done, events(stream.as_raw_fd())), (0, FRESH));
}

fn shut_and_then_refused() {
    let stream = shut(libc::SHUT_RDWR);
    // Port 1 has no listener in this network namespace.
    let (addr, len) = host(libc::AF_INET, 1);
    // SAFETY: `addr` has `len` bytes.
    let done = unsafe { libc::connect(stream.as_raw_fd(), addr.as_ptr().cast(), len) };
    assert_eq!((done, errno()), (-1, libc::ECONNREFUSED));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(connect(&stream, &listener), 0);
    let _peer = listener.accept().unwrap();
    assert_eq!((read(&stream), write(&stream)), (Err(libc::EAGAIN), Ok(1)), "as a new one");
}

/// As on Linux, a connection begins as a copy of its listener.
fn shut_and_then_listening() {
    // SAFETY: integers only.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    for how in HOW {
        let (no_reads, no_writes) = (how != libc::SHUT_WR, how != libc::SHUT_RD);
        let listener = TcpListener::from(OwnedFd::from(shut(how)));
        // SAFETY: listen takes integers, and binds the socket to a port that the stack chooses.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 5) }, 0);
        assert_eq!(events(listener.as_raw_fd()), 0);
        let peer = TcpStream::from(socket(libc::AF_INET, libc::SOCK_STREAM));
        assert_eq!(connect(&peer, &listener), 0);
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(read(&accepted), if no_reads { Ok(0) } else { Err(libc::EAGAIN) }, "{how}");
        assert_eq!(write(&accepted), if no_writes { Err(libc::EPIPE) } else { Ok(1) }, "{how}");
    }
}

/// After the connect(2) that returns ECONNREFUSED, the socket is as if it had never been connected
/// (tcp_disconnect). After a nonblocking connect, it counts as an ended connection until then.
fn refused_and_then_unconnected() {
    // SAFETY: integers only.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    for family in [libc::AF_INET, libc::AF_INET6] {
        // Port 1 has no listener in this network namespace.
        let (addr, len) = host(family, 1);
        let connect = |stream: &TcpStream| {
            // SAFETY: `addr` has `len` bytes.
            let done = unsafe { libc::connect(stream.as_raw_fd(), addr.as_ptr().cast(), len) };
            if done < 0 { errno() } else { 0 }
        };
        let stream = TcpStream::from(socket(family, libc::SOCK_STREAM));
        for _ in 0..2 {
            stream.set_nonblocking(false).unwrap();
            assert_eq!(connect(&stream), libc::ECONNREFUSED);
            assert_eq!(events(stream.as_raw_fd()), FRESH);
            assert_eq!((read(&stream), write(&stream)), (Err(libc::ENOTCONN), Err(libc::EPIPE)));
            assert_eq!(events(stream.as_raw_fd()), FRESH);
        }
        stream.set_nonblocking(true).unwrap();
        for refusal in [libc::ECONNREFUSED, libc::ECONNABORTED] {
            assert_eq!(connect(&stream), libc::EINPROGRESS);
            assert_eq!(events(stream.as_raw_fd()), FRESH | ENDED | libc::POLLERR);
            if refusal == libc::ECONNABORTED {
                assert!(stream.take_error().unwrap().is_some());
                assert_eq!(events(stream.as_raw_fd()), FRESH | ENDED);
            }
            assert_eq!(connect(&stream), refusal);
            assert_eq!(events(stream.as_raw_fd()), FRESH);
        }
    }
}

/// The maximum length of an IPv4 packet includes its header, that of an IPv6 packet does not.
fn the_longest_datagram() {
    for (any, to, most) in [
        ("127.0.0.1:0", "127.0.0.1", 65_507),
        ("[::1]:0", "::1", 65_527),
        ("[::]:0", "::ffff:127.0.0.1", 65_507),
    ] {
        let from = UdpSocket::bind(any).unwrap();
        let taker = UdpSocket::bind(any).unwrap();
        let to = (to, taker.local_addr().unwrap().port());
        let sent: Vec<u8> = (0..=most).map(|n| n as u8).collect();
        let error = from.send_to(&sent, to).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE), "{to:?}");
        let whole = |got: usize, bytes: &[u8]| assert!(bytes[..got] == sent[..most], "{to:?}");
        let mut got = vec![0; 70_000];
        assert_eq!(from.send_to(&sent[..most], to).unwrap(), most);
        whole(taker.recv(&mut got).unwrap(), &got);
        // The same limit holds for a datagram that is sent in two parts (MSG_MORE).
        from.connect(to).unwrap();
        let part = |bytes: &[u8], flags: i32| {
            let at = bytes.as_ptr().cast();
            // SAFETY: the address and length are those of `bytes`.
            let n = unsafe { libc::send(from.as_raw_fd(), at, bytes.len(), flags) };
            if n < 0 { Err(errno()) } else { Ok(n as usize) }
        };
        assert_eq!(part(&sent[..most], libc::MSG_MORE), Ok(most), "{to:?}");
        assert_eq!(part(&sent[most..], 0), Err(libc::EMSGSIZE), "{to:?}");
        assert_eq!(part(&sent[..most - 1], libc::MSG_MORE), Ok(most - 1), "{to:?}");
        assert_eq!(part(&sent[most - 1..most], 0), Ok(1), "{to:?}");
        whole(taker.recv(&mut got).unwrap(), &got);
    }
}

/// udp_sendmsg fails with MSG_OOB; udpv6_sendmsg ignores the flag.
fn urgent_datagrams() {
    for (any, to, over_v6) in [
        ("127.0.0.1:0", "127.0.0.1", false),
        ("[::1]:0", "::1", true),
        ("[::]:0", "::ffff:127.0.0.1", false),
    ] {
        let (from, taker) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        from.connect((to, taker.local_addr().unwrap().port())).unwrap();
        let urgent = || {
            // SAFETY: a byte.
            let n = unsafe { libc::send(from.as_raw_fd(), b"u".as_ptr().cast(), 1, libc::MSG_OOB) };
            if n < 0 { Err(errno()) } else { Ok(n) }
        };
        assert_eq!(urgent(), if over_v6 { Ok(1) } else { Err(libc::EOPNOTSUPP) }, "{to}");
        if !over_v6 {
            from.send(b"u").unwrap();
        }
        let mut got = [0; 4];
        let at = got.as_mut_ptr().cast();
        // SAFETY: the buffer has room for four bytes.
        let n = unsafe { libc::recv(taker.as_raw_fd(), at, 4, libc::MSG_OOB) };
        assert_eq!((n, got[0]), (1, b'u'), "{to}");
    }
}

/// SO_SNDTIMEO applies only if the socket has no room, so the first send never times out.
fn a_first_datagram_has_room() {
    let timeout = libc::timeval { tv_sec: 0, tv_usec: 10 };
    for _ in 0..100 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // SAFETY: a timeval.
        let set = unsafe {
            let (at, len) = ((&raw const timeout).cast(), size_of_val(&timeout) as u32);
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDTIMEO, at, len)
        };
        assert_eq!(set, 0);
        let to = socket.local_addr().unwrap();
        assert_eq!(socket.send_to(b"x", to).map_err(|error| error.raw_os_error()), Ok(1));
    }
}

/// Checks the MTU in the error queue for each IP_MTU_DISCOVER, starting with IP_PMTUDISC_DONT.
fn how_long_datagrams_on_loopback_may_be() {
    const V4: [u32; 6] = [65_535, 65_535, 65_535, 65_536, 65_536, 65_536];
    const V6: [u32; 6] = [65_536; 6];
    let v4 = (libc::IPPROTO_IP, libc::IP_RECVERR, libc::IP_MTU_DISCOVER);
    let v6 = (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, libc::IPV6_MTU_DISCOVER);
    for (ip, (level, errors, discover), wanted) in [("127.0.0.1", v4, V4), ("::1", v6, V6)] {
        for (how, wanted) in wanted.into_iter().enumerate() {
            let socket = UdpSocket::bind((ip, 0)).unwrap();
            let fd = socket.as_raw_fd();
            crate::sockets::set(fd, level, errors, 1).unwrap();
            crate::sockets::set(fd, level, discover, how as i32).unwrap();
            socket.connect((ip, 9)).unwrap();
            let sent = socket.send(&[0; 65_535]).map_err(|error| error.raw_os_error());
            assert_eq!(sent, Err(Some(libc::EMSGSIZE)), "{ip} {how}");
            assert_eq!(told_mtu(fd), wanted, "{ip} {how}");
        }
    }
}

/// Returns ee_info of the oldest error.
fn told_mtu(fd: RawFd) -> u32 {
    let mut room = [0u64; 64];
    // SAFETY: zeros are a valid msghdr. The calls write to the local buffer `room`.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_control = room.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&room) as _;
        assert_eq!(libc::recvmsg(fd, &raw mut header, libc::MSG_ERRQUEUE), 0);
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        assert!(!first.is_null());
        let error = libc::CMSG_DATA(first).cast::<libc::sock_extended_err>().read_unaligned();
        assert_eq!(error.ee_errno, libc::EMSGSIZE as u32);
        error.ee_info
    }
}

/// Only AF_UNIX sockets have credentials. Before Linux 6.16, other sockets could read the options.
fn credentials_are_not_asked_for() {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        let socket = socket(libc::AF_INET, kind);
        let fd = socket.as_raw_fd();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PASSCRED);
        let read = crate::sockets::get(fd, level, name);
        if read == Ok(0) && kernel() < (6, 16) {
            continue;
        }
        assert_eq!(read, Err(libc::EOPNOTSUPP));
        assert_eq!(crate::sockets::set(fd, level, name, 1), Err(libc::EOPNOTSUPP));
    }
}

/// Returns the kernel's major and minor version.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
