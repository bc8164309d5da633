//! A hostile neighbour on the link. Connections continue, no process dies, and every dropped frame
//! has a reason.

use serde_json::Value;
use towpath_tests::{
    Namespace, PATIENCE, Process, Scratch, eventually, program, towpath, wait_for_listener,
};

const FRAMES: &str = "20000";

/// Drop reasons that 20,000 frames of every kind must cause.
const REASONS: &[&str] = &[
    "fragment_invalid",
    "fragment_overlap",
    "frame_not_ours",
    "frame_unknown",
    "icmp_error_stray",
    "icmp_malformed",
    "ip_checksum",
    "ip_malformed",
    "ip_source_route",
    "martian",
    "neighbor_malformed",
    "not_local",
    "tcp_no_socket",
    "transport_checksum",
    "transport_malformed",
    "udp_no_socket",
    "unknown_protocol",
];

/// Drop reasons of mangled copies of the download's own segments. Each run causes at least one;
/// which one depends on the progress of the download. The stack's tests cover each of them.
const REASONS_OF_CONNECTIONS: &[&str] = &[
    "tcp_after_close",
    "tcp_bad_ack",
    "tcp_no_ack",
    "tcp_out_of_window",
    "tcp_paws",
    "tcp_reset_ignored",
    "tcp_reset_in_window",
    "tcp_syn_in_window",
    "tcp_timestamp_missing",
    "tcp_unacceptable",
    "tcp_unexpected",
];

#[test]
fn a_hostile_neighbour() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for seed in ["1", "2"] {
        storm(seed, false);
    }
}

/// Tests whose result depends on CPU time: while the engine is not scheduled, frames are lost in
/// the device's queue and cause no drop reason.
mod nightly {
    use super::*;

    #[test]
    fn a_hostile_neighbour_reaches_every_reason() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for seed in ["1", "2"] {
            storm(seed, true);
        }
    }

    #[test]
    fn an_idle_stack_sees_what_a_hostile_neighbour_sends() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (sent, drops) = storm_at_an_idle_stack();
        assert!(sent > 18_000 && drops > 15_000, "{drops} drops of {sent}");
    }
}

/// Sends the frames during a download. `all` requires that every frame reaches the stack.
fn storm(seed: &str, all: bool) {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let big = folder.big("big", 96 << 20);
    let mut server = serve(&ns, &folder);
    wait_for_listener(&server, 7700);

    let download = ns.spawn(&[
        "curl",
        "-sS",
        "-m",
        "90",
        "--limit-rate",
        "24M",
        "-o",
        &folder.file("copy"),
        "http://10.77.0.2:7700/big",
    ]);
    let frames = program("oracle/hostile/frames.py");
    let hostile = ns.spawn(&["python3", "-B", &frames, "hostile0", seed, FRAMES]);
    let said = hostile.wait(PATIENCE).ok().stdout;
    assert!(said.starts_with("sent True, used "), "seed {seed}: {said}");
    download.wait(PATIENCE).ok();
    ns.run(&["cmp", &big, &folder.file("copy")]).ok();

    // New connections in both directions work as well.
    assert!(server.is_running(), "seed {seed}");
    let again = ns.shell("curl -sS -m 30 http://10.77.0.2:7700/big | sha256sum").ok().stdout;
    let wanted = ns.shell(&format!("sha256sum < {big}")).ok().stdout;
    assert_eq!(again, wanted, "seed {seed}");
    let ping = ns.run(&["ping", "-c", "3", "-i", "0.2", "-W", "2", "10.77.0.2"]).ok().stdout;
    assert!(ping.contains(" 0% packet loss"), "{ping}");

    let out = server.stop();
    assert!(!out.stderr.contains("panicked"), "seed {seed}: {}", out.stderr);
    let json = out.stderr.lines().find(|line| line.starts_with('{')).expect("counters");
    let counters: Value = serde_json::from_str(json).expect("JSON");
    let least = if all { 19_000 } else { 1000 };
    assert!(
        counters["tap"]["rx_frames"].as_u64() > Some(least),
        "seed {seed}: {:#}",
        counters["tap"]
    );
    if !all {
        return;
    }
    let dropped = |reason: &str| counters["drops"][reason].as_u64().expect("a counter") > 0;
    let unreached: Vec<_> = REASONS.iter().filter(|reason| !dropped(reason)).collect();
    assert!(unreached.is_empty(), "seed {seed}: no {unreached:?} in {:#}", counters["drops"]);
    let reached = REASONS_OF_CONNECTIONS.iter().filter(|reason| dropped(reason)).count();
    assert!(reached > 0, "seed {seed}: {:#}", counters["drops"]);
}

fn serve(ns: &Namespace, folder: &Scratch) -> Process {
    let (towpath, receive) = (towpath(), program("receive.py"));
    let path = folder.path().to_str().expect("plain");
    ns.spawn(&[
        &towpath,
        "run",
        "-q",
        "--tap=hostile0",
        "--stats=json",
        "--",
        "python3",
        &receive,
        "7700",
        path,
    ])
}

/// Sends the same frames to a stack without open sockets.
#[test]
fn a_hostile_neighbour_of_an_idle_stack() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (sent, drops) = storm_at_an_idle_stack();
    assert!(sent > 0 && drops > 0, "{drops} drops of {sent}");
}

/// Returns the number of frames sent, and the number dropped by the stack.
fn storm_at_an_idle_stack() -> (u64, u64) {
    let ns = Namespace::new();
    let script = "import os,socket,sys,time\nd=__import__('random').Random(3)\ntime.sleep(1)\n\
        w=socket.socket(socket.AF_PACKET,socket.SOCK_RAW)\nw.bind(('idle0',0))\nsent=0\n\
        for i in range(20000):\n try: w.send(d.choice((b'\\xff'*6,b'\\2'*6,b'\\x33\\x33\\0\\0\\0\\1'))+b'\\2'*6+d.choice((b'\\x08\\0',b'\\x08\\6',b'\\x86\\xdd'))+d.choice((b'\\x45\\0',b'\\x60\\0',b''))+d.randbytes(d.randrange(1400))); sent+=1\n except OSError: pass\n\
        \x20if i%20==0: time.sleep(.001)\nprint(sent)";
    let towpath = towpath();
    let idle =
        ns.spawn(&[&towpath, "run", "-q", "--tap=idle0", "--stats=json", "--", "sleep", "60"]);
    eventually("the device is up", || ns.shell("ip link show idle0 up | grep -q UP").success());
    let sent = ns.run(&["python3", "-c", script]).ok().stdout;
    let out = idle.stop();
    let counters: Value = serde_json::from_str(out.stderr.trim()).expect("nothing but JSON");
    let drops =
        counters["drops"].as_object().into_iter().flatten().filter_map(|(_, v)| v.as_u64()).sum();
    (sent.trim().parse().expect("a count"), drops)
}
