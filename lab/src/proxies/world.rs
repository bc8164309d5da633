//! Two hosts connected by a veth pair: a client whose traffic is proxied, and a server.
//!
//! ```text
//!  client's programs ── tw0 ── proxy ── p0 ═══ veth ═══ s0 ── servers at 10.9.0.2
//!   └─────────────── client ────────────┘                └── server ──┘
//! ```
//!
//! On the client's host, a rule routes the packets of one user into the proxy's device. The proxy
//! runs as root and uses the veth, so that it need not exclude its own connections from the route.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::built::Built;
use crate::namespace::{Namespace, quiet, route_word, until};
use crate::running::Running;

/// Address of the server, in a separate network behind the veth pair.
pub const SERVER: &str = "10.9.0.2";
/// Network whose traffic is routed into the proxy.
pub const PROXIED: &str = "10.9.0.0/16";
/// Ends of the veth pair, each with its address.
pub const NEAR: [&str; 2] = ["p0", "10.78.0.1"];
const FAR: [&str; 2] = ["s0", "10.78.0.2"];
/// Device of proxies that use a TUN device.
pub const DEVICE: &str = "tw0";
/// Address of the client's host on the device, unless the proxy assigns one.
const ON_DEVICE: &str = "198.18.0.1/32";
/// Queue length in packets of a device that was created beforehand, as in `cargo lab bench`.
const QUEUE: &str = "10000";
/// User whose packets are proxied, and the routing table for these packets.
const CLIENT: &str = "4242";
const TABLE: &str = "100";
/// Ports of `load serve` and of `crowd serve`.
pub const LOAD: u16 = 7900;
pub const CROWD: u16 = 7910;

/// Both hosts with the servers, removed when dropped.
pub struct World {
    /// Servers; dropped before their namespace is deleted.
    _servers: Vec<Running>,
    hosts: [Namespace; 2],
}

/// Where a client program runs.
pub enum Place {
    /// On the client's host, without any proxy.
    Host,
    /// On the client's host, as the user whose packets are proxied.
    Proxied,
    /// In the namespace of this process.
    Of(u32),
}

impl World {
    pub fn new(built: &Built, idle: usize) -> Result<Self> {
        let hosts = [Namespace::new("client")?, Namespace::new("server")?];
        let mut world = Self { _servers: Vec::new(), hosts };
        world.join()?;
        let path = |path: &Path| path.display().to_string();
        let (load, crowd) = (path(&built.load), path(&built.crowd));
        let (load_at, crowd_at, idle) = (LOAD.to_string(), CROWD.to_string(), idle.to_string());
        let servers: [&[&str]; 3] =
            [&["iperf3", "-s"], &[&load, "serve", &load_at], &[&crowd, "serve", &crowd_at, &idle]];
        for line in servers {
            let child =
                world.on_server(line).stdin(Stdio::piped()).spawn().context(line[0].to_owned())?;
            world._servers.push(Running(child));
        }
        world.wait_for_server(&built.load)?;
        Ok(world)
    }

    /// Connects the hosts. Sets routes by which all senders use CUBIC, because the machine's
    /// default may differ.
    fn join(&self) -> Result<()> {
        let [client, server] = &self.hosts;
        client.join(NEAR[0], server, FAR[0])?;
        server.ip(&format!("addr add {SERVER}/32 dev lo"))?;
        // The server has two addresses, and must answer datagrams from the address to which they
        // were sent.
        let ends = [(client, NEAR, FAR[1], NEAR[1]), (server, FAR, NEAR[1], SERVER)];
        for (host, [device, own], other, from) in ends {
            host.ip(&format!("addr add {own} peer {other} dev {device}"))?;
            host.ip(&format!("link set {device} up"))?;
            host.use_cubic(&format!("{other} dev {device} src {from}"))?;
        }
        // Proxies that copy the host's network configuration need a default route.
        client.ip(&format!("route add default via {} congctl cubic", FAR[1]))?;
        self.hosts.iter().try_for_each(Namespace::allow_many_ports)
    }

    /// Adds a TUN device for proxies that need one, with room for the segments of many connections.
    pub fn add_device(&self) -> Result<()> {
        let host = &self.hosts[0];
        host.ip(&format!("tuntap add dev {DEVICE} mode tun"))?;
        host.ip(&format!("link set {DEVICE} txqueuelen {QUEUE} up"))?;
        host.ip(&format!("addr add {ON_DEVICE} dev {DEVICE}"))
    }

    /// Routes the packets of the client's user into the device, once a proxy has set it up.
    pub fn lead_into_device(&self, proxy: &mut Running) -> Result<()> {
        let host = &self.hosts[0];
        let show = ["ip", "-o", "link", "show", "dev", DEVICE, "up"];
        until("a device of the proxy", || {
            ensure!(proxy.0.try_wait()?.is_none(), "the proxy has ended");
            Ok(!host.command(&show).stderr(Stdio::null()).output()?.stdout.is_empty())
        })?;
        host.ip(&format!("rule add uidrange {CLIENT}-{CLIENT} to {PROXIED} lookup {TABLE}"))?;
        host.ip(&format!("route add {PROXIED} dev {DEVICE} table {TABLE} congctl cubic"))?;
        // Also select by source address, because segments that the kernel sends without a socket
        // have no user.
        let own = self.own_address(&Place::Proxied)?;
        host.ip(&format!("rule add from {own} lookup {TABLE}"))
    }

    /// Lets senders at a place use CUBIC.
    pub fn use_cubic(&self, place: &Place) -> Result<()> {
        let shown = self.command(place, &["ip", "route", "show", "default"]).output()?;
        let route = String::from_utf8(shown.stdout)?;
        let mut line = vec!["ip", "route", "replace"];
        line.extend(route.lines().next().context("no default route")?.split_whitespace());
        line.extend(["congctl", "cubic"]);
        let status = self.command(place, &line).status()?;
        ensure!(status.success(), "{}", line.join(" "));
        Ok(())
    }

    /// Returns the source address of programs at a place.
    pub fn own_address(&self, place: &Place) -> Result<String> {
        route_word(|line| self.command(place, line), SERVER, "src")
    }

    /// Waits until programs at a place reach the server.
    pub fn wait_for(&self, place: &Place, load: &Path, proxy: &mut Running) -> Result<()> {
        let line = [load.as_os_str(), "reach".as_ref(), at(LOAD).as_ref()].map(OsStr::to_owned);
        until("a connection through the proxy", || {
            ensure!(proxy.0.try_wait()?.is_none(), "the proxy has ended");
            Ok(quiet(&mut self.command(place, &line)).status()?.success())
        })
    }

    fn wait_for_server(&self, load: &Path) -> Result<()> {
        let places = [at(LOAD), at(CROWD + 1), format!("{SERVER}:5201")];
        for place in places {
            let line = [load.as_os_str(), "reach".as_ref(), place.as_ref()].map(OsStr::to_owned);
            let reach = || self.command(&Place::Host, &line);
            until(&place, || Ok(quiet(&mut reach()).status()?.success()))?;
        }
        Ok(())
    }

    /// Returns the command for a program at a place.
    pub fn command(&self, place: &Place, line: &[impl AsRef<OsStr>]) -> Command {
        let mut command = match place {
            Place::Host | Place::Proxied => self.hosts[0].command(&[""; 0]),
            Place::Of(pid) => {
                let mut command = Command::new("nsenter");
                command.args(["-t", &pid.to_string(), "-n"]);
                command
            }
        };
        if matches!(place, Place::Proxied) {
            command.args(["setpriv", "--reuid", CLIENT, "--clear-groups"]);
        }
        command.args(line).stdin(Stdio::null());
        command
    }

    /// Starts a background program on the client's host.
    pub fn start(&self, line: &[impl AsRef<OsStr>]) -> Result<Running> {
        Ok(Running(quiet(&mut self.command(&Place::Host, line)).spawn()?))
    }

    fn on_server(&self, line: &[&str]) -> Command {
        let mut command = self.hosts[1].command(line);
        quiet(&mut command);
        command
    }
}

/// Returns the address of a server's port.
pub fn at(port: u16) -> String {
    format!("{SERVER}:{port}")
}
