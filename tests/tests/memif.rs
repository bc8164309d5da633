//! `--memif`: runs joined by shared memory, without root, and a peer of DPDK.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use std::path::Path;

use towpath_tests::proxy_lab::counter;
use towpath_tests::{
    Output, PATIENCE, Process, Scratch, eventually, is_inline, towpath, wait_for_listener,
};

/// Length in bytes of the file that clients fetch: several times the buffers of a ring.
const FILE: u64 = 20_000_000;

/// Starts an HTTP server of the files in a folder.
fn serve(folder: &Scratch, memif: &str, address: &str) -> Process {
    let path = folder.path().to_str().expect("a path in UTF-8");
    let server = ["python3", "-m", "http.server", "80", "-d", path];
    let run = Process::spawn(&line(memif, address, &server));
    wait_for_listener(&run, 80);
    run
}

/// Fetches a file and returns its hash.
fn fetch(memif: &str, address: &str, url: &str) -> Output {
    let client = format!("curl -sS --fail --connect-timeout 20 {url} | sha256sum");
    let towpath = line(memif, address, &["sh", "-c", &client]);
    Process::spawn(&towpath).wait(PATIENCE).ok()
}

fn line<'a>(memif: &'a str, address: &'a str, program: &[&'a str]) -> Vec<&'a str> {
    static TOWPATH: std::sync::LazyLock<String> = std::sync::LazyLock::new(towpath);
    let options = ["run", "--stats=json", "--memif", memif, "--address", address, "--"];
    [&[TOWPATH.as_str()], &options[..], program].concat()
}

fn hash(file: &str) -> String {
    let sum = Process::spawn(&["sha256sum", file]).wait(PATIENCE).ok().stdout;
    sum.split_whitespace().next().expect("a hash").to_owned()
}

#[test]
fn two_runs_with_the_same_socket_are_joined() {
    if is_inline() {
        return;
    }
    let folder = Scratch::new();
    let wanted = hash(&folder.big("big", FILE));
    let socket = folder.file("memif.sock");
    let server = serve(&folder, &socket, "10.9.0.1/24");
    // The second client finds the server again after the first client has left.
    for _ in 0..2 {
        let got = fetch(&socket, "10.9.0.2/24", "http://10.9.0.1/big");
        assert!(got.stdout.starts_with(&wanted), "{}", got.stdout);
        let count = |name| counter(&got.stderr, "memif", name);
        assert!(count("rx_bytes") > FILE);
        assert_eq!((count("peers"), count("broken_rings"), count("rx_malformed")), (1, 0, 0));
    }
    let stats = server.stop().stderr;
    assert_eq!(counter(&stats, "memif", "peers"), 2, "{stats}");
    assert!(stats.contains("the memif peer towpath has connected"), "{stats}");
    assert!(!Path::new(&socket).exists(), "the socket is removed at the end");
}

#[test]
fn a_router_joins_the_networks_of_two_runs() {
    if is_inline() {
        return;
    }
    let folder = Scratch::new();
    let wanted = hash(&folder.big("big", FILE));
    let (left, right) = (folder.file("left.sock"), folder.file("right.sock"));
    let a = format!("a=memif:{left},role=server,id=7,10.1.0.1/24");
    let b = format!("b=memif:{right},mtu=1400,10.2.0.1/24");
    let towpath = towpath();
    let router = Process::spawn(&[&towpath, "router", "--stats=json", "--port", &a, "--port", &b]);
    eventually("the sockets are there", || {
        [&left, &right].iter().all(|socket| Path::new(socket).exists())
    });
    let server = serve(&folder, &format!("{left},id=7,bsize=256"), "10.1.0.2/24");
    let got = fetch(&right, "10.2.0.2/24", "http://10.1.0.2/big");
    assert!(got.stdout.starts_with(&wanted), "{}", got.stdout);
    server.stop();
    let stats = router.stop().stderr;
    assert!(counter(&stats, "net", "forwarded") > 1000, "{stats}");
}

#[test]
fn wrong_options_are_refused_with_a_reason() {
    let folder = Scratch::new();
    let socket = folder.file("memif.sock");
    let wrong = [
        (",role=boss", "role=boss: expected server or client"),
        (",zero-copy=yes", "zero-copy=yes: expected id, role, secret, rsize or bsize"),
    ];
    for (more, wanted) in wrong {
        let output = Process::spawn(&line(&format!("{socket}{more}"), "10.9.0.1/24", &["true"]));
        let output = output.wait(PATIENCE);
        assert_eq!(output.code(), 125, "{}", output.stderr);
        assert!(output.stderr.contains(wanted), "{}", output.stderr);
    }
}

#[test]
fn a_path_of_another_kind_of_socket_is_refused() {
    let folder = Scratch::new();
    let socket = folder.file("memif.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a path");
    let output = Process::spawn(&line(&socket, "10.9.0.1/24", &["true"])).wait(PATIENCE);
    assert!(!output.success());
    assert!(output.stderr.contains("wrong type for socket"), "{}", output.stderr);
}

/// Tests with testpmd, which takes some seconds to start.
mod nightly {
    use super::*;

    const TESTPMD: &str = "/usr/bin/dpdk-testpmd";

    /// Starts testpmd with memif devices. Returns `None` without Debian's package dpdk-dev.
    fn testpmd(devices: &[String], options: &[&str]) -> Option<Process> {
        if !Path::new(TESTPMD).exists() {
            eprintln!("left out: needs dpdk-testpmd of the Debian package dpdk-dev");
            return None;
        }
        let mut line = vec![TESTPMD, "--no-huge", "--no-shconf", "--no-telemetry", "--no-pci"];
        line.extend(devices.iter().map(String::as_str));
        line.extend(["--", "--no-mlockall", "--total-num-mbufs=8192", "--auto-start"]);
        // With a period, testpmd does not wait for the end of its standard input.
        line.extend(["--stats-period=1"]);
        line.extend(options);
        Some(Process::spawn(&line))
    }

    fn vdev(number: u8, role: &str, socket: &str, more: &str) -> String {
        format!("--vdev=net_memif{number},role={role},socket={socket},socket-abstract=no{more}")
    }

    /// Fetches a file through testpmd, which forwards between a server and a client of memif.
    /// `more` has further options of testpmd's devices. The run that is testpmd's client has the
    /// file if `client_serves`, otherwise the run that is its server.
    fn fetch_through_dpdk(more: &str, options: &[&str], mtu: &str, client_serves: bool) {
        if is_inline() || !Path::new(TESTPMD).exists() {
            return;
        }
        let folder = Scratch::new();
        let wanted = hash(&folder.big("big", FILE));
        let (near, far) = (folder.file("near.sock"), folder.file("far.sock"));
        let path = folder.path().to_str().expect("a path in UTF-8");
        let mut ends = [format!("{near},role=client"), format!("{far},role=server")];
        if client_serves {
            ends.reverse();
        }
        let [fetches, serves] = &ends;
        let run = |memif, address, program: &[&str]| {
            let mut words = line(memif, address, program);
            words.insert(2, "--mtu");
            words.insert(3, mtu);
            Process::spawn(&words)
        };
        let server = ["python3", "-m", "http.server", "80", "-d", path];
        let server = run(serves, "10.9.0.1/24", &server);
        wait_for_listener(&server, 80);
        let client = "curl -sS --fail --connect-timeout 40 http://10.9.0.1/big | sha256sum";
        let client = run(fetches, "10.9.0.2/24", &["sh", "-c", client]);
        // Testpmd does not try again to connect to its server.
        eventually("the server's socket", || Path::new(&far).exists());
        let devices = [vdev(0, "server", &near, more), vdev(1, "client", &far, more)];
        let dpdk = testpmd(&devices, options).expect("testpmd");
        let got = client.wait(PATIENCE);
        assert!(got.stdout.starts_with(&wanted), "{} {}", got.stdout, got.stderr);
        let stats = server.stop().stderr;
        dpdk.stop();
        for stats in [&got.stderr, &stats] {
            assert!(stats.contains("the memif peer net_memif"), "{stats}");
            let count = |name| counter(stats, "memif", name);
            assert_eq!((count("broken_rings"), count("rx_malformed")), (0, 0), "{stats}");
            assert!(count("rx_bytes") + count("tx_bytes") > FILE, "{stats}");
        }
    }

    #[test]
    fn a_file_passes_from_the_client_of_dpdk_to_its_server() {
        fetch_through_dpdk("", &[], "1500", false);
    }

    #[test]
    fn a_file_passes_from_the_server_of_dpdk_to_its_client() {
        fetch_through_dpdk("", &[], "1500", true);
    }

    #[test]
    fn frames_of_several_buffers_pass_through_dpdk() {
        let options = ["--mbuf-size=1024", "--tx-offloads=0x8000"];
        for client_serves in [false, true] {
            fetch_through_dpdk(",bsize=1024", &options, "4000", client_serves);
        }
    }

    #[test]
    fn dpdk_answers_pings_and_comes_back() {
        if is_inline() || !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = Scratch::new();
        let socket = folder.file("memif.sock");
        let devices = [vdev(0, "server", &socket, ",secret=abc,id=5,rsize=4")];
        let start = || {
            let dpdk = testpmd(&devices, &["--forward-mode=icmpecho"])?;
            eventually("testpmd listens", || Path::new(&socket).exists());
            Some(dpdk)
        };
        let Some(dpdk) = start() else { return };
        let memif = format!("{socket},role=client,secret=abc,id=5,rsize=4");
        let again = folder.file("again");
        let program = format!(
            "answers() {{ until ping -q -c 1 -W 1 10.9.0.1; do sleep 0.1; done; }}
            answers; ping -q -f -c 300 -s 1400 10.9.0.1 && echo first > {again}.first
            while ! test -e {again}; do sleep 0.1; done
            answers; echo second"
        );
        let run = Process::spawn(&line(&memif, "10.9.0.2/24", &["sh", "-c", &program]));
        eventually("answers", || Path::new(&format!("{again}.first")).exists());
        dpdk.stop();
        let dpdk = start().expect("testpmd");
        folder.write("again", "");
        let output = run.wait(PATIENCE);
        assert!(output.stdout.contains("300 received"), "{}", output.stdout);
        assert!(output.stdout.contains("second"), "{} {}", output.stdout, output.stderr);
        assert_eq!(counter(&output.stderr, "memif", "peers"), 2, "{}", output.stderr);
        dpdk.stop();
    }
}
