//! Sides of a comparison: a server on the kernel, or under `towpath run` with different options.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::cases::Case;
use super::peers::Peer;

/// Side of a comparison: the stack that runs the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// The kernel's TCP, in a namespace behind a veth pair.
    Kernel,
    /// The kernel's loopback, with client and server in one namespace.
    KernelLoopback,
    /// `towpath run`, with the client on the kernel.
    Ours(Hosting, Uplink),
    /// Loopback of one `towpath run`, with client and server in it.
    Loopback,
    /// The stack of another project.
    Peer(Peer),
}

/// Threads that run the engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum Hosting {
    /// A separate thread: `towpath run`.
    Run,
    /// Two separate threads: `towpath run --shards 2`.
    Shards,
    /// The program's own threads: `towpath run --inline`.
    Inline,
    /// A separate thread for client and server in one run, compared with both on the kernel's
    /// loopback.
    Both,
}

/// Path from the client to the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Uplink {
    /// A TAP device (`--tap`).
    Tap,
    /// A published port of the rootless gateway (`-p`).
    Rootless,
}

impl Hosting {
    /// Returns the options of `towpath run` for the hosting.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Run | Self::Both => &[],
            Self::Shards => &["--shards", "2"],
            Self::Inline => &["--inline"],
        }
    }

    /// Returns whether a build of Towpath supports the hosting.
    pub fn is_offered(self, towpath: &Path) -> Result<bool> {
        let Some(flag) = self.flags().first() else { return Ok(true) };
        let help = Command::new(towpath)
            .args(["run", "--help"])
            .output()
            .with_context(|| towpath.display().to_string())?;
        let help = String::from_utf8_lossy(&help.stdout);
        Ok(help.split_whitespace().any(|word| word.trim_end_matches(',') == *flag))
    }
}

impl Side {
    /// Returns the side with which this one is compared; `None` if other sides are compared with
    /// it.
    pub fn baseline(self) -> Option<Self> {
        match self {
            Self::Kernel | Self::KernelLoopback => None,
            Self::Ours(..) | Self::Peer(_) => Some(Self::Kernel),
            Self::Loopback => Some(Self::KernelLoopback),
        }
    }

    /// Returns whether client and server are in one network and use its loopback.
    pub fn is_loopback(self) -> bool {
        matches!(self, Self::KernelLoopback | Self::Loopback)
    }

    /// Returns whether `towpath` runs the server.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ours(..) | Self::Loopback)
    }

    /// Returns the reason why the side cannot take part in a case.
    pub fn lacks(self, case: &Case) -> Option<&'static str> {
        match self {
            Self::Peer(peer) => peer.lacks(case),
            // With a link, both sides have the same forwarding host between link and server.
            Self::Kernel | Self::Ours(_, Uplink::Tap) => None,
            Self::Ours(_, Uplink::Rootless) | Self::KernelLoopback | Self::Loopback => case
                .link
                .as_ref()
                .map(|_| "no packets between client and server for a link to carry"),
        }
    }

    /// Returns the command that starts `server` with these ports on the side. `program` is the
    /// `towpath` or the peer.
    pub fn line(
        self,
        program: &Path,
        ports: &[String],
        server: Vec<String>,
    ) -> Result<Vec<String>> {
        let program = program.to_str().context("path")?.to_owned();
        let (hosting, uplink) = match self {
            Self::Kernel | Self::KernelLoopback => return Ok(server),
            Self::Peer(peer) => return Ok(std::iter::once(program).chain(peer.words()).collect()),
            Self::Ours(hosting, uplink) => (hosting, Some(uplink)),
            Self::Loopback => (Hosting::Both, None),
        };
        let mut line = vec![program];
        line.extend(["run", "-q"].iter().chain(hosting.flags()).map(|&word| word.to_owned()));
        match uplink {
            None => {}
            Some(Uplink::Tap) => line.push("--tap".into()),
            Some(Uplink::Rootless) => {
                for port in ports {
                    let number = port.split('/').next().unwrap_or(port);
                    line.extend(["-p".to_owned(), format!("127.0.0.1:{number}:{port}")]);
                }
            }
        }
        line.push("--".into());
        line.extend(server);
        Ok(line)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosting, uplink) = match self {
            Self::Kernel => return f.write_str("kernel"),
            Self::KernelLoopback => return f.write_str("kernel, loopback"),
            Self::Loopback => return f.write_str("both ends, loopback"),
            Self::Peer(peer) => return peer.fmt(f),
            Self::Ours(hosting, uplink) => (hosting, uplink),
        };
        f.write_str(match uplink {
            Uplink::Tap => "TAP",
            Uplink::Rootless => "rootless",
        })?;
        match hosting {
            Hosting::Run | Hosting::Both => Ok(()),
            Hosting::Shards => f.write_str(", 2 shards"),
            Hosting::Inline => f.write_str(", inline"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cases::Group;

    #[test]
    fn a_server_is_started_as_its_side_says() {
        let line = |side: Side| {
            let server = vec!["a".to_owned(), "b".to_owned()];
            let ports = ["7900".to_owned(), "7901/udp".to_owned()];
            side.line(Path::new("/t"), &ports, server).expect("a path").join(" ")
        };
        assert_eq!(line(Side::Kernel), "a b");
        assert_eq!(line(Side::Ours(Hosting::Run, Uplink::Tap)), "/t run -q --tap -- a b");
        let shards = Side::Ours(Hosting::Shards, Uplink::Rootless);
        assert_eq!(
            line(shards),
            "/t run -q --shards 2 -p 127.0.0.1:7900:7900 -p 127.0.0.1:7901:7901/udp -- a b"
        );
        assert_eq!(line(Side::Loopback), "/t run -q -- a b");
        assert_eq!(line(Side::KernelLoopback), "a b");
        assert_eq!(line(Side::Peer(Peer::Go)), "/t net 7900");
        assert_eq!(shards.to_string(), "rootless, 2 shards");
    }

    #[test]
    fn a_link_is_for_sides_with_packets_and_all_else_is_for_all() {
        for case in crate::bench::cases::cases() {
            let over_tap = [Hosting::Run, Hosting::Shards, Hosting::Inline]
                .map(|hosting| Side::Ours(hosting, Uplink::Tap));
            assert!(over_tap.iter().chain(&[Side::Kernel]).all(|side| side.lacks(case).is_none()));
            let has_link = case.link.is_some();
            assert_eq!(has_link, case.group == Group::Loss);
            let rootless = Side::Ours(Hosting::Run, Uplink::Rootless);
            for side in [rootless, Side::Loopback, Side::KernelLoopback] {
                assert_eq!(side.lacks(case).is_some(), has_link, "{side}: {}", case.name);
            }
            assert!(!has_link || Side::Peer(Peer::Gvisor).lacks(case).is_some());
        }
    }

    #[test]
    fn what_a_build_does_not_offer_is_not_taken_for_offered() {
        // true(1) prints no help, and echo(1) prints its arguments.
        assert!(!Hosting::Inline.is_offered(Path::new("/bin/true")).expect("it runs"));
        assert!(!Hosting::Shards.is_offered(Path::new("/bin/echo")).expect("it runs"));
        assert!(Hosting::Run.is_offered(Path::new("/bin/true")).expect("it always is"));
        assert!(Hosting::Run.is_offered(Path::new("/nowhere")).is_ok());
        assert!(Hosting::Shards.is_offered(Path::new("/nowhere")).is_err());
    }
}
