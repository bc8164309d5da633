//! The options of `towpath proxy`, and their help.

use std::net::IpAddr;

use clap::{Args, Subcommand};
use towpath_wire::Prefix;

use towpath_uplink::parse_cidr;

use super::run_args::{self, ProxyRunArgs};
use crate::args::{CaptureArgs, StatsFormat, parse_mtu, parse_nameserver};

/// `towpath proxy`, which has a device or a program.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Proxy {
    /// Subcommand such as `run`; `None` if a device is given.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Device and its options; `None` if a subcommand is given.
    #[command(flatten)]
    pub device: Option<ProxyArgs>,
}

/// Commands of `towpath proxy`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run any program in a network namespace whose only uplink is towpath
    #[command(override_usage = run_args::USAGE, long_about = run_args::ABOUT)]
    #[command(after_long_help = run_args::AFTER)]
    Run(ProxyRunArgs),
}

/// Options of `towpath proxy`.
///
/// The attribute `group` lists the options whose presence shows that this group was given.
/// Otherwise clap leaves the group of flattened options empty.
#[derive(Debug, Args)]
#[group(args = ["tun"])]
pub struct ProxyArgs {
    /// TUN device whose traffic is carried
    ///
    /// Creates the device NAME, or uses one that was created for this user: sudo ip tuntap add dev
    /// NAME mode tun user $USER. A device that towpath has created is removed with its addresses
    /// and routes when towpath ends, even if towpath is killed. fd:NUMBER uses the device of an
    /// inherited descriptor, which its creator must configure. The flags of this device must be
    /// IFF_TUN and IFF_NO_PI. IFF_VNET_HDR allows segments of 64 KiB.
    #[arg(long, value_name = "NAME", required = true)]
    pub tun: String,

    /// Network whose traffic is routed into the device: ADDRESS/LENGTH, IPv4 or IPv6
    ///
    /// May be given several times. 0.0.0.0/1 and 128.0.0.0/1 together cover IPv4, without changing
    /// the default route. Without this option, no route is added. Requires --interface or --mark,
    /// which keep towpath's own connections out of the route. Also requires a device that towpath
    /// creates.
    #[arg(long, value_name = "CIDR", value_parser = parse_network)]
    pub route: Vec<Prefix>,

    /// Interface by which towpath's own connections leave this host (SO_BINDTODEVICE)
    ///
    /// Packets to loopback addresses always leave by the loopback interface.
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,

    /// Mark on the packets of towpath's own connections, for a rule of `ip rule`
    ///
    /// For example --mark 7 with: ip rule add fwmark 7 lookup 100. Needs CAP_NET_ADMIN. (SO_MARK)
    #[arg(long, value_name = "NUMBER", value_parser = parse_mark)]
    pub mark: Option<u32>,

    /// Address of this host on the device, with its prefix length
    ///
    /// May be given several times. By default, a device that towpath creates gets 198.18.0.1/32 and
    /// fd00:18::1/128, which programs of this host use as source addresses. An existing device
    /// keeps its addresses.
    #[arg(long, value_name = "CIDR", value_parser = parse_cidr)]
    pub address: Vec<Prefix>,

    /// Largest IP packet of the device, in bytes: 1280 to 65535
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu, default_value_t = MTU_DEFAULT)]
    pub mtu: u32,

    /// Nameserver that answers all queries to port 53, whatever their destination address
    ///
    /// By default, queries are carried like other traffic, to the nameserver to which they were
    /// sent.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_nameserver)]
    pub dns: Option<IpAddr>,

    /// Print the commands that have the same effect, without executing them
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub capture: CaptureArgs,

    /// Print the counters to standard error at the end, and at each SIGUSR1
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "text")]
    pub stats: Option<StatsFormat>,

    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// Default MTU in bytes: that of Ethernet, because the device may carry forwarded traffic of other
/// hosts.
const MTU_DEFAULT: u32 = 1500;

fn parse_network(text: &str) -> Result<Prefix, String> {
    let form = "expected ADDRESS/LENGTH, for example 10.9.0.0/16";
    if text == "default" {
        let (v4, v6) = (halves(true), halves(false));
        return Err(format!("{form}; for all of IPv4 {v4}, for all of IPv6 {v6}"));
    }
    let (ip, len) = text.split_once('/').ok_or(form)?;
    let ip: IpAddr = ip.parse().map_err(|_| format!("{ip:?} is not an IP address; {form}"))?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let number = len.parse().ok().filter(|len| *len <= bits);
    let network = number.and_then(|len| Prefix::new(ip, len));
    let network =
        network.ok_or_else(|| format!("{len:?} is not a prefix length: expected 0 to {bits}"))?;
    if network.network() != ip {
        let whole = network.trunc();
        return Err(format!(
            "{ip} is a host of {whole}, not a network; give {whole} or {ip}/{bits}"
        ));
    }
    if ip.is_multicast() || ip.is_loopback() {
        return Err(format!("{network} cannot be led into a device"));
    }
    Ok(network)
}

/// Returns the advice to route two networks that together cover an IP version, in place of its
/// default route.
pub fn halves(is_v4: bool) -> &'static str {
    match is_v4 {
        true => "give --route 0.0.0.0/1 --route 128.0.0.0/1",
        false => "give --route ::/1 --route 8000::/1",
    }
}

fn parse_mark(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.ok().filter(|mark| *mark != 0).ok_or_else(|| {
        format!("{text:?} is not a mark: expected a number from 1 to 4294967295, or as 0x22b")
    })
}

/// Text of `towpath proxy --help` in front of the options.
pub const ABOUT: &str = "\
Carry the traffic of a TUN device by ordinary connections of this host.

Any program's traffic can be led into the device, by routes: static and Go programs, containers, \
other hosts that this one routes for. Each TCP connection that comes in is first made from this \
host and then answered, so that a refusal is a refusal and an unreachable host is unreachable; \
half-closes and resets pass on, each way by itself. UDP (every port seen at one port), ping, \
IPv4 and IPv6, TTL, class and ICMP errors go along.

For one program, without root and without a device that root has made: towpath proxy run --help.

Ctrl-C or SIGTERM ends it; connections that are open then are reset on both sides.";

/// Text of `towpath proxy --help` behind the options.
pub const AFTER: &str = "\
Examples:
  sudo towpath proxy --tun tw0 --route 10.9.0.0/16 --interface eth0
      Carry what this host sends to 10.9.0.0/16 by connections over eth0
  sudo towpath proxy --tun tw0 --route 10.9.0.0/16 --interface eth0 --dry-run
      Show beforehand which commands come to the same set-up
  sudo towpath proxy --tun tw0 --mark 7
      Set no routes: `ip route` and `ip rule` lead traffic into tw0, and
      packets with mark 7 past it
  sudo ip tuntap add dev tw0 mode tun user $USER
  sudo ip link set tw0 mtu 1500 txqueuelen 4096 up
  towpath proxy --tun tw0 --interface eth0
      Without root, on a device that an administrator made

Exit status:
  0    Ctrl-C or a signal ended it
  2    an option or argument is wrong
  125  it failed: no /dev/net/tun, no permission, the device was deleted";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Parser of the command line of `towpath proxy`, without the other commands.
    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        proxy: Proxy,
    }

    fn parse(words: &[&str]) -> Result<Proxy, clap::Error> {
        Ok(Alone::try_parse_from(["proxy"].iter().chain(words))?.proxy)
    }

    #[test]
    fn a_device_is_taken_with_its_options() {
        let options =
            ["--tun", "tw0", "--pcap", "out.pcapng", "--pcap-snaplen", "128", "--dry-run"];
        for number in [2, 4, 6, 7] {
            let proxy = parse(&options[..number]).unwrap();
            assert_eq!(proxy.device.map(|device| device.tun).as_deref(), Some("tw0"));
        }
        assert!(parse(&["run", "true"]).unwrap().device.is_none());
        for wrong in [&[][..], &["--dry-run"], &["--tun", "tw0", "run", "true"]] {
            parse(wrong).unwrap_err();
        }
    }

    #[test]
    fn networks_are_whole() {
        let network = |text| parse_network(text).map(|network| network.to_string());
        for good in ["10.9.0.0/16", "0.0.0.0/0", "::/0", "fd00:9::/32", "192.0.2.7/32"] {
            assert_eq!(network(good), Ok(good.to_owned()));
        }
        let wrong = [
            ("10.9.0.1/16", "give 10.9.0.0/16 or 10.9.0.1/32"),
            ("10.9.0.0", "ADDRESS/LENGTH"),
            ("10.9.0.0/33", "0 to 32"),
            ("tw0/8", "not an IP address"),
            ("default", "--route 0.0.0.0/1 --route 128.0.0.0/1"),
            ("224.0.0.0/4", "cannot be led"),
        ];
        for (text, wanted) in wrong {
            let error = network(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn marks_are_numbers_of_either_kind() {
        assert_eq!((parse_mark("7"), parse_mark("0x22b")), (Ok(7), Ok(0x22b)));
        for wrong in ["", "0", "0x", "-1", "4294967296", "seven"] {
            assert!(parse_mark(wrong).is_err(), "{wrong}");
        }
    }
}
