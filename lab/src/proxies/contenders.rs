//! Builds and starts the proxies.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::built::Built;
use super::world::{DEVICE, NEAR, PROXIED, Place, World};
use crate::bench::cpu;
use crate::bench::peers::{build_rust, locked, succeed};
use crate::namespace::until;
use crate::running::Running;
use crate::workspace::build_release;

/// A proxy between client and server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// No proxy: the kernel routes.
    Direct,
    /// `towpath proxy --tun`.
    Tun,
    /// `examples/intercept_forward.rs`, on `towpath::intercept`.
    Intercept,
    /// The proxy of lab/peers/netstack-smoltcp-tun.
    NetstackSmoltcp,
    /// tun2socks, written in Go, in its mode of direct connections.
    Tun2socks,
    /// tun2proxy, in its mode of direct connections.
    Tun2proxy,
    /// `towpath proxy run`.
    Run,
    /// slirp4netns, for an existing namespace.
    Slirp4netns,
    /// pasta of passt, which creates its own namespace.
    Pasta,
}

/// A running proxy.
pub struct Started {
    /// Where client programs run.
    pub place: Place,
    /// Process of the proxy; `None` without one.
    pub proxy: Option<Running>,
    /// Process that keeps the client's namespace alive.
    _holder: Option<Running>,
}

/// Versions, and the Go module, of peers that are installed by name.
const TUN2PROXY: &str = "0.8.7";
const TUN2SOCKS: &str = "2.6.0";
const TUN2SOCKS_MODULE: &str = "github.com/xjasonlyu/tun2socks/v2";
/// Maximum number of tun2proxy's sessions; its default is 200.
const SESSIONS: &str = "20000";
/// MTU in bytes of peers with an Ethernet device: pasta's default, and one less than slirp4netns's
/// maximum.
const MTU: &str = "65520";
/// Program that keeps a namespace alive, for longer than any measurement.
const HOLD: [&str; 2] = ["sleep", "100000"];

impl Contender {
    pub const ALL: [Self; 9] = [
        Self::Direct,
        Self::Tun,
        Self::Intercept,
        Self::NetstackSmoltcp,
        Self::Tun2socks,
        Self::Tun2proxy,
        Self::Run,
        Self::Slirp4netns,
        Self::Pasta,
    ];

    /// Returns the name for `--only` and in the tables.
    pub fn key(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Tun => "tun",
            Self::Intercept => "intercept",
            Self::NetstackSmoltcp => "netstack-smoltcp",
            Self::Tun2socks => "tun2socks",
            Self::Tun2proxy => "tun2proxy",
            Self::Run => "run",
            Self::Slirp4netns => "slirp4netns",
            Self::Pasta => "pasta",
        }
    }

    pub fn version(self, built: &Built) -> String {
        let found = match self {
            Self::Direct => None,
            Self::Tun | Self::Intercept | Self::Run => Some(env!("CARGO_PKG_VERSION").to_owned()),
            Self::NetstackSmoltcp => {
                let lock = built.root.join("lab/peers/netstack-smoltcp-tun/Cargo.lock");
                locked(&std::fs::read_to_string(lock).unwrap_or_default(), "netstack-smoltcp")
            }
            Self::Tun2socks => Some(TUN2SOCKS.to_owned()),
            Self::Tun2proxy => Some(TUN2PROXY.to_owned()),
            Self::Slirp4netns => debian_version("slirp4netns"),
            Self::Pasta => debian_version("passt"),
        };
        found.unwrap_or_default()
    }

    /// Builds the proxy, unless it exists, and returns the path of its program.
    pub fn build(self, built: &Built) -> Result<PathBuf> {
        let peers = built.target.join("peers");
        match self {
            Self::Direct | Self::Tun => Ok(built.towpath.clone()),
            Self::Run => {
                let help =
                    Command::new(&built.towpath).args(["proxy", "run", "--help"]).output()?;
                ensure!(help.status.success(), "this build has no `towpath proxy run`");
                Ok(built.towpath.clone())
            }
            Self::Intercept => {
                let example = ["--features", "intercept", "--example", "intercept_forward"];
                let line = [&["-p", "towpath"], &example[..]].concat();
                Ok(build_release(&built.root, &line)?.join("examples/intercept_forward"))
            }
            Self::NetstackSmoltcp => build_rust(&built.root, &built.target, "netstack-smoltcp-tun"),
            Self::Tun2socks => {
                let module = format!("{TUN2SOCKS_MODULE}@v{TUN2SOCKS}");
                let mut go = Command::new("go");
                go.args(["install", &module]).env("GOBIN", &peers).current_dir(&built.root);
                succeed(&mut go)?;
                Ok(peers.join("tun2socks"))
            }
            Self::Tun2proxy => {
                let mut cargo = Command::new(env!("CARGO"));
                cargo.args(["install", "--locked", "--version", TUN2PROXY, "tun2proxy"]);
                cargo.arg("--root").arg(&peers).arg("--target-dir").arg(&peers);
                succeed(&mut cargo)?;
                Ok(peers.join("bin/tun2proxy-bin"))
            }
            Self::Slirp4netns => Ok("slirp4netns".into()),
            Self::Pasta => Ok("pasta".into()),
        }
    }

    /// Starts the proxy on the client's host, and waits until clients reach the server through it.
    pub fn start(self, world: &World, program: &Path, load: &Path) -> Result<Started> {
        let program = program.display().to_string();
        let on_device = |line: &[&str], is_made: bool| {
            if is_made {
                world.add_device()?;
            }
            let mut proxy = world.start(line)?;
            world.lead_into_device(&mut proxy)?;
            Ok(Started { place: Place::Proxied, proxy: Some(proxy), _holder: None })
        };
        let in_namespace = |line: &[&str]| {
            let mut proxy = world.start(&[line, &HOLD].concat())?;
            let held = held_by(&mut proxy)?;
            Ok(Started { place: Place::Of(held), proxy: Some(proxy), _holder: None })
        };
        let mut started = match self {
            Self::Direct => {
                return Ok(Started { place: Place::Host, proxy: None, _holder: None });
            }
            Self::Tun => on_device(&[&program, "proxy", "-q", "--tun", DEVICE], false),
            Self::Intercept => on_device(&[&program, DEVICE, PROXIED, NEAR[0]], true),
            Self::NetstackSmoltcp => on_device(&[&program, DEVICE], true),
            Self::Tun2socks => on_device(
                &[&program, "-device", DEVICE, "-proxy", "direct://", "-loglevel", "error"],
                true,
            ),
            Self::Tun2proxy => on_device(
                &[
                    &program,
                    "--proxy",
                    "none",
                    "--tun",
                    DEVICE,
                    "--max-sessions",
                    SESSIONS,
                    "--verbosity",
                    "off",
                ],
                true,
            ),
            Self::Run => in_namespace(&[&program, "proxy", "run", "-q", "--"]),
            Self::Pasta => {
                in_namespace(&[&program, "--config-net", "--runas", "0", "-q", "-f", "--"])
            }
            Self::Slirp4netns => start_slirp4netns(world, &program),
        }?;
        let proxy = started.proxy.as_mut().context("a proxy")?;
        if matches!(started.place, Place::Of(_)) {
            until("a default route", || Ok(world.use_cubic(&started.place).is_ok()))?;
        }
        world.wait_for(&started.place, load, proxy)?;
        Ok(started)
    }
}

fn start_slirp4netns(world: &World, program: &str) -> Result<Started> {
    let holder = world.start(&[&["unshare", "-n"], &HOLD[..]].concat())?;
    let pid = holder.0.id();
    let is_apart = || {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net"));
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
        Ok(comm.trim() == HOLD[0] && namespace(&pid.to_string())? != namespace("self")?)
    };
    until("a namespace for slirp4netns", is_apart)?;
    let proxy = world.start(&[program, "-c", "-m", MTU, &pid.to_string(), "tap0"])?;
    Ok(Started { place: Place::Of(pid), proxy: Some(proxy), _holder: Some(holder) })
}

/// Waits for the program that keeps a proxy's namespace alive, and returns its process id.
fn held_by(proxy: &mut Running) -> Result<u32> {
    let mut held = None;
    until("a program in the proxy's namespace", || {
        ensure!(proxy.0.try_wait()?.is_none(), "the proxy has ended");
        let is_it = |pid: &u32| {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.trim() == HOLD[0])
        };
        held = cpu::descendants(proxy.0.id())?.into_iter().find(is_it);
        Ok(held.is_some())
    })?;
    held.context("a program in the proxy's namespace")
}

/// Returns the version of a Debian package, if it is installed.
fn debian_version(package: &str) -> Option<String> {
    let query = ["-W", "-f", "${Version}", package];
    let output = Command::new("dpkg-query").args(query).output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !version.is_empty()).then_some(version)
}
