//! The life of stacks: the bytes that they send at their end, and the things that they give back.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use towpath::net::{TcpListener, TcpStream};
use towpath::{ShutdownError, Stack};

/// Longer than any test: an end that is not found otherwise hangs.
const FOR_EVER: Duration = Duration::MAX;
/// More than a link in memory and the windows of both ends hold.
const MUCH: usize = 16 << 20;

fn stack() -> Stack {
    Stack::builder().loopback().start().expect("a stack")
}

/// Two hosts, with a connection from the second to the first.
fn joined(linger: Duration) -> ((Stack, TcpStream), (Stack, TcpStream)) {
    let (server, client) = Stack::builder().linger(linger).pair().expect("two stacks");
    let listener = server.listen("0.0.0.0:80").expect("a listener");
    let ours = client.connect("10.0.0.1:80").expect("connected");
    let (theirs, from) = listener.accept().expect("accepted");
    assert_eq!(from.ip(), client.addresses()[0]);
    ((server, theirs), (client, ours))
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("proc").lines().count()
}

#[test]
fn stacks_that_end_give_back_descriptors_and_mappings() {
    make_and_drop(300);
}

/// Tests that take long.
mod nightly {
    #[test]
    fn a_thousand_stacks_give_back_descriptors_and_mappings() {
        super::make_and_drop(1000);
    }
}

fn make_and_drop(count: usize) {
    // The first ones make what the process and its allocator keep.
    (0..8).for_each(|_| drop(stack()));
    let before = (descriptors(), mappings());
    (0..count).for_each(|_| drop(stack()));
    // The engine closes descriptors on a thread that may outlive it for a moment. With a leak
    // this does not end.
    while descriptors() > before.0 {
        thread::yield_now();
    }
    let after = mappings();
    // An allocator may map an arena more.
    assert!(after < before.1 + 16, "mappings: {before:?} before, {after} after");
}

#[test]
fn stacks_with_connections_give_back_descriptors_and_mappings() {
    let use_one = || {
        let ((server, mut theirs), (client, mut ours)) = joined(FOR_EVER);
        ours.write_all(b"bytes").expect("sent");
        theirs.read_exact(&mut [0; 5]).expect("received");
        drop((server, ours, client, theirs));
    };
    (0..8).for_each(|_| use_one());
    let before = (descriptors(), mappings());
    (0..50).for_each(|_| use_one());
    while descriptors() > before.0 {
        thread::yield_now();
    }
    let after = mappings();
    assert!(after < before.1 + 16, "mappings: {before:?} before, {after} after");
}

#[test]
fn the_drop_of_the_last_handle_sends_all_bytes() {
    let ((_server, mut theirs), (client, mut ours)) = joined(FOR_EVER);
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).map(|_| bytes)
    });
    let sent: Vec<_> = (0..MUCH).map(|n| (n % 251) as u8).collect();
    drop(client);
    ours.write_all(&sent).expect("the connection keeps its stack");
    // The last handle.
    drop(ours);
    let received = reader.join().expect("no panic").expect("the end of the stream");
    assert_eq!(received.len(), sent.len());
    assert!(received == sent);
}

#[test]
fn shutdown_sends_all_bytes_and_says_so() {
    let ((_server, mut theirs), (client, mut ours)) = joined(FOR_EVER);
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).map(|_| bytes.len())
    });
    ours.write_all(&vec![7; MUCH]).expect("sent");
    client.shutdown().expect("all is sent");
    assert_eq!(reader.join().expect("no panic").expect("the end of the stream"), MUCH);
    let error = ours.write_all(b"x").expect_err("the stack has ended");
    assert_eq!(error.kind(), ErrorKind::NetworkDown);
    // Nothing is left to be done.
    client.shutdown().expect("once");
}

#[test]
fn shutdown_tells_of_bytes_that_no_peer_takes() {
    let ((_server, mut theirs), (client, mut ours)) = joined(Duration::from_millis(20));
    ours.set_nonblocking(true).expect("open");
    let full = ours.write_all(&vec![7; 64 << 20]).expect_err("nobody reads");
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    match client.shutdown() {
        Err(ShutdownError::Unsent { bytes, linger }) => {
            assert!(bytes > 0);
            assert_eq!(linger, Duration::from_millis(20));
        }
        other => panic!("{other:?}"),
    }
    // The peer is told that the stream is cut off, after the bytes that it has.
    let error = theirs.read_to_end(&mut Vec::new()).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_drop_waits_no_longer_than_its_bound() {
    let ((_server, _theirs), (client, mut ours)) = joined(Duration::from_millis(20));
    ours.set_nonblocking(true).expect("open");
    let _ = ours.write_all(&vec![7; 64 << 20]);
    drop(ours);
    drop(client);
    // With no bound this point is not reached: nobody reads.
}

#[test]
fn a_panic_of_a_thread_ends_its_stacks() {
    let user = thread::spawn(|| {
        let ((_server, _theirs), (_client, mut ours)) = joined(FOR_EVER);
        ours.write_all(b"bytes").expect("sent");
        std::panic::resume_unwind(Box::new("the thread fails"));
    });
    // The unwinding thread drops the last handles, and returns when both engines have ended.
    assert!(user.join().is_err());
}

#[test]
fn hosts_of_a_pair_reach_each_other_by_both_versions() {
    let (server, client) = Stack::pair().expect("two stacks");
    for (listen, connect) in [("0.0.0.0:7", "10.0.0.1:7"), ("[::]:8", "[fd00::1]:8")] {
        let listener = server.listen(listen).expect("a listener");
        let mut ours = client.connect(connect).expect("connected");
        let (mut theirs, _) = listener.accept().expect("accepted");
        ours.write_all(b"there").expect("sent");
        let mut bytes = [0; 5];
        theirs.read_exact(&mut bytes).expect("received");
        theirs.write_all(b"back!").expect("sent");
        ours.read_exact(&mut bytes).expect("received");
        assert_eq!(&bytes, b"back!");
    }
    let one = server.bind_udp("10.0.0.1:53").expect("a socket");
    let other = client.bind_udp("10.0.0.2:0").expect("a socket");
    other.send_to(b"question", "10.0.0.1:53").expect("sent");
    let mut bytes = [0; 16];
    let (len, from) = one.recv_from(&mut bytes).expect("received");
    assert_eq!((&bytes[..len], from), (&b"question"[..], other.local_addr().expect("bound")));
    let elsewhere = client.connect("192.0.2.1:80").expect_err("no route");
    assert_eq!(elsewhere.kind(), ErrorKind::NetworkUnreachable);
}

#[test]
fn the_other_host_of_a_pair_may_end_first() {
    let ((server, theirs), (client, mut ours)) = joined(FOR_EVER);
    drop(theirs);
    drop(server);
    assert_eq!(ours.read(&mut [0]).expect("an end"), 0);
    let _ = ours.write_all(b"to nobody");
    drop(ours);
    // No peer will ever take the bytes: the drop does not wait for that.
    drop(client);
}

#[test]
fn connections_on_several_shards_keep_their_bytes() {
    let stack = Stack::builder().loopback().shards(4).start().expect("a stack");
    let listener: TcpListener = stack.listen("127.0.0.1:0").expect("a listener");
    let addr = listener.local_addr().expect("bound");
    for n in 0..32u8 {
        let mut client = stack.connect(addr).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        client.write_all(&[n]).expect("sent");
        let mut byte = [0];
        server.read_exact(&mut byte).expect("received");
        assert_eq!(byte, [n]);
    }
    stack.shutdown().expect("all is sent");
}

/// Variable of a child process: the way in which it ends, and the port that it sends to.
const CHILD: &str = "TOWPATH_TEST_CHILD";

/// Fills all buffers on the way to a listener of the parent, and ends in the midst of that.
fn end_as_a_child(words: &str) {
    let (how, port) = words.split_once(' ').expect("two words");
    let stack = Stack::builder().rootless().start().expect("a stack");
    let mut stream = stack.connect(format!("10.0.2.2:{port}")).expect("connected");
    stream.set_nonblocking(true).expect("open");
    let mut sent = 0;
    loop {
        match stream.write(&[7; 10_000]) {
            Ok(len) => sent += len,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    let listener = stack.listen("0.0.0.0:0").expect("a listener");
    thread::spawn(move || listener.accept().map(drop).expect("the thread waits until the end"));
    writeln!(std::io::stdout(), "sent {sent}").expect("the parent reads");
    stack.set_default();
    if how == "exit" {
        std::process::exit(7);
    }
}

#[test]
fn the_end_of_the_process_sends_all_bytes() {
    if let Ok(words) = std::env::var(CHILD) {
        return end_as_a_child(&words);
    }
    for (how, code) in [("return", 0), ("exit", 7)] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = listener.local_addr().expect("bound").port();
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "life::the_end_of_the_process_sends_all_bytes", "--nocapture"])
            .env(CHILD, format!("{how} {port}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let sent = lines.find_map(|line| {
            line.expect("text").split_once("sent ").map(|(_, sent)| sent.parse::<usize>())
        });
        let sent = sent.expect("the child has sent").expect("a number");
        let mut received = Vec::new();
        let (mut stream, _) = listener.accept().expect("the child has connected");
        stream.read_to_end(&mut received).expect("an end of the stream, and no reset");
        assert_eq!(received.len(), sent, "{how}");
        let output = child.wait_with_output().expect("an end");
        let error = String::from_utf8_lossy(&output.stderr);
        drop(lines);
        assert_eq!(
            (output.status.code(), error.contains("panicked")),
            (Some(code), false),
            "{error}"
        );
    }
}

/// Resident memory of this process in MiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

#[test]
fn memory_of_many_stacks_is_given_back() {
    let round = || {
        let threads = [(); 2]
            .map(|()| thread::spawn(|| [(); 20].map(|()| Stack::pair().expect("two stacks"))));
        drop(threads.map(|thread| thread.join().expect("no panic")));
    };
    round();
    let before = resident();
    (0..2).for_each(|_| round());
    let after = resident();
    // Tables of an allocator that keeps them are 600 MiB a round.
    assert!(after < before + 200, "{before} MiB after a round, {after} MiB after three");
}
