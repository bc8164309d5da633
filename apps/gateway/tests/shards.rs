//! Gateways of a stack with several shards, all turned on the test's thread.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::world::{
    PATIENCE, Sock, USERS_OF_A_SHARD, World, gateway_v4, gateway_v6, in_namespace, pattern,
};
use towpath_gateway::{Forward, ForwardProtocol, Gateway, Notice};
use towpath_stack::{BindOptions, Family, Linger, SocketId, SocketKind};

/// A host with several shards, each with its part of the program.
struct Shards(Vec<World>);

impl Shards {
    fn new(count: usize) -> Self {
        Self(World::shards(count))
    }

    /// Turns all shards until `done` returns a value.
    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for world in &mut self.0 {
                world.turn();
            }
            if let Some(value) = done(self) {
                return value;
            }
            assert!(Instant::now() < deadline, "waited too long for {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn forward(&self, host: &str, port: u16, protocol: ForwardProtocol) -> SocketAddr {
        let forward = Forward { host: host.parse().unwrap(), port, protocol };
        // Move the gateways out of their cells, because `listen_all` needs them in a slice.
        let mut all: Vec<_> = self.0.iter().map(|world| world.gateway.borrow_mut()).collect();
        let mut gateways: Vec<Gateway> = all
            .iter_mut()
            .map(|gateway| {
                let spare = Gateway::new(Default::default(), 1).unwrap();
                std::mem::replace(&mut **gateway, spare)
            })
            .collect();
        let bound = Gateway::listen_all(&mut gateways, &[forward]);
        for (cell, gateway) in all.iter_mut().zip(gateways) {
            **cell = gateway;
        }
        bound.unwrap()[0]
    }

    fn counters(&self, name: &str) -> Vec<u64> {
        self.0.iter().map(|world| world.counter(name)).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters(name).iter().sum()
    }

    fn flows(&self) -> Vec<usize> {
        self.0.iter().map(|world| world.gateway.borrow().tcp_flows()).collect()
    }

    /// Returns the number of packets that arrived at another shard than their owner.
    fn handed_over(&self) -> u64 {
        let of = |world: &World| {
            let counters = world.stack.counters().iter();
            counters.filter(|(name, _)| *name == "shard_handed_over").map(|(_, n)| n).sum::<u64>()
        };
        self.0.iter().map(of).sum()
    }

    /// Returns the shard of a socket.
    fn of(&mut self, sock: Sock) -> &mut World {
        &mut self.0[(sock.user / USERS_OF_A_SHARD) as usize]
    }

    /// Echoes the data of the next `count` clients of a listener. Returns the addresses at which
    /// the program saw the clients.
    fn serve(&mut self, shard: usize, listener: Sock, count: usize) -> Vec<SocketAddr> {
        let (mut seen, mut open) = (Vec::new(), Vec::<(Sock, Vec<u8>)>::new());
        let mut closed = 0;
        self.until("clients", |shards| {
            let world = &mut shards.0[shard];
            while let Some((user, id, remote)) = world.program.accepted.pop_front() {
                world.stack.accepted(listener.id);
                seen.push(remote);
                open.push((Sock { id, user }, Vec::new()));
            }
            open.retain_mut(|(sock, bytes)| {
                let world = shards.of(*sock);
                bytes.extend(world.read(*sock));
                let ended = world.happened(*sock, towpath_stack::SocketEvent::PeerClosed);
                if !ended || world.unread(*sock) > 0 {
                    return true;
                }
                assert_eq!(world.write(*sock, bytes), bytes.len());
                world.close(*sock, Linger::Default);
                closed += 1;
                false
            });
            (closed == count).then_some(())
        });
        seen
    }
}

/// Sends a request from the address `from`, or from any address, and returns the answer.
fn ask(
    from: Option<Ipv4Addr>,
    to: SocketAddr,
    request: Vec<u8>,
) -> JoinHandle<io::Result<Vec<u8>>> {
    thread::spawn(move || {
        let mut stream = match from {
            None => TcpStream::connect(to)?,
            Some(ip) => {
                use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
                let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
                bind(&socket, &SocketAddr::from((ip, 0)))?;
                connect(&socket, &to)?;
                TcpStream::from(socket)
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&request)?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    })
}

#[test]
fn clients_come_in_at_the_owner_of_their_flow() {
    in_namespace(|| {
        for count in [1, 2, 4, 16] {
            for from in [None, Some(Ipv4Addr::new(192, 0, 2, 1))] {
                let mut shards = Shards::new(count);
                let shard = count / 2;
                let listener = shards.0[shard].listen("10.0.2.15:80");
                let addr = shards.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
                // Connections are distributed randomly. With so many, each shard gets one except in
                // 1 of 10^9 runs.
                let number = 24 * count.max(4);
                let request = pattern(20_000, 1);
                let clients: Vec<_> =
                    (0..number).map(|_| ask(from, addr, request.clone())).collect();
                let seen = shards.serve(shard, listener, number);
                let shown = from.map_or(gateway_v4(0).ip(), IpAddr::V4);
                assert!(seen.iter().all(|client| client.ip() == shown), "{seen:?}");
                shards.until("the clients", |_| {
                    clients.iter().all(JoinHandle::is_finished).then_some(())
                });
                for client in clients {
                    assert!(client.join().unwrap().unwrap() == request);
                }
                shards.until("flows to end", |shards| {
                    shards.flows().iter().all(|flows| *flows == 0).then_some(())
                });
                let bytes = shards.counters("tcp_bytes_to_program");
                assert!(bytes.iter().all(|bytes| *bytes > 0), "each has some: {bytes:?}");
                assert_eq!(bytes.iter().sum::<u64>(), (number * request.len()) as u64);
                assert_eq!(shards.counter("tcp_accepted"), number as u64);
                assert_eq!(shards.handed_over(), 0, "of {count}");
            }
        }
    });
}

#[test]
fn a_program_that_listens_on_ipv6_only_is_found() {
    let mut shards = Shards::new(4);
    let listener = shards.0[1].listen("[fd00:2::15]:80");
    let addr = shards.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let clients: Vec<_> = (0..16).map(|_| ask(None, addr, b"hi".to_vec())).collect();
    let seen = shards.serve(1, listener, clients.len());
    assert!(seen.iter().all(|client| client.ip() == gateway_v6(0).ip()));
    shards.until("the clients", |_| clients.iter().all(JoinHandle::is_finished).then_some(()));
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap(), b"hi");
    }
    assert_eq!(shards.handed_over(), 0);
}

/// All gateways share one limit, regardless of the distribution of flows.
#[test]
fn clients_beyond_the_common_limit_are_refused() {
    const CLIENTS: usize = 48;
    let mut shards = Shards::new(4);
    let listener = shards.0[3].listen("10.0.2.15:80");
    let addr = shards.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    shards.0[2].gateway.borrow_mut().limit_tcp_flows(16);
    let clients: Vec<_> = (0..CLIENTS).map(|_| ask(None, addr, b"hi".to_vec())).collect();
    // The program does not answer yet, so that no flow ends.
    shards.until("refusals", |shards| {
        (shards.counter("tcp_flows_full") == CLIENTS as u64 - 14).then_some(())
    });
    shards.serve(3, listener, 14);
    shards.until("the clients", |_| clients.iter().all(JoinHandle::is_finished).then_some(()));
    let answers = clients.into_iter().map(|client| client.join().unwrap());
    let (served, refused): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
    assert_eq!((served.len(), refused.len()), (14, CLIENTS - 14));
    assert!(served.into_iter().all(|answer| answer.unwrap() == b"hi"));
    assert_eq!(shards.counter("tcp_accepted"), 14);
}

#[test]
fn what_the_user_should_know_is_said_once() {
    let mut shards = Shards::new(4);
    let (tell, told) = std::sync::mpsc::channel();
    for world in &shards.0 {
        let tell = tell.clone();
        world.gateway.borrow_mut().on_notice(move |notice| tell.send(notice).unwrap());
    }
    let addr = shards.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let clients: Vec<_> = (0..96).map(|_| ask(None, addr, b"hi".to_vec())).collect();
    shards.until("the clients", |_| clients.iter().all(JoinHandle::is_finished).then_some(()));
    assert_eq!(shards.counter("tcp_accepted_refused"), 96);
    let refused = shards.counters("tcp_accepted_refused");
    assert!(refused.iter().all(|count| *count > 0), "by each: {refused:?}");
    let program = "10.0.2.15:80".parse().unwrap();
    let wanted = Notice::NobodyListens { protocol: ForwardProtocol::Tcp, host: addr, program };
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [wanted]);
}

#[test]
fn connections_of_the_program_leave_by_their_own_gateway() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut shards = Shards::new(4);
    let mut socks = Vec::new();
    for n in 0..4 {
        for _ in 0..4 {
            socks.push((n, shards.0[n].connect(gateway_v4(port))));
        }
    }
    let echo = thread::spawn(move || {
        for _ in 0..16 {
            let (mut stream, _) = server.accept().unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(&byte).unwrap();
        }
    });
    for (n, sock) in &socks {
        let connected = towpath_stack::SocketEvent::Connected;
        shards.until("connect", |shards| shards.0[*n].happened(*sock, connected).then_some(()));
        assert_eq!(shards.0[*n].write(*sock, b"x"), 1);
        shards.until("an answer", |shards| (shards.0[*n].read(*sock) == b"x").then_some(()));
    }
    assert_eq!(shards.counters("tcp_connected"), [4; 4]);
    assert_eq!(shards.handed_over(), 0);
    shards.until("the server", |_| echo.is_finished().then_some(()));
}

fn client(ip: &str, to: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap();
    client.connect(to).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// The program's answers leave from the address and port to which the client sent, regardless of
/// the socket's shard.
#[test]
fn datagrams_of_clients_are_answered() {
    for shard in 0..4 {
        let mut shards = Shards::new(4);
        // Another gateway polls the second listener than the first one.
        let addrs = [53, 54].map(|port| {
            let server = shards.0[shard].datagram_socket(&format!("10.0.2.15:{port}"));
            (server, shards.forward("0.0.0.0:0", port, ForwardProtocol::Udp))
        });
        for (server, addr) in addrs {
            let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), addr.port());
            let clients =
                [client("127.0.0.1", at("127.0.0.1")), client("127.0.0.1", at("127.0.0.3"))];
            for round in 0..3u8 {
                for (n, client) in clients.iter().enumerate() {
                    // The client accepts answers only from the address to which it last sent.
                    if round == 2 {
                        client.connect(at(&format!("127.0.0.{}", 8 + n))).unwrap();
                    }
                    client.send(&[round, n as u8]).unwrap();
                    let (user, from, bytes) = shards.until("a datagram", |shards| {
                        shards.0[shard].program.datagrams.pop_front()
                    });
                    assert_eq!((user, &bytes[..]), (server.user, &[round, n as u8][..]));
                    let before = shards.counter("udp_to_host");
                    shards.0[shard].send_to(server, from, &[round, n as u8, 99], None);
                    shards.until("it to leave", |shards| {
                        (shards.counter("udp_to_host") > before).then_some(())
                    });
                    let mut answer = [0; 16];
                    assert_eq!(
                        client.recv(&mut answer).unwrap(),
                        3,
                        "shard {shard}, round {round}"
                    );
                    assert_eq!(answer[..3], [round, n as u8, 99]);
                }
            }
        }
        assert_eq!(shards.counter("udp_dropped"), 0);
    }
}

/// A datagram that no socket receives is counted, whichever shard detects it.
#[test]
fn refused_clients_are_counted() {
    let mut shards = Shards::new(4);
    let other = shards.0[2].datagram_socket("127.0.0.1:53");
    let addr = shards.forward("127.0.0.1:0", 53, ForwardProtocol::Udp);
    let asking = client("127.0.0.1", addr);
    for n in 1..=2 {
        asking.send(b"?").unwrap();
        shards
            .until("refusal", |shards| (shards.counter("udp_clients_refused") == n).then_some(()));
    }
    let now = shards.0[2].now();
    shards.0[2].stack.close(now, other.id, Linger::Default);
    asking.send(b"?").unwrap();
    shards.until("refusal", |shards| (shards.counter("udp_clients_refused") == 3).then_some(()));
}

fn bound_with_others(world: &mut World, addr: &str) -> Sock {
    let user = world.user();
    let id: SocketId = world.stack.open(SocketKind::Datagram, Family::V4, user).unwrap();
    let options = BindOptions { reuse_port: true, ..BindOptions::default() };
    world.stack.bind(id, addr.parse().unwrap(), options).unwrap();
    Sock { id, user }
}

/// RFC 4787 REQ-1: all peers see a port of the program at the same host port, regardless of its
/// sockets.
#[test]
fn a_port_of_the_program_is_one_port_of_the_host() {
    let mut shards = Shards::new(4);
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = gateway_v4(peer.local_addr().unwrap().port());
    // A port number that another socket has.
    let taken = UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = format!("10.0.2.15:{}", taken.local_addr().unwrap().port());
    let mut seen = Vec::new();
    for n in 0..4 {
        let sock = bound_with_others(&mut shards.0[n], &own);
        shards.0[n].send_to(sock, to, &[n as u8], None);
        let wanted = n as u64 + 1;
        shards
            .until("it to leave", |shards| (shards.counter("udp_to_host") == wanted).then_some(()));
        let mut byte = [0];
        let (_, from) = peer.recv_from(&mut byte).unwrap();
        assert_eq!(byte, [n as u8]);
        seen.push(from);
    }
    assert!(seen.iter().all(|from| *from == seen[0]), "{seen:?}");
    assert_eq!(shards.counters("udp_flows"), [1; 4]);
}
