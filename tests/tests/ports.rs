//! Published ports are opened and closed with the program's sockets. The host's kernel refuses
//! clients while no socket listens inside, and accepts them as soon as listen(2) has returned.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use rustix::process::{Pid, Signal, kill_process};
use towpath_tests::{PATIENCE, Process, Scratch, eventually, towpath};

/// Executes the contents of files in the order in which they appear in a directory.
const OBEYS: &str = "
import os, socket, sys, time
folder, n, names = sys.argv[1], int(sys.argv[2]), {'os': os, 'socket': socket}
while True:
    step = f'{folder}/{n}'
    while not os.path.exists(step): time.sleep(0.005)
    with open(step) as file: words = file.read()
    if words == 'end': break
    exec(words, names)
    os.rename(step, step + '.done')
    n += 1
";

/// Closes a socket and calls bind(2), whose answer confirms that the engine has handled the close.
const CLOSE: &str = "s.close(); socket.socket().bind(('0.0.0.0', 0))";
const LISTEN: &str = "s = socket.create_server(('0.0.0.0', 80))";

struct Run {
    process: Process,
    folder: Scratch,
    steps: Cell<usize>,
}

impl Run {
    /// Starts programs one after the other; the steps of the second begin at 100, and so on.
    fn new(options: &[&str], programs: usize) -> Self {
        let folder = Scratch::new();
        let path = folder.path().to_str().expect("plain names").to_owned();
        let each = (0..programs).map(|n| format!("python3 -c \"$0\" \"$1\" {}", n * 100));
        let script = each.collect::<Vec<_>>().join("; ");
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options);
        line.push("--");
        match programs {
            1 => line.extend(["python3", "-c", OBEYS, &path, "0"]),
            _ => line.extend(["sh", "-c", &script, OBEYS, &path]),
        }
        Self { process: Process::spawn(&line), folder, steps: Cell::new(0) }
    }

    /// Returns the port of the host that is forwarded to `inside`, as printed at the start.
    fn host(&self, inside: &str) -> SocketAddr {
        let mut found = None;
        eventually("ports are told", || {
            let said = self.process.stderr();
            let all = said.split(", ").flat_map(|part| part.split("towpath: ")).map(str::trim);
            let pairs = all.filter_map(|pair| pair.split_once(" -> "));
            let mine = pairs.filter(|(_, to)| to.split(' ').next() == Some(inside));
            let hosts = mine.map(|(host, _)| host.trim_start_matches("http://"));
            found = hosts.map(|host| host.trim_end_matches("/udp").parse().expect(&said)).next();
            found.is_some()
        });
        found.expect("told")
    }

    /// Lets the program execute a step, and waits until it has.
    fn step(&self, words: &str) {
        let path = self.folder.path().join(self.steps.get().to_string());
        let draft = self.folder.path().join("draft");
        std::fs::write(&draft, words).expect("written");
        std::fs::rename(&draft, &path).expect("renamed");
        let done = path.with_extension("done");
        self.steps.set(self.steps.get() + 1);
        eventually(words, || done.exists());
    }

    fn end(self) {
        std::fs::write(self.folder.path().join(self.steps.get().to_string()), "end").expect("last");
        self.process.wait(PATIENCE).ok();
    }
}

fn is_refused<T>(result: std::io::Result<T>) -> bool {
    match result {
        Ok(_) => false,
        // The listener was closed while it accepted the client.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => true,
        Err(error) => panic!("neither let in nor refused: {error}"),
    }
}

fn refuses(host: SocketAddr) -> bool {
    is_refused(TcpStream::connect(host))
}

/// Checks that a client receives a line with the number of its port.
fn served(run: &Run, host: SocketAddr) {
    let mut client = TcpStream::connect(host).expect("the program listens");
    client.set_read_timeout(Some(PATIENCE)).expect("not zero");
    client.write_all(b"over the towpath").expect("room");
    run.step("c, _ = s.accept(); c.sendall(c.recv(99)); c.close()");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert_eq!(answer, "over the towpath");
}

/// Returns whether a datagram is refused. On loopback the error is available when send returns.
fn udp_refuses(host: SocketAddr) -> bool {
    let any = if host.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let client = UdpSocket::bind(any).expect("a port");
    client.connect(host).expect("nothing is sent");
    client.send(b"to nobody").expect("nothing was refused before");
    is_refused(client.send(b"to nobody"))
}

#[test]
fn clients_are_refused_unless_the_program_listens() {
    for options in [&[][..], &["--shards=2"], &["--inline"]] {
        let ports = ["-p", "127.0.0.1::80", "-p", "[::1]::81", "-p", "0.0.0.0::82"];
        let run = Run::new(&[&ports, options].concat(), 1);
        let (v4, v6) = (run.host("10.0.2.15:80"), run.host("10.0.2.15:81"));
        let mut all = run.host("10.0.2.15:82");
        all.set_ip([127, 0, 0, 1].into());
        for _ in 0..3 {
            assert!([v4, v6, all].into_iter().all(refuses), "{options:?}: before");
            run.step(LISTEN);
            served(&run, v4);
            served(&run, v4);
            assert!([v6, all].into_iter().all(refuses), "{options:?}: other ports");
            run.step(CLOSE);
            assert!(refuses(v4), "{options:?}: after");
        }
        run.step("s = socket.create_server(('::', 81), family=socket.AF_INET6)");
        served(&run, v6);
        run.step(CLOSE);
        // First a specific address of the program, then loopback, which clients do not reach.
        run.step("s = socket.create_server(('10.0.2.15', 82))");
        served(&run, all);
        run.step(CLOSE);
        run.step("s = socket.create_server(('127.0.0.1', 82))");
        assert!([v4, v6, all].into_iter().all(refuses), "{options:?}: the loopback");
        run.end();
    }
}

/// Connections established before the listener closed stay open as long as the program wants.
#[test]
fn connections_outlive_their_listener() {
    let run = Run::new(&["-p", "127.0.0.1::80"], 1);
    let host = run.host("10.0.2.15:80");
    run.step(LISTEN);
    let mut client = TcpStream::connect(host).expect("the program listens");
    run.step("c, _ = s.accept()");
    run.step(CLOSE);
    assert!(refuses(host));
    run.step("c.sendall(b'still here'); c.close()");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert_eq!(answer, "still here");
    run.step(LISTEN);
    served(&run, host);
    run.end();
}

#[test]
fn datagrams_are_refused_unless_the_program_takes_them() {
    for options in [&[][..], &["--shards=2"], &["--inline"]] {
        let ports = ["-p", "127.0.0.1::53/udp", "-p", "[::1]::54/udp"];
        let run = Run::new(&[&ports, options].concat(), 1);
        let hosts = [run.host("10.0.2.15:53"), run.host("10.0.2.15:54")];
        for _ in 0..3 {
            for (host, port) in hosts.into_iter().zip([53, 54]) {
                assert!(udp_refuses(host), "{options:?}: {port} before");
                let bind = format!(
                    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
                     s.bind(('0.0.0.0', {port}))"
                );
                run.step(&bind);
                let any = if host.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
                let client = UdpSocket::bind(any).expect("a port");
                client.set_read_timeout(Some(PATIENCE)).expect("not zero");
                client.connect(host).expect("nothing is sent");
                client.send(b"over the towpath").expect("it takes them");
                // The answer is sent although the socket is closed immediately afterwards.
                run.step(&format!("data, peer = s.recvfrom(99); s.sendto(data, peer); {CLOSE}"));
                let mut answer = [0; 99];
                let len = client.recv(&mut answer).expect("an answer");
                assert_eq!(&answer[..len], b"over the towpath", "{options:?}: {port}");
                assert!(udp_refuses(host), "{options:?}: {port} after");
            }
        }
        run.end();
    }
}

#[test]
fn a_port_ends_with_its_process_and_begins_with_the_next_one() {
    for options in [&[][..], &["--shards=2"]] {
        let ports = ["-p", "127.0.0.1::80", "-p", "127.0.0.1::53/udp"];
        let run = Run::new(&[&ports, options].concat(), 3);
        let (tcp, udp) = (run.host("10.0.2.15:80"), run.host("10.0.2.15:53"));
        let refused = || refuses(tcp) && udp_refuses(udp);
        for program in 0..3 {
            run.steps.set(program * 100);
            assert!(refused(), "{options:?}: before program {program}");
            run.step(LISTEN);
            run.step("u = socket.socket(type=socket.SOCK_DGRAM); u.bind(('0.0.0.0', 53))");
            served(&run, tcp);
            assert!(!udp_refuses(udp), "{options:?}: program {program}");
            if program == 2 {
                break;
            }
            let file = run.folder.path().join("pid");
            run.step(&format!("open({file:?}, 'w').write(str(os.getpid()))"));
            let pid = std::fs::read_to_string(file).expect("written").parse().expect("a number");
            let pid = Pid::from_raw(pid).expect("not zero");
            kill_process(pid, Signal::KILL).expect("it is ours");
            eventually("the port ends with its process", refused);
        }
        run.end();
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_at_the_start() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let publish = format!("{}:80", other.local_addr().expect("bound"));
    for options in [&[][..], &["--inline"]] {
        let towpath = towpath();
        let line = [&[&*towpath, "run", "-p", &publish], options, &["true"]].concat();
        let ran = Process::spawn(&line).wait(PATIENCE);
        assert_eq!(ran.code(), 125, "{}", ran.stderr);
        assert!(ran.stderr.contains(&publish[..publish.len() - 3]), "{}", ran.stderr);
    }
}
