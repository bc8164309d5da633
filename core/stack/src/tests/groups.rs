//! Tests of local copies of datagrams to groups and broadcast addresses, on a host with several
//! interfaces.

use std::net::{IpAddr, SocketAddr};

use towpath_pool::{LinkType, Offloads};
use towpath_ring::Payload;
use towpath_wire::{MacAddr, Prefix};

use super::datagram::bound;
use super::world::{World, WorldConfig};
use crate::net::InterfaceConfig;
use crate::{BindOptions, DatagramOut, Family, IfaceId, SocketId, SocketKind, SocketOption};

const NEAR: IfaceId = IfaceId(1);
const FAR: IfaceId = IfaceId(2);

/// Creates hosts, of which a has a second interface.
fn with_two_interfaces() -> World {
    let mut w = World::new(WorldConfig::default());
    let address = |addr: &str, len| Prefix::new(addr.parse().unwrap(), len).unwrap();
    let config = InterfaceConfig {
        name: "eth1".to_string(),
        link: LinkType::Ip,
        mac: MacAddr::UNSPECIFIED,
        mtu: 1500,
        offloads: Offloads::default(),
        addresses: vec![address("10.1.0.1", 24), address("fd01::1", 64)],
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    };
    assert_eq!(w.a.stack.net.add_interface(w.a.now, config), FAR);
    w.run(3000);
    w
}

fn family_of(group: IpAddr) -> (Family, &'static str) {
    if group.is_ipv4() { (Family::V4, "0.0.0.0:5353") } else { (Family::V6, "[::]:5353") }
}

/// Creates a socket on port 5353 that joined `group` on `iface`. Returns the socket and its user.
fn member(w: &mut World, group: IpAddr, iface: IfaceId) -> (SocketId, u32) {
    let (family, any) = family_of(group);
    let (id, user) = w.a.open(SocketKind::Datagram, family);
    let options = BindOptions { reuse_addr: true, ..Default::default() };
    w.a.stack.bind(id, any.parse().unwrap(), options).unwrap();
    w.a.stack.join_group(w.a.now, id, group, Some(iface), None).unwrap();
    (id, user)
}

/// Sends a datagram to port 5353 by `iface`. Returns the users that received it, and the
/// interfaces.
fn heard(w: &mut World, to: IpAddr, iface: IfaceId) -> Vec<(u32, IfaceId)> {
    let (id, _) = w.a.open(SocketKind::Datagram, family_of(to).0);
    w.a.stack.set_option(id, SocketOption::Broadcast(true)).unwrap();
    let remote = Some(SocketAddr::new(to, 5353));
    let out = DatagramOut { remote, iface: Some(iface), ..Default::default() };
    let payload = Payload::new(b"to all", Default::default());
    w.a.stack.send_datagram(w.a.now, id, &out, &payload, &mut w.a.pool).unwrap();
    w.run(10);
    w.a.close(id);
    w.a.host.datagrams.drain(..).map(|(user, meta, _)| (user, meta.iface)).collect()
}

/// As on Linux, the copy counts as received on the interface that the datagram left by.
#[test]
fn only_members_on_the_interface_hear_what_goes_out_of_it() {
    for group in ["239.1.2.3", "ff05::77"] {
        let mut w = with_two_interfaces();
        let group = group.parse().unwrap();
        let (_, near) = member(&mut w, group, NEAR);
        assert_eq!(heard(&mut w, group, FAR), [], "{group}");
        assert_eq!(heard(&mut w, group, NEAR), [(near, NEAR)], "{group}");
        assert_eq!(heard(&mut w, group, IfaceId::LOOPBACK), [], "{group}");
    }
}

/// A member on each interface. With IP_MULTICAST_ALL, each receives datagrams of both. Without it,
/// only IPv4 checks the interface of the join. Each row was verified on Linux 6.18.
#[test]
fn which_members_of_other_interfaces_hear_the_copy_is_as_on_linux() {
    for (group, all, crosses) in
        [("239.1.2.3", true, true), ("239.1.2.3", false, false), ("ff05::77", false, true)]
    {
        let mut w = with_two_interfaces();
        let group = group.parse().unwrap();
        let (one, near) = member(&mut w, group, NEAR);
        let (other, far) = member(&mut w, group, FAR);
        for id in [one, other] {
            w.a.stack.set_option(id, SocketOption::MulticastAll(all)).unwrap();
            w.a.stack.set_option(id, SocketOption::MulticastAllV6(all)).unwrap();
        }
        let mut users: Vec<_> = heard(&mut w, group, FAR);
        users.sort_unstable();
        let expected = if crosses { vec![(near, FAR), (far, FAR)] } else { vec![(far, FAR)] };
        assert_eq!(users, expected, "{group}");
    }
}

/// IP_MULTICAST_ALL is off by default for AF_INET6 sockets, which affects only IPv4 groups;
/// verified on Linux 6.18.
#[test]
fn a_socket_of_both_families_hears_no_ipv4_group_that_it_did_not_join() {
    for (group, option, by_default) in [
        ("239.1.2.3", SocketOption::MulticastAll as fn(bool) -> SocketOption, false),
        ("ff05::77", SocketOption::MulticastAllV6, true),
    ] {
        let mut w = with_two_interfaces();
        let group = group.parse().unwrap();
        let (_, joined) = member(&mut w, group, NEAR);
        let (dual, user) = bound(&mut w.a, "[::]:5353");
        let mut hears = |set: Option<SocketOption>| {
            set.into_iter().for_each(|it| w.a.stack.set_option(dual, it).unwrap());
            let heard = heard(&mut w, group, NEAR);
            assert!(heard.contains(&(joined, NEAR)), "{group}");
            heard.contains(&(user, NEAR))
        };
        assert_eq!(hears(None), by_default, "{group}");
        assert!(!hears(Some(option(false))), "{group}");
        assert!(hears(Some(option(true))), "{group}");
    }
}

#[test]
fn a_broadcast_is_heard_on_the_interface_that_it_went_out_of() {
    let mut w = with_two_interfaces();
    let (id, user) = w.a.open(SocketKind::Datagram, Family::V4);
    w.a.stack.bind(id, "0.0.0.0:5353".parse().unwrap(), BindOptions::default()).unwrap();
    for (device, hears) in
        [(None, true), (Some(FAR), true), (Some(NEAR), false), (Some(IfaceId::LOOPBACK), false)]
    {
        w.a.stack.set_option(id, SocketOption::Device(device)).unwrap();
        let expected = if hears { vec![(user, FAR)] } else { Vec::new() };
        assert_eq!(heard(&mut w, "10.1.0.255".parse().unwrap(), FAR), expected, "{device:?}");
    }
}

/// The local copy has no link header, whatever the link, so captures of dropped packets must not
/// show one.
#[test]
fn a_copy_that_nobody_takes_is_dropped_as_a_packet_of_the_loopback() {
    let mut w = World::new(WorldConfig { link: LinkType::Ethernet, ..WorldConfig::default() });
    let group = "239.1.2.3".parse().unwrap();
    let (id, user) = member(&mut w, group, NEAR);
    assert_eq!(heard(&mut w, group, NEAR), [(user, NEAR)]);
    w.a.stack.set_option(id, SocketOption::Device(Some(IfaceId::LOOPBACK))).unwrap();
    w.a.stack.net.set_trace_drops(true);
    assert_eq!(heard(&mut w, group, NEAR), []);
    let dropped = w.a.stack.net.take_dropped().expect("traced");
    assert_eq!((dropped.iface, dropped.bytes[0]), (IfaceId::LOOPBACK, 0x45));
}
