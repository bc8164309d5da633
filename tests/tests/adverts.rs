//! Router advertisements of `towpath router`, received by the kernel. Skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use rustix::process::Signal;
use towpath_tests::{Namespace, PATIENCE, Process, eventually, towpath};

/// A host and a router. The host's kernel configures itself by router advertisements.
struct Lab {
    host: Namespace,
    router: Namespace,
}

fn ip(words: &str) {
    let words: Vec<_> = words.split_whitespace().collect();
    Process::spawn(&words).wait(PATIENCE).ok();
}

impl Lab {
    /// Creates the namespaces; None without root.
    fn new() -> Option<Self> {
        let [host, router] = [(); 2].map(|()| Namespace::new());
        let (Some(left), Some(middle)) = (host.name(), router.name()) else {
            eprintln!("left out: needs root");
            return None;
        };
        ip(&format!("ip link add e0 netns {left} type veth peer name lan0 netns {middle}"));
        ip(&format!("ip netns exec {middle} sysctl -qw net.ipv6.conf.lan0.disable_ipv6=1"));
        ip(&format!("ip netns exec {left} sysctl -qw net.ipv6.conf.e0.accept_ra=2"));
        ip(&format!("ip -n {middle} link set lan0 up"));
        Some(Self { host, router })
    }

    fn name(&self) -> String {
        self.router.name().expect("root").replace('-', "_")
    }

    fn start(&self, options: &[&str]) -> Process {
        let (towpath, name) = (towpath(), self.name());
        let port = "lan=packet:lan0,10.1.0.1/24,fd00:1::1/64";
        let fixed = [&*towpath, "router", "--name", &name, "--port", port];
        let router = self.router.spawn(&[&fixed[..], options].concat());
        eventually("the router", || router.stderr().contains("Ctrl-C ends"));
        router
    }

    fn ip(&self, words: &str) -> String {
        let (towpath, name) = (towpath(), self.name());
        let mut line = vec![&*towpath, "ip", "--name", &name];
        line.extend(words.split_whitespace());
        self.router.run(&line).ok().stdout
    }

    fn host(&self, words: &str) -> String {
        self.host.run(&words.split_whitespace().collect::<Vec<_>>()).stdout
    }
}

#[test]
fn the_kernel_configures_itself_until_the_router_ends() {
    let Some(lab) = Lab::new() else { return };
    let router = lab.start(&["--ra", "lan,mtu=1400,dns=fd00:1::53,search=home.arpa"]);
    // The kernel sends solicitations when the link comes up, of which the router answers one.
    eventually("the router's link-local address", || {
        let shown = lab.ip("-6 addr show lan");
        shown.contains("fe80::") && !shown.contains("tentative")
    });
    ip(&format!("ip -n {} link set e0 up", lab.host.name().expect("root")));
    let address = "ip -6 addr show dev e0 scope global";
    eventually("an address", || lab.host(address).contains("inet6 fd00:1::"));
    let shown = lab.host(address);
    assert!(shown.contains("dynamic") && shown.contains("preferred_lft 2"), "{shown}");
    let route = lab.host("ip -6 route show default");
    assert!(route.contains("via fe80::") && route.contains("proto ra"), "{route}");
    assert!(route.contains("hoplimit 64"), "{route}");
    let mtu = lab.host("cat /proc/sys/net/ipv6/conf/e0/mtu");
    assert_eq!(mtu.trim(), "1400");
    let ping = ["ping", "-c1", "-W1", "fd00:1::1"];
    eventually("the router answers", || lab.host.run(&ping).success());
    // A new network of the port is advertised, and an old one is withdrawn.
    lab.ip("addr add fd00:2::1/64 dev lan");
    eventually("a second address", || lab.host(address).contains("inet6 fd00:2::"));
    lab.ip("addr del fd00:2::1/64 dev lan");
    eventually("the address is deprecated", || {
        let shown = lab.host("ip -6 addr show dev e0 deprecated");
        shown.contains("inet6 fd00:2::") && !shown.contains("inet6 fd00:1::")
    });
    router.signal(Signal::TERM);
    router.wait(PATIENCE).ok();
    eventually("the route is removed", || lab.host("ip -6 route show default").is_empty());
}

/// rdisc6(8) shows the fields of the advertisement that answers its solicitation.
#[test]
fn solicitations_are_answered() {
    let Some(lab) = Lab::new() else { return };
    let options = ["--ra", "lan,other", "--dns", "lan,upstream=192.0.2.1"];
    let router = lab.start(&options);
    let host = lab.host.name().expect("root");
    ip(&format!("ip -n {host} link set e0 up"));
    let rdisc6 = ["rdisc6", "-1", "-r", "1", "e0"];
    eventually("an advertisement", || lab.host.run(&rdisc6).success());
    let shown = lab.host.run(&rdisc6).ok().stdout;
    for line in [
        "Stateful address conf.    :           No",
        "Stateful other conf.      :          Yes",
        "Router lifetime           :         1800",
        "Prefix                   : fd00:1::/64",
        "Recursive DNS server     : fd00:1::1",
        "DNS search list          : home.arpa",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    router.signal(Signal::TERM);
    router.wait(PATIENCE).ok();
}
