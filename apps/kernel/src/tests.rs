//! Tests of the model with changes as the kernel reports them.

use std::net::IpAddr;

use towpath_engine::{Change, How};
use towpath_netlink::{
    AddressMessage, HopMessage, KernelMessage, KernelObject, LinkMessage, MessageAction,
    NeighborMessage, NextHopMessage, RouteMessage, TABLE_MAIN,
};
use towpath_stack::IfaceId;
use towpath_stack::net::RouteKind;
use towpath_wire::MacAddr;

use crate::hosts::AdoptedHosts;
use crate::{KernelDump, KernelModel, LinkBinding};

const LAN: IfaceId = IfaceId(1);
const WAN: IfaceId = IfaceId(2);
const BGP: u8 = 186;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn link(index: u32, name: &str) -> KernelObject {
    KernelObject::Link(LinkMessage { index, name: name.to_owned(), is_up: true })
}

fn hop(link: u32, gateway: &str) -> HopMessage {
    let gateway = Some(ip(gateway));
    HopMessage { link, gateway, weight: 1, is_dead: false, is_special: false }
}

fn route(network: &str, metric: u32, hops: &[HopMessage]) -> RouteMessage {
    let (network, prefix_len) = network.split_once('/').expect("a network");
    RouteMessage {
        network: ip(network),
        prefix_len: prefix_len.parse().expect("a length"),
        table: TABLE_MAIN,
        protocol: BGP,
        kind: 1,
        metric,
        mtu: None,
        is_partial: false,
        next_hop_id: None,
        hops: hops.to_vec(),
    }
}

fn set(object: KernelObject) -> KernelMessage {
    KernelMessage { action: MessageAction::Set, object }
}

/// Returns a model after a dump of two bound interfaces, an unbound one, and these objects.
fn model(objects: &[KernelObject]) -> KernelModel {
    let bind = |link: &str, iface| LinkBinding { link: link.to_owned(), iface };
    let bindings = vec![bind("lo", IfaceId::LOOPBACK), bind("lan", LAN), bind("wan", WAN)];
    let mut model = KernelModel::new(TABLE_MAIN, bindings);
    assert!(model.is_stale());
    model.replace(dump(objects));
    assert!(!model.is_stale());
    model
}

fn dump(objects: &[KernelObject]) -> KernelDump {
    let links = [link(1, "lo"), link(3, "lan"), link(4, "wan"), link(5, "eth9")];
    let mut dump = KernelDump::default();
    links.iter().chain(objects).for_each(|object| dump.add(TABLE_MAIN, set(object.clone())));
    dump
}

/// Returns the updates as text: network, then interface, router, metric and weight of each route.
fn updates(model: &mut KernelModel) -> Vec<String> {
    let hop = |it: &towpath_stack::net::KernelRoute| match (it.kind, it.next_hop) {
        (RouteKind::Unicast, Some(hop)) => {
            format!(" {hop}%{} {}x{}", it.iface.0, it.metric, it.weight)
        }
        (RouteKind::Unicast, None) => format!(" link%{} {}", it.iface.0, it.metric),
        (kind, _) => format!(" {kind:?} {}", it.metric),
    };
    let updates = model.take_updates(usize::MAX);
    let text = |it: &towpath_stack::net::KernelRoutes| {
        format!("{}{}", it.prefix, it.routes.iter().map(hop).collect::<String>())
    };
    updates.iter().map(text).collect()
}

fn change(model: &mut KernelModel, action: MessageAction, route: RouteMessage) {
    model.on_change(KernelMessage { action, object: KernelObject::Route(route) });
}

#[test]
fn routes_through_bound_interfaces_are_passed_once() {
    let via = |network, hops: &[_]| KernelObject::Route(route(network, 20, hops));
    let mut blackhole = route("10.7.0.0/16", 20, &[]);
    blackhole.kind = 6;
    let mut connected = route("10.1.0.0/24", 0, &[hop(3, "10.1.0.9")]);
    connected.protocol = 2;
    let mut special = route("10.6.0.0/16", 20, &[hop(3, "10.1.0.2")]);
    special.hops[0].is_special = true;
    let mut other_table = route("10.5.0.0/16", 20, &[hop(3, "10.1.0.2")]);
    other_table.table = 100;
    let mut model = model(&[
        via("10.9.0.0/16", &[hop(3, "10.1.0.2"), hop(4, "10.2.0.2"), hop(5, "10.3.0.2")]),
        via("10.8.0.0/16", &[hop(5, "10.3.0.2")]),
        via("fd00:9::/32", &[hop(4, "fe80::1")]),
        KernelObject::Route(blackhole),
        KernelObject::Route(connected),
        KernelObject::Route(special),
        KernelObject::Route(other_table),
    ]);
    let expected = [
        "10.7.0.0/16 Blackhole 20",
        "10.9.0.0/16 10.1.0.2%1 20x1 10.2.0.2%2 20x1",
        "fd00:9::/32 fe80::1%2 20x1",
    ];
    assert_eq!(updates(&mut model), expected);
    assert_eq!((updates(&mut model).len(), model.networks()), (0, 3));
    // A dump without the routes withdraws them.
    model.replace(dump(&[via("fd00:9::/32", &[hop(4, "fe80::1")])]));
    assert_eq!(updates(&mut model), ["10.7.0.0/16", "10.9.0.0/16"]);
}

#[test]
fn changes_of_ipv4_routes_are_followed() {
    let mut model = model(&[]);
    let (lan, wan) = (hop(3, "10.1.0.2"), hop(4, "10.2.0.2"));
    change(&mut model, MessageAction::Set, route("10.9.0.0/16", 20, &[lan]));
    change(&mut model, MessageAction::Set, route("10.9.0.0/16", 30, &[wan]));
    assert_eq!(updates(&mut model), ["10.9.0.0/16 10.1.0.2%1 20x1 10.2.0.2%2 30x1"]);
    change(&mut model, MessageAction::Replace, route("10.9.0.0/16", 20, &[lan, wan]));
    let expected = ["10.9.0.0/16 10.1.0.2%1 20x1 10.2.0.2%2 20x1 10.2.0.2%2 30x1"];
    assert_eq!(updates(&mut model), expected);
    change(&mut model, MessageAction::Delete, route("10.9.0.0/16", 20, &[lan, wan]));
    assert_eq!(updates(&mut model), ["10.9.0.0/16 10.2.0.2%2 30x1"]);
    change(&mut model, MessageAction::Delete, route("10.9.0.0/16", 30, &[wan]));
    assert_eq!(updates(&mut model), ["10.9.0.0/16"]);
    assert!(!model.is_stale());
    change(&mut model, MessageAction::Delete, route("10.9.0.0/16", 30, &[wan]));
    assert!(model.is_stale(), "the deleted route was unknown");
}

#[test]
fn routes_replaced_by_another_type_cause_a_dump() {
    // RTN_THROW, which the engine does not have.
    let throw = |network| RouteMessage { kind: 9, ..route(network, 20, &[]) };
    let mut model = model(&[KernelObject::Route(route("10.9.0.0/16", 20, &[hop(3, "10.1.0.2")]))]);
    change(&mut model, MessageAction::Set, throw("10.8.0.0/16"));
    assert!(!model.is_stale());
    change(&mut model, MessageAction::Replace, throw("10.9.0.0/16"));
    assert!(model.is_stale());
}

#[test]
fn next_hops_of_ipv6_routes_come_and_go_alone() {
    let mut model = model(&[]);
    let (lan, wan) = (hop(3, "fe80::1"), hop(4, "fe80::2"));
    change(&mut model, MessageAction::Set, route("fd00:9::/32", 20, &[lan]));
    // The kernel reports all next hops after one was appended.
    change(&mut model, MessageAction::Set, route("fd00:9::/32", 20, &[lan, wan]));
    assert_eq!(updates(&mut model), ["fd00:9::/32 fe80::1%1 20x1 fe80::2%2 20x1"]);
    change(&mut model, MessageAction::Delete, route("fd00:9::/32", 20, &[lan]));
    assert_eq!(updates(&mut model), ["fd00:9::/32 fe80::2%2 20x1"]);
    change(&mut model, MessageAction::Delete, route("fd00:9::/32", 20, &[wan]));
    assert_eq!(updates(&mut model), ["fd00:9::/32"]);
    assert!(!model.is_stale());
    change(&mut model, MessageAction::Delete, route("fd00:9::/32", 20, &[wan]));
    assert!(model.is_stale());
}

#[test]
fn next_hop_objects_are_resolved_with_their_groups() {
    let object = |id, link, gateway: Option<&str>, group: &[(u32, u16)]| {
        KernelObject::NextHop(NextHopMessage {
            id,
            link,
            gateway: gateway.map(ip),
            group: group.to_vec(),
            is_blackhole: id == 4,
            is_encapsulated: false,
        })
    };
    let by = |network, id| {
        let next_hop_id = Some(id);
        KernelObject::Route(RouteMessage { next_hop_id, ..route(network, 20, &[]) })
    };
    let mut model = model(&[
        object(1, Some(3), Some("10.1.0.2"), &[]),
        object(2, Some(4), Some("10.2.0.2"), &[]),
        object(3, None, None, &[(1, 1), (2, 3)]),
        object(4, None, None, &[]),
        by("10.7.0.0/16", 4),
        by("10.8.0.0/16", 1),
        by("10.9.0.0/16", 3),
    ]);
    let expected = [
        "10.7.0.0/16 Blackhole 20",
        "10.8.0.0/16 10.1.0.2%1 20x1",
        "10.9.0.0/16 10.1.0.2%1 20x1 10.2.0.2%2 20x3",
    ];
    assert_eq!(updates(&mut model), expected);
    model.on_change(set(object(5, Some(3), Some("10.1.0.3"), &[])));
    model.on_change(set(object(3, None, None, &[(1, 1), (2, 3)])));
    assert!(!model.is_stale(), "an object is new, and another one has not changed");
    model.on_change(set(by("10.6.0.0/16", 5)));
    assert_eq!(updates(&mut model), ["10.6.0.0/16 10.1.0.3%1 20x1"]);
    model.on_change(set(object(3, None, None, &[(1, 1)])));
    assert!(model.is_stale());
}

#[test]
fn the_first_ipv4_route_of_a_metric_is_used_alone() {
    let via = |hop| route("10.9.0.0/16", 20, &[hop]);
    let (lan, wan) = (hop(3, "10.1.0.2"), hop(4, "10.2.0.2"));
    let mut model = model(&[KernelObject::Route(via(lan)), KernelObject::Route(via(wan))]);
    assert_eq!(updates(&mut model), ["10.9.0.0/16 10.1.0.2%1 20x1"]);
    change(&mut model, MessageAction::Delete, via(lan));
    assert_eq!(updates(&mut model), ["10.9.0.0/16 10.2.0.2%2 20x1"]);
    assert!(!model.is_stale());
    change(&mut model, MessageAction::Set, via(lan));
    assert!(model.is_stale(), "the new route may be the first one");
}

#[test]
fn events_that_end_routes_silently_cause_a_dump() {
    let down = |name: &str, index| {
        set(KernelObject::Link(LinkMessage { index, name: name.to_owned(), is_up: false }))
    };
    let mut known = model(&[]);
    known.on_change(set(link(3, "lan")));
    known.on_change(down("eth9", 5));
    assert!(!known.is_stale(), "nothing has changed, or the interface is not bound");
    known.on_change(down("lan", 3));
    assert!(known.is_stale());
    let mut known = model(&[]);
    known.on_change(set(link(3, "renamed")));
    assert!(known.is_stale());
    let address = AddressMessage { link: 3, address: ip("10.1.0.1"), prefix_len: 24 };
    let mut known = model(&[KernelObject::Address(address)]);
    known.on_change(KernelMessage {
        action: MessageAction::Delete,
        object: KernelObject::Address(address),
    });
    assert!(known.is_stale());
}

#[test]
fn addresses_and_permanent_neighbors_are_adopted() {
    let address = |link, text: &str, prefix_len| {
        KernelObject::Address(AddressMessage { link, address: ip(text), prefix_len })
    };
    let neighbor = |is_permanent, text: &str| {
        let address = ip(text);
        KernelObject::Neighbor(NeighborMessage { link: 4, address, mac: Some(MAC), is_permanent })
    };
    let mut model = model(&[
        address(1, "127.0.0.1", 8),
        address(1, "10.255.0.1", 32),
        address(3, "10.1.0.1", 24),
        address(3, "fe80::5", 64),
        address(5, "10.3.0.1", 24),
        neighbor(true, "10.2.0.2"),
        neighbor(false, "10.2.0.3"),
    ]);
    let mut adopted = AdoptedHosts::default();
    let wanted = model.hosts();
    let changes = adopted.changes(&wanted);
    let add =
        |iface, text: &str| Change::AddAddress { iface, prefix: text.parse().expect("valid") };
    let (addr, mac, how) = (ip("10.2.0.2"), MacAddr(MAC), How::Replace);
    let own = add(LAN, "10.1.0.1/24");
    let loopback = add(IfaceId::LOOPBACK, "10.255.0.1/32");
    let permanent = Change::SetNeighbor { iface: WAN, addr, mac, how };
    assert_eq!(changes, [loopback, own, permanent]);
    // The engine had the address of `lan` before.
    adopted.on_applied(&loopback);
    adopted.on_passed(&wanted);
    assert_eq!(adopted.addresses().collect::<Vec<_>>(), [ip("10.255.0.1")]);
    assert!(adopted.changes(&model.hosts()).is_empty());
    model.replace(dump(&[]));
    let remove =
        Change::RemoveAddress { iface: IfaceId::LOOPBACK, addr: ip("10.255.0.1"), len: Some(32) };
    let forget = Change::RemoveNeighbor { iface: WAN, addr };
    assert_eq!(adopted.changes(&model.hosts()), [remove, forget]);
    adopted.on_applied(&remove);
    assert_eq!(adopted.addresses().count(), 0);
}
