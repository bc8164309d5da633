//! Values and effects of socket options. Each case also runs on the kernel.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, SystemTime};

use crate::asleep;
use crate::harness::Case;
use crate::sockets::{errno, get, pair, set};

pub const CASES: &[Case] = &[
    ("the_send_buffer_is_told_as_it_is_used", the_send_buffer_is_told_as_it_is_used),
    ("the_receive_buffer_is_told_as_it_is_used", the_receive_buffer_is_told_as_it_is_used),
    (
        "a_longer_send_buffer_wakes_who_waits_for_room",
        a_longer_send_buffer_wakes_who_waits_for_room,
    ),
    ("a_lower_mark_wakes_who_waits_for_input", a_lower_mark_wakes_who_waits_for_input),
    ("least_and_most_of_buffers", least_and_most_of_buffers),
    ("each_family_has_its_own_lengths", each_family_has_its_own_lengths),
    ("datagrams_are_not_to_be_cut", datagrams_are_not_to_be_cut),
    ("fragments_of_a_size", fragments_of_a_size),
    ("options_of_packets_are_asked_for", options_of_packets_are_asked_for),
    ("groups_are_sent_to_by_the_sockets_device", groups_are_sent_to_by_the_sockets_device),
    ("quick_acks_are_told", quick_acks_are_told),
    ("a_linger_that_is_off_keeps_its_time", a_linger_that_is_off_keeps_its_time),
    ("a_clamped_window", a_clamped_window),
    ("no_checksums", no_checksums),
    ("where_a_datagram_was_sent_to", where_a_datagram_was_sent_to),
    ("when_a_datagram_arrived", when_a_datagram_arrived),
    ("when_bytes_of_a_stream_arrived", when_bytes_of_a_stream_arrived),
    ("when_a_datagram_was_sent", when_a_datagram_was_sent),
    ("what_is_asked_about_an_interface", what_is_asked_about_an_interface),
];

const SOCKET: i32 = libc::SOL_SOCKET;
/// SOF_TIMESTAMPING_TX_SOFTWARE, _RX_SOFTWARE, _SOFTWARE, _OPT_ID and _OPT_TSONLY.
const TX: i32 = 1 << 1;
const RX: i32 = 1 << 3;
const SOFTWARE: i32 = 1 << 4;
const ID: i32 = 1 << 7;
const TIME_ONLY: i32 = 1 << 11;

fn the_send_buffer_is_told_as_it_is_used() {
    let (mut a, b) = pair();
    a.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let error = loop {
        match a.write(&[7; 65_536]) {
            Ok(n) => sent += n,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let told = get(a.as_raw_fd(), SOCKET, libc::SO_SNDBUF).unwrap() as usize;
    let theirs = get(b.as_raw_fd(), SOCKET, libc::SO_RCVBUF).unwrap() as usize;
    assert!(told + theirs >= sent, "{sent} bytes fit, and it tells of {told} and {theirs}");
}

/// If the peer does not read, a program can send at most the size of both buffers, even after
/// autotuning has enlarged them.
fn the_receive_buffer_is_told_as_it_is_used() {
    const WRITE: usize = 65_536;
    let (mut a, mut b) = pair();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..64).for_each(|_| a.write_all(&[7; 1 << 20]).unwrap()));
        std::io::copy(&mut (&mut b).take(64 << 20), &mut std::io::sink()).unwrap();
    });
    a.set_nonblocking(true).unwrap();
    let mut sent = 0;
    // Acknowledged bytes free room a moment later.
    for _ in 0..50 {
        while let Ok(n) = a.write(&[7; WRITE]) {
            sent += n;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let told = [(&a, libc::SO_SNDBUF), (&b, libc::SO_RCVBUF)]
        .map(|(end, name)| get(end.as_raw_fd(), SOCKET, name).unwrap() as usize);
    // A kernel buffer accepts a whole segment if it has any room.
    let beyond = if std::env::var_os("TOWPATH_CONTROL").is_some() { 0 } else { 2 * WRITE };
    assert!(told[0] + told[1] + beyond >= sent, "{sent} bytes fit, and it tells of {told:?}");
}

/// Raising SO_SNDBUF wakes blocked writers, as sock_setsockopt does by sk_write_space.
fn a_longer_send_buffer_wakes_who_waits_for_room() {
    // More than both initial buffers hold, and less than the enlarged one holds.
    const BYTES: usize = 200_000;
    let (mut a, b) = pair();
    let fd = a.as_raw_fd();
    assert_eq!(set(fd, SOCKET, libc::SO_SNDBUF, 20_000), Ok(()));
    assert_eq!(set(b.as_raw_fd(), SOCKET, libc::SO_RCVBUF, 20_000), Ok(()));
    std::thread::scope(|scope| {
        let sends = scope.spawn(move || a.write_all(&[7; BYTES]).map(|()| a).unwrap());
        asleep::others();
        assert!(!sends.is_finished(), "the peer reads nothing");
        assert_eq!(set(fd, SOCKET, libc::SO_SNDBUF, 200_000), Ok(()));
        sends.join().unwrap();
    });
}

/// Lowering SO_RCVLOWAT wakes blocked readers, as tcp_set_rcvlowat does by tcp_data_ready.
fn a_lower_mark_wakes_who_waits_for_input() {
    let (mut a, b) = pair();
    let fd = b.as_raw_fd();
    assert_eq!(set(fd, SOCKET, libc::SO_RCVLOWAT, 3), Ok(()));
    // SAFETY: the calls take integers, and a local event.
    let epoll = unsafe {
        let epoll = OwnedFd::from_raw_fd(libc::epoll_create1(0));
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let added = libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event);
        assert_eq!(added, 0);
        epoll
    };
    a.write_all(b"ab").unwrap();
    std::thread::scope(|scope| {
        let polls = scope.spawn(|| {
            let mut set = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: the list has one entry, which is a local.
            (unsafe { libc::poll(&raw mut set, 1, -1) }, set.revents)
        });
        let waits = scope.spawn(|| {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: `event` has room for one event.
            (unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, -1) }, event.events)
        });
        asleep::others();
        assert!(!polls.is_finished() && !waits.is_finished(), "two bytes are below the mark");
        assert_eq!(set(fd, SOCKET, libc::SO_RCVLOWAT, 2), Ok(()));
        assert_eq!(polls.join().unwrap(), (1, libc::POLLIN));
        assert_eq!(waits.join().unwrap(), (1, libc::EPOLLIN as u32));
    });
}

fn least_and_most_of_buffers() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = socket.as_raw_fd();
    for (name, least) in [(libc::SO_SNDBUF, 4608), (libc::SO_RCVBUF, 2304)] {
        assert_eq!(set(fd, SOCKET, name, 100), Ok(()));
        assert_eq!(get(fd, SOCKET, name), Ok(least));
    }
    let pairs = [
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, 4608),
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, 2304),
    ];
    // SAFETY: no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    for (force, name, least) in pairs {
        if !is_root {
            assert_eq!(set(fd, SOCKET, force, 1_000_000), Err(libc::EPERM));
            continue;
        }
        for (asked, told) in [(6_000_000, 12_000_000), (0, least)] {
            assert_eq!(set(fd, SOCKET, force, asked), Ok(()));
            assert_eq!(get(fd, SOCKET, name), Ok(told));
        }
    }
}

const V6: i32 = libc::IPPROTO_IPV6;

fn each_family_has_its_own_lengths() {
    let socket = UdpSocket::bind("[::]:0").unwrap();
    let fd = socket.as_raw_fd();
    let [v4, v6] = [(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER), (V6, libc::IPV6_MTU_DISCOVER)];
    let told = || [v4, v6].map(|(level, name)| get(fd, level, name).unwrap());
    assert_eq!(told(), [libc::IP_PMTUDISC_WANT; 2]);
    assert_eq!(set(fd, v4.0, v4.1, libc::IP_PMTUDISC_DO), Ok(()));
    assert_eq!(told(), [libc::IP_PMTUDISC_DO, libc::IP_PMTUDISC_WANT]);
    assert_eq!(set(fd, v6.0, v6.1, libc::IP_PMTUDISC_DONT), Ok(()));
    assert_eq!(told(), [libc::IP_PMTUDISC_DO, libc::IP_PMTUDISC_DONT]);
    // Each option affects only its IP version: over IPv6, the datagram now takes two packets.
    let at = socket.local_addr().unwrap().port();
    assert_eq!(set(fd, V6, libc::IPV6_MTU, 1300), Ok(()));
    let send = |to: &str| {
        socket
            .send_to(&[7; 2000], format!("{to}:{at}"))
            .map_err(|error| error.raw_os_error().unwrap())
    };
    for (mode, over_v6) in
        [(libc::IP_PMTUDISC_DO, Err(libc::EMSGSIZE)), (libc::IP_PMTUDISC_WANT, Ok(2000))]
    {
        assert_eq!(set(fd, v6.0, v6.1, mode), Ok(()));
        assert_eq!(send("[::1]"), over_v6);
        assert_eq!(send("[::ffff:127.0.0.1]"), Ok(2000));
        let mut whole = [0; 4000];
        for _ in 0..1 + usize::from(over_v6.is_ok()) {
            assert_eq!(socket.recv(&mut whole).unwrap(), 2000);
        }
    }
}

/// Sets IPV6_DONTFRAG, as quinn does.
fn datagrams_are_not_to_be_cut() {
    let socket = UdpSocket::bind("[::1]:0").unwrap();
    let fd = socket.as_raw_fd();
    socket.connect(socket.local_addr().unwrap()).unwrap();
    assert_eq!(set(fd, V6, libc::IPV6_MTU, 1300), Ok(()));
    assert_eq!(get(fd, V6, libc::IPV6_DONTFRAG), Ok(0));
    let mut bytes = [0; 4000];
    // Off, on, and off again. IPV6_MTU_DISCOVER keeps the value that was set.
    let modes = [libc::IP_PMTUDISC_DONT, libc::IP_PMTUDISC_WANT, libc::IP_PMTUDISC_OMIT];
    for (on, mode) in [0, 5, 0].into_iter().flat_map(|on| modes.map(|mode| (on, mode))) {
        assert_eq!(set(fd, V6, libc::IPV6_DONTFRAG, on), Ok(()));
        assert_eq!(set(fd, V6, libc::IPV6_MTU_DISCOVER, mode), Ok(()));
        assert_eq!(get(fd, V6, libc::IPV6_DONTFRAG), Ok(i32::from(on != 0)));
        assert_eq!(get(fd, V6, libc::IPV6_MTU_DISCOVER), Ok(mode));
        let sent = socket.send(&bytes[..2000]).map_err(|error| error.raw_os_error());
        if on == 0 {
            assert_eq!(sent, Ok(2000), "{mode}");
            assert_eq!(socket.recv(&mut bytes).unwrap(), 2000);
        } else {
            assert_eq!(sent, Err(Some(libc::EMSGSIZE)), "{mode}");
        }
        // Short datagrams are sent with any setting.
        assert_eq!(socket.send(&bytes[..1000]).unwrap(), 1000);
        assert_eq!(socket.recv(&mut bytes).unwrap(), 1000);
    }
    // Setting the options in reverse order has the same effect.
    assert_eq!(set(fd, V6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_WANT), Ok(()));
    assert_eq!(set(fd, V6, libc::IPV6_DONTFRAG, 1), Ok(()));
    assert!(socket.send(&bytes[..2000]).is_err());
    // Streams accept the option, but it has no effect.
    let stream = TcpListener::bind("[::1]:0").unwrap();
    assert_eq!(set(stream.as_raw_fd(), V6, libc::IPV6_DONTFRAG, 1), Ok(()));
}

/// IPV6_MTU.
fn fragments_of_a_size() {
    let socket = UdpSocket::bind("[::1]:0").unwrap();
    let fd = socket.as_raw_fd();
    assert_eq!(get(fd, V6, libc::IPV6_MTU), Err(libc::ENOTCONN));
    for (size, taken) in [(0, true), (1, false), (1279, false), (-1, false), (1280, true)] {
        let result = if taken { Ok(()) } else { Err(libc::EINVAL) };
        assert_eq!(set(fd, V6, libc::IPV6_MTU, size), result, "{size}");
    }
    // IPV6_MTU returns the path MTU.
    socket.connect(socket.local_addr().unwrap()).unwrap();
    assert_eq!(get(fd, V6, libc::IPV6_MTU), Ok(65_536));
    assert_eq!(set(fd, V6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_DO), Ok(()));
    // Subtract the IPv6 and UDP headers.
    let longest = 1280 - 40 - 8;
    let mut bytes = [0; 2000];
    assert_eq!(socket.send(&bytes[..longest]).unwrap(), longest);
    assert_eq!(socket.recv(&mut bytes).unwrap(), longest);
    let error = socket.send(&bytes[..longest + 1]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    assert_eq!(set(fd, V6, libc::IPV6_MTU, 0), Ok(()));
    assert_eq!(socket.send(&bytes[..longest + 1]).unwrap(), longest + 1);
    // Connections accept the option, but their segments depend on the path MTU. IPv4 sockets reject
    // it.
    let (v4, listener) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::1]:0").unwrap());
    assert_eq!(set(listener.as_raw_fd(), V6, libc::IPV6_MTU, 1400), Ok(()));
    assert_eq!(set(v4.as_raw_fd(), V6, libc::IPV6_MTU, 1400), Err(libc::ENOPROTOOPT));
    assert_eq!(set(v4.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU, 1400), Err(libc::ENOPROTOOPT));
}

/// Sets the options of an unprivileged ping.
fn options_of_packets_are_asked_for() {
    // SAFETY: integers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP) };
    if fd < 0 {
        // Linux may forbid ping sockets (net.ipv4.ping_group_range).
        assert_eq!(errno(), libc::EACCES);
        return;
    }
    // SAFETY: fresh.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    for name in [libc::IP_RETOPTS, libc::IP_RECVOPTS] {
        for (value, told) in [(1, 1), (0, 0), (7, 1)] {
            assert_eq!(set(fd, libc::IPPROTO_IP, name, value), Ok(()));
            assert_eq!(get(fd, libc::IPPROTO_IP, name), Ok(told));
        }
    }
    // Without IP options, an echo reply has no control messages.
    let request = [8, 0, 0, 0, 0, 0, 0, 1];
    socket.send_to(&request, "127.0.0.1:0").unwrap();
    let (len, told) = receive(fd, 0);
    assert_eq!((len, told), (8, Vec::new()));
}

fn groups_are_sent_to_by_the_sockets_device() {
    const SO_BINDTOIFINDEX: i32 = 62;
    // Loopback is interface 1. A socket may be bound to an interface that does not exist (yet).
    for (device, result) in [(0, Ok(())), (1, Ok(())), (2, Err(libc::EINVAL))] {
        let v4 = UdpSocket::bind("127.0.0.1:0").unwrap();
        let v6 = UdpSocket::bind("[::1]:0").unwrap();
        let (v4, v6) = (v4.as_raw_fd(), v6.as_raw_fd());
        for fd in [v4, v6] {
            assert_eq!(set(fd, SOCKET, SO_BINDTOIFINDEX, device), Ok(()));
        }
        let by_address = i32::from_ne_bytes([127, 0, 0, 1]);
        assert_eq!(set(v4, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, by_address), result);
        let by_number = libc::ip_mreqn {
            imr_multiaddr: libc::in_addr { s_addr: 0 },
            imr_address: libc::in_addr { s_addr: 0 },
            imr_ifindex: 1,
        };
        // SAFETY: the address and length are those of `by_number`.
        let done = unsafe {
            let at = (&raw const by_number).cast();
            let len = size_of_val(&by_number) as u32;
            libc::setsockopt(v4, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, at, len)
        };
        assert_eq!(if done == 0 { Ok(()) } else { Err(errno()) }, result);
        assert_eq!(set(v6, V6, libc::IPV6_MULTICAST_IF, 1), result);
        // Zero resets the interface to that of the route.
        assert_eq!(set(v4, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, 0), Ok(()));
        assert_eq!(set(v6, V6, libc::IPV6_MULTICAST_IF, 0), Ok(()));
    }
}

fn quick_acks_are_told() {
    let level = libc::IPPROTO_TCP;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(get(listener.as_raw_fd(), level, libc::TCP_QUICKACK), Ok(1));
    let (a, _b) = pair();
    assert_eq!(get(a.as_raw_fd(), level, libc::TCP_QUICKACK), Ok(1));
    for value in [0, 1, 0] {
        assert_eq!(set(a.as_raw_fd(), level, libc::TCP_QUICKACK, value), Ok(()));
        // The engine handles the command of setsockopt(2) before the request of getsockopt(2).
        assert_eq!(get(a.as_raw_fd(), level, libc::TCP_QUICKACK), Ok(value));
    }
}

fn linger(fd: RawFd) -> (i32, i32) {
    let mut value = libc::linger { l_onoff: 7, l_linger: 7 };
    let mut len = 8;
    // SAFETY: the pointer and length are those of a local `linger`.
    let result = unsafe {
        libc::getsockopt(fd, SOCKET, libc::SO_LINGER, (&raw mut value).cast(), &raw mut len)
    };
    assert_eq!((result, len), (0, 8));
    (value.l_onoff, value.l_linger)
}

fn a_linger_that_is_off_keeps_its_time() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = socket.as_raw_fd();
    assert_eq!(linger(fd), (0, 0));
    // Values as returned by Linux: switching SO_LINGER off keeps the time.
    for (on, seconds, told) in
        [(1, 7, (1, 7)), (0, 9, (0, 7)), (1, 0, (1, 0)), (2, 3, (1, 3)), (0, 0, (0, 3))]
    {
        let value = libc::linger { l_onoff: on, l_linger: seconds };
        // SAFETY: the pointer and length are those of a local `linger`.
        let result =
            unsafe { libc::setsockopt(fd, SOCKET, libc::SO_LINGER, (&raw const value).cast(), 8) };
        assert_eq!(result, 0);
        assert_eq!(linger(fd), told, "{on} {seconds}");
    }
}

fn a_clamped_window() {
    let level = libc::IPPROTO_TCP;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = listener.as_raw_fd();
    let clamp = libc::TCP_WINDOW_CLAMP;
    assert_eq!(get(fd, level, clamp), Ok(0));
    // SAFETY: integers only.
    let fresh = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    for (value, told) in [(0, 0), (1, 1152), (70_000, 70_000), (-1, 1152), (0, 0), (5000, 5000)] {
        assert_eq!(set(fresh, level, clamp, value), Ok(()));
        assert_eq!(get(fresh, level, clamp), Ok(told));
    }
    // SAFETY: ours.
    unsafe { libc::close(fresh) };
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let fd = client.as_raw_fd();
    assert!(get(fd, level, clamp).unwrap() >= 65_535, "as large as the buffer");
    assert_eq!(set(fd, level, clamp, 5000), Ok(()));
    assert_eq!((get(fd, level, clamp), set(fd, level, clamp, 0)), (Ok(5000), Err(libc::EINVAL)));
    // The window that was already advertised stays valid (RFC 9293 §3.8.6). The receiver accepts
    // its bytes, and then at most the clamp.
    server.write_all(&[7; 100_000]).unwrap();
    let mut client = client;
    client.read_exact(&mut vec![0; 100_000]).unwrap();
}

fn no_checksums() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = socket.as_raw_fd();
    for (value, told) in [(0, 0), (5, 1)] {
        assert_eq!(set(fd, SOCKET, libc::SO_NO_CHECK, value), Ok(()));
        assert_eq!(get(fd, SOCKET, libc::SO_NO_CHECK), Ok(told));
    }
    let at = socket.local_addr().unwrap();
    socket.send_to(b"plain", at).unwrap();
    let mut data = [0; 16];
    assert_eq!(socket.recv(&mut data).unwrap(), 5);
    // UDP_SEGMENT requires checksums, so the send fails.
    assert_eq!(set(fd, libc::IPPROTO_UDP, 103, 4), Ok(()));
    assert_eq!(socket.send_to(b"in pieces", at).unwrap_err().raw_os_error(), Some(libc::EINVAL));
}

/// Receives a datagram, or an entry of the error queue. Returns its length, and level, type and
/// data of each control message.
pub fn receive(fd: RawFd, flags: i32) -> (isize, Told) {
    let (mut data, mut control) = ([0u8; 64], [0u64; 64]);
    let mut buffer = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: zeros are a valid msghdr, which consists of integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut buffer;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points to local buffers of the given lengths.
    let len = unsafe { libc::recvmsg(fd, &raw mut message, flags) };
    assert!(len >= 0, "{}", errno());
    let mut found = Vec::new();
    // SAFETY: written by recvmsg.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(header) = at.as_ref() {
            let bytes = header.cmsg_len - libc::CMSG_LEN(0) as usize;
            let data = std::slice::from_raw_parts(libc::CMSG_DATA(at), bytes);
            found.push((header.cmsg_level, header.cmsg_type, data.to_vec()));
            at = libc::CMSG_NXTHDR(&raw const message, at);
        }
    }
    (len, found)
}

fn where_a_datagram_was_sent_to() {
    let (v4, v6) = ((libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR), (libc::IPPROTO_IPV6, 74));
    // Bound address, options, destination, and the expected control message.
    for (from, options, to, told) in [
        ("0.0.0.0:0", &[v4][..], "127.0.0.1", Some(v4)),
        ("[::]:0", &[v6], "::1", Some(v6)),
        ("[::]:0", &[v6], "127.0.0.1", None),
        ("[::]:0", &[v4, v6], "127.0.0.1", Some(v4)),
        ("[::]:0", &[v4, v6], "::1", Some(v6)),
        ("[::]:0", &[v4], "::1", None),
    ] {
        let socket = UdpSocket::bind(from).unwrap();
        for &(level, name) in options {
            assert_eq!(set(socket.as_raw_fd(), level, name, 1), Ok(()));
            assert_eq!(get(socket.as_raw_fd(), level, name), Ok(1));
        }
        let port = socket.local_addr().unwrap().port();
        let local = if to.contains(':') { "[::1]:0" } else { "127.0.0.1:0" };
        UdpSocket::bind(local).unwrap().send_to(b"x", (to, port)).unwrap();
        let (len, found) = receive(socket.as_raw_fd(), 0);
        assert_eq!(len, 1);
        let expected = told.map(|(level, name)| {
            let mut name_of = vec![0; if name == 74 { 28 } else { 16 }];
            let family = if name == 74 { libc::AF_INET6 } else { libc::AF_INET };
            name_of[..2].copy_from_slice(&(family as u16).to_ne_bytes());
            name_of[2..4].copy_from_slice(&port.to_be_bytes());
            if name == 74 {
                name_of[23] = 1;
            } else {
                name_of[4..8].copy_from_slice(&[127, 0, 0, 1]);
            }
            (level, name, name_of)
        });
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{from} {options:?} {to}");
    }
}

/// Checks that the first time of a struct scm_timestamping is near the current time, and that the
/// others are zero.
fn check_time(data: &[u8]) {
    let word = |at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().unwrap());
    let time = SystemTime::UNIX_EPOCH + Duration::new(word(0), word(8) as u32);
    let now = SystemTime::now();
    let apart = now.duration_since(time).unwrap_or_else(|error| error.duration());
    assert!(apart < Duration::from_secs(3600), "{apart:?}");
    assert_eq!((data.len(), &data[16..]), (48, &[0; 32][..]));
}

type Told = Vec<(i32, i32, Vec<u8>)>;

/// Receives until a message has an arrival time. Linux enables such timestamps a while after the
/// first request, the stack at once.
fn first_time(mut receive: impl FnMut() -> Told) -> Told {
    let mut told = receive();
    let is_kernel = std::env::var_os("TOWPATH_CONTROL").is_none();
    while is_kernel && !told.iter().any(|(_, kind, _)| *kind == libc::SO_TIMESTAMPING) {
        std::thread::sleep(Duration::from_millis(1));
        told = receive();
    }
    told
}

fn when_a_datagram_arrived() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = socket.as_raw_fd();
    let at = socket.local_addr().unwrap();
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, RX | SOFTWARE), Ok(()));
    assert_eq!(get(fd, SOCKET, libc::SO_TIMESTAMPING), Ok(RX | SOFTWARE));
    let found = first_time(|| {
        socket.send_to(b"x", at).unwrap();
        receive(fd, 0).1
    });
    let [(SOCKET, libc::SO_TIMESTAMPING, time)] = &found[..] else { panic!("{found:?}") };
    check_time(time);
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPNS, 1), Ok(()));
    socket.send_to(b"x", at).unwrap();
    let kinds: Vec<_> = receive(fd, 0).1.into_iter().map(|(_, kind, _)| kind).collect();
    assert_eq!(kinds, [libc::SO_TIMESTAMPNS, libc::SO_TIMESTAMPING]);
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, 0), Ok(()));
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPNS, 0), Ok(()));
    socket.send_to(b"x", at).unwrap();
    assert_eq!(receive(fd, 0).1, []);
}

fn when_bytes_of_a_stream_arrived() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(set(listener.as_raw_fd(), SOCKET, libc::SO_TIMESTAMPNS, 1), Ok(()));
    let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let fd = stream.as_raw_fd();
    assert_eq!(get(fd, SOCKET, libc::SO_TIMESTAMPNS), Ok(1), "from its listener");
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, RX | SOFTWARE), Ok(()));
    let found = first_time(|| {
        far.write_all(b"x").unwrap();
        let (len, found) = receive(fd, 0);
        assert_eq!(len, 1);
        found
    });
    let [(SOCKET, libc::SO_TIMESTAMPNS, _), (SOCKET, libc::SO_TIMESTAMPING, time)] = &found[..]
    else {
        panic!("{found:?}")
    };
    check_time(time);
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, 0), Ok(()));
    assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMP, 1), Ok(()));
    far.write_all(b"x").unwrap();
    let kinds: Vec<_> = receive(fd, 0).1.into_iter().map(|(_, kind, _)| kind).collect();
    assert_eq!(kinds, [libc::SO_TIMESTAMP]);
    drop(far);
    assert_eq!(receive(fd, 0), (0, Vec::new()), "the end has no time");
}

fn when_a_datagram_was_sent() {
    for (local, level, kind) in [
        ("127.0.0.1:0", libc::IPPROTO_IP, libc::IP_RECVERR),
        ("[::1]:0", libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ] {
        let socket = UdpSocket::bind(local).unwrap();
        let to = UdpSocket::bind(local).unwrap();
        let fd = socket.as_raw_fd();
        assert_eq!(set(fd, SOCKET, libc::SO_TIMESTAMPING, TX | SOFTWARE | ID | TIME_ONLY), Ok(()));
        for number in 0..3u32 {
            socket.send_to(b"x", to.local_addr().unwrap()).unwrap();
            let mut entry = libc::pollfd { fd, events: 0, revents: 0 };
            // SAFETY: one entry.
            assert_eq!(unsafe { libc::poll(&raw mut entry, 1, -1) }, 1);
            assert_eq!(entry.revents & libc::POLLERR, libc::POLLERR);
            assert_eq!(get(fd, SOCKET, libc::SO_ERROR), Ok(0), "it is no error");
            let (len, found) = receive(fd, libc::MSG_ERRQUEUE);
            assert_eq!((len, found.len()), (0, 2));
            assert_eq!((found[0].0, found[0].1), (SOCKET, libc::SO_TIMESTAMPING));
            check_time(&found[0].2);
            assert_eq!((found[1].0, found[1].1), (level, kind));
            // ENOMSG, SO_EE_ORIGIN_TIMESTAMPING, SCM_TSTAMP_SND, and the number of the send.
            let mut error = [42, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            error[12..].copy_from_slice(&number.to_ne_bytes());
            assert_eq!(found[1].2[..16], error);
        }
        // SAFETY: the length is 0, so the null pointer is not used.
        let nothing = unsafe { libc::recv(fd, std::ptr::null_mut(), 0, libc::MSG_ERRQUEUE) };
        assert_eq!((nothing, errno()), (-1, libc::EAGAIN));
    }
}

fn what_is_asked_about_an_interface() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ask = |request: u64, name: &str| {
        let mut row = [0xffu8; 40];
        row[..16].fill(0);
        row[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: a struct ifreq.
        match unsafe { libc::ioctl(socket.as_raw_fd(), request as _, row.as_mut_ptr()) } {
            0 => Ok(i32::from_ne_bytes([row[16], row[17], row[18], row[19]])),
            _ => Err(errno()),
        }
    };
    assert_eq!(ask(0x8942, "lo"), Ok(1000), "SIOCGIFTXQLEN");
    assert_eq!(ask(0x891d, "lo"), Ok(0), "SIOCGIFMETRIC");
    assert_eq!(ask(0x8970, "lo"), Ok(0), "SIOCGIFMAP");
    assert_eq!(ask(0x8942, "lo7"), Err(libc::ENODEV));
}
