//! The examples, against curl and servers in other network namespaces. The tests need root,
//! /dev/net/tun and curl, and say so without.

#![allow(clippy::print_stderr)] // For readers of the output of the tests.

use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, UdpSocket as StdUdp};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::tun::in_namespace;
use crate::{PATIENCE, multi_thread, pattern};

#[expect(dead_code, reason = "an example's `main` is not called here")]
#[path = "../../../../examples/intercept_forward.rs"]
mod intercept_forward;
#[expect(dead_code, reason = "an example's `main` is not called here")]
#[path = "../../../../examples/intercept_split.rs"]
mod intercept_split;

const ADDR: &str = "10.9.0.7";
const OTHER_ADDR: &str = "10.9.0.8";
const NETWORK: &str = "10.9.0.0/16";

fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status();
    assert!(status.expect("iproute2").success(), "ip {line}");
}

/// Sockets of a server.
struct ServerSockets {
    http: StdListener,
    https: StdListener,
    dns: StdUdp,
}

/// Creates a namespace with both addresses, and runs `serve` there. The current namespace reaches
/// it by interface `name`.
fn server(name: &str, number: u8, serve: impl FnOnce(ServerSockets) + Send + 'static) {
    let (to_us, from_them) = channel();
    let (to_them, from_us) = channel::<()>();
    let peer = format!("{name}p");
    let inside = peer.clone();
    thread::spawn(move || {
        // SAFETY: affects only this thread.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        // SAFETY: takes no argument.
        to_us.send(unsafe { libc::gettid() }).unwrap();
        from_us.recv().unwrap();
        ip(&format!("addr add {ADDR}/32 dev {inside}"));
        ip(&format!("addr add {OTHER_ADDR}/32 dev {inside}"));
        ip(&format!("link set {inside} up"));
        ip(&format!("route add 172.31.{number}.0/24 dev {inside}"));
        // Clients come as soon as this function returns.
        let sockets = ServerSockets {
            http: StdListener::bind(("0.0.0.0", 80)).unwrap(),
            https: StdListener::bind(("0.0.0.0", 443)).unwrap(),
            dns: StdUdp::bind((ADDR, 53)).unwrap(),
        };
        to_us.send(0).unwrap();
        serve(sockets);
    });
    let thread = from_them.recv().unwrap();
    ip(&format!("link add {name} type veth peer name {peer} netns {thread}"));
    ip(&format!("addr add 172.31.{number}.1/24 dev {name}"));
    ip(&format!("link set {name} up"));
    // The route of the device has a lower metric.
    ip(&format!("route add {NETWORK} dev {name} metric {}", 100 + u32::from(number)));
    to_them.send(()).unwrap();
    from_them.recv().unwrap();
}

fn curl(args: &[&str]) -> Option<Vec<u8>> {
    let output =
        Command::new("curl").args(["-sS", "--noproxy", "*", "-m", "50"]).args(args).output();
    let output = output.expect("curl");
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success().then_some(output.stdout)
}

fn has_curl() -> bool {
    let is_there = Command::new("curl").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("left out: needs curl");
    }
    is_there
}

/// Waits until the device is there.
fn wait_for_device() {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !Command::new("ip")
        .args(["route", "get", ADDR])
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("dev tw0"))
    {
        assert!(std::time::Instant::now() < deadline, "no device");
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Serves `body` by HTTP.
fn serve_http(listener: &StdListener, body: &[u8]) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut head = [0; 4096];
        let _ = stream.read(&mut head);
        let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(body);
    }
}

#[test]
fn curl_and_datagrams_pass_the_forwarder() {
    if !has_curl() {
        return;
    }
    in_namespace(|| {
        ip("link set lo up");
        server("va", 1, |ServerSockets { http, dns, .. }| {
            thread::spawn(move || {
                let mut buf = [0; 2000];
                while let Ok((len, from)) = dns.recv_from(&mut buf) {
                    let _ = dns.send_to(&buf[..len], from);
                }
            });
            serve_http(&http, &pattern(3 << 20));
        });
        thread::spawn(|| {
            multi_thread().block_on(async {
                let ended = intercept_forward::run("tw0", NETWORK, "va").await;
                panic!("the forwarder has ended: {ended:?}");
            });
        });
        wait_for_device();
        let url = format!("http://{ADDR}/");
        assert!(curl(&[&url]).unwrap() == pattern(3 << 20));
        // Refused by the server.
        assert_eq!(curl(&[&format!("http://{ADDR}:81/")]), None);
        let socket = StdUdp::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buf = [0; 2000];
        for len in [10, 1200] {
            socket.send_to(&pattern(len), (ADDR, 53)).unwrap();
            let (n, from) = socket.recv_from(&mut buf).unwrap();
            assert_eq!(from, format!("{ADDR}:53").parse().unwrap());
            assert!(buf[..n] == pattern(len));
        }
    });
}

/// Reports the server name of each TLS connection, and closes it.
fn report_names(listener: &StdListener, number: u8, to: &Sender<(u8, Option<String>)>) {
    for stream in listener.incoming() {
        let mut hello = [0; 4096];
        let len = stream.unwrap().read(&mut hello).unwrap_or(0);
        let name = intercept_split::server_name(&hello[..len]).map(str::to_owned);
        let _ = to.send((number, name));
    }
}

#[test]
fn curl_reaches_the_server_that_its_name_selects() {
    if !has_curl() {
        return;
    }
    in_namespace(|| {
        ip("link set lo up");
        let (to, names) = channel();
        for (name, number) in [("va", 1), ("vb", 2)] {
            let to = to.clone();
            server(name, number, move |ServerSockets { http, https, .. }| {
                thread::spawn(move || report_names(&https, number, &to));
                serve_http(&http, &[number]);
            });
        }
        thread::spawn(|| {
            multi_thread().block_on(async {
                let rules = ["corp.example=vb".to_owned(), "10.9.0.8/32=vb".to_owned()];
                let ended = intercept_split::run("tw0", NETWORK, "va", &rules).await;
                panic!("the tunnel has ended: {ended:?}");
            });
        });
        wait_for_device();
        assert_eq!(curl(&[&format!("http://{ADDR}/")]), Some(vec![1]));
        assert_eq!(curl(&[&format!("http://{OTHER_ADDR}/")]), Some(vec![2]));
        for (host, number) in [("www.example", 1), ("intern.corp.example", 2), ("xcorp.example", 1)]
        {
            let at = format!("{host}:443:{ADDR}");
            // The server ends the handshake.
            assert_eq!(curl(&["-k", "--resolve", &at, &format!("https://{host}/")]), None);
            assert_eq!(names.recv_timeout(PATIENCE).unwrap(), (number, Some(host.into())));
        }
    });
}
