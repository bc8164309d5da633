//! TCP Fast Open between programs on Towpath, and with the kernel as the peer.

use towpath_tests::{
    Mode, Namespace, Process, Scratch, eventually, program, run, start, towpath, wait_for_listener,
};

/// Bytes that programs write; more than one segment in the second round.
const LENGTHS: [usize; 3] = [11, 20_001, 11];

/// Returns the expected lines: whether the SYN carried data, and the total number of bytes.
fn lines(in_syn: [u8; 3]) -> String {
    in_syn.iter().zip(LENGTHS).map(|(in_syn, len)| format!("{in_syn} {len}\n")).collect()
}

/// Returns a TCP counter of the kernel in the namespace.
fn kernels(ns: &Namespace, name: &str) -> u64 {
    let line = format!("nstat -asz TcpExt{name} | awk 'END {{ print $2 }}'");
    ns.shell(&line).ok().stdout.trim().parse().expect("a number")
}

/// Creates a namespace whose kernel uses Fast Open as client and server. Returns `None` without
/// privileges.
fn namespace() -> Option<Namespace> {
    let ns = Namespace::new();
    if Mode::all().len() == 1 || !ns.is_own() {
        return None;
    }
    ns.shell("echo 3 > /proc/sys/net/ipv4/tcp_fastopen").ok();
    Some(ns)
}

#[test]
fn the_kernel_takes_bytes_from_our_syns() {
    let Some(ns) = namespace() else { return };
    let (towpath, program) = (towpath(), program("fast_open.py"));
    for (n, how) in ["sendto", "sendmsg", "connect", "nonblocking"].into_iter().enumerate() {
        let (before, port) = (kernels(&ns, "TCPFastOpenPassive"), format!("76{n:02}"));
        let server = ns.spawn(&["python3", &program, "server", &port, "3"]);
        eventually("the server", || ns.shell(&format!("ss -ltn | grep -q :{port}")).success());
        // Each shard requests a cookie of its own; a single shard makes the order deterministic.
        let client = [&towpath, "run", "-q", "--tap", "--", "python3", &program, "client"];
        let said = ns.run(&[&client[..], &[Mode::Tap.peer(), &port, "3", how]].concat()).ok();
        let said = said.stdout;
        assert_eq!(said, lines([0, 1, 1]), "{how}");
        eventually("the server's lines", || server.stdout() == lines([0, 1, 1]));
        assert_eq!(kernels(&ns, "TCPFastOpenPassive") - before, 2, "{how}");
    }
    assert_eq!(kernels(&ns, "TCPFastOpenPassiveFail"), 0);
    assert_eq!(kernels(&ns, "TCPFastOpenCookieReqd"), 4);
}

#[test]
fn we_take_bytes_from_the_kernels_syns() {
    let Some(ns) = namespace() else { return };
    let (program, folder) = (program("fast_open.py"), Scratch::new());
    let (towpath, capture) = (towpath(), folder.file("seen.pcap"));
    let line = [
        towpath.as_str(),
        "run",
        "--tap",
        "--pcap",
        &capture,
        "--",
        "python3",
        &program,
        "server",
        "7610",
        "3",
    ];
    let server = ns.spawn(&line);
    wait_for_listener(&server, 7610);
    let client = ["python3", &program, "client", Mode::Tap.host(), "7610", "3", "sendto"];
    assert_eq!(ns.run(&client).ok().stdout, lines([0, 1, 1]));
    let served = server.wait(towpath_tests::PATIENCE).ok();
    assert_eq!(served.stdout, lines([0, 1, 1]));
    assert_eq!(kernels(&ns, "TCPFastOpenActive"), 2);
    assert_eq!(kernels(&ns, "TCPFastOpenActiveFail"), 0);
    // Check the packets on the link as well.
    let syns = "tcp.flags.syn == 1 && tcp.flags.ack == 0";
    let fields = ["-T", "fields", "-e", "tcp.len", "-e", "tcp.options.tfo.request"];
    let mut line = vec!["tshark", "-r", &capture, "-Y", syns];
    line.extend(fields);
    let shown = Process::spawn(&line).wait(towpath_tests::PATIENCE);
    if shown.success() {
        let lengths: Vec<_> =
            shown.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(lengths[0], "0", "{}", shown.stdout);
        assert!(lengths[1].parse::<u32>().expect("a number") > 1_000, "{}", shown.stdout);
        assert_eq!(lengths[2], "11", "{}", shown.stdout);
    }
}

#[test]
fn programs_of_a_run_open_to_each_other() {
    let (towpath, program) = (towpath(), program("fast_open.py"));
    for options in [&[][..], &["--inline"]] {
        for how in ["sendto", "sendmsg", "connect", "nonblocking"] {
            let mut line = vec![towpath.as_str(), "run", "-q"];
            line.extend(options);
            line.extend(["--", "python3", &program]);
            let said = |rest: &[&str]| {
                let line = [&line[..], rest].concat();
                Process::spawn(&line).wait(towpath_tests::PATIENCE).ok().stdout
            };
            assert_eq!(said(&["alone", "3", how]), "0 1 1\n", "{options:?} {how}");
            let refused = said(&["refused", how]);
            assert_eq!(refused, "refused\nrefused\n", "{options:?} {how}");
        }
    }
}

/// Behaves like the kernel (tested on Linux 6.18).
#[test]
fn misuse_and_saved_syns_are_answered_as_on_linux() {
    let (towpath, program) = (towpath(), program("fast_open.py"));
    let said = |what| {
        let line = [&towpath, "run", "-q", "--", "python3", &program, what];
        Process::spawn(&line).wait(towpath_tests::PATIENCE).ok().stdout
    };
    assert_eq!(said("odd"), "EISCONN\nEISCONN\nEINVAL\nEINVAL\nEINVAL\nEINVAL\nEINVAL\n");
    assert_eq!(said("saved"), "EINVAL\n4 6 2 True\nTrue b''\n");
}

/// The gateway's connections are host sockets without Fast Open. Every connect therefore requests a
/// cookie that the peer does not send.
#[test]
fn through_the_gateway_connections_open_as_ever() {
    let ns = Namespace::new();
    let program = program("fast_open.py");
    for (n, how) in ["sendto", "connect", "nonblocking"].into_iter().enumerate() {
        let port = ns.port(7620 + n as u16).to_string();
        let server = ns.spawn(&["python3", &program, "server", &port, "3"]);
        eventually("the server", || ns.shell(&format!("ss -ltn | grep -q :{port}")).success());
        let client = ["python3", &program, "client", Mode::Rootless.peer(), &port, "3", how];
        let said = run(&ns, Mode::Rootless, &[], &client).ok().stdout;
        assert_eq!(said, lines([0, 0, 0]), "{how}");
        eventually("the server's lines", || server.stdout() == lines([0, 0, 0]));
    }
    let port = ns.port(7630);
    let number = port.to_string();
    let server =
        start(&ns, Mode::Rootless, &[port], &["python3", &program, "server", &number, "3"]);
    wait_for_listener(&server, port);
    let client = ["python3", &program, "client", "127.0.0.1", &number, "3", "sendto"];
    let said = ns.run(&client).ok().stdout;
    assert_eq!(said.lines().count(), 3);
    assert_eq!(server.wait(towpath_tests::PATIENCE).ok().stdout, lines([0, 0, 0]));
}

/// As on Linux with bit 1 of `net.ipv4.tcp_fastopen` cleared.
#[test]
fn a_client_that_is_switched_off_refuses() {
    let script = "
import socket
s = socket.socket()
def attempt(call):
    try: call()
    except OSError as error: print(error.errno)
attempt(lambda: s.sendto(b'x', socket.MSG_FASTOPEN, ('127.0.0.1', 9)))
attempt(lambda: s.setsockopt(socket.IPPROTO_TCP, 30, 1))
";
    let towpath = towpath();
    let line = [&towpath, "run", "-q", "--tcp", "tcp_fastopen=2", "--", "python3", "-c", script];
    let said = Process::spawn(&line).wait(towpath_tests::PATIENCE).ok().stdout;
    assert_eq!(said, "95\n95\n");
}

#[test]
fn a_send_that_does_not_wait_takes_the_bytes_of_the_syn() {
    let script = "
import select, socket
listener = socket.create_server(('127.0.0.1', 7640))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 5)
def attempt(n):
    s = socket.socket()
    s.setblocking(False)
    try: print(s.sendto(bytes(n), socket.MSG_FASTOPEN, ('127.0.0.1', 7640)) < n)
    except BlockingIOError: print('no cookie')
    select.select([], [s], [])
    listener.accept()
for n in 10, 10, 1_000_000: attempt(n)
";
    let towpath = towpath();
    let line = [&towpath, "run", "-q", "--", "python3", "-c", script];
    let said = Process::spawn(&line).wait(towpath_tests::PATIENCE).ok().stdout;
    assert_eq!(said, "no cookie\nFalse\nTrue\n");
}
