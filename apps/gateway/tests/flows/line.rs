//! Clients that connect while the program's accept queue is full.
//!
//! Over the in-memory link, clients wait in a line (`lines`), because a SYN gets its place in the
//! accept queue when it arrives. Behind a device the program's stack behaves like Linux and answers
//! all SYNs while the queue is not full. While the queue is full, the last segment of a handshake
//! is dropped, and the client's retransmissions find a place later.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use towpath_gateway::ForwardProtocol;
use towpath_stack::Linger;

use crate::world::{Over, PATIENCE, Sock, World};

/// Creates a program whose accept queue has one place, and clients that each send a byte as name.
fn crowd(world: &mut World, count: u8) -> (Sock, Vec<TcpStream>) {
    let listener = world.listen("10.0.2.15:80");
    world.stack.listen(listener.id, 0).unwrap();
    let addr = world.forward("127.0.0.1:0", 80, ForwardProtocol::Tcp);
    let clients = (0..count).map(|name| client(addr, name)).collect();
    world.until("all flows", |world| {
        (world.gateway.borrow().tcp_flows() == count.into()).then_some(())
    });
    world.until("a connection", |world| (!world.program.accepted.is_empty()).then_some(()));
    (listener, clients)
}

fn client(addr: SocketAddr, name: u8) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[name]).unwrap();
    stream
}

const IN_MEMORY: bool = matches!(crate::OVER, Over::Memory);

/// Returns the name of the next client that the program accepts. None: the client was reset before
/// its name arrived.
fn next(world: &mut World, listener: Sock) -> Option<u8> {
    let (sock, _) = world.until("a client", |world| {
        if !IN_MEMORY && world.program.accepted.is_empty() {
            // Skip time, because the client's next retransmission is due within some seconds.
            world.skip(Duration::from_millis(100));
        }
        let (user, id, remote) = world.program.accepted.pop_front()?;
        world.stack.accepted(listener.id);
        Some((Sock { id, user }, remote))
    });
    world.until("its name", |world| match world.read(sock).first() {
        Some(name) => Some(Some(*name)),
        None => world.error(sock).map(|_| None),
    })
}

#[test]
fn clients_in_line_are_refused_when_the_program_listens_no_more() {
    let mut world = World::new();
    let (listener, clients) = crowd(&mut world, 20);
    world.close(listener, Linger::Default);
    // Behind a device the client's handshake is complete already, so the connection is reset
    // instead of refused.
    let counter = if IN_MEMORY { "tcp_accepted_refused" } else { "tcp_reset" };
    world.until("refusals", |world| (world.counter(counter) == 19).then_some(()));
    for mut client in &clients[1..] {
        assert!(client.read(&mut [0; 1]).is_err(), "a reset");
    }
    assert_eq!(world.gateway.borrow().tcp_flows(), 1);
}

#[test]
fn a_client_that_leaves_holds_up_none_behind_it() {
    let mut world = World::new();
    let (listener, mut clients) = crowd(&mut world, 6);
    for left in [1, 3] {
        let client = &clients[left];
        rustix::net::sockopt::set_socket_linger(client, Some(Duration::ZERO)).unwrap();
    }
    clients.remove(3);
    clients.remove(1);
    if IN_MEMORY {
        world.until("their end", |world| (world.gateway.borrow().tcp_flows() == 4).then_some(()));
        for name in [0, 2, 4, 5] {
            assert_eq!(next(&mut world, listener), Some(name));
        }
        return;
    }
    // Behind a device the aborted clients 1 and 3 have bytes in flight, so their resets arrive
    // after these bytes.
    let mut left = vec![0, 2, 4, 5];
    while !left.is_empty() {
        let name = next(&mut world, listener);
        left.retain(|wanted| Some(*wanted) != name);
    }
}

/// The inner stack abandons an unanswered SYN after two minutes, but its client continues to wait.
/// Behind a device the program's stack abandons the handshake, as Linux does after
/// `tcp_synack_retries`, and resets the client.
#[test]
fn a_client_waits_for_as_long_as_the_program_accepts_nothing() {
    let mut world = World::new();
    let (listener, clients) = crowd(&mut world, 3);
    for _ in 0..40 {
        world.skip(Duration::from_secs(10));
    }
    assert_eq!(world.counter("tcp_accepted_refused"), 0);
    let served = if IN_MEMORY { 3 } else { 1 };
    for name in 0..served {
        assert_eq!(next(&mut world, listener), Some(name));
    }
    for mut client in &clients[served.into()..] {
        assert!(client.read(&mut [0; 1]).is_err(), "a reset");
    }
}
