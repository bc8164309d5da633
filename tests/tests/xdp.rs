//! `towpath run --xdp`: a stack with an XDP socket on one end of a veth pair, and clients in the
//! other end's namespace. Skipped without root.

use rustix::process::Signal;
use towpath_tests::veth::{ECHO, FOREIGN, Veth, counter, follow_mtu, share_ports, unplug};
use towpath_tests::{PATIENCE, Process, eventually, is_inline, towpath, wait_for_port};

const ON_VETH: [&str; 7] =
    ["--xdp", "vb", "--address", "10.1.0.2/24", "--address", "fd00:1::2/64", "--stats=json"];

/// Creates the namespaces. Returns `None` without root, or inline, which does not support XDP.
fn lab(mtu: u32) -> Option<Veth> {
    if is_inline() { None } else { Veth::new(mtu) }
}

/// Starts a program on the veth.
fn start(lab: &Veth, program: &[&str]) -> Process {
    lab.run(&ON_VETH, program)
}

/// Returns whether an XDP program is attached to the interface.
fn has_program(lab: &Veth) -> bool {
    let shown = lab.there.run(&["ip", "-d", "-j", "link", "show", "vb"]).ok().stdout;
    let links: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    links[0].get("xdp").is_some()
}

#[test]
fn a_stack_has_its_frames_and_the_kernel_all_others() {
    let Some(lab) = lab(1500) else { return };
    let run = start(&lab, &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    for host in ["10.1.0.2", "fd00:1::2"] {
        let output = lab.transfer(host).ok();
        assert_eq!(output.stdout, "True 8388608\n", "{host}");
        lab.here.run(&["ping", "-c1", "-W5", host]).ok();
    }
    // At its own address the kernel answers, and refuses ports that only the stack serves.
    for host in ["10.1.0.9", "fd00:1::9"] {
        lab.here.run(&["ping", "-c1", "-W5", host]).ok();
    }
    let refused = lab.transfer("10.1.0.9");
    assert!(refused.stderr.contains("ConnectionRefusedError"), "{}", refused.stderr);
    assert!(has_program(&lab) && lab.promiscuity() > 0);
    run.signal(Signal::TERM);
    let output = run.wait(PATIENCE);
    assert!(!has_program(&lab) && lab.promiscuity() == 0);
    // A veth runs the program in the driver, and the kernel copies packets.
    let xdp = |name: &str| counter(&output.stderr, "xdp", name);
    assert_eq!((xdp("in_driver"), xdp("zero_copy")), (1, 0), "{}", output.stderr);
    assert!(xdp("rx_bytes") > 16 << 20 && xdp("tx_bytes") > 16 << 20, "{}", output.stderr);
    let completed = 16 << 20..=xdp("tx_bytes");
    assert!(completed.contains(&xdp("tx_completed_bytes")), "{}", output.stderr);
    assert_eq!((xdp("rx_malformed"), xdp("tx_malformed")), (0, 0), "{}", output.stderr);
    assert_ne!(counter(&output.stderr, "gro", "merged"), 0, "{}", output.stderr);
}

#[test]
fn the_mtu_of_the_interface_is_followed() {
    let Some(lab) = lab(9000) else { return };
    follow_mtu(&lab, &ON_VETH, "10.1.0.2");
}

#[test]
fn a_web_server_is_reached() {
    let Some(lab) = lab(1500) else { return };
    let _run = start(&lab, &["python3", "-m", "http.server", "80"]);
    wait_for_port(&lab.here, "10.1.0.2", 80);
    for url in ["http://10.1.0.2/", "http://10.1.0.2/nothing"] {
        let status = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url];
        let wanted = if url.ends_with("nothing") { "404" } else { "200" };
        assert_eq!(lab.here.run(&status).ok().stdout, wanted);
    }
}

#[test]
fn foreign_frames_do_no_harm() {
    let Some(lab) = lab(1500) else { return };
    let run = start(&lab, &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    for _ in 0..3 {
        lab.here.run(&["python3", "-c", FOREIGN]).ok();
    }
    lab.transfer("10.1.0.2").ok();
    lab.here.run(&["ping", "-c1", "-W5", "10.1.0.9"]).ok();
    run.signal(Signal::TERM);
    let output = run.wait(PATIENCE);
    assert!(counter(&output.stderr, "drops", "frame_unknown") >= 3, "{}", output.stderr);
}

#[test]
fn large_packets_of_the_interface_pass() {
    let Some(lab) = lab(9000) else { return };
    let _run = start(&lab, &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    lab.here.run(&["ping", "-c1", "-W5", "-M", "do", "-s", "8972", "10.1.0.2"]).ok();
    lab.transfer("10.1.0.2").ok();
}

#[test]
fn the_program_goes_with_a_killed_run() {
    let Some(lab) = lab(1500) else { return };
    let run = start(&lab, &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    run.signal(Signal::KILL);
    eventually("the program is detached", || !has_program(&lab) && lab.promiscuity() == 0);
    lab.here.run(&["ping", "-c1", "-W5", "10.1.0.9"]).ok();
}

#[test]
fn a_removed_interface_is_told_and_other_connections_live() {
    let Some(lab) = lab(1500) else { return };
    unplug(&lab, &ON_VETH);
}

/// Only a notification by the kernel reaches a run that neither sends nor receives.
#[test]
fn a_silent_run_is_told_of_a_removed_interface() {
    let Some(lab) = lab(1500) else { return };
    let run = start(&lab, &["sleep", "1000"]);
    eventually("the run has begun", || run.stderr().contains("on vb"));
    lab.there.run(&["ip", "link", "del", "vb"]).ok();
    eventually("the removal is told", || run.stderr().contains("the interface vb was deleted"));
}

/// Joins a multicast group, and prints a datagram sent to it.
const MEMBER: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 7903))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
             socket.inet_aton('239.1.2.3') + socket.inet_aton('10.1.0.2'))
print('joined', flush=True)
print(s.recv(100).decode(), flush=True)
";

/// Sends a datagram to the group.
const TO_GROUP: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('10.1.0.1'))
s.sendto(b'to the group', ('239.1.2.3', 7903))
";

/// The XDP program only knows the initial addresses, and no groups.
#[test]
fn later_addresses_and_groups_are_reached() {
    let Some(lab) = lab(1500) else { return };
    let name = format!("later_{}", std::process::id());
    let options = [&ON_VETH[..], &["--name", &name]].concat();
    let run = lab.run(&options, &["python3", "-c", MEMBER]);
    eventually("the group is joined", || run.stdout().contains("joined"));
    lab.here.run(&["python3", "-c", TO_GROUP]).ok();
    assert_eq!(run.wait(PATIENCE).ok().stdout, "joined\nto the group\n");
    let _run = lab.run(&options, &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    for (address, len) in [("10.1.0.77", 24), ("fd00:1::77", 64)] {
        let with_len = format!("{address}/{len}");
        let add = ["ip", "--name", &name, "addr", "add", &with_len, "dev", "eth0"];
        lab.here.run(&[&[towpath().as_str()], &add[..]].concat()).ok();
        eventually("the address answers", || {
            lab.here.run(&["ping", "-c1", "-W1", address]).success()
        });
    }
}

#[test]
fn an_interface_that_was_down_goes_on() {
    let Some(lab) = lab(1500) else { return };
    let run = start(&lab, &["python3", "-c", ECHO]);
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    lab.there.shell("ip link set vb down && ip link set vb up").ok();
    wait_for_port(&lab.here, "10.1.0.2", 7900);
    assert!(!run.stderr().contains("deleted"), "{}", run.stderr());
}

#[test]
fn ports_of_the_kernels_addresses_are_the_stacks() {
    let Some(lab) = lab(1500) else { return };
    share_ports(&lab, &["--xdp", "vb", "--ports", "tcp:7900,udp:7900", "--stats=json"], "xdp");
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let Some(lab) = lab(1500) else { return };
    lab.there.shell("ip link add d0 type veth peer name d1 && ip link set d0 up").ok();
    let with = |interface| ["--xdp", interface, "--address", "10.1.0.2/24"];
    let cases: [(&[&str], &str); 7] = [
        (&with("nothing"), "--xdp: there is no interface \"nothing\": `ip link` lists"),
        (&with("lo"), "lo is not an Ethernet interface"),
        (&with("d1"), "d1 is down: set it up with `sudo ip link set d1 up`"),
        (&["--xdp", "vb"], "give an --address"),
        (&["--xdp", "d0", "--ports", "tcp:80"], "--ports: the kernel has no address on d0"),
        (
            &["--xdp", "vb", "--ports", "tcp:80", "--address", "10.1.0.2/24"],
            "--address 10.1.0.2/24: the kernel does not have it on vb",
        ),
        (&["--ports", "tcp:80"], "--ports needs an interface: give --xdp or --packet"),
    ];
    for (options, wanted) in cases {
        let said = lab.refused(options);
        assert!(said.contains(wanted), "{options:?}: {said}");
    }
    let first = start(&lab, &["sleep", "60"]);
    eventually("the run has begun", || first.stderr().contains("on vb"));
    let said = lab.refused(&["--xdp", "vb", "--address", "10.1.0.3/24"]);
    assert!(said.contains("vb has an XDP program already"), "{said}");
}
