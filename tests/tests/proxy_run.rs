//! `towpath proxy run`: programs of an unprivileged user that cannot be preloaded, in a network
//! namespace. The tests start as root and become that user; skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use towpath_tests::{
    Namespace, Output, PATIENCE, Process, Scratch, eventually, program, towpath, wait_for_port,
};

/// A host with a page, a nameserver and an unprivileged user that has towpath.
struct Lab {
    host: Namespace,
    folder: Scratch,
    /// Path of a copy, because the user may not be able to access the build directory.
    towpath: String,
    _servers: Vec<Process>,
}

/// Creates /dev/net/tun with its usual mode in a mount namespace, and changes the user.
const AS_USER: &str = "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && \
    exec setpriv --reuid 1234 --regid 1234 --clear-groups \"$@\"";

/// Nameserver that resolves page.example to the gateway.
const NAMESERVER: &str = "import socket\n\
    s=socket.socket(2,2); s.bind(('127.0.0.1',53))\n\
    while True:\n\
    \x20q,a=s.recvfrom(999); end=q.index(b'\\0',12)+5; kind=q[end-3]\n\
    \x20known=q[12:end-4]==b'\\4page\\7example\\0'\n\
    \x20answer={1:b'\\0\\4\\n\\0\\2\\2',28:b'\\0\\x10\\xfd\\0\\0\\2'+bytes(11)+b'\\2'}.get(kind)\n\
    \x20has=known and answer\n\
    \x20r=q[:2]+(b'\\x81\\x80' if known else b'\\x81\\x83')+b'\\0\\1\\0'\n\
    \x20r+=bytes([1 if has else 0])+bytes(4)+q[12:end]\n\
    \x20if has: r+=b'\\xc0\\x0c\\0'+bytes([kind])+b'\\0\\1\\0\\0\\0\\1'+answer\n\
    \x20s.sendto(r,a)";

const TCP_V4: &str = "http://10.0.2.2:7801/";
const TCP_V6: &str = "http://[fd00:2::2]:7801/";

impl Lab {
    /// Creates the host; None without root.
    fn new() -> Option<Self> {
        let host = Namespace::new();
        if host.name().is_none() {
            eprintln!("left out: needs root");
            return None;
        }
        let folder = Scratch::new();
        folder.write("index.html", "a page\n");
        let own = folder.file("towpath");
        std::fs::copy(towpath(), &own).expect("a copy of towpath");
        let root = folder.path().to_str().expect("plain");
        let page = ["python3", "-m", "http.server", "-b", "::", "-d", root, "7801"];
        let servers = vec![host.spawn(&page), host.spawn(&["python3", "-c", NAMESERVER])];
        wait_for_port(&host, "127.0.0.1", 7801);
        eventually("the nameserver", || host.shell("ss -lun | grep -q 127.0.0.1:53").success());
        Some(Self { towpath: own, host, folder, _servers: servers })
    }

    fn start(&self, options: &[&str], line: &[&str]) -> Process {
        let mut all = vec!["unshare", "-m", "sh", "-c", AS_USER, "sh"];
        all.extend([self.towpath.as_str(), "proxy", "run", "--dns", "127.0.0.1"]);
        all.extend(options);
        all.push("--");
        all.extend(line);
        self.host.spawn(&all)
    }

    fn run(&self, options: &[&str], line: &[&str]) -> Output {
        self.start(options, line).wait(PATIENCE)
    }

    /// Starts a program that sleeps. Returns its process id and its network namespace.
    fn sleeper(&self) -> (Process, i32, String) {
        let script = "readlink /proc/self/ns/net; echo $$; exec sleep 1000";
        let run = self.start(&[], &["sh", "-c", script]);
        eventually("the program", || run.stdout().lines().count() == 2);
        let said = run.stdout();
        let (namespace, pid) = said.trim().split_once('\n').expect("two lines");
        (run, pid.parse().expect("a number"), namespace.to_owned())
    }

    /// Checks that no process is left in the namespace, and that the host has no device of the run.
    fn nothing_is_left(&self, namespace: &str) {
        // Ignore errors: a process may end while its link is read.
        let list = "readlink /proc/[0-9]*/ns/net; true";
        let is_empty = || !self.host.shell(list).ok().stdout.contains(namespace);
        eventually("nothing is left", is_empty);
        let seen = self.host.shell("ip -o link; cat /proc/self/mountinfo").ok().stdout;
        assert!(!seen.contains("tap0") && !seen.contains(" - tmpfs towpath"), "{seen}");
    }
}

#[test]
fn a_static_program_fetches_pages_and_is_its_user() {
    let Some(lab) = Lab::new() else { return };
    for url in [TCP_V4, TCP_V6, "http://page.example:7801/"] {
        let page = lab.run(&[], &["busybox", "wget", "-q", "-O-", url]);
        assert_eq!(page.ok().stdout, "a page\n", "{url}");
    }
    let said = lab.run(&[], &["sh", "-c", "id -u; id -g; cat /etc/resolv.conf"]).ok().stdout;
    assert!(said.starts_with("1234\n1234\nnameserver 10.0.2.3\nnameserver fd00:2::3\n"), "{said}");
    // The loopback inside is not that of the host.
    let script = "busybox wget -q -O- http://127.0.0.1:7801/ || echo apart";
    assert_eq!(lab.run(&[], &["sh", "-c", script]).ok().stdout, "apart\n");
}

/// Replaces files in a host's /etc by rename(2) while a program runs, as network managers do.
const REPLACED: &str = "mount --make-rprivate / && mount -t tmpfs none $2 && cp -a /etc/. $2/
    mount --move $2 /etc || exit 9
    rm -f /etc/resolv.conf; real=/etc/resolv.conf
    if [ $3 = link ]; then
        real=/etc/real/conf; mkdir /etc/real; ln -s real/conf /etc/resolv.conf
    fi
    echo 'nameserver 127.0.0.53' > $real
    $1 proxy run -q --add-host x.example:192.0.2.9 -- sh -c '
        has() { grep -q \"$1\" $2; }
        both() { has 10.0.2.3 /etc/resolv.conf && has x.example /etc/hosts; }
        both || exit 8; touch /etc/up; until [ -e /etc/done ]; do sleep 0.05; done
        until both; do sleep 0.05; done; cat /etc/resolv.conf' & run=$!
    until [ -e /etc/up ]; do kill -0 $run || exit 7; sleep 0.05; done
    for file in $real /etc/hosts; do cp $file /etc/new; mv -f /etc/new $file; done
    if [ $3 = unlinked ]; then rm -f $real; sleep 0.1; echo 'nameserver 127.0.0.53' > $real; fi
    touch /etc/done; wait $run";

#[test]
fn own_files_stay_when_the_host_replaces_its_own() {
    let Some(lab) = Lab::new() else { return };
    for how in ["file", "link", "unlinked"] {
        let folder = Scratch::new();
        let etc = folder.path().to_str().expect("plain");
        let words = ["unshare", "-m", "sh", "-c", REPLACED, "sh", &lab.towpath, etc, how];
        let said = lab.host.run(&words).ok().stdout;
        assert!(said.starts_with("nameserver 10.0.2.3\n"), "{how}: {said}");
    }
}

#[test]
fn clients_of_published_ports_reach_the_program() {
    let Some(lab) = Lab::new() else { return };
    let root = lab.folder.path().to_str().expect("plain");
    let options = ["-p", "18080-18081:80-81", "-p", "15353:53/udp"];
    let udp = "import socket\ns=socket.socket(2,2); s.bind(('0.0.0.0',53))\n\
        d,a=s.recvfrom(99); s.sendto(d[::-1],a)";
    let script = format!(
        "busybox httpd -p 80 -h {root}; busybox httpd -p 81 -h {root}; exec python3 -c \"{udp}\""
    );
    let run = lab.start(&options, &["sh", "-c", &script]);
    for port in [18080, 18081] {
        let url = format!("http://127.0.0.1:{port}/index.html");
        eventually("a page", || {
            lab.host.run(&["curl", "-sS", "-m", "30", &url]).stdout == "a page\n"
        });
    }
    // Retry, because the server may not have started yet.
    let ask = "import socket\n\
        s=socket.socket(2,2); s.settimeout(1); s.connect(('127.0.0.1',15353))\n\
        while True:\n\
        \x20try: s.send(b'abc'); print(s.recv(99).decode()); break\n\
        \x20except OSError: pass";
    assert_eq!(lab.host.run(&["python3", "-c", ask]).ok().stdout, "cba\n");
    drop(run);
}

/// Continues to the next line of a script when the test creates a file named by its number.
const STEPS: &str = "
import os, socket, sys, time
def step(n):
    print(n, flush=True)
    while not os.path.exists(sys.argv[1] + '/' + str(n)): time.sleep(0.01)
def tcp(ip):
    s = socket.create_server((ip, 80), family=10 if ':' in ip else 2); return s
def udp(ip):
    s = socket.socket(10 if ':' in ip else 2, 2); s.bind((ip, 53)); return s
";

/// Prints the outcome of a client on the host.
const CLIENT: &str = "
import socket, sys
kind, family, host = (1, 2)[sys.argv[1] == 'udp'], (2, 10)[':' in sys.argv[2]], sys.argv[2]
s = socket.socket(family, kind); s.settimeout(30)
try:
    s.connect((host, int(sys.argv[3])))
    if kind == 2: s.send(b'x'); s.settimeout(0.3); s.recv(9)
    print('in')
except TimeoutError: print('in')
except ConnectionRefusedError: print('refused')
";

/// A run with ports that are opened and closed.
struct Ports {
    lab: Lab,
    run: Process,
}

impl Ports {
    fn new(script: &str) -> Option<Self> {
        let lab = Lab::new()?;
        let folder = lab.folder.path().to_str().expect("plain").to_owned();
        let ports = ["127.0.0.1:18080:80", "[::1]:18080:80", "127.0.0.1:15353:53/udp"];
        let options: Vec<_> = ports.iter().flat_map(|port| ["-p", port]).collect();
        let script = format!("{STEPS}{script}");
        let run = lab.start(&options, &["python3", "-c", &script, &folder]);
        Some(Self { lab, run })
    }

    /// Waits until the program has reached a step.
    fn at(&self, step: u32) {
        let wanted = step.to_string();
        eventually("the step", || self.run.stdout().lines().last() == Some(&wanted));
    }

    /// Lets the program continue to another step.
    fn next(&self, step: u32) {
        self.lab.folder.write(&(step - 1).to_string(), "");
        self.at(step);
    }

    fn client(&self, kind: &str, host: &str, port: u16) -> String {
        let port = port.to_string();
        let output = self.lab.host.run(&["python3", "-c", CLIENT, kind, host, &port]).ok();
        output.stdout.trim().to_owned()
    }

    /// Returns the outcomes of clients over TCP with IPv4 and IPv6, and over UDP.
    fn clients(&self) -> [String; 3] {
        [("tcp", "127.0.0.1", 18080), ("tcp", "::1", 18080), ("udp", "127.0.0.1", 15353)]
            .map(|(kind, host, port)| self.client(kind, host, port))
    }

    fn become_all(&self, wanted: &str) {
        let all = || self.clients().iter().all(|fate| fate == wanted);
        eventually(&format!("clients are {wanted}"), all);
    }
}

#[test]
fn clients_are_refused_while_the_program_does_not_listen() {
    let script = "
step(1)
for n, ip in (2, '0.0.0.0'), (4, '::'):
    t, u = tcp(ip), udp(ip); step(n)
    t.close(); u.close(); step(n + 1)
";
    let Some(ports) = Ports::new(script) else { return };
    ports.at(1);
    assert_eq!(ports.clients(), ["refused"; 3], "before");
    for step in [2, 4] {
        ports.next(step);
        ports.become_all("in");
        ports.next(step + 1);
        ports.become_all("refused");
    }
    drop(ports.run);
}

#[test]
fn a_port_is_refused_unless_its_clients_reach_the_listener() {
    let script = "
step(1)
t, u = tcp('127.0.0.1'), udp('127.0.0.1'); step(2)
t.close(); u.close(); t, u = tcp('10.0.2.15'), udp('10.0.2.15'); step(3)
t.close(); u.close(); t = socket.socket(); t.bind(('0.0.0.0', 80)); step(4)
for n, device in (5, b'lo'), (6, b'tap0'):
    t.close(); u.close(); t, u = tcp('0.0.0.0'), udp('0.0.0.0')
    for s in t, u: s.setsockopt(1, 25, device)
    step(n)
";
    let Some(ports) = Ports::new(script) else { return };
    ports.at(1);
    ports.next(2);
    // Both ports have been polled when both messages have appeared.
    let told = |port: &str| ports.run.stderr().contains(&format!("clients of {port} are refused"));
    eventually("a word", || told("127.0.0.1:18080") && told("127.0.0.1:15353/udp"));
    assert_eq!(ports.clients(), ["refused"; 3], "on its loopback");
    ports.next(3);
    ports.become_all("in");
    // The next states: bound but not listening, and bound to loopback.
    for (step, wanted) in [(4, "refused"), (5, "refused"), (6, "in")] {
        ports.next(step);
        ports.become_all(wanted);
    }
}

/// As `nc -u -l`, which connects to its first client.
#[test]
fn a_udp_server_that_connects_to_its_client_keeps_it() {
    let script = "
u = udp('::'); step(1)
d, a = u.recvfrom(9); u.connect(a)
while d: u.send(d[::-1]); d = u.recv(9)
u.close(); step(2)
";
    let Some(ports) = Ports::new(script) else { return };
    ports.at(1);
    ports.lab.folder.write("1", "");
    // The sockets are polled between these datagrams.
    let client = "
import socket, time
s = socket.socket(2, 2); s.settimeout(30); s.connect(('127.0.0.1', 15353))
def ask():
    s.send(b'abc'); assert s.recv(9) == b'cba'
while True:
    try: ask(); break
    except ConnectionRefusedError: time.sleep(0.01)
for _ in range(25): time.sleep(0.02); ask()
s.send(b'')
print('kept')
";
    assert_eq!(ports.lab.host.run(&["python3", "-c", client]).ok().stdout, "kept\n");
    ports.at(2);
    eventually("an end", || ports.client("udp", "127.0.0.1", 15353) == "refused");
}

#[test]
fn the_hosts_loopback_may_be_closed() {
    let Some(lab) = Lab::new() else { return };
    for url in [TCP_V4, TCP_V6] {
        let wget = ["busybox", "wget", "-q", "-O-", url];
        let refused = lab.run(&["--no-host-loopback"], &wget);
        assert_eq!(refused.code(), 1);
        assert!(refused.stderr.contains("Connection refused"), "{}", refused.stderr);
    }
}

#[test]
fn the_exit_status_and_signals_pass() {
    let Some(lab) = Lab::new() else { return };
    assert_eq!(lab.run(&[], &["sh", "-c", "exit 7"]).code(), 7);
    assert_eq!(lab.run(&[], &["no-such-program"]).code(), 127);
    let script = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let run = lab.start(&[], &["sh", "-c", script]);
    eventually("the program", || run.stdout().contains("ready"));
    let output = run.stop();
    assert_eq!((output.code(), output.stdout.as_str()), (3, "ready\nasked\n"));
}

#[test]
fn bytes_written_before_the_end_arrive() {
    let Some(lab) = Lab::new() else { return };
    let count = "import socket\ns=socket.create_server(('127.0.0.1',7805)); c,_=s.accept(); n=0\n\
        while d:=c.recv(65536): n+=len(d)\nprint(n)";
    let server = lab.host.spawn(&["python3", "-c", count]);
    eventually("the server", || lab.host.shell("ss -ltn | grep -q :7805").success());
    let write =
        "import socket\ns=socket.create_connection(('10.0.2.2',7805)); s.sendall(b'x'*3000000)";
    lab.run(&[], &["python3", "-c", write]).ok();
    assert_eq!(server.wait(PATIENCE).ok().stdout, "3000000\n");
}

#[test]
fn a_killed_towpath_takes_the_program_along() {
    let Some(lab) = Lab::new() else { return };
    let (run, pid, namespace) = lab.sleeper();
    run.signal(Signal::KILL);
    run.wait(PATIENCE);
    eventually("its end", || !Path::new(&format!("/proc/{pid}")).exists());
    lab.nothing_is_left(&namespace);
}

#[test]
fn a_killed_program_takes_towpath_along() {
    let Some(lab) = Lab::new() else { return };
    let (run, pid, namespace) = lab.sleeper();
    kill_process(Pid::from_raw(pid).expect("positive"), Signal::KILL).expect("killed");
    let output = run.wait(PATIENCE);
    assert_eq!(output.status.signal(), Some(9), "{}", output.stderr);
    lab.nothing_is_left(&namespace);
}

#[test]
fn a_killed_guardian_ends_the_run() {
    let Some(lab) = Lab::new() else { return };
    let (run, pid, namespace) = lab.sleeper();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let behind = stat.rsplit(')').next().expect("the rest").split_whitespace().nth(1);
    let guardian: i32 = behind.expect("a parent").parse().expect("a number");
    kill_process(Pid::from_raw(guardian).expect("positive"), Signal::KILL).expect("killed");
    let output = run.wait(PATIENCE);
    assert_eq!(output.code(), 125, "{}", output.stderr);
    assert!(output.stderr.contains("which guards the run, was killed"), "{}", output.stderr);
    lab.nothing_is_left(&namespace);
}

#[test]
fn set_user_id_has_no_effect() {
    let Some(lab) = Lab::new() else { return };
    let id = lab.folder.file("id");
    std::fs::copy("/usr/bin/id", &id).expect("a copy");
    std::fs::set_permissions(&id, PermissionsExt::from_mode(0o4755)).expect("set-user-ID");
    assert_eq!(lab.run(&[], &[&id, "-u"]).ok().stdout, "1234\n");
}

#[test]
fn its_flows_are_shown() {
    let Some(lab) = Lab::new() else { return };
    let wait = "import socket\ns=socket.create_connection(('10.0.2.2',7801)); s.recv(1)";
    let run = lab.start(&[], &["python3", "-c", wait]);
    let become_user = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"];
    let ss = [&become_user[..], &[&lab.towpath, "ss", "-tn"]].concat();
    eventually("the flow", || {
        let shown = lab.host.run(&ss).stdout;
        shown.contains("10.0.2.15:") && shown.contains("10.0.2.2:7801")
    });
    drop(run);
}

#[test]
fn packets_are_recorded_and_counted() {
    let Some(lab) = Lab::new() else { return };
    let file = lab.folder.file("packets.pcapng");
    let options = ["--pcap", &file, "--stats=json"];
    let output = lab.run(&options, &["busybox", "wget", "-q", "-O-", TCP_V4]).ok();
    let line = output.stderr.lines().find(|line| line.starts_with('{')).expect("JSON");
    let all: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(all["gateway"]["tcp_connected"], 1, "{line}");
    assert!(all["tap"]["rx_frames"].as_u64() > Some(4), "{line}");
    let bytes = std::fs::read(&file).expect("a capture");
    assert!(bytes.windows(7).any(|window| window == b"a page\n"));
}

#[test]
fn forbidden_user_namespaces_are_named() {
    let Some(lab) = Lab::new() else { return };
    // The limit belongs to a user namespace, and applies to namespaces below it.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
        exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \"$@\"";
    let line = ["unshare", "-Ur", "sh", "-c", script, "sh", &lab.towpath, "proxy", "run", "true"];
    let output = lab.host.run(&line);
    assert_eq!(output.code(), 125, "{}", output.stderr);
    assert!(output.stderr.contains("user.max_user_namespaces is 0"), "{}", output.stderr);
}

#[test]
fn root_needs_no_user_namespace() {
    let Some(lab) = Lab::new() else { return };
    let script = format!("cat /proc/self/uid_map; busybox wget -q -O- {TCP_V4}");
    let line = [lab.towpath.as_str(), "proxy", "run", "--", "sh", "-c", &script];
    let output = lab.host.run(&line).ok();
    assert!(output.stdout.contains("4294967295\na page"), "{}", output.stdout);
}

mod nightly {
    use super::*;

    /// Slow, because Go first compiles its standard library.
    #[test]
    fn a_go_program_fetches_pages() {
        let Some(lab) = Lab::new() else { return };
        let (source, binary) = (program("fetch.go"), lab.folder.file("fetch"));
        let built = std::process::Command::new("go")
            .args(["build", "-o", &binary, &source])
            .env("CGO_ENABLED", "0")
            .status();
        match built {
            Ok(status) => assert!(status.success(), "go build: {status}"),
            Err(error) => return eprintln!("left out: go: {error}"),
        }
        let refused = lab.host.run(&[&lab.towpath, "run", "--", &binary]);
        assert_eq!(refused.code(), 125);
        assert!(refused.stderr.contains("towpath proxy run -- "), "{}", refused.stderr);
        let pages = lab.run(&[], &[&binary, TCP_V4, TCP_V6, "http://page.example:7801/"]);
        assert_eq!(pages.ok().stdout, "a page\na page\na page\n");
    }
}
