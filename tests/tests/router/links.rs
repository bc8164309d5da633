//! VLANs and bridges as ports, with the kernel's VLAN interfaces at the other end of the link.

use towpath_tests::{Namespace, Process, Scratch, eventually, towpath, wait_for_port};

use super::{Lab, counter, end, ip};

/// Script that replaces VLAN interfaces if the kernel does not support them.
const TAGS: &str = include_str!("vlan.py");

/// Creates VLAN interfaces on the link at `l0`: `v10` in one namespace, `v20` in another, and so
/// on. Returns a process that must live as long as they are used.
fn vlans(lab: &Lab, hosts: &[(&Namespace, u16)]) -> Option<Process> {
    let left = lab.left.name().expect("root");
    let has_vlans = lab.left.shell("ip link add link l0 name v0 type vlan id 1").success();
    let mut words = Vec::new();
    for (host, id) in hosts {
        let host = host.name().expect("root");
        if has_vlans {
            ip(&format!("ip -n {left} link add link l0 name v{id} type vlan id {id}"));
            if host != left {
                ip(&format!("ip -n {left} link set v{id} netns {host}"));
            }
        } else {
            ip(&format!("ip link add p{id} netns {left} type veth peer name v{id} netns {host}"));
            ip(&format!("ip -n {left} link set p{id} up"));
            ip(&format!("ip netns exec {host} ethtool -K v{id} tx off tso off gso off"));
            words.push(format!("p{id}={id}"));
        }
        ip(&format!("ip -n {host} link set v{id} up"));
    }
    if has_vlans {
        return None;
    }
    // Disable offloads, because the script does not segment frames.
    lab.router.run(&["ethtool", "-K", "l1", "tx", "off", "tso", "off", "gso", "off"]).ok();
    let line: Vec<_> =
        ["python3", "-c", TAGS, "l0"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let process = lab.left.spawn(&line);
    eventually("the tags are handled", || process.stdout().contains("ready"));
    Some(process)
}

/// Hosts of two VLANs on one link reach each other through the router, and receive tagged frames.
#[test]
fn vlans_of_one_interface_are_ports() {
    let Some(lab) = Lab::new(1500) else { return };
    let (left, right) = (lab.left.name().expect("root"), lab.right.name().expect("root"));
    let _tags = vlans(&lab, &[(&lab.left, 10), (&lab.right, 20), (&lab.left, 30)]);
    for (host, id) in [(left, 10), (right, 20)] {
        ip(&format!("ip -n {host} addr add 10.{id}.0.2/24 dev v{id}"));
        ip(&format!("ip -n {host} addr add fd00:{id}::2/64 dev v{id} nodad"));
    }
    ip(&format!("ip -n {left} route add 10.20.0.0/24 via 10.10.0.1"));
    ip(&format!("ip -n {right} route add 10.10.0.0/24 via 10.20.0.1"));
    ip(&format!("ip -n {left} route add fd00:20::/64 via fd00:10::1"));
    ip(&format!("ip -n {right} route add fd00:10::/64 via fd00:20::1"));
    let router = lab.start(&[
        "--port",
        "office=vlan:lan.10,10.10.0.1/24,fd00:10::1/64",
        "--port",
        "guests=vlan:lan.20,10.20.0.1/24,fd00:20::1/64",
        "--stats=json",
    ]);
    ip(&format!("ip -n {left} addr add 10.30.0.2/24 dev v30"));
    let sockets = lab.router.run(&["cat", "/proc/net/packet"]).ok().stdout;
    assert_eq!(sockets.lines().count(), 1 + 2, "one socket for each interface: {sockets}");
    let fields = ["-T", "fields", "-e", "vlan.id", "-e", "ip.src", "-e", "ip.dst"];
    let line = [&["tshark", "-l", "-n", "-i", "l0", "-Y", "icmp"][..], &fields].concat();
    let wire = lab.left.spawn(&line);
    eventually("tshark listens", || wire.stderr().contains("Capturing on"));
    eventually("a ping is seen", || {
        assert!(lab.pings("10.20.0.2"));
        let seen = wire.stdout();
        let both = ["10\t10.10.0.2\t10.20.0.2\n", "20\t10.10.0.2\t10.20.0.2\n"];
        both.iter().all(|wanted| seen.contains(wanted))
    });
    wire.stop();
    assert!(lab.pings("fd00:20::2"));
    assert!(lab.pings("10.2.0.2"), "frames without a tag have their port as well");
    transfer(&lab, "10.20.0.2");
    // No port has this VLAN.
    assert!(!lab.left.run(&["ping", "-c1", "-W1", "10.30.0.1"]).success());
    let stats = end(router);
    assert!(counter(&stats, "port.lan", "vlan_rx_foreign") > 0, "{stats}");
}

/// `left` downloads a file from `right`.
fn transfer(lab: &Lab, host: &str) {
    let folder = Scratch::new();
    let file = folder.big("file", 3 << 20);
    let directory = folder.path().to_str().expect("plain").to_owned();
    let server = ["python3", "-m", "http.server", "8080", "--directory", &directory];
    let server = lab.right.spawn(&server);
    wait_for_port(&lab.left, host, 8080);
    let got = folder.file("got");
    let url = format!("http://{host}:8080/file");
    lab.left.run(&["curl", "-sSf", "-m", "50", "-o", &got, &url]).ok();
    assert!(std::fs::read(&got).ok() == std::fs::read(&file).ok(), "{url}");
    server.stop();
}

/// Two interfaces form one network: hosts reach each other, and the router at its single address.
#[test]
fn a_bridge_of_two_interfaces_is_a_port() {
    let Some(lab) = Lab::new(1500) else { return };
    let (left, right) = (lab.left.name().expect("root"), lab.right.name().expect("root"));
    ip(&format!("ip -n {right} addr add 10.1.0.3/24 dev w0"));
    let towpath = towpath();
    let ports = ["a=packet:l1", "b=packet:w1", "br=bridge:a+b,ageing=60,10.1.0.1/24,10.9.0.1/24"];
    let ports = ports.iter().flat_map(|port| ["--port", port]);
    let line: Vec<&str> = [&towpath, "router", "--stats=json"].into_iter().chain(ports).collect();
    let router = lab.router.spawn(&line);
    eventually("the router answers", || lab.pings("10.1.0.1"));
    assert!(lab.pings("10.1.0.3"));
    lab.right.run(&["ping", "-c1", "-W5", "10.1.0.1"]).ok();
    transfer(&lab, "10.1.0.3");
    let route = lab.left.run(&["traceroute", "-n", "-q1", "10.1.0.3"]).ok().stdout;
    assert_eq!(route.lines().count(), 2, "a bridge is no hop: {route}");
    // Tagged frames are not forwarded, and a counter reports them.
    let _tags = vlans(&lab, &[(&lab.left, 10)]);
    ip(&format!("ip -n {left} addr add 10.40.0.2/24 dev v10"));
    ip(&format!("ip -n {right} addr add 10.40.0.3/24 dev w0"));
    assert!(!lab.left.run(&["ping", "-c1", "-W1", "10.40.0.3"]).success());
    let stats = end(router);
    assert!(counter(&stats, "port.a", "vlan_rx_foreign") > 0, "{stats}");
    assert!(counter(&stats, "port.br", "forwarded") > 100, "{stats}");
    assert!(counter(&stats, "port.br", "addresses") >= 2, "{stats}");
    assert_eq!(counter(&stats, "port.br", "own_address"), 0, "{stats}");
}

#[test]
fn links_that_cannot_be_are_refused() {
    let towpath = towpath();
    let lab = towpath_tests::Namespace::new();
    let cases = [
        (vec!["o=vlan:lan.10,10.1.0.1/24"], "o stands on the port \"lan\"; there are o"),
        (vec!["lan=packet:l1"], "the port lan has no address"),
        (vec!["a=packet:l1,10.1.0.1/24", "b=tap:t1", "br=bridge:a+b,10.2.0.1/24"], "give a none"),
        (vec!["lan=packet:l1", "o=vlan:lan.4095,10.1.0.1/24"], "4095 is no VLAN"),
    ];
    for (ports, wanted) in cases {
        let ports = ports.iter().flat_map(|port| ["--port", port]);
        let line: Vec<_> = [&towpath, "router", "--check"].into_iter().chain(ports).collect();
        let output = lab.run(&line);
        assert_eq!(output.code(), 2, "{line:?}");
        assert!(output.stderr.contains(wanted), "{line:?}: {}", output.stderr);
    }
}
