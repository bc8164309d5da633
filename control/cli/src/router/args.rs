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
use towpath_uplink::{DEVICES, DeviceDriver, DeviceSpec, ParameterKind, device_names, parse_cidr};
use towpath_wire::Prefix;

use super::services::ServiceArgs;
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

    // The text of --help comes from the table of devices.
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

/// Values of `--neighbors`.
pub const NEIGHBORS_RANGE: std::ops::RangeInclusive<u32> = 1..=NEIGHBORS_MOST as u32;

/// Values of `--flows`.
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

/// Value of `--port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortArg {
    /// Name of the port.
    pub name: String,
    /// Device of the port.
    pub device: PortDevice,
    /// Addresses of the router on the link.
    pub addresses: Vec<Prefix>,
    /// Whether the port obtains its address by DHCP (`--dhcp`).
    pub by_dhcp: bool,
}

impl PortArg {
    /// Returns whether the port is an interface of the router. Otherwise, other ports stand on it.
    pub fn is_interface(&self) -> bool {
        self.by_dhcp || !self.addresses.is_empty()
    }
}

/// Device of a port, or the ports below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortDevice {
    /// A device.
    Device(DeviceSpec),
    /// The VLAN with this tag on another port.
    Vlan(String, u16),
    /// Other ports, bridged to one link.
    Bridge {
        /// Names of the bridged ports.
        members: Vec<String>,
        /// Time in seconds after its last frame at which a learned MAC address expires.
        ageing: Option<u32>,
        /// Maximum number of MAC addresses learned per port.
        addresses: Option<u32>,
    },
}

impl PortDevice {
    /// Returns the kind of the device, and the interface or the ports below it.
    pub fn words(&self) -> (&'static str, String) {
        match self {
            Self::Device(spec) => (spec.driver().name, spec.parameters().to_owned()),
            Self::Vlan(parent, id) => ("vlan", format!("{parent}.{id}")),
            Self::Bridge { members, .. } => ("bridge", members.join("+")),
        }
    }

    /// Returns the device; `None` for a VLAN or a bridge.
    pub fn device(&self) -> Option<&DeviceSpec> {
        match self {
            Self::Device(spec) => Some(spec),
            Self::Vlan(..) | Self::Bridge { .. } => None,
        }
    }
}

/// Maximum length of a port's name, as of an interface's (IFNAMSIZ, without the NUL).
const NAME_LEN_MAX: usize = 15;

pub fn check_port_name(name: &str) -> Result<(), String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(is_word) {
        return Err(format!(
            "{name:?} is not a name of a port: expected 1 to {NAME_LEN_MAX} letters, \
             digits, '-' or '_'"
        ));
    }
    Ok(())
}

/// Example of `--port`.
const PORT_FORM: &str =
    "expected NAME=packet:INTERFACE,ADDRESS/LENGTH, for example lan=packet:eth1,10.1.0.1/24";

pub fn parse_port(text: &str) -> Result<PortArg, String> {
    let (name, rest) = text.split_once('=').ok_or(PORT_FORM)?;
    let (kind, rest) = rest.split_once(':').ok_or(PORT_FORM)?;
    check_port_name(name)?;
    if let Some(driver) = DEVICES.iter().find(|driver| driver.name == kind) {
        let (device, addresses) = parse_device(driver, rest)?;
        return Ok(PortArg { name: name.to_owned(), device, addresses, by_dhcp: false });
    }
    let mut words = rest.split(',');
    let below = words.next().unwrap_or_default();
    let (options, addresses): (Vec<_>, Vec<_>) = words.partition(|word| word.contains('='));
    let device = match kind {
        "vlan" => {
            refuse_options(kind, &options)?;
            parse_vlan(below)?
        }
        "bridge" => parse_bridge(below, &options)?,
        _ => {
            let kinds = device_names(&["vlan", "bridge"]);
            return Err(format!("{kind:?} is not a kind of port: expected {kinds}; {PORT_FORM}"));
        }
    };
    let addresses = addresses.into_iter().map(parse_cidr).collect::<Result<Vec<_>, _>>()?;
    Ok(PortArg { name: name.to_owned(), device, addresses, by_dhcp: false })
}

/// Parses the parameters of a device, and the port's addresses that follow them.
fn parse_device(
    driver: &'static DeviceDriver,
    text: &str,
) -> Result<(PortDevice, Vec<Prefix>), String> {
    let (parameters, words) = match driver.kind {
        ParameterKind::Text => split_text(text),
        _ => text.split_once(',').map_or((text, None), |(device, words)| (device, Some(words))),
    };
    let words: Vec<_> = words.into_iter().flat_map(|words| words.split(',')).collect();
    let (options, addresses): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|word| word.contains('='));
    refuse_options(driver.name, &options)?;
    // Rules, carriers and `towpath port` know a port's device by its name.
    if driver.kind == ParameterKind::NewInterface && parameters.is_empty() {
        return Err(format!("{parameters:?} is not a name of an interface; {PORT_FORM}"));
    }
    let spec = DeviceSpec::new(driver, parameters).map_err(|why| format!("{why}; {PORT_FORM}"))?;
    let addresses = addresses.into_iter().map(parse_cidr).collect::<Result<Vec<_>, _>>()?;
    Ok((PortDevice::Device(spec), addresses))
}

/// Splits the parameters of a device, which may contain commas, from the addresses that follow.
fn split_text(text: &str) -> (&str, Option<&str>) {
    let is_address = |word: &str| word.contains('/') && !word.contains('=');
    let mut end = text.len();
    while let Some(comma) = text[..end].rfind(',')
        && is_address(&text[comma + 1..end])
    {
        end = comma;
    }
    (&text[..end], text.get(end + 1..))
}

/// Fails if there are options, because only a bridge has any.
fn refuse_options(kind: &str, options: &[&str]) -> Result<(), String> {
    match options.first() {
        Some(option) => Err(format!("{option:?} is for a bridge, not for {kind}; {PORT_FORM}")),
        None => Ok(()),
    }
}

/// Returns the first line of `--port` in `--help`.
fn port_help() -> String {
    let kinds = DEVICES.iter().map(|driver| format!("{}:{}", driver.name, driver.parameters));
    let kinds: Vec<_> = kinds.collect();
    format!(
        "A port: NAME=DEVICE,CIDR[,CIDR], where DEVICE is {}, vlan:PORT.ID or bridge:PORT+PORT",
        kinds.join(", ")
    )
}

fn port_long_help() -> String {
    let devices: Vec<_> = DEVICES.iter().map(|driver| driver.port_help).collect();
    format!("{}\n\n{PORT_NAME} {}\n\n{PORT_LAYERS}", port_help(), devices.join(" "))
}

const PORT_NAME: &str = "\
NAME is for rules, routes and counters. CIDR is an address of the router on the link, with the \
length of its network. May be given up to 64 times.";

const PORT_LAYERS: &str = "\
vlan is the VLAN with the tag ID on another port. All VLANs of a port share its device. Its own \
CIDR are for frames without a tag, and may be left out.

bridge joins other ports to one link; these have no CIDR. A host's place is forgotten \
ageing=SECONDS (300) after its last frame. Each port has room for addresses=NUMBER (4096). Both \
stand in front of the CIDR: lan=bridge:a+b,ageing=60,10.1.0.1/24.";

fn parse_vlan(text: &str) -> Result<PortDevice, String> {
    let form = "expected vlan:PORT.ID, for example vlan:lan.10";
    let (port, id) = text.rsplit_once('.').ok_or_else(|| format!("{text:?}: {form}"))?;
    let number: u16 = id.parse().map_err(|_| format!("{id:?} is not a tag of a VLAN; {form}"))?;
    towpath_vlan::Vlan::tagged(number).map_err(|error| error.to_string())?;
    Ok(PortDevice::Vlan(port.to_owned(), number))
}

fn parse_bridge(text: &str, options: &[&str]) -> Result<PortDevice, String> {
    let members: Vec<_> = text.split('+').map(str::to_owned).collect();
    if members.len() < 2 {
        return Err(format!("{text:?}: expected bridge:PORT+PORT, for example bridge:a+b"));
    }
    let (mut ageing, mut addresses) = (None, None);
    for option in options {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let number: u32 = value.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
            format!("{option:?}: expected a number from 1, as ageing=300 or addresses=1024")
        })?;
        let place = match key {
            "ageing" => &mut ageing,
            "addresses" => &mut addresses,
            _ => return Err(format!("{key:?} is no option of a bridge: ageing or addresses")),
        };
        if place.replace(number).is_some() {
            return Err(format!("{key} is given twice"));
        }
    }
    Ok(PortDevice::Bridge { members, ageing, addresses })
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
    fn ports_have_a_name_a_device_and_addresses() {
        let port = parse_port("lan=packet:eth1,10.1.0.1/24,fd00:1::1/64").unwrap();
        let device = |text: &str| PortDevice::Device(DeviceSpec::parse(text).unwrap());
        assert_eq!((port.name.as_str(), port.device), ("lan", device("packet:eth1")));
        assert_eq!(port.addresses.len(), 2);
        assert_eq!(parse_port("w-1=tap:tw1,192.0.2.2/24").unwrap().device, device("tap:tw1"));
        let vlan = parse_port("o=vlan:lan.10,10.10.0.1/24").unwrap();
        assert_eq!(vlan.device, PortDevice::Vlan("lan".into(), 10));
        let bridge = parse_port("br=bridge:a+b,ageing=60,10.0.0.1/24").unwrap();
        let members = vec!["a".to_owned(), "b".to_owned()];
        let wanted = PortDevice::Bridge { members, ageing: Some(60), addresses: None };
        assert_eq!((bridge.device, bridge.addresses.len()), (wanted, 1));
        let wrong = [
            ("eth1", "expected NAME=packet:INTERFACE"),
            ("lan=eth1,10.1.0.1/24", "expected NAME=packet:INTERFACE"),
            ("=packet:eth1,10.1.0.1/24", "\"\" is not a name of a port"),
            ("l an=packet:eth1,10.1.0.1/24", "is not a name of a port"),
            ("lan=packet:,10.1.0.1/24", "\"\" is not a name of an interface"),
            ("lan=packet:e\0,10.1.0.1/24", "is not a name of an interface"),
            ("lan=dpkd:eth1,10.1.0.1/24", "expected tap, packet, xdp, "),
            ("lan=tap:,10.1.0.1/24", "\"\" is not a name of an interface"),
            ("lan=dpdk:,10.1.0.1/24", "dpdk needs EAL ARGS"),
            ("lan=dpdk:--no-huge,10.1.0.1/33", "expected 1 to 32"),
            ("lan=packet:eth1,ageing=3", "is for a bridge, not for packet"),
            ("a=vlan:lan,10.1.0.1/24", "expected vlan:PORT.ID"),
            ("a=vlan:lan.4095,10.1.0.1/24", "4095 is no VLAN"),
            ("a=bridge:b,10.1.0.1/24", "expected bridge:PORT+PORT"),
            ("a=bridge:b+c,ageing=0,10.1.0.1/24", "expected a number from 1"),
            ("a=bridge:b+c,max=9,10.1.0.1/24", "\"max\" is no option of a bridge"),
            ("lan=packet:eth1,10.1.0.0/24", "network or broadcast"),
            ("lan=packet:eth1,", "expected ADDRESS/LENGTH"),
        ];
        for (text, wanted) in wrong {
            let error = parse_port(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn each_device_can_be_a_port() {
        for driver in DEVICES {
            let text = format!("p={}:{},10.1.0.1/24,fd00::1/64", driver.name, driver.example);
            let port = parse_port(&text).expect(&text);
            let words = (driver.name, driver.example.to_owned());
            assert_eq!((port.device.words(), port.addresses.len()), (words, 2));
        }
    }

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
