//! `towpath run --packet`: a stack on one end of a veth pair, next to the kernel, with clients in
//! the other end's namespace. Skipped without root.

use rustix::process::Signal;
use towpath_tests::veth::{ECHO, FOREIGN, Veth, counter, follow_mtu, unplug};
use towpath_tests::{PATIENCE, Process, eventually, is_inline, towpath, wait_for_port};

const ON_VETH: [&str; 6] =
    ["--packet", "vb", "--address", "10.1.0.2/24", "--address", "fd00:1::2/64"];

/// Starts a program on the veth.
fn start(lab: &Veth, options: &[&str], program: &[&str]) -> Process {
    lab.run(&[&ON_VETH[..], options].concat(), program)
}

#[test]
fn a_stack_is_a_host_of_the_network_and_the_kernel_stays_one() {
    let Some(lab) = Veth::new(1500) else { return };
    let run = start(&lab, &["--stats=json"], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    for host in ["10.1.0.2", "fd00:1::2"] {
        let output = lab.transfer(host).ok();
        assert_eq!(output.stdout, "True 8388608\n", "{host}");
        lab.here.run(&["ping", "-c1", "-W5", host]).ok();
    }
    // At its own address the kernel answers, and refuses ports that only the stack serves.
    lab.here.run(&["ping", "-c1", "-W5", "10.1.0.9"]).ok();
    let refused = lab.transfer("10.1.0.9");
    assert!(refused.stderr.contains("ConnectionRefusedError"), "{}", refused.stderr);
    assert_ne!(lab.promiscuity(), 0);
    run.signal(Signal::TERM);
    let output = run.wait(PATIENCE);
    assert_eq!(lab.promiscuity(), 0);
    // With `--inline`, a program killed by a signal reports no counters.
    if is_inline() {
        return;
    }
    let packet = |name: &str| counter(&output.stderr, "packet", name);
    // Segments were not split in either direction: frames of 1500 bytes would be more than twice as
    // many.
    for way in ["rx", "tx"] {
        let [frames, bytes] = ["frames", "bytes"].map(|name| packet(&format!("{way}_{name}")));
        assert!(bytes > 16 << 20, "{way}: {bytes} bytes");
        assert!(frames < bytes / 3000, "{way}: {frames} frames, {bytes} bytes");
    }
}

#[test]
fn foreign_frames_do_no_harm() {
    let Some(lab) = Veth::new(1500) else { return };
    let run = start(&lab, &["--stats=json"], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    for _ in 0..3 {
        lab.here.run(&["python3", "-c", FOREIGN]).ok();
    }
    lab.transfer("10.1.0.2").ok();
    run.signal(Signal::TERM);
    let output = run.wait(PATIENCE);
    if is_inline() {
        return;
    }
    // Two frames in each round, one to our address and one broadcast.
    assert!(counter(&output.stderr, "drops", "frame_unknown") >= 6, "{}", output.stderr);
}

#[test]
fn large_packets_of_the_interface_pass() {
    let Some(lab) = Veth::new(9000) else { return };
    let _run = start(&lab, &[], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    lab.here.run(&["ping", "-c1", "-W5", "-M", "do", "-s", "8972", "10.1.0.2"]).ok();
    lab.transfer("10.1.0.2").ok();
}

#[test]
fn nothing_is_left_after_a_kill() {
    let Some(lab) = Veth::new(1500) else { return };
    let run = start(&lab, &[], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    run.signal(Signal::KILL);
    eventually("promiscuous mode ends", || lab.promiscuity() == 0);
}

#[test]
fn a_removed_interface_is_told_and_other_connections_live() {
    let Some(lab) = Veth::new(1500) else { return };
    unplug(&lab, &ON_VETH);
}

#[test]
fn an_interface_that_was_down_goes_on() {
    let Some(lab) = Veth::new(1500) else { return };
    let run = start(&lab, &[], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    lab.there.shell("ip link set vb down && ip link set vb up").ok();
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    assert!(!run.stderr().contains("deleted"), "{}", run.stderr());
}

#[test]
fn neighbours_are_forgotten_when_the_link_is_lost() {
    // The refused connection leaves a reachable neighbour. Without traffic it would stay for good.
    const PROGRAM: &str = "
import socket, time
print(socket.socket().connect_ex(('10.1.0.1', 9)), flush=True)
time.sleep(1000)
";
    let Some(lab) = Veth::new(1500) else { return };
    let run = start(&lab, &[], &["python3", "-c", PROGRAM]);
    if is_inline() {
        return;
    }
    eventually("a refusal", || run.stdout().contains("111"));
    let (towpath, id) = (towpath(), run.id().to_string());
    let knows = || {
        let shown = lab.there.run(&[&towpath, "ip", "--run", &id, "neigh"]).ok().stdout;
        shown.contains("10.1.0.1 dev")
    };
    assert!(knows());
    lab.here.shell("ip link set va down").ok();
    eventually("the neighbour is forgotten", || !knows());
}

#[test]
fn the_mtu_of_the_interface_is_followed() {
    let Some(lab) = Veth::new(9000) else { return };
    follow_mtu(&lab, &ON_VETH, "10.1.0.2");
    follow_mtu(&lab, &["--packet", "vb", "--ports", "tcp:7900"], "10.1.0.9");
}

#[test]
fn a_router_follows_the_mtu_of_its_ports() {
    let Some(lab) = Veth::new(9000) else { return };
    let towpath = towpath();
    let port = "lan=packet:vb,10.1.0.2/24";
    let router = lab.there.spawn(&[&towpath, "router", "--port", port, "--name", "mtu"]);
    eventually("the router runs", || router.stderr().contains("router with"));
    let shown = || lab.there.run(&[&towpath, "port", "--name", "mtu"]).ok().stdout;
    for mtu in ["1500", "8000"] {
        lab.there.run(&["ip", "link", "set", "vb", "mtu", mtu]).ok();
        let wanted = format!("mtu {mtu},");
        eventually("the port has the MTU", || shown().contains(&wanted));
    }
    assert!(router.stderr().contains("the MTU of vb is 8000 now"), "{}", router.stderr());
}

/// Waits until a run has reported its interface.
fn begun(run: &Process) {
    eventually("the run has begun", || run.stderr().contains("on vb"));
}

#[test]
fn two_runs_share_no_address() {
    let Some(lab) = Veth::new(1500) else { return };
    let run = start(&lab, &[], &["sleep", "infinity"]);
    begun(&run);
    let wanted =
        format!("fd00:1::2: another run of towpath has it on vb already (process {}", run.id());
    for device in ["--packet", "--xdp"] {
        let said = lab.refused(&[device, "vb", "--address", "fd00:1::2/64"]);
        assert!(said.contains("--address ") && said.contains(&wanted), "{said}");
    }
    let router = ["router", "--port", "lan=packet:vb,fd00:1::2/64"];
    let router = lab.there.run(&[&[towpath().as_str()][..], &router].concat());
    assert!(router.stderr.contains(&wanted), "{}", router.stderr);
    lab.run(&["--packet", "vb", "--address", "10.1.0.3/24"], &["true"]).wait(PATIENCE).ok();
    // The claim is released when the process ends.
    run.signal(Signal::KILL);
    run.wait(PATIENCE);
    lab.run(&["--packet", "vb", "--address", "fd00:1::2/64"], &["true"]).wait(PATIENCE).ok();
    if !is_inline() {
        let run = lab.run(&["--xdp", "vb", "--address", "10.1.0.2/24"], &["sleep", "infinity"]);
        begun(&run);
        let said = lab.refused(&["--packet", "vb", "--address", "10.1.0.2/24"]);
        assert!(said.contains("10.1.0.2: another run of towpath has it"), "{said}");
    }
}

#[test]
fn an_ipv6_address_of_another_host_is_not_used() {
    let Some(lab) = Veth::new(1500) else { return };
    let run = lab.run(&["--packet", "vb", "--address", "fd00:1::1/64"], &["sleep", "infinity"]);
    eventually("a report of the duplicate", || {
        let said = run.stderr();
        said.contains("fd00:1::1: another host on the link (") && said.contains("not used here")
    });
}

#[test]
fn two_runs_share_no_port() {
    let Some(lab) = Veth::new(1500) else { return };
    let ports = |rules| ["--packet", "vb", "--ports", rules];
    let run = lab.run(&ports("tcp:82,udp:100-110"), &["sleep", "infinity"]);
    begun(&run);
    for (rules, wanted) in [
        ("tcp:82", "--ports tcp:82: another run of towpath has tcp:82 of "),
        ("tcp:1,tcp:70-90", "--ports tcp:70-90: another run of towpath has tcp:82 of "),
        ("udp:110-120", "has udp:100-110 of "),
    ] {
        let said = lab.refused(&ports(rules));
        assert!(said.contains(wanted), "{rules}: {said}");
    }
    for free in [
        &ports("udp:82,tcp:100-110")[..],
        &[&ports("tcp:82")[..], &["--address", "fd00:1::9/64"]].concat(),
    ] {
        let other = lab.run(free, &["true"]).wait(PATIENCE);
        assert_eq!(other.success(), !free.contains(&"--address"), "{}", other.stderr);
    }
}

#[test]
fn a_program_of_the_kernel_at_a_port_is_named() {
    let Some(lab) = Veth::new(1500) else { return };
    let kernels = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=7901)";
    let _kernels = lab.there.spawn(&["python3", "-c", kernels]);
    wait_for_port(&lab.here, "10.1.0.9", 7901);
    let said = |rules| {
        let run = lab.run(&["--packet", "vb", "--ports", rules], &["true"]);
        run.wait(PATIENCE).ok().stderr
    };
    let wanted = "a program of this host's kernel receives at tcp:7901 already";
    let warned = said("tcp:7900-7910,udp:7901");
    assert!(warned.contains(wanted), "{warned}");
    assert!(!said("tcp:7902,udp:7901").contains("already"));
}

#[test]
fn an_interface_without_further_ethernet_addresses_is_named() {
    let Some(lab) = Veth::new(1500) else { return };
    if !lab.there.shell("ip link add mv0 link vb type macvlan && ip link set mv0 up").success() {
        eprintln!("left out: the kernel has no macvlan");
        return;
    }
    let run = lab.run(&["--packet", "mv0", "--address", "10.1.0.3/24"], &["true"]);
    let said = run.wait(PATIENCE).ok().stderr;
    assert!(said.contains("mv0 is of the kind macvlan"), "{said}");
    let usual = start(&lab, &[], &["true"]).wait(PATIENCE).ok().stderr;
    assert!(!usual.contains("of the kind"), "{usual}");
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let Some(lab) = Veth::new(1500) else { return };
    lab.there
        .shell("ip link add down0 type veth peer name down1; ip tuntap add tun0 mode tun")
        .ok();
    let with = |interface| ["--packet", interface, "--address", "10.1.0.2/24"];
    let cases: [(&[&str], &str); 7] = [
        (&with("nothing"), "--packet: there is no interface \"nothing\": `ip link` lists"),
        (&with("a_name_that_is_too_long"), "there is no interface"),
        (&with("lo"), "lo is not an Ethernet interface"),
        (&with("tun0"), "tun0 is not an Ethernet interface"),
        (&with("down0"), "down0 is down: set it up with `sudo ip link set down0 up`"),
        (
            &["--packet", "vb", "--address", "10.1.0.9/24"],
            "--address 10.1.0.9/24: this host has it on vb already",
        ),
        (&[&with("vb")[..], &["--mtu", "9000"]].concat(), "--mtu 9000: vb takes at most 1500"),
    ];
    for (options, wanted) in cases {
        let said = lab.refused(options);
        assert!(said.contains(wanted), "{options:?}: {said}");
    }
    // The message lists all missing privileges at once, with advice for the user's environment.
    let without = |who: &[&str], options: &[&str]| {
        let towpath = towpath();
        let start = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"];
        let line =
            [&start[..], who, &[&towpath, "run", "--packet", "vb"], options, &["--", "true"]];
        lab.there.run(&line.concat()).stderr
    };
    let nobody = ["--reuid", "65534", "--clear-groups"];
    let said = without(&nobody, &["--address", "10.1.0.2/24"]);
    assert!(said.contains("needs CAP_NET_RAW: run with sudo"), "{said}");
    let said = without(&nobody, &["--ports", "tcp:80"]);
    assert!(said.contains("needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF: run with sudo"), "{said}");
    assert!(said.contains("setcap cap_net_raw,cap_net_admin,cap_bpf+ep"), "{said}");
    let said = without(&[], &["--address", "10.1.0.2/24"]);
    assert!(said.contains("`--cap-add NET_RAW`"), "{said}");
}

#[test]
fn a_link_with_delay_is_around_the_interface() {
    let Some(lab) = Veth::new(1500) else { return };
    let _run = start(&lab, &["--netem", "delay 20ms"], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    let ping = lab.here.run(&["ping", "-c2", "-W5", "10.1.0.2"]).ok().stdout;
    let least = ping.split("min/avg/max/mdev = ").nth(1).and_then(|rest| rest.split('/').next());
    let least: f64 = least.and_then(|text| text.parse().ok()).expect("a time");
    assert!(least >= 40., "{ping}");
}

#[test]
fn flows_come_to_the_shard_that_has_them() {
    let Some(lab) = Veth::new(1500) else { return };
    // An inline stack has a single shard.
    if is_inline() {
        return;
    }
    let run = start(&lab, &["--stats=json", "--shards", "2"], &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    for host in ["10.1.0.2", "fd00:1::2"].into_iter().cycle().take(8) {
        let output = lab.transfer(host).ok();
        assert_eq!(output.stdout, "True 8388608\n", "{host}");
    }
    lab.here.run(&["ping", "-c1", "-W5", "10.1.0.2"]).ok();
    run.signal(Signal::TERM);
    let output = run.wait(PATIENCE);
    // A BPF program that chose other shards than the stack would cause half of the flows to be
    // handed over.
    let handed_on = counter(&output.stderr, "sockets", "shard_handed_over");
    let frames = counter(&output.stderr, "packet", "rx_frames");
    assert!(handed_on < frames / 100, "{handed_on} of {frames}: {}", output.stderr);
}

#[test]
fn ports_of_the_kernels_addresses_are_the_stacks() {
    let Some(lab) = Veth::new(1500) else { return };
    let options = ["--packet", "vb", "--ports", "tcp:7900,udp:7900", "--stats=json"];
    towpath_tests::veth::share_ports(&lab, &options, "packet");
}
