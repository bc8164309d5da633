//! Tests of the program between two network namespaces. Skipped without root (in a container:
//! CAP_SYS_ADMIN and CAP_NET_ADMIN) or /dev/net/tun.
#![allow(clippy::print_stderr)] // Tests say what they leave out.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

const DELAY: Duration = Duration::from_millis(10);
/// Maximum wait for a frame, after which the test fails.
const PATIENCE: Duration = Duration::from_secs(50);

/// Two namespaces with a link between them, and a connected socket in each.
struct Link {
    process: Child,
    said: BufReader<ChildStdout>,
    sockets: [UdpSocket; 2],
    namespaces: [Namespace; 2],
}

/// A network namespace, deleted when dropped.
struct Namespace(String);

impl Link {
    /// Starts the link. Returns `None` without privileges.
    fn start(more: &[&str]) -> Option<Self> {
        static LINKS: AtomicU32 = AtomicU32::new(0);
        let id = LINKS.fetch_add(1, Ordering::Relaxed);
        let name = |n: usize| format!("towpath-link-{}-{id}-{n}", std::process::id());
        let namespaces = [Namespace::new(name(0))?, Namespace::new(name(1))?];
        for (n, namespace) in namespaces.iter().enumerate() {
            namespace.set_up(n + 1);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_link"));
        command.args(["--from", &name(0), "t", "--to", &name(1), "t"]);
        command.args(["--delay-us", &DELAY.as_micros().to_string()]).args(more);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut said = BufReader::new(process.stdout.take().expect("it is a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line, or the end");
        assert_eq!(line, "ready\n");
        // Set the device up only after the program has opened it. Otherwise the kernel takes up to
        // a second before it sends.
        namespaces.iter().for_each(|namespace| namespace.shell("ip link set dev t up"));
        let sockets = [socket(&namespaces[0], 1), socket(&namespaces[1], 2)];
        Some(Self { process, said, sockets, namespaces })
    }

    /// Ends the program. Returns its counts, and the sockets.
    fn end(mut self) -> (Value, [UdpSocket; 2]) {
        drop(self.process.stdin.take());
        let mut counts = String::new();
        self.said.read_to_string(&mut counts).expect("text");
        assert!(self.process.wait().expect("it is ours").success());
        drop(self.namespaces);
        (serde_json::from_str(&counts).expect("JSON"), self.sockets)
    }
}

impl Namespace {
    fn new(name: String) -> Option<Self> {
        let output = Command::new("ip").args(["netns", "add", &name]).output();
        let is_made = output.is_ok_and(|output| output.status.success());
        if !is_made || !std::path::Path::new("/dev/net/tun").exists() {
            eprintln!("left out: no privileges for network namespaces, or no /dev/net/tun");
            drop(is_made.then_some(Self(name)));
            return None;
        }
        Some(Self(name))
    }

    /// Configures end `n` with the address 10.0.0.n and a static neighbour, so that the kernel
    /// sends no frames besides those of the test.
    fn set_up(&self, n: usize) {
        let other = 3 - n;
        let script = format!(
            "set -e; echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set dev lo up; \
             ip tuntap add dev t mode tap; ip link set dev t address 02:00:00:00:00:0{n}; \
             ip addr add 10.0.0.{n}/24 dev t; \
             ip neigh add 10.0.0.{other} lladdr 02:00:00:00:00:0{other} dev t nud permanent"
        );
        self.shell(&script);
    }

    fn shell(&self, script: &str) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, "sh", "-c", script]);
        assert!(command.status().expect("ip").success(), "{script}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Creates a socket in a namespace, on a thread of its own. The socket stays in that namespace.
fn socket(namespace: &Namespace, n: usize) -> UdpSocket {
    let path = format!("/run/netns/{}", namespace.0);
    let make = move || {
        let namespace = std::fs::File::open(path).expect("it was made");
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).expect("setns");
        let socket = UdpSocket::bind((format!("10.0.0.{n}"), 7900)).expect("the address is there");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        // Provide room for all frames of a test, because the test may read them late.
        set_socket_recv_buffer_size_force(&socket, 4 << 20).expect("root may");
        socket.connect((format!("10.0.0.{}", 3 - n), 7900)).expect("a route");
        socket
    };
    std::thread::spawn(make).join().expect("a socket")
}

/// Sends the numbers below `count`.
fn send(socket: &UdpSocket, count: u32) {
    for n in 0..count {
        socket.send(&n.to_be_bytes()).expect("there is room");
    }
}

/// Iterates over received numbers.
fn numbers(socket: &UdpSocket) -> impl Iterator<Item = u32> {
    std::iter::from_fn(|| {
        let mut bytes = [0; 4];
        socket.recv(&mut bytes).expect("a number");
        Some(u32::from_be_bytes(bytes))
    })
}

fn count(counts: &Value, way: &str, name: &str) -> u64 {
    counts[way][name].as_u64().unwrap_or_else(|| panic!("{way} {name}: {counts}"))
}

#[test]
fn frames_come_through_in_order_and_not_before_their_delay() {
    let Some(link) = Link::start(&[]) else { return };
    let [near, far] = &link.sockets;
    for n in 0..20u32 {
        let start = Instant::now();
        near.send(&n.to_be_bytes()).expect("sent");
        let mut bytes = [0; 4];
        far.recv(&mut bytes).expect("it comes");
        assert!(start.elapsed() >= DELAY);
        far.send(&bytes).expect("sent");
        near.recv(&mut bytes).expect("it comes back");
        assert!(start.elapsed() >= 2 * DELAY);
        assert_eq!(u32::from_be_bytes(bytes), n);
    }
    send(near, 200);
    assert!(numbers(far).take(200).eq(0..200));
    let (counts, _sockets) = link.end();
    assert_eq!(count(&counts, "there", "carried"), 220);
    assert_eq!(count(&counts, "back", "carried"), 20);
    for name in ["lost", "full", "held"] {
        assert_eq!(count(&counts, "there", name) + count(&counts, "back", name), 0, "{counts}");
    }
    assert_eq!(counts["dropped_by_devices"], 0);
}

#[test]
fn what_is_lost_is_what_the_seed_says_and_is_counted() {
    // Only the first `COUNT` frames are checked. When a later frame arrives, none of these is in
    // flight.
    const COUNT: u32 = 300;
    const ALL: u32 = 340;
    let lost = |seed: &str| -> Option<Vec<u32>> {
        let link = Link::start(&["--loss", "0.2", "--seed", seed])?;
        let [near, far] = &link.sockets;
        send(near, ALL);
        let mut came = Vec::new();
        while came.last().is_none_or(|last| *last < COUNT) {
            came.extend(numbers(far).next());
        }
        let (counts, [_near, far]) = link.end();
        let carried = count(&counts, "there", "carried");
        came.extend(numbers(&far).take(carried as usize - came.len()));
        assert!(came.is_sorted());
        came.retain(|number| *number < COUNT);
        let lost = count(&counts, "there", "lost");
        assert!((20..100).contains(&lost) && lost >= u64::from(COUNT) - came.len() as u64);
        assert_eq!(carried + lost + count(&counts, "there", "held"), u64::from(ALL), "{counts}");
        Some(came)
    };
    let Some(first) = lost("1") else { return };
    assert_eq!(lost("1"), Some(first.clone()));
    assert_ne!(lost("2"), Some(first));
}

#[test]
fn a_link_that_cannot_be_made_is_an_error() {
    for words in ["--from no-such-namespace t --to no-such-namespace t", "--loss 2", ""] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_link"));
        let output = command.args(words.split_whitespace()).output().expect("it starts");
        assert!(!output.status.success() && output.stdout.is_empty(), "{words}");
        assert!(!output.stderr.is_empty());
    }
}
