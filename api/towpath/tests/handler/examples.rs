//! The examples with handlers, against curl and sockets of this machine.

#![allow(clippy::print_stderr)] // For readers of the output of the tests.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream as StdStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use towpath::Stack;

use crate::handlers::Echo;
use crate::{Hosts, LIMIT};

#[expect(dead_code, reason = "an example's `main` is not called here")]
#[path = "../../../../examples/handler_chat.rs"]
mod handler_chat;
#[expect(dead_code, reason = "an example's `main` is not called here")]
#[path = "../../../../examples/handler_files.rs"]
mod handler_files;

#[test]
fn chat_passes_lines_to_all_others() {
    let hosts = Hosts::new(|_| handler_chat::Chat::default());
    let mut one = BufReader::new(hosts.connect());
    hosts.until(|counters| counters.accepted == 1);
    let mut two = BufReader::new(hosts.connect());
    let line = |reader: &mut BufReader<_>| {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    };
    let name = |reader: &BufReader<towpath::net::TcpStream>| {
        format!("guest {}", reader.get_ref().local_addr().unwrap().port())
    };
    assert_eq!(line(&mut one), format!("{} is here\n", name(&two)));
    two.get_mut().write_all(b"hel").unwrap();
    two.get_mut().write_all(b"lo\nall\n").unwrap();
    let of_two = name(&two);
    assert_eq!(line(&mut one), format!("{of_two}: hello\n"));
    assert_eq!(line(&mut one), format!("{of_two}: all\n"));
    one.get_mut().write_all(b"welcome\n").unwrap();
    assert_eq!(line(&mut two), format!("{}: welcome\n", name(&one)));
    drop(two);
    assert_eq!(line(&mut one), format!("{of_two} has left\n"));
    // A line without an end.
    let _ = one.get_mut().write_all(&[b'x'; 2000]);
    assert!(one.read_line(&mut String::new()).is_err());
    assert_eq!(hosts.server.handlers()[0].panics, 0);
}

/// A folder that is served by the example, and removed at the end.
struct Site {
    folder: PathBuf,
    stack: Stack,
}

impl Site {
    fn new(name: &str) -> Self {
        let folder = format!("towpath-handler-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(folder.join("site/sub")).unwrap();
        fs::write(folder.join("secret"), "not served").unwrap();
        fs::write(folder.join("site/index.html"), "<h1>home</h1>").unwrap();
        fs::write(folder.join("site/sub/large"), large()).unwrap();
        let site = folder.join("site");
        let builder = Stack::builder().rootless().publish("127.0.0.1::80");
        let make = move |_| handler_files::Files::new(site.clone());
        Self { folder, stack: builder.serve("0.0.0.0:80", make).start().unwrap() }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.stack.published()[0].host)
    }

    fn connect(&self) -> StdStream {
        let stream = StdStream::connect(self.stack.published()[0].host).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// More bytes than all buffers on the way take.
fn large() -> Vec<u8> {
    (0..100_000u32).map(|n| (n ^ n >> 9) as u8).collect::<Vec<_>>().repeat(200)
}

/// Runs curl, and returns its output; `None` if it is not installed.
fn curl(args: &[&str]) -> Option<Vec<u8>> {
    let mut command = Command::new("curl");
    let output = command.args(["-sS", "--noproxy", "*", "-m", "50"]).args(args).output();
    let Ok(output) = output else {
        eprintln!("left out: needs curl");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

#[test]
fn curl_gets_files() {
    let site = Site::new("curl");
    let get = |path: &str| curl(&["-w", " %{http_code}", &site.url(path)]);
    let Some(home) = get("/") else { return };
    assert_eq!(home, b"<h1>home</h1> 200");
    assert_eq!(get("/nothing").unwrap(), b"404 Not Found\n 404");
    // The second request uses the connection of the first.
    let twice = curl(&["-w", " %{num_connects} ", &site.url("/"), &site.url("/?x=1")]).unwrap();
    assert_eq!(twice, b"<h1>home</h1> 1 <h1>home</h1> 0 ");
    let head = String::from_utf8(curl(&["-I", &site.url("/sub/large")]).unwrap()).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n"), "{head}");
    assert!(curl(&[&site.url("/sub/large")]).unwrap() == large());
    let posted = curl(&["-w", " %{http_code}", "-d", "x=1", &site.url("/")]).unwrap();
    assert_eq!(posted, b"405 Method Not Allowed\n 405");
}

#[test]
fn pipelined_and_split_requests_are_answered_in_order() {
    let site = Site::new("pipelined");
    let mut stream = site.connect();
    let request = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: here\r\n\r\n");
    let text = [request("/"), request("/../secret"), request("/nothing")].concat();
    for piece in text.as_bytes().chunks(7) {
        stream.write_all(piece).unwrap();
    }
    stream.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let heads: Vec<&str> =
        answers.lines().filter_map(|line| line.split("HTTP/1.1 ").nth(1)).collect();
    assert_eq!(heads, ["200 OK", "403 Forbidden", "404 Not Found", "200 OK"]);
}

#[test]
fn invalid_and_endless_requests_are_reset() {
    let site = Site::new("invalid");
    for text in ["\0\r\n\r\n".to_owned(), format!("GET /{}", "x".repeat(20_000))] {
        let mut stream = site.connect();
        let _ = stream.write_all(text.as_bytes());
        let mut answer = Vec::new();
        // The gateway passes the reset on.
        assert!(stream.read_to_end(&mut answer).is_err() || answer.is_empty());
    }
    assert_eq!(site.stack.handlers()[0].panics, 0);
}

#[test]
fn kernel_reaches_a_handler_over_a_tap_device() {
    let test = || {
        let builder = Stack::builder().tap("tw0").address("10.77.0.2/24");
        let stack = builder.serve("0.0.0.0:7", |_| Echo).start().unwrap();
        let mut stream = StdStream::connect("10.77.0.2:7").unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let bytes = &large()[..3_000_000];
        let mut writer = stream.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(bytes).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut echo = Vec::new();
            stream.read_to_end(&mut echo).unwrap();
            assert!(echo == bytes);
        });
        assert_eq!(stack.handlers()[0].accepted, 1);
    };
    let in_namespace = move || {
        // SAFETY: affects only this thread, and the threads that it creates.
        let is_alone = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        match is_alone && std::path::Path::new("/dev/net/tun").exists() {
            true => test(),
            false => eprintln!("left out: needs root and /dev/net/tun"),
        }
    };
    if let Err(panic) = thread::spawn(in_namespace).join() {
        std::panic::resume_unwind(panic);
    }
}
