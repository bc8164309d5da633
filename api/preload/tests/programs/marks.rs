//! Options that say how much waits in a socket, or from where it is looked at. Each case runs on
//! the kernel too.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};

use crate::asleep;
use crate::harness::Case;
use crate::sockets::{get, pair, set};

pub const CASES: &[Case] = &[
    ("few_bytes_are_unsent", few_bytes_are_unsent),
    ("a_mark_of_unsent_bytes_is_inherited", a_mark_of_unsent_bytes_is_inherited),
    ("who_waits_to_send_goes_on_below_the_mark", who_waits_to_send_goes_on_below_the_mark),
    ("a_higher_mark_wakes_who_waits_to_send", a_higher_mark_wakes_who_waits_to_send),
];

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const SIOCOUTQNSD: libc::c_ulong = 0x894b;
const LOWAT: i32 = 16_384;
/// Linux fills a segment once it is begun, and none is longer.
const SEGMENT_MAX: i32 = 65_536;

fn unsent(fd: RawFd) -> i32 {
    let mut bytes = -1;
    // SAFETY: an int, which lives here.
    assert_eq!(unsafe { libc::ioctl(fd, SIOCOUTQNSD, &raw mut bytes) }, 0);
    bytes
}

fn is_ready(fd: RawFd, events: i16, ms: i32) -> bool {
    let mut set = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one descriptor, which lives here.
    unsafe { libc::poll(&raw mut set, 1, ms) == 1 && set.revents & events != 0 }
}

/// Writes until no more is taken, also after a while. Gives how many bytes were.
fn fill(stream: &mut TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        match stream.write(&[7; 4096]) {
            Ok(n) => sent += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                if !is_ready(stream.as_raw_fd(), libc::POLLOUT, 300) {
                    return sent;
                }
            }
        }
    }
}

/// As tcp_stream_memory_free.
fn few_bytes_are_unsent() {
    let (mut a, mut b) = pair();
    let fd = a.as_raw_fd();
    assert_eq!(get(fd, TCP, libc::TCP_NOTSENT_LOWAT), Ok(0));
    assert_eq!(set(fd, SOCKET, libc::SO_SNDBUF, 1 << 20), Ok(()));
    assert_eq!(set(fd, TCP, libc::TCP_NOTSENT_LOWAT, LOWAT), Ok(()));
    assert_eq!(get(fd, TCP, libc::TCP_NOTSENT_LOWAT), Ok(LOWAT));
    let sent = fill(&mut a);
    let left = unsent(fd);
    assert!((LOWAT / 2..=LOWAT + SEGMENT_MAX).contains(&left), "{left} bytes are unsent");
    // Without the mark there is room.
    assert_eq!(set(fd, TCP, libc::TCP_NOTSENT_LOWAT, 0), Ok(()));
    assert!(is_ready(fd, libc::POLLOUT, 0));
    let more = fill(&mut a);
    assert!(unsent(fd) > 2 * (LOWAT + SEGMENT_MAX), "{} bytes are unsent", unsent(fd));
    // Above the mark nothing is taken.
    assert_eq!(set(fd, TCP, libc::TCP_NOTSENT_LOWAT, LOWAT), Ok(()));
    assert!(!is_ready(fd, libc::POLLOUT, 0));
    assert_eq!(a.write(&[7]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    // Bytes go when the peer reads, and that makes room.
    let drained = std::io::copy(&mut (&mut b).take((sent + more) as u64), &mut std::io::sink());
    assert_eq!(drained.unwrap(), (sent + more) as u64);
    assert!(is_ready(fd, libc::POLLOUT, 5000));
    assert_eq!(a.write(&[7]).unwrap(), 1);
}

fn a_mark_of_unsent_bytes_is_inherited() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(set(listener.as_raw_fd(), TCP, libc::TCP_NOTSENT_LOWAT, LOWAT), Ok(()));
    let _b = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut a = listener.accept().unwrap().0;
    assert_eq!(get(a.as_raw_fd(), TCP, libc::TCP_NOTSENT_LOWAT), Ok(LOWAT));
    fill(&mut a);
    let left = unsent(a.as_raw_fd());
    assert!((1..=LOWAT + SEGMENT_MAX).contains(&left), "{left} bytes are unsent");
}

/// The least mark: nothing is taken before all was sent.
fn who_waits_to_send_goes_on_below_the_mark() {
    const BYTES: usize = 4 << 20;
    let (mut a, mut b) = pair();
    assert_eq!(set(a.as_raw_fd(), TCP, libc::TCP_NOTSENT_LOWAT, 1), Ok(()));
    std::thread::scope(|scope| {
        scope.spawn(move || a.write_all(&vec![7; BYTES]).unwrap());
        let read = std::io::copy(&mut b, &mut std::io::sink()).unwrap();
        assert_eq!(read, BYTES as u64);
    });
}

/// As do_tcp_setsockopt: sk_write_space.
fn a_higher_mark_wakes_who_waits_to_send() {
    let (mut a, _b) = pair();
    let fd = a.as_raw_fd();
    assert_eq!(set(fd, SOCKET, libc::SO_SNDBUF, 1 << 20), Ok(()));
    assert_eq!(set(fd, TCP, libc::TCP_NOTSENT_LOWAT, LOWAT), Ok(()));
    fill(&mut a);
    a.set_nonblocking(false).unwrap();
    std::thread::scope(|scope| {
        let sends = scope.spawn(move || a.write_all(&[7; 4 * SEGMENT_MAX as usize]).map(|()| a));
        asleep::others();
        assert!(!sends.is_finished(), "the peer reads nothing");
        assert_eq!(set(fd, TCP, libc::TCP_NOTSENT_LOWAT, 1 << 20), Ok(()));
        sends.join().unwrap().unwrap();
    });
}
