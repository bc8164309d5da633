//! A router under adverse conditions: a link loses its carrier, an interface goes down, a neighbour
//! moves.

use towpath_tests::{Namespace, eventually};

use super::control::Named;
use super::{end, ip};

/// Restores the configuration that the kernel of `right` drops when an interface goes down.
fn restore(right: &Namespace) {
    let name = right.name().expect("root");
    for line in ["link set w0 up", "addr replace fd00:2::2/64 dev w0 nodad"] {
        ip(&format!("ip -n {name} {line}"));
    }
    for n in ["10.2.0.1", "fd00:2::1"] {
        ip(&format!("ip -n {name} route replace default via {n}"));
    }
}

fn both_answer(it: &Named) {
    for to in ["10.2.0.2", "fd00:2::2"] {
        eventually("the other host answers", || it.lab.pings(to));
    }
}

/// First the far end goes down, so that the link has no carrier. Then the router's own interface
/// goes down. The other port keeps working, and no restart is needed.
#[test]
fn a_link_that_goes_down_comes_back() {
    let Some(it) = Named::new("link", &[]) else { return };
    let (right, router) = (it.lab.right.name().expect("root"), it.lab.router.name().expect("root"));
    both_answer(&it);
    ip(&format!("ip -n {right} link set w0 down"));
    assert!(!it.lab.pings("10.2.0.2"));
    assert!(it.lab.pings("10.1.0.1"), "the other port works");
    restore(&it.lab.right);
    both_answer(&it);

    ip(&format!("ip -n {router} link set w1 down"));
    for to in ["10.2.0.2", "fd00:2::2"] {
        assert!(!it.lab.pings(to));
    }
    let shown = it.ip("link show wan");
    assert!(shown.contains("<NO-CARRIER,BROADCAST,MULTICAST,UP>"), "{shown}");
    assert!(shown.contains("state DOWN"), "{shown}");
    assert!(it.lab.pings("10.1.0.1"), "the other port works");
    ip(&format!("ip -n {router} link set w1 up"));
    restore(&it.lab.right);
    both_answer(&it);
    end(it.router);
}

/// A neighbour changes its Ethernet address. The router learns it from an announcement, even
/// without traffic. Without an announcement, the router detects the change when its probes are not
/// answered.
#[test]
fn a_neighbour_that_moves_is_found_again() {
    let Some(it) = Named::new("moves", &[]) else { return };
    let right = it.lab.right.name().expect("root");
    both_answer(&it);
    let known = |addr: &str, mac: &str| {
        let neighbors = it.ip("neigh");
        neighbors.lines().any(|line| line.starts_with(addr) && line.contains(mac))
    };
    for setting in ["ipv4.conf.w0.arp_notify", "ipv6.conf.w0.ndisc_notify"] {
        it.lab.right.run(&["sysctl", "-qw", &format!("net.{setting}=1")]).ok();
    }
    let told = "02:00:00:00:0a:01";
    ip(&format!("ip -n {right} link set w0 address {told}"));
    for addr in ["10.2.0.2 ", "fd00:2::2 "] {
        eventually("the router heard it", || known(addr, told));
    }
    both_answer(&it);

    for setting in ["ipv4.conf.w0.arp_notify", "ipv6.conf.w0.ndisc_notify"] {
        it.lab.right.run(&["sysctl", "-qw", &format!("net.{setting}=0")]).ok();
    }
    let silent = "02:00:00:00:0a:02";
    ip(&format!("ip -n {right} link set w0 address {silent}"));
    assert!(known("10.2.0.2 ", told), "nobody said anything");
    both_answer(&it);
    assert!(known("10.2.0.2 ", silent) && known("fd00:2::2 ", silent), "{}", it.ip("neigh"));
    end(it.router);
}

/// Two routers share the flows to a network. When the second loses its link, all flows use the
/// first immediately.
#[test]
fn flows_share_two_routers_and_leave_one_that_goes() {
    let Some(lab) = super::Lab::new(1500) else { return };
    let [right, router] = [&lab.right, &lab.router].map(|it| it.name().expect("root").to_owned());
    ip(&format!("ip link add v0 netns {right} type veth peer name v1 netns {router}"));
    for (namespace, line) in [
        (&right, "addr add 10.3.0.2/24 dev v0"),
        (&right, "link set v0 up"),
        (&router, "link set v1 up"),
        (&right, "route add local 10.5.0.0/24 dev lo"),
    ] {
        ip(&format!("ip -n {namespace} {line}"));
    }
    let folder = towpath_tests::Scratch::new();
    let rules = folder.write(
        "rules.txt",
        "acl add id 10 out alt proto icmp icmp 8 action accept
         acl add id 20 out wan proto icmp icmp 8 action accept",
    );
    let options = [
        "--acl",
        &rules,
        "--port",
        "alt=packet:v1,10.3.0.1/24",
        "--route",
        "10.5.0.0/16@10.2.0.2,10.3.0.2",
        "--stats=json",
    ];
    let it = Named::start(lab, "equal", &options);
    // The kernel answers by its default route, regardless of the path of the request.
    for n in 1..=24 {
        let to = format!("10.5.0.{n}");
        eventually("a host behind two routers answers", || it.lab.pings(&to));
    }
    ip(&format!("ip -n {right} link set v0 down"));
    // Because of the carrier: the entry itself would count as reachable for up to 45 s more (RFC
    // 4861 6.3.2).
    eventually("the neighbours behind the link are forgotten", || {
        !it.ip("neigh").lines().any(|line| line.contains("dev alt"))
    });
    let shown = it.ip("route show 10.5.0.0/16");
    assert!(shown.contains("nexthop via 10.3.0.2 dev alt weight 1 dead linkdown"), "{shown}");
    assert!(shown.contains("nexthop via 10.2.0.2 dev wan weight 1 \n"), "{shown}");
    for n in 1..=24 {
        assert!(it.lab.pings(&format!("10.5.0.{n}")), "all flows have the other router");
    }
    ip(&format!("ip -n {right} link set v0 up"));
    eventually("the link is used again", || !it.ip("route").contains("linkdown"));
    let stats = end(it.router);
    let [alt, wan] = ["10.accept.packets", "20.accept.packets"]
        .map(|name| super::counter(&stats, "rules", name));
    // The probability that fewer than two of 24 flows use the second router is 1 in 600,000.
    assert!(alt >= 2 && wan >= 24, "{alt} by the second, {wan} by the first");
}
