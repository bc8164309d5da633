//! Runs with link emulation (`--netem`): effects of delay, loss and rate on programs, and the
//! counters.

use serde_json::Value;
use towpath_tests::{Mode, Namespace, Output, eventually, is_inline, towpath, wait_for_port};

/// Echo server for TCP and UDP.
const ECHO: &str = "
import socket, sys, threading
port = int(sys.argv[1])
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(('0.0.0.0', port))
def answer():
    while True:
        data, peer = datagrams.recvfrom(65536)
        datagrams.sendto(data, peer)
threading.Thread(target=answer, daemon=True).start()
listener = socket.create_server(('0.0.0.0', port), backlog=128)
def serve(peer):
    while part := peer.recv(65536):
        peer.sendall(part)
    peer.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

/// Prints the milliseconds of a handshake, of the echo of a byte, and of the echo of a datagram.
const ROUND_TRIPS: &str = "
import socket, sys, time
to = (sys.argv[1], int(sys.argv[2]))
def ms(f):
    begin = time.monotonic(); f(); return (time.monotonic() - begin) * 1000
stream = []
print(ms(lambda: stream.append(socket.create_connection(to))))
print(ms(lambda: (stream[0].sendall(b'x'), stream[0].recv(1))))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(ms(lambda: (datagrams.sendto(b'x', to), datagrams.recv(9))))
";

/// Sends bytes and receives their echo, on two threads.
const TRANSFER: &str = "
import hashlib, socket, sys, threading
data = hashlib.shake_128(b'seed').digest(int(sys.argv[3]))
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send():
    s.sendall(data); s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
got = bytearray()
while part := s.recv(65536): got += part
print(got == data)
";

/// A server in the namespace, and the means to run clients.
struct Peer {
    ns: Namespace,
    _server: towpath_tests::Process,
}

const PORT: &str = "7900";

impl Peer {
    fn new() -> Self {
        let ns = Namespace::new();
        let server = ns.spawn(&["python3", "-c", ECHO, PORT]);
        wait_for_port(&ns, "127.0.0.1", 7900);
        Self { ns, _server: server }
    }

    /// Runs a script with the server's address, its port, and further arguments. Uses a single
    /// shard, regardless of the environment of the tests.
    fn run(&self, mode: Mode, options: &[&str], script: &str, more: &[&str]) -> Output {
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "run", "--stats=json"];
        line.extend((mode == Mode::Tap).then_some("--tap"));
        line.extend(is_inline().then_some("--inline"));
        line.extend(options);
        line.extend(["--", "python3", "-c", script, mode.peer(), PORT]);
        line.extend(more);
        self.ns.run(&line).ok()
    }
}

/// Returns a counter of one direction.
#[track_caller]
fn counter(out: &Output, layer: &str, name: &str) -> u64 {
    let line = out.stderr.lines().find(|line| line.starts_with('{')).expect("counters");
    let counters: Value = serde_json::from_str(line).expect("JSON");
    counters[layer][name].as_u64().unwrap_or_else(|| panic!("no {layer}.{name} in {line}"))
}

#[test]
fn a_round_trip_takes_the_delay_of_both_directions() {
    let peer = Peer::new();
    for &mode in Mode::all() {
        let cases: [(&[&str], f64); 3] = [
            (&["--netem", "delay 25ms"], 50.),
            (&["--netem", "in delay 30ms"], 30.),
            (&["--netem", "out delay 10ms", "--netem", "in delay 30ms loss 0%"], 40.),
        ];
        for (options, least) in cases {
            let out = peer.run(mode, options, ROUND_TRIPS, &[]);
            let times: Vec<f64> = out.stdout.lines().map(|it| it.parse().expect("ms")).collect();
            assert_eq!(times.len(), 3, "{mode:?}: {}", out.stdout);
            assert!(times.iter().all(|ms| *ms >= least), "{mode:?} {options:?}: {times:?}");
        }
    }
}

#[test]
fn a_transfer_over_a_bad_link_is_whole() {
    let link =
        "delay 2ms 1ms loss gemodel 0.5% 50% duplicate 1% corrupt 0.5% reorder 10% gap 3 seed 7";
    let peer = Peer::new();
    for &mode in Mode::all() {
        let out = peer.run(mode, &["--netem", link], TRANSFER, &["300000"]);
        assert_eq!(out.stdout, "True\n", "{mode:?}");
        for layer in ["netem_egress", "netem_ingress"] {
            // Over 200 packets of 1500 bytes in each direction; with this seed some of them are
            // reordered.
            assert!(counter(&out, layer, "entered") > 200, "{}", out.stderr);
            assert!(counter(&out, layer, "reordered") > 0, "{}", out.stderr);
        }
    }
}

#[test]
fn a_rate_takes_its_time_and_a_limit_drops() {
    let peer = Peer::new();
    // 100,000 bytes at 8 Mbit/s take at least 0.1 s in each direction; the directions overlap.
    let script = TRANSFER.replace("import", "import time; begin = time.monotonic()\nimport");
    let script = format!("{script}\nprint(time.monotonic() - begin)");
    let link = ["--netem", "rate 8mbit limit 10"];
    let out = peer.run(Mode::Rootless, &link, &script, &["100000"]);
    let (echo, seconds) = out.stdout.trim().split_once('\n').expect("two lines");
    assert_eq!(echo, "True");
    assert!(seconds.parse::<f64>().expect("s") >= 0.1, "{seconds}");
    // The initial window alone is ten packets of 1500 bytes, and slow start increases it.
    assert!(counter(&out, "netem_egress", "overlimit") > 0, "{}", out.stderr);
}

#[test]
fn lost_and_duplicated_datagrams_are_counted() {
    let peer = Peer::new();
    let send = "import socket,sys\ns=socket.socket(2,2)\n\
                for n in range(5): s.sendto(b'x',(sys.argv[1],int(sys.argv[2])))";
    let out = peer.run(Mode::Rootless, &["--netem", "out loss 100%"], send, &[]);
    assert_eq!(counter(&out, "netem_egress", "lost"), 5);
    assert_eq!(counter(&out, "netem_egress", "delivered"), 0);
    // The request is duplicated, and then each of both replies.
    let echo = "import socket,sys\ns=socket.socket(2,2)\n\
                s.sendto(b'x',(sys.argv[1],int(sys.argv[2])))\n\
                for n in range(4): s.recv(9)";
    let out = peer.run(Mode::Rootless, &["--netem", "duplicate 100%"], echo, &[]);
    let counts = ["netem_egress", "netem_ingress"].map(|layer| counter(&out, layer, "duplicated"));
    assert_eq!(counts, [1, 2]);
}

#[test]
fn a_run_ends_when_the_link_has_delivered_what_was_sent() {
    let peer = Peer::new();
    let listen =
        "import socket\ns=socket.socket(2,2); s.bind(('0.0.0.0',7901)); print(s.recv(99).decode())";
    let server = peer.ns.spawn(&["python3", "-c", listen]);
    eventually("the server is there", || peer.ns.shell("ss -lun | grep -q 7901").success());
    let send = "import socket,sys; socket.socket(2,2).sendto(b'the last word',(sys.argv[1],7901))";
    let out = peer.run(Mode::Rootless, &["--netem", "out delay 300ms"], send, &[]);
    assert_eq!(counter(&out, "netem_egress", "delivered"), 1);
    assert_eq!(server.wait(towpath_tests::PATIENCE).ok().stdout, "the last word\n");
}

#[test]
fn links_that_are_none_are_refused_with_the_word_and_its_place() {
    let ns = Namespace::new();
    let towpath = towpath();
    let cases: [(&[&str], &[&str]); 4] = [
        (
            &["--netem", "delay 50ms 5xs loss 1%"],
            &[
                "\"5xs\": expected a time, as 50ms",
                "\n  delay 50ms 5xs loss 1%\n             ^^^\n",
            ],
        ),
        (&["--netem", "delay 5ms distribution normal"], &["\"normal\"", "expected uniform"]),
        (&["--netem", "delay 1ms", "--netem", "in loss 1%"], &["--netem \"loss 1%\"", "\"in\""]),
        (&["--netem", "delay 1ms", "--shards=2"], &["--shards 2", "one queue"]),
    ];
    for (options, words) in cases {
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options);
        line.extend(["--", "true"]);
        let out = ns.run(&line);
        assert_eq!(out.code(), 125, "{}", out.stderr);
        for word in words {
            assert!(out.stderr.contains(word), "no {word:?} in: {}", out.stderr);
        }
    }
}
