//! The words of the builder: the links that they make, and the errors that say what to do.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use towpath::{Builder, Protocol, Stack, StartError};

/// The sentence of an error, and its kind as an error of std.
fn refused(builder: Builder) -> (String, ErrorKind) {
    told(builder.start().expect_err("it cannot be"))
}

fn told(error: StartError) -> (String, ErrorKind) {
    let sentence = error.to_string();
    // A `main` that returns the error prints it so.
    assert_eq!(format!("{error:?}"), sentence);
    let error = std::io::Error::from(error);
    assert_eq!(error.to_string(), sentence);
    assert!(format!("{error:?}").contains(&sentence), "{error:?}");
    (sentence, error.kind())
}

#[test]
fn wrong_values_name_the_call_and_what_to_do() {
    let rootless = || Stack::builder().rootless();
    let loopback = || Stack::builder().loopback();
    let cases = [
        (Stack::builder(), "call rootless(), tap(NAME) or loopback()"),
        (rootless().tap("tw0"), "call one of rootless(), tap(NAME) and loopback()"),
        (rootless().publish("80x"), "publish(\"80x\"): \"80x\" is not a valid port"),
        (rootless().publish("8080:80/sctp"), "\"sctp\" is not a protocol"),
        (rootless().publish("8080:80").publish("8080:81"), "are the same port of this host"),
        (rootless().address("10.0.2.15"), "address(\"10.0.2.15\"): expected ADDRESS/LENGTH"),
        (rootless().address("10.0.2.0/24"), "network or broadcast address"),
        (rootless().mtu(1279), "an MTU of 1279: the gateway takes 1280 to 65535 bytes"),
        (Stack::builder().tap("tw0").mtu(65_522), "a TAP device takes 1280 to 65521 bytes"),
        (Stack::builder().tap("tw0").publish("8080:80"), "leave one of the two out"),
        (rootless().shards(3), "shards(3): expected 1, 2, 4, 8 or 16"),
        (loopback().shards(32), "shards(32): expected"),
        (loopback().publish("80"), "publish() is about a link"),
        (loopback().mtu(1500), "or leave mtu() out"),
        (loopback().netem("delay 1ms"), "or leave netem() out"),
        (rootless().netem("delay fast"), "netem(\"delay fast\"): \"fast\": expected a time"),
        (rootless().netem("delay 1ms").shards(2), "netem() does not go with shards()"),
    ];
    for (builder, wanted) in cases {
        let shown = format!("{builder:?}");
        let (sentence, kind) = refused(builder);
        assert!(sentence.contains(wanted), "{shown}: {sentence}");
        assert_eq!(kind, ErrorKind::InvalidInput, "{shown}");
    }
}

#[test]
fn a_pair_takes_no_values_of_another_link() {
    let cases = [
        (Stack::builder().rootless(), "rootless() does not go with pair()"),
        (Stack::builder().publish("80"), "leave publish() out"),
        (Stack::builder().shards(2), "leave shards() out"),
        (Stack::builder().mtu(70_000), "mtu(70000): expected 1280 to 65535 bytes"),
        (Stack::builder().netem("lose 1%"), "netem(\"lose 1%\"): "),
    ];
    for (builder, wanted) in cases {
        let (sentence, _) = told(builder.pair().map(drop).expect_err("it cannot be"));
        assert!(sentence.contains(wanted), "{sentence}");
    }
    drop(Stack::builder().mtu(1280).pair().expect("two stacks"));
}

#[test]
fn a_name_that_no_device_can_have_is_told() {
    let (sentence, _) = refused(Stack::builder().tap("a name with spaces"));
    assert!(sentence.contains("1 to 15 characters"), "{sentence}");
}

#[test]
fn a_port_that_is_taken_is_told_and_nothing_stays_open() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let publish = format!("127.0.0.1:{port}:80");
    let builder = Stack::builder().rootless().publish(publish.clone());
    let (sentence, kind) = refused(builder.clone());
    assert!(sentence.contains(&publish), "{sentence}");
    assert!(sentence.contains("another process has this port; choose another HOSTPORT"));
    assert_eq!(kind, ErrorKind::AddrInUse);
    drop(taken);
    drop(builder.start().expect("the port is free"));
}

#[test]
fn clients_of_this_host_reach_a_published_port() {
    let builder = Stack::builder().rootless().publish("127.0.0.1::80").publish("127.0.0.1::53/udp");
    let stack = builder.start().expect("a stack");
    let [web, names] = stack.published() else { panic!("{:?}", stack.published()) };
    assert_eq!((web.port, web.protocol), (80, Protocol::Tcp));
    assert_eq!((names.port, names.protocol), (53, Protocol::Udp));
    let listener = stack.listen("0.0.0.0:80").expect("a listener");
    let mut client = TcpStream::connect(web.host).expect("connected");
    let (mut server, _) = listener.accept().expect("accepted");
    client.write_all(b"question").expect("sent");
    let mut bytes = [0; 8];
    server.read_exact(&mut bytes).expect("received");
    server.write_all(b"answered").expect("sent");
    drop(server);
    stack.shutdown().expect("all is sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("received");
    assert_eq!(answer, "answered");
}

#[test]
fn a_stack_reaches_servers_of_this_host_by_its_gateway() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    for shards in [1, 2] {
        let stack = Stack::builder().rootless().shards(shards).start().expect("a stack");
        let mut client = stack.connect(("10.0.2.2", port)).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        client.write_all(b"bytes").expect("sent");
        drop(client);
        // The last handle: the gateway hands on what it has before the stack ends.
        drop(stack);
        let mut bytes = Vec::new();
        server.read_to_end(&mut bytes).expect("received");
        assert_eq!(bytes, b"bytes");
    }
}

/// Masks of blocked signals of the threads whose names begin with `prefix`.
fn masks_of_threads(prefix: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten();
    let mask = |task: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
        read("comm").filter(|name| name.starts_with(prefix))?;
        // A thread of another test may have ended meanwhile.
        let status = read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        Some(u64::from_str_radix(line.expect("a line").trim(), 16).expect("a mask"))
    };
    tasks.filter_map(mask).collect()
}

/// The threads of a stack begin with all signals blocked: handlers run on the program's threads.
#[test]
fn the_threads_of_a_stack_take_no_signals() {
    let capture = std::env::temp_dir().join(format!("towpath-signals-{}", std::process::id()));
    let stack = Stack::builder().rootless().capture(&capture).start().expect("a stack");
    // A thread sets its name itself.
    while masks_of_threads("towpath-pcap").is_empty() {
        std::thread::yield_now();
    }
    let masks = masks_of_threads("towpath-");
    // SIGINT, SIGPIPE, SIGTERM, SIGCHLD, SIGUSR1.
    let wanted = [2, 13, 15, 17, 10].iter().fold(0, |mask, signal| mask | 1u64 << (signal - 1));
    assert!(masks.iter().all(|mask| mask & wanted == wanted), "{masks:x?}");
    drop(stack);
    std::fs::remove_file(capture).expect("the file");
}

/// Runs a test of this file in a network namespace of its own, with all rights there.
fn in_namespace(test: &str) {
    let test = format!("builder::{test}");
    let run = Command::new("unshare")
        .args(["-U", "-n", "--map-current-user", "--keep-caps"])
        .arg(std::env::current_exe().expect("a path"))
        .args(["--exact", &test, "--ignored", "--nocapture"])
        .output()
        .expect("unshare(1) of util-linux");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && out.contains("1 passed"), "{out}{err}");
}

#[test]
fn a_stack_with_a_device_reaches_the_kernel() {
    in_namespace("inside_with_rights");
}

#[test]
#[ignore = "another test runs it in a namespace"]
fn inside_with_rights() {
    let stack = Stack::builder().tap("tw7").address("10.77.0.2/24").start().expect("a stack");
    assert_eq!(stack.addresses(), ["10.77.0.2".parse::<std::net::IpAddr>().unwrap()]);
    let listener = stack.listen("0.0.0.0:80").expect("a listener");
    let mut client = TcpStream::connect("10.77.0.2:80").expect("connected");
    let (mut server, from) = listener.accept().expect("accepted");
    assert_eq!(from.ip().to_string(), "10.77.0.1");
    client.write_all(b"bytes").expect("sent");
    let mut bytes = [0; 5];
    server.read_exact(&mut bytes).expect("received");
    assert_eq!(&bytes, b"bytes");
}

#[test]
fn a_stack_adopts_the_mtu_of_its_interface() {
    in_namespace("inside_with_an_interface");
}

#[test]
#[ignore = "another test runs it in a namespace"]
fn inside_with_an_interface() {
    let ip = |words: &str| {
        let status = Command::new("ip").args(words.split(' ')).status();
        assert!(status.expect("ip(8)").success(), "{words}");
    };
    ip("link add va mtu 9000 type veth peer name vb mtu 9000");
    ip("addr add 10.78.0.1/24 dev vb");
    ip("link set va up");
    ip("link set vb up");
    let builder = Stack::builder().device("packet:va").address("10.78.0.2/24");
    let stack = builder.start().expect("a stack");
    let listener = TcpListener::bind("10.78.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("bound");
    let path_mtu = || {
        let stream = stack.connect(address).expect("connected");
        listener.accept().expect("accepted");
        stream.info().expect("connected").path_mtu
    };
    assert_eq!(path_mtu(), 9000);
    ip("link set va mtu 1500");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(50);
    while path_mtu() != 1500 {
        assert!(std::time::Instant::now() < deadline, "the MTU is not adopted");
    }
}

#[test]
fn a_user_without_rights_is_told_how_to_get_a_device() {
    in_namespace("inside_without_rights");
}

#[test]
#[ignore = "another test runs it in a namespace"]
fn inside_without_rights() {
    // Root has rights in a user namespace of its own as well. A thread gives up its own.
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).expect("fewer");
    let (sentence, kind) = refused(Stack::builder().tap("tw7"));
    // Root has to give the container the capability, and other users need a device made by root.
    let is_root = rustix::process::geteuid().is_root();
    let wanted = if is_root { "--cap-add NET_ADMIN" } else { "ip tuntap add dev tw7" };
    assert!(sentence.contains(wanted), "{sentence}");
    assert_eq!(kind, ErrorKind::PermissionDenied);
}

#[test]
fn links_have_the_delay_that_netem_describes() {
    let long = std::time::Duration::from_millis(40);
    let (server, client) = Stack::builder().netem("delay 20ms").pair().expect("two stacks");
    let listener = server.listen("0.0.0.0:80").expect("a listener");
    let begin = std::time::Instant::now();
    let mut ours = client.connect("10.0.0.1:80").expect("connected");
    assert!(begin.elapsed() >= long, "a round trip");
    let (mut theirs, _) = listener.accept().expect("accepted");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).map(|_| bytes.len())
    });
    // Packets on the link arrive although their sender has ended.
    ours.write_all(&[7; 300_000]).expect("sent");
    drop((ours, client));
    assert_eq!(reader.join().expect("no panic").expect("the end of the stream"), 300_000);

    let through_gateway = Stack::builder().rootless().netem("delay 20ms").start().expect("a stack");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = format!("10.0.2.2:{}", listener.local_addr().expect("bound").port());
    let begin = std::time::Instant::now();
    drop(through_gateway.connect(address).expect("connected"));
    assert!(begin.elapsed() >= long, "a round trip");
}
