//! Bytes, datagrams, files.

use std::io::{ErrorKind, Read, Seek, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::asleep;
use crate::harness::Case;
use crate::polling::fill;
use crate::sockets::{errno, get, pair, set};

pub const CASES: &[Case] = &[
    ("what_is_peeked_at_and_cut_is_not_copied", what_is_peeked_at_and_cut_is_not_copied),
    ("streams_know_where_they_go", streams_know_where_they_go),
    ("names_that_are_too_short", names_that_are_too_short),
    ("more_to_come_from_another_process", || {
        more_to_come_from_another_process();
    }),
    ("nightly::more_to_come_is_not_held_back", more_to_come_is_not_held_back),
    ("echo", echo),
    ("bulk_both_ways", bulk_both_ways),
    ("peek_and_waitall", peek_and_waitall),
    ("as_many_bytes_as_the_mark_says", as_many_bytes_as_the_mark_says),
    ("an_error_behind_bytes_is_for_the_next_call", an_error_behind_bytes_is_for_the_next_call),
    ("a_look_tells_an_error", a_look_tells_an_error),
    ("nonblocking_fills_up", nonblocking_fills_up),
    ("timeouts", || {
        timeouts();
    }),
    ("nightly::timeouts_end_in_time", timeouts_end_in_time),
    ("reset", reset),
    ("vectors", vectors),
    ("datagrams", datagrams),
    ("datagrams_in_parts", datagrams_in_parts),
    ("datagrams_that_are_too_long", datagrams_that_are_too_long),
    ("a_datagram_that_is_short_enough_asks_nobody", a_datagram_that_is_short_enough_asks_nobody),
    ("datagram_control", datagram_control),
    ("many_datagrams_in_one_call", many_datagrams_in_one_call),
    ("files", files),
    ("pipes", pipes),
    ("streams", streams),
];

fn echo() {
    let (mut a, mut b) = pair();
    b.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    a.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    b.shutdown(Shutdown::Write).unwrap();
    assert_eq!(a.read(&mut got).unwrap(), 0);
    a.write_all(b"later").unwrap();
    drop(a);
    let mut rest = Vec::new();
    b.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"later");
}

fn bulk_both_ways() {
    const LEN: usize = 24 << 20;
    let byte = |n: usize, salt: usize| (n.wrapping_mul(31) >> 7) as u8 ^ salt as u8;
    let (a, b) = pair();
    std::thread::scope(|scope| {
        for (salt, from, to) in [(1, &a, &b), (2, &b, &a)] {
            scope.spawn(move || {
                let data: Vec<u8> = (0..LEN).map(|n| byte(n, salt)).collect();
                let mut from = from;
                from.write_all(&data).unwrap();
                from.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut data = Vec::new();
                let mut to = to;
                to.read_to_end(&mut data).unwrap();
                assert_eq!(data.len(), LEN);
                assert!(data.iter().enumerate().all(|(n, &got)| got == byte(n, salt)));
            });
        }
    });
}

fn peek_and_waitall() {
    let (a, mut b) = pair();
    b.write_all(b"abc").unwrap();
    let mut got = [0; 8];
    assert_eq!(a.peek(&mut got).unwrap(), 3);
    assert_eq!(a.peek(&mut got).unwrap(), 3);
    let late = std::thread::spawn(move || {
        asleep::others();
        b.write_all(b"defgh").unwrap();
        b
    });
    // SAFETY: `got` has room for eight bytes.
    let n = unsafe { libc::recv(a.as_raw_fd(), got.as_mut_ptr().cast(), 8, libc::MSG_WAITALL) };
    assert_eq!((n, &got), (8, b"abcdefgh"));
    drop(late.join().unwrap());
    // SAFETY: as above.
    let n = unsafe { libc::recv(a.as_raw_fd(), got.as_mut_ptr().cast(), 8, libc::MSG_WAITALL) };
    assert_eq!(n, 0, "the end");
}

/// As sock_rcvlowat, recv waits for the smaller of SO_RCVLOWAT and the length. After a timeout it
/// returns the bytes that have arrived.
fn as_many_bytes_as_the_mark_says() {
    let (mut a, b) = pair();
    let fd = b.as_raw_fd();
    assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4), Ok(()));
    let recv = |len: usize, flags| {
        let mut got = vec![0; len];
        // SAFETY: `got` has room for `len` bytes.
        let n = unsafe { libc::recv(fd, got.as_mut_ptr().cast(), len, flags) };
        got.truncate(usize::try_from(n).map_err(|_| errno())?);
        Ok::<_, i32>(got)
    };
    for flags in [0, libc::MSG_PEEK, libc::MSG_TRUNC] {
        a.write_all(b"ab").unwrap();
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| recv(8, flags));
            asleep::others();
            assert!(!reads.is_finished(), "two bytes are below the mark");
            a.write_all(b"cd").unwrap();
            let got = reads.join().unwrap().unwrap();
            assert_eq!(got.len(), 4, "flags {flags}");
        });
        if flags == libc::MSG_PEEK {
            assert_eq!(recv(8, 0).unwrap(), b"abcd");
        }
    }
    a.write_all(b"xyz").unwrap();
    assert_eq!(recv(2, 0).unwrap(), b"xy", "all that was asked for");
    assert_eq!(recv(8, libc::MSG_PEEK | libc::MSG_DONTWAIT).unwrap(), b"z");
    assert_eq!(recv(8, libc::MSG_DONTWAIT).unwrap(), b"z");
    assert_eq!(recv(8, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    b.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    a.write_all(b"q").unwrap();
    arrived(&b, 1);
    assert_eq!(recv(8, libc::MSG_PEEK).unwrap(), b"q", "time is up");
    assert_eq!(recv(8, 0).unwrap(), b"q", "time is up");
    b.set_read_timeout(None).unwrap();
    a.write_all(b"r").unwrap();
    a.shutdown(Shutdown::Write).unwrap();
    assert_eq!(recv(8, 0).unwrap(), b"r", "no more will come");
    assert_eq!(recv(8, 0).unwrap(), b"");
}

/// Waits until `count` bytes of a stream can be read.
fn arrived(stream: &TcpStream, count: i32) {
    let mut unread = -1;
    while unread < count {
        // SAFETY: FIONREAD writes an int, which is a local.
        let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut unread) };
        assert_eq!(asked, 0, "{}", errno());
        std::thread::yield_now();
    }
}

fn an_error_behind_bytes_is_for_the_next_call() {
    for name in ["MSG_WAITALL", "SO_RCVLOWAT"] {
        let (mut a, b) = pair();
        let fd = b.as_raw_fd();
        let flags = if name == "MSG_WAITALL" { libc::MSG_WAITALL } else { 0 };
        assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4), Ok(()));
        a.write_all(b"ab").unwrap();
        // Wait for the bytes to arrive, because the reset discards unsent bytes.
        arrived(&b, 2);
        let mut got = [0; 4];
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                // SAFETY: `got` has room for four bytes.
                unsafe { libc::recv(fd, got.as_mut_ptr().cast(), 4, flags) }
            });
            asleep::others();
            close_with_reset(a);
            assert_eq!(reads.join().unwrap(), 2, "{name}");
        });
        assert_eq!((&b).read(&mut got).unwrap_err().kind(), ErrorKind::ConnectionReset, "{name}");
        assert_eq!((&b).read(&mut got).unwrap(), 0, "{name}");
    }
}

/// Like any call that returns a pending error, MSG_PEEK clears it.
fn a_look_tells_an_error() {
    for flags in
        [libc::MSG_PEEK, libc::MSG_PEEK | libc::MSG_TRUNC, libc::MSG_PEEK | libc::MSG_WAITALL]
    {
        for waits in [false, true] {
            let (a, b) = pair();
            let look = || {
                let mut got = [0u8; 4];
                // SAFETY: `got` has room for four bytes.
                let n = unsafe { libc::recv(b.as_raw_fd(), got.as_mut_ptr().cast(), 4, flags) };
                if n < 0 { Err(errno()) } else { Ok(n) }
            };
            let first = if waits {
                std::thread::scope(|scope| {
                    let looks = scope.spawn(look);
                    asleep::others();
                    close_with_reset(a);
                    looks.join().unwrap()
                })
            } else {
                close_with_reset(a);
                look()
            };
            assert_eq!((first, look()), (Err(libc::ECONNRESET), Ok(0)), "{flags:x} {waits}");
        }
    }
}

fn nonblocking_fills_up() {
    let (mut a, mut b) = pair();
    b.set_nonblocking(true).unwrap();
    assert_eq!(b.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let sent = fill(&b);
    let mut entry = libc::pollfd { fd: b.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; sent];
        a.read_exact(&mut all).unwrap();
        a
    });
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, -1) }, 1);
    reader.join().unwrap();
}

/// SO_RCVTIMEO of the following case.
const LIMIT: Duration = Duration::from_millis(700);

/// Returns how long the call took.
fn timeouts() -> Duration {
    let (mut a, mut b) = pair();
    a.set_read_timeout(Some(LIMIT)).unwrap();
    let begin = Instant::now();
    assert_eq!(a.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let took = begin.elapsed();
    assert!(took >= LIMIT, "{took:?}");
    b.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let error = loop {
        if let Err(error) = b.write(&[0; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    took
}

fn timeouts_end_in_time() {
    let took = timeouts();
    assert!(took < LIMIT * 2, "{took:?}");
}

fn close_with_reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the address and length are those of `linger`.
    let result = unsafe {
        let (at, len) = ((&raw const linger).cast(), size_of_val(&linger) as u32);
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len)
    };
    assert_eq!(result, 0);
}

fn reset() {
    let (a, mut b) = pair();
    close_with_reset(a);
    assert_eq!(b.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(b.read(&mut [0]).unwrap(), 0, "the error is told once");
    assert_eq!(b.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

fn vectors() {
    let (mut a, mut b) = pair();
    let parts = [b"ab".as_slice(), b"", b"cde"].map(std::io::IoSlice::new);
    assert_eq!(b.write_vectored(&parts).unwrap(), 5);
    let (mut one, mut two) = ([0; 1], [0; 9]);
    let mut parts = [std::io::IoSliceMut::new(&mut one), std::io::IoSliceMut::new(&mut two)];
    assert_eq!(a.read_vectored(&mut parts).unwrap(), 5);
    assert_eq!((one[0], &two[..4]), (b'a', &b"bcde"[..]));
}

fn datagrams() {
    for (any, most) in [("127.0.0.1:0", 65507), ("[::1]:0", 65527)] {
        let (a, b) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        let to = a.local_addr().unwrap();
        for len in [0, 1, 1400, 9000, most] {
            let data = vec![len as u8; len];
            assert_eq!(b.send_to(&data, to).unwrap(), len);
            let mut got = vec![0; 70_000];
            assert_eq!(a.recv_from(&mut got).unwrap(), (len, b.local_addr().unwrap()));
            assert_eq!(got[..len], data);
        }
        let too_long = b.send_to(&vec![0; most + 1], to).unwrap_err();
        assert_eq!(too_long.raw_os_error(), Some(libc::EMSGSIZE));
        b.send_to(b"longer than that", to).unwrap();
        let mut short = [0; 6];
        // SAFETY: `short` has room for six bytes.
        let n = unsafe { libc::recv(a.as_raw_fd(), short.as_mut_ptr().cast(), 6, libc::MSG_TRUNC) };
        assert_eq!((n, &short), (16, b"longer"));
        b.send_to(b"next", to).unwrap();
        assert_eq!(
            (a.recv(&mut short).unwrap(), &short[..4]),
            (4, &b"next"[..]),
            "the rest is lost"
        );
    }
    // A datagram socket gets a port when it first sends.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    assert_eq!(socket.send(b"x").unwrap_err().raw_os_error(), Some(libc::EDESTADDRREQ));
}

/// Each send of a datagram that is too long fails, but no later send does. The error queue contains
/// the limit.
fn datagrams_that_are_too_long() {
    for (any, level, discover, recverr) in [
        ("127.0.0.1:0", libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_RECVERR),
        ("[::1]:0", libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_RECVERR),
    ] {
        let (a, b) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        b.connect(a.local_addr().unwrap()).unwrap();
        let fd = b.as_raw_fd();
        let queued = || {
            let (mut bytes, mut control) = ([0u8; 10], [0u64; 32]);
            let mut part =
                libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            // SAFETY: zeros are a valid msghdr, which consists of integers and pointers.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 256);
            // SAFETY: the message points to local buffers of the given lengths.
            let n = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_ERRQUEUE) };
            // SAFETY: recvmsg has written a control message to `control`.
            let told = unsafe { libc::CMSG_DATA(control.as_ptr().cast()).cast::<u32>().read() };
            if n < 0 { Err(errno()) } else { Ok((n, told)) }
        };
        set(fd, level, recverr, 1).unwrap();
        for mode in [libc::IP_PMTUDISC_WANT, libc::IP_PMTUDISC_DO, libc::IP_PMTUDISC_PROBE] {
            set(fd, level, discover, mode).unwrap();
            assert_eq!(get(fd, level, discover), Ok(mode));
            for _ in 0..3 {
                let refused = b.send(&[0; 65530]).unwrap_err().raw_os_error();
                assert_eq!(refused, Some(libc::EMSGSIZE), "{any} {mode}");
            }
            assert_eq!(get(fd, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
            b.send(b"short enough").unwrap();
            for _ in 0..3 {
                assert_eq!(queued(), Ok((0, libc::EMSGSIZE as u32)), "{any} {mode}");
            }
            assert_eq!(queued(), Err(libc::EAGAIN));
            b.send(b"short enough").unwrap();
        }
        assert_eq!(set(fd, level, discover, 6), Err(libc::EINVAL));
        // For datagrams above UDP's maximum length, IPv4 does not check the path MTU.
        assert_eq!(b.send(&[0; 70_000]).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        let told = if level == libc::IPPROTO_IP { Err(libc::EAGAIN) } else { Ok((0, 90)) };
        assert_eq!(queued(), told);
    }
}

/// The longest IPv4 datagram fits the loopback MTU. So a send from an IPv4 or IPv6 socket needs no
/// request to the engine, for which this thread could not receive a reply.
fn a_datagram_that_is_short_enough_asks_nobody() {
    const LONGEST: usize = 65_507;
    for (any, name) in [("127.0.0.1:0", "127.0.0.1"), ("[::]:0", "::ffff:127.0.0.1")] {
        let (a, b) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        let to = (name, a.local_addr().unwrap().port());
        set(b.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                forbid_recvmsg();
                assert_eq!(b.send_to(&[7; LONGEST], to).unwrap(), LONGEST, "{name}");
            });
        });
        assert_eq!(a.recv(&mut vec![0; LONGEST + 1]).unwrap(), LONGEST);
    }
}

/// Makes recvmsg(2) fail with EPERM in this thread, so that it cannot receive replies of the
/// engine.
fn forbid_recvmsg() {
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    // The system call number is the first word of a struct seccomp_data.
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_recvmsg as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter is a local variable, and affects only this thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
    }
}

fn datagrams_in_parts() {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let send = |data: &[u8], flags: i32| {
        // SAFETY: the address and length are those of `data`.
        let n = unsafe { libc::send(b.as_raw_fd(), data.as_ptr().cast(), data.len(), flags) };
        if n < 0 { Err(errno()) } else { Ok(n as usize) }
    };
    assert_eq!(send(b"x", libc::MSG_MORE), Err(libc::EDESTADDRREQ));
    b.connect(a.local_addr().unwrap()).unwrap();
    let mut got = vec![0; 70_000];
    for round in 0..2 {
        assert_eq!(send(b"put ", libc::MSG_MORE), Ok(4));
        assert_eq!(send(b"to", libc::MSG_MORE), Ok(2));
        assert_eq!(send(b"gether", 0), Ok(6));
        assert_eq!(a.recv(&mut got).unwrap(), 12, "the parts alone are no datagram: {round}");
        assert_eq!(&got[..12], b"put together");
        assert_eq!(send(b"whole", 0), Ok(5));
        assert_eq!(a.recv(&mut got).unwrap(), 5);
        // A datagram that exceeds the maximum length is dropped, including its earlier parts.
        assert_eq!(send(&[1; 65_507], libc::MSG_MORE), Ok(65_507));
        assert_eq!(send(b"1", 0), Err(libc::EMSGSIZE));
    }
    assert_eq!(send(b"", 0), Ok(0));
    assert_eq!(a.recv(&mut got).unwrap(), 0);
}

fn datagram_control() {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    for name in [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVTOS] {
        assert_eq!(set(a.as_raw_fd(), libc::IPPROTO_IP, name, 1), Ok(()));
    }
    assert_eq!(set(b.as_raw_fd(), libc::IPPROTO_IP, libc::IP_TTL, 42), Ok(()));
    assert_eq!(set(b.as_raw_fd(), libc::IPPROTO_IP, libc::IP_TOS, 0x20), Ok(()));
    b.send_to(b"x", a.local_addr().unwrap()).unwrap();
    let mut room = [0u64; 32];
    let mut byte = [0u8; 4];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 4 };
    // SAFETY: zeroes are a valid msghdr. Its pointers are set to local variables.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = room.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&room);
    let mut seen = Vec::new();
    // SAFETY: the message points to local variables, and libc's macros stay inside its control
    // buffer.
    unsafe {
        assert_eq!(libc::recvmsg(a.as_raw_fd(), &raw mut message, 0), 1);
        let mut at = libc::CMSG_FIRSTHDR(&raw const message);
        while !at.is_null() {
            seen.push(((*at).cmsg_type, *libc::CMSG_DATA(at)));
            at = libc::CMSG_NXTHDR(&raw const message, at);
        }
    }
    assert_eq!(
        seen.iter().map(|entry| entry.0).collect::<Vec<_>>(),
        [libc::IP_PKTINFO, libc::IP_TTL, libc::IP_TOS]
    );
    assert_eq!((seen[1].1, seen[2].1), (42, 0x20));
}

fn many_datagrams_in_one_call() {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    b.connect(a.local_addr().unwrap()).unwrap();
    let mut texts = [*b"one-", *b"two-", *b"six-"];
    let mut parts =
        texts.each_mut().map(|text| libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: 4 });
    // SAFETY: zeroes are valid headers. Their pointers are set to `parts`.
    unsafe {
        let mut messages: [libc::mmsghdr; 3] = std::mem::zeroed();
        for (message, part) in messages.iter_mut().zip(&mut parts) {
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        assert_eq!(libc::sendmmsg(b.as_raw_fd(), messages.as_mut_ptr(), 3, 0), 3);
        texts = [[0; 4]; 3];
        let flags = libc::MSG_WAITFORONE;
        let mut count = 0;
        while count < 3 {
            let at = messages.as_mut_ptr().add(count);
            let got =
                libc::recvmmsg(a.as_raw_fd(), at, 3 - count as u32, flags, std::ptr::null_mut());
            assert!(got > 0);
            count += got as usize;
        }
        assert_eq!(messages.map(|message| message.msg_len), [4; 3]);
    }
    assert_eq!(texts, [*b"one-", *b"two-", *b"six-"]);
    // SAFETY: the call sends five bytes of a static string, as two datagrams.
    let sent = unsafe {
        assert_eq!(set(b.as_raw_fd(), libc::IPPROTO_UDP, 103, 3), Ok(()));
        libc::send(b.as_raw_fd(), b"abcde".as_ptr().cast(), 5, 0)
    };
    assert_eq!(sent, 5);
    let mut got = [0; 8];
    assert_eq!((a.recv(&mut got).unwrap(), a.recv(&mut got).unwrap()), (3, 2), "UDP_SEGMENT");
}

fn files() {
    let mut file = tempfile();
    let data: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect();
    file.write_all(&data).unwrap();
    let (a, mut b) = pair();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        b.read_to_end(&mut all).unwrap();
        all
    });
    let mut offset = 1000;
    // SAFETY: the offset is a local variable, or null.
    unsafe {
        while offset < data.len() as i64 {
            assert!(
                libc::sendfile(a.as_raw_fd(), file.as_raw_fd(), &raw mut offset, data.len()) > 0
            );
        }
        file.seek(std::io::SeekFrom::Start(299_990)).unwrap();
        assert_eq!(libc::sendfile(a.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut(), 100), 10);
        assert_eq!(file.stream_position().unwrap(), 300_000);
    }
    drop(a);
    assert_eq!(reader.join().unwrap(), [&data[1000..], &data[299_990..]].concat());
}

fn tempfile() -> std::fs::File {
    use std::os::fd::FromRawFd;
    // SAFETY: the descriptor is new, and has no other owner.
    unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) }
}

fn pipes() {
    let (a, mut b) = pair();
    let (mut read, mut write) = std::io::pipe().unwrap();
    write.write_all(b"to the socket").unwrap();
    let none = std::ptr::null_mut();
    // SAFETY: no offsets.
    let n = unsafe { libc::splice(read.as_raw_fd(), none, a.as_raw_fd(), none, 1000, 0) };
    assert_eq!(n, 13);
    let mut got = [0; 13];
    b.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"to the socket");
    b.write_all(b"and back").unwrap();
    // SAFETY: as above.
    let n = unsafe { libc::splice(a.as_raw_fd(), none, write.as_raw_fd(), none, 1000, 0) };
    assert_eq!(n, 8);
    read.read_exact(&mut got[..8]).unwrap();
    assert_eq!(&got[..8], b"and back");
    // As on Linux, SPLICE_F_NONBLOCK affects only pipes.
    a.set_nonblocking(true).unwrap();
    // SAFETY: as above.
    let n = unsafe { libc::splice(a.as_raw_fd(), none, write.as_raw_fd(), none, 10, 0) };
    assert_eq!((n, errno()), (-1, libc::EAGAIN));
}

fn streams() {
    let (a, mut b) = pair();
    // SAFETY: the stream owns the duplicated descriptor until it is closed.
    unsafe {
        let file = libc::fdopen(libc::dup(a.as_raw_fd()), c"r+".as_ptr());
        assert!(!file.is_null());
        assert_eq!(libc::fputs(c"a line\n".as_ptr(), file), 1);
        assert_eq!(libc::fflush(file), 0);
        let mut got = [0; 7];
        b.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"a line\n");
        b.write_all(b"another\n").unwrap();
        let mut line = [0; 32];
        assert!(!libc::fgets(line.as_mut_ptr(), 32, file).is_null());
        assert_eq!(std::ffi::CStr::from_ptr(line.as_ptr()), c"another\n");
        assert_eq!(libc::fclose(file), 0);
    }
    drop(a);
    assert_eq!(b.read(&mut [0]).unwrap(), 0);
}

fn what_is_peeked_at_and_cut_is_not_copied() {
    let (server, mut client) = pair();
    client.write_all(b"abcd").unwrap();
    let fd = server.as_raw_fd();
    let mut got = [b'-'; 8];
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC;
    // SAFETY: the buffers have the given lengths. With MSG_TRUNC the invalid address is not used.
    unsafe {
        let at = got.as_mut_ptr().cast();
        assert_eq!(libc::recv(fd, at, 3, flags | libc::MSG_WAITALL), 3);
        assert_eq!(libc::recv(fd, at, 8, flags), 4);
        assert_eq!(libc::recv(fd, 8 as *mut libc::c_void, 8, flags), 4);
        assert_eq!(&got, b"--------");
        assert_eq!(libc::recv(fd, at, 8, 0), 4);
        let failed = libc::recv(fd, at, 8, flags | libc::MSG_DONTWAIT);
        assert_eq!((failed, errno()), (-1, libc::EAGAIN));
    }
    assert_eq!(&got, b"abcd----");
}

/// sendto(2) on a connected stream ignores the address.
fn streams_know_where_they_go() {
    let (mut server, client) = pair();
    let rubbish = [0xee_u8; 28];
    // SAFETY: the pointers and lengths are those of a byte and of `rubbish`.
    unsafe {
        for len in [1, 16, 28] {
            let (byte, at) = (b"x".as_ptr().cast(), rubbish.as_ptr().cast());
            assert_eq!(libc::sendto(client.as_raw_fd(), byte, 1, 0, at, len), 1);
        }
        let (byte, at) = (b"x".as_ptr().cast(), rubbish.as_ptr().cast());
        let failed = libc::sendto(client.as_raw_fd(), byte, 1, 0, at, 1 << 10);
        assert_eq!((failed, errno()), (-1, libc::EINVAL));
    }
    server.read_exact(&mut [0; 3]).unwrap();
}

fn names_that_are_too_short() {
    let v4 = UdpSocket::bind("127.0.0.1:0").unwrap();
    let v6 = UdpSocket::bind("[::1]:0").unwrap();
    let refusal = |socket: &UdpSocket, family: u16, len: u32| {
        let mut name = [0u8; 32];
        name[..2].copy_from_slice(&family.to_ne_bytes());
        name[3] = 9;
        let mut part = libc::iovec { iov_base: b"x".as_ptr().cast_mut().cast(), iov_len: 1 };
        // SAFETY: zeroes are a valid msghdr. Its pointers are set to local variables.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_name = name.as_mut_ptr().cast();
            message.msg_namelen = len;
            assert_eq!(libc::sendmsg(socket.as_raw_fd(), &raw const message, 0), -1);
        }
        errno()
    };
    let (inet, inet6, other) = (libc::AF_INET as u16, libc::AF_INET6 as u16, 77);
    for (family, len) in [(inet, 1), (inet, 15), (other, 15), (0, 8), (inet6, 15)] {
        assert_eq!(refusal(&v4, family, len), libc::EINVAL, "{family} {len}");
    }
    assert_eq!(refusal(&v4, other, 16), libc::EAFNOSUPPORT);
    for (family, len) in [(inet6, 23), (inet, 15), (other, 28), (other, 2)] {
        assert_eq!(refusal(&v6, family, len), libc::EINVAL, "{family} {len}");
    }
}

/// MSG_MORE applies to one send, not to the socket: when another process sends without it, the
/// held-back bytes are sent, too. Returns the time until all bytes have arrived.
fn more_to_come_from_another_process() -> Duration {
    use crate::processes::{fork, receive, send, wait};
    let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
    let other = fork(|| {
        for _ in 0..ROUNDS {
            let fd = receive(&right);
            // SAFETY: the descriptor was just received, and the buffer has one byte.
            unsafe {
                assert_eq!(libc::send(fd, b"b".as_ptr().cast(), 1, 0), 1);
                libc::close(fd);
            }
        }
    });
    let mut took = Duration::ZERO;
    for _ in 0..ROUNDS {
        let (mut server, client) = pair();
        // SAFETY: a byte.
        let sent =
            unsafe { libc::send(client.as_raw_fd(), b"a".as_ptr().cast(), 1, libc::MSG_MORE) };
        assert_eq!(sent, 1);
        let begin = Instant::now();
        send(&left, client.as_raw_fd());
        server.read_exact(&mut [0; 2]).unwrap();
        took += begin.elapsed();
    }
    assert_eq!(wait(other), 0);
    took
}

/// Connections of [`more_to_come_from_another_process`].
const ROUNDS: u32 = 10;

fn more_to_come_is_not_held_back() {
    let took = more_to_come_from_another_process();
    // Without that send, held-back bytes would wait for 200 ms.
    assert!(took < ROUNDS * Duration::from_millis(100), "{took:?}");
}
