//! `towpath router` between two networks of the kernel: `left` and `right` are hosts, and towpath
//! is on the other ends of their two veth pairs. Skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

mod config;
mod control;
mod days;
mod interfaces;
mod links;
#[path = "router/nat.rs"]
mod nat;
mod redirects;
#[path = "router/verdicts.rs"]
mod verdicts;

use rustix::process::Signal;
use towpath_tests::{Namespace, PATIENCE, Process, Scratch, eventually, towpath, wait_for_port};

/// Namespaces of both hosts and of the router. The link to `right` has a separate MTU.
struct Lab {
    left: Namespace,
    router: Namespace,
    right: Namespace,
}

const PORTS: [&str; 4] = [
    "--port",
    "lan=packet:l1,10.1.0.1/24,fd00:1::1/64",
    "--port",
    "wan=packet:w1,10.2.0.1/24,fd00:2::1/64",
];

/// Routes of the router that the kernel as oracle has as well.
const DEAD_ENDS: [&str; 8] = [
    "--route",
    "unreachable 10.8.0.0/16",
    "--route",
    "prohibit 10.7.0.0/16",
    "--route",
    "prohibit fd00:7::/32",
    "--route",
    "blackhole 10.6.0.0/16",
];

/// Sends crafted packets from `left`. Prints for each the packets that arrive at `right`, and the
/// ICMP errors. A datagram after each packet marks the end of its effects.
const PROBES: &str = include_str!("router/probes.py");

fn ip(words: &str) {
    let words: Vec<_> = words.split_whitespace().collect();
    Process::spawn(&words).wait(PATIENCE).ok();
}

impl Lab {
    /// Creates the namespaces; None without root.
    fn new(wan_mtu: u32) -> Option<Self> {
        let lab =
            Self { left: Namespace::new(), router: Namespace::new(), right: Namespace::new() };
        let names = (lab.left.name(), lab.router.name(), lab.right.name());
        let (Some(left), Some(router), Some(right)) = names else {
            eprintln!("left out: needs root");
            return None;
        };
        ip(&format!("ip link add l0 netns {left} type veth peer name l1 netns {router}"));
        ip(&format!(
            "ip link add w0 mtu {wan_mtu} netns {right} type veth \
             peer name w1 mtu {wan_mtu} netns {router}"
        ));
        for (host, dev, n) in [(left, "l0", 1), (right, "w0", 2)] {
            ip(&format!("ip -n {host} addr add 10.{n}.0.2/24 dev {dev}"));
            ip(&format!("ip -n {host} addr add fd00:{n}::2/64 dev {dev} nodad"));
            ip(&format!("ip -n {host} link set {dev} up"));
            ip(&format!("ip -n {host} route add default via 10.{n}.0.1"));
            ip(&format!("ip -n {host} route add default via fd00:{n}::1"));
        }
        for dev in ["l1", "w1"] {
            // Disable IPv6, so that the kernel of the router's namespace does not answer.
            ip(&format!("ip netns exec {router} sysctl -qw net.ipv6.conf.{dev}.disable_ipv6=1"));
            ip(&format!("ip -n {router} link set {dev} up"));
            eventually("a carrier", || {
                !lab.router.run(&["ip", "link", "show", dev]).ok().stdout.contains("NO-CARRIER")
            });
        }
        Some(lab)
    }

    /// Starts the router, and waits until both hosts reach it.
    fn start(&self, options: &[&str]) -> Process {
        self.start_with(&PORTS, options)
    }

    fn start_with(&self, ports: &[&str], options: &[&str]) -> Process {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "router"];
        line.extend(ports);
        line.extend(options);
        let process = self.router.spawn(&line);
        eventually("the router answers", || {
            let answers = |to| self.left.run(&["ping", "-c1", "-W1", to]).success();
            answers("10.1.0.1") && answers("fd00:1::1")
        });
        process
    }

    /// Configures the kernel as the router, with the same addresses and routes.
    fn start_kernel(&self) {
        let name = self.router.name().expect("root");
        let exec = |line: &str| ip(&format!("ip netns exec {name} {line}"));
        for setting in [
            "net.ipv6.conf.l1.disable_ipv6=0",
            "net.ipv6.conf.w1.disable_ipv6=0",
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.ipv4.icmp_ratelimit=0",
            "net.ipv6.icmp.ratelimit=0",
            "net.ipv4.conf.all.accept_source_route=0",
        ] {
            exec(&format!("sysctl -qw {setting}"));
        }
        for (dev, n) in [("l1", 1), ("w1", 2)] {
            exec(&format!("ip addr add 10.{n}.0.1/24 dev {dev}"));
            exec(&format!("ip addr add fd00:{n}::1/64 dev {dev} nodad"));
        }
        exec("ip route add unreachable 10.8.0.0/16");
        exec("ip route add prohibit 10.7.0.0/16");
        exec("ip route add prohibit fd00:7::/32");
        exec("ip route add blackhole 10.6.0.0/16");
    }

    fn pings(&self, to: &str) -> bool {
        self.left.run(&["ping", "-c1", "-W2", to]).success()
    }

    /// Returns the outcomes of the probes, one per line.
    fn probes(&self) -> Vec<String> {
        let left = self.left.name().expect("root");
        let right = self.right.name().expect("root");
        // Use several sources, because the kernel reports a missing route at most once per second
        // to a host.
        for src in ["10.1.0.11", "10.1.0.12", "10.1.0.13"] {
            ip(&format!("ip -n {left} addr add {src}/24 dev l0"));
            let ping = ["ping", "-c1", "-W2", "-I", src, "10.2.0.2"];
            eventually("the other host answers", || self.left.run(&ping).success());
        }
        eventually("the other host answers", || self.pings("fd00:2::2"));
        let output = Process::spawn(&["python3", "-c", PROBES, left, right]).wait(PATIENCE).ok();
        output.stdout.lines().map(str::to_owned).collect()
    }
}

fn counter(stats: &str, layer: &str, name: &str) -> u64 {
    let line = stats.lines().find(|line| line.starts_with('{')).expect("JSON");
    let all: serde_json::Value = serde_json::from_str(line).expect("JSON");
    all[layer][name].as_u64().unwrap_or_else(|| panic!("{layer}.{name} in {line}"))
}

fn end(router: Process) -> String {
    router.signal(Signal::TERM);
    router.wait(PATIENCE).ok().stderr
}

#[test]
fn hosts_reach_each_other() {
    let Some(lab) = Lab::new(1500) else { return };
    let stats = transfers(&lab, &PORTS);
    // Segments are forwarded without splitting: packets of 1500 bytes would be three times as many.
    let [packets, bytes] =
        ["forwarded", "forwarded_bytes"].map(|name| counter(&stats, "net", name));
    assert!(bytes > 128 << 20 && packets < bytes / 4500, "{packets} packets, {bytes} bytes");
    assert!(counter(&stats, "port.lan", "tx_frames") > 0, "{stats}");
}

#[test]
fn ports_past_the_kernel_forward() {
    let Some(lab) = Lab::new(1500) else { return };
    let ports = PORTS.map(|word| word.replace("packet:", "xdp:"));
    let stats = transfers(&lab, &ports.each_ref().map(String::as_str));
    assert!(counter(&stats, "net", "forwarded_bytes") > 128 << 20, "{stats}");
    assert_eq!(counter(&stats, "port.lan", "in_driver"), 1, "{stats}");
}

/// Runs pings, traceroute, curl and iperf3 between both hosts. Returns the router's counters.
fn transfers(lab: &Lab, ports: &[&str]) -> String {
    let router = lab.start_with(ports, &["--stats=json"]);
    for (to, hop) in [("10.2.0.2", "10.1.0.1"), ("fd00:2::2", "fd00:1::1")] {
        assert!(lab.pings(to), "{to}");
        let route = lab.left.run(&["traceroute", "-n", "-q1", to]).ok().stdout;
        let hops: Vec<_> =
            route.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(hops, [hop, to]);
    }
    let folder = Scratch::new();
    let file = folder.big("file", 3 << 20);
    let directory = folder.path().to_str().expect("plain").to_owned();
    let _server = lab.right.spawn(&[
        "python3",
        "-m",
        "http.server",
        "8080",
        "--bind",
        "::",
        "--directory",
        &directory,
    ]);
    let got = folder.file("got");
    for host in ["10.2.0.2", "[fd00:2::2]"] {
        wait_for_port(&lab.left, host.trim_matches(['[', ']']), 8080);
        let url = format!("http://{host}:8080/file");
        lab.left.run(&["curl", "-sSf", "-m", "50", "-o", &got, &url]).ok();
        assert!(std::fs::read(&got).ok() == std::fs::read(&file).ok(), "{url}");
    }
    for (to, options) in [("10.2.0.2", "-n64M"), ("fd00:2::2", "-R")] {
        let server = lab.right.spawn(&["iperf3", "-s", "-1", "--forceflush"]);
        eventually("a server", || server.stdout().contains("listening"));
        lab.left.run(&["iperf3", "-c", to, options, "-n64M"]).ok();
    }
    end(router)
}

#[test]
fn path_mtus_are_told() {
    let Some(lab) = Lab::new(1300) else { return };
    let router = lab.start(&["--stats=json"]);
    // With DF clear the router fragments packets, as long as the host knows no path MTU.
    lab.left.run(&["ping", "-c1", "-W5", "-M", "dont", "-s", "4000", "10.2.0.2"]).ok();
    for to in ["10.2.0.2", "fd00:2::2"] {
        let output = lab.left.run(&["tracepath", "-n", to]).ok().stdout;
        assert!(output.contains("Resume: pmtu 1300 hops 2 back 2"), "{output}");
    }
    let big = lab.left.run(&["ping", "-c1", "-W2", "-M", "do", "-s", "1400", "10.2.0.2"]);
    // The kernel knows the path MTU now, and fails locally.
    assert!(!big.success() && big.stderr.contains("mtu=1300"), "{}", big.stderr);
    let stats = end(router);
    assert!(counter(&stats, "drops", "transit_too_big") >= 2, "{stats}");
    assert!(counter(&stats, "net", "fragmented") >= 1, "{stats}");
}

/// Compares with the kernel as the router: equal packets in, equal packets out.
#[test]
fn the_kernel_as_router_does_the_same() {
    let Some(oracle) = Lab::new(1300) else { return };
    oracle.start_kernel();
    let wanted = oracle.probes();
    drop(oracle);
    assert!(wanted.len() > 20, "{wanted:#?}");
    let found = probes_with(&DEAD_ENDS);
    for (wanted, found) in wanted.iter().zip(&found) {
        assert_eq!(found, wanted, "the kernel's is the second one");
    }
    assert_eq!(found.len(), wanted.len());
    // A datagram that marks the end of a probe may overtake it, because each flow has its thread.
    let found = probes_with(&[&["--shards", "2"], &DEAD_ENDS[..]].concat());
    assert_eq!(packets(&found), packets(&wanted), "the kernel's are the second ones");
}

/// Returns the outcomes of the probes with a router that has these options.
fn probes_with(options: &[&str]) -> Vec<String> {
    let lab = Lab::new(1300).expect("it was there before");
    let router = lab.start(options);
    let found = lab.probes();
    end(router);
    found
}

/// Returns the packets and errors of all probes, sorted.
fn packets(probes: &[String]) -> Vec<&str> {
    let mut packets: Vec<_> =
        probes.iter().flat_map(|probe| probe.split('\'').skip(1).step_by(2)).collect();
    packets.sort_unstable();
    packets
}

#[test]
fn rules_accept_drop_and_reject() {
    let Some(lab) = Lab::new(1500) else { return };
    let folder = Scratch::new();
    let rules = folder.write(
        "rules.txt",
        "# From the lan to one port, and echo requests; the rest is refused.
         acl add id 10 in lan out wan proto tcp dport 8080 action accept
         acl add id 20 in lan proto icmp icmp 8 action accept
         acl add id 30 in wan proto tcp flags syn,!ack action drop
         acl add id 40 in wan action accept
         acl add id 50 in lan out wan proto tcp action reject log rate 5/s
         acl add id 60 in lan out wan proto udp action reject
         acl add id 70 in lan dst fd00:2::/64 action drop",
    );
    let router = lab.start(&["--stats=json", "--acl", &rules]);
    let script = "
import socket, threading
for port in (8080, 8081):
    listener = socket.create_server(('10.2.0.2', port))
    threading.Thread(target=lambda l=listener: [l.accept() for _ in range(9)]).start()
";
    let _server = lab.right.spawn(&["python3", "-c", script]);
    wait_for_port(&lab.left, "10.2.0.2", 8080);
    let attempt = |kind: &str, port: u16| {
        let script = format!(
            "
import socket
s = socket.socket(socket.AF_INET, socket.{kind}); s.settimeout(20)
try:
    s.connect(('10.2.0.2', {port})); print('connected')
    s.send(b'x'); s.type == socket.SOCK_DGRAM and s.recv(9)
except OSError as error: print(type(error).__name__, error.errno)
"
        );
        lab.left.run(&["python3", "-c", &script]).ok().stdout
    };
    assert_eq!(attempt("SOCK_STREAM", 8080), "connected\n");
    assert_eq!(attempt("SOCK_STREAM", 8081), "ConnectionRefusedError 111\n");
    // "Communication administratively prohibited" becomes EHOSTUNREACH.
    assert_eq!(attempt("SOCK_DGRAM", 5300), "connected\nOSError 113\n");
    assert!(lab.pings("10.2.0.2"));
    assert!(!lab.pings("fd00:2::2"));
    // Connections from the WAN are dropped, and pings pass.
    let back = "import socket; s = socket.socket(); s.settimeout(1); s.connect(('10.1.0.2', 22))";
    let refused = lab.right.run(&["python3", "-c", back]);
    assert!(refused.stderr.contains("timed out") || refused.stderr.contains("Timeout"));
    lab.right.run(&["ping", "-c1", "-W5", "10.1.0.2"]).ok();
    let stats = end(router);
    let hits = |name: &str| counter(&stats, "rules", &format!("{name}.packets"));
    assert!(hits("10.accept") > 0 && hits("20.accept") > 0 && hits("40.accept") > 0, "{stats}");
    assert!(hits("30.drop") > 0 && hits("70.drop") > 0, "{stats}");
    assert_eq!((hits("50.reject"), hits("60.reject")), (1, 1), "{stats}");
    assert!(stats.contains("rule 50 reject forward in lan out wan: 10.1.0.2:"), "{stats}");
}

/// Returns the state of a namespace that a router might change.
fn state(namespace: &Namespace) -> String {
    let line = "ip -d -o link | sed 's/promiscuity [0-9]*//; s/allmulti [0-9]*//'; ip -o addr; \
                ip route show table all; ip -6 route show table all; ip rule; \
                cat /proc/net/packet | wc -l; \
                ip -d -j link | grep -o '\"promiscuity\":[0-9]*'; \
                sysctl -a 2>/dev/null | grep -E 'forward|rp_filter'";
    namespace.shell(line).ok().stdout
}

#[test]
fn nothing_is_left_and_nothing_is_changed() {
    let Some(lab) = Lab::new(1500) else { return };
    let before = state(&lab.router);
    for signal in [Signal::TERM, Signal::KILL] {
        let router = lab.start(&["--port", "tap=tap:twr,10.3.0.1/24"]);
        assert_ne!(state(&lab.router), before, "the state sees a running router");
        router.signal(signal);
        router.wait(PATIENCE);
        eventually("all is as before", || state(&lab.router) == before);
    }
}

/// The kernel of the router's namespace is a host on the other end of a TAP device.
#[test]
fn a_tap_device_is_a_port() {
    let Some(lab) = Lab::new(1500) else { return };
    let router = lab.start(&["--port", "here=tap:twr,10.3.0.1/24"]);
    let name = lab.router.name().expect("root");
    ip(&format!("ip -n {name} addr add 10.3.0.2/24 dev twr"));
    ip(&format!("ip -n {name} route add 10.1.0.0/24 via 10.3.0.1"));
    lab.router.run(&["ping", "-c1", "-W5", "10.1.0.2"]).ok();
    assert!(lab.pings("10.3.0.2"));
    end(router);
}

#[test]
fn mistakes_are_named() {
    let Some(lab) = Lab::new(1500) else { return };
    let folder = Scratch::new();
    let rules = folder.write("rules.txt", "acl add id 1 in lam action drop\n");
    let typo = folder.write("typo.txt", "\nacl add id 1 dprot 80 action drop\n");
    let towpath = towpath();
    let attempt = |options: &[&str]| {
        let line = [&[towpath.as_str(), "router"][..], options].concat();
        let output = lab.router.run(&line);
        (output.code(), output.stderr + &output.stdout)
    };
    let name = lab.router.name().expect("root");
    ip(&format!("ip -n {name} addr add 10.9.0.1/24 dev l1"));
    let lan = ["--port", "lan=packet:l1,10.1.0.1/24"];
    let with = |more: &[&'static str]| [&lan[..], more].concat();
    let cases = [
        (vec![], 2, "--port"),
        (vec!["--port", "lan=l1,10.1.0.1/24"], 2, "expected NAME=packet:INTERFACE"),
        (vec!["--port", "lan=packet:nil,10.1.0.1/24"], 125, "port lan: there is no interface"),
        (vec!["--port", "lan=packet:l1,10.9.0.1/24"], 2, "an address of this host itself, on l1"),
        (with(&["--route", "10.5.0.0/16@10.4.0.1"]), 2, "no port is in the network of the next"),
        (with(&["--route", "10.5.0.1/16@10.1.0.9"]), 2, "give 10.5.0.0/16"),
        (with(&["--acl", "/nowhere/at/all"]), 2, "/nowhere/at/all: No such file"),
        (with(&["--neighbors", "0"]), 2, "--neighbors"),
        (with(&["--check"]), 0, "in order: lan 10.1.0.1/24\n"),
        (
            vec!["--check", "--port", "lan=packet:nil,10.1.0.1/24"],
            0,
            "in order: lan 10.1.0.1/24; not on this host now: nil\n",
        ),
    ];
    for (options, code, words) in cases {
        let (found, said) = attempt(&options);
        assert_eq!(found, code, "{options:?}: {said}");
        assert!(said.contains(words), "{options:?}: {said}");
    }
    // Errors in a file have their line and column.
    let office = "routes = [\n'10.5.0.0/16@10.1.0.9',\n'10.6.0.0/16@10.4.0.1']\n\
        [[port]]\nname = 'lan'\ndevice = 'packet:l1'\naddresses = ['10.1.0.1/24']\n";
    let again = "\n[[port]]\nname = 'lan'\ndevice = 'packet:l2'\naddresses = ['10.2.0.1/24']\n";
    let twice = again.replacen("lan", "dmz", 1).replace("10.2", "10.1");
    let over = again.replacen("lan", "office", 1).replace("packet:l2", "vlan:lam.3");
    let changed = office.replace("10.4.0.1", "10.1.0.255");
    let own = office.replace("10.4.0.1", "10.1.0.8");
    for (text, words) in [
        (office.to_owned(), "line 3, column 1: no port is in the network of the next hop 10.4.0.1"),
        (changed, "line 3, column 1: the next hop 10.1.0.255 of the route to 10.6.0.0/16 is"),
        (own.replace("10.6", "10.5"), "line 3, column 1: there are two routes to 10.5.0.0/16"),
        (own.clone() + again, "line 9, column 1: two ports are called \"lan\""),
        (own.clone() + &twice, "line 9, column 1: 10.1.0.1 is given twice, to lan and to dmz"),
        (own + &over, "line 9, column 1: office stands on the port \"lam\"; there are lan, office"),
    ] {
        let file = folder.write("office.toml", &text);
        let (found, said) = attempt(&["--check", "--config", &file]);
        assert!(found == 2 && said.contains(&format!("office.toml: {words}")), "{found} {said}");
    }
    for (file, words) in [(&rules, "there is no interface \"lam\""), (&typo, "line 2, column")] {
        let (found, said) = attempt(&[&lan[..], &["--check", "--acl", file]].concat());
        assert!(found == 2 && said.contains(words), "{found} {said}");
    }
}

#[test]
fn a_removed_interface_is_told_and_others_go_on() {
    let Some(lab) = Lab::new(1500) else { return };
    let router = lab.start(&["--route", "10.9.0.0/16@10.2.0.9", "--stats=json"]);
    let name = lab.router.name().expect("root");
    let remove = |dev: &str| ip(&format!("ip -n {name} link del {dev}"));
    remove("w1");
    eventually("the removal is told", || router.stderr().contains("the port wan was removed"));
    assert!(lab.pings("10.1.0.1"));
    // The routes of the port were removed, so the sender gets an error at once.
    for to in ["10.2.0.2", "10.9.0.1"] {
        let ping = lab.left.run(&["ping", "-c1", "-W5", to]);
        assert!(ping.stdout.contains("Destination Net Unreachable"), "{}", ping.stdout);
    }
    remove("l1");
    let output = router.wait(PATIENCE);
    assert_eq!(output.code(), 125);
    assert!(output.stderr.contains("the devices of all ports were removed"), "{}", output.stderr);
}

#[test]
fn a_capture_has_the_reasons_of_drops() {
    let Some(lab) = Lab::new(1500) else { return };
    let folder = Scratch::new();
    let file = folder.file("router.pcapng");
    let router = lab.start(&["--pcap", &file]);
    assert!(!lab.pings("10.99.0.1"));
    assert!(lab.pings("10.2.0.2"));
    end(router);
    let shown = Process::spawn(&[
        "tshark",
        "-r",
        &file,
        "-T",
        "fields",
        "-e",
        "frame.comment",
        "-e",
        "frame.interface_name",
        "-e",
        "ip.dst",
    ])
    .wait(PATIENCE)
    .ok()
    .stdout;
    assert!(shown.contains("drop: transit_no_route\tlan\t10.99.0.1"), "{shown}");
    assert!(shown.contains("\twan\t10.2.0.2"), "{shown}");
}
