//! Connections of the program to services of the host.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant as Clock};

use rustix::net::{SendFlags, listen, send, sockopt};
use towpath_gateway::limits::FIFO_LEN;
use towpath_gateway::{ForwardProtocol, Gateway, GatewayConfig};
use towpath_pool::{Batch, Checksum, Packet, Pool, Port};
use towpath_ring::SendBuffer;
use towpath_stack::{Linger, SocketError, SocketEvent};
use towpath_wire::{IpProtocol, icmpv6, ipv6, tcp};

use crate::world::{PATIENCE, Sock, World, fnv, gateway_v4, gateway_v6, pattern, refusing};

/// Listens on the host and runs `serve` with the first client.
fn serve<T: Send + 'static>(
    addr: &str,
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (u16, thread::JoinHandle<T>) {
    let listener = TcpListener::bind(addr).unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, thread::spawn(move || serve(listener.accept().unwrap().0)))
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            n => stream.write_all(&buffer[..n]).unwrap(),
        }
    }
}

fn flows_end(world: &mut World) {
    world.until("flows to end", |world| (world.gateway.borrow().tcp_flows() == 0).then_some(()));
}

#[test]
fn echo_over_ipv4_then_orderly_end() {
    let (port, server) = serve("127.0.0.1:0", echo);
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    for n in 0..50 {
        let bytes = pattern(1 + n * 997, n as u32);
        world.write_all(sock, &bytes);
        assert_eq!(world.read_exact(sock, bytes.len()), bytes);
    }
    world.stack.shutdown_send(sock.id);
    assert_eq!(world.read_to_end(sock), b"");
    server.join().unwrap();
    world.close(sock, Linger::Default);
    flows_end(&mut world);
    assert_eq!((world.counter("tcp_finished"), world.counter("tcp_reset")), (1, 0));
}

#[test]
fn echo_over_ipv6() {
    let (port, _server) = serve("[::1]:0", echo);
    let mut world = World::new();
    let sock = world.connected(gateway_v6(port));
    let bytes = pattern(300_000, 3);
    world.write_all(sock, &bytes);
    assert_eq!(world.read_exact(sock, bytes.len()), bytes);
}

/// Length of a bulk transfer, sufficient for windows to open and FIFOs to wrap around.
const BULK: usize = 8 << 20;
/// Length that exceeds all buffers on the path if the peer does not read.
const MUCH: usize = 64 << 20;

#[test]
fn bulk_from_program_to_host() {
    bulk_to_host(BULK);
}

fn bulk_to_host(len: usize) {
    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        let (mut sum, mut total) = (0, 0);
        let mut buffer = vec![0; 1 << 20];
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => return (sum, total),
                n => {
                    sum = fnv(sum, &buffer[..n]);
                    total += n;
                }
            }
        }
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    let bytes = pattern(len, 11);
    let start = Clock::now();
    world.write_all(sock, &bytes);
    world.stack.shutdown_send(sock.id);
    world.read_to_end(sock);
    report("program to host", len, start);
    assert_eq!(server.join().unwrap(), (fnv(0, &bytes), len));
    assert_eq!(world.counter("tcp_bytes_to_host"), len as u64);
}

#[test]
fn bulk_from_host_to_program() {
    bulk_to_program(BULK);
}

fn bulk_to_program(len: usize) {
    let bytes = pattern(len, 12);
    let sent = bytes.clone();
    let (port, _server) = serve("127.0.0.1:0", move |mut stream| stream.write_all(&sent).unwrap());
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    let start = Clock::now();
    let received = world.read_to_end(sock);
    report("host to program", len, start);
    assert!(received == bytes);
}

fn report(what: &str, len: usize, start: Clock) {
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{what}: {:.2} Gbit/s", len as f64 * 8.0 / seconds / 1e9);
}

mod nightly {
    use super::*;

    #[test]
    fn much_bulk_from_program_to_host() {
        bulk_to_host(MUCH);
    }

    #[test]
    fn much_bulk_from_host_to_program() {
        bulk_to_program(MUCH);
    }
}

#[test]
fn each_direction_ends_by_itself() {
    // In the first transfer the host sends its FIN first, and in the second one the program does.
    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        rest
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    assert_eq!(world.read_to_end(sock), b"bye");
    world.write_all(sock, b"not yet");
    world.run_for(Duration::from_millis(50));
    assert!(!server.is_finished());
    world.stack.shutdown_send(sock.id);
    world.until("the host", |_| server.is_finished().then_some(()));
    assert_eq!(server.join().unwrap(), b"not yet");

    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(&request.repeat(1000)).unwrap();
    });
    let sock = world.connected(gateway_v4(port));
    world.write_all(sock, b"question");
    world.stack.shutdown_send(sock.id);
    assert_eq!(world.read_to_end(sock), b"question".repeat(1000));
    server.join().unwrap();
}

#[test]
fn a_refusal_is_a_refusal() {
    let (_refuses, port) = refusing();
    let mut world = World::new();
    let sock = world.connect(gateway_v4(port));
    let error = world.until("an error", |world| world.error(sock));
    assert_eq!(error, SocketError::Refused);
    assert_eq!(world.counter("tcp_refused"), 1);
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
}

#[test]
fn the_hosts_loopback_can_be_closed_to_the_program() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut world = World::with(GatewayConfig { host_loopback: false, ..GatewayConfig::default() });
    let sock = world.connect(gateway_v4(port));
    let error = world.until("an error", |world| world.error(sock));
    assert_eq!(error, SocketError::Refused);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn an_unreachable_host_is_said_to_be_so() {
    let (src, dst) = ("fd00:2::15".parse().unwrap(), "fe80::1234".parse().unwrap());
    let mut pool = Pool::default();
    let syn = syn_packet(&mut pool, src, dst);
    let mut gateway = Gateway::new(GatewayConfig::default(), 1).unwrap();
    assert_eq!(gateway.submit(2, &mut pool, &mut Batch::from([syn])), 1);
    // A link-local address without an interface is unreachable for the kernel in any network.
    let mut out = Batch::new();
    assert_eq!(gateway.poll(3, &mut pool, &mut out, 8), 1);
    let answer = out[0].linear();
    let (ip, body) = ipv6::Header::parse(answer).unwrap();
    assert_eq!((ip.dst, ip.next_header), (src, IpProtocol::ICMPV6));
    let (message, quoted) = icmpv6::Message::parse(&answer[body.clone()]).unwrap();
    assert_eq!(message, icmpv6::Message::DestUnreachable { code: icmpv6::UNREACHABLE_ADDRESS });
    let (quoted, at) = ipv6::Header::parse_quoted(&answer[body.start + quoted..]).unwrap();
    assert_eq!((quoted.src, quoted.dst, at), (src, dst, ipv6::HEADER_LEN));
    assert_eq!(gateway.counters().tcp_refused, 1);
}

fn syn_packet(pool: &mut Pool, src: Ipv6Addr, dst: Ipv6Addr) -> Packet {
    let syn = tcp::Header {
        src_port: 4000,
        dst_port: 80,
        seq: tcp::SeqNum(1),
        ack: tcp::SeqNum(0),
        flags: tcp::Flags::SYN,
        window: 1000,
        checksum: 0,
        urgent: 0,
        header_len: 0,
        options: tcp::Options::default(),
    };
    let len = syn.emitted_len();
    let mut packet = pool.take(ipv6::HEADER_LEN + len);
    let bytes = packet.push_back(ipv6::HEADER_LEN + len).unwrap();
    let ip = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
        next_header: IpProtocol::TCP,
        hop_limit: 64,
        src,
        dst,
    };
    ip.emit(bytes);
    syn.emit(&mut bytes[ipv6::HEADER_LEN..]);
    packet.meta.checksum = Checksum::Verified;
    packet
}

/// Creates a listener whose queue is full: the kernel drops further SYNs, so that clients
/// retransmit.
fn full_listener() -> (TcpListener, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The queue takes one connection more than the backlog.
    listen(&listener, 0).unwrap();
    let first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener, first)
}

/// The program abandons a connect without sending a packet.
#[test]
fn connects_that_are_abandoned_are_forgotten_with_their_sockets() {
    let (listener, _first) = full_listener();
    let to = gateway_v4(listener.local_addr().unwrap().port());
    let mut world = World::new();
    let (abandoned, goes_on) = (world.connect(to), world.connect(to));
    world.until("both", |world| (world.gateway.borrow().tcp_flows() == 2).then_some(()));
    world.close(abandoned, Linger::Abort);
    for _ in 0..4 {
        world.skip(Duration::from_secs(20));
    }
    assert_eq!((world.gateway.borrow().tcp_flows(), world.counter("tcp_forgotten")), (1, 1));
    assert_eq!(world.error(goes_on), None);
}

#[test]
fn a_reset_of_the_host_reaches_the_program() {
    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        stream.read_exact(&mut [0; 4]).unwrap();
        sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).unwrap();
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    world.write_all(sock, b"ping");
    let error = world.until("a reset", |world| world.error(sock));
    assert_eq!(error, SocketError::Reset);
    server.join().unwrap();
    assert_eq!(world.counter("tcp_reset"), 1);
}

#[test]
fn what_came_before_a_reset_arrives_before_it() {
    // With `ends`, the host's FIN and its reset both arrive before the gateway reads the socket.
    for ends in [false, true] {
        let bytes = pattern(40_000, 3);
        let sent = bytes.clone();
        let (go, wait) = mpsc::channel();
        let (port, server) = serve("127.0.0.1:0", move |mut stream| {
            wait.recv().unwrap();
            stream.write_all(&sent).unwrap();
            if ends {
                stream.shutdown(Shutdown::Write).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
            sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).unwrap();
        });
        let mut world = World::new();
        let sock = world.connected(gateway_v4(port));
        world.run_for(Duration::from_millis(20));
        go.send(()).unwrap();
        server.join().unwrap();
        assert!(world.read_exact(sock, bytes.len()) == bytes);
        let error = world.until("a reset", |world| world.error(sock));
        assert_eq!(error, SocketError::Reset);
        assert_eq!((world.counter("tcp_reset"), world.gateway.borrow().tcp_flows()), (1, 0));
    }
}

#[test]
fn bytes_before_a_reset_of_the_program_arrive_before_it() {
    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        let mut got = Vec::new();
        let error = stream.read_to_end(&mut got).expect_err("it is cut off");
        (got, error.kind())
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    let bytes = pattern(40_000, 5);
    assert_eq!(world.write(sock, &bytes), bytes.len());
    world.close(sock, Linger::Abort);
    world.until("the server", |_| server.is_finished().then_some(()));
    let (got, error) = server.join().unwrap();
    assert!(got == bytes, "{} bytes", got.len());
    assert_eq!(error, std::io::ErrorKind::ConnectionReset);
    assert_eq!((world.counter("tcp_reset"), world.gateway.borrow().tcp_flows()), (1, 0));
}

/// The host's socket is full when the program's reset arrives. The gateway does not wait for room
/// to pass on its remaining bytes.
#[test]
fn bytes_beyond_the_hosts_window_are_lost_with_a_reset_of_the_program() {
    let (go, wait) = mpsc::channel();
    let (port, server) = serve("127.0.0.1:0", move |mut stream| {
        wait.recv().unwrap();
        let mut got = Vec::new();
        let error = stream.read_to_end(&mut got).expect_err("it is cut off");
        (got.len(), error.kind())
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    let mut written = 0;
    while world.gateway.borrow().undelivered() == 0 {
        written += world.write(sock, &[5; 60_000]);
        world.turn();
    }
    world.close(sock, Linger::Abort);
    world.turn();
    assert_eq!((world.counter("tcp_reset"), world.gateway.borrow().tcp_flows()), (1, 0));
    go.send(()).unwrap();
    let (got, error) = server.join().unwrap();
    assert!(0 < got && got < written, "{got} of {written} bytes");
    assert_eq!(error, std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_program_that_does_not_read_hears_of_a_reset_later() {
    // More than the receive buffer of the program's stack, but less than that plus the gateway's
    // FIFO.
    const LEN: usize = (1 << 20) + towpath_gateway::limits::FIFO_LEN as usize / 2;
    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        stream.write_all(&pattern(LEN, 8)).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).unwrap();
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    world.until("all", |world| (world.counter("tcp_bytes_to_program") == LEN as u64).then_some(()));
    world.write_all(sock, &[0; 1000]);
    world.until("the end of the server", |_| server.is_finished().then_some(()));
    server.join().unwrap();
    let wait = Duration::from_nanos(towpath_gateway::limits::FAILED_WAIT_NS);
    // A program that reads slowly loses no bytes, because each read extends the timeout.
    for _ in 0..2 {
        world.skip(wait * 2 / 3);
        assert_eq!(world.error(sock), None);
        let mut some = vec![0; 30_000];
        let now = world.now();
        let recv = world.stack.recv_buffer(sock.id).unwrap();
        recv.peek().copy_to(0, &mut some);
        recv.consume(some.len() as u32);
        world.stack.recv_taken(now, sock.id);
    }
    // The last read extends the timeout once more, and makes room for bytes that the stack
    // acknowledges.
    skip_until_an_error(&mut world, sock, wait + Duration::from_secs(1));
    assert_eq!(world.error(sock), Some(SocketError::Reset));
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
}

/// Skips `time` repeatedly until the program's socket has an error: usually three times, more often
/// if the host is slow.
fn skip_until_an_error(world: &mut World, sock: Sock, time: Duration) {
    for _ in 0..20 {
        if world.error(sock).is_none() {
            world.skip(time);
        }
    }
}

/// Waits for the host to deliver a reset, which may take longer than the sender's end on a busy
/// machine.
fn wait_for_reset(port: u16) {
    let peer = format!(":{port:04X} ");
    // Local address, remote address, state: 01 is ESTABLISHED.
    let is_connected = |line: &str| {
        line.split_once(':').is_some_and(|(_, line)| line.contains(&format!("{peer}01 ")))
    };
    // Read the table several times, because the kernel may omit an entry while other connections
    // change.
    for _ in 0..3 {
        wait_for_table(|table| !table.lines().any(is_connected));
    }
}

/// Waits until the peer's kernel has acknowledged all bytes of the established connection at this
/// port.
fn wait_for_acks(port: u16) {
    let own = format!(":{port:04X}");
    // Fields of a line: number, local address, remote address, state, send and receive queues.
    let is_acked = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        matches!(fields[..], [_, local, _, "01", queues, ..]
            if local.ends_with(&own) && queues.starts_with("00000000:"))
    };
    wait_for_table(|table| table.lines().any(is_acked));
}

/// Waits until the host's table of TCP connections meets the condition.
fn wait_for_table(is_wanted: impl Fn(&str) -> bool) {
    let start = Clock::now();
    while !is_wanted(&std::fs::read_to_string("/proc/self/net/tcp").unwrap()) {
        assert!(start.elapsed() < PATIENCE, "the host's connection stays as it is");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_reset_that_is_met_in_sending_is_not_waited_for_without_end() {
    const LEN: usize = (1 << 20) + towpath_gateway::limits::FIFO_LEN as usize / 2;
    let (go, wait) = mpsc::channel();
    let (port, server) = serve("127.0.0.1:0", move |mut stream| {
        stream.write_all(&pattern(LEN, 8)).unwrap();
        wait.recv().unwrap();
        sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).unwrap();
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    world.until("all", |world| (world.counter("tcp_bytes_to_program") == LEN as u64).then_some(()));
    go.send(()).unwrap();
    server.join().unwrap();
    wait_for_reset(port);
    // The gateway's send returns the socket's error before epoll reports it, which clears the
    // error.
    world.write(sock, &[0; 1000]);
    world.turn_without_receiving();
    assert_eq!(world.error(sock), None);
    // Bytes that the program has read before extend the timeout once.
    let wait = Duration::from_nanos(towpath_gateway::limits::FAILED_WAIT_NS);
    skip_until_an_error(&mut world, sock, wait + Duration::from_secs(1));
    assert_eq!(world.error(sock), Some(SocketError::Reset));
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
}

#[test]
fn a_reset_that_is_met_in_sending_is_behind_what_came_before_too() {
    // More than the program's stack and the gateway can buffer, so that the host's socket holds the
    // rest.
    const LEN: usize = (1 << 20) + towpath_gateway::limits::FIFO_LEN as usize;
    let (go, wait) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let (port, server) = serve("127.0.0.1:0", move |mut stream| {
        stream.write_all(&pattern(LEN, 8)).unwrap();
        wait_for_acks(stream.local_addr().unwrap().port());
        tell.send(()).unwrap();
        wait.recv().unwrap();
        sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).unwrap();
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    // The sender's reset discards bytes in its own send buffer, so wait until all are acknowledged.
    world.until("all but what the server's socket has", |_| told.try_recv().ok());
    assert!(world.counter("tcp_bytes_to_program") < LEN as u64);
    go.send(()).unwrap();
    server.join().unwrap();
    world.write(sock, &[0; 1000]);
    assert!(world.read_exact(sock, LEN) == pattern(LEN, 8));
    let error = world.until("a reset", |world| world.error(sock));
    assert_eq!(error, SocketError::Reset);
    assert_eq!((world.counter("tcp_reset"), world.gateway.borrow().tcp_flows()), (1, 0));
}

#[test]
fn acknowledges_bytes_after_they_were_passed_to_the_host() {
    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        let mut got = Vec::new();
        stream.read_to_end(&mut got).map(|_| got)
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    // Less than half of the FIFO, so that no window update would follow the ACK.
    let bytes = pattern(120_000, 1);
    world.write_all(sock, &bytes);
    let info = |world: &World| world.stack.info(world.now(), sock.id).unwrap();
    world.until("all ACKs", |world| (info(world).send_queue == 0).then_some(()));
    let used = FIFO_LEN - info(&world).tcp.unwrap().snd_wnd;
    // A window grows by at least a segment, whose length is up to 64 KiB here.
    assert!(used < 65_536, "{used} bytes are missing in the window");
    world.stack.shutdown_send(sock.id);
    world.until("the host", |_| server.is_finished().then_some(()));
    assert!(server.join().unwrap().unwrap() == bytes);
}

#[test]
fn urgent_bytes_stay_in_their_place() {
    let (go, wait) = mpsc::channel();
    let (port, server) = serve("127.0.0.1:0", move |mut stream| {
        for _ in 0..3 {
            wait.recv().unwrap();
            stream.write_all(&[b'a'; 1000]).unwrap();
            assert_eq!(send(&stream, b"!", SendFlags::OOB), Ok(1));
            stream.write_all(&[b'b'; 1000]).unwrap();
        }
        stream
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    for _ in 0..3 {
        // All bytes must be in the host's socket before the gateway reads, which stops at the
        // urgent byte.
        world.run_for(Duration::from_millis(20));
        go.send(()).unwrap();
        thread::sleep(Duration::from_millis(20));
        let got = world.read_exact(sock, 2001);
        assert_eq!(got, [&[b'a'; 1000][..], b"!", &[b'b'; 1000]].concat());
    }
    drop(server.join().unwrap());
}

#[test]
fn a_reset_of_the_program_reaches_the_host() {
    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        let mut buffer = [0; 16];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(error.kind()),
            }
        }
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    world.write_all(sock, b"ping");
    world.run_for(Duration::from_millis(20));
    world.close(sock, Linger::Abort);
    world.until("the host", |_| server.is_finished().then_some(()));
    assert_eq!(server.join().unwrap(), Some(std::io::ErrorKind::ConnectionReset));
    flows_end(&mut world);
}

#[test]
fn many_flows_at_once() {
    const FLOWS: usize = 500;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let handlers: Vec<_> = (0..FLOWS)
            .map(|_| listener.accept().unwrap().0)
            .map(|stream| {
                thread::Builder::new().stack_size(256 << 10).spawn(|| echo(stream)).unwrap()
            })
            .collect();
        handlers.into_iter().for_each(|handler| handler.join().unwrap());
    });
    let mut world = World::new();
    let socks: Vec<_> = (0..FLOWS).map(|_| world.connect(gateway_v4(port))).collect();
    for sock in &socks {
        world.until("connect", |world| world.happened(*sock, SocketEvent::Connected).then_some(()));
    }
    assert_eq!(world.gateway.borrow().tcp_flows(), FLOWS);
    for (n, sock) in socks.iter().enumerate() {
        assert_eq!(world.write(*sock, &pattern(10_000, n as u32)), 10_000);
    }
    for (n, sock) in socks.iter().enumerate() {
        assert_eq!(world.read_exact(*sock, 10_000), pattern(10_000, n as u32));
        world.stack.shutdown_send(sock.id);
    }
    for sock in &socks {
        world.read_to_end(*sock);
        world.close(*sock, Linger::Default);
    }
    flows_end(&mut world);
    server.join().unwrap();
    assert_eq!(world.counter("tcp_finished"), FLOWS as u64);
}

#[test]
fn a_slow_program_holds_the_host_back() {
    let (port, server) = serve("127.0.0.1:0", |mut stream| {
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let chunk = pattern(1 << 20, 1);
        let mut sent = 0;
        while sent < MUCH {
            match stream.write(&chunk) {
                Ok(n) => sent += n,
                Err(_) => return sent,
            }
        }
        sent
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    world.until("the host to be held back", |_| server.is_finished().then_some(()));
    let sent = server.join().unwrap();
    assert!(sent < MUCH, "nobody read, all was sent");
    let in_gateway = world.counter("tcp_bytes_to_program") - u64::from(world.unread(sock));
    assert!(in_gateway <= u64::from(towpath_gateway::limits::FIFO_LEN), "{in_gateway} bytes held");
    // All sent bytes were delivered.
    assert_eq!(world.read_to_end(sock).len(), sent);
}

#[test]
fn a_slow_host_holds_the_program_back() {
    let (go, wait) = mpsc::channel();
    let (port, server) = serve("127.0.0.1:0", move |mut stream| {
        wait.recv().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    let mut world = World::new();
    let sock = world.connected(gateway_v4(port));
    let bytes = pattern(MUCH, 4);
    let mut done = 0;
    let mut last = Clock::now();
    world.until("the program to be held back", |world| {
        let n = world.write(sock, &bytes[done..]);
        done += n;
        if n > 0 {
            last = Clock::now();
        }
        (last.elapsed() > Duration::from_millis(300)).then_some(())
    });
    assert!(done < MUCH, "nobody read, all was taken");
    let in_host = world.counter("tcp_bytes_to_host") as usize;
    let held = done - in_host - world.stack.send_buffer(sock.id).unwrap().len() as usize;
    assert!(held <= towpath_gateway::limits::FIFO_LEN as usize, "{held} bytes held");
    go.send(()).unwrap();
    let some_more = (done + (1 << 20)).min(bytes.len());
    world.write_all(sock, &bytes[done..some_more]);
    world.stack.shutdown_send(sock.id);
    world.until("the host", |_| server.is_finished().then_some(()));
    assert!(server.join().unwrap() == bytes[..some_more]);
}

#[test]
fn flows_beyond_the_limit_wait_for_a_place() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let streams: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        streams.into_iter().for_each(echo);
    });
    let mut world = World::new();
    world.gateway.borrow_mut().limit_tcp_flows(2);
    let first = world.connected(gateway_v4(port));
    world.connected(gateway_v4(port));
    let third = world.connect(gateway_v4(port));
    world.until("the limit", |world| (world.counter("tcp_flows_full") > 0).then_some(()));
    assert!(!world.happened(third, SocketEvent::Connected) && world.error(third).is_none());
    world.close(first, Linger::Abort);
    // The retransmitted SYN finds room.
    world.until("a place", |world| world.happened(third, SocketEvent::Connected).then_some(()));
}

#[test]
fn however_flows_end_none_is_left() {
    const FLOWS: u32 = 300;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Use a backlog for all flows. Otherwise a connection may be established for the client only,
    // and end without the server's notice.
    listen(&listener, FLOWS as i32).unwrap();
    // The first bytes of a connection select how each end closes, so that all combinations occur.
    let server = thread::spawn(move || {
        let handle = |mut stream: TcpStream| {
            let mut number = [0; 4];
            if stream.read_exact(&mut number).is_err() {
                return;
            }
            match u32::from_be_bytes(number) % 5 {
                0 => drop(stream),
                1 => sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).unwrap(),
                2 => {
                    let _ = stream.write_all(&[1; 300_000]);
                    let _ = stream.shutdown(Shutdown::Write);
                    let _ = stream.read_to_end(&mut Vec::new());
                }
                3 => {
                    let _ = stream.read_to_end(&mut Vec::new());
                    let _ = stream.write_all(&[2; 300_000]);
                }
                _ => {
                    let mut buffer = [0; 1000];
                    while let Ok(n @ 1..) = stream.read(&mut buffer) {
                        let _ = stream.write_all(&buffer[..n]);
                    }
                }
            }
        };
        let handlers: Vec<_> = (0..FLOWS)
            .map(|_| listener.accept().unwrap().0)
            .map(|stream| thread::spawn(move || handle(stream)))
            .collect();
        handlers.into_iter().for_each(|handler| handler.join().unwrap());
    });
    let mut world = World::new();
    let socks: Vec<_> = (0..FLOWS).map(|_| world.connect(gateway_v4(port))).collect();
    for (n, sock) in (0..).zip(&socks) {
        world.until("connect", |world| world.happened(*sock, SocketEvent::Connected).then_some(()));
        world.write(*sock, &u32::to_be_bytes(n));
        world.write(*sock, &pattern(n as usize * 997 % 200_000, n));
    }
    for (n, sock) in (0..FLOWS).zip(&socks) {
        match n / 5 % 4 {
            0 => world.close(*sock, Linger::Abort),
            1 => world.close(*sock, Linger::Default),
            2 => world.stack.shutdown_send(sock.id),
            _ => drop(world.read(*sock)),
        }
        world.turn();
    }
    world.run_for(Duration::from_millis(100));
    for sock in &socks {
        world.read(*sock);
        world.close(*sock, Linger::Abort);
    }
    flows_end(&mut world);
    server.join().unwrap();
    let ended = world.counter("tcp_finished") + world.counter("tcp_reset");
    assert_eq!(ended, u64::from(FLOWS));
}

#[test]
fn an_idle_gateway_sleeps() {
    let (port, _server) = serve("127.0.0.1:0", echo);
    let mut world = World::new();
    world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let sock = world.connected(gateway_v4(port));
    world.write_all(sock, b"hello");
    world.read_exact(sock, 5);
    world.run_for(Duration::from_millis(100));
    let turns = |world: &World| {
        let gateway = world.gateway.borrow();
        gateway.inner().counters().iter().find(|(name, _)| *name == "turns").unwrap().1
    };
    let (due, now) = (world.gateway.borrow().next_timeout_ns(), world.now().0);
    assert!(due.is_none_or(|due| due > now), "{due:?}, now {now}");
    // The test turns the stack every 5 ms, and the gateway must cause no further turns.
    let before = turns(&world);
    world.run_for(Duration::from_millis(100));
    assert!(turns(&world) - before <= 21 * crate::world::TURNS);
}
