//! The device of `towpath proxy`: its addresses and routes, and towpath's own way past them.

use std::fmt::Write;
use std::io;
use std::net::IpAddr;

use anyhow::{Context, Result};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use towpath_gateway::Egress;
use towpath_tap::{Kind, Marks, Options, Tap, add_routes, leads_through, set_up_host};
use towpath_wire::Prefix;

use super::args::ProxyArgs;
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;

/// Addresses of this host on a device that has none. The first is of the block for tests of network
/// devices (RFC 2544). Each is a network of one host, so that no route follows from it.
const ADDRESSES_DEFAULT: [&str; 2] = ["198.18.0.1/32", "fd00:18::1/128"];

/// Checks what options say about each other.
///
/// # Errors
/// Two of them contradict each other; the error is the sentence for the user.
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
    Ok(())
}

/// The way of towpath's own connections, which is tried.
///
/// # Errors
/// There is no such way, or this process may not go it.
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

/// errno(3): EPERM and ENODEV.
const PERM: i32 = 1;
const NODEV: i32 = 19;

/// Opens the device and sets up this host's end.
///
/// # Errors
/// With the sentence for the user. A device that was made has vanished again.
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
    let pairs: Vec<_> = addresses.iter().map(|own| (own.addr(), own.len())).collect();
    set_up_host(tun.name(), args.mtu, &pairs)?;
    let routes: Vec<_> = args.route.iter().map(|route| (route.network(), route.len())).collect();
    add_routes(tun.name(), &routes)?;
    for route in &args.route {
        check_way(args, tun.name(), route, messages)?;
    }
    Ok(tun)
}

/// Beginning of a device that is given by its descriptor.
const BY_DESCRIPTOR: &str = "fd:";

/// The descriptor in the place of a device's name, if there is one.
fn descriptor(args: &ProxyArgs) -> Result<Option<i32>> {
    let Some(text) = args.tun.strip_prefix(BY_DESCRIPTOR) else { return Ok(None) };
    let number = text.parse().ok().filter(|number| *number >= 0).ok_or_else(|| {
        let message = format!("--tun fd:{text}: {text:?} is not a descriptor: expected a number");
        Failure::error(ExitCode::Usage, message)
    })?;
    Ok(Some(number))
}

/// The device of a descriptor that this process was started with.
fn inherited(number: i32) -> Result<Tap> {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).context("pidfd_open")?;
    // A duplicate has an owner, where the number has none.
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

/// Refuses to start where towpath's own connections to a network would come back.
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

/// An address of a network that stands for all of it: a public one where the network has one.
fn probe(network: &Prefix) -> IpAddr {
    let public = ["1.0.0.1", "192.0.2.1", "2001:db8::1"];
    let mut known = public.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    known.find(|ip| network.contains(*ip)).unwrap_or_else(|| match network.network() {
        IpAddr::V4(ip) if network.len() < 31 => IpAddr::V4((ip.to_bits() | 1).into()),
        IpAddr::V6(ip) if network.len() < 127 => IpAddr::V6((ip.to_bits() | 1).into()),
        ip => ip,
    })
}

/// The commands that come to the same set-up, a line each.
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
    // Writing to a String cannot fail.
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
    for route in &args.route {
        let _ = writeln!(out, "ip route add {route} dev {name}");
    }
    Ok(out)
}

/// Whether an interface is a TUN device, as its folder in /sys tells.
fn is_tun(device: &std::path::Path) -> bool {
    let flags = std::fs::read_to_string(device.join("tun_flags")).unwrap_or_default();
    let flags = flags.trim().strip_prefix("0x").map(|hex| u32::from_str_radix(hex, 16));
    matches!(flags, Some(Ok(flags)) if flags & IFF_TUN != 0)
}

/// From linux/if_tun.h; a TAP device has IFF_TAP in its place.
const IFF_TUN: u32 = 1;

/// A line for the user.
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
