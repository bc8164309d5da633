//! Two hosts on the kernel, and the router between them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::bench::cpu;
use crate::namespace::{Namespace, quiet, until};
use crate::running::Running;

/// Addresses of the server behind the router.
pub const SERVER_V4: &str = "10.2.0.2";
pub const SERVER_V6: &str = "fd00:2::2";
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

/// Client, router and server, removed when dropped. Programs end before their namespaces.
pub struct World {
    router: Option<Running>,
    /// iperf3 server.
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
            world.hosts[0].wait_for(server, 5201)?;
        }
        Ok(world)
    }

    /// Returns the command for a program on the client's host.
    pub fn client(&self, line: &[impl AsRef<OsStr>]) -> Command {
        self.hosts[0].command(line)
    }

    /// Returns the CPU time of the router's process so far; `None` for the kernel.
    pub fn router_time(&self) -> Result<Option<f64>> {
        self.router.as_ref().map(|it| cpu::of_tree(it.0.id())).transpose()
    }
}

fn join_by_veth(hosts: &[Namespace; 2], middle: &Namespace) -> Result<()> {
    for (host, dev) in hosts.iter().zip(DEVS) {
        host.join(HOST_DEV, middle, dev)?;
        middle.ip(&format!("link set {dev} up"))?;
    }
    Ok(())
}

/// Moves the TAP device of a router that was just started to a host.
fn hand_over(middle: &Namespace, dev: &str, host: &Namespace) -> Result<()> {
    // Wait until the router has set the device up.
    let show = ["ip", "link", "show", "dev", dev, "up"];
    until(&format!("a TAP device {dev}"), || {
        Ok(!middle.command(&show).output().context("ip")?.stdout.is_empty())
    })?;
    middle.ip(&format!("link set {dev} netns {} name {HOST_DEV}", host.name()))
}

/// Sets the host's addresses and routes on network `n`. The routes select CUBIC, because the
/// machine's default may differ.
fn address(host: &Namespace, n: u32) -> Result<()> {
    let of_v4 = (format!("10.{n}.0.2/24"), format!("-4 route add default via 10.{n}.0.1"));
    let of_v6 = (format!("fd00:{n}::2/64"), format!("-6 route add default via fd00:{n}::1"));
    for (own, route) in [of_v4, of_v6] {
        let no_check = if own.contains(':') { "nodad" } else { "" };
        host.ip(&format!("addr add {own} dev {HOST_DEV} {no_check}"))?;
        host.ip(&format!("link set {HOST_DEV} up"))?;
        host.ip(&format!("{route} congctl cubic"))?;
    }
    Ok(())
}

fn forward_by_kernel(middle: &Namespace) -> Result<()> {
    for (dev, n) in DEVS.into_iter().zip(1..) {
        middle.ip(&format!("addr add 10.{n}.0.1/24 dev {dev}"))?;
        middle.ip(&format!("addr add fd00:{n}::1/64 dev {dev} nodad"))?;
    }
    middle.shell("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
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
