//! Interfaces that are added to and removed from a running host.

use super::*;

const OTHER: IfaceId = IfaceId(2);

fn named(name: &str, addresses: &[&str]) -> InterfaceConfig {
    InterfaceConfig { name: name.to_owned(), ..eth0(addresses) }
}

fn remove(host: &mut Host, iface: IfaceId) -> Result<(), Fault> {
    let change = Change::RemoveInterface { iface };
    host.net.apply(host.now, &[change]).map_err(|refused| refused.why)
}

/// Returns a host with a second interface, which has routes, a neighbour and a group.
fn with_other() -> Host {
    let mut host = Host::a();
    let config = named("eth1", &["10.5.0.1/24", "fd05::1/64"]);
    assert_eq!(host.net.try_add_interface(host.now, &config), Ok(OTHER));
    let mut host = host.settled();
    let via = RouteSpec { next_hop: Some(ip("10.5.0.9")), ..RouteSpec::to(prefix("0.0.0.0/0")) };
    let neighbor =
        Change::SetNeighbor { iface: OTHER, addr: ip("10.5.0.7"), mac: MAC_B, how: How::Add };
    let list = [Change::SetRoute(via, How::Add), neighbor];
    assert_eq!(host.net.apply(host.now, &list), Ok(()));
    host.net.output(OTHER).hand_over(Batch::clear);
    assert!(host.net.join_group(host.now, OTHER, ip("239.1.2.3"), None));
    host
}

#[test]
fn a_removed_interface_leaves_nothing_behind() {
    let mut host = with_other();
    let before = host.net.interface(ETH).map(|link| format!("{link:?}"));
    assert_eq!(remove(&mut host, OTHER), Ok(()));
    assert!(host.net.interface(OTHER).is_none());
    assert_eq!(host.net.interfaces().map(Interface::name).collect::<Vec<_>>(), ["lo", "eth0"]);
    assert!(host.net.routes().all(|route| route.iface != OTHER));
    assert_eq!(host.net.neighbors().count(), 0);
    assert!(!host.net.is_local(ip("10.5.0.1")) && !host.net.is_member(OTHER, ip("239.1.2.3")));
    assert_eq!(host.net.route(host.now, None, ip("8.8.8.8"), None), Err(RouteError::NoRoute));
    let bound = host.net.route(host.now, None, ip("10.5.0.7"), Some(OTHER));
    assert_eq!(bound, Err(RouteError::NoInterface));
    assert_eq!(host.net.interface(ETH).map(|link| format!("{link:?}")), before);
    // No scheduled task of the removed interface is left.
    host.pass(Duration::from_secs(300));
    assert_eq!((host.net.output(OTHER).len(), host.net.waiting()), (0, 0));
}

#[test]
fn changes_to_a_removed_interface_are_refused() {
    let mut host = with_other();
    assert_eq!(remove(&mut host, IfaceId::LOOPBACK), Err(Fault::Loopback));
    assert_eq!(remove(&mut host, IfaceId(9)), Err(Fault::NoInterface));
    let set_up = Change::SetUp { iface: OTHER, up: true };
    let list = [Change::RemoveInterface { iface: OTHER }, set_up];
    let refused = Refused { at: 1, why: Fault::NoInterface };
    assert_eq!(host.net.apply(host.now, &list), Err(refused));
    assert!(host.net.interface(OTHER).is_some(), "none of the list was applied");
    assert_eq!(remove(&mut host, OTHER), Ok(()));
    assert_eq!(remove(&mut host, OTHER), Err(Fault::NoInterface));
    assert!(!host.net.add_address(host.now, OTHER, prefix("10.6.0.1/24")));
    assert!(!host.net.join_group(host.now, OTHER, ip("239.1.2.3"), None));
    assert!(!host.net.leave_group(host.now, OTHER, ip("239.1.2.3"), None));
    assert!(!host.net.add_route(prefix("10.7.0.0/16"), None, OTHER, 0));
    host.net.set_carrier(host.now, OTHER, false);
}

#[test]
fn a_name_is_unique_among_the_interfaces_that_exist() {
    let mut host = with_other();
    let again = named("eth1", &["10.6.0.1/24"]);
    assert_eq!(host.net.try_add_interface(host.now, &again), Err(Fault::Exists));
    assert_eq!(remove(&mut host, OTHER), Ok(()));
    assert_eq!(host.net.try_add_interface(host.now, &again), Ok(IfaceId(3)));
    assert!(host.net.is_local(ip("10.6.0.1")));
}

#[test]
fn an_index_is_reused_after_a_time_with_fresh_counters() {
    let mut host = with_other();
    host.net.note_received(OTHER, Load { packets: 7, bytes: 700 });
    host.net.set_carrier(host.now, OTHER, false);
    assert_eq!(remove(&mut host, OTHER), Ok(()));
    host.pass(limits::INTERFACE_REUSE_TIME - Duration::from_nanos(1));
    assert_eq!(host.net.try_add_interface(host.now, &named("eth2", &[])), Ok(IfaceId(3)));
    host.pass(Duration::from_nanos(1));
    let config = named("eth3", &["10.8.0.1/24"]);
    assert_eq!(host.net.try_add_interface(host.now, &config), Ok(OTHER));
    assert_eq!(host.net.traffic()[OTHER.index()], Traffic::default());
    // The new interface does not inherit the lost carrier of the removed one.
    let via = RouteSpec { next_hop: Some(ip("10.8.0.9")), ..RouteSpec::to(prefix("0.0.0.0/0")) };
    assert_eq!(host.net.apply(host.now, &[Change::SetRoute(via, How::Add)]), Ok(()));
    let found = host.net.route(host.now, None, ip("8.8.8.8"), None).expect("the default route");
    assert_eq!((found.iface, found.avoids), (OTHER, false));
}

#[test]
fn the_number_of_interfaces_is_limited() {
    let mut host = Host::a();
    for n in 2..limits::INTERFACES_MAX {
        let added = host.net.try_add_interface(host.now, &named(&format!("p{n}"), &[]));
        assert_eq!(added, Ok(IfaceId(n as u16)));
    }
    let one_more = named("last", &[]);
    assert_eq!(host.net.try_add_interface(host.now, &one_more), Err(Fault::Full));
    assert_eq!(remove(&mut host, OTHER), Ok(()));
    assert_eq!(host.net.try_add_interface(host.now, &one_more), Err(Fault::Full));
    host.pass(limits::INTERFACE_REUSE_TIME);
    assert_eq!(host.net.try_add_interface(host.now, &one_more), Ok(OTHER));
}

/// Packets wait in the output queue and for the answer of a neighbour.
#[test]
fn queued_packets_of_a_removed_interface_are_dropped_and_counted() {
    let mut host = with_other();
    let send = |host: &mut Host, to: &str| {
        let data = pattern(10);
        let payload = Payload::new(&data, Fragments::empty());
        let echo = EchoOut {
            src: ip("10.5.0.1"),
            dst: ip(to),
            reply: false,
            ident: 1,
            seq: 1,
            ttl: None,
            tos: 0,
            fragmenting: Fragmenting::Never,
        };
        let route = host.net.route(host.now, None, ip(to), None).expect("a route");
        host.net.send_echo(host.now, &route, &echo, &payload, &mut host.pool).expect("room");
    };
    send(&mut host, "10.5.0.7");
    send(&mut host, "10.5.0.8");
    // The packet to 10.5.0.8 waits, and its solicitation is queued.
    assert_eq!(host.net.waiting(), 3);
    assert_eq!(remove(&mut host, OTHER), Ok(()));
    host.net.drop_output(OTHER, &mut host.pool);
    host.pass(Duration::ZERO);
    assert_eq!(host.net.waiting(), 0);
    let drops = host.net.counters().data.drops;
    let counts = [DropReason::LinkDownOut, DropReason::NeighborQueueFull].map(|r| drops.of(r));
    assert_eq!(counts, [2, 1]);
}
