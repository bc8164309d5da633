//! Upstream server, which connects to each destination before the program's SYN is answered.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use towpath_gateway::{Negotiation, NegotiationStep, Upstream, UpstreamServer};
use towpath_stack::{Linger, Refusal, SocketError, SocketEvent};

use crate::world::{World, gateway_v4, pattern, refusing};

/// Upstream protocol: the client sends "TO address", and the server answers "OK" or "NO".
#[derive(Debug)]
struct LineServer(SocketAddr);

impl UpstreamServer for LineServer {
    fn address(&self) -> SocketAddr {
        self.0
    }

    fn negotiate(&self, to: SocketAddr) -> Box<dyn Negotiation> {
        Box::new(LineNegotiation(Some(to)))
    }
}

/// Negotiation with the destination to request; `None` once it was sent.
#[derive(Debug)]
struct LineNegotiation(Option<SocketAddr>);

impl Negotiation for LineNegotiation {
    fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> NegotiationStep {
        if let Some(to) = self.0.take() {
            out.extend_from_slice(format!("TO {to}\n").as_bytes());
        }
        let Some(end) = received.iter().position(|byte| *byte == b'\n') else {
            return NegotiationStep::Wait(0);
        };
        match &received[..end] {
            b"OK" => NegotiationStep::Done(end + 1),
            b"NO" => NegotiationStep::Refused(Refusal::HostUnreachable),
            _ => NegotiationStep::Wait(end + 1),
        }
    }
}

/// Destination that no host has.
const FAR: &str = "192.0.2.9:80";

/// Returns a program whose flows use an upstream server on the host's loopback, and a channel with
/// the requests to the server.
fn world_with_server() -> (World, Receiver<(String, BufReader<TcpStream>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, questions) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut question = String::new();
            stream.read_line(&mut question).unwrap();
            if asked.send((question, stream)).is_err() {
                break;
            }
        }
    });
    (world_towards(address), questions)
}

fn world_towards(server: SocketAddr) -> World {
    let world = World::new();
    let upstream = Upstream::Server(Arc::new(LineServer(server)));
    world.gateway.borrow_mut().set_upstream(upstream);
    world
}

#[test]
fn answers_a_syn_when_the_server_has_connected() {
    let (mut world, questions) = world_with_server();
    let sock = world.connect(FAR.parse().unwrap());
    let (question, mut server) = world.until("a question", |_| questions.try_recv().ok());
    assert_eq!(question, format!("TO {FAR}\n"));
    let is_connected = |world: &World| {
        let events = world.program.events.get(&sock.user);
        events.is_some_and(|events| events.contains(&SocketEvent::Connected))
    };
    // Send the answer in pieces. The last piece also has the first bytes of the destination.
    for piece in ["NEWS\n", "O"] {
        server.get_mut().write_all(piece.as_bytes()).unwrap();
        world.run_for(Duration::from_millis(30));
        assert!(!is_connected(&world));
        assert_eq!(world.gateway.borrow().flows()[0].state, "SYN-SENT");
    }
    server.get_mut().write_all(b"K\nbanner").unwrap();
    assert_eq!(world.read_exact(sock, 6), b"banner");
    assert!(is_connected(&world));
    let bytes = pattern(100_000, 1);
    let echo = thread::spawn(move || {
        let mut copy = vec![0; 100_000];
        server.read_exact(&mut copy).unwrap();
        server.get_mut().write_all(&copy).unwrap();
        assert_eq!(server.read(&mut copy).unwrap(), 0);
    });
    world.write_all(sock, &bytes);
    assert_eq!(world.read_exact(sock, bytes.len()), bytes);
    world.stack.shutdown_send(sock.id);
    assert_eq!(world.read_to_end(sock), b"");
    echo.join().unwrap();
    world.close(sock, Linger::Default);
    assert_eq!((world.counter("tcp_connected"), world.counter("tcp_refused")), (1, 0));
}

#[test]
fn passes_a_refusal_on() {
    let (mut world, questions) = world_with_server();
    for (answer, expected) in [
        (&b"NO\n"[..], SocketError::HostUnreachable),
        // The server closes before its answer.
        (b"", SocketError::Refused),
        // The server closes within its answer, or sends a longer answer than allowed.
        (b"O", SocketError::Refused),
        (&[b'x'; 5000], SocketError::Refused),
    ] {
        let sock = world.connect(FAR.parse().unwrap());
        let (_, mut server) = world.until("a question", |_| questions.try_recv().ok());
        server.get_mut().write_all(answer).unwrap();
        drop(server);
        let error = world.until("an error", |world| world.error(sock));
        assert_eq!(error, expected, "{answer:?}");
        assert_eq!(world.gateway.borrow().tcp_flows(), 0);
    }
    assert_eq!(world.counter("tcp_refused"), 4);
}

#[test]
fn a_server_that_refuses_connections_refuses_the_program() {
    let (_refuses, port) = refusing();
    let mut world = world_towards(SocketAddr::from(([127, 0, 0, 1], port)));
    let sock = world.connect(FAR.parse().unwrap());
    let error = world.until("an error", |world| world.error(sock));
    assert_eq!(error, SocketError::Refused);
}

#[test]
fn gives_a_silent_server_up() {
    let (mut world, questions) = world_with_server();
    let sock = world.connect(FAR.parse().unwrap());
    let (_, mut server) = world.until("a question", |_| questions.try_recv().ok());
    world.skip(Duration::from_nanos(towpath_gateway::limits::NEGOTIATION_NS - 1_000_000_000));
    assert_eq!(world.gateway.borrow().tcp_flows(), 1);
    world.skip(Duration::from_secs(1));
    // The host's connection is reset, but the program continues to wait until its own timeout.
    assert!(server.read(&mut [0; 8]).is_err());
    assert_eq!(world.error(sock), None);
    assert_eq!(world.counter("tcp_refused"), 0);
}

#[test]
fn only_tcp_to_other_hosts_goes_by_the_server() {
    let (mut world, questions) = world_with_server();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sock = world.connected(gateway_v4(listener.local_addr().unwrap().port()));
    let (mut host, _) = listener.accept().unwrap();
    host.write_all(b"direct").unwrap();
    assert_eq!(world.read_exact(sock, 6), b"direct");

    let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp = world.datagram_socket("0.0.0.0:0");
    world.send_to(udp, gateway_v4(echo.local_addr().unwrap().port()), b"direct", None);
    let mut bytes = [0; 8];
    echo.set_nonblocking(true).unwrap();
    let (len, _) = world.until("a datagram", |_| echo.recv_from(&mut bytes).ok());
    assert_eq!(&bytes[..len], b"direct");

    world.send_to(udp, FAR.parse().unwrap(), b"around", None);
    world.run_for(Duration::from_millis(30));
    assert_eq!(world.counter("udp_flows"), 1);
    assert!(questions.try_recv().is_err());
}
