//! NAT64 of `towpath router` between a host with IPv6 alone and a server with IPv4 alone, both of
//! the kernel. Skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use rustix::process::Signal;
use towpath_tests::{Namespace, PATIENCE, Process, Scratch, eventually, towpath, wait_for_port};

/// A host, a router and a server, one behind the other.
struct Lab {
    host: Namespace,
    router: Namespace,
    server: Namespace,
}

fn ip(words: &str) {
    let words: Vec<_> = words.split_whitespace().collect();
    Process::spawn(&words).wait(PATIENCE).ok();
}

impl Lab {
    /// Creates the namespaces. Returns `None` without root. The link to the host has an MTU of its
    /// own.
    fn new(lan_mtu: u32) -> Option<Self> {
        let [host, router, server] = [(); 3].map(|()| Namespace::new());
        let names = (host.name(), router.name(), server.name());
        let (Some(left), Some(middle), Some(right)) = names else {
            eprintln!("left out: needs root");
            return None;
        };
        ip(&format!(
            "ip link add e0 mtu {lan_mtu} netns {left} type veth \
             peer name lan0 mtu {lan_mtu} netns {middle}"
        ));
        ip(&format!("ip link add e0 netns {right} type veth peer name wan0 netns {middle}"));
        ip(&format!("ip -n {left} addr add 2001:db8:1::2/64 dev e0 nodad"));
        ip(&format!("ip -n {left} link set e0 up"));
        ip(&format!("ip -n {left} route add default via 2001:db8:1::1"));
        ip(&format!("ip -n {right} addr add 192.0.2.1/24 dev e0"));
        ip(&format!("ip -n {right} link set e0 up"));
        for dev in ["lan0", "wan0"] {
            ip(&format!("ip netns exec {middle} sysctl -qw net.ipv6.conf.{dev}.disable_ipv6=1"));
            ip(&format!("ip -n {middle} link set {dev} up"));
        }
        Some(Self { host, router, server })
    }

    fn name(&self) -> String {
        self.router.name().expect("root").replace('-', "_")
    }

    fn start(&self, options: &[&str]) -> Process {
        let (towpath, name) = (towpath(), self.name());
        let fixed = [
            towpath.as_str(),
            "router",
            "--name",
            name.as_str(),
            "--port",
            "lan=packet:lan0,2001:db8:1::1/64",
            "--port",
            "wan=packet:wan0,192.0.2.2/24",
            "--nat64",
            "64:ff9b::/96",
            "--nat",
            "masquerade out wan",
        ];
        let router = self.router.spawn(&[&fixed[..], options].concat());
        eventually("the router", || router.stderr().contains("Ctrl-C ends"));
        eventually("the server answers", || self.pings(&["64:ff9b::192.0.2.1"]));
        router
    }

    fn pings(&self, words: &[&str]) -> bool {
        self.host.run(&[&["ping", "-c1", "-W2"], words].concat()).success()
    }

    fn counter(&self, name: &str) -> u64 {
        let (towpath, run) = (towpath(), self.name());
        let shown =
            self.router.run(&[&towpath, "port", "--name", &run, "-j", "show", "nat64"]).ok();
        let value: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
        let counters = &value[0]["counters"];
        let found = counters.get(name).or_else(|| counters.get(format!("nat64_{name}")));
        found.and_then(|it| it.as_u64()).unwrap_or_else(|| panic!("{name} in {value}"))
    }
}

fn end(router: Process) {
    router.signal(Signal::TERM);
    router.wait(PATIENCE).ok();
}

/// Answers each datagram by one of 1440 bytes, which the kernel sends without fragments until it
/// learns that the path is narrower.
const ANSWERS: &str = "\
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('192.0.2.1', 5000))
while True:
    _, peer = s.recvfrom(100)
    try: s.sendto(b'a' * 1440, peer)
    except OSError: s.sendto(b'a' * 1440, peer)
";

/// Asks until an answer arrives.
const ASKS: &str = "\
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.settimeout(1)
for _ in range(20):
    s.sendto(b'q', ('64:ff9b::192.0.2.1', 5000))
    try:
        print(len(s.recv(2000)))
        break
    except TimeoutError: pass
";

/// The link to the host is narrower than that to the server. An answer that is too long for it
/// arrives in fragments, once the server has learnt the path MTU by a translated ICMP error.
#[test]
fn long_answers_find_the_path_mtu() {
    let Some(lab) = Lab::new(1400) else { return };
    let router = lab.start(&[]);
    let answers = lab.server.spawn(&["python3", "-c", ANSWERS]);
    let found = lab.host.run(&["python3", "-c", ASKS]).ok().stdout;
    assert_eq!(found, "1440\n");
    let known = lab.server.run(&["ip", "route", "get", "192.0.2.2"]).ok().stdout;
    assert!(known.contains("mtu 1380"), "{known}");
    drop(answers);
    end(router);
}

#[test]
fn a_file_and_large_packets_arrive() {
    let Some(lab) = Lab::new(1400) else { return };
    let router = lab.start(&[]);
    let folder = Scratch::new();
    let content: String = (0..200_000).map(|n| format!("{n} ")).collect();
    folder.write("file", &content);
    let place = folder.path().to_str().expect("plain");
    let web = lab.server.spawn(&["python3", "-m", "http.server", "80", "--directory", place]);
    wait_for_port(&lab.server, "192.0.2.1", 80);
    let url = "http://[64:ff9b::192.0.2.1]/file";
    let found = lab.host.run(&["curl", "-sf", "-g", "-m", "30", url]).ok().stdout;
    assert_eq!((found.len(), found == content), (content.len(), true));
    // Echo requests that routers may fragment, and one that is too long for that.
    for size in ["0", "56", "1300"] {
        assert!(lab.pings(&["-s", size, "64:ff9b::192.0.2.1"]), "{size} bytes");
    }
    assert_eq!(lab.counter("hosts"), 1);
    assert!(lab.counter("to_v4") > 10 && lab.counter("to_v6") > 10);
    // An unreachable port is reported, and the hop limit by each router.
    let refused = lab.host.run(&["curl", "-s", "-g", "-m", "5", "http://[64:ff9b::192.0.2.1]:81/"]);
    assert_eq!(refused.code(), 7, "{}", refused.stderr);
    assert!(!lab.pings(&["-t", "1", "64:ff9b::192.0.2.1"]));
    assert!(!lab.pings(&["64:ff9b::198.18.0.2"]), "no host is reached by the pool");
    assert!(lab.counter("hairpin") > 0);
    drop(web);
    end(router);
}

#[test]
fn names_with_ipv4_addresses_alone_are_reached() {
    let Some(lab) = Lab::new(1500) else { return };
    let dnsmasq = lab.server.spawn(&[
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--user=root",
        "--pid-file=",
        "--no-resolv",
        "--no-hosts",
        "--bind-interfaces",
        "--interface=e0",
        "--host-record=www.example,192.0.2.1",
        "--host-record=both.example,192.0.2.1,2001:db8:9::9",
        "--cname=alias.example,www.example",
    ]);
    let router = lab.start(&["--dns", "lan,upstream=192.0.2.1,dns64"]);
    let dig = |name: &str| {
        let line = ["dig", "+short", "+tries=3", "+timeout=3", "@2001:db8:1::1", "AAAA", name];
        lab.host.run(&line).stdout
    };
    eventually("dnsmasq", || dig("www.example") == "64:ff9b::c000:201\n");
    assert_eq!(dig("alias.example"), "www.example.\n64:ff9b::c000:201\n");
    assert_eq!(dig("both.example"), "2001:db8:9::9\n");
    assert_eq!(dig("none.example"), "");
    drop(dnsmasq);
    end(router);
}
