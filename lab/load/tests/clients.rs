//! Runs each client against the server, over the kernel's loopback.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;

/// A server process, killed when dropped.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        // Use ports below the ephemeral range, whose ports are busy for a while after clients used
        // them. Try other ports if one is in use.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let ports = std::iter::repeat_with(|| {
            let place =
                std::process::id().wrapping_mul(31).wrapping_add(NEXT.fetch_add(1, Relaxed));
            10_000 + (place % 6000) as u16 * 3
        });
        ports.take(20).find_map(Self::try_to_start).expect("three free ports")
    }

    fn try_to_start(port: u16) -> Option<Self> {
        let mut process = load(&["serve", &port.to_string()]);
        let process = process.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut server =
            Self { process: process.expect("it starts"), address: format!("127.0.0.1:{port}") };
        // A server of a concurrent test may use the same address, so check that this one has
        // started.
        let mut said = String::new();
        let stdout = server.process.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut said).expect("a line, or its end");
        let reached = load(&["reach", &server.address]).output().expect("it starts");
        assert!(said.is_empty() || reached.status.success());
        (!said.is_empty()).then_some(server)
    }

    fn ask(&self, line: &str) -> Value {
        let words = line.replace("HOST", &self.address);
        let output = load(&words.split(' ').collect::<Vec<_>>()).output().expect("it starts");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

fn load(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    command.args(words);
    command
}

#[track_caller]
fn is_positive(said: &Value, fields: &[&str]) {
    for field in fields {
        assert!(said[field].as_f64().is_some_and(|value| value > 0.), "{field}: {said}");
    }
}

#[test]
fn requests_come_back_whatever_their_size_and_number() {
    let server = Server::start();
    for line in ["ask HOST 1 1 1", "ask HOST 40 200000 1"] {
        is_positive(&server.ask(line), &["rate", "average", "p50", "p99"]);
    }
}

#[test]
fn connections_come_and_go_and_users_are_answered() {
    let server = Server::start();
    is_positive(&server.ask("churn HOST 4 100 1"), &["rate", "p50", "p99"]);
    is_positive(&server.ask("users HOST 50 6 100 1"), &["average", "p99", "answers"]);
}

mod nightly {
    use super::*;

    /// Each of 50 users sends ten requests in the second. Answers in the second after that count,
    /// too.
    #[test]
    fn all_users_are_answered() {
        let said = Server::start().ask("users HOST 50 6 100 1");
        let due = said["answers"].as_u64().zip(said["unsent"].as_u64()).map(|(a, b)| a + b);
        assert_eq!(due, Some(500), "{said}");
    }
}

#[test]
fn bulk_ends_though_the_last_bytes_come_with_the_end() {
    let server = Server::start();
    for _ in 0..3 {
        is_positive(&server.ask("bulk HOST both 3 1"), &["in", "out", "both"]);
    }
    assert_eq!(server.ask("bulk HOST in 1 1")["out"], 0.);
}

#[test]
fn datagrams_come_back_and_are_counted() {
    let server = Server::start();
    is_positive(&server.ask("echo HOST 1 64 1"), &["rate", "p50", "p99"]);
    is_positive(&server.ask("echo HOST 32 1400 1"), &["rate"]);
    let said = server.ask("cast HOST 1400 1");
    is_positive(&said, &["received", "sent"]);
    assert!(said["received"].as_f64() <= said["sent"].as_f64(), "{said}");
}

#[test]
fn a_client_without_a_server_fails() {
    // An address of loopback at which no other program listens.
    let [.., high, low] = std::process::id().to_be_bytes();
    let nobody = TcpListener::bind(format!("127.99.{high}.{low}:0")).unwrap().local_addr().unwrap();
    let output = load(&["ask", &nobody.to_string(), "1", "1", "1"]).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
}
