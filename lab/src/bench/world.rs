//! The namespaces and folders of a measurement, which go with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::link::{Carrier, Link};
use super::peers::Network;
use super::sides::{Side, Uplink};
use crate::namespace::{LOOPBACK, Namespace, quiet};

/// A folder for what a server writes.
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

/// The server's end of a veth pair, or the device of a peer that has one.
pub const DEVICE: &str = "v1";
/// Frames that a device of a link keeps until they are read: more than the window of any
/// connection.
const DEVICE_FRAMES: &str = "16384";
/// Addresses of client and server that are not under `towpath run`, and their network.
const HERE: &str = "10.78.0.1/24";
pub const THERE: &str = "10.78.0.2/24";
const NETWORK: &str = "10.78.0.0/24";

/// The two ends of a link: what the client goes through, which has a namespace of its own then, and
/// the client.
const GATE: [&str; 3] = ["l0", "10.79.0.1/24", "10.79.0.1"];
const BEHIND: [&str; 2] = ["l1", "10.79.0.2/24"];

/// The namespaces of one measurement; gone with it.
pub struct World {
    pub side: Side,
    /// Its devices are in the namespaces, which are deleted after its end.
    link: Option<Carrier>,
    /// The client's is the first one, the server's the last one.
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

    /// A veth pair between client and server. Without an address the kernel leaves the server's end
    /// to who reads it.
    fn join(&self, has_address: bool) -> Result<()> {
        let (a, b) = (self.client(), self.server());
        a.join("v0", b, DEVICE)?;
        set_up(a, "v0", Some(HERE))?;
        set_up(b, DEVICE, has_address.then_some(THERE))
    }

    /// Adds the device that a peer opens by its name; the client's end is the kernel's. Its queue
    /// holds the packets that a thousand connections send at once, which would overrun the default
    /// of 500. Peers without offloads get each segment as a packet.
    fn add_device(&self, mode: &str) -> Result<()> {
        const QUEUE: &str = "10000";
        let a = self.client();
        a.ip(&format!("tuntap add dev {DEVICE} mode {mode}"))?;
        a.ip(&format!("link set {DEVICE} txqueuelen {QUEUE}"))?;
        set_up(a, DEVICE, Some(HERE))
    }

    /// Puts a link between the client and the place where it has been. The client has a namespace
    /// of its own for that. The former place forwards, so the server's way out of its namespace is
    /// the one that it has without a link.
    pub fn move_client_behind(&mut self, link: &Link, program: &Path, seed: u64) -> Result<()> {
        self.hosts.insert(0, Namespace::new("c")?);
        let (client, gate) = (&self.hosts[0], &self.hosts[1]);
        let ends = [(gate, GATE[0], GATE[1]), (client, BEHIND[0], BEHIND[1])];
        for (host, device, address) in ends {
            host.ip(&format!("tuntap add dev {device} mode tap"))?;
            host.ip(&format!("link set dev {device} txqueuelen {DEVICE_FRAMES}"))?;
            host.ip(&format!("addr add {address} dev {device}"))?;
            // Neighbour discovery would send frames as soon as one end is up, and the other end is
            // not there yet.
            let is_off = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
            host.shell(&format!("test ! -e {is_off} || echo 1 > {is_off}"))?;
        }
        let held = ends.map(|(host, device, _)| (host.name(), device));
        self.link = Some(Carrier::start(program, link, held, seed)?);
        // A device that somebody holds when it is set up sends from then on; otherwise the kernel
        // takes up to a second.
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

    /// An error if the link, if there is one, has lost frames beyond those that it was to lose.
    pub fn end_link(&mut self) -> Result<()> {
        self.link.take().map_or(Ok(()), Carrier::end)
    }

    /// Once the server is there: the client's kernel sends as the servers do, by CUBIC.
    pub fn use_cubic(&self) -> Result<()> {
        if self.link.is_some() {
            // Its only route says so.
            return Ok(());
        }
        let route = match self.side {
            // Their routes say so from the beginning; under towpath no end is the kernel's.
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

    /// The server's address for the client.
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
