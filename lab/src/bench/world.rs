//! Namespaces and directories of a measurement, removed when dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::link::{Carrier, Link};
use super::peers::Network;
use super::sides::{Side, Uplink};
use crate::namespace::{LOOPBACK, Namespace, quiet};

/// Directory for files of a server.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("towpath-lab-{name}"));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// Name of the server's end of a veth pair, or of a peer's device.
pub const DEVICE: &str = "v1";
/// Queue length of a link's device in frames, longer than the window of any connection.
const DEVICE_FRAMES: &str = "16384";
/// Addresses of client and server outside of `towpath run`, and their network.
const HERE: &str = "10.78.0.1/24";
pub const THERE: &str = "10.78.0.2/24";
const NETWORK: &str = "10.78.0.0/24";

/// Device and addresses of a link's two ends: the forwarding host, and the client in its own
/// namespace.
const GATE: [&str; 3] = ["l0", "10.79.0.1/24", "10.79.0.1"];
const BEHIND: [&str; 2] = ["l1", "10.79.0.2/24"];

/// Namespaces of one measurement, deleted when dropped.
pub struct World {
    pub side: Side,
    /// Process of the link. Dropped before the namespaces that contain its devices.
    link: Option<Carrier>,
    /// Namespaces; the first one is the client's, and the last one the server's.
    hosts: Vec<Namespace>,
}

impl World {
    pub fn new(side: Side) -> Result<Self> {
        let ends: &[&str] = if Self::has_two_hosts(side) { &["a", "b"] } else { &["a"] };
        let hosts = ends.iter().map(|end| Namespace::new(end)).collect::<Result<_>>()?;
        let world = Self { side, link: None, hosts };
        match side {
            Side::Kernel => world.join(true)?,
            Side::Peer(peer) => match peer.network() {
                Network::Kernel => world.join(true)?,
                Network::Packet => world.join(false)?,
                Network::Tap => world.add_device("tap")?,
                Network::Tun => world.add_device("tun")?,
            },
            Side::KernelLoopback | Side::Loopback | Side::Ours(..) => {}
        }
        Ok(world)
    }

    fn has_two_hosts(side: Side) -> bool {
        match side {
            Side::Kernel => true,
            Side::Peer(peer) => match peer.network() {
                Network::Kernel | Network::Packet => true,
                Network::Tap | Network::Tun => false,
            },
            Side::KernelLoopback | Side::Loopback | Side::Ours(..) => false,
        }
    }

    /// Joins client and server by a veth pair. Without an address, the kernel does not use the
    /// server's end, so that a peer can.
    fn join(&self, has_address: bool) -> Result<()> {
        let (a, b) = (self.client(), self.server());
        a.join("v0", b, DEVICE)?;
        set_up(a, "v0", Some(HERE))?;
        set_up(b, DEVICE, has_address.then_some(THERE))
    }

    /// Adds the device that a peer opens by name, whose other end is the client's kernel. The queue
    /// holds the packets that a thousand connections send at once, which exceed the default of 500.
    /// Peers without offloads receive each segment as a packet.
    fn add_device(&self, mode: &str) -> Result<()> {
        const QUEUE: &str = "10000";
        let a = self.client();
        a.ip(&format!("tuntap add dev {DEVICE} mode {mode}"))?;
        a.ip(&format!("link set {DEVICE} txqueuelen {QUEUE}"))?;
        set_up(a, DEVICE, Some(HERE))
    }

    /// Moves the client into a new namespace behind a link. Its previous namespace forwards, so
    /// that the server's route to the client is the same as without a link.
    pub fn move_client_behind(&mut self, link: &Link, program: &Path, seed: u64) -> Result<()> {
        self.hosts.insert(0, Namespace::new("c")?);
        let (client, gate) = (&self.hosts[0], &self.hosts[1]);
        let ends = [(gate, GATE[0], GATE[1]), (client, BEHIND[0], BEHIND[1])];
        for (host, device, address) in ends {
            host.ip(&format!("tuntap add dev {device} mode tap"))?;
            host.ip(&format!("link set dev {device} txqueuelen {DEVICE_FRAMES}"))?;
            host.ip(&format!("addr add {address} dev {device}"))?;
            // Disable IPv6, because neighbour discovery would send frames before the other end is
            // up.
            let is_off = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
            host.shell(&format!("test ! -e {is_off} || echo 1 > {is_off}"))?;
        }
        let held = ends.map(|(host, device, _)| (host.name(), device));
        self.link = Some(Carrier::start(program, link, held, seed)?);
        // Set the devices up only after the link has opened them. Otherwise the kernel takes up to
        // a second before it sends.
        for (host, device, _) in ends {
            host.ip(&format!("link set dev {device} up"))?;
        }
        gate.shell("echo 1 > /proc/sys/net/ipv4/ip_forward").context("forwarding")?;
        let route = |host: &Namespace, via: &str| {
            host.ip(&format!("route add default via {via} congctl cubic"))
        };
        route(client, GATE[2])?;
        if self.side == Side::Kernel {
            route(self.server(), HERE.trim_end_matches("/24"))?;
        }
        Ok(())
    }

    /// Ends the link, if there is one. Fails if it has lost frames by overload.
    pub fn end_link(&mut self) -> Result<()> {
        self.link.take().map_or(Ok(()), Carrier::end)
    }

    /// Lets the client's kernel use CUBIC, as the servers do. Called once the server is running.
    pub fn use_cubic(&self) -> Result<()> {
        if self.link.is_some() {
            // The client's only route selects CUBIC already.
            return Ok(());
        }
        let route = match self.side {
            // The routes of these sides select CUBIC already, or no end is on the kernel (loopback
            // of `towpath run`).
            Side::Kernel | Side::Peer(_) | Side::Loopback => return Ok(()),
            Side::Ours(_, Uplink::Tap) => "10.77.0.0/24 dev towpath0 src 10.77.0.1",
            Side::Ours(_, Uplink::Rootless) | Side::KernelLoopback => LOOPBACK,
        };
        self.client().use_cubic(route)
    }

    pub fn client(&self) -> &Namespace {
        &self.hosts[0]
    }

    pub fn server(&self) -> &Namespace {
        self.hosts.last().expect("at least one")
    }

    /// Returns the server's address as seen by the client.
    pub fn host(&self) -> &'static str {
        match self.side {
            Side::Kernel | Side::Peer(_) => "10.78.0.2",
            Side::Ours(_, Uplink::Tap) => "10.77.0.2",
            Side::Ours(_, Uplink::Rootless) | Side::KernelLoopback | Side::Loopback => "127.0.0.1",
        }
    }

    /// Returns the command for a program of a host, without output.
    pub fn command(&self, host: &Namespace, line: &[String]) -> Command {
        let mut command = host.command(line);
        quiet(&mut command);
        command
    }
}

fn set_up(host: &Namespace, device: &str, address: Option<&str>) -> Result<()> {
    if let Some(address) = address {
        host.ip(&format!("addr add {address} dev {device}"))?;
    }
    host.ip(&format!("link set {device} up"))?;
    match address {
        Some(_) => host.use_cubic(&format!("{NETWORK} dev {device}")),
        None => Ok(()),
    }
}
