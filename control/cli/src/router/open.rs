//! Opens the devices of a router's ports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use towpath_bridge::{Bridge, BridgeConfig};
use towpath_config::{PortDevice, PortSettings, layers};
use towpath_nat64::{Nat64Config, Nat64Port};
use towpath_pcap::CaptureFile;
use towpath_pool::Port;
use towpath_router::OpenPort;
use towpath_uplink::{
    Counting, DeviceRequest, DeviceSpec, DeviceUse, Followed, OpenDevice, Tally, Tell, station_mac,
};
use towpath_vlan::Vlan;

use crate::args::Shards;
use crate::error::{ExitCode, Failure};

/// MTU in bytes of a bridge that has no members.
const BRIDGE_MTU: u32 = 1500;

/// MTU in bytes of a translator, as of Ethernet links.
const NAT64_MTU: u32 = 1500;

/// Counters of a port, which can be read while the router runs and after the port was closed.
pub type Left = Arc<Tally>;

/// Open ports in the order of the options, and the counters of each.
pub struct Opened {
    pub ports: Vec<OpenPort>,
    pub counters: Vec<Left>,
    /// Kernel interfaces whose MTU changes the router adopts.
    pub followed: Vec<Followed>,
}

/// Returns an error if an interface of this host has an address of a port, because both would
/// answer for the address.
///
/// # Errors
/// Returns an error message.
pub fn refuse_own_addresses(ports: &[PortSettings]) -> Result<()> {
    let own: Vec<_> = nix::ifaddrs::getifaddrs().context("getifaddrs")?.collect();
    let ip_of = |address: &nix::ifaddrs::InterfaceAddress| -> Option<IpAddr> {
        let address = address.address?;
        let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
    };
    for address in ports.iter().flat_map(|port| &port.addresses) {
        let taken = own.iter().find(|mine| ip_of(mine) == Some(address.addr()));
        if let Some(mine) = taken {
            let message = format!(
                "{} is an address of this host itself, on {}: give the router another one",
                address.addr(),
                mine.interface_name
            );
            return Err(Failure::error(ExitCode::Usage, message));
        }
    }
    Ok(())
}

/// Returns the names of the ports' interfaces that do not exist on this host; empty if all exist.
pub fn missing_interfaces(ports: &[PortSettings]) -> String {
    let names = ports.iter().filter_map(|port| port.device.device()?.interface());
    let missing = names.filter(|name| nix::net::if_::if_nametoindex(*name).is_err());
    match missing.collect::<Vec<_>>() {
        missing if missing.is_empty() => String::new(),
        missing => format!("; not on this host now: {}", missing.join(", ")),
    }
}

/// How many queues to open for the devices.
#[derive(Debug, Clone, Copy)]
pub struct PortQueues<'a> {
    /// Number of queues of each device, one for each shard.
    pub count: usize,
    /// Whether a device may open only one queue if several would be slower.
    pub is_auto: bool,
    /// Secret of the stack. Hashed with the addresses of a flow, it determines the queue of the
    /// flow.
    pub seed: &'a [u8; 32],
}

/// A device, or a VLAN on it, that is open but not yet used by a port.
struct PortPart {
    queues: Vec<Box<dyn Port + Send>>,
    mac: [u8; 6],
    mtu: u32,
}

/// Returns the number of shards. `auto` selects one shard if a device can be opened only once.
/// With several shards, a port with fewer queues would require a second open of the device.
pub fn shard_count(ports: &[PortSettings], wanted: Shards) -> usize {
    let opens_once = |port: &PortSettings| {
        port.device.device().is_some_and(|spec| spec.driver().traits.opens_once)
    };
    match wanted {
        Shards::Auto if ports.iter().any(opens_once) => 1,
        wanted => wanted.count(),
    }
}

/// Returns an error if several shards were requested, but the device of a port has only one queue.
///
/// # Errors
/// Returns an error message.
pub fn refuse_queues(ports: &[PortSettings], count: usize) -> Result<()> {
    let is_whole = |port: &&PortSettings| match &port.device {
        PortDevice::Bridge { .. } | PortDevice::Nat64(_) => true,
        device => device.device().is_some_and(|spec| !spec.driver().traits.has_queues),
    };
    match ports.iter().find(is_whole).filter(|_| count > 1) {
        Some(port) => {
            let (kind, _) = port.device.words();
            let why = format!(
                "--shards {count}: the port {} is of the kind {kind}, which one thread serves: \
                 use --shards 1",
                port.name
            );
            Err(Failure::error(ExitCode::Usage, why))
        }
        None => Ok(()),
    }
}

/// Opens all devices, and creates VLANs and bridges on them. The result contains only ports that
/// are interfaces of the router.
///
/// # Errors
/// Returns the error of the first device that cannot be opened. All others are closed.
pub fn ports(
    words: &[PortSettings],
    queues: PortQueues<'_>,
    capture: Option<&CaptureFile>,
) -> Result<Opened> {
    let mut opened = Opened { ports: Vec::new(), counters: Vec::new(), followed: Vec::new() };
    let mut parts = BTreeMap::new();
    for port in words {
        let left = Left::default();
        if let Some(spec) = port.device.device() {
            let part = device(words, port, spec, queues, &left, &mut opened.followed)?;
            split(words, port, part, &left, &mut parts)?;
        }
        if let Some(config) = port.device.translator() {
            parts.insert(port.name.clone(), translator(config, queues.seed, &left)?);
        }
        opened.counters.push(left);
    }
    for (port, left) in words.iter().zip(&opened.counters) {
        let PortDevice::Bridge { members, ageing, addresses } = &port.device else { continue };
        let members: Vec<_> = members.iter().filter_map(|name| parts.remove(name)).collect();
        let mac = station_mac(port.name.as_bytes(), &port.addresses);
        let mtu = members.iter().map(|part| part.mtu).min().unwrap_or(BRIDGE_MTU);
        let mut config = BridgeConfig::new(mac);
        if let Some(seconds) = ageing {
            config.ageing_ns = u64::from(*seconds) * 1_000_000_000;
        }
        if let Some(count) = addresses {
            config.addresses_max = *count as usize;
        }
        let members = members.into_iter().flat_map(|part| part.queues).collect();
        let bridge = Bridge::new(members, config).map_err(|error| of_port(port, error))?;
        let part = PortPart { queues: vec![Box::new(Counting::new(bridge, left))], mac, mtu };
        parts.insert(port.name.clone(), part);
    }
    let is_alone = words.len() == 1;
    for port in words.iter().filter(|port| is_alone || port.is_interface()) {
        let Some(PortPart { mut queues, mac, mtu }) = parts.remove(&port.name) else { continue };
        if let Some(file) = capture {
            let recorded = file.capture_queues(&port.name, queues).context("--pcap")?;
            queues = recorded.into_iter().map(|queue| Box::new(queue) as _).collect();
        }
        opened.ports.push(OpenPort { queues, mac, mtu });
    }
    Ok(opened)
}

/// Opens the device of a port.
fn device(
    words: &[PortSettings],
    port: &PortSettings,
    spec: &DeviceSpec,
    queues: PortQueues<'_>,
    left: &Left,
    followed: &mut Vec<Followed>,
) -> Result<PortPart> {
    let vlans = || layers::vlans_of(words, &port.name).map(|(vlan, _)| vlan);
    // Open the device with the addresses of all its VLANs, because they share its Ethernet address.
    let mut addresses = port.addresses.clone();
    vlans().for_each(|vlan| addresses.extend(&vlan.addresses));
    let is_bridged = vlans().chain([port]).any(|port| layers::is_member(words, &port.name));
    let usage = if is_bridged { DeviceUse::Bridge } else { DeviceUse::Router };
    // Ignore remarks of the device, because the router reports removed devices itself.
    let tell = Tell::ignore();
    let PortQueues { count, is_auto, seed } = queues;
    let has_dhcp = vlans().chain([port]).any(|port| port.by_dhcp);
    let request = DeviceRequest::new(usage, &addresses, left, &tell);
    let opened =
        spec.open(&DeviceRequest { has_dhcp, queues: count, auto: is_auto, seed, ..request });
    let OpenDevice { ports, site, .. } = opened.map_err(|error| of_port(port, error))?;
    if ports.len() != count {
        return Err(of_port(port, format!("{} of {count} queues are of use", ports.len())));
    }
    followed.extend(site.followed);
    Ok(PortPart { queues: ports, mac: site.mac, mtu: site.mtu })
}

/// Creates the translator of a port.
fn translator(config: &Nat64Config, seed: &[u8; 32], left: &Left) -> Result<PortPart> {
    let seed = seed.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    let port = Nat64Port::new(config, seed).context("nat64")?;
    let queues: Vec<Box<dyn Port + Send>> = vec![Box::new(Counting::new(port, left))];
    Ok(PortPart { queues, mac: [0; 6], mtu: NAT64_MTU })
}

/// Splits the packets of a device among its VLANs. Also splits packets if the port is a member of a
/// bridge. Otherwise frames with a VLAN tag would leave through another member without the tag.
fn split(
    words: &[PortSettings],
    port: &PortSettings,
    part: PortPart,
    left: &Left,
    parts: &mut BTreeMap<String, PortPart>,
) -> Result<()> {
    let is_member = layers::is_member(words, &port.name);
    let mut wanted: Vec<_> = layers::vlans_of(words, &port.name)
        .map(|(vlan, id)| (vlan.name.clone(), Vlan::Tagged(id)))
        .collect();
    if wanted.is_empty() && !is_member {
        parts.insert(port.name.clone(), part);
        return Ok(());
    }
    let PortPart { queues, mac, mtu } = part;
    if is_member || port.is_interface() {
        wanted.push((port.name.clone(), Vlan::Untagged));
    }
    let vlans: Vec<_> = wanted.iter().map(|(_, vlan)| *vlan).collect();
    for queue in queues {
        let ports = towpath_vlan::split(queue, &vlans).map_err(|error| of_port(port, error))?;
        for (place, ((name, _), vlan)) in wanted.iter().zip(ports).enumerate() {
            // Count the device's packets only for the first VLAN. Otherwise each VLAN would count
            // the packets of the whole queue.
            let port: Box<dyn Port + Send> = match place {
                0 => Box::new(Counting::new(vlan, left)),
                _ => Box::new(vlan),
            };
            let part = PortPart { queues: Vec::new(), mac, mtu };
            parts.entry(name.clone()).or_insert(part).queues.push(port);
        }
    }
    Ok(())
}

fn of_port(port: &PortSettings, error: impl std::fmt::Display) -> anyhow::Error {
    Failure::error(ExitCode::Failed, format!("port {}: {error}", port.name))
}
