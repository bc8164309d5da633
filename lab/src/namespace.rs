//! Network namespaces that serve as hosts of measurements, with devices, routes and programs.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::interrupt;

/// Maximum wait for a server, router or device to be ready.
pub const READY: Duration = Duration::from_secs(15);
/// The kernel's route to its own loopback, for [`Namespace::use_cubic`].
pub const LOOPBACK: &str =
    "local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1";

/// A network namespace with loopback, deleted on drop.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Creates the namespace of a host with this name in the measurement.
    pub fn new(host: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tpl-{}-{n}-{host}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Self(name);
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Returns the name for ip-netns(8).
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Runs ip(8) on this host. `words` are separated by white space.
    pub fn ip(&self, words: &str) -> Result<()> {
        let line: Vec<&str> = ["-n", &self.0].into_iter().chain(words.split_whitespace()).collect();
        ip(&line)
    }

    /// Returns the command for a program of this host, without standard input.
    pub fn command(&self, line: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(line).stdin(Stdio::null());
        command
    }

    /// Runs a shell line on this host.
    pub fn shell(&self, script: &str) -> Result<()> {
        let status = self.command(&["sh", "-c", script]).status().context("ip netns exec")?;
        ensure!(status.success(), "{script} failed in {}", self.0);
        Ok(())
    }

    /// Joins two hosts by a veth pair with an end of this name on each. Both ends are down.
    pub fn join(&self, end: &str, other: &Self, other_end: &str) -> Result<()> {
        self.ip(&format!("link add {end} type veth peer name {other_end} netns {}", other.0))
    }

    /// Sets a route by which the kernel sends with CUBIC, because its default may differ.
    pub fn use_cubic(&self, route: &str) -> Result<()> {
        self.ip(&format!("route replace {route} congctl cubic"))
    }

    /// Lets clients close many connections, by reusing their ports after a second.
    pub fn allow_many_ports(&self) -> Result<()> {
        self.shell(
            "echo 10000 65535 > /proc/sys/net/ipv4/ip_local_port_range && \
             echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse",
        )
    }

    /// Waits until a server on this host's network accepts connections. `address` has no brackets.
    pub fn wait_for(&self, address: &str, port: u16) -> Result<()> {
        // Connect by bash, which needs no further program.
        let connect = format!("exec 3<>/dev/tcp/{address}/{port}");
        let line = ["timeout", "1", "bash", "-c", &connect];
        until(&format!("a server on {address} port {port}"), || {
            Ok(quiet(&mut self.command(&line)).status()?.success())
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.0]) {
            eprintln!("{error}");
        }
    }
}

/// Returns the word after `key` in the kernel's route to `address`, for example after `src` or
/// `dev`. `command` creates a command on the host.
pub fn route_word(
    command: impl FnOnce(&[&str]) -> Command,
    address: &str,
    key: &str,
) -> Result<String> {
    let output = command(&["ip", "-o", "route", "get", address]).output().context("ip")?;
    let route = String::from_utf8(output.stdout)?;
    let mut words = route.split_whitespace().skip_while(|word| *word != key);
    Ok(words.nth(1).with_context(|| format!("no {key} in {route:?}"))?.to_owned())
}

/// Waits until `is` returns true, [`READY`] at most.
pub fn until(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + READY;
    while !is()? {
        ensure!(Instant::now() < end, "not within {READY:?}: {what}");
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

/// Discards the output of a program.
pub fn quiet(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::null()).stderr(Stdio::null())
}

/// Runs ip(8) in its own process group, so that Ctrl-C does not prevent the deletion of namespaces.
fn ip(arguments: &[&str]) -> Result<()> {
    use std::os::unix::process::CommandExt;

    let mut command = Command::new("ip");
    let status = command.args(arguments).process_group(0).status().context("ip")?;
    ensure!(status.success(), "ip {} failed (root is needed)", arguments.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_hosts_reach_each_other() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: needs root");
            return;
        }
        let [a, b] = ["a", "b"].map(|host| Namespace::new(host).expect("a namespace"));
        a.join("a0", &b, "b0").expect("a cable");
        for (host, end, address) in [(&a, "a0", "10.1.0.1"), (&b, "b0", "10.1.0.2")] {
            host.ip(&format!("addr add {address}/24 dev {end}")).expect("an address");
            host.ip(&format!("link set {end} up")).expect("an interface that is up");
        }
        a.use_cubic("10.1.0.0/24 dev a0").expect("a route");
        let listen = "import socket; s = socket.create_server(('10.1.0.2', 7)); s.accept()";
        let mut server = b.command(&["python3", "-c", listen]).spawn().expect("a server");
        a.wait_for("10.1.0.2", 7).expect("a connection");
        assert!(server.wait().expect("it ends").success());
        let route = |line: &[&str]| a.command(line);
        assert_eq!(route_word(route, "10.1.0.2", "src").expect("a route"), "10.1.0.1");
        assert!(a.ip("link set nothing up").is_err());
    }
}
