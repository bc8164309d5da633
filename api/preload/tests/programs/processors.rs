//! SO_INCOMING_CPU. Each case also runs on the kernel.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::harness::{Case, shards};
use crate::sockets::{errno, get, set};

pub const CASES: &[Case] = &[
    ("the_processor_of_a_connection", the_processor_of_a_connection),
    ("a_listener_is_chosen_by_its_processor", a_listener_is_chosen_by_its_processor),
    ("a_datagram_socket_is_chosen_by_its_processor", a_datagram_socket_is_chosen_by_its_processor),
];

const SOCKET: i32 = libc::SOL_SOCKET;
/// Processor number that no machine has.
const NONE_SUCH: i32 = 1_000_000;
/// Number of packets. By chance, all of them miss one of two sockets once in 2^60 runs.
const MANY: usize = 60;

fn processor(fd: RawFd) -> i32 {
    get(fd, SOCKET, libc::SO_INCOMING_CPU).unwrap()
}

/// Processors of this machine.
fn processors() -> i32 {
    // SAFETY: an integer.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) as i32 }
}

fn the_processor_of_a_connection() {
    let here = 0..processors();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(processor(listener.as_raw_fd()), -1);
    for value in [-1, -5, NONE_SUCH, 7] {
        assert_eq!(set(listener.as_raw_fd(), SOCKET, libc::SO_INCOMING_CPU, value), Ok(()));
        assert_eq!(processor(listener.as_raw_fd()), value);
    }
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (child, _) = listener.accept().unwrap();
    assert_eq!(processor(listener.as_raw_fd()), 7, "a listener keeps what was set");
    for stream in [&client, &child] {
        assert!(here.contains(&processor(stream.as_raw_fd())));
    }
    // A connection returns the value that was set until the next packet arrives.
    let (fd, mut byte) = (client.as_raw_fd(), [0]);
    assert_eq!(set(fd, SOCKET, libc::SO_INCOMING_CPU, NONE_SUCH), Ok(()));
    std::io::Write::write_all(&mut &child, b"x").unwrap();
    std::io::Read::read_exact(&mut &client, &mut byte).unwrap();
    assert!(here.contains(&processor(fd)));

    let (to, from) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    from.send_to(b"x", to.local_addr().unwrap()).unwrap();
    to.recv(&mut byte).unwrap();
    assert_eq!(processor(to.as_raw_fd()), -1, "without a peer");
    from.connect(to.local_addr().unwrap()).unwrap();
    assert_eq!(processor(from.as_raw_fd()), -1, "nothing came");
    to.send_to(b"x", from.local_addr().unwrap()).unwrap();
    from.recv(&mut byte).unwrap();
    assert!(here.contains(&processor(from.as_raw_fd())));
}

fn address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}

/// Creates a nonblocking socket with SO_REUSEPORT, bound to `port`; 0: any.
fn sharing(kind: i32, port: u16) -> OwnedFd {
    let name = address(port);
    // SAFETY: the address and length are those of `name`, and the descriptor is new.
    unsafe {
        let kind = kind | libc::SOCK_NONBLOCK;
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0));
        let fd = socket.as_raw_fd();
        assert_eq!(set(fd, SOCKET, libc::SO_REUSEPORT, 1), Ok(()));
        let len = size_of_val(&name) as u32;
        assert_eq!(libc::bind(fd, (&raw const name).cast(), len), 0, "{}", errno());
        socket
    }
}

fn choose(socket: RawFd, value: i32) {
    assert_eq!(set(socket, SOCKET, libc::SO_INCOMING_CPU, value), Ok(()));
}

/// Every processor has its own listener, so the listener for a missing processor gets no
/// connections.
fn a_listener_is_chosen_by_its_processor() {
    let first = sharing(libc::SOCK_STREAM, 0);
    // SAFETY: the socket is open, and bound.
    let listening = |socket: OwnedFd| unsafe {
        assert_eq!(libc::listen(socket.as_raw_fd(), 128), 0);
        TcpListener::from(socket)
    };
    let idle = listening(first);
    let port = idle.local_addr().unwrap().port();
    choose(idle.as_raw_fd(), NONE_SUCH);
    let own: Vec<_> = (0..processors())
        .map(|number| {
            let socket = sharing(libc::SOCK_STREAM, port);
            // Set the option before listen(2) for half of the sockets, and afterwards for the other
            // half.
            if number % 2 == 0 {
                choose(socket.as_raw_fd(), number);
                return listening(socket);
            }
            let listener = listening(socket);
            choose(listener.as_raw_fd(), number);
            listener
        })
        .collect();
    for _ in 0..MANY {
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let from = client.local_addr().unwrap();
        let accepted = loop {
            assert!(idle.accept().is_err(), "a processor has a listener");
            if let Some(accepted) = own.iter().find_map(|listener| listener.accept().ok()) {
                break accepted;
            }
        };
        assert_eq!(accepted.1, from);
    }
}

fn a_datagram_socket_is_chosen_by_its_processor() {
    // With several shards, the sending and the receiving shard both choose a socket, so the result
    // does not depend on the processor.
    if shards() > 1 {
        return;
    }
    let idle = UdpSocket::from(sharing(libc::SOCK_DGRAM, 0));
    let port = idle.local_addr().unwrap().port();
    choose(idle.as_raw_fd(), -1);
    let own: Vec<_> = (0..processors())
        .map(|number| {
            let socket = sharing(libc::SOCK_DGRAM, port);
            choose(socket.as_raw_fd(), number);
            UdpSocket::from(socket)
        })
        .collect();
    for _ in 0..MANY {
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.send_to(b"x", ("127.0.0.1", port)).unwrap();
        let mut byte = [0];
        while !own.iter().any(|socket| socket.recv(&mut byte).is_ok()) {
            assert!(idle.recv(&mut byte).is_err(), "a processor has a socket");
        }
    }
}
