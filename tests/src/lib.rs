//! Support code for tests with real programs: network namespaces, directories, processes, and the
//! two ways to reach a program on Towpath.
//!
//! Every resource is released on drop, by its id, so that a failing test leaves nothing behind.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)] // Output for readers of a failed test.

mod folders;
mod namespace;
mod process;
pub mod proxy_lab;
mod scratch;
pub mod veth;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use folders::EMPTY_FOLDERS;
pub use namespace::Namespace;
pub use process::{Output, Process};
pub use scratch::Scratch;

/// Maximum time of every wait. Not a performance criterion, but shorter than the minute after which
/// a test is killed without a message.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// Connection of the program's stack to the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Through the gateway; ports are published on the host's loopback.
    Rootless,
    /// Over a TAP device, with the kernel as the neighbour.
    Tap,
}

impl Mode {
    /// Returns both modes if TAP devices may be created, otherwise only `Rootless`.
    pub fn all() -> &'static [Self] {
        if rustix::process::geteuid().is_root() {
            &[Self::Rootless, Self::Tap]
        } else {
            &[Self::Rootless]
        }
    }

    /// Returns the address at which the namespace reaches the program.
    pub fn host(self) -> &'static str {
        match self {
            Self::Rootless => "127.0.0.1",
            Self::Tap => "10.77.0.2",
        }
    }

    /// Returns the address at which the program reaches a server in the namespace.
    pub fn peer(self) -> &'static str {
        match self {
            Self::Rootless => "10.0.2.2",
            Self::Tap => "10.77.0.1",
        }
    }

    /// Returns the options of `towpath run` for this mode; `ports` are published under the same
    /// numbers. `$TOWPATH_TEST_SHARDS` sets the number of shards, with any of which all tests
    /// should pass. `$TOWPATH_TEST_HOSTING=inline` runs the stack in the program's own process
    /// ([`is_inline`]). All tests should pass, except those that state why they cannot (decision
    /// 9).
    pub fn options(self, ports: &[u16]) -> Vec<String> {
        let mut options: Vec<_> = match self {
            Self::Rootless => {
                ports.iter().flat_map(|p| ["-p".to_owned(), format!("127.0.0.1:{p}:{p}")]).collect()
            }
            Self::Tap => vec!["--tap".to_owned()],
        };
        if let Ok(shards) = std::env::var("TOWPATH_TEST_SHARDS") {
            options.push(format!("--shards={shards}"));
        }
        if is_inline() {
            options.push("--inline".to_owned());
        }
        options
    }
}

/// Returns whether programs run with the stack in their own process.
pub fn is_inline() -> bool {
    match std::env::var("TOWPATH_TEST_HOSTING").as_deref() {
        Ok("inline") => true,
        Ok(other) => panic!("TOWPATH_TEST_HOSTING={other}: expected inline, or nothing"),
        Err(_) => false,
    }
}

/// Returns the path of the `towpath` binary under test: `$TOWPATH_BIN`, or the newer of this
/// workspace's release and dev builds. A relative path starts at the root of the workspace, as
/// cargo prints it.
pub fn towpath() -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    if let Ok(path) = std::env::var("TOWPATH_BIN") {
        let path = root.join(path);
        assert!(path.exists(), "TOWPATH_BIN={}: there is no such file", path.display());
        return path.to_str().expect("plain names").to_owned();
    }
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let builds = ["release", "debug"].map(|build| root.join(&target).join(build).join("towpath"));
    let built = |path: &PathBuf| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    let newest = builds.into_iter().filter(|path| built(path).is_some()).max_by_key(built);
    let path = newest.expect("no towpath in target/release or target/debug: cargo build");
    path.to_str().expect("plain names").to_owned()
}

/// Returns the path of a file in `tests/programs`.
pub fn program(name: &str) -> String {
    format!("{}/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Starts `towpath run --name NAME` with a program in a namespace. No port is published.
pub fn start_named(ns: &Namespace, mode: Mode, name: &str, command: &[&str]) -> Process {
    let (towpath, options) = (towpath(), mode.options(&[]));
    let mut line = vec![towpath.as_str(), "run", "--name", name];
    line.extend(options.iter().map(String::as_str));
    line.push("--");
    line.extend(command);
    ns.spawn(&line)
}

/// Starts `towpath run` with a program in a namespace.
pub fn start(ns: &Namespace, mode: Mode, ports: &[u16], command: &[&str]) -> Process {
    let towpath = towpath();
    let options = mode.options(ports);
    let mut line = vec![towpath.as_str(), "run"];
    line.extend(options.iter().map(String::as_str));
    line.push("--");
    line.extend(command);
    ns.spawn(&line)
}

/// Runs a program on Towpath until it ends.
pub fn run(ns: &Namespace, mode: Mode, ports: &[u16], command: &[&str]) -> Output {
    start(ns, mode, ports, command).wait(Duration::from_secs(120))
}

/// Waits until a program on Towpath listens on a port. Makes no connection, which the program would
/// have to serve.
pub fn wait_for_listener(run: &Process, port: u16) {
    let (towpath, id, end) = (towpath(), run.id().to_string(), format!(":{port}"));
    eventually(&format!("something listens on port {port}"), || {
        let out = Process::spawn(&[&towpath, "ss", "-tlj", &id]).wait(PATIENCE);
        let sockets: serde_json::Value = serde_json::from_str(&out.stdout).unwrap_or_default();
        let mut all = sockets.as_array().into_iter().flatten();
        // The output includes sockets that are bound but do not listen.
        all.any(|socket| {
            let local = socket["local"].as_str().unwrap_or_default();
            socket["state"] == "LISTEN" && local.ends_with(&end)
        })
    });
}

/// Waits until a TCP connection from the namespace is established and stays open.
pub fn wait_for_port(ns: &Namespace, host: &str, port: u16) {
    let script = format!(
        "import socket,sys\n\
         try:\n s=socket.create_connection(('{host}',{port}),9)\n\
         \x20s.settimeout(.1); sys.exit(not s.recv(1))\n\
         except TimeoutError: pass\n\
         except OSError: sys.exit(1)"
    );
    eventually(&format!("{host}:{port} answers"), || ns.run(&["python3", "-c", &script]).success());
}

/// Waits until the condition is true. Panics after `PATIENCE`.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
