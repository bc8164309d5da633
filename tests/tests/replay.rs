//! `towpath run --replay`: packets of a capture are delivered to a program.

use towpath_tests::proxy_lab::counter;
use towpath_tests::{
    Namespace, Output, PATIENCE, Process, Scratch, eventually, is_inline, towpath,
};

/// Prints each datagram with its source address.
const RECEIVE: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5300))
for _ in range(int(sys.argv[1])):
    data, peer = s.recvfrom(2000)
    print(data.decode(), *peer, flush=True)
    s.sendto(b'an answer that nobody gets', peer)
";

/// Returns a UDP datagram from 198.51.100.9 port 4000 in an IPv4 packet. A checksum of 0 means that
/// the datagram has none (RFC 768).
fn datagram(to: [u8; 4], port: u16, data: &[u8]) -> Vec<u8> {
    let len = |header: usize| (header + data.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(len(28).to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0, 198, 51, 100, 9]);
    packet.extend(to);
    let words = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    for word in [4000, port, len(8), 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(data);
    packet
}

/// Returns a pcap file of Ethernet frames with timestamps in milliseconds.
fn capture(packets: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let words = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    for (ms, packet) in packets {
        let len = packet.len() as u32 + 14;
        let words = [1_700_000_000 + ms / 1000, ms % 1000 * 1000, len, len];
        file.extend(words.into_iter().flat_map(u32::to_le_bytes));
        file.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        file.extend(packet);
    }
    file
}

fn run(options: &[&str], program: &[&str]) -> Output {
    let towpath = towpath();
    let mut line = vec![towpath.as_str(), "run", "--stats=json"];
    line.extend(options);
    if is_inline() {
        line.push("--inline");
    }
    line.push("--");
    line.extend(program);
    Process::spawn(&line).wait(PATIENCE)
}

const OURS: [u8; 4] = [192, 0, 2, 7];

#[test]
fn a_program_gets_the_datagrams_to_its_address_in_order() {
    let folder = Scratch::new();
    let file = folder.write(
        "questions.pcap",
        capture(&[
            (0, datagram(OURS, 5300, b"one")),
            (0, datagram([192, 0, 2, 8], 5300, b"of another host")),
            (50, datagram(OURS, 5300, b"two")),
        ]),
    );
    let program = ["python3", "-c", RECEIVE, "2"];
    let output = run(&["--replay", &file, "--address", "192.0.2.7/24"], &program).ok();
    assert_eq!(output.stdout, "one 198.51.100.9 4000\ntwo 198.51.100.9 4000\n");
    let count = |name| counter(&output.stderr, "replay", name);
    assert_eq!((count("rx_packets"), count("rx_not_ip"), count("tx_dropped")), (3, 0, 2));
}

/// Receives datagrams until it is killed.
const WAIT: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5300))
time.sleep(100)
";

#[test]
fn the_end_says_what_became_of_the_packets() {
    let folder = Scratch::new();
    let mut damaged = datagram(OURS, 5300, b"wrong checksum");
    damaged[26] = 1;
    let packets = [(0, datagram(OURS, 5300, b"one")), (0, damaged), (5, datagram(OURS, 9, b"two"))];
    let mut bytes = capture(&packets);
    bytes.extend(b"the rest of a record");
    let file = folder.write("questions.pcap", bytes);
    let towpath = towpath();
    let mut line = vec![towpath.as_str(), "run", "--replay", &file, "--address", "192.0.2.7/24"];
    line.extend(is_inline().then_some("--inline"));
    line.extend(["--", "python3", "-c", WAIT]);
    let run = Process::spawn(&line);
    let wanted = format!("3 packets of {file} have come, of which the stack dropped 2 (");
    eventually("the end is told", || run.stderr().contains(&wanted));
    let said = run.stop().stderr;
    for word in
        ["transport_checksum 1", "udp_no_socket 1", "the rest of the file is cut off", "fixcsum"]
    {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// A router forwards the packets of a capture to a TAP device, whose other end is its namespace.
#[test]
fn a_router_forwards_the_packets_of_a_capture() {
    let space = Namespace::new();
    if space.name().is_none() {
        return;
    }
    let folder = Scratch::new();
    let packets =
        [(0, datagram([10, 3, 0, 2], 5300, b"one")), (1500, datagram([10, 3, 0, 2], 9, b"two"))];
    let file = folder.write("questions.pcap", capture(&packets));
    let towpath = towpath();
    let from = format!("from=replay:{file},10.1.0.1/24");
    let to = "to=tap:tw1,10.3.0.1/24";
    let router = space.spawn(&[&towpath, "router", "--stats=json", "--port", &from, "--port", to]);
    eventually("the device is there", || {
        space.run(&["ip", "addr", "add", "10.3.0.2/24", "dev", "tw1"]).success()
    });
    std::thread::sleep(std::time::Duration::from_secs(3));
    let stats = router.stop().stderr;
    assert_eq!(counter(&stats, "port.from", "rx_packets"), 2, "{stats}");
    assert!(counter(&stats, "net", "forwarded") >= 1, "{stats}");
    assert!(counter(&stats, "port.to", "tx_frames") >= 2, "{stats}");
}

#[test]
fn a_file_that_cannot_be_replayed_is_an_error_that_says_why() {
    let folder = Scratch::new();
    let text = folder.write("notes.txt", "no capture at all, and longer than a header is");
    let packed = folder.write("packed.pcap", [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
    let cases = [
        (&["--replay", &packed, "--address", "192.0.2.7/24"][..], "is compressed by gzip"),
        (&["--replay", &text, "--address", "192.0.2.7/24"], "neither a pcap nor a pcapng file"),
        (&["--replay", "/nowhere.pcap", "--address", "192.0.2.7/24"], "No such file"),
        (&["--replay", "/dev/null", "--address", "192.0.2.7/24"], "not a regular file"),
        (&["--replay", &text], "--address"),
        (&["--replay", &text, "--address", "192.0.2.7/24", "--tap"], "cannot be used with"),
    ];
    for (options, wanted) in cases {
        let output = run(options, &["true"]);
        assert_eq!(output.code(), 125, "{}", output.stderr);
        assert!(output.stderr.contains(wanted), "{wanted}: {}", output.stderr);
    }
}
