//! The command line as a user sees it: exit codes, messages, signals.

use crate::device;
use crate::fresh;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn towpath(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(words).stdin(Stdio::null());
    command
}

fn output(words: &[&str]) -> Output {
    towpath(words).output().expect("towpath starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the command. Checks the exit code, and that the message contains all of `wanted`.
fn refused(words: &[&str], code: i32, wanted: &[&str]) {
    let output = output(words);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {message}");
    for word in wanted {
        assert!(message.contains(word), "{words:?}: {word:?} is missing in: {message}");
    }
    assert!(output.stdout.is_empty(), "{words:?}");
}

/// Starts the command, and waits for the line `ready` on its standard output.
fn ready(words: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = towpath(words).stdout(Stdio::piped()).spawn().expect("towpath starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    (child, lines)
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).expect("it runs");
}

/// Returns an address of this host with a port on which no program listens. Only this process uses
/// the address, so that no other test takes the port meanwhile.
fn free_address() -> SocketAddrV4 {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let listener = TcpListener::bind((Ipv4Addr::new(127, a + 1, b, c), 0)).expect("bind");
    match listener.local_addr().expect("bound") {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => unreachable!("it is bound to an IPv4 address"),
    }
}

#[test]
fn mistakes_on_the_command_line() {
    refused(&["rum"], 2, &["rum", "'run'"]);
    refused(&["true"], 2, &["'true' is not one", "towpath run -- true"]);
    refused(&["run", "--pubish", "1:2", "true"], 125, &["--pubish", "--publish"]);
    refused(&["run", "-p", "80x:80", "true"], 125, &["80x", "1 to 65535"]);
    refused(&["run", "--address", "10.0.2.15/33", "true"], 125, &["10.0.2.15/33", "1 to 32"]);
    refused(&["run", "--stats=xml", "true"], 125, &["xml", "text", "json"]);
    refused(&["run"], 125, &["PROGRAM"]);
    refused(&["run", "--mtu", "big", "true"], 125, &["'big'", "1280 to 65535, for example 1500"]);
    refused(&["run", "--pcap-snaplen", "9", "--pcap", "x", "true"], 125, &["'9'", "64 to 262144"]);
    refused(
        &["run", "--tap", "tp-x", "--", "true"],
        127,
        &["--tap=tp-x", "tp-x: command not found"],
    );
    refused(&["run", "--tap=a/b", "true"], 125, &["a/b", "interface name"]);
    // An MTU beyond the device's maximum is refused before the device is created.
    refused(&["run", "--tap", "--mtu", "65522", "true"], 125, &["--mtu 65522", "at most 65521"]);
    refused(&["run", "--dns", "localhost", "true"], 125, &["localhost", "not an IP address"]);
    refused(
        &["run", "-p", "8080:80", "-p", "8079-8081:1-3", "true"],
        125,
        &["127.0.0.1:8080:80", "127.0.0.1:8080:2", "the same port"],
    );
    refused(&["completions", "tcsh"], 2, &["tcsh", "bash"]);
    refused(&["ss", "4194304"], 2, &["4194304"]);
}

#[test]
fn a_router_names_a_missing_namespace_before_it_opens_devices() {
    let words = ["router", "--port=a=packet:no-such-dev,10.1.0.1/24", "--sync=/no/such/namespace"];
    refused(&words, 125, &["--sync", "/no/such/namespace", "No such file"]);
}

#[test]
fn options_of_a_simulated_sender_that_a_device_replaces() {
    let words = ["--device=packet:v0", "--address=10.0.1.11/24", "--client=10.0.1.9"];
    for example in ["onoff", "tc"] {
        refused(&[&["sim", example], &words[..]].concat(), 2, &["--client", "--device"]);
    }
}

#[test]
fn programs_that_cannot_run() {
    refused(&["run", "no-such-program"], 127, &["no-such-program", "not found in PATH"]);
    refused(&["run", "./no/such"], 127, &["./no/such", "no such file"]);
    refused(&["run", ""], 127, &["PROGRAM is empty"]);
    refused(&["run", "/"], 126, &["is a directory"]);
    refused(&["run", "/etc/passwd"], 126, &["/etc/passwd", "chmod +x"]);
}

#[test]
fn a_port_that_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = taken.local_addr().expect("bound").port();
    refused(
        &["run", "-p", &format!("{port}:80"), "true"],
        125,
        &["-p", &port.to_string(), "another HOSTPORT"],
    );
    refused(
        &["run", "-p", "192.0.2.1:8080:80", "true"],
        125,
        &["192.0.2.1", "no address of this host"],
    );
}

#[test]
fn files_that_cannot_be_had() {
    refused(
        &["run", "--pcap", "/no/such/folder/x", "true"],
        125,
        &["--pcap /no/such/folder/x", "No such file"],
    );
    let output =
        towpath(&["run", "true"]).env("TOWPATH_PRELOAD", "/no/such.so").output().expect("starts");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("/no/such.so"), "{}", stderr(&output));
}

#[test]
fn the_exit_status_is_the_programs() {
    for code in [0, 1, 3, 125, 255] {
        let output = output(&["run", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert_eq!(stderr(&output), "", "nothing to say, nothing said");
    }
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGABRT] {
        let output = output(&["run", "--", "sh", "-c", &format!("kill -{} $$", signal as i32)]);
        assert_eq!(output.status.signal(), Some(signal as i32));
        assert!(!output.status.core_dumped());
    }
}

#[test]
fn standard_streams_are_the_programs() {
    let mut command = towpath(&["run", "--", "cat"]);
    command.stdin(std::fs::File::open("/etc/passwd").expect("a file"));
    let output = command.output().expect("starts");
    assert_eq!(output.stdout, std::fs::read("/etc/passwd").expect("a file"));
}

#[test]
fn signals_are_passed_on_once() {
    let script = "n=0; trap 'n=$((n+1)); echo $n' USR1; trap 'exit $((10+n))' TERM; echo ready; \
                  while :; do sleep 0.05; done";
    let (mut child, mut lines) = ready(&["run", "--", "sh", "-c", script]);
    send(&child, Signal::SIGUSR1);
    // Wait for the first trap, because a shell may run the trap of TERM first if both signals are
    // pending.
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    assert_eq!(line, "1\n");
    send(&child, Signal::SIGTERM);
    assert_eq!(child.wait().expect("ended").code(), Some(11));
}

#[test]
fn the_programs_limits_and_mask_are_as_they_were() {
    let show = "echo $(ulimit -n) $(grep -E 'SigBlk|SigIgn' /proc/self/status)";
    let directly =
        Command::new("sh").args(["-c", &format!("ulimit -Sn 500; {show}")]).output().expect("sh");
    let run = format!("ulimit -Sn 500; exec {} run -- sh -c \"$0\"", env!("CARGO_BIN_EXE_towpath"));
    let within = Command::new("sh").args(["-c", &run, show]).output().expect("sh");
    assert_eq!(String::from_utf8_lossy(&within.stdout), String::from_utf8_lossy(&directly.stdout));
}

#[test]
fn the_program_finds_its_environment() {
    let output =
        towpath(&["run", "--", "env"]).env("LD_PRELOAD", "").env("UV_USE_IO_URING", "1").output();
    let text = String::from_utf8(output.expect("starts").stdout).expect("text");
    assert!(
        text.lines().any(|line| line.starts_with("LD_PRELOAD=/") && line.ends_with(".so")),
        "{text}"
    );
    assert!(text.lines().any(|line| line.starts_with("TOWPATH_CONTROL=")), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("UV_USE_IO_URING=")).count(), 1);
    assert!(text.contains("UV_USE_IO_URING=0"));
}

#[test]
fn the_run_is_announced_unless_quiet() {
    let free = free_address();
    let publish = format!("{free}:80");
    let said = stderr(&output(&["run", "-p", &publish, "true"]));
    assert_eq!(said, format!("towpath: http://{free} -> 10.0.2.15:80 (rootless); Ctrl-C ends\n"));
    assert_eq!(stderr(&output(&["run", "-q", "-p", &publish, "true"])), "");
}

/// Answers two connections and a datagram with the port at which each arrived.
const SERVER: &str = r#"
from socket import *
servers = [socket(AF_INET, kind) for kind in (SOCK_STREAM, SOCK_STREAM, SOCK_DGRAM)]
for server, port in zip(servers, (80, 81, 53)): server.bind(('0.0.0.0', port))
for server in servers[:2]: server.listen()
print('ready', flush=True)
for server in servers[:2]: server.accept()[0].send(str(server.getsockname()[1]).encode())
servers[2].sendto(b'53', servers[2].recvfrom(9)[1])
"#;

#[test]
fn a_port_alone_is_published_at_a_free_port_of_the_host() {
    let mut child =
        towpath(&["run", "-p", "80-81", "-p", "127.0.0.2::53/udp", "python3", "-c", SERVER])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("towpath starts");
    let line = |from: &mut dyn Read| {
        let mut line = String::new();
        BufReader::new(from).read_line(&mut line).expect("a line");
        line
    };
    let said = line(child.stderr.as_mut().expect("piped"));
    assert_eq!(line(child.stdout.as_mut().expect("piped")), "ready\n", "{said}");
    let at = |host: &str, leads_to: &str| -> SocketAddr {
        let all = said.split([' ', ',']).map(|word| word.trim_start_matches("http://"));
        let all = all.collect::<Vec<_>>();
        let found = all.windows(3).find(|words| words[1..] == ["->", leads_to]);
        let addr = found.map(|words| words[0].trim_end_matches("/udp")).expect(&said);
        assert!(addr.starts_with(host), "{said}");
        addr.parse().expect("an address")
    };
    for port in ["80", "81"] {
        let mut connection =
            TcpStream::connect(at("127.0.0.1:", &format!("10.0.2.15:{port}"))).expect("connect");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("an answer");
        assert_eq!(answer, port, "{said}");
    }
    let client = UdpSocket::bind("127.0.0.1:0").expect("bind");
    client.send_to(b"?", at("127.0.0.2:", "10.0.2.15:53")).expect("send");
    let mut answer = [0; 9];
    let n = client.recv(&mut answer).expect("an answer");
    assert_eq!(&answer[..n], b"53", "{said}");
    assert!(child.wait().expect("ended").success());
}

/// Prints the flags of eth0 by SIOCGIFFLAGS, and then by netlink. With "kernel", prints those of a
/// TUN device that the script creates.
const FLAGS: &str = r#"
import struct, sys
from fcntl import ioctl
from socket import *
SIOCGIFFLAGS, SIOCSIFFLAGS, TUNSETIFF = 0x8913, 0x8914, 0x400454ca
s = socket(AF_INET, SOCK_DGRAM)
def flags(): return struct.unpack_from('16xH', ioctl(s, SIOCGIFFLAGS, struct.pack('40s', b'eth0')))[0]
if sys.argv[1:] == ['kernel']:
    tun = open('/dev/net/tun', 'r+b', buffering=0)
    ioctl(tun, TUNSETIFF, struct.pack('16sH22x', b'eth0', 0x1001))
    ioctl(s, SIOCSIFFLAGS, struct.pack('16sH22x', b'eth0', flags() | 1))
print(hex(flags()))
n = socket(AF_NETLINK, SOCK_RAW, 0)
n.sendto(struct.pack('=IHHII B3xiII', 32, 18, 0x301, 1, 0, 0, 0, 0, 0), (0, 0))
rest = b''
while b'eth0' not in rest: rest = n.recv(65536)
while b'eth0' not in rest[:struct.unpack_from('I', rest)[0]]: rest = rest[struct.unpack_from('I', rest)[0] + 3 & ~3:]
print(hex(struct.unpack_from('24xI', rest)[0]))
"#;

/// The rootless link supports multicast, but neither broadcasts nor ARP. Java depends on these
/// flags.
#[test]
fn the_rootless_link_has_the_flags_of_a_tun_device() {
    let ran = output(&["run", "--", "python3", "-c", FLAGS]);
    // UP, POINTOPOINT, RUNNING, NOARP, MULTICAST; LOWER_UP.
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "0x10d1\n0x110d1\n", "{}", stderr(&ran));
    let mut kernel = Command::new("unshare");
    let words = ["--map-root-user", "--net", "python3", "-c", FLAGS, "kernel"];
    let kernel = kernel.args(words).output().expect("unshare is in util-linux");
    if kernel.status.success() {
        assert_eq!(kernel.stdout, ran.stdout, "as Linux says it");
    } else {
        eprintln!("left out: Linux's own TUN device: {}", stderr(&kernel));
    }
}

#[test]
fn a_server_that_listens_on_loopback_only_is_named() {
    let published = free_address();
    let script = "import os, signal, socket\nserver = socket.create_server(('127.0.0.1', 80))\n\
                  if os.fork(): os.wait()\nelse: print(os.getpid(), flush=True); signal.pause()";
    let publish = format!("{published}:80");
    let mut command = towpath(&["run", "-p", &publish, "--", "python3", "-c", script]);
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(run.stdout.take().expect("piped")).lines();
    lines.next().expect("a line").expect("the server is there");
    let error = std::net::TcpStream::connect(published).expect_err("nothing to be reached");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let mut said = BufReader::new(run.stderr.take().expect("piped")).lines();
    let hint = said.find_map(|line| line.ok().filter(|line| line.contains("are refused")));
    send(&run, Signal::SIGTERM);
    run.wait().expect("ended");
    let hint = hint.expect("a hint");
    assert!(hint.contains(" listens on 127.0.0.1:80 only, which"), "{hint}");
    assert!(hint.contains(" (process ") && hint.ends_with("let it listen on 0.0.0.0"), "{hint}");
}

#[test]
fn counters_and_capture() {
    let folder = fresh::Folder::new();
    let file = folder.path().join("capture.pcapng");
    let output = output(&["run", "--stats=json", "--pcap", &file.to_string_lossy(), "true"]);
    let text = stderr(&output);
    let value: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
    assert!(value["engine"]["turns"].as_u64() > Some(0), "{text}");
    assert!(value["gateway"]["tcp_connected"].is_u64(), "{text}");
    let capture = std::fs::read(&file).expect("a capture");
    assert_eq!(capture.get(..4), Some(&[0x0a, 0x0d, 0x0d, 0x0a][..]), "a pcapng section header");
}

#[test]
fn a_capture_can_go_to_standard_output_and_is_its_owners_in_a_file() {
    let script = "import socket\ntry: socket.create_connection(('10.0.2.2', 9))\n\
                  except ConnectionRefusedError: print('refused')";
    let ran = output(&["run", "--pcap", "-", "python3", "-c", script]);
    assert_eq!(ran.stdout.get(..4), Some(&[0x0a, 0x0d, 0x0d, 0x0a][..]), "{}", stderr(&ran));
    assert_eq!(stderr(&ran), "refused\n", "what PROGRAM prints");
    let folder = fresh::Folder::new();
    let file = folder.path().join("capture.pcapng");
    let options = ["--pcap-snaplen", "64", "--pcap-size", "600"];
    let loud = "import socket\nwith socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n  \
                for n in range(50): s.sendto(b'x' * 500, ('10.0.2.2', 9))";
    let path = file.to_string_lossy().into_owned();
    let words = [&["run"], &options[..], &["--pcap", &path, "python3", "-c", loud]].concat();
    let ran = output(&words);
    let metadata = std::fs::metadata(&file).expect("a capture");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(metadata.len() <= 600 && metadata.len() > 300, "{}", metadata.len());
    assert_eq!(stderr(&ran).matches("has reached 600 bytes").count(), 1, "{}", stderr(&ran));
    refused(&["run", "--pcap-size", "1x", "--pcap", &path, "true"], 125, &["1x", "100M"]);
}

/// Skipped if tcpdump is not installed.
#[test]
fn tcpdump_reads_captures() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        eprintln!("left out: tcpdump is not installed");
        return;
    }
    let folder = fresh::Folder::new();
    let file = folder.path().join("capture.pcapng");
    let path = file.to_string_lossy();
    // The first packet leaves through the link, and the second one is dropped on loopback.
    let script = "import socket\nfor ip in '10.0.2.2', '127.0.0.1':\n  \
                  try: socket.create_connection((ip, 9))\n  except ConnectionRefusedError: pass";
    let ran = output(&["run", "--pcap", &path, "python3", "-c", script]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    let read = Command::new("tcpdump").args(["-nr", &path]).output().expect("tcpdump");
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(read.status.success(), "{}", stderr(&read));
    assert!(text.contains("> 10.0.2.2.9: Flags [S]"), "{text}");
    assert!(text.contains("> 127.0.0.1.9: Flags [S]"), "{text}");
}

/// A FIFO without a reader accepts some bytes and then blocks. The run continues, and ends.
#[test]
fn a_capture_that_nobody_reads_stalls_nothing() {
    let script = r#"
        t=$(mktemp -d); trap 'rm -r "$t"' EXIT; mkfifo "$t/fifo"
        exec 9<>"$t/fifo"
        "$0" run --pcap "$t/fifo" -- python3 -c '
import os, socket
server = socket.create_server(("127.0.0.1", 80))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for n in range(200): s.sendto(b"x" * 1400, ("10.0.2.2", 9))
client = socket.create_connection(("127.0.0.1", 80))
print("alive", os.getpid(), flush=True)' >"$t/out" & run=$!
        until read -r word program 2>/dev/null <"$t/out"; do sleep 0.05; done
        while [ -e /proc/$program ]; do sleep 0.05; done
        # A signal before towpath knows of the program's end counts for the run, and another one for the capture.
        while kill -TERM $run 2>/dev/null; do sleep 0.1; done
        wait $run; echo $word $?"#;
    let mut command = Command::new("bash");
    let ran = command.args(["-c", script, env!("CARGO_BIN_EXE_towpath")]).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "alive 0\n", "{}", stderr(&ran));
    assert!(stderr(&ran).contains("its end was not waited for"), "{}", stderr(&ran));
}

#[test]
fn dropped_packets_are_in_the_capture_with_their_reason() {
    let folder = fresh::Folder::new();
    let file = folder.path().join("capture.pcapng");
    let script = "import socket\ntry: socket.create_connection(('127.0.0.1', 9))\n\
                  except ConnectionRefusedError: print('refused')";
    let path = file.to_string_lossy();
    let output = output(&["run", "-q", "--pcap", &path, "python3", "-c", script]);
    assert_eq!(output.stdout, b"refused\n", "{}", stderr(&output));
    let capture = std::fs::read(&file).expect("a capture");
    let comment = b"drop: tcp_no_socket";
    let at = capture.windows(comment.len()).position(|part| part == comment).expect("a comment");
    // A packet's bytes precede its options. Search for the SYN by the addresses in its IP header.
    let from = [127, 0, 0, 1, 127, 0, 0, 1];
    assert!(capture[..at].windows(8).any(|part| part == from));
}

#[test]
fn a_running_instance_answers_and_disappears() {
    let (mut child, _lines) = ready(&["run", "--", "sh", "-c", "echo ready; exec sleep 60"]);
    let pid = child.id().to_string();
    let asked = output(&["ss", "-j", "-a", &pid]);
    assert_eq!(
        (asked.status.code(), &asked.stdout[..]),
        (Some(0), &b"[]\n"[..]),
        "{}",
        stderr(&asked)
    );
    let table = output(&["ss", &pid]);
    assert!(table.stdout.starts_with(b"Netid State"), "{table:?}");
    send(&child, Signal::SIGTERM);
    assert_eq!(child.wait().expect("ended").signal(), Some(Signal::SIGTERM as i32));
    refused(&["ss", &pid], 2, &[&pid]);
}

/// Parent and child hold port 1, and only the child holds port 2. A daemon, whose parents have
/// ended, holds port 3.
#[test]
fn forked_processes_are_shown_with_what_they_hold() {
    let script = r#"
import os, signal, socket
both = socket.create_server(('127.0.0.1', 1))
read, write = os.pipe()
if not os.fork():
    only = socket.create_server(('127.0.0.1', 2))
    os.write(write, b'%d\n' % os.getpid())
    signal.pause()
child = os.read(read, 99)
if not os.fork():
    if not os.fork():
        both.close()
        server = socket.create_server(('127.0.0.1', 3))
        os.write(write, b'%d\n' % os.getpid())
        signal.pause()
    os._exit(0)
os.wait()
server = os.read(read, 99)
print('ready', os.getpid(), int(child), int(server), sep='\n', flush=True)
signal.pause()"#;
    let (mut run, lines) = ready(&["run", "--", "python3", "-c", script]);
    let pids: Vec<_> = lines.lines().take(3).map(|line| line.expect("a process id")).collect();
    let table = output(&["ss", "-ltnpH", &run.id().to_string()]);
    send(&run, Signal::SIGTERM);
    run.wait().expect("ended");
    let table = String::from_utf8_lossy(&table.stdout);
    let [parent, child, server] = &pids[..] else { panic!("{pids:?}") };
    for (port, holders) in [(1, vec![parent, child]), (2, vec![child]), (3, vec![server])] {
        let port = format!("127.0.0.1:{port} ");
        let line = table.lines().find(|line| line.contains(&port)).expect("it listens");
        let shown = line.matches(",pid=").count();
        let all = holders.iter().all(|pid| line.contains(&format!(",pid={pid})")));
        assert!(shown == holders.len() && all, "{holders:?} hold {port}in\n{table}");
    }
}

#[test]
fn background_processes_keep_the_stack() {
    let script = "(sleep 60 & echo $!); echo $$";
    let mut command = towpath(&["run", "-q", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut numbers = lines.map(|line| line.expect("text").parse::<i32>().expect("a number"));
    let [sleeper, program] = [(); 2].map(|()| numbers.next().expect("a line"));
    while std::path::Path::new(&format!("/proc/{program}")).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Give a stack that wrongly ends with PROGRAM time to end. A shorter pause only makes the test
    // weaker.
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().expect("wait").is_none(), "the stack lives on");
    send(&child, Signal::SIGINT);
    assert_eq!(child.wait().expect("ended").code(), Some(0), "PROGRAM's status");
    kill(Pid::from_raw(sleeper), None).expect_err("it has ended with the run");
}

#[test]
fn completions_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = output(&["completions", shell]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("publish"), "{shell}");
    }
}

#[test]
fn help_names_exit_codes_and_examples() {
    let text = String::from_utf8(output(&["run", "--help"]).stdout).expect("text");
    for word in
        ["Exit status:", "125", "126", "127", "TOWPATH_PRELOAD", "Examples:", "--no-host-loopback"]
    {
        assert!(text.contains(word), "{word}");
    }
    let again = String::from_utf8(output(&["help", "run"]).stdout).expect("text");
    assert_eq!(again, text, "towpath help run");
    assert!(
        String::from_utf8(output(&["--version"]).stdout).expect("text").starts_with("towpath ")
    );
}

#[test]
fn the_version_names_the_commit_that_was_built() {
    let text = String::from_utf8(output(&["--version"]).stdout).expect("text");
    let version = format!("towpath {}", env!("CARGO_PKG_VERSION"));
    let rest = text.strip_prefix(&version).expect(&text);
    let commit = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(")\n"));
    assert_eq!(
        commit.map_or(rest.len(), str::len),
        if commit.is_some() { 10 } else { 1 },
        "{text}"
    );
    // Only check that the commit exists. The branch may have changed since the build, and git may
    // refuse to read another user's repository.
    let git = |words: &[&str]| Command::new("git").args(words).output();
    if git(&["rev-parse", "HEAD"]).is_ok_and(|head| head.status.success()) {
        let commit = commit.expect("a build in a repository names its commit");
        let found = git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).expect("it ran");
        assert!(found.status.success(), "{commit} is not a commit of this repository: {text}");
    }
}

/// Runs in its own network namespace. Skipped if no namespace can be created.
#[test]
fn a_tap_device_for_the_time_of_the_run() {
    let own = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-n", env!("CARGO_BIN_EXE_towpath")]).args(words).output()
    };
    if !device::is_possible() {
        return;
    }
    // Read /proc of the parent process, which shows the kernel's network; PROGRAM's own shows the
    // stack's.
    let kernel = "cat /proc/$PPID/net/dev /proc/$PPID/net/if_inet6";
    let show = ["run", "--tap=tptest", "--", "sh", "-c", kernel];
    let output = own(&show).expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("tptest:"), "{text} {}", stderr(&output));
    assert!(text.contains("fd000077000000000000000000000001"), "{text}");
    assert!(stderr(&output).contains("10.77.0.2 and fd00:77::2 on tptest"), "{}", stderr(&output));
}

/// Runs in its own network namespace. Skipped if no namespace can be created.
#[test]
fn several_tap_devices_have_networks_of_their_own() {
    if !device::is_possible() {
        return;
    }
    let script = r#"
        serve='import socket; s = socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True); [s.accept() for _ in iter(int, 1)]'
        "$0" run -q --tap=tpa -- python3 -c "$serve" & a=$!
        "$0" run -q --tap=tpb -- python3 -c "$serve" & b=$!
        trap 'kill $a $b; wait' EXIT
        ask='import socket, sys; socket.create_connection((sys.argv[1], 80), 1)'
        for ip in 10.77.0.2 10.77.1.2 fd00:77::2 fd00:77:1::2; do
            until python3 -c "$ask" $ip 2>/dev/null; do sleep 0.1; done
        done
        "$0" run -q --tap=tpc --address 10.77.1.9/24 -- true; echo "status $?"
    "#;
    let mut command = Command::new("unshare");
    command.args(["-n", "bash", "-c", script, env!("CARGO_BIN_EXE_towpath")]);
    let output = command.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "status 125\n", "{}", stderr(&output));
    let message = stderr(&output);
    assert!(
        message.contains("10.77.1.9/24") && message.contains("10.77.1.1 is on tp"),
        "{message}"
    );
}

/// Runs in its own network namespace. Skipped if no namespace can be created.
#[test]
fn a_network_that_the_host_uses_is_left_to_it() {
    if !device::is_possible() {
        return;
    }
    let script = r#"
        ip link set lo up; ip link add lan type veth peer name far; ip link set lan up; ip link set far up
        ip addr add 192.0.2.2/24 dev lan; ip route add default via 192.0.2.1
        "$0" run -q --tap=tpa --address 192.0.2.50/24 -- true; echo "status $?"
        ip route get 192.0.2.1 | grep -q 'dev lan' && echo "the router is where it was"
        ip route add 10.0.0.0/8 via 192.0.2.1
        "$0" run --tap=tpb -- true
    "#;
    let mut command = Command::new("unshare");
    command.args(["-n", "bash", "-c", script, env!("CARGO_BIN_EXE_towpath")]);
    let output = command.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "status 125\nthe router is where it was\n", "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains("192.0.2.50/24: 192.0.2.2 is on lan"), "{message}");
    assert!(message.contains("172.31.0.2 and fd00:77:100::2 on tpb"), "{message}");
}

/// Commands of docs/troubleshooting.md that let programs with `--tap` reach other hosts. Runs as
/// root in its own network namespace. Skipped without root or nft.
#[test]
fn the_lines_of_the_documentation_let_programs_out() {
    if !device::is_possible() {
        return;
    }
    if Command::new("nft").output().is_err() {
        eprintln!("left out: nft is not installed");
        return;
    }
    let text = include_str!("../../../docs/troubleshooting.md");
    let lines = text.lines().filter_map(|line| line.strip_prefix("# "));
    let lines = lines.filter(|line| line.starts_with("sysctl ") || line.starts_with("nft "));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    let script = r#"
        # The world: beyond a router that knows nothing of the device's network.
        unshare -n sleep 600 & far=$!; server=
        trap 'kill $far $server' EXIT
        until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
        ip link set lo up; ip link add wan type veth peer name far netns $far
        ip addr add 192.0.2.2/24 dev wan; ip link set wan up; ip route add default via 192.0.2.1
        there="nsenter -n -t $far"
        $there ip link set lo up; $there ip addr add 192.0.2.1/24 dev far; $there ip link set far up
        $there python3 -c '
import socket
server = socket.create_server(("192.0.2.1", 80))
while True:
    client, address = server.accept()
    client.sendall(address[0].encode())
    client.close()' & server=$!
        ask='import socket; print(socket.create_connection(("192.0.2.1", 80)).recv(100).decode())'
        until python3 -c "$ask" 2>/dev/null; do sleep 0.05; done
        eval "$1" >/dev/null
        "$0" run -q --tap -- python3 -c "$ask""#;
    let mut command = Command::new("unshare");
    command.args(["-n", "bash", "-c", script, env!("CARGO_BIN_EXE_towpath"), &lines.join("\n")]);
    let output = command.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "192.0.2.2\n192.0.2.2\n", "{}", stderr(&output));
}

/// Runs in its own network namespace. Skipped if no namespace can be created.
#[test]
fn a_deleted_device_is_told_of_and_costs_nothing() {
    if !device::is_possible() {
        return;
    }
    // Prints the CPU time of the engine's process during two seconds, in hundredths of a second.
    let script = r#"
        "$0" run --tap=tpd -- sleep 30 & run=$!
        trap 'kill $run; wait' EXIT
        until ip addr show tpd 2>/dev/null | grep -q 10.77; do sleep 0.05; done
        ip link delete tpd
        used() { read -r line < /proc/$run/stat; set -- ${line##*) }; echo $(( ${12} + ${13} )); }
        sleep 0.5; before=$(used); sleep 2; echo "used $(( $(used) - before ))"
    "#;
    let mut command = Command::new("unshare");
    command.args(["-n", "bash", "-c", script, env!("CARGO_BIN_EXE_towpath")]);
    let output = command.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let used: u32 = text.trim().strip_prefix("used ").and_then(|n| n.parse().ok()).expect(&text);
    // An engine in a busy loop would use nearly 200, or somewhat less on a busy machine.
    assert!(used < 20, "{text}");
    assert!(stderr(&output).contains("tpd was deleted"), "{}", stderr(&output));
}

#[test]
fn scripts_run_too() {
    let folder = fresh::Folder::new();
    let file = folder.path().join("script");
    std::fs::write(&file, "#!/bin/sh\nexit 9\n").expect("written");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("changed");
    let output = output(&["run", &file.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(9), "{}", stderr(&output));
}
