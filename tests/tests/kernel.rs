//! `towpath router` with routes of a kernel, and with routing daemons on twins of its ports.
//!
//! ```text
//!   control: daemons on the twins lan, a, b
//!   lan ── 10.1.0.0/24 ── router ── 10.2.0.0/24 ── a
//!                           └────── 10.3.0.0/24 ── b
//! ```
//!
//! Skipped without root. Tests with daemons are skipped without their packages.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use towpath_tests::{Namespace, PATIENCE, Process, Scratch, eventually, towpath};

/// Namespaces of three hosts, of the router and of the daemons.
struct Edge {
    lan: Namespace,
    a: Namespace,
    b: Namespace,
    router: Namespace,
    control: Namespace,
    /// Name of the router for `towpath ip`.
    name: String,
}

fn ip(words: &str) {
    let words: Vec<_> = words.split_whitespace().collect();
    Process::spawn(&words).wait(PATIENCE).ok();
}

fn name(namespace: &Namespace) -> &str {
    namespace.name().expect("root")
}

/// Returns whether a program is installed; prints if not.
fn has(program: &str) -> bool {
    let is_there = Path::new(program).exists();
    if !is_there {
        eprintln!("left out: there is no {program}");
    }
    is_there
}

impl Edge {
    /// Creates the namespaces; None without root.
    fn new() -> Option<Self> {
        let [lan, a, b, router, control] = std::array::from_fn(|_| Namespace::new());
        let Some(unique) = control.name() else {
            eprintln!("left out: needs root");
            return None;
        };
        let unique = unique.replace('-', "_");
        let edge = Self { name: format!("edge_{unique}"), lan, a, b, router, control };
        let router = name(&edge.router);
        for (host, link, n) in [(&edge.lan, "l", 1), (&edge.a, "a", 2), (&edge.b, "b", 3)] {
            let host = name(host);
            ip(&format!(
                "ip link add {link}0 netns {host} type veth peer name {link}1 netns {router}"
            ));
            ip(&format!("ip netns exec {router} sysctl -qw net.ipv6.conf.{link}1.disable_ipv6=1"));
            ip(&format!("ip -n {host} addr add 10.{n}.0.2/24 dev {link}0"));
            ip(&format!("ip -n {host} addr add fd00:{n}::2/64 dev {link}0 nodad"));
            ip(&format!("ip -n {host} link set {link}0 up"));
            ip(&format!("ip -n {router} link set {link}1 up"));
        }
        ip(&format!("ip -n {} route add default via 10.1.0.1", name(&edge.lan)));
        ip(&format!("ip -n {} route add default via fd00:1::1", name(&edge.lan)));
        for (host, n) in [(&edge.a, 2), (&edge.b, 3)] {
            let host = name(host);
            ip(&format!("ip -n {host} addr add 10.9.0.1/32 dev lo"));
            ip(&format!("ip -n {host} addr add fd00:9::1/128 dev lo"));
            ip(&format!("ip -n {host} route add fd00:1::/64 via fd00:{n}::1"));
        }
        Some(edge)
    }

    /// Starts the router with twins of all ports, and waits for its routes.
    fn start(&self) -> Process {
        let towpath = towpath();
        let mut line: Vec<String> = vec![towpath, "router".into(), format!("--name={}", self.name)];
        for (port, link, n) in [("lan", "l1", 1), ("a", "a1", 2), ("b", "b1", 3)] {
            line.push(format!("--port={port}=packet:{link},10.{n}.0.1/24,fd00:{n}::1/64"));
            line.push(format!("--bypass={port}={port}@{}", name(&self.control)));
        }
        line.push(format!("--sync={}", name(&self.control)));
        line.push("--route=10.8.0.0/16@10.2.0.2".into());
        let line: Vec<_> = line.iter().map(String::as_str).collect();
        let process = self.router.spawn(&line);
        eventually("the router answers", || self.pings("10.1.0.1"));
        eventually("routes are taken over", || process.stderr().contains("routes of the kernel"));
        process
    }

    fn control(&self, words: &str) {
        let (command, words) = words.split_once(' ').expect("a command");
        ip(&format!("{command} -n {} {words}", name(&self.control)));
    }

    /// Returns the router's routes as `towpath ip` prints them with these words.
    fn routes(&self, words: &str) -> String {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "ip", "--name", &self.name];
        line.extend(words.split_whitespace());
        let shown = Process::spawn(&line).wait(PATIENCE).stdout;
        shown.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Waits until `towpath ip` prints this.
    fn shows(&self, words: &str, expected: &str) {
        let mut last = String::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            last = self.routes(words);
            if last == expected {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{words}: expected {expected:?}, last {last:?}");
    }

    /// Returns the number of packets that a port has sent.
    fn sent_by(&self, port: &str) -> u64 {
        let shown = self.routes(&format!("-s link show dev {port}"));
        let (_, sent) = shown.split_once("TX:").expect("counters");
        let mut numbers = sent.split(' ').filter_map(|word| word.parse().ok());
        // The bytes come first.
        numbers.nth(1).expect("packets")
    }

    fn pings(&self, to: &str) -> bool {
        self.lan.run(&["ping", "-c1", "-W1", to]).success()
    }
}

#[test]
fn routes_of_a_namespace_are_taken_over_and_withdrawn() {
    let Some(edge) = Edge::new() else { return };
    let router = edge.start();
    edge.control("ip route add 10.9.0.0/24 via 10.2.0.2 proto bgp metric 20");
    edge.shows("route show 10.9.0.0/24", "10.9.0.0/24 via 10.2.0.2 dev a proto bgp metric 20");
    eventually("packets follow the route", || {
        ip(&format!("ip -n {} route replace 10.1.0.0/24 via 10.2.0.1", name(&edge.a)));
        edge.pings("10.9.0.1")
    });
    edge.control(
        "ip route replace 10.9.0.0/24 proto bgp metric 20 \
                  nexthop via 10.2.0.2 weight 1 nexthop via 10.3.0.2 weight 3",
    );
    let both = "10.9.0.0/24 proto bgp metric 20 nexthop via 10.2.0.2 dev a weight 1 \
                nexthop via 10.3.0.2 dev b weight 3";
    edge.shows("route show 10.9.0.0/24", both);
    edge.control("ip route replace unreachable 10.9.0.0/24 metric 20");
    edge.shows("route show 10.9.0.0/24", "unreachable 10.9.0.0/24 proto kernel-sync metric 20");
    edge.control("ip route del unreachable 10.9.0.0/24 metric 20");
    edge.shows("route show 10.9.0.0/24", "");

    edge.control("ip -6 route add fd00:9::/64 via fd00:2::2 proto ospf");
    edge.control("ip -6 route append fd00:9::/64 via fd00:3::2 proto ospf");
    let both = "fd00:9::/64 proto ospf metric 1024 nexthop via fd00:2::2 dev a weight 1 \
                nexthop via fd00:3::2 dev b weight 1";
    let shown = |edge: &Edge| edge.routes("-6 route show fd00:9::/64");
    eventually("both next hops", || shown(&edge).replace(" pref medium", "") == both);
    eventually("packets follow the IPv6 route", || edge.pings("fd00:9::1"));
    edge.control("ip -6 route del fd00:9::/64 via fd00:2::2");
    eventually("one next hop", || shown(&edge).starts_with("fd00:9::/64 via fd00:3::2 dev b"));

    // The kernel reports neither routes that end with their interface, nor those of next-hop
    // objects that change.
    edge.control("ip nexthop add id 7 via 10.2.0.2 dev a");
    edge.control("ip route add 10.9.0.0/24 nhid 7 proto zebra");
    edge.shows("route show 10.9.0.0/24", "10.9.0.0/24 via 10.2.0.2 dev a proto zebra");
    edge.control("ip nexthop replace id 7 via 10.3.0.2 dev b");
    edge.shows("route show 10.9.0.0/24", "10.9.0.0/24 via 10.3.0.2 dev b proto zebra");
    edge.control("ip link set dev b down");
    edge.shows("route show 10.9.0.0/24", "");
    let own = edge.routes("route show 10.8.0.0/16");
    assert_eq!(own, "10.8.0.0/16 via 10.2.0.2 dev a", "routes of the router itself stay");
    router.stop().ok();
}

#[test]
fn addresses_and_permanent_neighbors_are_taken_over() {
    let Some(edge) = Edge::new() else { return };
    let router = edge.start();
    edge.control("ip addr add 10.255.0.1/32 dev lo");
    edge.control("ip addr add 10.4.0.1/24 dev a");
    edge.control("ip neigh add 10.2.0.77 lladdr 02:00:00:00:00:77 dev a nud permanent");
    eventually("addresses", || edge.pings("10.255.0.1") && edge.pings("10.4.0.1"));
    eventually("a neighbour", || edge.routes("neigh").contains("10.2.0.77 dev a lladdr 02:00:"));
    edge.control("ip addr del 10.255.0.1/32 dev lo");
    edge.control("ip addr del 10.4.0.1/24 dev a");
    edge.control("ip neigh del 10.2.0.77 dev a");
    eventually("no addresses", || !edge.routes("addr").contains("10.4.0.1"));
    eventually("no neighbour", || !edge.routes("neigh").contains("10.2.0.77"));
    assert!(!edge.routes("addr").contains("10.255.0.1"));
    assert!(edge.routes("addr").contains("10.2.0.1/24"), "addresses of the router itself stay");
    router.stop().ok();
}

/// Prints the TTL and payload of a packet of OSPF to the group of its routers.
const RECEIVE: &str = "
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 89)
member = socket.inet_aton('224.0.0.5') + struct.pack('=Ii', 0, socket.if_nametoindex(sys.argv[1]))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
s.settimeout(20)
print('ready', flush=True)
p = s.recv(2000)
print(p[8], p[20:].decode())";

/// Sends such a packet until it is killed.
const SEND: &str = "
import socket, struct, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 89)
out = struct.pack('=IIi', 0, 0, socket.if_nametoindex(sys.argv[1]))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, out)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
while True:
    s.sendto(b'hello', ('224.0.0.5', 0))
    time.sleep(.1)";

#[test]
fn packets_of_routing_protocols_pass_between_port_and_twin() {
    let Some(edge) = Edge::new() else { return };
    let router = edge.start();
    for (from, out, to, into) in
        [(&edge.a, "a0", &edge.control, "a"), (&edge.control, "a", &edge.a, "a0")]
    {
        let receiver = to.spawn(&["python3", "-c", RECEIVE, into]);
        eventually("a socket", || receiver.stdout().starts_with("ready"));
        let _sender = from.spawn(&["python3", "-c", SEND, out]);
        assert_eq!(receiver.wait(PATIENCE).ok().stdout, "ready\n1 hello\n", "{out} to {into}");
    }
    // The kernel of the daemons reaches neighbours, whose requests the router answers.
    let echo = "import socket\ns=socket.create_server(('10.2.0.2',179))\n\
                print('ready',flush=True)\nc,_=s.accept()\nprint(c.getpeername()[0])";
    let server = edge.a.spawn(&["python3", "-c", echo]);
    eventually("a listener", || server.stdout().starts_with("ready"));
    let connect = "import socket; socket.create_connection(('10.2.0.2',179),9)";
    edge.control.run(&["python3", "-c", connect]).ok();
    assert_eq!(server.wait(PATIENCE).ok().stdout, "ready\n10.2.0.1\n");
    router.stop().ok();
}

#[test]
fn twins_end_with_the_router_also_if_it_is_killed() {
    let Some(edge) = Edge::new() else { return };
    let twin = || edge.control.run(&["ip", "link", "show", "dev", "a"]).success();
    assert!(!twin());
    let router = edge.start();
    assert!(twin());
    ip(&format!("ip -n {} link set a0 down", name(&edge.a)));
    eventually("the twin follows the carrier", || {
        edge.control.run(&["ip", "link", "show", "dev", "a"]).ok().stdout.contains("NO-CARRIER")
    });
    router.stop().ok();
    assert!(!twin());
    ip(&format!("ip -n {} link set a0 up", name(&edge.a)));
    let router = edge.start();
    router.signal(Signal::KILL);
    router.wait(PATIENCE);
    eventually("the twin is gone", || !twin());
}

/// Returns a configuration of BIRD with OSPF on these interfaces, and networks of `lo` and `lan`.
fn ospf(id: &str, interfaces: &str) -> String {
    format!(
        "router id {id};
         protocol device {{ scan time 1; }}
         protocol direct {{ ipv4; interface \"lo\", \"lan\"; }}
         protocol kernel {{ ipv4 {{ export where source != RTS_DEVICE; }}; merge paths on; }}
         protocol ospf v2 {{
           ecmp on;
           merge external on;
           ipv4 {{ import all; export where source = RTS_DEVICE; }};
           area 0 {{ interface {interfaces} {{ hello 1; dead 4; wait 2; type bcast; }}; }};
         }}"
    )
}

/// Starts BIRD in a namespace.
fn bird(namespace: &Namespace, folder: &Scratch, file: &str, config: &str) -> Process {
    let config = folder.write(file, config);
    let control = format!("{config}.ctl");
    namespace.spawn(&["/usr/sbin/bird", "-f", "-c", &config, "-s", &control])
}

/// Starts OSPF for the hosts `a` and `b`, which both have 10.9.0.1.
fn ospf_of_hosts(edge: &Edge, folder: &Scratch) -> [Process; 2] {
    [
        bird(&edge.a, folder, "a.conf", &ospf("10.255.0.2", "\"a0\"")),
        bird(&edge.b, folder, "b.conf", &ospf("10.255.0.3", "\"b0\"")),
    ]
}

/// Waits for two equal routes to 10.9.0.1, and checks that packets follow them, also after a link
/// has failed.
fn follows_ospf(edge: &Edge, protocol: &str) {
    let both = format!(
        "10.9.0.1 proto {protocol} nexthop via 10.2.0.2 dev a weight 1 \
         nexthop via 10.3.0.2 dev b weight 1"
    );
    edge.shows("route show 10.9.0.1", &both);
    eventually("a route back", || edge.pings("10.9.0.1"));
    let before = [edge.sent_by("a"), edge.sent_by("b")];
    let lan = name(&edge.lan);
    for n in 10..50 {
        let source = format!("10.1.0.{n}");
        ip(&format!("ip -n {lan} addr add {source}/24 dev l0"));
        // Both hosts learn their routes back, but not at the same time.
        eventually("an answer", || {
            edge.lan.run(&["ping", "-c1", "-W1", "-I", &source, "10.9.0.1"]).success()
        });
    }
    let sent = [edge.sent_by("a") - before[0], edge.sent_by("b") - before[1]];
    // Three or fewer of 40 flows take a next hop once in 50 million runs.
    assert!(sent.iter().all(|count| *count >= 4), "both next hops are used: {sent:?}");

    ip(&format!("ip -n {} link set a0 down", name(&edge.a)));
    let one = format!("10.9.0.1 via 10.3.0.2 dev b proto {protocol}");
    edge.shows("route show 10.9.0.1", &one);
    eventually("the remaining next hop is used", || edge.pings("10.9.0.1"));
}

#[test]
fn ospf_of_bird_spreads_flows_and_withdraws_routes_of_a_failed_link() {
    let Some(edge) = Edge::new() else { return };
    if !has("/usr/sbin/bird") {
        return;
    }
    let folder = Scratch::new();
    let router = edge.start();
    let hosts = ospf_of_hosts(&edge, &folder);
    let config = ospf("10.255.0.1", "\"a\", \"b\"");
    let control = bird(&edge.control, &folder, "control.conf", &config);
    follows_ospf(&edge, "bird metric 32");
    drop((hosts, control));
    router.stop().ok();
}

/// Returns a configuration of BIRD with a session of BGP, and more protocols.
fn bgp(local: &str, neighbor: &str, protocols: &str) -> String {
    format!(
        "protocol device {{ scan time 1; }}
         protocol bgp {{
           local {local}; neighbor {neighbor}; hold time 240; bfd on;
           connect delay time 1; connect retry time 1;
           ipv4 {{ import all; export all; }};
         }}
         protocol bfd {{ interface \"*\" {{ interval 100 ms; multiplier 5; }}; }}
         {protocols}"
    )
}

const KERNEL: &str = "protocol kernel { ipv4 { export all; }; }";

#[test]
fn bfd_of_bird_withdraws_routes_of_a_silent_router() {
    let Some(edge) = Edge::new() else { return };
    if !has("/usr/sbin/bird") {
        return;
    }
    let folder = Scratch::new();
    let router = edge.start();
    let own = "protocol static { ipv4; route 10.9.0.0/24 blackhole; }";
    let a = bgp("10.2.0.2 as 65002", "10.2.0.1 as 65001", own);
    let control = bgp("10.2.0.1 as 65001", "10.2.0.2 as 65002", KERNEL);
    let a = bird(&edge.a, &folder, "a.conf", &a);
    let control = bird(&edge.control, &folder, "control.conf", &control);
    let learnt = "10.9.0.0/24 via 10.2.0.2 dev a proto bird metric 32";
    edge.shows("route show 10.9.0.0/24", learnt);
    let is_up = |namespace: &Namespace| {
        let line = format!(
            "/usr/sbin/birdc -s {}/control.conf.ctl show bfd sessions",
            folder.path().display()
        );
        namespace.shell(&line).stdout.contains("Up")
    };
    eventually("a session of BFD", || is_up(&edge.control));
    // BGP alone would wait for its hold time of 240 s, longer than `eventually`.
    a.signal(Signal::STOP);
    edge.shows("route show 10.9.0.0/24", "");
    a.signal(Signal::CONT);
    drop((a, control));
    router.stop().ok();
}

const OSPF_OF_FRR: &str = "
interface a
 ip ospf hello-interval 1
 ip ospf dead-interval 4
interface b
 ip ospf hello-interval 1
 ip ospf dead-interval 4
router ospf
 ospf router-id 10.255.0.1
 redistribute connected
 network 10.2.0.0/24 area 0
 network 10.3.0.0/24 area 0
";

#[test]
fn ospf_of_frr_spreads_flows_and_withdraws_routes_of_a_failed_link() {
    let Some(edge) = Edge::new() else { return };
    if !has("/usr/sbin/bird") || !has("/usr/lib/frr/ospfd") {
        return;
    }
    let folder = Scratch::new();
    let router = edge.start();
    let hosts = ospf_of_hosts(&edge, &folder);
    let config = folder.write("frr.conf", OSPF_OF_FRR);
    // The daemons have a user of their own.
    let place = folder.path().join("run");
    let place = place.to_str().expect("plain");
    Process::spawn(&["install", "-d", "-o", "frr", "-g", "frr", place]).wait(PATIENCE).ok();
    let file = |name: &str| format!("{place}/{name}");
    let start = |daemon: &str, config: &str| {
        let (program, pid) = (format!("/usr/lib/frr/{daemon}"), file(&format!("{daemon}.pid")));
        let socket = file("zserv.api");
        let line = [&program, "-f", config, "-i", &pid, "-z", &socket, "--vty_socket", place];
        edge.control.spawn(&[&line[..], &["-P", "0"]].concat())
    };
    let daemons = [start("zebra", "/dev/null"), start("ospfd", &config)];
    follows_ospf(&edge, "ospf metric 20");
    drop((hosts, daemons));
    router.stop().ok();
}

mod nightly {
    use super::*;

    const ROUTES: usize = 100_000;

    /// Returns the networks of the routes.
    fn networks() -> impl Iterator<Item = String> {
        (0..ROUTES).map(|n| format!("{}.{}.{}.0/24", 11 + n / 65_536, n / 256 % 256, n % 256))
    }

    /// Returns the number of the router's routes of a protocol.
    fn count(edge: &Edge, protocol: &str) -> usize {
        edge.routes(&format!("route show proto {protocol}")).matches(" dev a").count()
    }

    #[test]
    fn a_hundred_thousand_routes_are_taken_over_in_seconds() {
        let Some(edge) = Edge::new() else { return };
        let folder = Scratch::new();
        let batch = |verb: &str| {
            let line = |to| format!("route {verb} {to} via 10.2.0.2 proto static metric 5\n");
            folder.write(verb, networks().map(line).collect::<String>())
        };
        let (add, delete) = (batch("add"), batch("del"));
        let apply = |file: &str| edge.control.run(&["ip", "-batch", file]).ok();
        // Lost changes: the router does not read while the kernel has too many for its buffer.
        let router = edge.start();
        router.signal(Signal::STOP);
        apply(&add);
        router.signal(Signal::CONT);
        let started = Instant::now();
        eventually("all routes", || count(&edge, "static") == ROUTES);
        eprintln!("{ROUTES} routes after an overrun: {:?}", started.elapsed());
        apply(&delete);
        let started = Instant::now();
        eventually("no routes", || count(&edge, "static") == 0);
        eprintln!("{ROUTES} routes withdrawn: {:?} after the kernel", started.elapsed());

        // The buffer has announcements whose withdrawals are lost.
        router.signal(Signal::STOP);
        apply(&add);
        apply(&delete);
        edge.control("ip route add 10.7.1.0/24 via 10.2.0.2 proto bgp metric 20");
        router.signal(Signal::CONT);
        edge.shows("route show 10.7.1.0/24", "10.7.1.0/24 via 10.2.0.2 dev a proto bgp metric 20");
        edge.control("ip route add 10.7.2.0/24 via 10.2.0.2 proto bgp metric 20");
        edge.shows("route show 10.7.2.0/24", "10.7.2.0/24 via 10.2.0.2 dev a proto bgp metric 20");
        assert_eq!(count(&edge, "static"), 0, "withdrawn routes do not come back");
        router.stop().ok();
    }

    #[test]
    fn a_hundred_thousand_routes_are_learnt_from_bird_by_bgp() {
        let Some(edge) = Edge::new() else { return };
        if !has("/usr/sbin/bird") {
            return;
        }
        let folder = Scratch::new();
        let router = edge.start();
        let route = |to| format!("route {to} blackhole;\n");
        let all = networks().map(route).collect::<String>();
        let all = format!("protocol static {{ ipv4; {all} }}");
        let a = bgp("10.2.0.2 as 65002", "10.2.0.1 as 65001", &all);
        let control = bgp("10.2.0.1 as 65001", "10.2.0.2 as 65002", KERNEL);
        let started = Instant::now();
        let daemons = [
            bird(&edge.a, &folder, "a.conf", &a),
            bird(&edge.control, &folder, "control.conf", &control),
        ];
        eventually("all routes", || count(&edge, "bird") == ROUTES);
        eprintln!("{ROUTES} routes by BGP: {:?}", started.elapsed());
        drop(daemons);
        router.stop().ok();
    }
}
