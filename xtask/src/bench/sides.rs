//! Where a server runs: on the kernel, or under `towpath run` in one of its ways.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::cases::PORT;

/// Where the server runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// In a namespace behind a veth pair, on the kernel's TCP.
    Kernel,
    /// Under `towpath run`.
    Ours(Hosting, Uplink),
}

/// Who turns the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Hosting {
    /// A thread beside the program: `towpath run`.
    Run,
    /// Two threads beside it: `towpath run --shards 2`.
    Shards,
    /// The program's own threads: `towpath run --inline`.
    Inline,
}

/// How the program is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uplink {
    /// `--tap`.
    Tap,
    /// `-p`.
    Rootless,
}

impl Hosting {
    /// What `towpath run` is given for it.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Run => &[],
            Self::Shards => &["--shards", "2"],
            Self::Inline => &["--inline"],
        }
    }

    /// Whether a build of ours knows it.
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
    /// The command that starts `server` there.
    pub fn line(self, towpath: &Path, server: Vec<String>) -> Result<Vec<String>> {
        let Self::Ours(hosting, uplink) = self else { return Ok(server) };
        let mut line = vec![towpath.to_str().context("path")?.to_owned()];
        line.extend(["run", "-q"].iter().chain(hosting.flags()).map(|&word| word.to_owned()));
        match uplink {
            Uplink::Tap => line.push("--tap".into()),
            Uplink::Rootless => line.extend(["-p".to_owned(), format!("127.0.0.1:{PORT}:{PORT}")]),
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
            Self::Ours(hosting, uplink) => (hosting, uplink),
        };
        f.write_str(match uplink {
            Uplink::Tap => "TAP",
            Uplink::Rootless => "rootless",
        })?;
        match hosting {
            Hosting::Run => Ok(()),
            Hosting::Shards => f.write_str(", 2 shards"),
            Hosting::Inline => f.write_str(", inline"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_started_as_its_side_says() {
        let line = |side: Side| {
            let server = vec!["a".to_owned(), "b".to_owned()];
            side.line(Path::new("/t"), server).expect("a path").join(" ")
        };
        assert_eq!(line(Side::Kernel), "a b");
        assert_eq!(line(Side::Ours(Hosting::Run, Uplink::Tap)), "/t run -q --tap -- a b");
        let shards = Side::Ours(Hosting::Shards, Uplink::Rootless);
        assert_eq!(line(shards), "/t run -q --shards 2 -p 127.0.0.1:7900:7900 -- a b");
        assert_eq!(shards.to_string(), "rootless, 2 shards");
    }

    #[test]
    fn what_a_build_does_not_offer_is_not_taken_for_offered() {
        // A program without a word in its help, and one that repeats what it is given.
        assert!(!Hosting::Inline.is_offered(Path::new("/bin/true")).expect("it runs"));
        assert!(!Hosting::Shards.is_offered(Path::new("/bin/echo")).expect("it runs"));
        assert!(Hosting::Run.is_offered(Path::new("/bin/true")).expect("it always is"));
        assert!(Hosting::Run.is_offered(Path::new("/nowhere")).is_ok());
        assert!(Hosting::Shards.is_offered(Path::new("/nowhere")).is_err());
    }
}
