//! Tests TAP devices with the kernel as peer, each in its own network namespace. Without root (or
//! CAP_SYS_ADMIN and CAP_NET_ADMIN) and /dev/net/tun, they print a message and pass.

#![allow(clippy::print_stderr)] // For messages about skipped tests.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use towpath_pool::{Batch, Checksum, Packet, Pool, Port, Protocol, Segmentation};
use towpath_tap::{HostError, OpenError, Options, Tap, set_up_host};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const STACK: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const STACK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Runs `test` on a thread in a new network namespace. Other threads stay in theirs.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        // SAFETY: unshare affects only this thread, which ends with the test.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0
            || !std::path::Path::new("/dev/net/tun").exists()
        {
            eprintln!("left out: needs root and /dev/net/tun");
            return;
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn open() -> (Tap, Pool) {
    let tap = Tap::open(&Options { name: Some("tp%d".into()) }).expect("open");
    assert_eq!(tap.name(), "tp0");
    set_up_host(tap.name(), 1500, &[(HOST.into(), 24)]).expect("host");
    (tap, Pool::default())
}

/// Maximum time of every wait, after which the test fails with a message.
const PATIENCE: Duration = Duration::from_secs(50);

/// Polls until a packet satisfies `wanted`.
fn receive(tap: &mut Tap, pool: &mut Pool, wanted: impl Fn(&Packet) -> bool) -> Packet {
    let deadline = Instant::now() + PATIENCE;
    let mut out = Batch::new();
    while Instant::now() < deadline {
        let fd = tap.wake_fd().expect("open device");
        let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&tick)).expect("poll");
        tap.poll(7, pool, &mut out, 64);
        while let Some(packet) = out.pop_front() {
            if wanted(&packet) {
                return packet;
            }
        }
    }
    panic!("no such packet came: {:?}", tap.counters());
}

fn frame(pool: &mut Pool, bytes: &[u8]) -> Packet {
    let mut packet = pool.take(bytes.len());
    packet.push_back(bytes.len()).expect("room").copy_from_slice(bytes);
    packet
}

/// Answers the host's ARP request and returns the host's MAC address.
fn answer_arp(tap: &mut Tap, pool: &mut Pool) -> [u8; 6] {
    let request = receive(tap, pool, |p| {
        let b = p.linear();
        b.get(12..14) == Some(&[8, 6]) && b.get(38..42) == Some(&STACK.octets())
    });
    assert_eq!(request.linear()[0..6], [0xff; 6], "a broadcast");
    assert_eq!(request.linear()[28..32], HOST.octets());
    assert_eq!(request.meta.arrival_ns, 7);
    let host: [u8; 6] = request.linear()[6..12].try_into().expect("six");
    let mut reply = request.linear()[..42].to_vec();
    reply[0..6].copy_from_slice(&host);
    reply[6..12].copy_from_slice(&STACK_MAC);
    reply[21] = 2;
    reply[22..28].copy_from_slice(&STACK_MAC);
    reply[28..32].copy_from_slice(&STACK.octets());
    reply[32..38].copy_from_slice(&host);
    reply[38..42].copy_from_slice(&HOST.octets());
    let mut batch = Batch::from([frame(pool, &reply)]);
    assert_eq!(tap.submit(0, pool, &mut batch), 1);
    assert!(!tap.blocked());
    host
}

#[test]
fn arp_then_udp_with_a_checksum_left_to_us() {
    in_namespace(|| {
        let (mut tap, mut pool) = open();
        let socket = UdpSocket::bind((HOST, 0)).expect("bind");
        socket.send_to(b"hello", (STACK, 9)).expect("send");
        answer_arp(&mut tap, &mut pool);
        let packet = receive(&mut tap, &mut pool, |p| p.linear().ends_with(b"hello"));
        assert_eq!(packet.meta.checksum, Checksum::Partial { start: 34, offset: 6 });
        assert!(packet.meta.segmentation.is_none());
        // A small frame must not occupy a large buffer.
        assert!(packet.linear().len() + packet.tailroom() <= Pool::SMALL);
    });
}

#[test]
fn merged_udp_arrives_whole() {
    in_namespace(|| {
        let (mut tap, mut pool) = open();
        if !tap.offloads().udp_segmentation {
            eprintln!("left out: this kernel has no USO");
            return;
        }
        let socket = UdpSocket::bind((HOST, 0)).expect("bind");
        socket.send_to(b"wake", (STACK, 9)).expect("send");
        answer_arp(&mut tap, &mut pool);
        let size: libc::c_int = 1000;
        // SAFETY: UDP_SEGMENT reads one int, which is a local.
        let status = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const size).cast(),
                4,
            )
        };
        assert_eq!(status, 0, "{}", io::Error::last_os_error());
        let payload: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        socket.send_to(&payload, (STACK, 9)).expect("send");
        let packet = receive(&mut tap, &mut pool, |p| p.len() > 10_000);
        let cut = Segmentation { protocol: Protocol::Udp, size: 1000, header_len: 42 };
        assert_eq!(packet.meta.segmentation, Some(cut));
        assert_eq!(packet.linear()[42..], payload);
    });
}

/// Opens an AF_PACKET socket that receives incoming frames of `tp0` with their virtio headers.
fn packet_socket() -> OwnedFd {
    // SAFETY: the calls take integers and local structs. sockaddr_ll consists of integers, so zeros
    // are valid.
    unsafe {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let fd = libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::c_int::from(protocol),
        );
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(fd);
        let on: libc::c_int = 1;
        assert_eq!(
            libc::setsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_VNET_HDR,
                (&raw const on).cast(),
                4
            ),
            0
        );
        let timeout = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
        let len = size_of::<libc::timeval>() as u32;
        assert_eq!(
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const timeout).cast(),
                len
            ),
            0
        );
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = libc::if_nametoindex(c"tp0".as_ptr()) as i32;
        assert_ne!(address.sll_ifindex, 0);
        let len = size_of::<libc::sockaddr_ll>() as u32;
        assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
        socket
    }
}

/// Reads frames until one has this EtherType. Returns its 10-byte virtio header and the frame.
fn capture(socket: &OwnedFd, ether_type: [u8; 2]) -> (Vec<u8>, Vec<u8>) {
    let mut buffer = vec![0; 70_000];
    loop {
        let n = rustix::io::read(socket, &mut buffer).expect("a frame");
        if n > 24 && buffer[22..24] == ether_type {
            return (buffer[..10].to_vec(), buffer[10..n].to_vec());
        }
    }
}

/// Returns Ethernet, IPv4 and TCP headers for `payload` bytes, with an incomplete checksum.
fn tcp_headers(to: [u8; 6], payload: usize) -> Vec<u8> {
    let mut h = Vec::new();
    h.extend(to);
    h.extend(STACK_MAC);
    h.extend([8, 0]);
    h.extend([0x45, 0]);
    h.extend((40 + payload as u16).to_be_bytes());
    h.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    h.extend(STACK.octets());
    h.extend(HOST.octets());
    let sum: u32 = h[14..34].chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    h[24..26].copy_from_slice(&sum.to_be_bytes());
    h.extend([0, 80, 0x80, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    h
}

#[test]
fn frames_reach_the_kernel() {
    in_namespace(|| {
        let (mut tap, mut pool) = open();
        let socket = packet_socket();
        let mut bytes = vec![0xff; 6];
        bytes.extend(STACK_MAC);
        bytes.extend([0x88, 0xb5]); // IEEE local experimental
        bytes.extend(b"a frame of our own, with a tail behind it");
        let mut packet = frame(&mut pool, &bytes[..30]);
        let memory = std::sync::Arc::new(towpath_shm::Mapping::private(4096).expect("map"));
        memory.write(100, &bytes[30..]);
        // Split the tail into two stretches, as at the end of a ring.
        let (first, rest) = (7, bytes.len() as u32 - 37);
        packet.tail = towpath_shm::Fragments::new(
            towpath_shm::Stretch::new(&memory, 100, first),
            Some(towpath_shm::Stretch::new(&memory, 107, rest)),
        );
        let mut batch = Batch::from([packet]);
        assert_eq!(tap.submit(0, &mut pool, &mut batch), 1);
        assert_eq!(capture(&socket, [0x88, 0xb5]).1, bytes);
        assert_eq!(tap.counters().tx_bytes, bytes.len() as u64);
    });
}

#[test]
fn a_packet_to_be_segmented_enters_the_kernel_whole() {
    in_namespace(|| {
        let (mut tap, mut pool) = open();
        let socket = packet_socket();
        let headers = tcp_headers([0xff; 6], 30_000);
        let mut packet = pool.take(headers.len() + 30_000);
        packet.push_back(headers.len()).expect("room").copy_from_slice(&headers);
        packet.push_back(30_000).expect("room").fill(0x5a);
        packet.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
        packet.meta.segmentation =
            Some(Segmentation { protocol: Protocol::Tcp4, size: 1448, header_len: 54 });
        let mut batch = Batch::from([packet]);
        assert_eq!(tap.submit(0, &mut pool, &mut batch), 1);
        assert_eq!(
            *tap.counters(),
            towpath_tap::Counters { tx_frames: 1, tx_bytes: 30_054, ..*tap.counters() }
        );
        let (virtio, seen) = capture(&socket, [8, 0]);
        assert_eq!(seen.len(), 30_054);
        assert_eq!(virtio[1], 1, "TCPv4 segmentation");
        assert_eq!(u16::from_ne_bytes([virtio[4], virtio[5]]), 1448);
    });
}

#[test]
fn what_the_kernel_refuses_is_counted() {
    in_namespace(|| {
        let mut tap = Tap::open(&Options { name: Some("tp%d".into()) }).expect("open");
        let mut pool = Pool::default();
        let mut broken = frame(&mut pool, &[0; 60]);
        broken.meta.segmentation =
            Some(Segmentation { protocol: Protocol::Udp, size: 10, header_len: 42 });
        // The link is still down, so the write fails with EIO.
        let mut batch = Batch::from([frame(&mut pool, &[0; 60]), broken]);
        assert_eq!(tap.submit(0, &mut pool, &mut batch), 2);
        assert_eq!((tap.counters().tx_refused, tap.counters().tx_malformed), (1, 1));
        assert!(!tap.blocked());
    });
}

#[test]
fn a_second_user_is_told() {
    in_namespace(|| {
        let (tap, _) = open();
        let again = Tap::open(&Options { name: Some("tp0".into()) });
        assert!(matches!(again, Err(OpenError::Busy { .. })), "{again:?}");
        let loopback = Tap::open(&Options { name: Some("lo".into()) });
        assert!(matches!(loopback, Err(OpenError::NotTap { .. })), "{loopback:?}");
        drop(tap);
        let missing = set_up_host("tp0", 1500, &[]);
        assert!(
            matches!(missing, Err(HostError::NoInterface { .. })),
            "the device went with its file: {missing:?}"
        );
    });
}

/// While the stack is busy, as many clients connect as a listener's backlog may hold.
#[test]
fn a_burst_waits_in_the_device() {
    in_namespace(|| {
        let (mut tap, mut pool) = open();
        let socket = UdpSocket::bind((HOST, 0)).expect("a socket");
        socket.set_broadcast(true).expect("broadcasts");
        let burst = 4000;
        for n in 0..burst {
            let sent = socket.send_to(&u32::to_ne_bytes(n), (Ipv4Addr::new(10, 77, 0, 255), 7777));
            assert_eq!(sent.ok(), Some(4));
        }
        let (mut out, mut received) = (Batch::new(), 0);
        let deadline = Instant::now() + PATIENCE;
        while received < burst as usize && Instant::now() < deadline {
            tap.poll(7, &mut pool, &mut out, 64);
            let is_ours =
                |packet: &Packet| packet.linear().get(36..38) == Some(&7777u16.to_be_bytes());
            received += out.drain(..).filter(is_ours).count();
        }
        assert_eq!(received, burst as usize);
    });
}

fn ip(arguments: &[&str]) {
    let status = std::process::Command::new("ip").args(arguments).status().expect("iproute2");
    assert!(status.success(), "ip {arguments:?}");
}

/// Switches this thread to another user, with only the capability to open any file. On some
/// systems, /dev/net/tun is accessible to root only.
fn become_user(uid: u32) {
    use rustix::thread::{CapabilitySet, CapabilitySets};
    rustix::thread::set_keep_capabilities(true).expect("keep");
    // SAFETY: setresuid takes integers. The raw system call changes only this thread, while glibc's
    // wrapper changes all.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
    let files = CapabilitySet::DAC_OVERRIDE;
    let sets =
        CapabilitySets { effective: files, permitted: files, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).expect("capset");
}

#[test]
fn without_privileges_the_fix_is_named_and_works() {
    in_namespace(|| {
        if !std::path::Path::new("/usr/sbin/ip").exists()
            && !std::path::Path::new("/sbin/ip").exists()
        {
            eprintln!("left out: needs iproute2");
            return;
        }
        ip(&["tuntap", "add", "dev", "mine", "mode", "tap", "user", "12345"]);
        ip(&["tuntap", "add", "dev", "ready", "mode", "tap", "user", "12345", "multi_queue"]);
        ip(&["link", "set", "ready", "mtu", "1400", "up"]);
        ip(&["addr", "add", "10.77.0.1/24", "dev", "ready"]);
        ip(&["addr", "add", "fd00::77:1/64", "dev", "ready", "nodad"]);
        become_user(12345);
        let refused = Tap::open(&Options { name: Some("other".into()) });
        assert!(matches!(refused, Err(OpenError::NotPermitted { .. })), "{refused:?}");
        let mine = Tap::open(&Options { name: Some("mine".into()) }).expect("made for this user");
        let addresses: [(IpAddr, u8); 2] =
            [(HOST.into(), 24), ("fd00::77:1".parse().expect("an address"), 64)];
        let error =
            set_up_host(mine.name(), 1400, &addresses).expect_err("no privileges").to_string();
        assert!(error.contains("sudo ip addr add 10.77.0.1/24 dev mine"), "{error}");
        let ready =
            Tap::open(&Options { name: Some("ready".into()) }).expect("multi_queue is taken too");
        set_up_host(ready.name(), 1400, &addresses).expect("nothing is missing");
    });
}
