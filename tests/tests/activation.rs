//! Socket activation: sockets passed to `towpath run`, as by systemd and inetd, are either passed
//! on to PROGRAM or become published ports.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use towpath_tests::{PATIENCE, Process, eventually, program, towpath};

/// Prints the variables that sd_listen_fds(3) reads, and the kinds of the descriptors.
const LOOKS: &str = "
import os, socket
n = int(os.environ.get('LISTEN_FDS', '0'))
print('own' if os.environ.get('LISTEN_PID') == str(os.getpid()) else 'not own', n,
      os.environ.get('LISTEN_FDNAMES'), end='')
for fd in range(3, 3 + n):
    s = socket.socket(fileno=os.dup(fd))
    print(' ', s.getsockname()[1], end='')
print(flush=True)
";

/// Starts a launcher that executes towpath in its own place.
fn launch(names: &str, kinds: &[&str], line: &[&str]) -> Process {
    let launcher = program("activation/launch.py");
    let mut words = vec!["python3", &launcher, names];
    words.extend(kinds);
    words.push("--");
    words.extend(line);
    Process::spawn(&words)
}

fn run_with<'a>(towpath: &'a str, options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let mut line = vec![towpath, "run", "-q"];
    line.extend(options);
    line.push("--");
    line.extend(command);
    line
}

/// Returns the ports of the launcher's sockets.
fn ports(process: &Process, count: usize) -> Vec<u16> {
    let mut all = Vec::new();
    eventually("ports are told", || {
        all = process.stdout().lines().map_while(|line| line.parse().ok()).collect();
        all.len() == count
    });
    all
}

/// Options under which each test runs: one shard, two shards, and an engine in PROGRAM's process.
const HOSTINGS: [&[&str]; 3] = [&[], &["--shards", "2"], &["--inline"]];

fn ask_tcp(at: SocketAddr) -> String {
    let mut client = TcpStream::connect(at).expect("it listens all the time");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.write_all(b"hello").expect("room");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    answer
}

fn ask_udp(at: SocketAddr) -> String {
    let any = if at.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let client = UdpSocket::bind(any).expect("a port");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.send_to(b"hello", at).expect("sent");
    let mut answer = [0; 100];
    let (len, from) = client.recv_from(&mut answer).expect("an answer");
    assert_eq!(from, at);
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

#[test]
fn a_program_finds_the_sockets_as_without_towpath() {
    let towpath = towpath();
    for options in HOSTINGS {
        // Started directly, and through a shell that executes the program.
        let direct = run_with(&towpath, options, &["python3", "-c", LOOKS]);
        let shell = run_with(&towpath, options, &["sh", "-c", "exec python3 -c \"$0\"", LOOKS]);
        for line in [direct, shell, vec!["python3", "-c", LOOKS]] {
            let process = launch("web:dns", &["tcp4", "udp4"], &line);
            let told = ports(&process, 2);
            let out = process.wait(PATIENCE).ok();
            let wanted = format!("own 2 web:dns  {}  {}", told[0], told[1]);
            assert_eq!(out.stdout.lines().last(), Some(wanted.as_str()), "{line:?}");
        }
    }
}

#[test]
fn a_socket_that_is_not_ours_is_left_to_whom_it_is_for() {
    // LISTEN_PID is that of the parent shell, so sd_listen_fds(3) ignores the sockets, on the
    // kernel as well.
    let towpath = towpath();
    for prefix in [format!("{towpath} run -q --"), String::new()] {
        let script = format!("{prefix} python3 -c \"$0\"; true");
        let process = launch("-", &["tcp4"], &["sh", "-c", &script, LOOKS]);
        let out = process.wait(PATIENCE).ok();
        assert!(out.stdout.lines().last().unwrap_or_default().starts_with("not own 1 None"));
    }
}

#[test]
fn passed_sockets_are_published_ports() {
    let (towpath, server) = (towpath(), program("activation/server.py"));
    for options in HOSTINGS {
        let mut all = options.to_vec();
        all.extend(["-p", "fd:3:80", "-p", "fd:dns:53/udp"]);
        let line = run_with(&towpath, &all, &["python3", &server, "4", "2"]);
        let process = launch("web:left:dns", &["tcp4", "tcp4", "udp4"], &line);
        let told = ports(&process, 3);
        let at = |n: usize| SocketAddr::from(([127, 0, 0, 1], told[n]));
        // Connect at once: the client waits in the backlog until the program listens.
        assert_eq!(ask_tcp(at(0)), "tcp hello of 10.0.2.2", "{options:?}");
        assert_eq!(ask_udp(at(2)), "udp hello of 10.0.2.2", "{options:?}");
        let out = process.wait(PATIENCE).ok();
        // The socket in the middle is passed on to PROGRAM, renumbered as the only one.
        assert_eq!(out.stdout.lines().last(), Some("handed 1 left True"), "{options:?}");
    }
}

#[test]
fn sockets_of_ipv6_and_of_both_families() {
    let (towpath, server) = (towpath(), program("activation/server.py"));
    for options in HOSTINGS {
        let mut all = options.to_vec();
        all.extend(["-p", "fd:web:80", "-p", "fd:dns:53"]);
        let line = run_with(&towpath, &all, &["python3", &server, "6", "6"]);
        let kinds = ["tcp6", "both", "udp6", "dual"];
        let process = launch("web:web:dns:dns", &kinds, &line);
        let told = ports(&process, 4);
        let v4 = |n: usize| SocketAddr::from(([127, 0, 0, 1], told[n]));
        let v6 = |n: usize| SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], told[n]));
        for at in [v6(0), v6(1), v4(1)] {
            assert!(ask_tcp(at).starts_with("tcp hello of "), "{options:?} {at}");
        }
        for at in [v6(2), v6(3), v4(3)] {
            assert!(ask_udp(at).starts_with("udp hello of "), "{options:?} {at}");
        }
        let out = process.wait(PATIENCE).ok();
        assert_eq!(out.stdout.lines().last(), Some("handed None None False"), "{options:?}");
    }
}

#[test]
fn clients_wait_while_the_program_does_not_listen() {
    let towpath = towpath();
    // After the run the socket is systemd's again: it still listens, and only O_NONBLOCK has
    // changed.
    let script = "
import os, socket, subprocess, sys
l = socket.create_server(('127.0.0.1', 0))
os.dup2(l.fileno(), 3)
serve = \"import socket; s = socket.create_server(('0.0.0.0', 80)); \" \\
        \"c = s.accept()[0]; c.sendall(b'hi'); c.close()\"
for n in range(2):
    c = socket.create_connection(l.getsockname())
    line = [sys.argv[1], 'run', '-q', '-p', 'fd:3:80', '--', sys.executable, '-c', serve]
    subprocess.run(line, pass_fds=[3], check=True)
    print(c.recv(9))
print(l.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN),
      l.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == bytes(8))
";
    let out = Process::spawn(&["python3", "-c", script, &towpath]).wait(PATIENCE).ok();
    assert_eq!(out.stdout, "b'hi'\nb'hi'\n1 True\n");
}

#[test]
fn what_cannot_be_a_port_is_refused() {
    let towpath = towpath();
    let cases = [
        ("unix", "fd:3:80", "-p fd:3:80: this descriptor is a Unix socket"),
        ("pipe", "fd:3:80", "this descriptor is not a socket"),
        ("udp4", "fd:3:80/tcp", "is a socket of UDP"),
        ("tcp4", "fd:9:80", "this descriptor is not open"),
        ("tcp4", "fd:web:80", "was handed no socket of this name"),
    ];
    for (kind, publish, wanted) in cases {
        let line = run_with(&towpath, &["-p", publish], &["true"]);
        let out = launch("other", &[kind], &line).wait(PATIENCE);
        assert_eq!(out.code(), 125, "{publish}: {}", out.stderr);
        assert!(out.stderr.contains(wanted), "{publish}: {}", out.stderr);
    }
    let line = run_with(&towpath, &["-p", "fd:3:80", "-p", "fd:other:81"], &["true"]);
    let out = launch("other", &["tcp4"], &line).wait(PATIENCE);
    assert!(out.stderr.contains("is published already"), "{}", out.stderr);
}

#[test]
fn standard_input_can_be_a_connection() {
    let towpath = towpath();
    let script = "
import os, socket, subprocess, sys
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname())
a, _ = l.accept()
program = \"import socket; s = socket.socket(fileno=0); \" \\
          \"print(s.getpeername()[0], s.recv(9).decode())\"
c.sendall(b'hi')
subprocess.run([*sys.argv[1:], sys.executable, '-c', program], stdin=a, stdout=a, check=True)
a.close()
print(c.recv(99))
";
    for options in HOSTINGS {
        let mut line = vec!["python3", "-c", script, &towpath, "run", "-q"];
        line.extend(options);
        line.push("--");
        let out = Process::spawn(&line).wait(PATIENCE).ok();
        assert_eq!(out.stdout, "b'127.0.0.1 hi\\n'\n", "{options:?}");
    }
}
