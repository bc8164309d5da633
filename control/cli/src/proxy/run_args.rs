//! The options of `towpath proxy run`, and their help.
// clap shows these comments to users.
#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueHint};
use towpath_uplink::{Dns, parse_cidr};
use towpath_wire::Prefix;

use crate::activation::PublishArg;
use crate::args::{CaptureArgs, NameArgs, StatsFormat, parse_dns, parse_mtu, parse_seconds};

/// Options of `towpath proxy run`.
#[derive(Debug, Args)]
pub struct ProxyRunArgs {
    /// Forward a port of this host to the program: [[HOSTADDR:]HOSTPORT:]PORT[/tcp|/udp]
    ///
    /// The syntax is that of `towpath run`: ranges (8000-8010:9000-9010), UDP (5353:53/udp), free
    /// ports of this host (80), and inherited sockets (fd:3:80). May be given several times.
    #[arg(short, long, value_name = "PORTS")]
    pub publish: Vec<PublishArg>,

    /// Address of the program with its prefix length, IPv4 or IPv6
    ///
    /// May be given several times. The default is 10.0.2.15/24 and fd00:2::15/64. The gateway has
    /// 10.0.2.2 and fd00:2::2, or the first address of the network that the program does not have.
    #[arg(long, value_name = "CIDR", value_parser = parse_cidr)]
    pub address: Vec<Prefix>,

    /// Largest IP packet of the device, in bytes: 1280 to 65521
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu, default_value_t = MTU_DEFAULT)]
    pub mtu: u32,

    /// Nameserver for the program: an address, or `none`
    ///
    /// The program finds 10.0.2.3 and fd00:2::3 in its /etc/resolv.conf. Queries to these addresses
    /// are forwarded to this nameserver, or by default to the nameservers in this host's
    /// /etc/resolv.conf. With `none`, the program finds the file of this host.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_dns)]
    pub dns: Option<Dns>,

    #[command(flatten)]
    pub names: NameArgs,

    /// Do not let the program reach services of this host through the gateway address
    #[arg(long)]
    pub no_host_loopback: bool,

    #[command(flatten)]
    pub capture: CaptureArgs,

    /// Print the counters to standard error at the end
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "text")]
    pub stats: Option<StatsFormat>,

    /// Seconds between SIGTERM and SIGKILL for what PROGRAM leaves behind
    ///
    /// As of `towpath run`: counted when the run has been asked to end and PROGRAM has ended.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub stop_timeout: Duration,

    /// Maximum seconds between a signal and PROGRAM's end for which the signal counts as the cause
    ///
    /// As for `towpath run`. Tests use a shorter time.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    #[arg(hide = true)]
    pub survived_after: Duration,

    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,

    /// The program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// Default MTU of the device in bytes. A device in memory has no limit of its own, and large
/// packets need less work.
const MTU_DEFAULT: u32 = 65_520;

/// First line of the help.
pub const USAGE: &str = "towpath proxy run [OPTIONS] [--] PROGRAM [ARGUMENTS]...";

/// Text of `towpath proxy run --help` in front of the options.
pub const ABOUT: &str = "\
Run any program in a network namespace whose only way out is towpath.

PROGRAM and everything it starts, static and Go programs and those for another C library as well, \
have the kernel's sockets in a namespace with one device, tap0. Towpath's gateway is behind it and \
makes each flow an ordinary socket of this user on this host, as for `towpath run`: the program is \
10.0.2.15 and fd00:2::15, the gateway 10.0.2.2 and fd00:2::2, DNS at 10.0.2.3 and fd00:2::3.

No root is needed where users may make user namespaces. User and group stay the same in it, and \
programs that are set-user-ID get no rights by that. Root needs no user namespace, and PROGRAM \
then keeps root's rights.

Signals and the exit status pass as with `towpath run`, and so do the ends of towpath and PROGRAM. \
The namespaces end with their last process.";

/// Text of `towpath proxy run --help` behind the options.
pub const AFTER: &str = "\
Exit status:
  PROGRAM's own; when a signal killed it, towpath dies by the same signal
  125  towpath itself failed: an option, a port of -p that is taken, no
       /dev/net/tun, no user namespaces
  126  PROGRAM was found but cannot be executed
  127  PROGRAM was not found

Examples:
  towpath proxy run -- busybox wget -O- http://example.org/
      A static program
  towpath proxy run -p 8080:80 -- ./server
      A port of this host leads to a server, which may be written in Go
  towpath proxy run --pcap out.pcapng --stats -- ./client
      Look at its packets in Wireshark, and at the counters
  towpath proxy run --no-host-loopback -- sh
      A shell that reaches the network, and no service on 127.0.0.1 of this host";
