//! Command line of `towpath router`: options, the forms of their values, and the texts of `--help`.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use towpath_config::{PortSettings, RouterConfig, parse_port, parse_route};
use towpath_conntrack::{FLOWS_MAX, FLOWS_MOST, NatRule};
use towpath_model::Word;
use towpath_nat64::Nat64Config;
use towpath_router::PlannedRoute;
use towpath_stack::net::SourceCheck;
use towpath_stack::net::limits::{NEIGHBORS_MAX, NEIGHBORS_MOST};

use super::kernel_args::KernelArgs;
use super::port_help::{port_help, port_long_help};
use super::service_args::ServiceArgs;
use crate::args::{
    CaptureArgs, Shards, StatsFormat, parse_microseconds, parse_name, parse_number, parse_shards,
};

/// Options of `towpath router`.
#[derive(Debug, Clone, Args)]
pub struct RouterArgs {
    /// File with ports, routes, rules and other settings (docs/config.md)
    ///
    /// The file replaces --port, --route, --acl, --nat, --forward, --nat64, --dhcp, --dhcp-server,
    /// --ra and --dns. Other options may be set in the file, too, but those of the command line
    /// take precedence.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["port", "route", "acl", "nat", "forward", "nat64"])]
    #[arg(conflicts_with_all = ["dhcp", "dhcp_server", "ra", "dns"])]
    pub config: Option<PathBuf>,

    // The help text is generated from the table of devices.
    #[arg(long, value_name = "PORT", required_unless_present = "config", value_parser = parse_port)]
    #[arg(help = port_help(), long_help = port_long_help())]
    pub port: Vec<PortSettings>,

    /// Name of the router, for `towpath ip --name` and similar commands
    ///
    /// Letters, digits and underscores, at most 32. No other router or run of this user may have
    /// the same name.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<Word>,

    /// Route: NETWORK@NEXTHOP[,NEXTHOP...], or a special route such as `blackhole NETWORK`
    ///
    /// The next hop is a router in a port's network. A link-local next hop needs the name of its
    /// port, as in ::/0@fe80::1%wan. `default` means 0.0.0.0/0 or ::/0, depending on the next hop.
    /// Several next hops share the flows by their weights (192.0.2.1*3). NETWORK@%PORT is a route
    /// to hosts on the link of a port. blackhole drops packets silently; unreachable and prohibit
    /// return an ICMP error. `metric NUMBER` and `mtu BYTES` may follow. May be given several
    /// times.
    #[arg(long, value_name = "ROUTE", value_parser = parse_route)]
    pub route: Vec<PlannedRoute>,

    /// File of rules by which packets are judged; without it, all pass
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub acl: Option<PathBuf>,

    /// Translate addresses: `masquerade out wan`, or another rule
    ///
    /// KIND [CONDITIONS] [to ADDRESS[:PORT]]. masquerade replaces the source address of packets by
    /// the address of the port by which they leave (`out`). snat sets another source, dnat another
    /// destination, and redirect sends packets to the router itself. Conditions are those of access
    /// lists. `ports 10000-19999` limits the source ports that are used. With `full-cone`, packets
    /// of any sender are passed back. May be given several times.
    #[arg(long, value_name = "RULE", value_parser = parse_nat)]
    pub nat: Vec<NatRule>,

    /// Forward a port: `in wan proto tcp dport 8080 to 10.1.0.5:80`
    ///
    /// The same as --nat 'dnat RULE'. Without `dst`, packets to an address of the router itself.
    #[arg(long, value_name = "RULE", value_parser = parse_forward)]
    pub forward: Vec<NatRule>,

    /// Translate between IPv6 hosts and IPv4 servers: PREFIX[=POOL]
    ///
    /// Packets to IPv6 addresses of PREFIX, such as 64:ff9b::/96, go to the IPv4 address within.
    /// Each IPv6 host gets an IPv4 address of POOL (198.18.0.0/16), and --nat 'masquerade out PORT'
    /// translates it further. The option adds the port nat64. With --dns PORT,dns64 hosts learn
    /// such addresses of servers.
    #[arg(long, value_name = "PREFIX", value_parser = Nat64Config::parse)]
    pub nat64: Option<Nat64Config>,

    /// Maximum number of flows that are tracked for address translation and for rules with states
    ///
    /// If the table is full, a new flow evicts a flow that was not answered or is closed. If there
    /// is none, the new flow is refused. Each source address can have at most a quarter of the
    /// flows.
    #[arg(long, value_name = "NUMBER", default_value_t = FLOWS_MAX as u32)]
    #[arg(value_parser = |text: &str| parse_number(text, FLOWS_RANGE, "flows"))]
    pub flows: u32,

    #[command(flatten)]
    pub services: ServiceArgs,

    #[command(flatten)]
    pub kernel: KernelArgs,

    /// Check of each packet's source address against the routes: off, loose or strict
    ///
    /// strict: the route to the source, or one of several equal routes, must lead out of the port
    /// at which the packet has arrived. loose: there must be a route to the source. (RFC 3704;
    /// rp_filter of Linux)
    #[arg(long, value_name = "CHECK", value_enum, default_value_t = SourceCheckWord::Off)]
    pub source_check: SourceCheckWord,

    /// Maximum number of neighbours (ARP and NDP entries), all ports together
    ///
    /// At the limit, the router removes the neighbour that was used longest ago, and resolves it
    /// again when it is needed.
    #[arg(long, value_name = "NUMBER", default_value_t = NEIGHBORS_MAX as u32)]
    #[arg(value_parser = |text: &str| parse_number(text, NEIGHBORS_RANGE, "neighbours"))]
    pub neighbors: u32,

    /// Number of threads that run the router: 1, 2, 4, 8, 16 or `auto`
    ///
    /// Each flow stays on one thread, and does not become faster. Several flows together become
    /// faster if one thread keeps a processor busy while other processors are free. `auto` works as
    /// for `towpath run`. More than one thread requires devices with queues, such as packet and
    /// tap, and no bridge. packet then requires CAP_BPF.
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = parse_shards)]
    pub shards: Shards,

    /// Maximum microseconds for which the router polls for packets before it sleeps
    ///
    /// Waking up takes 10 to 50 µs, by which a packet is delayed. The router polls only as long as
    /// polling usually finds packets, and yields its processor to other threads. At most 1000.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    #[arg(value_parser = parse_microseconds)]
    pub busy_poll: u32,

    /// Check options and rules, and do nothing
    #[arg(long)]
    pub check: bool,

    #[command(flatten)]
    pub capture: CaptureArgs,

    /// Print the counters to standard error at the end, and at each SIGUSR1
    ///
    /// The counters of ports are printed only at the end.
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "text")]
    pub stats: Option<StatsFormat>,

    /// Print nothing but errors, and packets that rules log
    #[arg(short, long)]
    pub quiet: bool,
}

impl RouterArgs {
    /// Returns the configuration of these options, without the rules of `--acl`.
    ///
    /// # Errors
    /// Returns a sentence for the user if two rules of address translation have one number.
    pub fn config(&self) -> Result<RouterConfig, String> {
        let mut config = RouterConfig {
            ports: self.port.clone(),
            routes: self.route.clone(),
            dhcp: self.services.dhcp.clone(),
            dhcp_servers: self.services.dhcp_server.clone(),
            adverts: self.services.ra.clone(),
            dns: self.services.dns.clone(),
            ..RouterConfig::default()
        };
        for rule in self.nat.iter().chain(&self.forward) {
            config.add_nat(rule.clone())?;
        }
        if let Some(translator) = &self.nat64 {
            config.add_translator(translator)?;
        }
        config.mark_clients();
        Ok(config)
    }
}

/// Valid values of `--neighbors`.
const NEIGHBORS_RANGE: std::ops::RangeInclusive<u32> = 1..=NEIGHBORS_MOST as u32;

/// Valid values of `--flows`.
const FLOWS_RANGE: std::ops::RangeInclusive<u32> = 64..=FLOWS_MOST as u32;

fn parse_nat(text: &str) -> Result<NatRule, String> {
    text.parse::<NatRule>().map_err(|error| error.to_string())
}

fn parse_forward(text: &str) -> Result<NatRule, String> {
    parse_nat(&format!("dnat {text}"))
}

/// `--source-check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceCheckWord {
    /// No check
    Off,
    /// A route to the source
    Loose,
    /// A route to the source by the port of the packet
    Strict,
}

impl From<SourceCheckWord> for SourceCheck {
    fn from(word: SourceCheckWord) -> Self {
        match word {
            SourceCheckWord::Off => Self::Off,
            SourceCheckWord::Loose => Self::Loose,
            SourceCheckWord::Strict => Self::Strict,
        }
    }
}

/// Text of `towpath router --help` in front of the options.
pub const ABOUT: &str = "\
Forward packets between networks, as a router with rules.

Each port joins a network: an Ethernet interface of this host, or a TAP device. Hosts there use \
the router's address as their gateway. It forwards IPv4 and IPv6 by the longest prefix, answers \
ping, ARP and neighbour discovery at its own addresses, tells senders by ICMP what did not arrive, \
and judges packets by the rules of --acl. The kernel's own routes, addresses and settings stay as \
they are; nothing is left behind, also when towpath is killed.

A port can obtain its address by DHCP (--dhcp), or serve addresses to its hosts (--dhcp-server). \
Hosts of IPv6 learn their network and gateway by router advertisements (--ra). The router can \
forward and cache DNS for its hosts (--dns).

Ctrl-C or SIGTERM ends it.";

/// Text of `towpath router --help` behind the options.
pub const AFTER: &str = "\
Examples:
  sudo towpath router --port lan=packet:eth1,10.1.0.1/24 \\
      --port wan=packet:eth0,192.0.2.2/24 --route default@192.0.2.1 --acl rules.txt
      Join the network behind eth1 to that of eth0, by the rules of a file
  sudo towpath router --port a=packet:eth1,10.1.0.1/24,fd00:1::1/64 \\
      --port b=packet:eth2,10.2.0.1/24,fd00:2::1/64 --stats --pcap r.pcapng
      Join two networks, record all packets, and count
  towpath router --check --port lan=packet:eth1,10.1.0.1/24 --acl rules.txt
      Look only whether options and rules are in order
  sudo towpath router --config edge.toml
      Take ports, routes and the rest from a file (docs/config.md)
  sudo towpath router --port trunk=packet:eth1 --port office=vlan:trunk.10,10.10.0.1/24 \\
      --port guests=vlan:trunk.20,10.20.0.1/24
      Route between two VLANs of one interface
  sudo towpath router --port a=packet:eth1 --port b=packet:eth2 \\
      --port lan=bridge:a+b,10.1.0.1/24 --port wan=packet:eth0,192.0.2.2/24
      Two interfaces as one network
  sudo towpath router --port lan=packet:eth1,2001:db8:1::1/64 --port wan=packet:eth0 --dhcp wan \\
      --nat 'masquerade out wan' --nat64 64:ff9b::/96 --ra lan --dns lan,dns64
      Hosts with IPv6 alone reach IPv4 servers

Rules, one a line; the lowest number that matches decides:
  acl add id 10 in wan dst 10.1.0.0/24 proto tcp dport 22 action accept
  acl add id 20 in wan dst 10.1.0.0/24 proto tcp flags syn,!ack action reject
  acl default hook input action accept

Exit status:
  0    Ctrl-C or a signal ended it; --check found nothing wrong
  2    an option, argument or rule is wrong
  125  it failed: no permission, no such interface, all devices were removed";
