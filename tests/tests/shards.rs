//! A stack with several shards, each on its own thread, behaves to programs and peers as one shard.

use std::process::Command;
use std::time::Duration;

use towpath_tests::{Mode, Namespace, Output, Process, Scratch, towpath, wait_for_listener};

const COUNTS: [&str; 3] = ["1", "2", "4"];
const PATIENCE: Duration = Duration::from_secs(120);
const CLIENTS: u64 = 64;

/// Echoes the data of the given number of clients, each on a thread, and ends.
const SERVER: &str = "
import socket, sys, threading
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])), backlog=128)
def serve(peer):
    data = bytearray()
    while part := peer.recv(65536):
        data += part
    peer.sendall(data)
    peer.close()
threads = [threading.Thread(target=serve, args=(listener.accept()[0],)) for _ in \
range(int(sys.argv[2]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
";

/// Runs a number of simultaneous clients.
const CLIENT: &str = "
import hashlib, socket, sys, threading
to, failed = (sys.argv[1], int(sys.argv[2])), []
def ask(n):
    try:
        data = hashlib.shake_128(b'%d' % n).digest(200_000)
        s = socket.create_connection(to, 60)
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        got = bytearray()
        while part := s.recv(65536):
            got += part
        if got != data: failed.append(f'{n}: {len(got)} bytes')
    except Exception as e:
        failed.append(f'{n}: {e!r}')
threads = [threading.Thread(target=ask, args=(n,)) for n in range(int(sys.argv[3]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit('; '.join(failed) or 0)
";

/// Echoes datagrams.
const ECHO: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 8090))
while True:
    data, peer = s.recvfrom(65536)
    if data == b'end': break
    s.sendto(data, peer)
";

/// Sends requests from several ports, and reports at the end.
const ASK: &str = "
import socket, sys, time
socks = []
for n in range(16):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(.3)
    s.connect((sys.argv[1], 8090))
    socks.append(s)
def answer(s, data):
    for _ in range(100):
        try:
            s.send(data)
            return s.recv(65536)
        except TimeoutError: pass
        # The server is not there yet.
        except ConnectionRefusedError: time.sleep(.3)
for size in (1, 1400, 9000):
    for n, s in enumerate(socks):
        data = bytes([n]) * size
        assert answer(s, data) == data, (n, size)
socks[0].send(b'end')
";

/// Starts `towpath run --shards COUNT` with a Python script.
fn start(ns: &Namespace, mode: Mode, count: &str, more: &[&str], script: &[&str]) -> Process {
    let (towpath, options) = (towpath(), mode.options(&[8090]));
    let mut line = vec![towpath.as_str(), "run", "--shards", count];
    // Ignore the number of shards and the hosting that the environment of the tests requests.
    let own = |option: &&str| !option.starts_with("--shards") && *option != "--inline";
    line.extend(options.iter().map(String::as_str).filter(own));
    line.extend(more);
    line.extend(["--", "python3", "-c"]);
    line.extend(script);
    ns.spawn(&line)
}

/// Returns a counter from the output of `--stats=json`.
fn counter(out: &Output, layer: &str, name: &str) -> u64 {
    let json = out.stderr.lines().find(|line| line.starts_with('{')).expect("counters");
    let counters: serde_json::Value = serde_json::from_str(json).expect("JSON");
    counters[layer][name].as_u64().unwrap_or_else(|| panic!("{layer}.{name} of {json}"))
}

fn served(ns: &Namespace, mode: Mode, count: &str, more: &[&str]) -> Output {
    let clients = CLIENTS.to_string();
    let server = start(ns, mode, count, more, &[SERVER, "8090", &clients]);
    wait_for_listener(&server, 8090);
    ns.run(&["python3", "-c", CLIENT, mode.host(), "8090", &clients]).ok();
    server.wait(PATIENCE).ok()
}

#[test]
fn many_clients_are_served() {
    for &mode in Mode::all() {
        for count in COUNTS {
            let out = served(&Namespace::new(), mode, count, &["--stats=json"]);
            match mode {
                Mode::Rootless => assert_eq!(counter(&out, "gateway", "tcp_accepted"), CLIENTS),
                Mode::Tap => assert!(counter(&out, "tap", "rx_frames") > CLIENTS),
            }
            // Every packet of a connection arrived at the shard that owns it.
            assert_eq!(counter(&out, "sockets", "shard_handed_over"), 0, "{mode:?} {count}");
        }
    }
}

#[test]
fn a_program_has_many_connections() {
    for &mode in Mode::all() {
        for count in COUNTS {
            let (ns, clients) = (Namespace::new(), CLIENTS.to_string());
            let server = ns.spawn(&["python3", "-c", SERVER, "8091", &clients]);
            ns.shell("until ss -tln | grep -q :8091; do sleep .05; done").ok();
            let script = [CLIENT, mode.peer(), "8091", &clients];
            start(&ns, mode, count, &["--stats=json"], &script).wait(PATIENCE).ok();
            server.wait(PATIENCE).ok();
        }
    }
}

/// Counts the interface blocks and packet blocks of a pcapng file.
fn blocks(file: &[u8]) -> (usize, usize) {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("a word"));
    let (mut at, mut interfaces, mut packets) = (0, 0, 0);
    while at < file.len() {
        interfaces += usize::from(word(at) == 1);
        packets += usize::from(word(at) == 6);
        at += word(at + 4) as usize;
    }
    (interfaces, packets)
}

#[test]
fn one_capture_has_the_packets_of_all() {
    for count in COUNTS {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        let file = folder.file("out.pcapng");
        served(&ns, Mode::Rootless, count, &["--pcap", &file]);
        let (interfaces, packets) = blocks(&std::fs::read(&file).expect("a capture"));
        // The second interface is loopback. A connection has at least four packets without payload.
        assert_eq!(interfaces, 2);
        assert!(packets > 4 * CLIENTS as usize, "{packets}");
    }
}

/// Each datagram is echoed to its sender's address, regardless of the shard that owns the program's
/// socket.
#[test]
fn datagrams_are_answered() {
    for &mode in Mode::all() {
        for count in COUNTS {
            let ns = Namespace::new();
            let more: &[&str] =
                if mode == Mode::Rootless { &["-p", "127.0.0.1:8090:8090/udp"] } else { &[] };
            let server = start(&ns, mode, count, more, &[ECHO]);
            ns.run(&["python3", "-c", ASK, mode.host()]).ok();
            server.wait(PATIENCE).ok();
        }
    }
}

/// Compiles a preload library that simulates a machine with 16 processors.
fn processors(folder: &Scratch) -> String {
    let source = folder.write(
        "processors.c",
        "#define _GNU_SOURCE\n#include <sched.h>\n#include <string.h>\n\
         int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {\n\
         memset(set, 0, size); *(char *)set = *((char *)set + 1) = ~0; return 0; }\n",
    );
    let library = folder.file("processors.so");
    let gcc = Command::new("gcc").args(["-shared", "-fPIC", "-o", &library, &source]).status();
    assert!(gcc.expect("gcc").success());
    format!("LD_PRELOAD={library}")
}

/// Without `--shards`, a machine with many processors uses several shards, but only one thread
/// while that is sufficient.
#[test]
fn many_processors_are_made_use_of_when_they_are_needed() {
    let folder = Scratch::new();
    let fake = processors(&folder);
    let without = ["setpriv", "--bounding-set=-bpf,-sys_admin"];
    for &mode in Mode::all() {
        for steered in [true, false] {
            let (ns, towpath, options) = (Namespace::new(), towpath(), mode.options(&[]));
            let mut line: Vec<&str> = if steered { Vec::new() } else { without.to_vec() };
            line.extend(["env", &fake, &towpath, "run", "--stats=json"]);
            // Ignore the number of shards and the hosting that the environment of the tests
            // requests.
            let own = |option: &&str| !option.starts_with("--shards") && *option != "--inline";
            line.extend(options.iter().map(String::as_str).filter(own));
            if mode == Mode::Rootless {
                line.extend(["-p", "127.0.0.1:8090:8090/udp"]);
            }
            line.extend(["--", "python3", "-c", ECHO]);
            let server = ns.spawn(&line);
            ns.run(&["python3", "-c", ASK, mode.host()]).ok();
            let out = server.wait(PATIENCE).ok();
            // The socket is in one shard, while some of 16 flows arrive at other shards.
            let several = counter(&out, "sockets", "shard_handed_over") > 0;
            assert_eq!(several, mode == Mode::Rootless || steered, "{mode:?}, steered: {steered}");
            assert!(!out.stderr.contains("CAP_BPF"), "{}", out.stderr);
            assert_eq!(counter(&out, "engine", "threads"), 0, "{mode:?}");
        }
    }
}

/// If the kernel cannot be told which shard owns a packet, shards hand packets over, and the user
/// is told.
#[test]
fn packets_that_are_not_steered_arrive() {
    if Mode::all().len() == 1 {
        return;
    }
    let (ns, towpath, clients) = (Namespace::new(), towpath(), CLIENTS.to_string());
    let without = "--bounding-set=-bpf,-sys_admin";
    let mut line = vec!["setpriv", without, &towpath, "run", "--shards=4", "--tap"];
    line.extend(["--stats=json", "--", "python3", "-c", SERVER, "8090", &clients]);
    let server = ns.spawn(&line);
    wait_for_listener(&server, 8090);
    ns.run(&["python3", "-c", CLIENT, Mode::Tap.host(), "8090", &clients]).ok();
    let out = server.wait(PATIENCE).ok();
    assert!(out.stderr.contains("steering them needs CAP_BPF"), "{}", out.stderr);
    assert!(counter(&out, "sockets", "shard_handed_over") > CLIENTS);
}

#[test]
fn a_device_with_one_queue_is_for_one_shard() {
    if Mode::all().len() == 1 {
        return;
    }
    let (ns, towpath) = (Namespace::new(), towpath());
    ns.run(&["ip", "tuntap", "add", "dev", "mine", "mode", "tap"]).ok();
    let run = |shards| ns.run(&[&towpath, "run", "--tap=mine", "--shards", shards, "--", "true"]);
    let refused = run("2");
    assert_eq!(refused.code(), 125, "{}", refused.stderr);
    assert!(refused.stderr.contains("dev mine mode tap multi_queue"), "{}", refused.stderr);
    run("1").ok();
    let (folder, options) = (Scratch::new(), ["run", "--tap=mine", "--", "true"]);
    ns.run(&[&["env", &processors(&folder), &towpath][..], &options].concat()).ok();
    ns.run(&["ip", "tuntap", "del", "dev", "mine", "mode", "tap"]).ok();
    ns.run(&["ip", "tuntap", "add", "dev", "mine", "mode", "tap", "multi_queue"]).ok();
    run("2").ok();
    run("1").ok();
}
