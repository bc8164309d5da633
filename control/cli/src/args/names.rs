//! Options for host names, shared by the commands that start a PROGRAM.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use clap::Args;
use towpath_uplink::{HostEntry, Names, parse_hostname};

/// Names beside those of the host.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Name of the machine for the program, in the place of this host's
    ///
    /// gethostname(2) and uname(2) say it, and it leads to the addresses of the program.
    /// HOSTNAME in the program's environment is this name, too.
    #[arg(long, value_name = "NAME", value_parser = parse_hostname)]
    pub hostname: Option<String>,

    /// A host for the program, as in /etc/hosts: NAME[;NAME...]:ADDRESS, IPv4 or IPv6
    ///
    /// The address host-gateway stands for this host: the gateway's addresses, or those of this
    /// host's end of a TAP device.
    /// May be given several times. The program finds it before all that this host knows of the
    /// name, also when it reads /etc/hosts by itself.
    #[arg(long, value_name = "NAME:ADDRESS")]
    pub add_host: Vec<HostEntry>,
}

impl NameArgs {
    /// Converts the options to the names for the `Plan` of a run.
    pub fn names(&self) -> Names {
        Names { hostname: self.hostname.clone(), hosts: self.add_host.clone() }
    }
}
