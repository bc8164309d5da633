//! Address translation and flow states of `towpath router`, with programs of the system.

use serde_json::Value;
use towpath_tests::{Process, Scratch, eventually, towpath, wait_for_port};

use super::control::Named;
use super::{Lab, end, ip};

/// Answers each TCP connection, and each datagram, with the address that it came from.
const WHO: &str = "
import socket, sys, threading
host, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ':' in host else socket.AF_INET
datagrams = socket.socket(family, socket.SOCK_DGRAM)
datagrams.bind((host, port))
def answer():
    while True:
        _, peer = datagrams.recvfrom(9000)
        datagrams.sendto(peer[0].encode(), peer)
threading.Thread(target=answer, daemon=True).start()
listener = socket.socket(family)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((host, port))
listener.listen()
while True:
    connection, peer = listener.accept()
    connection.sendall(peer[0].encode())
    connection.close()
";

/// Prints the answer of a [`WHO`] server.
const ASK: &str = "
import socket, sys
kind, host, port, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
family = socket.AF_INET6 if ':' in host else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
s.settimeout(5)
try:
    s.connect((host, port))
    if kind == 'udp': s.send(b'x' * size)
    print(s.recv(99).decode())
except OSError as error: print(type(error).__name__, error.errno)
";

impl Lab {
    /// Creates a lab whose right host has no route to the left one.
    fn one_way(wan_mtu: u32) -> Option<Self> {
        let lab = Self::new(wan_mtu)?;
        let right = lab.right.name().expect("root");
        ip(&format!("ip -n {right} route del default"));
        ip(&format!("ip -n {right} -6 route del default"));
        Some(lab)
    }

    fn ask(&self, kind: &str, host: &str, port: u16, size: usize) -> String {
        let words = [kind.to_owned(), host.to_owned(), port.to_string(), size.to_string()];
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let line = [&["python3", "-c", ASK][..], &words].concat();
        self.left.run(&line).ok().stdout.trim().to_owned()
    }
}

fn who(namespace: &towpath_tests::Namespace, host: &str, port: u16) -> Process {
    let server = namespace.spawn(&["python3", "-c", WHO, host, &port.to_string()]);
    wait_for_port(namespace, host, port);
    server
}

impl Named {
    fn nat(&self, line: &str) -> towpath_tests::Output {
        self.command("nat", line)
    }

    fn flows(&self, filter: &str) -> Vec<Value> {
        let flows = self.json("conntrack", &format!("-j list {filter}"));
        flows.as_array().expect("a list").clone()
    }

    fn tracked(&self, counter: &str) -> u64 {
        self.json("conntrack", "-j stats")[counter].as_u64().expect("a counter")
    }
}

const MASQUERADE: [&str; 2] = ["--nat", "masquerade out wan"];

#[test]
fn programs_work_through_a_masquerade() {
    let Some(lab) = Lab::one_way(1500) else { return };
    let it = Named::start(lab, "masquerade", &MASQUERADE);
    let lab = &it.lab;
    for (host, own) in [("10.2.0.2", "10.2.0.1"), ("fd00:2::2", "fd00:2::1")] {
        eventually("the other host answers", || lab.pings(host));
        let _server = who(&lab.right, host, 7000);
        assert_eq!(lab.ask("tcp", host, 7000, 0), own);
        assert_eq!(lab.ask("udp", host, 7000, 100), own);
        // A datagram in two fragments.
        assert_eq!(lab.ask("udp", host, 7000, 2000), own);
    }
    let route = lab.left.run(&["traceroute", "-n", "-q1", "-w2", "10.2.0.2"]).ok().stdout;
    assert!(route.contains("1  10.1.0.1 ") && route.contains("2  10.2.0.2 "), "{route}");
    // No host has the address: the router tells the sender, not itself.
    let lost = lab.left.run(&["ping", "-c1", "-W5", "10.2.0.77"]).stdout;
    assert!(lost.contains("From 10.1.0.1 icmp_seq=1 Destination Host Unreachable"), "{lost}");
    let flows = it.flows("src 10.1.0.0/24 proto tcp");
    assert!(flows.iter().all(|flow| flow["reply_dst"] == "10.2.0.1"), "{flows:?}");
    assert!(!flows.is_empty());
    end(it.router);
}

#[test]
fn transfers_keep_their_batches_through_a_masquerade() {
    let Some(lab) = Lab::one_way(1500) else { return };
    let it = Named::start(lab, "transfers", &MASQUERADE);
    let server = it.lab.right.spawn(&["iperf3", "-s", "-B", "10.2.0.2"]);
    wait_for_port(&it.lab.left, "10.2.0.2", 5201);
    for direction in [&[][..], &["-R"]] {
        let line = [&["iperf3", "-J", "-t", "1", "-c", "10.2.0.2"][..], direction].concat();
        let result = it.lab.left.run(&line).ok().stdout;
        let result: Value = serde_json::from_str(&result).expect("JSON");
        let rate = result["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate");
        assert!(rate > 1e6, "{direction:?}: {rate}");
    }
    let counters = it.json("conntrack", "-j stats");
    assert_eq!((&counters["invalid"], &counters["untranslatable"]), (&0.into(), &0.into()));
    drop(server);
    end(it.router);
}

/// The host behind the far router learns the path MTU, although the error is about a translated
/// packet.
#[test]
fn path_mtus_are_told_through_a_masquerade() {
    let Some(lab) = Lab::one_way(1500) else { return };
    let right = lab.right.name().expect("root").to_owned();
    ip(&format!("ip -n {right} link add far0 mtu 1300 type veth peer name far1 mtu 1300"));
    ip(&format!("ip -n {right} addr add 10.9.0.1/24 dev far0"));
    for dev in ["far0", "far1"] {
        ip(&format!("ip -n {right} link set {dev} up"));
    }
    ip(&format!("ip netns exec {right} sysctl -qw net.ipv4.ip_forward=1"));
    let options = [&MASQUERADE[..], &["--route", "10.9.0.0/16@10.2.0.2"]].concat();
    let it = Named::start(lab, "path_mtu", &options);
    eventually("the far router answers", || it.lab.pings("10.9.0.1"));
    let ping = ["ping", "-c2", "-W2", "-M", "do", "-s", "1400", "10.9.0.5"];
    let told = it.lab.left.run(&ping).stdout;
    assert!(told.contains("From 10.2.0.2") && told.contains("mtu = 1300"), "{told}");
    assert!(it.tracked("errors_related") > 0);
    end(it.router);
}

#[test]
fn ports_are_forwarded_from_both_sides() {
    let Some(lab) = Lab::one_way(1500) else { return };
    let forward = ["--forward", "proto tcp dport 8080 to 10.1.0.2:80"];
    let it = Named::start(lab, "forward", &[&MASQUERADE[..], &forward].concat());
    let _server = who(&it.lab.left, "10.1.0.2", 80);
    let fetch = "import socket; print(socket.create_connection(('10.2.0.1', 8080), 5).recv(99))";
    let from_outside = it.lab.right.run(&["python3", "-c", fetch]).ok().stdout;
    assert_eq!(from_outside, "b'10.2.0.2'\n");
    let hairpin = it.lab.left.run(&["python3", "-c", fetch]).ok().stdout;
    assert_eq!(hairpin, "b'10.2.0.1'\n");
    end(it.router);
}

#[test]
fn states_let_answers_in_and_nothing_else() {
    let Some(lab) = Lab::new(1500) else { return };
    let folder = Scratch::new();
    let rules = folder.write(
        "rules.acl",
        "acl add id 10 in lan action accept
         acl add id 20 in wan state established,related action accept
         acl add id 30 in wan state new action drop
         acl add id 40 in wan state invalid action reject",
    );
    let it = Named::start(lab, "states", &["--acl", &rules]);
    let _server = who(&it.lab.right, "10.2.0.2", 7000);
    assert_eq!(it.lab.ask("tcp", "10.2.0.2", 7000, 0), "10.1.0.2");
    // Without a listener, the ICMP error passes back as related to the flow.
    assert_eq!(it.lab.ask("udp", "10.2.0.2", 7001, 1), "ConnectionRefusedError 111");
    assert!(!it.lab.right.run(&["ping", "-c1", "-W1", "10.1.0.2"]).success());
    let rules = it.json("acl", "-j");
    let hits = |id: usize| rules["rules"][id]["packets"].as_u64().expect("packets");
    assert!(hits(1) >= 4 && hits(2) >= 1, "{rules}");
    end(it.router);
}

#[test]
fn translation_is_changed_while_it_runs() {
    let Some(lab) = Lab::one_way(1500) else { return };
    let it = Named::start(lab, "nat_changed", &[]);
    let _server = who(&it.lab.right, "10.2.0.2", 7000);
    assert!(!it.lab.pings("10.2.0.2"), "no way back");
    assert_eq!(it.command("conntrack", "stats").ok().stdout, "this router tracks no flows\n");
    it.nat("add masquerade out wan").ok();
    assert_eq!(it.lab.ask("tcp", "10.2.0.2", 7000, 0), "10.2.0.1");
    it.nat("add id 5 snat out wan proto udp to 10.2.0.9 ports 2000-2999").ok();
    let right = it.lab.right.name().expect("root");
    ip(&format!("ip -n {right} route add 10.2.0.9/32 via 10.2.0.1"));
    assert_eq!(it.lab.ask("udp", "10.2.0.2", 7000, 9), "10.2.0.9");
    let shown = it.nat("show").ok().stdout;
    let rule = "nat add id 5 snat proto udp out wan to 10.2.0.9 ports 2000-2999  # 1 flows\n";
    assert!(shown.starts_with(rule) && shown.contains("id 10 masquerade out wan"), "{shown}");
    let flows = it.flows("proto udp dport 7000");
    let [flow] = &flows[..] else { panic!("{flows:?}") };
    assert_eq!((&flow["state"], &flow["reply_dst"]), (&"answered".into(), &"10.2.0.9".into()));
    assert!((2000..3000).contains(&flow["reply_dport"].as_u64().expect("a port")));
    let deleted = it.command("conntrack", "delete proto udp dport 7000").ok().stdout;
    assert_eq!(deleted, "1 deleted\n");
    assert!(it.flows("proto udp dport 7000").is_empty());
    for (line, wanted) in [
        ("add masquerade out wam", "there is no interface \"wam\"; there are lo, lan, wan"),
        ("add id 5 masquerade out wan", "rule 5 is there"),
        ("del 7", "rule 7 is not there"),
        ("add masquerade", "without \"out PORT\""),
    ] {
        let refused = it.nat(line);
        assert!(!refused.success() && refused.stderr.contains(wanted), "{}", refused.stderr);
    }
    it.nat("flush").ok();
    assert_eq!(it.lab.ask("tcp", "10.2.0.2", 7000, 0).split(' ').next(), Some("TimeoutError"));
    end(it.router);
}

#[test]
fn events_are_printed_as_they_come() {
    let Some(lab) = Lab::one_way(1500) else { return };
    let it = Named::start(lab, "events", &MASQUERADE);
    let towpath = towpath();
    let events = it.lab.left.spawn(&[&towpath, "conntrack", "--name", it.name(), "-j", "events"]);
    // The command prints events from its first query on, so repeat until it shows one.
    eventually("an event", || {
        it.lab.pings("10.2.0.2") && events.stdout().contains("\"event\":\"new\"")
    });
    it.command("conntrack", "flush").ok();
    eventually("the end of the flow", || events.stdout().contains("\"event\":\"deleted\""));
    end(it.router);
    let line = events.wait(towpath_tests::PATIENCE).ok().stdout;
    let first: Value = serde_json::from_str(line.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&first["proto"], &first["src"]), (&"icmp".into(), &"10.1.0.2".into()));
}

const TRANSLATIONS: &str = include_str!("translations.py");

impl Lab {
    /// Returns the outcomes of the packets of `translations.py`, one per line.
    fn translations(&self) -> Vec<String> {
        for host in ["10.2.0.2", "10.2.0.1"] {
            eventually("the router answers", || self.pings(host));
        }
        let to_router = ["ping", "-c1", "-W1", "10.2.0.1"];
        eventually("the router answers", || self.right.run(&to_router).success());
        let hosts = [&self.left, &self.right].map(|host| host.name().expect("root"));
        let line = [&["python3", "-c", TRANSLATIONS][..], &hosts].concat();
        let output = Process::spawn(&line).wait(towpath_tests::PATIENCE).ok();
        output.stdout.lines().map(str::to_owned).collect()
    }
}

/// Fragments are the deliberate difference: the kernel puts the packet together before it
/// translates, and the router translates each fragment.
#[test]
fn packets_are_translated_as_by_nftables() {
    let Some(oracle) = Lab::one_way(1500) else { return };
    oracle.start_kernel();
    let rules = "table ip nat {
        chain pre { type nat hook prerouting priority dstnat;
            iifname w1 udp dport 8080 dnat to 10.1.0.2:80
        }
        chain post { type nat hook postrouting priority srcnat; oifname w1 masquerade; }
        }";
    oracle.router.run(&["nft", rules]).ok();
    let wanted = oracle.translations();
    drop(oracle);
    let Some(lab) = Lab::one_way(1500) else { return };
    let forward = ["--forward", "in wan proto udp dport 8080 to 10.1.0.2:80"];
    let it = Named::start(lab, "translations", &[&MASQUERADE[..], &forward].concat());
    let found = it.lab.translations();
    end(it.router);
    assert!(wanted.len() > 20 && found.len() == wanted.len(), "{wanted:#?}");
    let differ = |(found, wanted): (&String, &String)| {
        let is_known = found.contains("fragment");
        (found != wanted && !is_known).then(|| format!("{found}\n  nftables: {wanted}"))
    };
    let wrong: Vec<_> = found.iter().zip(&wanted).filter_map(differ).collect();
    assert!(wrong.is_empty(), "{}\n\n{found:#?}", wrong.join("\n"));
    for part in ["first", "last"] {
        let sent = found.iter().find(|line| line.starts_with(part)).expect("a fragment");
        assert!(sent.contains("10.2.0.2: 10.2.0.1>10.2.0.2"), "{sent}");
    }
}

/// A flow needs one shard, because a tracker sees only the packets of its shard.
#[test]
fn several_shards_are_refused() {
    let port = "lan=packet:lo,10.1.0.1/24";
    let line = [&towpath(), "router", "--shards", "2", "--port", port, "--nat"];
    let refused = Process::spawn(&[&line[..], &["masquerade out lan", "--check"]].concat());
    let refused = refused.wait(towpath_tests::PATIENCE);
    assert_eq!(refused.code(), 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("use --shards 1"), "{}", refused.stderr);
}
