//! Ports that the stack chooses for sockets without a port. Each case also runs on the kernel.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::harness::Case;
use crate::sockets::{errno, get, set};

pub const CASES: &[Case] = &[
    ("ports_of_the_hosts_range", ports_of_the_hosts_range),
    ("binds_in_a_narrow_range", binds_in_a_narrow_range),
    ("connects_in_a_narrow_range", connects_in_a_narrow_range),
    ("datagrams_share_a_range_that_is_full", datagrams_share_a_range_that_is_full),
    ("values_of_a_range", values_of_a_range),
];

const IP: i32 = libc::IPPROTO_IP;
const IP_LOCAL_PORT_RANGE: i32 = 51;
const LOOPBACK: [u8; 4] = [127, 0, 0, 1];

fn range(least: u16, most: u16) -> i32 {
    (u32::from(most) << 16 | u32::from(least)) as i32
}

fn socket(kind: i32, ports: i32, reuse: bool) -> OwnedFd {
    // SAFETY: socket takes integers, and the descriptor is new.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0)) };
    let fd = socket.as_raw_fd();
    assert_eq!(set(fd, IP, IP_LOCAL_PORT_RANGE, ports), Ok(()));
    assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, i32::from(reuse)), Ok(()));
    socket
}

fn address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(LOOPBACK) },
        sin_zero: [0; 8],
    }
}

/// Binds a socket to port 0, and returns the chosen port.
fn bind_any(socket: &OwnedFd) -> Result<u16, i32> {
    let (mut name, mut len) = (address(0), size_of::<libc::sockaddr_in>() as u32);
    // SAFETY: `name` is a valid sockaddr_in of `len` bytes.
    unsafe {
        if libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) != 0 {
            return Err(errno());
        }
        assert_eq!(libc::getsockname(socket.as_raw_fd(), (&raw mut name).cast(), &raw mut len), 0);
    }
    Ok(u16::from_be(name.sin_port))
}

fn ports_of_the_hosts_range() {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let ports: Vec<u16> = text.split_whitespace().map(|port| port.parse().unwrap()).collect();
    for _ in 0..20 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!((ports[0]..=ports[1]).contains(&socket.local_addr().unwrap().port()));
    }
}

fn binds_in_a_narrow_range() {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        let sockets: Vec<_> = (0..5).map(|_| socket(kind, range(40_000, 40_003), false)).collect();
        let mut ports: Vec<_> = sockets.iter().map(bind_any).collect();
        assert_eq!(ports.pop(), Some(Err(libc::EADDRINUSE)));
        ports.sort_unstable();
        assert_eq!(ports, (40_000..=40_003).map(Ok).collect::<Vec<_>>());
        assert_eq!(bind_any(&socket(kind, range(60_999, 0), false)), Ok(60_999));
        assert_eq!(bind_any(&socket(kind, range(0, 32_768), false)), Ok(32_768));
        // A bound outside the system's range has no effect.
        let port = bind_any(&socket(kind, range(1, 32_769), false)).unwrap();
        assert!((32_768..=32_769).contains(&port));
    }
    // A datagram socket gets a port from its range when it sends without a bind.
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = UdpSocket::from(socket(libc::SOCK_DGRAM, range(40_010, 40_010), false));
    from.send_to(b"x", to.local_addr().unwrap()).unwrap();
    assert_eq!(to.recv_from(&mut [0; 8]).unwrap().1.port(), 40_010);
}

fn connects_in_a_narrow_range() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = address(listener.local_addr().unwrap().port());
    let mut ports = Vec::new();
    let mut streams = Vec::new();
    for _ in 0..5 {
        let socket = socket(libc::SOCK_STREAM, range(40_020, 40_023), false);
        // SAFETY: `name` is a valid sockaddr_in of this length.
        let connected = unsafe {
            libc::connect(
                socket.as_raw_fd(),
                (&raw const name).cast(),
                size_of::<libc::sockaddr_in>() as u32,
            )
        };
        if connected != 0 {
            ports.push(Err(errno()));
            continue;
        }
        let stream = TcpStream::from(socket);
        ports.push(Ok(stream.local_addr().unwrap().port()));
        streams.push(stream);
    }
    assert_eq!(ports.pop(), Some(Err(libc::EADDRNOTAVAIL)));
    ports.sort_unstable();
    assert_eq!(ports, (40_020..=40_023).map(Ok).collect::<Vec<_>>());
}

/// As `udp_lib_lport_inuse`: sockets that may share a port do not conflict with each other.
fn datagrams_share_a_range_that_is_full() {
    let new = |reuse| socket(libc::SOCK_DGRAM, range(40_030, 40_031), reuse);
    let sharing: Vec<_> = (0..8).map(|_| new(true)).collect();
    for socket in &sharing {
        assert!((40_030..=40_031).contains(&bind_any(socket).unwrap()));
    }
    let others = [new(false), new(false), new(false)];
    let found = others.each_ref().map(bind_any);
    assert_eq!(found[2], Err(libc::EADDRINUSE));
}

fn values_of_a_range() {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        let socket = socket(kind, 0, false);
        let fd = socket.as_raw_fd();
        assert_eq!(get(fd, IP, IP_LOCAL_PORT_RANGE), Ok(0));
        for value in [range(5, 4), range(60_000, 40_000)] {
            assert_eq!(set(fd, IP, IP_LOCAL_PORT_RANGE, value), Err(libc::EINVAL));
        }
        let byte = 7u8;
        // SAFETY: a byte.
        let set_byte =
            unsafe { libc::setsockopt(fd, IP, IP_LOCAL_PORT_RANGE, (&raw const byte).cast(), 1) };
        assert_eq!((set_byte, errno()), (-1, libc::EINVAL));
        for value in [range(5, 0), range(0, 5), range(50_000, 50_000)] {
            assert_eq!(set(fd, IP, IP_LOCAL_PORT_RANGE, value), Ok(()));
            assert_eq!(get(fd, IP, IP_LOCAL_PORT_RANGE), Ok(value));
        }
        assert_eq!(bind_any(&socket), Ok(50_000));
    }
}
