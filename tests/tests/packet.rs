//! `towpath run --packet`: a stack on an end of a veth pair, beside the kernel, and clients in the
//! other end's namespace. Without root all of it is left out.
#![allow(clippy::print_stderr)] // For whoever reads the output of the tests.

use rustix::process::Signal;
use towpath_tests::{
    Namespace, Output, PATIENCE, Process, eventually, is_inline, towpath, wait_for_port,
};

/// Two namespaces joined by a veth pair: `here` with clients of the kernel, `there` with towpath
/// on `vb`, where the kernel is 10.1.0.9.
struct Lab {
    here: Namespace,
    there: Namespace,
}

const ON_VETH: [&str; 6] =
    ["--packet", "vb", "--address", "10.1.0.2/24", "--address", "fd00:1::2/64"];

/// Sends bytes both ways at once over one connection, compares them, and prints how many came back.
const TRANSFER: &str = "
import hashlib, socket, sys, threading
data = hashlib.shake_128(b'seed').digest(8 << 20)
s = socket.create_connection((sys.argv[1], 7900))
def send():
    s.sendall(data); s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
got = bytearray()
while part := s.recv(1 << 20): got += part
print(got == data, len(got))
";

/// Sends frames that no stack should take amiss: cut ones, ones with a VLAN tag, ones of unknown
/// protocols, and lengths that contradict each other.
const FOREIGN: &str = "
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('va', 0))
to = bytes.fromhex(open('/proc/net/arp').read().split('10.1.0.2 ')[1].split()[2].replace(':', ''))
me = b'\\x02\\0\\0\\0\\0\\x09'
ip = bytes.fromhex('45000028000000004006') + b'\\0\\0' + bytes([10, 1, 0, 1, 10, 1, 0, 2])
tail = b'\\0' * 40
for kind, body in [(0x0800, b''), (0x0800, ip[:7]), (0x0800, b'\\x4f' + ip[1:] + tail),
                   (0x0800, ip[:2] + b'\\xff\\xff' + ip[4:] + tail), (0x86dd, ip + tail),
                   (0x8100, struct.pack('>HH', 5, 0x0800) + ip + tail), (0x8100, b'\\0'),
                   (0x88a8, struct.pack('>HH', 5, 0x8100)), (0x0806, b'\\0\\1'), (0x9999, tail),
                   (0x0003, tail), (0x0800, b'\\xff' * 1500)]:
    for mac in (to, b'\\xff' * 6, bytes([to[0] ^ 4]) + to[1:]):
        s.send(mac + me + struct.pack('>H', kind) + body)
";

const ECHO: &str = "
import socket, threading
listener = socket.create_server(('::', 7900), family=socket.AF_INET6, dualstack_ipv6=True)
def serve(peer):
    while part := peer.recv(1 << 20):
        peer.sendall(part)
    peer.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

impl Lab {
    /// None without root.
    fn new(mtu: u32) -> Option<Self> {
        let (here, there) = (Namespace::new(), Namespace::new());
        let (Some(a), Some(b)) = (here.name(), there.name()) else {
            eprintln!("left out: needs root");
            return None;
        };
        let commands = format!(
            "ip link add va mtu {mtu} netns {a} type veth peer name vb mtu {mtu} netns {b}
             ip -n {a} addr add 10.1.0.1/24 dev va
             ip -n {a} addr add fd00:1::1/64 dev va nodad
             ip -n {b} addr add 10.1.0.9/24 dev vb
             ip -n {a} link set va up
             ip -n {b} link set vb up"
        );
        for line in commands.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            Process::spawn(&words).wait(PATIENCE).ok();
        }
        Some(Self { here, there })
    }

    /// Starts `towpath run` on the veth.
    fn run(&self, options: &[&str], program: &[&str]) -> Process {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(ON_VETH);
        line.extend(options);
        if is_inline() {
            line.push("--inline");
        }
        line.push("--");
        line.extend(program);
        self.there.spawn(&line)
    }

    /// A run that is expected to fail, with these options in place of the usual ones.
    fn refused(&self, options: &[&str]) -> String {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options);
        line.extend(["--", "true"]);
        let output = self.there.run(&line);
        assert_eq!(output.code(), 125, "{}", output.stderr);
        output.stderr
    }

    fn transfer(&self, host: &str) -> Output {
        self.here.run(&["python3", "-c", TRANSFER, host])
    }

    /// Programs that have the interface in promiscuous mode.
    fn promiscuity(&self) -> u64 {
        let shown = self.there.run(&["ip", "-d", "-j", "link", "show", "vb"]).ok().stdout;
        let links: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        links[0]["promiscuity"].as_u64().expect("a number")
    }
}

/// A counter in the JSON of `--stats=json`.
fn counter(stats: &str, layer: &str, name: &str) -> u64 {
    let line = stats.lines().find(|line| line.starts_with('{')).expect("JSON");
    let all: serde_json::Value = serde_json::from_str(line).expect("JSON");
    all[layer][name].as_u64().unwrap_or_else(|| panic!("{layer}.{name} in {line}"))
}

#[test]
fn a_stack_is_a_host_of_the_network_and_the_kernel_stays_one() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.run(&["--stats=json"], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    for host in ["10.1.0.2", "fd00:1::2"] {
        let output = lab.transfer(host).ok();
        assert_eq!(output.stdout, "True 8388608\n", "{host}");
        lab.here.run(&["ping", "-c1", "-W5", host]).ok();
    }
    // The kernel answers at its own address, and refuses what only the stack has.
    lab.here.run(&["ping", "-c1", "-W5", "10.1.0.9"]).ok();
    let refused = lab.transfer("10.1.0.9");
    assert!(refused.stderr.contains("ConnectionRefusedError"), "{}", refused.stderr);
    assert_ne!(lab.promiscuity(), 0);
    run.signal(Signal::TERM);
    let output = run.wait(PATIENCE);
    assert_eq!(lab.promiscuity(), 0);
    // With `--inline`, a program that a signal ends leaves no counters.
    if is_inline() {
        return;
    }
    let packet = |name: &str| counter(&output.stderr, "packet", name);
    // Segments stayed in one piece each way: frames of 1500 bytes would be more than twice as many.
    for way in ["rx", "tx"] {
        let [frames, bytes] = ["frames", "bytes"].map(|name| packet(&format!("{way}_{name}")));
        assert!(bytes > 16 << 20, "{way}: {bytes} bytes");
        assert!(frames < bytes / 3000, "{way}: {frames} frames, {bytes} bytes");
    }
}

#[test]
fn foreign_frames_do_no_harm() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.run(&["--stats=json"], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    for _ in 0..3 {
        lab.here.run(&["python3", "-c", FOREIGN]).ok();
    }
    lab.transfer("10.1.0.2").ok();
    run.signal(Signal::TERM);
    let output = run.wait(PATIENCE);
    if is_inline() {
        return;
    }
    // Twice in each round, once by its own address and once by broadcast.
    assert!(counter(&output.stderr, "drops", "frame_unknown") >= 6, "{}", output.stderr);
}

#[test]
fn large_packets_of_the_interface_pass() {
    let Some(lab) = Lab::new(9000) else { return };
    let _run = lab.run(&[], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    lab.here.run(&["ping", "-c1", "-W5", "-M", "do", "-s", "8972", "10.1.0.2"]).ok();
    lab.transfer("10.1.0.2").ok();
}

#[test]
fn nothing_is_left_after_a_kill() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.run(&[], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    run.signal(Signal::KILL);
    eventually("promiscuous mode ends", || lab.promiscuity() == 0);
}

#[test]
fn a_removed_interface_is_told() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.run(&[], &["sleep", "60"]);
    eventually("the run has begun", || run.stderr().contains("on vb"));
    lab.there.run(&["ip", "link", "del", "vb"]).ok();
    eventually("the removal is told", || run.stderr().contains("the interface vb was deleted"));
}

#[test]
fn an_interface_that_was_down_goes_on() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.run(&[], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    lab.there.shell("ip link set vb down && ip link set vb up").ok();
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    assert!(!run.stderr().contains("deleted"), "{}", run.stderr());
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let Some(lab) = Lab::new(1500) else { return };
    lab.there
        .shell("ip link add down0 type veth peer name down1; ip tuntap add tun0 mode tun")
        .ok();
    let with = |interface| ["--packet", interface, "--address", "10.1.0.2/24"];
    let cases: [(&[&str], &str); 7] = [
        (&with("nothing"), "--packet: there is no interface \"nothing\": `ip link` lists"),
        (&with("a_name_that_is_too_long"), "there is no interface"),
        (&with("lo"), "lo is not an Ethernet interface"),
        (&with("tun0"), "tun0 is not an Ethernet interface"),
        (&with("down0"), "down0 is down: set it up with `sudo ip link set down0 up`"),
        (
            &["--packet", "vb", "--address", "10.1.0.9/24"],
            "--address 10.1.0.9/24: this host has it on vb already",
        ),
        (&[&with("vb")[..], &["--mtu", "9000"]].concat(), "--mtu 9000: vb takes at most 1500"),
    ];
    for (options, wanted) in cases {
        let said = lab.refused(options);
        assert!(said.contains(wanted), "{options:?}: {said}");
    }
    if !is_inline() {
        let said = lab.refused(&[&with("vb")[..], &["--shards", "2"]].concat());
        assert!(said.contains("has one shard: leave out --shards"), "{said}");
    }
    let unprivileged = lab.there.run(&[
        "setpriv",
        "--reuid",
        "65534",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
        &towpath(),
        "run",
        "--packet",
        "vb",
        "--address",
        "10.1.0.2/24",
        "--",
        "true",
    ]);
    assert!(unprivileged.stderr.contains("needs CAP_NET_RAW"), "{}", unprivileged.stderr);
}

#[test]
fn a_link_with_delay_is_around_the_interface() {
    let Some(lab) = Lab::new(1500) else { return };
    let _run = lab.run(&["--netem", "delay 20ms"], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    let ping = lab.here.run(&["ping", "-c2", "-W5", "10.1.0.2"]).ok().stdout;
    let least = ping.split("min/avg/max/mdev = ").nth(1).and_then(|rest| rest.split('/').next());
    let least: f64 = least.and_then(|text| text.parse().ok()).expect("a time");
    assert!(least >= 40., "{ping}");
}
