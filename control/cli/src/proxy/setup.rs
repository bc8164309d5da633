//! Configures the device of `towpath proxy` with its addresses and routes, and the route of
//! towpath's own connections.

use std::fmt::Write;
use std::io;
use std::net::IpAddr;

use anyhow::{Context, Result};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use towpath_gateway::Egress;
use towpath_tap::{
    HostError, Kind, Marks, Options, Tap, add_routes, check_name, leads_through, set_up_host,
};
use towpath_wire::Prefix;

use super::args::{self, ProxyArgs};
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;

/// Default addresses of this host on the device. The IPv4 address is from the block for tests of
/// network devices (RFC 2544). The prefixes contain only one address, so the kernel adds no route.
const ADDRESSES_DEFAULT: [&str; 2] = ["198.18.0.1/32", "fd00:18::1/128"];

/// Checks that options are consistent.
///
/// # Errors
/// Fails with a message for the user if options contradict each other.
pub fn check(args: &ProxyArgs) -> Result<()> {
    if let Some(number) = args.tun.strip_prefix(BY_DESCRIPTOR) {
        descriptor(args)?;
        let options = [
            ("--route", !args.route.is_empty()),
            ("--address", !args.address.is_empty()),
            ("--dry-run", args.dry_run),
        ];
        if let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) {
            let message = format!(
                "{option}: the device of descriptor {number} is set up by the program that made \
                 it, and towpath changes nothing there; leave {option} out"
            );
            return Err(Failure::error(ExitCode::Usage, message));
        }
        return Ok(());
    }
    check_name(&args.tun)
        .map_err(|error| Failure::error(ExitCode::Usage, format!("--tun: {error}")))?;
    if let (Some(route), None, None) = (args.route.first(), args.mark, &args.interface) {
        let message = format!(
            "--route {route} leads towpath's own connections back into {}, too: add --interface \
             IF, the interface by which they leave, or --mark N and a rule for that mark",
            args.tun
        );
        return Err(Failure::error(ExitCode::Usage, message));
    }
    if args.interface.as_ref() == Some(&args.tun) {
        let message = format!(
            "--interface {}: towpath's own connections cannot leave by the device whose traffic \
             they carry; name the interface that leads to the network",
            args.tun
        );
        return Err(Failure::error(ExitCode::Usage, message));
    }
    if let (Some("lo"), Some(route)) = (args.interface.as_deref(), args.route.first()) {
        let message = format!(
            "--interface lo: nothing leaves this host by lo, {route} included; name the interface \
             that leads to the network"
        );
        return Err(Failure::error(ExitCode::Usage, message));
    }
    Ok(())
}

/// Returns the socket options for towpath's own connections (SO_MARK, SO_BINDTODEVICE), after
/// testing them.
///
/// # Errors
/// Fails if the interface does not exist, or if this process may not set an option.
pub fn egress(args: &ProxyArgs) -> Result<Egress> {
    let egress = Egress { mark: args.mark, interface: args.interface.clone() };
    let interface = args.interface.as_deref().unwrap_or_default();
    egress.check().map_err(|error| {
        let message = match (error.raw_os_error(), args.mark) {
            (Some(NODEV), _) => {
                format!("--interface {interface}: there is no such interface; `ip link` lists them")
            }
            (Some(PERM), Some(mark)) => format!(
                "--mark {mark} needs CAP_NET_ADMIN: run with sudo, or use --interface IF instead"
            ),
            _ => format!("sockets cannot be kept out of {}: {error}", args.tun),
        };
        Failure::error(ExitCode::Failed, message)
    })?;
    Ok(egress)
}

/// Values of the errnos EPERM and ENODEV.
const PERM: i32 = 1;
const NODEV: i32 = 19;

/// Opens the device and configures it.
///
/// # Errors
/// Returns any error with a message for the user. If the device was created, it is removed again.
pub fn device(args: &ProxyArgs, messages: &Messages) -> Result<Tap> {
    if let Some(number) = descriptor(args)? {
        return inherited(number).with_context(|| format!("--tun {}", args.tun));
    }
    let tun = Tap::open_kind(Kind::Tun, &Options { name: Some(args.tun.clone()) })?;
    let stays = tun.is_persistent();
    if let (true, Some(route)) = (stays, args.route.first()) {
        let name = tun.name();
        let message = format!(
            "--route {route}: {name} was made beforehand and stays, and the route would stay with \
             it after a crash; set it once with `sudo ip route add {route} dev {name}`, or delete \
             the device and let towpath make it"
        );
        return Err(Failure::error(ExitCode::Failed, message));
    }
    let addresses = addresses(args, stays)?;
    refuse_own(&args.address, tun.name())?;
    let pairs: Vec<_> = addresses.iter().map(|own| (own.addr(), own.len())).collect();
    set_up_host(tun.name(), args.mtu, &pairs)?;
    let routes: Vec<_> = args.route.iter().map(|route| (route.network(), route.len())).collect();
    add_routes(tun.name(), &routes).map_err(instead_of_default)?;
    for route in &args.route {
        check_way(args, tun.name(), route, messages)?;
    }
    accept_own_errors(tun.name(), stays, messages);
    warn_of_services(args, tun.name(), messages);
    Ok(tun)
}

/// Returns an error if another interface of this host has one of the addresses. Packets from such
/// an address would come from this host itself.
fn refuse_own(asked: &[Prefix], device: &str) -> Result<()> {
    // If the interfaces cannot be listed, the kernel decides whether to accept the address.
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return Ok(()) };
    for entry in all.filter(|entry| entry.interface_name != device) {
        let Some(address) = entry.address else { continue };
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let own = v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())));
        if let Some(taken) = asked.iter().find(|asked| Some(asked.addr()) == own) {
            let message = format!(
                "--address {taken}: this host has it on {} already; give {device} another one",
                entry.interface_name
            );
            return Err(Failure::error(ExitCode::Failed, message));
        }
    }
    Ok(())
}

/// Adds advice to the error that the kernel returns for a second default route.
fn instead_of_default(error: HostError) -> anyhow::Error {
    let HostError::RouteTaken { name, ip, len: 0 } = error else { return error.into() };
    let message = format!(
        "cannot add a route to {ip}/0 through {name}: this host has a default route already; {}, \
         which go before it and leave it alone",
        args::halves(ip.is_ipv4())
    );
    Failure::error(ExitCode::Failed, message)
}

/// Enables forwarded clients to receive ICMP errors that this host itself generates. Their source
/// is an address of this host, which the kernel does not accept from a device by default. IPv6 has
/// no such restriction. If the device was created, the setting is removed together with the device.
fn accept_own_errors(name: &str, stays: bool, messages: &Messages) {
    let folder = std::path::Path::new("/proc/sys/net/ipv4");
    let is_set = |file: &str| {
        std::fs::read_to_string(folder.join(file)).is_ok_and(|text| text.trim() != "0")
    };
    let setting = format!("conf/{name}/accept_local");
    if is_set("conf/all/accept_local") || is_set(&setting) {
        return;
    }
    let is_made = !stays && std::fs::write(folder.join(&setting), "1").is_ok();
    // Tell the user to change the setting only if this host forwards. Programs of this host receive
    // the errors without this setting.
    if !is_made && is_set("ip_forward") {
        messages.say(&format!(
            "clients that this host forwards do not hear its own ICMP errors: \
             `sudo sysctl -w {}`",
            accept_local(name)
        ));
    }
}

/// Returns the sysctl setting that accepts packets with own addresses as sources, in the syntax of
/// sysctl(8) for names that contain dots.
fn accept_local(name: &str) -> String {
    format!("net/ipv4/conf/{name}/accept_local=1")
}

/// Warns if routes lead answers of this host's own services into the device, so that their clients
/// do not get them.
fn warn_of_services(args: &ProxyArgs, name: &str, messages: &Messages) {
    for is_v4 in [true, false] {
        let leads = |route: &&Prefix| route.len() <= 1 && route.network().is_ipv4() == is_v4;
        let Some(route) = args.route.iter().find(leads) else { continue };
        let ip = if is_v4 { "ip" } else { "ip -6" };
        let by = args.interface.as_ref().map(|dev| format!(" dev {dev}")).unwrap_or_default();
        messages.say(&format!(
            "warning: {route} leads answers of this host's own services into {name} as well, so \
             that clients outside, ssh included, lose them; to keep them out: `sudo {ip} route add \
             default via ROUTER{by} table 100` and `sudo {ip} rule add from ADDRESS lookup 100`, \
             where ADDRESS is the one that clients use"
        ));
    }
}

/// Prefix of a device argument that is the number of a descriptor.
const BY_DESCRIPTOR: &str = "fd:";

/// Returns the descriptor number if the device was given by its descriptor.
fn descriptor(args: &ProxyArgs) -> Result<Option<i32>> {
    let Some(text) = args.tun.strip_prefix(BY_DESCRIPTOR) else { return Ok(None) };
    let number = text.parse().ok().filter(|number| *number >= 0).ok_or_else(|| {
        let message = format!("--tun fd:{text}: {text:?} is not a descriptor: expected a number");
        Failure::error(ExitCode::Usage, message)
    })?;
    Ok(Some(number))
}

/// Opens the device of a descriptor that this process has inherited.
fn inherited(number: i32) -> Result<Tap> {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).context("pidfd_open")?;
    // Duplicate the descriptor, because no Rust value owns an inherited descriptor number.
    let duplicate = pidfd_getfd(own, number, PidfdGetfdFlags::empty())
        .with_context(|| format!("descriptor {number}"))?;
    Ok(Tap::from_descriptor(duplicate.into(), Kind::Tun)?)
}

fn addresses(args: &ProxyArgs, stays: bool) -> Result<Vec<Prefix>> {
    if stays || !args.address.is_empty() {
        return Ok(args.address.clone());
    }
    let parsed = ADDRESSES_DEFAULT.iter().map(|text| text.parse::<Prefix>());
    parsed.collect::<Result<Vec<_>, _>>().context("defaults")
}

/// Returns an error if a route would lead towpath's own connections into the device again.
fn check_way(args: &ProxyArgs, name: &str, route: &Prefix, messages: &Messages) -> Result<()> {
    let marks = Marks { mark: args.mark, interface: args.interface.as_deref() };
    let to = probe(route);
    match leads_through(name, to, marks) {
        Ok(false) => Ok(()),
        Ok(true) => {
            let remedy = match args.mark {
                Some(mark) => format!(
                    "there is no rule for mark {mark}: `sudo ip rule add fwmark {mark} lookup 100` \
                     and, in that table, `sudo ip route add default via ROUTER table 100`"
                ),
                None => "name the interface that leads to the network".to_owned(),
            };
            let message = format!(
                "towpath's own connections to {route} would come back into {name}: {remedy}"
            );
            Err(Failure::error(ExitCode::Failed, message))
        }
        Err(error) => {
            messages.say(&no_way(args, route, &error));
            Ok(())
        }
    }
}

fn no_way(args: &ProxyArgs, route: &Prefix, error: &io::Error) -> String {
    let by = args.interface.as_ref().map(|name| format!(" by {name}")).unwrap_or_default();
    format!(
        "towpath's own connections to {route} will fail: this host has no way there{by} ({error})"
    )
}

/// Returns an address in a network for a test of routes. Prefers a public address if the network
/// contains one.
fn probe(network: &Prefix) -> IpAddr {
    let public = ["1.0.0.1", "192.0.2.1", "2001:db8::1"];
    let mut known = public.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    known.find(|ip| network.contains(*ip)).unwrap_or_else(|| match network.network() {
        IpAddr::V4(ip) if network.len() < 31 => IpAddr::V4((ip.to_bits() | 1).into()),
        IpAddr::V6(ip) if network.len() < 127 => IpAddr::V6((ip.to_bits() | 1).into()),
        ip => ip,
    })
}

/// Returns shell commands that configure the device in the same way, one per line.
pub fn commands(args: &ProxyArgs) -> Result<String> {
    let name = &args.tun;
    let device = std::path::Path::new("/sys/class/net").join(name);
    let exists = device.exists();
    if exists && !is_tun(&device) {
        let message = format!(
            "--tun {name}: {name} is there already and is not a TUN device; give another name"
        );
        return Err(Failure::error(ExitCode::Failed, message));
    }
    let mut out = String::new();
    // Ignore errors: writing to a String cannot fail.
    if !exists {
        let _ = writeln!(out, "ip tuntap add dev {name} mode tun");
    }
    let _ = writeln!(
        out,
        "ip link set {name} mtu {} txqueuelen {} up",
        args.mtu,
        towpath_tap::QUEUE_LEN
    );
    for own in addresses(args, exists)? {
        let _ = writeln!(out, "ip addr add {own} dev {name}");
    }
    if !exists {
        let _ = writeln!(out, "sysctl -w {}", accept_local(name));
    }
    for route in &args.route {
        let _ = writeln!(out, "ip route add {route} dev {name}");
    }
    Ok(out)
}

/// Returns whether an interface is a TUN device, according to its file in /sys.
fn is_tun(device: &std::path::Path) -> bool {
    let flags = std::fs::read_to_string(device.join("tun_flags")).unwrap_or_default();
    let flags = flags.trim().strip_prefix("0x").map(|hex| u32::from_str_radix(hex, 16));
    matches!(flags, Some(Ok(flags)) if flags & IFF_TUN != 0)
}

/// Flag of linux/if_tun.h for a TUN device. A TAP device has IFF_TAP instead.
const IFF_TUN: u32 = 1;

/// Describes the device and its routes in a line for the user.
pub fn facts(args: &ProxyArgs, name: &str) -> String {
    let mut out = format!("{name} is up");
    let routes: Vec<_> = args.route.iter().map(Prefix::to_string).collect();
    match routes.is_empty() {
        true => out += ", without routes of towpath's",
        false => out += &format!(", {} through it", routes.join(" and ")),
    }
    if let Some(interface) = &args.interface {
        out += &format!("; towpath's own connections leave by {interface}");
    }
    if let Some(mark) = args.mark {
        out += &format!("; towpath's own connections have mark {mark}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_lies_in_its_network() {
        let networks = [
            ("0.0.0.0/0", "1.0.0.1"),
            ("0.0.0.0/1", "1.0.0.1"),
            ("128.0.0.0/1", "192.0.2.1"),
            ("10.9.0.0/16", "10.9.0.1"),
            ("10.9.0.7/32", "10.9.0.7"),
            ("10.9.0.6/31", "10.9.0.6"),
            ("::/0", "2001:db8::1"),
            ("fd00:9::/64", "fd00:9::1"),
        ];
        for (network, wanted) in networks {
            let network: Prefix = network.parse().unwrap();
            let ip = probe(&network);
            assert_eq!(ip.to_string(), wanted);
            assert!(network.contains(ip));
        }
    }
}
