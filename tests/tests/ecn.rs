//! Explicit Congestion Notification (RFC 3168) with the kernel as peer. `--netem` marks packets.

use towpath_tests::{
    Mode, Namespace, Process, Scratch, eventually, is_inline, towpath, wait_for_port,
};

/// Byte offsets in `struct tcp_info` of Linux, and bits of `tcpi_options`.
const INFO: &str = "
import socket, sys
def info(s):
    raw = s.getsockopt(6, 11, 248)
    options, marks = raw[5], int.from_bytes(raw[196:200], sys.byteorder)
    return f'ecn={options >> 3 & 1} seen={options >> 4 & 1} marked={int(marks > 0)}'
";

/// Server that receives, or sends, a number of bytes, and prints its TCP_INFO.
const SERVER: &str = "
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
while True:
    s = listener.accept()[0]
    try:
        how = s.recv(1)
        if not how: continue
        if how == b'<':
            s.sendall(bytes(3_000_000))
        else:
            left = 3_000_000
            while left: left -= len(s.recv(left))
            s.sendall(b'.')
        s.recv(1)
        print(info(s), flush=True)
        s.recv(1)
    except OSError: pass
    s.close()
";

/// Client that sends, or receives, the bytes, and prints its TCP_INFO.
const CLIENT: &str = "
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
if sys.argv[3] == 'send':
    s.sendall(b'>' + bytes(3_000_000))
    s.recv(1)
else:
    s.sendall(b'<')
    left = 3_000_000
    while left: left -= len(s.recv(left))
print(info(s), flush=True)
s.sendall(b'x')
";

fn server(ns: &Namespace, address: &str) -> Process {
    let script = format!("{INFO}{SERVER}");
    let server = ns.spawn(&["python3", "-c", &script, address, "7950"]);
    wait_for_port(ns, address, 7950);
    server
}

/// Runs a client until it reports `expected`. The link may lose its first SYN, and the repeated one
/// has no ECN.
fn client(ns: &Namespace, netem: &str, address: &str, how: &str, expected: &str) {
    let (towpath, script) = (towpath(), format!("{INFO}{CLIENT}"));
    let line = [
        towpath.as_str(),
        "run",
        "--tap",
        "--tcp",
        "ecn=on",
        "--netem",
        netem,
        "--",
        "python3",
        "-c",
        &script,
        address,
        "7950",
        how,
    ];
    eventually(expected, || ns.run(&line).ok().stdout.contains(expected));
}

/// Returns a namespace in which the kernel accepts or requests ECN; `None` if TAP devices or
/// emulated links are not available.
fn namespace() -> Option<Namespace> {
    if !Mode::all().contains(&Mode::Tap) || is_inline() {
        return None;
    }
    let ns = Namespace::new();
    ns.shell("sysctl -qw net.ipv4.tcp_ecn=1").ok();
    Some(ns)
}

/// Returns the value of a counter of the kernel.
fn counter(ns: &Namespace, name: &str) -> u64 {
    let out = ns.shell(&format!("nstat -asz {name}")).ok().stdout;
    let line = out.lines().find(|line| line.starts_with(name)).expect(name);
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect(name)
}

#[test]
fn the_kernel_echoes_marks_of_our_packets() {
    let Some(ns) = namespace() else { return };
    for (address, to) in [("0.0.0.0", "10.77.0.1"), ("::", "fd00:77::1")] {
        let server = server(&ns, address);
        let netem = "out delay 2ms loss 2% ecn limit 2000";
        client(&ns, netem, to, "send", "ecn=1 seen=1 marked=1");
        eventually("the server's report", || server.stdout().contains("ecn=1 seen=1"));
        let name = if address == "::" { "Ip6InCEPkts" } else { "IpExtInCEPkts" };
        assert!(counter(&ns, name) > 5, "{to}");
    }
}

#[test]
fn we_echo_marks_of_the_kernels_packets() {
    let Some(ns) = namespace() else { return };
    for (address, to) in [("0.0.0.0", "10.77.0.1"), ("::", "fd00:77::1")] {
        let server = server(&ns, address);
        client(&ns, "in delay 2ms loss 2% ecn limit 2000", to, "receive", "ecn=1 seen=1");
        eventually("the server's report", || server.stdout().contains("ecn=1 seen=1 marked=1"));
    }
}

#[test]
fn a_server_accepts_ecn_by_default() {
    let Some(ns) = namespace() else { return };
    let (towpath, folder) = (towpath(), Scratch::new());
    let script = format!("{INFO}{SERVER}");
    let off: &[&str] = &["--tcp", "ecn=off"];
    for (options, expected) in [(&[][..], "ecn=1 seen=1"), (off, "ecn=0 seen=0")] {
        let mut line = vec![towpath.as_str(), "run", "--tap"];
        line.extend(options);
        line.extend(["--netem", "in delay 2ms loss 2% ecn limit 2000"]);
        line.extend(["--", "python3", "-c", &script, "0.0.0.0", "7950"]);
        let server = ns.spawn(&line);
        let script = folder.write("client.py", format!("{INFO}{CLIENT}"));
        let client = |how| ns.run(&["python3", &script, "10.77.0.2", "7950", how]).stdout;
        eventually(expected, || client("receive").contains(expected));
        eventually(expected, || client("send").contains(expected));
        drop(server);
    }
}
