//! The namespaces and folders of a measurement, which go with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use super::link::{Carrier, Link};
use super::peers::Network;
use super::sides::{Side, Uplink};
use crate::running::ip;

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
/// Addresses of client and server that are not under `towpath run`.
const HERE: &str = "10.78.0.1/24";
pub const THERE: &str = "10.78.0.2/24";

/// The two ends of a link: what the client goes through, which has a namespace of its own then, and
/// the client.
const GATE: [&str; 3] = ["l0", "10.79.0.1/24", "10.79.0.1"];
const BEHIND: [&str; 2] = ["l1", "10.79.0.2/24"];

/// The namespaces of one measurement; gone with it.
pub struct World {
    pub side: Side,
    /// The client's is the first one, the server's the last one.
    pub names: Vec<String>,
    link: Option<Carrier>,
}

impl World {
    pub fn new(side: Side) -> Result<Self> {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
        let ends: &[&str] = if Self::has_two_hosts(side) { &["a", "b"] } else { &["a"] };
        let mut world = Self { side, names: Vec::new(), link: None };
        for end in ends {
            let name = format!("tpb-{id}-{end}");
            ip(&["netns", "add", &name])?;
            world.names.push(name.clone());
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
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
        let peer = ["type", "veth", "peer", "name", DEVICE, "netns", b];
        ip(&[&["-n", a, "link", "add", "v0"], &peer[..]].concat())?;
        set_up(a, "v0", Some(HERE))?;
        set_up(b, DEVICE, has_address.then_some(THERE))
    }

    /// Adds the device that a peer opens by its name; the client's end is the kernel's. Its queue
    /// holds the packets that a thousand connections send at once, which would overrun the default
    /// of 500. Peers without offloads get each segment as a packet.
    fn add_device(&self, mode: &str) -> Result<()> {
        const QUEUE: &str = "10000";
        let a = self.client();
        ip(&["-n", a, "tuntap", "add", "dev", DEVICE, "mode", mode])?;
        ip(&["-n", a, "link", "set", DEVICE, "txqueuelen", QUEUE])?;
        set_up(a, DEVICE, Some(HERE))
    }

    /// Puts a link between the client and the place where it has been. The client has a namespace
    /// of its own for that. The former place forwards, so the server's way out of its namespace is
    /// the one that it has without a link.
    pub fn move_client_behind(&mut self, link: &Link, program: &Path, seed: u64) -> Result<()> {
        let gate = self.client().to_owned();
        let client = format!("{gate}-c");
        ip(&["netns", "add", &client])?;
        self.names.insert(0, client.clone());
        ip(&["-n", &client, "link", "set", "lo", "up"])?;
        let ends = [(&*gate, GATE[0], GATE[1]), (&*client, BEHIND[0], BEHIND[1])];
        for (name, device, address) in ends {
            ip(&["-n", name, "tuntap", "add", "dev", device, "mode", "tap"])?;
            ip(&["-n", name, "link", "set", "dev", device, "txqueuelen", DEVICE_FRAMES])?;
            ip(&["-n", name, "addr", "add", address, "dev", device])?;
            // Neighbour discovery would send frames as soon as one end is up, and the other end is
            // not there yet.
            let is_off = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
            self.shell(name, &format!("test ! -e {is_off} || echo 1 > {is_off}"))?;
        }
        let held = ends.map(|(name, device, _)| (name, device));
        self.link = Some(Carrier::start(program, link, held, seed)?);
        // A device that somebody holds when it is set up sends from then on; otherwise the kernel
        // takes up to a second.
        for (name, device) in held {
            ip(&["-n", name, "link", "set", "dev", device, "up"])?;
        }
        self.shell(&gate, "echo 1 > /proc/sys/net/ipv4/ip_forward").context("forwarding")?;
        let route = |name: &str, via: &str| {
            ip(&["-n", name, "route", "add", "default", "via", via, "congctl", "cubic"])
        };
        route(&client, GATE[2])?;
        if self.side == Side::Kernel {
            route(self.server(), HERE.trim_end_matches("/24"))?;
        }
        Ok(())
    }

    /// An error if the link, if there is one, has lost frames beyond those that it was to lose.
    pub fn end_link(&mut self) -> Result<()> {
        self.link.take().map_or(Ok(()), Carrier::end)
    }

    /// Lets a client close many connections: their ports are used again after a second.
    pub fn allow_many_ports(&self) -> Result<()> {
        let script = "echo 10000 65535 > /proc/sys/net/ipv4/ip_local_port_range && \
                      echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse";
        self.shell(self.client(), script).context("the namespace's ports")
    }

    fn shell(&self, name: &str, script: &str) -> Result<()> {
        let line = ["sh", "-c", script].map(str::to_owned);
        let status = self.command(name, &line).status().context("ip netns exec")?;
        ensure!(status.success(), "{script} failed");
        Ok(())
    }

    /// Once the server is there: the client's kernel sends as the servers do, by CUBIC. Its default
    /// may be anything.
    pub fn use_cubic(&self) -> Result<()> {
        if self.link.is_some() {
            // Its only route says so.
            return Ok(());
        }
        let route = match self.side {
            // Their routes say so from the beginning; under towpath no end is the kernel's.
            Side::Kernel | Side::Peer(_) | Side::Loopback => return Ok(()),
            Side::Ours(_, Uplink::Tap) => "10.77.0.0/24 dev towpath0 src 10.77.0.1",
            Side::Ours(_, Uplink::Rootless) | Side::KernelLoopback => {
                "local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1"
            }
        };
        let line = format!("-n {} route replace {route} congctl cubic", self.client());
        ip(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub fn client(&self) -> &str {
        &self.names[0]
    }

    pub fn server(&self) -> &str {
        self.names.last().expect("at least one")
    }

    /// The server's address for the client.
    pub fn host(&self) -> &'static str {
        match self.side {
            Side::Kernel | Side::Peer(_) => "10.78.0.2",
            Side::Ours(_, Uplink::Tap) => "10.77.0.2",
            Side::Ours(_, Uplink::Rootless) | Side::KernelLoopback | Side::Loopback => "127.0.0.1",
        }
    }

    pub fn command(&self, name: &str, line: &[String]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).args(line);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

fn set_up(name: &str, device: &str, address: Option<&str>) -> Result<()> {
    if let Some(address) = address {
        ip(&["-n", name, "addr", "add", address, "dev", device])?;
    }
    ip(&["-n", name, "link", "set", device, "up"])?;
    if address.is_some() {
        let net = "10.78.0.0/24";
        ip(&["-n", name, "route", "replace", net, "dev", device, "congctl", "cubic"])?;
    }
    Ok(())
}

impl Drop for World {
    fn drop(&mut self) {
        // Its devices are in the namespaces.
        drop(self.link.take());
        for name in &self.names {
            if let Err(error) = ip(&["netns", "del", name]) {
                eprintln!("{error}");
            }
        }
    }
}
