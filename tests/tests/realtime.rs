//! `towpath sim` in real time: simulated hosts and links, with the kernel at real devices. Skipped
//! without root.

use serde_json::Value;
use towpath_tests::veth::Veth;
use towpath_tests::{Namespace, Output, Process, Scratch, is_inline, towpath, wait_for_port};

/// Accepts connections, discards what they send, and prints the number of bytes of each.
const SINK: &str = "
import socket, threading
listener = socket.create_server(('0.0.0.0', 8000))
def serve(peer):
    count = 0
    try:
        while part := peer.recv(1 << 20): count += len(part)
    except ConnectionResetError: pass
    print(count, flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

/// Lag that a busy machine does not reach, for tests that do not judge the lag.
const PATIENT: &str = "--max-lag=60s";

/// Runs an example, and returns its JSON.
fn example(ns: &Namespace, name: &str, options: &[&str]) -> Value {
    let towpath = towpath();
    let line = [&[&towpath, "sim", name, "-q", "-o", "-", PATIENT], options].concat();
    let output = ns.run(&line).ok();
    serde_json::from_str(&output.stdout).expect("JSON")
}

/// Returns the sequence numbers of an example's echo replies.
fn replies(report: &Value) -> Vec<u64> {
    let replies = report["replies"].as_array().expect("a list");
    replies.iter().map(|reply| reply["seq"].as_u64().expect("a number")).collect()
}

/// Returns the flow with a name, of the first run.
fn flow<'a>(report: &'a Value, name: &str) -> &'a Value {
    let flows = report["report"]["runs"][0]["flows"].as_array().expect("a list");
    flows.iter().find(|flow| flow["name"] == name).expect(name)
}

/// Checks the part of the results that all examples with a device have in common.
fn check_device(report: &Value) {
    let run = &report["report"]["runs"][0];
    let realtime = &run["realtime"];
    assert_eq!(realtime["is_valid"], true, "{realtime}");
    let counts = realtime["histogram"].as_array().expect("a list").iter();
    let sum: u64 = counts.map(|bucket| bucket["events"].as_u64().expect("a number")).sum();
    assert_eq!(Some(sum), realtime["lag"]["count"].as_u64());
    let links = run["links"].as_array().expect("a list");
    let device = links.iter().find_map(|link| link.get("device")).expect("a device");
    assert!(device["sent"].as_u64() > Some(0), "{device}");
}

#[test]
fn a_simulated_host_pings_the_kernel_by_a_packet_socket() {
    let Some(lab) = Veth::new(1500) else { return };
    let words = "--device packet:vb --address 10.1.0.11/24 --server 10.1.0.1 --bql --duration 3s \
                 --interval 100ms --every 1s --load 1s-2s --data-rate 8mbit";
    let words: Vec<&str> = words.split_whitespace().collect();
    let report = example(&lab.there, "ping", &words);
    // Requests begin after a second, and end a second before the run.
    assert_eq!(replies(&report), (1..=10).collect::<Vec<u64>>());
    // 8 Mbit/s for a second, in datagrams of 1400 bytes.
    assert_eq!(flow(&report, "load")["sent"], 715);
    check_device(&report);
}

#[test]
fn a_simulated_host_pings_the_kernel_by_a_tap_device() {
    let Some(lab) = Veth::new(1500) else { return };
    let commands = "ip tuntap add dev tw9 mode tap && ip addr add 10.9.0.1/24 dev tw9 && \
                    ip link set tw9 up";
    lab.there.shell(commands).ok();
    let words = "--device tap:tw9 --address 10.9.0.11/24 --server 10.9.0.1 --bql=off --duration 3s \
                 --interval 100ms --every 1s --data-rate none";
    let words: Vec<&str> = words.split_whitespace().collect();
    let report = example(&lab.there, "ping", &words);
    assert_eq!(replies(&report), (1..=10).collect::<Vec<u64>>());
    check_device(&report);
}

#[test]
fn tcp_of_the_simulation_and_of_the_kernel_exchange_bytes() {
    let Some(lab) = Veth::new(1500) else { return };
    let sink = lab.here.spawn(&["python3", "-c", SINK]);
    wait_for_port(&lab.here, "10.1.0.1", 8000);
    let words = "--device packet:vb --address 10.1.0.11/24 --server 10.1.0.1 --rate 20mbit \
                 --bql --duration 3s --load 500ms-2s --every 1s --interval 200ms";
    let words: Vec<&str> = words.split_whitespace().collect();
    let report = example(&lab.there, "tc", &words);
    let load = flow(&report, "load");
    assert!(load["failure"].is_null(), "{load}");
    // 20 Mbit/s for 1.5 s are 3.75 MB, of which a busy machine may send less, but never more.
    let bytes = load["bytes"].as_u64().expect("a number");
    assert!((500_000..3_750_000).contains(&bytes), "{bytes}");
    assert_eq!(replies(&report), (1..=5).collect::<Vec<u64>>());
    check_device(&report);
    let output = sink.stop();
    let received = output.stdout.lines().filter_map(|line| line.parse::<u64>().ok()).max();
    assert!(received >= Some(bytes), "{received:?} of {bytes} acknowledged bytes");
}

#[test]
fn frames_are_written_into_a_device() {
    let Some(lab) = Veth::new(1500) else { return };
    let words = "--device packet:vb --address 10.1.0.11/24 --duration 1s --every 500ms --bql=off";
    let words: Vec<&str> = words.split_whitespace().collect();
    let report = example(&lab.there, "send", &words);
    let frames = flow(&report, "frames");
    let [sent, received] = ["sent", "received"].map(|key| frames[key].as_u64().expect(key));
    assert!(sent > 1000 && received > 1000 && received <= sent, "{frames}");
    let counter = "cat /sys/class/net/va/statistics/rx_packets";
    let counted: u64 = lab.here.shell(counter).ok().stdout.trim().parse().expect("a number");
    assert!(counted >= received, "{counted} of {received} frames arrived");
}

/// Server behind a simulated path. Clients are in `here` of the veth pair, and the simulation is on
/// `vb` and `wb`. The server is on `wa`, in a namespace of its own.
struct Path {
    lab: Veth,
    server: Namespace,
    _run: Process,
}

/// One-way delay of the path in ms.
const DELAY_MS: u64 = 25;

impl Path {
    fn new(folder: &Scratch) -> Option<Self> {
        let lab = Veth::new(1500)?;
        let server = Namespace::new();
        let (there, end) = (lab.there.name()?, server.name()?);
        let commands = format!(
            "ip link add wa netns {end} type veth peer name wb netns {there}
             ip -n {end} addr add 10.1.0.50/24 dev wa
             ip -n {end} link set wa up
             ip -n {there} link set wb up"
        );
        server.shell(&format!("set -e\n{commands}")).ok();
        let scenario = folder.write(
            "path.toml",
            format!(
                "title = \"A path\"\nduration = \"600s\"\n\
                 [[host]]\nname = \"clients\"\ndevice = \"packet:vb\"\n\
                 [[host]]\nname = \"servers\"\ndevice = \"packet:wb\"\n\
                 [[host]]\nname = \"between\"\naddress = \"10.1.0.77/24\"\n\
                 [[switch]]\nname = \"west\"\n[[switch]]\nname = \"east\"\n\
                 [[link]]\nbetween = [\"clients\", \"west\"]\n\
                 [[link]]\nbetween = [\"west\", \"east\"]\nrate = \"100mbit\"\n\
                 delay = \"{DELAY_MS}ms\"\nqdisc = \"fq_codel\"\n\
                 [[link]]\nbetween = [\"east\", \"servers\"]\n\
                 [[link]]\nbetween = [\"west\", \"between\"]\n"
            ),
        );
        let towpath = towpath();
        let run = lab.there.spawn(&[&towpath, "sim", "--realtime", PATIENT, "-q", &scenario]);
        Some(Self { lab, server, _run: run })
    }

    /// Returns the round-trip times in ms that ping(8) in the clients' namespace reports.
    fn ping(&self, host: &str, count: u64) -> Vec<f64> {
        let count = count.to_string();
        // The first request waits for ARP, and possibly for the start of the simulation.
        self.lab.here.run(&["ping", "-c1", "-W20", host]).ok();
        let output = self.lab.here.run(&["ping", "-c", &count, "-i", "0.05", host]).ok();
        let times = output.stdout.lines().filter_map(|line| line.split_once("time="));
        times.map(|(_, time)| time.trim_end_matches(" ms").parse().expect("a time")).collect()
    }
}

#[test]
fn real_programs_meet_over_a_simulated_path() {
    let folder = Scratch::new();
    let Some(path) = Path::new(&folder) else { return };
    let times = path.ping("10.1.0.50", 10);
    assert_eq!(times.len(), 10);
    assert!(times.iter().all(|ms| *ms >= (2 * DELAY_MS) as f64), "{times:?}");
    // A simulated host on the clients' side of the delay.
    assert_eq!(path.ping("10.1.0.77", 10).len(), 10);

    let bytes = (0..2_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8);
    let content: Vec<u8> = bytes.collect();
    folder.write("content", &content);
    let root = folder.path().to_str().expect("text").to_owned();
    let serve = ["python3", "-m", "http.server", "-d", &root, "8080"];
    let _server = path.server.spawn(&serve);
    wait_for_port(&path.server, "10.1.0.50", 8080);
    let got = folder.file("got");
    let url = "http://10.1.0.50:8080/content";
    path.lab.here.run(&["curl", "-sS", "--max-time", "60", "-o", &got, url]).ok();
    assert!(std::fs::read(&got).expect("a file") == content);
}

/// Echo server for the rootless tests.
const ECHO: &str = "
import socket, threading
listener = socket.create_server(('0.0.0.0', 7900))
def serve(peer):
    while part := peer.recv(65536): peer.sendall(part)
    peer.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

/// Prints the milliseconds of a handshake and of the echo of a byte, and whether bytes return.
const ROUND_TRIPS: &str = "
import hashlib, socket, threading, time
def ms(f):
    begin = time.monotonic(); f(); return (time.monotonic() - begin) * 1000
stream = []
print(ms(lambda: stream.append(socket.create_connection(('10.0.2.2', 7900)))))
s = stream[0]
print(ms(lambda: (s.sendall(b'x'), s.recv(1))))
data = hashlib.shake_128(b'seed').digest(1 << 20)
def send():
    s.sendall(data); s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
got = bytearray()
while part := s.recv(65536): got += part
print(got == data)
";

/// Scenario of `--through`, with these devices.
fn through(folder: &Scratch, devices: [&str; 2]) -> String {
    let [program, uplink] = devices;
    folder.write(
        "through.toml",
        format!(
            "title = \"Through\"\nduration = \"600s\"\n\
             [[host]]\nname = \"me\"\naddress = \"10.0.2.15\"\n{program}\n\
             [[host]]\nname = \"world\"\naddress = \"10.0.2.2\"\n{uplink}\n\
             [[host]]\nname = \"neighbor\"\naddress = \"10.0.2.77\"\n\
             [[switch]]\nname = \"s\"\n\
             [[link]]\nbetween = [\"me\", \"s\"]\n\
             [[link]]\nbetween = [\"neighbor\", \"s\"]\n\
             [[link]]\nbetween = [\"s\", \"world\"]\nrate = \"100mbit\"\n\
             delay = \"{DELAY_MS}ms\"\n"
        ),
    )
}

/// Runs a script in python3 with the scenario of `--through`.
fn run_through(ns: &Namespace, scenario: &str, script: &str) -> Output {
    let towpath = towpath();
    ns.run(&[&towpath, "run", "--through", scenario, "--", "python3", "-c", script])
}

#[test]
fn a_program_runs_behind_a_simulated_network() {
    if is_inline() {
        return;
    }
    let (folder, ns) = (Scratch::new(), Namespace::new());
    let _server = ns.spawn(&["python3", "-c", ECHO]);
    wait_for_port(&ns, "127.0.0.1", 7900);
    let scenario = through(&folder, ["device = \"program\"", "device = \"uplink\""]);
    let output = run_through(&ns, &scenario, ROUND_TRIPS).ok();
    assert_eq!(output.stdout.lines().nth(2), Some("True"), "{output:?}");
    // The gateway answers at once, so that the delay is that of the simulated network alone.
    let neighbor = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
s.settimeout(30)
s.sendto(b'\\x08\\0\\0\\0\\0\\0\\0\\1', ('10.0.2.77', 0))
print(s.recvfrom(99)[1][0])
";
    assert_eq!(run_through(&ns, &scenario, neighbor).ok().stdout, "10.0.2.77\n");
}

#[test]
fn scenarios_without_the_two_hosts_are_refused_with_the_place() {
    let (folder, ns) = (Scratch::new(), Namespace::new());
    let (program, uplink) = ("device = \"program\"", "device = \"uplink\"");
    let cases = [
        ([program, ""], "through.toml: no host has `device = \"uplink\"`"),
        ([program, program], "through.toml: line 10: `me` and `world` both have the device"),
        ([program, "device = \"packet:eth9\""], "line 10: the device of `world` is `packet:eth9`"),
        ([program, uplink], "--shards 2: with --through the stack is one part"),
    ];
    for (devices, wanted) in cases {
        let scenario = through(&folder, devices);
        let towpath = towpath();
        let line = [&*towpath, "run", "--shards", "2", "--through", &scenario, "--", "true"];
        let output = ns.run(&line);
        assert_eq!(output.code(), 125, "{}", output.stderr);
        assert!(output.stderr.contains(wanted), "{}", output.stderr);
    }
}

mod nightly {
    use super::*;

    #[test]
    fn a_program_has_the_delay_of_the_simulated_network() {
        if is_inline() {
            return;
        }
        let (folder, ns) = (Scratch::new(), Namespace::new());
        let _server = ns.spawn(&["python3", "-c", ECHO]);
        wait_for_port(&ns, "127.0.0.1", 7900);
        let scenario = through(&folder, ["device = \"program\"", "device = \"uplink\""]);
        let output = run_through(&ns, &scenario, ROUND_TRIPS).ok();
        let mut lines = output.stdout.lines();
        for what in ["handshake", "echo"] {
            let ms: f64 = lines.next().expect(what).parse().expect(what);
            assert!(ms >= (2 * DELAY_MS) as f64, "{what}: {ms} ms");
        }
    }

    /// The lag of the four examples, as documented in docs/sim/realtime.md.
    #[test]
    fn examples_follow_the_clock() {
        let Some(lab) = Veth::new(1500) else { return };
        let _sink = lab.here.spawn(&["python3", "-c", SINK]);
        wait_for_port(&lab.here, "10.1.0.1", 8000);
        let common = "--device packet:vb --address 10.1.0.11/24 --server 10.1.0.1 --bql --every 1s";
        for (name, options) in [
            ("ping", "--duration 6s --load 1s-5s --data-rate 50mbit"),
            ("onoff", "--duration 6s --load 1s-5s --data-rate 50mbit"),
            ("send", "--mode sendto --duration 5s --data-rate 20mbit --size 1000"),
            ("tc", "--duration 6s --load 1s-5s --rate 50mbit"),
        ] {
            let words: Vec<&str> =
                common.split_whitespace().chain(options.split_whitespace()).collect();
            let report = example(&lab.there, name, &words);
            check_device(&report);
            let lag = &report["report"]["runs"][0]["realtime"]["lag"];
            assert!(lag["p99_s"].as_f64() < Some(1e-3), "{name}: {lag}");
        }
    }
}
