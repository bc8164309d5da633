//! Parts of the tests with real programs: network namespaces, folders, processes, and the two ways
//! to reach a program on Towpath.
//!
//! Everything here undoes itself on drop, by id: a test that fails leaves nothing behind.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)] // For readers of a failed test.

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

/// Limit on every wait. Not a judgement on time: a test that takes a minute is ended from outside,
/// without a word.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// How the program's stack is joined to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Through the gateway: published ports on the host's loopback.
    Rootless,
    /// Over a TAP device with the kernel as its neighbour.
    Tap,
}

impl Mode {
    /// Both, where we are allowed to make a TAP device; else the one that needs nothing.
    pub fn all() -> &'static [Self] {
        if rustix::process::geteuid().is_root() {
            &[Self::Rootless, Self::Tap]
        } else {
            &[Self::Rootless]
        }
    }

    /// Where `port` of the program is reached from the namespace.
    pub fn host(self) -> &'static str {
        match self {
            Self::Rootless => "127.0.0.1",
            Self::Tap => "10.77.0.2",
        }
    }

    /// Where the program reaches a server of the namespace.
    pub fn peer(self) -> &'static str {
        match self {
            Self::Rootless => "10.0.2.2",
            Self::Tap => "10.77.0.1",
        }
    }

    /// Options of `towpath run` for this mode; `ports` are published under their own numbers.
    /// `$TOWPATH_TEST_SHARDS` is the number of shards: all tests should pass with any.
    /// `$TOWPATH_TEST_HOSTING=inline` puts the stack into the program's own process
    /// ([`is_inline`]): all tests pass, but for those that say why they cannot (decision 9).
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

/// Whether programs have the stack in their own process.
pub fn is_inline() -> bool {
    match std::env::var("TOWPATH_TEST_HOSTING").as_deref() {
        Ok("inline") => true,
        Ok(other) => panic!("TOWPATH_TEST_HOSTING={other}: expected inline, or nothing"),
        Err(_) => false,
    }
}

/// The `towpath` binary under test: `$TOWPATH_BIN`, or the newer one of this workspace's release
/// and dev builds. A relative path in the variable is one from the root of the workspace, as cargo
/// prints it.
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

/// A file of `tests/programs`.
pub fn program(name: &str) -> String {
    format!("{}/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Starts `towpath run` with a name and a program in a namespace. No port is published.
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

/// Runs a program on Towpath to its end.
pub fn run(ns: &Namespace, mode: Mode, ports: &[u16], command: &[&str]) -> Output {
    start(ns, mode, ports, command).wait(Duration::from_secs(120))
}

/// Waits until a program on Towpath listens on a port of its own, without a connection that it
/// would have to serve.
pub fn wait_for_listener(run: &Process, port: u16) {
    let (towpath, id, end) = (towpath(), run.id().to_string(), format!(":{port}"));
    eventually(&format!("something listens on port {port}"), || {
        let out = Process::spawn(&[&towpath, "ss", "-tlj", &id]).wait(PATIENCE);
        let sockets: serde_json::Value = serde_json::from_str(&out.stdout).unwrap_or_default();
        let mut all = sockets.as_array().into_iter().flatten();
        // Sockets that are only bound are shown as well.
        all.any(|socket| {
            let local = socket["local"].as_str().unwrap_or_default();
            socket["state"] == "LISTEN" && local.ends_with(&end)
        })
    });
}

/// Waits until a TCP connection from the namespace is made and stays.
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

/// Waits until it is so; after `PATIENCE` the test has failed.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
