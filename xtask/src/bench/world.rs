//! The namespaces and folders of a measurement, which go with it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use super::Side;
use super::sides::Uplink;
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

/// The namespaces of one measurement; gone with it.
pub struct World {
    pub side: Side,
    pub names: Vec<String>,
}

impl World {
    pub fn new(side: Side) -> Result<Self> {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
        let ends: &[&str] = if side == Side::Kernel { &["a", "b"] } else { &["a"] };
        let mut world = Self { side, names: Vec::new() };
        for end in ends {
            let name = format!("tpb-{id}-{end}");
            ip(&["netns", "add", &name])?;
            world.names.push(name.clone());
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        if let [a, b] = &world.names[..] {
            ip(&["-n", a, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", b])?;
            for (name, device, address) in [(a, "v0", "10.78.0.1/24"), (b, "v1", "10.78.0.2/24")] {
                ip(&["-n", name, "addr", "add", address, "dev", device])?;
                ip(&["-n", name, "link", "set", device, "up"])?;
                let net = "10.78.0.0/24";
                ip(&["-n", name, "route", "replace", net, "dev", device, "congctl", "cubic"])?;
            }
        }
        Ok(world)
    }

    /// Once the server is there: the client's kernel sends as the servers do, by CUBIC. Its default may be anything.
    pub fn use_cubic(&self) -> Result<()> {
        let route = match self.side {
            Side::Kernel => return Ok(()),
            Side::Ours(_, Uplink::Tap) => "10.77.0.0/24 dev towpath0 src 10.77.0.1",
            Side::Ours(_, Uplink::Rootless) => {
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
            Side::Kernel => "10.78.0.2",
            Side::Ours(_, Uplink::Tap) => "10.77.0.2",
            Side::Ours(_, Uplink::Rootless) => "127.0.0.1",
        }
    }

    pub fn command(&self, name: &str, line: &[String]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).args(line);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
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
