//! socket(2), bind(2), connect(2), socket options, and descriptors.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("names", names),
    ("refused", refused),
    ("connect_without_blocking", connect_without_blocking),
    ("dual_stack", dual_stack),
    ("kinds", kinds),
    ("options", options),
    ("option_refusals", option_refusals),
    ("fast_open_keys", fast_open_keys),
    ("duplicates", duplicates),
    ("closing_everything", closing_everything),
    ("interfaces", interfaces),
];

/// Returns both ends of a connection, the accepted one first.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, client)
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

pub fn set(fd: RawFd, level: i32, name: i32, value: i32) -> Result<(), i32> {
    // SAFETY: `value` is an int of four bytes.
    match unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

pub fn get(fd: RawFd, level: i32, name: i32) -> Result<i32, i32> {
    let (mut value, mut len) = (0, 4);
    // SAFETY: `value` is an int of four bytes.
    match unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) } {
        0 => Ok(value),
        _ => Err(errno()),
    }
}

fn names() {
    let (a, b) = pair();
    assert_eq!(a.local_addr().unwrap(), b.peer_addr().unwrap());
    assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
    // SAFETY: integers only.
    let fresh = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    // SAFETY: just opened.
    let fresh = unsafe { TcpStream::from_raw_fd(fresh) };
    assert_eq!(fresh.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(fresh.local_addr().unwrap(), "0.0.0.0:0".parse::<SocketAddr>().unwrap());
    assert_eq!((&fresh).read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::NotConnected);
    let taken = a.local_addr().unwrap();
    drop((a, b));
    let again = TcpListener::bind(taken);
    assert!(again.is_ok(), "std sets SO_REUSEADDR: {again:?}");
    assert_eq!(TcpListener::bind(taken).unwrap_err().kind(), ErrorKind::AddrInUse);
}

fn refused() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(TcpStream::connect(free).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(free).unwrap();
    socket.send(b"x").unwrap();
    assert_eq!(socket.recv(&mut [0; 4]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

fn connect_without_blocking() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    for refuse in [false, true] {
        let at = if refuse {
            TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
        } else {
            at
        };
        // SAFETY: integers only.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0) };
        let addr = sockaddr(at);
        let connect = || {
            // SAFETY: the address and length are those of `addr`.
            unsafe { libc::connect(fd, (&raw const addr).cast(), size_of_val(&addr) as u32) }
        };
        assert!(connect() == 0 || errno() == libc::EINPROGRESS);
        let mut entry = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry.
        assert_eq!(unsafe { libc::poll(&raw mut entry, 1, -1) }, 1);
        let expected = if refuse { libc::ECONNREFUSED } else { 0 };
        assert_eq!(entry.revents & libc::POLLERR != 0, refuse);
        assert_eq!(get(fd, libc::SOL_SOCKET, libc::SO_ERROR), Ok(expected));
        assert_eq!(get(fd, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0), "an error is told once");
        if !refuse {
            assert_eq!(connect(), 0, "a call learns of it");
            assert_eq!((connect(), errno()), (-1, libc::EISCONN));
        }
        // SAFETY: ours.
        unsafe { libc::close(fd) };
    }
}

fn sockaddr(at: SocketAddr) -> libc::sockaddr_in {
    let SocketAddr::V4(at) = at else { panic!("IPv4") };
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: at.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*at.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

fn dual_stack() {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["127.0.0.1", "::1"] {
        let client = TcpStream::connect((host, port)).unwrap();
        let (mut server, from) = listener.accept().unwrap();
        let mapped: Ipv6Addr =
            if host == "::1" { host } else { "::ffff:127.0.0.1" }.parse().unwrap();
        assert_eq!(from.ip(), mapped);
        assert_eq!(server.local_addr().unwrap().ip(), mapped);
        (&client).write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
}

fn kinds() {
    // SAFETY: integers only.
    let socket = |domain, kind, protocol| match unsafe { libc::socket(domain, kind, protocol) } {
        -1 => Err(errno()),
        fd => Ok(fd),
    };
    assert_eq!(socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP), Err(libc::EPERM));
    assert_eq!(
        socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP),
        Err(libc::EPROTONOSUPPORT)
    );
    assert_eq!(socket(libc::AF_INET, libc::SOCK_SEQPACKET, 0), Err(libc::ESOCKTNOSUPPORT));
    let stream = socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    let unix = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).unwrap();
    for (fd, domain) in [(stream, libc::AF_INET), (unix, libc::AF_UNIX)] {
        assert_eq!(get(fd, libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(domain));
        // SAFETY: zeros are a valid stat, which fstat fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fstat(fd, &raw mut stat) }, 0);
        assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFSOCK);
    }
    // SAFETY: integers only.
    let listen = |fd| match unsafe { libc::listen(fd, 1) } {
        0 => Ok(()),
        _ => Err(errno()),
    };
    let datagram = socket(libc::AF_INET6, libc::SOCK_DGRAM, 0).unwrap();
    assert_eq!(listen(datagram), Err(libc::EOPNOTSUPP));
    assert_eq!(get(datagram, libc::SOL_SOCKET, libc::SO_PROTOCOL), Ok(libc::IPPROTO_UDP));
}

fn options() {
    let (a, _b) = pair();
    let fd = a.as_raw_fd();
    let same = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 7),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::IPPROTO_TCP, libc::TCP_CORK, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 11),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 12),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 13),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 14_000),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 3),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 7),
        (libc::SOL_SOCKET, libc::SO_PRIORITY, 6),
        (libc::IPPROTO_TCP, libc::TCP_LINGER2, 5),
        (libc::IPPROTO_IP, libc::IP_TOS, 0x48),
        (libc::IPPROTO_IP, libc::IP_TTL, 31),
        (libc::IPPROTO_IP, libc::IP_RECVERR, 1),
    ];
    for (level, name, value) in same {
        assert_eq!(set(fd, level, name, value), Ok(()), "{level} {name}");
        assert_eq!(get(fd, level, name), Ok(value), "{level} {name}");
    }
    for (value, shown) in [(0, 60), (121, 120), (-7, -1)] {
        assert_eq!(set(fd, libc::IPPROTO_TCP, libc::TCP_LINGER2, value), Ok(()));
        assert_eq!(get(fd, libc::IPPROTO_TCP, libc::TCP_LINGER2), Ok(shown));
    }
    for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        assert_eq!(set(fd, libc::SOL_SOCKET, name, 50_000), Ok(()));
        assert_eq!(get(fd, libc::SOL_SOCKET, name), Ok(100_000));
    }
    a.set_read_timeout(Some(std::time::Duration::from_millis(1500))).unwrap();
    assert_eq!(a.read_timeout().unwrap(), Some(std::time::Duration::from_millis(1500)));
    assert!(get(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG).unwrap() > 500);
    let mut name = [0u8; 16];
    let mut len = 16;
    // SAFETY: the buffer has the given length.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!((result, &name[..5]), (0, &b"cubic"[..]));
    let mut info = [0u8; 104];
    let mut len = 104;
    // SAFETY: the buffer has the given length.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!((result, len, info[0]), (0, 104, 1), "established");
}

fn option_refusals() {
    let (a, _b) = pair();
    let fd = a.as_raw_fd();
    for (level, name, value, errno) in [
        (libc::SOL_SOCKET, libc::SO_MARK, 1, libc::EPERM),
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 2, libc::EINVAL),
        (libc::SOL_SOCKET, 9999, 1, libc::ENOPROTOOPT),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 128, libc::EINVAL),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 1, libc::EINVAL),
        (libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1, libc::EPERM),
        (libc::IPPROTO_IP, libc::IP_TTL, 0, libc::EINVAL),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1, libc::ENOPROTOOPT),
        (libc::IPPROTO_UDP, 103, 1, libc::ENOPROTOOPT),
    ] {
        assert_eq!(set(fd, level, name, value), Err(errno), "{level} {name}");
    }
    assert_eq!(get(fd, libc::IPPROTO_TCP, 9999), Err(libc::ENOPROTOOPT));
    // SAFETY: the call reads at most one byte, the given length.
    let short = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, [1u8].as_ptr().cast(), 1)
    };
    assert_eq!((short, errno()), (-1, libc::EINVAL));
}

fn fast_open_keys() {
    const TCP_FASTOPEN_KEY: i32 = 33;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = listener.as_raw_fd();
    let set = |key: &[u8]| {
        // SAFETY: the call reads `key`.
        let result = unsafe {
            let (value, len) = (key.as_ptr().cast(), key.len() as u32);
            libc::setsockopt(fd, libc::IPPROTO_TCP, TCP_FASTOPEN_KEY, value, len)
        };
        if result == 0 { Ok(()) } else { Err(errno()) }
    };
    let key: Vec<u8> = (0..32).collect();
    for len in [16, 32] {
        assert_eq!(set(&key[..len]), Ok(()));
        let (mut found, mut room) = ([0; 40], 40);
        // SAFETY: the call writes at most `room` bytes.
        let result = unsafe {
            let value = found.as_mut_ptr().cast();
            libc::getsockopt(fd, libc::IPPROTO_TCP, TCP_FASTOPEN_KEY, value, &raw mut room)
        };
        assert_eq!((result, room as usize, &found[..len]), (0, len, &key[..len]));
    }
    for len in [1, 15, 17] {
        assert_eq!(set(&key[..len]), Err(libc::EINVAL), "{len}");
    }
}

fn duplicates() {
    let (a, mut b) = pair();
    // SAFETY: the calls here and below take integers, or local buffers.
    unsafe {
        let copy = libc::dup(a.as_raw_fd());
        // O_NONBLOCK belongs to the open file, so duplicates share it.
        assert_eq!(libc::fcntl(copy, libc::F_SETFL, libc::O_NONBLOCK), 0);
        assert_eq!(libc::fcntl(a.as_raw_fd(), libc::F_GETFL), libc::O_RDWR | libc::O_NONBLOCK);
        drop(a);
        assert_eq!(libc::write(copy, b"1".as_ptr().cast(), 1), 1);
        assert_eq!(libc::dup2(copy, 500), 500);
        assert_eq!(libc::fcntl(copy, libc::F_DUPFD_CLOEXEC, 600), 600);
        assert_eq!(libc::close(copy), 0);
        assert_eq!((libc::close(copy), errno()), (-1, libc::EBADF));
        // A file replaces one of the duplicates; the socket stays open by the other one.
        let (read, _write) = std::io::pipe().unwrap();
        assert_eq!(libc::dup2(read.as_raw_fd(), 500), 500);
        assert_eq!(libc::write(600, b"2".as_ptr().cast(), 1), 1);
        assert_eq!(libc::close(600), 0);
    }
    let mut all = Vec::new();
    b.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"12", "the last close is the socket's");
}

/// Daemons close all descriptors when they start. The library's own descriptors must stay open.
fn closing_everything() {
    for fd in 3..20_000 {
        // SAFETY: the program has opened no descriptor in this range yet.
        unsafe { libc::close(fd) };
    }
    let (mut a, mut b) = pair();
    a.write_all(b"x").unwrap();
    b.read_exact(&mut [0]).unwrap();
    let (a, b) = (a.into_raw_fd(), b.into_raw_fd());
    // SAFETY: the calls take integers only, and close both sockets.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0), 0);
        assert_eq!((libc::close(a), errno()), (-1, libc::EBADF));
        assert_eq!((libc::close(b), errno()), (-1, libc::EBADF));
    }
    // dup2 replaces all numbers, including those of the library's descriptors.
    let (read, _write) = std::io::pipe().unwrap();
    for fd in 100..20_000 {
        // SAFETY: integers only.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1 {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::dup2(read.as_raw_fd(), fd) }, fd);
        }
    }
    pair();
}

fn interfaces() {
    let mut first = std::ptr::null_mut();
    // SAFETY: the list is valid until freeifaddrs, which is called once.
    unsafe {
        assert_eq!(libc::getifaddrs(&raw mut first), 0);
        let mut families = Vec::new();
        let mut at = first;
        while !at.is_null() {
            assert_eq!(std::ffi::CStr::from_ptr((*at).ifa_name), c"lo");
            let family = i32::from((*(*at).ifa_addr).sa_family);
            families.push(family);
            if family == libc::AF_INET {
                // Without a peer, `ifa_dstaddr` is the address itself. Programs read it without a
                // null check on links without broadcasts.
                let v4 =
                    |addr: *mut libc::sockaddr| (*addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                assert_eq!(v4((*at).ifa_ifu), v4((*at).ifa_addr));
            }
            at = (*at).ifa_next;
        }
        libc::freeifaddrs(first);
        assert_eq!(families, [libc::AF_PACKET, libc::AF_INET, libc::AF_INET6]);
        let index = libc::if_nametoindex(c"lo".as_ptr());
        let mut name = [0; libc::IF_NAMESIZE];
        assert!(!libc::if_indextoname(index, name.as_mut_ptr()).is_null());
        assert_eq!(std::ffi::CStr::from_ptr(name.as_ptr()), c"lo");
        assert_eq!((libc::if_nametoindex(c"eth7".as_ptr()), errno()), (0, libc::ENODEV));
    }
    const SIOCGIFDSTADDR: libc::c_ulong = 0x8917;
    const SIOCGIFBRDADDR: libc::c_ulong = 0x8919;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for (request, wanted) in [(SIOCGIFDSTADDR, [127, 0, 0, 1]), (SIOCGIFBRDADDR, [0; 4])] {
        // A `struct ifreq` contains a name of 16 bytes and a `sockaddr_in`, whose address is at
        // offset 4.
        let mut row = [0u8; 40];
        row[..2].copy_from_slice(b"lo");
        // SAFETY: `row` has the 40 bytes of a `struct ifreq`.
        assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), request, row.as_mut_ptr()) }, 0);
        assert_eq!(row[20..24], wanted);
    }
}
