//! Routes taken over from the kernel, next to those of the operator.

use super::*;

fn by(hop: &str, metric: u32) -> KernelRoute {
    KernelRoute {
        next_hop: Some(ip(hop)),
        iface: ETH,
        metric,
        protocol: 186,
        kind: RouteKind::Unicast,
        mtu: None,
        weight: 1,
    }
}

fn to(network: &str, routes: &[KernelRoute]) -> KernelRoutes {
    KernelRoutes { prefix: prefix(network), routes: routes.to_vec() }
}

/// Returns next hop and metric of all routes to a network, in the order of insertion.
fn hops(net: &Net, network: &str) -> Vec<(Option<IpAddr>, u32)> {
    let routes = net.routes().filter(|route| route.prefix == prefix(network));
    routes.map(|route| (route.next_hop, route.metric)).collect()
}

#[test]
fn kernel_routes_are_replaced_by_network_and_leave_those_of_the_operator() {
    let mut host = Host::a();
    let network = "10.9.0.0/16";
    assert!(host.net.add_route(prefix(network), Some(ip("10.0.0.9")), ETH, 50));
    let ecmp = [by("10.0.0.2", 20), by("10.0.0.3", 20)];
    let other = to("10.8.0.0/16", &[by("10.0.0.2", 20)]);
    assert_eq!(host.net.set_kernel_routes(&[to(network, &ecmp), other]), 0);
    let (two, three) = (Some(ip("10.0.0.2")), Some(ip("10.0.0.3")));
    let nine = (Some(ip("10.0.0.9")), 50);
    assert_eq!(hops(&host.net, network), [nine, (two, 20), (three, 20)]);
    assert_eq!(host.net.set_kernel_routes(&[to(network, &[by("10.0.0.3", 20)])]), 0);
    assert_eq!(hops(&host.net, network), [nine, (three, 20)]);
    assert_eq!(hops(&host.net, "10.8.0.0/16"), [(two, 20)]);
    assert_eq!(host.net.set_kernel_routes(&[to(network, &[])]), 0);
    assert_eq!(hops(&host.net, network), [nine]);
    assert_eq!(hops(&host.net, "10.0.0.0/24").len(), 1, "the route to the link stays");
}

#[test]
fn unusable_kernel_routes_are_refused_alone() {
    let mut host = Host::a();
    let no_interface = KernelRoute { iface: IfaceId(7), ..by("10.0.0.2", 20) };
    let no_weight = KernelRoute { weight: 0, ..by("10.0.0.4", 20) };
    let routes = [no_interface, by("fd00::2", 20), no_weight, by("10.0.0.3", 20)];
    assert_eq!(host.net.set_kernel_routes(&[to("10.9.0.0/16", &routes)]), 3);
    assert_eq!(hops(&host.net, "10.9.0.0/16"), [(Some(ip("10.0.0.3")), 20)]);
    let hole = KernelRoute { kind: RouteKind::Blackhole, ..by("10.0.0.2", 20) };
    assert_eq!(host.net.set_kernel_routes(&[to("10.9.0.0/16", &[hole])]), 0);
    let found = host.net.routes().find(|route| route.prefix == prefix("10.9.0.0/16"));
    let found = found.map(|route| (route.kind, route.next_hop, route.iface, route.origin));
    let expected = (RouteKind::Blackhole, None, IfaceId::LOOPBACK, Origin::Kernel(186));
    assert_eq!(found, Some(expected));
}

#[test]
fn kernel_routes_of_different_metrics_stand_next_to_each_other() {
    let mut host = Host::a();
    let routes = [by("10.0.0.2", 20), by("10.0.0.2", 200)];
    assert_eq!(host.net.set_kernel_routes(&[to("10.9.0.0/16", &routes)]), 0);
    let two = Some(ip("10.0.0.2"));
    assert_eq!(hops(&host.net, "10.9.0.0/16"), [(two, 20), (two, 200)]);
}

#[test]
fn mtus_of_kernel_routes_below_the_minimum_are_ignored() {
    let mut host = Host::a();
    for (mtu, expected) in [(1, None), (67, None), (68, Some(68)), (1400, Some(1400))] {
        let route = KernelRoute { mtu: Some(mtu), ..by("10.0.0.2", 20) };
        assert_eq!(host.net.set_kernel_routes(&[to("10.9.0.0/16", &[route])]), 0);
        let found = host.net.routes().find(|route| route.prefix == prefix("10.9.0.0/16"));
        assert_eq!(found.map(|route| route.mtu), Some(expected));
    }
}
