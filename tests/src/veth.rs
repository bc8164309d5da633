//! Two namespaces connected by a veth pair, and programs for both ends.

use rustix::process::Signal;

use crate::{Namespace, Output, PATIENCE, Process, eventually, is_inline, towpath, wait_for_port};

/// Two namespaces connected by a veth pair. `here` has kernel clients; `there` has towpath on `vb`,
/// where the kernel's addresses are 10.1.0.9 and fd00:1::9.
pub struct Veth {
    /// End of the clients.
    pub here: Namespace,
    /// End of towpath.
    pub there: Namespace,
}

/// Sends and receives bytes simultaneously over one connection, compares them, and prints the
/// number received.
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

/// Sends frames that a stack must tolerate: truncated ones, ones with a VLAN tag, ones of unknown
/// protocols, and ones with inconsistent lengths.
pub const FOREIGN: &str = "
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

/// Echo server.
pub const ECHO: &str = "
import socket, threading
listener = socket.create_server(('::', 7900), family=socket.AF_INET6, dualstack_ipv6=True)
def serve(peer):
    while part := peer.recv(1 << 20):
        peer.sendall(part)
    peer.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

impl Veth {
    /// Creates the namespaces; None without root.
    pub fn new(mtu: u32) -> Option<Self> {
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
             ip -n {b} addr add fd00:1::9/64 dev vb nodad
             ip -n {a} link set va up
             ip -n {b} link set vb up"
        );
        for line in commands.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            Process::spawn(&words).wait(PATIENCE).ok();
        }
        Some(Self { here, there })
    }

    /// Starts `towpath run` in its namespace, with `--inline` if the tests run so.
    pub fn run(&self, options: &[&str], program: &[&str]) -> Process {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options);
        if is_inline() {
            line.push("--inline");
        }
        line.push("--");
        line.extend(program);
        self.there.spawn(&line)
    }

    /// Runs a `towpath run` that must fail, with these options instead of the usual ones. Returns
    /// its stderr.
    pub fn refused(&self, options: &[&str]) -> String {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options);
        line.extend(["--", "true"]);
        let output = self.there.run(&line);
        assert_eq!(output.code(), 125, "{}", output.stderr);
        output.stderr
    }

    /// Sends 8 MiB to the echo server, and receives the echo.
    pub fn transfer(&self, host: &str) -> Output {
        self.here.run(&["python3", "-c", TRANSFER, host])
    }

    /// Returns the number of programs that have set the interface to promiscuous mode.
    pub fn promiscuity(&self) -> u64 {
        let shown = self.there.run(&["ip", "-d", "-j", "link", "show", "vb"]).ok().stdout;
        let links: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        links[0]["promiscuity"].as_u64().expect("a number")
    }
}

/// Sends bytes to itself over a loopback connection, and prints a line for each echo.
const BEATS: &str = "
import socket, time
listener = socket.create_server(('127.0.0.1', 7902))
near = socket.create_connection(('127.0.0.1', 7902))
far = listener.accept()[0]
while True:
    near.sendall(b'beat'); far.sendall(far.recv(4)); print(near.recv(4).decode(), flush=True)
    time.sleep(.05)
";

/// Removes the interface of a run; `options` select it. Checks that the run reports the removal,
/// and that a connection on another interface of the stack survives.
///
/// # Panics
/// Panics if a check fails.
pub fn unplug(lab: &Veth, options: &[&str]) {
    let run = lab.run(options, &["python3", "-c", BEATS]);
    eventually("the run has begun", || run.stderr().contains("on vb"));
    eventually("a connection is there", || run.stdout().contains("beat"));
    lab.there.run(&["ip", "link", "del", "vb"]).ok();
    eventually("the removal is told", || run.stderr().contains("the interface vb was deleted"));
    let before = run.stdout().len();
    eventually("the connection lives", || run.stdout().len() > before + 20);
}

/// Changes the MTU of a run's interface from 9000 to 1500 and back, during transfers from `host`.
/// `options` select the interface.
///
/// # Panics
/// Panics if a transfer fails, or the stack does not adopt the MTU.
pub fn follow_mtu(lab: &Veth, options: &[&str], host: &str) {
    let run = lab.run(options, &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, host, 7900);
    for mtu in ["1500", "9000"] {
        // Segments in flight still have the previous size.
        let transfer = lab.here.spawn(&["python3", "-c", TRANSFER, host]);
        lab.there.run(&["ip", "link", "set", "vb", "mtu", mtu]).ok();
        assert_eq!(transfer.wait(PATIENCE).ok().stdout, "True 8388608\n", "to {mtu}");
        let sentence =
            format!("the MTU of vb is {mtu} now: the stack sends packets of up to {mtu}");
        eventually("the change is reported", || run.stderr().contains(&sentence));
        assert_eq!(lab.transfer(host).ok().stdout, "True 8388608\n", "{mtu}");
    }
    run.signal(Signal::TERM);
    run.wait(PATIENCE);
}

/// Returns a counter from the output of `--stats=json`.
pub fn counter(stats: &str, layer: &str, name: &str) -> u64 {
    let line = stats.lines().find(|line| line.starts_with('{')).expect("JSON");
    let all: serde_json::Value = serde_json::from_str(line).expect("JSON");
    all[layer][name].as_u64().unwrap_or_else(|| panic!("{layer}.{name} in {line}"))
}

/// Runs an echo server on ports of the kernel's addresses. Checks that the kernel keeps all other
/// ports, and continues to answer ARP, NDP and pings.
///
/// # Panics
/// Panics if a check fails.
pub fn share_ports(lab: &Veth, options: &[&str], layer: &str) {
    let kernels = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=7901)";
    let _kernels = lab.there.spawn(&["python3", "-c", kernels]);
    let run = lab.run(options, &["python3", "-c", ECHO]);
    for host in ["10.1.0.9", "fd00:1::9"] {
        wait_for_port(&lab.here, host, 7900);
        let output = lab.transfer(host).ok();
        assert_eq!(output.stdout, "True 8388608\n", "{host}");
        lab.here.run(&["ping", "-c1", "-W5", host]).ok();
    }
    wait_for_port(&lab.here, "10.1.0.9", 7901);
    lab.here.run(&["curl", "-sf", "-o", "/dev/null", "http://10.1.0.9:7901/"]).ok();
    run.signal(Signal::TERM);
    let output = run.wait(PATIENCE);
    // After the end of the run the port belongs to the kernel again.
    let refused = lab.transfer("10.1.0.9");
    assert!(refused.stderr.contains("ConnectionRefusedError"), "{}", refused.stderr);
    if !is_inline() {
        assert!(counter(&output.stderr, layer, "rx_bytes") > 16 << 20, "{}", output.stderr);
        // The kernel has answered the pings and connections to its own port.
        assert_eq!(counter(&output.stderr, "net", "echoes_answered"), 0, "{}", output.stderr);
        assert!(counter(&output.stderr, "drops", "tcp_no_socket") < 10, "{}", output.stderr);
    }
}
