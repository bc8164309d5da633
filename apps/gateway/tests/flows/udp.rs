//! Datagrams of the program to services of the host.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt;
use towpath_gateway::{Gateway, GatewayConfig};
use towpath_pool::{Batch, Checksum, Pool, Port};
use towpath_ring::Payload;
use towpath_shm::Fragments;
use towpath_stack::{BindOptions, DatagramOut, Family, SocketError, SocketKind, SocketOption};
use towpath_wire::{IpProtocol, icmpv6, ipv4, ipv6, udp};

use crate::world::{Sock, World, among_free_ports, gateway_v4, gateway_v6, pattern};

fn echo_server(addr: &str, times: usize) -> (u16, thread::JoinHandle<()>) {
    let socket = UdpSocket::bind(addr).unwrap();
    socket.set_read_timeout(Some(crate::world::PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let mut buffer = [0; 65536];
        for _ in 0..times {
            let (n, from) = socket.recv_from(&mut buffer).unwrap();
            socket.send_to(&buffer[..n], from).unwrap();
        }
    });
    (port, server)
}

#[test]
fn datagrams_keep_their_bounds() {
    let sizes = [0, 1, 100, 1472, 9000, 60_000];
    let (port, server) = echo_server("127.0.0.1:0", sizes.len());
    let mut world = World::new();
    let sock = world.datagram_socket("10.0.2.15:0");
    for size in sizes {
        let bytes = pattern(size, size as u32);
        world.send_to(sock, gateway_v4(port), &bytes, None);
        let got = world.until("an answer", |world| world.program.datagrams.pop_front());
        assert_eq!(got, (sock.user, gateway_v4(port), bytes));
    }
    server.join().unwrap();
    assert_eq!(world.counter("udp_flows"), 1);
}

#[test]
fn datagrams_over_ipv6() {
    let (port, _server) = echo_server("[::1]:0", 1);
    let mut world = World::new();
    let sock = world.datagram_socket("[fd00:2::15]:0");
    world.send_to(sock, gateway_v6(port), b"hello", None);
    let got = world.until("an answer", |world| world.program.datagrams.pop_front());
    assert_eq!(got, (sock.user, gateway_v6(port), b"hello".to_vec()));
}

#[test]
fn trains_of_datagrams_are_cut_and_all_arrive() {
    const SIZE: usize = 1200;
    let (port, server) = echo_server("127.0.0.1:0", 21);
    let mut world = World::new();
    let sock = world.datagram_socket("10.0.2.15:0");
    let bytes = pattern(20 * SIZE + 77, 5);
    world.send_to(sock, gateway_v4(port), &bytes, Some(SIZE as u16));
    for chunk in bytes.chunks(SIZE) {
        let got = world.until("an answer", |world| world.program.datagrams.pop_front());
        assert_eq!(got.2, chunk);
    }
    server.join().unwrap();
}

#[test]
fn a_closed_port_is_reported() {
    among_free_ports(closed_ports_are_reported);
}

fn closed_ports_are_reported() {
    // Connect the sockets to another peer, so that they reserve the ports but receive nothing.
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
    closed.connect("127.0.0.1:9").unwrap();
    let port = closed.local_addr().unwrap().port();
    let closed_v6 = UdpSocket::bind(("::1", port)).unwrap();
    closed_v6.connect("[::1]:9").unwrap();
    let mut world = World::new();
    for (bind, to) in [("10.0.2.15:0", gateway_v4(port)), ("[fd00:2::15]:0", gateway_v6(port))] {
        let sock = world.datagram_socket(bind);
        let now = world.now();
        world.stack.connect_datagram(now, sock.id, to).unwrap();
        world.send_to(sock, to, b"anybody?", None);
        let error = world.until("an error", |world| world.error(sock));
        assert_eq!(error, SocketError::PortUnreachable);
    }
    assert_eq!(world.counter("icmp_errors"), 2);
}

#[test]
fn every_flow_has_its_own_answers() {
    const FLOWS: usize = 100;
    let (port, server) = echo_server("127.0.0.1:0", FLOWS);
    let mut world = World::new();
    let socks: Vec<_> = (0..FLOWS).map(|_| world.datagram_socket("10.0.2.15:0")).collect();
    for sock in &socks {
        world.send_to(*sock, gateway_v4(port), &sock.user.to_be_bytes(), None);
    }
    for _ in 0..FLOWS {
        let (user, _, bytes) =
            world.until("an answer", |world| world.program.datagrams.pop_front());
        assert_eq!(bytes, user.to_be_bytes());
    }
    server.join().unwrap();
    assert_eq!(world.counter("udp_flows"), FLOWS as u64);
}

fn ping(world: &mut World, to: IpAddr) -> SocketAddr {
    let user = world.user();
    let id = world.stack.open(SocketKind::Echo, Family::V4, user).unwrap();
    let own = "10.0.2.15:0".parse().unwrap();
    let ident = world.stack.bind(id, own, BindOptions::default()).unwrap().port();
    let mut request = vec![8, 0, 0, 0];
    request.extend(ident.to_be_bytes());
    request.extend([0, 1]);
    request.extend(b"data");
    let now = world.now();
    let to = SocketAddr::new(to, 0);
    let out = DatagramOut { remote: Some(to), ..DatagramOut::default() };
    let payload = Payload::new(&request, Fragments::empty());
    world.stack.send_datagram(now, id, &out, &payload, &mut world.pool).unwrap();
    to
}

fn expect_reply(world: &mut World, from: SocketAddr) {
    let (_, remote, reply) = world.until("a reply", |world| world.program.datagrams.pop_front());
    assert_eq!((remote.ip(), reply[0], &reply[8..]), (from.ip(), 0, &b"data"[..]));
}

#[test]
fn the_gateway_answers_pings_to_itself() {
    let mut world = World::new();
    let to = ping(&mut world, gateway_v4(0).ip());
    expect_reply(&mut world, to);
}

#[test]
fn pings_leave_the_host_if_it_permits() {
    // Find an address of this host other than loopback. Without one, no address can be pinged.
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_err() {
        return;
    }
    let mut world = World::new();
    let to = ping(&mut world, probe.local_addr().unwrap().ip());
    let permitted = world.until("a decision", |world| {
        let (sent, refused) = (world.counter("echo_requests"), world.counter("echo_not_permitted"));
        (sent + refused > 0).then_some(sent > 0)
    });
    if permitted {
        expect_reply(&mut world, to);
        assert_eq!(world.counter("echo_replies"), 1);
    }
}

#[test]
fn a_burst_of_the_host_waits_where_there_is_room() {
    // Send more datagrams than the link holds, so that some wait in the socket's buffer.
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(crate::world::PATIENCE)).unwrap();
    let port = server.local_addr().unwrap().port();
    let mut world = World::new();
    let sock = world.datagram_socket("10.0.2.15:0");
    world.send_to(sock, gateway_v4(port), b"go", None);
    world.turn();
    let (_, client) = server.recv_from(&mut [0; 16]).unwrap();
    for n in 0..100u32 {
        server.send_to(&n.to_be_bytes(), client).unwrap();
    }
    for n in 0..100u32 {
        let (_, _, bytes) = world.until("a datagram", |world| world.program.datagrams.pop_front());
        assert_eq!(bytes, n.to_be_bytes());
    }
}

/// Returns the source port of the program's socket as seen by each server.
fn seen_at(world: &mut World, sock: Sock, servers: &[UdpSocket]) -> Vec<u16> {
    for server in servers {
        server.set_read_timeout(Some(crate::world::PATIENCE)).unwrap();
        let to = server.local_addr().unwrap();
        let to = if to.is_ipv4() { gateway_v4(to.port()) } else { gateway_v6(to.port()) };
        world.send_to(sock, to, b"hello", None);
    }
    world.turn();
    let port = |server: &UdpSocket| server.recv_from(&mut [0; 16]).unwrap().1.port();
    servers.iter().map(port).collect()
}

#[test]
fn every_peer_sees_the_program_at_one_port() {
    among_free_ports(every_peer_sees_one_port);
}

fn every_peer_sees_one_port() {
    for (host, any, own) in
        [("127.0.0.1:0", "0.0.0.0", "10.0.2.15"), ("[::1]:0", "[::]", "[fd00:2::15]")]
    {
        let servers = [host, host, host].map(|addr| UdpSocket::bind(addr).unwrap());
        let free = UdpSocket::bind(format!("{any}:0")).unwrap();
        let port = free.local_addr().unwrap().port();
        let mut other = World::new();
        let other_sock = other.datagram_socket(&format!("{own}:{port}"));
        let mut world = World::new();
        let sock = world.datagram_socket(&format!("{own}:{port}"));

        // Another socket has the port.
        let seen = seen_at(&mut other, other_sock, &servers);
        assert_ne!(seen[0], port);
        assert_eq!(seen, [seen[0]; 3]);
        // The port is free.
        drop(free);
        assert_eq!(seen_at(&mut world, sock, &servers), [port; 3]);
        // Another gateway of this user has the port.
        let mut third = World::new();
        let third_sock = third.datagram_socket(&format!("{own}:{port}"));
        let seen = seen_at(&mut third, third_sock, &servers);
        assert_ne!(seen[0], port);
        assert_eq!(seen, [seen[0]; 3]);
        // Answers arrive at the program's socket.
        for (n, server) in servers.iter().enumerate() {
            let ip = server.local_addr().unwrap().ip();
            server.send_to(&[n as u8], SocketAddr::new(ip, port)).unwrap();
            let (user, from, bytes) =
                world.until("an answer", |world| world.program.datagrams.pop_front());
            assert_eq!((user, bytes), (sock.user, vec![n as u8]));
            assert_eq!(from.port(), server.local_addr().unwrap().port());
        }
        assert!(third.program.datagrams.is_empty());
    }
}

#[test]
fn ttl_and_class_of_answers_arrive() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server_v6 = UdpSocket::bind("[::1]:0").unwrap();
    server.set_ttl(7).unwrap();
    sockopt::set_ip_tos(&server, 0x2a).unwrap();
    sockopt::set_ipv6_unicast_hops(&server_v6, Some(9)).unwrap();
    sockopt::set_ipv6_tclass(&server_v6, 0xb8).unwrap();
    let mut world = World::new();
    for (server, own, marks) in
        [(server, "10.0.2.15:0", (7, 0x2a)), (server_v6, "[fd00:2::15]:0", (9, 0xb8))]
    {
        let sock = world.datagram_socket(own);
        let to = server.local_addr().unwrap();
        let to = if to.is_ipv4() { gateway_v4(to.port()) } else { gateway_v6(to.port()) };
        world.send_to(sock, to, b"hello", None);
        world.turn();
        server.set_read_timeout(Some(crate::world::PATIENCE)).unwrap();
        let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
        server.send_to(b"there", from).unwrap();
        world.until("an answer", |world| world.program.datagrams.pop_front());
        let meta = world.program.metas.last().unwrap();
        assert_eq!((meta.ttl, meta.tos), marks);
    }
}

#[test]
fn a_ping_that_cannot_be_sent_is_answered_by_an_error() {
    let (src, dst): (Ipv6Addr, Ipv6Addr) =
        ("fd00:2::15".parse().unwrap(), "fe80::1234".parse().unwrap());
    let (ident, seq) = (0x1234, 5);
    let mut pool = Pool::default();
    let len = icmpv6::HEADER_LEN + 4;
    let mut packet = pool.take(ipv6::HEADER_LEN + len);
    let bytes = packet.push_back(ipv6::HEADER_LEN + len).unwrap();
    let ip = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
        next_header: IpProtocol::ICMPV6,
        hop_limit: 64,
        src,
        dst,
    };
    ip.emit(bytes);
    bytes[ipv6::HEADER_LEN + icmpv6::HEADER_LEN..].copy_from_slice(b"ping");
    icmpv6::Message::EchoRequest { ident, seq }.emit(&mut bytes[ipv6::HEADER_LEN..]);
    packet.meta.checksum = Checksum::Verified;
    let mut gateway = Gateway::new(GatewayConfig::default(), 1).unwrap();
    assert_eq!(gateway.submit(2, &mut pool, &mut Batch::from([packet])), 1);
    if gateway.counters().echo_not_permitted > 0 {
        return;
    }
    assert_eq!(gateway.counters().echo_dropped, 1);
    // A link-local address without an interface is unreachable for the kernel in any network.
    let mut out = Batch::new();
    assert_eq!(gateway.poll(3, &mut pool, &mut out, 8), 1);
    let answer = out[0].linear();
    let (ip, body) = ipv6::Header::parse(answer).unwrap();
    assert_eq!((ip.dst, ip.next_header), (src, IpProtocol::ICMPV6));
    let (message, quoted) = icmpv6::Message::parse(&answer[body.clone()]).unwrap();
    assert_eq!(message, icmpv6::Message::DestUnreachable { code: icmpv6::UNREACHABLE_ADDRESS });
    let quoted = &answer[body.start + quoted..];
    let (header, at) = ipv6::Header::parse_quoted(quoted).unwrap();
    assert_eq!((header.src, header.dst), (src, dst));
    let (request, data) = icmpv6::Message::parse(&quoted[at..]).unwrap();
    assert_eq!(request, icmpv6::Message::EchoRequest { ident, seq });
    assert_eq!(&quoted[at + data..], b"ping");
}

#[test]
fn a_broadcast_is_not_answered_by_an_error() {
    let mut world = World::new();
    let sock = world.datagram_socket("10.0.2.15:0");
    world.stack.set_option(sock.id, SocketOption::Broadcast(true)).unwrap();
    world.send_to(sock, "255.255.255.255:67".parse().unwrap(), b"anybody?", None);
    world.until("a drop", |world| (world.counter("udp_dropped") > 0).then_some(()));
    world.run_for(Duration::from_millis(20));
    assert_eq!((world.counter("icmp_errors"), world.counter("icmp_errors_dropped")), (0, 1));
}

#[test]
fn an_idle_flow_ends_and_is_made_anew() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(crate::world::PATIENCE)).unwrap();
    let to = gateway_v4(server.local_addr().unwrap().port());
    let mut world = World::new();
    let sock = world.datagram_socket("10.0.2.15:0");
    let wait = Duration::from_nanos(towpath_gateway::limits::UDP_IDLE_NS);
    for n in 1..=2 {
        world.send_to(sock, to, b"hello", None);
        world.turn();
        server.recv_from(&mut [0; 16]).unwrap();
        world.skip(wait - Duration::from_secs(5));
        assert_eq!((world.counter("udp_flows"), world.counter("udp_expired")), (n, n - 1));
        world.skip(Duration::from_secs(6));
        assert_eq!(world.counter("udp_expired"), n);
    }
}

/// Returns a datagram with a destination that the program's stack would never use.
fn forged(pool: &mut Pool, src: IpAddr, to: SocketAddr) -> towpath_pool::Packet {
    let data = b"hello";
    let len = udp::HEADER_LEN + data.len();
    let mut body = vec![0; len];
    body[udp::HEADER_LEN..].copy_from_slice(data);
    let header =
        udp::Header { src_port: 4000, dst_port: to.port(), length: len as u16, checksum: !0 };
    header.emit(&mut body);
    let mut bytes;
    match (src, to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes = vec![0; ipv4::HEADER_LEN];
            let ip = ipv4::Header {
                tos: 0,
                total_len: (ipv4::HEADER_LEN + len) as u16,
                ident: 0,
                dont_fragment: false,
                more_fragments: false,
                fragment_offset: 0,
                ttl: 64,
                protocol: IpProtocol::UDP,
                src,
                dst,
                options: ipv4::Options::EMPTY,
            };
            bytes.extend(&body);
            ip.emit(&mut bytes);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            bytes = vec![0; ipv6::HEADER_LEN];
            let ip = ipv6::Header {
                traffic_class: 0,
                flow_label: 0,
                payload_len: len as u16,
                next_header: IpProtocol::UDP,
                hop_limit: 64,
                src,
                dst,
            };
            bytes.extend(&body);
            ip.emit(&mut bytes);
        }
        _ => panic!("of one family"),
    }
    let mut packet = pool.take(bytes.len());
    packet.push_back(bytes.len()).unwrap().copy_from_slice(&bytes);
    packet.meta.checksum = Checksum::Verified;
    packet
}

/// For the host's kernel, unspecified addresses and their IPv4-mapped forms mean its loopback.
#[test]
fn without_host_loopback_no_address_leads_there() {
    let servers = ["127.0.0.1:0", "[::1]:0"].map(|at| UdpSocket::bind(at).unwrap());
    let ports = servers.each_ref().map(|server| server.local_addr().unwrap().port());
    for server in &servers {
        server.set_nonblocking(true).unwrap();
    }
    let mut pool = Pool::default();
    let v4: IpAddr = "10.0.2.15".parse().unwrap();
    let v6: IpAddr = "fd00:2::15".parse().unwrap();
    // With `host_loopback`, the gateway's addresses lead to the loopback.
    let mut gateway = Gateway::new(GatewayConfig::default(), 1).unwrap();
    for (src, to, server) in
        [(v4, gateway_v4(ports[0]), &servers[0]), (v6, gateway_v6(ports[1]), &servers[1])]
    {
        let packet = forged(&mut pool, src, to);
        gateway.submit(2, &mut pool, &mut Batch::from([packet]));
        gateway.poll(3, &mut pool, &mut Batch::new(), 8);
        assert_eq!(server.recv_from(&mut [0; 16]).unwrap().0, 5);
    }
    let config = GatewayConfig { host_loopback: false, ..GatewayConfig::default() };
    let mut gateway = Gateway::new(config, 1).unwrap();
    let mut now = 2;
    for (src, dst) in [
        (v4, "127.0.0.1"),
        (v4, "127.9.9.9"),
        (v4, "0.0.0.0"),
        (v4, "0.0.0.1"),
        (v4, "10.0.2.2"),
        (v4, "10.0.2.3"),
        (v6, "::1"),
        (v6, "::"),
        (v6, "::ffff:127.0.0.1"),
        (v6, "::ffff:0.0.0.0"),
        (v6, "fd00:2::2"),
        (v6, "fd00:2::3"),
    ] {
        for port in ports {
            let to = SocketAddr::new(dst.parse().unwrap(), port);
            let packet = forged(&mut pool, src, to);
            gateway.submit(now, &mut pool, &mut Batch::from([packet]));
            let mut out = Batch::new();
            gateway.poll(now + 1, &mut pool, &mut out, 8);
            now += 2;
        }
        for server in &servers {
            assert!(server.recv_from(&mut [0; 16]).is_err(), "{dst} leads to {server:?}");
        }
    }
    assert_eq!(gateway.counters().udp_to_host, 0);
}
