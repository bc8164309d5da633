//! The options of `towpath script`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use clap::{Args, ValueHint};
use towpath_script::{IpVersion, Relaxations};

pub const ABOUT: &str = "\
Run packet scripts on the stack, in virtual time.

A script lists system calls, packets and assertions with times, in a subset of packetdrill's \
language. The stack's packets must be those that the script expects. Minutes of a script take \
milliseconds, and equal scripts give equal results. docs/script.md describes the language.

  towpath script handshake.pkt            one script
  towpath script scripts --filter close   scripts of a folder whose path contains 'close'
  towpath script --relax options,psh tcp  scripts that were written for another stack";

pub const AFTER: &str = "\
Exit status:
  0    all scripts passed
  1    a script failed, or is not valid
  2    the command line is not valid, or no script was found
  125  another error";

#[derive(Debug, Args)]
pub struct ScriptArgs {
    /// Scripts, and folders that contain scripts with names ending in .pkt
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,

    /// Run only scripts whose path contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,

    /// Ignore these differences
    ///
    /// options: order and padding of TCP options. wscale: the window scale option. psh: the PSH
    /// bit. win: the window field. sizes: buffer sizes of getsockopt. commands: commands and
    /// settings that the stack does not have.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    #[arg(value_parser = PossibleValuesParser::new(Relaxations::NAMES))]
    pub relax: Vec<String>,

    /// Fail a script if the stack has sent a packet that no line expects
    #[arg(long)]
    pub strict: bool,

    /// IP version of scripts that do not set one
    #[arg(long, value_name = "NAME", default_value = "ipv4")]
    #[arg(value_parser = PossibleValuesParser::new(IpVersion::NAMES).map(parse_version))]
    pub ip_version: IpVersion,

    /// MTU of scripts that do not set one
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: Option<u16>,

    /// Time by which an event may be early or late, in microseconds; overrides the scripts
    #[arg(long, value_name = "MICROSECONDS")]
    pub tolerance: Option<u32>,

    /// Write all packets to a pcapng file, with an interface for each script
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub pcap: Option<PathBuf>,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,

    /// Print only failures
    #[arg(short, long)]
    pub quiet: bool,
}

impl ScriptArgs {
    pub fn relaxations(&self) -> Relaxations {
        let mut relax = Relaxations::default();
        for name in &self.relax {
            relax.add(name);
        }
        relax
    }
}

fn parse_version(name: String) -> IpVersion {
    IpVersion::from_name(&name).unwrap_or_default()
}
