//! Socket options that affect how connections are opened, accepted and closed.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use towpath_engine::{EngineConfig, RouteConfig};
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
use towpath_shm::control::{Request, call};
use towpath_shm::layout::{flags, op, setting};
use towpath_stack::net::InterfaceConfig;
use towpath_wire::{MacAddr, Prefix};

use crate::program::{Handle, Program, Running, eventually};

const ECONNRESET: i32 = 104;
const ETIMEDOUT: i32 = 110;

fn set(program: &Program, handle: Handle, setting: u32, value: i64) {
    program.command_b(op::SETTING, handle, setting, value as u64);
}

fn can_accept(program: &Program, listener: Handle) -> bool {
    let slot = program.slot(listener);
    slot.rx_tail.load(Ordering::Acquire) != slot.rx_head.load(Ordering::Acquire)
}

#[test]
fn accepting_waits_for_bytes() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    set(&program, listener, setting::DEFER_ACCEPT, 30);
    let silent = program.connect(addr);
    let client = program.connect(addr);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!can_accept(&program, listener));
    program.send(client, b"GET");
    let server = program.accept(listener);
    assert_eq!(program.recv(server, 3), b"GET");
    assert_eq!(program.slot(server).remote.load(), program.slot(client).local.load());
    assert!(!can_accept(&program, listener));
    // With TCP_DEFER_ACCEPT, a FIN makes a connection acceptable, too.
    program.close(silent);
    let ended = program.accept(listener);
    program.recv_end(ended);
}

#[test]
fn accepting_waits_no_longer_than_it_was_told() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    set(&program, listener, setting::DEFER_ACCEPT, 1);
    let begin = Instant::now();
    let client = program.connect(addr);
    let server = program.accept(listener);
    // The engine reads its clock once per turn, so the measured time may be shorter than one
    // second.
    assert!(begin.elapsed() >= Duration::from_millis(500), "{:?}", begin.elapsed());
    program.send(server, b"220 ready");
    assert_eq!(program.recv(client, 9), b"220 ready");
}

#[test]
fn connections_that_wait_for_bytes_end_like_others() {
    let engine = Running::start(EngineConfig::default());
    let (a, b) = (engine.program(), engine.program());
    let (listener, addr) = a.listen("127.0.0.1:0");
    set(&a, listener, setting::DEFER_ACCEPT, 30);
    // More connections than the backlog holds, because each reset frees a place.
    for _ in 0..40 {
        let gone = b.connect(addr);
        b.slot(gone).linger.store(1, Ordering::Relaxed);
        b.close(gone);
        engine.wait_for("sockets", 1);
    }
    let left = b.connect(addr);
    a.close(listener);
    assert_eq!(b.error(left), ECONNRESET);
    b.close(left);
    engine.wait_for("sockets", 0);
}

#[test]
fn a_closed_socket_waits_for_the_peer_as_long_as_it_was_told() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    let client = program.connect(addr);
    let _server = program.accept(listener);
    set(&program, client, setting::LINGER2, 1);
    let begin = Instant::now();
    program.close(client);
    engine.wait_for("sockets", 2);
    // Linux's default is a minute, longer than any wait of these tests.
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(500), "{took:?}");

    let client = program.connect(addr);
    let _server = program.accept(listener);
    set(&program, client, setting::LINGER2, -1);
    program.close(client);
    engine.wait_for("sockets", 3);
}

/// A link without a host at its other end.
pub struct Void;

impl Port for Void {
    fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
        0
    }
    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len();
        batch.drain(..).for_each(|packet| pool.give(packet));
        n
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A [`Void`] that counts the packets sent, and panics once `breaks` is set.
#[derive(Clone, Default)]
pub struct Watched {
    pub sent: Arc<AtomicUsize>,
    pub breaks: Arc<AtomicBool>,
}

impl Port for Watched {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        assert!(!self.breaks.load(Ordering::SeqCst), "the device is broken");
        Void.poll(now_ns, pool, out, max)
    }
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = Void.submit(now_ns, pool, batch);
        self.sent.fetch_add(n, Ordering::SeqCst);
        n
    }
    fn offloads(&self) -> Offloads {
        Void.offloads()
    }
    fn link_type(&self) -> LinkType {
        Void.link_type()
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The interface of [`Void`].
pub fn interface() -> InterfaceConfig {
    InterfaceConfig {
        name: "void".into(),
        link: LinkType::Ip,
        mac: MacAddr([0; 6]),
        mtu: 1500,
        offloads: Offloads::default(),
        addresses: vec!["10.0.0.1/24".parse().unwrap()],
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    }
}

#[test]
fn connecting_is_tried_as_often_as_it_was_told() {
    let route = RouteConfig { prefix: Prefix::ALL_V4, next_hop: None, interface: 0, metric: 0 };
    let config = EngineConfig {
        interfaces: vec![interface()],
        routes: vec![route],
        ..EngineConfig::default()
    };
    let watched = Watched::default();
    let sent = Arc::clone(&watched.sent);
    let engine = Running::start_with(config, || vec![Box::new(watched)]);
    let program = engine.program();
    let socket = program.socket(6);
    set(&program, socket, setting::SYNCNT, 1);
    // Two attempts, because the options stay set after a failed one.
    for attempts in 1..=2 {
        let begin = Instant::now();
        program.start_connect(socket, "192.0.2.1:80".parse().unwrap()).unwrap();
        assert_eq!(program.error(socket), ETIMEDOUT);
        // As Linux, sends SYNs after 0, 1 and 2 seconds. Gives up after 3 seconds, which one
        // retransmission with a doubled timeout takes.
        let took = begin.elapsed();
        assert!(took > Duration::from_secs(2), "{took:?}");
        assert_eq!(sent.load(Ordering::SeqCst), 3 * attempts, "SYNs");
        eventually("the end", || {
            (program.slot(socket).flags.load(Ordering::Acquire) & flags::DEAD != 0).then_some(())
        });
    }
}

/// UDP packets sent on two links without neighbours: number of the link, and payload byte.
static LEFT: Mutex<Vec<(u8, u8)>> = Mutex::new(Vec::new());

/// A link that records the packets sent on it.
struct Noted(u8);

impl Port for Noted {
    fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
        0
    }
    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        const NEXT_HEADER: usize = 6;
        const UDP: u8 = 17;
        const PAYLOAD: usize = 48;
        let n = batch.len();
        for packet in batch.drain(..) {
            let bytes = packet.linear();
            if bytes[0] >> 4 == 6 && bytes[NEXT_HEADER] == UDP {
                LEFT.lock().unwrap().push((self.0, bytes[PAYLOAD]));
            }
            pool.give(packet);
        }
        n
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Loopback is interface 1; the links are 2 and 3. A datagram socket that is connected to a
/// link-local address uses the link in the address, and returns it as scope.
#[test]
fn a_link_local_peer_is_on_the_link_that_its_address_names() {
    let link = |name: &str, address: &str| InterfaceConfig {
        name: name.into(),
        addresses: vec![address.parse().unwrap()],
        ..interface()
    };
    let config = EngineConfig {
        interfaces: vec![link("one", "fe80::1/64"), link("two", "fe80::2/64")],
        ..EngineConfig::default()
    };
    let engine = Running::start_with(config, || vec![Box::new(Noted(2)), Box::new(Noted(3))]);
    let program = engine.program();
    let socket = program.socket_v6(17);
    for (scope, byte) in [(2, b'a'), (3, b'b')] {
        let peer: SocketAddr = format!("[fe80::9%{scope}]:7").parse().unwrap();
        let unspecified = program.about(call::CONNECT, socket);
        program.call(&unspecified).unwrap();
        program.start_connect(socket, peer).unwrap();
        let slot = program.slot(socket);
        assert_eq!(slot.remote.load().to_socket_addr(), Some(peer), "getpeername");
        assert_eq!(slot.local.load().scope, scope, "getsockname");
        program.send_to(socket, None, &[byte]);
        program.send_to(socket, Some(peer), &[byte + 1]);
        eventually("both", || {
            let mut left = LEFT.lock().unwrap();
            (left.len() == 2).then(|| {
                assert_eq!(*left, [(scope as u8, byte), (scope as u8, byte + 1)]);
                left.clear();
            })
        });
    }
    // The scope of a global address is ignored.
    let global: SocketAddr = "[::1%3]:7".parse().unwrap();
    let other = program.socket_v6(17);
    assert_eq!(program.start_connect(other, global), Ok(()));
    assert_eq!(program.slot(other).remote.load().scope, 0);
}

/// As on Linux, packets between this host's own link-local addresses have the scope of the
/// address's link. Accepted connections and reports of unreachable ports have that scope, too.
#[test]
fn link_local_peers_show_their_link() {
    let link = InterfaceConfig {
        name: "one".into(),
        addresses: vec!["fe80::1/64".parse().unwrap()],
        ..interface()
    };
    let config = EngineConfig { interfaces: vec![link], ..EngineConfig::default() };
    let engine = Running::start_with(config, || vec![Box::new(Void)]);
    let program = engine.program();
    let listener = program.socket_v6(6);
    let port = program.bind(listener, "[::]:0").unwrap().port();
    program.call(&Request { a: 16, ..program.about(call::LISTEN, listener) }).unwrap();
    let client = program.socket_v6(6);
    program.start_connect(client, format!("[fe80::1%2]:{port}").parse().unwrap()).unwrap();
    let server = program.slot(program.accept(listener));
    assert_eq!((server.remote.load().scope, server.local.load().scope), (2, 2));

    let socket = program.socket_v6(17);
    let own = program.bind(socket, "[fe80::1%2]:0").unwrap();
    program.send_to(socket, Some(own), b"own");
    let (header, _) = program.recv_record(socket);
    assert_eq!((header.remote.scope, header.ifindex), (2, 2));

    let socket = program.socket_v6(17);
    set(&program, socket, setting::RECVERR_V6, 1);
    let nobody: SocketAddr = "[fe80::1%2]:9".parse().unwrap();
    program.send_to(socket, Some(nobody), b"x");
    let report = eventually("port unreachable", || {
        program.call(&program.about(call::ERROR_QUEUE, socket)).ok()
    });
    assert_eq!(report.addr.to_socket_addr(), Some(nobody));
    let (from, rest) = report.payload().split_first_chunk::<16>().unwrap();
    assert_eq!(*from, "fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(rest, [2u32.to_ne_bytes().as_slice(), b"x"].concat(), "its scope, and the payload");
}

/// If SO_RCVBUF was not set, its value is the buffer's current size, which only the engine knows.
#[test]
fn the_receive_buffer_in_use_is_told() {
    const SOL_SOCKET: u32 = 1;
    const SO_RCVBUF: u32 = 8;
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    let client = program.connect(addr);
    let _server = program.accept(listener);
    let told = || {
        let about = program.about(call::GET_OPTION, client);
        let reply = program.call(&Request { a: SOL_SOCKET, b: SO_RCVBUF, ..about }).unwrap();
        u32::from_ne_bytes(*reply.payload().first_chunk().unwrap())
    };
    assert_eq!(told(), 64 << 10, "as it begins");
    set(&program, client, setting::RCVBUF, 300_000);
    assert!(told() >= 600_000, "{}", told());
}
