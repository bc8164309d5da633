//! Accept queues, and effects that must be visible when a call returns, with any number of shards.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("accepted_right_after_connect", accepted_right_after_connect),
    ("bound_right_after_a_listener_closed", bound_right_after_a_listener_closed),
    ("what_waits_is_reset_with_its_listener", what_waits_is_reset_with_its_listener),
    ("what_waits_for_bytes_is_reset_with_its_listener", what_waits_for_bytes_is_reset),
    ("datagrams_beside_resets", datagrams_beside_resets),
];

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn connected_to(listener: &TcpListener) -> TcpStream {
    TcpStream::connect(listener.local_addr().unwrap()).unwrap()
}

fn is_reset(stream: &TcpStream) -> bool {
    let read = std::io::Read::read(&mut &*stream, &mut [0; 1]);
    read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// Over loopback, a connection is in the accept queue before connect(2) returns.
fn accepted_right_after_connect() {
    let listener = listener();
    listener.set_nonblocking(true).unwrap();
    for _ in 0..200 {
        let client = connected_to(&listener);
        let (server, from) = listener.accept().expect("it is there");
        assert_eq!(client.local_addr().unwrap(), from);
        drop((client, server));
    }
}

/// After a listener is closed, its unaccepted connections do not prevent a bind to the port.
fn bound_right_after_a_listener_closed() {
    for n in 0..100 {
        let listener = listener();
        let at = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..8).map(|_| connected_to(&listener)).collect();
        // Create zero to three other sockets in between.
        let others: Vec<_> = (0..n % 4).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        // SAFETY: socket(2) has no memory arguments.
        let fresh = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        assert!(fresh >= 0);
        drop(listener);
        let name = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: at.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
            sin_zero: [0; 8],
        };
        // SAFETY: `name` is a valid sockaddr_in of 16 bytes.
        let bound = unsafe { libc::bind(fresh, (&raw const name).cast(), 16) };
        assert_eq!(bound, 0, "{n}: {}", std::io::Error::last_os_error());
        // SAFETY: this case owns the descriptor, and does not use it any more.
        unsafe { libc::close(fresh) };
        drop((clients, others));
    }
}

fn what_waits_is_reset_with_its_listener() {
    for n in 0..12 {
        let listener = listener();
        let clients: Vec<_> = (0..4).map(|_| connected_to(&listener)).collect();
        // Let the engine fall asleep. If the time is too short, the case covers less, but does not
        // fail.
        std::thread::sleep(Duration::from_millis(30));
        if n % 2 == 0 {
            // SAFETY: shutdown(2) has no memory arguments.
            unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
        } else {
            drop(listener);
        }
        assert!(clients.iter().all(is_reset), "{n}");
    }
}

/// Connections that still wait for bytes, because of TCP_DEFER_ACCEPT, are reset when the
/// listener closes.
fn what_waits_for_bytes_is_reset() {
    for _ in 0..4 {
        let listener = listener();
        let seconds: libc::c_int = 30;
        // SAFETY: the value is an int.
        let set = unsafe {
            let value = (&raw const seconds).cast();
            libc::setsockopt(
                listener.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_DEFER_ACCEPT,
                value,
                4,
            )
        };
        assert_eq!(set, 0);
        let clients: Vec<_> = (0..4).map(|_| connected_to(&listener)).collect();
        std::thread::sleep(Duration::from_millis(20));
        drop(listener);
        for client in &clients {
            // Linux has no connection yet, and answers each segment with a reset. The stack has
            // reset the connection already, or will do so soon.
            match std::io::Write::write(&mut &*client, b"x") {
                Ok(_) => assert!(is_reset(client)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
    }
}

/// A process closes a connection with SO_LINGER 0 and unsent bytes, while datagrams of other
/// sockets are in flight.
fn datagrams_beside_resets() {
    for _ in 0..60 {
        let listener = listener();
        let client = connected_to(&listener);
        let (server, _) = listener.accept().unwrap();
        let bound = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let receivers: Vec<_> = (0..4).map(|_| bound()).collect();
        let senders: Vec<_> = (0..4).map(|_| bound()).collect();
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the value is a linger.
        let set = unsafe {
            let value = (&raw const linger).cast();
            libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, 8)
        };
        assert_eq!(set, 0);
        std::thread::sleep(Duration::from_millis(5));
        for receiver in &receivers {
            let to = receiver.local_addr().unwrap();
            senders.iter().for_each(|sender| assert_eq!(sender.send_to(b"x", to).unwrap(), 1));
        }
        std::io::Write::write_all(&mut &client, b"xyz").unwrap();
        drop(client);
        for receiver in &receivers {
            (0..4).for_each(|_| assert_eq!(receiver.recv(&mut [0; 4]).unwrap(), 1));
        }
        drop(server);
    }
}
