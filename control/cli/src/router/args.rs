//! Command line of `towpath router`: options, the forms of their values, and the texts of `--help`.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use serde::Deserialize;
use towpath_conntrack::{FLOWS_MAX, FLOWS_MOST, NatRule};
use towpath_model::Word;
use towpath_router::{Hop, PlannedRoute, Target};
use towpath_stack::net::limits::{NEIGHBORS_MAX, NEIGHBORS_MOST};
use towpath_stack::net::{RouteKind, SourceCheck};
use towpath_wire::Prefix;

use super::kernel_args::KernelArgs;
use super::port_arg::{PortArg, parse_port, port_help, port_long_help};
use super::service_args::ServiceArgs;
use crate::args::{
    CaptureArgs, Shards, StatsFormat, parse_microseconds, parse_name, parse_number, parse_shards,
};

/// Options of `towpath router`.
#[derive(Debug, Clone, Args)]
pub struct RouterArgs {
    /// A file with ports, routes and the like, instead of the options of these names
    ///
    /// TOML, with the keys name, routes, acl, source-check, neighbors, nat, forwards, flows,
    /// dhcp and dhcp-servers.
    /// Each port is a table [[port]] with name, device and addresses. docs/router.md has an
    /// example.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["port", "name", "route", "acl", "source_check", "neighbors"])]
    #[arg(conflicts_with_all = ["nat", "forward", "flows", "dhcp", "dhcp_server"])]
    pub config: Option<PathBuf>,

    // The help text is generated from the table of devices.
    #[arg(long, value_name = "PORT", required_unless_present = "config", value_parser = parse_port)]
    #[arg(help = port_help(), long_help = port_long_help())]
    pub port: Vec<PortArg>,

    /// Name of the router, for `towpath ip --name` and the like
    ///
    /// Letters, digits and underscores, at most 32. No other router or run of this user may have
    /// it.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<Word>,

    /// A route: NETWORK@NEXTHOP[,NEXTHOP...], or `blackhole NETWORK` and the like
    ///
    /// The next hop is a router in a port's network; a link-local one takes its port with it, as
    /// ::/0@fe80::1%wan. `default` stands for 0.0.0.0/0, or ::/0, by its next hop. Several next
    /// hops share the flows. blackhole drops packets in silence; unreachable and prohibit tell
    /// their sender. May be given several times.
    #[arg(long, value_name = "ROUTE", value_parser = parse_route)]
    pub route: Vec<PlannedRoute>,

    /// File of rules by which packets are judged; without it, all pass
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub acl: Option<PathBuf>,

    /// Translate addresses: `masquerade out wan`, or another rule
    ///
    /// KIND [CONDITIONS] [to ADDRESS[:PORT]]. masquerade gives packets the address of the port that
    /// they leave by (`out`), snat another source, dnat another destination, and redirect the
    /// router itself. Conditions are those of access lists. `ports 10000-19999` limits the ports of
    /// a source, and with `full-cone` packets of any sender pass back. May be given several times.
    #[arg(long, value_name = "RULE", value_parser = parse_nat)]
    pub nat: Vec<NatRule>,

    /// Forward a port: `in wan proto tcp dport 8080 to 10.1.0.5:80`
    ///
    /// The same as --nat 'dnat RULE'. Without `dst`, packets to an address of the router itself.
    #[arg(long, value_name = "RULE", value_parser = parse_forward)]
    pub forward: Vec<NatRule>,

    /// Flows that the router tracks at once, if it translates addresses or its rules have states
    ///
    /// A full table forgets flows that were not answered, or are closed, for new ones; other new
    /// flows are refused. A source has a quarter of them at most.
    #[arg(long, value_name = "NUMBER", default_value_t = FLOWS_MAX as u32)]
    #[arg(value_parser = |text: &str| parse_number(text, FLOWS_RANGE, "flows"))]
    pub flows: u32,

    #[command(flatten)]
    pub services: ServiceArgs,

    #[command(flatten)]
    pub kernel: KernelArgs,

    /// Check of each packet's source by the route to it: off, loose or strict
    ///
    /// strict: the route to the source, or one of several equal ones, leads out of the port that
    /// the packet came in by. loose: there is a route to the source. (RFC 3704; rp_filter of Linux)
    #[arg(long, value_name = "CHECK", value_enum, default_value_t = SourceCheckWord::Off)]
    pub source_check: SourceCheckWord,

    /// Neighbours that the router remembers, all ports together
    ///
    /// Beyond that the router forgets the neighbour that packets went to longest ago, and asks for
    /// it again when it is needed.
    #[arg(long, value_name = "NUMBER", default_value_t = NEIGHBORS_MAX as u32)]
    #[arg(value_parser = |text: &str| parse_number(text, NEIGHBORS_RANGE, "neighbours"))]
    pub neighbors: u32,

    /// Divide the router among threads: 1, 2, 4, 8, 16 or `auto`
    ///
    /// Each flow is on one thread, and not faster for it. Several flows are faster where one thread
    /// keeps a processor busy and others are free. `auto`: as --shards of `towpath run`. More than
    /// one needs devices with queues, as packet and tap, and no bridge. packet needs CAP_BPF then.
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = parse_shards)]
    pub shards: Shards,

    /// Microseconds for which the router looks for packets before it sleeps
    ///
    /// A wake-up takes some 10 to 50 µs, by which a packet is later. The router looks only as long
    /// as it finds packets as a rule, and yields its processor to other threads. At most 1000.
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
    /// Counters of ports are told at the end alone.
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "text")]
    pub stats: Option<StatsFormat>,

    /// Print nothing but errors, and packets that rules log
    #[arg(short, long)]
    pub quiet: bool,
}

/// Valid values of `--neighbors`.
pub const NEIGHBORS_RANGE: std::ops::RangeInclusive<u32> = 1..=NEIGHBORS_MOST as u32;

/// Valid values of `--flows`.
pub const FLOWS_RANGE: std::ops::RangeInclusive<u32> = 64..=FLOWS_MOST as u32;

pub fn parse_nat(text: &str) -> Result<NatRule, String> {
    text.parse::<NatRule>().map_err(|error| error.to_string())
}

pub fn parse_forward(text: &str) -> Result<NatRule, String> {
    parse_nat(&format!("dnat {text}"))
}

/// `--source-check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
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

pub fn parse_route(text: &str) -> Result<PlannedRoute, String> {
    let form = "expected NETWORK@NEXTHOP or blackhole NETWORK, for example 0.0.0.0/0@192.0.2.1";
    if let Some((word, network)) = text.trim().split_once(char::is_whitespace) {
        let kind = match word {
            "blackhole" => RouteKind::Blackhole,
            "unreachable" => RouteKind::Unreachable,
            "prohibit" => RouteKind::Prohibit,
            _ => return Err(format!("{word:?} is not a kind of route; {form}")),
        };
        let prefix = parse_network(network.trim())?;
        return Ok(PlannedRoute { prefix, target: Target::Kind(kind) });
    }
    let (network, hops) = text.split_once('@').ok_or(form)?;
    let hops: Vec<_> = hops.split(',').map(|hop| parse_hop(hop, form)).collect::<Result<_, _>>()?;
    let is_ipv4 = hops.first().is_some_and(|hop| hop.addr.is_ipv4());
    let prefix = match (network, is_ipv4) {
        ("default", true) => parse_network("0.0.0.0/0")?,
        ("default", false) => parse_network("::/0")?,
        _ => parse_network(network)?,
    };
    Ok(PlannedRoute { prefix, target: Target::Via(hops) })
}

fn parse_hop(text: &str, form: &str) -> Result<Hop, String> {
    let (addr, port) = match text.split_once('%') {
        Some((addr, port)) => (addr, Some(port.to_owned())),
        None => (text, None),
    };
    let addr: IpAddr =
        addr.parse().map_err(|_| format!("{addr:?} is not an IP address; {form}"))?;
    if addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() {
        return Err(format!("{addr} is not an address that a router can have"));
    }
    Ok(Hop { addr, port })
}

fn parse_network(text: &str) -> Result<Prefix, String> {
    let form = "expected ADDRESS/LENGTH, for example 10.9.0.0/16";
    let (ip, len) = text.split_once('/').ok_or_else(|| format!("{text:?}: {form}"))?;
    let ip: IpAddr = ip.parse().map_err(|_| format!("{ip:?} is not an IP address; {form}"))?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let network = len.parse().ok().filter(|len| *len <= bits).and_then(|len| Prefix::new(ip, len));
    let network =
        network.ok_or_else(|| format!("{len:?} is not a prefix length: expected 0 to {bits}"))?;
    if network.network() != ip {
        let whole = network.trunc();
        return Err(format!(
            "{ip} is a host of {whole}, not a network; give {whole} or {ip}/{bits}"
        ));
    }
    if ip.is_multicast() || ip.is_loopback() {
        return Err(format!("{network} is not routed"));
    }
    Ok(network)
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
The router sends no router advertisements: hosts of IPv6 are told their gateway by hand.

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
      Take ports, routes and the rest from a file (docs/router.md)
  sudo towpath router --port trunk=packet:eth1 --port office=vlan:trunk.10,10.10.0.1/24 \\
      --port guests=vlan:trunk.20,10.20.0.1/24
      Route between two VLANs of one interface
  sudo towpath router --port a=packet:eth1 --port b=packet:eth2 \\
      --port lan=bridge:a+b,10.1.0.1/24 --port wan=packet:eth0,192.0.2.2/24
      Two interfaces as one network

Rules, one a line; the lowest number that matches decides:
  acl add id 10 in wan dst 10.1.0.0/24 proto tcp dport 22 action accept
  acl add id 20 in wan dst 10.1.0.0/24 proto tcp flags syn,!ack action reject
  acl default hook input action accept

Exit status:
  0    Ctrl-C or a signal ended it; --check found nothing wrong
  2    an option, argument or rule is wrong
  125  it failed: no permission, no such interface, all devices were removed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_a_next_hop_or_a_kind() {
        let route = parse_route("10.9.0.0/16@192.0.2.1").unwrap();
        let hop = |addr: &str, port: Option<&str>| Hop {
            addr: addr.parse().unwrap(),
            port: port.map(ToOwned::to_owned),
        };
        assert_eq!(route.target, Target::Via(vec![hop("192.0.2.1", None)]));
        let route = parse_route("default@192.0.2.1,192.0.2.5%wan").unwrap();
        let hops = vec![hop("192.0.2.1", None), hop("192.0.2.5", Some("wan"))];
        assert_eq!((route.prefix, route.target), ("0.0.0.0/0".parse().unwrap(), Target::Via(hops)));
        let route = parse_route("default@fe80::1%wan").unwrap();
        assert_eq!(route.prefix, "::/0".parse().unwrap());
        assert_eq!(route.target, Target::Via(vec![hop("fe80::1", Some("wan"))]));
        let route = parse_route("blackhole 10.0.0.0/8").unwrap();
        assert_eq!(route.target, Target::Kind(RouteKind::Blackhole));
        let wrong = [
            ("10.9.0.0/16", "expected NETWORK@NEXTHOP"),
            ("10.9.0.1/16@192.0.2.1", "give 10.9.0.0/16"),
            ("10.9.0.0/33@192.0.2.1", "expected 0 to 32"),
            ("10.9.0.0/16@wan", "\"wan\" is not an IP address"),
            ("10.9.0.0/16@192.0.2.1,", "\"\" is not an IP address"),
            ("10.9.0.0/16@0.0.0.0", "not an address that a router"),
            ("throw 10.9.0.0/16", "\"throw\" is not a kind of route"),
            ("blackhole 10.9", "\"10.9\": expected ADDRESS/LENGTH"),
            ("224.0.0.0/4@192.0.2.1", "is not routed"),
        ];
        for (text, wanted) in wrong {
            let error = parse_route(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
