//! Limits and counts of unsent and unread bytes, SO_PEEK_OFF, and minimum TTLs. Each case also runs
//! on the kernel.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use crate::asleep;
use crate::harness::Case;
use crate::sockets::{errno, get, pair, set};
use crate::values::receive;

pub const CASES: &[Case] = &[
    ("few_bytes_are_unsent", few_bytes_are_unsent),
    ("a_mark_of_unsent_bytes_is_inherited", a_mark_of_unsent_bytes_is_inherited),
    ("who_waits_to_send_goes_on_below_the_mark", who_waits_to_send_goes_on_below_the_mark),
    ("a_higher_mark_wakes_who_waits_to_send", a_higher_mark_wakes_who_waits_to_send),
    ("memory_in_use_is_shown", memory_in_use_is_shown),
    ("looks_go_on_in_datagrams", looks_go_on_in_datagrams),
    ("looks_go_on_in_a_stream", looks_go_on_in_a_stream),
    ("lost_datagrams_are_counted", lost_datagrams_are_counted),
    ("segments_from_far_away_are_dropped", segments_from_far_away_are_dropped),
];

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const SIOCOUTQNSD: libc::c_ulong = 0x894b;
const LOWAT: i32 = 16_384;
/// Maximum segment length in bytes. Linux adds bytes to a segment until it has this length.
const SEGMENT_MAX: i32 = 65_536;

fn unsent(fd: RawFd) -> i32 {
    let mut bytes = -1;
    // SAFETY: SIOCOUTQNSD writes an int, which is a local.
    assert_eq!(unsafe { libc::ioctl(fd, SIOCOUTQNSD, &raw mut bytes) }, 0);
    bytes
}

fn is_ready(fd: RawFd, events: i16, ms: i32) -> bool {
    let mut set = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the list has one entry, which is a local.
    unsafe { libc::poll(&raw mut set, 1, ms) == 1 && set.revents & events != 0 }
}

/// Writes until no more bytes are accepted, even after a pause. Returns the number of bytes
/// written.
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

/// Writes until no more bytes are accepted and more than `least` bytes are unsent, waiting for room
/// as long as needed. Returns the number of bytes written. The last segment is full, because Linux
/// adds bytes to a segment that has room, even above the limit.
fn fill_beyond(stream: &mut TcpStream, least: i32) -> usize {
    const PATIENCE_MS: i32 = 30_000;
    let fd = stream.as_raw_fd();
    let mut sent = fill(stream);
    while unsent(fd) <= least {
        let has_room = is_ready(fd, libc::POLLOUT, PATIENCE_MS);
        assert!(has_room, "{} bytes are unsent", unsent(fd));
        sent += fill(stream);
    }
    sent
}

/// TCP_NOTSENT_LOWAT limits the unsent bytes, as in tcp_stream_memory_free of Linux.
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
    // Without a limit the socket is writable.
    assert_eq!(set(fd, TCP, libc::TCP_NOTSENT_LOWAT, 0), Ok(()));
    assert!(is_ready(fd, libc::POLLOUT, 0));
    let more = fill_beyond(&mut a, 2 * (LOWAT + SEGMENT_MAX));
    // Above the limit no bytes are accepted.
    assert_eq!(set(fd, TCP, libc::TCP_NOTSENT_LOWAT, LOWAT), Ok(()));
    assert!(!is_ready(fd, libc::POLLOUT, 0));
    assert_eq!(a.write(&[7]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    // When the peer reads, bytes are sent, and the socket becomes writable.
    let drained = std::io::copy(&mut (&mut b).take((sent + more) as u64), &mut std::io::sink());
    assert_eq!(drained.unwrap(), (sent + more) as u64);
    assert!(is_ready(fd, libc::POLLOUT, 5000));
    assert_eq!(a.write(&[7]).unwrap(), 1);
}

fn a_mark_of_unsent_bytes_is_inherited() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(set(listener.as_raw_fd(), TCP, libc::TCP_NOTSENT_LOWAT, LOWAT), Ok(()));
    let _b = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut a = listener.accept().unwrap().0;
    assert_eq!(get(a.as_raw_fd(), TCP, libc::TCP_NOTSENT_LOWAT), Ok(LOWAT));
    fill(&mut a);
    let left = unsent(a.as_raw_fd());
    assert!((1..=LOWAT + SEGMENT_MAX).contains(&left), "{left} bytes are unsent");
}

/// With a limit of one byte, no bytes are accepted before all earlier ones were sent.
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

/// Raising TCP_NOTSENT_LOWAT wakes blocked writers, as do_tcp_setsockopt does by sk_write_space.
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

/// SO_MEMINFO, as sk_get_meminfo.
fn memory_in_use_is_shown() {
    let shown = |fd: RawFd, room: usize| {
        let (mut words, mut len) = ([-1; 9], room as libc::socklen_t);
        // SAFETY: the address and length are those of `words`.
        let failed = unsafe {
            libc::getsockopt(fd, SOCKET, libc::SO_MEMINFO, words.as_mut_ptr().cast(), &raw mut len)
        };
        assert_eq!(failed, 0);
        (words, len)
    };
    let (mut a, b) = pair();
    a.write_all(&[7; 5000]).unwrap();
    assert!(is_ready(b.as_raw_fd(), libc::POLLIN, 5000));
    let (words, len) = shown(b.as_raw_fd(), 36);
    assert_eq!(len, 36);
    assert!(words[0] >= 5000, "{words:?}");
    assert_eq!(get(b.as_raw_fd(), SOCKET, libc::SO_RCVBUF), Ok(words[1]));
    assert_eq!(get(b.as_raw_fd(), SOCKET, libc::SO_SNDBUF), Ok(words[3]));
    assert_eq!((words[2], words[5], words[8]), (0, 0, 0), "nothing was sent or dropped");
    assert_eq!(shown(a.as_raw_fd(), 40).1, 36);
    assert_eq!(shown(a.as_raw_fd(), 6).1, 6);
    assert_eq!(set(a.as_raw_fd(), SOCKET, libc::SO_MEMINFO, 1), Err(libc::ENOPROTOOPT));
}

/// Receives up to `room` bytes. Returns the errno on failure.
fn recv(fd: RawFd, room: usize, flags: i32) -> Result<String, i32> {
    let mut bytes = vec![0; room];
    // SAFETY: `bytes` has room for `room` bytes.
    let n = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), room, flags) };
    if n < 0 {
        return Err(errno());
    }
    bytes.truncate(n as usize);
    Ok(String::from_utf8(bytes).unwrap())
}

fn peek_off(fd: RawFd) -> i32 {
    get(fd, SOCKET, libc::SO_PEEK_OFF).unwrap()
}

/// MSG_PEEK continues at the offset of SO_PEEK_OFF, as in __skb_try_recv_from_queue and
/// sk_peek_offset_bwd.
fn looks_go_on_in_datagrams() {
    const PEEK: i32 = libc::MSG_PEEK;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = socket.as_raw_fd();
    assert_eq!(peek_off(fd), -1);
    assert_eq!(set(fd, SOCKET, libc::SO_PEEK_OFF, 0), Ok(()));
    for datagram in ["abcdef", "ghij"] {
        socket.send_to(datagram.as_bytes(), socket.local_addr().unwrap()).unwrap();
    }
    for (room, flags, seen, then) in [
        (2, 0, "ab", 2),
        (2, 0, "cd", 4),
        (9, 0, "ef", 6),
        (3, 0, "ghi", 9),
        (0, libc::MSG_TRUNC, "", 13),
    ] {
        let flags = PEEK | flags;
        // With MSG_TRUNC only a length is returned, without bytes.
        match room {
            // SAFETY: no bytes.
            0 => assert_eq!(unsafe { libc::recv(fd, std::ptr::null_mut(), 0, flags) }, 4),
            _ => assert_eq!(recv(fd, room, flags).as_deref(), Ok(seen)),
        }
        assert_eq!(peek_off(fd), then, "{seen}");
    }
    assert_eq!(recv(fd, 9, PEEK | libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    // A read without MSG_PEEK moves the offset back by the bytes read.
    assert_eq!(recv(fd, 9, 0).as_deref(), Ok("abcdef"));
    assert_eq!(peek_off(fd), 7);
    assert_eq!(set(fd, SOCKET, libc::SO_PEEK_OFF, 3), Ok(()));
    assert_eq!(recv(fd, 9, PEEK).as_deref(), Ok("j"));
    assert_eq!(set(fd, SOCKET, libc::SO_PEEK_OFF, -1), Ok(()));
    for _ in 0..2 {
        assert_eq!(recv(fd, 9, PEEK).as_deref(), Ok("ghij"));
    }
    assert_eq!(peek_off(fd), -1);
}

/// On a stream, too, MSG_PEEK continues at the offset of SO_PEEK_OFF, as in tcp_recvmsg_locked.
fn looks_go_on_in_a_stream() {
    const PEEK: i32 = libc::MSG_PEEK;
    let (mut a, b) = pair();
    let fd = b.as_raw_fd();
    assert_eq!(set(fd, SOCKET, libc::SO_PEEK_OFF, 0), Ok(()));
    a.write_all(b"abcdef").unwrap();
    assert_eq!(recv(fd, 2, PEEK).as_deref(), Ok("ab"));
    assert_eq!(recv(fd, 9, PEEK).as_deref(), Ok("cdef"));
    assert_eq!((peek_off(fd), recv(fd, 9, PEEK | libc::MSG_DONTWAIT)), (6, Err(libc::EAGAIN)));
    std::thread::scope(|scope| {
        let looks = scope.spawn(move || recv(fd, 9, PEEK));
        asleep::others();
        a.write_all(b"gh").unwrap();
        assert_eq!(looks.join().unwrap().as_deref(), Ok("gh"));
    });
    assert_eq!(recv(fd, 3, 0).as_deref(), Ok("abc"));
    assert_eq!((peek_off(fd), recv(fd, 9, PEEK | libc::MSG_DONTWAIT)), (5, Err(libc::EAGAIN)));
    // SAFETY: MSG_TRUNC only counts the bytes of a stream, and writes none.
    let counted = unsafe {
        assert_eq!(set(fd, SOCKET, libc::SO_PEEK_OFF, 1), Ok(()));
        libc::recv(fd, std::ptr::null_mut(), 9, PEEK | libc::MSG_TRUNC)
    };
    assert_eq!((counted, peek_off(fd)), (4, 5));
    assert_eq!(recv(fd, 9, 0).as_deref(), Ok("defgh"));
    assert_eq!(peek_off(fd), 0);
}

/// As sock_recv_drops. Each round sends more datagrams than fit, unless the receiver reads all of
/// them meanwhile.
fn lost_datagrams_are_counted() {
    const A_ROUND: usize = 100;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (fd, at) = (socket.as_raw_fd(), socket.local_addr().unwrap());
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(set(fd, SOCKET, libc::SO_RCVBUF, 1), Ok(()));
    assert_eq!(set(fd, SOCKET, libc::SO_RXQ_OVFL, 1), Ok(()));
    assert_eq!(get(fd, SOCKET, libc::SO_RXQ_OVFL), Ok(1));
    let (mut lost, mut told) = (0, Vec::new());
    while lost == 0 {
        (0..A_ROUND).for_each(|_| assert_eq!(sender.send_to(&[7; 40], at).unwrap(), 40));
        lost += A_ROUND;
        while is_ready(fd, libc::POLLIN, 300) {
            assert_eq!(receive(fd, 0).0, 40);
            lost -= 1;
        }
        sender.send_to(b"last", at).unwrap();
        told = receive(fd, 0).1;
    }
    let count = (SOCKET, libc::SO_RXQ_OVFL, (lost as u32).to_ne_bytes().to_vec());
    assert_eq!(told, [count]);
    assert_eq!(set(fd, SOCKET, libc::SO_RXQ_OVFL, 0), Ok(()));
    sender.send_to(b"none", at).unwrap();
    assert_eq!(receive(fd, 0).1, []);
}

/// As tcp_v4_rcv and tcp_v6_rcv, drops SYNs to a listener and segments of connections whose TTL is
/// below the minimum.
fn segments_from_far_away_are_dropped() {
    const MINHOPCOUNT: i32 = 73;
    let v4 = (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_MINTTL);
    let v6 = (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, MINHOPCOUNT);
    for (at, (level, hops, least)) in [("127.0.0.1:0", v4), ("[::1]:0", v6)] {
        let listener = TcpListener::bind(at).unwrap();
        let fd = listener.as_raw_fd();
        for wrong in [-1, 256] {
            assert_eq!(set(fd, level, least, wrong), Err(libc::EINVAL));
        }
        assert_eq!((get(fd, level, least), set(fd, level, least, 255)), (Ok(0), Ok(())));
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let connects = scope.spawn(move || TcpStream::connect(to).unwrap());
            assert!(!is_ready(fd, libc::POLLIN, 500), "its SYN has come over hops");
            assert_eq!(set(fd, level, least, 64), Ok(()));
            // The retransmitted SYN has a sufficient TTL.
            let (mut near, mut far) = (listener.accept().unwrap().0, connects.join().unwrap());
            let (near_fd, far_fd) = (near.as_raw_fd(), far.as_raw_fd());
            assert_eq!(get(near_fd, level, least), Ok(64), "as its listener has");
            assert_eq!(set(far_fd, level, hops, 63), Ok(()));
            far.write_all(b"x").unwrap();
            assert!(!is_ready(near_fd, libc::POLLIN, 300), "too far");
            // The retransmission has a sufficient TTL.
            assert_eq!(set(far_fd, level, hops, 64), Ok(()));
            let mut byte = [0];
            near.read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"x");
        });
    }
}
