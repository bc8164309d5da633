//! The namespaces and folders of a measurement, which go with it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use super::peers::Network;
use super::sides::{Side, Uplink};
use crate::running::ip;

/// A folder for what a server writes.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("towpath-bench-{name}"));
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
/// Addresses of client and server that are not under `towpath run`.
const HERE: &str = "10.78.0.1/24";
pub const THERE: &str = "10.78.0.2/24";

/// The namespaces of one measurement; gone with it.
pub struct World {
    pub side: Side,
    pub names: Vec<String>,
}

impl World {
    pub fn new(side: Side) -> Result<Self> {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
        let ends: &[&str] = if Self::has_two_hosts(side) { &["a", "b"] } else { &["a"] };
        let mut world = Self { side, names: Vec::new() };
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

    /// A veth pair between client and server. Without an address the kernel leaves the server's end to who reads it.
    fn join(&self, has_address: bool) -> Result<()> {
        let (a, b) = (self.client(), self.server());
        let peer = ["type", "veth", "peer", "name", DEVICE, "netns", b];
        ip(&[&["-n", a, "link", "add", "v0"], &peer[..]].concat())?;
        set_up(a, "v0", Some(HERE))?;
        set_up(b, DEVICE, has_address.then_some(THERE))
    }

    /// What a peer opens by its name; the client's end is the kernel's. Its queue holds what a thousand connections send
    /// at once (500 packets, the default, would be overrun): peers without offloads get each segment as a packet.
    fn add_device(&self, mode: &str) -> Result<()> {
        const QUEUE: &str = "10000";
        let a = self.client();
        ip(&["-n", a, "tuntap", "add", "dev", DEVICE, "mode", mode])?;
        ip(&["-n", a, "link", "set", DEVICE, "txqueuelen", QUEUE])?;
        set_up(a, DEVICE, Some(HERE))
    }

    /// Lets a client close many connections: their ports are used again after a second.
    pub fn allow_many_ports(&self) -> Result<()> {
        let script = "echo 10000 65535 > /proc/sys/net/ipv4/ip_local_port_range && \
                      echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse";
        let line = ["sh", "-c", script].map(str::to_owned);
        let status = self.command(self.client(), &line).status().context("ip netns exec")?;
        ensure!(status.success(), "the namespace's ports cannot be set");
        Ok(())
    }

    /// Once the server is there: the client's kernel sends as the servers do, by CUBIC. Its default may be anything.
    pub fn use_cubic(&self) -> Result<()> {
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
        for name in &self.names {
            if let Err(error) = ip(&["netns", "del", name]) {
                eprintln!("{error}");
            }
        }
    }
}
