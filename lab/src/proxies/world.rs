//! Two hosts and a cable: a client whose traffic is proxied, and a server.
//!
//! ```text
//!  client's programs ── tw0 ── proxy ── p0 ═══ veth ═══ s0 ── servers at 10.9.0.2
//!   └─────────────── client ────────────┘                └── server ──┘
//! ```
//!
//! On the client's host one user's packets are led into the device of a proxy, by a rule. The
//! proxy, as root, goes by the cable. So no contender has to keep its own connections apart.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::built::Built;
use crate::interrupt;
use crate::running::{Running, ip};

/// Address of the server, in a network of its own behind the cable.
pub const SERVER: &str = "10.9.0.2";
/// Network that is led into a proxy.
const PROXIED: &str = "10.9.0.0/16";
/// Ends of the cable, each with its address.
const NEAR: [&str; 2] = ["p0", "10.78.0.1"];
const FAR: [&str; 2] = ["s0", "10.78.0.2"];
/// Device of proxies on a TUN.
pub const DEVICE: &str = "tw0";
/// Address of the client's host on it, unless the proxy gives one.
const ON_DEVICE: &str = "198.18.0.1/32";
/// Packets that wait in a device that was made beforehand, as in `cargo lab bench`.
const QUEUE: &str = "10000";
/// User whose packets are proxied, and the table with their route.
const CLIENT: &str = "4242";
const TABLE: &str = "100";
/// Ports of `load serve` and of `crowd serve`.
pub const LOAD: u16 = 7900;
pub const CROWD: u16 = 7910;
/// Time until servers and proxies are there.
const READY: Duration = Duration::from_secs(15);

/// Both hosts with the servers, gone on drop.
pub struct World {
    /// Servers end before their namespace is deleted.
    _servers: Vec<Running>,
    hosts: [Namespace; 2],
}

/// A network namespace, deleted on drop.
struct Namespace(String);

/// Place of client programs.
pub enum Place {
    /// The client's host, past all proxies.
    Host,
    /// The same as a user whose packets are proxied.
    Proxied,
    /// The namespace of a process.
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

    /// The cable, and routes by which all senders use CUBIC: the machine's default may be anything.
    fn join(&self) -> Result<()> {
        let [client, server] = [0, 1].map(|n| &*self.hosts[n].0);
        ip(&[
            &["-n", client, "link", "add", NEAR[0], "type", "veth", "peer", "name", FAR[0]][..],
            &["netns", server],
        ]
        .concat())?;
        ip(&["-n", server, "addr", "add", &format!("{SERVER}/32"), "dev", "lo"])?;
        // The server has two addresses, and must answer datagrams from the one that was asked.
        let ends = [(client, NEAR, FAR[1], NEAR[1]), (server, FAR, NEAR[1], SERVER)];
        for (host, [device, own], other, from) in ends {
            ip(&["-n", host, "addr", "add", own, "peer", other, "dev", device])?;
            ip(&["-n", host, "link", "set", device, "up"])?;
            let route = ["-n", host, "route", "replace", other, "dev", device, "src", from];
            ip(&[&route[..], &["congctl", "cubic"]].concat())?;
        }
        // Proxies that copy the host's network look for its default route.
        ip(&["-n", client, "route", "add", "default", "via", FAR[1], "congctl", "cubic"])?;
        let ports = "echo 10000 65535 > /proc/sys/net/ipv4/ip_local_port_range && \
                     echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse";
        let line = ["sh", "-c", ports];
        for mut command in [self.command(&Place::Host, &line), self.on_server(&line)] {
            ensure!(command.status()?.success(), "ports of {client} and {server}");
        }
        Ok(())
    }

    /// A TUN device for proxies that want one, with room for the segments of many connections.
    pub fn add_device(&self) -> Result<()> {
        let host = &*self.hosts[0].0;
        ip(&["-n", host, "tuntap", "add", "dev", DEVICE, "mode", "tun"])?;
        ip(&["-n", host, "link", "set", DEVICE, "txqueuelen", QUEUE, "up"])?;
        ip(&["-n", host, "addr", "add", ON_DEVICE, "dev", DEVICE])
    }

    /// Leads the packets of the client's user into the device, once a proxy has it up.
    pub fn lead_into_device(&self, proxy: &mut Running) -> Result<()> {
        let host = &*self.hosts[0].0;
        until("a device of the proxy", || {
            ensure!(proxy.0.try_wait()?.is_none(), "the proxy has ended");
            let line = ["-n", host, "-o", "link", "show", "dev", DEVICE, "up"];
            let shown = Command::new("ip").args(line).stderr(Stdio::null()).output()?;
            Ok(!shown.stdout.is_empty())
        })?;
        ip(&[
            "-n",
            host,
            "rule",
            "add",
            "uidrange",
            &format!("{CLIENT}-{CLIENT}"),
            "to",
            PROXIED,
            "lookup",
            TABLE,
        ])?;
        ip(&[
            "-n", host, "route", "add", PROXIED, "dev", DEVICE, "table", TABLE, "congctl", "cubic",
        ])?;
        // Segments that the kernel sends for no socket any more have no user.
        let own = self.own_address(&Place::Proxied)?;
        ip(&["-n", host, "rule", "add", "from", &own, "lookup", TABLE])
    }

    /// Has senders in the namespace of a process use CUBIC.
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

    /// Address from which programs in a place reach the server.
    pub fn own_address(&self, place: &Place) -> Result<String> {
        let asked = self.command(place, &["ip", "-o", "route", "get", SERVER]).output()?;
        let route = String::from_utf8(asked.stdout)?;
        let mut words = route.split_whitespace().skip_while(|word| *word != "src");
        Ok(words.nth(1).with_context(|| format!("no source in {route:?}"))?.to_owned())
    }

    /// Waits until programs in a place reach the server.
    pub fn wait_for(&self, place: &Place, load: &Path, proxy: &mut Running) -> Result<()> {
        let line = [load.as_os_str(), "reach".as_ref(), at(LOAD).as_ref()].map(OsStr::to_owned);
        until("a connection through the proxy", || {
            ensure!(proxy.0.try_wait()?.is_none(), "the proxy has ended");
            let mut reach = self.command(place, &line);
            Ok(reach.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
        })
    }

    fn wait_for_server(&self, load: &Path) -> Result<()> {
        let places = [at(LOAD), at(CROWD + 1), format!("{SERVER}:5201")];
        for place in places {
            let line = [load.as_os_str(), "reach".as_ref(), place.as_ref()].map(OsStr::to_owned);
            until(&place, || {
                let mut reach = self.command(&Place::Host, &line);
                Ok(reach.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
            })?;
        }
        Ok(())
    }

    /// A program in a place.
    pub fn command(&self, place: &Place, line: &[impl AsRef<OsStr>]) -> Command {
        let mut command = match place {
            Place::Host | Place::Proxied => netns(&self.hosts[0].0),
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

    /// Starts a program of the client's host that goes on.
    pub fn start(&self, line: &[impl AsRef<OsStr>]) -> Result<Running> {
        let mut command = self.command(&Place::Host, line);
        let child: Child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Running(child))
    }

    fn on_server(&self, line: &[&str]) -> Command {
        let mut command = netns(&self.hosts[1].0);
        command.args(line).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// A port of the server.
pub fn at(port: u16) -> String {
    format!("{SERVER}:{port}")
}

fn netns(name: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name]);
    command
}

/// Waits until something is so.
pub fn until(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + READY;
    while !is()? {
        ensure!(Instant::now() < end, "not within {READY:?}: {what}");
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

impl Namespace {
    fn new(end: &str) -> Result<Self> {
        let name = format!("tpx-{}-{end}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Self(name);
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.0]) {
            eprintln!("{error}");
        }
    }
}
