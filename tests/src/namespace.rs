use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{Output, Process, eventually};

/// A network namespace with loopback up, removed on drop. Without root the namespace belongs to a
/// user namespace, in which the user id is unchanged and has no privileges. If the kernel refuses
/// that, the test's own namespace is used.
#[derive(Debug)]
pub struct Namespace {
    name: Option<String>,
    users: Option<Held>,
}

/// A process that keeps a namespace alive.
#[derive(Debug)]
struct Held {
    /// Process that is killed on drop.
    _process: Process,
    id: String,
}

impl Namespace {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return Self { name: None, users: Held::new() };
        }
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-{}-{n}", std::process::id());
        ip(&["netns", "add", &name]);
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        Self { name: Some(name), users: None }
    }

    /// Returns the name of the namespace; None without root.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns whether the namespace is separate from the host's.
    pub fn is_own(&self) -> bool {
        self.name.is_some() || self.users.is_some()
    }

    /// Returns a port for a server, or for publishing. In a separate namespace this is the wanted
    /// one. Otherwise returns a port that is free now, below the range of ephemeral ports.
    pub fn port(&self, wanted: u16) -> u16 {
        if self.is_own() {
            return wanted;
        }
        let place = std::process::id().wrapping_mul(31).wrapping_add(u32::from(wanted));
        let ports = (0..1000).map(|n| 10_000 + (place.wrapping_add(n * 7) % 20_000) as u16);
        let is_free = |port: &u16| std::net::TcpListener::bind(("0.0.0.0", *port)).is_ok();
        ports.into_iter().find(is_free).expect("a free port")
    }

    /// Returns the command line that runs `line` in the namespace.
    fn inside<'a>(&'a self, line: &[&'a str]) -> Vec<&'a str> {
        let mut all = Vec::new();
        if let Some(name) = &self.name {
            all.extend(["ip", "netns", "exec", name]);
        }
        if let Some(held) = &self.users {
            all.extend(["nsenter", "-t", &held.id, "-U", "-n", "--preserve-credentials", "--"]);
        }
        all.extend(line);
        all
    }

    /// Starts a program in the namespace.
    pub fn spawn(&self, line: &[&str]) -> Process {
        Process::spawn(&self.inside(line))
    }

    /// Runs a program in the namespace until it ends, at most 120 s.
    pub fn run(&self, line: &[&str]) -> Output {
        self.spawn(line).wait(Duration::from_secs(120))
    }

    /// Runs a shell command in the namespace.
    pub fn shell(&self, line: &str) -> Output {
        self.run(&["bash", "-o", "pipefail", "-c", line])
    }
}

impl Held {
    /// Returns None if the kernel does not support such namespaces for this user, or a program is
    /// missing.
    fn new() -> Option<Self> {
        let script = "ip link set lo up && echo up && exec sleep infinity";
        let line = ["unshare", "-U", "-n", "--map-current-user", "--keep-caps", "sh", "-c", script];
        let mut process = Process::spawn(&line);
        let mut is_running = true;
        eventually("a namespace, or a refusal", || {
            is_running = process.is_running();
            process.stdout() == "up\n" || !is_running
        });
        if !is_running {
            eprintln!("no network namespaces for this user: {}", process.stderr().trim());
            return None;
        }
        let id = process.id().to_string();
        Some(Self { _process: process, id })
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("ip");
    assert!(status.success() || std::thread::panicking(), "ip {arguments:?}");
}
