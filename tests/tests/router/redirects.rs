//! Redirects of the router are accepted by the kernel of a host.

use towpath_tests::eventually;

use super::control::Named;
use super::{counter, end, ip};

/// Ethernet address of the better router, which does not exist, so that no host resolves it.
const BETTER: &str = "02:00:00:00:09:09";

#[test]
fn a_host_takes_the_better_router_that_it_is_told_of() {
    let options = ["--route", "10.9.0.0/16@10.1.0.9", "--stats=json"];
    let Some(it) = Named::new("redirects", &options) else { return };
    let left = it.lab.left.name().expect("root");
    for setting in ["ipv4.conf.all", "ipv4.conf.l0", "ipv6.conf.l0"] {
        it.lab.left.run(&["sysctl", "-qw", &format!("net.{setting}.accept_redirects=1")]).ok();
    }
    for router in ["10.1.0.9", "fe80::9"] {
        ip(&format!("ip -n {left} neigh add {router} lladdr {BETTER} dev l0"));
        it.ip(&format!("neigh add {router} lladdr {BETTER} dev lan"));
    }
    it.ip("route add fd00:9::/64 via fe80::9 dev lan");
    // For IPv6, a host accepts redirects only from the link-local address of its router.
    let own = || {
        let shown = it.ip("-6 -br addr show lan");
        let own = shown.split_whitespace().find(|word| word.starts_with("fe80:"));
        own.and_then(|own| own.split('/').next()).map(str::to_owned)
    };
    eventually("the router has a link-local address", || own().is_some());
    let own = own().expect("it has");
    ip(&format!("ip -n {left} -6 route replace default via {own} dev l0"));

    for (to, better) in [("10.9.0.1", "10.1.0.9"), ("fd00:9::1", "fe80::9")] {
        eventually("the host goes by the better router", || {
            assert!(!it.lab.left.run(&["ping", "-c1", "-W1", to]).success(), "nobody is there");
            let way = it.lab.left.run(&["ip", "route", "get", to]).ok().stdout;
            way.contains(&format!("via {better} "))
        });
    }
    let stats = end(it.router);
    assert!(counter(&stats, "net", "redirects_sent") >= 2, "{stats}");
}
