//! Ports that a running router gains and loses.

use rustix::process::Signal;
use towpath_tests::{Namespace, PATIENCE, eventually};

use super::control::Named;
use super::{Lab, end, ip, state};

/// A router, and a host whose interface `x0` no port of the router is connected to yet.
struct ThirdHost {
    it: Named,
    host: Namespace,
    /// State of the router's namespace before the router started.
    before: String,
}

impl ThirdHost {
    /// Starts the router; None without root.
    fn new(test: &str, options: &[&str]) -> Option<Self> {
        let lab = Lab::new(1500)?;
        let host = Namespace::new();
        let (third, router) = (host.name().expect("root"), lab.router.name().expect("root"));
        ip(&format!("ip link add x0 netns {third} type veth peer name x1 netns {router}"));
        ip(&format!("ip netns exec {router} sysctl -qw net.ipv6.conf.x1.disable_ipv6=1"));
        ip(&format!("ip -n {router} link set x1 up"));
        ip(&format!("ip -n {third} addr add 10.3.0.2/24 dev x0"));
        ip(&format!("ip -n {third} link set x0 up"));
        ip(&format!("ip -n {third} route add default via 10.3.0.1"));
        let before = state(&lab.router);
        Some(Self { it: Named::start(lab, test, options), host, before })
    }

    fn add(&self) {
        self.it.ip("link add dmz type packet:x1,10.3.0.1/24");
    }

    /// Returns whether the third host reaches the first one.
    fn pings(&self) -> bool {
        self.host.run(&["ping", "-c1", "-W1", "10.1.0.2"]).success()
    }

    /// Runs `towpath ip LINE`, and returns its exit status and message.
    fn refused(&self, line: &str) -> (i32, String) {
        let output = self.it.command("ip", line);
        (output.code(), output.stderr)
    }
}

/// The port is added and deleted several times, and no packet between the other ports is lost.
#[test]
fn a_running_router_gains_and_loses_a_port() {
    for shards in ["1", "2"] {
        let Some(third) = ThirdHost::new("gains", &["--shards", shards]) else { return };
        let it = &third.it;
        eventually("both hosts answer", || it.lab.pings("10.2.0.2"));
        let ping = ["ping", "-q", "-i", "0.01", "-c", "600", "-W", "10", "10.2.0.2"];
        let traffic = it.lab.left.spawn(&ping);
        for _ in 0..3 {
            third.add();
            eventually("the third host answers", || third.pings());
            let shown = it.ip("addr show dmz");
            assert!(shown.contains("10.3.0.1/24"), "{shown}");
            let (code, message) = third.refused("link add dmz type tap:tw9");
            assert_eq!((code, message.contains("File exists")), (2, true), "{message}");
            it.ip("link delete dmz");
            assert!(!third.pings());
            assert!(!it.ip("link").contains("dmz") && !it.ip("route").contains("10.3.0.0/24"));
        }
        let output = traffic.wait(PATIENCE).ok();
        assert!(output.stdout.contains(" 0% packet loss"), "{}", output.stdout);
        end(third.it.router);
    }
}

#[test]
fn an_added_tap_device_vanishes_with_its_port() {
    let Some(third) = ThirdHost::new("taps", &[]) else { return };
    let it = &third.it;
    let before = state(&it.lab.router);
    it.ip("link add side type tap tw3 10.4.0.1/24");
    let there = || it.lab.router.run(&["ip", "link", "show", "tw3"]).success();
    assert!(there());
    let router = it.lab.router.name().expect("root");
    ip(&format!("ip -n {router} addr add 10.4.0.2/24 dev tw3"));
    eventually("the router answers", || {
        it.lab.router.run(&["ping", "-c1", "-W1", "10.4.0.1"]).success()
    });
    it.ip("link del side");
    assert!(!there());
    assert_eq!(state(&it.lab.router), before);
    end(third.it.router);
}

/// The kernel closes the devices of ports that were added at run time.
#[test]
fn a_killed_router_leaves_nothing_of_added_ports() {
    let Some(third) = ThirdHost::new("killed", &[]) else { return };
    third.add();
    third.it.ip("link add side type tap:tw3,10.4.0.1/24");
    eventually("the third host answers", || third.pings());
    third.it.router.signal(Signal::KILL);
    third.it.router.wait(PATIENCE);
    eventually("nothing is left", || state(&third.it.lab.router) == third.before);
}

/// A rule stays when its interface is deleted, and matches a later interface of this name.
#[test]
fn rules_follow_the_names_of_interfaces() {
    let Some(third) = ThirdHost::new("names", &[]) else { return };
    let acl = |line: &str| third.it.command("acl", line);
    let rule = "add id 10 in dmz proto icmp action drop";
    let refused = acl(rule);
    assert!(refused.code() != 0 && refused.stderr.contains("dmz"), "{}", refused.stderr);
    third.add();
    eventually("the third host answers", || third.pings());
    acl(rule).ok();
    assert!(!third.pings());
    third.it.ip("link del dmz");
    assert!(acl("show").ok().stdout.contains("in dmz"));
    acl("add id 20 in lan proto tcp dport 23 action drop").ok();
    third.add();
    eventually("the router answers its neighbour", || {
        third.it.command("ip", "neigh show dev dmz").stdout.contains("10.3.0.2") || third.pings()
    });
    assert!(!third.pings());
    acl("del 10").ok();
    eventually("the third host answers", || third.pings());
    end(third.it.router);
}

#[test]
fn links_that_cannot_be_added_or_deleted_are_refused() {
    let Some(third) = ThirdHost::new("refuses", &[]) else { return };
    for (line, code, words) in [
        ("link add dmz type packet:nope,10.3.0.1/24", 2, "nope"),
        ("link add dmz type packet:x1", 2, "needs an address"),
        ("link add dmz type pakket:x1,10.3.0.1/24", 1, "expected tap, packet"),
        ("link add dmz type packet:x1,10.3.0.0/24", 1, "network or broadcast"),
        ("link add dmz", 1, "\"type\" argument is required"),
        ("link add dmz type vlan:lan.10,10.3.0.1/24", 2, "when the router starts"),
        ("link add lan type tap:tw3,10.4.0.1/24", 2, "File exists"),
        ("link add lo type tap:tw3,10.4.0.1/24", 2, "File exists"),
        ("link delete dmz", 1, "Cannot find device"),
        ("link delete lo", 1, "Cannot find device"),
    ] {
        let (found, message) = third.refused(line);
        assert!(found == code && message.contains(words), "{line}: {found} {message}");
    }
    assert!(third.it.lab.pings("10.1.0.1"));
    end(third.it.router);
}
