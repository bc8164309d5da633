//! Delivery of bytes in transit when the program or the gateway ends first.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use towpath_gateway::ForwardProtocol;
use towpath_pool::Port;
use towpath_stack::Linger;

use crate::world::{PATIENCE, Sock, World, gateway_v4, pattern};

/// Returns a connection of the program to the host, whose peer does not read yet.
fn connected() -> (World, Sock, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut world = World::new();
    let sock = world.connected(gateway_v4(listener.local_addr().unwrap().port()));
    let peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (world, sock, peer)
}

/// Writes until no more bytes are accepted, and closes. Returns the written bytes. All of them are
/// then in the host's socket and the gateway, and none in the program's socket.
fn fill_and_close(world: &mut World, sock: Sock) -> Vec<u8> {
    let all = pattern(64 << 20, 5);
    let mut done = 0;
    let start = world.counter("tcp_bytes_to_host");
    // The sockets of host and peer are full if the gateway's buffer does not drain. A busy host may
    // acknowledge late, so require several checks without progress.
    let mut stuck = 0;
    world.until("the host to be full", |world| {
        let before = world.counter("tcp_bytes_to_host");
        done += world.write(sock, &all[done..done + 30_000]);
        world.run_for(Duration::from_millis(2));
        let held = done as u64 - (before - start);
        let is_stuck = held > 100_000 && world.counter("tcp_bytes_to_host") == before;
        stuck = if is_stuck { stuck + 1 } else { 0 };
        (stuck == 5).then_some(())
    });
    world.close(sock, Linger::Default);
    world.until("the program's part", |world| {
        let mut connections =
            world.stack.sockets(world.now()).filter(|socket| socket.remote.is_some());
        connections.all(|socket| socket.send_queue == 0).then_some(())
    });
    world.run_for(Duration::from_millis(20));
    all[..done].to_vec()
}

/// Returns the bytes that arrive at the peer, and how the stream ends.
fn read_to_end(mut peer: TcpStream) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut all = Vec::new();
    let end = peer.read_to_end(&mut all);
    (all, end.map(drop).map_err(|error| error.kind()))
}

#[test]
fn a_stream_that_is_not_whole_ends_with_a_reset() {
    let (mut world, sock, peer) = connected();
    let written = fill_and_close(&mut world, sock);
    drop(world);
    let (got, end) = read_to_end(peer);
    assert!(got.len() < written.len());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_connection_that_the_program_did_not_close_ends_with_a_reset() {
    let (mut world, sock, peer) = connected();
    world.write_all(sock, b"not all");
    world.until("bytes", |world| (world.counter("tcp_bytes_to_host") == 7).then_some(()));
    drop(world);
    assert_eq!(read_to_end(peer).1, Err(ErrorKind::ConnectionReset));
}

#[test]
fn what_the_host_has_in_whole_it_delivers() {
    let (mut world, sock, peer) = connected();
    let bytes = pattern(100_000, 2);
    world.write_all(sock, &bytes);
    world.close(sock, Linger::Default);
    world.until("delivery", |world| {
        let done = world.counter("tcp_bytes_to_host") == 100_000;
        (done && world.gateway.borrow().undelivered() == 0).then_some(())
    });
    drop(world);
    assert!(read_to_end(peer) == (bytes, Ok(())));
}

#[test]
fn the_gateway_says_what_it_holds_until_the_host_has_it() {
    let (mut world, sock, peer) = connected();
    let written = fill_and_close(&mut world, sock);
    let held = |world: &World| world.gateway.borrow().undelivered();
    // The FIN counts as one byte, as in TCP's sequence numbers.
    let to_host = world.counter("tcp_bytes_to_host");
    assert_eq!(held(&world), written.len() as u64 - to_host + 1);
    let reader = std::thread::spawn(move || read_to_end(peer));
    world.until("delivery", |world| (held(world) == 0).then_some(()));
    drop(world);
    assert!(reader.join().unwrap() == (written, Ok(())));
}

#[test]
fn what_the_gateway_holds_outlives_the_programs_socket() {
    let (mut world, sock, peer) = connected();
    let written = fill_and_close(&mut world, sock);
    // FIN-WAIT-2 ends after a minute, so the program's socket is gone when the peer's FIN arrives.
    world.skip(Duration::from_secs(100));
    assert_eq!(world.stack.usage().sockets, 0);
    peer.shutdown(Shutdown::Write).unwrap();
    world.run_for(Duration::from_millis(50));
    let reader = std::thread::spawn(move || read_to_end(peer));
    world.until("the reader", |_| reader.is_finished().then_some(()));
    assert!(reader.join().unwrap() == (written, Ok(())));
    world.until("the flow's end", |world| (world.gateway.borrow().tcp_flows() == 0).then_some(()));
}

/// The program's closed socket waits for the peer's FIN for a minute, as on Linux.
#[test]
fn a_flow_does_not_outlive_the_programs_socket_for_long() {
    let (mut world, sock, _peer) = connected();
    world.write_all(sock, b"all");
    world.close(sock, Linger::Default);
    world.until("bytes", |world| (world.counter("tcp_bytes_to_host") == 3).then_some(()));
    world.run_for(Duration::from_millis(20));
    assert_eq!((world.gateway.borrow().tcp_flows(), world.stack.usage().sockets), (1, 1));
    for _ in 0..20 {
        world.skip(Duration::from_secs(10));
    }
    assert_eq!((world.gateway.borrow().tcp_flows(), world.stack.usage().sockets), (0, 0));
}

/// After the flow has ended, the host's kernel still delivers bytes that the peer has not read.
#[test]
fn what_the_host_has_outlives_the_flow() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Use a small window, so that most bytes stay in the host's send buffer.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut world = World::new();
    let sock = world.connected(gateway_v4(listener.local_addr().unwrap().port()));
    let peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes = pattern(300_000, 4);
    world.write_all(sock, &bytes);
    world.close(sock, Linger::Default);
    world.until("bytes", |world| (world.counter("tcp_bytes_to_host") == 300_000).then_some(()));
    for _ in 0..20 {
        world.skip(Duration::from_secs(10));
    }
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
    assert!(read_to_end(peer) == (bytes, Ok(())));
}

/// A half-closed flow has no timeout while the program waits for an answer.
#[test]
fn a_flow_lasts_as_long_as_the_program_waits_for_an_answer() {
    let (mut world, sock, mut peer) = connected();
    world.write_all(sock, b"question");
    world.stack.shutdown_send(sock.id);
    for _ in 0..100 {
        world.skip(Duration::from_secs(10));
    }
    std::io::Write::write_all(&mut peer, b"answer").unwrap();
    assert_eq!(world.read_exact(sock, 6), b"answer");
}

#[test]
fn an_answer_to_a_client_is_held_too() {
    let mut world = World::new();
    let listener = world.listen("10.0.2.15:80");
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    for cut_off in [false, true] {
        let client = TcpStream::connect(addr).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (sock, _) = world.accept(listener);
        let written = fill_and_close(&mut world, sock);
        assert!(world.gateway.borrow().undelivered() > 0);
        if cut_off {
            drop(world);
            let (got, end) = read_to_end(client);
            assert!(got.len() < written.len());
            assert_eq!(end, Err(ErrorKind::ConnectionReset));
            return;
        }
        let reader = std::thread::spawn(move || read_to_end(client));
        world.until("the reader", |_| reader.is_finished().then_some(()));
        assert!(reader.join().unwrap() == (written, Ok(())));
    }
}
