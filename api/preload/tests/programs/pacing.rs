//! SO_MAX_PACING_RATE. The cases do not depend on the machine's speed, because they only check that
//! a transfer takes a minimum time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::asleep;
use crate::harness::Case;
use crate::sockets::{errno, get, pair, set};

pub const CASES: &[Case] = &[
    ("a_rate_reads_as_it_was_set", a_rate_reads_as_it_was_set),
    ("no_rate_is_read_or_set_wrongly", no_rate_is_read_or_set_wrongly),
    ("a_rate_is_inherited_and_told", a_rate_is_inherited_and_told),
    ("a_rate_outlives_its_connection", a_rate_outlives_its_connection),
    ("bytes_wait_for_the_rate", bytes_wait_for_the_rate),
    ("a_rate_that_is_taken_away_lets_bytes_go", a_rate_that_is_taken_away_lets_bytes_go),
];

const SOCKET: i32 = libc::SOL_SOCKET;
const RATE: i32 = libc::SO_MAX_PACING_RATE;
/// Offset of `tcpi_pacing_rate` in a `struct tcp_info`; `tcpi_max_pacing_rate` follows it.
const RATES_AT: usize = 104;

fn set_long(fd: RawFd, rate: u64) {
    // SAFETY: `rate` has the eight bytes that the call reads.
    assert_eq!(unsafe { libc::setsockopt(fd, SOCKET, RATE, (&raw const rate).cast(), 8) }, 0);
}

/// Reads the option into `room` bytes. Returns its length, and a buffer whose unwritten bytes are
/// 7.
fn read(fd: RawFd, room: libc::socklen_t) -> (u32, [u8; 16]) {
    let (mut bytes, mut len) = ([7; 16], room);
    // SAFETY: `bytes` has at least `room` bytes.
    let done =
        unsafe { libc::getsockopt(fd, SOCKET, RATE, bytes.as_mut_ptr().cast(), &raw mut len) };
    assert_eq!(done, 0);
    (len, bytes)
}

fn get_long(fd: RawFd) -> u64 {
    let (len, bytes) = read(fd, 16);
    assert_eq!(len, 8);
    u64::from_ne_bytes(bytes[..8].try_into().unwrap())
}

/// `tcpi_pacing_rate` and `tcpi_max_pacing_rate`.
fn told_rates(fd: RawFd) -> (u64, u64) {
    let (mut info, mut len) = ([0u8; 256], 256);
    // SAFETY: the buffer has the given length.
    let done = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!(done, 0);
    let at = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().unwrap());
    (at(RATES_AT), at(RATES_AT + 8))
}

fn a_rate_reads_as_it_was_set() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (udp, udp6) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("[::1]:0").unwrap());
    let (a, _b) = pair();
    for fd in [listener.as_raw_fd(), udp.as_raw_fd(), udp6.as_raw_fd(), a.as_raw_fd()] {
        assert_eq!((get(fd, SOCKET, RATE), get_long(fd)), (Ok(-1), u64::MAX));
        assert_eq!(set(fd, SOCKET, RATE, 10_000_000), Ok(()));
        assert_eq!((get(fd, SOCKET, RATE), get_long(fd)), (Ok(10_000_000), 10_000_000));
        // The option treats an int as unsigned.
        assert_eq!(set(fd, SOCKET, RATE, -2), Ok(()));
        assert_eq!((get(fd, SOCKET, RATE), get_long(fd)), (Ok(-2), u64::from(u32::MAX - 1)));
        set_long(fd, 5 << 32);
        assert_eq!((get(fd, SOCKET, RATE), get_long(fd)), (Ok(-1), 5 << 32));
        set_long(fd, u32::MAX.into());
        assert_eq!((get(fd, SOCKET, RATE), get_long(fd)), (Ok(-1), u32::MAX.into()));
        assert_eq!(set(fd, SOCKET, RATE, 0), Ok(()));
        assert_eq!((get(fd, SOCKET, RATE), get_long(fd)), (Ok(0), 0));
        assert_eq!(set(fd, SOCKET, RATE, -1), Ok(()));
        assert_eq!((get(fd, SOCKET, RATE), get_long(fd)), (Ok(-1), u64::MAX));
    }
    // The rate does not delay datagrams.
    assert_eq!(set(udp.as_raw_fd(), SOCKET, RATE, 1), Ok(()));
    for _ in 0..3 {
        udp.send_to(&[7; 1000], udp.local_addr().unwrap()).unwrap();
        assert_eq!(udp.recv(&mut [0; 2000]).unwrap(), 1000);
    }
}

fn no_rate_is_read_or_set_wrongly() {
    let (a, _b) = pair();
    let fd = a.as_raw_fd();
    let bytes = [1u8, 2, 3, 4, 5, 6, 7, 8];
    let rate = u32::from_ne_bytes([1, 2, 3, 4]);
    // SAFETY: `len` is at most the length of `bytes`.
    let set = |len: u32| match unsafe {
        libc::setsockopt(fd, SOCKET, RATE, bytes.as_ptr().cast(), len)
    } {
        0 => Ok(()),
        _ => Err(errno()),
    };
    for short in 0..4 {
        assert_eq!(set(short), Err(libc::EINVAL));
    }
    assert_eq!(get_long(fd), u64::MAX);
    // A value shorter than a long is read and written as an int.
    for len in 4..8 {
        assert_eq!((set(len), get_long(fd)), (Ok(()), rate.into()));
    }
    let mut int = [7; 16];
    int[..4].copy_from_slice(&rate.to_ne_bytes());
    for room in 4..8 {
        assert_eq!(read(fd, room), (4, int));
    }
    int[2..4].fill(7);
    assert_eq!(read(fd, 2), (2, int));
    // SAFETY: the call fails with EFAULT for a null address, which this case tests.
    assert_eq!(unsafe { libc::setsockopt(fd, SOCKET, RATE, std::ptr::null(), 4) }, -1);
    assert_eq!(errno(), libc::EFAULT);
}

/// A connection inherits the rate of its listener, and TCP_INFO reports it, as in `sk_clone_lock`
/// and `tcp_get_info`.
fn a_rate_is_inherited_and_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (fd, at) = (listener.as_raw_fd(), listener.local_addr().unwrap());
    set_long(fd, 5 << 32);
    let client = TcpStream::connect(at).unwrap();
    let server = listener.accept().unwrap().0;
    assert_eq!(get_long(server.as_raw_fd()), 5 << 32);
    assert_eq!(told_rates(server.as_raw_fd()).1, 5 << 32);
    assert_eq!(told_rates(client.as_raw_fd()).1, u64::MAX);
    // Listener and connection have separate values from now on.
    assert_eq!(set(server.as_raw_fd(), SOCKET, RATE, 1_000_000), Ok(()));
    assert_eq!(told_rates(server.as_raw_fd()), (1_000_000, 1_000_000));
    assert_eq!(get_long(fd), 5 << 32);
    set_long(fd, u64::MAX);
    let _client = TcpStream::connect(at).unwrap();
    let server = listener.accept().unwrap().0;
    assert_eq!(get_long(server.as_raw_fd()), u64::MAX);
}

/// A disconnect by AF_UNSPEC preserves the rate, as in `tcp_disconnect`.
fn a_rate_outlives_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    let fd = client.as_raw_fd();
    assert_eq!(set(fd, SOCKET, RATE, 1_000_000), Ok(()));
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: integers only.
    let mut to: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    // SAFETY: the addresses and lengths are those of local variables.
    unsafe {
        assert_eq!(libc::getpeername(fd, (&raw mut to).cast(), &raw mut len), 0);
        assert_eq!(libc::connect(fd, &raw const nowhere, size_of::<libc::sockaddr>() as u32), 0);
        assert_eq!(get_long(fd), 1_000_000);
        assert_eq!(libc::connect(fd, (&raw const to).cast(), len), 0);
    }
    assert_eq!((get_long(fd), told_rates(fd).1), (1_000_000, 1_000_000));
    drop(server);
}

fn bytes_wait_for_the_rate() {
    const BYTES: usize = 4 << 20;
    const A_SECOND: i32 = 8 << 20;
    let (mut a, b) = pair();
    assert_eq!(set(a.as_raw_fd(), SOCKET, RATE, A_SECOND), Ok(()));
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            a.write_all(&vec![7; BYTES]).unwrap();
            // After the close, the remaining bytes are still sent at the limited rate.
        });
        assert_eq!((&b).read_to_end(&mut Vec::new()).unwrap(), BYTES);
    });
    // Linux sends the first ten segments at once, which are 640 KiB over loopback.
    let least = Duration::from_millis(350);
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}

fn a_rate_that_is_taken_away_lets_bytes_go() {
    /// Number of bytes, more than the buffers hold.
    const BYTES: usize = 40 << 20;
    let (mut a, mut b) = pair();
    let fd = a.as_raw_fd();
    // At 1000 bytes per second, 40 MiB would take hours.
    assert_eq!(set(fd, SOCKET, RATE, 1000), Ok(()));
    std::thread::scope(|scope| {
        let sends = scope.spawn(move || a.write_all(&vec![7; BYTES]).map(|()| a));
        asleep::others();
        assert!(!sends.is_finished(), "its buffer is full");
        assert_eq!(set(fd, SOCKET, RATE, -1), Ok(()));
        b.read_exact(&mut vec![0; BYTES]).unwrap();
        sends.join().unwrap().unwrap();
    });
}
