//! Tests TUN devices and routes with the kernel as peer, each in its own network namespace. Without
//! root (or CAP_SYS_ADMIN and CAP_NET_ADMIN) and /dev/net/tun, they print a message and pass.

#![allow(clippy::print_stderr)] // For messages about skipped tests.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use towpath_pool::{Batch, Checksum, LinkType, Packet, Pool, Port};
use towpath_tap::{
    HostError, Kind, Marks, OpenError, Options, Tap, add_routes, leads_through, set_up_host,
};

const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const BEHIND: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Maximum time that a test waits for a packet.
const PATIENCE: Duration = Duration::from_secs(50);

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

fn ip(line: &str) {
    let status = std::process::Command::new("ip").args(line.split(' ')).status();
    assert!(status.expect("iproute2").success(), "ip {line}");
}

fn options(name: &str) -> Options {
    Options { name: Some(name.into()) }
}

/// Opens a TUN device with a route to 10.9.0.0/16.
fn open() -> Tap {
    let tun = Tap::open_kind(Kind::Tun, &options("tw0")).expect("open");
    set_up_host(tun.name(), 1500, &[(HOST.into(), 32)]).expect("host");
    add_routes(tun.name(), &[(IpAddr::from([10, 9, 0, 0]), 16)]).expect("a route");
    tun
}

fn receive(tun: &mut Tap, pool: &mut Pool, wanted: impl Fn(&Packet) -> bool) -> Packet {
    let deadline = Instant::now() + PATIENCE;
    let mut out = Batch::new();
    while Instant::now() < deadline {
        let fd = tun.wake_fd().expect("open device");
        let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        rustix::event::poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], Some(&tick))
            .expect("poll");
        tun.poll(7, pool, &mut out, 64);
        while let Some(packet) = out.pop_front() {
            if wanted(&packet) {
                return packet;
            }
        }
    }
    panic!("no such packet came: {:?}", tun.counters());
}

/// Returns whether a packet is IPv4, has this protocol, and goes from the host to [`BEHIND`].
fn is_to_behind(packet: &Packet, protocol: u8) -> bool {
    let bytes = packet.linear();
    let ends = [HOST.octets(), BEHIND.octets()].concat();
    (bytes.first(), bytes.get(9)) == (Some(&0x45), Some(&protocol))
        && bytes.get(12..20) == Some(&ends[..])
}

#[test]
fn packets_begin_with_an_ip_header_in_both_directions() {
    in_namespace(|| {
        let (mut tun, mut pool) = (open(), Pool::default());
        assert_eq!((tun.kind(), tun.link_type()), (Kind::Tun, LinkType::Ip));
        let socket = UdpSocket::bind((HOST, 0)).expect("bind");
        socket.send_to(b"hello", (BEHIND, 9)).expect("send");
        let packet = receive(&mut tun, &mut pool, |packet| is_to_behind(packet, 17));
        let bytes = packet.linear().to_vec();
        assert_eq!(bytes[28..], *b"hello");
        assert_eq!(packet.meta.checksum, Checksum::Partial { start: 20, offset: 6 });

        // The answer is the datagram with its endpoints exchanged. The kernel completes its
        // checksum.
        let mut answer = bytes.clone();
        answer[12..16].copy_from_slice(&bytes[16..20]);
        answer[16..20].copy_from_slice(&bytes[12..16]);
        answer[20..22].copy_from_slice(&bytes[22..24]);
        answer[22..24].copy_from_slice(&bytes[20..22]);
        let mut packet = pool.take(answer.len());
        packet.push_back(answer.len()).expect("room").copy_from_slice(&answer);
        packet.meta.checksum = Checksum::Partial { start: 20, offset: 6 };
        let mut batch = Batch::from([packet]);
        assert_eq!(tun.submit(7, &mut pool, &mut batch), 1);
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut heard = [0; 9];
        let (n, from) = socket.recv_from(&mut heard).expect("an answer");
        assert_eq!((&heard[..n], from), (&b"hello"[..], (BEHIND, 9).into()));
    });
}

/// The kernel passes the bytes of a stream to the device without segmenting them.
#[test]
fn a_stream_comes_in_large_pieces() {
    in_namespace(|| {
        // Exchange the addresses of each packet and return it, so that the host connects to itself.
        let (mut tun, mut pool) = (open(), Pool::default());
        let listener = TcpListener::bind((HOST, 0)).expect("listen");
        let port = listener.local_addr().expect("bound").port();
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect((BEHIND, port)).expect("connect");
            stream.write_all(&[7; 1 << 20]).expect("write");
        });
        let mut batch = Batch::new();
        let mut largest = 0;
        let deadline = Instant::now() + PATIENCE;
        listener.set_nonblocking(true).expect("nonblocking");
        let mut server = None;
        while !client.is_finished() {
            assert!(Instant::now() < deadline, "waited too long: {:?}", tun.counters());
            tun.poll(7, &mut pool, &mut batch, 64);
            for packet in &mut batch {
                largest = largest.max(packet.meta.segmentation.map_or(0, |_| packet.len()));
                let bytes = packet.linear_mut();
                if let Some(ends) = bytes.get_mut(12..20) {
                    ends.rotate_left(4);
                }
            }
            tun.submit(7, &mut pool, &mut batch);
            if server.is_none() {
                server = listener.accept().ok().map(|(stream, _)| {
                    std::thread::spawn(move || {
                        let mut stream = stream;
                        stream.set_nonblocking(false).expect("blocking");
                        std::io::copy(&mut stream, &mut std::io::sink())
                    })
                });
            }
        }
        client.join().expect("the client has written");
        assert!(largest > 1500, "{largest}");
    });
}

#[test]
fn a_route_leads_through_the_device_but_for_marked_or_bound_packets() {
    in_namespace(|| {
        let tun = open();
        ip("link add va type veth peer name vb");
        ip("addr add 192.0.2.1/24 dev va");
        ip("link set va up");
        ip("link set vb up");
        ip("route add default via 192.0.2.2 dev va");
        ip("route add default via 192.0.2.2 dev va table 100");
        ip("rule add fwmark 7 lookup 100");
        let leads = |marks| leads_through("tw0", BEHIND.into(), marks).expect("the kernel knows");
        assert!(leads(Marks::default()));
        assert!(leads(Marks { mark: Some(8), interface: None }));
        assert!(!leads(Marks { mark: Some(7), interface: None }));
        assert!(!leads(Marks { mark: None, interface: Some("va") }));
        let missing =
            leads_through("tw0", BEHIND.into(), Marks { mark: None, interface: Some("x") });
        assert_eq!(missing.expect_err("no interface").raw_os_error(), Some(libc::ENODEV));

        // As after the end of a program whose device stays.
        let network = |second| [(IpAddr::from([10, second, 0, 0]), 16)];
        add_routes(tun.name(), &network(9)).expect("a route that leads there already");
        ip("route add 10.10.0.0/16 dev va");
        let taken = add_routes(tun.name(), &network(10)).expect_err("a route of another device");
        assert!(matches!(taken, HostError::RouteTaken { len: 16, .. }), "{taken:?}");
        drop(tun);
        assert!(leads_through("tw0", BEHIND.into(), Marks::default()).is_err(), "gone");
    });
}

#[test]
fn kinds_are_told_apart_and_a_device_of_others_stays() {
    in_namespace(|| {
        let tun = open();
        assert!(!tun.is_persistent());
        let tap = Tap::open(&options("tw0"));
        assert!(matches!(tap, Err(OpenError::NotTap { .. } | OpenError::Busy { .. })), "{tap:?}");
        ip("tuntap add dev made mode tun");
        let tap = Tap::open(&options("made")).expect_err("of another kind");
        assert_eq!(tap.to_string(), "made exists and is not a TAP device; choose another name");
        let made = Tap::open_kind(Kind::Tun, &options("made")).expect("made beforehand");
        assert!(made.is_persistent());
        let again = Tap::open_kind(Kind::Tun, &options("made")).expect_err("in use");
        assert!(again.to_string().starts_with("the TUN device made is in use"), "{again}");
        drop(made);
        ip("link del made");
    });
}
