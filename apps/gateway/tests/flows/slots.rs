//! Reuse of a slab slot: state left by an ended flow never affects a later flow in the slot.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use rustix::net::sockopt;
use towpath_gateway::limits::FAILED_WAIT_NS;
use towpath_pool::Port;
use towpath_stack::Linger;

use crate::world::{Over, PATIENCE, World, gateway_v4, refusing};

/// Number of flows in one slot within [`FAILED_WAIT_NS`]. More than the twelve generation bits of a
/// short key can distinguish.
const FLOWS: u32 = 4_200;
const WAIT: Duration = Duration::from_nanos(FAILED_WAIT_NS);

/// Lets the program connect 70 times per second to a server that refuses or resets each connection.
fn tried_in_vain(world: &mut World, port: u16) {
    for _ in 0..FLOWS {
        let sock = world.connect(gateway_v4(port));
        world.until("an error", |world| world.error(sock));
        world.close(sock, Linger::Default);
        world.skip_unseen(WAIT / (FLOWS + 100));
    }
    world.turn();
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
}

/// Checks that no timer is set. On Ethernet, the gateway may have a timer for a neighbour probe.
fn waits_for_nothing(world: &World) {
    if crate::OVER != Over::Ethernet {
        assert_eq!(world.gateway.borrow().next_timeout_ns(), None, "nothing is waited for");
    }
}

/// Checks that a connection succeeds and stays open once the server works again.
fn stays(mut world: World) {
    let resets = world.counter("tcp_reset");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sock = world.connected(gateway_v4(listener.local_addr().unwrap().port()));
    let mut peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..FLOWS / 60 {
        world.skip_unseen(WAIT / (FLOWS / 60));
        world.turn();
        assert_eq!(world.error(sock), None);
    }
    world.write_all(sock, b"still there");
    world.run_for(Duration::from_millis(20));
    let mut got = [0; 11];
    peer.read_exact(&mut got).unwrap();
    peer.write_all(&got).unwrap();
    assert_eq!(world.read_exact(sock, 11), b"still there");
    assert_eq!(world.counter("tcp_reset"), resets);
}

#[test]
fn refused_connections_leave_nothing_behind() {
    let (_refuses, port) = refusing();
    let mut world = World::new();
    tried_in_vain(&mut world, port);
    assert_eq!(world.counter("tcp_refused"), FLOWS.into());
    waits_for_nothing(&world);
    stays(world);
}

#[test]
fn reset_connections_leave_nothing_behind() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            sockopt::set_socket_linger(stream.unwrap(), Some(Duration::ZERO)).unwrap();
        }
    });
    let mut world = World::new();
    tried_in_vain(&mut world, port);
    assert!(world.counter("tcp_reset") > 0);
    waits_for_nothing(&world);
    stays(world);
}
