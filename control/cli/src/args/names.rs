//! Options for host names, shared by the commands that start a PROGRAM.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use clap::Args;
use towpath_uplink::{HostEntry, Names, parse_hostname};

/// Host names for the program, in addition to those of this host.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Host name that the program sees in place of this host's name
    ///
    /// gethostname(2) and uname(2) return this name, which resolves to the addresses of the
    /// program. The variable HOSTNAME in the program's environment has this value, too.
    #[arg(long, value_name = "NAME", value_parser = parse_hostname)]
    pub hostname: Option<String>,

    /// Add a host name for the program, as in /etc/hosts: NAME[;NAME...]:ADDRESS, IPv4 or IPv6
    ///
    /// The address host-gateway means this host: the gateway's addresses, or those of this host's
    /// end of a TAP device. May be given several times. Added names take precedence over all names
    /// that this host knows, even if the program reads /etc/hosts itself.
    #[arg(long, value_name = "NAME:ADDRESS")]
    pub add_host: Vec<HostEntry>,
}

impl NameArgs {
    /// Converts the options to the names for the `Plan` of a run.
    pub fn names(&self) -> Names {
        Names { hostname: self.hostname.clone(), hosts: self.add_host.clone() }
    }
}
