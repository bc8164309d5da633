//! `towpath ip` and `stats` on running stacks: programs observe the changes, traffic follows them,
//! and connections survive. Tests with a TAP device are skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

mod watch;

use serde_json::Value;
use towpath_tests::{
    EMPTY_FOLDERS, Mode, Namespace, Output, PATIENCE, Process, Scratch, eventually, is_inline,
    start_named, towpath, wait_for_port,
};

/// A run with a unique name, because other runs may exist on the machine.
struct Lab {
    ns: Namespace,
    name: String,
    run: Process,
}

impl Lab {
    /// Starts the run. Returns `None` if the stack is in the program's process, which does not
    /// support these requests.
    fn new(mode: Mode, test: &str, program: &[&str]) -> Option<Self> {
        if is_inline() {
            eprintln!("left out: with --inline a stack shows its sockets alone");
            return None;
        }
        let ns = Namespace::new();
        let name = format!("{test}_{}", std::process::id());
        let run = start_named(&ns, mode, &name, program);
        let lab = Self { ns, name, run };
        eventually("the run answers", || lab.ip("link").success());
        Some(lab)
    }

    /// Starts the run over TAP. Also None without root.
    fn tap(test: &str, program: &[&str]) -> Option<Self> {
        if !Mode::all().contains(&Mode::Tap) {
            eprintln!("left out: needs root");
            return None;
        }
        let lab = Self::new(Mode::Tap, test, program)?;
        lab.ns.shell("ip -br addr | grep -q 10.77.0.1").ok();
        Some(lab)
    }

    fn command(&self, command: &str, line: &str) -> Output {
        let towpath = towpath();
        let mut words = vec![towpath.as_str(), command, "--name", &self.name];
        words.extend(line.split_whitespace());
        self.ns.run(&words)
    }

    /// Runs `towpath ip` on this run.
    fn ip(&self, line: &str) -> Output {
        self.command("ip", line)
    }

    /// Runs a change that the stack must refuse. Returns the reason, the only output.
    fn refused(&self, line: &str) -> String {
        let output = self.ip(line);
        assert_eq!(output.code(), 2, "{line}: {}", output.stderr);
        output.stderr
    }

    fn json(&self, line: &str) -> Value {
        let text = self.ip(&format!("-j {line}")).ok().stdout;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    /// Returns the name of the interface other than `lo`.
    fn dev(&self) -> String {
        let links = self.json("link");
        links[1]["ifname"].as_str().expect("a name").to_owned()
    }

    fn pings(&self, host: &str) -> bool {
        self.ns.run(&["ping", "-c1", "-W2", host]).success()
    }
}

/// Executes each line from a FIFO as Python, and prints the result.
const OBEDIENT: &str = "
import os, socket, subprocess, sys
def bind(addr):
    s = socket.socket(); s.bind((addr, 0)); return 'bound'
def connect(addr, port):
    s = socket.socket(); s.settimeout(5); s.connect((addr, port)); return s.recv(100).decode()
def describe(s):
    name = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b'\\0')[0].decode()
    return name, s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[5] & 7
def scale(s):
    return s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[6] >> 4
listener = None
def pair(describe=describe):
    global listener
    listener = listener or socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(listener.getsockname())
    return describe(client), describe(listener.accept()[0])
def shell(line):
    return subprocess.run(line, shell=True, capture_output=True, text=True).stdout
while True:
    for line in open(sys.argv[1]):
        try: print(repr(eval(line)), flush=True)
        except OSError as error: print(type(error).__name__, error.errno, flush=True)
";

/// A program that executes the lines sent to it.
struct Obedient {
    lab: Lab,
    fifo: String,
    _scratch: Scratch,
}

impl Obedient {
    fn new(mode: Mode, test: &str) -> Option<Self> {
        let scratch = Scratch::new();
        let fifo = scratch.file("fifo");
        Process::spawn(&["mkfifo", &fifo]).wait(PATIENCE).ok();
        let program = ["python3", "-c", OBEDIENT, &fifo];
        let lab = match mode {
            Mode::Tap => Lab::tap(test, &program)?,
            Mode::Rootless => Lab::new(mode, test, &program)?,
        };
        Some(Self { lab, fifo, _scratch: scratch })
    }

    /// Executes a line, and returns the result.
    fn tell(&self, line: &str) -> String {
        let before = self.lab.run.stdout().len();
        let text = format!("{line}\n");
        std::fs::write(&self.fifo, text).expect("the program reads");
        let said = || self.lab.run.stdout()[before..].to_owned();
        eventually("the program has done it", || said().ends_with('\n'));
        said().trim_end().to_owned()
    }
}

/// Errors EADDRNOTAVAIL and ENETUNREACH.
const NOT_OURS: &str = "OSError 99";
const NO_ROUTE: &str = "OSError 101";

#[test]
fn a_program_can_bind_an_address_as_soon_as_it_is_added() {
    for mode in Mode::all() {
        let Some(program) = Obedient::new(*mode, "bind") else { return };
        let (lab, dev) = (&program.lab, program.lab.dev());
        assert_eq!(program.tell("bind('10.5.0.1')"), NOT_OURS);
        lab.ip(&format!("addr add 10.5.0.1/24 dev {dev}")).ok();
        assert_eq!(program.tell("bind('10.5.0.1')"), "'bound'");
        let shown = program.tell("shell('ip -4 -o addr')");
        assert!(shown.contains("10.5.0.1/24"), "{shown}");
        lab.ip(&format!("addr del 10.5.0.1/24 dev {dev}")).ok();
        assert_eq!(program.tell("bind('10.5.0.1')"), NOT_OURS);
        let shown = program.tell("shell('ip -4 -o addr')");
        assert!(!shown.contains("10.5.0.1"), "{shown}");
    }
}

#[test]
fn others_reach_an_address_that_was_added() {
    let Some(lab) = Lab::tap("reach", &["sleep", "100"]) else { return };
    let dev = lab.dev();
    assert!(lab.pings("10.77.0.2"));
    lab.ip(&format!("addr add 10.77.0.9/24 dev {dev}")).ok();
    assert!(lab.pings("10.77.0.9"));
    lab.ip(&format!("addr del 10.77.0.9/24 dev {dev}")).ok();
    assert!(!lab.pings("10.77.0.9"));
    assert!(lab.pings("10.77.0.2"), "its link has not gone with it");
}

#[test]
fn traffic_follows_routes_and_programs_see_them() {
    let Some(program) = Obedient::new(Mode::Tap, "follow") else { return };
    let lab = &program.lab;
    lab.ns.shell("ip addr add 10.8.0.1/32 dev lo").ok();
    let hello = "
import socket
server = socket.create_server(('10.8.0.1', 7000))
while True: server.accept()[0].send(b'hello')";
    let _server = lab.ns.spawn(&["python3", "-c", hello]);
    wait_for_port(&lab.ns, "10.8.0.1", 7000);
    let connect = || program.tell("connect('10.8.0.1', 7000)");
    assert_eq!(connect(), "'hello'", "by the default route");
    lab.ip("route del default").ok();
    assert_eq!(connect(), NO_ROUTE);
    lab.ip("route add 10.8.0.0/16 via 10.77.0.1 metric 7").ok();
    assert_eq!(connect(), "'hello'");
    let seen = program.tell("shell('ip route')");
    assert!(seen.contains("10.8.0.0/16 via 10.77.0.1") && !seen.contains("default"), "{seen}");
    lab.ip("route del 10.8.0.0/16").ok();
    assert_eq!(connect(), NO_ROUTE);
    assert!(!program.tell("shell('ip route')").contains("10.8.0.0"));
    lab.ip("route add 10.8.0.0/16 mtu 1300 nexthop via 10.77.0.1 nexthop via 10.77.0.7").ok();
    let seen = program.tell("shell('ip route')");
    for part in ["10.8.0.0/16 mtu 1300 ", "nexthop via 10.77.0.1 ", "nexthop via 10.77.0.7 "] {
        assert!(seen.contains(part), "{part:?} in {seen}");
    }
}

#[test]
fn a_batch_is_made_whole_or_not_at_all() {
    for mode in Mode::all() {
        let Some(lab) = Lab::new(*mode, "batch", &["sleep", "100"]) else { return };
        let (dev, scratch) = (lab.dev(), Scratch::new());
        let good = format!(
            "# moves the host
            addr add 10.5.0.1/24 dev {dev}

            route replace default via 10.5.0.254   # by way of it
            route add 10.6.0.0/16 via 10.5.0.7"
        );
        // Ignore duplicate address detection, whose progress depends on time rather than on the
        // batch.
        let picture = || {
            ["addr", "route", "-6 route", "neigh"].map(|what| {
                lab.ip(what).ok().stdout.replace("tentative ", "").replace("optimistic ", "")
            })
        };
        let before = picture();
        for (bad, why, code) in [
            ("route add 10.7.0.0/16 via 10.99.0.1", "Nexthop has invalid gateway", 2),
            ("route add 10.6.0.0/16 via 10.5.0.8", "File exists", 2),
            ("addr del 10.1.1.1/24 dev lo", "Cannot assign requested address", 2),
            ("addr add 10.1.1.1/24 dev nowhere", "Cannot find device \"nowhere\"", 1),
            ("addr add 10.1.1.1/24", "\"dev\" argument is required", 1),
            ("addr show", "a batch is one change", 1),
        ] {
            let file = scratch.write("bad", format!("{good}\n{bad}\n"));
            let output = lab.ip(&format!("--batch {file}"));
            assert_eq!(output.code(), code, "{bad}: {}", output.stderr);
            let place = format!("Command failed {file}:6");
            assert!(output.stderr.contains(why) && output.stderr.contains(&place), "{output:?}");
            assert_eq!(picture(), before, "{bad}");
        }
        let file = scratch.write("good", &good);
        lab.ip(&format!("-batch {file}")).ok();
        let routes = lab.ip("route").ok().stdout;
        let wanted = [
            format!("default via 10.5.0.254 dev {dev} "),
            format!("10.5.0.0/24 dev {dev} proto kernel scope link src 10.5.0.1 "),
            format!("10.6.0.0/16 via 10.5.0.7 dev {dev} "),
        ];
        for line in wanted {
            assert!(routes.lines().any(|shown| shown == line), "{line:?} in {routes}");
        }
    }
}

/// Options of TCP_INFO.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALING: u8 = 4;

#[test]
fn settings_apply_to_new_connections() {
    for mode in Mode::all() {
        let Some(program) = Obedient::new(*mode, "settings") else { return };
        let set = |changes: &str| program.lab.command("setting", &format!("set {changes}"));
        // The listener is the same for all connections.
        let both = |congestion: &str, options: u8| {
            let end = format!("({congestion:?}, {options})").replace('"', "'");
            assert_eq!(program.tell("pair()"), format!("({end}, {end})"));
        };
        both("cubic", TIMESTAMPS | SACK | WINDOW_SCALING);
        // The window scale follows from the maximum of receive buffers, 4 MiB at the start.
        for (changes, scale) in [("rmem-max=65535", 0), ("rmem-max=1000000", 4), ("sack=on", 4)] {
            set(changes).ok();
            assert_eq!(program.tell("pair(scale)"), format!("({scale}, {scale})"), "{changes}");
        }
        set("congestion=reno net.ipv4.tcp_sack=0").ok();
        both("reno", TIMESTAMPS | WINDOW_SCALING);
        let wrong = set("sack=on ecn=maybe");
        assert_eq!(wrong.code(), 1);
        assert!(wrong.stderr.contains("\"maybe\" is not a valid value of ecn"), "{wrong:?}");
        both("reno", TIMESTAMPS | WINDOW_SCALING);
        set("sack=on timestamps=off window-scaling=off").ok();
        both("reno", SACK);
    }
}

#[test]
fn settings_are_listed_and_checked() {
    let Some(lab) = Lab::new(Mode::Rootless, "listed", &["sleep", "100"]) else { return };
    let shown = lab.command("setting", "").ok().stdout;
    assert!(shown.starts_with("congestion = cubic\ntimestamps = on\n"), "{shown}");
    assert!(shown.contains("\nfast-open-key = random\n"), "{shown}");
    assert!(shown.ends_with("\nrmem-max = 4194304\n"), "{shown}");
    lab.command("setting", "set rmem-max=65536 fast-open-key=1-2-3-4").ok();
    let json = lab.command("setting", "-j get tcp_rmem[2] fast-open-key").ok().stdout;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json[0]["value"], "65536");
    assert_eq!(json[0]["sysctl"], "tcp_rmem[2]");
    assert_eq!(json[1]["value"], "00000001-00000002-00000003-00000004");
    let unknown = lab.command("setting", "get sak");
    assert_eq!(unknown.code(), 1);
    assert!(unknown.stderr.contains("unknown setting `sak`; did you mean `sack`?"), "{unknown:?}");
}

/// Sends a request to the run whose name is the first argument, without the checks of the command.
const REQUEST: &str = "
import glob, os, socket, sys
folders = [os.environ.get('XDG_RUNTIME_DIR', '/run') + '/towpath', '/run/towpath',
           '/var/lib/towpath', f'/tmp/towpath-{os.getuid()}']
path = [path for folder in folders for path in glob.glob(f'{folder}/*-{sys.argv[1]}.sock')][0]
s = socket.socket(socket.AF_UNIX); s.connect(path)
s.sendall(sys.argv[2].encode() + b'\\n')
print(s.makefile().read())
";

#[test]
fn an_invalid_setting_prevents_all_changes_of_its_request() {
    let Some(lab) = Lab::new(Mode::Rootless, "atomic", &["sleep", "100"]) else { return };
    let changes = r#"[{"name":"sack","value":"off"},{"name":"ecn","value":"loud"}]"#;
    let request = format!(r#"{{"version":1,"request":"apply-settings","changes":{changes}}}"#);
    let output = lab.ns.run(&["python3", "-c", REQUEST, &lab.name, &request]).ok();
    let reply: Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert_eq!(reply["error"]["code"], "refused");
    assert_eq!(reply["error"]["at"], 1);
    assert_eq!(lab.command("setting", "get sack").ok().stdout, "on\n");
}

/// Creates a namespace whose kernel has the same configuration on `eth0` as the stack.
fn twin(mac: &str) -> Option<Namespace> {
    let ns = Namespace::new();
    ns.name()?;
    ns.shell(&format!(
        "ip link add eth0 address {mac} mtu 1500 type veth peer name far &&
         ip link set far up && ip link set eth0 up &&
         ip addr flush dev eth0 && ip -6 addr flush dev eth0 &&
         ip addr add 10.77.0.2/24 dev eth0 && ip -6 addr add fd00:77::2/64 dev eth0 nodad &&
         ip route add default via 10.77.0.1 &&
         ip -6 route add default via fd00:77::1"
    ))
    .ok();
    Some(ns)
}

/// Returns lines of ip(8) without attributes that the stack lacks, and without generated values.
fn plain(text: &str) -> Vec<String> {
    let text = text.replace("eth0@far:", "eth0:").replace("eth0@far ", "eth0     ");
    // The lifetimes of an address are on the following line.
    let lines = text.lines().zip(std::iter::once("").chain(text.lines()));
    let kept = lines.filter(|(line, before)| {
        let is_lifetime = line.contains("valid_lft") && before.contains("fe80:");
        !line.contains("fe80:") && !line.contains("far@") && !is_lifetime
    });
    let kept = kept.map(|(line, _)| {
        let mut words = Vec::new();
        let mut all = line.split(' ').peekable();
        while let Some(word) = all.next() {
            match word {
                "qdisc" | "group" | "qlen" | "uid" => drop(all.next()),
                // The kernel shows the last one for groups, whose flags it shares.
                "nodad" | "optimistic" | "tentative" | "rt_offload_failed" => {}
                "65535" | "65536" => words.push("LOOPBACK_MTU"),
                word if word.ends_with(':') && word.len() == 2 => words.push("N:"),
                word => words.push(word),
            }
        }
        words.join(" ").trim_end().to_owned()
    });
    kept.collect()
}

/// Returns the lines of `lo` and `eth0`, without those of the twin's peer interface.
fn of_interfaces(lines: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut of_peer = false;
    for line in lines {
        if line.starts_with("N:") {
            of_peer = line.contains("far");
        }
        if !of_peer {
            kept.push(line);
        }
    }
    kept
}

#[test]
fn the_output_is_that_of_ip() {
    let Some(lab) = Lab::tap("twin", &["sleep", "100"]) else { return };
    let mac = lab.json("link show eth0")[0]["address"].as_str().expect("a MAC").to_owned();
    let Some(twin) = twin(&mac) else { return };
    eventually("addresses are settled", || {
        let shown = lab.ip("addr").ok().stdout;
        !shown.contains("tentative") && !shown.contains("optimistic")
    });
    let changes = [
        "addr add 10.5.0.1/16 dev eth0",
        "addr add 10.5.0.2/32 dev eth0",
        "route add 10.8.0.0/16 via 10.77.0.7 metric 7",
        "route add 10.9.0.0/24 dev eth0",
        "route add blackhole 10.11.0.0/16",
        "route add unreachable 10.12.0.0/16 metric 3",
        "-6 route add fd00:9::/64 via fd00:77::9",
        "-6 route add prohibit fd00:a::/64",
        "neigh add 10.77.0.3 lladdr 02:00:00:00:00:03 dev eth0 nud permanent",
        "neigh add fd00:77::3 lladdr 02:00:00:00:00:04 dev eth0",
        "neigh replace 10.77.0.3 lladdr 02:00:00:00:00:05 dev eth0",
        "route replace 10.9.0.0/24 via 10.77.0.9",
        "route add 10.20.0.0/16 metric 4 nexthop via 10.77.0.7 dev eth0 nexthop via 10.77.0.8",
        "-6 route add fd00:b::/64 nexthop via fd00:77::7 nexthop via fd00:77::8 dev eth0 weight 1",
        "route add 10.21.0.0/16 via 10.77.0.7 metric 9 mtu 1300",
        "-6 route append fd00:9::/64 via fd00:77::a mtu 1290",
        "route add 10.22.0.0/16 mtu 1300 nexthop via 10.77.0.7 nexthop via 10.77.0.8",
        "route add 10.23.0.0/16 nexthop via 10.77.0.7 nexthop via 10.77.0.8",
        "route replace 10.23.0.0/16 via 10.77.0.9",
        "route add 10.24.0.0/16 nexthop via 10.77.0.7 nexthop via 10.77.0.8",
        "route del 10.24.0.0/16",
        "route add 10.25.0.0/16 nexthop via 10.77.0.7 weight 5 nexthop via 10.77.0.8",
        "route add 10.26.0.0/16 via 10.77.0.7",
        "route add 10.26.0.0/16 via 10.77.0.7 metric 10",
        "-6 route add fd00:c::/64 nexthop via fd00:77::7 nexthop via fd00:77::8",
        "-6 route del fd00:c::/64 via fd00:77::7",
        "link set eth0 mtu 1400",
    ];
    let kernels = |line: &str| {
        let mut words = vec!["ip"];
        words.extend(line.split_whitespace());
        twin.run(&words)
    };
    for line in changes {
        lab.ip(line).ok();
        kernels(line).ok();
    }
    for line in [
        "addr show eth0",
        "-4 addr",
        "-6 addr show dev eth0",
        "link show eth0",
        "route",
        "route show default",
        "route show 10.8.0.0/16",
        "route list dev eth0",
        "-6 route show fd00:9::/64",
        "-6 route show fd00:a::/64",
        "-6 route show fd00:b::/64",
        "-6 route show fd00:c::/64",
        "route show via 10.77.0.7",
        "neigh show 10.77.0.3",
        "neigh show dev eth0 nud permanent",
        "-br link show eth0",
        "-br addr show lo",
        "-o -4 addr show eth0",
        "-o -6 addr show eth0",
        "-o route",
        "a s eth0",
        "r",
        "route get 10.8.1.1",
        "-o route get 10.21.0.5",
        "route get to 10.77.0.9 dev eth0",
        "route get 10.8.1.1 from 10.5.0.1",
        "route get 10.5.0.1",
        "route get 10.5.255.255",
        "route get 224.0.0.5",
    ] {
        // `nud` selects kernel states; the stack has a keyword for this instead.
        let ours = line.replace(" nud permanent", "");
        let ours = plain(&lab.ip(&ours).ok().stdout);
        let theirs = plain(&kernels(line).ok().stdout);
        let is_of_neighbors = line.starts_with("neigh show dev");
        let of = |lines: Vec<String>| match is_of_neighbors {
            true => lines.into_iter().filter(|line| line.contains("PERMANENT")).collect(),
            false => of_interfaces(lines),
        };
        assert_eq!(of(ours), of(theirs), "ip {line}");
    }
    // All JSON keys of the stack's output are keys of ip as well.
    for line in [
        "addr show eth0",
        "link show eth0",
        "route",
        "-6 route",
        "neigh",
        "-br addr",
        "-s link show eth0",
        "route get 10.21.0.5",
    ] {
        let ours = lab.json(line);
        let theirs: Value =
            serde_json::from_str(&kernels(&format!("-j {line}")).ok().stdout).expect("JSON");
        assert_keys(&ours, &keys(&theirs), line);
    }
    for line in [
        "addr add 10.5.0.1/16 dev eth0",
        "addr del 10.55.0.1/16 dev eth0",
        "addr add 10.5.0.9/16 dev nowhere",
        "addr add",
        "addr show dev nowhere",
        "route add 10.8.0.0/16 via 10.77.0.7 metric 7",
        "route add 10.60.0.0/16 via 10.61.0.1",
        "route add 10.60.0.1/16 dev eth0",
        "route add 10.60.0.0/33 dev eth0",
        "route add 10.60.0.0/16",
        "route del 10.60.0.0/16",
        "route append 10.8.0.0/16 via 10.77.0.7 metric 7",
        "route add 10.60.0.0/16 nexthop via 10.77.0.7 nexthop via 10.61.0.1",
        "route add 10.60.0.0/16 nexthop",
        "-6 route add fd00:d::/64 via fd00:77::7 mtu 99999999999",
        "route change 10.60.0.0/16 via 10.77.0.1",
        "neigh del 10.77.0.99 dev eth0",
        "neigh add 10.77.0.3 lladdr 02:00:00:00:00:03 dev eth0",
        "neigh add 10.77.0.4 lladdr zz dev eth0",
        "link set eth0 mtu 20",
        "route get 10.11.0.1",
        "route get 10.12.0.1",
        "-6 route get fd00:a::1",
        "route get 10.8.1.1 from 192.0.2.99",
        "route get 10.8.0.1 dev nowhere",
        "route get",
        "frobnicate",
    ] {
        // ip(8) uses the exit codes 1 and 255 for invalid arguments; `towpath ip` uses one.
        let theirs = match kernels(line).code() {
            255 => 1,
            code => code,
        };
        assert_eq!(lab.ip(line).code(), theirs, "ip {line}");
    }
}

/// Returns all keys of a document.
fn keys(of: &Value) -> Vec<String> {
    match of {
        Value::Array(all) => all.iter().flat_map(keys).collect(),
        Value::Object(all) => {
            // Only Towpath shows the counters of a device.
            let all = all.iter().filter(|(key, _)| *key != "device");
            all.flat_map(|(key, value)| [vec![key.clone()], keys(value)].concat()).collect()
        }
        _ => Vec::new(),
    }
}

fn assert_keys(of: &Value, known: &[String], line: &str) {
    for key in keys(of) {
        // The twin's addresses have other states.
        let is_state = ["optimistic", "tentative"].contains(&key.as_str());
        assert!(is_state || known.contains(&key), "{key} of {line} is not one of ip's: {known:?}");
    }
}

/// Receives a stream, and sends its hash back.
const HASHER: &str = "
import hashlib, socket
server = socket.create_server(('', 7900))
while True:
    peer = server.accept()[0]
    hasher = hashlib.sha256()
    while part := peer.recv(1 << 20): hasher.update(part)
    peer.sendall(hasher.hexdigest().encode()); peer.close()
";

/// Sends as long as a file exists, and compares the hashes.
const SENDER: &str = "
import hashlib, os, socket, sys
hasher, data = hashlib.sha256(), os.urandom(1 << 16)
s = socket.create_connection((sys.argv[1], 7900))
while os.path.exists(sys.argv[2]):
    s.sendall(data); hasher.update(data)
s.shutdown(socket.SHUT_WR)
print(s.recv(100).decode() == hasher.hexdigest())
";

#[test]
fn connections_live_through_changes() {
    let Some(lab) = Lab::tap("flight", &["python3", "-c", HASHER]) else { return };
    wait_for_port(&lab.ns, "10.77.0.2", 7900);
    let (dev, scratch) = (lab.dev(), Scratch::new());
    let flag = scratch.write("flag", "");
    let sender = lab.ns.spawn(&["python3", "-c", SENDER, "10.77.0.2", &flag]);
    for n in 0..10 {
        for line in [
            format!("addr add 10.5.{n}.1/24 dev {dev}"),
            format!("route add 10.6.{n}.0/24 via 10.5.{n}.2"),
            format!("link set {dev} mtu {}", 1300 + n),
            format!("neigh add 10.77.0.1{n} lladdr 02:00:00:00:01:0{n} dev {dev}"),
            "route replace default via 10.77.0.1".to_owned(),
            format!("addr del 10.5.{n}.1/24 dev {dev}"),
        ] {
            lab.ip(&line).ok();
        }
    }
    std::fs::remove_file(&flag).expect("it is there");
    assert_eq!(sender.wait(PATIENCE).ok().stdout, "True\n");
}

#[test]
fn an_interface_that_is_down_is_silent_and_up_again_it_is_back() {
    let Some(lab) = Lab::tap("down", &["sleep", "100"]) else { return };
    let dev = lab.dev();
    assert!(lab.pings("10.77.0.2"));
    lab.ip(&format!("link set {dev} down")).ok();
    assert!(!lab.pings("10.77.0.2"));
    assert!(!lab.ip(&format!("link show {dev}")).ok().stdout.contains("UP"));
    assert_eq!(lab.ip(&format!("route list dev {dev}")).ok().stdout, "");
    let stats: Value = serde_json::from_str(&lab.command("stats", "-j").ok().stdout).expect("JSON");
    assert!(stats["drops"]["link_down"].as_u64().expect("a counter") > 0, "{stats}");
    let why = lab.refused("link set lo down");
    assert!(why.contains("loopback"), "{why}");
    lab.ip(&format!("link set dev {dev} up")).ok();
    assert!(lab.pings("10.77.0.2"));
}

#[test]
fn counters_of_a_running_stack_grow() {
    let Some(lab) = Lab::tap("stats", &["sleep", "100"]) else { return };
    let stats = || -> Value {
        serde_json::from_str(&lab.command("stats", "-j").ok().stdout).expect("JSON")
    };
    let echoes = |stats: &Value| stats["net"]["echoes_answered"].as_u64().expect("a counter");
    let dev = format!("interface {}", lab.dev());
    let before = stats();
    assert!(lab.pings("10.77.0.2"));
    let after = stats();
    assert_eq!(echoes(&after), echoes(&before) + 1);
    for name in ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"] {
        let of = |stats: &Value| stats[&dev][name].as_u64().expect("a counter");
        assert!(of(&after) > of(&before), "{name}");
    }
    // The counters of the device are available while it runs.
    let frames = |stats: &Value| stats["tap"]["rx_frames"].as_u64().expect("a counter");
    assert!(frames(&after) > frames(&before), "{before} {after}");
    let text = lab.command("stats", "").ok().stdout;
    assert!(text.contains("net.echoes_answered"), "{text}");
}

#[test]
fn a_run_has_a_port() {
    let Some(lab) = Lab::new(Mode::Rootless, "port", &["sleep", "100"]) else { return };
    let port =
        || -> Value { serde_json::from_str(&lab.command("port", "-j").ok().stdout).expect("JSON") };
    let before = port();
    assert_eq!(before.as_array().map(Vec::len), Some(1), "{before}");
    let facts = ["name", "driver", "link"].map(|key| before[0][key].as_str().expect("a word"));
    assert_eq!(facts, ["eth0", "gateway", "unknown"]);
    assert_eq!(before[0]["mtu"], 16384);
    let counters = before[0]["counters"].as_object().expect("counters");
    assert!(counters.contains_key("udp_flows"), "{before}");
    let text = lab.command("port", "show eth0").ok().stdout;
    assert!(text.starts_with("eth0: gateway, link unknown, mtu 16384\n    rx "), "{text}");
    let wrong = lab.command("port", "eth1");
    assert_eq!(wrong.code(), 1);
    assert_eq!(wrong.stderr, "towpath: there is no port \"eth1\"; there are eth0\n");
}

#[test]
fn a_shell_completes_names_of_live_runs() {
    let Some(lab) = Lab::new(Mode::Rootless, "completed", &["sleep", "100"]) else { return };
    let towpath = towpath();
    let completed = |words: &str| {
        let script = format!(
            "source <({towpath} completions bash); COMP_WORDS=({towpath} {words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); \
             _towpath_live {towpath} \"${{COMP_WORDS[-1]}}\"; \
             printf '%s\n' \"${{COMPREPLY[@]}}\""
        );
        lab.ns.run(&["bash", "-c", &script]).ok().stdout
    };
    for command in ["ip", "acl", "port", "setting", "stats"] {
        let found = completed(&format!("{command} --name completed_"));
        assert!(found.lines().any(|name| name == lab.name), "{command}: {found}");
    }
    let pid = lab.run.id().to_string();
    for words in ["ip --run ''", "ss ''"] {
        let found = completed(words);
        assert!(found.lines().any(|known| known == pid), "{words}: {found}");
    }
    assert_eq!(completed("ip --js"), "--json\n", "options are completed as before");
    assert_eq!(completed(&format!("ip --name {} r", lab.name)), "route\n");
    assert_eq!(completed("ip addr ''"), "show\nadd\ndel\n");
    assert_eq!(completed("acl fl"), "flush\n");
    assert_eq!(completed(&format!("port --name {} e", lab.name)), "eth0\n");
    assert_eq!(completed("setting get sy"), "syn-cookies\n");
    // Bash splits words at "=".
    assert_eq!(completed("setting set sack ="), "on\noff\n");
    assert_eq!(completed("setting set sack = of"), "off\n");
    assert_eq!(completed("setting set rm"), "rmem-max=\n");
}

#[test]
fn a_name_is_one_runs_and_one_that_nobody_has_is_an_error() {
    let Some(lab) = Lab::new(Mode::Rootless, "name", &["sleep", "100"]) else { return };
    let again = [&towpath(), "run", "--name", &lab.name, "--", "true"];
    let output = lab.ns.run(&again);
    assert_eq!(output.code(), 125, "{}", output.stderr);
    let wanted = format!("--name {}: another run of this user has this name", lab.name);
    assert!(output.stderr.contains(&wanted), "{}", output.stderr);
    let unknown = lab.ns.run(&[&towpath(), "ip", "--name", "nobody_has_it", "addr"]);
    assert_eq!(unknown.code(), 1);
    assert!(unknown.stderr.contains("has the name \"nobody_has_it\""), "{}", unknown.stderr);
    let Lab { ns, name, run } = lab;
    run.stop();
    let output = ns.run(&[&towpath(), "run", "--name", &name, "--", "true"]);
    assert_eq!(output.code(), 0, "the name is free: {}", output.stderr);
}

#[test]
fn several_runs_have_to_be_told_apart() {
    if is_inline() || !Mode::all().contains(&Mode::Tap) {
        eprintln!("left out: needs root, for folders that no other run uses");
        return;
    }
    let script = format!(
        "{EMPTY_FOLDERS}
        set +e
        ask() {{ $T ip \"$@\" -br addr; echo \"status $?\"; }}
        ask
        $T run -q -- sleep 100 & one=$!
        until ask | grep -q lo; do sleep 0.1; done
        $T run -q --name second -- sleep 100 & two=$!
        until ask --name second | grep -q lo; do sleep 0.1; done
        ask
        ask --run $one
        ask --name second
        ask --run $two --name second
        kill -STOP $one
        while grep -L '^State:.T' /proc/$one/task/*/status | grep -q .; do sleep 0.01; done
        ask
        $T ip addr add 10.99.0.1/32 dev lo; echo \"change $?\"
        kill -CONT $one
        kill $one $two; wait"
    );
    let ns = Namespace::new();
    let script = format!("exec 2>&1; {script}");
    let output = ns.run(&["unshare", "-m", "bash", "-c", &script, &towpath()]);
    let text = &output.stdout;
    let mut statuses = text.lines().filter_map(|line| line.strip_prefix("status "));
    assert_eq!(statuses.next(), Some("1"), "none: {text}");
    assert!(text.contains("no `towpath run` or `router` of this user is there"), "{text}");
    assert_eq!(statuses.collect::<Vec<_>>(), ["1", "0", "0", "1", "0"], "{text}");
    let stopped = "did not answer within 2 s; is it stopped?";
    assert!(text.contains(stopped) && text.contains("left out: the run with"), "{text}");
    assert!(text.contains("\nchange 1\n"), "the stopped run may be meant: {text}");
    let several = "several runs may be meant: name one by --run PID or --name NAME";
    assert!(text.contains(several) && text.contains(" second (sleep)"), "{text}");
}

/// Access lists also apply to the packets of a run, on all of its shards.
#[test]
fn rules_of_a_run_are_changed() {
    let Some(lab) = Lab::tap("acl", &["sleep", "100"]) else { return };
    assert!(lab.pings("10.77.0.2"));
    lab.command("acl", "add id 10 proto icmp action drop").ok();
    assert!(!lab.pings("10.77.0.2"));
    let shown = lab.command("acl", "show").ok().stdout;
    assert!(shown.starts_with("acl add id 10 proto icmp action drop  # 1 packets"), "{shown}");
    let logs = lab.command("acl", "add id 11 action accept log");
    assert_eq!(logs.code(), 2);
    assert!(logs.stderr.contains("rule 11: a run has nobody to tell"), "{}", logs.stderr);
    lab.command("acl", "del id 10").ok();
    assert!(lab.pings("10.77.0.2"));
}

#[test]
fn another_user_neither_sees_nor_changes_a_run() {
    if !Mode::all().contains(&Mode::Tap) {
        eprintln!("left out: needs root, to be another user");
        return;
    }
    let Some(lab) = Lab::new(Mode::Rootless, "stranger", &["sleep", "100"]) else { return };
    let (towpath, scratch) = (towpath(), Scratch::new());
    // Use a copy, because other users may not be able to access the build directory.
    let copy = scratch.file("towpath");
    std::fs::copy(&towpath, &copy).expect("room");
    lab.ns.shell(&format!("chmod 755 {copy} {}", scratch.path().display())).ok();
    let asked = lab.ns.run(&[
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        &copy,
        "ip",
        "--name",
        &lab.name,
        "addr",
    ]);
    assert_eq!(asked.code(), 1, "{}", asked.stderr);
    // Connect to the socket directly, without the command.
    let connect = "
import glob, os, socket, sys
[path] = glob.glob('/run/towpath/*-' + sys.argv[1] + '.sock') \
       + glob.glob('/var/lib/towpath/*-' + sys.argv[1] + '.sock')
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try: socket.socket(socket.AF_UNIX).connect(path)
except PermissionError: print('refused')
";
    let output = lab.ns.run(&["python3", "-c", connect, &lab.name]).ok();
    assert_eq!(output.stdout, "refused\n");
    // If the mode of the file does not prevent access, the check of the user id does.
    let opened = "
import glob, json, os, socket, sys
[path] = glob.glob('/run/towpath/*-' + sys.argv[1] + '.sock') \
       + glob.glob('/var/lib/towpath/*-' + sys.argv[1] + '.sock')
os.chmod(path, 0o666)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX); s.connect(path)
try:
    s.sendall(b'{\"version\":1,\"request\":\"net\"}\\n')
    print(s.recv(100))
except (BrokenPipeError, ConnectionResetError): print(b'')
";
    let output = lab.ns.run(&["python3", "-c", opened, &lab.name]).ok();
    assert_eq!(output.stdout, "b''\n");
}

#[test]
fn a_stack_in_the_programs_process_says_that_it_cannot_be_asked() {
    let ns = Namespace::new();
    let name = format!("inside_{}", std::process::id());
    let mut line = vec![towpath()];
    line.extend(
        ["run", "-q", "--inline", "--name", &name, "--", "sleep", "100"].map(str::to_owned),
    );
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let _run = ns.spawn(&line);
    let ask = || ns.run(&[&towpath(), "ip", "--name", &name, "addr"]);
    eventually("the run is there", || ask().code() != 1);
    let output = ask();
    assert_eq!(output.code(), 2);
    assert!(output.stderr.contains("(--inline)"), "{}", output.stderr);
}
