//! Alternatives to Towpath: stacks of other projects, and other server frameworks.
//!
//! Each peer is a server under `lab/peers` that provides the service of `lab/load/src/serve.rs`, as
//! far as it can.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cases::{Case, Client, Group, PORT, Serves};
use super::world::{DEVICE, THERE};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    /// smoltcp on a TAP device.
    Smoltcp,
    /// lwIP on a TAP device.
    Lwip,
    /// netstack-smoltcp on a TUN device. The crate uses smoltcp to terminate the connections of a
    /// TUN device.
    NetstackSmoltcp,
    /// gVisor's netstack on a packet socket at a veth.
    Gvisor,
    /// Go's net package on the kernel.
    Go,
    /// cloudwego's netpoll on the kernel.
    Netpoll,
}

/// Network that carries a peer's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// The kernel's stack, set up as for the kernel's side.
    Kernel,
    /// A veth end on which the kernel has no address.
    Packet,
    /// A TAP device in the client's namespace.
    Tap,
    /// A TUN device in the client's namespace, without Ethernet headers.
    Tun,
}

impl Peer {
    pub const ALL: [Self; 6] =
        [Self::Smoltcp, Self::Lwip, Self::NetstackSmoltcp, Self::Gvisor, Self::Go, Self::Netpoll];

    /// Name of the peer for `--peers`.
    pub fn key(self) -> &'static str {
        match self {
            Self::Smoltcp => "smoltcp",
            Self::Lwip => "lwip",
            Self::NetstackSmoltcp => "netstack-smoltcp",
            Self::Gvisor => "gvisor",
            Self::Go => "go",
            Self::Netpoll => "netpoll",
        }
    }

    pub fn network(self) -> Network {
        match self {
            Self::Smoltcp | Self::Lwip => Network::Tap,
            Self::NetstackSmoltcp => Network::Tun,
            Self::Gvisor => Network::Packet,
            Self::Go | Self::Netpoll => Network::Kernel,
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Smoltcp => "smoltcp-tap",
            Self::Lwip => "lwip-server",
            Self::NetstackSmoltcp => "netstack-smoltcp-tun",
            Self::Gvisor => "gvisor-server",
            Self::Go | Self::Netpoll => "go-echo",
        }
    }

    /// Returns the arguments of the peer's program.
    pub fn words(self) -> Vec<String> {
        let port = PORT.to_string();
        let words: &[&str] = match self {
            Self::Smoltcp | Self::Lwip | Self::NetstackSmoltcp | Self::Gvisor => {
                &[DEVICE, THERE, &port]
            }
            Self::Go => &["net", &port],
            Self::Netpoll => &["netpoll", &port],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }

    /// Returns the reason why the peer cannot take part in a case.
    pub fn lacks(self, case: &Case) -> Option<&'static str> {
        let is_served = match (&case.serves, &case.client) {
            (Serves::Load, _) => true,
            // The client of these cases sends requests that an echo server can answer.
            (Serves::Program(_), Client::Program(_)) => case.name.starts_with("one connection"),
            (Serves::Program(_), Client::Load(_)) => false,
        };
        if !is_served {
            return Some("it is not a place to run this program");
        }
        (self == Self::Netpoll && case.group == Group::Udp).then_some("it has no UDP")
    }

    /// Builds the peer, using the package registry of its language. Returns the path of its
    /// program.
    pub fn build(self, root: &Path, target: &Path) -> Result<PathBuf> {
        let folder = root.join("lab/peers").join(self.folder());
        let out = target.join("peers");
        let program = match self {
            Self::Smoltcp | Self::Lwip | Self::NetstackSmoltcp => {
                return build_rust(root, target, self.folder());
            }
            Self::Gvisor | Self::Go | Self::Netpoll => {
                let program = out.join(self.folder());
                let mut go = Command::new("go");
                go.args(["build", "-buildvcs=false", "-mod=readonly", "-o"]).arg(&program).arg(".");
                succeed(go.current_dir(&folder))?;
                program
            }
        };
        Ok(program)
    }

    /// Returns name and version of the peer's components.
    pub fn versions(self, root: &Path) -> Vec<(String, String)> {
        let folder = root.join("lab/peers").join(self.folder());
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let found = match self {
            Self::Smoltcp | Self::NetstackSmoltcp => {
                locked(&read("Cargo.lock"), self.key()).map(|it| (self.key(), it))
            }
            // The crate's version differs from lwIP's own, so name the crate.
            Self::Lwip => locked(&read("Cargo.lock"), "lwip").map(|it| ("crate lwip", it)),
            Self::Gvisor => required(&read("go.mod"), "gvisor.dev/gvisor").map(|it| ("gvisor", it)),
            Self::Go => super::versions::said("go", &["version"]).map(|it| ("go", it)),
            Self::Netpoll => {
                required(&read("go.mod"), "github.com/cloudwego/netpoll").map(|it| ("netpoll", it))
            }
        };
        found.into_iter().map(|(name, version)| (name.to_owned(), version)).collect()
    }
}

/// Builds a Rust package of `lab/peers`, and returns the path of its program.
pub fn build_rust(root: &Path, target: &Path, name: &str) -> Result<PathBuf> {
    let out = target.join("peers");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--locked", "--target-dir"]).arg(&out);
    succeed(cargo.current_dir(root.join("lab/peers").join(name)))?;
    Ok(out.join("release").join(name))
}

/// Returns the peers named by `--peers`.
pub fn named(words: &[String]) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for word in words {
        if word == "all" {
            return Ok(Peer::ALL.to_vec());
        }
        let keys = Peer::ALL.map(Peer::key).join(", ");
        let peer = Peer::ALL.into_iter().find(|peer| peer.key() == word);
        let peer = peer.with_context(|| format!("{word}: peers are {keys}, or all"))?;
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    Ok(peers)
}

/// Runs a command. On failure, the error contains its last line of standard error.
pub fn succeed(command: &mut Command) -> Result<()> {
    let what = format!("{command:?}");
    let output = command.output().with_context(|| what.clone())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    ensure!(output.status.success(), "{what} failed: {last}");
    Ok(())
}

/// Returns the version of a package in a Cargo.lock.
pub fn locked(lock: &str, name: &str) -> Option<String> {
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{name}\""));
    let version = lines.nth(1)?.strip_prefix("version = ")?;
    Some(version.trim_matches('"').to_owned())
}

/// Returns the version of a module in a go.mod.
fn required(module: &str, name: &str) -> Option<String> {
    let mut lines = module.lines().map(|line| line.trim().trim_start_matches("require "));
    lines.find_map(|line| line.strip_prefix(name)?.split_whitespace().next().map(str::to_owned))
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_named_once_or_all_at_once() {
        let named = |words: &str| named(&words.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(named("go,smoltcp,go").unwrap(), [Peer::Go, Peer::Smoltcp]);
        assert_eq!(named("go,all").unwrap(), Peer::ALL);
        let error = named("ixy").unwrap_err().to_string();
        assert!(error.contains("ixy") && error.contains("netpoll"), "{error}");
    }

    #[test]
    fn versions_are_those_that_are_built() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\n\
                    [[package]]\nname = \"ab\"\nversion = \"4\"\n";
        assert_eq!(locked(lock, "ab").as_deref(), Some("4"));
        assert_eq!(locked(lock, "b"), None);
        let module = "module m\n\nrequire (\n\ta.b/c v1.2.3 // indirect\n)\nrequire d v4\n";
        assert_eq!(required(module, "a.b/c").as_deref(), Some("v1.2.3"));
        assert_eq!(required(module, "d").as_deref(), Some("v4"));
        assert_eq!(required(module, "e"), None);
    }
}
