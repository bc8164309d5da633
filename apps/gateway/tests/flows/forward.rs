//! Connections and datagrams of clients to forwarded ports of the host.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;

use towpath_gateway::{Forward, ForwardProtocol, Notice};
use towpath_stack::{Linger, SocketError};

use crate::world::{PATIENCE, World, among_free_ports, gateway_v4, gateway_v6, pattern};

fn ask(addr: SocketAddr, request: Vec<u8>) -> thread::JoinHandle<std::io::Result<Vec<u8>>> {
    thread::spawn(move || {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&request)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    })
}

#[test]
fn clients_reach_the_program() {
    let mut world = World::new();
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let request = pattern(200_000, 1);
    for _ in 0..5 {
        let client = ask(addr, request.clone());
        let (sock, remote) = world.accept(listener);
        assert_eq!(remote.ip(), gateway_v4(0).ip(), "a local client is seen as the gateway");
        let got = world.read_to_end(sock);
        assert!(got == request);
        world.write_all(sock, &got);
        world.close(sock, Linger::Default);
        world.until("the client", |_| client.is_finished().then_some(()));
        assert!(client.join().unwrap().unwrap() == request);
    }
    world.until("flows to end", |world| (world.gateway.borrow().tcp_flows() == 0).then_some(()));
    assert_eq!(world.counter("tcp_accepted"), 5);
}

#[test]
fn flows_of_clients_are_shown_as_theirs() {
    let mut world = World::new();
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let mut client = TcpStream::connect(addr).unwrap();
    client.write_all(b"hello").unwrap();
    let (sock, remote) = world.accept(listener);
    world.read_exact(sock, 5);
    world.write_all(sock, b"and hello to you");
    let shown = world.until("bytes", |world| {
        let flows = world.gateway.borrow().flows();
        flows.into_iter().find(|flow| flow.bytes_to_client == 16 && flow.bytes_to_server == 5)
    });
    assert_eq!((shown.client, shown.server.to_string()), (remote, "10.0.2.15:80".into()));
    world.close(sock, Linger::Default);
    world.until("the end", |world| {
        (world.gateway.borrow().flows()[0].state == "CLOSE-WAIT").then_some(())
    });
}

#[test]
fn a_program_that_listens_on_ipv6_only_is_found() {
    let mut world = World::new();
    let listener = world.listen("[fd00:2::15]:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let client = ask(addr, b"hi".to_vec());
    let (sock, remote) = world.accept(listener);
    assert_eq!(remote.ip(), gateway_v6(0).ip());
    assert_eq!(world.read_to_end(sock), b"hi");
    world.write_all(sock, b"there");
    world.close(sock, Linger::Default);
    world.until("the client", |_| client.is_finished().then_some(()));
    assert_eq!(client.join().unwrap().unwrap(), b"there");
}

#[test]
fn a_client_is_refused_when_the_program_does_not_listen() {
    let mut world = World::new();
    let (tell, told) = std::sync::mpsc::channel();
    world.gateway.borrow_mut().on_notice(move |notice| tell.send(notice).unwrap());
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    for _ in 0..2 {
        let client = ask(addr, b"hi".to_vec());
        world.until("the client", |_| client.is_finished().then_some(()));
        let error = client.join().unwrap().unwrap_err();
        // shutdown(2) returns ENOTCONN if the reset arrived before it.
        let reset = [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::NotConnected];
        assert!(reset.contains(&error.kind()), "{error}");
    }
    assert_eq!(world.counter("tcp_accepted_refused"), 2);
    // The user gets a single notice.
    let program = "10.0.2.15:80".parse().unwrap();
    let protocol = ForwardProtocol::Tcp;
    let wanted = Notice::NobodyListens { protocol, host: addr, program };
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [wanted]);
    assert!(wanted.to_string().contains("nothing listens on 10.0.2.15:80"));
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
}

#[test]
fn that_nobody_takes_datagrams_of_clients_is_said_once() {
    for host in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
        let mut world = World::new();
        let (tell, told) = std::sync::mpsc::channel();
        world.gateway.borrow_mut().on_notice(move |notice| tell.send(notice).unwrap());
        let addr = world.forward(host, 53, ForwardProtocol::Udp);
        let local = if addr.is_ipv4() { "127.0.0.1" } else { "::1" };
        let addr = SocketAddr::new(local.parse().unwrap(), addr.port());
        let client = UdpSocket::bind(SocketAddr::new(addr.ip(), 0)).unwrap();
        for n in 1..=3 {
            client.send_to(b"question", addr).unwrap();
            world.until("refusal", |world| {
                (world.counter("udp_clients_refused") == n).then_some(())
            });
        }
        let program = "10.0.2.15:53".parse().unwrap();
        let wanted = Notice::NobodyListens { protocol: ForwardProtocol::Udp, host: addr, program };
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [wanted]);
        let text = wanted.to_string();
        assert!(text.contains("nothing listens on 10.0.2.15:53/udp"), "{text}");
        // Once the program listens, the next datagram arrives.
        let server = world.datagram_socket("10.0.2.15:53");
        client.send_to(b"question", addr).unwrap();
        let (user, _, bytes) =
            world.until("a datagram", |world| world.program.datagrams.pop_front());
        assert_eq!((user, &bytes[..]), (server.user, &b"question"[..]));
        assert_eq!(world.counter("udp_clients_refused"), 3);
        // A notice is given once for each published port.
        let other = world.forward("127.0.0.1:0", 54, ForwardProtocol::Udp);
        client_of(other).send_to(b"question", other).unwrap();
        let told = world.until("a notice", |_| told.try_iter().next());
        assert!(told.to_string().contains("10.0.2.15:54/udp"), "{told}");
    }
}

fn client_of(addr: SocketAddr) -> UdpSocket {
    UdpSocket::bind(SocketAddr::new(addr.ip(), 0)).unwrap()
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = taken.local_addr().unwrap();
    let world = World::new();
    let which = Forward { host, port: 80, protocol: ForwardProtocol::Tcp };
    let error = world.gateway.borrow_mut().listen(&[which]).unwrap_err();
    assert_eq!(error.which, which);
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&host.to_string()));
}

#[test]
fn datagrams_of_clients_reach_the_program_and_answers_the_clients() {
    among_free_ports(datagrams_of_clients_by_family);
}

fn datagrams_of_clients_by_family() {
    let mut world = World::new();
    let server = world.datagram_socket("10.0.2.15:53");
    let addr = world.forward("0.0.0.0:0", 53, ForwardProtocol::Udp);
    world.forward(&format!("[::]:{}", addr.port()), 53, ForwardProtocol::Udp);
    // The client that sent to 127.0.0.3 accepts answers only from that address.
    let clients: Vec<_> =
        [("127.0.0.1:0", "127.0.0.1"), ("127.0.0.1:0", "127.0.0.3"), ("[::1]:0", "::1")]
            .map(|(own, to)| {
                let client = UdpSocket::bind(own).unwrap();
                client.connect(SocketAddr::new(to.parse().unwrap(), addr.port())).unwrap();
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                client
            })
            .into();
    for round in 0..3u8 {
        for (n, client) in clients.iter().enumerate() {
            let question = [round, n as u8];
            client.send(&question).unwrap();
            let (user, from, bytes) =
                world.until("a datagram", |world| world.program.datagrams.pop_front());
            assert_eq!((user, &bytes[..]), (server.user, &question[..]));
            world.send_to(server, from, &[round, n as u8, 99], None);
            world.turn();
            let mut answer = [0; 16];
            assert_eq!(client.recv(&mut answer).unwrap(), 3);
            assert_eq!(answer[..3], [round, n as u8, 99]);
        }
    }
    assert_eq!(world.counter("udp_flows"), 3);
}

/// A host may have firewall rules for IPv4 only.
#[test]
fn an_unspecified_address_is_of_its_own_family_only() {
    among_free_ports(unspecified_addresses_by_family);
}

fn unspecified_addresses_by_family() {
    let connects = |_: &mut World, to| TcpStream::connect(to).is_ok();
    let is_heard = |world: &mut World, to: SocketAddr| {
        let probe = UdpSocket::bind(SocketAddr::new(to.ip(), 0)).unwrap();
        probe.connect(to).unwrap();
        let before = world.counter("udp_clients_refused");
        probe.send(b"?").unwrap();
        probe.set_nonblocking(true).unwrap();
        // If the gateway has bound the address, it finds no server in the program. Otherwise the
        // host reports a closed port.
        world.until("an answer", |world| {
            let error = probe.recv(&mut [0; 1]).unwrap_err();
            let is_heard = world.counter("udp_clients_refused") > before;
            let is_refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
            (is_heard || is_refused).then_some(is_heard)
        })
    };
    type Reaches = fn(&mut World, SocketAddr) -> bool;
    for (protocol, reaches) in
        [(ForwardProtocol::Tcp, connects as Reaches), (ForwardProtocol::Udp, is_heard)]
    {
        let mut world = World::new();
        let v4 = world.forward("0.0.0.0:0", 80, protocol);
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), v4.port());
        assert!(
            reaches(&mut world, at("127.0.0.1")) && !reaches(&mut world, at("::1")),
            "{protocol:?}"
        );
        // Because only IPv4 is bound, the same port is free for IPv6.
        let v6 = world.forward(&at("::1").to_string(), 80, protocol);
        assert_eq!(v6, at("::1"));
        assert!(reaches(&mut world, v6));
        let all_v6 = world.forward("[::]:0", 80, protocol);
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), all_v6.port());
        assert!(
            reaches(&mut world, at("::1")) && !reaches(&mut world, at("127.0.0.1")),
            "{protocol:?}"
        );
    }
}

#[test]
fn clients_that_say_nothing_leave_flows_to_the_program() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut world = World::new();
    world.gateway.borrow_mut().limit_tcp_flows(8);
    world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let _idle: Vec<_> = (0..20).map(|_| TcpStream::connect(addr).unwrap()).collect();
    world.until("a pause", |world| (world.counter("accept_paused") > 0).then_some(()));
    assert_eq!(world.gateway.borrow().tcp_flows(), 7);
    world.connected(gateway_v4(server.local_addr().unwrap().port()));
    assert_eq!(world.gateway.borrow().tcp_flows(), 8);
}

#[test]
fn flows_that_nobody_reads_leave_memory_to_the_others() {
    const LEN: usize = 3_000_000;
    let mut world = World::new();
    // Both directions of one flow.
    world.gateway.borrow_mut().limit_fifos(2);
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let _deaf = TcpStream::connect(addr).unwrap();
    let (sock, _) = world.accept(listener);
    let bytes = pattern(LEN, 3);
    let (mut written, mut stuck) = (0, 0);
    world.until("the deaf one to be full", |world| {
        let before = world.counter("tcp_bytes_to_host");
        written += world.write(sock, &bytes[..100_000]);
        world.run_for(std::time::Duration::from_millis(5));
        let is_stuck = written > LEN && world.counter("tcp_bytes_to_host") == before;
        stuck = if is_stuck { stuck + 1 } else { 0 };
        (stuck == 5).then_some(())
    });
    assert_eq!(world.counter("tcp_fifos_small"), 0);
    let client = ask(addr, bytes.clone());
    let (sock, _) = world.accept(listener);
    assert!(world.read_to_end(sock) == bytes);
    world.write_all(sock, &bytes);
    world.close(sock, Linger::Default);
    world.until("the client", |_| client.is_finished().then_some(()));
    assert!(client.join().unwrap().unwrap() == bytes);
    assert!(world.counter("tcp_fifos_small") > 0);
}

/// Clients can send many datagrams with forged sources at no cost.
#[test]
fn strangers_do_not_displace_the_programs_flows() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut world = World::new();
    let sock = world.datagram_socket("10.0.2.15:5000");
    let addr = world.forward("127.0.0.1:0", 53, ForwardProtocol::Udp);
    world.send_to(sock, gateway_v4(peer.local_addr().unwrap().port()), b"question", None);
    world.turn();
    let (_, program) = peer.recv_from(&mut [0; 16]).unwrap();
    let server = world.datagram_socket("10.0.2.15:53");
    let known = UdpSocket::bind("127.0.0.1:0").unwrap();
    known.send_to(b"hello", addr).unwrap();
    let (_, from, _) = world.until("a client", |world| world.program.datagrams.pop_front());
    world.send_to(server, from, b"hello", None);
    let strangers = towpath_gateway::limits::UDP_CLIENTS_MAX as u64 + 100;
    for n in 0..strangers {
        let stranger = UdpSocket::bind(format!("127.1.{}.{}:0", n / 250, n % 250 + 1)).unwrap();
        stranger.send_to(b"!", addr).unwrap();
        if n % 16 == 0 {
            world.turn();
        }
    }
    world.until("strangers", |world| (world.counter("udp_clients_evicted") > 0).then_some(()));
    world.program.datagrams.clear();
    peer.send_to(b"answer", program).unwrap();
    let (user, ..) = world.until("the answer", |world| world.program.datagrams.pop_front());
    assert_eq!(user, sock.user);
    assert_eq!(world.counter("udp_evicted"), 0);
    // Answered clients are not evicted either.
    let before = world.counter("udp_flows");
    known.send_to(b"again", addr).unwrap();
    let (_, again, _) = world.until("a client", |world| world.program.datagrams.pop_front());
    assert_eq!((again, world.counter("udp_flows")), (from, before));
}

#[test]
fn a_client_is_answered_from_the_address_that_it_wrote_to_last() {
    let mut world = World::new();
    let server = world.datagram_socket("10.0.2.15:53");
    let addr = world.forward("0.0.0.0:0", 53, ForwardProtocol::Udp);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    for ip in ["127.0.0.1", "127.0.0.3"] {
        let to = SocketAddr::new(ip.parse().unwrap(), addr.port());
        client.send_to(b"question", to).unwrap();
        let (_, from, _) = world.until("a question", |world| world.program.datagrams.pop_front());
        world.send_to(server, from, b"answer", None);
        world.turn();
        assert_eq!(client.recv_from(&mut [0; 16]).unwrap().1, to);
    }
}

/// When a flow ends within the pause in accepting, the waiting client gets its place.
#[test]
fn a_client_beyond_the_limit_is_served_if_another_one_ends_soon() {
    let mut world = World::new();
    world.gateway.borrow_mut().limit_tcp_flows(1);
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let _first = TcpStream::connect(addr).unwrap();
    let (sock, _) = world.accept(listener);
    world.stop_time(true);
    let client = ask(addr, b"a".to_vec());
    world.until("a pause", |world| (world.counter("accept_paused") > 0).then_some(()));
    assert_eq!(world.gateway.borrow().tcp_flows(), 1);
    world.close(sock, Linger::Abort);
    world.until("the end", |world| (world.gateway.borrow().tcp_flows() == 0).then_some(()));
    world.stop_time(false);
    let (sock, _) = world.accept(listener);
    assert_eq!(world.read_to_end(sock), b"a");
    world.close(sock, Linger::Default);
    world.until("the client", |_| client.is_finished().then_some(()));
    assert_eq!(client.join().unwrap().unwrap(), b"");
    assert_eq!(world.counter("tcp_flows_full"), 0);
}

#[test]
fn clients_beyond_the_limit_are_refused_and_that_is_said_once() {
    let mut world = World::new();
    world.gateway.borrow_mut().limit_tcp_flows(1);
    let (tell, told) = std::sync::mpsc::channel();
    world.gateway.borrow_mut().on_notice(move |notice| tell.send(notice).unwrap());
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let first = ask(addr, b"a".to_vec());
    let (sock, _) = world.accept(listener);
    for refused in 1..=3 {
        let client = ask(addr, b"b".to_vec());
        world.until("the client", |_| client.is_finished().then_some(()));
        assert!(client.join().unwrap().is_err());
        assert_eq!(world.counter("tcp_flows_full"), refused);
    }
    let Ok(Notice::ClientsRefused { host, open: 1, .. }) = told.try_recv() else {
        panic!("the user is told");
    };
    assert_eq!(host, addr);
    assert!(told.try_recv().is_err(), "and once");
    assert_eq!(world.counter("accept_paused"), 1);
    // The existing flow is not affected.
    assert_eq!(world.read_to_end(sock), b"a");
    world.close(sock, Linger::Default);
    world.until("the client", |_| first.is_finished().then_some(()));
    assert_eq!(first.join().unwrap().unwrap(), b"");
    world.until("the end", |world| (world.gateway.borrow().tcp_flows() == 0).then_some(()));
    let next = ask(addr, b"c".to_vec());
    let (sock, _) = world.accept(listener);
    assert_eq!(world.read_to_end(sock), b"c");
    world.close(sock, Linger::Default);
    world.until("the client", |_| next.is_finished().then_some(()));
    assert_eq!((next.join().unwrap().unwrap(), world.counter("tcp_flows_full")), (vec![], 3));
}

#[test]
fn a_client_of_the_network_is_seen_as_itself() {
    // Find an address of this host other than loopback. Without one, no client can be visible.
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_err() {
        return;
    }
    let own = probe.local_addr().unwrap().ip();
    let mut world = World::new();
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("0.0.0.0:0", 80, ForwardProtocol::Tcp);
    let client = ask(SocketAddr::new(own, addr.port()), b"hi".to_vec());
    let (sock, remote) = world.accept(listener);
    assert_eq!(remote.ip(), own);
    assert_eq!(world.read_to_end(sock), b"hi");
    world.close(sock, Linger::Default);
    world.until("the client", |_| client.is_finished().then_some(()));
}

#[test]
fn a_reset_of_the_client_reaches_the_program_and_back() {
    let mut world = World::new();
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let client = TcpStream::connect(addr).unwrap();
    let (sock, _) = world.accept(listener);
    rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    let error = world.until("a reset", |world| world.error(sock));
    assert_eq!(error, SocketError::Reset);

    let mut client = TcpStream::connect(addr).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (sock, _) = world.accept(listener);
    world.close(sock, Linger::Abort);
    let client = thread::spawn(move || client.read(&mut [0; 16]).map_err(|error| error.kind()));
    world.until("the client", |_| client.is_finished().then_some(()));
    assert_eq!(client.join().unwrap(), Err(std::io::ErrorKind::ConnectionReset));
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
}

/// A server that refuses a request answers, and closes in the same turn although a part of the
/// request is unread.
#[test]
fn an_answer_before_a_reset_of_the_program_reaches_the_client() {
    for len in [15, 40_000] {
        for shut in [false, true] {
            let mut world = World::new();
            let listener = world.listen("10.0.2.15:80");
            let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
            let mut client = TcpStream::connect(addr).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(&[7; 20_000]).unwrap();
            let (sock, _) = world.accept(listener);
            world.until("the request", |world| (world.unread(sock) == 20_000).then_some(()));
            let answer = pattern(len, 7);
            assert_eq!(world.write(sock, &answer), len);
            if shut {
                world.stack.shutdown_send(sock.id);
            }
            world.close(sock, Linger::Default);
            world.until("the reset", |world| {
                (world.gateway.borrow().tcp_flows() == 0).then_some(())
            });
            let mut got = vec![0; len];
            client.read_exact(&mut got).expect("the answer comes first");
            assert!(got == answer);
            if shut {
                assert_eq!(client.read(&mut got).expect("the end comes before the reset"), 0);
            } else {
                let error = client.read(&mut got).expect_err("the stream is cut off");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                assert_eq!(world.counter("tcp_reset"), 1);
            }
        }
    }
}

#[test]
fn trains_of_datagrams_pass_from_one_gateway_to_another() {
    const SIZE: usize = 1200;
    let mut server = World::new();
    server.datagram_socket("10.0.2.15:53");
    let addr = server.forward("127.0.0.1:0", 53, ForwardProtocol::Udp);
    let mut client = World::new();
    let sock = client.datagram_socket("10.0.2.15:0");
    let bytes = pattern(30 * SIZE + 7, 6);
    client.send_to(sock, gateway_v4(addr.port()), &bytes, Some(SIZE as u16));
    for chunk in bytes.chunks(SIZE) {
        let got = server.until("a datagram", |server| {
            client.turn();
            server.program.datagrams.pop_front()
        });
        assert!(got.2 == chunk);
    }
    assert_eq!((client.counter("udp_to_host"), server.counter("udp_to_program")), (31, 31));
}

#[test]
fn the_programs_datagrams_leave_from_its_forwarded_port() {
    for (host, own, peer) in
        [("127.0.0.1:0", "10.0.2.15:5000", "127.0.0.1:0"), ("[::1]:0", "[::]:5000", "[::1]:0")]
    {
        let mut world = World::new();
        let sock = world.datagram_socket(own);
        let addr = world.forward(host, 5000, ForwardProtocol::Udp);
        let peer = UdpSocket::bind(peer).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let port = peer.local_addr().unwrap().port();
        let to = if addr.is_ipv4() { gateway_v4(port) } else { gateway_v6(port) };
        world.send_to(sock, to, b"hello", None);
        world.turn();
        let (_, from) = peer.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(from, addr);
        // The peer's answer arrives on its flow, and a new client is still accepted.
        peer.send_to(b"there", addr).unwrap();
        let (_, from, bytes) =
            world.until("an answer", |world| world.program.datagrams.pop_front());
        assert_eq!((from, &bytes[..]), (to, &b"there"[..]));
        let stranger = UdpSocket::bind(SocketAddr::new(addr.ip(), 0)).unwrap();
        stranger.send_to(b"and me", addr).unwrap();
        let (_, from, bytes) =
            world.until("a stranger", |world| world.program.datagrams.pop_front());
        assert_eq!(from.port(), stranger.local_addr().unwrap().port());
        assert_eq!(bytes, b"and me");
        assert_eq!(world.counter("udp_flows"), 2);
    }
}

#[test]
fn a_forwarded_udp_port_is_not_shared_with_another_gateway() {
    let mut world = World::new();
    let addr = world.forward("127.0.0.1:0", 53, ForwardProtocol::Udp);
    let which = Forward { host: addr, port: 53, protocol: ForwardProtocol::Udp };
    let second = World::new();
    let error = second.gateway.borrow_mut().listen(&[which]).unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn a_client_that_went_away_is_an_error_of_the_program() {
    // Local clients of both families appear to the program over IPv4.
    among_free_ports(|| ["127.0.0.1:0", "[::1]:0"].into_iter().for_each(client_goes_away));
}

fn client_goes_away(host: &str) {
    let mut world = World::new();
    let server = world.datagram_socket("10.0.2.15:53");
    let addr = world.forward(host, 53, ForwardProtocol::Udp);
    let ask = || {
        let client = UdpSocket::bind(host).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(b"hello", addr).unwrap();
        client
    };
    let gone = ask();
    let (_, from, _) = world.until("a datagram", |world| world.program.datagrams.pop_front());
    drop(gone);
    let stays = ask();
    let (_, other, _) = world.until("a datagram", |world| world.program.datagrams.pop_front());
    // The error about the first client does not prevent the answer to the second one.
    world.send_to(server, from, b"first", None);
    world.turn();
    world.send_to(server, other, b"second", None);
    world.turn();
    let mut answer = [0; 16];
    assert_eq!(stays.recv(&mut answer).unwrap(), 6);
    world.until("a report", |world| (world.counter("icmp_errors") == 1).then_some(()));
    // A program's socket that is connected to the client receives the error.
    let now = world.now();
    world.stack.connect_datagram(now, server.id, from).unwrap();
    world.send_to(server, from, b"third", None);
    let error = world.until("an error", |world| world.error(server));
    assert_eq!(error, SocketError::PortUnreachable);
}
