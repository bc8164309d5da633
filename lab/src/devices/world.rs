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

/// Both hosts, and a directory for files of servers; removed when dropped.
pub struct World {
    contender: Contender,
    hosts: [Namespace; 2],
    folder: PathBuf,
}

impl World {
    pub fn new(contender: Contender) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("towpath-devices-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let [client, server] = ["client", "server"].map(Namespace::new);
        let world = Self { contender, hosts: [client?, server?], folder };
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
    pub fn start(&self, server: fn(&Self) -> Result<Server>, towpath: &Path) -> Result<Running> {
        let Server { line, port } = server(self)?;
        let mut words: Vec<String> = Vec::new();
        if let Some(option) = self.contender.option() {
            let towpath = towpath.display().to_string();
            words.extend([towpath, "run".into(), "-q".into(), option.into(), SERVER_END.into()]);
            words.extend(["--address".into(), SERVER_CIDR.into(), "--".into()]);
        }
        words.extend(line);
        let mut command = self.server(&words);
        let mut running = Running(quiet(&mut command).spawn().context("the server")?);
        // Connect by bash, which needs no further program, and close at once.
        let reach = ["bash", "-c", &format!("exec 3<>/dev/tcp/{SERVER}/{port}")];
        until(&format!("a server: {words:?}"), || {
            ensure!(running.0.try_wait()?.is_none(), "the server has ended: {words:?}");
            Ok(quiet(&mut self.client(&reach)).status()?.success())
        })?;
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

    /// Returns the command for a program at the clients' end.
    pub fn client(&self, line: &[impl AsRef<OsStr>]) -> Command {
        self.hosts[0].command(line)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
