//! The examples do what they say.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use towpath::Stack;
use towpath::net::TcpStream;

#[expect(dead_code, reason = "an example's `main` is not called here")]
#[path = "../../../examples/dns_forwarder.rs"]
mod dns_forwarder;
#[expect(dead_code, reason = "an example's `main` is not called here")]
#[path = "../../../examples/http_files.rs"]
mod http_files;
#[expect(dead_code, reason = "an example's `main` is not called here")]
#[path = "../../../examples/two_stacks.rs"]
mod two_stacks;

/// A folder that is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("towpath-files-{}-{}", name.0, name.1));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A served folder, and what asks for its files.
struct Site {
    stack: Stack,
    addr: SocketAddr,
    _folder: Folder,
}

impl Site {
    fn new() -> Self {
        let folder = Folder::new();
        let site = folder.path().join("site");
        fs::create_dir_all(site.join("sub")).unwrap();
        fs::write(folder.path().join("secret"), "not served").unwrap();
        fs::write(site.join("index.html"), "<h1>home</h1>").unwrap();
        fs::write(site.join("sub/a file"), [7; 100_000]).unwrap();
        let stack = Stack::builder().loopback().start().unwrap();
        let listener = stack.listen("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        thread::spawn(move || http_files::serve(&listener, site));
        Self { stack, addr, _folder: folder }
    }

    fn connect(&self) -> TcpStream {
        self.stack.connect(self.addr).unwrap()
    }

    /// The status and the body of an answer.
    fn ask(&self, method: &str, target: &str) -> (String, Vec<u8>) {
        ask(&mut BufReader::new(&self.connect()), method, target)
    }
}

fn ask(connection: &mut BufReader<&TcpStream>, method: &str, target: &str) -> (String, Vec<u8>) {
    let request = format!("{method} {target} HTTP/1.1\r\nHost: here\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes()).unwrap();
    let (mut status, mut len) = (String::new(), 0);
    connection.read_line(&mut status).unwrap();
    for line in connection.lines().map(Result::unwrap).take_while(|line| !line.is_empty()) {
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            len = value.parse().unwrap();
        }
    }
    let mut body = vec![0; if method == "HEAD" { 0 } else { len }];
    connection.read_exact(&mut body).unwrap();
    (status.trim_end().strip_prefix("HTTP/1.1 ").unwrap().to_owned(), body)
}

#[test]
fn files_are_served() {
    let site = Site::new();
    assert_eq!(site.ask("GET", "/"), ("200 OK".into(), b"<h1>home</h1>".to_vec()));
    assert_eq!(site.ask("GET", "/sub/a%20file?x=1"), ("200 OK".into(), vec![7; 100_000]));
    assert_eq!(site.ask("HEAD", "/sub/a%20file"), ("200 OK".into(), Vec::new()));
}

#[test]
fn one_connection_serves_several_requests() {
    let site = Site::new();
    let connection = site.connect();
    let mut connection = BufReader::new(&connection);
    for _ in 0..3 {
        assert_eq!(ask(&mut connection, "HEAD", "/").0, "200 OK");
        assert_eq!(ask(&mut connection, "GET", "/nothing").0, "404 Not Found");
    }
}

#[test]
fn nothing_outside_of_the_folder_is_served() {
    let site = Site::new();
    for target in ["/../secret", "/sub/../../secret", "/%2e%2e/secret", "/sub/%2E%2E/%2e./secret"] {
        assert_eq!(site.ask("GET", target).0, "403 Forbidden", "{target}");
    }
    for target in ["secret", "/%00", "/%2", "/%zz", "*"] {
        assert_eq!(site.ask("GET", target).0, "400 Bad Request", "{target}");
    }
    assert_eq!(site.ask("POST", "/").0, "405 Method Not Allowed");
    assert_eq!(site.ask("GET", "/sub").0, "404 Not Found");
    assert_eq!(site.ask("GET", "//secret").0, "404 Not Found");
}

#[test]
fn queries_are_forwarded_and_answers_come_back() {
    let stack = Stack::builder().loopback().start().unwrap();
    let server = stack.bind_udp("127.0.0.1:0").unwrap();
    let forwarder = stack.bind_udp("127.0.0.1:0").unwrap();
    let (to_server, to_forwarder) = (server.local_addr().unwrap(), forwarder.local_addr().unwrap());
    thread::spawn({
        let stack = stack.clone();
        move || dns_forwarder::forward_all(&stack, &forwarder, to_server)
    });
    let client = stack.bind_udp("127.0.0.1:0").unwrap();
    client.connect(to_forwarder).unwrap();
    // Too short for a query, and not forwarded.
    client.send(b"short").unwrap();
    client.send(b"\x12\x34 and a question").unwrap();
    let mut query = [0; 100];
    let (len, asker) = server.recv_from(&mut query).unwrap();
    assert_eq!(&query[..len], b"\x12\x34 and a question");
    server.send_to(b"\x12\x35 answers another query", asker).unwrap();
    server.send_to(b"\x12\x34 and its answer", asker).unwrap();
    let mut answer = [0; 100];
    let len = client.recv(&mut answer).unwrap();
    assert_eq!(&answer[..len], b"\x12\x34 and its answer");
}

#[test]
fn two_hosts_echo() {
    let (server, client) = Stack::pair().unwrap();
    let said = two_stacks::echo(&server, &client).unwrap();
    let (from, to) = (client.addresses()[0], SocketAddr::new(server.addresses()[0], 80));
    assert_eq!(said, format!("{from} -> {to}: from host to host (17 bytes)"));
}
