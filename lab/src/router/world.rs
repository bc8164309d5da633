//! Two hosts of the kernel, and the router between them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::cpu;
use crate::interrupt;
use crate::running::{Namespace, Running, ip};

/// Addresses of the server at the far side.
pub const SERVER_V4: &str = "10.2.0.2";
pub const SERVER_V6: &str = "fd00:2::2";
/// Time until a router forwards.
pub const READY: Duration = Duration::from_secs(15);
/// Interface of each host.
const HOST_DEV: &str = "e0";
/// The router's interfaces, towards the client and towards the server.
const DEVS: [&str; 2] = ["r1", "r2"];

/// A router that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Kernel,
    Packet,
    Tap,
}

impl Contender {
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Packet, Self::Tap];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Packet => "packet",
            Self::Tap => "tap",
        }
    }
}

/// Client, router and server, gone on drop. Programs end before their namespaces.
pub struct World {
    router: Option<Running>,
    /// iperf3, which waits for clients.
    _server: Running,
    hosts: [Namespace; 2],
    _middle: Namespace,
}

impl World {
    pub fn new(contender: Contender, towpath: &Path) -> Result<Self> {
        let [client, server, middle] = ["client", "server", "router"].map(Namespace::new);
        let (hosts, middle) = ([client?, server?], middle?);
        let router = match contender {
            Contender::Kernel => {
                join_by_veth(&hosts, &middle)?;
                forward_by_kernel(&middle)?;
                None
            }
            Contender::Packet => {
                join_by_veth(&hosts, &middle)?;
                Some(start(&middle, towpath, "packet")?)
            }
            Contender::Tap => {
                let router = start(&middle, towpath, "tap")?;
                for (host, dev) in hosts.iter().zip(DEVS) {
                    hand_over(&middle, dev, host)?;
                }
                Some(router)
            }
        };
        for (host, n) in hosts.iter().zip(1..) {
            address(host, n)?;
        }
        let mut server = hosts[1].command(&["iperf3", "-s"]);
        let server = quiet(&mut server).spawn().context("iperf3")?;
        let world = Self { router, _server: Running(server), hosts, _middle: middle };
        for server in [SERVER_V4, SERVER_V6] {
            world.wait_for(server)?;
        }
        Ok(world)
    }

    /// Waits until iperf3 answers through the router.
    fn wait_for(&self, server: &str) -> Result<()> {
        let end = Instant::now() + READY;
        // A connection that is closed at once: bash has one without a program.
        let reach = ["timeout", "1", "bash", "-c", &format!("exec 3<>/dev/tcp/{server}/5201")];
        while !quiet(&mut self.client(&reach)).status()?.success() {
            ensure!(Instant::now() < end, "no way to {server} within {READY:?}");
            interrupt::sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// A program of the client's host.
    pub fn client(&self, line: &[impl AsRef<OsStr>]) -> Command {
        self.hosts[0].command(line)
    }

    /// Processor time of the router's process so far, if it is one.
    pub fn router_time(&self) -> Result<Option<f64>> {
        self.router.as_ref().map(|it| cpu::of_tree(it.0.id())).transpose()
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::null()).stderr(Stdio::null())
}

fn join_by_veth(hosts: &[Namespace; 2], middle: &Namespace) -> Result<()> {
    for (host, dev) in hosts.iter().zip(DEVS) {
        let (host, middle) = (host.name(), middle.name());
        let pair = ["type", "veth", "peer", "name", dev, "netns", middle];
        ip(&[&["-n", host, "link", "add", HOST_DEV][..], &pair].concat())?;
        ip(&["-n", middle, "link", "set", dev, "up"])?;
    }
    Ok(())
}

/// Gives a host the TAP device of a router that has just been started.
fn hand_over(middle: &Namespace, dev: &str, host: &Namespace) -> Result<()> {
    let end = Instant::now() + READY;
    // Until it is up, the router has not set it up.
    let show = ["ip", "link", "show", "dev", dev, "up"];
    while middle.command(&show).output().context("ip")?.stdout.is_empty() {
        ensure!(Instant::now() < end, "no TAP device {dev} within {READY:?}");
        interrupt::sleep(Duration::from_millis(20))?;
    }
    let (middle, host) = (middle.name(), host.name());
    ip(&["-n", middle, "link", "set", dev, "netns", host, "name", HOST_DEV])
}

/// Addresses and routes of the host on network `n`, with CUBIC, whatever the machine's default is.
fn address(host: &Namespace, n: u32) -> Result<()> {
    let host = host.name();
    for (own, gateway) in [
        (format!("10.{n}.0.2/24"), format!("10.{n}.0.1")),
        (format!("fd00:{n}::2/64"), format!("fd00:{n}::1")),
    ] {
        let no_check: &[&str] = if own.contains(':') { &["nodad"] } else { &[] };
        ip(&[&["-n", host, "addr", "add", &own, "dev", HOST_DEV][..], no_check].concat())?;
        ip(&["-n", host, "link", "set", HOST_DEV, "up"])?;
        let route = ["route", "add", "default", "via", &gateway, "congctl", "cubic"];
        let family = if own.contains(':') { "-6" } else { "-4" };
        ip(&[&["-n", host, family][..], &route].concat())?;
    }
    Ok(())
}

fn forward_by_kernel(middle: &Namespace) -> Result<()> {
    for (dev, n) in DEVS.into_iter().zip(1..) {
        let middle = middle.name();
        ip(&["-n", middle, "addr", "add", &format!("10.{n}.0.1/24"), "dev", dev])?;
        ip(&["-n", middle, "addr", "add", &format!("fd00:{n}::1/64"), "dev", dev, "nodad"])?;
    }
    for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        let status = middle.command(&["sysctl", "-qw", setting]).status().context("sysctl")?;
        ensure!(status.success(), "{setting} was refused");
    }
    Ok(())
}

fn start(middle: &Namespace, towpath: &Path, device: &str) -> Result<Running> {
    let towpath = towpath.display().to_string();
    let mut line = vec![towpath, "router".to_owned(), "-q".to_owned()];
    for (dev, n) in DEVS.into_iter().zip(1..) {
        let port = format!("p{n}={device}:{dev},10.{n}.0.1/24,fd00:{n}::1/64");
        line.extend(["--port".to_owned(), port]);
    }
    let router = middle.command(&line).stdout(Stdio::null()).spawn().context("towpath router")?;
    Ok(Running(router))
}
