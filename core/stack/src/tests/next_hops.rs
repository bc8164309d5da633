//! Tests of connections through routers.

use towpath_pool::LinkType;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::{MacAddr, Prefix, arp};

use super::world::{Conn, World, WorldConfig};
use crate::{DropReason, IfaceId};

const ETH: IfaceId = IfaceId(1);
const MAC_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const NOBODY: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Announces that b's router has the MAC address `mac`.
fn announce(w: &mut World, mac: MacAddr) {
    let router = [10, 0, 0, 1].into();
    let message = arp::ArpPacket {
        op: arp::ArpOp::Reply,
        sender_mac: mac,
        sender_ip: router,
        target_mac: MacAddr::BROADCAST,
        target_ip: router,
    };
    let (src, dst) = (mac, MacAddr::BROADCAST);
    let header = ethernet::Header { dst, src, vlan: None, ethertype: EtherType::ARP };
    let mut frame = [0; ethernet::HEADER_LEN + arp::PACKET_LEN];
    header.emit(&mut frame);
    message.emit(&mut frame[ethernet::HEADER_LEN..]);
    w.inject(&frame);
    w.run(1);
}

/// Creates a connection from b to a host behind its router; host a is both.
fn routed() -> (World, Conn, Conn) {
    let mut w = World::new(WorldConfig { link: LinkType::Ethernet, ..WorldConfig::default() });
    let now = w.now();
    w.a.stack.net.add_address(now, ETH, "192.0.2.1/32".parse().unwrap());
    let (listener, _) = w.a.listen("192.0.2.1:80", 4);
    let client = w.b.connect("192.0.2.1:80");
    w.run(3000);
    let server = w.a.accept(listener).expect("it is connected");
    w.b.write(&client, b"zero");
    w.run(100);
    assert_eq!(w.a.read(&server), b"zero");
    (w, client, server)
}

#[test]
fn a_connection_follows_its_router_to_another_mac_address() {
    let (mut w, client, server) = routed();
    let generation = w.b.stack.net.route_generation();
    announce(&mut w, NOBODY);
    let before = w.a.drops(DropReason::FrameNotOurs);
    w.b.write(&client, b"one");
    w.run(5);
    assert_eq!(w.a.drops(DropReason::FrameNotOurs), before + 1, "the next segment went there");
    announce(&mut w, MAC_A);
    w.run(1000);
    assert_eq!(w.a.read(&server), b"one");
    assert_eq!(w.b.stack.net.route_generation(), generation, "its way is the same");
}

#[test]
fn a_connection_leaves_a_router_that_does_not_answer() {
    let (mut w, client, server) = routed();
    let other = [10, 0, 0, 3].into();
    let now = w.now();
    w.a.stack.net.add_address(now, ETH, "10.0.0.3/24".parse().unwrap());
    w.b.stack.net.add_route(Prefix::ALL_V4, Some(other), ETH, 2);
    // The first router disappears without notice.
    w.a.stack.net.remove_address(now, ETH, [10, 0, 0, 1].into());
    announce(&mut w, NOBODY);
    w.b.write(&client, b"one");
    w.run(5000);
    assert_eq!(w.a.read(&server), b"", "its probes are not over");
    w.run(15_000);
    assert_eq!(w.a.read(&server), b"one");
    let known: Vec<_> = w.b.stack.net.neighbors().map(|neighbor| neighbor.addr).collect();
    assert!(known.contains(&other), "{known:?}");
    assert_eq!(w.b.stack.net.counters().control.neighbors_failed, 1);
}
