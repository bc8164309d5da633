//! Two hosts connected by a veth pair: one with kernel clients, and one with the server.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cases::Server;
use super::contender::Contender;
use crate::namespace::{Namespace, quiet, until};
use crate::running::Running;

/// Address of the server, on any stack.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// Address of the server with its prefix length.
const SERVER_CIDR: &str = "10.1.0.2/24";
const CLIENT_CIDR: &str = "10.1.0.1/24";
const NETWORK: &str = "10.1.0.0/24";
/// Clients' end of the veth pair.
pub const CLIENT_END: &str = "va";
/// Server's end of the veth pair.
pub const SERVER_END: &str = "vb";

/// Name of the TAP device, which is created at the server's end.
const TAP: &str = "vt";
/// Maximum MTU of a link between two stacks.
const MTU_LARGE: &str = "65535";

/// Both hosts, and a directory for files of servers; removed when dropped.
pub struct World {
    contender: Contender,
    towpath: Option<PathBuf>,
    hosts: [Namespace; 2],
    folder: PathBuf,
}

impl World {
    /// Creates the hosts. `towpath` runs servers, and clients that need a stack of their own.
    pub fn new(contender: Contender, towpath: Option<&Path>) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("towpath-devices-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let [client, server] = ["client", "server"].map(Namespace::new);
        let towpath = towpath.map(Path::to_owned);
        let world = Self { contender, towpath, hosts: [client?, server?], folder };
        let [client, server] = &world.hosts;
        client.join(CLIENT_END, server, SERVER_END)?;
        client.ip(&format!("addr add {CLIENT_CIDR} dev {CLIENT_END}"))?;
        if contender == Contender::Kernel {
            server.ip(&format!("addr add {SERVER_CIDR} dev {SERVER_END}"))?;
        }
        let ends = [(client, CLIENT_END), (server, SERVER_END)];
        for (host, end) in ends {
            host.ip(&format!("link set {end} up"))?;
        }
        let count = if contender == Contender::Kernel { 2 } else { 1 };
        for (host, end) in &ends[..count] {
            host.use_cubic(&format!("{NETWORK} dev {end}"))?;
        }
        Ok(world)
    }

    /// Returns the directory for files of servers.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a server at its end, and waits until it accepts connections.
    pub fn start(&self, server: fn(&Self) -> Result<Server>) -> Result<Running> {
        let Server { line, port } = server(self)?;
        let device = match self.contender {
            Contender::Kernel => None,
            Contender::Packet => Some(format!("--packet={SERVER_END}")),
            Contender::Xdp => Some(format!("--xdp={SERVER_END}")),
            Contender::Tap => Some(format!("--tap={TAP}")),
            Contender::Memif | Contender::LargeMemif => Some(self.memif("server")),
        };
        let mut words = device.map_or(Ok(Vec::new()), |device| self.run(&device, SERVER_CIDR))?;
        words.extend(line);
        let mut command = self.server(&words);
        let mut running = Running(quiet(&mut command).spawn().context("the server")?);
        // Connect by bash, which needs no further program, and close at once.
        let reach = ["bash", "-c", &format!("exec 3<>/dev/tcp/{SERVER}/{port}")];
        until(&format!("a server: {words:?}"), || {
            ensure!(running.0.try_wait()?.is_none(), "the server has ended: {words:?}");
            Ok(quiet(&mut self.client(&reach)?).status()?.success())
        })?;
        if self.contender == Contender::Tap {
            self.hosts[1].use_cubic(&format!("{NETWORK} dev {TAP}"))?;
        }
        Ok(running)
    }

    /// Lets the server's end receive frames that were not sent by a socket of the clients' end.
    pub fn receive_by_napi(&self) -> Result<()> {
        let mut command = self.server(&["ethtool", "-K", SERVER_END, "gro", "on"]);
        ensure!(command.status().context("ethtool")?.success(), "ethtool failed");
        Ok(())
    }

    /// Returns the command for a program at the server's end, without Towpath.
    pub fn server(&self, line: &[impl AsRef<OsStr>]) -> Command {
        self.hosts[1].command(line)
    }

    /// Returns the command for a program at the clients' end, without Towpath.
    pub fn source(&self, line: &[impl AsRef<OsStr>]) -> Command {
        self.hosts[0].command(line)
    }

    /// Returns the command for a client: on the kernel's stack, or on one at the other end of a
    /// memif link.
    pub fn client(&self, line: &[impl AsRef<str>]) -> Result<Command> {
        let line = line.iter().map(|word| word.as_ref().to_owned());
        if !self.contender.is_memif() {
            let place = usize::from(self.contender == Contender::Tap);
            return Ok(self.hosts[place].command(&line.collect::<Vec<_>>()));
        }
        let mut words = self.run(&self.memif("client"), CLIENT_CIDR)?;
        words.extend(line);
        Ok(self.hosts[0].command(&words))
    }

    /// Returns the option of a memif device.
    fn memif(&self, role: &str) -> String {
        format!("--memif={},role={role}", self.folder.join("memif.sock").display())
    }

    /// Returns the words of a run in front of its program.
    fn run(&self, device: &str, address: &str) -> Result<Vec<String>> {
        let towpath = self.towpath.as_ref().context("a case without towpath")?;
        let mut words = vec![towpath.display().to_string()];
        words.extend(["run", "-q", device, "--address", address].map(str::to_owned));
        if self.contender == Contender::LargeMemif {
            words.extend(["--mtu", MTU_LARGE].map(str::to_owned));
        }
        words.push("--".to_owned());
        Ok(words)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
