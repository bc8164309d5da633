//! Tests TAP devices with several queues with the kernel as peer, each in its own network
//! namespace. Without root (or CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_BPF) and /dev/net/tun, they
//! print a message and pass.

#![allow(clippy::print_stderr)] // For messages about skipped tests.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use towpath_dice::Dice;
use towpath_pool::{Batch, Packet, Pool, Port};
use towpath_stack::Owners;
use towpath_tap::{OpenError, Options, Steering, Tap, set_up_host};

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

fn options(name: &str) -> Options {
    Options { name: Some(name.into()) }
}

fn open(count: usize) -> Vec<Tap> {
    let queues = Tap::open_queues(&options("tp0"), count).expect("open");
    assert_eq!(queues.len(), count);
    assert!(queues.iter().all(|queue| queue.name() == "tp0"));
    set_up_host("tp0", 1500, &[("10.77.0.1".parse().expect("an address"), 24)]).expect("host");
    queues
}

/// Returns a random key of a host.
fn key(dice: &mut Dice) -> [u8; 32] {
    std::array::from_fn(|_| dice.next_u64() as u8)
}

/// Opens a packet socket that sends frames on `tp0`.
fn sender() -> OwnedFd {
    // SAFETY: the calls take integers and local structs. sockaddr_ll consists of integers, so zeros
    // are valid.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = libc::if_nametoindex(c"tp0".as_ptr()) as i32;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len), 0);
        socket
    }
}

/// Maximum time until sent frames must have arrived.
const PATIENCE: Duration = Duration::from_secs(50);
/// Source address that only frames of these tests have. The frame's number is at its end.
const SENDER: [u8; 6] = [2, 7, 7, 7, 7, 7];
const NUMBER_LEN: usize = 4;

fn frame(ethertype: u16, packet: &[u8], number: u32) -> Vec<u8> {
    let ethertype = ethertype.to_be_bytes();
    [&[2, 0, 0, 0, 0, 2], &SENDER[..], &ethertype, packet, &number.to_ne_bytes()].concat()
}

/// Sends frames, and returns the queue in which each arrived, by the frame's number.
fn arrivals(taps: &mut [Tap], frames: &[Vec<u8>]) -> HashMap<u32, usize> {
    let (socket, mut pool, mut out) = (sender(), Pool::default(), Batch::new());
    let mut found = HashMap::new();
    for some in frames.chunks(200) {
        for frame in some {
            assert_eq!(rustix::io::write(&socket, frame), Ok(frame.len()));
        }
        let (all, deadline) = (found.len() + some.len(), Instant::now() + PATIENCE);
        while found.len() < all && Instant::now() < deadline {
            for (n, tap) in taps.iter_mut().enumerate() {
                while tap.poll(7, &mut pool, &mut out, 64) > 0 {}
                for packet in out.drain(..).filter(|packet| packet.linear()[6..12] == SENDER) {
                    let number = packet.linear().last_chunk::<NUMBER_LEN>().expect("a number");
                    found.insert(u32::from_ne_bytes(*number), n);
                }
            }
        }
    }
    found
}

/// A packet, and the endpoints of its flow; `None` if the packet belongs to no flow.
type Case = (Vec<u8>, Option<(SocketAddr, SocketAddr)>);

/// Returns an IPv4 packet of TCP or UDP, with random options.
fn packet_v4(dice: &mut Dice, fragment: u16, protocol: u8) -> Case {
    // Use few addresses and ports, so that equal ones and both orders occur.
    let mut end = || {
        let address = [10, dice.below(2) as u8, 0, dice.below(4) as u8];
        (address, dice.below(70_000).min(65_535) as u16)
    };
    let ((src, sport), (dst, dport)) = (end(), end());
    let words = dice.index(11);
    let mut packet = vec![0x45 + words as u8, 0, 0, 0, 0, 0];
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(src.into_iter().chain(dst));
    packet.resize(20 + 4 * words, 1);
    packet.extend(sport.to_be_bytes().into_iter().chain(dport.to_be_bytes()));
    packet.resize(packet.len() + 16, 0);
    // Even a first fragment counts as having ports 0. Only the fragment offset and the
    // more-fragments bit make a packet a fragment.
    let ports = if fragment & 0x3fff == 0 { [sport, dport] } else { [0, 0] };
    let ends = (SocketAddr::from((src, ports[0])), SocketAddr::from((dst, ports[1])));
    (packet, Some(ends))
}

/// Returns an IPv6 packet with `extensions` extension headers, followed by a fragment header if
/// `piece` is set.
fn packet_v6(dice: &mut Dice, extensions: u64, piece: bool) -> Case {
    let mut end = || {
        let high = 0xfd00_0000_0000_0000 | u128::from(dice.below(2));
        let low = u128::from(dice.below(2)) << 63 | u128::from(dice.below(3));
        (IpAddr::V6((high << 64 | low).into()), dice.below(70_000).min(65_535) as u16)
    };
    let ((src, mut sport), (dst, mut dport)) = (end(), end());
    let protocol = if dice.below(2) == 0 { 6 } else { 17 };
    let mut headers = Vec::new();
    // Build the headers from the last to the first.
    let mut next = protocol;
    if piece {
        let header = [next, 0, 0, 1 << 3 | dice.below(2) as u8, 0, 0, 0, 9];
        headers.splice(0..0, header);
        next = 44;
    }
    for _ in 0..extensions {
        let kind = [0, 43, 44, 60][dice.index(4)];
        let mut header = vec![next, 0, 0, 0, 0, 0, 0, 0];
        if kind != 44 {
            let more = dice.below(3) as u8;
            header[1] = more;
            header.resize(8 + 8 * usize::from(more), 1);
        }
        headers.splice(0..0, header);
        next = kind;
    }
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    for ip in [src, dst] {
        if let IpAddr::V6(ip) = ip {
            packet.extend(ip.octets());
        }
    }
    packet.extend(headers);
    packet.extend(sport.to_be_bytes().into_iter().chain(dport.to_be_bytes()));
    packet.resize(packet.len() + 16, 0);
    if piece {
        (sport, dport) = (0, 0);
    }
    (packet, Some((SocketAddr::new(src, sport), SocketAddr::new(dst, dport))))
}

/// Returns `each` packets of each kind: some that the kernel sends, and unusual ones of other
/// hosts.
fn cases(dice: &mut Dice, each: usize) -> Vec<(u16, Case)> {
    let mut cases = Vec::new();
    for _ in 0..each {
        let protocol = if dice.below(2) == 0 { 6 } else { 17 };
        cases.push((0x0800, packet_v4(dice, 0x4000, protocol)));
        let piece = 1 + dice.below(0x3fff) as u16;
        cases.push((0x0800, packet_v4(dice, piece, protocol)));
        cases.push((0x0800, (packet_v4(dice, 0, 1).0, None)));
        let extensions = dice.below(5);
        cases.push((0x86dd, packet_v6(dice, extensions, false)));
        let extensions = dice.below(4);
        cases.push((0x86dd, packet_v6(dice, extensions, true)));
        cases.push((0x86dd, (packet_v6(dice, 5, false).0, None)));
        cases.push((0x0806, (vec![0; 28], None)));
        let (mut mapped, _) = packet_v6(dice, 0, false);
        mapped[24..40].copy_from_slice(&[&[0; 10][..], &[0xff, 0xff, 10, 0, 0, 1]].concat());
        cases.push((0x86dd, (mapped, None)));
    }
    cases
}

/// Loads the program. Returns false if this machine does not permit it.
fn steer(queues: &[Tap], owners: &Owners) -> bool {
    let steering = Steering { key: owners.key(), queues: owners.count() as u32 };
    match queues[0].steer(Some(&steering)) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            eprintln!("left out: needs CAP_BPF");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn frames_come_in_at_the_owner_of_their_flow() {
    in_namespace(|| {
        let mut dice = Dice::new(1, 0);
        for count in [2, 4, 8, 16] {
            let mut taps = open(count);
            let owners = Owners::new(&key(&mut dice), count);
            if !steer(&taps, &owners) {
                return;
            }
            let cases = cases(&mut dice, 500);
            let frames: Vec<_> = (0..)
                .zip(&cases)
                .map(|(n, (ethertype, (packet, _)))| frame(*ethertype, packet, n))
                .collect();
            let found = arrivals(&mut taps, &frames);
            assert_eq!(found.len(), frames.len(), "all arrived");
            let mut used = vec![0; count];
            for (n, (_, (packet, ends))) in (0..).zip(&cases) {
                let owner = ends.map_or(0, |(src, dst)| owners.owner(src, dst).index());
                assert_eq!(found[&n], owner, "of {count}: {ends:?} {packet:02x?}");
                used[owner] += u32::from(ends.is_some());
            }
            // With 16 queues, each gets 125 of 2000 packets on average, with a standard deviation
            // of 11.
            assert!(used.iter().all(|used| *used > 2000 / count as u32 / 2), "{used:?}");
        }
    });
}

/// Sends frames truncated at every length.
#[test]
fn short_frames_go_into_some_queue() {
    in_namespace(|| {
        let mut dice = Dice::new(2, 0);
        let mut taps = open(4);
        if !steer(&taps, &Owners::new(&key(&mut dice), 4)) {
            return;
        }
        let mut frames = Vec::new();
        for (ethertype, (packet, _)) in cases(&mut dice, 3) {
            for len in 0..packet.len() {
                frames.push(frame(ethertype, &packet[..len], frames.len() as u32));
            }
        }
        assert_eq!(arrivals(&mut taps, &frames).len(), frames.len());
    });
}

#[test]
fn every_queue_sends() {
    in_namespace(|| {
        let mut taps = open(4);
        let mut pool = Pool::default();
        for tap in &mut taps {
            let mut packet: Packet = pool.take(60);
            packet.push_back(60).expect("room").fill(0xff);
            assert_eq!(tap.submit(0, &mut pool, &mut Batch::from([packet])), 1);
            assert_eq!((tap.counters().tx_frames, tap.counters().tx_refused), (1, 0));
        }
    });
}

/// The next run has another key and another number of queues.
#[test]
fn a_device_is_steered_anew() {
    in_namespace(|| {
        ip(&["tuntap", "add", "dev", "tp0", "mode", "tap", "multi_queue"]);
        let mut dice = Dice::new(3, 0);
        for count in [4, 2] {
            let mut taps = open(count);
            let owners = Owners::new(&key(&mut dice), count);
            if !steer(&taps, &owners) {
                return;
            }
            let (packet, ends) = packet_v4(&mut dice, 0, 6);
            let (src, dst) = ends.expect("two ends");
            let found = arrivals(&mut taps, &[frame(0x0800, &packet, 0)]);
            assert_eq!(found[&0], owners.owner(src, dst).index());
            taps[0].steer(None).expect("nobody needs a capability for that");
            assert_eq!(arrivals(&mut taps, &[frame(0x0800, &packet, 1)]).len(), 1);
        }
    });
}

fn ip(arguments: &[&str]) {
    let status = std::process::Command::new("ip").args(arguments).status().expect("iproute2");
    assert!(status.success(), "ip {arguments:?}");
}

#[test]
fn devices_that_do_not_fit_are_told_apart() {
    in_namespace(|| {
        ip(&["tuntap", "add", "dev", "single", "mode", "tap"]);
        let open = |name: &str| Tap::open_queues(&options(name), 2);
        let error = open("single").expect_err("it has one queue");
        assert!(matches!(error, OpenError::OneQueue { queues: 2, .. }), "{error:?}");
        assert!(error.to_string().contains("dev single mode tap multi_queue"), "{error}");
        let user = Tap::open(&options("single")).expect("it is free");
        assert!(matches!(open("single"), Err(OpenError::OneQueue { .. })), "in use, too");
        drop(user);
        let loopback = open("lo");
        assert!(matches!(loopback, Err(OpenError::NotTap { .. })), "{loopback:?}");

        ip(&["tuntap", "add", "dev", "several", "mode", "tap", "multi_queue"]);
        let taken = open("several").expect("made for several");
        let again = open("several");
        assert!(matches!(again, Err(OpenError::Busy { .. })), "{again:?}");
        drop(taken);
        assert!(open("several").is_ok(), "it is free again");
    });
}
