//! `towpath run --dpdk`: a stack behind virtual DPDK devices, in separate namespaces. The tests
//! require root and a build with DPDK; if `$TOWPATH_TEST_DPDK` is set, a build without DPDK fails.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use std::os::unix::fs::MetadataExt;

use rustix::process::Signal;
use towpath_tests::{
    Namespace, Output, PATIENCE, Process, eventually, is_inline, towpath, wait_for_port,
};

/// EAL options that require neither hugepages nor a network card.
const MEMORY: &str = "--no-huge --in-memory --no-pci";

/// Web server with a page of 4 MiB, and a UDP echo server, for both families.
const SERVER: &str = "
import http.server, socket, threading
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', str(4 << 20))
        self.end_headers()
        self.wfile.write(b'page' * (1 << 20))
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'%d %d' % (len(body), sum(body) % 65521))
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
datagrams.bind(('::', 7900))
def echo():
    while True:
        data, peer = datagrams.recvfrom(65536)
        datagrams.sendto(data, peer)
threading.Thread(target=echo, daemon=True).start()
print('serving', flush=True)
Server(('::', 80), Page).serve_forever()
";

/// Downloads a page, uploads 4 MiB, and sends datagrams of the given lengths to the echo server.
const CLIENT: &str = "
import socket, sys, urllib.request
host = sys.argv[1]
url = 'http://[%s]/' % host if ':' in host else 'http://%s/' % host
page = urllib.request.urlopen(url, timeout=30).read()
body = bytes(range(256)) * (16 << 10)
answer = urllib.request.urlopen(url, data=body, timeout=30).read()
s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
s.connect((host, 7900))
def echoed(data):
    for _ in range(20):
        s.send(data)
        try:
            if s.recv(65536) == data: return True
        except TimeoutError: pass
    return False
print(page == b'page' * (1 << 20), answer == b'%d %d' % (len(body), sum(body) % 65521),
      all(echoed(bytes([n % 251]) * n) for n in map(int, sys.argv[2].split(','))))
";

/// Sends frames that a stack must tolerate: truncated ones, ones with a VLAN tag, ones of unknown
/// protocols, and ones with inconsistent lengths.
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

/// Two namespaces connected by a veth pair: `here` with kernel clients, `there` with towpath.
struct Lab {
    here: Namespace,
    there: Namespace,
}

/// Returns whether this is a build with DPDK.
fn has_dpdk() -> bool {
    let line = [&*towpath(), "run", "--dpdk", "--help", "--address", "10.1.0.2/24", "--", "true"];
    let said = Process::spawn(&line).wait(PATIENCE).stderr;
    let has = !said.contains("has no DPDK");
    assert!(has || std::env::var("TOWPATH_TEST_DPDK").is_err(), "{said}");
    has
}

impl Lab {
    /// Creates the namespaces. Returns `None` without root, in a build without DPDK, or with
    /// `--inline`, which DPDK does not support.
    fn new(mtu: u32) -> Option<Self> {
        if !has_dpdk() || is_inline() {
            eprintln!("left out: needs a build with DPDK, and not --inline");
            return None;
        }
        let (here, there) = (Namespace::new(), Namespace::new());
        let (Some(a), Some(b)) = (here.name(), there.name()) else {
            eprintln!("left out: needs root");
            return None;
        };
        // Disable offloads, because net_af_packet supports none: frames must be complete and at
        // most of the link's MTU.
        let commands = format!(
            "ip link add va mtu {mtu} netns {a} type veth peer name vb mtu {mtu} netns {b}
             ip -n {a} addr add 10.1.0.1/24 dev va
             ip -n {a} addr add fd00:1::1/64 dev va nodad
             ip -n {b} addr add 10.1.0.9/24 dev vb
             ip -n {a} link set va up
             ip -n {b} link set vb up
             ip -n {b} link set lo up
             ip netns exec {a} ethtool -K va tx off
             ip netns exec {b} ethtool -K vb tx off"
        );
        for line in commands.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            Process::spawn(&words).wait(PATIENCE).ok();
        }
        Some(Self { here, there })
    }

    /// Starts `towpath run` with a DPDK device.
    fn run(&self, device: &str, options: &[&str], program: &[&str]) -> Process {
        let (towpath, eal) = (towpath(), format!("{MEMORY} {device}"));
        let mut line = vec![&*towpath, "run", "--dpdk", &eal];
        line.extend(options);
        line.push("--");
        line.extend(program);
        self.there.spawn(&line)
    }

    /// Starts the server on the veth.
    fn serve(&self, arguments: &str, options: &[&str]) -> Process {
        let device = format!("--vdev=net_af_packet0,iface=vb{arguments}");
        let addresses = ["--address", "10.1.0.2/24", "--address", "fd00:1::2/64", "--stats=json"];
        let run = self.run(&device, &[&addresses, options].concat(), &["python3", "-c", SERVER]);
        wait_for_port(&self.here, "10.1.0.2", 80);
        run
    }

    /// Returns the output of a run that must fail.
    fn refused(&self, eal: &str, options: &[&str]) -> Output {
        let towpath = towpath();
        let mut line = vec![&*towpath, "run", "--dpdk", eal];
        line.extend(options);
        line.extend(["--", "true"]);
        let output = self.there.run(&line);
        assert_eq!(output.code(), 125, "{eal}: {}", output.stderr);
        assert_eq!(output.stdout, "", "{eal}");
        output
    }

    /// Returns the number of programs that have set the interface to promiscuous mode.
    fn promiscuity(&self) -> u64 {
        let shown = self.there.run(&["ip", "-d", "-j", "link", "show", "vb"]).ok().stdout;
        let links: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        links[0]["promiscuity"].as_u64().expect("a number")
    }
}

/// Datagram lengths of a single frame each. With net_af_packet the kernel reassembles fragments,
/// for which its default buffers are too short.
const FRAMES: &str = "1,1000,1400";
/// Lengths including a datagram of several fragments.
const FRAGMENTS: &str = "1,1000,1400,6000";

/// Runs the client in a namespace, for both families.
fn visit(run: &Process, from: &Namespace, hosts: [&str; 2], datagrams: &str) {
    for host in hosts {
        let output = from.run(&["python3", "-c", CLIENT, host, datagrams]);
        assert_eq!(
            output.stdout,
            "True True True\n",
            "{host}: {}\n{}",
            output.stderr,
            run.stderr()
        );
        from.run(&["ping", "-c1", "-W5", host]).ok();
    }
}

/// Returns a counter from the output of `--stats=json`. Returns `None` if it does not exist.
fn counter(output: &Output, layer: &str, name: &str) -> Option<u64> {
    let line = output.stderr.lines().find(|line| line.starts_with('{')).expect("JSON");
    let all: serde_json::Value = serde_json::from_str(line).expect("JSON");
    all[layer][name].as_u64()
}

fn end(run: Process) -> Output {
    run.signal(Signal::TERM);
    run.wait(PATIENCE)
}

/// Lists the directories that DPDK would use for files of a run.
fn folders() -> Vec<String> {
    let all = std::fs::read_dir("/tmp").expect("a folder").flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("towpath-dpdk-")).collect()
}

#[test]
fn a_build_without_dpdk_says_how_to_make_one() {
    if has_dpdk() {
        eprintln!("left out: this build has DPDK");
        return;
    }
    let line =
        [&*towpath(), "run", "--dpdk", "--no-huge", "--address", "10.1.0.2/24", "--", "true"];
    let output = Process::spawn(&line).wait(PATIENCE);
    assert_eq!(output.code(), 125);
    let wanted = "apt-get install libdpdk-dev && cargo build --release --features dpdk";
    assert!(output.stderr.contains(wanted), "{}", output.stderr);
}

#[test]
fn a_stack_on_a_veth_is_a_host_beside_the_kernel() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.serve("", &[]);
    visit(&run, &lab.here, ["10.1.0.2", "fd00:1::2"], FRAMES);
    // At its own address the kernel answers, and refuses ports that only the stack serves.
    lab.here.run(&["ping", "-c1", "-W5", "10.1.0.9"]).ok();
    let refused = lab.here.run(&["curl", "-s", "-m", "5", "http://10.1.0.9/"]);
    assert_eq!(refused.code(), 7, "connection refused: {}", refused.stderr);
    assert_ne!(lab.promiscuity(), 0);
    assert_eq!(run.stdout(), "serving\n");
    let output = end(run);
    assert_eq!(lab.promiscuity(), 0);
    let dpdk = |name| counter(&output, "dpdk", name).expect(name);
    assert!(dpdk("rx_bytes") > 8 << 20 && dpdk("tx_bytes") > 8 << 20, "{}", output.stderr);
    // No received byte was copied.
    assert_eq!(dpdk("rx_copied"), 0);
    // The driver's own counter of the queue is equal.
    let driver = |name| counter(&output, "dpdk_port", name).expect(name);
    assert_eq!(driver("rx_q0_packets"), dpdk("rx_frames"));
    assert_eq!(driver("rx_good_bytes"), dpdk("rx_bytes"));
}

#[test]
fn a_tap_device_of_dpdk_is_joined_to_this_host() {
    let Some(lab) = Lab::new(1500) else { return };
    let addresses = ["--address", "10.7.0.2/24", "--address", "fd00:7::2/64", "--stats=json"];
    // The driver segments if its MTU includes the Ethernet header.
    for (mtu, most_frames) in [(&[][..], u64::MAX), (&["--mtu", "1486"], 3000)] {
        let options = [&addresses, mtu].concat();
        let device = "--vdev=net_tap0,iface=dt0";
        let run = lab.run(device, &options, &["python3", "-c", SERVER]);
        wait_for_port(&lab.there, "10.7.0.2", 80);
        visit(&run, &lab.there, ["10.7.0.2", "fd00:7::2"], FRAGMENTS);
        let output = end(run);
        let frames = counter(&output, "dpdk", "tx_frames").expect("a count");
        assert!(frames < most_frames, "{mtu:?}: {frames} frames");
        assert_eq!(counter(&output, "dpdk", "rx_copied"), Some(0));
        let links = lab.there.run(&["ip", "link"]).ok().stdout;
        assert!(!links.contains("dt0"), "{links}");
    }
}

#[test]
fn foreign_frames_do_no_harm() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.serve("", &[]);
    for _ in 0..3 {
        lab.here.run(&["python3", "-c", FOREIGN]).ok();
    }
    visit(&run, &lab.here, ["10.1.0.2", "fd00:1::2"], FRAMES);
    let output = end(run);
    // Two frames in each round, one to our address and one broadcast.
    let unknown = counter(&output, "drops", "frame_unknown").expect("a count");
    assert!(unknown >= 6, "{}", output.stderr);
}

#[test]
fn long_frames_of_a_link_pass_where_the_device_has_room() {
    let Some(lab) = Lab::new(9000) else { return };
    let run = lab.serve(",blocksz=16384,framesz=16384,framecnt=64", &[]);
    lab.here.run(&["ping", "-c1", "-W5", "-M", "do", "-s", "8972", "10.1.0.2"]).ok();
    visit(&run, &lab.here, ["10.1.0.2", "fd00:1::2"], FRAGMENTS);
    let output = end(run);
    let (frames, bytes) = ("tx_frames", "tx_bytes");
    let [frames, bytes] = [frames, bytes].map(|name| counter(&output, "dpdk", name).expect(name));
    assert!(bytes / frames > 2000, "{frames} frames, {bytes} bytes");
}

/// A router forwards between a port of DPDK and a TAP device.
#[test]
fn a_port_of_a_router_forwards() {
    let Some(lab) = Lab::new(1500) else { return };
    let towpath = towpath();
    let wire = format!("wire=dpdk:{MEMORY} --vdev=net_af_packet0,iface=vb,10.1.0.2/24");
    let line =
        [&*towpath, "router", "--stats=json", "--port", &wire, "--port", "to=tap:tw1,10.3.0.1/24"];
    let router = lab.there.spawn(&line);
    eventually("the TAP device is there", || {
        lab.there.run(&["ip", "addr", "add", "10.3.0.2/24", "dev", "tw1"]).success()
    });
    // The kernel of the router's host is in the first network itself, so the answer needs a route.
    lab.there.run(&["ip", "addr", "del", "10.1.0.9/24", "dev", "vb"]).ok();
    lab.there.run(&["ip", "route", "add", "10.1.0.0/24", "via", "10.3.0.1"]).ok();
    lab.here.run(&["ip", "route", "add", "10.3.0.0/24", "via", "10.1.0.2"]).ok();
    lab.here.run(&["ping", "-c3", "-i0.2", "-W5", "10.3.0.2"]).ok();
    let output = end(router);
    assert!(counter(&output, "net", "forwarded") >= Some(6), "{}", output.stderr);
    assert!(counter(&output, "port.wire", "rx_frames") >= Some(3), "{}", output.stderr);
}

#[test]
fn shards_have_a_queue_each() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.serve(",qpairs=2", &["--shards", "2"]);
    for _ in 0..4 {
        visit(&run, &lab.here, ["10.1.0.2", "fd00:1::2"], FRAMES);
    }
    let output = end(run);
    let driver = |name| counter(&output, "dpdk_port", name).expect(name);
    let queues = [driver("rx_q0_packets"), driver("rx_q1_packets")];
    assert!(queues[0] > 0 && queues[1] > 0, "{queues:?}");
    assert_eq!(counter(&output, "dpdk", "rx_frames"), Some(queues[0] + queues[1]));
    let device = "--vdev=net_af_packet0,iface=vb";
    let address = ["--address", "10.1.0.2/24"];
    for (queues, shards, wanted) in [
        ("", "2", "has 1 queues, and 2 shards need one each: give the device qpairs=NUMBER"),
        (",qpairs=2", "1", "divides frames among 2 queues"),
    ] {
        let options = [&address[..], &["--shards", shards]].concat();
        let said = lab.refused(&format!("{MEMORY} {device}{queues}"), &options).stderr;
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn two_runs_at_once_are_apart() {
    let Some(lab) = Lab::new(1500) else { return };
    let runs = [1, 2].map(|n| {
        let (device, address) = (format!("--vdev=net_tap0,iface=dt{n}"), format!("10.7.{n}.2/24"));
        let options = ["--address", &address, "--stats=json"];
        lab.run(&device, &options, &["python3", "-c", SERVER])
    });
    for (n, run) in (1..).zip(&runs) {
        let host = format!("10.7.{n}.2");
        wait_for_port(&lab.there, &host, 80);
        visit(run, &lab.there, [&host, &host], FRAGMENTS);
    }
    for run in runs {
        let output = end(run);
        assert!(counter(&output, "dpdk", "rx_bytes").is_some_and(|bytes| bytes > 8 << 20));
    }
}

#[test]
fn nothing_is_left_after_a_kill() {
    let Some(lab) = Lab::new(1500) else { return };
    let before = folders();
    let run = lab.serve("", &[]);
    run.signal(Signal::KILL);
    eventually("promiscuous mode ends", || lab.promiscuity() == 0);
    let tap = ["--address", "10.7.0.2/24"];
    let run = lab.run("--vdev=net_tap0,iface=dt0", &tap, &["sleep", "60"]);
    eventually("the run has begun", || run.stderr().contains("on dt0"));
    run.signal(Signal::KILL);
    let links = || lab.there.run(&["ip", "link"]).ok().stdout;
    eventually("the device is gone", || !links().contains("dt0"));
    eventually("folders are gone", || folders().iter().all(|name| before.contains(name)));
}

#[test]
fn programs_have_no_descriptor_of_the_device() {
    let Some(lab) = Lab::new(1500) else { return };
    let tap = ["--address", "10.7.0.2/24"];
    let list = "import os
for fd in os.listdir('/proc/self/fd'):
    try: print(fd, os.readlink('/proc/self/fd/' + fd))
    except OSError: pass";
    let run = lab.run("--vdev=net_tap0,iface=dt0", &tap, &["python3", "-c", list]);
    let output = run.wait(PATIENCE).ok();
    for device in ["/dev/net/tun", "nohuge", "timerfd"] {
        assert!(!output.stdout.contains(device), "{}", output.stdout);
    }
}

#[test]
fn a_removed_interface_is_told() {
    let Some(lab) = Lab::new(1500) else { return };
    let run = lab.serve("", &[]);
    lab.there.run(&["ip", "link", "del", "vb"]).ok();
    eventually("the removal is told", || run.stderr().contains("the interface vb was deleted"));
}

#[test]
fn devices_without_a_network_start_and_end() {
    let Some(lab) = Lab::new(1500) else { return };
    let address = ["--address", "10.7.0.2/24"];
    let file = std::env::temp_dir().join(format!("towpath-dpdk-test-{}.pcap", std::process::id()));
    let out = file.display();
    let pcap = format!("--vdev=net_pcap0,tx_pcap={out},rx_iface=vb");
    for device in ["--vdev=net_null0", "--vdev=net_ring0", &pcap] {
        let output = lab.run(device, &address, &["echo", "done"]).wait(PATIENCE).ok();
        assert_eq!(output.stdout, "done\n", "{device}");
    }
    // Duplicate address detection has sent a packet, which net_pcap recorded.
    let len = std::fs::metadata(&file).expect("a capture").size();
    std::fs::remove_file(&file).expect("a file of ours");
    assert!(len >= 24, "{len} bytes");
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let Some(lab) = Lab::new(1500) else { return };
    let address = ["--address", "10.1.0.2/24"];
    let veth = format!("{MEMORY} --vdev=net_af_packet0,iface=vb");
    let cases: [(&str, &[&str], &str); 11] = [
        ("--no-pci --vdev=net_null0 --huge-dir=/nowhere", &address, "give --no-huge, or reserve"),
        (MEMORY, &address, "DPDK found no port: name a device"),
        (&format!("{MEMORY} --vdev=net_nothing0"), &address, "look at the name of the device"),
        (&format!("{MEMORY} --vdev=net_af_packet0,iface=no"), &address, "No such device"),
        (&format!("{MEMORY} --vdev=net_null0 --vdev=net_null1"), &address, "DPDK found 2 ports"),
        (&format!("{MEMORY} --nonsense"), &address, "unrecognized option '--nonsense'"),
        ("'--vdev", &address, "has a quote without its end"),
        ("--help", &address, "--help is not an argument for a stack"),
        ("--proc-type=secondary", &address, "memory of one process"),
        (&veth, &["--address", "10.1.0.9/24"], "this host has it on vb already"),
        (&veth, &["--address", "10.1.0.2/24", "--mtu", "9000"], "vb takes packets of at most 1500"),
    ];
    for (eal, options, wanted) in cases {
        let said = lab.refused(eal, options).stderr;
        assert!(said.contains(wanted), "{eal}: {said}");
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
        "--dpdk",
        &veth,
        "--address",
        "10.1.0.2/24",
        "--",
        "true",
    ]);
    assert!(unprivileged.stderr.contains("run with sudo"), "{}", unprivileged.stderr);
    // Concurrent tests have such directories for a moment while they start.
    eventually("folders are gone", || folders().is_empty());
}

/// Long tests.
mod nightly {
    use super::*;

    /// Transfers in both directions for a minute, over each device.
    #[test]
    fn devices_hold_out() {
        let Some(lab) = Lab::new(1500) else { return };
        let tap = ["--address", "10.7.0.2/24", "--address", "fd00:7::2/64", "--stats=json"];
        let on_veth = lab.serve("", &[]);
        let on_tap = lab.run("--vdev=net_tap0,iface=dt0", &tap, &["python3", "-c", SERVER]);
        wait_for_port(&lab.there, "10.7.0.2", 80);
        for _ in 0..30 {
            visit(&on_veth, &lab.here, ["10.1.0.2", "fd00:1::2"], FRAMES);
            visit(&on_tap, &lab.there, ["10.7.0.2", "fd00:7::2"], FRAGMENTS);
        }
        for run in [on_veth, on_tap] {
            let output = end(run);
            assert_eq!(counter(&output, "dpdk", "tx_no_mbuf"), Some(0), "{}", output.stderr);
        }
    }

    /// Successive runs leave no device and no directory.
    #[test]
    fn runs_leave_nothing() {
        let Some(lab) = Lab::new(1500) else { return };
        for n in 0..20 {
            let device = format!("--vdev=net_tap0,iface=dt{n}");
            let address = ["--address", "10.7.0.2/24"];
            lab.run(&device, &address, &["true"]).wait(PATIENCE).ok();
        }
        let links = lab.there.run(&["ip", "link"]).ok().stdout;
        assert!(!links.contains("dt"), "{links}");
        assert!(folders().is_empty(), "{:?}", folders());
    }
}
